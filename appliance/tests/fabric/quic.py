"""QUIC with an Ed25519 certificate on each side; control ops, one on each stream."""

import random
import socket
import ssl
import time

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamDataReceived, StreamReset
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from identity import holds
from udp import address, page_answer
from wire import (
    PAGE_REQUEST,
    PAGE_RESPONSE,
    REQUEST,
    RESPONSE,
    SIGNED,
    SOLICIT,
    Frame,
    Malformed,
    parse,
    request,
    response,
)


class Reset(Exception):
    """The peer reset the stream."""


class Closed(Exception):
    """The peer closed the connection."""


class Connection:
    """A connection over a blocking socket: aioquic does QUIC, and nothing happens outside of a call."""

    def __init__(self, me, endpoint, alpn):
        config = QuicConfiguration(
            is_client=True,
            alpn_protocols=[alpn],
            verify_mode=ssl.CERT_NONE,
            certificate=me.tls_certificate(),
            private_key=me.key,
        )
        self.quic, self.to = QuicConnection(configuration=config), address(endpoint)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(self.to)
        self.alpn, self.closed, self.streams, self.ended = None, None, {}, {}
        self.quic.connect(self.to, now=time.monotonic())
        self.until(lambda: self.alpn)
        certificate = self.quic.tls._peer_certificate  # aioquic shows it nowhere else
        self.peer_key = certificate.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def until(self, done, patience=5):
        """Serves the connection until `done()` is true; that is returned."""
        end = time.monotonic() + patience
        while True:
            self.send()
            while event := self.quic.next_event():
                self.on(event)
            if result := done():
                self.send()
                return result
            if self.closed or self.quic._close_event:  # aioquic tells only after draining, seconds later
                raise self.closed or Closed(f"closed with {self.quic._close_event.error_code}")
            now, timer = time.monotonic(), self.quic.get_timer()
            if now >= end:
                raise TimeoutError(f"nothing within {patience} s")
            self.socket.settimeout(max(min(end, timer or end) - now, 0.001))
            try:
                self.quic.receive_datagram(self.socket.recv(65536), self.to, time.monotonic())
            except (TimeoutError, ConnectionRefusedError):
                if timer and time.monotonic() >= timer:
                    self.quic.handle_timer(time.monotonic())

    def gone(self, patience=2):
        """Whether the node closes the connection."""
        try:
            return self.until(lambda: False, patience)
        except Closed:
            return True

    def on(self, event):
        if isinstance(event, HandshakeCompleted):
            self.alpn = event.alpn_protocol
        elif isinstance(event, StreamDataReceived):
            self.streams[event.stream_id] = self.streams.get(event.stream_id, b"") + event.data
            if event.end_stream:
                self.ended[event.stream_id] = None
        elif isinstance(event, StreamReset):
            self.ended[event.stream_id] = Reset(f"the stream was reset with {event.error_code}")
        elif isinstance(event, ConnectionTerminated):
            self.closed = Closed(f"closed with {event.error_code}: {event.reason_phrase}")

    def send(self):
        for datagram, _ in self.quic.datagrams_to_send(time.monotonic()):
            try:
                self.socket.send(datagram)
            except ConnectionRefusedError:
                pass  # what came back for an earlier datagram

    def open(self, data, fin=True):
        """A new stream that begins with `data`."""
        stream = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream, data, fin)
        return stream

    def read(self, stream, size=None, patience=5):
        """All that comes on a stream until its end, or its first `size` bytes."""
        have = lambda: len(self.streams.get(stream, b"")) >= size if size is not None else False
        self.until(lambda: stream in self.ended or have(), patience)
        if self.ended.get(stream):
            raise self.ended[stream]
        data = self.streams.get(stream, b"")
        size = len(data) if size is None else size
        self.streams[stream] = data[size:]
        return data[:size]

    def close(self):
        self.quic.close()
        self.send()
        self.socket.close()


class Quic:
    """One presenter at one node, over the control ALPN; the same methods as `udp.Udp`."""

    def __init__(self, me, endpoint, node_key=None):
        self.me, self.connection = me, Connection(me, endpoint, "fabricbios/0")
        self.node_key = node_key
        if node_key and self.connection.peer_key != node_key:
            raise Malformed("another node's certificate")

    def frame(self, kind, payload, signed=False, flags=0):
        request_id, nonce = random.getrandbits(64), random.getrandbits(64)
        payload = payload(request_id, nonce) if callable(payload) else payload
        frame = Frame(kind, self.me.id, request_id, nonce, payload, flags)
        return frame.signed(self.me.sign) if signed else frame

    def request(self, op, params=b"", resource=0, token=b"", **how):
        return self.frame(REQUEST, request(op, params, resource, token), **how)

    def call(self, op, params=b"", resource=0, token=b"", **how):
        return response(self.ask(self.request(op, params, resource, token, **how)).payload, op)

    def page(self, body):
        return page_answer(self.ask(self.frame(PAGE_REQUEST, body)), body)

    def solicit(self, payload, **how):
        return self.ask(self.frame(SOLICIT, payload, **how)).payload

    def refused(self, frame):
        try:
            self.ask(frame)
            return False
        except Reset:
            return True

    def ask(self, frame):
        piece = parse(self.connection.read(self.connection.open(frame.whole()), patience=20))
        got = piece.frame
        if (got.request_id, got.nonce) != (frame.request_id, frame.nonce):
            raise Malformed("an answer to something else")
        if got.flags & SIGNED and not holds(self.connection.peer_key, got.signature, got.signed_bytes()):
            raise Malformed("the answer's signature is wrong")
        if got.kind != (PAGE_RESPONSE if frame.kind == PAGE_REQUEST else RESPONSE):
            raise Malformed(f"type {got.kind} answers type {frame.kind}")
        if got.flags & SIGNED != frame.flags & SIGNED or piece.more or piece.last:
            raise Malformed(f"the answer's flags: {got.flags:#x}")
        return got

    def close(self):
        self.connection.close()
