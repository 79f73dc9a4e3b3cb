"""The ways to leased bytes: two-sided messages, FBMU and FBBU, FBMT and FBBT over TCP and QUIC, and pages.

Each way has `read(offset, length)` -> (status, data) and `write(offset, data)` -> status, with the way's own status
numbers and in its own `unit` of bytes.
"""

import random
import socket
import struct
from dataclasses import dataclass

from quic import Connection
from udp import address
from wire import PAGES, Malformed, Page, Reader, crc32c, fields, u8, u16, u32, u64, u128

HELLO, HELLO_ACK, READ, READ_RESP, WRITE, WRITE_RESP, PING, PONG, ERROR = 1, 2, 16, 17, 32, 33, 48, 49, 0x7F


def ask_once(endpoint, datagram, patience=3):
    """One question from a source port of its own."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(patience)
        s.connect(address(endpoint))
        s.send(datagram)
        return s.recv(65536)


@dataclass
class TwoSided:
    endpoint: str
    key: int
    generation: int
    unit: int = 1

    def message(self, opcode, offset, length, payload=b""):
        word = opcode << 56 | self.generation
        return u64(self.key) + u64(word) + u64(offset) + u64(length) + payload

    def read(self, offset, length):
        answer = ask_once(self.endpoint, self.message(2, offset, length))
        return answer[0], answer[1:]

    def write(self, offset, data):
        (status,) = ask_once(self.endpoint, self.message(1, offset, len(data), data))
        return status


def datagram(magic, op, request_id, lease, generation, offset, length, data=b"", flags=0):
    """A datagram of FBMU or FBBU."""

    def head(crc):
        return struct.pack(
            ">4sBBHQ16sQQII", magic, 0, op, flags, request_id, u128(lease), generation, offset, length, crc
        )

    return head(crc32c(head(0) + data)) + data


@dataclass
class Datagrams:
    """FBMU or FBBU."""

    endpoint: str
    magic: bytes
    lease: int
    generation: int

    @property
    def unit(self):
        return 512 if self.magic == b"FBBU" else 1

    def ask(self, op, offset=0, length=0, data=b""):
        """(status, length, data) of the answer, all else in it checked."""
        request_id = random.getrandbits(64)
        asked = datagram(self.magic, op, request_id, self.lease, self.generation, offset, length, data)
        got = ask_once(self.endpoint, asked)
        r = Reader(got)
        r.take(6)
        status = r.u16()
        r.take(40)
        count, _, body = r.u32(), r.u32(), r.rest()
        want = datagram(self.magic, op + 1, request_id, self.lease, self.generation, offset, count, body, status)
        if got != want:
            raise Malformed(f"the answer {got[:56].hex()} is not {want[:56].hex()}")
        return status, count, body

    def hello(self):
        status, _, body = self.ask(HELLO)
        return status, body

    def read(self, offset, length):
        status, count, body = self.ask(READ, offset, length)
        if len(body) != count * self.unit:
            raise Malformed(f"{len(body)} bytes for a length of {count}")
        return status, body

    def write(self, offset, data):
        status, count, body = self.ask(WRITE, offset, len(data) // self.unit, data)
        if count or body:
            raise Malformed("a WRITE_RESP with data")
        return status


class Stream:
    """FBMT or FBBT on a byte stream that `exchange` sends to and reads from."""

    def __init__(self, magic, lease):
        self.magic, self.lease = magic, lease
        self.unit = 512 if magic == b"FBBT" else 1

    def message(self, op, payload=b"", request_id=0):
        return self.magic + u8(1) + u8(op) + u16(0) + u32(len(payload)) + u32(request_id) + payload

    def header(self, head):
        """(op, payload_len, request_id)"""
        r = Reader(head)
        if r.take(5) != self.magic + b"\1":
            raise Malformed(f"not of {self.magic}: {head.hex()}")
        op, flags, length, request_id = r.u8(), r.u16(), r.u32(), r.u32()
        if flags:
            raise Malformed(f"flags {flags:#x}")
        return op, length, request_id

    def exchange(self, message):
        raise NotImplementedError

    def op(self, op, payload=b"", request_id=None):
        request_id = random.randrange(1, 1 << 32) if request_id is None else request_id
        got, payload, echoed = self.exchange(self.message(op, payload, request_id))
        if (got, echoed) != (op + 1, request_id):
            raise Malformed(f"op {got:#x} for {echoed} answers op {op:#x} for {request_id}: {payload.hex()}")
        return payload

    def hello(self):
        """(status, the 16 bytes of limits)"""
        payload = self.op(HELLO, u128(self.lease), 0)
        return acknowledged(payload)

    def read(self, offset, length):
        r = Reader(self.op(READ, u64(offset) + u32(length)))
        status, zero, count, data = r.u8(), r.take(3), r.u32(), r.rest()
        if zero != bytes(3) or len(data) != count * self.unit:
            raise Malformed(f"a READ_RESP of {count} with {len(data)} bytes")
        return status, data

    def write(self, offset, data):
        r = Reader(self.op(WRITE, u64(offset) + u32(len(data) // self.unit) + data))
        status, zero = r.u8(), r.rest()
        if zero != bytes(3):
            raise Malformed(f"a WRITE_RESP with {zero.hex()}")
        return status


def acknowledged(payload):
    """(status, limits) of the 20 bytes of a HELLO_ACK."""
    r = Reader(payload)
    status, zero, limits = r.u8(), r.take(3), r.take(16)
    r.end()
    if zero != bytes(3):
        raise Malformed(f"a HELLO_ACK with {payload.hex()}")
    return status, limits


class Tcp(Stream):
    """On a TCP connection, one op at a time; `send` and `receive` are for several."""

    def __init__(self, endpoint, magic, lease):
        super().__init__(magic, lease)
        self.endpoint = endpoint
        self.socket = socket.create_connection(address(endpoint), 5)

    def send(self, message):
        self.socket.sendall(message)

    def receive(self):
        """(op, payload, request_id) of the next message; EOFError where there is none."""
        op, length, request_id = self.header(self.exactly(16))
        return op, self.exactly(length), request_id

    def exchange(self, message):
        self.send(message)
        return self.receive()

    def exactly(self, size):
        out = b""
        while len(out) < size:
            try:
                got = self.socket.recv(size - len(out))
            except ConnectionResetError:
                got = b""
            if not got:
                raise EOFError("the node closed the connection")
            out += got
        return out

    def ended(self):
        """Whether the node closes the connection without another word."""
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True

    def close(self):
        self.socket.close()


class QuicStreams(Stream):
    """On QUIC, one stream for each op."""

    def __init__(self, me, endpoint, magic, lease):
        super().__init__(magic, lease)
        self.connection = Connection(me, endpoint, "fabricbios-mem/0" if magic == b"FBMT" else "fabricbios-block/0")

    def exchange(self, message):
        answer = self.connection.read(self.connection.open(message))
        op, length, request_id = self.header(answer[:16])
        if length != len(answer) - 16:
            raise Malformed(f"payload_len {length} in {len(answer)} bytes")
        return op, answer[16:], request_id

    def close(self):
        self.connection.close()


@dataclass
class Pages:
    """Page ops through a control client; offsets are of the lease, within one page."""

    control: object
    lease: int
    size: int = 4096
    unit: int = 1

    def op(self, op, body):
        return self.control.page(u16(PAGES) + u8(op) + body)

    def read(self, offset, length):
        page, at = divmod(offset, self.size)
        answer = self.op(Page.READ, u128(self.lease) + u32(page) + u32(at) + u32(length))
        return answer[0], answer[1:]

    def write(self, offset, data):
        page, at = divmod(offset, self.size)
        (status,) = self.op(Page.WRITE, u128(self.lease) + u32(page) + u32(at) + u32(len(data)) + data)
        return status

    def zero(self, page):
        (status,) = self.op(Page.ZERO, u128(self.lease) + u32(page))
        return status

    def copy(self, page, to_lease, to_page):
        (status,) = self.op(Page.COPY, u128(self.lease) + u32(page) + u128(to_lease) + u32(to_page))
        return status

    def advise(self, page, flags):
        (status,) = self.op(Page.ADVISE, u128(self.lease) + u32(page) + u32(flags))
        return status

    def query(self, page):
        """(status, (page, tier, dirty, access_count, last_access_ms, flags) or None)"""
        answer = self.op(Page.QUERY, u128(self.lease) + u32(page))
        return answer[0], fields(answer[1:], "u32", "u8", "u8", "u32", "u64", "u32") if answer[0] == 0 else None
