"""Control over UDP: fragments both ways, retransmission, and answers checked against their question."""

import random
import socket
import time

from identity import holds
from wire import (
    FRAG_V2,
    PAGE_REQUEST,
    PAGE_RESPONSE,
    REQUEST,
    RESPONSE,
    SIGNED,
    SOLICIT,
    Assembly,
    Frame,
    Malformed,
    Page,
    parse,
    response,
)


class Silence(Exception):
    """No answer in time."""


def address(text):
    host, port = text.rsplit(":", 1)
    return host.strip("[]"), int(port)


class Udp:
    """One presenter at one node."""

    def __init__(self, me, endpoint, node_key=None):
        self.me, self.node_key = me, node_key
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(address(endpoint))

    def frame(self, kind, payload, signed=False, flags=FRAG_V2):
        """A new message; a function as payload is told the request_id and nonce."""
        request_id, nonce = random.getrandbits(64), self.me.nonce()
        payload = payload(request_id, nonce) if callable(payload) else payload
        frame = Frame(kind, self.me.id, request_id, nonce, payload, flags)
        return frame.signed(self.me.sign) if signed else frame

    def request(self, op, params=b"", resource=0, token=b"", **how):
        """The frame of a request that is not sent yet."""
        return self.frame(REQUEST, lambda i, n: self.me.request(i, n, op, params, resource, token), **how)

    def call(self, op, params=b"", resource=0, token=b"", **how):
        """Does one op: (status, result)."""
        return response(self.ask(self.request(op, params, resource, token, **how)).payload, op)

    def page(self, body):
        """Does one page op, `body` from the profile number on: the answer after profile and op."""
        answer = self.ask(self.frame(PAGE_REQUEST, body, signed=True))
        return page_answer(answer, body)

    def solicit(self, payload, **how):
        return self.ask(self.frame(SOLICIT, payload, **how)).payload

    def refused(self, frame):
        """Whether the node ignores the frame; asked once."""
        try:
            self.ask(frame, tries=(0.3,))
            return False
        except Silence:
            return True

    def ask(self, frame, tries=(0.25, 0.5, 1, 2, 4, 8, 8), size=1200, order=list):
        """Sends the message until its answer is whole; a busy node ignores the copies."""
        datagrams = order(frame.datagrams(size))
        for patience in tries:
            for datagram in datagrams:
                self.socket.send(datagram)
            answer = self.receive(frame, patience)
            if answer:
                return answer
        raise Silence(f"no answer to type {frame.kind} within {sum(tries)} s")

    def receive(self, asked, patience):
        """The answer to a frame, with its signature checked if the question had one."""
        end, parts = time.monotonic() + patience, Assembly()
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                piece = parse(self.socket.recv(65536))
            except (TimeoutError, ConnectionRefusedError):
                return None
            got = piece.frame
            if (got.request_id, got.nonce) != (asked.request_id, asked.nonce):
                continue  # a late answer to something older
            whole = parts.add(piece)
            if whole:
                self.check(asked, whole)
                return whole
        return None

    def check(self, asked, got):
        if got.kind != (PAGE_RESPONSE if asked.kind == PAGE_REQUEST else RESPONSE):
            raise Malformed(f"type {got.kind} answers type {asked.kind}")
        if got.flags & SIGNED != asked.flags & SIGNED:
            raise Malformed("signed, though the question was not, or the other way round")
        if got.flags & FRAG_V2 and not asked.flags & FRAG_V2:
            raise Malformed("FRAG_V2, though the question was not")
        if asked.flags & SIGNED and self.node_key and not holds(self.node_key, got.signature, got.signed_bytes()):
            raise Malformed("the answer's signature is wrong")

    def close(self):
        self.socket.close()


def page_answer(answer, body):
    if answer.payload[:3] != body[:3]:
        raise Malformed(f"{answer.payload[:3].hex()} answers the page op {Page(body[2]).name}")
    return answer.payload[3:]
