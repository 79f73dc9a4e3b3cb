"""T2, T4 and T5: how runs end, what they cost, and what a module is."""

import time

from guest import FBMU_IO, PAGE, QUERY, TEXTS, Ran, call, imported, returns, submit
from wire import items, u16, u32, u128
from world import ALICE, expect

READ = imported("fbmu_read")
SIZE = imported("fbmu_get_size")
LOG = imported("fb_log")
ALLOC = '(func (export "tasklet_alloc") (param i32) (result i32) (i32.const 1024))'


def output(length, at=0):
    return f"(i64.const {at << 32 | length})"


# name: text, status, output, the node's own record (none, one, or one with these words), limits.
ENDS = {
    "no output": (returns(""), Ran.OK, b"", [], {}),
    "some output": (returns("", '(data (i32.const 5) "five")', result=output(4, 5)), Ran.OK, b"five", [], {}),
    "up to the end of memory": (returns("", result=output(PAGE)), Ran.OK, bytes(PAGE), [], {}),
    "fuel": (returns("(loop $on (br $on))"), Ran.FUEL_EXHAUSTED, b"", "1000", dict(fuel=1000)),
    "fuel in a start function": (returns("", "(func $s (loop $on (br $on))) (start $s)"), Ran.FUEL_EXHAUSTED, b"", None, dict(fuel=1000)),
    "initial memory": (returns("", memory="2"), Ran.OOM, b"", None, dict(memory=2 * PAGE - 1)),
    "memory just enough": (returns("", memory="2"), Ran.OK, b"", [], dict(memory=2 * PAGE)),
    "no memory": (returns("", memory="0"), Ran.OK, b"", [], dict(memory=0)),
    "a grow over the limit": (returns("(drop (memory.grow (i32.const 2)))"), Ran.OOM, b"", None, dict(memory=3 * PAGE - 1)),
    "a grow up to the limit": (returns("(drop (memory.grow (i32.const 2)))"), Ran.OK, b"", [], dict(memory=3 * PAGE)),
    "a grow over the module's maximum": (
        returns("(i32.store (i32.const 0) (memory.grow (i32.const 2)))", memory="1 2", result=output(4)),
        Ran.OK, b"\xff" * 4, [], dict(memory=8 * PAGE),
    ),
    "output over the limit": (returns("", result=output(9)), Ran.OOM, b"", "8", dict(output=8)),
    "output up to the limit": (returns("", result=output(9)), Ran.OK, bytes(9), [], dict(output=9)),
    "no output allowed": (returns(""), Ran.OK, b"", [], dict(output=0)),
    "unreachable": (returns("unreachable"), Ran.EXEC_FAILED, b"", None, {}),
    "a load outside memory": (returns("(drop (i32.load (i32.const 65533)))"), Ran.EXEC_FAILED, b"", None, {}),
    "a division by zero": (returns("(drop (i32.div_u (i32.const 1) (i32.const 0)))"), Ran.EXEC_FAILED, b"", None, {}),
    "no end of calls": (returns("(call $deeper)", "(func $deeper (call $deeper))"), Ran.EXEC_FAILED, b"", None, {}),
    "an output outside memory": (returns("", result=output(2, PAGE - 1)), Ran.EXEC_FAILED, b"", None, {}),
    "a pointer outside memory": (returns("", result=output(0, PAGE + 1)), Ran.EXEC_FAILED, b"", None, {}),
    "its own failure": (returns("", result="(i64.const 0xFFFFFFFF01020304)"), Ran.EXEC_FAILED, b"\1\2\3\4", None, {}),
    "its own failure, with no output allowed": (returns("", result="(i64.const -1)"), Ran.EXEC_FAILED, b"\xff" * 4, None, dict(output=0)),
    "room for input outside memory": (
        returns("", f'(func (export "tasklet_alloc") (param i32) (result i32) (i32.const {PAGE - 3}))'),
        Ran.EXEC_FAILED, b"", None, dict(payload=b"four"),
    ),
    "room for input at the end": (
        returns("", f'(func (export "tasklet_alloc") (param i32) (result i32) (i32.const {PAGE - 4}))', result=output(4, PAGE - 4)),
        Ran.OK, b"four", [], dict(payload=b"four"),
    ),
    "no calls": (returns("(call $fb_log (i32.const 0) (i32.const 0) (i32.const 0))", LOG), Ran.HOSTCALL_LIMIT, b"", None, dict(hostcalls=0)),
    "a call too many": (
        returns("(call $fb_log (i32.const 0) (i32.const 0) (i32.const 0))" * 3, LOG), Ran.HOSTCALL_LIMIT, b"", None, dict(hostcalls=2),
    ),
    "as many calls as it may": (
        returns("(call $fb_log (i32.const 0) (i32.const 0) (i32.const 0))" * 3, LOG), Ran.OK, b"", [], dict(hostcalls=3),
    ),
    "the count before the fuel": (returns("(drop (call $fbmu_get_size))", SIZE), Ran.HOSTCALL_LIMIT, b"", None, dict(hostcalls=0, fuel=50)),
    "in this order": (
        """(module (memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
          (func $add (param i32) (global.set $n (i32.add (i32.mul (global.get $n) (i32.const 10)) (local.get 0))))
          (func $start (call $add (i32.const 1))) (start $start)
          (func (export "_initialize") (call $add (i32.const 2)))
          (func (export "tasklet_alloc") (param i32) (result i32) (call $add (i32.const 3)) (i32.const 8))
          (func (export "tasklet_run") (param i32 i32) (result i64)
            (call $add (i32.const 4)) (i32.store (i32.const 0) (global.get $n)) (i64.const 4)))""",
        Ran.OK, (1234).to_bytes(4, "little"), [], dict(payload=b"x"),
    ),
    "0, 0 without input": (
        returns("(i32.store (i32.const 0) (i32.add (local.get $at) (local.get $len)))", ALLOC, result=output(4)), Ran.OK, bytes(4), [], {},
    ),
    "canonical NaNs": (
        returns(
            """(f32.store (i32.const 0) (f32.add (f32.reinterpret_i32 (i32.const 0xFFC12345)) (f32.const 1)))
               (f64.store (i32.const 4) (f64.div (f64.const 0) (f64.const -0)))""",
            result=output(12),
        ),
        Ran.OK, bytes.fromhex("0000c07f") + bytes.fromhex("000000000000f87f"), [], {},
    ),
}  # fmt: skip

# What a body costs, beside the 2 of entering the function and its result.
BODIES = [
    ("", "", 0),
    ("(nop)(nop)", "", 0),
    ("(block)(loop)(block (nop))", "", 0),
    ("(drop (i32.const 1))", "", 1),
    ("(if (i32.const 1) (then (nop)) (else (nop)))", "", 2),
    ("(if (i32.const 0) (then (nop)) (else (drop (i32.const 7))))", "", 3),
    ("(block (br 0))", "", 1),
    ("(block (br_if 0 (i32.const 1)))", "", 2),
    ("(block (br_table 0 0 (i32.const 1)))", "", 2),
    ("(return (i64.const 0))", "", 0),
    ("(call $f)", "(func $f)", 2),
    ("(call $f)", "(func $f (return))", 2),
    ("(drop (i32.add (local.get $at) (i32.load (i32.const 0))))", "", 4),
    ("(local.set $at (i32.const 3))", "", 2),
    ("(drop (memory.size))", "", 1),
    ("(drop (memory.grow (i32.const 1)))", "", 2),
    ("(memory.fill (i32.const 0) (i32.const 1) (i32.const 100))", "", 104),
    ("(memory.copy (i32.const 0) (i32.const 500) (i32.const 77))", "", 81),
    ("(memory.init $d (i32.const 0) (i32.const 1) (i32.const 2))", '(data $d "data")', 6),
    ("(data.drop $d)", '(data $d "data")', 1),
    ("(table.fill $t (i32.const 0) (ref.null func) (i32.const 9))", "(table $t 10 funcref)", 13),
    ("(table.copy $t $t (i32.const 0) (i32.const 1) (i32.const 9))", "(table $t 10 funcref)", 13),
    ("(drop (i32x4.add (v128.const i32x4 1 2 3 4) (v128.const i32x4 1 2 3 4)))", "", 3),
    ("(drop (call $fbmu_get_size))", SIZE, 101),
    ("(call $fb_log (i32.const 1) (i32.const 0) (i32.const 80))", LOG, 114),
    ("(call $fb_log (i32.const 1) (i32.const 0) (i32.const 7))", LOG, 104),
    ("(drop (call $fbmu_read (i64.const 0) (i32.const 4096) (i32.const 0)))", READ, 616),
]  # fmt: skip

# What is no module of this profile: status 1, or 7.
_RUN = '(func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0))'
_MEMORY = '(memory (export "memory") 1)'
BAD = {
    "no memory exported": (f"(module (memory 1) {_RUN})", 1),
    "no memory": (f"(module {_RUN})", 1),
    "a memory that is a function": (f'(module (func (export "memory")) {_RUN})', 1),
    "no tasklet_run": (f"(module {_MEMORY})", 1),
    "tasklet_run of another type": (f'(module {_MEMORY} (func (export "tasklet_run") (param i32) (result i64) (i64.const 0)))', 1),
    "tasklet_run that is a global": (f'(module {_MEMORY} (global (export "tasklet_run") i32 (i32.const 0)))', 1),
    "tasklet_alloc of another type": (f'(module {_MEMORY} {_RUN} (func (export "tasklet_alloc") (result i32) (i32.const 0)))', 1),
    "_initialize of another type": (f'(module {_MEMORY} {_RUN} (func (export "_initialize") (param i32)))', 1),
    "an unknown import": (f'(module (import "env" "abort" (func)) {_MEMORY} {_RUN})', 1),
    "an unknown function": (f'(module (import "fabricbios_fbmu_v0" "fbmu_none" (func)) {_MEMORY} {_RUN})', 1),
    "another signature": (f'(module (import "fabricbios_fbmu_v0" "fbmu_hello" (func (result i64))) {_MEMORY} {_RUN})', 1),
    "an imported memory": (f'(module (import "env" "memory" (memory 1)) (export "memory" (memory 0)) {_RUN})', 1),
    "two memories": (f"(module {_MEMORY} (memory 1) {_RUN})", 1),
    "memory64": (f'(module (memory (export "memory") i64 1) {_RUN})', 1),
    "shared memory": (f'(module (memory (export "memory") 1 1 shared) {_RUN})', 1),
    "atomics": (f"(module {_MEMORY} {_RUN} (func (drop (i32.atomic.load (i32.const 0)))))", 1),
    "a tail call": (f"(module {_MEMORY} {_RUN} (func $f (return_call $f)))", 1),
    "exceptions": (f"(module {_MEMORY} {_RUN} (tag $t) (func (throw $t)))", 1),
    "GC": (f"(module {_MEMORY} {_RUN} (type (struct (field i32))))", 1),
    "relaxed SIMD": (f"(module {_MEMORY} {_RUN} (func (param v128) (drop (i32x4.relaxed_trunc_f32x4_s (local.get 0)))))", 1),
    "a table of 65,537": (f"(module {_MEMORY} {_RUN} (table 65537 funcref))", 1),
    "a log of a later profile": (f'(module (import "fabricbios_log_v1" "fb_log" (func)) {_MEMORY} {_RUN})', 7),
    "a service of a later profile": (f'(module (import "fabricbios_new_v12" "x" (func)) {_MEMORY} {_RUN})', 7),
    "a service of none": (f'(module (import "fabricbios_new_v0" "x" (func)) {_MEMORY} {_RUN})', 1),
}  # fmt: skip
GOOD = {
    "a table of 65,536": f"(module {_MEMORY} {_RUN} (table 65536 funcref))",
    "other exports": f'(module {_MEMORY} {_RUN} (func (export "other") (param f64)) (global (export "g") i32 (i32.const 1)))',
    "a custom section": f'(module (@custom "mine" "anything") {_MEMORY} {_RUN})',
    "SIMD": f"(module {_MEMORY} {_RUN} (func (param v128) (result v128) (i32x4.neg (local.get 0))))",
}


def file(kind, name):
    return kind + "".join(c if c.isalnum() else "_" for c in name)


TEXTS.update({file("end_", name): text for name, (text, *_) in ENDS.items()})
TEXTS.update({f"body_{n}": returns(body, more) for n, (body, more, _) in enumerate(BODIES)})
TEXTS.update({file("bad_", name): text for name, (text, _) in BAD.items()})
TEXTS.update({file("good_", name): text for name, text in GOOD.items()})
TEXTS["write"] = returns(
    "(drop (call $fbmu_write (i64.const 0) (i32.const 0) (i32.const 4096)))", imported("fbmu_write") + '(data (i32.const 0) "\\ff")'
)
TEXTS["priced"] = """(module (memory (export "memory") 1)
  (func $start (nop)) (start $start) (func (export "_initialize") (drop (i32.const 1)))
  (func (export "tasklet_alloc") (param i32) (result i32) (i32.const 8))
  (func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0)))"""
# Queries the first capability that a TaskletInputV0 names, and shows what follows it.
_SWAP = """(func $swap (param $at i32) (result i64) (local $r i64) (local $n i32)
  (loop $on
    (local.set $r (i64.or (i64.shl (local.get $r) (i64.const 8)) (i64.load8_u (i32.add (local.get $at) (local.get $n)))))
    (br_if $on (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 8))))
  (local.get $r))"""
TEXTS["input_v0"] = f"""(module {imported("fbmu_query")} (memory (export "memory") 1) {_SWAP}
  (func (export "tasklet_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "tasklet_run") (param $at i32) (param $len i32) (result i64)
    (i32.store (i32.const 0) (call $fbmu_query
      (call $swap (i32.add (local.get $at) (i32.const 6))) (call $swap (i32.add (local.get $at) (i32.const 14))) (i32.const 4)))
    (memory.copy (i32.const 28) (i32.add (local.get $at) (i32.const 30)) (i32.const 4))
    (i64.const 32)))"""


def ends(t):
    for name, (_, status, out, why, limits) in ENDS.items():
        run = t.run(ALICE, file("end_", name), **limits)
        expect(f"a run: {name}", (run.status, run.output), (status, out))
        words = [] if why == [] else [True]
        expect("why is said once", [(why or "") in record for record in run.why], words)
        again = t.run(ALICE, file("end_", name), **limits)
        expect("the same again", (again.status, again.output, again.logs), (run.status, run.output, run.logs))


def fuel(t):
    """The price of each body, to the unit."""
    for n, (body, _, cost) in enumerate(BODIES):
        asks = dict(memory=2 * PAGE, caps=())
        got = [t.run(ALICE, f"body_{n}", fuel=cost + more, **asks).status for more in (1, 2)]
        expect(f"{cost} for {body}", got, [Ran.FUEL_EXHAUSTED, Ran.OK])
    expect("no fuel at all", t.run(ALICE, "nothing", fuel=0).status, Ran.FUEL_EXHAUSTED)
    # start 1, _initialize 2, tasklet_alloc 2, tasklet_run 2
    got = [t.run(ALICE, "priced", payload=b"x", fuel=units).status for units in (6, 7)]
    expect("all that runs counts together", got, [Ran.FUEL_EXHAUSTED, Ran.OK])


def paid_before(t):
    """A hostcall that is not paid for does nothing: 5 for what leads to it, 612 for itself, 1 for the result."""
    lease = t.w.lease(ALICE, 4096)
    caps = [(lease.lease_id, FBMU_IO)]
    for units, status, byte in ((616, Ran.FUEL_EXHAUSTED, b"\0"), (618, Ran.OK, b"\xff")):
        expect(f"a write with {units}", t.run(ALICE, "write", caps=caps, fuel=units).status, status)
        _, got, seen = t.probe(ALICE, call("fbmu_read", 0, 1, 0x10000), caps=caps)
        expect("and what is in the lease", (got, seen[:1]), ([0], byte))
    t.w.free(ALICE, lease)


def wall(t):
    """300 ms on the short node."""
    begun = time.monotonic()
    run = t.run(ALICE, "spin", fuel=10**10, node="short")
    expect("wall time", (run.status, run.output, run.why), (Ran.EXEC_FAILED, b"", ["wall time: more than 300 ms"]))
    expect("not before", time.monotonic() - begun >= 0.3, True)


def modules(t):
    for name, (_, status) in BAD.items():
        run = t.run(ALICE, file("bad_", name))
        expect(f"a module with {name}", (run.status, run.tasklet), (Ran(status), 0))
    for name in GOOD:
        expect(f"a module with {name}", t.run(ALICE, file("good_", name)).status, Ran.OK)
    status, run = t.asked(ALICE, submit(t.modules["nothing"], payload=b"x"))
    expect("input for a module without tasklet_alloc", (status, run.status, run.tasklet), (0, Ran.INVALID, 0))


def input_v0(t):
    lease = t.w.lease(ALICE, 4096)
    caps = [(lease.lease_id, QUERY)]
    payload = u16(0) + u16(0) + items([u128(cap) + u32(rights) for cap, rights in caps]) + u32(4) + b"mine"
    run = t.run(ALICE, "input_v0", payload=payload, caps=caps)
    size = int.from_bytes(run.output[20:28], "little")
    expect("TaskletInputV0", (run.status, run.output[:4], size, run.output[28:]), (Ran.OK, bytes(4), 4096, b"mine"))
    t.w.free(ALICE, lease)


PARTS = [ends, fuel, paid_before, wall, modules, input_v0]
