"""Latency of READs and WRITEs of a lease, and of perftest's between the same devices, in turns.

A READ is over when its bytes are there, and ib_read_lat says when. A WRITE is over when it is acknowledged: that is a round
trip, of which ib_write_lat, which bounces WRITEs, says one half.
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

BERTH, OUT = os.environ["BERTH"], pathlib.Path(os.environ["OUT"])
TURNS, COUNT, SIZES = 3, 2000, (64, 4096)


def perftest(op, size):
    """The typical latency in us."""
    common = [f"ib_{op}_lat", "-x", "1", "-F", "-s", str(size), "-n", str(COUNT)]
    server = subprocess.Popen(["taskset", "-c", "0", *common, "-d", "rxe0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # Until it listens on its port, 18515.
    tables = [pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6")]
    while not any(re.search(":4853 0+:0000 0A", table.read_text()) for table in tables):
        time.sleep(0.05)
    told = subprocess.run(["taskset", "-c", "1", *common, "-d", "rxe1", "10.9.0.1"], capture_output=True, text=True)
    row = re.search(rf"^\s*{size}\s+{COUNT}\s+(.*)$", told.stdout, re.M)
    if told.returncode or not row:
        server.kill()
        raise SystemExit(told.stdout + told.stderr)
    server.wait()
    typical = float(row.group(1).split()[2])
    return typical * 2 if op == "write" else typical


def berth(folder, op, size):
    """The median latency in us, and what binding and the first access took."""
    report = folder / "report.json"
    command = [BERTH, "perf", "lease", "--binding", "rdma", "--device", "rxe1", "--control", "127.0.0.1:5701"]
    command += ["--identity", str(folder / "key"), "--op", op, "--size", str(size), "--count", str(COUNT)]
    command += ["--cpu", "1", "--window", "1", "--warmup", "0.1", "--no-progress", "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr + done.stdout)
    cases = json.loads(report.read_text())["cases"]
    median = next(case for case in cases if case["name"].startswith(op))["latency"]["p50"] / 1000
    took = [float(us) for us in re.findall(r"took ([0-9.]+) us", done.stderr)]
    return median, took


def node(folder):
    environment = {**os.environ, "BERTH_KEY": str(folder / "key"), "HOME": str(folder)}
    subprocess.run([BERTH, "key", "new"], env=environment, check=True, stdout=subprocess.DEVNULL)
    shown = subprocess.run([BERTH, "key", "show", "--json"], env=environment, check=True, capture_output=True)
    public = json.loads(shown.stdout)["public_key"]
    config = folder / "berth.toml"
    config.write_text(
        f"""
        [runtime]
        housekeeping_cpus = [0]
        [node]
        state_dir = "{folder}/state"
        [control]
        enrolled = ["{public}"]
        [[control.policy]]
        presenter = "*"
        perms = ["read", "write", "alloc"]
        [[region]]
        name = "scratch"
        kind = "memory"
        size = "4 MiB"
        [[binding]]
        kind = "rdma"
        device = "rxe0"
        """
    )
    server = subprocess.Popen([BERTH, "run", "--config", str(config)], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline().startswith("berth ready")
    return server


with tempfile.TemporaryDirectory() as name, open(OUT / "rows", "w") as rows:
    folder = pathlib.Path(name)
    server = node(folder)

    def row(case, baseline, reach, ours, theirs):
        print(json.dumps(dict(case=case, baseline=baseline, reach=reach, ours=ours, theirs=theirs)), file=rows, flush=True)

    for size in SIZES:
        for op, baseline in (("read", "ib_read_lat"), ("write", "ib_write_lat x 2")):
            for turn in range(TURNS):
                theirs = perftest(op, size)
                ours, took = berth(folder, op, size)
                row(f"{op.upper()} {size} B of a lease, rxe, p50", baseline, 1.05, ours, theirs)
                if size == SIZES[0] and op == "read":
                    row("LEASE_BIND and first READ, rxe", "ib_read_lat", None, sum(took), theirs)
    server.terminate()
    code = server.wait()
print("ok one-sided access to a lease was measured" if code == 0 else f"not ok berth stops well: {code}")
