"""Drives two nodes through every op of docs/fabricbios-profile.md, as a client written from that page alone.

    scenario.py udp|quic MAIN STRICT

MAIN and STRICT are the `berth ready` lines of nodes run with node.toml and strict.toml. Prints a line for each step;
the first that differs ends it, with what was expected and what came.
"""

import json
import sys

import carriers
import discovery
import golden
import keys
import leases
import node
import planes
import tokens
import world
from wire import BLOCK


def worked_examples(_):
    for (name, made), example in zip(golden.made().items(), golden.examples(), strict=True):
        world.expect(f"worked example: {name}", made, example)


PARTS = {
    "both": [
        worked_examples,
        node.identity,
        node.simple,
        node.inventory,
        node.thermal,
        node.enrol,
        node.malformed,
        node.other_services,
        tokens.policy,
        tokens.checks,
        tokens.caveats,
        tokens.delegation,
        tokens.revocation,
        leases.granted,
        leases.asked_wrongly,
        leases.aged,
        leases.bound,
        leases.handles,
        leases.relocation,
        leases.proxies,
        planes.same_bytes,
        lambda w: planes.same_bytes(w, BLOCK),
        planes.perms,
        planes.who_is_not_the_holder,
        planes.revoked,
        planes.pages,
        carriers.long_answers,
        discovery.own,
        discovery.filters,
        discovery.broadcast,
        tokens.fences,
        tokens.crowd,
    ],
    "udp": [carriers.fragments, carriers.once_only, discovery.unsigned, discovery.relay],
    "quic": [carriers.streams],
    "last": [keys.listed, keys.revoked, keys.removed],
}


def main(carrier, *ready):
    w = world.World(carrier, *(json.loads(line.removeprefix("berth ready "))["endpoints"] for line in ready))
    for part in PARTS["both"] + PARTS[carrier] + PARTS["last"]:
        part(w)
    print(f"{world.steps} steps over {carrier}, all as the page says")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except world.Different as difference:
        sys.exit(f"NOT AS THE PAGE SAYS: {difference}")
