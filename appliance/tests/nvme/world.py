"""The node that is driven, its leases, and what is expected of it."""

import json
import os
import subprocess
import time
import uuid

import tcp

steps = 0


class Different(Exception):
    """Something came that was not expected."""


def expect(what, got, wanted):
    global steps
    if got != wanted:
        raise Different(f"{what}: {got!r}, not {wanted!r}")
    steps += 1


def expect_status(what, done, status, dnr=1, dw0=None):
    expect(what, (hex(done.status), done.dnr), (hex(status), dnr if status else 0))
    if dw0 is not None:
        expect(f"{what}: dword 0", hex(done.dw0), hex(dw0))


def within(what, seconds, done, every=0.02):
    """Waits until something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise Different(f"{what}: not within {seconds} s")
        time.sleep(every)
    expect(what, True, True)


class World:
    """`berth`, the program; `node`, the control address; `address`, where the target listens."""

    def __init__(self, berth, pid, endpoints):
        self.berth, self.pid, self.node = berth, pid, endpoints["control-udp"]
        ip, port = endpoints["nvme-tcp"].rsplit(":", 1)
        self.address = (ip, int(port))
        self.run("key", "new")
        self.run("enroll", "--node", self.node)
        self.victim, self.bystander = self.lease(), self.lease()
        self.bystander.associate()
        self.good = self.bystander.io()
        self.text = os.urandom(4096)
        expect("a write", self.good.write(0, self.text).status, 0)

    def at(self):
        return "--udp", "--node", self.node

    def run(self, *words):
        done = subprocess.run([self.berth, *words], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Different(f"berth {' '.join(words)}: {done.stderr}")
        return done.stdout

    def lease(self, size="1 MiB", **times):
        """A lease that is bound to a host of its own."""
        times = [f"--{name}={seconds}" for name, seconds in times.items()]
        alloc = "lease", "alloc", *self.at(), "--type", "block", "--size", size
        granted = json.loads(self.run(*alloc, *times, "--json"))
        host = tcp.Host(self.address, "", f"nqn.2014-08.org.nvmexpress:uuid:{uuid.uuid4()}", uuid.uuid4().bytes)
        host.lease = granted["lease_id"]
        host.subnqn = f"nqn.2026-02.io.fabricbios:lease:{host.lease}"
        self.bind(host)
        return host

    def bind(self, host):
        self.run("lease", "bind", *self.at(), host.lease, "--kind", "nvme", "--host-nqn", host.hostnqn)

    def free(self, host):
        self.run("lease", "free", *self.at(), host.lease)

    def renew(self, host, seconds):
        self.run("lease", "renew", *self.at(), host.lease, f"--duration={seconds}")

    def others_go_on(self, what):
        """Another host reads what it wrote, and its admin queue is served."""
        done = self.good.read(0, 8)
        expect(f"{what}: another host reads", (done.status, done.data == self.text), (0, True))
        expect(f"{what}: another host's admin queue", self.bystander.admin.call(0x18).status, 0)

    def memory(self):
        """Resident KiB of the node, and its open files."""
        with open(f"/proc/{self.pid}/status") as status:
            rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return rss, len(os.listdir(f"/proc/{self.pid}/fd"))
