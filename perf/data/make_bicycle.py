#!/usr/bin/env python3
"""Makes bicycle_72.dem and bicycle_144.dem: memory of bivariate bicycle codes with phenomenological noise.

    python3 perf/data/make_bicycle.py            the models in config/decoders; and beside this file those of more noise with shots of them
    python3 perf/data/make_bicycle.py FOLDER     all of them there

The codes are [[72,12,6]] and [[144,12,12]] of arXiv 2308.07915, table 3: l = 6 and 12, m = 6, A = x^3 + y + y^2,
B = y^3 + x + x^2. X errors alone, which the lm Z checks detect: each of the 2lm data qubits flips with probability P before each of
as many rounds as the distance, each check of a round reads wrongly with probability P, and a last round reads rightly. Detector
lm r + i compares check i of round r with the round before. The observables are 12 independent logical Z operators. Pure Python;
the seeds of the shots are fixed.
"""

import pathlib
import random
import sys

A = [(3, 0), (0, 1), (0, 2)]
B = [(0, 3), (1, 0), (2, 0)]
# Probability -> suffix of the model's name, shots of the codes.
NOISE = {0.003: ("", None), 0.012: ("_p12e-3", (2_000, 1_000))}


class Code:
    def __init__(self, l, m, rounds):
        self.l, self.m, self.rounds = l, m, rounds
        self.checks, self.qubits = l * m, 2 * l * m
        hx, self.hz = self.rows(A, B, 1), self.rows(B, A, -1)
        assert all((x & z).bit_count() % 2 == 0 for x in hx for z in self.hz), "X and Z checks commute"
        # Logical Z: commutes with the X checks, and is no product of Z checks.
        span, self.logical = {}, []
        for vector in self.hz + self.kernel(hx):
            left = reduce(vector, span)
            if left:
                span[left.bit_length()] = left
                if vector not in self.hz:
                    self.logical.append(vector)
        assert len(self.logical) == 12

    def rows(self, left, right, sign):
        """For each check, a set of qubits: by `left` in the first half, by `right` in the second."""

        def at(x, y):
            return x % self.l * self.m + y % self.m

        return [
            sum(1 << at(x + sign * dx, y + sign * dy) for dx, dy in left)
            | sum(1 << self.checks + at(x + sign * dx, y + sign * dy) for dx, dy in right)
            for x in range(self.l)
            for y in range(self.m)
        ]

    def kernel(self, matrix):
        """A basis of the vectors that commute with all rows."""
        # Each column with a mark of its own; what columns cancel to leaves the marks of a vector of the kernel.
        basis, found = {}, []
        for qubit in range(self.qubits):
            column = sum((row >> qubit & 1) << i for i, row in enumerate(matrix))
            marked = reduce(column << self.qubits | 1 << qubit, basis)
            if marked >> self.qubits:
                basis[marked.bit_length()] = marked
            else:
                found.append(marked)
        return found

    def errors(self):
        """The detectors and the observables of each error, those of a round after those of the one before."""
        for round in range(self.rounds):
            for qubit in range(self.qubits):
                detectors = [self.checks * round + i for i, row in enumerate(self.hz) if row >> qubit & 1]
                yield detectors, [i for i, row in enumerate(self.logical) if row >> qubit & 1]
            for check in range(self.checks):
                yield [self.checks * round + check, self.checks * (round + 1) + check], []

    def model(self, p):
        """The detectors' only coordinate is their round."""
        lines = []
        for detectors, observables in self.errors():
            flips = [f" D{i}" for i in detectors] + [f" L{i}" for i in observables]
            lines.append(f"error({p}){''.join(flips)}")
        for round in range(self.rounds + 1):
            lines += [f"detector({round}) D{self.checks * round + check}" for check in range(self.checks)]
        return "\n".join(lines) + "\n"

    def sample(self, p, shots):
        """Events and flips of shots in Stim's b8 format."""
        chance, errors = random.Random(self.qubits), list(self.errors())
        events, flips = bytearray(), bytearray()
        for _ in range(shots):
            event = flip = 0
            for detectors, observables in errors:
                if chance.random() < p:
                    event ^= sum(1 << i for i in detectors)
                    flip ^= sum(1 << i for i in observables)
            events += event.to_bytes((self.checks * (self.rounds + 1) + 7) // 8, "little")
            flips += flip.to_bytes((len(self.logical) + 7) // 8, "little")
        return events, flips


def reduce(vector, basis):
    """What is left of a vector after those of a basis, which go by their highest bits."""
    while vector and vector.bit_length() in basis:
        vector ^= basis[vector.bit_length()]
    return vector


DATA = pathlib.Path(__file__).resolve().parent
MODELS = DATA.parent.parent / "config" / "decoders"
if len(sys.argv) > 1:
    DATA = MODELS = pathlib.Path(sys.argv[1])
for at, (name, code) in enumerate((("bicycle_72", Code(6, 6, 6)), ("bicycle_144", Code(12, 6, 12)))):
    for p, (suffix, shots) in NOISE.items():
        folder = DATA if shots else MODELS
        (folder / f"{name}{suffix}.dem").write_text(code.model(p))
        if shots:
            events, flips = code.sample(p, shots[at])
            (folder / f"{name}{suffix}.dets.b8").write_bytes(events)
            (folder / f"{name}{suffix}.obs.b8").write_bytes(flips)
