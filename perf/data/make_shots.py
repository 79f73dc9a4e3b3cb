#!/usr/bin/env python3
"""Makes the decoder models in config/decoders and the shots beside this file.

    python3 -m venv v && v/bin/pip install stim==1.16.0 pymatching==2.4.0 && v/bin/python perf/data/make_shots.py
    v/bin/python perf/data/make_shots.py FOLDER DISTANCE...     models and shots of other distances, both in FOLDER

Rotated surface code, memory in Z, as many rounds as the distance, the same probability for every circuit-level
fault. Seeds are fixed: the same versions on the same kind of CPU write the same files.
"""

import pathlib
import sys

import numpy
import pymatching
import stim

DATA = pathlib.Path(__file__).resolve().parent
MODELS = DATA.parent.parent / "config" / "decoders"
# distance -> shots per set; of larger codes FEW.
SHOTS = {3: 10_000, 5: 10_000, 7: 5_000}
FEW = 1_000
# probability -> (suffix of the shots, suffix of the model); p = 0.1 % is the model the default configuration names.
NOISE = {0.001: ("_p1e-3", ""), 0.005: ("_p5e-3", "_p5e-3")}

if len(sys.argv) > 1:
    DATA = MODELS = pathlib.Path(sys.argv[1])
    SHOTS = {int(distance): SHOTS.get(int(distance), FEW) for distance in sys.argv[2:]}

MODELS.mkdir(parents=True, exist_ok=True)
for distance, shots in SHOTS.items():
    for p, (shots_suffix, model_suffix) in NOISE.items():
        circuit = stim.Circuit.generated(
            "surface_code:rotated_memory_z",
            distance=distance,
            rounds=distance,
            after_clifford_depolarization=p,
            after_reset_flip_probability=p,
            before_measure_flip_probability=p,
            before_round_data_depolarization=p,
        )
        model = circuit.detector_error_model(decompose_errors=True)
        model.to_file(MODELS / f"surface_d{distance}{model_suffix}.dem")

        seed = 1_000_000 * distance + round(p * 100_000)
        events, flips = circuit.compile_detector_sampler(seed=seed).sample(
            shots, separate_observables=True, bit_packed=True
        )
        matching = pymatching.Matching.from_detector_error_model(model)
        predictions = matching.decode_batch(
            events, bit_packed_shots=True, bit_packed_predictions=True
        )
        stem = f"surface_d{distance}{shots_suffix}"
        for kind, bits in (("dets", events), ("obs", flips), ("pymatching", predictions)):
            numpy.ascontiguousarray(bits, dtype=numpy.uint8).tofile(DATA / f"{stem}.{kind}.b8")
        wrong = int((predictions != flips).any(axis=1).sum())
        print(f"{stem}: {circuit.num_detectors} detectors, {shots} shots, {wrong} logical errors")
