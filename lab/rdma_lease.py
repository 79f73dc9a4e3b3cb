"""Leases over RDMA: what a client can do with a connected lease, and when it no longer can.

The node is on rxe0, clients are on rxe1. A client is lab/peers/lease_rdma.c, which obeys commands; the node is told by the
commands of `berth`. Every check is a line `ok ...` or `not ok ...`.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

import berth
import perftest

PEER = os.environ["PEERS"] + "/lease_rdma"
MIB = 1 << 20
failures = 0


def check(what, good, why=""):
    global failures
    failures += not good
    print(f"ok {what}" if good else f"not ok {what}: {why}", flush=True)


def within(seconds, condition):
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return condition()


class Peer:
    """A process with one queue pair."""

    def __init__(self, device="rxe1"):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([PEER, device, "1"], stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.local = self.answer().split()[1:]

    def answer(self):
        return self.process.stdout.readline().strip()

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        return self.answer()

    def fresh(self):
        self.local = self.ask("new").split()[1:]

    def kill(self):
        self.process.kill()
        self.process.wait()

    def failed(self, command):
        """Whether the device refused it; the queue pair is no good afterwards."""
        answer = self.ask(command)
        return answer.startswith("fail ") and answer != "fail no-completion", answer


class Node(berth.Node):
    """One whose memory is leased over RDMA."""

    def __init__(self, folder, windows, max_leases=8):
        super().__init__(
            folder,
            f"""
            [[region]]
            name = "scratch"
            kind = "memory"
            size = "4 MiB"
            [[binding]]
            kind = "rdma"
            device = "rxe0"
            windows = "{windows}"
            max_leases = {max_leases}
            """,
        )

    def refused(self, *arguments):
        """Why the command failed, or nothing."""
        try:
            self.ask(*arguments)
        except RuntimeError as error:
            return str(error)
        return ""

    def bytes(self, lease, offset, count):
        return self.run("lease", "read", lease, "--offset", str(offset), "--len", str(count))

    def describe(self, lease, peer):
        qp_num, psn, gid, mtu = peer.local
        return ["lease", "bind", lease, "--kind", "rdma", "--qp-num", qp_num, "--gid", gid, "--psn", psn, "--mtu", mtu]

    def bind(self, lease, peer, skip=0):
        """Connects the lease to a fresh queue pair of the peer."""
        peer.fresh()
        bound = self.json(*self.describe(lease, peer))
        if skip:
            peer.ask(f"skip {skip}")
        answer = peer.ask(f"connect {bound['qp_num']} {bound['psn']} {bound['gid']}")
        assert answer == "ok", answer
        peer.ask(f"key {bound['rkey']} {bound['remote_addr']}")
        return bound

    def counter(self, name):
        with urllib.request.urlopen("http://127.0.0.1:5780/status") as status:
            return json.load(status)["control"].get(f"rdma_{name}", 0)


def access(node):
    """What a client may do, and where that ends."""
    low, lease, high = (node.alloc(MIB) for _ in range(3))
    peer, other = Peer(), Peer()
    node.bind(lease, peer)
    peer.ask("write 100 5000 0x41")
    got = node.bytes(lease, 99, 5002)
    check("the node reads what a client wrote", got == b"\0" + b"\x41" * 5000 + b"\0", got[:8])
    node.run("lease", "write", lease, "hello", "--offset", "9000")
    answer = peer.ask("read 9000 5")
    check("a client reads what was written by the node", answer == f"ok {ord('h')} {ord('o')} {sum(b'hello')}", answer)
    answers = [peer.ask(f"write 0 {MIB} 0x42"), peer.ask(f"same 0 {MIB} 0x42"), peer.ask(f"same {MIB - 1} 1 0x42")]
    check("a client writes and reads 1 MiB, to the last byte", answers == ["ok"] * 3, answers)
    check("and the node sees it", node.bytes(lease, 0, MIB) == b"\x42" * MIB)

    beyond = ["write -1 1 0x66", f"write {MIB} 1 0x66", f"write {MIB - 1} 2 0x66", f"write -1 {MIB} 0x66"]
    beyond += ["read -1 1", f"read {MIB} 1", f"read {MIB - 1} 2", "read -4096 4096"]
    for command in beyond:
        node.bind(lease, peer)
        failed, answer = peer.failed(command)
        check(f"one byte too many is refused: {command}", failed, answer)
    untouched = [node.bytes(low, MIB - 4096, 4096), node.bytes(high, 0, 4096)]
    check("the neighbours' bytes are as they were", untouched == [bytes(4096)] * 2)
    check("and so is the lease", node.bytes(lease, 0, MIB) == b"\x42" * MIB)

    bound = node.bind(lease, peer)
    for wrong in (bound["rkey"] ^ 1, bound["rkey"] ^ 0x100, 0):
        peer.ask(f"key {wrong} {bound['remote_addr']}")
        failed, answer = peer.failed("write 0 8 0x66")
        check("a wrong key is refused", failed, answer)
        bound = node.bind(lease, peer)
    theirs = node.bind(high, other)
    other.ask(f"key {bound['rkey']} {bound['remote_addr']}")
    failed, answer = other.failed("read 0 8")
    check("another lease's key is refused on one's own connection", failed, answer)
    check("whose holder goes on", peer.ask(f"same 0 {MIB} 0x42") == "ok")
    check("keys and sequence numbers differ", len({bound["rkey"], theirs["rkey"], bound["psn"], theirs["psn"]}) == 4)
    check("what failed is counted", within(8, lambda: node.counter("connected") == 1), node.counter("connected"))

    node.bind(lease, peer, skip=1000)
    failed, answer = peer.failed("write 0 8 0x66")
    check("a sequence number too high is refused", failed, answer)
    node.bind(lease, peer, skip=-1000)
    answer = peer.ask("write 0 8 0x66")
    check("a stale sequence number does nothing", node.bytes(lease, 0, 8) == b"\x42" * 8, answer)

    token = node.folder / "read-only"
    token.write_bytes(node.ask("token", "request", "--perms", "read,alloc"))
    readable = node.alloc(4096, "--token", str(token))
    node.bind(readable, peer)
    check("a lease that may be read is read", peer.ask("same 0 4096 0") == "ok")
    failed, answer = peer.failed("write 0 1 0x66")
    check("a lease that may only be read is not written", failed and node.bytes(readable, 0, 1) == b"\0", answer)

    node.bind(lease, peer)
    was = node.bind(lease, other)
    failed, answer = peer.failed("read 0 1")
    check("binding again ends the connection before", failed and other.ask("same 1 8 0x42") == "ok", answer)
    node.ask("lease", "free", lease)
    failed, answer = other.failed("read 0 1")
    check("a lease that was given back is not reached", failed, answer)
    node.bind(high, other)
    other.ask(f"key {was['rkey']} {was['remote_addr']}")
    failed, answer = other.failed("read 0 1")
    check("nor by its key on another connection", failed, answer)
    for lease in (low, high, readable):
        node.ask("lease", "free", lease)
    peer.kill()
    other.kill()


def revoked(node):
    """A revocation in the middle of transfers."""
    token, root = node.folder / "token", node.folder / "revoke"
    for file, perms in ((token, "read,write,alloc"), (root, "revoke")):
        file.write_bytes(node.ask("token", "request", "--perms", perms))
    token_id = json.loads(node.run("token", "show", str(token), "--json"))["token_id"]
    others, lease = node.alloc(4096), node.alloc(MIB, "--token", str(token))
    peer, other = Peer(), Peer()
    node.bind(lease, peer)
    node.bind(others, other)
    peer.ask(f"write 0 {MIB} 0x5a")
    assert peer.ask(f"flood 0 {MIB}") == "flooding"
    time.sleep(0.5)
    node.ask("token", "revoke", token_id, "--token", str(root))
    # Whoever leases all of the memory now sees every byte that the client may still write.
    everything = node.alloc(4 * MIB - 4096)
    zero = [node.bytes(everything, 0, 4 * MIB - 4096)]
    answer = peer.answer()
    check("transfers of 1 MiB fail when their lease is revoked", answer.startswith("fail "), answer)
    time.sleep(1)
    zero.append(node.bytes(everything, 0, 4 * MIB - 4096))
    check("not a byte changes after the answer", not any(map(any, zero)))
    peer.fresh()
    refused = node.refused(*node.describe(lease, peer))
    check("a revoked lease is not connected again", "LEASE_EXPIRED" in refused or "NOT_FOUND" in refused, refused)
    check("another client's connection goes on", other.ask("write 0 8 1") == "ok" and other.ask("same 0 8 1") == "ok")
    for lease in (everything, others):
        node.ask("lease", "free", lease)
    peer.kill()
    other.kill()


def expired(node):
    lease, peer = node.alloc(4096, "--duration", "4", "--grace", "60"), Peer()
    node.bind(lease, peer)
    check("a lease is reached before it expires", peer.ask("write 0 8 7") == "ok")
    assert peer.ask("flood 0 4096") == "flooding"
    status = lambda: node.json("lease", "query", lease)["status"]
    check("it expires", within(6, lambda: status() == "EXPIRED"))
    answer = peer.answer()
    check("transfers fail when their lease expires", answer.startswith("fail "), answer)
    peer.fresh()
    refused = node.refused(*node.describe(lease, peer))
    check("an expired lease is not connected", "LEASE_EXPIRED" in refused, refused)
    node.ask("lease", "renew", lease, "--duration", "60")
    node.bind(lease, peer)
    check("it is once it is renewed", peer.ask("write 0 8 8") == "ok" and peer.ask("same 0 8 8") == "ok")
    node.ask("lease", "free", lease)
    peer.kill()


def killed(node):
    """A client that dies with work in flight."""
    leases, peers = [node.alloc(MIB) for _ in range(2)], [Peer(), Peer()]
    for lease, peer in zip(leases, peers):
        node.bind(lease, peer)
    before = node.counter("peers_lost") + node.counter("faults")
    assert peers[0].ask(f"flood 0 {MIB}") == "flooding"
    time.sleep(0.3)
    peers[0].kill()
    start = time.monotonic()
    gone = within(15, lambda: node.counter("connected") == 1)
    lost = node.counter("peers_lost") + node.counter("faults") - before
    check("a dead client's queue pair is reclaimed and counted", gone and lost == 1, f"{node.counter('connected')}, {lost}")
    print(f"# after {time.monotonic() - start:.1f} s", flush=True)
    check("the other client goes on", peers[1].ask("writes 0 65536 3 10") == "ok 10")
    time.sleep(5)
    check("and is not taken for dead", node.counter("connected") == 1 and peers[1].ask("same 0 65536 3") == "ok")
    peers[0] = Peer()
    node.bind(leases[0], peers[0])
    check("the dead client's lease can be bound again", peers[0].ask("write 0 8 1") == "ok")
    for lease, peer in zip(leases, peers):
        node.ask("lease", "free", lease)
        peer.kill()


def limits(node):
    """Clients that are too many, or lead nowhere."""
    leases, peers = [node.alloc(4096) for _ in range(4)], [Peer() for _ in range(4)]
    for lease, peer in zip(leases[:3], peers):
        node.bind(lease, peer)
    refused = node.refused(*node.describe(leases[3], peers[3]))
    check("no more leases are connected than configured", "CAPACITY_EXCEEDED" in refused, refused)
    node.ask("lease", "free", leases[0])
    node.bind(leases[3], peers[3])
    check("one more is when one is freed", peers[3].ask("write 0 8 1") == "ok")
    node.ask("lease", "free", leases[1])
    lost = node.describe(leases[2], peers[2])
    lost[lost.index("--gid") + 1] = "::ffff:10.9.0.77"
    start = time.monotonic()
    waits = subprocess.Popen([berth.BERTH, *lost, "--udp", "--node", "127.0.0.1:5700"], env=node.environment, stderr=subprocess.PIPE, text=True)
    answered = 0
    while waits.poll() is None:
        node.ask("lease", "query", leases[3])
        answered += 1
    took, why = time.monotonic() - start, waits.stderr.read()
    check("a client that nothing leads to is refused", "INVALID_PARAMS" in why, why)
    check("while others are answered", answered > 1, f"{answered} in {took} s")
    for lease in leases[2:]:
        node.ask("lease", "free", lease)
    for peer in peers:
        peer.kill()


def removed(node):
    """The device goes, and comes back."""
    lease, peer = node.alloc(4096), Peer()
    node.bind(lease, peer)
    peer.ask("write 0 4096 9")
    done = subprocess.run(["timeout", "20", "rdma", "link", "delete", "rxe0"])
    check("the device can be deleted under a connected lease", done.returncode == 0, done.returncode)
    counts = [node.counter(name) for name in ("connected", "devices_removed", "links_removed")]
    check("its connections end with it", counts == [0, 1, 1], counts)
    failed, answer = peer.failed("read 0 1")
    check("and lead nowhere", failed, answer)
    check("the node goes on", node.bytes(lease, 0, 4096) == b"\x09" * 4096)
    peer.fresh()
    refused = node.refused(*node.describe(lease, peer))
    check("without the device nothing is connected", "RESOURCE_BUSY" in refused, refused)
    subprocess.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "roce0"], check=True)
    node.bind(lease, peer)
    check("it is when the device is back", peer.ask("same 0 4096 9") == "ok")
    node.ask("lease", "free", lease)
    peer.kill()


def restarted(node):
    lease, peer = node.alloc(4096), Peer()
    was = node.bind(lease, peer)
    peer.ask("write 0 8 1")
    node.stop(signal.SIGKILL)
    failed, answer = peer.failed("read 0 1")
    check("a node that is killed takes its connections with it", failed, answer)
    node.start()
    peer.fresh()
    peer.ask(f"connect {was['qp_num']} {was['psn']} {was['gid']}")
    failed, answer = peer.failed("read 0 1")
    check("a restart brings none of them back", failed, answer)
    node.bind(lease, peer)
    check("a lease that outlived the restart is bound again, without its bytes", peer.ask("same 0 4096 0") == "ok")
    peer.ask(f"key {was['rkey']} {was['remote_addr']}")
    failed, answer = peer.failed("read 0 1")
    check("the key from before is refused", failed, answer)
    node.ask("lease", "free", lease)
    peer.kill()


def fenced(node):
    """The device cannot be told to stop."""
    lease, peer = node.alloc(4096), Peer()
    node.bind(lease, peer)
    command = ["strace", "-f", "-qq", "-e", "trace=ioctl", "-e", "inject=ioctl:error=EIO", "-p", str(node.process.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    attached = lambda: "TracerPid:\t0" not in pathlib.Path(f"/proc/{node.process.pid}/status").read_text()
    assert within(10, attached)
    refused = node.refused("lease", "free", lease)
    check("a lease whose connection does not end is fenced", "RESOURCE_FENCED" in refused, refused)
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    refused = node.refused("lease", "alloc", "--size", "4096")
    check("and nobody gets its bytes", "RESOURCE_FENCED" in refused, refused)
    node.stop()
    node.start()
    free = node.alloc(4096)
    peer.fresh()
    node.bind(free, peer)
    check("until a restart has ended it for sure", peer.ask("same 0 4096 0") == "ok")
    node.ask("lease", "free", free)
    peer.kill()


def measured(node):
    """Perftest's clients, which know nothing of Berth, with a lease for their server."""
    lease = node.alloc(MIB)

    def bind(qpn, psn, gid):
        client = ["--qp-num", str(qpn), "--gid", gid, "--psn", str(psn), "--mtu", "4096"]
        return node.json("lease", "bind", lease, "--kind", "rdma", *client)

    for program, *arguments in (["ib_read_lat", "-s", "8", "-n", "100"], ["ib_read_bw", "-s", "65536", "-n", "50"],
                                ["ib_write_bw", "-s", "65536", "-n", "50"]):
        code, told = perftest.against(bind, program, *arguments)
        check(f"{program} ends well with a lease for its server", code == 0, told[-500:].replace("\n", " | "))
    there = node.bytes(lease, 0, 65537)
    check("ib_write_bw's bytes are in the lease, and none beyond", any(there[:65536]) and there[65536] == 0)
    node.ask("lease", "free", lease)


def windows(folder):
    """Whether windows are used; they are not where they do not keep clients within them."""
    try:
        node = Node(folder, "always")
    except RuntimeError as refused:
        why = "memory windows do not keep clients within them"
        check("windows that keep nobody within them are not used", why in str(refused), refused)
        return False
    node.stop()
    return True


def run(mode, subjects, **more):
    with tempfile.TemporaryDirectory() as folder:
        node = Node(folder, mode, **more)
        try:
            for subject in subjects:
                print(f"# {subject.__name__}, windows {mode}", flush=True)
                subject(node)
            check(f"berth stops well, windows {mode}", node.stop() == 0)
        except Exception:
            check(f"windows {mode}", False, traceback.format_exc().replace("\n", " | "))
            print((node.folder / "log").read_text()[-3000:])
            node.stop(signal.SIGKILL)


SUBJECTS = [access, revoked, expired, killed, removed, restarted, fenced, measured]
only = [subject for subject in SUBJECTS if subject.__name__ in sys.argv[1:]]
run("auto", only or SUBJECTS)
if not only:
    run("auto", [limits], max_leases=3)
    with tempfile.TemporaryDirectory() as folder:
        works = windows(folder)
    if works:
        run("never", SUBJECTS)
sys.exit(failures > 0)
