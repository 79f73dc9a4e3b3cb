"""Who speaks: Ed25519 keys and ids, signatures, capability tokens and delegations, certificates."""

from __future__ import annotations

import datetime
import hashlib
import time
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from wire import Reader, items, request, tlv8, u8, u16, u32, u64, u128

TIME_BOUND, SOURCE_IP, RANGE, RATE_LIMIT, DEPTH, AUDIENCE = range(1, 7)


def id_of(public_key):
    """The id of a public key of 32 bytes."""
    return int.from_bytes(hashlib.sha256(public_key).digest()[:16], "big")


def holds(public_key, signature, signed):
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
        return True
    except InvalidSignature:
        return False


class Identity:
    """A key pair, its id, and the nonces it has used."""

    def __init__(self, seed):
        self.key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = id_of(self.public)
        self.sign = self.key.sign
        self.last_nonce = 0

    def nonce(self):
        self.last_nonce = max(self.last_nonce + 1, time.time_ns() // 1000)
        return self.last_nonce

    def request(self, request_id, nonce, op, params=b"", resource=0, token=b""):
        """A REQUEST payload for UDP, with the presenter's signature."""
        payload = request(op, params, resource, token) + u128(self.id)
        signed = b"fabricBIOS-req-v0\0" + u128(self.id) + u64(request_id) + u64(nonce) + payload
        return payload + self.sign(signed)

    def delegate(self, token, to, *caveats):
        """The token passed on to the id `to`, narrowed by tlv8 caveats."""
        at = Token.read(token).links_at
        count = int.from_bytes(token[at : at + 2], "big")
        longer = token[:at] + u16(count + 1) + token[at + 2 :] + u128(to) + items(caveats)
        return longer + self.sign(b"fabricBIOS-link-v0\0" + longer)

    def tls_certificate(self):
        """A self-signed X.509 certificate; nobody looks at its name and dates."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fabric")])
        today = datetime.datetime.now(datetime.timezone.utc)
        builder = x509.CertificateBuilder(
            name,
            name,
            self.key.public_key(),
            x509.random_serial_number(),
            today - datetime.timedelta(1),
            today + datetime.timedelta(365),
        )
        return builder.sign(self.key, None)


# fmt: off
def time_bound(start, end): return tlv8(TIME_BOUND, u64(start) + u64(end))
def source_ip(address): return tlv8(SOURCE_IP, address)
def byte_range(offset, length): return tlv8(RANGE, u64(offset) + u64(length))
def rate_limit(per_second): return tlv8(RATE_LIMIT, u32(per_second))
def depth(links): return tlv8(DEPTH, u8(links))
def audience(presenter): return tlv8(AUDIENCE, u128(presenter))
# fmt: on


@dataclass
class Token:
    """A token, decoded."""

    version: int
    token_id: int
    issuer: int
    audience: int
    resource_id: int
    perms: int
    issued_at: int
    expires_at: int
    epoch: int
    caveats: list
    signature: bytes
    links: list
    body: bytes
    links_at: int

    @classmethod
    def read(cls, token):
        r = Reader(token)
        values = [r.u8(), r.u128(), r.u128(), r.u128(), r.u128(), r.u32(), r.u64(), r.u64(), r.u64(), r.items(r.tlv8)]
        body = r.data[: r.at]
        signature, links_at = r.take(64), r.at
        links = r.items(lambda: (r.u128(), r.items(r.tlv8), r.take(64)))
        r.end()
        return cls(*values, signature, links, body, links_at)

    def issued_by(self, public_key):
        return self.issuer == id_of(public_key) and holds(
            public_key, self.signature, b"fabricBIOS-cap-v0\0" + self.body
        )


@dataclass
class Certificate:
    """What ENROLL_REQUEST answers."""

    subject: int
    issuer: int
    issued_at: int
    expires_at: int
    public_key: bytes
    extensions: list
    signature: bytes
    body: bytes

    @classmethod
    def read(cls, data):
        r = Reader(data)
        values = [r.u128(), r.u128(), r.u64(), r.u64(), r.take(32), r.items(r.tlv8)]
        body = r.data[: r.at]
        signature = r.take(64)
        r.end()
        return cls(*values, signature, body)

    def issued_by(self, public_key):
        signed = b"fabricBIOS-cert-v0\0" + self.body
        return self.issuer == id_of(public_key) and holds(public_key, self.signature, signed)
