"""Drives a node's NVMe/TCP target over real sockets, as a host written from the specifications alone.

    scenario.py PART BERTH PID READY

PART is one of the names below, BERTH the program, for its commands, PID the node's, READY its `berth ready` line. The
first step that differs ends it, with what was expected and what came.
"""

import json
import sys

import connects
import faults
import leases
import violations
import world

PARTS = {"violations": violations.run, "connects": connects.run, "leases": leases.run, "faults": faults.run}


def main(part, berth, pid, ready):
    PARTS[part](world.World(berth, int(pid), json.loads(ready)["endpoints"]))
    print(f"{world.steps} steps of {part}, all as specified")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except world.Different as difference:
        sys.exit(f"NOT AS SPECIFIED: {difference}")
