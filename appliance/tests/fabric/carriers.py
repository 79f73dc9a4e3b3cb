"""What each carrier does with messages: fragments, once only, copies; streams and certificates."""

import time

import wire
from dataplanes import Pages
from quic import Closed, Connection, Reset
from wire import FRAG_V2, MEM, PAGE_REQUEST, Lease, Op, Status, parse, response, tlv16, u8, u16, u32, u64, u128
from world import ALICE, BOB, EVE, expect

LONG = wire.alloc(60, 0, MEM, 4096) + b"".join(tlv16(0x7000 + n, bytes(250)) for n in range(12))  # 3066 bytes


def fragments(w):
    """Long messages, both ways of cutting, both directions."""
    alice, token = w.at(ALICE), w.token(ALICE)

    for step, how in (
        ("in order", {}),
        ("backwards", {"order": lambda d: d[::-1]}),
        ("each twice", {"order": lambda d: [x for x in d for _ in (1, 2)]}),
        ("in pieces of 100", {"size": 100}),
    ):
        answer = alice.ask(alice.request(Op.LEASE_ALLOC, LONG, 0, token), **how)
        status, result = response(answer.payload, Op.LEASE_ALLOC)
        expect(f"a request in fragments, {step}", status, Status.OK)
        w.free(ALICE, Lease.read(result))
    legacy = alice.request(Op.LEASE_ALLOC, LONG, 0, token, flags=0)
    status, result = response(alice.ask(legacy).payload, Op.LEASE_ALLOC)
    expect("a request in legacy fragments", status, Status.OK)
    lease = Lease.read(result)
    signed = alice.request(Op.LEASE_QUERY, u128(lease.lease_id), 0, bytes(0), signed=True)
    expect("a signed request", response(alice.ask(signed).payload, Op.LEASE_QUERY)[0], Status.OK)
    data = bytes(range(256)) * 16
    mine = Pages(alice, lease.lease_id)
    expect("PAGE_WRITE of a page", mine.write(0, data), 0)
    expect("PAGE_READ of a page", mine.read(0, 4096), (0, data))
    head = u16(wire.PAGES) + u8(wire.Page.READ) + u128(lease.lease_id) + u32(0) * 2 + u32(4096)
    answer = alice.ask(alice.frame(PAGE_REQUEST, head, signed=True, flags=0))
    expect("PAGE_READ in legacy fragments", (answer.payload[3:], answer.flags & FRAG_V2), (b"\0" + data, 0))
    plain = alice.ask(alice.request(Op.PING))
    expect("a short answer is one plain frame", plain.flags, 0)
    datagrams = alice.request(Op.LEASE_ALLOC, LONG, 0, token).datagrams()
    for one in datagrams[:-1]:
        alice.socket.send(one)
    time.sleep(2.2)
    alice.socket.send(datagrams[-1])
    expect("a message that takes 2 s is lost", quiet(alice.socket), True)
    frame = alice.request(Op.LEASE_ALLOC, LONG, 0, token)
    first, *rest = frame.datagrams()
    overlap = bytearray(first)
    overlap[44:48] = u32(600)  # the same piece at another place
    for one in (first, bytes(overlap), *rest):
        alice.socket.send(one)
    expect("overlapping fragments", quiet(alice.socket), True)
    big = alice.request(Op.PING, bytes(1300))
    expect("more than 1200 bytes in a datagram", quiet_after(alice.socket, big.datagrams(2000)), True)
    w.free(ALICE, lease)


def quiet(s, patience=0.3):
    s.settimeout(patience)
    try:
        s.recv(65536)
        return False
    except TimeoutError:
        return True


def quiet_after(s, datagrams):
    for one in datagrams:
        s.send(one)
    return quiet(s)


def receive(s):
    s.settimeout(2)
    return s.recv(65536)


def once_only(w):
    """Copies get the first answer; nothing is done twice."""
    alice, token = w.new(ALICE), w.token(ALICE)
    one = alice.request(Op.LEASE_ALLOC, wire.alloc(60, 0, MEM, 4096), 0, token).datagrams()[0]
    before = {l.lease_id for l in wire.active(alice.call(Op.LEASE_LIST_ACTIVE)[1])}
    answers = []
    for _ in range(3):
        alice.socket.send(one)
        answers.append(receive(alice.socket))
    expect("three copies, one answer", len(set(answers)), 1)
    lease = Lease.read(response(parse(answers[0]).frame.payload, Op.LEASE_ALLOC)[1])
    after = {l.lease_id for l in wire.active(alice.call(Op.LEASE_LIST_ACTIVE)[1])}
    expect("and one lease", after - before, {lease.lease_id})
    elsewhere = w.new(ALICE)
    expect("a copy from another port", quiet_after(elsewhere.socket, [one]), True)
    w.free(ALICE, lease)
    alice.socket.send(one)
    expect("the first answer, though the lease is freed", receive(alice.socket), answers[0])
    expect("and it stays freed", w.status(ALICE, Op.LEASE_QUERY, u128(lease.lease_id)), Status.RESOURCE_NOT_FOUND)

    def ping(nonce, request_id=77):
        frame = alice.frame(wire.REQUEST, b"")
        frame.nonce, frame.request_id = nonce, request_id
        frame.payload = ALICE.request(request_id, nonce, Op.PING)
        return frame

    top = ALICE.nonce() + 5000
    ALICE.last_nonce = top
    for step, nonce, want in (
        ("above all", top, False),
        ("below it", top - 1, False),
        ("1023 below", top - 1023, False),
        ("1024 below", top - 1024, True),
    ):
        expect(f"a nonce {step}", alice.refused(ping(nonce)), want)
    expect("a nonce again, with another request", alice.refused(ping(top, 78)), True)
    expect("a nonce again, the same request", alice.refused(ping(top - 1)), False)
    wrong = ping(top + 100000)
    wrong.payload = wrong.payload[:-1] + b"\x55"
    expect("a nonce in a forged request", alice.refused(wrong), True)
    expect("does not count", alice.refused(ping(top - 2)), False)


def long_answers(w):
    """LEASE_LIST_ACTIVE beyond one datagram."""
    token = w.token(ALICE)
    leases = [w.lease(ALICE, 512, token=token) for _ in range(60)]
    status, result = w.call(BOB, Op.LEASE_LIST_ACTIVE)
    listed = {e.lease_id for e in wire.active(result) if e.holder == ALICE.id and e.alloc_bytes == 512}
    expect("60 leases listed", (status, {l.lease_id for l in leases} <= listed), (Status.OK, True))
    if w.carrier == "udp":
        bob = w.at(BOB)
        status, legacy = bob.call(Op.LEASE_LIST_ACTIVE, flags=0)
        expect("in legacy fragments", legacy, result)
        status, signed = bob.call(Op.LEASE_LIST_ACTIVE, flags=0, signed=True)
        expect("and signed", signed, result)
        status, signed = bob.call(Op.LEASE_LIST_ACTIVE, signed=True)
        expect("in signed FRAG_V2 fragments", signed, result)
    for lease in leases:
        w.free(ALICE, lease)


def streams(w):
    """QUIC alone: who may connect, and what is no frame."""
    endpoint = w.nodes["main"]["quic"]
    expect("the node's certificate", w.at(ALICE).connection.peer_key, w.nodes["main"]["key"])
    unenrolled = type(EVE)(bytes([99]) * 32)
    expect("the certificate of a key that is not enrolled", turned_away(unenrolled, endpoint, "fabricbios/0"), True)
    expect("an unknown ALPN", turned_away(ALICE, endpoint, "h3"), True)
    link = w.at(ALICE).connection
    frame = w.at(ALICE).request(Op.PING)
    for step, data in (
        ("nothing", b""),
        ("half a frame", frame.whole()[:30]),
        ("two frames", frame.whole() * 2),
        ("text", b"GET / HTTP/1.1\r\n\r\n"),
    ):
        expect(f"a stream with {step}", reset(link, data), True)
    ids = [link.open(w.at(ALICE).request(Op.PING).whole()) for _ in range(20)]
    got = [response(parse(link.read(i)).frame.payload, Op.PING)[0] for i in ids]
    expect("20 streams at once", got, [Status.OK] * 20)
    again = [w.at(ALICE).ask(frame).payload[:2] for _ in range(2)]
    expect("request_id and nonce may repeat", again, [u16(Status.OK)] * 2)
    revoke = w.at(ALICE).frame(
        wire.REVOKE_BROADCAST, u128(ALICE.id) + wire.items([u128(1)]) + u64(2000000000), signed=True
    )
    expect("a message without an answer", link.read(link.open(revoke.whole())), b"")
    expect("SOLICIT without a signature", w.at(ALICE).solicit(wire.solicit())[:2], u16(1))
    long = w.at(ALICE).call(Op.LEASE_ALLOC, LONG, 0, w.token(ALICE))
    expect("a long request", long[0], Status.OK)
    w.free(ALICE, Lease.read(long[1]))


def reset(link, data):
    try:
        link.read(link.open(data))
        return False
    except Reset:
        return True


def turned_away(who, endpoint, alpn):
    """A client that is not admitted may think for a moment that it is."""
    try:
        link = Connection(who, endpoint, alpn)
        link.read(link.open(b"?"))
        return False
    except (Closed, Reset, TimeoutError) as error:
        return isinstance(error, Closed)
