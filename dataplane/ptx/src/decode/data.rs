//! Moves, conversions, comparisons, selections.

use super::{Decoding, One, names::Name, operand_error};
use crate::{
    alu::{
        compare,
        convert::Convert,
        float::{self, Rounding},
    },
    error::Reason,
    layout,
    link::Symbol,
    module::Operand,
    program::{Op, SINK, Slot},
    types::{Class, Space, Type},
};

impl<'a> One<'_, '_, 'a> {
    pub(super) fn data(&mut self, opcode: &str) -> Decoding<()> {
        match opcode {
            "mov" => self.mov(),
            "cvt" => self.convert(),
            "cvta" => self.convert_address(),
            "setp" => self.set_predicate(),
            "set" => self.set(),
            "isspacep" => self.is_space(),
            "selp" => {
                let ty = self.modifiers.ty()?;
                self.modifiers.end()?;
                self.count(4)?;
                let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
                let (p, d) = (self.source(3, Type::PRED)?, self.target(0, ty)?);
                self.emit(Op::Select { d, a, b, p });
                Ok(())
            }
            _ => self.select_by_sign(),
        }
    }

    /// `slct`: the first where the third is not negative.
    fn select_by_sign(&mut self) -> Decoding<()> {
        let (by, ty) = (self.modifiers.ty()?, self.modifiers.ty()?);
        let flush = self.modifiers.take(".ftz");
        self.modifiers.end()?;
        self.count(4)?;
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        let (c, p) = (self.source(3, by)?, self.temporary()?);
        match by {
            Type::S32 => self.emit(Op::Unary { f: |c| c >> 31 ^ 1, d: p, a: c }),
            // A negative zero is not negative, and no number is.
            Type::F32 if flush => {
                self.emit(Op::Unary { f: |c| u64::from(float::flush(f32::from_bits(c as u32)) >= 0.0), d: p, a: c });
            }
            Type::F32 => self.emit(Op::Unary { f: |c| u64::from(f32::from_bits(c as u32) >= 0.0), d: p, a: c }),
            _ => return self.unsupported(),
        }
        let d = self.target(0, ty)?;
        self.emit(Op::Select { d, a, b, p });
        Ok(())
    }

    fn mov(&mut self) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        self.modifiers.end()?;
        self.count(2)?;
        match (self.operand(0)?, self.operand(1)?) {
            (Operand::Name(_), Operand::Vector(parts)) => {
                let (part, count) = parts_of(ty, parts)?;
                let mut a = [SINK; 4];
                for (slot, operand) in a.iter_mut().zip(parts) {
                    *slot = self.read(operand, part)?;
                }
                let d = self.target(0, ty)?;
                self.emit(Op::Pack { d, a, parts: count, bits: part.bits });
            }
            (Operand::Vector(parts), source) => {
                let (part, count) = parts_of(ty, parts)?;
                let a = self.read(source, ty)?;
                let mut d = [SINK; 4];
                for (slot, operand) in d.iter_mut().zip(parts) {
                    let Operand::Name(name) = operand else { return Err(operand_error("the results are registers")) };
                    *slot = self.written(name, part)?;
                }
                self.emit(Op::Unpack { d, a, parts: count, bits: part.bits });
            }
            (_, source) => {
                let d = self.target(0, ty)?;
                if let (Operand::Name(name) | Operand::Sum(name, _), false) = (source, ty.is_float())
                    && let Some(()) = self.address_of(name, source, d, ty)?
                {
                    return Ok(());
                }
                let a = self.read(source, ty)?;
                self.emit(Op::Move { d, a });
            }
        }
        Ok(())
    }

    /// Puts the address of a variable or function in `d`, if the name is one's.
    fn address_of(&mut self, name: &'a str, operand: &Operand<'a>, d: Slot, ty: Type) -> Decoding<Option<()>> {
        let offset = if let Operand::Sum(_, offset) = operand { *offset } else { 0 };
        let address = match self.decoder.names.find(name) {
            Some(Name::Frame(passed)) => {
                Self::wants_address(ty, true)?;
                let offset = passed.offset.wrapping_add(offset as u32);
                self.emit(Op::Frame { d, offset });
                return Ok(Some(()));
            }
            Some(Name::Param(at)) => {
                Self::wants_address(ty, true)?;
                u64::from(at)
            }
            Some(Name::Variable(symbol)) => Self::symbol_address(symbol, ty)?,
            Some(_) => return Ok(None),
            None => match self.decoder.linked.symbol(self.decoder.module, name) {
                Some(symbol) => Self::symbol_address(symbol, ty)?,
                None => return Ok(None),
            },
        };
        let mask = u64::MAX >> (64 - ty.bits);
        let a = self.constant(address.wrapping_add(offset) & mask)?;
        self.emit(Op::Move { d, a });
        Ok(Some(()))
    }

    fn symbol_address(symbol: Symbol, ty: Type) -> Decoding<u64> {
        Self::wants_address(ty, matches!(symbol, Symbol::Shared(_)))?;
        Ok(match symbol {
            Symbol::Function(index) => layout::function(index),
            Symbol::Missing => 0,
            Symbol::Variable(at) | Symbol::Shared(at) => at,
        })
    }

    /// Addresses have 64 bits; in small spaces 32 do, too.
    fn wants_address(ty: Type, small: bool) -> Decoding<()> {
        if ty.bits == 64 || ty.bits == 32 && small { Ok(()) } else { Err(operand_error(format!("an address in {ty}"))) }
    }

    fn convert(&mut self) -> Decoding<()> {
        let (from, to) = (self.modifiers.ty()?, self.modifiers.ty()?);
        let word = self.modifiers.one_of(&[".rn", ".rz", ".rm", ".rp", ".rni", ".rzi", ".rmi", ".rpi"]);
        let integer = word.is_some_and(|word| word.ends_with('i'));
        let rounding = match word.map(|word| &word[..3]) {
            Some(".rz") => Rounding::Zero,
            Some(".rm") => Rounding::Down,
            Some(".rp") => Rounding::Up,
            _ => Rounding::Nearest,
        };
        let flush = self.modifiers.take(".ftz");
        let sat = self.modifiers.take(".sat");
        self.modifiers.end()?;
        self.count(2)?;
        if from.class == Class::Pred || to.class == Class::Pred {
            return self.unsupported();
        }
        let wrong = |what: &str| Err(Reason::Syntax(format!("a conversion from {from} to {to} {what}")));
        match (from.is_float(), to.is_float()) {
            (true, false) if !integer => return wrong("without .rni, .rzi, .rmi or .rpi"),
            (false, true) if word.is_none() || integer => return wrong("without .rn, .rz, .rm or .rp"),
            (true, true) if from.bits > to.bits && (word.is_none() || integer) => {
                return wrong("without .rn, .rz, .rm or .rp");
            }
            (false, false) if word.is_some() => return wrong("that is rounded"),
            _ => {}
        }
        let a = {
            let operand = self.operand(1)?;
            self.wide_source(operand, from)?
        };
        let (d, register) = {
            let operand = self.operand(0)?;
            self.wide_target(operand, to)?
        };
        let how = Convert { to, from, rounding, integer, sat, flush, register };
        let converts = &mut self.decoder.program.converts;
        let found = converts.iter().position(|known| *known == how).unwrap_or_else(|| {
            converts.push(how);
            converts.len() - 1
        });
        let how = u16::try_from(found).map_err(|_| Reason::TooLarge("too many kinds of conversions".into()))?;
        self.emit(Op::Convert { d, a, how });
        Ok(())
    }

    fn convert_address(&mut self) -> Decoding<()> {
        let to = self.modifiers.take(".to");
        let ty = self.modifiers.ty()?;
        let space = self.modifiers.first().and_then(Space::parse);
        self.modifiers.end()?;
        self.count(2)?;
        let Some(space) = space.filter(|_| ty == (Type { bits: 64, ..Type::U32 })) else { return self.unsupported() };
        let d = self.target(0, ty)?;
        let operand = self.operand(1)?;
        let a = if let Operand::Name(name) | Operand::Sum(name, _) = operand
            && let Some(()) = self.address_of(name, operand, d, ty)?
        {
            d
        } else {
            self.read(operand, ty)?
        };
        let base = match space {
            Space::Shared => layout::SHARED,
            Space::Param if self.decoder.entry => layout::PARAMS,
            Space::Param | Space::Local => layout::LOCAL,
            Space::Global | Space::Const | Space::Generic => 0,
        };
        let b = self.constant(base)?;
        if to {
            self.emit(Op::Binary { f: |a, b| a.wrapping_sub(b), d, a, b });
        } else {
            self.emit(Op::Binary { f: |a, b| a.wrapping_add(b), d, a, b });
        }
        Ok(())
    }

    fn is_space(&mut self) -> Decoding<()> {
        let space = self.modifiers.first().and_then(Space::parse);
        self.modifiers.end()?;
        self.count(2)?;
        let (a, d) = (self.source(1, Type::B64)?, self.target(0, Type::PRED)?);
        let f = match space {
            Some(Space::Shared) => |a| u64::from(layout::window(a) == layout::SHARED),
            Some(Space::Local) => |a| u64::from(layout::window(a) == layout::LOCAL),
            Some(Space::Global) => |a| u64::from(matches!(layout::window(a), 0 | layout::VARIABLES)),
            Some(Space::Param) => |a| u64::from(layout::window(a) == layout::PARAMS),
            _ => return self.unsupported(),
        };
        self.emit(Op::Unary { f, d, a });
        Ok(())
    }

    /// The comparison of two operands, in a slot of its own if it is to be combined.
    fn compare(&mut self, ty: Type, d: Slot) -> Decoding<()> {
        let name = self.modifiers.first().unwrap_or("");
        let flush = self.modifiers.take(".ftz");
        let Some(f) = compare::comparison(name, ty, flush) else { return self.unsupported() };
        let (a, b) = (self.source(1, ty)?, self.source(2, ty)?);
        self.emit(Op::Binary { f, d, a, b });
        Ok(())
    }

    /// `setp.cmp{.bool}.type p{|q}, a, b{, c}`
    fn set_predicate(&mut self) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        let combined = self.modifiers.one_of(&[".and", ".or", ".xor"]);
        self.count(if combined.is_some() { 4 } else { 3 })?;
        let (p, q) = match *self.operand(0)? {
            Operand::Pair(p, q) => (self.written(p, Type::PRED)?, Some(self.written(q, Type::PRED)?)),
            _ => (self.target(0, Type::PRED)?, None),
        };
        if combined.is_none() && q.is_none() {
            self.compare(ty, p)?;
            return self.modifiers.end();
        }
        let both = self.temporary()?;
        self.compare(ty, both)?;
        self.modifiers.end()?;
        let c = match combined {
            Some(_) => self.source(3, Type::PRED)?,
            None => self.constant(0)?,
        };
        let with = |negate| compare::combine(combined.unwrap_or(".or"), negate).expect("one of the three");
        if let Some(q) = q {
            // Not over `c`, which the first result still needs.
            let opposite = self.temporary()?;
            self.emit(Op::Binary { f: with(true), d: opposite, a: both, b: c });
            self.emit(Op::Binary { f: with(false), d: p, a: both, b: c });
            self.emit(Op::Move { d: q, a: opposite });
        } else {
            self.emit(Op::Binary { f: with(false), d: p, a: both, b: c });
        }
        Ok(())
    }

    /// `set.cmp{.bool}.dtype.stype d, a, b{, c}`: all ones, or 1.0, where it holds.
    fn set(&mut self) -> Decoding<()> {
        let (ty, to) = (self.modifiers.ty()?, self.modifiers.ty()?);
        let combined = self.modifiers.one_of(&[".and", ".or", ".xor"]);
        self.count(if combined.is_some() { 4 } else { 3 })?;
        let p = self.temporary()?;
        self.compare(ty, p)?;
        self.modifiers.end()?;
        if let Some(word) = combined {
            let c = self.source(3, Type::PRED)?;
            let f = compare::combine(word, false).expect("one of the three");
            self.emit(Op::Binary { f, d: p, a: p, b: c });
        }
        let ones = match to {
            Type::F32 => u64::from(1.0_f32.to_bits()),
            Type::U32 | Type::S32 => 0xFFFF_FFFF,
            _ => return self.unsupported(),
        };
        let (a, b, d) = (self.constant(ones)?, self.constant(0)?, self.target(0, to)?);
        self.emit(Op::Select { d, a, b, p });
        Ok(())
    }
}

/// The type of each part of a value, and how many there are.
fn parts_of(ty: Type, parts: &[Operand<'_>]) -> Decoding<(Type, u8)> {
    let count = parts.len() as u8;
    if !matches!(parts.len(), 2 | 4) || ty.bits / count < 8 {
        return Err(operand_error(format!("{} parts of {ty}", parts.len())));
    }
    Ok((Type { class: Class::Bits, bits: ty.bits / count }, count))
}
