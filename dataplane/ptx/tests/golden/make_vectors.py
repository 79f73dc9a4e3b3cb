#!/usr/bin/env python3
"""Makes vectors.txt: PTX instructions, edge operands, and results that are worked out here, from the PTX ISA manual 8.5.

    python3 dataplane/ptx/tests/golden/make_vectors.py        writes vectors.txt; with -, to stdout

Integers are Python's, floats are exact fractions that are rounded once: nothing of the interpreter is used. Each line is a
case: the instruction, the types of its operands, `->` and that of its result, the operands, `=` and the result, all in
hexadecimal; `nan` is any NaN, where the manual names none. 32 lines in a row are the lanes of a warp.

What the manual leaves open has no case: division by zero, approximations, the zero that `.sat` gives for -0, a
subnormal sum that rounds up to a normal number under `.ftz`.
"""

import math
import pathlib
import sys
from fractions import Fraction

out = []


class Random:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = self.state + 0x9E3779B97F4A7C15 & MASK[64]
        x = self.state
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK[64]
        x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK[64]
        return x ^ x >> 31

    def pick(self, values):
        return values[self.next() % len(values)]


MASK = {bits: (1 << bits) - 1 for bits in (1, 8, 16, 32, 48, 64)}
random = Random(1)


def signed(x, bits):
    x &= MASK[bits]
    return x - (1 << bits) if x >> bits - 1 else x


def number(x, ty):
    bits = int(ty[1:])
    return signed(x, bits) if ty[0] == "s" else x & MASK[bits]


# Floats: bits of the exponent and of the fraction; a value is a fraction, "nan", or a pair of a sign and "inf" or "zero".
FORMAT = {"f32": (8, 23), "f64": (11, 52)}
NAN = "nan"


def unpack(x, ty, ftz=False):
    e, f = FORMAT[ty]
    sign, exponent, fraction = x >> e + f & 1, x >> f & MASK_OF(e), x & MASK_OF(f)
    bias = (1 << e - 1) - 1
    if exponent == MASK_OF(e):
        return NAN if fraction else (sign, "inf")
    if exponent == 0:
        if fraction == 0 or ftz:
            return (sign, "zero")
        value = Fraction(fraction, 1) * Fraction(2) ** (1 - bias - f)
    else:
        value = Fraction(fraction | 1 << f) * Fraction(2) ** (exponent - bias - f)
    return -value if sign else value


def MASK_OF(bits):
    return (1 << bits) - 1


def split(value):
    """Sign and size of a value that is no NaN; a size may be infinite."""
    if isinstance(value, tuple):
        return value[0], math.inf if value[1] == "inf" else Fraction(0)
    return int(value < 0), abs(value)


class Unclear(Exception):
    """The manual does not say what comes out."""


def floor_log2(x):
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def to_integer(x, mode):
    """A fraction to an integer."""
    down = math.floor(x)
    if mode == "rz":
        return -math.floor(-x) if x < 0 else down
    if mode == "rm":
        return down
    if mode == "rp":
        return -math.floor(-x)
    rest = x - down
    return down + (rest > Fraction(1, 2) or rest == Fraction(1, 2) and down % 2 == 1)


def pack(value, ty, mode="rn", ftz=False, sat=False):
    """Rounds a value to the bits of a float."""
    e, f = FORMAT[ty]
    if value == NAN:
        return 0 if sat else (0x7FFFFFFF if ty == "f32" else NAN)
    sign, size = split(value)
    if sat:
        if sign and size == 0:
            raise Unclear
        sign, size = (0, Fraction(0)) if sign else (0, min(size, Fraction(1)))
    bias = (1 << e - 1) - 1
    infinity = MASK_OF(e) << f
    if size == math.inf:
        bits = infinity
    elif size == 0:
        bits = 0
    else:
        exponent = max(floor_log2(size), 1 - bias)
        unit = Fraction(2) ** (exponent - f)
        quotient = to_integer(-size / unit if sign else size / unit, mode)
        quotient = abs(quotient)
        # A carry into the next exponent, or from a subnormal number to a normal one, is one in these bits, too.
        bits = quotient + (exponent + bias - 1 << f)
        if bits >= infinity:
            away = mode == "rn" or mode == ("rm" if sign else "rp")
            bits = infinity if away else infinity - 1
        if ftz and size < Fraction(2) ** (1 - bias):
            if bits >> f:
                raise Unclear
            bits = 0
    return sign << e + f | bits


def add(a, b, mode):
    if a == NAN or b == NAN:
        return NAN
    (sa, x), (sb, y) = split(a), split(b)
    if x == math.inf or y == math.inf:
        if x == y and sa != sb:
            return NAN
        return a if x == math.inf else b
    total = (-x if sa else x) + (-y if sb else y)
    if total:
        return total
    if x == 0 and sa == sb:
        return (sa, "zero")
    return (int(mode == "rm"), "zero")


def mul(a, b):
    if a == NAN or b == NAN:
        return NAN
    (sa, x), (sb, y) = split(a), split(b)
    if math.inf in (x, y):
        return NAN if x == 0 or y == 0 else (sa ^ sb, "inf")
    product = x * y
    return (sa ^ sb, "zero") if product == 0 else (-product if sa ^ sb else product)


def divide(a, b):
    if a == NAN or b == NAN:
        return NAN
    (sa, x), (sb, y) = split(a), split(b)
    if x == math.inf:
        return NAN if y == math.inf else (sa ^ sb, "inf")
    if y == 0:
        return NAN if x == 0 else (sa ^ sb, "inf")
    if x == 0 or y == math.inf:
        return (sa ^ sb, "zero")
    return -x / y if sa ^ sb else x / y


def root(a):
    if a == NAN:
        return NAN
    sign, x = split(a)
    if x == 0:
        return a
    if sign:
        return NAN
    if x == math.inf:
        return a
    # 200 bits of the root, and one more that says whether there is a rest: enough to round to 53, and never a tie.
    scaled = x * Fraction(4) ** 1200
    whole = scaled.numerator // scaled.denominator
    low = math.isqrt(whole)
    exact = low * low == whole and scaled.denominator == 1
    return (Fraction(low) if exact else low + Fraction(1, 2)) / Fraction(2) ** 1200


def order(a):
    """A number to compare by, of a value that is no NaN; the zeros are equal."""
    sign, size = split(a)
    return -size if sign else size


F32 = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F800001,
    0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x00800001, 0x7F7FFFFF, 0xFF7FFFFF,
    0x3F7FFFFF, 0x3F800001, 0x33800000, 0x34000000, 0x3EAAAAAB, 0x40490FDB, 0x3F000000, 0x40200000, 0xC0200000,
    0x4B000001, 0x4F000000, 0xCF000000, 0x4EFFFFFF, 0x4F800000, 0x5F000000, 0x5F800000, 0xC2FF0000, 0x437F8000,
]
F64 = [
    0x0000000000000000, 0x8000000000000000, 0x3FF0000000000000, 0xBFF0000000000000, 0x7FF0000000000000,
    0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000001234, 0x0000000000000001, 0x8000000000000001,
    0x000FFFFFFFFFFFFF, 0x0010000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF, 0x3FEFFFFFFFFFFFFF,
    0x3FF0000000000001, 0x3CA0000000000000, 0x3FD5555555555555, 0x400921FB54442D18, 0x41DFFFFFFFC00000,
    0x41E0000000000000, 0xC1E0000000100000, 0x41EFFFFFFFE00000, 0x43E0000000000000, 0xC3E0000000000000,
    0x43F0000000000000, 0x47EFFFFFF0000000, 0x47EFFFFFEFFFFFFF, 0x36A0000000000000, 0x3690000000000001,
    0x380FFFFFE0000000, 0x3810000000000000, 0x3FF0000010000000, 0x3FF0000030000000, 0xBFE0000000000000,
    0x4004000000000000, 0xC004000000000000,
]
EDGES = [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF,
         0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0x100000000, 0x7FFFFFFFFFFFFFFF, 1 << 63]


def operand(ty):
    bits = int(ty[1:]) if ty != "pred" else 1
    if ty == "f32":
        if random.next() % 3:
            return random.pick(F32)
        # Close exponents, so that sums round.
        return (random.next() & 0x807FFFFF) | 120 + random.next() % 16 << 23
    if ty == "f64":
        if random.next() % 3:
            return random.pick(F64)
        return (random.next() & 0x800FFFFFFFFFFFFF) | 1015 + random.next() % 16 << 52
    choice = random.next() % 5
    if choice < 2:
        return random.pick(EDGES) & MASK[bits]
    if choice == 2:
        return ~random.pick(EDGES) & MASK[bits]
    if choice == 3:
        return random.next() % 70 & MASK[bits]
    return random.next() & MASK[bits]


def width(ty):
    return 1 if ty == "pred" else int(ty[1:]) // 4


def text(value, ty):
    return value if value == NAN else f"{value:0{width(ty)}x}"


def line(instruction, types, result, operands, value):
    given = " ".join(text(x, ty) for x, ty in zip(operands, types))
    out.append(f"{instruction} | {' '.join(types)} -> {result} | {given} = {text(value, result)}")


def cases(instruction, types, result, f, count=24):
    """Edge operands and others, until there are enough that the manual is clear about."""
    made = 0
    while made < count:
        operands = [operand(ty) for ty in types]
        try:
            value = f(*operands)
        except Unclear:
            continue
        if value != NAN and result[0] != "f" and result != "pred":
            value &= MASK[int(result[1:])]
        line(instruction, types, result, operands, int(value) if value != NAN else value)
        made += 1


def integers():
    for bits in (16, 32, 64):
        for kind in "su":
            ty = f"{kind}{bits}"

            def n(x, ty=ty):
                return number(x, ty)

            def whole(x, y, n=n):
                """The quotient towards zero and the remainder."""
                x, y = n(x), n(y)
                if y == 0:
                    raise Unclear
                quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
                return quotient, x - quotient * y

            two, three = [ty] * 2, [ty] * 3
            cases(f"add.{ty} %d, %a0, %a1;", two, ty, lambda a, b: a + b)
            cases(f"sub.{ty} %d, %a0, %a1;", two, ty, lambda a, b: a - b)
            cases(f"mul.lo.{ty} %d, %a0, %a1;", two, ty, lambda a, b: a * b)
            cases(f"mul.hi.{ty} %d, %a0, %a1;", two, ty, lambda a, b, n=n, bits=bits: n(a) * n(b) >> bits)
            cases(f"mad.lo.{ty} %d, %a0, %a1, %a2;", three, ty, lambda a, b, c: a * b + c)
            cases(f"mad.hi.{ty} %d, %a0, %a1, %a2;", three, ty, lambda a, b, c, n=n, bits=bits: (n(a) * n(b) >> bits) + c)
            if bits < 64:
                wide = f"{kind}{2 * bits}"
                cases(f"mul.wide.{ty} %d, %a0, %a1;", two, wide, lambda a, b, n=n: n(a) * n(b))
                cases(f"mad.wide.{ty} %d, %a0, %a1, %a2;", [ty, ty, wide], wide, lambda a, b, c, n=n: n(a) * n(b) + c)
            cases(f"div.{ty} %d, %a0, %a1;", two, ty, lambda a, b, whole=whole: whole(a, b)[0])
            cases(f"rem.{ty} %d, %a0, %a1;", two, ty, lambda a, b, whole=whole: whole(a, b)[1])
            cases(f"min.{ty} %d, %a0, %a1;", two, ty, lambda a, b, n=n: min(n(a), n(b)))
            cases(f"max.{ty} %d, %a0, %a1;", two, ty, lambda a, b, n=n: max(n(a), n(b)))
            cases(f"sad.{ty} %d, %a0, %a1, %a2;", three, ty, lambda a, b, c, n=n: c + abs(n(a) - n(b)))
            cases(f"shr.{ty} %d, %a0, %a1;", [ty, "u32"], ty, lambda a, b, n=n, bits=bits: n(a) >> min(b, bits))
            for comparison, f in COMPARISONS.items():
                cases(f"setp.{comparison}.{ty} %d, %a0, %a1;", two, "pred", lambda a, b, n=n, f=f: f(n(a), n(b)), 8)
            if kind == "s":
                cases(f"abs.{ty} %d, %a0;", [ty], ty, lambda a, n=n: abs(n(a)))
                cases(f"neg.{ty} %d, %a0;", [ty], ty, lambda a, n=n: -n(a))
            else:
                for name, comparison in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
                    cases(f"setp.{name}.{ty} %d, %a0, %a1;", two, "pred", COMPARISONS[comparison], 8)
        b = f"b{bits}"
        cases(f"shl.{b} %d, %a0, %a1;", [b, "u32"], b, lambda a, n, bits=bits: a << min(n, bits))
        cases(f"and.{b} %d, %a0, %a1;", [b, b], b, lambda a, b: a & b, 8)
        cases(f"or.{b} %d, %a0, %a1;", [b, b], b, lambda a, b: a | b, 8)
        cases(f"xor.{b} %d, %a0, %a1;", [b, b], b, lambda a, b: a ^ b, 8)
        cases(f"not.{b} %d, %a0;", [b], b, lambda a: ~a, 8)
        cases(f"cnot.{b} %d, %a0;", [b], b, lambda a: a == 0, 8)
        cases(f"selp.{b} %d, %a0, %a1, %a2;", [b, b, "pred"], b, lambda a, b, p: a if p else b, 8)
        cases(f"slct.{b}.s32 %d, %a0, %a1, %a2;", [b, b, "s32"], b, lambda a, b, c: a if signed(c, 32) >= 0 else b, 12)

    def clamped(x):
        return max(-(1 << 31), min(x, MASK[32] >> 1))

    cases("add.sat.s32 %d, %a0, %a1;", ["s32"] * 2, "s32", lambda a, b: clamped(signed(a, 32) + signed(b, 32)))
    cases("sub.sat.s32 %d, %a0, %a1;", ["s32"] * 2, "s32", lambda a, b: clamped(signed(a, 32) - signed(b, 32)))
    for kind in "su":
        ty = f"{kind}32"

        def product(a, b, kind=kind):
            low = (lambda x: signed(x << 8, 32) >> 8) if kind == "s" else (lambda x: x & 0xFFFFFF)
            return low(a) * low(b)

        cases(f"mul24.lo.{ty} %d, %a0, %a1;", [ty] * 2, ty, product)
        cases(f"mul24.hi.{ty} %d, %a0, %a1;", [ty] * 2, ty, lambda a, b, product=product: product(a, b) >> 16)
    # Carries.
    for bits in (32, 64):
        u, x = f"u{bits}", f"%x{bits}"
        wide = lambda low, high, bits=bits: low | high << bits  # noqa: E731
        cases(f"add.cc.{u} {x}, %a0, %a2; addc.{u} %d, %a1, %a3;", [u] * 4, u,
              lambda a, b, c, d, wide=wide, bits=bits: wide(a, b) + wide(c, d) >> bits)
        cases(f"sub.cc.{u} {x}, %a0, %a2; subc.{u} %d, %a1, %a3;", [u] * 4, u,
              lambda a, b, c, d, wide=wide, bits=bits: wide(a, b) - wide(c, d) >> bits)
        cases(f"mad.lo.cc.{u} {x}, %a0, %a1, %a2; madc.hi.{u} %d, %a0, %a1, %a3;", [u] * 4, u,
              lambda a, b, c, d, bits=bits: (a * b >> bits) + d + ((a * b & MASK[bits]) + c >> bits))
        cases(f"add.cc.{u} {x}, %a0, %a1; addc.cc.{u} {x}, %a2, %a3; addc.{u} %d, 0, 0;", [u] * 4, u,
              lambda a, b, c, d, bits=bits: c + d + (a + b >> bits) >> bits)
    for a in "su":
        for b in "su":
            result = "s32" if "s" in a + b else "u32"
            part = lambda x, i, kind: number(x >> 8 * i, f"{kind}8")  # noqa: E731
            cases(f"dp4a.{a}32.{b}32 %d, %a0, %a1, %a2;", [f"{a}32", f"{b}32", result], result,
                  lambda x, y, c, a=a, b=b, part=part: c + sum(part(x, i, a) * part(y, i, b) for i in range(4)))


def bits_of_integers():
    for bits in (32, 64):
        b, u, s = f"b{bits}", f"u{bits}", f"s{bits}"
        cases(f"popc.{b} %d, %a0;", [b], "u32", lambda a: a.bit_count(), 16)
        cases(f"clz.{b} %d, %a0;", [b], "u32", lambda a, bits=bits: bits - a.bit_length(), 16)
        cases(f"brev.{b} %d, %a0;", [b], b, lambda a, bits=bits: int(f"{a:0{bits}b}"[::-1], 2), 16)
        for ty in (s, u):
            def found(a, ty=ty):
                n = number(a, ty)
                return (~n if n < 0 else n).bit_length() - 1

            cases(f"bfind.{ty} %d, %a0;", [ty], "u32", found, 24)
            cases(f"bfind.shiftamt.{ty} %d, %a0;", [ty], "u32",
                  lambda a, found=found, bits=bits: bits - 1 - found(a) if found(a) >= 0 else -1, 24)

            # As the manual has it, bit by bit.
            def extract(a, b, c, ty=ty, bits=bits):
                position, length, top = b & 255, c & 255, bits - 1
                bit = lambda i: a >> i & 1  # noqa: E731
                sign = 0 if ty[0] == "u" or length == 0 else bit(min(position + length - 1, top))
                taken = [bit(position + i) if i < length and position + i <= top else sign for i in range(bits)]
                return sum(x << i for i, x in enumerate(taken))

            cases(f"bfe.{ty} %d, %a0, %a1, %a2;", [ty, "u32", "u32"], ty, extract, 64)

        def insert(a, b, c, d, bits=bits):
            position, length = c & 255, d & 255
            for i in range(length):
                if position + i < bits:
                    b = b & ~(1 << position + i) | (a >> i & 1) << position + i
            return b

        cases(f"bfi.{b} %d, %a0, %a1, %a2, %a3;", [b, b, "u32", "u32"], b, insert, 64)

    def choose(a, b, selectors):
        result = 0
        for at, selector in enumerate(selectors):
            byte = (b << 32 | a) >> 8 * (selector & 7) & 255
            result |= (255 * (byte >> 7) if selector & 8 else byte) << 8 * at
        return result

    three = ["b32"] * 3
    cases("prmt.b32 %d, %a0, %a1, %a2;", three, "b32", lambda a, b, c: choose(a, b, [c >> 4 * i & 15 for i in range(4)]), 64)
    # Selectors from the lowest byte up, by the low two bits of c (PTX ISA, prmt).
    modes = {
        "f4e": lambda n: [n, n + 1, n + 2, n + 3],
        "b4e": lambda n: [n, n - 1 & 7, n - 2 & 7, n - 3 & 7],
        "rc8": lambda n: [n] * 4,
        "ecl": lambda n: [max(i, n) for i in range(4)],
        "ecr": lambda n: [min(i, n) for i in range(4)],
        "rc16": lambda n: [2 * (n & 1), 2 * (n & 1) + 1] * 2,
    }
    for mode, selectors in modes.items():
        cases(f"prmt.b32.{mode} %d, %a0, %a1, %a2;", three, "b32",
              lambda a, b, c, selectors=selectors: choose(a, b, selectors(c & 3)))
    for table in (0x00, 0x01, 0x80, 0x96, 0xCA, 0xE8, 0x2D, 0xFF):
        cases(f"lop3.b32 %d, %a0, %a1, %a2, {table};", three, "b32", lambda a, b, c, table=table: sum(
            (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32)), 8)
    for mode, amount in (("wrap", lambda c: c & 31), ("clamp", lambda c: min(c, 32))):
        cases(f"shf.l.{mode}.b32 %d, %a0, %a1, %a2;", three, "b32",
              lambda a, b, c, amount=amount: (b << 32 | a) << amount(c) >> 32)
        cases(f"shf.r.{mode}.b32 %d, %a0, %a1, %a2;", three, "b32",
              lambda a, b, c, amount=amount: (b << 32 | a) >> amount(c))
    cases("mov.b64 %d, {%a0, %a1};", ["b32", "b32"], "b64", lambda a, b: b << 32 | a, 8)
    cases("mov.b64 {%d, %x32}, %a0;", ["b64"], "b32", lambda a: a, 8)
    cases("mov.b64 {%x32, %d}, %a0;", ["b64"], "b32", lambda a: a >> 32, 8)
    cases("mov.b32 %d, {%a0, %a1};", ["b16", "b16"], "b32", lambda a, b: b << 16 | a, 8)


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def floats():
    for ty in ("f32", "f64"):
        e, f = FORMAT[ty]
        top = 1 << e + f
        for ftz in ("", ".ftz") if ty == "f32" else ("",):
            value = lambda x, ty=ty, ftz=ftz: unpack(x, ty, bool(ftz))  # noqa: E731
            for sat in ("", ".sat") if ty == "f32" else ("",):
                for mode in ("rn", "rz", "rm", "rp") if ty == "f32" else ("rn",):
                    if sat and mode in ("rm", "rp"):
                        continue
                    done = lambda x, ty=ty, mode=mode, ftz=ftz, sat=sat: pack(x, ty, mode, bool(ftz), bool(sat))  # noqa: E731
                    name = f"{mode}{ftz}{sat}.{ty}"
                    cases(f"add.{name} %d, %a0, %a1;", [ty] * 2, ty,
                          lambda a, b, value=value, done=done, mode=mode: done(add(value(a), value(b), mode)), 48)
                    cases(f"sub.{name} %d, %a0, %a1;", [ty] * 2, ty, lambda a, b, value=value, done=done, mode=mode, top=top:
                          done(add(value(a), value(b ^ top), mode)), 16)
                    cases(f"mul.{name} %d, %a0, %a1;", [ty] * 2, ty,
                          lambda a, b, value=value, done=done: done(mul(value(a), value(b))), 40)
                    cases(f"fma.{name} %d, %a0, %a1, %a2;", [ty] * 3, ty, lambda a, b, c, value=value, done=done, mode=mode:
                          done(add(mul(value(a), value(b)), value(c), mode)), 56)
            done = lambda x, ty=ty, ftz=ftz: pack(x, ty, "rn", bool(ftz))  # noqa: E731
            cases(f"div.rn{ftz}.{ty} %d, %a0, %a1;", [ty] * 2, ty,
                  lambda a, b, value=value, done=done: done(divide(value(a), value(b))), 64)
            cases(f"rcp.rn{ftz}.{ty} %d, %a0;", [ty], ty,
                  lambda a, value=value, done=done: done(divide(Fraction(1), value(a))), 48)
            cases(f"sqrt.rn{ftz}.{ty} %d, %a0;", [ty], ty, lambda a, value=value, done=done: done(root(value(a))), 48)

            def least(a, b, value=value, done=done, sign=1):
                a, b = value(a), value(b)
                if a == NAN or b == NAN:
                    return done(b if a == NAN else a)
                # A negative zero is less than a positive one.
                key = lambda x: (sign * order(x), -sign * split(x)[0])  # noqa: E731
                return done(min(a, b, key=key))

            cases(f"min{ftz}.{ty} %d, %a0, %a1;", [ty] * 2, ty, least, 64)
            cases(f"max{ftz}.{ty} %d, %a0, %a1;", [ty] * 2, ty, lambda a, b, least=least: least(a, b, sign=-1), 64)
            for comparison, holds in COMPARISONS.items():
                def ordered(a, b, value=value, holds=holds, otherwise=False):
                    a, b = value(a), value(b)
                    return otherwise if NAN in (a, b) else holds(order(a), order(b))

                for name, otherwise in ((comparison, False), (comparison + "u", True)):
                    cases(f"setp.{name}{ftz}.{ty} %d, %a0, %a1;", [ty] * 2, "pred",
                          lambda a, b, ordered=ordered, otherwise=otherwise: ordered(a, b, otherwise=otherwise), 14)
                    cases(f"set.{name}{ftz}.u32.{ty} %d, %a0, %a1;", [ty] * 2, "u32",
                          lambda a, b, ordered=ordered, otherwise=otherwise: -ordered(a, b, otherwise=otherwise), 8)
                    cases(f"set.{name}{ftz}.f32.{ty} %d, %a0, %a1;", [ty] * 2, "f32", lambda a, b, ordered=ordered,
                          otherwise=otherwise: 0x3F800000 * ordered(a, b, otherwise=otherwise), 8)
            for name, nan in (("num", False), ("nan", True)):
                cases(f"setp.{name}{ftz}.{ty} %d, %a0, %a1;", [ty] * 2, "pred",
                      lambda a, b, value=value, nan=nan: (NAN in (value(a), value(b))) == nan, 16)
        cases(f"copysign.{ty} %d, %a0, %a1;", [ty] * 2, ty, lambda a, b, top=top: a & top | b & top - 1, 16)
        classes = {
            "finite": lambda x: x != NAN and split(x)[1] != math.inf,
            "infinite": lambda x: x != NAN and split(x)[1] == math.inf,
            "number": lambda x: x != NAN,
            "notanumber": lambda x: x == NAN,
        }
        for name, holds in classes.items():
            cases(f"testp.{name}.{ty} %d, %a0;", [ty], "pred", lambda a, ty=ty, holds=holds: holds(unpack(a, ty)), 16)
        exponent = lambda a, e=e, f=f: a >> f & MASK_OF(e)  # noqa: E731
        cases(f"testp.normal.{ty} %d, %a0;", [ty], "pred",
              lambda a, exponent=exponent, e=e: 0 < exponent(a) < MASK_OF(e), 16)
        cases(f"testp.subnormal.{ty} %d, %a0;", [ty], "pred",
              lambda a, exponent=exponent, top=top: exponent(a) == 0 and a & top - 1 != 0, 16)

    def sign_of(a, b, c, ftz):
        value = unpack(c, "f32", ftz)
        return a if value != NAN and order(value) >= 0 else b

    cases("slct.b32.f32 %d, %a0, %a1, %a2;", ["b32", "b32", "f32"], "b32", lambda a, b, c: sign_of(a, b, c, False))
    cases("slct.ftz.b32.f32 %d, %a0, %a1, %a2;", ["b32", "b32", "f32"], "b32",
          lambda a, b, c: sign_of(a, b, c, True))


def numbers_of_nan(a, ty, f):
    """Of what is no NaN: neg, abs and conversions leave the payload of one open."""
    if unpack(a, ty) == NAN:
        raise Unclear
    return f(a)


def conversions():
    for ty in ("f32", "f64"):
        top = 1 << sum(FORMAT[ty])
        cases(f"neg.{ty} %d, %a0;", [ty], ty, lambda a, ty=ty, top=top: numbers_of_nan(a, ty, lambda a: a ^ top), 16)
        cases(f"abs.{ty} %d, %a0;", [ty], ty, lambda a, ty=ty, top=top: numbers_of_nan(a, ty, lambda a: a & top - 1), 16)
        for target in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
            bits = int(target[1:])
            # A narrow result is extended to the register.
            register = f"{target[0]}{max(bits, 16)}"
            least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, MASK[bits])
            for mode in ("rni", "rzi", "rmi", "rpi"):
                for ftz in ("", ".ftz") if ty == "f32" else ("",):
                    def convert(a, ty=ty, mode=mode, ftz=ftz, bits=bits, least=least, most=most, target=target):
                        value = unpack(a, ty, bool(ftz))
                        if value == NAN:
                            # The manual's table; of results narrower than 32 bits it is not clear.
                            if bits < 32:
                                raise Unclear
                            return 1 << bits - 1 if ty == "f64" or bits == 64 else 0
                        sign, size = split(value)
                        if size == math.inf:
                            return least if sign else most
                        return max(least, min(to_integer(order(value), mode[:2]), most))

                    cases(f"cvt.{mode}{ftz}.{target}.{ty} %d, %a0;", [ty], register, convert, 28 if bits >= 32 else 10)
            if bits >= 16:
                for mode in ("rn", "rz", "rm", "rp"):
                    cases(f"cvt.{mode}.{ty}.{target} %d, %a0;", [target], ty, lambda a, ty=ty, mode=mode, target=target:
                          pack(Fraction(number(a, target)) or (0, "zero"), ty, mode), 20 if bits >= 32 else 8)
        for mode in ("rni", "rzi", "rmi", "rpi"):
            def whole(a, ty=ty, mode=mode):
                value = unpack(a, ty)
                sign, size = split(value)
                if size in (0, math.inf):
                    return pack(value, ty)
                rounded = to_integer(value, mode[:2])
                return pack(Fraction(rounded) if rounded else (sign, "zero"), ty)

            cases(f"cvt.{mode}.{ty}.{ty} %d, %a0;", [ty], ty, lambda a, ty=ty, whole=whole: numbers_of_nan(a, ty, whole))
    for mode in ("rn", "rz", "rm", "rp"):
        for ftz in ("", ".ftz"):
            for sat in ("", ".sat"):
                cases(f"cvt.{mode}{ftz}{sat}.f32.f64 %d, %a0;", ["f64"], "f32", lambda a, mode=mode, ftz=ftz, sat=sat:
                      pack(unpack(a, "f64"), "f32", mode, bool(ftz), bool(sat)), 32)
    cases("cvt.f64.f32 %d, %a0;", ["f32"], "f64", lambda a: pack(unpack(a, "f32"), "f64"))
    cases("cvt.ftz.f64.f32 %d, %a0;", ["f32"], "f64", lambda a: pack(unpack(a, "f32", True), "f64"))
    cases("cvt.sat.f32.f32 %d, %a0;", ["f32"], "f32", lambda a: pack(unpack(a, "f32"), "f32", sat=True))
    for source in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        size = int(source[1:])
        lowest, highest = (-(1 << size - 1), (1 << size - 1) - 1) if source[0] == "s" else (0, MASK[size])
        for target in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
            bits = int(target[1:])
            given, register = f"{source[0]}{max(int(source[1:]), 16)}", f"{target[0]}{max(bits, 16)}"
            least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if target[0] == "s" else (0, MASK[bits])
            if source != target:
                cases(f"cvt.{target}.{source} %d, %a0;", [given], register,
                      lambda a, source=source, target=target: number(number(a, source), target), 12)
                # Assemblers refuse `.sat` where every number fits.
                if highest > most or lowest < least:
                    cases(f"cvt.sat.{target}.{source} %d, %a0;", [given], register,
                          lambda a, source=source, least=least, most=most: max(least, min(number(a, source), most)), 12)



def warps():
    """Each case is 32 lanes: a function of all operands and a lane."""

    def warp(instruction, types, result, f, few=None):
        lanes = [[random.pick(few) if few else operand(ty) for ty in types] for _ in range(32)]
        for lane in range(32):
            value = int(f(lanes, lane))
            line(instruction, types, result, lanes[lane], value & MASK[32] if result != "pred" else value)

    for c in (0x1F, 0x181F, 0x1C1F, 0x1007):
        clamp, segment = c & 31, c >> 8 & 31
        for b in (0, 1, 3, 16):
            for mode in ("up", "down", "bfly", "idx"):
                limit = c
                if mode == "up":
                    limit = c & ~31  # Of up, the clamp is the lowest lane, 0 of its segment.
                    clamp = 0
                else:
                    clamp = c & 31

                def source(lane, mode=mode, b=b, clamp=clamp, segment=segment):
                    most = (lane & segment) | (clamp & ~segment)
                    least = lane & segment
                    if mode == "up":
                        j, valid = lane - b, lane - b >= most
                    elif mode == "down":
                        j, valid = lane + b, lane + b <= most
                    elif mode == "bfly":
                        j, valid = lane ^ b, lane ^ b <= most
                    else:
                        j = least | (b & ~segment)
                        valid = j <= most
                    return (j, True) if valid else (lane, False)

                head = f"shfl.sync.{mode}.b32"
                warp(f"{head} %d, %a0, {b}, {limit}, 0xffffffff;", ["b32"], "b32",
                     lambda lanes, lane, source=source: lanes[source(lane)[0]][0])
                if c == 0x1C1F:
                    warp(f"{head} %x32|%d, %a0, {b}, {limit}, 0xffffffff;", ["b32"], "pred",
                         lambda lanes, lane, source=source: source(lane)[1])
    every = "0xffffffff"
    for few in ([0], [1], [0, 1], [0, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1, 0]):
        warp(f"vote.sync.all.pred %d, %a0, {every};", ["pred"], "pred", lambda x, _: all(a for a, in x), few)
        warp(f"vote.sync.any.pred %d, %a0, {every};", ["pred"], "pred", lambda x, _: any(a for a, in x), few)
        warp(f"vote.sync.uni.pred %d, %a0, {every};", ["pred"], "pred", lambda x, _: len({a for a, in x}) == 1, few)
        warp(f"vote.sync.ballot.b32 %d, %a0, {every};", ["pred"], "b32",
             lambda x, _: sum(a << i for i, (a,) in enumerate(x)), few)
    for ty, few in (("b32", [5]), ("b32", [0, 5, 0x80000000]), ("b64", [1, 1 << 32, 1 << 32 | 1])):
        same = lambda x, lane: sum((a == x[lane][0]) << i for i, (a,) in enumerate(x))  # noqa: E731
        warp(f"match.any.sync.{ty} %d, %a0, {every};", [ty], "b32", same, few)
        for some in (few, few[:1]):
            warp(f"match.all.sync.{ty} %x32|%d, %a0, {every};", [ty], "pred", lambda x, _: len({a for a, in x}) == 1, some)
            warp(f"match.all.sync.{ty} %d|%p, %a0, {every};", [ty], "b32",
                 lambda x, _: -(len({a for a, in x}) == 1), some)
    for ty in ("s32", "u32"):
        warp(f"redux.sync.add.{ty} %d, %a0, {every};", [ty], ty, lambda x, _: sum(a for a, in x))
        warp(f"redux.sync.min.{ty} %d, %a0, {every};", [ty], ty, lambda x, _, ty=ty: min(number(a, ty) for a, in x))
        warp(f"redux.sync.max.{ty} %d, %a0, {every};", [ty], ty, lambda x, _, ty=ty: max(number(a, ty) for a, in x))
    for name, start, f in (("and", MASK[32], lambda a, b: a & b), ("or", 0, lambda a, b: a | b), ("xor", 0, lambda a, b: a ^ b)):
        def reduced(x, _, start=start, f=f):
            for a, in x:
                start = f(start, a)
            return start

        warp(f"redux.sync.{name}.b32 %d, %a0, {every};", ["b32"], "b32", reduced)


warps()
integers()
bits_of_integers()
floats()
conversions()
if sys.argv[1:] == ["-"]:
    print("\n".join(out))
else:
    pathlib.Path(__file__).resolve().with_name("vectors.txt").write_text("\n".join(out) + "\n")
