"""What runs on the node: modules as text, and the bytes of the tasklet ops, from docs/tasklets.md alone."""

import hashlib
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from wire import Op, Perm, Reader, Status, blob, fields, items, u32, u64, u128
from world import CAROL, Different

QUERY, REVOKE, FBMU_ALLOC, FBMU_IO, FBBU_ALLOC, FBBU_IO, SVC_LISTEN, SVC_SESSION_IO = (1 << n for n in range(8))
FETCH_LOGS = 0x0504
PAGE = 64 << 10


class Ran(IntEnum):
    """How a run went."""

    OK = 0
    INVALID = 1
    UNAUTHORIZED = 2
    FUEL_EXHAUSTED = 3
    OOM = 4
    EXEC_FAILED = 5
    HOSTCALL_LIMIT = 6
    UNSUPPORTED_PROFILE = 7
    MODULE_NOT_FOUND = 8
    UNKNOWN = 9
    NOT_FOUND = 10
    UNSUPPORTED = 11
    FINISHED = 12


# Where `probe` keeps things in its memory: the results of its calls end where its scratch bytes begin.
SCRATCH, SHOWN, INPUT, ROOM = 0x10000, 256, 0x100000, 0x200000
MEMORY = 64 * PAGE
# Limits within those of the short node.
SHORT = dict(memory=PAGE, output=40 << 10, hostcalls=50)

_BLOCKS = {"read": "read_block", "write": "write_block", "read_lease": "read_block_lease", "write_lease": "write_block_lease"}
# name, arguments, result; a block has a place of 8 bytes and no length.
_CALLS = [
    ("hello", "", "i32", ""),
    ("get_size", "", "i64", ""),
    ("read", "i64 i32 i32", "i32", "i64 i32"),
    ("write", "i64 i32 i32", "i32", "i64 i32"),
    ("alloc", "i64 i32 i32", "i32", "i64 i32 i32"),
    ("query", "i64 i64 i32", "i32", "i64 i64 i32"),
    ("renew", "i64 i64 i32 i32", "i32", "i64 i64 i32 i32"),
    ("free", "i64 i64", "i32", "i64 i64"),
    ("write_lease", "i64 i64 i64 i32 i32", "i32", "i64 i64 i64 i32"),
    ("read_lease", "i64 i64 i64 i32 i32", "i32", "i64 i64 i64 i32"),
]
IMPORTS = [
    (f"fabricbios_{kind}_v0", f"{kind}_{name if kind == 'fbmu' else _BLOCKS.get(name, name)}", mine, result)
    for kind in ("fbmu", "fbbu")
    for name, memory, result, blocks in _CALLS
    for mine in (memory if kind == "fbmu" else blocks,)
] + [("fabricbios_log_v0", "fb_log", "i32 i32 i32", "")]
NUMBER = {name: n for n, (_, name, _, _) in enumerate(IMPORTS)}
STORE, UNTIL, SPIN, AGAIN = 100, 101, 102, 103


def imported(name):
    """The import of a hostcall, as $name."""
    module, _, params, result = IMPORTS[NUMBER[name]]
    result = f"(result {result})" if result else ""
    return f'(import "{module}" "{name}" (func ${name} (param {params}) {result}))'


def _probe():
    """Does the calls that its input lists: 48 bytes each, an operation and five arguments, little-endian."""
    arms = []
    for n, (_, name, params, result) in enumerate(IMPORTS):
        passed = " ".join(
            f"(local.get ${a})" if kind == "i64" else f"(i32.wrap_i64 (local.get ${a}))"
            for a, kind in zip("abcde", params.split())
        )
        call = f"(call ${name} {passed})"
        if result != "i64":
            call = f"(i64.extend_i32_s {call})" if result else f"{call} (i64.const 0)"
        arms.append(f"(if (i32.eq (local.get $op) (i32.const {n})) (then {call} (local.set $r)))")
    loads = "".join(f"(local.set ${a} (i64.load offset={8 + 8 * n} (local.get $at)))" for n, a in enumerate("abcde"))
    return f"""(module {" ".join(imported(name) for _, name, _, _ in IMPORTS)}
      (memory (export "memory") 64)
      (func (export "tasklet_alloc") (param i32) (result i32) (i32.const {INPUT}))
      (func $do (param $at i32) (result i64)
        (local $op i32) (local $a i64) (local $b i64) (local $c i64) (local $d i64) (local $e i64) (local $r i64)
        (local.set $op (i32.load (local.get $at))) {loads}
        {" ".join(arms)}
        (if (i32.eq (local.get $op) (i32.const {STORE}))
          (then (i64.store (i32.wrap_i64 (local.get $a)) (local.get $b))))
        (if (i32.eq (local.get $op) (i32.const {UNTIL})) ;; the call before it, until it fails
          (then (loop $on (br_if $on (i64.ge_s (local.tee $r (call $do (i32.sub (local.get $at) (i32.const 48)))) (i64.const 0))))))
        (if (i32.eq (local.get $op) (i32.const {AGAIN})) ;; the call before it, so many times more
          (then (loop $on (local.set $r (call $do (i32.sub (local.get $at) (i32.const 48))))
            (br_if $on (i64.ne (local.tee $a (i64.sub (local.get $a) (i64.const 1))) (i64.const 0))))))
        (if (i32.eq (local.get $op) (i32.const {SPIN})) (then (loop $on (br $on))))
        (local.get $r))
      (func (export "tasklet_run") (param $at i32) (param $len i32) (result i64) (local $n i32) (local $i i32)
        (local.set $n (i32.div_u (local.get $len) (i32.const 48)))
        (loop $on
          (i64.store
            (i32.add (i32.const {SCRATCH}) (i32.mul (i32.const 8) (i32.sub (local.get $i) (local.get $n))))
            (call $do (i32.add (local.get $at) (i32.mul (local.get $i) (i32.const 48)))))
          (br_if $on (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
        (i64.or
          (i64.shl (i64.extend_i32_u (i32.sub (i32.const {SCRATCH}) (i32.mul (i32.const 8) (local.get $n)))) (i64.const 32))
          (i64.extend_i32_u (i32.add (i32.const {SHOWN}) (i32.mul (i32.const 8) (local.get $n)))))))"""


def call(name, *args):
    """One call of `probe`: of a hostcall, or of what it does besides."""
    op = name if isinstance(name, int) else NUMBER[name]
    args = [a & 0xFFFFFFFF_FFFFFFFF for a in args]
    return struct.pack("<IIQQQQQ", op, 0, *args, *[0] * (5 - len(args)))


def halves(lease):
    """hi, lo"""
    return lease >> 64, lease & 0xFFFFFFFF_FFFFFFFF


def returns(body, more="", memory="1", result="(i64.const 0)"):
    """A module whose tasklet_run is `body`."""
    return f"""(module {more} (memory (export "memory") {memory})
      (func (export "tasklet_run") (param $at i32) (param $len i32) (result i64) {body} {result}))"""


TEXTS = {
    "probe": _probe(),
    "nothing": returns(""),
    "spin": returns("(loop $on (br $on))"),
    "other_spin": returns("(loop $on (br $on)) (nop)"),
    "echo": """(module (memory (export "memory") 16)
      (func (export "tasklet_alloc") (param i32) (result i32) (i32.const 8))
      (func (export "tasklet_run") (param i32 i32) (result i64)
        (i64.or (i64.shl (i64.extend_i32_u (local.get 0)) (i64.const 32)) (i64.extend_i32_u (local.get 1)))))""",
}


class Modules:
    """The modules of TEXTS and of whoever adds some, assembled into a folder by the test."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def write(self):
        for name, text in TEXTS.items():
            (self.folder / f"{name}.wat").write_text(text)

    def __getitem__(self, name):
        return (self.folder / f"{name}.wasm").read_bytes()


@dataclass
class Run:
    """What TASKLET_SUBMIT says of a run."""

    status: Ran
    tasklet: int
    output: bytes
    logs: list

    @property
    def why(self):
        """The node's own record."""
        return [text for level, text in self.logs if level == 255]


def records(r):
    return r.items(lambda: (r.u8(), r.blob().decode(errors="surrogateescape")))


def submit(
    wasm=b"",
    sha=None,
    caps=(),
    payload=b"",
    fuel=10**8,
    memory=MEMORY,
    output=512 << 10,
    hostcalls=10**4,
    mem=0,
    cpu=0,
):
    """Params of TASKLET_SUBMIT."""
    return (
        u128(mem)
        + u128(cpu)
        + (sha or hashlib.sha256(wasm).digest())
        + blob(wasm)
        + items([u128(cap) + u32(rights) for cap, rights in caps])
        + blob(payload)
        + u64(fuel)
        + u32(memory)
        + u32(output)
        + u32(hostcalls)
    )


class Tasklets:
    """The ops on tasklets, over the clients of a World."""

    def __init__(self, world, folder):
        self.w, self.modules = world, Modules(folder)
        self.tokens, self.ids = {}, set()

    def token(self, who, node="main"):
        """A token for everything that the presenter may do with tasklets."""
        if (who.id, node) not in self.tokens:
            perms = Perm.READ | Perm.ALLOC | Perm.EXEC | (0 if who.id == CAROL.id else Perm.WRITE)
            self.tokens[who.id, node] = self.w.token(who, perms, node=node)
        return self.tokens[who.id, node]

    def asked(self, who, params, token=None, resource=0, node="main"):
        """The control status of a TASKLET_SUBMIT, and what became of the run."""
        token = self.token(who, node) if token is None else token
        status, result = self.w.call(who, Op.TASKLET_SUBMIT, params, resource, token, node)
        if status != Status.OK:
            expect_empty(status, result)
            return status, None
        r = Reader(result)
        profile, how, tasklet, output = r.u16(), Ran(r.u8()), r.u64(), r.blob()
        run = Run(how, tasklet, output, records(r))
        r.end()
        if profile != 0:
            raise Different(f"profile {profile}")
        if tasklet and (node, tasklet) in self.ids:
            raise Different(f"tasklet {tasklet:#x} for the second time")
        self.ids.add((node, tasklet))
        return status, run

    def run(self, who, name, token=None, node="main", patient=True, **how):
        """Submits a module; waits for its end if `patient`."""
        wasm = self.modules[name] if isinstance(name, str) else name
        how = (SHORT if node == "short" else {}) | how
        status, run = self.asked(who, submit(wasm, **how), token, node=node)
        if status != Status.OK:
            raise Different(f"TASKLET_SUBMIT of {name}: {status.name}")
        if patient and run.status == Ran.UNKNOWN:
            run.status, run.output, run.logs = self.ended(who, run.tasklet, node)
        return run

    def ended(self, who, tasklet, node="main"):
        """Waits until a run has ended: its status, output and logs."""
        end = time.monotonic() + 30
        while (status := self.status(who, tasklet, node)) == Ran.UNKNOWN:
            if time.monotonic() > end:
                raise Different(f"tasklet {tasklet:#x} does not end")
            time.sleep(0.02)
        fetched, output = self.fetch(who, tasklet, node)
        if fetched != status:
            raise Different(f"TASKLET_STATUS says {status.name} and TASKLET_FETCH_RESULT {fetched.name}")
        return status, output, self.logs(who, tasklet, node)[1]

    def of(self, who, op, tasklet, node):
        status, result = self.w.call(who, op, u64(tasklet), node=node)
        if status != Status.OK:
            raise Different(f"op {op:#06x}: {status.name}")
        return result

    def status(self, who, tasklet, node="main"):
        return Ran(*fields(self.of(who, Op.TASKLET_STATUS, tasklet, node), "u8"))

    def cancel(self, who, tasklet, node="main"):
        return Ran(*fields(self.of(who, Op.TASKLET_CANCEL, tasklet, node), "u8"))

    def fetch(self, who, tasklet, node="main"):
        how, output = fields(self.of(who, Op.TASKLET_FETCH_RESULT, tasklet, node), "u8", "blob")
        return Ran(how), output

    def logs(self, who, tasklet, node="main"):
        r = Reader(self.of(who, FETCH_LOGS, tasklet, node))
        how, logs = Ran(r.u8()), records(r)
        r.end()
        return how, logs

    def probe(self, who, *calls, fuel=10**8, hostcalls=10**4, **how):
        """Runs calls: the status, their results and the first of the scratch bytes."""
        run = self.run(who, "probe", payload=b"".join(calls), fuel=fuel, hostcalls=hostcalls, **how)
        results = [struct.unpack_from("<q", run.output, 8 * n)[0] for n in range(len(calls) if run.output else 0)]
        return run, results, run.output[8 * len(results) :]

    def codes(self, who, *calls, caps=(), **how):
        """The results of calls of a run that ends well."""
        run, results, _ = self.probe(who, *calls, caps=caps, **how)
        if run.status != Ran.OK:
            raise Different(f"{run}")
        return results

    def lease(self, who, cores=1, memory=PAGE, duration=60, grace=0, affinity=0, node="main", threads=1):
        """TASKLET_LEASE_ALLOC: the status and the lease."""
        params = u32(duration) + u32(grace) + cores.to_bytes(2, "big") + u64(memory) + bytes([affinity, threads])
        status, result = self.w.call(who, Op.TASKLET_LEASE_ALLOC, params, token=self.token(who, node), node=node)
        if status != Status.OK:
            expect_empty(status, result)
            return status, None
        return status, Composite(*fields(result, "u128", "u64", "u128", "u128", "u64", "u16"))

    def free(self, who, lease, node="main"):
        return self.w.status(who, Op.TASKLET_LEASE_FREE, u128(lease), node=node)


@dataclass
class Composite:
    lease_id: int
    expires_at: int
    mem: int
    cpu: int
    arena: int
    cores: int


def expect_empty(status, result):
    if result:
        raise Different(f"{status.name} has a result: {result.hex()}")
