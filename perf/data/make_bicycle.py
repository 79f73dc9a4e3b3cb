#!/usr/bin/env python3
"""Makes bicycle_72.dem and bicycle_144.dem: memory of bivariate bicycle codes with phenomenological noise.

    python3 perf/data/make_bicycle.py [FOLDER]                                          config/decoders unless told otherwise

The codes are [[72,12,6]] and [[144,12,12]] of arXiv 2308.07915, table 3: l = 6 and 12, m = 6, A = x^3 + y + y^2,
B = y^3 + x + x^2. X errors alone, which the lm Z checks detect: each of the 2lm data qubits flips with probability P before each of
as many rounds as the distance, each check of a round reads wrongly with probability P, and a last round reads rightly. Detector
lm r + i compares check i of round r with the round before. The observables are 12 independent logical Z operators. Pure Python,
no chance.
"""

import pathlib
import sys

A = [(3, 0), (0, 1), (0, 2)]
B = [(0, 3), (1, 0), (2, 0)]
P = 0.003


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

    def model(self):
        lines = []
        for round in range(self.rounds):
            for qubit in range(self.qubits):
                detectors = [f" D{self.checks * round + i}" for i, row in enumerate(self.hz) if row >> qubit & 1]
                observables = [f" L{i}" for i, row in enumerate(self.logical) if row >> qubit & 1]
                lines.append(f"error({P}){''.join(detectors + observables)}")
            for check in range(self.checks):
                lines.append(f"error({P}) D{self.checks * round + check} D{self.checks * (round + 1) + check}")
        return "\n".join(lines) + "\n"


def reduce(vector, basis):
    """What is left of a vector after those of a basis, which go by their highest bits."""
    while vector and vector.bit_length() in basis:
        vector ^= basis[vector.bit_length()]
    return vector


DECODERS = pathlib.Path(__file__).resolve().parent.parent.parent / "config" / "decoders"
FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DECODERS
for name, code in (("bicycle_72", Code(6, 6, 6)), ("bicycle_144", Code(12, 6, 12))):
    (FOLDER / f"{name}.dem").write_text(code.model())
