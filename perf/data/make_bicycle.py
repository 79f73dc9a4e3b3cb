#!/usr/bin/env python3
"""Makes config/decoders/bicycle_72.dem: memory of the bivariate bicycle code [[72,12,6]] with phenomenological noise.

    python3 perf/data/make_bicycle.py [FILE]

The code is that of arXiv 2308.07915, table 3: l = m = 6, A = x^3 + y + y^2, B = y^3 + x + x^2. X errors alone, which
the 36 Z checks detect: each of the 72 data qubits flips with probability P before each of ROUNDS rounds, each check of a
round reads wrongly with probability P, and a last round reads rightly. Detector 36 r + i compares check i of
round r with the round before. The observables are 12 independent logical Z operators. Pure Python, no chance.
"""

import pathlib
import sys

L, M = 6, 6
A = [(3, 0), (0, 1), (0, 2)]
B = [(0, 3), (1, 0), (2, 0)]
ROUNDS = 6
P = 0.003

CHECKS = L * M
QUBITS = 2 * CHECKS


def at(x, y):
    return x % L * M + y % M


def rows(left, right, sign):
    """For each check, a set of qubits: by `left` in the first half, by `right` in the second."""
    return [
        sum(1 << at(x + sign * dx, y + sign * dy) for dx, dy in left)
        | sum(1 << CHECKS + at(x + sign * dx, y + sign * dy) for dx, dy in right)
        for x in range(L)
        for y in range(M)
    ]


HX = rows(A, B, 1)
HZ = rows(B, A, -1)
assert all((x & z).bit_count() % 2 == 0 for x in HX for z in HZ), "X and Z checks commute"


def reduce(vector, basis):
    """What is left of a vector after those of a basis, which go by their highest bits."""
    while vector and vector.bit_length() in basis:
        vector ^= basis[vector.bit_length()]
    return vector


def kernel(matrix):
    """A basis of the vectors that commute with all rows."""
    # Each column with a mark of its own; what columns cancel to leaves the marks of a vector of the kernel.
    basis, found = {}, []
    for qubit in range(QUBITS):
        column = sum((row >> qubit & 1) << i for i, row in enumerate(matrix))
        marked = reduce(column << QUBITS | 1 << qubit, basis)
        if marked >> QUBITS:
            basis[marked.bit_length()] = marked
        else:
            found.append(marked)
    return found


# Logical Z: commutes with the X checks, and is no product of Z checks.
span, logical = {}, []
for vector in HZ + kernel(HX):
    left = reduce(vector, span)
    if left:
        span[left.bit_length()] = left
        if vector not in HZ:
            logical.append(vector)
assert len(logical) == 12

lines = []
for round in range(ROUNDS):
    for qubit in range(QUBITS):
        detectors = [f" D{CHECKS * round + i}" for i, row in enumerate(HZ) if row >> qubit & 1]
        observables = [f" L{i}" for i, row in enumerate(logical) if row >> qubit & 1]
        lines.append(f"error({P}){''.join(detectors + observables)}")
    for check in range(CHECKS):
        lines.append(f"error({P}) D{CHECKS * round + check} D{CHECKS * (round + 1) + check}")

folder = pathlib.Path(__file__).resolve().parent.parent.parent / "config" / "decoders"
file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else folder / "bicycle_72.dem"
file.write_text("\n".join(lines) + "\n")
