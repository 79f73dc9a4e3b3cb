#!/usr/bin/env python3
"""Decodes by PyPI's ldpc the shots that `cargo run --release -p berth-qec --example relay_bench` samples.

    python3 -m venv v && v/bin/pip install ldpc==2.4.1 && v/bin/python perf/baselines/ldpc_decode.py [SHOTS [TIMES [SEED]]]

Min-sum by 0.75 and at most 60 iterations, then OSD-CS of order 10, OSD-0 or LSD-0. Each error is TIMES (default 1) as likely as the model has it. A
line of a table each; times include the call from Python.
"""

import pathlib
import sys
import time

import ldpc
import ldpc.bplsd_decoder
import numpy
import scipy.sparse

MODELS = pathlib.Path(__file__).resolve().parent.parent.parent / "config" / "decoders"
SHOTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
TIMES = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
MASK = (1 << 64) - 1
SWEEP = {"osd_method": "OSD_CS", "osd_order": 10}
CASES = [
    ("serial, order 10", {"schedule": "serial", **SWEEP}),
    ("parallel, order 10", {"schedule": "parallel", **SWEEP}),
    ("serial, order 0", {"schedule": "serial", "osd_method": "OSD_0", "osd_order": 0}),
    ("serial, localized, order 0", {"schedule": "serial", "lsd_method": "LSD_0", "lsd_order": 0}),
]


def read(path):
    """Of each mechanism its probability, detectors and observables; the files have neither loops nor shifts."""
    for line in path.read_text().splitlines():
        if line.startswith("error("):
            probability, targets = line[6:].split(")")
            sets = {"D": set(), "L": set()}
            for target in targets.split():
                if target != "^":
                    sets[target[0]] ^= {int(target[1:])}
            yield float(probability), frozenset(sets["D"]), frozenset(sets["L"])


def sample(mechanisms, detectors, observables):
    """The shots of tests/common/mod.rs: SplitMix64."""
    state = SEED
    events = numpy.zeros((SHOTS, detectors), numpy.uint8)
    flips = numpy.zeros((SHOTS, observables), numpy.uint8)
    for shot in range(SHOTS):
        for probability, of_detectors, of_observables in mechanisms:
            state = state + 0x9E3779B97F4A7C15 & MASK
            x = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
            x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
            if ((x ^ x >> 31) >> 11) * 0.5**53 < TIMES * probability:
                for at in of_detectors:
                    events[shot, at] ^= 1
                for at in of_observables:
                    flips[shot, at] ^= 1
    return events, flips


def either(p, q):
    return p + q - 2 * p * q


print(f"| model | ldpc | shots/s | p50 | p99 | longest | errors of {SHOTS} |")
print("|---|---|---|---|---|---|---|")
for name in ("surface_d3_p5e-3", "surface_d5_p5e-3", "bicycle_72", "bicycle_144"):
    mechanisms = list(read(MODELS / f"{name}.dem"))
    detectors = 1 + max(max(of, default=0) for _, of, _ in mechanisms)
    observables = 1 + max(max(of, default=0) for _, _, of in mechanisms)
    merged = {}
    for probability, of_detectors, of_observables in mechanisms:
        if of_detectors:
            error = merged.setdefault(of_detectors, [0.0, {}])
            error[0] = either(error[0], probability)
            error[1][of_observables] = either(error[1].get(of_observables, 0.0), probability)
    errors = sorted(merged.items(), key=lambda item: sorted(item[0]))
    check = scipy.sparse.lil_matrix((detectors, len(errors)), dtype=numpy.uint8)
    logical = numpy.zeros((observables, len(errors)), numpy.uint8)
    for column, (of_detectors, (_, of_flips)) in enumerate(errors):
        check[sorted(of_detectors), column] = 1
        logical[sorted(max(of_flips, key=of_flips.get)), column] = 1
    priors = [probability for _, (probability, _) in errors]
    check = scipy.sparse.csr_matrix(check)
    events, flips = sample(mechanisms, detectors, observables)
    for case, options in CASES:
        kind = ldpc.BpOsdDecoder if "osd_method" in options else ldpc.bplsd_decoder.BpLsdDecoder
        decoder = kind(
            check, error_channel=priors, max_iter=60, bp_method="minimum_sum", ms_scaling_factor=0.75, **options
        )
        times, found = [], []
        for shot in events:
            started = time.perf_counter()
            error = decoder.decode(shot)
            times.append((time.perf_counter() - started) * 1e6)
            found.append(error.copy())
        wrong = (numpy.array(found, numpy.int64) @ logical.T % 2 != flips).any(axis=1).sum()
        p50, p99 = numpy.quantile(times, (0.5, 0.99))
        print(f"| {name} | {case} | {1e6 / numpy.mean(times):.0f} | {p50:.1f} us | {p99:.0f} us | {max(times):.0f} us | {wrong} |", flush=True)
