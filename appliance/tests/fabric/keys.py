"""Keys: how an administrator lists them, ends all that one has, and removes one for good."""

import time

import carriers
import wire
from dataplanes import TwoSided
from leases import export
from udp import Udp
from wire import Endpoint, Op, Perm, Reader, Status, fields, u8, u16, u32, u128
from world import ALICE, BOB, CAROL, DAVE, EVE, FRANK, ROOT, expect, now, within

OK, INVALID, PERM, PARAMS = Status.OK, Status.INVALID_TOKEN, Status.INSUFFICIENT_PERM, Status.INVALID_PARAMS
LISTED, ENROLLED, REMOVED = 1, 2, 3
REVOKED, UNKNOWN = 0x10, 0x14  # two-sided


def page(w, admin, after, most):
    """What one KEY_LIST answers: whether there are more, and the entries."""
    status, result = w.call(ROOT, Op.KEY_LIST, u128(after) + u16(most), token=admin)
    r = Reader(result)
    more, entries = r.u8(), r.items(lambda: (r.u128(), r.take(32), r.u8()))
    r.end()
    expect("KEY_LIST", (status, len(entries) <= most), (OK, True))
    return more, entries


def known(w, admin, most):
    """Every key that the node knows, asked for in pages."""
    after, found = 0, []
    while True:
        more, entries = page(w, admin, after, most)
        found += entries
        if not more:
            return found
        expect("a page that is not the last is full", len(entries), most)
        after = entries[-1][0]


def listed(w):
    admin = w.token(ROOT, Perm.ADMIN)
    node = (w.node_id, w.nodes["main"]["key"], LISTED)
    want = [(who.id, who.public, LISTED) for who in (ALICE, BOB, CAROL, DAVE, FRANK, ROOT)] + [node]
    if w.carrier == "udp":  # over QUIC nobody enrols
        want.append((EVE.id, EVE.public, ENROLLED))
    for most in (1024, 65535, 2):
        expect(f"the keys, at most {most} at a time", known(w, admin, most), sorted(want))
    expect("behind the last one", page(w, admin, max(want)[0], 9), (0, []))
    other = w.token(ROOT, Perm.REVOKE)
    for op, params in ((Op.KEY_LIST, u128(0) + u16(9)), (Op.KEY_REVOKE, u128(BOB.id) + u8(1))):
        for step, token, sent, status in (
            ("no token", b"", params, INVALID),
            ("without ADMIN", other, params, PERM),
            ("too short", admin, params[:-1], PARAMS),
            ("too long", admin, params + b"\0", PARAMS),
        ):
            expect(f"{op.name}: {step}", w.status(ROOT, op, sent, token=token), status)
    expect("KEY_LIST of none", w.status(ROOT, Op.KEY_LIST, u128(0) + u16(0), token=admin), PARAMS)
    expect("KEY_REVOKE of the node's key", w.status(ROOT, Op.KEY_REVOKE, u128(w.node_id) + u8(0), token=admin), PARAMS)
    expect("nothing has ended", known(w, admin, 9), sorted(want))


def two_sided(lease, key=None):
    return TwoSided(lease.endpoints[Endpoint.TWO_SIDED], key or lease.key, lease.generation)


def use(w, who, token):
    return w.status(who, Op.CAP_REFRESH, u32(60), token=token)


def end(w, who, remove):
    """KEY_REVOKE: how many leases ended."""
    start = now()
    status, result = w.call(ROOT, Op.KEY_REVOKE, u128(who.id) + u8(remove), token=w.token(ROOT, Perm.ADMIN))
    until, leases = fields(result, "u64", "u32")
    expect("KEY_REVOKE", status, OK)
    within("until", until, start + 300, now() + 302)
    return leases


def revoked(w):
    """All that Bob has ends, and nobody else's."""
    every = Perm.READ | Perm.WRITE | Perm.ALLOC | Perm.DELEGATE
    held, passed, given = w.token(BOB, every), w.token(BOB, every), w.token(ALICE, every)
    mine, block = w.lease(BOB, 4096, token=held), w.lease(BOB, 512, wire.BLOCK)
    theirs = w.lease(ALICE, 4096)
    to_carol, to_bob = BOB.delegate(passed, CAROL.id), ALICE.delegate(given, BOB.id)
    under = w.lease(CAROL, 4096, token=to_carol)
    handle = Reader(w.call(ALICE, Op.LEASE_EXPORT_HANDLE, export(theirs))[1]).u128()
    imported = lambda who: fields(w.call(who, Op.LEASE_IMPORT_HANDLE, u128(handle))[1], "u64", "u32", "u64")[0]
    keys = [imported(BOB), imported(CAROL)]
    ways = [two_sided(mine), two_sided(block), two_sided(theirs), two_sided(under), *(two_sided(theirs, key) for key in keys)]
    served = lambda: [way.read(0, 512)[0] for way in ways]
    expect("all are served", served(), [0] * 6)
    time.sleep(1)  # a token may be of the second of the revocation, and is refused then
    expect("how many leases ended", end(w, BOB, 0), 2)
    expect("Bob's leases and attachment are over, others' are not", served(), [REVOKED, REVOKED, 0, 0, UNKNOWN, 0])
    for step, who, token, status in (
        ("his own token", BOB, held, INVALID),
        ("what he passed on", CAROL, to_carol, INVALID),
        ("what was passed on to him", BOB, to_bob, INVALID),
        ("whose it was", ALICE, given, OK),
    ):
        expect(f"{step} afterwards", use(w, who, token), status)
    expect("he has nothing to free", w.status(BOB, Op.LEASE_FREE, u128(mine.lease_id)), Status.LEASE_EXPIRED)
    time.sleep(1.1)
    again = w.lease(BOB, 4096)
    expect("he may begin anew", two_sided(again).read(0, 1), (0, b"\0"))
    expect("nothing is left of before", end(w, BOB, 0), 1)
    expect("a key without anything", end(w, DAVE, 0), 0)
    w.free(ALICE, theirs)
    w.free(CAROL, under)


def removed(w):
    """Frank's key is gone for good; the last part, for he is needed no more."""
    lease = w.lease(FRANK, 4096, token=w.token(FRANK, resource=w.small))
    frank = w.at(FRANK)
    expect("Frank is heard", frank.call(Op.PING)[0], OK)
    expect("how many leases ended", end(w, FRANK, 1), 1)
    expect("his lease is over", two_sided(lease).read(0, 1), (REVOKED, b""))
    endpoints = w.nodes["main"]
    if w.carrier == "quic":
        expect("his connection is closed", frank.connection.gone(), True)
        expect("and he gets none", carriers.turned_away(FRANK, endpoints["quic"], "fabricbios/0"), True)
    udp = Udp(FRANK, endpoints["control-udp"])
    expect("his messages are dropped", udp.refused(udp.request(Op.PING)), True)
    enrol = u128(FRANK.id) + FRANK.public
    expect("he enrols no more", udp.call(Op.ENROLL_REQUEST, enrol), (PERM, b""))
    udp.close()
    found = [entry for entry in known(w, w.token(ROOT, Perm.ADMIN), 3) if entry[0] == FRANK.id]
    expect("how he is listed", found, [(FRANK.id, bytes(32), REMOVED)])
    expect("again", end(w, FRANK, 1), 0)
