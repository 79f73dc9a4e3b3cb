"""Speed of a lease as a disk beside the kernel's nvmet: the same initiator, the same guest, in turns.

Both keep their bytes in RAM: Berth in its own, nvmet on a brd. In the rows "file" both have the same file, with O_DIRECT, on
an ext4 of a brd. Each target's process or threads share the guest's two CPUs with fio and the initiator; how busy the CPUs were
stands beside each figure in $OUT/busy.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "lab")
import berth

OUT = pathlib.Path(os.environ["OUT"])
HOST = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
HOST_ID = HOST.rsplit(":", 1)[1]
NVMET = "nqn.2026-02.io.fabricbios:bench"
CONFIGFS = pathlib.Path("/sys/kernel/config/nvmet")
SIZE = 48 << 20
TURNS, SECONDS = 3, 2

# Where Berth's thread is: on a CPU of its own, asleep only when nothing comes, or asleep on the initiator's CPU, where nvmet
# works too. A translated guest takes longer to wake another CPU than to serve a command.
OWN = 'cpus = [1]\nidle = "adaptive"'
OTHER = 'cpus = [1]\nidle = "wait"'
SAME = 'cpus = [0]\nidle = "wait"'

# Medium, options of the connection, where Berth's thread is, and cases: name, fio's arguments, what is compared, and what is to
# be reached. Cases of one setup share a connection.
QD1, QD32 = ["--iodepth=1"], ["--iodepth=32"]
TWO = [*QD32, "--numjobs=2"]
LONG = ["--iodepth=8", "--bs=128k"]
SETUPS = [
    ("ram", ["-i", "1"], OWN, [
        ("randread 4 KiB, QD 1, p50", "randread", QD1, "p50", {"reach": 1.0}),
        ("randwrite 4 KiB, QD 1, p50", "randwrite", QD1, "p50", {"reach": 1.0}),
        ("read 128 KiB, QD 8", "read", LONG, "bandwidth", {"least": 1.0}),
        ("write 128 KiB, QD 8", "write", LONG, "bandwidth", {"least": 1.0}),
    ]),
    ("ram", ["-i", "1"], SAME, [
        ("randread 4 KiB, QD 32, 1 queue", "randread", QD32, "iops", {"least": 1.2}),
        ("randwrite 4 KiB, QD 32, 1 queue", "randwrite", QD32, "iops", {"least": 1.2}),
    ]),
    ("ram", ["-i", "2"], OTHER, [
        ("randread 4 KiB, QD 32, 2 queues", "randread", TWO, "iops", {"least": 1.2}),
        ("randwrite 4 KiB, QD 32, 2 queues", "randwrite", TWO, "iops", {"least": 1.2}),
    ]),
    ("ram", ["-i", "1", "-g", "-G"], SAME, [
        ("randread 4 KiB, QD 32, both digests", "randread", QD32, "iops", {"least": 1.2}),
        ("randwrite 4 KiB, QD 32, both digests", "randwrite", QD32, "iops", {"least": 1.2}),
    ]),
    ("file", ["-i", "1"], SAME, [
        ("randread 4 KiB, QD 32, file with O_DIRECT", "randread", QD32, "iops", {"least": 1.0}),
        ("randwrite 4 KiB, QD 32, file with O_DIRECT", "randwrite", QD32, "iops", {"least": 1.0}),
    ]),
]
UNITS = {"p50": "us", "iops": "k/s", "bandwidth": "MB/s"}


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode:
        raise SystemExit(f"not ok {' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def until(found, what):
    for _ in range(300):
        if answer := found():
            return answer
        time.sleep(0.1)
    raise SystemExit(f"not ok {what}")


class Berth(berth.Node):
    """A node with one lease, bound to this host."""

    name, port = "berth", 4420

    def __init__(self, folder, backing, thread):
        super().__init__(
            folder,
            f"""
            [[region]]
            name = "disk"
            kind = "block"
            size = "{SIZE >> 20} MiB"
            backing = "{backing}"
            [[binding]]
            kind = "nvme"
            listen = ["127.0.0.1:{self.port}"]
            """
            + thread,
        )
        lease = self.alloc(SIZE, "--type", "block")
        self.ask("lease", "bind", lease, "--kind", "nvme", "--host-nqn", HOST)
        self.nqn = f"nqn.2026-02.io.fabricbios:lease:{lease}"

    def close(self):
        self.stop()
        with open(OUT / "berth.log", "a") as log:
            log.write((self.folder / "log").read_text())


class Nvmet:
    """The kernel's target with one namespace, for this host."""

    name, port, nqn = "nvmet", 4421, NVMET

    def __init__(self, device):
        self.subsystem, self.at, host = CONFIGFS / "subsystems" / NVMET, CONFIGFS / "ports/1", CONFIGFS / "hosts" / HOST
        namespace = self.subsystem / "namespaces/1"
        self.subsystem.mkdir()
        namespace.mkdir()
        if not host.exists():
            host.mkdir()
        (namespace / "device_path").write_text(device)
        (namespace / "enable").write_text("1")
        (self.subsystem / "allowed_hosts" / HOST).symlink_to(host)
        self.at.mkdir()
        for key, value in dict(trtype="tcp", adrfam="ipv4", traddr="127.0.0.1", trsvcid=str(self.port)).items():
            (self.at / f"addr_{key}").write_text(value)
        (self.at / "subsystems" / NVMET).symlink_to(self.subsystem)

    def close(self):
        (self.at / "subsystems" / NVMET).unlink()
        (self.subsystem / "allowed_hosts" / HOST).unlink()
        (self.subsystem / "namespaces/1/enable").write_text("0")
        (self.subsystem / "namespaces/1").rmdir()
        self.subsystem.rmdir()
        self.at.rmdir()


def disks(nqn):
    """The disks of a subsystem that can be opened."""
    names = []
    for path in pathlib.Path("/sys/class/nvme-subsystem").glob("*/subsysnqn"):
        if path.read_text().strip() == nqn:
            names += [disk.name for disk in path.parent.glob("nvme*n*") if pathlib.Path("/dev", disk.name).exists()]
    return names


def busy():
    """Jiffies that the CPUs have had work for, and all of them."""
    spent = [int(value) for value in open("/proc/stat").readline().split()[1:9]]
    return sum(spent) - spent[3] - spent[4], sum(spent)


def fio(disk, pattern, options, figure):
    begun = busy()
    told = run("fio", "--name=bench", f"--filename=/dev/{disk}", f"--rw={pattern}", "--bs=4k", "--direct=1", "--ioengine=libaio",
               "--time_based", f"--runtime={SECONDS}", "--ramp_time=0.3", "--group_reporting", "--norandommap", "--output-format=json", *options)
    ended = busy()
    job = json.loads(told)["jobs"][0]["write" if "write" in pattern else "read"]
    percentile = job["clat_ns"]["percentile"]
    at = {name: percentile[f"{float(name):f}"] / 1e3 for name in ("50", "99", "99.9")}
    share = (ended[0] - begun[0]) / max(1, ended[1] - begun[1])
    value = {"p50": at["50"], "iops": job["iops"] / 1e3, "bandwidth": job["bw_bytes"] / 1e6}[figure]
    return value, {"n": job["total_ios"], **{f"p{name}_us": value for name, value in at.items()}, "cpus_busy": round(share, 3)}


def measure(target, options, cases):
    """What fio finds, case by case."""
    run("nvme", "connect", "-t", "tcp", "-a", "127.0.0.1", "-s", str(target.port), "-n", target.nqn, "-q", HOST, "-I", HOST_ID, *options)
    disk = until(lambda: disks(target.nqn), f"a disk of {target.name}")[0]
    figures = [fio(disk, pattern, arguments, figure) for _, pattern, arguments, figure, _ in cases]
    run("nvme", "disconnect", "-n", target.nqn)
    until(lambda: not disks(target.nqn), f"the disk of {target.name} is gone")
    return figures


def bench(folder, rows, told):
    file = folder / "mnt/disk"
    run("mkfs.ext4", "-q", "-F", "/dev/ram1")
    file.parent.mkdir()
    run("mount", "/dev/ram1", str(file.parent))
    with open(file, "wb") as to:
        for _ in range(SIZE >> 20):
            to.write(os.urandom(1 << 20))
        os.fsync(to.fileno())
    for turn in range(TURNS):
        for number, (medium, options, thread, cases) in enumerate(SETUPS):
            state = folder / f"{turn}-{number}"
            state.mkdir()
            both = [
                lambda: Berth(state, file if medium == "file" else "ram", thread),
                lambda: Nvmet(str(file) if medium == "file" else "/dev/ram0"),
            ]
            figures = [None, None]
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                target = both[side]()
                figures[side] = measure(target, options, cases)
                target.close()
            for (case, _, _, figure, reach), ours, theirs in zip(cases, *figures):
                line = dict(case=case, baseline="nvmet tcp, same guest", unit=UNITS[figure], ours=ours[0], theirs=theirs[0], **reach)
                print(json.dumps(line), file=rows, flush=True)
                print(json.dumps(dict(case=case, turn=turn, ours=ours[1], theirs=theirs[1])), file=told, flush=True)
                print(f"ok {case}, turn {turn}: {ours[0]:.1f} beside {theirs[0]:.1f} {UNITS[figure]}", flush=True)
    run("umount", str(file.parent))


if not CONFIGFS.exists():
    run("mount", "-t", "configfs", "none", "/sys/kernel/config")
with tempfile.TemporaryDirectory() as name, open(OUT / "rows", "w") as rows, open(OUT / "busy", "w") as told:
    bench(pathlib.Path(name), rows, told)
