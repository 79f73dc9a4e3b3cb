"""T1, T3 and T9: who may submit what, in which order the node looks, what it keeps, and modules by hash."""

import hashlib
import time

import wire
from guest import PAGE, QUERY, SHORT, SVC_LISTEN, SVC_SESSION_IO, TEXTS, Ran, call, returns, submit
from identity import Token, rate_limit
from wire import BLOCK, MEM, Op, Perm, Reader, Status, u8, u32, u64, u128
from world import ALICE, BOB, DAVE, ROOT, Different, expect

OK, PARAMS, GONE, PERM = Status.OK, Status.INVALID_PARAMS, Status.RESOURCE_NOT_FOUND, Status.INSUFFICIENT_PERM
FULL, INVALID, EXPIRED = Status.CAPACITY_EXCEEDED, Status.INVALID_TOKEN, Status.LEASE_EXPIRED
CPU = 1

TEXTS["late_profile"] = returns("", '(import "fabricbios_fbmu_v1" "fbmu_hello" (func (result i32)))')
# Of these the short node keeps a few compiled.
BULKY = [f"bulky{n}" for n in range(12)]
for n, name in enumerate(BULKY):
    sums = "(local.set $at (i32.add (i32.mul (local.get $at) (i32.const 31)) (i32.load (local.get $len))))" * 2000
    TEXTS[name] = returns(f"(drop (i32.const {n})) {sums}")


def inventory(t):
    """The ids of what the nodes have."""
    w = t.w
    for node in ("main", "short"):
        found = wire.inventory(w.call(ALICE, Op.GET_INVENTORY, node=node)[1])
        ids = {r.kind: r for r in found}
        w.ids[node] = {kind: r.resource_id for kind, r in ids.items()}
        cores = 2 if node == "main" else 1
        expect(f"cores of the {node} node", [r.capacity for r in found if r.kind == CPU], [cores])


def tokens(t):
    w, wasm = t.w, t.modules["nothing"]
    cpu, scratch = w.ids["main"][CPU], w.ids["main"][MEM]
    token = t.token(ALICE)
    for step, used, resource, want in (
        ("none", b"", 0, INVALID),
        ("garbage", b"garbage", 0, INVALID),
        ("another's", t.token(BOB), 0, INVALID),
        ("without EXEC", w.token(ALICE, Perm.READ | Perm.WRITE | Perm.ALLOC), 0, PERM),
        ("for a region", w.token(ALICE, Perm.EXEC, resource=scratch), 0, PERM),
        ("for the CPU", w.token(ALICE, Perm.EXEC, resource=cpu), 0, OK),
        ("for all", token, 0, OK),
        ("for all, and any resource_id", token, 4711, OK),
    ):
        expect(f"a token: {step}", t.asked(ALICE, submit(wasm), used, resource)[0], want)
    delegable = w.token(ALICE, Perm.EXEC | Perm.DELEGATE)
    limited = ALICE.delegate(delegable, ALICE.id, rate_limit(1))
    got = []
    while len(got) < 100 and Status.RATE_LIMITED not in got:
        got.append(t.asked(ALICE, submit(wasm), limited)[0])
    expect("a token for one in a second", set(got), {OK, Status.RATE_LIMITED})


def stale(t):
    """Tokens of before a fence, on the short node."""
    w, wasm = t.w, t.modules["nothing"]
    old = t.token(ALICE, "short")
    admin = w.token(ROOT, Perm.ADMIN, node="short")
    _, run = t.asked(ALICE, submit(t.modules["spin"], fuel=10**10, **SHORT), node="short")
    expect("a fence", w.status(ROOT, Op.SCHEDULER_FENCE_SET, u64(5), token=admin, node="short"), OK)
    expect("a token of before it", t.asked(ALICE, submit(wasm, **SHORT), old, node="short")[0], Status.STALE_EPOCH)
    why = t.ended(ALICE, run.tasklet, "short")[2]
    expect("what was admitted before it goes on to its wall time", why, [(255, "wall time: more than 300 ms")])
    for who in (ALICE, BOB):
        perms = Perm.READ | Perm.WRITE | Perm.ALLOC | Perm.EXEC
        t.tokens[who.id, "short"] = w.token(who, perms, node="short", more=u64(5))
    expect("a token of it", t.asked(ALICE, submit(wasm, **SHORT), node="short")[0], OK)


def params(t):
    good = submit(t.modules["nothing"])
    for step, sent, want in (
        ("a byte too many", good + b"\0", PARAMS),
        ("a byte too few", good[:-1], PARAMS),
        ("none", b"", PARAMS),
        ("bit 8 of the rights", submit(t.modules["nothing"], caps=[(0, 256)]), PARAMS),
        ("bit 31 of the rights", submit(t.modules["nothing"], caps=[(0, 1 << 31)]), PARAMS),
        ("257 capabilities", submit(t.modules["nothing"], caps=[(1, 1)] * 257), PARAMS),
    ):
        expect(f"params: {step}", t.asked(ALICE, sent)[0], want)
    lease = t.w.lease(ALICE, 4096)
    expect("256 capabilities", t.run(ALICE, "nothing", caps=[(lease.lease_id, QUERY)] * 256).status, Ran.OK)
    t.w.free(ALICE, lease)


def resources(t):
    w, wasm = t.w, t.modules["nothing"]
    ids = w.ids["main"]
    (_, mine), (_, other) = t.lease(ALICE), t.lease(ALICE)
    ask = lambda who=ALICE, **how: t.asked(who, submit(wasm, memory=PAGE, **how))[0]
    for step, how, want in (
        ("those of the node", dict(mem=ids[MEM], cpu=ids[CPU]), OK),
        ("no such memory", dict(mem=4711), GONE),
        ("no such CPU", dict(cpu=4711), GONE),
        ("blocks for memory", dict(mem=ids[BLOCK]), GONE),
        ("the CPU for memory", dict(mem=ids[CPU]), GONE),
        ("memory for the CPU", dict(cpu=ids[MEM]), GONE),
        ("a lease's", dict(mem=mine.mem, cpu=mine.cpu), OK),
        ("its memory", dict(mem=mine.mem), OK),
        ("its cores", dict(cpu=mine.cpu), OK),
        ("its memory and the node's CPU", dict(mem=mine.mem, cpu=ids[CPU]), OK),
        ("its cores for memory", dict(mem=mine.cpu), GONE),
        ("its memory for cores", dict(cpu=mine.mem), GONE),
        ("its lease_id", dict(mem=mine.lease_id), GONE),
        ("those of two leases", dict(mem=mine.mem, cpu=other.cpu), PARAMS),
    ):
        expect(f"resources: {step}", ask(**how), want)
    expect("another's memory", ask(BOB, mem=mine.mem), PERM)
    expect("another's cores", ask(BOB, cpu=mine.cpu), PERM)
    expect("TASKLET_LEASE_FREE", t.free(ALICE, other.lease_id), OK)
    expect("a freed lease's", ask(mem=other.mem), GONE)
    doomed = w.token(ALICE, Perm.EXEC | Perm.ALLOC)
    wanted = u32(60) + u32(0) + b"\0\1" + u64(PAGE) + u8(0) + u8(0)
    r = Reader(w.call(ALICE, Op.TASKLET_LEASE_ALLOC, wanted, token=doomed)[1])
    revoked, _, mem = r.u128(), r.u64(), r.u128()
    revoke(t, doomed)
    expect("a revoked lease's", ask(mem=mem), EXPIRED)
    expect("TASKLET_LEASE_FREE of it", t.free(ALICE, revoked), EXPIRED)
    _, brief = t.lease(ALICE, duration=1, grace=60)
    time.sleep(max(0, brief.expires_at - time.time()) + 1.1)
    expect("a lease's in its grace", ask(mem=brief.mem), EXPIRED)
    expect("free", [t.free(ALICE, lease.lease_id) for lease in (mine, brief)], [OK, OK])


def revoke(t, token):
    params = u128(Token.read(token).token_id) + u32(60)
    status = t.w.status(ALICE, Op.CAP_REVOKE, params, token=t.w.token(ALICE, Perm.REVOKE))
    if status != OK:
        raise Different(f"CAP_REVOKE: {status.name}")


def limits(t):
    wasm = t.modules["nothing"]
    for node, most in (
        ("main", dict(fuel=10**12, memory=64 << 20, output=512 << 10, hostcalls=10**8)),
        ("short", dict(fuel=10**10, memory=1 << 20, output=40 << 10, hostcalls=10**6)),
    ):
        expect(f"all that the {node} node gives", t.asked(ALICE, submit(wasm, **most), node=node)[0], OK)
        for name, value in most.items():
            one_more = submit(wasm, **{**most, name: value + 1})
            expect(f"{name} of {value + 1}", t.asked(ALICE, one_more, node=node)[0], FULL)
    _, lease = t.lease(ALICE, memory=3 * PAGE - 5)
    expect("an arena is whole pages", lease.arena, 3 * PAGE)
    expect("all of it", t.asked(ALICE, submit(wasm, memory=3 * PAGE, cpu=lease.cpu))[0], OK)
    expect("a byte more", t.asked(ALICE, submit(wasm, memory=3 * PAGE + 1, cpu=lease.cpu))[0], FULL)
    t.free(ALICE, lease.lease_id)


def refused(t):
    """Statuses of what was not admitted: nothing of it is kept."""
    wasm = t.modules["nothing"]
    unknown = hashlib.sha256(b"never submitted").digest()
    for step, sent, want in (
        ("SVC_LISTEN", submit(wasm, caps=[(0, SVC_LISTEN)]), Ran.UNSUPPORTED),
        ("SVC_SESSION_IO", submit(wasm, caps=[(0, SVC_SESSION_IO | QUERY)]), Ran.UNSUPPORTED),
        ("a capability for nothing", submit(wasm, caps=[(99, QUERY)]), Ran.UNAUTHORIZED),
        ("an unknown hash", submit(sha=unknown), Ran.MODULE_NOT_FOUND),
        ("a wrong hash", submit(wasm, sha=unknown), Ran.INVALID),
        ("no module at all", submit(b"garbage"), Ran.INVALID),
        ("a component", submit(b"\0asm\x0d\0\1\0"), Ran.INVALID),
        ("a cut module", submit(wasm[:-1]), Ran.INVALID),
        ("a later profile", submit(t.modules["late_profile"]), Ran.UNSUPPORTED_PROFILE),
    ):
        status, run = t.asked(ALICE, sent)
        expect(f"not admitted: {step}", (status, run.status, run.tasklet, run.output), (OK, want, 0, b""))


def order(t):
    """With every fault at once the first check answers; each one mended, the next."""
    faults = [
        ("token", dict(token=b""), INVALID),
        ("params", dict(tail=b"\0"), PARAMS),
        ("resources", dict(mem=4711), GONE),
        ("limits", dict(hostcalls=10**8 + 1), FULL),
        ("SVC_LISTEN", dict(caps=[(99, SVC_LISTEN)]), Ran.UNSUPPORTED),
        ("capability", dict(caps=[(99, QUERY)]), Ran.UNAUTHORIZED),
        ("hash", dict(sha=bytes(32)), Ran.INVALID),
        ("module", dict(wasm=b"\0asm"), Ran.INVALID),
        ("nothing", {}, Ran.OK),
    ]
    for n, (step, _, want) in enumerate(faults):
        how = {"wasm": t.modules["nothing"]}
        for _, fault, _ in reversed(faults[n:]):
            how.update(fault)
        token, tail = how.pop("token", None), how.pop("tail", b"")
        status, run = t.asked(ALICE, submit(**how) + tail, token)
        got = run.status if status == OK else status
        expect(f"the first fault: {step}", got, want)
    by_hash = submit(sha=bytes(32), caps=[(99, QUERY)])
    expect("a capability before an unknown hash", t.asked(ALICE, by_hash)[1].status, Ran.UNAUTHORIZED)


def queue(t):
    """Of 8 places on the short node a presenter has 2."""
    status, lease = t.lease(BOB, node="short")
    expect("every core is leased", status, OK)
    runs = [t.asked(ALICE, submit(t.modules["nothing"], **SHORT), node="short") for _ in range(3)]
    expect("admitted and not", [status for status, _ in runs], [OK, OK, Status.RESOURCE_BUSY])
    waiting = [run for _, run in runs[:2]]
    expect("they wait", [(run.status, run.output, run.logs) for run in waiting], [(Ran.UNKNOWN, b"", [])] * 2)
    expect("one is taken back", t.cancel(ALICE, waiting[0].tasklet, "short"), Ran.OK)
    status, _, logs = t.ended(ALICE, waiting[0].tasklet, "short")
    expect("and is over", (status, logs), (Ran.EXEC_FAILED, [(255, "cancelled")]))
    expect("the cores are free", t.free(BOB, lease.lease_id, "short"), OK)
    expect("the other one ran", t.ended(ALICE, waiting[1].tasklet, "short")[0], Ran.OK)


def waiting(t):
    """T3: SUBMIT waits 200 ms, STATUS and FETCH_RESULT then say what it would have said."""
    begun = time.monotonic()
    _, run = t.asked(ALICE, submit(t.modules["spin"], fuel=10**12))
    took = time.monotonic() - begun
    expect("a long run", (run.status, run.output, run.logs), (Ran.UNKNOWN, b"", []))
    expect("SUBMIT waited", took >= 0.2, True)
    expect("STATUS", t.status(ALICE, run.tasklet), Ran.UNKNOWN)
    expect("FETCH_RESULT", t.fetch(ALICE, run.tasklet), (Ran.UNKNOWN, b""))
    expect("FETCH_LOGS", t.logs(ALICE, run.tasklet), (Ran.UNKNOWN, []))
    for who in (BOB, DAVE):
        all_say = [t.status(who, run.tasklet), t.fetch(who, run.tasklet), t.cancel(who, run.tasklet), t.logs(who, run.tasklet)]
        none = Ran.NOT_FOUND
        expect("to others there is no such run", all_say, [none, (none, b""), none, (none, [])])
    expect("CANCEL", t.cancel(ALICE, run.tasklet), Ran.OK)
    expect("STATUS at once", t.status(ALICE, run.tasklet), Ran.EXEC_FAILED)
    expect("FETCH_LOGS", t.logs(ALICE, run.tasklet), (Ran.EXEC_FAILED, [(255, "cancelled")]))
    expect("CANCEL again", t.cancel(ALICE, run.tasklet), Ran.FINISHED)
    for tasklet in (0, 1, run.tasklet + 1000, 1 << 63):
        got = [t.status(ALICE, tasklet), t.cancel(ALICE, tasklet)]
        expect(f"no run {tasklet:#x}", got, [Ran.NOT_FOUND] * 2)
    whole = bytes(range(256)) * 64
    done = t.run(ALICE, "echo", payload=whole)
    expect("a short run", (done.status, done.output, done.tasklet > 0), (Ran.OK, whole, True))
    expect("fetched twice", [t.fetch(ALICE, done.tasklet) for _ in range(2)], [(Ran.OK, whole)] * 2)
    for op in (Op.TASKLET_STATUS, Op.TASKLET_FETCH_RESULT, Op.TASKLET_CANCEL):
        bad = [t.w.status(ALICE, op, sent) for sent in (b"", bytes(7), bytes(9))]
        expect(f"{op.name} with odd params", bad, [PARAMS] * 3)


def kept(t):
    """Results of the short node: 5 seconds, 64 KiB."""
    payload = bytes(30 << 10)
    runs = [t.run(ALICE, "echo", node="short", payload=payload, memory=1 << 20) for _ in range(3)]
    found = [t.fetch(ALICE, run.tasklet, "short") for run in runs]
    expect("the oldest result went", found, [(Ran.NOT_FOUND, b"")] + [(Ran.OK, payload)] * 2)
    expect("there is nothing of it", t.logs(ALICE, runs[0].tasklet, "short"), (Ran.NOT_FOUND, []))
    end = time.monotonic() + 20
    while t.status(ALICE, runs[2].tasklet, "short") == Ran.OK and time.monotonic() < end:
        time.sleep(0.1)
    expect("its time is over", t.fetch(ALICE, runs[2].tasklet, "short"), (Ran.NOT_FOUND, b""))


def once(t):
    """At most once: a copy of the request gets the first one's answer."""
    if t.w.carrier != "udp":
        return
    alice, caps = t.w.new(ALICE), [(Token.read(t.token(ALICE)).token_id, 4)]
    leases = lambda: {entry.lease_id for entry in wire.active(t.w.call(ALICE, Op.LEASE_LIST_ACTIVE)[1])}
    before = leases()
    params = submit(t.modules["probe"], payload=call("fbmu_alloc", 4096, 60, 0x10000), caps=caps)
    frame = alice.request(Op.TASKLET_SUBMIT, params, 0, t.token(ALICE))
    answers = {alice.ask(frame).payload for _ in range(3)}
    expect("three copies, one answer", len(answers), 1)
    new = leases() - before
    expect("and one run", len(new), 1)
    t.w.status(ALICE, Op.LEASE_FREE, u128(*new))


def by_hash(t):
    """T9: by hash a presenter finds what it has itself submitted."""
    wasm = t.modules["echo"]
    sha = hashlib.sha256(wasm).digest()
    expect("by hash", t.run(ALICE, b"", sha=sha, payload=b"again").output, b"again")
    expect("another presenter", t.run(BOB, b"", sha=sha, payload=b"again").status, Ran.MODULE_NOT_FOUND)
    expect("who submits it", t.run(BOB, wasm, payload=b"mine").output, b"mine")
    expect("finds it", t.run(BOB, b"", sha=sha, payload=b"again").output, b"again")
    hashes = [hashlib.sha256(t.modules[name]).digest() for name in BULKY]
    find = lambda n: t.run(ALICE, b"", sha=hashes[n], node="short").status
    for name in BULKY[:2]:
        expect(f"{name} on the short node", t.run(ALICE, name, node="short").status, Ran.OK)
    for n in range(2, len(BULKY)):
        expect(f"{BULKY[0]} is used", find(0), Ran.OK)
        expect(f"{BULKY[n]}", t.run(ALICE, BULKY[n], node="short").status, Ran.OK)
    found = [find(n) for n in (0, 1, -1)]
    expect("the least recently used went", found, [Ran.OK, Ran.MODULE_NOT_FOUND, Ran.OK])


PARTS = [inventory, tokens, params, resources, limits, refused, order, waiting, once, by_hash, queue, kept, stale]
