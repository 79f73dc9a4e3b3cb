"""The same bytes over every dataplane, what each refuses, and when it ends."""

import os
import time

import wire
from dataplanes import HELLO, PING, READ, WRITE, Datagrams, Pages, QuicStreams, Tcp, TwoSided, ask_once, datagram
from identity import Token, byte_range
from quic import Closed, Reset
from wire import BLOCK, MEM, Endpoint, Op, Perm, Status, u8, u16, u32, u64, u128
from world import ALICE, BOB, CAROL, expect, within

INVALID_LEASE, EXPIRED, FENCED, OUT_OF_RANGE, BAD_LENGTH = 1, 2, 3, 4, 5


def ways(w, lease, who=ALICE, kind=MEM):
    """Every way to a lease; streams have said HELLO."""
    at, block = lease.endpoints, kind == BLOCK
    found = {
        "two-sided": TwoSided(at[Endpoint.TWO_SIDED], lease.key, lease.generation),
        "datagrams": Datagrams(
            at[Endpoint.FBBU if block else Endpoint.FBMU],
            b"FBBU" if block else b"FBMU",
            lease.lease_id,
            lease.generation,
        ),
        "tcp": Tcp(at[Endpoint.FBBT if block else Endpoint.FBMT], b"FBBT" if block else b"FBMT", lease.lease_id),
        "quic": QuicStreams(
            who, at[Endpoint.QUIC_BLOCK if block else Endpoint.QUIC_MEM], b"FBBT" if block else b"FBMT", lease.lease_id
        ),
        "pages": Pages(w.at(who), lease.lease_id),
    }
    for name in ("tcp", "quic"):
        status, limits = found[name].hello()
        expect(f"HELLO over {name}", status, 0)
        r = wire.Reader(limits)
        if block:
            size, count, most = r.u32(), r.u64(), r.u32()
            expect("its limits", (size, count, most > 0), (512, lease.len // 512, True))
        else:
            length, reads, writes = r.u64(), r.u32(), r.u32()
            expect("its limits", (length, reads > 0, writes > 0), (lease.len, True, True))
    expect("HELLO over datagrams", found["datagrams"].hello()[0], 0)
    return found


def same_bytes(w, kind=MEM):
    lease = w.lease(ALICE, 16384, kind)
    every = ways(w, lease, kind=kind)
    size = 512
    for name, way in every.items():
        expect(f"zeros over {name}", way.read(0, size // way.unit), (0, bytes(size)))
    for n, (name, way) in enumerate(every.items()):
        at, data = n * 1024, os.urandom(size)
        expect(f"a write over {name}", way.write(at // way.unit, data), 0)
        for other, reader in every.items():
            expect(f"  read over {other}", reader.read(at // reader.unit, size // reader.unit), (0, data))
    if kind == MEM:
        way = every["two-sided"]
        expect("one byte, unaligned", (way.write(16383, b"Z"), every["tcp"].read(16383, 1)), (0, (0, b"Z")))
    largest = os.urandom(8192)
    expect("8192 bytes in a datagram", every["datagrams"].write(0, largest), 0)
    expect("  read in one", every["datagrams"].read(0, 8192 // every["datagrams"].unit), (0, largest))
    expect("  read as pages", every["pages"].read(4096, 4096), (0, largest[4096:]))
    refusals(w, lease, every, kind)
    before = [way for name, way in every.items() if name in ("tcp", "quic")]
    w.free(ALICE, lease)
    unit = every["datagrams"].unit
    expect("two-sided, freed", every["two-sided"].read(0, 512), (0x14, b""))
    expect("datagrams, freed", every["datagrams"].read(0, 512 // unit), (INVALID_LEASE, b""))
    expect("pages, freed", every["pages"].read(0, 512), (1, b""))
    ends(before, {INVALID_LEASE})
    again = Tcp(every["tcp"].endpoint, every["tcp"].magic, lease.lease_id)
    expect("HELLO, freed", again.hello(), (INVALID_LEASE, bytes(16)))
    expect("and the close", again.ended(), True)


def ends(streams, statuses):
    """Within 1 s the connections close; until then accesses have one of the statuses."""
    start = time.monotonic()
    for way in streams:
        while True:
            try:
                status, data = way.read(0, 1)
                expect("until the close", (status in statuses, data), (True, b""))
            except (EOFError, BrokenPipeError, ConnectionResetError, Closed, Reset):
                break
            time.sleep(0.05)
        if isinstance(way, QuicStreams):
            try:
                way.connection.until(lambda: way.connection.closed, 2)
            except Closed:
                pass
        expect(f"{type(way).__name__} closes within 1 s", time.monotonic() - start < 1.5, True)


def refusals(w, lease, every, kind):
    """What is out of range, of wrong shape or of another generation."""
    two, dgram, tcp, quic, pages = (every[n] for n in ("two-sided", "datagrams", "tcp", "quic", "pages"))
    end, unit, most = lease.len, dgram.unit, (1 << 64) - 512
    expect("two-sided: beyond the end", two.read(end - 512, 1024), (0x13, b""))
    expect("two-sided: an overflow", two.read(most, 1024), (0x13, b""))
    expect("two-sided: nothing", two.read(0, 0), (0x15, b""))
    message = two.message
    expect("two-sided: opcode 3", ask_once(two.endpoint, message(3, 0, 512)), b"\x15")
    expect("two-sided: READ with a payload", ask_once(two.endpoint, message(2, 0, 512, b"x")), b"\x15")
    expect("two-sided: WRITE of less", ask_once(two.endpoint, message(1, 0, 1024, bytes(512))), b"\x15")
    stale = TwoSided(two.endpoint, two.key, two.generation + 1)
    expect("two-sided: another generation", stale.read(0, 512), (0x12, b""))
    expect("two-sided: unknown", TwoSided(two.endpoint, 1, two.generation).read(0, 512), (0x14, b""))
    stale = Datagrams(dgram.endpoint, dgram.magic, dgram.lease, dgram.generation + 1)
    expect("datagrams: another generation", stale.read(0, 1), (FENCED, b""))
    unknown = Datagrams(dgram.endpoint, dgram.magic, 1, dgram.generation)
    expect("datagrams: unknown", (unknown.read(0, 1), unknown.hello()), ((INVALID_LEASE, b""), (INVALID_LEASE, b"")))
    expect("datagrams: PING for any lease", unknown.ask(PING)[0], 0)
    for name, way in (("datagrams", dgram), ("tcp", tcp), ("quic", quic)):
        expect(f"{name}: beyond the end", way.read(end // unit - 1, 2), (OUT_OF_RANGE, b""))
        expect(f"{name}: an overflow", way.read((1 << 64) - 1, 2), (OUT_OF_RANGE, b""))
        expect(f"{name}: nothing", way.read(0, 0), (BAD_LENGTH, b""))
        expect(f"{name}: WRITE beyond the end", way.write(end // unit, bytes(unit)), OUT_OF_RANGE)
    expect("datagrams: over 8192", dgram.read(0, 8192 // unit + 1), (BAD_LENGTH, b""))
    expect("datagrams: WRITE of less", dgram.ask(WRITE, 0, 2, bytes(unit))[0], BAD_LENGTH)
    good = datagram(dgram.magic, READ, 1, dgram.lease, dgram.generation, 0, 1)
    for step, bad in (
        ("a wrong checksum", good[:-1] + u8(good[-1] ^ 1)),
        ("another magic", b"FBXX" + good[4:]),
        ("flags", datagram(dgram.magic, READ, 1, dgram.lease, dgram.generation, 0, 1, flags=1)),
        ("an unknown op", datagram(dgram.magic, 0x40, 1, dgram.lease, dgram.generation, 0, 1)),
        ("PING with data", datagram(dgram.magic, PING, 1, dgram.lease, dgram.generation, 0, 0, b"x")),
    ):
        expect(f"datagrams: {step}", silent(dgram.endpoint, bad), True)
    for name, way in (("tcp", tcp), ("quic", quic)):
        expect(f"{name}: PING", way.op(PING), b"")
        short = way.op(WRITE, u64(0) + u32(2) + bytes(unit))
        expect(f"{name}: WRITE of less", short, u8(BAD_LENGTH) + bytes(3))
    expect("pages: beyond the lease", pages.read(end, 8), (6, b""))
    expect("pages: beyond the page", pages.read(4000, 512), (6, b""))
    if kind == BLOCK:
        expect("two-sided: not whole blocks", (two.read(1, 512), two.read(0, 511)), ((0x15, b""),) * 2)
    several(tcp)
    closes(tcp, lease)


def several(tcp):
    """Several at once, matched by request_id."""
    for n in (11, 12, 13):
        tcp.send(tcp.message(READ, u64(n - 11) + u32(1), n))
    answers = [tcp.receive() for _ in range(3)]
    expect(
        "tcp: three at once",
        sorted((i, op, len(data)) for op, data, i in answers),
        [(n, 17, 8 + tcp.unit) for n in (11, 12, 13)],
    )


def closes(tcp, lease):
    """What closes a connection, with and without ERROR."""

    def sent(message, hello):
        other = Tcp(tcp.endpoint, tcp.magic, lease.lease_id)
        if hello:
            expect("tcp: HELLO", other.hello()[0], 0)
        other.send(message)
        try:
            op, payload, _ = other.receive()
        except EOFError:
            return None
        return op, payload, other.ended()

    read = tcp.message(READ, u64(0) + u32(1), 1)
    for step, message, hello, want in (
        ("another magic", b"FBXX" + read[4:], True, None),
        ("version 0", read[:4] + b"\0" + read[5:], True, None),
        ("flags", read[:6] + u16(1) + read[8:], True, None),
        ("READ before HELLO", read, False, (0x7F, u8(INVALID_LEASE), True)),
    ):
        expect(f"tcp: {step}", sent(message, hello), want)
    for step, message in (
        ("op 0x40", tcp.message(0x40, b"", 1)),
        ("request_id 0", tcp.message(READ, u64(0) + u32(1), 0)),
        ("a second HELLO", tcp.message(HELLO, u128(lease.lease_id), 1)),
        ("an endless payload", tcp.magic + u8(1) + u8(WRITE) + u16(0) + u32(1 << 31) + u32(1)),
    ):
        got = sent(message, True)
        expect(f"tcp: {step}", got and (got[0], len(got[1]), got[2]), (0x7F, 1, True))


def silent(endpoint, bad):
    try:
        ask_once(endpoint, bad, 0.3)
        return False
    except TimeoutError:
        return True


def perms(w):
    """What the token lacked, the lease lacks; RANGE limits it."""
    lease = w.lease(CAROL, 8192, token=w.token(CAROL, Perm.READ | Perm.ALLOC))
    every = ways(w, lease, CAROL)
    got = {name: (way.write(0, b"x" * 512), way.read(0, 512)) for name, way in every.items()}
    expect(
        "without WRITE",
        got,
        {name: ({"two-sided": 0x16, "pages": 5}.get(name, FENCED), (0, bytes(512))) for name in every},
    )
    w.free(CAROL, lease)
    lease = w.lease(ALICE, 8192, token=w.token(ALICE, Perm.WRITE | Perm.ALLOC))
    every = ways(w, lease)
    got = {name: (way.write(0, b"x" * 512), way.read(0, 512)) for name, way in every.items()}
    expect("without READ", got, {name: (0, ({"two-sided": 0x16, "pages": 5}.get(name, FENCED), b"")) for name in every})
    w.free(ALICE, lease)
    token = ALICE.delegate(
        w.token(ALICE, Perm.READ | Perm.WRITE | Perm.ALLOC | Perm.DELEGATE), ALICE.id, byte_range(512, 7680)
    )
    lease = w.lease(ALICE, 8192, token=token)
    every = ways(w, lease)
    outside = {"two-sided": 0x13, "pages": 6}
    got = {name: (way.read(0, 513), way.write(511, b"x"), way.read(512, 512)) for name, way in every.items()}
    expect(
        "RANGE",
        got,
        {
            name: ((outside.get(name, OUT_OF_RANGE), b""), outside.get(name, OUT_OF_RANGE), (0, bytes(512)))
            for name in every
        },
    )
    w.free(ALICE, lease)


def who_is_not_the_holder(w):
    """Over QUIC a lease is there for its holder alone, though everybody is told its id."""
    for kind in (MEM, BLOCK):
        lease = w.lease(ALICE, 4096, kind)
        listed = [e.lease_id for e in wire.active(w.call(BOB, Op.LEASE_LIST_ACTIVE)[1])]
        expect("another's lease_id is listed", lease.lease_id in listed, True)
        at = lease.endpoints[Endpoint.QUIC_BLOCK if kind == BLOCK else Endpoint.QUIC_MEM]
        magic = b"FBBT" if kind == BLOCK else b"FBMT"
        theirs = QuicStreams(BOB, at, magic, lease.lease_id)
        expect("HELLO to another's lease", theirs.hello(), (INVALID_LEASE, bytes(16)))
        expect("and the close", theirs.connection.gone(), True)
        mine = QuicStreams(ALICE, at, magic, lease.lease_id)
        expect("HELLO to one's own", (mine.hello()[0], mine.read(0, 1)), (0, (0, bytes(mine.unit))))
        mine.close()
        w.free(ALICE, lease)


def revoked(w):
    """When CAP_REVOKE is answered nothing is served any more."""
    token = w.token(ALICE)
    lease = w.lease(ALICE, 4096, token=token)
    every = ways(w, lease)
    power = w.token(ALICE, Perm.REVOKE)
    expect(
        "CAP_REVOKE", w.status(ALICE, Op.CAP_REVOKE, u128(Token.read(token).token_id) + u32(60), token=power), Status.OK
    )
    expect("two-sided, revoked", every["two-sided"].read(0, 8), (0x10, b""))
    expect(
        "datagrams, revoked",
        (every["datagrams"].read(0, 8), every["datagrams"].write(0, b"x"), every["datagrams"].hello()),
        ((FENCED, b""), FENCED, (FENCED, b"")),
    )
    expect("pages, revoked", every["pages"].read(0, 8), (4, b""))
    ends([every["tcp"], every["quic"]], {FENCED})
    short = w.lease(ALICE, 4096, duration=1, grace=30)
    every = ways(w, short)
    time.sleep(1.1)
    expect("two-sided, expired", every["two-sided"].read(0, 8), (0x11, b""))
    expect("datagrams, expired", every["datagrams"].read(0, 8), (EXPIRED, b""))
    expect("pages, expired", every["pages"].read(0, 8), (3, b""))
    ends([every["tcp"], every["quic"]], {EXPIRED})
    w.free(ALICE, short)


def pages(w):
    """The page ops beyond reading and writing."""
    lease, other, foreign = w.lease(ALICE, 10000), w.lease(ALICE, 8192), w.lease(BOB, 8192)
    mine = Pages(w.at(ALICE), lease.lease_id)
    expect("PAGE_QUERY, untouched", mine.query(1), (0, (1, 0, 0, 0, 0, 0)))
    start = time.time_ns() // 10**6
    expect("PAGE_WRITE", mine.write(4096, b"page one"), 0)
    expect("PAGE_READ", mine.read(4096, 8), (0, b"page one"))
    expect("PAGE_ADVISE", (mine.advise(1, 1 | 16), mine.advise(1, 32)), (0, 0))
    status, (page, tier, dirty, count, last, flags) = mine.query(1)
    expect("PAGE_QUERY", (status, page, tier, dirty, count, flags), (0, 1, 0, 1, 2, 32))
    within("last_access_ms", last, start - 50, time.time_ns() // 10**6 + 50)
    expect("PAGE_COPY", mine.copy(1, other.lease_id, 0), 0)
    copied = Pages(w.at(ALICE), other.lease_id)
    expect("the copy", copied.read(0, 8), (0, b"page one"))
    expect("the copy is dirty", copied.query(0)[1][2], 1)
    expect("PAGE_ZERO", (mine.zero(1), mine.read(4096, 8)), (0, (0, bytes(8))))
    expect("the last page is short", (mine.read(8192, 1808), mine.read(8192, 1809)), ((0, bytes(1808)), (6, b"")))
    expect("a short page fits a long one", mine.copy(2, other.lease_id, 1), 0)
    expect("a long page does not fit a short one", copied.copy(0, lease.lease_id, 2), 6)
    expect(
        "no such page",
        (mine.zero(3), mine.copy(3, other.lease_id, 0), mine.copy(0, other.lease_id, 2), mine.query(3)),
        (6, 6, 6, (6, None)),
    )
    theirs = Pages(w.at(ALICE), foreign.lease_id)
    expect(
        "another's lease",
        (theirs.read(0, 1), theirs.zero(0), theirs.query(0), theirs.advise(0, 1)),
        ((1, b""), 1, (1, None), 1),
    )
    expect("copies between holders", (mine.copy(0, foreign.lease_id, 0), theirs.copy(0, lease.lease_id, 0)), (10, 10))
    expect("unknown leases in a copy", (mine.copy(0, 1, 0), Pages(w.at(ALICE), 1).copy(0, lease.lease_id, 0)), (9, 8))
    client = w.at(ALICE)
    head = u16(wire.PAGES)
    for step, body in (
        ("an unknown op", head + u8(0x99) + u128(1)),
        ("another profile", u16(0x0A02) + u8(0x15) + u128(1) + u32(0)),
        ("a short one", head + u8(0x15) + u128(1)),
        ("WRITE of less", head + u8(0x11) + u128(lease.lease_id) + u32(0) * 2 + u32(9) + b"x"),
    ):
        expect(f"pages: {step}", client.refused(client.frame(wire.PAGE_REQUEST, body, signed=True)), True)
    for who, one in ((ALICE, lease), (ALICE, other), (BOB, foreign)):
        w.free(who, one)
