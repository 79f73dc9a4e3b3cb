"""Tokens: the policy, caveats, delegation, refreshing, revocation; and the scheduler's fence."""

import time

import wire
from identity import DEPTH, RANGE, Token, audience, byte_range, depth, rate_limit, source_ip, time_bound
from wire import Op, Perm, Reader, Status, fields, tlv8, u8, u16, u32, u64, u128
from world import ALICE, BOB, CAROL, DAVE, EVE, FRANK, ROOT, expect, now, within

OK, INVALID, PERM, PARAMS = Status.OK, Status.INVALID_TOKEN, Status.INSUFFICIENT_PERM, Status.INVALID_PARAMS
RW = Perm.READ | Perm.WRITE


def ask(perms, ttl=60, to=ALICE):
    return u32(perms) + u32(ttl) + u128(to.id)


def policy(w):
    start = now()
    token = Token.read(w.token(ALICE, RW, ttl=60))
    expect(
        "a token's fields",
        (
            token.version,
            token.issuer,
            token.audience,
            token.resource_id,
            token.perms,
            token.epoch,
            token.caveats,
            token.links,
        ),
        (0, w.node_id, ALICE.id, 0, 3, 0, [], []),
    )
    expect("its signature", token.issued_by(w.nodes["main"]["key"]), True)
    within("its issue", token.issued_at, start, now())
    expect("its life", token.expires_at - token.issued_at, 60)
    long = Token.read(w.token(ALICE, RW, ttl=100000))
    expect("300 s at most", long.expires_at - long.issued_at, 300)
    expect("ids differ", token.token_id != long.token_id, True)
    expect("for one resource", Token.read(w.token(ALICE, RW, resource=w.small)).resource_id, w.small)
    expect("an epoch without a fence", Token.read(w.token(ALICE, RW, more=u64(77))).epoch, 0)
    for step, who, params, resource, want in (
        ("0 s", ALICE, ask(RW, 0), 0, PARAMS),
        ("no perms", ALICE, ask(0), 0, PARAMS),
        ("no such resource", ALICE, ask(RW), 12345, Status.RESOURCE_NOT_FOUND),
        ("no params", ALICE, b"", 0, PARAMS),
        ("23 bytes", ALICE, ask(RW)[:-1], 0, PARAMS),
        ("25 bytes", ALICE, ask(RW) + b"\0", 0, PARAMS),
        ("33 bytes", ALICE, ask(RW) + bytes(9), 0, PARAMS),
        ("an undefined perm", ALICE, ask(0x80), 0, PERM),
        ("ADMIN for one who may not", ALICE, ask(Perm.ADMIN), 0, PERM),
        ("WRITE for one who may only read", CAROL, ask(RW, to=CAROL), 0, PERM),
        ("anything for one without a policy", DAVE, ask(Perm.READ, to=DAVE), 0, PERM),
        ("all regions for one who has one", FRANK, ask(RW, to=FRANK), 0, PERM),
        ("another region", FRANK, ask(RW, to=FRANK), w.scratch, PERM),
        ("his region", FRANK, ask(RW, to=FRANK), w.small, OK),
        ("for another, with DELEGATE", ALICE, ask(RW, to=BOB), 0, OK),
        ("for another, more than it may have", ALICE, ask(RW, to=CAROL), 0, PERM),
        ("for another, without DELEGATE", CAROL, ask(Perm.READ, to=ALICE), 0, PERM),
        ("for another presenter", ALICE, ask(RW).replace(u128(ALICE.id), u128(12345)), 0, PERM),
    ):
        expect(f"CAP_REQUEST: {step}", w.status(who, Op.CAP_REQUEST, params, resource), want)


def use(w, who, token, params=u32(60), op=Op.CAP_REFRESH):
    """The status of CAP_REFRESH, which any valid token permits."""
    return w.status(who, op, params, token=token)


def checks(w):
    """What makes a token no good, before anything else is looked at."""
    token, other = w.token(ALICE), w.token(BOB)
    tampered = bytearray(token)
    tampered[80] ^= 1
    for step, bad in (
        ("none", b""),
        ("another's", other),
        ("tampered with", bytes(tampered)),
        ("cut", token[:-1]),
        ("longer", token + b"\0"),
        ("another version", b"\1" + token[1:]),
    ):
        expect(f"LEASE_ALLOC with a token: {step}", w.status(ALICE, Op.LEASE_ALLOC, b"", token=bad), INVALID)
    expect("params come after the token", w.status(ALICE, Op.LEASE_ALLOC, b"", token=token), PARAMS)
    own = ALICE.sign(b"fabricBIOS-cap-v0\0" + Token.read(token).body)
    forged = token[: Token.read(token).links_at - 64] + own + u16(0)
    expect("signed by another than the node", use(w, ALICE, forged), INVALID)
    read = w.token(ALICE, Perm.READ)
    expect("without ALLOC", w.status(ALICE, Op.LEASE_ALLOC, wire.alloc(5, 0), token=read), PERM)
    expect("without REVOKE", w.status(ALICE, Op.CAP_REVOKE, u128(1) + u32(1), token=token), PERM)
    expect("without ADMIN", w.status(ALICE, Op.SCHEDULER_FENCE_SET, u64(1), token=token), PERM)
    expect("without WRITE", w.status(ALICE, Op.SVC_TCP_BIND, u32(1) + u16(1), token=read), PERM)
    small = w.token(ALICE, resource=w.small)
    expect("for another resource", w.status(ALICE, Op.LEASE_ALLOC, wire.alloc(5, 0), w.scratch, small), PERM)
    expect(
        "for any resource means for the token's",
        w.status(ALICE, Op.LEASE_ALLOC, wire.alloc(5, 0), 0, small),
        Status.CAPACITY_EXCEEDED,
    )
    narrow = w.token(ALICE, Perm.REVOKE, resource=w.small)
    expect("the node is not a resource", w.status(ALICE, Op.CAP_REVOKE, u128(1) + u32(1), token=narrow), PERM)
    short = w.token(ALICE, ttl=1)
    expires = Token.read(short).expires_at
    time.sleep(max(0, expires - time.time()) + 0.05)
    expect("expired", use(w, ALICE, short), INVALID)


def caveats(w):
    token = w.token(ALICE, RW | Perm.ALLOC | Perm.DELEGATE)
    t, most = now(), (1 << 64) - 1
    for step, caveat, want in (
        ("TIME_BOUND now", time_bound(t - 10, t + 60), OK),
        ("TIME_BOUND later", time_bound(t + 60, t + 90), INVALID),
        ("TIME_BOUND ended", time_bound(t - 10, t), INVALID),
        ("SOURCE_IP", source_ip(bytes([127, 0, 0, 1])), OK),
        ("SOURCE_IP, mapped", source_ip(bytes(10) + b"\xff\xff" + bytes([127, 0, 0, 1])), OK),
        ("SOURCE_IP of another", source_ip(bytes([127, 0, 0, 2])), INVALID),
        ("SOURCE_IP of 5 bytes", source_ip(bytes(5)), INVALID),
        ("RANGE", byte_range(0, 4096), OK),
        ("RANGE that overflows", byte_range(most, 1), INVALID),
        ("RATE_LIMIT", rate_limit(1000), OK),
        ("DEPTH after the last link", depth(0), OK),
        ("AUDIENCE", audience(ALICE.id), OK),
        ("AUDIENCE of another", audience(BOB.id), INVALID),
        ("an unknown caveat", tlv8(7, b""), INVALID),
        ("a long DEPTH", tlv8(DEPTH, u16(1)), INVALID),
    ):
        expect(step, use(w, ALICE, ALICE.delegate(token, ALICE.id, caveat)), want)
    both = ALICE.delegate(token, ALICE.id, time_bound(t - 10, t + 60), audience(BOB.id))
    expect("all must hold", use(w, ALICE, both), INVALID)
    many = lambda n: ALICE.delegate(token, ALICE.id, *[audience(ALICE.id)] * n)
    expect("32 caveats in a link", use(w, ALICE, many(32), b"", Op.LEASE_ALLOC), PARAMS)
    expect("33 caveats in a link", use(w, ALICE, many(33), b"", Op.LEASE_ALLOC), INVALID)
    expect("32 caveats in a successor, with its DEPTH", use(w, ALICE, many(31)), OK)
    expect("33 caveats in a successor", use(w, ALICE, many(32)), INVALID)

    limited = ALICE.delegate(w.token(ALICE, Perm.READ | Perm.DELEGATE), ALICE.id, rate_limit(2))
    time.sleep(1 - time.time() % 1 + 0.01)  # a second may be one of the clock or the last 1000 ms: both begin anew
    expect("RATE_LIMIT 2", [use(w, ALICE, limited) for _ in range(4)], [OK, OK, *[Status.RATE_LIMITED] * 2])
    time.sleep(1.05)
    expect("a second later", use(w, ALICE, limited), OK)

    ranged = ALICE.delegate(token, ALICE.id, byte_range(4096, 4096))
    alloc = lambda size: w.status(ALICE, Op.LEASE_ALLOC, wire.alloc(5, 0, wire.MEM, size), 0, ranged)
    expect("more than RANGE permits", alloc(8193), INVALID)
    lease = w.lease(ALICE, 8192, token=ranged)
    expect("as much as RANGE permits", lease.len, 8192)
    w.free(ALICE, lease)


def delegation(w):
    token = w.token(ALICE, RW | Perm.ALLOC | Perm.DELEGATE)
    passed = ALICE.delegate(token, BOB.id)
    expect("a delegate", use(w, BOB, passed), OK)
    expect("who passed it on has it no more", use(w, ALICE, passed), INVALID)
    expect("without a link it is no one else's", use(w, BOB, token), INVALID)
    expect("a delegate without a policy", use(w, DAVE, ALICE.delegate(token, DAVE.id)), OK)
    expect("a link by another", use(w, BOB, DAVE.delegate(token, BOB.id)), INVALID)
    unenrolled = EVE.id ^ 1
    expect("through a key that is not enrolled", use(w, BOB, EVE.delegate(ALICE.delegate(token, unenrolled), BOB.id)), INVALID)
    expect("without DELEGATE", use(w, BOB, ALICE.delegate(w.token(ALICE), BOB.id)), INVALID)
    chain = token
    for n in range(8):
        chain = (ALICE, BOB)[n % 2].delegate(chain, (BOB, ALICE)[n % 2].id)
    expect("8 links", use(w, ALICE, chain), OK)
    expect("9 links", use(w, BOB, ALICE.delegate(chain, BOB.id)), INVALID)
    once = ALICE.delegate(token, BOB.id, depth(1))
    expect("DEPTH 1, one link after it", use(w, DAVE, BOB.delegate(once, DAVE.id)), OK)
    expect("DEPTH 1, two links after it", use(w, ALICE, DAVE.delegate(BOB.delegate(once, DAVE.id), ALICE.id)), INVALID)

    status, fresh = w.call(DAVE, Op.CAP_REFRESH, u32(100), token=BOB.delegate(once, DAVE.id, byte_range(0, 512)))
    old, new = Token.read(token), Token.read(fresh)
    expect(
        "CAP_REFRESH",
        (status, new.token_id, new.audience, new.perms, new.resource_id, new.links),
        (OK, old.token_id, DAVE.id, old.perms, 0, []),
    )
    expect("its caveats", sorted(new.caveats), [(RANGE, u64(0) + u64(512)), (DEPTH, u8(0))])
    expect("its life", new.expires_at - new.issued_at, 100)
    expect("and it is used up", use(w, BOB, DAVE.delegate(fresh, BOB.id)), INVALID)
    plain = Token.read(w.call(BOB, Op.CAP_REFRESH, u32(100), token=passed)[1])
    expect("DEPTH of one that had none", plain.caveats, [(DEPTH, u8(7))])
    same = Token.read(w.call(ALICE, Op.CAP_REFRESH, u32(1000), token=token)[1])
    expect("without links nothing is added", (same.caveats, same.expires_at - same.issued_at), ([], 300))
    expect("CAP_REFRESH for 0 s", use(w, ALICE, token, u32(0)), PARAMS)
    expect("CAP_REFRESH with 3 bytes", use(w, ALICE, token, bytes(3)), PARAMS)
    expect("CAP_REFRESH without a token", use(w, ALICE, b""), INVALID)


def revocation(w):
    token = w.token(BOB, RW | Perm.ALLOC | Perm.DELEGATE)
    token_id = Token.read(token).token_id
    lease = w.lease(BOB, 4096, token=token)
    kept = w.lease(BOB, 4096)
    power = w.token(ALICE, Perm.REVOKE)
    start = now()
    status, result = w.call(ALICE, Op.CAP_REVOKE, u128(token_id) + u32(1), token=power)
    r = Reader(result)
    issuer, ids, until = r.u128(), r.items(r.u128), r.u64()
    r.end()
    expect("CAP_REVOKE", (status, issuer, ids), (OK, w.node_id, [token_id]))
    within("until", until, start + 300, now() + 301)
    expect("the token is dead", use(w, BOB, token), INVALID)
    expect("its delegations too", use(w, ALICE, BOB.delegate(token, ALICE.id)), INVALID)
    status, result = w.call(BOB, Op.LEASE_QUERY, u128(lease.lease_id))
    expect("its lease is revoked", (status, result[0]), (OK, 2))
    expect("the other lease is not", w.call(BOB, Op.LEASE_QUERY, u128(kept.lease_id))[1][0], 0)
    good = w.token(BOB)
    for op, params in ((Op.LEASE_FREE, b""), (Op.LEASE_RENEW, u32(10))):
        expect(
            f"{op.name} of a revoked lease",
            w.status(BOB, op, u128(lease.lease_id) + params, token=good),
            Status.LEASE_EXPIRED,
        )
    status, result = w.call(ALICE, Op.CAP_REVOKE, u128(4711) + u32(1000), token=power)
    within("until, for longer", fields(result, "u128", "u16", "u128", "u64")[3], start + 1000, now() + 1001)
    expect("CAP_REVOKE with 19 bytes", w.status(ALICE, Op.CAP_REVOKE, bytes(19), token=power), PARAMS)
    w.free(BOB, kept)


def fences(w):
    """On the strict node, where no token comes before a fence."""

    def at(who, op, params=b"", token=b""):
        return w.status(who, op, params, token=token, node="strict")

    def get():
        return w.call(DAVE, Op.SCHEDULER_FENCE_GET, node="strict")

    def root(epoch):
        return w.token(ROOT, Perm.ADMIN, node="strict", more=epoch)

    def epochs(*wanted):
        return [at(ALICE, Op.CAP_REQUEST, ask(RW) + epoch) for epoch in (b"", *map(u64, wanted))]

    expect("no fence", get(), (OK, u8(0) + u64(0)))
    expect("a token without a fence", epochs(0, 5), [Status.FENCE_REQUIRED] * 3)
    expect("ADMIN and more", at(ROOT, Op.CAP_REQUEST, ask(Perm.ADMIN | Perm.REVOKE, to=ROOT)), Status.FENCE_REQUIRED)
    first = root(b"")
    expect("epoch 0", at(ROOT, Op.SCHEDULER_FENCE_SET, u64(0), first), PARAMS)
    expect("7 bytes", at(ROOT, Op.SCHEDULER_FENCE_SET, bytes(7), first), PARAMS)
    expect("no token", at(ROOT, Op.SCHEDULER_FENCE_SET, u64(5)), INVALID)
    expect("CAP_REFRESH without a fence", at(ROOT, Op.CAP_REFRESH, u32(60), first), Status.FENCE_REQUIRED)
    expect("SCHEDULER_FENCE_SET 5", at(ROOT, Op.SCHEDULER_FENCE_SET, u64(5), first), OK)
    expect("the fence", get(), (OK, u8(1) + u64(5)))
    expect("an older token", at(ROOT, Op.SCHEDULER_FENCE_SET, u64(9), first), Status.STALE_EPOCH)
    stale = Status.STALE_EPOCH
    expect("epochs none, 4, 5, 6", epochs(4, 5, 6), [stale, stale, OK, stale])
    second = root(u64(5))
    expect("its epoch", Token.read(second).epoch, 5)
    expect(
        "the fence does not go back", [at(ROOT, Op.SCHEDULER_FENCE_SET, u64(n), second) for n in (0, 4, 5)], [stale] * 3
    )
    alice = w.token(ALICE, node="strict", more=u64(5))
    expect("LEASE_ALLOC at epoch 5", at(ALICE, Op.LEASE_ALLOC, wire.alloc(60, 0, wire.MEM, 4096), alice), OK)
    refreshed = w.call(ALICE, Op.CAP_REFRESH, u32(60), token=alice, node="strict")[1]
    expect("CAP_REFRESH at epoch 5", Token.read(refreshed).epoch, 5)
    expect("SCHEDULER_FENCE_SET 7", at(ROOT, Op.SCHEDULER_FENCE_SET, u64(7), second), OK)
    expect("LEASE_ALLOC at epoch 7 with a token of 5", at(ALICE, Op.LEASE_ALLOC, wire.alloc(60, 0), alice), stale)
    expect("CAP_REFRESH of it", at(ALICE, Op.CAP_REFRESH, u32(60), alice), stale)
    expect("the fence", get(), (OK, u8(1) + u64(7)))


def crowd(w):
    """Of the requests of one sender the strict node serves 40 in a second."""
    time.sleep(1.1)
    dave = w.at(DAVE, "strict")
    got = [dave.call(Op.PING)[0] for _ in range(40)]
    expect("40 requests", got, [OK] * 40)
    while (last := dave.call(Op.PING)[0]) == OK and len(got) < 1000:
        got.append(last)
    expect("more than 40 in a second", last, Status.RATE_LIMITED)
    expect("another sender is not concerned", w.status(BOB, Op.PING, node="strict"), OK)
    time.sleep(1.1)
    expect("a second later", w.status(DAVE, Op.PING, node="strict"), OK)
