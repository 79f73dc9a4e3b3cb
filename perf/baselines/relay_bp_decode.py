#!/usr/bin/env python3
"""Decodes by PyPI's relay-bp the shots that `cargo run --release -p berth-qec --example relay_bench` samples.

    python3 -m venv v && v/bin/pip install relay-bp==0.2.2 && v/bin/python perf/baselines/relay_bp_decode.py [SHOTS]

Its relay in floating point, of one relay: 80 iterations of the first leg, up to 60 legs of 60 more, strengths from -0.24 to 0.66, the
first of 1 solution, or the lightest of 5. Then 60 legs of 60 iterations with the strengths of Berth's first relay: so the predictions are
to be those of its floating point. A line of a table each; times include the call from Python. The last column is relay_bench's hash over the predictions.
"""

import pathlib
import sys
import time

import numpy
import relay_bp
import scipy.sparse

MODELS = pathlib.Path(__file__).resolve().parent.parent.parent / "config" / "decoders"
SHOTS = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
MASK = (1 << 64) - 1


def read(path):
    """Of each mechanism its probability, detectors and observables; the models below have neither loops nor shifts."""
    for line in path.read_text().splitlines():
        if line.startswith("error("):
            probability, targets = line[6:].split(")")
            sets = {"D": set(), "L": set()}
            for target in targets.split():
                if target != "^":
                    sets[target[0]] ^= {int(target[1:])}
            yield float(probability), frozenset(sets["D"]), frozenset(sets["L"])


def sample(mechanisms, detectors, observables):
    """The shots of tests/common/mod.rs: SplitMix64 from seed 1."""
    state = 1
    events = numpy.zeros((SHOTS, detectors), numpy.uint8)
    flips = numpy.zeros((SHOTS, observables), numpy.uint8)
    for shot in range(SHOTS):
        for probability, of_detectors, of_observables in mechanisms:
            state = state + 0x9E3779B97F4A7C15 & MASK
            x = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
            x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
            if ((x ^ x >> 31) >> 11) * 0.5**53 < probability:
                for at in of_detectors:
                    events[shot, at] ^= 1
                for at in of_observables:
                    flips[shot, at] ^= 1
    return events, flips


def strengths(errors):
    """Of 60 legs, from seed 0: docs/decoders.md."""
    state = 0
    legs = numpy.zeros((60, errors))
    for leg in range(60):
        for error in range(errors):
            for relay in range(8):
                state = state + 0x9E3779B97F4A7C15 & MASK
                x = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
                x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
                if relay == 0:
                    legs[leg, error] = (-7864 + (((x ^ x >> 31) >> 32) * 29492 >> 32)) / 32768
    return legs


def digest(flips, unsolved):
    """FNV-1a over 8 bytes of each prediction."""
    value = 0xCBF29CE484222325
    for bits, failed in zip(flips, unsolved):
        word = MASK if failed else sum(int(bit) << at for at, bit in enumerate(bits))
        for byte in word.to_bytes(8, "little"):
            value = (value ^ byte) * 0x100000001B3 & MASK
    return f"{value:016x}"


def either(p, q):
    return p + q - 2 * p * q


print(f"| model | solutions | shots/s | p50 | p99 | errors of {SHOTS} | without answer | predictions |")
print("|---|---|---|---|---|---|---|---|")
for name in ("surface_d3", "surface_d3_p5e-3", "surface_d5", "surface_d5_p5e-3", "bicycle_72"):
    mechanisms = list(read(MODELS / f"{name}.dem"))
    detectors = 1 + max(max(of, default=0) for _, of, _ in mechanisms)
    observables = 1 + max(max(of, default=0) for _, _, of in mechanisms)
    merged = {}
    for probability, of_detectors, of_observables in mechanisms:
        if of_detectors:
            error = merged.setdefault(of_detectors, [0.0, {}])
            error[0] = either(error[0], probability)
            error[1][of_observables] = either(error[1].get(of_observables, 0.0), probability)
    check = scipy.sparse.lil_matrix((detectors, len(merged)), dtype=numpy.uint8)
    logical = numpy.zeros((observables, len(merged)), numpy.uint8)
    for column, (of_detectors, (_, of_flips)) in enumerate(sorted(merged.items(), key=lambda item: sorted(item[0]))):
        check[sorted(of_detectors), column] = 1
        logical[sorted(max(of_flips, key=of_flips.get)), column] = 1
    priors = numpy.array([error[0] for _, error in sorted(merged.items(), key=lambda item: sorted(item[0]))])
    check = scipy.sparse.csr_matrix(check)
    events, flips = sample(mechanisms, detectors, observables)
    usual = {"pre_iter": 80, "num_sets": 60, "gamma_dist_interval": (-0.24, 0.66), "seed": 0}
    ours = {"pre_iter": 60, "num_sets": 59, "explicit_gammas": strengths(len(merged))}
    for solutions, legs, stop in (("1", usual, 1), ("5", usual, 5), ("1, strengths of relay_bench", ours, 1)):
        decoder = relay_bp.RelayDecoderF64(
            check, error_priors=priors, gamma0=0.125, set_max_iter=60, stop_nconv=stop, **legs
        )
        times, found = [], []
        for shot in events:
            started = time.perf_counter()
            found.append(decoder.decode(shot))
            times.append((time.perf_counter() - started) * 1e6)
        found = numpy.array(found, numpy.int64)
        unsolved = (found @ check.T.toarray() % 2 != events).any(axis=1)
        predicted = found @ logical.T % 2
        wrong = (predicted != flips).any(axis=1) | unsolved
        p50, p99 = numpy.quantile(times, (0.5, 0.99))
        print(f"| {name} | {solutions} | {1e6 / numpy.mean(times):.0f} | {p50:.1f} us | {p99:.0f} us | {wrong.sum()} | {unsolved.sum()} | {digest(predicted, unsolved)} |", flush=True)
