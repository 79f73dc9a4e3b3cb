#!/usr/bin/env python3
"""Times PyMatching on the shots of perf/data, on one core: the lines that `decode_bench` prints, to compare with.

    pip install stim==1.16.0 pymatching==2.4.0
    taskset -c 1 python perf/baselines/pymatching_decode.py [--correlated] [ROUNDS [FOLDER [DISTANCE]...]]

FOLDER has sets that `make_shots.py` made there. With distances, only their sets in FOLDER are decoded, of every noise that is there;
with `--correlated` in two passes.

`mean_ns` and `shots_per_s` are of `decode_batch` over a whole set; pymatching_decode.cc times single decodes. `build_ms` is from the
file of the model to the decoder, `four_kib` what four of them hold.
"""

import json
import pathlib
import resource
import sys
import time

import numpy
import pymatching

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CORRELATED = "--correlated" in sys.argv
ARGS = [argument for argument in sys.argv[1:] if argument != "--correlated"]
ROUNDS = int(ARGS[0]) if ARGS else 3

NOISES = [(0.001, "_p1e-3", ""), (0.005, "_p5e-3", "_p5e-3"), (0.01, "_p1e-2", "_p1e-2")]
CHOSEN = [int(distance) for distance in ARGS[2:]]
SETS = [(distance, ROOT / "config/decoders", ROOT / "perf/data") for distance in (3, 5, 7)]
if CHOSEN:
    folder = pathlib.Path(ARGS[1])
    SETS = [(distance, folder, folder) for distance in CHOSEN]
elif len(ARGS) > 1:
    folder = pathlib.Path(ARGS[1])
    larger = [path.name.removeprefix("surface_d").removesuffix("_p1e-3.obs.b8") for path in folder.glob("*_p1e-3.obs.b8")]
    SETS += [(distance, folder, folder) for distance in sorted(map(int, larger))]

if not CHOSEN:
    NOISES.pop()


def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


for distance, models, data in SETS:
    for p, noise, model in NOISES:
        stem = data / f"surface_d{distance}{noise}"
        if CHOSEN and not pathlib.Path(f"{stem}.dets.b8").exists():
            continue
        path = str(models / f"surface_d{distance}{model}.dem")
        started = time.perf_counter_ns()
        matching = pymatching.Matching.from_detector_error_model_file(path, enable_correlations=CORRELATED)
        built = (time.perf_counter_ns() - started) / 1e6
        before = resident()
        four = [pymatching.Matching.from_detector_error_model_file(path, enable_correlations=CORRELATED) for _ in range(4)]
        held = resident() - before
        del four
        detectors = matching.num_detectors
        packed = numpy.fromfile(f"{stem}.dets.b8", dtype=numpy.uint8).reshape(-1, -(-detectors // 8))
        flips = numpy.fromfile(f"{stem}.obs.b8", dtype=numpy.uint8)
        recorded = numpy.fromfile(f"{stem}.{'correlated' if CORRELATED else 'pymatching'}.b8", dtype=numpy.uint8)
        shots = len(packed)

        def batch():
            return matching.decode_batch(
                packed, bit_packed_shots=True, bit_packed_predictions=True, enable_correlations=CORRELATED
            )

        predicted = batch()[:, 0]
        started = time.perf_counter_ns()
        for _ in range(ROUNDS):
            batch()
        mean = (time.perf_counter_ns() - started) / ROUNDS / shots

        print(
            json.dumps(
                {
                    "decoder": "pymatching",
                    "algorithm": "correlated_mwpm" if CORRELATED else "mwpm",
                    "d": distance,
                    "p": p,
                    "build_ms": round(built, 3),
                    "four_kib": held,
                    "shots": shots,
                    "mean_ns": round(mean),
                    "shots_per_s": round(1e9 / mean),
                    "agreement": float((predicted == recorded).mean()),
                    "logical_errors": int((predicted != flips).sum()),
                }
            )
        )
