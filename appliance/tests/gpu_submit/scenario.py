"""Drives a node with a GPU in software through every status of GPU_SUBMIT, as a client written from the pages in docs/ alone.

    scenario.py udp|quic MAIN PATIENT PLAIN

MAIN and PLAIN are the `berth ready` lines of nodes run with node.toml and plain.toml, PATIENT that of one with node.toml and a
time limit of a minute. Prints a line for each step; the first that differs ends it, with what was expected and what came.
"""

import json
import struct
import sys
import threading
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "fabric"))

import wire
import world
from dataplanes import Pages
from wire import Op, Perm, Reader, Status, blob, fields, items, parse, response, tlv16, u8, u16, u32, u64, u128
from world import ALICE, BOB, CAROL, Different, expect

GPU, FENCED = 5, 1
VRAM, EXCLUSIVITY = 0x0430, 0x0903
SIZE = 64 << 10
LIMIT = 0.5  # seconds, of node.toml
QUEUE = 16  # kernels of a lease that run or wait
ALL = Perm.READ | Perm.WRITE | Perm.ALLOC | Perm.EXEC


class Ran(IntEnum):
    """How a submit went."""

    OK = 0
    INVALID = 1
    UNAUTHORIZED = 2
    LOAD_FAILED = 3
    LAUNCH_FAILED = 4
    UNSUPPORTED = 5
    READ_FAILED = 6


PTX = """
.version 6.3
.target sm_70
.address_size 64
.visible .global .align 4 .u32 kept;
.visible .entry add(.param .u64 p, .param .u32 by)
{
    .reg .b32 %r<6>; .reg .b64 %d<3>;
    ld.param.u64 %d1, [p]; ld.param.u32 %r1, [by];
    mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r2, %r3, %r4, %r2;
    mul.wide.u32 %d2, %r2, 4;
    add.s64 %d1, %d1, %d2;
    ld.global.u32 %r5, [%d1]; add.u32 %r5, %r5, %r1; st.global.u32 [%d1], %r5;
    ret;
}
.visible .entry store(.param .u64 p, .param .u32 value)
{
    .reg .b32 %r<2>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [p]; ld.param.u32 %r1, [value];
    st.global.u32 [%d1], %r1;
    ret;
}
.visible .entry bytes(.param .u8 small, .param .align 8 .b8 pair[16], .param .u64 p)
{
    .reg .b16 %h<2>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [p]; ld.param.u8 %h1, [small];
    ld.param.u64 %d2, [pair]; ld.param.u64 %d3, [pair+8];
    add.s64 %d2, %d2, %d3;
    st.global.u64 [%d1], %d2; st.global.u8 [%d1+8], %h1;
    ret;
}
.visible .entry count(.param .u64 p)
{
    .reg .b32 %r<2>; .reg .b64 %d<3>;
    ld.param.u64 %d1, [p];
    mov.u64 %d2, kept;
    ld.global.u32 %r1, [%d2]; add.u32 %r1, %r1, 1;
    st.global.u32 [%d2], %r1; st.global.u32 [%d1], %r1;
    ret;
}
.visible .entry forever(.param .u64 p)
{
    .reg .b32 %r<2>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [p];
    mov.u32 %r1, 1;
AGAIN:
    st.volatile.global.u32 [%d1], %r1;
    bra AGAIN;
}
.visible .entry waits(.param .u64 p)
{
    .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [p];
AGAIN:
    ld.volatile.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
.visible .entry traps()
{
    trap;
}
.visible .entry misses()
{
    bar.sync 0, 64;
    ret;
}
.visible .entry nothing()
{
    ret;
}
"""


@dataclass
class Kernel:
    """Params of GPU_SUBMIT."""

    resource: int
    name: bytes
    args: tuple = ()
    output: tuple = (0, 0)
    binary: bytes = PTX.encode()
    grid: tuple = (1, 1, 1)
    block: tuple = (1, 1, 1)
    sizes: tuple | None = None  # of the arguments, where they are not meant to add up

    def params(self):
        sizes = self.sizes if self.sizes is not None else [len(arg) for arg in self.args]
        dims = b"".join(map(u32, self.grid + self.block))
        name = u16(len(self.name)) + self.name
        offset, size = self.output
        head = u128(self.resource) + blob(self.binary) + name + dims
        return head + blob(b"".join(self.args)) + items([u32(size) for size in sizes]) + u64(offset) + u32(size)


@dataclass
class Result:
    """Of GPU_SUBMIT."""

    status: Ran
    submit: int
    code: int
    output: bytes

    @classmethod
    def read(cls, result):
        r = Reader(result)
        status, submit, (code,), output = Ran(r.u8()), r.u64(), struct.unpack(">i", r.take(4)), r.blob()
        r.end()
        return cls(status, submit, code, output)


@dataclass
class Lease:
    """A GPU lease, and where its kernels see it."""

    id: int
    base: int

    def at(self, offset):
        """A pointer, as PTX has it."""
        return struct.pack("<Q", self.base + offset)


def word(value):
    return struct.pack("<I", value)


class Gpu:
    """The ops on the GPU that is leased, over the clients of a World."""

    def __init__(self, w):
        self.w, self.last = w, 0
        found = wire.inventory(w.call(ALICE, Op.GET_INVENTORY)[1])
        self.memory = next(one for one in found if one.kind == wire.MEM)
        found = [one for one in found if one.kind == GPU]
        expect("there are two GPUs", len(found), 2)
        self.leased, self.serving = sorted(found, key=lambda one: one.flags & FENCED)
        expect("one serves something else", (self.leased.flags & FENCED, self.serving.flags & FENCED), (0, FENCED))
        expect("the other has bytes to lease", (self.leased.capacity, self.leased.available), (4 << 20, 4 << 20))
        self.tokens = {}

    def token(self, who, perms=ALL, resource=0):
        key = (who.id, perms, resource)
        if key not in self.tokens:
            self.tokens[key] = self.w.token(who, perms, resource=resource)
        return self.tokens[key]

    def ask(self, who, size=SIZE, perms=ALL, exclusivity=None):
        """The status of a LEASE_ALLOC, and the lease."""
        tlvs = b"" if exclusivity is None else tlv16(EXCLUSIVITY, u8(exclusivity))
        params = wire.alloc(60, 0, GPU, size, tlvs)
        status, result = self.w.call(who, Op.LEASE_ALLOC, params, 0, self.token(who, perms))
        if status != Status.OK:
            return status, None
        r = Reader(result)
        lease, _ = r.u128(), r.u64()
        base, length = next(fields(value, "u64", "u64") for tag, value in r.tlvs() if tag == VRAM)
        if length != size:
            raise Different(f"GPU_VRAM has {length} bytes of {size}")
        return status, Lease(lease, base)

    def lease(self, who, **more):
        status, lease = self.ask(who, **more)
        if status != Status.OK:
            raise Different(f"a GPU lease: {status.name}")
        return lease

    def free(self, who, lease):
        status = self.w.status(who, Op.LEASE_FREE, u128(lease.id))
        if status != Status.OK:
            raise Different(f"a free: {status.name}")

    def kernel(self, name, *args, **more):
        return Kernel(self.leased.resource_id, name.encode(), args, **more)

    def control(self, who, kernel, token=None):
        """The control status of a submit that has no result."""
        params = kernel if isinstance(kernel, bytes) else kernel.params()
        return self.w.status(who, Op.GPU_SUBMIT, params, token=self.token(who) if token is None else token)

    def submit(self, who, kernel, token=None, client=None):
        """What became of a kernel: its status, its code and its output. Numbers of those that ran rise, others have none."""
        client = client or self.w.at(who)
        status, result = client.call(Op.GPU_SUBMIT, kernel.params(), 0, token or self.token(who))
        if status != Status.OK:
            raise Different(f"a submit of {kernel.name.decode()}: {status.name}")
        ran = Result.read(result)
        if ran.submit and ran.submit <= self.last:
            raise Different(f"submit_id {ran.submit} after {self.last}")
        self.last = max(self.last, ran.submit)
        return ran

    def outcome(self, who, kernel, token=None):
        ran = self.submit(who, kernel, token)
        return ran.status, ran.submit > 0, ran.code, ran.output

    def works(self, step, who, lease, value, token=None):
        """A kernel of the lease stores a number, and it is there."""
        kernel = self.kernel("store", lease.at(256), word(value), output=(256, 4))
        expect(step, self.outcome(who, kernel, token), (Ran.OK, True, 0, word(value)))


def not_asked_properly(gpu):
    w, nothing = gpu.w, gpu.kernel("nothing")
    token = w.token(ALICE, ALL, node="plain")
    status = w.status(ALICE, Op.GPU_SUBMIT, nothing.params(), token=token, node="plain")
    expect("a node without GPUs", status, Status.UNSUPPORTED_OP)
    expect("no token", gpu.control(ALICE, nothing, b""), Status.INVALID_TOKEN)
    expect("a token without EXEC", gpu.control(ALICE, nothing, gpu.token(ALICE, ALL & ~Perm.EXEC)), Status.INSUFFICIENT_PERM)
    expect("a token of somebody else", gpu.control(ALICE, nothing, gpu.token(BOB)), Status.INVALID_TOKEN)
    expect("a resource that there is not", gpu.control(ALICE, replace(nothing, resource=77)), Status.RESOURCE_NOT_FOUND)
    expect("memory", gpu.control(ALICE, replace(nothing, resource=gpu.memory.resource_id)), Status.RESOURCE_NOT_FOUND)
    serving = replace(nothing, resource=gpu.serving.resource_id)
    expect("a GPU that serves something else", gpu.control(ALICE, serving), Status.RESOURCE_FENCED)
    whole = nothing.params()
    expect("params that end early", gpu.control(ALICE, whole[:-1]), Status.INVALID_PARAMS)
    expect("params that go on", gpu.control(ALICE, whole + b"\0"), Status.INVALID_PARAMS)
    expect("a name that is no UTF-8", gpu.control(ALICE, replace(nothing, name=b"\xff")), Status.INVALID_PARAMS)


def whose_lease(gpu):
    refused = (Ran.UNAUTHORIZED, False, 0, b"")
    nothing = gpu.kernel("nothing")
    expect("no lease", gpu.outcome(ALICE, nothing), refused)
    first = gpu.lease(ALICE)
    gpu.works("the only lease", ALICE, first, 1)
    expect("somebody else's lease", gpu.outcome(BOB, nothing), refused)
    of_memory = gpu.token(BOB, resource=gpu.memory.resource_id)
    expect("the same, with a token for something else", gpu.outcome(BOB, nothing, of_memory), refused)
    second = gpu.lease(ALICE)
    for step, resource in ("all", 0), ("the GPU", gpu.leased.resource_id):
        expect(f"one of two, by a token for {step}", gpu.outcome(ALICE, nothing, gpu.token(ALICE, resource=resource)), refused)
    for value, lease in (2, first), (3, second):
        gpu.works(f"lease {value - 1} of two, by its name", ALICE, lease, value, gpu.token(ALICE, resource=lease.id))
    stranger = gpu.kernel("store", first.at(0), word(1))
    ran = gpu.submit(ALICE, stranger, gpu.token(ALICE, resource=second.id))
    expect("the first one's memory from the second", (ran.status, ran.code), (Ran.LAUNCH_FAILED, 700))
    gpu.free(ALICE, second)
    gpu.works("the only one again", ALICE, first, 4)
    reader = gpu.lease(CAROL, perms=ALL & ~Perm.WRITE)
    expect("a lease that may only be read", gpu.outcome(CAROL, nothing, gpu.token(CAROL, Perm.READ | Perm.EXEC)), refused)
    gpu.free(CAROL, reader)
    gpu.free(ALICE, first)
    expect("a lease that was freed", gpu.outcome(ALICE, nothing), refused)


def what_runs(gpu):
    lease = gpu.lease(ALICE)
    zero = gpu.kernel("nothing", output=(0, SIZE))
    expect("bytes are zero at the start", gpu.outcome(ALICE, zero), (Ran.OK, True, 0, bytes(SIZE)))
    by = gpu.kernel("add", lease.at(4096), word(5), grid=(4, 1, 1), block=(64, 1, 1), output=(4096, 1032))
    expect("four blocks of 64 threads", gpu.outcome(ALICE, by), (Ran.OK, True, 0, word(5) * 256 + bytes(8)))
    by = replace(by, grid=(2, 1, 1), block=(32, 1, 1))
    expect("what is there stays", gpu.outcome(ALICE, by), (Ran.OK, True, 0, word(10) * 64 + word(5) * 192 + bytes(8)))
    mixed = gpu.kernel("bytes", b"\x2a", struct.pack("<QQ", 1 << 40, 7), lease.at(64), output=(64, 9))
    expect("arguments of 1, 16 and 8 bytes", gpu.outcome(ALICE, mixed), (Ran.OK, True, 0, struct.pack("<QB", (1 << 40) + 7, 42)))
    count = gpu.kernel("count", lease.at(0), output=(0, 4))
    for time_ in "first", "second":
        expect(f"a module's variables are new, the {time_} time", gpu.outcome(ALICE, count), (Ran.OK, True, 0, word(1)))
    ended = replace(gpu.kernel("nothing"), binary=PTX.encode() + b"\0")
    expect("a text that ends with a zero", gpu.outcome(ALICE, ended), (Ran.OK, True, 0, b""))
    expect("no output is asked for", gpu.outcome(ALICE, gpu.kernel("nothing")), (Ran.OK, True, 0, b""))
    gpu.free(ALICE, lease)
    lease = gpu.lease(ALICE)
    expect("nothing is left for the next lease", gpu.outcome(ALICE, zero), (Ran.OK, True, 0, bytes(SIZE)))
    gpu.free(ALICE, lease)


def what_does_not_fit(gpu):
    lease = gpu.lease(ALICE)
    store = gpu.kernel("store", lease.at(0), word(9))
    for step, kernel, began in (
        ("arg_sizes that are more than the arguments", replace(store, sizes=(8, 5)), False),
        ("arg_sizes that are less", replace(store, sizes=(8, 3)), False),
        ("no arg_sizes", replace(store, sizes=()), False),
        ("no binary", replace(store, binary=b""), False),
        ("no name", replace(store, name=b""), False),
        ("an argument too few", replace(store, args=(lease.at(0),)), True),
        ("an argument too many", replace(store, args=(*store.args, word(1))), True),
        ("a pointer of four bytes", replace(store, args=(word(0), word(9))), True),
        ("sizes that add up and are not the kernel's", replace(store, sizes=(4, 8)), True),
        ("a byte of eight bytes, all places as they should be", gpu.kernel("bytes", bytes(8), bytes(16), lease.at(0)), True),
        ("a grid of nothing", replace(store, grid=(0, 1, 1)), True),
        ("a block of nothing", replace(store, block=(1, 0, 1)), True),
        ("a block beyond 1024 threads", replace(store, block=(1025, 1, 1)), True),
        ("the same in two dimensions", replace(store, block=(33, 32, 1)), True),
        ("a grid beyond the device", replace(store, grid=(1, 1 << 16, 1)), True),
    ):
        # What the node sees by itself has no number; the code is CUDA's in any case.
        expect(step, gpu.outcome(ALICE, kernel), (Ran.INVALID, began, 1, b""))
    expect("of all these nothing was run", gpu.submit(ALICE, gpu.kernel("nothing", output=(0, 4))).output, bytes(4))

    end = SIZE - 4
    gpu.works("a first word", ALICE, lease, 7)
    for step, output in (
        ("an output beyond the lease by a byte", (end + 1, 4)),
        ("an output that begins at its end", (SIZE, 1)),
        ("an output whose end overflows", ((1 << 64) - 1, 2)),
        ("an output longer than an answer", (0, 1 << 20)),
    ):
        kernel = gpu.kernel("store", lease.at(256), word(8), output=output)
        expect(step, gpu.outcome(ALICE, kernel), (Ran.READ_FAILED, False, 0, b""))
    last = gpu.kernel("nothing", output=(end, 4))
    expect("the last bytes can be read", gpu.outcome(ALICE, last), (Ran.OK, True, 0, bytes(4)))
    expect("nothing was run that could not be read", gpu.submit(ALICE, gpu.kernel("nothing", output=(256, 4))).output, word(7))
    gpu.free(ALICE, lease)
    long = gpu.lease(ALICE, size=2 << 20)
    kernel = gpu.kernel("nothing", output=(0, 1 << 20))
    expect("within a long lease, longer than an answer", gpu.outcome(ALICE, kernel), (Ran.READ_FAILED, False, 0, b""))
    gpu.free(ALICE, long)


def what_is_not_loaded(gpu):
    lease = gpu.lease(ALICE)

    def failed(step, code, *said, **changed):
        kernel = replace(gpu.kernel("nothing"), **changed)
        status, began, got, output = gpu.outcome(ALICE, kernel)
        expect(step, (status, began, got), (Ran.LOAD_FAILED, True, code))
        for word_ in said:
            expect(f"{step}: the output tells {word_!r}", word_ in output.decode(), True)

    failed("no PTX", 218, "line 1", binary=b"int main() {}")
    failed("no text", 218, binary=b"\xff\xfe\x00")
    broken = PTX.replace("    trap;", "    trapp;")
    line = 1 + broken.splitlines().index("    trapp;")
    failed("an instruction that there is not", 218, f"line {line}", "trapp", binary=broken.encode())
    tensor = PTX.replace("    trap;", "    wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {}, {}, {}, {};")
    failed("one that is not covered", 218, f"line {line}", "wmma", binary=tensor.encode())
    calls = PTX.replace(".visible .entry nothing()\n{", ".extern .func gone;\n.visible .entry nothing()\n{\n    call gone;")
    failed("a symbol that nobody defines", 218, "gone", binary=calls.encode())
    failed("a kernel that there is not", 500, "nowhere", "store", name=b"nowhere")
    failed("a name of something else", 500, name=b"kept")
    for step, magic in (
        ("a cubin or a code object", b"\x7fELF\x02\x01\x01"),
        ("a fat binary", bytes([0x50, 0xED, 0x55, 0xBA])),
        ("a bundle of clang's", b"__CLANG_OFFLOAD_BUNDLE__"),
    ):
        kernel = replace(gpu.kernel("nothing"), binary=magic + bytes(64))
        status, _, code, output = gpu.outcome(ALICE, kernel)
        expect(step, (status, code, output), (Ran.UNSUPPORTED, 0, b""))
    gpu.works("PTX is loaded after all that", ALICE, lease, 11)
    gpu.free(ALICE, lease)


def what_goes_wrong(gpu):
    lease, other = gpu.lease(ALICE), gpu.lease(BOB)
    gpu.works("a kernel of bob's", BOB, other, 21)
    for step, kernel, code in (
        ("a store behind the lease", gpu.kernel("store", lease.at(SIZE), word(1)), 700),
        ("a store before it", gpu.kernel("store", lease.at(-4), word(1)), 700),
        ("a store to address 0", gpu.kernel("store", bytes(8), word(1)), 700),
        ("a store to bob's lease", gpu.kernel("store", other.at(256), word(1)), 700),
        ("a store that is not aligned", gpu.kernel("store", lease.at(2), word(1)), 716),
        ("a trap", gpu.kernel("traps"), 719),
        ("a barrier that the others never reach", gpu.kernel("misses", block=(32, 1, 1)), 719),
    ):
        expect(step, gpu.outcome(ALICE, kernel), (Ran.LAUNCH_FAILED, True, code, b""))
        gpu.works(f"{step}: the next kernel runs", ALICE, lease, code)
    began = time.monotonic()
    forever = gpu.kernel("forever", lease.at(0))
    expect("a kernel that does not end", gpu.outcome(ALICE, forever), (Ran.LAUNCH_FAILED, True, 702, b""))
    took = time.monotonic() - began
    expect("it ends with its time limit", LIMIT <= took < LIMIT + 20, True)
    gpu.works("the next kernel runs then", ALICE, lease, 31)
    kept = gpu.submit(BOB, gpu.kernel("nothing", output=(256, 4))).output
    expect("bob's bytes are his", kept, word(21))

    # Another client frees the lease while a kernel runs in it.
    ran = []
    mine = gpu.w.new(ALICE)
    thread = threading.Thread(target=lambda: ran.append(gpu.submit(ALICE, forever, client=mine)))
    thread.start()
    time.sleep(0.1)
    gpu.free(ALICE, lease)
    thread.join()
    expect("a lease that ends under its kernel", (ran[0].status, ran[0].code, ran[0].output), (Ran.LAUNCH_FAILED, 999, b""))
    lease = gpu.lease(ALICE)
    expect("its bytes are zero for the next", gpu.submit(ALICE, gpu.kernel("nothing", output=(0, 512))).output, bytes(512))
    gpu.free(ALICE, lease)
    gpu.free(BOB, other)


def who_else_may(gpu):
    expect("a partition", gpu.ask(ALICE, exclusivity=3)[0], Status.INVALID_PARAMS)
    lease = gpu.lease(ALICE, exclusivity=1)
    gpu.works("a lease of class session", ALICE, lease, 1)
    expect("the device beside another lease", gpu.ask(BOB, exclusivity=2)[0], Status.RESOURCE_BUSY)
    gpu.free(ALICE, lease)
    lease = gpu.lease(ALICE, exclusivity=2)
    gpu.works("a lease of class device", ALICE, lease, 2)
    expect("a lease beside the device's", gpu.ask(BOB)[0], Status.RESOURCE_BUSY)
    gpu.free(ALICE, lease)
    expect("what is left", wire.inventory(gpu.w.call(ALICE, Op.GET_INVENTORY)[1]).count(gpu.leased), 1)


def how_many_may_wait(gpu):
    lease, token = gpu.lease(ALICE), gpu.token(ALICE)
    # None ends before its word is written, so that one of them all has no place, whichever comes last.
    waits = gpu.kernel("waits", lease.at(0), output=(0, 4))
    quic = world.World("quic", gpu.w.nodes["main"], None).new(ALICE)
    many = quic.connection
    streams = [many.open(quic.request(Op.GPU_SUBMIT, waits.params(), 0, token).whole()) for _ in range(QUEUE + 1)]

    def answer(stream):
        return response(parse(many.read(stream, patience=20)).frame.payload, Op.GPU_SUBMIT)

    many.until(lambda: many.ended, 20)
    full = [stream for stream in streams if stream in many.ended]
    expect("one kernel more than may run or wait", [answer(stream) for stream in full], [(Status.RESOURCE_BUSY, b"")])
    expect("and another one", gpu.control(ALICE, waits), Status.RESOURCE_BUSY)
    bob = gpu.lease(BOB)
    gpu.works("another lease's runs meanwhile", BOB, bob, 41)
    gpu.free(BOB, bob)
    expect("the word that they wait for", Pages(gpu.w.at(ALICE), lease.id).write(0, word(1)), 0)
    numbers = set()
    for stream in streams:
        if stream not in full:
            status, result = answer(stream)
            ran = Result.read(result)
            expect("one that had a place", (status, ran.status, ran.code, ran.output), (Status.OK, Ran.OK, 0, word(1)))
            numbers.add(ran.submit)
    expect("each had a number of its own", len(numbers - {0}), QUEUE)
    gpu.works("then there is place again", ALICE, lease, 42)
    gpu.free(ALICE, lease)


def main(carrier, *ready):
    node, patient, plain = (json.loads(line.removeprefix("berth ready "))["endpoints"] for line in ready)
    w = world.World(carrier, node, plain)
    w.nodes["plain"] = w.nodes.pop("strict")
    how_many_may_wait(Gpu(world.World(carrier, patient, plain)))
    gpu = Gpu(w)
    for part in not_asked_properly, whose_lease, what_runs, what_does_not_fit, what_is_not_loaded, what_goes_wrong, who_else_may:
        part(gpu)
    print(f"{world.steps} steps over {carrier}, all as the page says")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Different as difference:
        sys.exit(f"NOT AS THE PAGE SAYS: {difference}")
