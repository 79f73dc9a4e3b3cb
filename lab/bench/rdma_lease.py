"""Latency of READs and WRITEs of a lease, and of perftest's between the same devices, in turns.

What a lease costs is told by ib_read_lat itself, with a lease for its server and with its own. Our client stands beside it:
it copies and checks every byte, and a WRITE of its is over when it is acknowledged, which is a round trip; ib_write_lat
bounces WRITEs and says one half.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "lab")
import berth
import perftest

OUT = pathlib.Path(os.environ["OUT"])
COUNT, SIZES = 1000, (64, 4096)
# Reads of soft-RoCE take 40 us or 120, as the kernel places its work: only many turns tell two servers apart.
TURNS, FEW = 15, 3


def typical(told, size):
    """The typical latency in us of what a client of perftest printed."""
    row = re.search(rf"^\s*{size}\s+{COUNT}\s+(.*)$", told, re.M)
    if not row:
        raise SystemExit(told)
    return float(row.group(1).split()[2])


def bare(program, size):
    """Perftest's latency with its own server."""
    common = [program, "-x", "1", "-F", "-s", str(size), "-n", str(COUNT)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(["taskset", "-c", "0", *common, "-d", "rxe0"], stdout=quiet, stderr=quiet)
    # Until it listens on its port, 18515.
    tables = [pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6")]
    while not any(re.search(":4853 0+:0000 0A", table.read_text()) for table in tables):
        time.sleep(0.05)
    client = subprocess.run(["taskset", "-c", "1", *common, "-d", "rxe1", "10.9.0.1"], capture_output=True, text=True)
    if client.returncode:
        server.kill()
    server.wait()
    return typical(client.stdout, size)


class Node(berth.Node):
    """One with a lease that is reached over RDMA."""

    def __init__(self, folder):
        super().__init__(
            folder,
            """
            [[region]]
            name = "scratch"
            kind = "memory"
            size = "4 MiB"
            [[binding]]
            kind = "rdma"
            device = "rxe0"
            """,
        )
        self.lease = self.alloc(1 << 20)

    def bind(self, qpn, psn, gid):
        client = ["--qp-num", str(qpn), "--gid", gid, "--psn", str(psn), "--mtu", "4096"]
        return self.json("lease", "bind", self.lease, "--kind", "rdma", *client)

    def reads(self, size):
        """Perftest's latency with the lease for its server."""
        code, told = perftest.against(self.bind, "ib_read_lat", "-s", str(size), "-n", str(COUNT))
        if code:
            raise SystemExit(told)
        return typical(told, size)

    def ours(self, op, size):
        """Our client's median latency in us, and what binding and the first access took."""
        report = self.folder / "report.json"
        command = [berth.BERTH, "perf", "lease", "--binding", "rdma", "--device", "rxe1", "--control", "127.0.0.1:5701"]
        command += ["--identity", str(self.folder / "key"), "--op", op, "--size", str(size), "--count", str(COUNT)]
        command += ["--cpu", "1", "--window", "1", "--warmup", "0.1", "--no-progress", "--json", str(report)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr + done.stdout)
        cases = json.loads(report.read_text())["cases"]
        median = next(case for case in cases if case["name"].startswith(op))["latency"]["p50"] / 1000
        return median, sum(float(us) for us in re.findall(r"took ([0-9.]+) us", done.stderr))


with tempfile.TemporaryDirectory() as name, open(OUT / "rows", "w") as rows:
    node = Node(pathlib.Path(name))

    def row(case, baseline, reach, ours, theirs):
        print(json.dumps(dict(case=case, baseline=baseline, reach=reach, ours=ours, theirs=theirs)), file=rows, flush=True)

    for size in SIZES:
        for turn in range(TURNS):
            row(f"READ {size} B of a lease, rxe, typical", "ib_read_lat", 1.05, node.reads(size), bare("ib_read_lat", size))
        for turn in range(FEW):
            theirs = bare("ib_read_lat", size)
            ours, took = node.ours("read", size)
            row(f"READ {size} B of a lease by our client, checked, rxe, p50", "ib_read_lat", None, ours, theirs)
            if size == SIZES[0]:
                row("LEASE_BIND and first READ, rxe", "ib_read_lat", None, took, theirs)
            theirs, ours = 2 * bare("ib_write_lat", size), node.ours("write", size)[0]
            row(f"WRITE {size} B of a lease, rxe, p50", "ib_write_lat x 2", 1.05, ours, theirs)
    code = node.stop()
print("ok one-sided access to a lease was measured" if code == 0 else f"not ok berth stops well: {code}")
