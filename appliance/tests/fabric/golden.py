"""The worked examples at the end of docs/fabricbios-profile.md, made here and compared."""

import re
from pathlib import Path

from dataplanes import datagram
from identity import Identity, byte_range, depth, holds
from wire import EQ, FRAG_V2, REQUEST, RESOURCE_TYPE, SOLICIT, Frame, Op, Perm, items, solicit, u8, u16, u32, u64, u128

PAGE = Path(__file__).parents[3] / "docs" / "fabricbios-profile.md"


def examples():
    text = PAGE.read_text().split("## Worked examples")[1]
    return [bytes.fromhex("".join(block.split())) for block in re.findall(r"```text\n(.*?)```", text, re.S)]


def made():
    """Each example, by the name that the page gives it."""
    me = Identity(bytes(range(32)))
    ping = Frame(REQUEST, me.id, 1, 0x0006000000000001, me.request(1, 0x0006000000000001, Op.PING), FRAG_V2)
    ask = Frame(SOLICIT, me.id, 2, 0x0006000000000002, solicit((RESOURCE_TYPE, EQ, u16(2))), FRAG_V2).signed(me.sign)
    perms = Perm.READ | Perm.ALLOC | Perm.DELEGATE
    body = (
        u8(0)
        + u128(1)
        + u128(me.id) * 2
        + u128(0)
        + u32(perms)
        + u64(1700000000)
        + u64(1700000300)
        + u64(0)
        + items([depth(2)])
    )
    token = body + me.sign(b"fabricBIOS-cap-v0\0" + body) + u16(0)
    write = datagram(b"FBMU", 0x20, 7, 0x0102030405060708090A0B0C0D0E0F10, 3, 64, 4, b"abcd")
    assert holds(me.public, ask.signature, ask.signed_bytes())
    return {
        "public key": me.public,
        "id": u128(me.id),
        "PING": ping.datagrams()[0],
        "SOLICIT": ask.datagrams()[0],
        "token": me.delegate(token, me.id, byte_range(0, 4096)),
        "FBMU WRITE": write,
    }
