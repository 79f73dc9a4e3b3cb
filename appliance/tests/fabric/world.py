"""What every step stands on: the presenters of node.toml, clients of both nodes, and exact comparisons."""

import time
from functools import cache

import wire
from identity import Identity
from quic import Quic
from udp import Udp
from wire import Lease, Op, Perm, Status, u32, u128

# The public keys of these seeds stand in node.toml; EVE's does not.
ALICE, BOB, CAROL, DAVE, FRANK, ROOT, EVE = (Identity(bytes([n]) * 32) for n in range(1, 8))

steps = 0


class Different(Exception):
    """A step did not do what the page says."""


def expect(step, got, want):
    global steps
    if got != want:
        raise Different(f"{step}\n  expected {want!r}\n  came     {got!r}")
    steps += 1
    print(f"ok {steps:3} {step}", flush=True)


def within(step, got, low, high):
    """For times, which are exact only to the second."""
    expect(f"{step} is from {low} to {high}", low <= got <= high, True)


def now():
    return int(time.time())


class World:
    """The two nodes of a run, and clients of them over one carrier."""

    def __init__(self, carrier, main, strict):
        self.carrier, self.nodes = carrier, {"main": main, "strict": strict}

    def new(self, who, node="main"):
        """A client with a connection of its own."""
        kind = {"udp": Udp, "quic": Quic}[self.carrier]
        return kind(
            who, self.nodes[node][{"udp": "control-udp", "quic": "quic"}[self.carrier]], self.nodes[node].get("key")
        )

    @cache
    def at(self, who, node="main"):
        return self.new(who, node)

    def call(self, who, op, params=b"", resource=0, token=b"", node="main"):
        return self.at(who, node).call(op, params, resource, token)

    def status(self, who, op, params=b"", resource=0, token=b"", node="main"):
        """The status of an op whose result does not matter here; one that is not OK has none."""
        status, result = self.call(who, op, params, resource, token, node)
        if status != Status.OK and result:
            raise Different(f"{status.name} of {op:#06x} has a result: {result.hex()}")
        return status

    def token(
        self, who, perms=Perm.READ | Perm.WRITE | Perm.ALLOC, ttl=300, resource=0, to=None, node="main", more=b""
    ):
        params = u32(perms) + u32(ttl) + u128((to or who).id) + more
        status, token = self.call(who, Op.CAP_REQUEST, params, resource, node=node)
        if status != Status.OK:
            raise Different(f"a token with perms {perms:#x} for {who.id:032x}: {status.name}")
        return token

    def lease(self, who, size, kind=wire.MEM, duration=60, grace=0, token=None, resource=0, tlvs=b""):
        token = token or self.token(who)
        status, result = self.call(who, Op.LEASE_ALLOC, wire.alloc(duration, grace, kind, size, tlvs), resource, token)
        if status != Status.OK:
            raise Different(f"a lease of {size} bytes: {status.name}")
        return Lease.read(result)

    def free(self, who, lease):
        status = self.status(who, Op.LEASE_FREE, u128(lease.lease_id))
        if status != Status.OK:
            raise Different(f"a free: {status.name}")
