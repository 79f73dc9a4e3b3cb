"""A client of HIP Remote, written from docs/hip-remote.md alone.

    client.py ADDRESS KERNELS [CERTIFICATE]
    client.py ADDRESS KERNELS --nvidia
    client.py ADDRESS KERNELS --amd
    client.py ADDRESS KERNELS --several

KERNELS is a folder with vadd.ptx, matmul.ptx and reduce.ptx. With the worker's certificate all goes through TLS. The worker has two software GPUs; a session has 64 MiB,
1,000 handles and kernels of 3 s; with --nvidia or --amd it has one GPU of theirs and as much of all else; with --several software GPUs as devices 0 and 2, and NVIDIA's
as 1 and 3. For one of AMD's KERNELS has session.bundle and many.co, whose kernels have the same names. Exits with 0 if the worker does what the page says.
"""

import random
import socket
import ssl
import struct
import sys
import time

AMD = "--amd" in sys.argv
SEVERAL = "--several" in sys.argv
# The GPU of a session is in another process.
APART = AMD or "--nvidia" in sys.argv
# The device that sessions set first.
DEVICE = 0
sys.argv = [argument for argument in sys.argv if argument not in ("--nvidia", "--amd", "--several")]
HOST, PORT = sys.argv[1].rsplit(":", 1)
FOLDER = sys.argv[2]
TLS = ssl.create_default_context(cafile=sys.argv[3]) if len(sys.argv) > 3 else None
MAGIC, VERSION = 0x48495052, 0x0100
RESPONSE, ERROR, INLINE, NO_REPLY = 1, 2, 4, 8
MIB = 1 << 20


class Gone(Exception):
    """The worker closed the connection."""


class Session:
    def __init__(self, init=True):
        self.socket = socket.create_connection((HOST, int(PORT)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if TLS:
            self.socket = TLS.wrap_socket(self.socket, server_hostname="localhost")
        self.id = random.getrandbits(31)
        if init:
            assert self.call(0x0001) == (0, b"")
        if DEVICE:
            self.set(DEVICE)

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(min(count - len(data), 1 << 20))
            if not more:
                raise Gone
            data += more
        return data

    def send(self, op, payload=b"", flags=0, version=VERSION):
        self.id = self.id + 1 & 0xFFFFFFFF
        self.socket.sendall(struct.pack("<IHHIQI", MAGIC, version, op, self.id, len(payload), flags) + payload)
        return self.id

    def answer(self, op, request):
        """The error code, and what follows it."""
        magic, version, said, echoed, length, flags = struct.unpack("<IHHIQI", self.read(24))
        assert (magic, version, said, echoed) == (MAGIC, VERSION, op, request), (magic, version, said, echoed)
        body = self.read(length)
        code = struct.unpack_from("<i", body)[0]
        assert flags & RESPONSE and bool(flags & ERROR) == (code != 0), flags
        assert flags & ~(RESPONSE | ERROR | INLINE) == 0
        if code:
            assert not any(body[4:]), "a value beside an error"
        self.flags = flags
        return code, body[4:]

    def call(self, op, payload=b"", flags=0):
        return self.answer(op, self.send(op, payload, flags))

    def tell(self, op, payload=b"", flags=0):
        """Without a reply."""
        self.send(op, payload, flags | NO_REPLY)

    def value(self, op, form, payload=b"", flags=0):
        """What a call returns, which must succeed."""
        code, body = self.call(op, payload, flags)
        assert code == 0, (hex(op), code)
        assert len(body) == struct.calcsize("<" + form), (hex(op), len(body))
        found = struct.unpack("<" + form, body)
        return found[0] if len(found) == 1 else found

    def ok(self, op, payload=b"", flags=0):
        assert self.call(op, payload, flags) == (0, b""), hex(op)

    def fails(self, codes, op, payload=b"", flags=0):
        codes = codes if isinstance(codes, set) else {codes}
        code, body = self.call(op, payload, flags)
        assert code in codes, (hex(op), code, codes)

    def set(self, device):
        self.ok(0x0101, struct.pack("<i", device))

    def malloc(self, size):
        return self.value(0x0200, "Q", struct.pack("<QI", size, 0))

    def h2d(self, dst, data, stream=0, op=0x0210):
        self.ok(op, memcpy(dst, 0, len(data), 1, stream) + data, INLINE)

    def d2h(self, src, size, stream=0, op=0x0210):
        code, data = self.call(op, memcpy(0, src, size, 2, stream))
        assert code == 0 and len(data) == size, (code, len(data))
        assert bool(self.flags & INLINE) == (size > 0)
        return data

    def sync(self):
        return self.call(0x0104)[0]

    def load(self, text):
        return self.value(0x0500, "Q", struct.pack("<Q", len(text)) + text, INLINE)

    def function(self, module, name, field=256):
        body = self.value(0x0503, "QII512s", struct.pack("<Q", module) + name.ljust(field, b"\0"))
        function, size, count, params = body
        pairs = [struct.unpack_from("<II", params, 8 * i) for i in range(64)]
        assert not any(sum(pair) for pair in pairs[count:])
        return function, size, pairs[:count]

    def close(self):
        self.ok(0x0002)
        assert self.socket.recv(1) == b""


def memcpy(dst, src, size, kind, stream=0):
    return struct.pack("<QQQiQ", dst, src, size, kind, stream)


def memcpy2d(dst, dpitch, src, spitch, width, height, kind, stream=0):
    return struct.pack("<QQQQQQiIQ", dst, dpitch, src, spitch, width, height, kind, 0, stream)


def memset(dst, value, size, stream=0):
    return struct.pack("<QiQQ", dst, value, size, stream)


def launch(function, grid, block, args=(), shared=0, stream=0, flags=0, start=0, stop=0, size_first=False, pad=False):
    """A launch of `args`, each bytes."""
    fixed = struct.pack("<Q7IQIIQQI", function, *grid, *block, shared, stream, len(args), flags, start, stop, 0)
    descriptors, at = b"", 0
    for arg in args:
        descriptors += struct.pack("<II", *((len(arg), at) if size_first else (at, len(arg))))
        at += len(arg)
    return fixed + (bytes(4) if pad else b"") + descriptors + b"".join(args)


def q(value):
    return struct.pack("<Q", value)


def code(name):
    with open(f"{FOLDER}/session.bundle" if AMD else f"{FOLDER}/{name}.ptx", "rb") as file:
        return file.read()


HEAD = b".version 6.3\n.target sm_70\n.address_size 64\n"


def kernel(name, body, param=b".param .u64 p"):
    return HEAD + b".visible .entry " + name + b"(" + param + b") {\n.reg .b64 %rd<4>;\n.reg .b32 %r<4>;\n" + body + b"\nret;\n}\n"


def code_object(name):
    with open(f"{FOLDER}/../binary/{name}", "rb") as file:
        return file.read()


STORE = kernel(b"store", b"ld.param.u64 %rd0, [p];\nmov.u32 %r0, 7;\nst.global.u32 [%rd0], %r0;")
TRAP = kernel(b"trap", b"trap;")
FOREVER = kernel(b"forever", b"LOOP: bra LOOP;")
SLOW = kernel(b"slow", b"mov.u32 %r0, 100;\n.reg .pred %p;\nLOOP: nanosleep.u32 1000000;\nsub.u32 %r0, %r0, 1;\n"
              b"setp.ne.u32 %p, %r0, 0;\n@%p bra LOOP;")
EMPTY = HEAD + b".visible .entry empty() {\nret;\n}\n"
REFUSED = kernel(b"k", b"wgmma.fence.sync.aligned;")
MANY = kernel(b"k", b"", b", ".join(b".param .u32 p%d" % i for i in range(65)))
if AMD:
    STORE = TRAP = FOREVER = SLOW = EMPTY = code("session")
    REFUSED = b"CCOB" + bytes(100)
    with open(f"{FOLDER}/many.co", "rb") as file:
        MANY = file.read()
ONE = (1, 1, 1)


def connection():
    s = Session(init=False)
    s.ok(0x0003)
    s.ok(0x0001)
    s.ok(0x0001)
    assert s.value(0x0700, "i") > 0 and s.value(0x0701, "i") > 0
    for op in (0x0800, 0x0280, 0x7E00, 0x7E01, 0x0999, 0xFFFF):
        assert s.call(op, b"xyz" * 100) == (801, b""), hex(op)
    s.tell(0x0999)
    assert s.sync() == 801 and s.sync() == 0
    assert s.call(0x0003, bytes(70000)) == (0, b""), "a longer payload"
    s.send(0x0003, version=0x01FF)
    assert s.answer(0x0003, s.id) == (0, b"")
    s.close()
    for header in (
        struct.pack("<IHHIQI", MAGIC + 1, VERSION, 3, 1, 0, 0),
        struct.pack("<IHHIQI", MAGIC, 0x0200, 3, 1, 0, 0),
        struct.pack("<IHHIQI", MAGIC, VERSION, 3, 1, 1 << 62, 0),
    ):
        s = Session()
        s.socket.sendall(header)
        assert s.socket.recv(1) == b"", "closed without a reply"


def devices():
    s = Session()
    assert s.value(0x0100, "i") == 2
    assert s.value(0x0102, "i") == 0
    s.ok(0x0101, struct.pack("<i", 1))
    assert s.value(0x0102, "i") == 1
    for device in (-1, 2, 1 << 30):
        d = struct.pack("<i", device)
        s.fails(101, 0x0101, d)
        s.fails(101, 0x0103, d)
        s.fails(101, 0x0106, d + struct.pack("<i", 87))
        s.fails(101, 0x0109, struct.pack("<i", 0) + d)
        s.fails(101, 0x010A, d + bytes(4))
    for payload in (b"", struct.pack("<i", 1)):
        code, body = s.call(0x0103, payload)
        assert code == 0 and len(body) == 624
        assert body[368:].rstrip(b"\0") == b"berth-ptx"
        memory, = struct.unpack_from("<Q", body, 256)
        assert memory == 64 * MIB
    assert s.value(0x0106, "i", struct.pack("<ii", 0, 87)) == 32
    assert s.value(0x0106, "i", struct.pack("<ii", 0, 56)) == 1024
    s.fails(1, 0x0106, struct.pack("<ii", 0, 12345))
    for limit in (0, 1, 2):
        s.tell(0x0108, struct.pack("<iQ", limit, 123456))
        assert s.value(0x0107, "Q", struct.pack("<iQ", limit, 0)) >= 123456
    s.fails({215, 1}, 0x0107, struct.pack("<iQ", 9, 0))
    s.fails({215, 1}, 0x0108, struct.pack("<iQ", 9, 0))
    s.ok(0x0101, struct.pack("<i", 0))
    assert s.value(0x0109, "i", struct.pack("<ii", 0, 1)) == 1
    assert s.value(0x0109, "i", struct.pack("<ii", 0, 0)) == 0
    s.fails(705, 0x010B, struct.pack("<iI", 1, 0))
    s.ok(0x010A, struct.pack("<iI", 1, 0))
    s.fails(704, 0x010A, struct.pack("<iI", 1, 0))
    s.ok(0x010B, struct.pack("<iI", 1, 0))
    s.tell(0x010A, struct.pack("<iI", 7, 0))
    assert s.sync() in (101, 217)
    a = s.malloc(100)
    s.ok(0x0105)
    s.fails(17, 0x0231, q(a))
    s.close()


def memory():
    s = Session()
    free, total = s.value(0x0230, "QQ")
    assert total == 64 * MIB and free == total
    assert s.malloc(0) == 0
    s.ok(0x0201, q(0))
    a, b = s.malloc(1000), s.malloc(5000)
    assert a % 256 == 0 and b % 256 == 0
    assert s.d2h(a, 1000) == bytes(1000), "fresh memory reads as zeros"
    data = random.randbytes(1000)
    s.h2d(a, data)
    assert s.d2h(a, 1000) == data and s.d2h(a + 10, 7) == data[10:17]
    assert s.d2h(a, 0) == b""
    stream = s.value(0x0300, "Q", struct.pack("<Ii", 1, 0))
    s.h2d(b, data, stream, 0x0211)
    assert s.d2h(b, 1000, stream, 0x0211) == data
    s.ok(0x0210, memcpy(b + 1000, a, 1000, 3))
    s.ok(0x0210, memcpy(b + 2000, a, 500, 4))
    s.ok(0x0210, memcpy(b + 3000, 0, 9, 4) + b"inline of", INLINE)
    assert s.d2h(b + 1000, 2009) == data + data[:500] + bytes(500) + b"inline of"
    s.ok(0x0210, memcpy(b + 1, b, 1000, 3))
    assert s.d2h(b, 1001) == data[:1] + data, "overlapping"
    for payload in (memcpy(a, b, 1, 0), memcpy(a, b, 0, 0), memcpy(a, b, 1, 5), memcpy(a, b, 0, -1)):
        s.fails({1, 21}, 0x0210, payload)
    s.fails(1, 0x0210, memcpy(a, 0, 10, 1) + bytes(10))
    s.fails(1, 0x0210, memcpy(a, 0, 10, 1) + bytes(9), INLINE)
    s.ok(0x0210, memcpy(a, 0, 10, 1) + data[:10] + bytes(90), INLINE)
    for at, size, codes in ((a + 1000, 1, 17), (a - 1, 1, 17), (a, 1001, {1, 17}), (a + 999, 2, {1, 17}), (5, 1, 17),
                            (a + 1, (1 << 64) - 1, {1, 17})):
        s.fails(codes, 0x0210, memcpy(0, at, size, 2))
        s.fails(codes, 0x0210, memcpy(b, at, size, 3))
        s.fails(codes, 0x0220, memset(at, 1, size))
    s.fails({1, 17}, 0x0210, memcpy(a + 998, 0, 3, 1) + b"xxx", INLINE)
    assert s.d2h(a, 1000) == data, "a refused copy writes nothing"
    s.ok(0x0220, memset(a, 0x1FF, 10))
    s.ok(0x0221, memset(a + 10, 7, 10, stream))
    s.ok(0x0220, memset(a, 9, 0))
    assert s.d2h(a, 21) == b"\xff" * 10 + b"\7" * 10 + data[20:21]
    s.ok(0x021C, struct.pack("<QiQiQQ", b, 0 if APART else 1, a, 0, 20, 0))
    assert s.d2h(b, 20) == b"\xff" * 10 + b"\7" * 10
    s.fails(101, 0x021D, struct.pack("<QiQiQQ", b, 4 if SEVERAL else 2, a, 0, 20, 0))
    assert s.value(0x0231, "iiQQiI", q(a + 5)) == (2, DEVICE, a + 5, 0, 0, 0)
    assert s.value(0x0751, "Q", q(b)) == 5000
    # Rows.
    rows = random.randbytes(40)
    s.ok(0x0212, memcpy2d(b, 16, 0, 10, 8, 4, 1) + rows, INLINE)
    image = s.d2h(b, 56)
    for row in range(4):
        assert image[16 * row:16 * row + 8] == rows[10 * row:10 * row + 8]
    code, body = s.call(0x0212, memcpy2d(0, 12, b, 16, 8, 4, 2))
    assert code == 0 and body == b"".join(rows[10 * row:10 * row + 8] + bytes(4) for row in range(4))
    s.ok(0x0213, memcpy2d(a, 8, b, 16, 8, 4, 3))
    assert s.d2h(a, 32) == b"".join(rows[10 * row:10 * row + 8] for row in range(4))
    s.fails({1, 12}, 0x0212, memcpy2d(a, 7, b, 16, 8, 4, 3))
    s.fails({1, 12}, 0x0212, memcpy2d(a, 8, b, 7, 8, 4, 3))
    s.fails({1, 17}, 0x0212, memcpy2d(a, 1 << 63, b, 1 << 63, 8, 4, 3))
    s.fails({1, 17}, 0x0212, memcpy2d(a, 8, b, 8, 8, 1 << 62, 3))
    s.fails(1, 0x0212, memcpy2d(0, 1 << 40, b, 16, 8, 4, 2))
    s.ok(0x0212, memcpy2d(a, 8, b, 8, 8, 0, 3))
    big = random.randbytes(8 * MIB + 12345)
    c = s.malloc(len(big))
    s.h2d(c, big)
    assert s.d2h(c, len(big)) == big
    s.ok(0x0220, memset(c, 3, len(big)))
    d = s.malloc(len(big))
    s.ok(0x0210, memcpy(d, c, len(big), 3))
    assert s.d2h(d, len(big)) == b"\3" * len(big)
    s.fails({1, 17}, 0x0201, q(a + 256))
    s.ok(0x0201, q(a))
    s.fails(17, 0x0210, memcpy(0, a, 1, 2))
    s.fails({1, 17}, 0x0201, q(a))
    e = s.value(0x0205, "Q", struct.pack("<QQ", 64, stream))
    s.ok(0x0206, struct.pack("<QQ", e, stream))
    # All or nothing.
    sizes = [1, 0, 300] + [7] * 61
    count, pad, *ptrs = s.value(0x0745, "II64Q", struct.pack("<II64Q", 3, 0, *sizes))
    assert count == 3 and ptrs[0] and not ptrs[1] and ptrs[2] and not any(ptrs[3:])
    free, _ = s.value(0x0230, "QQ")
    s.fails(2, 0x0745, struct.pack("<II64Q", 3, 0, 100, 100, 64 * MIB, *sizes[3:]))
    assert s.value(0x0230, "QQ")[0] == free
    s.fails(1, 0x0745, struct.pack("<II64Q", 65, 0, *sizes))
    s.fails(1, 0x0745, bytes(519))
    s.fails(2, 0x0200, struct.pack("<QI", 64 * MIB, 0))
    s.fails(2, 0x0200, struct.pack("<QI", (1 << 64) - 1, 0))
    s.close()


def streams():
    s = Session()
    made = [s.value(op, "Q", struct.pack("<Ii", flags, 0)) for op, flags in ((0x0300, 0), (0x0301, 1), (0x0302, 1))]
    assert len(set(made)) == 3 and all(made)
    for stream in made + [0]:
        s.ok(0x0304, q(stream))
        s.ok(0x0305, q(stream))
    assert s.value(0x0307, "I", q(made[1])) == 1 and s.value(0x0307, "I", q(0)) == 0
    s.value(0x0308, "i", q(made[1]))
    event = s.value(0x0400, "Q", struct.pack("<I", 0))
    other = s.value(0x0401, "Q", struct.pack("<I", 0))
    quick = s.value(0x0401, "Q", struct.pack("<I", 2))
    s.ok(0x0405, q(event))
    s.ok(0x0404, q(event))
    s.fails(400, 0x0406, q(event) + q(other))
    s.ok(0x0306, q(made[0]) + q(event) + bytes(4))
    s.ok(0x0403, q(event) + q(made[0]))
    time.sleep(0.02)
    s.ok(0x0403, q(other) + q(0))
    s.ok(0x0403, q(quick) + q(0))
    assert 15 < s.value(0x0406, "f", q(event) + q(other)) < 5000
    s.fails(400, 0x0406, q(event) + q(quick))
    # Kinds are told apart.
    for handle in (event, 12345, made[0] + 1):
        s.fails(400, 0x0304, q(handle))
        s.fails(400, 0x0303, q(handle))
    for handle in (made[0], 0, 12345):
        s.fails(400, 0x0404, q(handle))
        s.fails(400, 0x0402, q(handle))
    s.fails({400, 1}, 0x0303, q(0))
    another = Session()
    another.fails(400, 0x0304, q(made[0]))
    another.close()
    s.ok(0x0303, q(made[0]))
    s.fails(400, 0x0304, q(made[0]))
    s.ok(0x0402, q(event))
    s.fails(400, 0x0405, q(event))
    for op in (0x0746, 0x0747):
        count, _, *handles = s.value(op, "II32Q", struct.pack("<II", 5, 0))
        assert count == 5 and len(set(handles[:5])) == 5 and not any(handles[5:])
        count, _, *handles = s.value(op, "II32Q", struct.pack("<II", 33, 0))
        assert count == 32 and all(handles)
    for i in range(1000):
        code, body = s.call(0x0747, struct.pack("<II", 32, 0))
        if code:
            break
    assert code == 2, "the quota of handles"
    s.close()


def kernels():
    s = Session()
    text = code("vadd")
    module = s.load(text)
    function, size, params = s.function(module, b"vadd")
    assert (size, params) == (28, [(0, 8), (8, 8), (16, 8), (24, 4)])
    assert s.function(module, b"vadd", 1024)[1:] == (size, params)
    s.fails(500, 0x0503, q(module) + b"nothing".ljust(256, b"\0"))
    s.fails({500, 1}, 0x0503, q(module) + bytes(256))
    s.fails({500, 1}, 0x0503, q(module) + b"v" * 256)
    s.fails(1, 0x0503, q(module) + b"vadd".ljust(255, b"\0"))
    s.fails(400, 0x0503, q(function) + b"vadd".ljust(256, b"\0"))
    n = 1000
    x = [random.randrange(1000) / 4 for _ in range(n)]
    y = [random.randrange(1000) / 4 for _ in range(n)]
    a, b, c = (s.malloc(4 * n) for _ in range(3))
    s.h2d(a, struct.pack(f"<{n}f", *x))
    s.h2d(b, struct.pack(f"<{n}f", *y))
    sums = struct.pack(f"<{n}f", *(i + j for i, j in zip(x, y)))
    args = [q(a), q(b), q(c), struct.pack("<I", n)]
    stream = s.value(0x0300, "Q", struct.pack("<Ii", 0, 0))
    flat = [b"".join(args)]
    for form in (
        launch(function, (8, 1, 1), (128, 1, 1), args),
        launch(function, (8, 1, 1), (128, 1, 1), args, size_first=True),
        launch(function, (8, 1, 1), (128, 1, 1), args, pad=True),
        launch(function, (8, 1, 1), (128, 1, 1), args, size_first=True, pad=True),
        launch(function, (8, 1, 1), (128, 1, 1), flat, flags=1),
        launch(function, (8, 1, 1), (128, 1, 1), [flat[0] + bytes(100)], flags=1),
        launch(function, (8, 1, 1), (128, 1, 1), args[:3] + [args[3] + bytes(4)], stream=stream),
    ):
        for reply in (True, False):
            s.ok(0x0220, memset(c, 0, 4 * n))
            if reply:
                s.ok(0x0510, form)
            else:
                s.tell(0x0512, form)
            assert s.d2h(c, 4 * n) == sums
    start, stop = (s.value(0x0400, "Q", struct.pack("<I", 0)) for _ in range(2))
    s.ok(0x0510, launch(function, (8, 1, 1), (128, 1, 1), args, start=start, stop=stop))
    s.ok(0x0404, q(stop))
    assert s.value(0x0406, "f", q(start) + q(stop)) >= 0
    s.ok(0x0220, memset(c, 0, 4 * n))
    ok = ((8, 1, 1), (128, 1, 1))
    refused = [
        ({400, 98}, launch(stream, *ok, args)),
        (400, launch(function, *ok, args, stream=function)),
        (400, launch(function, *ok, args, start=stream)),
        (1, launch(function, *ok, args[:3])),
        (1, launch(function, *ok, args + [b"x"])),
        (1, launch(function, *ok, args[:3] + [b"xx"])),
        (1, launch(function, *ok, args, flags=2)),
        (1, launch(function, *ok, args)[:70]),
        (1, launch(function, *ok, args)[:-1]),
    ]
    for grid, block in (((0, 1, 1), ONE), (ONE, (1, 0, 1)), (ONE, (1025, 1, 1)), (ONE, (1, 1, 65)), (ONE, (64, 64, 1)),
                        ((0xFFFFFFFF,) * 3, (0xFFFFFFFF,) * 3), ((1, 65536, 1), ONE), ((0x7FFFFFFF, 65535, 65535), (1024, 1, 1))):
        refused.append(({9, 1, 701}, launch(function, grid, block, args)))
    refused.append(({9, 1, 701}, launch(function, *ok, args, shared=1 << 30)))
    many = bytearray(launch(function, *ok, args))
    struct.pack_into("<I", many, 44, 0xFFFFFFFF)
    refused.append((1, bytes(many)))
    for bad in ([(0, 8), (4, 8), (16, 8), (24, 4)], [(0, 8), (8, 8), (16, 8), (24, 5)], [(0, 0)] * 4, [(0xFFFFFFFF, 8)] * 4):
        payload = bytearray(launch(function, *ok, args))
        for i, pair in enumerate(bad):
            struct.pack_into("<II", payload, 72 + 8 * i, *pair)
        refused.append((1, bytes(payload)))
    for codes, payload in refused:
        s.fails(codes, 0x0510, payload)
        s.tell(0x0510, payload)
        assert s.sync() in (codes if isinstance(codes, set) else {codes})
    assert s.d2h(c, 4 * n) == bytes(4 * n), "a refused launch changes nothing"
    empty = s.function(s.load(EMPTY + b"\0" + random.randbytes(5000)), b"empty")
    assert empty[1:] == (0, [])
    s.ok(0x0510, launch(empty[0], *ok, flags=1))
    s.ok(0x0510, launch(empty[0], *ok))
    assert s.value(0x0710, "ii", struct.pack("<QQiI", function, 0, 0, 0))[1] == 1024
    assert s.value(0x0711, "i", struct.pack("<QiQ", function, 128, 0)) >= 1
    # Both at once.
    body = s.value(0x0744, "QQII512s", struct.pack("<QII", len(text), 4, 0) + b"vadd" + text, INLINE)
    assert body[0] and body[1] and body[2:4] == (28, 4)
    handles = s.value(0x0230, "QQ")
    s.fails(500, 0x0744, struct.pack("<QII", len(text), 4, 0) + b"vsub" + text, INLINE)
    assert s.value(0x0230, "QQ") == handles, "nothing stays loaded"
    s.fails(1, 0x0744, struct.pack("<QII", len(text) + 1, 4, 0) + b"vadd" + text, INLINE)
    s.fails(1, 0x0744, struct.pack("<QII", 0, 0xFFFFFFFF, 0))
    s.fails(1, 0x0500, q(len(text) + 1) + text, INLINE)
    for image, codes in ((b"", {200, 209, 218}), (b"nonsense", {200, 209}), (b"\x7fELF" + bytes(60), {209}),
                         (b"__CLANG_OFFLOAD_BUNDLE__" + bytes(64), {209}), (b"\xff" * 40, {200, 209}),
                         (REFUSED, {218})):
        s.fails(codes, 0x0501, q(len(image)) + image, INLINE)
    s.fails(218, 0x0500, q(len(MANY)) + MANY, INLINE)
    before = s.value(0x0230, "QQ")[0]
    s.ok(0x0502, q(module))
    assert s.value(0x0230, "QQ")[0] > before, "a module counts until it is unloaded"
    s.fails({400, 98}, 0x0510, launch(function, *ok, args))
    s.fails(400, 0x0502, q(module))
    # Tiles with barriers, and a reduction.
    size = 32
    m, _, _ = s.function(s.load(code("matmul")), b"matmul")
    left = [random.randrange(8) for _ in range(size * size)]
    right = [random.randrange(8) for _ in range(size * size)]
    s.h2d(a, struct.pack(f"<{n}f", *left[:n]))
    a, b, c = (s.malloc(4 * size * size) for _ in range(3))
    s.h2d(a, struct.pack(f"<{size * size}f", *left))
    s.h2d(b, struct.pack(f"<{size * size}f", *right))
    s.tell(0x0510, launch(m, (2, 2, 1), (16, 16, 1), [q(a), q(b), q(c), struct.pack("<I", size)]))
    found = struct.unpack(f"<{size * size}f", s.d2h(c, 4 * size * size))
    for at in range(size * size):
        assert found[at] == sum(left[at // size * size + k] * right[k * size + at % size] for k in range(size))
    r, _, _ = s.function(s.load(code("reduce")), b"reduce")
    s.h2d(a, struct.pack("<1000i", *range(1000)))
    s.tell(0x0510, launch(r, (4, 1, 1), (256, 1, 1), [q(a), q(c), struct.pack("<I", 1000)]))
    assert sum(struct.unpack("<4i", s.d2h(c, 16))) == 999 * 500
    s.close()


def faults():
    s = Session()
    a = s.malloc(1000)
    store = s.function(s.load(STORE), b"store")[0]
    trap = s.function(s.load(TRAP), b"trap")[0]
    forever = s.function(s.load(FOREVER), b"forever")[0]
    for function, argument, code in ((store, a, 0), (store, a + 1000, 700), (store, a - 4, 700), (store, 0, 700),
                                     (store, a + 998, 716), (store, a + 1, 716), (trap, 0, 719), (store, a + 996, 0)):
        s.tell(0x0510, launch(function, ONE, ONE, [q(argument)]))
        assert s.sync() == code, (code, argument - a)
        assert s.sync() == 0, "told once"
    assert s.d2h(a + 996, 4) == b"\7\0\0\0"
    began = time.monotonic()
    stream, event = s.value(0x0300, "Q", bytes(8)), s.value(0x0400, "Q", bytes(4))
    s.tell(0x0510, launch(forever, ONE, ONE, [q(0)], stream=stream))
    s.ok(0x0403, q(event) + q(stream))
    s.fails(600, 0x0405, q(event))
    s.fails(600, 0x0305, q(stream))
    s.ok(0x0003)
    assert time.monotonic() - began < 0.5, "what needs no device is served meanwhile"
    assert s.call(0x0304, q(stream))[0] == 702
    assert 2.8 < time.monotonic() - began < 6
    s.ok(0x0405, q(event))
    # Each tells, each once; the first stays.
    tells = [(0x0104, b""), (0x0304, q(0)), (0x0404, q(event)), (0x0210, memcpy(0, a, 10, 2)), (0x0600, b""),
             (0x0212, memcpy2d(0, 4, a, 4, 4, 2, 2))]
    for op, payload in tells:
        s.tell(0x0201, q(12345))
        s.tell(0x0303, q(12345))
        for other in (0x0003, 0x0001, 0x0100, 0x0102, 0x0230, 0x0700):
            assert s.call(other)[0] == 0, "no other answer tells it"
        assert s.call(0x0601) == s.call(0x0601) == (17, b"")
        s.tell(0x0104)
        assert s.call(op, payload) == (17, b""), hex(op)
        assert s.call(op, payload)[0] == 0
    s.tell(0x0201, q(12345))
    s.fails(400, 0x0304, q(777))
    s.fails(17, 0x0210, memcpy(0, 5, 10, 2))
    assert s.sync() == 17, "an error of the request's own goes first"
    s.fails(17, 0x0201, q(12345))
    assert s.sync() == 0, "what was answered is not told again"
    # Without a reply nothing is made.
    free = s.value(0x0230, "QQ")
    for op, payload in ((0x0200, struct.pack("<QI", 4096, 0)), (0x0300, bytes(8)), (0x0210, memcpy(0, a, 10, 2)),
                        (0x0500, q(4) + b"text"), (0x0725, q(stream) + bytes(4)), (0x0100, b""), (0x0745, bytes(520))):
        s.tell(op, payload, INLINE)
        assert s.sync() == 1, hex(op)
    assert s.value(0x0230, "QQ") == free
    assert s.value(0x0727, "i", q(stream)) == 0
    assert s.value(0x0602, "256s", struct.pack("<i", 17)).rstrip(b"\0")
    assert s.value(0x0603, "256s", struct.pack("<i", 1)).startswith(b"hipErrorInvalidValue\0")
    s.close()


def lost():
    """A fault ends the device of its session until it is reset, and touches no other session."""
    other = Session()
    kept, data = other.malloc(100000), random.randbytes(100000)
    other.h2d(kept, data)
    s = Session()
    for name, text, codes in ((b"store", STORE, {700}), (b"trap", TRAP, {719}), (b"forever", FOREVER, {702})):
        a = s.malloc(1 << 20)
        assert s.d2h(a, 1 << 20) == bytes(1 << 20), "fresh memory reads as zeros"
        s.h2d(a, b"\x5a" * (1 << 20))
        module = s.load(text)
        function = s.function(module, name)[0]
        began = time.monotonic()
        s.tell(0x0510, launch(function, ONE, ONE, [q(8)]))
        assert s.sync() in codes, name
        assert time.monotonic() - began < 5, "a kernel that never ends is ended"
        for op, payload in ((0x0104, b""), (0x0304, q(0)), (0x0200, struct.pack("<QI", 1, 0)), (0x0201, q(a)),
                            (0x0210, memcpy(0, a, 10, 2)), (0x0210, memcpy(a, a, 10, 3)), (0x0220, memset(a, 1, 1)),
                            (0x0500, q(len(EMPTY)) + EMPTY), (0x0510, launch(function, ONE, ONE, [q(a)]))):
            s.fails(codes, op, payload, INLINE if op == 0x0500 else 0)
        s.fails(codes, 0x0210, memcpy(a, 0, 10, 1) + bytes(10), INLINE)
        s.ok(0x0003)
        s.value(0x0230, "QQ")
        assert other.d2h(kept, len(data)) == data
        s.ok(0x0105)
        assert s.value(0x0230, "QQ") == (64 * MIB, 64 * MIB)
        s.fails(400, 0x0502, q(module))
        assert s.sync() == 0
    a = s.malloc(60 * MIB)
    assert s.d2h(a, MIB) == bytes(MIB)
    s.ok(0x0105)
    assert s.malloc(64 * MIB)
    assert other.d2h(kept, len(data)) == data
    s.close()
    other.close()


def several():
    """Devices of both kinds in one session, and what one of them loses."""
    s, all_, own = Session(), range(4), (1, 3)
    assert s.value(0x0100, "i") == 4
    for device in all_:
        arch = s.call(0x0103, struct.pack("<i", device))[1][368:].rstrip(b"\0")
        assert arch == (b"sm_90" if device in own else b"berth-ptx"), arch
        for peer in all_:
            reaches = s.value(0x0109, "i", struct.pack("<ii", device, peer))
            assert reaches == int(device != peer and device not in own and peer not in own)
    s.fails(217, 0x010A, struct.pack("<iI", 1, 0))
    s.ok(0x010A, struct.pack("<iI", 2, 0))

    def fill():
        made, data = [], []
        for device in all_:
            s.set(device)
            data.append(random.randbytes(3 * MIB + 5))
            made.append(s.malloc(len(data[device])))
            assert s.d2h(made[device], len(data[device])) == bytes(len(data[device]))
            s.h2d(made[device], data[device])
            assert s.value(0x0231, "iiQQiI", q(made[device] + 5))[:2] == (2, device)
            assert s.value(0x0751, "Q", q(made[device])) == len(data[device])
        return made, data

    made, data = fill()
    size, free = len(data[0]), 64 * MIB - 4 * (3 * MIB + 256)
    for low, high in zip(sorted(made), sorted(made)[1:]):
        assert low + size <= high
    for device in all_:
        s.set(device)
        assert s.value(0x0230, "QQ") == (free, 64 * MIB), "memory is that of all devices together"
        s.fails(2, 0x0200, struct.pack("<QI", free + 1, 0))
    big = s.malloc(free)
    for device in all_:
        s.set(device)
        s.fails(2, 0x0200, struct.pack("<QI", 1, 0))
    s.ok(0x0201, q(big))
    # Copies between all of them, each way that there is.
    stream = s.value(0x0300, "Q", bytes(8))
    for source in all_:
        for target in all_:
            if source == target:
                continue
            s.ok(0x0210, memcpy(made[target], made[source], size, 3))
            assert s.d2h(made[target], size) == data[source], (source, target)
            s.tell(0x0221, memset(made[target], 0x77, size))
            s.tell(0x021D, struct.pack("<QiQiQQ", made[target] + 3, target, made[source] + 1, source, 1000, stream))
            s.tell(0x0213, memcpy2d(made[target] + 2000, 50, made[source], 30, 20, 40, 3))
            expected = bytearray(b"\x77" * size)
            expected[3:1003] = data[source][1:1001]
            for row in range(40):
                expected[2000 + 50 * row:2020 + 50 * row] = data[source][30 * row:30 * row + 20]
            assert s.d2h(made[target], size) == bytes(expected), (source, target)
            s.h2d(made[target], data[target])
            for payload, codes in ((memcpy(made[target] + 1, made[source], size, 3), {1, 17}),
                                   (memcpy(made[target], made[source] + size, 1, 3), {1, 17})):
                s.fails(codes, 0x0210, payload)
    assert s.sync() == 0

    # A kernel runs where its module was loaded, whatever device is set.
    def load():
        found = []
        for device in all_:
            s.set(device)
            found.append(s.function(s.load(STORE), b"store")[0])
        return found

    functions = load()
    for device in all_:
        s.set((device + 1) % 4)
        s.tell(0x0510, launch(functions[device], ONE, ONE, [q(made[device] + 16)]))
        assert s.sync() == 0
        assert s.d2h(made[device] + 12, 12) == data[device][12:16] + b"\7\0\0\0" + data[device][20:24]
    s.tell(0x0510, launch(functions[0], ONE, ONE, [q(made[2])]))
    assert s.sync() == 0, "software GPUs reach each other's memory"
    s.tell(0x0510, launch(functions[0], ONE, ONE, [q(made[1])]))
    assert s.sync() == 700, "and no other"
    # A graph over all of them; its data lie where they are copied to.
    s.set(0)
    s.ok(0x0725, q(stream) + bytes(4))
    s.h2d(made[3], b"graph" * 100, stream, 0x0211)
    s.tell(0x0211, memcpy(made[2], made[3], 500, 3, stream))
    s.tell(0x0211, memcpy(made[1], made[2], 500, 3, stream))
    s.tell(0x0510, launch(functions[1], ONE, ONE, [q(made[1])], stream=stream))
    s.tell(0x0221, memset(made[1] + 4, 9, 4, stream))
    s.tell(0x0211, memcpy(made[0], made[1], 500, 3, stream))
    exec_ = s.value(0x0722, "Q", q(s.value(0x0726, "Q", q(stream))) + bytes(4))
    for _ in range(2):
        for device in all_:
            s.ok(0x0220, memset(made[device], 0, 500))
        s.tell(0x0723, q(exec_) + q(stream))
        assert s.d2h(made[0], 500) == b"\7\0\0\0\x09\x09\x09\x09" + (b"graph" * 100)[8:500]
    # A fault ends one device alone.
    s.set(1)
    s.tell(0x0510, launch(functions[1], ONE, ONE, [q(made[0])]))
    assert s.sync() == 700, "what lies on another device is not reached"
    for op, payload in ((0x0104, b""), (0x0304, q(0)), (0x0200, struct.pack("<QI", 1, 0)), (0x0201, q(made[1])),
                        (0x0210, memcpy(0, made[1], 10, 2)), (0x0220, memset(made[1], 1, 1)),
                        (0x0210, memcpy(made[1], made[3], size, 3)), (0x0210, memcpy(made[0], made[1], size, 3)),
                        (0x0510, launch(functions[1], ONE, ONE, [q(made[1])]))):
        s.fails(700, op, payload)
    for device in (0, 2, 3):
        s.set(device)
        s.h2d(made[device], data[device])
        s.tell(0x0510, launch(functions[device], ONE, ONE, [q(made[device])]))
        assert s.sync() == 0, "the others go on"
        assert s.d2h(made[device], size) == b"\7\0\0\0" + data[device][4:]
    s.ok(0x0210, memcpy(made[0], made[3], size, 3))
    assert s.d2h(made[0], size) == b"\7\0\0\0" + data[3][4:]
    # It is there again after a reset, which frees all on every device.
    s.ok(0x0105)
    for at in made:
        s.fails(17, 0x0231, q(at))
    made, data = fill()
    functions = load()
    s.tell(0x0510, launch(functions[1], ONE, ONE, [q(made[1])]))
    assert s.sync() == 0
    assert s.d2h(made[1], 8) == b"\7\0\0\0" + data[1][4:8]
    s.close()
    # Copies that nobody waits for to the end.
    for _ in range(20):
        s = Session()
        s.set(1)
        a = s.malloc(30 * MIB)
        s.set(0)
        b = s.malloc(30 * MIB)
        s.send(0x0210, memcpy(*((a, b) if _ % 2 else (b, a)), 30 * MIB, 3))
        s.socket.close()


def graphs():
    s = Session()
    n = 16
    module = s.load(code("vadd"))
    function = s.function(module, b"vadd")[0]
    a, b, c = (s.malloc(4 * n) for _ in range(3))
    stream = s.value(0x0300, "Q", bytes(8))
    event = s.value(0x0400, "Q", bytes(4))
    s.fails({900, 901, 902, 903, 904, 905, 906, 907, 908, 1, 400}, 0x0726, q(stream))
    s.ok(0x0725, q(stream) + struct.pack("<i", 0))
    assert s.value(0x0727, "i", q(stream)) == 1 and s.value(0x0727, "i", q(0)) == 0
    ones = struct.pack(f"<{n}f", *([1.0] * n))
    s.h2d(a, ones, stream, 0x0211)
    s.tell(0x0221, memset(b, 0, 4 * n, stream))
    s.tell(0x0211, memcpy(b, a, 4 * n, 3, stream))
    s.tell(0x0510, launch(function, ONE, (32, 1, 1), [q(a), q(b), q(c), struct.pack("<I", n)], stream=stream))
    s.tell(0x0403, q(event) + q(stream))
    s.fails(900, 0x0304, q(stream))
    s.fails(900, 0x0211, memcpy(0, a, 4, 2, stream))
    assert s.sync() == 0
    graph = s.value(0x0726, "Q", q(stream))
    assert s.d2h(a, 4 * n) == s.d2h(c, 4 * n) == bytes(4 * n), "recorded, not run"
    exec_ = s.value(0x0722, "Q", q(graph) + bytes(4))
    s.tell(0x0721, q(graph))
    s.fails(400, 0x0722, q(graph) + bytes(4))
    for _ in range(3):
        s.ok(0x0220, memset(a, 0, 4 * n))
        s.ok(0x0220, memset(c, 0, 4 * n))
        s.tell(0x0723, q(exec_) + q(stream))
        assert s.d2h(c, 4 * n) == struct.pack(f"<{n}f", *([2.0] * n))
    s.fails(400, 0x0723, q(graph) + q(0))
    s.ok(0x0201, q(b))
    s.tell(0x0723, q(exec_) + q(0))
    assert s.sync() == 17, "what it writes to is gone"
    free = s.value(0x0230, "QQ")[0]
    s.ok(0x0724, q(exec_))
    assert s.value(0x0230, "QQ")[0] > free, "its data are freed with it"
    s.fails(400, 0x0724, q(exec_))
    assert s.sync() == 0
    empty = s.value(0x0720, "Q", bytes(4))
    s.ok(0x0723, q(s.value(0x0722, "Q", q(empty) + bytes(4))) + q(0))
    s.ok(0x0721, q(empty))
    s.ok(0x0725, q(stream) + bytes(4))
    s.ok(0x0303, q(stream))
    s.close()


def allocations():
    """16,384 of a session on one GPU, and no more."""
    s = Session()
    many = struct.pack("<II64Q", 64, 0, *[1] * 64)
    made = [s.value(0x0745, "II64Q", many)[2:] for _ in range(256)]
    assert len({at for some in made for at in some}) == 16384
    s.fails(2, 0x0745, many)
    s.fails(2, 0x0200, struct.pack("<QI", 1, 0))
    s.ok(0x0201, q(made[7][7]))
    s.malloc(1)
    s.fails(2, 0x0200, struct.pack("<QI", 1, 0))
    s.close()


def binaries():
    """Fat binaries of NVIDIA's tools, of which a driver without code for its GPU takes the PTX."""
    s = Session()
    image, compressed, cubin = (code_object(name) for name in ("put.fatbin", "put-compressed.fatbin", "put.cubin"))
    module = s.load(image + b"behind")
    put, size, params = s.function(module, b"put")
    assert (size, params) == (36, [(0, 8), (8, 1), (16, 16), (32, 4)])
    assert s.function(module, b"nothing")[1:] == (0, [])
    a = s.malloc(256)
    for on in (0, 1):
        s.tell(0x0510, launch(put, ONE, ONE, [q(a), bytes([on]), q(8) + q(16), struct.pack("<I", 77)]))
        assert s.sync() == 0
        assert s.d2h(a, 64) == bytes(24) + (b"\x4d" if on else b"\0") + bytes(39)
    s.fails(200, 0x0500, q(len(image) - 1) + image[:-1], INLINE)
    # Code for compute capability 9.0, and PTX that the driver has to unpack, which the one in software does not.
    for other in (cubin, compressed):
        code, _ = s.call(0x0500, q(len(other)) + other, INLINE)
        assert code in (0, 209), code
    s.close()


def sessions():
    """What one leaves, another does not see."""
    one, two = Session(), Session()
    mark = bytes(range(1, 256)) * 100
    at = one.malloc(len(mark))
    one.h2d(at, mark)
    two.fails(17, 0x0210, memcpy(0, at, 1, 2))
    two.fails({1, 17}, 0x0201, q(at))
    store = two.function(two.load(STORE), b"store")[0]
    two.tell(0x0510, launch(store, ONE, ONE, [q(at)]))
    assert two.sync() == 700
    assert one.d2h(at, len(mark)) == mark
    for _ in range(20):
        again = one.malloc(len(mark))
        assert one.d2h(again, len(mark)) == bytes(len(mark))
        one.h2d(again, mark)
        one.ok(0x0201, q(again))
    # A client that vanishes during a kernel: its memory is free within a second.
    free = two.value(0x0230, "QQ")[0]
    hog = Session()
    for _ in range(4):
        hog.malloc(15 * MIB)
    forever = hog.function(hog.load(FOREVER), b"forever")[0]
    hog.tell(0x0510, launch(forever, ONE, ONE, [q(0)]))
    hog.send(0x0104)
    time.sleep(0.1)
    assert two.value(0x0230, "QQ")[0] < free
    hog.socket.close()
    deadline = time.monotonic() + 1
    while two.value(0x0230, "QQ")[0] < free:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # One that sends nothing more still gets its answers, if they come soon. This library's TLS ends both directions.
    if not TLS:
        half = Session()
        at = half.malloc(8)
        slow = half.function(half.load(SLOW), b"slow")[0]
        half.tell(0x0510, launch(slow, ONE, ONE, [q(at)]))
        asked = half.send(0x0104)
        half.socket.shutdown(socket.SHUT_WR)
        assert half.answer(0x0104, asked) == (0, b"")
        assert half.socket.recv(1) == b""
    # Kernels that follow each other do not wait for a core that sleeps.
    empty = one.function(one.load(EMPTY), b"empty")[0]
    begin = time.monotonic()
    for _ in range(1000):
        one.tell(0x0510, launch(empty, ONE, ONE))
    assert one.sync() == 0
    assert time.monotonic() - begin < 0.7
    # One that vanishes in the middle of a copy.
    for _ in range(50):
        s = Session()
        at = s.malloc(MIB)
        s.socket.sendall(struct.pack("<IHHIQI", MAGIC, VERSION, 0x0210, 1, 36 + MIB, INLINE) + memcpy(at, 0, MIB, 1) + mark)
        s.socket.close()
    deadline = time.monotonic() + 1
    while two.value(0x0230, "QQ")[0] < free:
        assert time.monotonic() < deadline
    one.close()
    two.close()


def cuts():
    """Every structure, cut at each byte."""
    s = Session()
    sizes = {0x0101: 4, 0x0106: 8, 0x0107: 12, 0x0108: 12, 0x0109: 8, 0x010A: 8, 0x010B: 8, 0x0200: 12, 0x0201: 8,
             0x0205: 16, 0x0206: 16, 0x0210: 36, 0x0211: 36, 0x0212: 64, 0x0213: 64, 0x021C: 40, 0x021D: 40, 0x0220: 28,
             0x0221: 28, 0x0231: 8, 0x0300: 8, 0x0303: 8, 0x0304: 8, 0x0305: 8, 0x0306: 20, 0x0307: 8, 0x0308: 8,
             0x0400: 4, 0x0402: 8, 0x0403: 16, 0x0404: 8, 0x0405: 8, 0x0406: 16, 0x0500: 8, 0x0502: 8, 0x0503: 264,
             0x0510: 72, 0x0512: 72, 0x0602: 4, 0x0603: 4, 0x0710: 24, 0x0711: 20, 0x0720: 4, 0x0721: 8, 0x0722: 12,
             0x0723: 16, 0x0724: 8, 0x0725: 12, 0x0726: 8, 0x0727: 8, 0x0744: 16, 0x0745: 520, 0x0746: 8, 0x0747: 8,
             0x0751: 8}
    for op, size in sizes.items():
        for cut in range(size):
            assert s.call(op, random.randbytes(cut), random.choice((0, INLINE))) == (1, b""), (hex(op), cut)
    # A stream of requests in pieces of any size.
    at = s.malloc(4096)
    wire, asked = b"", []
    for i in range(300):
        s.id += 1
        data = random.randbytes(random.randrange(100))
        asked.append((0x0210, s.id))
        payload = memcpy(at, 0, len(data), 1) + data
        wire += struct.pack("<IHHIQI", MAGIC, VERSION, 0x0210, s.id, len(payload), INLINE) + payload
    while wire:
        cut = random.randrange(1, 200)
        s.socket.sendall(wire[:cut])
        wire = wire[cut:]
    for op, request in asked:
        assert s.answer(op, request) == (0, b"")
    s.close()


def main():
    apart = (connection, memory, streams, kernels, allocations, *(() if AMD else (binaries,)), lost, graphs, sessions, cuts)
    on_soft = (connection, devices, memory, streams, kernels, faults, graphs, sessions, cuts)
    global DEVICE, APART
    parts = [(0, part) for part in (apart if APART else on_soft)]
    if SEVERAL:
        # What is true of a device alone is true of it beside others.
        parts = [(device, part) for device in (2, 3) for part in (apart if device == 3 else on_soft) if part != devices]
        parts.append((0, several))
    for DEVICE, part in parts:
        APART = APART or SEVERAL and DEVICE == 3
        random.seed(1)
        part()
        print(DEVICE, part.__name__, flush=True)


main()
