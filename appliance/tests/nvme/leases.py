"""What the events of a lease are to its host; commands that fail, events, Abort, keep alive."""

import struct
import time

import tcp
from tcp import Queue, lba
from world import Different, expect, expect_status, within

# ANA states.
OPTIMIZED, INACCESSIBLE, LOST = 1, 3, 4
NAMESPACE_EVENT, ANA_EVENT = 0x00040002, 0x000C0302


def ana(admin):
    page = admin.log(0x0C, 52).data
    groups, group, namespaces, state, nsid = struct.unpack_from("<8xH6xII8xB15xI", page)
    expect("one group with the namespace", (groups, group, namespaces, nsid), (1, 1, 1, 1))
    return state


def events(admin):
    expect_status("events are wanted", admin.set_feature(0x0B, 1 << 8 | 1 << 11), 0)
    return admin.command(0x0C)


def grace_and_renewal(world):
    host = world.lease(duration=4, grace=30)
    admin = host.associate()
    io = host.io()
    data = bytes(range(256)) * 16
    expect_status("a write", io.write(0, data), 0)
    identify = admin.identify(1).data
    expect("CMIC, ANACAP", (identify[76] & 0b1010, identify[343] & 0b101), (0b1010, 0b101))
    expect("OAES", struct.unpack_from("<I", identify, 92)[0] & (1 << 8 | 1 << 11), 1 << 8 | 1 << 11)
    expect("optimized", ana(admin), OPTIMIZED)
    event = events(admin)
    # One that waits for its data when the lease expires.
    waiting = io.write_by_r2t(0, 4096)
    ttag, _, _ = io.r2t(waiting)
    expect("the ANA event", hex(admin.answer(event).dw0), hex(ANA_EVENT))
    io.send(io.h2c_data(waiting, ttag, 0, b"x" * 4096))
    expect_status("a write that was waiting when it expired", io.answer(waiting), 0x302, dnr=0)
    expect_status("a read in grace", io.read(0, 1), 0x302, dnr=0)
    expect_status("a write in grace", io.write(0, b"x" * 512), 0x302, dnr=0)
    expect("inaccessible", ana(admin), INACCESSIBLE)
    expect("the namespace is still listed", admin.identify(2).data[:8], struct.pack("<II", 1, 0))
    more = Queue(world.address)
    expect_status("Connect in grace", more.connect(host), 0)
    more.close()
    event = admin.command(0x0C)
    world.renew(host, 600)
    expect("the ANA event of the renewal", hex(admin.answer(event).dw0), hex(ANA_EVENT))
    expect("optimized again", ana(admin), OPTIMIZED)
    done = io.read(0, 8)
    expect("nothing was lost or written", (done.status, done.data == data), (0, True))
    expect_status("and it goes on", io.write(0, data), 0)
    host.close()
    world.free(host)


def end(world):
    """A lease that is freed."""
    host = world.lease()
    admin, io = host.associate(), host.io()
    expect_status("a write", io.write(0, bytes(4096)), 0)
    event = events(admin)
    waiting = io.write_by_r2t(0, 4096)
    ttag, _, _ = io.r2t(waiting)
    world.free(host)
    freed = time.monotonic()
    io.send(io.h2c_data(waiting, ttag, 0, b"x" * 4096))
    expect_status("a write that was waiting", io.answer(waiting), 0x286)
    expect_status("a read", io.read(0, 1), 0x286)
    told = [admin.answer(event).dw0, admin.answer(admin.command(0x0C)).dw0]
    expect("the events", sorted(map(hex, told)), sorted(map(hex, (NAMESPACE_EVENT, ANA_EVENT))))
    expect("no namespace", admin.identify(2).data, bytes(4096))
    expect("the changed namespaces", admin.log(4, 4096).data[:8], struct.pack("<II", 1, 0))
    expect("are told once", admin.log(4, 4096).data[:4], bytes(4))
    expect("CSTS.CFS", admin.get_property(0x1C).dw0 & 2, 2)
    for queue in (io, admin):
        expect("the connections end", queue.ends_within(freed + 1.5 - time.monotonic()), True)
    again = Queue(world.address)
    expect_status("Connect", again.connect(host), 0x182, dw0=256 | 1 << 16)
    again.close()


def bound_again(world):
    """The old association ends first, and its writes with it."""
    host = world.lease()
    host.associate()
    old = host.io()
    expect_status("a write", old.write(0, b"1" * 4096), 0)
    waiting = old.write_by_r2t(0, 4096)
    ttag, _, _ = old.r2t(waiting)
    begun = old.h2c_data(waiting, ttag, 0, b"2" * 4096)
    old.send(begun[:2000])
    world.bind(host)
    new = tcp.Host(world.address, host.subnqn, host.hostnqn, host.hostid)
    new.associate()
    queue = new.io()
    expect_status("a write of the new association", queue.write(0, b"3" * 4096), 0)
    try:
        old.send(begun[2000:])
        expect_status("the late write", old.answer(waiting), 0x286)
    except (tcp.Ended, ConnectionError):
        pass
    expect("the old connections end", old.ends_within(2) and host.admin.ends_within(2), True)
    done = queue.read(0, 8)
    expect("the late write did not land", (done.status, done.data), (0, b"3" * 4096))
    new.close()
    world.free(host)


def two_associations(world):
    """A host whose path died repeats its write elsewhere: what comes late of the first one does not land."""
    first = world.lease()
    first.associate()
    late = first.io()
    waiting = late.write_by_r2t(8, 4096)
    ttag, _, _ = late.r2t(waiting)
    second = tcp.Host(world.address, first.subnqn, first.hostnqn, first.hostid)
    second.associate()
    queue = second.io()
    first.close()
    expect("its I/O queue ends with its admin queue", late.ends_within(2), True)
    expect_status("the write is repeated", queue.write(8, b"b" * 4096), 0)
    try:
        late.send(late.h2c_data(waiting, ttag, 0, b"a" * 4096))
    except ConnectionError:
        pass
    done = queue.read(8, 8)
    expect("what came late did not land", (done.status, done.data), (0, b"b" * 4096))
    second.close()
    world.free(first)


def keep_alive(world):
    host = world.lease()
    kato = 1.0
    admin = host.associate(kato=int(kato * 1000))
    io = host.io()
    begun = time.monotonic()
    # I/O alone keeps it alive (TBKAS), three times as long.
    while time.monotonic() < begun + 3 * kato:
        expect_status("a read", io.read(0, 1), 0)
        time.sleep(kato / 2)
    waiting = io.write_by_r2t(0, 4096)
    ttag, _, _ = io.r2t(waiting)
    said = time.monotonic()
    admin.socket.settimeout(5)
    try:
        admin.hear()
        raise Different("an association that said nothing is told something")
    except tcp.Ended:
        silent = time.monotonic() - said
    expect("it ends, not before KATO, and at most 2 s after", (silent >= kato, silent <= kato + 2), (True, True))
    try:
        io.send(io.h2c_data(waiting, ttag, 0, b"x" * 4096))
    except ConnectionError:
        pass
    expect("so do its I/O queues", io.ends_within(said + kato + 2 - time.monotonic()), True)
    host.associate()
    done = host.io().read(0, 8)
    expect("nothing is written afterwards", (done.status, done.data), (0, bytes(4096)))
    # KATO 0: none; and Set Features changes it.
    expect_status("KATO 500", host.admin.set_feature(0x0F, 500), 0)
    expect("KATO is 500", host.admin.call(0x0A, dw={10: 0x0F}).dw0, 500)
    expect("it ends", host.admin.ends_within(2.5), True)
    world.free(host)


def aborts(world):
    host = world.lease()
    admin, io = host.associate(), host.io(3)
    qid = host.qids

    def abort(cid, queue, aborted):
        done = admin.call(8, dw={10: cid << 16 | queue})
        expect_status("Abort", done, 0, dw0=0 if aborted else 1)

    waiting = [io.write_by_r2t(0, 8192) for _ in range(3)]
    asked = [io.r2t(cid) for cid in waiting]
    abort(waiting[1], qid, True)
    expect_status("a write that waits", io.answer(waiting[1]), 0x007, dnr=0)
    # One whose data has begun to come.
    io.send(io.h2c_data(waiting[0], asked[0][0], 0, b"x" * 4096, False))
    io.send(io.framed(tcp.COMMAND, tcp.sqe(0x0C, 900, nsid=1, dw=lba(0, 1))))
    expect_status("what came before was taken", io.answer(900), 0)
    abort(waiting[0], qid, True)
    io.send(io.h2c_data(waiting[0], asked[0][0], 4096, b"x" * 4096))
    expect_status("a write whose data has begun to come", io.answer(waiting[0]), 0x007, dnr=0)
    io.send(io.h2c_data(waiting[2], asked[2][0], 0, b"y" * 8192))
    expect_status("the other write", io.answer(waiting[2]), 0)
    abort(waiting[0], qid, False)
    abort(1, qid % 8 + 1, False)
    abort(1, 0xFFFF, False)
    done = io.read(0, 16)
    expect("it alone is written", (done.status, done.data), (0, b"y" * 8192))
    # Event requests: AERL + 1 of them.
    most = admin.identify(1).data[259] + 1
    requests = [admin.command(0x0C) for _ in range(most)]
    expect_status("one event request too many", admin.answer(admin.command(0x0C)), 0x105)
    abort(requests[0], 0, True)
    expect_status("an event request", admin.answer(requests[0]), 0x007, dnr=0)
    abort(requests[0], 0, False)
    host.close()
    world.free(host)


def errors(world):
    """Commands that are wrong, by status; their data is skipped where they have any."""
    host = world.lease()
    admin, io = host.associate(), host.io()
    blocks = (1 << 20) // 512
    mdts = 4096 << admin.identify(1).data[77]

    def one(what, status, opcode, slba=0, count=1, dnr=1, nsid=1, **more):
        expect_status(what, io.call(opcode, nsid=nsid, dw=lba(slba, count), **more), status, dnr=dnr)

    for slba in (blocks, blocks - 1, 1 << 32, (1 << 55) - 1, (1 << 63) - 1, (1 << 64) - 2, (1 << 64) - 1):
        for count in (2, mdts // 512):
            one(f"a read of {count} at {slba:#x}", 0x080, 2, slba, count, length=count * 512)
            one(f"a write of {count} at {slba:#x}", 0x080, 1, slba, count, length=count * 512)
            one(f"zeroes of {count} at {slba:#x}", 0x080, 8, slba, count)
            one(f"Verify of {count} at {slba:#x}", 0x080, 0x0C, slba, count)
        one(f"a write at {slba:#x} with its data", 0x080, 1, slba, 2, data=bytes(1024))
        ranges = struct.pack("<IIQ", 0, 2, slba)
        done = io.call(9, nsid=1, data=ranges, dw={10: 0, 11: 4})
        expect_status(f"Dataset Management at {slba:#x}", done, 0x080)
    one("over MDTS", 0x002, 2, count=mdts // 512 + 1, length=mdts + 512)
    for nsid in (0, 2, 0xFFFFFFFF):
        one(f"a read of namespace {nsid}", 0x00B, 2, nsid=nsid, length=512)
    for opcode in (0x0D, 0x15, 0x80, 0xC1):
        one(f"opcode {opcode:#x}", 0x001, opcode)
    for opcode in (0x0D, 0x81, 0xC1):
        one(f"opcode {opcode:#x} with data", 0x001, opcode, data=bytes(512))
    expect_status("Flush of all", io.call(0, nsid=0xFFFFFFFF), 0)
    one("Compare", 0x285, 5, data=b"x" * 512, dnr=0)
    # A CID in use: the second is refused, the first goes on.
    first = io.write_by_r2t(0, 512)
    ttag, _, _ = io.r2t(first)
    io.command(2, cid=first, nsid=1, length=512, dw=lba(0, 1))
    expect_status("a CID in use", io.answer(first), 0x003, dnr=0)
    io.send(io.h2c_data(first, ttag, 0, b"z" * 512))
    expect_status("the first of them", io.answer(first), 0)
    expect("is written", io.read(0, 1).data, b"z" * 512)
    for lid in (0x0D, 0x70, 0xC0):
        expect_status(f"log {lid:#x}", admin.log(lid, 512), 0x109)
    for cns in (4, 5, 7, 0x10, 0x1C, 0xFF):
        expect_status(f"Identify {cns:#x}", admin.identify(cns, nsid=1), 0x002)
    expect_status("no NSIDs above 0xFFFFFFFE", admin.identify(2, nsid=0xFFFFFFFE), 0x00B)
    for fid in (0x02, 0x7F, 0xC0):
        expect_status(f"feature {fid:#x}", admin.set_feature(fid, 0), 0x002)
    expect_status("a feature is saved", admin.set_feature(0x80000007, 0), 0x10D)
    expect_status("65536 queues", admin.set_feature(7, 0xFFFFFFFF), 0x002)
    expect_status("queues beside I/O queues", admin.set_feature(7, 0), 0x00C)
    host.close()
    world.free(host)


def run(world):
    for part in (errors, aborts, grace_and_renewal, end, bound_again, two_associations, keep_alive):
        part(world)
        world.others_go_on(part.__name__)
