//! Floating point (PTX ISA 9.7.3). Results that are no numbers are the canonical NaN of CUDA, so that they repeat.
//!
//! The approximations are the exact results rounded once, which is closer than hardware comes.
#![allow(clippy::float_cmp, reason = "the instructions are these comparisons")]

use super::{Binary, Ternary, Unary};
use crate::types::Type;

/// How a result is rounded; of `.f64`, to nearest only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// A subnormal number is zero to `.ftz`.
pub(crate) fn flush(a: f32) -> f32 {
    if a.is_subnormal() { 0.0_f32.copysign(a) } else { a }
}

const ZERO: u8 = 1;
const DOWN: u8 = 2;
const UP: u8 = 3;

/// Rounds `sum + rest` to `.f32`, where `rest` is smaller than the last place of `sum`, and zero if to nearest.
pub(crate) fn round(sum: f64, rest: f64, mode: Rounding) -> f32 {
    let nearest = sum as f32;
    let above = f64::from(nearest) > sum || (f64::from(nearest) == sum && rest < 0.0);
    let below = f64::from(nearest) < sum || (f64::from(nearest) == sum && rest > 0.0);
    if sum.is_nan() || sum.is_infinite() {
        return nearest;
    }
    let negative = sum < 0.0 || (sum == 0.0 && rest < 0.0);
    match mode {
        Rounding::Down | Rounding::Zero if above && (mode == Rounding::Down || !negative) => nearest.next_down(),
        Rounding::Up | Rounding::Zero if below && (mode == Rounding::Up || negative) => nearest.next_up(),
        _ => nearest,
    }
}

/// The exact sum of two numbers in two parts.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let back = sum - a;
    let rest = (a - (sum - back)) + (b - back);
    (sum, if rest.is_nan() { 0.0 } else { rest })
}

fn mode(rounding: u8) -> Rounding {
    [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up][usize::from(rounding & 3)]
}

/// The exact sum, rounded; zero from numbers that cancel is negative only when rounding down.
fn sum(a: f64, b: f64, rounding: u8) -> f32 {
    let (sum, rest) = two_sum(a, b);
    if sum == 0.0 && rest == 0.0 && (a != 0.0 || a.is_sign_negative() != b.is_sign_negative()) {
        return if rounding == DOWN { -0.0 } else { 0.0 };
    }
    round(sum, rest, mode(rounding))
}

fn input<const FLUSH: bool>(slot: u64) -> f32 {
    let a = f32::from_bits(slot as u32);
    if FLUSH { flush(a) } else { a }
}

fn output<const FLUSH: bool, const SAT: bool>(a: f32) -> u64 {
    if a.is_nan() {
        return if SAT { 0 } else { 0x7FFF_FFFF };
    }
    let a = if FLUSH { flush(a) } else { a };
    // `clamp` keeps a negative zero, hardware does not.
    let a = if SAT { if a > 0.0 { a.min(1.0) } else { 0.0 } } else { a };
    u64::from(a.to_bits())
}

fn add<const FLUSH: bool, const SAT: bool, const R: u8>(a: u64, b: u64) -> u64 {
    let (a, b) = (input::<FLUSH>(a), input::<FLUSH>(b));
    output::<FLUSH, SAT>(if R == 0 { a + b } else { sum(a.into(), b.into(), R) })
}

fn sub<const FLUSH: bool, const SAT: bool, const R: u8>(a: u64, b: u64) -> u64 {
    add::<FLUSH, SAT, R>(a, b ^ 1 << 31)
}

fn mul<const FLUSH: bool, const SAT: bool, const R: u8>(a: u64, b: u64) -> u64 {
    let (a, b) = (input::<FLUSH>(a), input::<FLUSH>(b));
    output::<FLUSH, SAT>(if R == 0 { a * b } else { round(f64::from(a) * f64::from(b), 0.0, mode(R)) })
}

fn fma<const FLUSH: bool, const SAT: bool, const R: u8>(a: u64, b: u64, c: u64) -> u64 {
    let (a, b, c) = (input::<FLUSH>(a), input::<FLUSH>(b), input::<FLUSH>(c));
    let product = || f64::from(a) * f64::from(b);
    output::<FLUSH, SAT>(if R == 0 { a.mul_add(b, c) } else { sum(product(), c.into(), R) })
}

fn div<const FLUSH: bool>(a: u64, b: u64) -> u64 {
    output::<FLUSH, false>(input::<FLUSH>(a) / input::<FLUSH>(b))
}

fn smaller<const FLUSH: bool>(a: u64, b: u64) -> u64 {
    let (a, b) = (input::<FLUSH>(a), input::<FLUSH>(b));
    let first = b.is_nan() || a < b || (a == b && a.is_sign_negative());
    output::<FLUSH, false>(if first { a } else { b })
}

fn larger<const FLUSH: bool>(a: u64, b: u64) -> u64 {
    let (a, b) = (input::<FLUSH>(a), input::<FLUSH>(b));
    let first = b.is_nan() || a > b || (a == b && a.is_sign_positive());
    output::<FLUSH, false>(if first { a } else { b })
}

/// Chooses by flags that are known only now.
macro_rules! by_flags {
    ($function:ident, $flush:expr, $sat:expr, $rounding:expr) => {
        match ($flush, $sat, $rounding) {
            (false, false, Rounding::Nearest) => $function::<false, false, 0>,
            (false, true, Rounding::Nearest) => $function::<false, true, 0>,
            (true, false, Rounding::Nearest) => $function::<true, false, 0>,
            (true, true, Rounding::Nearest) => $function::<true, true, 0>,
            (false, false, Rounding::Zero) => $function::<false, false, ZERO>,
            (false, true, Rounding::Zero) => $function::<false, true, ZERO>,
            (true, false, Rounding::Zero) => $function::<true, false, ZERO>,
            (true, true, Rounding::Zero) => $function::<true, true, ZERO>,
            (false, false, Rounding::Down) => $function::<false, false, DOWN>,
            (false, true, Rounding::Down) => $function::<false, true, DOWN>,
            (true, false, Rounding::Down) => $function::<true, false, DOWN>,
            (true, true, Rounding::Down) => $function::<true, true, DOWN>,
            (false, false, Rounding::Up) => $function::<false, false, UP>,
            (false, true, Rounding::Up) => $function::<false, true, UP>,
            (true, false, Rounding::Up) => $function::<true, false, UP>,
            (true, true, Rounding::Up) => $function::<true, true, UP>,
        }
    };
}

/// What the modifiers of an instruction say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flags {
    pub(crate) flush: bool,
    pub(crate) sat: bool,
    pub(crate) rounding: Rounding,
}

/// Two operands of `.f32`.
pub(crate) fn binary32(opcode: &str, flags: Flags) -> Option<Binary> {
    let Flags { flush, sat, rounding } = flags;
    Some(match opcode {
        "add" => by_flags!(add, flush, sat, rounding),
        "sub" => by_flags!(sub, flush, sat, rounding),
        "mul" => by_flags!(mul, flush, sat, rounding),
        _ if sat || rounding != Rounding::Nearest => return None,
        "div" => {
            if flush {
                div::<true>
            } else {
                div::<false>
            }
        }
        "min" => {
            if flush {
                smaller::<true>
            } else {
                smaller::<false>
            }
        }
        "max" => {
            if flush {
                larger::<true>
            } else {
                larger::<false>
            }
        }
        "copysign" => |a, b| a & 0x8000_0000 | b & 0x7FFF_FFFF,
        _ => return None,
    })
}

/// `fma`, and `mad`, of `.f32`.
pub(crate) fn fma32(flags: Flags) -> Ternary {
    by_flags!(fma, flags.flush, flags.sat, flags.rounding)
}

/// A result in `.f64`.
pub(crate) fn output64(a: f64) -> u64 {
    if a.is_nan() { 0xFFF8_0000_0000_0000 } else { a.to_bits() }
}

fn pair(a: u64, b: u64) -> (f64, f64) {
    (f64::from_bits(a), f64::from_bits(b))
}

/// Two operands of `.f64`.
pub(crate) fn binary64(opcode: &str) -> Option<Binary> {
    Some(match opcode {
        "add" => |a, b| output64(f64::from_bits(a) + f64::from_bits(b)),
        "sub" => |a, b| output64(f64::from_bits(a) - f64::from_bits(b)),
        "mul" => |a, b| output64(f64::from_bits(a) * f64::from_bits(b)),
        "div" => |a, b| output64(f64::from_bits(a) / f64::from_bits(b)),
        "min" => |a, b| {
            let (x, y) = pair(a, b);
            if y.is_nan() || x < y || (x == y && x.is_sign_negative()) { output64(x) } else { output64(y) }
        },
        "max" => |a, b| {
            let (x, y) = pair(a, b);
            if y.is_nan() || x > y || (x == y && x.is_sign_positive()) { output64(x) } else { output64(y) }
        },
        "copysign" => |a, b| a & 1 << 63 | b & !(1 << 63),
        _ => return None,
    })
}

/// `fma`, and `mad`, of `.f64`.
pub(crate) fn fma64(a: u64, b: u64, c: u64) -> u64 {
    output64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)))
}

/// One function of one operand of `.f32`, with and without `.ftz`; what it computes, it does in `.f64`.
macro_rules! one {
    ($flush:expr, $function:expr) => {
        if $flush {
            |a| output::<true, false>($function(f64::from(input::<true>(a))) as f32)
        } else {
            |a| output::<false, false>($function(f64::from(input::<false>(a))) as f32)
        }
    };
}

/// One operand of `.f32`.
pub(crate) fn unary32(opcode: &str, flush: bool) -> Option<Unary> {
    Some(match opcode {
        "abs" if flush => |a| u64::from(input::<true>(a).abs().to_bits()),
        "abs" => |a| a & 0x7FFF_FFFF,
        "neg" if flush => |a| u64::from((-input::<true>(a)).to_bits()),
        "neg" => |a| a ^ 0x8000_0000,
        "sqrt" if flush => |a| output::<true, false>(input::<true>(a).sqrt()),
        "sqrt" => |a| output::<false, false>(input::<false>(a).sqrt()),
        "rcp" if flush => |a| output::<true, false>(1.0 / input::<true>(a)),
        "rcp" => |a| output::<false, false>(1.0 / input::<false>(a)),
        "rsqrt" => one!(flush, |a: f64| 1.0 / a.sqrt()),
        "sin" => one!(flush, f64::sin),
        "cos" => one!(flush, f64::cos),
        "ex2" => one!(flush, f64::exp2),
        // The logarithm of a negative zero is that of zero.
        "lg2" => one!(flush, |a: f64| if a == 0.0 { f64::NEG_INFINITY } else { a.log2() }),
        "tanh" => one!(flush, f64::tanh),
        _ => return None,
    })
}

/// One operand of `.f64`.
pub(crate) fn unary64(opcode: &str) -> Option<Unary> {
    Some(match opcode {
        "abs" => |a| a & !(1 << 63),
        "neg" => |a| a ^ 1 << 63,
        "sqrt" => |a| output64(f64::from_bits(a).sqrt()),
        "rcp" => |a| output64(1.0 / f64::from_bits(a)),
        "rsqrt" => |a| output64(1.0 / f64::from_bits(a).sqrt()),
        _ => return None,
    })
}

macro_rules! classes {
    ($name:ident, $of:expr) => {
        fn $name(class: &str) -> Option<Unary> {
            Some(match class {
                ".finite" => |a| u64::from($of(a).is_finite()),
                ".infinite" => |a| u64::from($of(a).is_infinite()),
                ".number" => |a| u64::from(!$of(a).is_nan()),
                ".notanumber" => |a| u64::from($of(a).is_nan()),
                ".normal" => |a| u64::from($of(a).is_normal()),
                ".subnormal" => |a| u64::from($of(a).is_subnormal()),
                _ => return None,
            })
        }
    };
}
classes!(testp32, input::<false>);
classes!(testp64, f64::from_bits);

/// `testp`
pub(crate) fn testp(class: &str, ty: Type) -> Option<Unary> {
    if ty == Type::F32 { testp32(class) } else { testp64(class) }
}
