//! Integer arithmetic (PTX ISA 9.7.1). Division by zero gives what hardware does: all ones, and the dividend as remainder.

use super::{Binary, Ternary, Unary};
use crate::types::{Class, Type};

/// An integer type of PTX.
pub(crate) trait Int: Copy + Ord + 'static {
    /// From the low bits of a slot.
    fn of(slot: u64) -> Self;
    fn slot(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn saturating_add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn saturating_sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn mul_high(self, other: Self) -> Self;
    /// The product in twice as many bits; of 64-bit types the low half.
    fn mul_wide(self, other: Self) -> u64;
    fn div(self, other: Self) -> Self;
    fn rem(self, other: Self) -> Self;
    fn abs(self) -> Self;
    fn neg(self) -> Self;
    fn shift_right(self, by: u64) -> Self;
}

macro_rules! int {
    ($($int:ident $unsigned:ident $wide:ident $wide_unsigned:ident $sign:literal)*) => { $(
        impl Int for $int {
            fn of(slot: u64) -> Self { slot as Self }
            fn slot(self) -> u64 { self as $unsigned as u64 }
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn saturating_add(self, other: Self) -> Self { <$int>::saturating_add(self, other) }
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            fn saturating_sub(self, other: Self) -> Self { <$int>::saturating_sub(self, other) }
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn mul_high(self, other: Self) -> Self {
                ((self as $wide).wrapping_mul(other as $wide) >> <$int>::BITS) as Self
            }
            fn mul_wide(self, other: Self) -> u64 {
                (self as $wide).wrapping_mul(other as $wide) as $wide_unsigned as u64
            }
            fn div(self, other: Self) -> Self {
                if other == 0 { $unsigned::MAX as Self } else { self.wrapping_div(other) }
            }
            fn rem(self, other: Self) -> Self { if other == 0 { self } else { self.wrapping_rem(other) } }
            fn abs(self) -> Self { if $sign && self < Self::of(0) { self.wrapping_neg() } else { self } }
            fn neg(self) -> Self { self.wrapping_neg() }
            fn shift_right(self, by: u64) -> Self {
                let most = u64::from(<$int>::BITS) - 1;
                if by > most { if $sign { self >> most } else { 0 } } else { self >> by }
            }
        }
    )* };
}
int! {
    u8 u8 u16 u16 false
    i8 u8 i16 u16 true
    u16 u16 u32 u32 false
    i16 u16 i32 u32 true
    u32 u32 u64 u64 false
    i32 u32 i64 u64 true
    u64 u64 u128 u128 false
    i64 u64 i128 u128 true
}

/// Calls a function that is generic over integers with the type that `$ty` is; bits count as unsigned.
macro_rules! with_int {
    ($ty:expr, $function:ident($($argument:expr),*)) => {
        match ($ty.class, $ty.bits) {
            (Class::Signed, 16) => $function::<i16>($($argument),*),
            (Class::Signed, 32) => $function::<i32>($($argument),*),
            (Class::Signed, 64) => $function::<i64>($($argument),*),
            (Class::Unsigned | Class::Bits, 16) => $function::<u16>($($argument),*),
            (Class::Unsigned | Class::Bits, 32) => $function::<u32>($($argument),*),
            (Class::Unsigned | Class::Bits, 64) => $function::<u64>($($argument),*),
            _ => None,
        }
    };
}
pub(crate) use with_int;

fn unary_of<T: Int>(opcode: &str) -> Option<Unary> {
    Some(match opcode {
        "abs" => |a| T::of(a).abs().slot(),
        "neg" => |a| T::of(a).neg().slot(),
        _ => return None,
    })
}

/// `abs`, `neg`
pub(crate) fn unary(opcode: &str, ty: Type) -> Option<Unary> {
    with_int!(ty, unary_of(opcode))
}

fn binary_of<T: Int>(opcode: &str) -> Option<Binary> {
    Some(match opcode {
        "add" => |a, b| T::of(a).add(T::of(b)).slot(),
        "add.sat" => |a, b| T::of(a).saturating_add(T::of(b)).slot(),
        "sub" => |a, b| T::of(a).sub(T::of(b)).slot(),
        "sub.sat" => |a, b| T::of(a).saturating_sub(T::of(b)).slot(),
        "mul.lo" => |a, b| T::of(a).mul(T::of(b)).slot(),
        "mul.hi" => |a, b| T::of(a).mul_high(T::of(b)).slot(),
        "mul.wide" => |a, b| T::of(a).mul_wide(T::of(b)),
        "div" => |a, b| T::of(a).div(T::of(b)).slot(),
        "rem" => |a, b| T::of(a).rem(T::of(b)).slot(),
        "min" => |a, b| T::of(a).min(T::of(b)).slot(),
        "max" => |a, b| T::of(a).max(T::of(b)).slot(),
        "shr" => |a, b| T::of(a).shift_right(b).slot(),
        _ => return None,
    })
}

/// Arithmetic of two operands; the opcode comes with `.lo`, `.hi`, `.wide` or `.sat`.
pub(crate) fn binary(opcode: &str, ty: Type) -> Option<Binary> {
    with_int!(ty, binary_of(opcode))
}

fn ternary_of<T: Int>(opcode: &str) -> Option<Ternary> {
    Some(match opcode {
        "mad.lo" => |a, b, c| T::of(a).mul(T::of(b)).add(T::of(c)).slot(),
        "mad.hi" => |a, b, c| T::of(a).mul_high(T::of(b)).add(T::of(c)).slot(),
        "sad" => |a, b, c| {
            let (a, b) = (T::of(a), T::of(b));
            T::of(c).add(if a < b { b.sub(a) } else { a.sub(b) }).slot()
        },
        _ => return None,
    })
}

/// `mad.lo`, `mad.hi`, `mad.wide`, `sad`
pub(crate) fn ternary(opcode: &str, ty: Type) -> Option<Ternary> {
    match (opcode, ty.class, ty.bits) {
        ("mad.wide", Class::Signed, 16) => Some(|a, b, c| (a as i16).mul_wide(b as i16).wrapping_add(c) & 0xFFFF_FFFF),
        ("mad.wide", Class::Unsigned, 16) => {
            Some(|a, b, c| (a as u16).mul_wide(b as u16).wrapping_add(c) & 0xFFFF_FFFF)
        }
        ("mad.wide", Class::Signed, 32) => Some(|a, b, c| (a as i32).mul_wide(b as i32).wrapping_add(c)),
        ("mad.wide", Class::Unsigned, 32) => Some(|a, b, c| (a as u32).mul_wide(b as u32).wrapping_add(c)),
        _ => with_int!(ty, ternary_of(opcode)),
    }
}

fn low24(a: u64, signed: bool) -> i64 {
    let low = (a as u32) << 8;
    if signed { i64::from(low as i32 >> 8) } else { i64::from(low >> 8) }
}

/// `mul24`: the low, or high, 32 of 48 bits.
pub(crate) fn mul24(high: bool, signed: bool) -> Binary {
    match (high, signed) {
        (false, false) => |a, b| (low24(a, false) * low24(b, false)) as u32 as u64,
        (false, true) => |a, b| (low24(a, true) * low24(b, true)) as u32 as u64,
        (true, false) => |a, b| ((low24(a, false) * low24(b, false)) >> 16) as u32 as u64,
        (true, true) => |a, b| ((low24(a, true) * low24(b, true)) >> 16) as u32 as u64,
    }
}

fn dot<const A: bool, const B: bool>(a: u64, b: u64, c: u64) -> u64 {
    let part = |slot: u64, byte: u32, signed| {
        let byte = (slot >> (8 * byte)) as u8;
        if signed { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let sum = (0..4).fold(c as i32, |sum, at| sum.wrapping_add(part(a, at, A) * part(b, at, B)));
    sum as u32 as u64
}

/// `dp4a`: whether each of the factors is signed.
pub(crate) fn dp4a(a_signed: bool, b_signed: bool) -> Ternary {
    match (a_signed, b_signed) {
        (false, false) => dot::<false, false>,
        (false, true) => dot::<false, true>,
        (true, false) => dot::<true, false>,
        (true, true) => dot::<true, true>,
    }
}
