//! `cvt` (PTX ISA 9.7.9).

use super::float::{Rounding, flush, output64, round};
use crate::types::{Class, Type};

/// What a `cvt` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Convert {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) rounding: Rounding,
    /// Whether a float becomes an integer of its own type: `.rni`, `.rzi`, `.rmi`, `.rpi`.
    pub(crate) integer: bool,
    pub(crate) sat: bool,
    pub(crate) flush: bool,
    /// How many bits the destination's register has.
    pub(crate) register: u8,
}

/// The low `bits` of a slot as a number.
#[inline]
pub(crate) fn extend(slot: u64, ty: Type) -> i128 {
    let unused = 64 - u32::from(ty.bits);
    if ty.is_signed() { i128::from((slot << unused) as i64 >> unused) } else { i128::from(slot << unused >> unused) }
}

/// A number in a register: cut to `ty`, extended to as many bits as the register has.
#[inline]
pub(crate) fn narrow(number: i128, ty: Type, register: u8) -> u64 {
    extend(number as u64, ty) as u64 & u64::MAX >> (64 - register)
}

fn range(ty: Type) -> (i128, i128) {
    if ty.is_signed() { (-(1 << (ty.bits - 1)), (1 << (ty.bits - 1)) - 1) } else { (0, (1 << ty.bits) - 1) }
}

fn whole(a: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => a.round_ties_even(),
        Rounding::Zero => a.trunc(),
        Rounding::Down => a.floor(),
        Rounding::Up => a.ceil(),
    }
}

macro_rules! int_to_float {
    ($name:ident, $float:ty) => {
        fn $name(number: i128, rounding: Rounding) -> $float {
            let nearest = number as $float;
            let above = nearest as i128 > number;
            let below = (nearest as i128) < number;
            match rounding {
                Rounding::Down if above => nearest.next_down(),
                Rounding::Up if below => nearest.next_up(),
                Rounding::Zero if above && number > 0 => nearest.next_down(),
                Rounding::Zero if below && number < 0 => nearest.next_up(),
                _ => nearest,
            }
        }
    };
}

int_to_float!(int_to_single, f32);
int_to_float!(int_to_double, f64);

impl Convert {
    pub(crate) fn apply(self, slot: u64) -> u64 {
        if self.from.class != Class::Float {
            let number = extend(slot, self.from);
            return match (self.to.class, self.to.bits) {
                (Class::Float, 32) => self.single(int_to_single(number, self.rounding)),
                (Class::Float, _) => self.double(int_to_double(number, self.rounding)),
                _ => {
                    let (least, most) = range(self.to);
                    narrow(if self.sat { number.clamp(least, most) } else { number }, self.to, self.register)
                }
            };
        }
        let a = if self.from.bits == 32 {
            let a = f32::from_bits(slot as u32);
            f64::from(if self.flush { flush(a) } else { a })
        } else {
            f64::from_bits(slot)
        };
        if self.to.class != Class::Float {
            if a.is_nan() {
                // As the table of cvt has it: the sign bit alone, where 64 bits take part.
                let bits = if self.from.bits == 64 || self.to.bits == 64 { 1 << (self.to.bits - 1) } else { 0 };
                return narrow(bits, self.to, self.register);
            }
            let (least, most) = range(self.to);
            return narrow((whole(a, self.rounding) as i128).clamp(least, most), self.to, self.register);
        }
        let a = if self.integer { whole(a, self.rounding) } else { a };
        match self.to.bits {
            32 if self.integer => self.single(a as f32),
            32 => self.single(round(a, 0.0, self.rounding)),
            _ => self.double(a),
        }
    }

    fn single(self, a: f32) -> u64 {
        if a.is_nan() {
            return if self.sat { 0 } else { 0x7FFF_FFFF };
        }
        let a = if self.flush { flush(a) } else { a };
        let a = if !self.sat {
            a
        } else if a > 0.0 {
            a.min(1.0)
        } else {
            0.0
        };
        u64::from(a.to_bits())
    }

    fn double(self, a: f64) -> u64 {
        let a = if !self.sat {
            a
        } else if a > 0.0 {
            a.min(1.0)
        } else {
            0.0
        };
        output64(a)
    }
}
