"""T6 to T8: what a run may touch, every hostcall with every code, and logs."""

import time

import leases
import wire
from admission import revoke
from guest import (
    AGAIN, FBBU_ALLOC, FBBU_IO, FBMU_ALLOC, FBMU_IO, MEMORY, QUERY, REVOKE, ROOM, SCRATCH, STORE, TEXTS, Ran, call, halves,
    imported, returns,
)  # fmt: skip
from identity import Token
from wire import BLOCK, Op, Perm, Reader, Status, fields, u128
from world import ALICE, BOB, CAROL, Different, expect, now, within

INVALID_LEASE, EXPIRED, FENCED, RANGE, LENGTH, BUSY, INTERNAL, DENIED, FULL, PARAM = range(-1, -11, -1)
OUT = SCRATCH
ALL = [1 << n for n in range(6)]
EVERY = Perm.READ | Perm.WRITE | Perm.ALLOC | Perm.EXEC


def handle(t, lease, who=ALICE, **how):
    """An export handle."""
    status, result = t.w.call(who, Op.LEASE_EXPORT_HANDLE, leases.export(lease, **how))
    if status != Status.OK:
        raise Different(f"LEASE_EXPORT_HANDLE: {status.name}")
    return Reader(result).u128()


def capabilities(t):
    """Each right alone, of each thing that can be named."""
    w = t.w
    memory, block, foreign = w.lease(ALICE, 4096), w.lease(ALICE, 4096, BLOCK), w.lease(BOB, 4096)
    foreign_block, gone = w.lease(BOB, 4096, BLOCK), w.lease(ALICE, 4096)
    w.free(ALICE, gone)
    doomed = w.token(ALICE, EVERY)
    revoked = w.lease(ALICE, 4096, token=doomed)
    revoke(t, doomed)
    _, composite = t.lease(ALICE)
    token = t.token(ALICE)
    both = FBMU_IO | QUERY
    brief = handle(t, foreign, BOB, runtime=1, ttl=1)
    short = w.lease(ALICE, 4096, duration=1, grace=60)
    imported = fields(w.call(ALICE, Op.LEASE_IMPORT_HANDLE, u128(handle(t, foreign, BOB, rights=3)))[1], "u64", "u32", "u64")[0]
    time.sleep(2.1)
    for step, name, allowed in (
        ("a memory lease", memory.lease_id, QUERY | REVOKE | FBMU_ALLOC | FBMU_IO),
        ("a block lease", block.lease_id, QUERY | REVOKE | FBBU_ALLOC | FBBU_IO),
        ("another's lease", foreign.lease_id, 0),
        ("a freed lease", gone.lease_id, 0),
        ("a revoked lease", revoked.lease_id, 0),
        ("an expired lease", short.lease_id, 0),
        ("a composite lease", composite.lease_id, 0),
        ("a lease's key", memory.key, 0),
        ("a handle for everyone", handle(t, foreign, BOB, runtime=1), QUERY | FBMU_IO),
        ("a handle for her", handle(t, foreign, BOB, target=ALICE.id, runtime=1), QUERY | FBMU_IO),
        ("a handle to blocks", handle(t, foreign_block, BOB, runtime=1), QUERY | FBBU_IO),
        ("a handle for another", handle(t, foreign, BOB, target=CAROL.id, runtime=1), 0),
        ("a handle for another runtime", handle(t, foreign, BOB, runtime=2), 0),
        ("an expired handle", brief, 0),
        ("what was imported", imported, 0),
        ("the token", Token.read(token).token_id, FBMU_ALLOC | FBBU_ALLOC),
        ("another token", Token.read(w.token(ALICE, EVERY)).token_id, 0),
        ("nothing", 0, 0),
    ):
        got = sum(r for r in ALL if t.run(ALICE, "nothing", caps=[(name, r)]).status == Ran.OK)
        expect(f"rights of {step}", got, allowed)
    expect("no right at all", t.run(ALICE, "nothing", caps=[(memory.lease_id, 0)]).status, Ran.OK)
    mixed = t.run(ALICE, "nothing", caps=[(memory.lease_id, both), (block.lease_id, FBMU_IO)])
    expect("one right too many", (mixed.status, mixed.tasklet), (Ran.UNAUTHORIZED, 0))
    plain = w.token(ALICE, Perm.EXEC | Perm.READ)
    got = t.run(ALICE, "nothing", token=plain, caps=[(Token.read(plain).token_id, FBMU_ALLOC)]).status
    expect("a token without ALLOC", got, Ran.UNAUTHORIZED)
    ask = [call("fbmu_hello"), call("fbmu_query", *halves(memory.lease_id), OUT)]
    expect("rights given twice add up", t.codes(ALICE, *ask, caps=[(memory.lease_id, QUERY), (memory.lease_id, FBMU_IO)]), [0, 0])
    for who, lease in ((ALICE, memory), (ALICE, block), (BOB, foreign), (BOB, foreign_block)):
        w.free(who, lease)
    t.free(ALICE, composite.lease_id)


def memory(t):
    """fbmu: what it does, and each code."""
    w = t.w
    lease, other, foreign = w.lease(ALICE, 8192), w.lease(ALICE, 4096), w.lease(BOB, 2 << 20)
    big = handle(t, foreign, BOB, runtime=1, rights=3)
    hi, lo = halves(lease.lease_id)
    caps = [(other.lease_id, QUERY), (lease.lease_id, FBMU_IO), (big, FBMU_IO)]
    word = int.from_bytes(b"eight by", "little")
    run, got, seen = t.probe(
        ALICE,
        call("fbmu_hello"),
        call("fbmu_get_size"),
        call(STORE, OUT, word),
        call("fbmu_write", 8184, OUT, 8),
        call("fbmu_read", 8184, 8, OUT + 8),
        call("fbmu_read_lease", hi, lo, 8180, 12, OUT + 16),
        call("fbmu_write_lease", hi, lo, 0, OUT, 3),
        call("fbmu_read", 0, 4, OUT + 32),
        caps=caps,
    )
    expect("calls that go well", (run.status, got), (Ran.OK, [0, 8192, 0, 0, 0, 0, 0, 0]))
    expect("what was read", (seen[8:16], seen[16:28], seen[32:36]), (b"eight by", bytes(4) + b"eight by", b"eig\0"))
    most = 1 << 20
    q, k = halves(other.lease_id), halves(big)
    for step, want, *calls in (
        ("no bytes", LENGTH, call("fbmu_read", 0, 0, OUT), call("fbmu_write", 0, OUT, 0)),
        ("more than 1 MiB", LENGTH, call("fbmu_read_lease", *k, 0, most + 1, ROOM), call("fbmu_write_lease", *k, 0, ROOM, most + 1)),
        ("1 MiB", 0, call("fbmu_read_lease", *k, most, most, ROOM), call("fbmu_write_lease", *k, most, ROOM, most)),
        ("over the end", RANGE, call("fbmu_read", 8185, 8, OUT), call("fbmu_write", 8185, OUT, 8)),
        ("far over the end", RANGE, call("fbmu_read", -1, 1, OUT), call("fbmu_write", 1 << 63, OUT, 1)),
        ("the last byte", 0, call("fbmu_read", 8191, 1, OUT), call("fbmu_write", 8191, OUT, 1)),
        ("no such entry", INVALID_LEASE, call("fbmu_read_lease", 1, 2, 0, 1, OUT), call("fbmu_query", 1, 2, OUT), call("fbmu_free", 1, 2)),
        ("the other kind", INVALID_LEASE, call("fbbu_read_block_lease", hi, lo, 0, OUT), call("fbbu_query", hi, lo, OUT), call("fbbu_hello")),
        ("no LEASE_IO", DENIED, call("fbmu_read_lease", *q, 0, 1, OUT), call("fbmu_write_lease", *q, 0, OUT, 1)),
        ("no QUERY", DENIED, call("fbmu_query", hi, lo, OUT)),
        ("no REVOKE", DENIED, call("fbmu_free", hi, lo), call("fbmu_free", *q)),
        ("no ALLOC", DENIED, call("fbmu_renew", hi, lo, 9, OUT), call("fbmu_renew", *q, 9, OUT)),
        ("no ALLOC of a token", DENIED, call("fbmu_alloc", 4096, 60, OUT), call("fbbu_alloc", 8, 60, OUT)),
        ("the entry before the right", INVALID_LEASE, call("fbbu_renew", hi, lo, 9, OUT)),
    ):  # fmt: skip
        expect(f"fbmu: {step}", t.codes(ALICE, *calls, caps=caps), [want] * len(calls))
    none = [call("fbmu_hello"), call("fbmu_get_size"), call("fbmu_read", 0, 1, OUT), call("fbmu_write", 0, OUT, 1)]
    expect("without a lease", t.codes(ALICE, *none), [INVALID_LEASE] * 4)
    for step, *calls in (
        ("read over the end of memory", call("fbmu_read", 0, 8, MEMORY - 7)),
        ("write over the end of memory", call("fbmu_write", 0, MEMORY - 7, 8)),
        ("0xFFFFFFFF", call("fbmu_read", 0, 1, 0xFFFFFFFF)),
        ("a length of 0xFFFFFFFF", call("fbmu_read", 0, 0xFFFFFFFF, 0)),
        ("out of a query", call("fbmu_query", hi, lo, MEMORY - 23)),
        ("a pointer before the entry", call("fbmu_read_lease", 1, 2, 0, 1, MEMORY)),
        ("a message", call("fb_log", 0, MEMORY - 1, 2)),
    ):
        run, _, _ = t.probe(ALICE, *calls, caps=caps, fuel=10**9)
        expect(f"outside memory: {step}", (run.status, run.output, len(run.why)), (Ran.EXEC_FAILED, b"", 1))
    run, _, _ = t.probe(ALICE, call("fbmu_read", 0, 0xFFFFFFFF, 0), caps=caps, fuel=10**6)
    expect("the fuel before the pointer", run.status, Ran.FUEL_EXHAUSTED)
    expect("up to the end of memory", t.codes(ALICE, call("fbmu_read", 0, 8, MEMORY - 8), caps=caps), [0])
    reader = w.lease(CAROL, 4096, token=w.token(CAROL, Perm.READ | Perm.ALLOC))
    run, got, _ = t.probe(CAROL, call("fbmu_read", 0, 1, OUT), call("fbmu_write", 0, OUT, 1), caps=[(reader.lease_id, FBMU_IO)])
    expect("a lease without WRITE", got, [0, DENIED])
    shared = handle(t, foreign, BOB, runtime=1, rights=1)
    got = t.codes(ALICE, call("fbmu_read", 0, 1, OUT), call("fbmu_write", 0, OUT, 1), caps=[(shared, FBMU_IO)])
    expect("a handle without WRITE", got, [0, DENIED])
    for who, one in ((ALICE, lease), (ALICE, other), (BOB, foreign), (CAROL, reader)):
        w.free(who, one)


def blocks(t):
    """fbbu, where it differs."""
    w = t.w
    lease, memory = w.lease(ALICE, 4096, BLOCK), w.lease(ALICE, 4096)
    hi, lo = halves(lease.lease_id)
    caps = [(lease.lease_id, FBBU_IO | QUERY)]
    word = int.from_bytes(b"a block.", "little")
    run, got, seen = t.probe(
        ALICE,
        call("fbbu_hello"),
        call("fbbu_get_size"),
        call(STORE, ROOM, word),
        call("fbbu_write_block", 7, ROOM),
        call("fbbu_read_block_lease", hi, lo, 7, ROOM + 512),
        call("fbbu_write_block_lease", hi, lo, 0, ROOM + 512),
        call("fbbu_read_block", 0, OUT),
        call("fbbu_query", hi, lo, OUT + 8),
        caps=caps,
    )
    expect("calls that go well", (run.status, got[1], [got[n] for n in (0, 3, 4, 5, 6, 7)]), (Ran.OK, 8, [0] * 6))
    expect("the block", seen[:8], b"a block.")
    little = [int.from_bytes(seen[a:b], "little") for a, b in ((8, 12), (12, 16), (16, 24), (24, 32))]
    expect("fbbu_query", little, [0, 512, lease.expires_at, 8])
    for step, want, *calls in (
        ("over the end", RANGE, call("fbbu_read_block", 8, ROOM), call("fbbu_write_block", 8, ROOM)),
        ("far over the end", RANGE, call("fbbu_read_block", -1, ROOM), call("fbbu_write_block", 1 << 55, ROOM)),
        ("the other kind", INVALID_LEASE, call("fbmu_hello"), call("fbmu_read_lease", hi, lo, 0, 1, ROOM)),
        ("no ALLOC", DENIED, call("fbbu_renew", hi, lo, 9, ROOM)),
        ("no REVOKE", DENIED, call("fbbu_free", hi, lo)),
    ):
        expect(f"fbbu: {step}", t.codes(ALICE, *calls, caps=caps), [want] * len(calls))
    expect("outside memory", t.probe(ALICE, call("fbbu_read_block", 0, MEMORY - 511), caps=caps)[0].status, Ran.EXEC_FAILED)
    w.free(ALICE, lease)
    w.free(ALICE, memory)


def lives(t):
    """alloc, query, renew and free."""
    w = t.w
    token = w.token(ALICE, EVERY)
    caps = [(Token.read(token).token_id, FBMU_ALLOC | FBBU_ALLOC)]
    start = now()
    run, got, seen = t.probe(ALICE, call("fbmu_alloc", 5000, 60, OUT), call("fbbu_alloc", 3, 60, OUT + 32), caps=caps, token=token)
    expect("allocs", (run.status, got), (Ran.OK, [0, 0]))
    words = [int.from_bytes(seen[at : at + 8], "little") for at in range(0, 72, 8)]
    made, block = words[0] << 64 | words[1], words[4] << 64 | words[5]
    expect("sizes", (words[3], words[7], words[8]), (5000, 3, 512))
    within("expires_at", words[2], start + 60, now() + 60)
    listed = {e.lease_id: e for e in wire.active(w.call(ALICE, Op.LEASE_LIST_ACTIVE)[1])}
    kept = [(listed[one].holder, listed[one].alloc_bytes) for one in (made, block)]
    expect("they are leases of hers", kept, [(ALICE.id, 5000), (ALICE.id, 1536)])
    caps = [(made, QUERY | REVOKE | FBMU_ALLOC | FBMU_IO)]
    hi, lo = halves(made)
    run, got, seen = t.probe(
        ALICE,
        call("fbmu_renew", hi, lo, 600, OUT),
        call("fbmu_query", hi, lo, OUT + 8),
        call("fbmu_renew", hi, lo, 0, OUT + 32),
        call("fbmu_free", hi, lo),
        call("fbmu_free", hi, lo),
        call("fbmu_read", 0, 1, OUT + 32),
        call("fbmu_query", hi, lo, OUT + 32),
        call("fbmu_renew", hi, lo, 9, OUT + 32),
        caps=caps,
    )
    expect("renew, query, free", (run.status, got), (Ran.OK, [0, 0, PARAM, 0, *[INVALID_LEASE] * 4]))
    renewed, state, until, size = (int.from_bytes(seen[a:b], "little") for a, b in ((0, 8), (8, 16), (16, 24), (24, 32)))
    within("renewed", renewed, start + 600, now() + 600)
    expect("what a query says", (state, until, size), (0, renewed, 5000))
    expect("no code writes", seen[32:40], bytes(8))
    expect("it is gone", w.status(ALICE, Op.LEASE_QUERY, u128(made)), Status.RESOURCE_NOT_FOUND)
    revoke(t, token)
    status, result = w.call(ALICE, Op.LEASE_QUERY, u128(block))
    expect("a lease is its token's", (status, result[0]), (Status.OK, 2))
    token = t.token(ALICE)
    caps = [(Token.read(token).token_id, FBMU_ALLOC)]
    for step, want, *calls in (
        ("no bytes", PARAM, call("fbmu_alloc", 0, 60, OUT)),
        ("no time", PARAM, call("fbmu_alloc", 512, 0, OUT)),
        ("more than there is", FULL, call("fbmu_alloc", 1 << 40, 60, OUT)),
        ("the other kind", DENIED, call("fbbu_alloc", 8, 60, OUT)),
    ):
        expect(f"alloc: {step}", t.codes(ALICE, *calls, caps=caps), [want] * len(calls))
    before = {e.lease_id for e in wire.active(w.call(ALICE, Op.LEASE_LIST_ACTIVE)[1])}
    got = t.codes(ALICE, *[call("fbmu_alloc", 512, 60, OUT)] * 17, caps=caps)
    expect("17 allocs", got, [0] * 16 + [FULL])
    for lease in {e.lease_id for e in wire.active(w.call(ALICE, Op.LEASE_LIST_ACTIVE)[1])} - before:
        w.status(ALICE, Op.LEASE_FREE, u128(lease))
    run, got, seen = t.probe(
        ALICE, call("fbmu_alloc", 512, 60, OUT), call("fbmu_hello"), call("fbmu_write", 500, ROOM, 12), caps=caps
    )
    expect("an alloc's lease is the run's", got, [0, 0, 0])
    hi, lo = (int.from_bytes(seen[at : at + 8], "little") for at in (0, 8))
    w.status(ALICE, Op.LEASE_FREE, u128(hi << 64 | lo))
    reading = w.token(CAROL, Perm.READ | Perm.ALLOC | Perm.EXEC)
    caps = [(Token.read(reading).token_id, FBMU_ALLOC)]
    calls = [call("fbmu_alloc", 512, 1, OUT), call("fbmu_read", 0, 1, ROOM), call("fbmu_write", 0, ROOM, 1)]
    expect("under a token without WRITE", t.codes(CAROL, *calls, caps=caps, token=reading), [0, 0, DENIED])


TEXTS["logs"] = returns(
    """(call $fb_log (i32.const 0) (i32.const 8) (i32.const 5)) (call $fb_log (i32.const 0x1FF) (i32.const 8) (i32.const 5))
       (call $fb_log (i32.const 4) (i32.const 8) (i32.const 0)) (call $fb_log (i32.const 77) (i32.const 0) (i32.const 1025))
       (call $fb_log (i32.const 2) (i32.const 13) (i32.const 1))""",
    imported("fb_log") + '(data (i32.const 8) "hello\\ff")',
)


def logs(t):
    run = t.run(ALICE, "logs")
    levels = [level for level, _ in run.logs]
    expect("levels", (run.status, levels), (Ran.OK, [0, 254, 4, 77, 2]))
    expect("messages", ([text for _, text in run.logs[:3]], len(run.logs[3][1])), (["hello", "hello", ""], 1024))
    expect("a message is bytes", run.logs[4][1], "\udcff")
    expect("FETCH_LOGS has the same", t.logs(ALICE, run.tasklet), (Ran.OK, run.logs))
    flood = t.run(ALICE, "probe", payload=call("fb_log", 1, ROOM, 4) + call(AGAIN, 299))
    expect("of 300 records", (flood.status, [level for level, _ in flood.logs]), (Ran.OK, [1] * 256 + [255]))
    expect("how many were dropped is said", "44" in flood.why[0], True)
    flood = t.run(ALICE, "probe", payload=call("fb_log", 1, ROOM, 1024) + call(AGAIN, 69))
    expect("of 70 KiB", (flood.status, [level for level, _ in flood.logs]), (Ran.OK, [1] * 64 + [255]))


PARTS = [capabilities, memory, blocks, lives, logs]
