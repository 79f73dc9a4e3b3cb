"""The life of a lease: granted, renewed, expired, in grace, freed; bound, handed on, relocated; and TCP proxies."""

import socket
import threading
import time

import wire
from dataplanes import Datagrams, Pages, QuicStreams, Tcp, TwoSided
from identity import Token
from wire import BLOCK, MEM, Endpoint, Lease, Op, Perm, Reader, Status, fields, tlv16, u8, u16, u32, u64, u128
from world import ALICE, BOB, CAROL, expect, now, within

OK, PARAMS, PERM, GONE = Status.OK, Status.INVALID_PARAMS, Status.INSUFFICIENT_PERM, Status.RESOURCE_NOT_FOUND
EXPIRED, FULL = Status.LEASE_EXPIRED, Status.CAPACITY_EXCEEDED


def query(w, lease, who=ALICE):
    """(status, lease_status or None)"""
    status, result = w.call(who, Op.LEASE_QUERY, u128(lease.lease_id))
    return status, fields(result, "u8", "u64")[0] if status == OK else None


def granted(w):
    token = w.token(ALICE)
    start = now()
    lease = w.lease(ALICE, 4096, token=token, duration=60)
    within("expires_at", lease.expires_at, start + 60, now() + 60)
    expect("LEASE_KEY is the low half of the lease_id", (lease.key, lease.key > 0), (lease.lease_id % (1 << 64), True))
    expect("LIMITS", lease.len, 4096)
    expect("GENERATION has 56 bits", 0 < lease.generation < 1 << 56, True)
    kinds = {Endpoint.TWO_SIDED, Endpoint.FBMU, Endpoint.FBMT, Endpoint.QUIC_MEM}
    expect("endpoints of memory", kinds <= set(lease.endpoints), True)
    expect("none of blocks", {Endpoint.FBBU, Endpoint.FBBT, Endpoint.QUIC_BLOCK} & set(lease.endpoints), set())
    expect("LEASE_QUERY", w.call(BOB, Op.LEASE_QUERY, u128(lease.lease_id)), (OK, u8(0) + u64(lease.expires_at)))
    listed = [e for e in wire.active(w.call(BOB, Op.LEASE_LIST_ACTIVE)[1]) if e.lease_id == lease.lease_id]
    expect(
        "LEASE_LIST_ACTIVE",
        [(e.holder, e.expires_at, e.alloc_bytes, e.resource_id in (w.scratch, w.small)) for e in listed],
        [(ALICE.id, lease.expires_at, 4096, True)],
    )
    w.free(ALICE, lease)
    expect("freed", query(w, lease), (GONE, None))
    expect("freed again", w.status(ALICE, Op.LEASE_FREE, u128(lease.lease_id)), GONE)
    expect("renewed when freed", w.status(ALICE, Op.LEASE_RENEW, u128(lease.lease_id) + u32(9), token=token), GONE)

    for step, params, length in (
        ("8 bytes", wire.alloc(9, 0), 1 << 20),
        ("10 bytes", wire.alloc(9, 0, MEM), 1 << 20),
        ("an odd size", wire.alloc(9, 0, MEM, 777), 777),
        ("blocks", wire.alloc(9, 0, BLOCK, 1000), 1024),
    ):
        status, result = w.call(ALICE, Op.LEASE_ALLOC, params, token=token)
        lease = Lease.read(result)
        expect(f"LEASE_ALLOC: {step}", (status, lease.len), (OK, length))
        w.free(ALICE, lease)
    whole = w.lease(ALICE, 65536, token=token, resource=w.small)
    free = {r.resource_id: r.available for r in wire.inventory(w.call(BOB, Op.GET_INVENTORY)[1])}
    expect("available", (free[w.small], free[w.scratch]), (0, 8 << 20))
    expect("no more", w.status(ALICE, Op.LEASE_ALLOC, wire.alloc(9, 0, MEM, 1), w.small, token), FULL)
    way = lambda lease: TwoSided(lease.endpoints[Endpoint.TWO_SIDED], lease.key, lease.generation)
    expect("a write to its end", (way(whole).write(65500, b"secret"), way(whole).read(65500, 6)), (0, (0, b"secret")))
    w.free(ALICE, whole)
    again = w.lease(BOB, 65536, resource=w.small)
    expect("the next holder finds zeros", way(again).read(65500, 6), (0, bytes(6)))
    expect("another lease", (again.lease_id != whole.lease_id, way(whole).read(65500, 6)), (True, (0x14, b"")))
    w.free(BOB, again)
    block = w.lease(ALICE, 4096, BLOCK, token=token, resource=w.disk)
    expect("endpoints of blocks", {Endpoint.FBBU, Endpoint.FBBT, Endpoint.QUIC_BLOCK} <= set(block.endpoints), True)
    w.free(ALICE, block)


def affinity(category, strength, kind, target):
    return tlv16(0x0910, u8(category) + u8(strength) + u8(kind) + u16(len(target)) + target)


def asked_wrongly(w):
    token = w.token(ALICE)
    kv = bytes(32) + u16(2) + u32(4096) + u16(0)
    good = wire.alloc(9, 0, MEM, 4096)
    here, rack = u128(w.node_id), 3
    for step, params, resource, want in (
        ("no params", b"", 0, PARAMS),
        ("7 bytes", bytes(7), 0, PARAMS),
        ("9 bytes", wire.alloc(9, 0) + b"\0", 0, PARAMS),
        ("17 bytes", good[:-1], 0, PARAMS),
        ("half a TLV", good + b"\x09", 0, PARAMS),
        ("0 s", wire.alloc(0, 0), 0, PARAMS),
        ("0 bytes", wire.alloc(9, 0, MEM, 0), 0, PARAMS),
        ("an unknown type", wire.alloc(9, 0, 77, 4096), 0, PARAMS),
        ("no such resource", good, 12345, GONE),
        ("a resource of another type", good, w.disk, GONE),
        ("more than there is", wire.alloc(9, 0, MEM, 1 << 40), 0, FULL),
        ("more than it has", wire.alloc(9, 0, MEM, 65537), w.small, FULL),
        ("an unknown tag", good + tlv16(0x7777, b"?"), 0, OK),
        ("KV_CACHE", good + tlv16(0x0901, kv + u8(0)), 0, OK),
        ("KV_CACHE with a GPU", good + tlv16(0x0901, kv + u8(1) + u128(1)), 0, None),
        ("KV_CACHE of 40 bytes", good + tlv16(0x0901, kv), 0, PARAMS),
        ("CPU_ISOLATION", good + tlv16(0x0902, u8(2)), 0, OK),
        ("CPU_ISOLATION 3", good + tlv16(0x0902, u8(3)), 0, PARAMS),
        ("CPU_ISOLATION twice", good + tlv16(0x0902, u8(0)) * 2, 0, PARAMS),
        ("GPU_EXCLUSIVITY 3", good + tlv16(0x0903, u8(3)), 0, PARAMS),
        ("this node", good + affinity(3, 1, 1, here), 0, OK),
        ("not this node", good + affinity(3, 0x81, 1, here), 0, FULL),
        ("rather not this node", good + affinity(3, 0x82, 1, here), 0, OK),
        ("this rack", good + affinity(3, 1, 6, u32(rack)), 0, OK),
        ("another rack", good + affinity(3, 1, 6, u32(rack + 1)), 0, FULL),
        ("the small region", good + affinity(1, 1, 2, u128(w.small)), 0, OK),
        ("this trust domain", good + affinity(4, 1, 5, b"lab"), 0, OK),
        ("another trust domain", good + affinity(4, 1, 5, b"elsewhere"), 0, FULL),
        ("category 5", good + affinity(5, 1, 1, here), 0, PARAMS),
        ("strength 3", good + affinity(3, 3, 1, here), 0, PARAMS),
        ("target 7", good + affinity(3, 1, 7, here), 0, PARAMS),
        ("a rack of 3 bytes", good + affinity(3, 1, 6, bytes(3)), 0, PARAMS),
        ("33 affinities", good + affinity(3, 2, 1, here) * 33, 0, PARAMS),
    ):
        if want is None:
            continue
        status, result = w.call(ALICE, Op.LEASE_ALLOC, params, resource, token)
        expect(f"LEASE_ALLOC: {step}", status, want)
        if status == OK:
            w.free(ALICE, Lease.read(result))


def aged(w):
    """Expiry, grace, renewal."""
    token = w.token(ALICE)
    renewed, freed, short = (w.lease(ALICE, 4096, token=token, duration=1, grace=g) for g in (30, 30, 0))
    start = now()
    status, result = w.call(ALICE, Op.LEASE_RENEW, u128(renewed.lease_id) + u32(40), token=token)
    expect("LEASE_RENEW", (status, len(result)), (OK, 8))
    within("the new expiry", *fields(result, "u64"), start + 40, now() + 40)
    status, result = w.call(ALICE, Op.LEASE_RENEW, u128(renewed.lease_id) + u32(1), token=w.token(ALICE))
    expect("renewed for less, with another token", (status, fields(result, "u64")[0] <= now() + 1), (OK, True))
    for step, who, params, t, want in (
        ("another's", BOB, u128(renewed.lease_id) + u32(9), w.token(BOB), PERM),
        ("without a token", ALICE, u128(renewed.lease_id) + u32(9), b"", Status.INVALID_TOKEN),
        ("without ALLOC", ALICE, u128(renewed.lease_id) + u32(9), w.token(ALICE, Perm.READ), PERM),
        ("for 0 s", ALICE, u128(renewed.lease_id) + u32(0), token, PARAMS),
        ("19 bytes", ALICE, bytes(19), token, PARAMS),
        ("unknown", ALICE, u128(5) + u32(9), token, GONE),
    ):
        expect(f"LEASE_RENEW: {step}", w.status(who, Op.LEASE_RENEW, params, token=t), want)
    expect("another's LEASE_FREE", w.status(BOB, Op.LEASE_FREE, u128(renewed.lease_id)), PERM)
    expect("LEASE_FREE of 15 bytes", w.status(ALICE, Op.LEASE_FREE, bytes(15)), PARAMS)
    expect("LEASE_QUERY of 17 bytes", w.status(ALICE, Op.LEASE_QUERY, bytes(17)), PARAMS)
    time.sleep(1.2)
    expect("in grace", [query(w, l) for l in (renewed, freed)], [(OK, 1)] * 2)
    expect("without grace", query(w, short), (GONE, None))
    way = TwoSided(renewed.endpoints[Endpoint.TWO_SIDED], renewed.key, renewed.generation)
    expect("no I/O in grace", way.read(0, 8), (0x11, b""))
    expect("no pages in grace", Pages(w.at(ALICE), renewed.lease_id).read(0, 8), (3, b""))
    expect("export in grace", w.status(ALICE, Op.LEASE_EXPORT_HANDLE, export(renewed)), EXPIRED)
    expect("relocation in grace", w.status(ALICE, Op.LEASE_RELOCATE, relocate(renewed, freed)), EXPIRED)
    expect("freed in grace", w.status(ALICE, Op.LEASE_FREE, u128(freed.lease_id)), OK)
    expect("renewed in grace", w.status(ALICE, Op.LEASE_RENEW, u128(renewed.lease_id) + u32(60), token=token), OK)
    expect("active again", query(w, renewed), (OK, 0))
    expect("with the same generation", way.read(0, 8), (0, bytes(8)))
    w.free(ALICE, renewed)
    graced, seen = w.lease(ALICE, 4096, token=token, duration=1, grace=2), []
    while seen[-1:] != [(GONE, None)]:
        if (state := query(w, graced)) not in seen:
            seen.append(state)
        time.sleep(0.05)
    expect("active, in grace, gone", seen, [(OK, 0), (OK, 1), (GONE, None)])


def bound(w):
    token, lease = w.token(ALICE), w.lease(ALICE, 4096)
    for kind in (0, 1, 4, 7, 255):
        expect(
            f"LEASE_BIND of kind {kind}",
            w.status(ALICE, Op.LEASE_BIND, u128(lease.lease_id) + u8(kind), token=token),
            PARAMS,
        )
    for kind in (2, 3, 5, 6):
        expect(
            f"LEASE_BIND of kind {kind}, which is not here",
            w.status(ALICE, Op.LEASE_BIND, u128(lease.lease_id) + u8(kind), token=token),
            Status.UNSUPPORTED_OP,
        )
    expect(
        "whatever the lease", w.status(BOB, Op.LEASE_BIND, u128(1) + u8(2), token=w.token(BOB)), Status.UNSUPPORTED_OP
    )
    expect("16 bytes", w.status(ALICE, Op.LEASE_BIND, u128(lease.lease_id), token=token), PARAMS)
    expect("no token", w.status(ALICE, Op.LEASE_BIND, u128(lease.lease_id) + u8(2)), Status.INVALID_TOKEN)
    w.free(ALICE, lease)


def export(lease, target=0, rights=1, ttl=60, runtime=2):
    return u64(lease.key) + u16(runtime) + u128(target) + u32(rights) + u32(ttl)


def handles(w):
    lease = w.lease(ALICE, 8192)
    data = TwoSided(lease.endpoints[Endpoint.TWO_SIDED], lease.key, lease.generation)
    expect("a write by the holder", data.write(100, b"shared"), 0)

    def exported(**how):
        status, result = w.call(ALICE, Op.LEASE_EXPORT_HANDLE, export(lease, **how))
        r = Reader(result)
        handle, expires, kind, desc = r.u128(), r.u64(), r.u8(), r.blob()
        r.end()
        expect("LEASE_EXPORT_HANDLE", (status, kind, desc), (OK, 5, u128(lease.lease_id) + u64(0) + u64(8192)))
        return handle, expires

    handle, expires = exported(target=BOB.id, rights=1, ttl=30)
    within("its expiry", expires, now() + 28, now() + 30)
    expect("not later than the lease's", exported(ttl=1000)[1], lease.expires_at)
    status, result = w.call(BOB, Op.LEASE_IMPORT_HANDLE, u128(handle))
    attach, rights, until = fields(result, "u64", "u32", "u64")
    expect("LEASE_IMPORT_HANDLE", (status, rights, until), (OK, 1, expires))
    expect("again", w.call(BOB, Op.LEASE_IMPORT_HANDLE, u128(handle)), (status, result))
    way = TwoSided(data.endpoint, attach, lease.generation)
    expect("the importer reads", way.read(100, 6), (0, b"shared"))
    expect("and may not write", way.write(100, b"!"), 0x16)
    at = lease.endpoints
    for name, other in (
        ("datagrams", Datagrams(at[Endpoint.FBMU], b"FBMU", attach, lease.generation)),
        ("tcp", Tcp(at[Endpoint.FBMT], b"FBMT", attach)),
        ("quic", QuicStreams(BOB, at[Endpoint.QUIC_MEM], b"FBMT", attach)),
    ):
        expect(
            f"the importer over {name}",
            (other.hello()[0], other.read(100, 6), other.write(100, b"!")),
            (0, (0, b"shared"), 3),
        )
    quic = lambda who, key: QuicStreams(who, at[Endpoint.QUIC_MEM], b"FBMT", key).hello()
    expect("another's attachment over quic", quic(CAROL, attach), (1, bytes(16)))
    expect("the holder has no need of it", quic(ALICE, attach), (1, bytes(16)))
    expect("nor the importer of the lease itself", quic(BOB, lease.lease_id), (1, bytes(16)))
    writer, _ = exported(rights=3)
    expect("anyone, with WRITE", len(w.call(CAROL, Op.LEASE_IMPORT_HANDLE, u128(writer))[1]), 20)
    attach = fields(w.call(BOB, Op.LEASE_IMPORT_HANDLE, u128(writer))[1], "u64", "u32", "u64")[0]
    expect("the importer writes", TwoSided(data.endpoint, attach, lease.generation).write(0, b"bob"), 0)
    expect("the holder reads it", data.read(0, 3), (0, b"bob"))
    expect("an importer has no pages", Pages(w.at(BOB), attach).read(0, 4), (1, b""))
    expect("nor a lease", query(w, Lease(attach, 0), BOB), (GONE, None))
    short, _ = exported(ttl=1)
    reader = w.lease(CAROL, 4096, token=w.token(CAROL, Perm.READ | Perm.ALLOC))
    for step, who, params, want in (
        ("33 bytes", ALICE, export(lease)[:-1], PARAMS),
        ("rights 0", ALICE, export(lease, rights=0), PARAMS),
        ("rights 8", ALICE, export(lease, rights=8), PARAMS),
        ("0 s", ALICE, export(lease, ttl=0), PARAMS),
        ("runtime 4", ALICE, export(lease, runtime=4), PARAMS),
        ("another's lease", BOB, export(lease), PERM),
        ("an unknown lease", ALICE, export(Lease(0, 0, key=7)), GONE),
        ("a right that it lacks", CAROL, export(reader, rights=2), PERM),
        ("APPEND is WRITE", CAROL, export(reader, rights=4), PERM),
    ):
        expect(f"LEASE_EXPORT_HANDLE: {step}", w.status(who, Op.LEASE_EXPORT_HANDLE, params), want)
    w.free(CAROL, reader)
    for step, who, params, want in (
        ("another's handle", CAROL, u128(handle), PERM),
        ("an unknown handle", BOB, u128(9), GONE),
        ("15 bytes", BOB, bytes(15), PARAMS),
    ):
        expect(f"LEASE_IMPORT_HANDLE: {step}", w.status(who, Op.LEASE_IMPORT_HANDLE, params), want)
    time.sleep(1.2)
    expect("an expired handle", w.status(BOB, Op.LEASE_IMPORT_HANDLE, u128(short)), GONE)
    got = [w.status(ALICE, Op.LEASE_EXPORT_HANDLE, export(lease)) for _ in range(61)]
    expect("64 handles", got, [OK] * 61)  # three of the four above have not expired
    expect("65 handles", w.status(ALICE, Op.LEASE_EXPORT_HANDLE, export(lease)), FULL)
    w.free(ALICE, lease)
    expect("handles end with the lease", w.status(BOB, Op.LEASE_IMPORT_HANDLE, u128(handle)), GONE)
    expect("so does access", way.read(100, 6), (0x14, b""))


def relocate(source, to, mode=0, until=b"\0"):
    return u64(source.key) + u64(to.key) + u8(mode) + until


def relocation(w):
    source, to, small = w.lease(ALICE, 8192), w.lease(ALICE, 12288), w.lease(ALICE, 4096)
    way = lambda lease: TwoSided(lease.endpoints[Endpoint.TWO_SIDED], lease.key, lease.generation)
    text = bytes(range(256)) * 4
    expect("a write to the source", way(source).write(5000, text), 0)
    expect("LEASE_RELOCATE: copy", w.call(ALICE, Op.LEASE_RELOCATE, relocate(source, to)), (OK, u64(8192) + u8(0)))
    expect("the copy", way(to).read(5000, 1024), (0, text))
    expect("another write to the source", way(source).write(5000, b"later"), 0)
    expect("a copy is a copy", way(to).read(5000, 5), (0, text[:5]))
    expect("LEASE_RELOCATE: seed", w.call(ALICE, Op.LEASE_RELOCATE, relocate(source, to, 2)), (OK, u64(8192) + u8(0)))
    expect("the seed", way(to).read(5000, 5), (0, b"later"))
    status, result = w.call(ALICE, Op.LEASE_RELOCATE, relocate(source, small))
    r = Reader(result)
    expect("a source too large", (status, r.u64(), r.u8(), len(r.text()) > 0), (OK, 0, 2, True))
    status, result = w.call(ALICE, Op.LEASE_RELOCATE, relocate(source, source))
    expect("onto itself", (status, result[:9], len(result) > 13), (OK, u64(0) + u8(2), True))
    foreign, reader = w.lease(BOB, 16384), w.lease(CAROL, 4096, token=w.token(CAROL, Perm.READ | Perm.ALLOC))
    for step, who, params, want in (
        ("mode 3", ALICE, relocate(source, to, 3), PARAMS),
        ("17 bytes", ALICE, relocate(source, to)[:-1], PARAMS),
        ("of 8 bytes less", ALICE, relocate(source, to, 0, b"\1"), PARAMS),
        ("a bad optional", ALICE, relocate(source, to, 0, b"\2"), PARAMS),
        ("from another's", ALICE, relocate(foreign, to), PERM),
        ("to another's", ALICE, relocate(source, foreign), PERM),
        ("unknown", ALICE, relocate(Lease(0, 0, key=3), to), GONE),
        ("to one that may not be written", CAROL, relocate(reader, reader), PERM),
    ):
        expect(f"LEASE_RELOCATE: {step}", w.status(who, Op.LEASE_RELOCATE, params), want)
    soon = u8(1) + u64(time.time_ns() // 10**6 + 500)
    expect(
        "LEASE_RELOCATE: move", w.call(ALICE, Op.LEASE_RELOCATE, relocate(source, to, 1, soon)), (OK, u64(8192) + u8(0))
    )
    expect("moved", way(to).read(5000, 5), (0, b"later"))
    expect("the source is revoked", (query(w, source), way(source).read(0, 1)), ((OK, 2), (0x10, b"")))
    expect("and cannot be moved again", w.status(ALICE, Op.LEASE_RELOCATE, relocate(source, to, 1)), EXPIRED)
    for who, lease in ((ALICE, to), (ALICE, small), (BOB, foreign), (CAROL, reader)):
        w.free(who, lease)


def proxies(w):
    """SVC_TCP to an echo server here."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo():
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            threading.Thread(
                target=lambda: [peer.sendall(d) for d in iter(lambda: peer.recv(4096), b"")], daemon=True
            ).start()

    threading.Thread(target=echo, daemon=True).start()
    token, port = w.token(ALICE), server.getsockname()[1]
    start = now()
    status, result = w.call(ALICE, Op.SVC_TCP_BIND, u32(60) + u16(port), token=token)
    lease_id, expires, ingress = fields(result, "u128", "u64", "u16")
    expect("SVC_TCP_BIND", (status, ingress > 0), (OK, True))
    within("its expiry", expires, start + 60, now() + 60)
    expect("SVC_TCP_QUERY", w.call(BOB, Op.SVC_TCP_QUERY, u128(lease_id)), (OK, u8(0) + u64(expires) + u16(ingress)))
    expect("LEASE_QUERY of it", w.call(BOB, Op.LEASE_QUERY, u128(lease_id)), (OK, u8(0) + u64(expires)))
    peer = socket.create_connection(("127.0.0.1", ingress), 5)
    peer.sendall(b"through the node")
    expect("what comes back", peer.recv(100), b"through the node")
    expect("LEASE_RENEW of it", w.status(ALICE, Op.LEASE_RENEW, u128(lease_id) + u32(90), token=token), OK)
    for step, params, t, want in (
        ("0 s", u32(0) + u16(port), token, PARAMS),
        ("port 0", u32(9) + u16(0), token, PARAMS),
        ("5 bytes", bytes(5), token, PARAMS),
        ("no token", u32(9) + u16(port), b"", Status.INVALID_TOKEN),
    ):
        expect(f"SVC_TCP_BIND: {step}", w.status(ALICE, Op.SVC_TCP_BIND, params, token=t), want)
    memory = w.lease(ALICE, 4096)
    expect("SVC_TCP_QUERY of memory", w.status(ALICE, Op.SVC_TCP_QUERY, u128(memory.lease_id)), GONE)
    w.free(ALICE, memory)
    expect("another's proxy", w.status(BOB, Op.LEASE_FREE, u128(lease_id)), PERM)
    expect("LEASE_FREE of it", w.status(ALICE, Op.LEASE_FREE, u128(lease_id)), OK)
    expect("its connection ends", ended(peer), True)
    expect("its listener ends", refused(ingress), True)
    expect("it is gone", w.status(ALICE, Op.SVC_TCP_QUERY, u128(lease_id)), GONE)
    status, result = w.call(ALICE, Op.SVC_TCP_BIND, u32(1) + u16(port), token=token)
    peer = socket.create_connection(("127.0.0.1", fields(result, "u128", "u64", "u16")[2]), 5)
    revoked = w.token(ALICE)
    status, result = w.call(ALICE, Op.SVC_TCP_BIND, u32(60) + u16(port), token=revoked)
    lease_id, expires, ingress = fields(result, "u128", "u64", "u16")
    params = u128(Token.read(revoked).token_id) + u32(60)
    expect("CAP_REVOKE", w.status(ALICE, Op.CAP_REVOKE, params, token=w.token(ALICE, Perm.REVOKE)), OK)
    expect("a revoked proxy's listener ends", refused(ingress), True)
    expect("and says so", w.call(ALICE, Op.SVC_TCP_QUERY, u128(lease_id)), (OK, u8(2) + u64(expires) + u16(0)))
    time.sleep(1.5)
    expect("an expired proxy's connection ends", ended(peer), True)
    server.close()


def ended(peer):
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def refused(port):
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.05)
    return False
