"""Ops on the node itself: identity, inventory, enrolment, sensors, and what is no op at all."""

import wire
from identity import Certificate, id_of
from wire import BLOCK, MEM, PAGE_REQUEST, REQUEST, Frame, Op, Perm, Reader, Status, fields, u8, u16, u32, u64, u128
from world import ALICE, DAVE, EVE, expect, now, within


def identity(w):
    status, result = w.call(ALICE, Op.GET_IDENTITY)
    expect("GET_IDENTITY", (status, len(result)), (Status.OK, 48))
    expect("the node's id is that of its key", fields(result[:16], "u128")[0], id_of(result[16:]))
    w.nodes["main"]["key"] = result[16:]
    w.node_id = id_of(result[16:])
    w.nodes["strict"]["key"] = w.call(ALICE, Op.GET_IDENTITY, node="strict")[1][16:]
    expect("another node has another key", w.nodes["strict"]["key"] != result[16:], True)
    w.at.cache_clear()  # from here on clients check who answers
    answer = w.at(ALICE).ask(w.at(ALICE).request(Op.PING, signed=True))
    expect("the answer to a signed frame comes from the node", answer.sender, w.node_id)


def simple(w):
    status, result = w.call(ALICE, Op.PING)
    expect("PING", (status, len(result)), (Status.OK, 8))
    within("uptime", *fields(result, "u64"), 0, 3600)
    for op in (
        Op.PING,
        Op.GET_IDENTITY,
        Op.GET_INVENTORY,
        Op.GET_THERMAL,
        Op.SCHEDULER_FENCE_GET,
        Op.LEASE_LIST_ACTIVE,
    ):
        expect(f"{op.name} with params", w.call(ALICE, op, b"\0"), (Status.INVALID_PARAMS, b""))
    for op in (0, 0x0005, 0x7777, 0xFFFF):
        expect(f"unknown op {op:#06x}", w.call(ALICE, op), (Status.UNSUPPORTED_OP, b""))


def inventory(w):
    status, result = w.call(DAVE, Op.GET_INVENTORY)
    found = wire.inventory(result)
    leased = [(r.kind, r.flags, r.capacity, r.available) for r in found if r.kind in (MEM, BLOCK)]
    expect(
        "GET_INVENTORY",
        (status, sorted(leased)),
        (Status.OK, [(MEM, 0, 65536, 65536), (MEM, 0, 8 << 20, 8 << 20), (BLOCK, 0, 1 << 20, 1 << 20)]),
    )
    expect("resource ids differ and are not 0", len({r.resource_id for r in found} - {0}), len(found))
    by = {(r.kind, r.capacity): r.resource_id for r in found}
    w.scratch, w.small, w.disk = by[MEM, 8 << 20], by[MEM, 65536], by[BLOCK, 1 << 20]
    expect("the same again", w.call(ALICE, Op.GET_INVENTORY), (status, result))


def thermal(w):
    status, result = w.call(ALICE, Op.GET_THERMAL)
    lengths = {0x0900: 4, 0x0901: 4, 0x0902: 1, 0x0903: 1, 0x0904: 4, 0x0905: 1}
    tlvs = Reader(result).tlvs()
    expect("GET_THERMAL", (status, [len(v) for _, v in tlvs]), (Status.OK, [lengths[t] for t, _ in tlvs]))
    expect("each sensor once", len({t for t, _ in tlvs}), len(tlvs))


def enrol(w):
    params = u128(EVE.id) + EVE.public
    if w.carrier == "quic":
        expect(
            "ENROLL_REQUEST over QUIC",
            w.status(ALICE, Op.ENROLL_REQUEST, u128(ALICE.id) + ALICE.public),
            Status.UNSUPPORTED_OP,
        )
        return
    expect(
        "enrolment is closed", w.call(EVE, Op.ENROLL_REQUEST, params, node="strict"), (Status.INSUFFICIENT_PERM, b"")
    )
    eve = w.at(EVE)
    expect("who is not enrolled is ignored", eve.refused(eve.request(Op.PING)), True)
    expect("not enrolled, with short params", eve.refused(eve.request(Op.ENROLL_REQUEST, params[:-1])), True)
    expect("another key's id", eve.refused(eve.request(Op.ENROLL_REQUEST, u128(ALICE.id) + EVE.public)), True)
    expect("another's key", eve.refused(eve.request(Op.ENROLL_REQUEST, u128(ALICE.id) + ALICE.public)), True)
    start = now()
    status, result = w.call(EVE, Op.ENROLL_REQUEST, params)
    expect("ENROLL_REQUEST", status, Status.OK)
    certificate = Certificate.read(result)
    expect("the certificate is the node's", certificate.issued_by(w.nodes["main"]["key"]), True)
    expect("and for this key", (certificate.subject, certificate.public_key), (EVE.id, EVE.public))
    within("its issue", certificate.issued_at, start, now())
    expect("a year", certificate.expires_at - certificate.issued_at, 365 * 86400)
    expect("now it is heard", w.status(EVE, Op.PING), Status.OK)
    expect(
        "but may do nothing",
        w.status(EVE, Op.CAP_REQUEST, u32(Perm.READ) + u32(60) + u128(EVE.id)),
        Status.INSUFFICIENT_PERM,
    )


def malformed(w):
    """Not dignified with an answer."""
    alice, ping = w.at(ALICE), wire.request(Op.PING)

    def refused(step, change):
        frame = alice.request(Op.PING)
        expect(step, alice.refused(change(frame) or frame), True)

    class Bytes(Frame):
        """A frame whose bytes are changed on their way."""

        def whole(self):
            return self.edit(super().whole())

        def datagrams(self, size=1200):
            return [self.edit(one) for one in super().datagrams(size)]

    def edited(edit):
        def change(frame):
            changed = Bytes(**vars(frame))
            changed.edit = edit
            return changed

        return change

    refused("another magic", edited(lambda b: b"FBIX" + b[4:]))
    refused("another version", edited(lambda b: b[:4] + b"\1" + b[5:]))
    refused("an unknown type", edited(lambda b: b[:5] + b"\x77" + b[6:]))
    refused("an unknown flag", edited(lambda b: b[:6] + u8(b[6] | 0x80) + b[7:]))
    refused("a byte too many", edited(lambda b: b + b"\0"))
    refused("a byte too few", edited(lambda b: b[:-1]))
    refused("an answer as a question", edited(lambda b: b[:5] + b"\5" + b[6:]))
    refused("another sender", edited(lambda b: b[:8] + u128(DAVE.id) + b[24:]))
    wrong = alice.frame(REQUEST, lambda i, n: ALICE.request(i, n, Op.PING)[:-1] + b"\x55")
    expect("a wrong presenter signature", alice.refused(wrong), True)
    others = alice.frame(REQUEST, lambda i, n: DAVE.request(i, n, Op.PING))
    expect("another presenter", alice.refused(others), True)
    forged = alice.request(Op.PING, signed=True)
    forged.signature = forged.signature[:-1] + b"\x55"
    expect("a wrong frame signature", alice.refused(forged), True)
    if w.carrier == "udp":
        expect("no presenter", alice.refused(alice.frame(REQUEST, ping)), True)
        page = u16(wire.PAGES) + u8(wire.Page.QUERY) + u128(1) + u32(0)
        expect("an unsigned page op", alice.refused(alice.frame(PAGE_REQUEST, page)), True)
    else:
        with_presenter = alice.frame(REQUEST, lambda i, n: ALICE.request(i, n, Op.PING))
        answer = alice.ask(with_presenter)
        expect("a presenter may be named over QUIC", answer.payload[:4], u16(Status.OK) + u16(Op.PING))


def other_services(w):
    """What this node does not run."""
    token = w.token(ALICE, Perm.EXEC)
    submit = u128(0) * 2 + bytes(32) + u32(0) + u16(0) + u32(0) + u64(1) + u32(1) * 3
    gpu = u128(0) + u32(0) + u16(1) + b"k" + u32(1) * 6 + u32(0) + u16(0) + u64(0) + u32(0)
    for op, params in (
        (Op.TASKLET_SUBMIT, submit),
        (Op.GPU_SUBMIT, gpu),
        (Op.TASKLET_LEASE_ALLOC, u32(1) + u32(0) + u16(1) + u64(4096) + u8(2) + u8(1)),
    ):
        expect(op.name, w.call(ALICE, op, params, token=token), (Status.UNSUPPORTED_OP, b""))
    for op in (Op.TASKLET_STATUS, Op.TASKLET_FETCH_RESULT, Op.TASKLET_CANCEL):
        expect(op.name, w.call(ALICE, op, u64(1)), (Status.UNSUPPORTED_OP, b""))
    expect("TASKLET_LEASE_FREE", w.call(ALICE, Op.TASKLET_LEASE_FREE, u128(1)), (Status.UNSUPPORTED_OP, b""))
