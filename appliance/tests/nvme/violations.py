"""Every line of the table of violations, each by FES and FEI: its connection ends, and no other, and nothing is
written. What is no violation though it looks like one is here too."""

import socket
import struct
import time

import tcp
from tcp import COMMAND, FABRICS, H2C_DATA, H2C_TERM, IN_CAPSULE, TRANSPORT, Terminated, lba, sqe
from world import Different, expect, expect_status, within

# How long a connection may last after a violation.
GONE_WITHIN = 2

# By name, in bits as ICReq has them.
DIGESTS = {"no digests": 0, "header digests": 1, "data digests": 2, "both digests": 3}


def terminates(what, connection, pdu, *wanted):
    """Sends bytes; C2HTermReq must come with one of these pairs of FES and FEI, and then the end."""
    begun = time.monotonic()
    connection.send(pdu)
    connection.socket.settimeout(GONE_WITHIN)
    try:
        while True:
            connection.pdu()
    except Terminated as end:
        expect(what, (end.fes, end.fei) in wanted or (end.fes, end.fei), True)
        head = pdu[: len(end.head)]
        expect(f"{what}: the header in error comes back", (end.head, len(head) >= min(8, len(pdu))), (head, True))
    except (tcp.Ended, TimeoutError) as error:
        raise Different(f"{what}: {error}, and no C2HTermReq") from error
    expect(f"{what}: the connection ends", connection.ends_within(begun + GONE_WITHIN - time.monotonic()), True)
    connection.close()


class Target:
    """The host that misbehaves: its queues come and go, its admin queue stays."""

    def __init__(self, world):
        self.world, self.host = world, world.victim
        self.host.associate()
        self.bytes = bytes(range(256)) * 64
        io = self.host.io()
        for at in range(0, len(self.bytes), 4096):
            expect("a write", io.write(at // 512, self.bytes[at : at + 4096]).status, 0)
        io.close()

    def io(self, digests=0):
        return self.host.io(digests)

    def asked(self, digests=0, length=8192, slba=0):
        """A queue with an R2T outstanding: the queue, CID, TTAG."""
        queue = self.io(digests)
        cid = queue.write_by_r2t(slba, length)
        ttag, offset, asked = queue.r2t(cid)
        expect("the first R2T", (offset, asked), (0, min(length, queue.maxh2c)))
        return queue, cid, ttag

    def whole(self, what):
        """Nothing was written, and nobody else noticed."""
        expect(f"{what}: its admin queue goes on", self.host.admin.call(0x18).status, 0)
        io = self.io()
        done = io.read(0, len(self.bytes) // 512)
        expect(f"{what}: nothing is written", (done.status, done.data == self.bytes), (0, True))
        io.close()
        self.world.others_go_on(what)


def types(target):
    for kind in (1, 3, 5, 7, 8, 9, 10, 0x7F, 0xFF):
        queue = target.io()
        terminates(f"type {kind}", queue, struct.pack("<BBBBI", kind, 0, 24, 0, 24) + bytes(16), (1, 0))
    target.whole("other types")


def initialisation(target):
    address = target.world.address
    fresh = lambda: tcp.Connection(address, initialise=False)  # noqa: E731
    command = sqe(FABRICS, 1, nsid=4, dw={11: 8})
    terminates("a command first of all", fresh(), fresh().framed(COMMAND, command), (2, 0))
    terminates("data first of all", fresh(), fresh().h2c_data(1, 1, 0, bytes(512)), (2, 0))
    terminates("ICReq again", target.io(), tcp.icreq(), (2, 0))
    terminates("ICReq twice", tcp.Connection(address), tcp.icreq(), (2, 0))
    terminates("PFV 1", fresh(), tcp.icreq(pfv=1), (6, 8))
    terminates("HPDA 32", fresh(), tcp.icreq(hpda=32), (1, 10))
    for hlen in (0, 24, 127, 129, 255):
        terminates(f"ICReq of HLEN {hlen}", fresh(), tcp.icreq(hlen=hlen), (1, 2))
    for plen in (0, 127, 129, 1 << 31):
        terminates(f"ICReq of PLEN {plen}", fresh(), tcp.icreq(plen=plen), (1, 4))
    for digests in DIGESTS.values():
        for hpda in (0, 1, 31):
            odd = tcp.Connection(address, initialise=False)
            odd.digests = digests
            odd.send(tcp.icreq(hpda=hpda, digests=digests, maxr2t=0xFFFFFFFF, reserved=0xFF))
            odd.initialised()
            odd.close()
    target.whole("initialisation")


def lengths(target):
    """Decided from eight bytes: no more of the PDU is sent."""
    for name, digests in DIGESTS.items():
        behind = 4 if digests & 1 else 0
        flags = 1 if digests & 1 else 0
        with_data = flags | (2 if digests & 2 else 0)
        tail = 4 if digests & 2 else 0

        def header(kind, flags, hlen, pdo, plen):
            return struct.pack("<BBBBI", kind, flags, hlen, pdo, plen)

        def one(what, pdu, fei):
            terminates(f"{what}, {name}", target.io(digests), pdu, (1, fei))  # noqa: B023

        for hlen in (0, 24, 71, 73, 128, 255):
            one(f"a command of HLEN {hlen}", header(COMMAND, flags, hlen, 0, 72 + behind), 2)
        for hlen in (0, 23, 25, 72):
            one(f"data of HLEN {hlen}", header(H2C_DATA, with_data, hlen, 24 + behind, 1024), 2)
        one("a command without data, of PDO 72", header(COMMAND, flags, 72, 72, 72 + behind), 3)
        for pdo in (0, 8, 68 + behind, 73 + behind, 74 + behind):
            plen = 72 + behind + 512 + tail
            one(f"a command with data, of PDO {pdo}", header(COMMAND, with_data, 72, pdo, plen), 3)
        for pdo in (0, 20 + behind, 25 + behind):
            one(f"data of PDO {pdo}", header(H2C_DATA, with_data, 24, pdo, 24 + behind + 512 + tail), 3)
        for plen in (0, 8, 71, 71 + behind):
            one(f"a command of PLEN {plen}", header(COMMAND, flags, 72, 0, plen), 4)
        for plen in (1 << 20, 0x7FFFFFFF, 0xFFFFFFFF):
            one(f"a command of PLEN {plen}", header(COMMAND, with_data, 72, 72 + behind, plen), 4)
        for plen in (0, 23, 23 + behind, 24 + behind):
            one(f"data of PLEN {plen}", header(H2C_DATA, with_data, 24, 24 + behind, plen), 4)
        # Flags: neither more nor less than was negotiated.
        one("the other HDGSTF", header(COMMAND, flags ^ 1, 72, 0, 72 + behind), 1)
        one("the other HDGSTF with data", header(H2C_DATA, with_data ^ 1, 24, 24 + behind, 24 + behind + 512 + tail), 1)
        one("DDGSTF without data", header(COMMAND, flags | 2, 72, 0, 72 + behind), 1)
        one("the other DDGSTF", header(COMMAND, with_data ^ 2, 72, 72 + behind, 72 + behind + 512 + tail), 1)
        one("the other DDGSTF of data", header(H2C_DATA, with_data ^ 2, 24, 24 + behind, 24 + behind + 512 + tail), 1)
    # What the SGL says, and DATAL.
    for name, digests in DIGESTS.items():
        for told in (508, 516, 0, 0xFFFFFFFF):
            queue = target.io(digests)
            command = sqe(1, 1, nsid=1, sgl=(0, told, IN_CAPSULE), dw=lba(0, 1))
            pdu = queue.framed(COMMAND, command, bytes(512))
            terminates(f"512 bytes, {told} in the SGL, {name}", queue, pdu, (1, 4))
        queue = target.io(digests)
        command = sqe(1, 1, nsid=1, sgl=(0, 512, IN_CAPSULE), dw=lba(0, 1))
        terminates(f"no bytes, 512 in the SGL, {name}", queue, queue.framed(COMMAND, command), (1, 4))
        for told in (0, 508, 516, 0xFFFFFFFF):
            queue, cid, ttag = target.asked(digests)
            pdu = queue.h2c_data(cid, ttag, 0, bytes(512), False, datal=told)
            terminates(f"512 bytes of data, DATAL {told}, {name}", queue, pdu, (1, 4))
    target.whole("lengths, offsets and flags")
    # Pads, which a host may put where it likes.
    queue = target.io(3)
    for pad in (0, 4, 8, 120):
        cid = queue.command(1, nsid=1, data=target.bytes[:512], dw=lba(0, 1), pad=pad)
        expect_status(f"a pad of {pad} bytes", queue.answer(cid), 0)
    queue.close()


def header_digests(target):
    for digests in (1, 3):
        queue = target.io(digests)
        command = sqe(1, 1, nsid=1, sgl=(0, 512, IN_CAPSULE), dw=lba(0, 1))
        pdu = queue.framed(COMMAND, command, bytes(512), hdgst=b"\0\1\2\3")
        terminates("a command with a wrong header digest", queue, pdu, (3, 0))
        queue, cid, ttag = target.asked(digests)
        pdu = queue.h2c_data(cid, ttag, 0, bytes(8192), hdgst=b"\0\1\2\3")
        terminates("data with a wrong header digest", queue, pdu, (3, 0))
        queue = target.io(digests)
        pdu = queue.framed(COMMAND, command, bytes(512), hdgst=b"\0\1\2\3", plen=0xFFFFFFF0)
        terminates("a wrong header digest behind a wrong length", queue, pdu, (1, 4))
    target.whole("header digests")


def unasked(target):
    """H2CData for which there is no R2T."""
    none = ((2, 0), (1, 10))
    for name, digests in DIGESTS.items():
        queue = target.io(digests)
        terminates(f"data without R2T, {name}", queue, queue.h2c_data(1, 0, 0, bytes(512)), *none)
        queue, cid, ttag = target.asked(digests)
        pdu = queue.h2c_data(cid, ttag ^ 0x100, 0, bytes(8192))
        terminates(f"data with another TTAG, {name}", queue, pdu, *none)
        queue, cid, ttag = target.asked(digests)
        pdu = queue.h2c_data(cid, ttag ^ 1, 0, bytes(8192))
        terminates(f"data with a TTAG of another slot, {name}", queue, pdu, *none)
    queue = target.io()
    terminates("data for a read", queue, read_then_data(queue), *none)
    queue, cid, ttag = target.asked(length=512)
    queue.send(queue.h2c_data(cid, ttag, 0, target.bytes[:512]))
    expect("a write by R2T", queue.answer(cid).status, 0)
    terminates("data for a command that is over", queue, queue.h2c_data(cid, ttag, 0, bytes(512)), *none)
    queue, cid, ttag = target.asked(length=512)
    queue.send(queue.h2c_data(cid, ttag, 0, target.bytes[:512]))
    expect("a write by R2T", queue.answer(cid).status, 0)
    # The slot is another command's now, which has not asked for the old one's data.
    again = queue.write_by_r2t(0, 512)
    expect("the TTAG is fresh", queue.r2t(again)[0] != ttag, True)
    terminates("data for the command before", queue, queue.h2c_data(cid, ttag, 0, bytes(512)), *none)
    # On the admin queue, and on a connection before Connect.
    admin = tcp.Queue(target.world.address)
    expect("Connect", admin.connect(target.host).status, 0)
    terminates("data for an admin queue", admin, admin.h2c_data(1, 0, 0, bytes(512)), *none)
    fresh = tcp.Queue(target.world.address)
    terminates("data before Connect", fresh, fresh.h2c_data(1, 0, 0, bytes(1024)), *none)
    target.whole("data that nobody asked for")


def read_then_data(queue):
    done = queue.command(2, nsid=1, length=4096, dw=lba(0, 8))
    return queue.h2c_data(done, 0, 0, bytes(4096))


def transfers(target):
    """H2CData that is not what the R2T asked for."""
    for name, digests in DIGESTS.items():

        def one(what, wanted, cid=0, offset=0, data=bytes(512), last=False, length=8192, before=0):
            queue, real, ttag = target.asked(digests, length)  # noqa: B023
            if before:
                queue.send(queue.h2c_data(real, ttag, 0, bytes(before), False))
            pdu = queue.h2c_data(real + cid, ttag, offset, data, last)
            terminates(f"{what}, {name}", queue, pdu, wanted)  # noqa: B023

        one("another CCCID", (1, 8), cid=1)
        one("DATAO beyond the next byte", (4, 0), offset=512)
        one("DATAO 4 too far", (4, 0), offset=4)
        one("DATAO at the edge of 32 bits", (4, 0), offset=0xFFFFFE00)
        one("beyond the R2T", (4, 0), data=bytes(8196), last=True)
        one("a byte of data beyond a short R2T", (4, 0), data=bytes(516), last=True, length=512)
        one("LAST_PDU too soon", (1, 1), last=True)
    for name, digests in DIGESTS.items():
        queue, cid, ttag = target.asked(digests, 1 << 19)
        over = struct.pack("<HHII4x", cid, ttag, 0, queue.maxh2c + 4)
        pdu = queue.framed(H2C_DATA, over, bytes(queue.maxh2c + 4), tcp.LAST)[:4096]
        terminates(f"more than MAXH2CDATA, {name}", queue, pdu, (5, 0))
    target.whole("data that is not what was asked for")
    # What came of a transfer before it goes wrong is the host's own to lose: in blocks of another range.
    for digests in (0, 2):
        queue, cid, ttag = target.asked(digests, 8192, slba=1024)
        queue.send(queue.h2c_data(cid, ttag, 0, bytes(4096), False))
        terminates("DATAO that was there before", queue, queue.h2c_data(cid, ttag, 0, bytes(4096)), (4, 0))
    target.whole("a transfer that goes wrong")


def data_digests(target):
    """Not fatal: the command alone fails, nothing of it is written, and the connection goes on."""
    for digests in (2, 3):
        queue = target.io(digests)
        command = sqe(1, queue.cid(), nsid=1, sgl=(0, 512, IN_CAPSULE), dw=lba(0, 1))
        queue.send(queue.framed(COMMAND, command, b"x" * 512, ddgst=b"\1\2\3\4"))
        expect_status("a capsule with a wrong data digest", queue.answer(queue.last_cid), 0x022, dnr=0)
        for spoil in (0, 3, 15):
            done = queue.transfer(queue.write_by_r2t(0, 8192), b"x" * 8192, piece=512, spoil=spoil)
            expect_status(f"piece {spoil} with a wrong data digest", done, 0x022, dnr=0)
        done = queue.transfer(queue.write_by_r2t(0, 1 << 19), b"x" * (1 << 19), piece=65536, spoil=0)
        expect_status("a wrong data digest in the first of several R2Ts", done, 0x022, dnr=0)
        done = queue.read(0, len(target.bytes) // 512)
        expect("the connection goes on, and nothing is written", (done.status, done.data == target.bytes), (0, True))
        queue.close()
    target.whole("data digests")


def capsules(target):
    """Data in capsules, where it may be and how long."""
    identify = target.host.admin.identify(1).data
    ioccsz = struct.unpack_from("<I", identify, 1792)[0]
    limit, most = ioccsz * 16 - 64, max(ioccsz * 16 - 64, 8192)
    for name, digests in DIGESTS.items():
        queue = target.io(digests)
        over = sqe(1, 1, nsid=1, sgl=(0, limit + 512, IN_CAPSULE), dw=lba(0, limit // 512 + 1))
        # Where the header alone says so, it is a length that no capsule has.
        wanted = (5, 0) if limit < most else (1, 4)
        terminates(f"over the limit, {name}", queue, queue.framed(COMMAND, over, bytes(limit + 512)), wanted)
        if limit > 8192:
            admin = tcp.Queue(target.world.address, digests)
            over = sqe(FABRICS, 1, nsid=1, sgl=(0, 8196, IN_CAPSULE))
            terminates(f"over an admin queue's limit, {name}", admin, admin.framed(COMMAND, over, bytes(8196)), (5, 0))
        for what, sgl in {
            "an offset": (512, 512, IN_CAPSULE),
            "no descriptor of a capsule": (0, 512, TRANSPORT),
            "an unknown descriptor": (0, 512, 0x00),
            "a keyed descriptor": (0, 512, 0x40),
            "a segment": (0, 512, 0x20),
        }.items():
            queue = target.io(digests)
            command = sqe(1, 1, nsid=1, sgl=sgl, dw=lba(0, 1))
            terminates(f"data with {what}, {name}", queue, queue.framed(COMMAND, command, bytes(512)), (6, 32))
        queue = target.io(digests)
        command = sqe(2, 1, nsid=1, sgl=(0, 512, IN_CAPSULE), dw=lba(0, 1))
        terminates(f"data that comes with a read, {name}", queue, queue.framed(COMMAND, command, bytes(512)), (6, 32))
    queue = target.io()
    expect_status("a capsule as long as may be", queue.write(1024, bytes(limit - limit % 512)), 0)
    for what, sgl in {"an offset": (512, 512, IN_CAPSULE), "an unknown descriptor": (0, 512, 0x00)}.items():
        expect_status(f"{what}, without data", queue.call(1, nsid=1, sgl=sgl, dw=lba(0, 1)), 0x011)
    expect_status("a read into the capsule", queue.call(2, nsid=1, sgl=(0, 0, IN_CAPSULE), dw=lba(0, 1)), 0x011)
    for flags in (0x00, 0x80, 0xC0):
        expect_status(f"PSDT {flags >> 6}", queue.call(2, nsid=1, length=512, flags=flags, dw=lba(0, 1)), 0x002)
    # Without R2T: `answer` would not come else.
    for opcode, length in ((1, 512), (1, 1536), (1, 0), (2, 512), (2, 1536), (5, 512)):
        done = queue.call(opcode, nsid=1, length=length, dw=lba(0, 2))
        expect_status(f"opcode {opcode} of two blocks with {length} bytes", done, 0x00F)
        expect("no R2T", queue.asked, {})
    expect_status("1024 bytes for one block", queue.call(1, nsid=1, data=bytes(1024), dw=lba(0, 1)), 0x00F)
    queue.close()
    target.whole("capsules")


def goodbyes(target):
    """H2CTermReq: no word is answered. And how a connection ends whose host goes on sending."""
    queue = target.io()
    queue.send(queue.framed(H2C_TERM, struct.pack("<HI10x", 1, 4)))
    try:
        queue.pdu()
        raise Different("H2CTermReq is answered")
    except tcp.Ended:
        pass
    queue.close()
    queue = target.io()
    begun = time.monotonic()
    queue.send(struct.pack("<BBBBI", 0xFF, 0, 24, 0, 24) + bytes(16))

    def refused():
        try:
            queue.socket.send(bytes(65536), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return False

    within("a host that goes on sending is cut off", GONE_WITHIN, refused)
    expect("and was told why", told(queue), (1, 0))
    expect("in time", time.monotonic() - begun < GONE_WITHIN, True)
    queue.close()
    target.whole("goodbyes")


def told(queue):
    """FES and FEI of what was received before the reset."""
    try:
        queue.pdu()
    except Terminated as end:
        return end.fes, end.fei
    except tcp.Ended as end:
        return str(end)


PARTS = [types, initialisation, lengths, header_digests, unasked, transfers, data_digests, capsules, goodbyes]


def run(world):
    target = Target(world)
    for part in PARTS:
        part(target)
    target.host.close()
