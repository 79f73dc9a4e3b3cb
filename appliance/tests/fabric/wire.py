"""The bytes of fabricBIOS v0: frames, fragments, requests, TLVs and results, from docs/fabricbios-profile.md alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag

MAX_PAYLOAD = 1200  # bytes of payload in one datagram
CONTINUED, FINAL, FRAG_V2, SIGNED = 1, 2, 4, 8
ANNOUNCE, WITHDRAW, SOLICIT, REQUEST, RESPONSE, REVOKE_BROADCAST = range(1, 7)
PAGE_REQUEST, PAGE_RESPONSE = 0x20, 0x21
PAGES = 0x0A01  # the profile number that begins page payloads
MEM, BLOCK = 2, 3  # resource types


class Malformed(Exception):
    """The bytes are not what the page says."""


class Op(IntEnum):
    PING = 0x0001
    GET_INVENTORY = 0x0002
    GET_IDENTITY = 0x0003
    ENROLL_REQUEST = 0x0004
    GET_THERMAL = 0x0006
    SCHEDULER_FENCE_SET = 0x0009
    SCHEDULER_FENCE_GET = 0x000A
    LEASE_EXPORT_HANDLE = 0x0020
    LEASE_IMPORT_HANDLE = 0x0021
    LEASE_RELOCATE = 0x0022
    CAP_REQUEST = 0x0100
    CAP_REFRESH = 0x0101
    CAP_REVOKE = 0x0102
    LEASE_ALLOC = 0x0200
    LEASE_FREE = 0x0201
    LEASE_RENEW = 0x0202
    LEASE_QUERY = 0x0203
    LEASE_LIST_ACTIVE = 0x0208
    LEASE_BIND = 0x020A
    KEY_REVOKE = 0x020E
    KEY_LIST = 0x020F
    SVC_TCP_BIND = 0x0400
    SVC_TCP_QUERY = 0x0403
    TASKLET_SUBMIT = 0x0500
    TASKLET_STATUS = 0x0501
    TASKLET_FETCH_RESULT = 0x0502
    TASKLET_CANCEL = 0x0503
    GPU_SUBMIT = 0x0600
    TASKLET_LEASE_ALLOC = 0x0800
    TASKLET_LEASE_FREE = 0x0801


class Status(IntEnum):
    OK = 0
    INVALID_TOKEN = 1
    INSUFFICIENT_PERM = 2
    RESOURCE_NOT_FOUND = 3
    RESOURCE_BUSY = 4
    CAPACITY_EXCEEDED = 5
    LEASE_EXPIRED = 6
    RATE_LIMITED = 7
    RESOURCE_FENCED = 8
    STALE_EPOCH = 9
    FENCE_REQUIRED = 10
    INVALID_PARAMS = 11
    UNSUPPORTED_OP = 12
    INTERNAL_ERROR = 0xFF


class Perm(IntFlag):
    READ = 1
    WRITE = 2
    ALLOC = 4
    REVOKE = 8
    EXEC = 16
    ADMIN = 32
    DELEGATE = 64


class Page(IntEnum):
    READ = 0x10
    WRITE = 0x11
    COPY = 0x12
    ZERO = 0x13
    ADVISE = 0x14
    QUERY = 0x15


class Endpoint(IntEnum):
    CONTROL_UDP = 1
    QUIC = 2
    TWO_SIDED = 8
    FBMU = 9
    FBBU = 10
    FBMT = 11
    FBBT = 12
    QUIC_MEM = 13
    QUIC_BLOCK = 14


# fmt: off
def u8(n): return n.to_bytes(1, "big")
def u16(n): return n.to_bytes(2, "big")
def u32(n): return n.to_bytes(4, "big")
def u64(n): return n.to_bytes(8, "big")
def u128(n): return n.to_bytes(16, "big")
def blob(b): return u32(len(b)) + b
def items(encoded): return u16(len(encoded)) + b"".join(encoded)
def tlv8(tag, value): return u8(tag) + u16(len(value)) + value
def tlv16(tag, value): return u16(tag) + u16(len(value)) + value
# fmt: on


class Reader:
    """Takes fields off the front of bytes."""

    def __init__(self, data):
        self.data, self.at = bytes(data), 0

    def take(self, n):
        if self.at + n > len(self.data):
            raise Malformed(f"{n} bytes at {self.at} of {self.data.hex()}")
        self.at += n
        return self.data[self.at - n : self.at]

    # fmt: off
    def integer(self, n): return int.from_bytes(self.take(n), "big")
    def u8(self): return self.integer(1)
    def u16(self): return self.integer(2)
    def u32(self): return self.integer(4)
    def u64(self): return self.integer(8)
    def u128(self): return self.integer(16)
    def blob(self): return self.take(self.u32())
    def text(self): return self.blob().decode()
    def items(self, one): return [one() for _ in range(self.u16())]
    def tlv8(self): return self.u8(), self.take(self.u16())
    def tlv16(self): return self.u16(), self.take(self.u16())
    def rest(self): return self.take(len(self.data) - self.at)
    # fmt: on

    def tlvs(self):
        """Every tlv16 up to the end."""
        found = []
        while self.at < len(self.data):
            found.append(self.tlv16())
        return found

    def end(self):
        if self.at != len(self.data):
            raise Malformed(f"bytes left over: {self.data[self.at :].hex()}")


def fields(data, *kinds):
    """Exactly these integers, named by their methods."""
    r = Reader(data)
    values = tuple(getattr(r, kind)() for kind in kinds)
    r.end()
    return values


@dataclass
class Frame:
    """One whole message. Of the flags only FRAG_V2 and SIGNED belong to it, the others to its fragments."""

    kind: int
    sender: int
    request_id: int
    nonce: int
    payload: bytes
    flags: int = 0
    signature: bytes = b""

    def header(self, flags, length, *words):
        head = struct.pack(
            ">4sBBH16sQQI", b"FBIO", 0, self.kind, flags, u128(self.sender), self.request_id, self.nonce, length
        )
        return head + b"".join(map(u32, words))

    def signed_bytes(self):
        words = (0, 0) if self.flags & FRAG_V2 else ()
        head = self.header((self.flags & FRAG_V2) | SIGNED, len(self.payload), *words)
        return b"fabricBIOS-frame-v0\0" + head + self.payload

    def signed(self, sign):
        frame = replace(self, flags=self.flags | SIGNED)
        return replace(frame, signature=sign(frame.signed_bytes()))

    def whole(self):
        """The one frame of a QUIC stream, or of a datagram that is neither cut nor FRAG_V2."""
        return self.header(self.flags, len(self.payload)) + self.payload + self.signature

    def datagrams(self, size=MAX_PAYLOAD):
        """The datagrams of the message, cut into pieces of at most `size` bytes."""
        total = len(self.payload)
        starts = range(0, total, size) if total else [0]
        if len(starts) == 1 and not self.flags & FRAG_V2:
            return [self.whole()]
        out = []
        for at in starts:
            piece = self.payload[at : at + size]
            flags = self.flags | (FINAL if at + len(piece) == total else CONTINUED)
            words = (at, total) if self.flags & FRAG_V2 else ()
            out.append(self.header(flags, len(piece), *words) + piece + self.signature)
        return out


@dataclass
class Piece:
    """One datagram: the message it is of, with the piece as payload, and its place."""

    frame: Frame
    last: bool
    more: bool
    offset: int | None
    total: int | None


def parse(datagram):
    """The piece in a datagram; exact to the last byte."""
    r = Reader(datagram)
    magic, version, kind, flags = r.take(4), r.u8(), r.u8(), r.u16()
    sender, request_id, nonce, length = r.u128(), r.u64(), r.u64(), r.u32()
    if magic != b"FBIO" or version != 0 or flags & ~15:
        raise Malformed(f"not a v0 frame: {datagram[:48].hex()}")
    offset, total = (r.u32(), r.u32()) if flags & FRAG_V2 else (None, None)
    payload = r.take(length)
    signature = r.take(64) if flags & SIGNED else b""
    r.end()
    frame = Frame(kind, sender, request_id, nonce, payload, flags & (FRAG_V2 | SIGNED), signature)
    return Piece(frame, bool(flags & FINAL), bool(flags & CONTINUED), offset, total)


@dataclass
class Assembly:
    """Puts the pieces of one message together."""

    pieces: dict = field(default_factory=dict)
    legacy: bytes = b""

    def add(self, piece):
        """The whole message once the last missing piece came, else None."""
        frame = piece.frame
        if piece.offset is None:  # legacy, in order of arrival; a whole message has neither flag
            self.legacy += frame.payload
            return None if piece.more else replace(frame, payload=self.legacy)
        if piece.last != (piece.offset + len(frame.payload) == piece.total) or piece.last == piece.more:
            raise Malformed(f"flags of a fragment at {piece.offset} of {piece.total}")
        self.pieces[piece.offset] = frame.payload
        if sum(map(len, self.pieces.values())) < piece.total:
            return None
        return replace(frame, payload=b"".join(self.pieces[at] for at in sorted(self.pieces)))


def request(op, params=b"", resource=0, token=b""):
    """A REQUEST payload up to params, as QUIC takes it."""
    return u16(op) + u128(resource) + blob(token) + blob(params)


def response(payload, op):
    """(status, result) of a RESPONSE to `op`."""
    r = Reader(payload)
    status, answered, result = Status(r.u16()), r.u16(), r.blob()
    r.end()
    if answered != op:
        raise Malformed(f"an answer for op {answered:#06x}, not {op:#06x}")
    return status, result


@dataclass
class Resource:
    """ResourceSummary."""

    resource_id: int
    kind: int
    flags: int
    capacity: int
    available: int

    @classmethod
    def read(cls, r):
        return cls(r.u128(), r.u16(), r.u16(), r.u64(), r.u64())


def inventory(result):
    r = Reader(result)
    found = r.items(lambda: Resource.read(r))
    r.end()
    return found


@dataclass
class Lease:
    """The result of LEASE_ALLOC."""

    lease_id: int
    expires_at: int
    generation: int = 0
    key: int = 0
    len: int = 0
    max_io: int = 0
    endpoints: dict = field(default_factory=dict)

    @classmethod
    def read(cls, result):
        r = Reader(result)
        lease = cls(r.u128(), r.u64())
        for tag, value in r.tlvs():
            v = Reader(value)
            if tag == 0x0101:
                lease.endpoints.setdefault(v.u8(), v.rest().decode())
            elif tag == 0x0102:
                (lease.generation,) = fields(value, "u64")
            elif tag == 0x0103:
                (lease.key,) = fields(value, "u64")
            elif tag == 0x0104:
                offset, lease.len, lease.max_io = fields(value, "u64", "u64", "u32")
                if offset:
                    raise Malformed(f"LIMITS begin at {offset}")
        return lease


def alloc(duration, grace, kind=None, size=None, tlvs=b""):
    """Params of LEASE_ALLOC, as short as what is left out allows."""
    out = u32(duration) + u32(grace)
    if kind is not None:
        out += u16(kind)
    if size is not None:
        out += u64(size)
    return out + tlvs


@dataclass
class ActiveLease:
    """An entry of LEASE_LIST_ACTIVE."""

    lease_id: int
    resource_id: int
    holder: int
    expires_at: int
    alloc_bytes: int

    @classmethod
    def read(cls, r):
        return cls(r.u128(), r.u128(), r.u128(), r.u64(), r.u64())


def active(result):
    r = Reader(result)
    found = r.items(lambda: ActiveLease.read(r))
    r.end()
    return found


@dataclass
class Announcement:
    node_id: int
    sequence: int
    ttl_secs: int
    site: int
    row: int
    rack: int
    custom: bytes
    endpoints: list
    resources: list
    tlvs: list

    @classmethod
    def read(cls, payload):
        r = Reader(payload)
        found = cls(
            r.u128(),
            r.u64(),
            r.u32(),
            r.u32(),
            r.u32(),
            r.u32(),
            r.take(32),
            r.items(lambda: (r.u8(), r.text())),
            r.items(lambda: Resource.read(r)),
            r.items(r.tlv16),
        )
        r.end()
        return found

    def write(self):
        r = self
        return (
            u128(r.node_id)
            + u64(r.sequence)
            + u32(r.ttl_secs)
            + u32(r.site)
            + u32(r.row)
            + u32(r.rack)
            + r.custom
            + items([u8(kind) + blob(address.encode()) for kind, address in r.endpoints])
            + items(
                [
                    u128(s.resource_id) + u16(s.kind) + u16(s.flags) + u64(s.capacity) + u64(s.available)
                    for s in r.resources
                ]
            )
            + items([tlv16(tag, value) for tag, value in r.tlvs])
        )


EQ, GT, LT, CONTAINS = range(4)
RESOURCE_TYPE, NODE_ID, SITE_ID, ROW_ID, RACK_ID, LOCALITY_CUSTOM, RESOURCE_FLAGS = range(1, 8)


def solicit(*filters, pad=0):
    """A SOLICIT payload of (field, op, value) filters, with zero bytes up to `pad`."""
    body = u8(0) + items([u8(f) + u8(op) + value.ljust(32, b"\0") for f, op, value in filters])
    return body.ljust(pad, b"\0")


def announcements(payload):
    """What answers a SOLICIT."""
    r = Reader(payload)
    found = [Announcement.read(one) for one in r.items(r.blob)]
    r.end()
    return found


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def crc_entry(n):
    for _ in range(8):
        n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)  # 0x1EDC6F41 reflected
    return n


CRC = [crc_entry(n) for n in range(256)]
