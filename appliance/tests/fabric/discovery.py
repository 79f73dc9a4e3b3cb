"""Announcements: the node's own, a relay's; filters; withdrawals; revocations from outside."""

import time

import wire
from identity import Token
from udp import Udp
from wire import (
    ANNOUNCE,
    BLOCK,
    CONTAINS,
    EQ,
    GT,
    LOCALITY_CUSTOM,
    LT,
    MEM,
    NODE_ID,
    RACK_ID,
    RESOURCE_FLAGS,
    RESOURCE_TYPE,
    REVOKE_BROADCAST,
    ROW_ID,
    SITE_ID,
    SOLICIT,
    WITHDRAW,
    Announcement,
    Endpoint,
    Op,
    Perm,
    Reader,
    Resource,
    Status,
    announcements,
    items,
    solicit,
    u8,
    u16,
    u32,
    u64,
    u128,
)
from world import ALICE, BOB, CAROL, DAVE, EVE, ROOT, Different, expect


def ask(client, *filters, signed=True, pad=0):
    return announcements(client.solicit(solicit(*filters, pad=pad), signed=signed))


def own(w):
    """What the node says of itself."""
    client = w.at(ALICE)
    (me,) = ask(client)
    expect("the node", (me.node_id, me.site, me.row, me.rack), (w.node_id, 1, 2, 3))
    expect(
        "its resources",
        [vars(r) for r in me.resources],
        [vars(r) for r in wire.inventory(w.call(ALICE, Op.GET_INVENTORY)[1])],
    )
    at = dict(me.endpoints)
    expect(
        "its control",
        (at[Endpoint.CONTROL_UDP], at[Endpoint.QUIC]),
        (w.nodes["main"]["control-udp"], w.nodes["main"]["quic"]),
    )
    planes = {
        Endpoint.TWO_SIDED,
        Endpoint.FBMU,
        Endpoint.FBBU,
        Endpoint.FBMT,
        Endpoint.FBBT,
        Endpoint.QUIC_MEM,
        Endpoint.QUIC_BLOCK,
    }
    expect("its dataplanes", planes <= set(at), True)
    tlvs = dict(me.tlvs)
    r = Reader(tlvs[0x0804])
    place = (r.u32(), r.u32(), r.u32(), r.u64(), r.take(r.u16()))
    r.end()
    expect("NODE_AFFINITY", place[:3] + place[4:], (3, 2, 1, b"lab"))
    tiers = [tier(v) for t, v in me.tlvs if t == 0x0801]
    exported = [(t[0], t[1], t[4], t[5]) for t in tiers]
    expect("MEM_TIER", exported, [(0, (8 << 20) + (64 << 10), 4096, 0), (5, 1 << 20, 4096, 0)])
    ttl = me.ttl_secs
    expect("ttl", 0 < ttl <= 3600, True)


def tier(value):
    r = Reader(value)
    found = [r.u16(), r.u64(), r.u32(), r.u64(), r.u32(), r.u16(), r.items(r.u128), r.u32()]
    r.end()
    return found


def filters(w):
    client = w.at(ALICE)
    for step, wanted, found in (
        ("memory", [(RESOURCE_TYPE, EQ, u16(MEM))], 1),
        ("GPUs", [(RESOURCE_TYPE, EQ, u16(5))], 0),
        ("unused bytes", [(RESOURCE_TYPE, EQ, u16(BLOCK) + b"junk")], 1),
        ("types have no GT", [(RESOURCE_TYPE, GT, u16(1))], 0),
        ("the node", [(NODE_ID, EQ, u128(w.node_id))], 1),
        ("another", [(NODE_ID, EQ, u128(1))], 0),
        ("site 1", [(SITE_ID, EQ, u32(1))], 1),
        ("site over 0", [(SITE_ID, GT, u32(0))], 1),
        ("site over 1", [(SITE_ID, GT, u32(1))], 0),
        ("row below 3", [(ROW_ID, LT, u32(3))], 1),
        ("row below 2", [(ROW_ID, LT, u32(2))], 0),
        ("rack 4", [(RACK_ID, EQ, u32(4))], 0),
        ("rack CONTAINS", [(RACK_ID, CONTAINS, u32(3))], 0),
        ("flags 0", [(RESOURCE_FLAGS, EQ, u16(0))], 1),
        ("fenced", [(RESOURCE_FLAGS, CONTAINS, u16(1))], 0),
        ("no bits", [(RESOURCE_FLAGS, CONTAINS, u16(0)), (RESOURCE_TYPE, EQ, u16(MEM))], 1),
        ("anywhere", [(LOCALITY_CUSTOM, CONTAINS, bytes(32))], 1),
        ("locality", [(LOCALITY_CUSTOM, EQ, bytes(32))], 1),
        ("elsewhere", [(LOCALITY_CUSTOM, CONTAINS, b"x")], 0),
        ("all of several", [(SITE_ID, EQ, u32(1)), (ROW_ID, EQ, u32(2)), (RESOURCE_TYPE, EQ, u16(MEM))], 1),
        ("one of several fails", [(SITE_ID, EQ, u32(1)), (ROW_ID, EQ, u32(9))], 0),
        ("an unknown field", [(99, EQ, b"")], 0),
        ("an unknown op", [(SITE_ID, 9, u32(1))], 0),
    ):
        expect(f"SOLICIT: {step}", len(ask(client, *wanted)), found)
    for step, payload in (
        ("query_type 1", b"\1" + solicit()[1:]),
        ("33 filters", solicit(*[(SITE_ID, EQ, u32(1))] * 33)),
        ("bytes left over", solicit() + b"\0\1"),
    ):
        expect(f"SOLICIT: {step}", client.refused(client.frame(SOLICIT, payload, signed=True)), True)


def unsigned(w):
    """Nobody is flooded by a forged question."""
    unenrolled = Udp(EVE_OF_NOWHERE, w.nodes["main"]["control-udp"])
    expect("not enrolled, padded", len(ask(unenrolled, signed=False, pad=1200)), 1)
    expect("not enrolled, short", unenrolled.refused(unenrolled.frame(SOLICIT, solicit())), True)
    expect("not enrolled, signed", unenrolled.refused(unenrolled.frame(SOLICIT, solicit(pad=1200), signed=True)), True)
    unenrolled.close()


EVE_OF_NOWHERE = type(EVE)(bytes([98]) * 32)


def announcement(who, sequence, ttl=60, rack=7):
    return Announcement(
        who.id,
        sequence,
        ttl,
        1,
        1,
        rack,
        b"custom".ljust(32, b"\0"),
        [(Endpoint.CONTROL_UDP, "127.0.0.1:1")],
        [Resource(4711, MEM, 0, 4096, 4096)],
        [(0x7777, b"?")],
    )


def relay(w):
    """Two nodes that are only announcements, at the relay."""
    at = {who: Udp(who, w.nodes["main"]["relay"], w.nodes["main"]["key"]) for who in (ALICE, BOB, DAVE, EVE_OF_NOWHERE)}

    def say(who, kind, payload, signed=True):
        client = at[who]
        frame = client.frame(kind, payload, signed=signed)
        for one in frame.datagrams():
            client.socket.send(one)

    def known(*filters):
        found = ask(at[ALICE], *filters)
        if not filters and w.node_id not in {a.node_id for a in found}:
            raise Different("a relay answers with its own announcement too")
        return {a.node_id: a for a in found if a.node_id != w.node_id}

    def becomes(step, want, seen=lambda found: found):
        """An announcement has no answer: the relay may be busy with it for a moment."""
        end = time.monotonic() + 1
        while seen(got := known()) != want and time.monotonic() < end:
            time.sleep(0.02)
        expect(step, seen(got), want)

    expect("nobody", known(), {})
    first = announcement(BOB, 10)
    say(BOB, ANNOUNCE, first.write())
    becomes("ANNOUNCE", {BOB.id: first})
    say(BOB, ANNOUNCE, announcement(BOB, 10, rack=8).write())
    say(BOB, ANNOUNCE, announcement(BOB, 9, rack=8).write())
    say(BOB, ANNOUNCE, announcement(BOB, 12, rack=8).write(), signed=False)
    say(DAVE, ANNOUNCE, announcement(BOB, 13, rack=8).write())
    say(EVE_OF_NOWHERE, ANNOUNCE, announcement(EVE_OF_NOWHERE, 1).write())
    time.sleep(0.2)
    expect("old, unsigned, another's, one that is not enrolled", known(), {BOB.id: first})
    newer = announcement(BOB, 11, rack=9)
    say(BOB, ANNOUNCE, newer.write())
    say(DAVE, ANNOUNCE, announcement(DAVE, 1, ttl=2).write())
    becomes(
        "a newer one, and another node",
        {BOB.id: 11, DAVE.id: 1},
        lambda found: {n: a.sequence for n, a in found.items()},
    )
    expect("a filter", set(known((RACK_ID, EQ, u32(9)))), {BOB.id})
    custom = b"\0ustom".ljust(32, b"\0")
    expect("LOCALITY_CUSTOM CONTAINS", set(known((LOCALITY_CUSTOM, CONTAINS, custom))), {BOB.id, DAVE.id})
    expect("LOCALITY_CUSTOM EQ", set(known((LOCALITY_CUSTOM, EQ, custom))), set())
    time.sleep(2.2)
    expect("the ttl ends", set(known()), {BOB.id})
    say(BOB, WITHDRAW, u128(BOB.id) + u64(11) + u8(0))
    say(DAVE, WITHDRAW, u128(BOB.id) + u64(20) + u8(0))
    time.sleep(0.2)
    expect("an old WITHDRAW, another's", set(known()), {BOB.id})
    say(BOB, WITHDRAW, u128(BOB.id) + u64(12) + u8(1))
    becomes("WITHDRAW", {})
    say(BOB, ANNOUNCE, announcement(BOB, 12).write())
    time.sleep(0.2)
    expect("not above the withdrawal", known(), {})
    say(BOB, ANNOUNCE, announcement(BOB, 13).write())
    becomes("back", {BOB.id}, set)
    say(BOB, WITHDRAW, u128(BOB.id))
    becomes("the older WITHDRAW", {})
    many = announcement(BOB, 14)
    many.resources = [Resource(n, MEM, 0, n, n) for n in range(1, 200)]
    say(BOB, ANNOUNCE, many.write())
    becomes("an announcement in fragments", {BOB.id: many})
    expect(
        "too much for a padded question",
        at[EVE_OF_NOWHERE].refused(at[EVE_OF_NOWHERE].frame(SOLICIT, solicit((NODE_ID, EQ, u128(BOB.id)), pad=1200))),
        True,
    )
    say(BOB, WITHDRAW, u128(BOB.id) + u64(15) + u8(3))
    for client in at.values():
        client.close()


def broadcast(w):
    """REVOKE_BROADCAST from outside: obeyed only with ADMIN."""

    def revoke(who, token):
        client = Udp(who, w.nodes["main"]["control-udp"])
        payload = u128(who.id) + items([u128(Token.read(token).token_id)]) + u64(int(time.time()) + 300)
        for one in client.frame(REVOKE_BROADCAST, payload, signed=True).datagrams():
            client.socket.send(one)
        client.close()
        time.sleep(0.1)
        return w.status(CAROL, Op.CAP_REFRESH, u32(60), token=token)

    token = w.token(CAROL, Perm.READ)
    expect("REVOKE_BROADCAST without ADMIN", revoke(ALICE, token), Status.OK)
    expect("REVOKE_BROADCAST with ADMIN", revoke(ROOT, token), Status.INVALID_TOKEN)
