"""A client of ring kernels, written from docs/ring-kernels.md and docs/protocol-rpc.md alone.

    client.py PART HEADER ADDRESS    e.g. client.py lengths v24 127.0.0.1:4700

Exits with 0 if the node does what the pages say. The last line of its output says what was counted.
"""

import random
import socket
import struct
import sys

NAN = 0x7FC00000
ZERO = bytes(16)


def fnv1a(name):
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


class Port:
    """A port of the node, from a socket of its own."""

    def __init__(self, header, address):
        self.v24 = header == "v24"
        host, port = address.rsplit(":", 1)
        self.to = (host, int(port))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(self.to)
        self.socket.settimeout(5)
        self.request_id = random.getrandbits(32)

    def send(self, name, message):
        """Sends a request, and returns its id."""
        self.request_id = self.request_id + 1 & 0xFFFFFFFF
        words = struct.pack("<4I", 0x43555152, fnv1a(name), len(message), self.request_id)
        self.socket.send(words + self.stamp() + message)
        return self.request_id

    def receive(self):
        """The id, the status and the result of the next answer."""
        answer = self.socket.recv(65536)
        magic, status, length, request_id = struct.unpack_from("<IiII", answer)
        assert magic == 0x43555153, answer.hex()
        stamp = self.stamp()
        result = answer[16 + len(stamp):]
        assert answer[16:16 + len(stamp)] == stamp and len(result) == length, answer.hex()
        return request_id, status, result

    def stamp(self):
        return struct.pack("<Q", 12345) if self.v24 else b""

    def call(self, name, message):
        """The status and the result of one call."""
        sent = self.send(name, message)
        request_id, status, result = self.receive()
        assert request_id == sent
        return status, result


def nullable_guid(form, value, dirt=b"\0", flag=1):
    """A `Guid?` in a format; what stands in its padding or in place of an absent value is `dirt`."""
    padding = dirt * 3 if form == "memorypack" else b""
    if value is None:
        return b"\0" + padding + dirt * 16
    return bytes([flag]) + padding + value


def request(form, id=ZERO, priority=128, correlation=None, a=0.0, b=0.0, **more):
    """A VectorAddRequest. `a` and `b` are numbers or the bits of one."""
    single = lambda x: struct.pack("<I", x) if isinstance(x, int) else struct.pack("<f", x)
    count = b"" if form == "raw" else b"\x05"
    body = count + id + bytes([priority])
    body += b"\0" if form == "short" else nullable_guid(form, correlation, **more)
    return body + single(a) + single(b)


def response(form, message):
    """The fields of a VectorAddResponse: id, priority, correlation or None, the bits of the result."""
    if form != "raw":
        assert message[0] == 4, message.hex()
        message = message[1:]
    id, priority, flag, message = message[:16], message[16], message[17], message[18:]
    assert flag in (0, 1), flag
    if form == "memorypack":
        assert message[:3] == bytes(3), "padding is zero"
        message = message[3:]
    value, message = message[:16], message[16:]
    assert flag or value == ZERO, "an absent value is zero"
    (bits,) = struct.unpack("<I", message)
    return id, priority, value if flag else None, bits


FORMS = {"dotcompute": (43, 39), "memorypack": (46, 42), "raw": (42, 38), "short": (27, 39)}


def fresh():
    return random.getrandbits(128).to_bytes(16, "little")


def add(port, form, name="VectorAddRequest", **fields):
    status, result = port.call(name, request(form, **fields))
    assert status == 0, (form, status)
    assert len(result) == FORMS[form][1], (form, len(result))
    return response(form, result)


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def lengths(port, _):
    """Every length from 0 to 2000: four of them are messages, all others -3."""
    answered = 0
    known = {len(request(form)): form for form in FORMS}
    assert known == {43: "dotcompute", 46: "memorypack", 42: "raw", 27: "short"}
    for length in range(2001):
        form = known.get(length)
        if form:
            add(port, form, a=1.5, b=2.0)
            answered += 1
            continue
        for fill in (b"\0", b"\x05", b"\xff"):
            status, result = port.call("VectorAddRequest", fill * length)
            assert (status, result) == (-3, b""), (length, status)
    # Every count but 5 is another message's; a flag without a value is none.
    for form in ("dotcompute", "memorypack", "short"):
        for count in range(256):
            message = bytes([count]) + request(form)[1:]
            status, _ = port.call("VectorAddRequest", message)
            assert status == (0 if count == 5 else -3), (form, count, status)
        answered += 1
    for flag in range(256):
        message = request("short")
        status, _ = port.call("VectorAddRequest", message[:18] + bytes([flag]) + message[19:])
        assert status == (-3 if flag else 0), flag
    answered += 1
    return answered


def rules(port, _):
    """K2 and K3: kinds of answers, correlation, numbers."""
    answered = 0
    for form in FORMS:
        for id in (ZERO, fresh()):
            for correlation in (None, ZERO, fresh()):
                if form == "short" and correlation is not None:
                    continue
                for priority in (0, 128, 255):
                    # A sender of its own each time, or the id would be a duplicate.
                    port.__init__("v24" if port.v24 else "v16", "%s:%d" % port.to)
                    got = add(port, form, id=id, priority=priority, correlation=correlation, a=10.0, b=20.0)
                    wanted = correlation if correlation not in (None, ZERO) else id
                    wanted = None if wanted == ZERO else wanted
                    assert got == (id, priority, wanted, bits(30.0)), (form, got)
                    answered += 1
        if form == "short":
            continue
        # Any flag but 0 is one; padding and absent values are ignored.
        correlation = fresh()
        for flag in (1, 2, 128, 255):
            assert add(port, form, correlation=correlation, dirt=b"\xEE", flag=flag)[2] == correlation
            answered += 1
        assert add(port, form, dirt=b"\xEE")[2] is None
        answered += 1
    for a, b, wanted in [
        (1, 1, 2),  # the least subnormal number twice
        (0x007FFFFF, 1, 0x00800000),  # the greatest, and into the normal ones
        (0x80000000, 0x80000000, 0x80000000),  # -0
        (0x80000000, 0, 0),
        (0x7F7FFFFF, 0x7F7FFFFF, 0x7F800000),  # infinity
        (0x7F800000, 0xFF800000, NAN),  # infinity - infinity
        (0x7F800001, 0, NAN),  # signalling
        (0xFFC12345, 0, NAN),
        (0, 0x7FFFFFFF, NAN),
        (bits(16777216.0), bits(1.0), bits(16777216.0)),  # to even
        (bits(16777216.0), bits(3.0), bits(16777220.0)),
    ]:
        for form in FORMS:
            got = add(port, form, a=a, b=b)[3]
            assert got == wanted, (form, hex(a), hex(b), hex(got))
            answered += 1
    random.seed(7)
    for _ in range(2000):
        a, b = random.uniform(-1e30, 1e30), random.uniform(-1e30, 1e30)
        single = [struct.unpack("<f", struct.pack("<f", x))[0] for x in (a, b)]
        # Doubles hold the sum of two singles well enough that rounding it once more changes nothing.
        assert add(port, "dotcompute", a=bits(a), b=bits(b))[3] == bits(sum(single))
        answered += 1
    return answered


def dedup(port, address):
    """K4, of a kernel that remembers 16 messages: NarrowRequest."""
    narrow = dict(name="NarrowRequest")
    answered, repeated, duplicate = 0, 0, 0
    ids = [fresh() for _ in range(17)]
    first = request("dotcompute", id=ids[0], a=1.0, b=2.0)
    status, once = port.call("NarrowRequest", first)
    assert status == 0
    assert port.call("NarrowRequest", first) == (0, once)
    changed = request("dotcompute", id=ids[0], a=1.0, b=3.0)
    for other in (changed, request("memorypack", id=ids[0], a=1.0, b=2.0), request("short", id=ids[0], a=1.0, b=2.0)):
        assert port.call("NarrowRequest", other) == (3, b"")
    assert port.call("NarrowRequest", first) == (0, once), "a duplicate takes no place"
    answered, repeated, duplicate = 1, 2, 3
    # Another sender's messages are others; they share the window.
    other = Port("v24" if port.v24 else "v16", address)
    assert response("dotcompute", other.call("NarrowRequest", changed)[1])[3] == bits(4.0)
    for id in ids[1:15]:
        add(other, "raw", id=id, **narrow)
    assert port.call("NarrowRequest", first) == (0, once), "16 are kept"
    assert other.call("NarrowRequest", first) == (3, b"")
    add(port, "raw", id=ids[15], **narrow)
    assert port.call("NarrowRequest", changed)[0] == 0, "the 17th took the place of the first"
    answered, repeated, duplicate = answered + 17, repeated + 1, duplicate + 1
    # A zero id is nobody's.
    for b in (1.0, 1.0, 2.0):
        assert add(port, "dotcompute", b=b, **narrow)[3] == bits(b)
    answered += 3
    # Without a window everything runs.
    id = fresh()
    for b in (1.0, 2.0):
        assert add(port, "dotcompute", name="ForgetfulRequest", id=id, b=b)[3] == bits(b)
    return "%d %d %d" % (answered, repeated, duplicate)


def formats(port, _):
    """A kernel with one format takes no other; one that is not active refuses what it would take."""
    for form in FORMS:
        status, _ = port.call("RawRequest", request(form))
        assert status == (0 if form == "raw" else -3), (form, status)
        status, result = port.call("RestingRequest", request(form))
        assert (status, result) == (2, b""), (form, status)
    assert port.call("RestingRequest", bytes(41)) == (-3, b"")
    assert port.call("VectorAddResponse", bytes(39)) == (-1, b""), "no kernel takes it"
    return 1


def queued(port, _):
    """K5: messages that wait are answered as they would be at once, and by no other rule."""
    answered = 0
    for form in FORMS:
        for priority in (0, 128, 255):
            id = fresh()
            got = add(port, form, id=id, priority=priority, a=10.0, b=20.0)
            assert got == (id, priority, id, bits(30.0)), (form, got)
            answered += 1
    id = fresh()
    message = request("raw", id=id, a=1.0, b=2.0)
    status, once = port.call("VectorAddRequest", message)
    assert status == 0
    assert port.call("VectorAddRequest", message) == (0, once)
    assert port.call("VectorAddRequest", request("raw", id=id, a=1.0, b=4.0)) == (3, b"")
    assert port.call("VectorAddRequest", message[1:]) == (-3, b"")
    return answered + 1


def flood(port, _):
    """K5: each message has one answer, whatever becomes of it."""
    counts = []
    for name, full in (("RejectRequest", -5), ("NewRequest", 1), ("OldRequest", 1)):
        answered = turned_away = 0
        while turned_away == 0:
            sent = {}
            for number in range(128):  # as many answers as fit into the socket
                message = request("dotcompute", id=fresh(), a=float(number), b=0.5)
                sent[port.send(name, message)] = number
            while sent:
                request_id, status, result = port.receive()
                number = sent.pop(request_id)
                assert status in (0, full), (name, status)
                if status == 0:
                    assert response("dotcompute", result)[3] == bits(number + 0.5)
                    answered += 1
                else:
                    assert result == b""
                    turned_away += 1
        counts += [answered, turned_away]
    return " ".join(map(str, counts))


if __name__ == "__main__":
    part, header, address = sys.argv[1:]
    print(globals()[part](Port(header, address), address))
