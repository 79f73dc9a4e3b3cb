#!/usr/bin/env python3
"""Makes the decoder models in config/decoders and the shots beside this file.

    python3 -m venv v && v/bin/pip install stim==1.16.0 pymatching==2.4.0 && v/bin/python perf/data/make_shots.py
    v/bin/python perf/data/make_shots.py FOLDER DISTANCE[xROUNDS][:SHOTS][@P]...     other models and their shots, both in FOLDER, and what
                                           PyMatching predicts in two passes; P is the only probability then

Rotated surface code, memory in Z, as many rounds as the distance unless told otherwise, the same probability for every circuit-level
fault; colour codes, memory in X, Y and Z, likewise; models of more rounds for streams. Seeds are fixed: the same versions on the same kind of CPU write the same files.
"""

import pathlib
import sys

import numpy
import pymatching
import stim

DATA = pathlib.Path(__file__).resolve().parent
MODELS = DATA.parent.parent / "config" / "decoders"
# (distance, rounds) -> shots per set; of others FEW.
SHOTS = {(3, 3): 10_000, (5, 5): 10_000, (7, 7): 5_000}
FEW = 1_000
# probability -> (suffix of the shots, suffix of the model); p = 0.1 % is the model the default configuration names.
ONLY = {}
NOISE = {0.001: ("_p1e-3", ""), 0.005: ("_p5e-3", "_p5e-3")}

if len(sys.argv) > 1:
    DATA = MODELS = pathlib.Path(sys.argv[1])
    NOISE[0.01] = ("_p1e-2", "_p1e-2")
    known, SHOTS = SHOTS, {}
    for argument in sys.argv[2:]:
        argument, _, only = argument.partition("@")
        code, _, shots = argument.partition(":")
        distance, _, rounds = code.partition("x")
        code = (int(distance), int(rounds or distance))
        SHOTS[code] = int(shots or known.get(code, FEW))
        ONLY[code] = float(only) if only else None



def memory(code, distance, rounds, p):
    return stim.Circuit.generated(
        code,
        distance=distance,
        rounds=rounds,
        after_clifford_depolarization=p,
        after_reset_flip_probability=p,
        before_measure_flip_probability=p,
        before_round_data_depolarization=p,
    )


def write(stem, **bits):
    for kind, array in bits.items():
        numpy.ascontiguousarray(array, dtype=numpy.uint8).tofile(DATA / f"{stem}.{kind}.b8")


MODELS.mkdir(parents=True, exist_ok=True)
for (distance, rounds), shots in SHOTS.items():
    code = f"surface_d{distance}" if rounds == distance else f"surface_d{distance}x{rounds}"
    for p, (shots_suffix, model_suffix) in NOISE.items():
        if ONLY.get((distance, rounds)) not in (None, p):
            continue
        circuit = memory("surface_code:rotated_memory_z", distance, rounds, p)
        model = circuit.detector_error_model(decompose_errors=True)
        model.to_file(MODELS / f"{code}{model_suffix}.dem")

        seed = 1_000_000 * distance + round(p * 100_000)
        events, flips = circuit.compile_detector_sampler(seed=seed).sample(
            shots, separate_observables=True, bit_packed=True
        )
        predicted = {}
        for kind, correlated in (("pymatching", False), ("correlated", True)):
            if correlated and len(sys.argv) == 1:
                continue
            matching = pymatching.Matching.from_detector_error_model(model, enable_correlations=correlated)
            predicted[kind] = matching.decode_batch(
                events, bit_packed_shots=True, bit_packed_predictions=True, enable_correlations=correlated
            )
        predictions = predicted["pymatching"]
        stem = f"{code}{shots_suffix}"
        write(stem, dets=events, obs=flips, **predicted)
        wrong = int((predictions != flips).any(axis=1).sum())
        print(f"{stem}: {circuit.num_detectors} detectors, {shots} shots, {wrong} logical errors")

if len(sys.argv) == 1:
    # Syndromes with events at a fifth of the detectors, and the weights of their matchings.
    matching = pymatching.Matching.from_detector_error_model_file(str(MODELS / "surface_d7_p5e-3.dem"))
    dense = numpy.random.default_rng(7).random((400, matching.num_detectors)) < 0.2
    _, weights = matching.decode_batch(dense, return_weights=True)
    numpy.packbits(dense, axis=1, bitorder="little").tofile(DATA / "surface_d7_dense.dets.b8")
    weights.astype("<f8").tofile(DATA / "surface_d7_dense.weights.f64")

    # Colour codes, whose errors flip more detectors than matching takes: what flipped is all that their answers are compared with.
    for distance in (3, 5):
        circuit = memory("color_code:memory_xyz", distance, distance, 0.002)
        events, flips = circuit.compile_detector_sampler(seed=distance).sample(
            5_000, separate_observables=True, bit_packed=True
        )
        circuit.detector_error_model().to_file(DATA / f"colour_d{distance}_p2e-3.dem")
        write(f"colour_d{distance}_p2e-3", dets=events, obs=flips)

    # Streams, p = 0.1 %: so many rounds that windows of two distances in their middle are alike, which longer experiments repeat.
    for distance in (3, 5, 7, 9):
        rounds = 4 * distance + 1
        circuit = memory("surface_code:rotated_memory_z", distance, rounds, 0.001)
        circuit.detector_error_model(decompose_errors=True).to_file(DATA / f"surface_d{distance}x{rounds}.dem")
