//! Comparison and selection (PTX ISA 9.7.6, 9.7.8).
#![allow(clippy::float_cmp, clippy::neg_cmp_op_on_partial_ord, reason = "the instructions are these comparisons")]

use super::Binary;
use crate::{
    alu::int::{Int, with_int},
    types::{Class, Type},
};

fn ints<T: Int>(comparison: &str) -> Option<Binary> {
    Some(match comparison {
        ".eq" => |a, b| u64::from(a == b),
        ".ne" => |a, b| u64::from(a != b),
        ".lt" => |a, b| u64::from(T::of(a) < T::of(b)),
        ".le" => |a, b| u64::from(T::of(a) <= T::of(b)),
        ".gt" => |a, b| u64::from(T::of(a) > T::of(b)),
        ".ge" => |a, b| u64::from(T::of(a) >= T::of(b)),
        ".lo" => |a, b| u64::from(a < b),
        ".ls" => |a, b| u64::from(a <= b),
        ".hi" => |a, b| u64::from(a > b),
        ".hs" => |a, b| u64::from(a >= b),
        _ => return None,
    })
}

macro_rules! floats {
    ($name:ident, $of:expr) => {
        fn $name(comparison: &str) -> Option<Binary> {
            Some(match comparison {
                ".eq" => |a, b| u64::from($of(a) == $of(b)),
                ".ne" => |a, b| u64::from($of(a) < $of(b) || $of(a) > $of(b)),
                ".lt" => |a, b| u64::from($of(a) < $of(b)),
                ".le" => |a, b| u64::from($of(a) <= $of(b)),
                ".gt" => |a, b| u64::from($of(a) > $of(b)),
                ".ge" => |a, b| u64::from($of(a) >= $of(b)),
                ".equ" => |a, b| u64::from(!($of(a) < $of(b) || $of(a) > $of(b))),
                ".neu" => |a, b| u64::from($of(a) != $of(b)),
                ".ltu" => |a, b| u64::from(!($of(a) >= $of(b))),
                ".leu" => |a, b| u64::from(!($of(a) > $of(b))),
                ".gtu" => |a, b| u64::from(!($of(a) <= $of(b))),
                ".geu" => |a, b| u64::from(!($of(a) < $of(b))),
                ".num" => |a, b| u64::from(!$of(a).is_nan() && !$of(b).is_nan()),
                ".nan" => |a, b| u64::from($of(a).is_nan() || $of(b).is_nan()),
                _ => return None,
            })
        }
    };
}

fn single(slot: u64) -> f32 {
    f32::from_bits(slot as u32)
}

fn flushed(slot: u64) -> f32 {
    super::float::flush(single(slot))
}

floats!(singles, single);
floats!(flushed_singles, flushed);
floats!(doubles, f64::from_bits);

/// A comparison of `setp` and `set`: 1 or 0. `None` if this type has none of that name.
pub(crate) fn comparison(name: &str, ty: Type, flush: bool) -> Option<Binary> {
    match (ty.class, ty.bits) {
        (Class::Float, 32) if flush => flushed_singles(name),
        (Class::Float, 32) => singles(name),
        (Class::Float, 64) => doubles(name),
        (Class::Bits, _) if !matches!(name, ".eq" | ".ne") => None,
        (Class::Signed, _) if matches!(name, ".lo" | ".ls" | ".hi" | ".hs") => None,
        _ => with_int!(ty, ints(name)),
    }
}

/// `.and`, `.or`, `.xor` of a comparison with a predicate; `negate` is for the second result, of the opposite.
pub(crate) fn combine(name: &str, negate: bool) -> Option<Binary> {
    Some(match (name, negate) {
        (".and", false) => |a, b| a & b,
        (".or", false) => |a, b| a | b,
        (".xor", false) => |a, b| a ^ b,
        (".and", true) => |a, b| (a ^ 1) & b,
        (".or", true) => |a, b| (a ^ 1) | b,
        (".xor", true) => |a, b| (a ^ 1) ^ b,
        _ => return None,
    })
}
