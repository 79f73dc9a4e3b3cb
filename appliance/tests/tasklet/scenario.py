"""Drives nodes through every rule of docs/tasklets.md, as a client written from the pages in docs/ alone.

    scenario.py modules FOLDER                      writes the text of every module there
    scenario.py udp|quic FOLDER MAIN SHORT          runs every part; the last line says what was there then
    scenario.py udp|quic FOLDER MAIN SHORT NUMBER.. after a restart of the main node, with what that line said

MAIN and SHORT are the `berth ready` lines of nodes run with node.toml and short.toml, FOLDER has the modules as .wasm.
Prints a line for each step; the first that differs ends it, with what was expected and what came.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "fabric"))

import admission
import composite
import guest
import hostcalls
import runs
import world


def main(carrier, folder, *more):
    if carrier == "modules":
        guest.Modules(folder).write()
        return
    ready, numbers = more[:2], map(int, more[2:])
    w = world.World(carrier, *(json.loads(line.removeprefix("berth ready "))["endpoints"] for line in ready))
    w.nodes["short"], w.ids = w.nodes.pop("strict"), {}
    tasklets = guest.Tasklets(w, folder)
    if more[2:]:
        composite.after_restart(tasklets, *numbers)
        return
    for part in admission.PARTS + runs.PARTS + hostcalls.PARTS + composite.PARTS:
        part(tasklets)
    left = composite.before_restart(tasklets)
    print(f"{world.steps} steps over {carrier}, all as the page says")
    print(*left)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except world.Different as difference:
        sys.exit(f"NOT AS THE PAGE SAYS: {difference}")
