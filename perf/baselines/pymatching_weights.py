#!/usr/bin/env python3
"""Compares the weights of `random_graphs` with PyMatching's.

    cargo run --release -p berth-qec --example random_graphs 1000000 | v/bin/python perf/baselines/pymatching_weights.py

Weights are integers: of PyMatching the greatest of a graph is 16383 units, of Berth a unit is 2^-31, and no error weighs less. So matchings
of the least weight may differ by what rounding makes of their errors: half a unit each, on both sides, and a unit of Berth where one weighs
nothing. Prints a line of JSON: how many graphs there were, how many weights differ by more than all errors of the graph allow, and the most
that one differed, as a part of that.
"""

import json
import sys

import pymatching
import stim

graphs = differ = 0
most = 0.0
for line in sys.stdin:
    shot = json.loads(line)
    model = stim.DetectorErrorModel(shot["model"])
    matching = pymatching.Matching.from_detector_error_model(model)
    events = [0] * model.num_detectors
    for at in shot["events"]:
        events[at] = 1
    _, weight = matching.decode(events, return_weight=True)
    greatest = max(abs(data["weight"]) for _, _, data in matching.edges())
    allowed = matching.num_edges * (greatest / (2**14 - 1) + 2**-30)
    part = abs(weight - shot["weight"]) / allowed
    graphs += 1
    differ += part > 1
    most = max(most, part)
print(json.dumps({"graphs": graphs, "differ": differ, "most": round(most, 3)}))
