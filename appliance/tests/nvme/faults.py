"""Hosts that are silent, slow, greedy or gone; and one beside them that notices nothing."""

import os
import socket
import threading
import time

import tcp
from tcp import Queue, lba
from world import expect, expect_status, within

# Until Connect: ICResp within 10 s is what hosts insist on, and what they get to say more.
IDENTIFY = 10
# How long an R2T may wait for its data.
DATA = 10
# Connections that have not said who they are.
PENDING = 512


class Later:
    """What takes seconds to end, while other things are tried."""

    def __init__(self):
        self.threads, self.failed = [], []

    def begin(self, what, seconds, over):
        def watch():
            if not over(seconds):
                self.failed.append(f"{what} is not ended within {seconds} s")

        self.threads.append(threading.Thread(target=watch))
        self.threads[-1].start()

    def settle(self):
        for thread in self.threads:
            thread.join()
        expect("what takes time to end", self.failed, [])


def silent(world, later):
    """Before ICReq, after it, amid it, amid a capsule; and one that trickles: all are ended in time."""
    nothing = tcp.Connection(world.address, initialise=False)
    half = tcp.Connection(world.address, initialise=False)
    half.send(tcp.icreq()[:64])
    greeted = tcp.Connection(world.address)
    begun = tcp.Connection(world.address)
    begun.send(begun.framed(tcp.COMMAND, tcp.sqe(tcp.FABRICS, 1, nsid=1), bytes(1024))[:100])
    slow = {"a silent host": nothing, "half an ICReq": half, "no Connect": greeted, "half a Connect": begun}
    for what, connection in slow.items():
        later.begin(what, IDENTIFY + 3, connection.ends_within)
    trickler = tcp.Connection(world.address, initialise=False)

    def trickle():
        try:
            for byte in tcp.icreq():
                trickler.send(bytes([byte]))
                time.sleep(0.15)
        except ConnectionError:
            pass

    threading.Thread(target=trickle, daemon=True).start()
    later.begin("a host that trickles", IDENTIFY + 3, trickler.ends_within)


def crowd(world):
    """More silent connections than may be pending, and 300 that are admitted and idle: a newcomer is let in at once."""
    silent = [socket.create_connection(world.address) for _ in range(PENDING + 100)]
    hosts = []
    for _ in range(34):
        host = world.bystander
        one = tcp.Host(world.address, host.subnqn, host.hostnqn, host.hostid)
        one.associate()
        queues = [one.io() for _ in range(8)]
        hosts.append((one, queues))
    begun = time.monotonic()
    world.others_go_on(f"{len(hosts) * 9} idle connections and {len(silent)} silent ones")
    late = tcp.Host(world.address, world.victim.subnqn, world.victim.hostnqn, world.victim.hostid)
    late.associate()
    expect_status("a newcomer reads", late.io().read(0, 8), 0)
    expect("at once", time.monotonic() - begun < 3, True)
    for one, queues in hosts:
        expect_status("an idle queue is served", queues[-1].read(0, 1), 0)
        for queue in queues:
            queue.close()
        one.close()
    late.close()
    for connection in silent:
        connection.close()


def never_reads(world, later):
    """A host that asks for much and takes nothing: bounded memory, and others go on."""
    host = tcp.Host(world.address, world.victim.subnqn, world.victim.hostnqn, world.victim.hostid)
    host.associate()
    queues = [host.io(sqsize=127) for _ in range(8)]
    before, _ = world.memory()
    for queue in queues:
        queue.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for cid in range(1000, 1120):
            read = tcp.sqe(2, cid, nsid=1, sgl=(0, 1 << 20, tcp.TRANSPORT), dw=lba(0, 2048))
            queue.send(queue.framed(tcp.COMMAND, read))
    for _ in range(20):
        world.others_go_on("hosts that never read")
    after, _ = world.memory()
    # `buffers` is 64 MiB.
    expect("memory", after - before < 80 << 10 or f"{after - before} KiB", True)
    later.begin("a host that never reads", 45, lambda seconds: ended(world, queues, seconds))
    return host


def ended(world, queues, seconds):
    """Whether the controller has ended these. Nobody reads what it says, so the state of its side is looked at."""
    ports = {queue.socket.getsockname()[1] for queue in queues}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with open(f"/proc/{world.pid}/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        # ESTABLISHED is 01.
        ours = [row for row in rows if row[3] == "01" and row[1].endswith(f":{world.address[1]:04X}")]
        established = {int(row[2].split(":")[1], 16) for row in ours}
        if not established & ports:
            return True
        time.sleep(0.5)
    return False


def writes_without_data(world, later):
    """A queue full of writes that wait for their data is legal; it ends when that is late, and nothing is written."""
    host = tcp.Host(world.address, world.victim.subnqn, world.victim.hostnqn, world.victim.hostid)
    host.associate()
    queue = host.io(sqsize=127)
    cids = [queue.write_by_r2t(8 * nth, 4096) for nth in range(127)]
    asked = [queue.r2t(cid) for cid in cids]
    expect("each is asked for its data", len({ttag for ttag, _, _ in asked}), 127)
    expect_status("a read beside them", queue.read(0, 1), 0)
    world.others_go_on("a queue full of writes")
    # In another order than they were asked for.
    for nth in (126, 3, 77):
        queue.send(queue.h2c_data(cids[nth], asked[nth][0], 0, bytes([nth]) * 4096))
        expect_status(f"write {nth}", queue.answer(cids[nth]), 0)
        expect("is written", queue.read(8 * nth, 8).data, bytes([nth]) * 4096)
    later.begin("a queue whose data does not come", DATA + 4, queue.ends_within)
    return host


def too_many(world):
    """More commands than the queue has: fatal or served, and nobody else's are lost."""
    host = tcp.Host(world.address, world.victim.subnqn, world.victim.hostnqn, world.victim.hostid)
    host.associate()
    queue, other = host.io(sqsize=3), host.io()
    for nth in range(8):
        queue.write_by_r2t(nth, 512)
    try:
        while True:
            queue.socket.settimeout(2)
            queue.hear()
    except tcp.Terminated as end:
        expect("more commands than entries", end.fes, 2)
    expect_status("another queue", other.read(0, 1), 0)
    world.others_go_on("too many commands")
    host.close()


# Bytes of writes, and of the H2CData that they come in.
WRITES = (512, None), (512, 4), (512, 128), (4096, 500), (65536, 4096), (1 << 18, 65536), (1 << 19, None)


def small_and_many(world):
    """Short writes by R2T, in pieces of any size, with each setting of digests."""
    host = tcp.Host(world.address, world.victim.subnqn, world.victim.hostnqn, world.victim.hostid)
    host.associate()
    for digests in range(4):
        queue = host.io(digests)
        for length, piece in WRITES:
            data = os.urandom(length)
            done = queue.transfer(queue.write_by_r2t(64, length), data, piece)
            expect_status(f"{length} bytes in pieces of {piece}, digests {digests}", done, 0)
            expect("come back", queue.read(64, length // 512).data == data, True)
        queue.close()
    host.close()


def reconnects(world, rounds=1000):
    """Connections come and go, in every way: nothing is left of them."""
    victim = world.victim

    def once(nth):
        host = tcp.Host(world.address, victim.subnqn, victim.hostnqn, victim.hostid)
        admin = host.associate()
        io = host.io()
        if nth % 4 == 0:
            io.write_by_r2t(0, 8192)
        elif nth % 4 == 1:
            io.send(bytes(30))
        elif nth % 4 == 2:
            admin.command(0x0C)
            expect_status("a read", io.read(0, 8), 0)
        io.close()
        if nth % 3:
            admin.call(tcp.FABRICS, nsid=0, dw={11: 0x14, 12: 0x00464001})
        host.close()
        # As many controllers as there may be are soon used up by who does not wait for their end.
        while len(os.listdir(f"/proc/{world.pid}/fd")) > files + 60:
            time.sleep(0.01)

    _, files = world.memory()
    for nth in range(100):
        once(nth)
    before, _ = world.memory()
    for nth in range(rounds - 100):
        once(nth)
    within("all files are closed again", 5, lambda: world.memory()[1] <= files)
    after, _ = world.memory()
    expect("memory", after - before < 4096 or f"{after - before} KiB more after {rounds} reconnects", True)
    world.others_go_on("reconnects")


def run(world):
    later = Later()
    world.victim.associate()
    expect_status("a write", world.victim.io().write(0, bytes(4096)), 0)
    world.victim.close()
    reconnects(world)
    silent(world, later)
    stuck = [never_reads(world, later), writes_without_data(world, later)]
    too_many(world)
    small_and_many(world)
    crowd(world)
    later.settle()
    world.others_go_on("the end")
    for host in stuck:
        host.close()
