//! Floating point.

use super::{Decoding, One};
use crate::{
    alu::float::{self, Flags, Rounding},
    error::Reason,
    types::Type,
};

impl One<'_, '_, '_> {
    /// `.rn`, `.rz`, `.rm`, `.rp`
    fn rounding(&mut self) -> Option<Rounding> {
        self.modifiers.one_of(&[".rn", ".rz", ".rm", ".rp"]).map(|word| match word {
            ".rz" => Rounding::Zero,
            ".rm" => Rounding::Down,
            ".rp" => Rounding::Up,
            _ => Rounding::Nearest,
        })
    }

    /// To nearest, as everything that has no exact rest to round by.
    fn nearest(&self, rounding: Option<Rounding>) -> Decoding<()> {
        match rounding {
            None | Some(Rounding::Nearest) => Ok(()),
            Some(_) => {
                let what = format!("{} that is not rounded to nearest", self.instruction.opcode);
                Err(Reason::Unsupported(what))
            }
        }
    }

    /// Arithmetic of `.f32` and `.f64`.
    pub(super) fn float_arithmetic(&mut self, opcode: &str, ty: Type) -> Decoding<()> {
        let rounding = self.rounding();
        let flush = self.modifiers.take(".ftz");
        let sat = self.modifiers.take(".sat");
        if opcode == "div" {
            self.modifiers.one_of(&[".approx", ".full"]);
        }
        self.modifiers.end()?;
        if ty == Type::F64 && (flush || sat) {
            return self.unsupported();
        }
        let flags = Flags { flush, sat, rounding: rounding.unwrap_or(Rounding::Nearest) };
        let single = ty == Type::F32;
        if !single || !matches!(opcode, "add" | "sub" | "mul" | "fma" | "mad") {
            self.nearest(rounding)?;
        }
        let unary = if single { float::unary32(opcode, flush) } else { float::unary64(opcode) };
        let binary = if single { float::binary32(opcode, flags) } else { float::binary64(opcode) };
        match (opcode, unary, binary) {
            ("fma" | "mad", ..) => self.ternary(if single { float::fma32(flags) } else { float::fma64 }, ty, [ty; 3]),
            ("abs" | "neg", Some(f), _) if !sat => self.unary(f, ty, ty),
            (_, _, Some(f)) => self.binary(f, ty, [ty; 2]),
            _ => self.unsupported(),
        }
    }

    /// Functions of floats.
    pub(super) fn float_function(&mut self, opcode: &str) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        if !ty.is_float() {
            return self.unsupported();
        }
        if opcode == "testp" {
            let class = self.modifiers.first().unwrap_or("");
            self.modifiers.end()?;
            return match float::testp(class, ty) {
                Some(f) => self.unary(f, Type::PRED, ty),
                None => self.unsupported(),
            };
        }
        let rounding = self.rounding();
        self.nearest(rounding)?;
        self.modifiers.take(".approx");
        // In `.f64` only the approximations flush, and what they are here is exact.
        let flush = self.modifiers.take(".ftz");
        self.modifiers.end()?;
        if opcode == "copysign" {
            let flags = Flags { flush: false, sat: false, rounding: Rounding::Nearest };
            let f = if ty == Type::F32 { float::binary32(opcode, flags) } else { float::binary64(opcode) };
            return match f {
                Some(f) => self.binary(f, ty, [ty; 2]),
                None => self.unsupported(),
            };
        }
        match if ty == Type::F32 { float::unary32(opcode, flush) } else { float::unary64(opcode) } {
            Some(f) => self.unary(f, ty, ty),
            None => self.unsupported(),
        }
    }
}
