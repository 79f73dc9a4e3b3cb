"""Connect and properties: each parameter that may be wrong, by status and first dword."""

import struct
import threading

from tcp import DISCOVERY, FABRICS, Queue
from world import Different, expect, expect_status

# IPO | IATTR << 16.
SUBNQN, HOSTNQN, CNTLID, QID, SQSIZE = 256 | 1 << 16, 512 | 1 << 16, 16 | 1 << 16, 42, 44
INVALID = 0x182


def admin_queues(world, host):
    for digests in range(4):
        queue = Queue(world.address, digests)

        def one(what, status, dw0=0, **connect):
            expect_status(f"{what}, digests {digests}", queue.connect(host, **connect), status, dw0=dw0)  # noqa: B023

        one("RECFMT 1", 0x180, recfmt=1)
        one("an unknown subsystem", INVALID, SUBNQN, subnqn="nqn.2026-02.io.fabricbios:lease:" + "0" * 32)
        one("a subsystem in capitals", INVALID, SUBNQN, subnqn=host.subnqn[:-32] + host.lease.upper())
        one("a subsystem with more behind it", INVALID, SUBNQN, subnqn=host.subnqn + "0")
        one("no subsystem", INVALID, SUBNQN, subnqn="")
        one("a SUBNQN without end", INVALID, SUBNQN, subnqn=b"n" * 256)
        one("a HOSTNQN without end", INVALID, HOSTNQN, hostnqn=b"n" * 256)
        one("no HOSTNQN", INVALID, HOSTNQN, hostnqn="")
        one("another host", 0x184, hostnqn=host.hostnqn + "0")
        one("a host in capitals", 0x184, hostnqn=host.hostnqn.upper())
        one("a controller that it does not choose", INVALID, CNTLID, cntlid=1)
        one("a queue of one entry", INVALID, SQSIZE, sqsize=0)
        one("a queue of too many", INVALID, SQSIZE, sqsize=0xFFFF)
        for opcode, fctype in [(FABRICS, fctype) for fctype in (0, 4, 5, 6, 8)] + [(6, 0), (0x18, 0), (2, 1)]:
            expect_status(f"opcode {opcode:#x} {fctype} before Connect", queue.call(opcode, nsid=fctype), 0x00C)
        expect_status("Connect by R2T", queue.call(FABRICS, nsid=1, length=1024, dw={11: 31}), 0x011)
        for length in (1020, 512, 4):
            expect_status(f"{length} bytes of Connect", queue.connect(host, length=length), 0x00F)
        done = queue.connect(host)
        expect_status("what was refused before is no hindrance", done, 0)
        expect("no authentication", done.dw0 >> 16, 0)
        expect_status("Connect again", queue.connect(host), 0x00C)
        queue.close()


def heads(world, host):
    """SQHD."""
    queue = Queue(world.address)
    sizes = [queue.connect(host, sqsize=4)] + [queue.call(0x18) for _ in range(12)]
    expect("SQHD advances by one, modulo SQSIZE + 1", [done.sqhd for done in sizes], [(n + 1) % 5 for n in range(13)])
    queue.close()
    queue = Queue(world.address)
    done = [queue.connect(host, cattr=4), queue.call(0x18)]
    expect("without flow control", [d.sqhd for d in done], [0xFFFF] * 2)
    queue.close()


def properties(world, host):
    host.associate(enable=False)
    admin = host.admin

    def reads(what, offset, wide, wanted, mask=(1 << 64) - 1):
        done = admin.get_property(offset, wide)
        expect(what, (done.status, (done.dw1 << 32 | done.dw0) & mask), (0, wanted))

    reads("VS", 0x08, 0, 0x00010400)
    reads("CAP: CQR", 0, 1, 1 << 16, 1 << 16)
    reads("CAP: CSS", 0, 1, 1 << 37, 0xFF << 37)
    capabilities = admin.get_property(0, 1)
    expect("CAP: MQES and TO", (capabilities.dw0 & 0xFFFF >= 1, capabilities.dw0 >> 24 > 0), (True, True))
    reads("CC", 0x14, 0, 0)
    reads("CSTS before it is enabled", 0x1C, 0, 0)
    wrong = ((0, 0), (8, 1), (0x14, 1), (0x1C, 1), (4, 0), (0x18, 0), (0x20, 0), (0x28, 1), (0xFFFFFFFC, 0))
    for offset, wide in wrong:
        expect_status(f"property {offset:#x} of size {wide}", admin.get_property(offset, wide), 0x002)
    for wide in (2, 7):
        expect_status(f"a property of size {wide}", admin.get_property(8, wide), 0x002)
    for offset, wide in ((0, 1), (8, 0), (0x1C, 0), (0x14, 1), (0x24, 0), (0x40, 0)):
        expect_status(f"property {offset:#x} of size {wide} is set", admin.set_property(offset, 1, wide), 0x002)
    for sizes in (0x00000001, 0x00450001, 0x00360001):
        expect_status(f"CC {sizes:#x}", admin.set_property(0x14, sizes), 0x002)
    early = Queue(world.address)
    refused = early.connect(host, qid=1, cntlid=host.cntlid)
    expect("an I/O queue before CC.EN", (refused.status, refused.dnr), (INVALID, 1))
    early.close()
    host.enable()
    reads("CSTS once it is enabled", 0x1C, 0, 1)
    reads("CC", 0x14, 0, 0x00460001)


def io_queues(world, host, stranger):
    """On the association that `properties` made."""
    for digests in (0, 3):
        queue = Queue(world.address, digests)

        def one(what, status, dw0=0, qid=1, **connect):
            connect.setdefault("cntlid", host.cntlid)
            done = queue.connect(host, qid=qid, **connect)  # noqa: B023
            expect_status(f"{what} of an I/O queue", done, status, dw0=dw0)

        one("RECFMT 1", 0x180, recfmt=1)
        one("QID 65535", INVALID, QID, qid=0xFFFF)
        one("SQSIZE 0", INVALID, SQSIZE, sqsize=0)
        one("SQSIZE 65535", INVALID, SQSIZE, sqsize=0xFFFF)
        one("no controller", INVALID, CNTLID, cntlid=0xFFFF)
        one("another controller", INVALID, CNTLID, cntlid=host.cntlid ^ 0x100)
        one("another host's controller", INVALID, CNTLID, cntlid=stranger.cntlid)
        one("an unknown subsystem", INVALID, SUBNQN, subnqn="nqn.2014-08.org.example:none")
        one("another host", 0x184, hostnqn=stranger.hostnqn)
        one("another host's subsystem", 0x184, subnqn=stranger.subnqn)
        one("discovery", INVALID, QID, subnqn=DISCOVERY)
        refused = queue.connect(host, qid=1, cntlid=host.cntlid, hostid=bytes(15) + b"\1")
        expect("another HOSTID", (refused.status, refused.dnr), (INVALID, 1))
        one("Connect", 0, host.cntlid, qid=digests + 1)
        one("Connect again", 0x00C, qid=7)
        for offset, wide in ((0, 1), (0x1C, 0)):
            expect_status("a property on an I/O queue", queue.get_property(offset, wide), 0x002)
        expect_status("a property is set on an I/O queue", queue.set_property(0x14, 0), 0x002)
        second = Queue(world.address)
        again = second.connect(host, qid=digests + 1, cntlid=host.cntlid)
        expect_status("a QID in use", again, 0x101)
        expect_status("the queue goes on", queue.read(0, 1), 0)
        expect_status("Disconnect", queue.call(FABRICS, nsid=8), 0)
        expect("and the queue ends", queue.ends_within(2), True)
        queue.close()
        second.close()


def races(world, host):
    """Connects of one QID at once: one of them has it."""
    queues = [Queue(world.address) for _ in range(8)]
    done = [None] * len(queues)
    barrier = threading.Barrier(len(queues))

    def connect(nth):
        barrier.wait()
        done[nth] = queues[nth].connect(host, qid=5, cntlid=host.cntlid).status

    threads = [threading.Thread(target=connect, args=[nth]) for nth in range(len(queues))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expect("one of eight Connects of a QID", sorted(done), [0] + [0x101] * 7)
    for queue in queues:
        queue.close()
    # The admin queue goes amid Connects of I/O queues.
    queues = {qid: Queue(world.address) for qid in (6, 7, 8)}
    host.close()
    done = {qid: queue.connect(host, qid=qid, cntlid=host.cntlid) for qid, queue in queues.items()}
    if any(ended.status not in (0, INVALID) for ended in done.values()):
        raise Different(f"Connects beside a dead admin queue: {done}")
    for qid, queue in queues.items():
        expect(f"queue {qid} ends with its admin queue", done[qid].status == INVALID or queue.ends_within(2), True)


def disables(world, host):
    """CC.EN from 1 to 0: the I/O queues end, the admin queue does not."""
    host.associate()
    io = host.io()
    expect_status("CC.EN 0", host.admin.set_property(0x14, 0x00460000), 0)
    expect("the I/O queue ends", io.ends_within(2), True)
    expect("CSTS", host.admin.get_property(0x1C).dw0, 0)
    host.enable()
    expect_status("enabled again", host.io().read(0, 1), 0)
    expect_status("CC.SHN", host.admin.set_property(0x14, 0x00464001), 0)
    while (done := host.admin.get_property(0x1C).dw0 >> 2 & 3) == 1:
        pass
    expect("shut down", done, 2)
    host.close()


def discovery(world, host):
    queue = Queue(world.address)
    expect_status("Connect to discovery", queue.connect(host, subnqn=DISCOVERY), 0)
    queue.set_property(0x14, 0x00460001)
    page = queue.log(0x70, 4096, nsid=0).data
    generation, records, recfmt = struct.unpack_from("<QQH", page)
    names = [page[1024 * n + 256 : 1024 * n + 512].rstrip(b"\0").decode() for n in range(1, records + 1)]
    kinds = [page[1024 * n + 2] for n in range(1, records + 1)]
    expect("RECFMT", recfmt, 0)
    expect("its own lease, and discovery itself", sorted(zip(names, kinds)), sorted([(host.subnqn, 2), (DISCOVERY, 3)]))
    for n in range(1, records + 1):
        trtype, adrfam, _, _, _, cntlid, asqsz = struct.unpack_from("<BBBBHHH", page, 1024 * n)
        port, ip = page[1024 * n + 32 : 1024 * n + 64], page[1024 * n + 512 : 1024 * n + 768]
        expect("a record", (trtype, adrfam, cntlid, asqsz >= 32), (3, 1, 0xFFFF, True))
        where = (ip.decode().rstrip(), port.decode().rstrip())
        expect("its address, padded with spaces", where, (world.address[0], str(world.address[1])))
    expect("the second half of the log", queue.log(0x70, 1024, offset=1024, nsid=0).data, page[1024:2048])
    expect_status("an offset outside", queue.log(0x70, 1024, offset=1 << 20, nsid=0), 0x002)
    expect_status("an offset between words", queue.log(0x70, 1024, offset=2, nsid=0), 0x002)
    queue.set_feature(0x0B, 1 << 31)
    event = queue.command(0x0C)
    more = world.lease()
    expect("no other host's lease is told", queue.log(0x70, 16, nsid=0).data[:8], struct.pack("<Q", generation))
    world.free(host)
    expect("a lease that ended is told", hex(queue.answer(event).dw0), "0x70f002")
    page = queue.log(0x70, 1024, nsid=0).data
    moved = struct.unpack_from("<Q", page)[0] != generation
    expect("GENCTR moved, one record less", (moved, page[8]), (True, records - 1))
    queue.close()
    world.free(more)


def run(world):
    host = world.lease()
    admin_queues(world, host)
    heads(world, host)
    properties(world, host)
    io_queues(world, host, world.bystander)
    races(world, host)
    disables(world, host)
    discovery(world, host)
    world.others_go_on("connects")
