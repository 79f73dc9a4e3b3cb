"""NVMe/TCP as a host speaks it, over a plain socket, with nothing but the standard library.

Written from the specifications, not from Berth: whatever a controller sends is held to them here, bit by bit.
"""

import socket
import struct
import time

ICREQ, ICRESP, H2C_TERM, C2H_TERM, COMMAND, RESPONSE, H2C_DATA, C2H_DATA, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
HLEN = {kind: 24 for kind in (H2C_TERM, C2H_TERM, RESPONSE, H2C_DATA, C2H_DATA, R2T)}
HLEN |= {ICREQ: 128, ICRESP: 128, COMMAND: 72}
HDGST, DDGST, LAST, SUCCESS = 1, 2, 4, 8

IN_CAPSULE, TRANSPORT = 0x01, 0x5A
FABRICS = 0x7F
DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"

# How long an answer may take.
PATIENCE = 10


def _table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


CRC = tuple(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return struct.pack("<I", crc ^ 0xFFFFFFFF)


assert crc32c(b"123456789") == struct.pack("<I", 0xE3069283)


class Broken(Exception):
    """The controller did what it must not."""


class Ended(Exception):
    """The connection ended without a word."""


class Terminated(Exception):
    """The controller ended the connection: FES, FEI, and the header of the PDU in error."""

    def __init__(self, fes, fei, head):
        super().__init__(f"C2HTermReq, FES {fes} FEI {fei}")
        self.fes, self.fei, self.head = fes, fei, head


class Completion:
    """What a command ended with. `status` is SCT << 8 | SC."""

    def __init__(self, cqe, data):
        self.dw0, self.dw1, self.sqhd, self.sqid, self.cid, word = struct.unpack("<IIHHHH", cqe)
        self.status, self.dnr, self.data = word >> 1 & 0x7FF, word >> 15, data
        if word & 1:
            raise Broken("the phase bit is set")

    def __repr__(self):
        return f"{self.status:#05x}{' DNR' if self.dnr else ''} dw0 {self.dw0:#x}"


def icreq(pfv=0, hpda=0, digests=0, maxr2t=0, hlen=128, plen=128, reserved=0):
    return struct.pack("<BBBBIHBBI", ICREQ, 0, hlen, 0, plen, pfv, hpda, digests, maxr2t) + bytes([reserved] * 112)


class Connection:
    """One connection. `digests`: 1 of headers, 2 of data."""

    def __init__(self, address, digests=0, hpda=0, initialise=True, maxr2t=0):
        self.socket = socket.create_connection(address, PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.digests, self.align, self.held = digests, (hpda + 1) * 4, bytearray()
        if initialise:
            self.send(icreq(hpda=hpda, digests=digests, maxr2t=maxr2t))
            self.initialised()

    def initialised(self):
        head = self.take(128)
        kind, flags, hlen, _, plen, pfv, cpda, digests, self.maxh2c = struct.unpack_from("<BBBBIHBBI", head)
        if (kind, hlen, plen, pfv, cpda, digests) != (ICRESP, 128, 128, 0, 0, self.digests) or flags:
            raise Broken(f"ICResp {bytes(head[:16]).hex()}")
        if self.maxh2c < 4096 or self.maxh2c % 4:
            raise Broken(f"MAXH2CDATA {self.maxh2c}")

    def send(self, data):
        self.socket.sendall(data)

    def take(self, count):
        """The next bytes."""
        while len(self.held) < count:
            try:
                got = self.socket.recv(1 << 18)
            except ConnectionError as error:
                raise Ended(f"reset: {error}") from error
            if not got:
                raise Ended("end of stream" + (" amid a PDU" if self.held else ""))
            self.held += got
        taken = bytes(self.held[:count])
        del self.held[:count]
        return taken

    def pdu(self):
        """The next PDU: its type, flags, header and data."""
        head = self.take(8)
        kind, flags, hlen, pdo, plen = struct.unpack("<BBBBI", head)
        if kind not in (C2H_TERM, RESPONSE, C2H_DATA, R2T) or hlen != HLEN[kind]:
            raise Broken(f"a PDU that begins {head.hex()}")
        head += self.take(hlen - 8)
        if kind == C2H_TERM:
            if flags or not 24 <= plen <= 152:
                raise Broken(f"a C2HTermReq that begins {head.hex()}")
            fes, fei = struct.unpack_from("<HI", head, 8)
            raise Terminated(fes, fei, self.take(plen - 24))
        behind = 0
        if self.digests & 1:
            if self.take(4) != crc32c(head):
                raise Broken("a header digest is wrong")
            behind = 4
        if bool(flags & HDGST) != bool(self.digests & 1):
            raise Broken(f"flags {flags:#x}")
        data, length = b"", plen - hlen - behind
        if length:
            if kind != C2H_DATA or pdo < hlen + behind or pdo % self.align:
                raise Broken(f"PDO {pdo} of a PDU that begins {head.hex()}")
            if any(self.take(pdo - hlen - behind)):
                raise Broken("a pad byte is not zero")
            data = self.take(plen - pdo - (4 if self.digests & 2 else 0))
            if self.digests & 2 and self.take(4) != crc32c(data):
                raise Broken("a data digest is wrong")
        elif pdo or kind == C2H_DATA:
            raise Broken(f"no data, in a PDU that begins {head.hex()}")
        if bool(flags & DDGST) != bool(length and self.digests & 2):
            raise Broken(f"flags {flags:#x} with {length} bytes")
        if flags & ~(HDGST | DDGST) & ~(LAST | SUCCESS if kind == C2H_DATA else 0):
            raise Broken(f"flags {flags:#x} of type {kind}")
        return kind, flags, head, data

    def framed(self, kind, body, data=b"", flags=0, pad=0, ddgst=None, hdgst=None, **header):
        """A PDU; `header` overrides fields of its common header, `ddgst` and `hdgst` the digests."""
        size = HLEN[kind]
        behind = size + (4 if self.digests & 1 else 0)
        pdo = behind + pad if data else 0
        plen = max(behind, pdo) + len(data) + (4 if data and self.digests & 2 else 0)
        flags |= (HDGST if self.digests & 1 else 0) | (DDGST if data and self.digests & 2 else 0)
        fields = {"kind": kind, "flags": flags, "hlen": size, "pdo": pdo, "plen": plen} | header
        out = struct.pack("<BBBBI", *fields.values()) + body
        if self.digests & 1:
            out += hdgst or crc32c(out)
        out += bytes(pad if data else 0) + data
        if data and self.digests & 2:
            out += ddgst or crc32c(data)
        return out

    def h2c_data(self, cccid, ttag, offset, data, last=True, datal=None, **more):
        body = struct.pack("<HHII4x", cccid, ttag, offset, len(data) if datal is None else datal)
        return self.framed(H2C_DATA, body, data, LAST if last else 0, **more)

    def close(self):
        self.socket.close()

    def ends_within(self, seconds):
        """Takes whatever comes until the controller has ended its direction."""
        self.socket.settimeout(seconds)
        begun = time.monotonic()
        try:
            while self.socket.recv(1 << 16):
                if time.monotonic() > begun + seconds:
                    return False
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True


def sqe(opcode, cid, nsid=0, sgl=(0, 0, TRANSPORT), dw=None, flags=0x40):
    """A command. `dw`: dwords 10 and on, by number. FCTYPE of a fabrics command lies where others have the NSID."""
    address, length, kind = sgl
    words = [(dw or {}).get(n, 0) for n in range(10, 16)]
    return struct.pack("<BBHI16xQI3xB6I", opcode, flags, cid, nsid, address, length, kind, *words)


class Queue(Connection):
    """A connection with commands under way."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.last_cid, self.data, self.ended, self.asked = 0, {}, {}, {}
        self.flow_control = True

    def cid(self):
        self.last_cid += 1
        return self.last_cid

    def command(self, opcode, data=None, length=0, cid=None, pad=0, **more):
        """Sends a command, with data in its capsule or a transport descriptor; returns its CID."""
        cid = self.cid() if cid is None else cid
        more.setdefault("sgl", (0, length, TRANSPORT) if data is None else (0, len(data), IN_CAPSULE))
        self.send(self.framed(COMMAND, sqe(opcode, cid, **more), data or b"", pad=pad))
        return cid

    def hear(self):
        """Takes one PDU."""
        kind, flags, head, data = self.pdu()
        if kind == RESPONSE:
            cid = struct.unpack_from("<H", head, 20)[0]
            if cid in self.ended:
                raise Broken(f"command {cid} ended twice")
            self.ended[cid] = Completion(head[8:], self.data.pop(cid, b""))
            return
        cid, ttag, offset, length = struct.unpack_from("<HHII", head, 8)
        if kind == R2T:
            if cid in self.asked or not length or length > self.maxh2c:
                raise Broken(f"R2T of {length} bytes at {offset}")
            self.asked[cid] = (ttag, offset, length)
            return
        got = self.data.get(cid, b"")
        if ttag or offset != len(got) or length != len(data):
            raise Broken(f"C2HData at {offset} of {length} bytes, {len(got)} are there")
        self.data[cid] = got + data
        if flags & SUCCESS:
            if not flags & LAST or self.flow_control:
                raise Broken(f"flags {flags:#x}")
            self.ended[cid] = Completion(struct.pack("<IIHHHH", 0, 0, 0xFFFF, 0, cid, 0), self.data.pop(cid))

    def answer(self, cid, within=PATIENCE):
        """How a command ended; R2Ts wait in `asked`."""
        self.socket.settimeout(within)
        while cid not in self.ended:
            self.hear()
        return self.ended.pop(cid)

    def r2t(self, cid, within=PATIENCE):
        """The next R2T of a command: TTAG, offset, length."""
        self.socket.settimeout(within)
        while cid not in self.asked:
            if cid in self.ended:
                raise Broken(f"{self.ended[cid]} without R2T")
            self.hear()
        return self.asked.pop(cid)

    def call(self, opcode, **more):
        return self.answer(self.command(opcode, **more))

    def transfer(self, cid, data, piece=None, spoil=None):
        """Answers the R2Ts of a command in pieces; `spoil` is the number of the piece whose digest is wrong."""
        at, number = 0, 0
        while at < len(data):
            ttag, offset, length = self.r2t(cid)
            if offset != at:
                raise Broken(f"R2T at {offset}, not {at}")
            end = at + length
            while at < end:
                size = min(piece or length, end - at)
                digest = b"\1\2\3\4" if number == spoil else None
                self.send(self.h2c_data(cid, ttag, at, data[at : at + size], at + size == end, ddgst=digest))
                at, number = at + size, number + 1
        return self.answer(cid)

    def read(self, slba, blocks, within=PATIENCE):
        return self.answer(self.command(2, nsid=1, length=blocks * 512, dw=lba(slba, blocks)), within)

    def write(self, slba, data):
        """A write with its data in the capsule."""
        return self.call(1, nsid=1, data=data, dw=lba(slba, len(data) // 512))

    def write_by_r2t(self, slba, length):
        """Begins a write whose data is asked for."""
        return self.command(1, nsid=1, length=length, dw=lba(slba, length // 512))

    def connect(self, host, qid=0, cntlid=0xFFFF, sqsize=31, kato=0, cattr=0, recfmt=0, length=1024, **other):
        """Connect; `other` replaces names of the host: subnqn, hostnqn, hostid."""
        who = {"subnqn": host.subnqn, "hostnqn": host.hostnqn, "hostid": host.hostid} | other
        names = nqn(who["subnqn"]) + nqn(who["hostnqn"])
        data = who["hostid"] + struct.pack("<H", cntlid) + bytes(238) + names + bytes(256)
        self.flow_control = not cattr & 4
        dw = {10: qid << 16 | recfmt, 11: cattr << 16 | sqsize, 12: kato}
        return self.call(FABRICS, data=data[:length], nsid=1, dw=dw)

    def get_property(self, offset, wide=0):
        return self.call(FABRICS, nsid=4, dw={10: wide, 11: offset})

    def set_property(self, offset, value, wide=0):
        return self.call(FABRICS, nsid=0, dw={10: wide, 11: offset, 12: value & 0xFFFFFFFF, 13: value >> 32})

    def identify(self, cns, nsid=0):
        return self.call(6, nsid=nsid, length=4096, dw={10: cns})

    def log(self, lid, length, offset=0, retain=0, nsid=0xFFFFFFFF):
        words = length // 4 - 1
        dw = {10: lid | retain << 15 | (words & 0xFFFF) << 16, 11: words >> 16, 12: offset}
        return self.call(2, nsid=nsid, length=length, dw=dw)

    def set_feature(self, fid, value):
        return self.call(9, dw={10: fid, 11: value})


def lba(slba, blocks):
    return {10: slba & 0xFFFFFFFF, 11: slba >> 32, 12: blocks - 1}


def nqn(name):
    name = name.encode() if isinstance(name, str) else name
    return name.ljust(256, b"\0")


class Host:
    """A host of one subsystem: an association, once it has an admin queue."""

    def __init__(self, address, subnqn, hostnqn, hostid):
        self.address, self.subnqn, self.hostnqn, self.hostid = address, subnqn, hostnqn, hostid
        self.admin, self.cntlid, self.qids = None, None, 0

    def associate(self, digests=0, enable=True, **connect):
        self.admin = Queue(self.address, digests)
        done = self.admin.connect(self, **connect)
        if done.status:
            raise Broken(f"Connect: {done}")
        self.cntlid = done.dw0 & 0xFFFF
        if enable:
            self.enable()
        return self.admin

    def enable(self):
        done = self.admin.set_property(0x14, 0x00460001)
        if done.status:
            raise Broken(f"CC.EN: {done}")
        while not self.admin.get_property(0x1C).dw0 & 1:
            time.sleep(0.01)

    def io(self, digests=0, qid=None, queue=None, **connect):
        """One more I/O queue."""
        if qid is None:
            # The next one: that of a connection that has just ended may still be in use.
            self.qids = self.qids % 8 + 1
            qid = self.qids
        queue = queue or Queue(self.address, digests)
        deadline = time.monotonic() + PATIENCE
        while True:
            done = queue.connect(self, qid=qid, cntlid=self.cntlid, **connect)
            if not done.status:
                return queue
            if done.status != 0x101 or time.monotonic() > deadline:
                raise Broken(f"Connect of queue {qid}: {done}")
            time.sleep(0.05)

    def close(self):
        self.admin.close()
