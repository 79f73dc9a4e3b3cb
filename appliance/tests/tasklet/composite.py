"""T10 to T12: what ends while a run is under way, leases of cores, and who has which core."""

import time

import wire
from admission import revoke
from guest import FBMU_IO, PAGE, SCRATCH, UNTIL, Ran, call, submit
from hostcalls import EVERY, handle
from wire import Op, Perm, Status, fields, u8, u16, u32, u64, u128
from world import ALICE, BOB, ROOT, Different, expect, now, within

OK, PARAMS, GONE, PERM = Status.OK, Status.INVALID_PARAMS, Status.RESOURCE_NOT_FOUND, Status.INSUFFICIENT_PERM
FULL, EXPIRED = Status.CAPACITY_EXCEEDED, Status.LEASE_EXPIRED
CPU = 1
LONG = dict(fuel=10**12, memory=PAGE)


def detached(t, who, name="spin", token=None, **how):
    """A run that is under way, or waits."""
    status, run = t.asked(who, submit(t.modules[name], **{**LONG, **how}), token)
    if status != OK or run.status != Ran.UNKNOWN:
        raise Different(f"{name}: {status.name}, {run}")
    return run.tasklet


def data_ends(t):
    """A lease ends while a run reads it: the run sees a code, and goes on."""
    w = t.w

    def reading(step, name, end, want):
        payload = call("fbmu_read", 0, 8, SCRATCH) + call(UNTIL) + call("fbmu_hello")
        tasklet = detached(t, ALICE, "probe", payload=payload, caps=[(name, FBMU_IO)], memory=64 * PAGE, hostcalls=10**8)
        expect(f"{step}: it reads", t.status(ALICE, tasklet), Ran.UNKNOWN)
        end()
        status, output, _ = t.ended(ALICE, tasklet)
        got = [int.from_bytes(output[at : at + 8], "little", signed=True) for at in (8, 16)]
        expect(f"{step}: what it sees", (status, got), (Ran.OK, [want, want]))

    lease = w.lease(ALICE, 4096)
    reading("freed", lease.lease_id, lambda: w.free(ALICE, lease), -1)
    doomed = w.token(ALICE, EVERY)
    lease = w.lease(ALICE, 4096, token=doomed)
    reading("revoked", lease.lease_id, lambda: revoke(t, doomed), -3)
    lease = w.lease(ALICE, 4096, duration=4, grace=60)
    reading("expired", lease.lease_id, lambda: None, -2)
    w.free(ALICE, lease)
    lease = w.lease(BOB, 4096)
    reading("a handle that expired", handle(t, lease, BOB, runtime=1, ttl=4), lambda: None, -2)
    w.free(BOB, lease)


def stopped(t):
    """What stops runs."""
    w = t.w
    why = lambda tasklet: t.logs(ALICE, tasklet)[1]
    doomed = w.token(ALICE, EVERY)
    one, other = detached(t, ALICE, token=doomed), detached(t, ALICE)
    revoke(t, doomed)
    expect("CAP_REVOKE of its token", t.status(ALICE, one), Ran.EXEC_FAILED)
    expect("why", why(one), [(255, "its token was revoked")])
    expect("not another's", t.status(ALICE, other), Ran.UNKNOWN)
    t.cancel(ALICE, other)
    _, lease = t.lease(ALICE)
    one = detached(t, ALICE, cpu=lease.cpu)
    expect("TASKLET_LEASE_FREE", t.free(ALICE, lease.lease_id), OK)
    expect("stops its runs", (t.status(ALICE, one), why(one)), (Ran.EXEC_FAILED, [(255, "its composite lease ended")]))
    _, lease = t.lease(ALICE, duration=4, grace=60)
    one, behind = detached(t, ALICE, cpu=lease.cpu), detached(t, ALICE, cpu=lease.cpu)
    status, _, said = t.ended(ALICE, one)
    expect("the expiry of its lease", (status, said), (Ran.EXEC_FAILED, [(255, "its composite lease expired")]))
    expect("not before", time.time() >= lease.expires_at, True)
    expect("one that waits, too", t.ended(ALICE, behind)[0], Ran.EXEC_FAILED)
    t.free(ALICE, lease.lease_id)
    brief = w.token(ALICE, EVERY, ttl=3)
    one = detached(t, ALICE, token=brief)
    time.sleep(4)
    expect("a token's expiry stops nothing", t.status(ALICE, one), Ran.UNKNOWN)
    t.cancel(ALICE, one)


def granted(t):
    """T11."""
    w, cpu = t.w, t.w.ids["main"][CPU]
    start = now()
    status, lease = t.lease(ALICE, cores=1, memory=PAGE + 1, duration=60, threads=255)
    expect("TASKLET_LEASE_ALLOC", (status, lease.arena, lease.cores), (OK, 2 * PAGE, 1))
    within("expires_at", lease.expires_at, start + 60, now() + 60)
    known = {r.resource_id: r for r in wire.inventory(w.call(BOB, Op.GET_INVENTORY)[1])}
    expect("ids of its own", (lease.mem != lease.cpu, {lease.mem, lease.cpu} & set(known)), (True, set()))
    expect("cores that are left", (known[cpu].capacity, known[cpu].available), (2, 1))
    listed = [e for e in wire.active(w.call(BOB, Op.LEASE_LIST_ACTIVE)[1]) if e.lease_id == lease.lease_id]
    seen = [(e.holder, e.resource_id, e.alloc_bytes, e.expires_at) for e in listed]
    expect("LEASE_LIST_ACTIVE", seen, [(ALICE.id, cpu, 2 * PAGE, lease.expires_at)])
    expect("LEASE_QUERY", w.call(BOB, Op.LEASE_QUERY, u128(lease.lease_id)), (OK, u8(0) + u64(lease.expires_at)))
    renew = lambda who: w.status(who, Op.LEASE_RENEW, u128(lease.lease_id) + u32(600), token=t.token(who))
    expect("LEASE_RENEW", renew(ALICE), OK)
    until = fields(w.call(BOB, Op.LEASE_QUERY, u128(lease.lease_id))[1], "u8", "u64")[1]
    within("renewed", until, start + 600, now() + 600)
    status, second = t.lease(ALICE, cores=1, affinity=2)
    expect("ANY", (status, len({lease.mem, lease.cpu, second.mem, second.cpu})), (OK, 4))
    expect("no core is left", t.lease(BOB)[0], FULL)
    expect("LEASE_FREE of it", w.status(ALICE, Op.LEASE_FREE, u128(second.lease_id)), GONE)
    expect("another frees it", t.free(BOB, second.lease_id), PERM)
    expect("TASKLET_LEASE_FREE", t.free(ALICE, second.lease_id), OK)
    expect("again", t.free(ALICE, second.lease_id), GONE)
    plain = w.lease(ALICE, 4096)
    expect("TASKLET_LEASE_FREE of memory", t.free(ALICE, plain.lease_id), GONE)
    expect("of nothing", t.free(ALICE, 4711), GONE)
    w.free(ALICE, plain)
    good = u32(60) + u32(0) + u16(1) + u64(PAGE) + u8(0) + u8(1)
    for step, params, token, want in (
        ("no time", u32(0) + good[4:], None, PARAMS),
        ("no cores", good[:8] + u16(0) + good[10:], None, PARAMS),
        ("no memory", good[:10] + u64(0) + good[18:], None, PARAMS),
        ("affinity 3", good[:18] + u8(3) + u8(1), None, PARAMS),
        ("a byte too few", good[:-1], None, PARAMS),
        ("a byte too many", good + b"\0", None, PARAMS),
        ("SAME_RACK", good[:18] + u8(1) + u8(1), None, FULL),
        ("more cores than there are", good[:8] + u16(3) + good[10:], None, FULL),
        ("more memory than there is", good[:10] + u64((256 << 20) + 1) + good[18:], None, FULL),
        ("all memory there can be", good[:10] + u64((1 << 64) - 1) + good[18:], None, FULL),
        ("no token", good, b"", Status.INVALID_TOKEN),
        ("no EXEC", good, w.token(ALICE, Perm.ALLOC | Perm.READ), PERM),
    ):
        token = t.token(ALICE) if token is None else token
        expect(f"TASKLET_LEASE_ALLOC: {step}", w.status(ALICE, Op.TASKLET_LEASE_ALLOC, params, token=token), want)
    expect("of what is left", t.lease(ALICE, memory=(256 << 20) - 2 * PAGE + 1)[0], FULL)
    status, rest = t.lease(ALICE, memory=(256 << 20) - 2 * PAGE)
    expect("all that is left", status, OK)
    expect("all comes back", (t.free(ALICE, rest.lease_id), t.free(ALICE, lease.lease_id)), (OK, OK))
    status, all = t.lease(BOB, cores=2, memory=256 << 20)
    expect("to others", (status, t.free(BOB, all.lease_id)), (OK, OK))


def cores(t):
    """T12: as many at a time as cores, and as much memory at a time as the arena."""
    _, lease = t.lease(ALICE, cores=1, memory=4 * PAGE)
    first = detached(t, ALICE, cpu=lease.cpu)
    second = detached(t, ALICE, "nothing", cpu=lease.cpu)
    shared = t.run(ALICE, "nothing", memory=PAGE)
    expect("on the core that is not leased", shared.status, Ran.OK)
    expect("it waits for the one core", (t.status(ALICE, second), t.status(ALICE, first)), (Ran.UNKNOWN, Ran.UNKNOWN))
    t.cancel(ALICE, first)
    expect("and has it", t.ended(ALICE, second)[0], Ran.OK)
    t.free(ALICE, lease.lease_id)

    _, lease = t.lease(ALICE, cores=2, memory=4 * PAGE)
    first = detached(t, ALICE, cpu=lease.cpu, memory=3 * PAGE)
    large = detached(t, ALICE, "nothing", cpu=lease.cpu, memory=2 * PAGE)
    expect("two pages do not fit into the arena", t.status(ALICE, large), Ran.UNKNOWN)
    t.cancel(ALICE, first)
    expect("now they do", t.ended(ALICE, large)[0], Ran.OK)
    first = detached(t, ALICE, cpu=lease.cpu, memory=3 * PAGE)
    expect("a page fits", t.run(ALICE, "nothing", cpu=lease.cpu, memory=PAGE).status, Ran.OK)
    waits = detached(t, BOB, "nothing")
    expect("no core is left for others", t.status(BOB, waits), Ran.UNKNOWN)
    t.free(ALICE, lease.lease_id)
    expect("the lease's end stops its run", t.status(ALICE, first), Ran.EXEC_FAILED)
    expect("and others have its cores", t.ended(BOB, waits)[0], Ran.OK)


def turns(t):
    """T12: presenters take turns: what one has under way holds up nobody else."""
    many = [detached(t, ALICE) for _ in range(6)]
    begun = time.monotonic()
    expect("another's run", t.run(BOB, "nothing", memory=PAGE).status, Ran.OK)
    expect("in less than a run's time", time.monotonic() - begun < 20, True)
    expect("and they are under way", {t.status(ALICE, one) for one in many}, {Ran.UNKNOWN})
    expect("CANCEL of each", [t.cancel(ALICE, one) for one in many], [Ran.OK] * 6)
    expect("they have ended", [t.status(ALICE, one) for one in many], [Ran.EXEC_FAILED] * 6)


def key_ends(t):
    """T10: KEY_REVOKE of the presenter; the last part, for Bob's token is of no use then."""
    bobs, hers = detached(t, BOB), detached(t, ALICE)
    admin = t.w.token(ROOT, Perm.ADMIN)
    expect("KEY_REVOKE", t.w.status(ROOT, Op.KEY_REVOKE, u128(BOB.id) + u8(0), token=admin), OK)
    expect("stops his runs", t.status(BOB, bobs), Ran.EXEC_FAILED)
    expect("and nobody else's", t.status(ALICE, hers), Ran.UNKNOWN)
    t.cancel(ALICE, hers)


def before_restart(t):
    """What there is when the node ends: a result, a run, and a lease."""
    done = t.run(ALICE, "nothing")
    status, lease = t.lease(ALICE, cores=2, memory=5 * PAGE, duration=600)
    under_way = detached(t, ALICE, cpu=lease.cpu)
    expect("before the restart", (status, t.status(ALICE, under_way)), (OK, Ran.UNKNOWN))
    return [done.tasklet, under_way, lease.lease_id, lease.expires_at, lease.mem, lease.cpu]


def after_restart(t, done, under_way, lease_id, expires_at, mem, cpu):
    w = t.w
    expect("runs are forgotten", [t.status(ALICE, one) for one in (done, under_way)], [Ran.NOT_FOUND] * 2)
    expect("the lease is not", w.call(BOB, Op.LEASE_QUERY, u128(lease_id)), (OK, u8(0) + u64(expires_at)))
    t.ids = {("main", done), ("main", under_way)}
    run = t.run(ALICE, "nothing", mem=mem, cpu=cpu, memory=5 * PAGE)
    expect("it has its ids, and runs", run.status, Ran.OK)
    expect("its arena", t.asked(ALICE, submit(t.modules["nothing"], mem=mem, memory=5 * PAGE + 1))[0], FULL)
    expect("its cores", t.lease(ALICE)[0], FULL)
    expect("ends as before", (t.free(ALICE, lease_id), t.lease(ALICE, cores=2)[0]), (OK, OK))


PARTS = [granted, cores, turns, data_ends, stopped, key_ends]
