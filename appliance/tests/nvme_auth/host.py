"""An NVMe/TCP host that authenticates, written from the specifications with Python's own arithmetic.

host.py ADDRESS PORT SUBNQN HOSTNQN SECRET CONTROLLER_SECRET HASHES GROUPS [FLOOD]

For each hash and group: an admin queue and an I/O queue that prove who they are, and a block that is written and read
back. SECRET "-": it does not authenticate. CONTROLLER_SECRET "-": it asks for no proof of the controller's. Prints a line
for each: "ok", or how it failed.

With FLOOD: as many connections from 127.0.0.2 that ask for the challenge of the last group and stay. Prints "flooding" when
all have asked, and at the end of its input how many were answered.
"""
import base64, ctypes, hashlib, hmac, os, select, socket, struct, sys, zlib

NAMES = [None, "sha256", "sha384", "sha512"]
BITS = [0, 2048, 3072, 4096, 6144, 8192]
HOST_ID = bytes(range(16))


class Failed(Exception):
    pass


def prime(bits):
    """The primes of RFC 7919, from OpenSSL."""
    crypto = ctypes.CDLL("libcrypto.so.3")
    crypto.DH_new_by_nid.restype = crypto.DH_get0_p.restype = ctypes.c_void_p
    crypto.DH_get0_p.argtypes = crypto.BN_bn2hex.argtypes = [ctypes.c_void_p]
    crypto.BN_bn2hex.restype = ctypes.c_char_p
    dh = crypto.DH_new_by_nid(crypto.OBJ_sn2nid(b"ffdhe%d" % bits))
    return int(crypto.BN_bn2hex(crypto.DH_get0_p(dh)), 16)


def key_of(text, nqn):
    """The key that whoever is called nqn uses."""
    kind, transform, encoded, rest = text.split(":")
    assert (kind, rest) == ("DHHC-1", "")
    raw = base64.b64decode(encoded, validate=True)
    key, crc = raw[:-4], raw[-4:]
    assert zlib.crc32(key).to_bytes(4, "little") == crc and len(key) in (32, 48, 64)
    return hmac.digest(key, nqn + b"NVMe-over-Fabrics", NAMES[int(transform)]) if int(transform) else key


class Queue:
    def __init__(self, options, source=""):
        self.o = options
        self.cid = 0
        self.t_id = os.urandom(2)
        self.s = socket.create_connection((options.address, options.port), timeout=30, source_address=(source, 0))
        self.s.sendall(struct.pack("<BBBBIHBBI112x", 0, 0, 128, 0, 128, 0, 0, 0, 0))
        response = self.exactly(128)
        assert (response[0], response[2]) == (1, 128), response

    def exactly(self, count):
        data = b""
        while len(data) < count:
            piece = self.s.recv(count - len(data))
            if not piece:
                raise Failed("closed")
            data += piece
        return data

    def command(self, *args, **kwargs):
        """Sends a command with data in its capsule; returns dword 0 and what came."""
        self.submit(*args, **kwargs)
        return self.complete()

    def submit(self, opcode, nsid, words, data=b"", receive=0):
        self.cid += 1
        if receive:
            sgl = struct.pack("<QI3xB", 0, receive, 0x5A)
        else:
            sgl = struct.pack("<QI3xB", 0, len(data), 0x01)
        sqe = struct.pack("<BBHI16x", opcode, 0x40, self.cid, nsid) + sgl + words.ljust(24, b"\0")
        assert len(sqe) == 64
        self.s.sendall(struct.pack("<BBBBI", 4, 0, 72, 72 if data else 0, 72 + len(data)) + sqe + data)

    def complete(self):
        came = b""
        while True:
            kind, flags, hlen, pdo, plen = struct.unpack("<BBBBI", self.exactly(8))
            rest = self.exactly(plen - 8)
            if kind == 7:
                assert struct.unpack_from("<I", rest, 4)[0] == len(came)
                came += rest[pdo - 8:]
                if flags & 8:
                    return 0, came
            elif kind == 5:
                dword, cid, status = struct.unpack("<I8xHH", rest)
                assert cid == self.cid
                if status >> 1 & 0x7FF:
                    raise Failed("status 0x%03x" % (status >> 1 & 0x7FF))
                return dword, came
            else:
                raise Failed("PDU %d" % kind)

    def connect(self, queue, controller):
        words = struct.pack("<HHHBxI", 0, queue, 31, 0, 0)
        data = HOST_ID + struct.pack("<H", controller) + bytes(238)
        data += self.o.subsystem.ljust(256, b"\0") + self.o.host.ljust(256, b"\0") + bytes(256)
        dword, _ = self.command(0x7F, 1, words, data)
        assert dword & 1 << 17, "authentication is not asked for"
        return dword & 0xFFFF

    def send(self, message):
        self.command(0x7F, 5, struct.pack("<II", 0xE9010100, len(message)), message)

    def ask(self):
        self.submit(0x7F, 6, struct.pack("<II", 0xE9010100, 4096), receive=4096)

    def receive(self, kind, ident):
        self.ask()
        _, message = self.complete()
        if message[:2] == b"\0\xf1":
            raise Failed("failure1 %d" % message[7])
        assert message[:2] == bytes([kind, ident]) and message[4:6] == self.t_id, message[:16]
        return message

    def response(self, key, role, own, peer, challenge, sequence, hash_name, shared):
        if shared is not None:
            challenge = hmac.digest(hashlib.new(hash_name, shared).digest(), challenge, hash_name)
        text = challenge + struct.pack("<I", sequence) + self.t_id + b"\0" + role + own + b"\0" + peer
        return hmac.digest(key, text, hash_name)

    def offer(self, hash_id, group):
        descriptor = bytes([1, 0, 1, 1, hash_id]) + bytes(29) + bytes([group]) + bytes(29)
        self.send(b"\0\0\0\0" + self.t_id + b"\0\1" + descriptor)

    def authenticate(self, hash_id, group):
        o, name = self.o, NAMES[hash_id]
        self.offer(hash_id, group)
        message = self.receive(1, 1)
        length, got_hash, got_group, dh_len, sequence = struct.unpack_from("<B1xBBHI", message, 6)
        size = hashlib.new(name).digest_size
        assert (length, got_hash, got_group) == (size, hash_id, group), message[:16]
        challenge, dh = message[16:16 + size], message[16 + size:16 + size + dh_len]
        public, shared = b"", None
        if group:
            p, width = prime(BITS[group]), BITS[group] // 8
            y = int.from_bytes(os.urandom(64), "big")
            assert dh_len == width
            public = pow(2, y, p).to_bytes(width, "big")
            shared = pow(int.from_bytes(dh, "big"), y, p).to_bytes(width, "big")
        response = self.response(key_of(o.secret, o.host), b"HostHost", o.host, o.subsystem, challenge, sequence, name, shared)
        own, own_sequence = os.urandom(size), 77
        mutual = o.controller != "-"
        head = b"\1\2\0\0" + self.t_id + struct.pack("<BxBxHI", size, mutual, len(public), own_sequence)
        self.send(head + response + (own if mutual else bytes(size)) + public)
        message = self.receive(1, 3)
        assert (message[6], message[8]) == (size, mutual)
        if mutual:
            key = key_of(o.controller, o.subsystem)
            right = self.response(key, b"Controller", o.subsystem, o.host, own, own_sequence, name, shared)
            if not hmac.compare_digest(right, message[16:16 + size]):
                self.send(b"\0\xf0\0\0" + self.t_id + b"\1\1")
                raise Failed("the controller does not know the secret")
            self.send(b"\1\4\0\0" + self.t_id + bytes(10))

    def get(self, offset):
        return self.command(0x7F, 4, struct.pack("<II", 0, offset))[0]


class Options:
    def __init__(self, address, port, subsystem, host, secret, controller):
        self.address, self.port = address, int(port)
        self.subsystem, self.host = subsystem.encode(), host.encode()
        self.secret, self.controller = secret, controller


def once(options, hash_id, group):
    admin = Queue(options)
    controller = admin.connect(0, 0xFFFF)
    if options.secret != "-":
        try:
            admin.get(0x1C)
            raise Failed("properties before authentication")
        except Failed as early:
            assert str(early) == "status 0x191", early
        admin.authenticate(hash_id, group)
    admin.command(0x7F, 0, struct.pack("<IIQ", 0, 0x14, 0x00460001))
    while not admin.get(0x1C) & 1:
        pass
    io = Queue(options)
    io.connect(1, controller)
    io.authenticate(hash_id, group)
    block = os.urandom(512)
    io.command(1, 1, struct.pack("<QI", hash_id * 8 + group, 0), block)
    _, back = io.command(2, 1, struct.pack("<QI", hash_id * 8 + group, 0), receive=512)
    assert back == block


def flood(options, group, count):
    queues = [Queue(options, "127.0.0.2") for _ in range(count)]
    for queue in queues:
        queue.connect(0, 0xFFFF)
        queue.offer(1, group)
        queue.ask()
    print("flooding", flush=True)
    sys.stdin.read()
    print(len(select.select([queue.s for queue in queues], [], [], 0)[0]))


def main():
    options = Options(*sys.argv[1:7])
    if len(sys.argv) > 9:
        return flood(options, int(sys.argv[8][-1]), int(sys.argv[9]))
    for hash_id in map(int, sys.argv[7].split(",")):
        for group in map(int, sys.argv[8].split(",")):
            try:
                once(options, hash_id, group)
                print("ok")
            except Failed as failed:
                print(failed)


main()
