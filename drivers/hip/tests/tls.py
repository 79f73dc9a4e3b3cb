"""What a worker does with clients that speak TLS, and with those that do not quite.

    tls.py ADDRESS CERTIFICATE

Exits with 0 if the worker does what docs/hip-remote.md says.
"""

import os
import socket
import ssl
import struct
import sys

HOST, PORT = sys.argv[1].rsplit(":", 1)
PING = struct.pack("<IHHIQI", 0x48495052, 0x0100, 0x0003, 7, 0, 0)
PONG = struct.pack("<IHHIQII", 0x48495052, 0x0100, 0x0003, 7, 4, 1, 0)


def connect():
    raw = socket.create_connection((HOST, int(PORT)), timeout=20)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return raw


def context():
    return ssl.create_default_context(cafile=sys.argv[2])


def rest(raw):
    """All that comes until the worker closes."""
    data = b""
    try:
        while more := raw.recv(4096):
            data += more
    except ConnectionResetError:
        pass
    return data


def is_refused(data):
    """At most an alert, in plain text or encrypted, and nothing of the protocol."""
    return len(data) < 64 and data[:1] in (b"", b"\x15", b"\x17") and b"RPIH" not in data


class Handshake:
    """A client that hands over its bytes."""

    def __init__(self, raw):
        self.raw, self.incoming, self.outgoing = raw, ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context().wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def step(self):
        """What the client sends next; nothing once it is done."""
        try:
            self.tls.do_handshake()
            return self.outgoing.read()
        except ssl.SSLWantReadError:
            return self.outgoing.read()

    def read(self, count):
        data = b""
        while len(data) < count:
            try:
                data += self.tls.read(count - len(data))
            except ssl.SSLWantReadError:
                self.incoming.write(self.raw.recv(4096))
        return data

    def finish(self):
        """Ends the handshake; returns the last flight, which was not sent."""
        self.raw.sendall(self.step())
        while True:
            self.incoming.write(self.raw.recv(4096))
            last = self.step()
            if last:
                return last


def main():
    # Plain text is not answered.
    raw = connect()
    raw.sendall(PING)
    assert is_refused(rest(raw))
    # Nor is an older version.
    old = context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        old.wrap_socket(connect(), server_hostname="localhost")
        raise AssertionError("TLS 1.2")
    except ssl.SSLError:
        pass
    # A record that nobody encrypted.
    raw = connect()
    raw.sendall(Handshake(raw).finish() + b"\x17\x03\x03\x00\x40" + os.urandom(64))
    assert is_refused(rest(raw)), "garbage"
    # A handshake and a request, byte by byte; nothing is answered before the last of them.
    raw = connect()
    peer = Handshake(raw)
    for byte in peer.step():
        raw.sendall(bytes([byte]))
    peer.incoming.write(raw.recv(4096))
    while not (last := peer.step()):
        peer.incoming.write(raw.recv(4096))
    peer.tls.write(PING)
    for byte in last + peer.outgoing.read():
        raw.sendall(bytes([byte]))
    assert peer.read(len(PONG)) == PONG
    # Requests behind the end of the handshake in one piece.
    raw = connect()
    peer = Handshake(raw)
    last = peer.finish()
    peer.tls.write(PING * 1000)
    raw.sendall(last + peer.outgoing.read())
    assert peer.read(1000 * len(PONG)) == 1000 * PONG
    # No connection is resumed, so nothing comes before a handshake.
    assert peer.tls.session is None or not peer.tls.session.has_ticket
    # The end of the client's direction, and the end of the worker's.
    try:
        peer.tls.unwrap()
    except ssl.SSLWantReadError:
        raw.sendall(peer.outgoing.read())
    peer.incoming.write(rest(raw))
    peer.tls.unwrap()


main()
