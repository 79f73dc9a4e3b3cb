import base64, ctypes, hashlib, hmac, zlib

CRYPTO = ctypes.CDLL("libcrypto.so.3")
CRYPTO.DH_new_by_nid.restype = CRYPTO.DH_get0_p.restype = ctypes.c_void_p
CRYPTO.DH_get0_p.argtypes = [ctypes.c_void_p]
CRYPTO.BN_bn2hex.restype = ctypes.c_char_p
CRYPTO.BN_bn2hex.argtypes = [ctypes.c_void_p]
HASHES = [None, "sha256", "sha384", "sha512"]
BITS = [0, 2048, 3072, 4096, 6144, 8192]
HOST = b"nqn.2014-08.org.nvmexpress:uuid:host"
SUBSYSTEM = b"nqn.2026-01.example:lease"
T_ID = 0x1234


def prime(bits):
    nid = CRYPTO.OBJ_sn2nid(b"ffdhe%d" % bits)
    return int(CRYPTO.BN_bn2hex(CRYPTO.DH_get0_p(CRYPTO.DH_new_by_nid(nid))), 16)


def random(seed):
    return bytes((seed + 7 * i) & 255 for i in range(132))


def transformed(key, transform, nqn):
    return hmac.digest(key, nqn + b"NVMe-over-Fabrics", HASHES[transform]) if transform else key


def secret(key, transform):
    return "DHHC-1:%02d:%s:" % (transform, base64.b64encode(key + zlib.crc32(key).to_bytes(4, "little")).decode())


def respond(name, key, challenge, sequence, role, own, peer, shared):
    if shared is not None:
        challenge = hmac.digest(hashlib.new(name, shared).digest(), challenge, name)
    text = challenge + sequence.to_bytes(4, "little") + T_ID.to_bytes(2, "little") + b"\0" + role + own + b"\0" + peer
    return hmac.digest(key, text, name).hex()


def main():
    print("%x" % prime(2048))
    for number, (hash_id, group, transform, length) in enumerate([
        (1, 0, 1, 32), (2, 0, 0, 48), (3, 0, 3, 64), (1, 1, 0, 32), (2, 2, 2, 48), (3, 3, 1, 32), (1, 4, 3, 64), (3, 5, 0, 32),
    ]):
        name, host_random, controller_random = HASHES[hash_id], random(number), random(number + 100)
        host_key, controller_key = bytes(range(length)), bytes(range(100, 100 + length))
        dh = ["-", "-"]
        shared = None
        if group:
            p, size = prime(BITS[group]), BITS[group] // 8
            x, y = (int.from_bytes(r[64:128], "big") for r in (controller_random, host_random))
            dh = [hashlib.sha256(pow(2, power, p).to_bytes(size, "big")).hexdigest() for power in (x, y)]
            shared = pow(pow(2, x, p), y, p).to_bytes(size, "big")
        size = hashlib.new(name).digest_size
        sequences = [int.from_bytes(r[128:], "little") for r in (controller_random, host_random)]
        keys = transformed(host_key, transform, HOST), transformed(controller_key, transform, SUBSYSTEM)
        responses = [
            respond(name, keys[0], controller_random[:size], sequences[0], b"HostHost", HOST, SUBSYSTEM, shared),
            respond(name, keys[1], host_random[:size], sequences[1], b"Controller", SUBSYSTEM, HOST, shared),
        ]
        print(hash_id, group, secret(host_key, transform), secret(controller_key, transform), *dh, *responses)


main()
