//! Integer arithmetic, logic and bits; arithmetic of floats goes on to `float`.

use super::{Decoding, One};
use crate::{
    alu::{Binary, Quaternary, Ternary, Unary, bits, int},
    program::Op,
    types::{Class, Type},
};

impl One<'_, '_, '_> {
    pub(super) fn unary(&mut self, f: Unary, to: Type, from: Type) -> Decoding<()> {
        self.count(2)?;
        let (a, d) = (self.source(1, from)?, self.target(0, to)?);
        self.emit(Op::Unary { f, d, a });
        Ok(())
    }

    pub(super) fn binary(&mut self, f: Binary, to: Type, from: [Type; 2]) -> Decoding<()> {
        self.count(3)?;
        let (a, b, d) = (self.source(1, from[0])?, self.source(2, from[1])?, self.target(0, to)?);
        self.emit(Op::Binary { f, d, a, b });
        Ok(())
    }

    pub(super) fn ternary(&mut self, f: Ternary, to: Type, from: [Type; 3]) -> Decoding<()> {
        self.count(4)?;
        let [a, b] = [self.source(1, from[0])?, self.source(2, from[1])?];
        let (c, d) = (self.source(3, from[2])?, self.target(0, to)?);
        self.emit(Op::Ternary { f, d, a, b, c });
        Ok(())
    }

    fn quaternary(&mut self, f: Quaternary, to: Type, from: [Type; 4]) -> Decoding<()> {
        self.count(5)?;
        let [a, b] = [self.source(1, from[0])?, self.source(2, from[1])?];
        let [c, e] = [self.source(3, from[2])?, self.source(4, from[3])?];
        let d = self.target(0, to)?;
        self.emit(Op::Quaternary { f, d, a, b, c, e });
        Ok(())
    }

    pub(super) fn arithmetic(&mut self, opcode: &str) -> Decoding<()> {
        if opcode == "dp4a" {
            return self.dot_product();
        }
        let carry_out = self.modifiers.take(".cc");
        let ty = self.modifiers.ty()?;
        if ty.is_float() {
            return self.float_arithmetic(opcode, ty);
        }
        if ty.bits == 8 || matches!(ty.class, Class::Bits | Class::Pred) {
            return self.unsupported();
        }
        if carry_out || matches!(opcode, "addc" | "subc" | "madc") {
            return self.carry(opcode, carry_out, ty);
        }
        let part = self.modifiers.one_of(&[".lo", ".hi", ".wide", ".sat"]).unwrap_or("");
        self.modifiers.end()?;
        let wide = Type { bits: ty.bits.saturating_mul(2), ..ty };
        let (name, signed) = (format!("{opcode}{part}"), ty.is_signed());
        if part == ".wide" && ty.bits == 64 || part == ".sat" && ty != Type::S32 {
            return self.unsupported();
        }
        match opcode {
            "mul24" if ty.bits == 32 && matches!(part, ".lo" | ".hi") => {
                self.binary(int::mul24(part == ".hi", signed), ty, [ty; 2])
            }
            "mad24" => self.unsupported(),
            _ => {
                let to = if part == ".wide" { wide } else { ty };
                if let Some(f) = int::unary(&name, ty) {
                    return self.unary(f, to, ty);
                }
                if let Some(f) = int::binary(&name, ty) {
                    return self.binary(f, to, [ty; 2]);
                }
                match int::ternary(&name, ty) {
                    Some(f) => self.ternary(f, to, [ty, ty, to]),
                    None => self.unsupported(),
                }
            }
        }
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`, `mad.lo.cc`, `madc.hi` and their like.
    fn carry(&mut self, opcode: &str, carry_out: bool, ty: Type) -> Decoding<()> {
        let product = match (opcode.starts_with("mad"), self.modifiers.one_of(&[".lo", ".hi"])) {
            (true, Some(part)) => int::binary(if part == ".lo" { "mul.lo" } else { "mul.hi" }, ty),
            (false, None) => None,
            _ => return self.unsupported(),
        };
        self.modifiers.end()?;
        self.count(if product.is_some() { 4 } else { 3 })?;
        if ty.bits < 32 || !matches!(opcode, "add" | "addc" | "sub" | "subc" | "mad" | "madc") {
            return self.unsupported();
        }
        let (mut a, mut b) = (self.source(1, ty)?, self.source(2, ty)?);
        if let Some(f) = product {
            let c = self.source(3, ty)?;
            let d = self.temporary()?;
            self.emit(Op::Binary { f, d, a, b });
            (a, b) = (d, c);
        }
        let d = self.target(0, ty)?;
        let (subtract, carry_in) = (opcode.starts_with("sub"), opcode.ends_with('c'));
        self.emit(Op::Carry { d, a, b, bits: ty.bits, subtract, carry_in, carry_out });
        Ok(())
    }

    /// `dp4a.atype.btype`
    fn dot_product(&mut self) -> Decoding<()> {
        let (b, a) = (self.modifiers.ty()?, self.modifiers.ty()?);
        self.modifiers.end()?;
        if a.bits != 32 || b.bits != 32 {
            return self.unsupported();
        }
        let to = if a.is_signed() || b.is_signed() { Type::S32 } else { Type::U32 };
        self.ternary(int::dp4a(a.is_signed(), b.is_signed()), to, [a, b, to])
    }

    pub(super) fn bits(&mut self, opcode: &str) -> Decoding<()> {
        // The mode stands behind the type.
        let mode = if opcode == "prmt" { self.modifiers.one_of(&bits::PRMT_MODES) } else { None };
        let ty = self.modifiers.ty()?;
        if ty.is_float() || ty.bits == 8 {
            return self.unsupported();
        }
        let shift_amount = opcode == "bfind" && self.modifiers.take(".shiftamt");
        match opcode {
            "prmt" => {
                self.modifiers.end()?;
                return match bits::prmt(mode.unwrap_or("")) {
                    Some(f) if ty == Type::B32 => self.ternary(f, ty, [ty, ty, Type::B32]),
                    _ => self.unsupported(),
                };
            }
            "shf" => {
                let left = self.modifiers.one_of(&[".l", ".r"]) == Some(".l");
                let wrap = self.modifiers.one_of(&[".clamp", ".wrap"]) == Some(".wrap");
                self.modifiers.end()?;
                return match ty {
                    Type::B32 => self.ternary(bits::shf(left, wrap), ty, [ty, ty, Type::B32]),
                    _ => self.unsupported(),
                };
            }
            _ => self.modifiers.end()?,
        }
        let name = if shift_amount { "bfind.shiftamt" } else { opcode };
        match opcode {
            "lop3" if ty == Type::B32 => self.quaternary(bits::lop3, ty, [ty; 4]),
            "bfi" if ty.bits >= 32 => self.quaternary(bits::bfi(ty.bits), ty, [ty, ty, Type::U32, Type::U32]),
            "bfe" if ty.bits >= 32 => self.ternary(bits::bfe(ty), ty, [ty, Type::U32, Type::U32]),
            "shr" if ty.bits >= 16 => match int::binary("shr", ty) {
                Some(f) => self.binary(f, ty, [ty, Type::U32]),
                None => self.unsupported(),
            },
            "shl" => match bits::binary(opcode, ty) {
                Some(f) => self.binary(f, ty, [ty, Type::U32]),
                None => self.unsupported(),
            },
            _ => {
                let to = if matches!(opcode, "popc" | "clz" | "bfind") { Type::U32 } else { ty };
                match (bits::unary(name, ty), bits::binary(opcode, ty)) {
                    (Some(f), _) => self.unary(f, to, ty),
                    (None, Some(f)) => self.binary(f, ty, [ty; 2]),
                    (None, None) => self.unsupported(),
                }
            }
        }
    }
}
