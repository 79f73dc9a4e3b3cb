//! Loads, stores, atomics, fences.

use super::{Decoding, One, names::Name, operand_error};
use crate::{
    alu::{Ternary, float},
    error::Reason,
    link::Symbol,
    memory::{Order, Scope, Semantics, Width},
    module::Operand,
    program::{Address, Atomic, AtomicAt, Element, Op, Place, SINK, Slot},
    types::{Class, Space, Type},
};

impl<'a> One<'_, '_, 'a> {
    pub(super) fn memory(&mut self, opcode: &str) -> Decoding<()> {
        match opcode {
            "ld" | "ldu" => self.load(),
            "st" => self.store(),
            "fence" | "membar" => self.fence(opcode),
            "prefetch" | "prefetchu" => {
                self.emit(Op::Nothing);
                Ok(())
            }
            _ => self.atomic(opcode == "red"),
        }
    }

    /// What an access orders; `otherwise` where nothing is said.
    fn order(&mut self, otherwise: Semantics) -> Order {
        let word =
            self.modifiers.one_of(&[".weak", ".volatile", ".relaxed", ".acquire", ".release", ".acq_rel", ".sc"]);
        let semantics = match word {
            None => otherwise,
            Some(".weak") => Semantics::Weak,
            Some(".acquire") => Semantics::Acquire,
            Some(".release") => Semantics::Release,
            Some(".acq_rel") => Semantics::AcquireRelease,
            Some(".sc") => Semantics::Sequential,
            Some(_) => Semantics::Relaxed,
        };
        let scope = match self.modifiers.one_of(&[".cta", ".cluster", ".gpu", ".sys"]) {
            Some(".cta" | ".cluster") => Scope::Block,
            Some(".sys") => Scope::System,
            // A volatile access may be seen by anybody; an atomic, by the device.
            None if word == Some(".volatile") => Scope::System,
            None if semantics == Semantics::Weak => Scope::Block,
            _ => Scope::Device,
        };
        Order { semantics, scope }
    }

    /// What is only said to caches.
    fn cache(&mut self) {
        self.modifiers.0.retain(|word| {
            let hint = matches!(*word, ".ca" | ".cg" | ".cs" | ".lu" | ".cv" | ".nc" | ".wb" | ".wt");
            !hint && !word.starts_with(".L1::") && !word.starts_with(".L2::")
        });
    }

    fn space(&mut self) -> Space {
        let found = self.modifiers.0.iter().position(|word| Space::parse(word).is_some());
        found.and_then(|at| Space::parse(self.modifiers.0.remove(at))).unwrap_or(Space::Generic)
    }

    /// Where an operand in brackets leads.
    fn address(&mut self, index: usize, space: Space) -> Decoding<Address> {
        let Operand::Address(name, offset) = *self.operand(index)? else {
            return Err(operand_error("an address in brackets is expected"));
        };
        let place = match space {
            Space::Generic => Place::Generic,
            Space::Global => Place::Global,
            Space::Const => Place::Const,
            Space::Shared => Place::Shared,
            Space::Param if self.decoder.entry => Place::Param,
            Space::Param | Space::Local => Place::Local,
        };
        let at = |decoded: &mut Self, address: u64, space| -> Decoding<Address> {
            let base = decoded.constant(address.wrapping_add(offset))?;
            Ok(Address { base, space, offset: 0 })
        };
        let Some(name) = name else { return at(self, 0, place) };
        let wrong = |what: &str| Err(operand_error(format!("{name} is {what}, not in the {space} space")));
        let symbol = match self.decoder.names.find(name) {
            Some(Name::Register(base, ty)) => {
                let small = !matches!(place, Place::Generic | Place::Global);
                if ty.is_float() || ty.bits != 64 && (ty.bits != 32 || !small) {
                    return Err(operand_error(format!("an address in {name}, which is a register of {ty}")));
                }
                return match i32::try_from(offset as i64) {
                    Ok(offset) => Ok(Address { base, space: place, offset }),
                    Err(_) => Err(operand_error(format!("an offset of {}", offset as i64))),
                };
            }
            Some(Name::Frame(_)) if !matches!(space, Space::Local | Space::Param) => return wrong("in the frame"),
            Some(Name::Frame(passed)) => return at(self, passed.offset.into(), Place::Frame),
            Some(Name::Param(start)) if space == Space::Param => return at(self, start.into(), Place::Param),
            Some(Name::Param(_)) => return wrong("a parameter"),
            Some(Name::Variable(symbol)) => symbol,
            Some(_) => return wrong("no address"),
            None => {
                self.decoder.linked.symbol(self.decoder.module, name).ok_or_else(|| Reason::Undeclared(name.into()))?
            }
        };
        match (symbol, space) {
            (Symbol::Shared(address), Space::Shared) => at(self, address, Place::Shared),
            (Symbol::Variable(address), Space::Global | Space::Const | Space::Generic) => at(self, address, place),
            (Symbol::Shared(_), _) => wrong("in shared memory"),
            (Symbol::Variable(_), _) => wrong("a variable"),
            (Symbol::Function(_) | Symbol::Missing, _) => wrong("a function"),
        }
    }

    fn lanes(&mut self) -> usize {
        match self.modifiers.one_of(&[".v2", ".v4"]) {
            Some(".v2") => 2,
            Some(_) => 4,
            None => 1,
        }
    }

    /// A type in memory: not of predicates, and floats of 32 or 64 bits.
    fn memory_type(&mut self) -> Decoding<(Type, Width)> {
        let ty = self.modifiers.ty()?;
        match Width::of_bits(ty.bits) {
            Some(width) => Ok((ty, width)),
            None => Err(operand_error(format!("{ty} in memory"))),
        }
    }

    /// The elements of a vector, or the operand itself.
    fn elements(&self, index: usize, lanes: usize) -> Decoding<Vec<&'a Operand<'a>>> {
        let elements: Vec<_> = match self.operand(index)? {
            Operand::Vector(elements) => elements.iter().collect(),
            single => vec![single],
        };
        if elements.len() == lanes {
            Ok(elements)
        } else {
            Err(Reason::Syntax(format!("{} values; {lanes} are expected", elements.len())))
        }
    }

    fn load(&mut self) -> Decoding<()> {
        let (ty, width) = self.memory_type()?;
        self.cache();
        let (space, lanes) = (self.space(), self.lanes());
        let order = self.order(Semantics::Weak);
        self.modifiers.end()?;
        self.count(2)?;
        let at = self.address(1, space)?;
        let mut d = [SINK; 4];
        let mut register = 64;
        for (slot, operand) in d.iter_mut().zip(self.elements(0, lanes)?) {
            let (target, bits) = self.wide_target(operand, ty)?;
            *slot = target;
            if target != SINK {
                register = bits;
            }
        }
        let ty = Element { width, signed: ty.is_signed(), register };
        self.emit(Op::Load { d, at, ty, count: lanes as u8, order });
        Ok(())
    }

    fn store(&mut self) -> Decoding<()> {
        let (ty, width) = self.memory_type()?;
        self.cache();
        let (space, lanes) = (self.space(), self.lanes());
        let order = self.order(Semantics::Weak);
        self.modifiers.end()?;
        self.count(2)?;
        if space == Space::Const || space == Space::Param && self.decoder.entry && !self.is_frame(0) {
            return Err(operand_error(format!("a store to the {space} space")));
        }
        let at = self.address(0, space)?;
        let mut a = [SINK; 4];
        for (slot, operand) in a.iter_mut().zip(self.elements(1, lanes)?) {
            *slot = self.wide_source(operand, ty)?;
        }
        self.emit(Op::Store { a, at, width, count: lanes as u8, order });
        Ok(())
    }

    /// Whether the address names something in this frame.
    fn is_frame(&self, index: usize) -> bool {
        let Ok(Operand::Address(Some(name), _)) = self.operand(index) else { return false };
        matches!(self.decoder.names.find(name), Some(Name::Frame(_)))
    }

    fn fence(&mut self, opcode: &str) -> Decoding<()> {
        let order = if opcode == "membar" {
            let scope = match self.modifiers.one_of(&[".cta", ".gl", ".sys"]) {
                Some(".cta") => Scope::Block,
                Some(".gl") => Scope::Device,
                Some(_) => Scope::System,
                None => return self.unsupported(),
            };
            Order { semantics: Semantics::Sequential, scope }
        } else {
            self.order(Semantics::AcquireRelease)
        };
        self.modifiers.end()?;
        self.count(0)?;
        self.emit(Op::Fence { order });
        Ok(())
    }

    /// `atom.op.type d, [a], b{, c}`, and `red`, which returns nothing.
    fn atomic(&mut self, reduction: bool) -> Decoding<()> {
        let (ty, width) = self.memory_type()?;
        self.cache();
        let space = self.space();
        let order = self.order(Semantics::Relaxed);
        let names = [".add", ".and", ".or", ".xor", ".exch", ".inc", ".dec", ".min", ".max", ".cas"];
        let name = self.modifiers.one_of(&names).unwrap_or("");
        self.modifiers.end()?;
        let f = match operation(name, ty) {
            Some(f) if !(reduction && matches!(name, ".exch" | ".cas")) => f,
            _ => return self.unsupported(),
        };
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return Err(operand_error(format!("an atomic in the {space} space")));
        }
        let first = usize::from(!reduction);
        let swap = name == ".cas";
        self.count(first + 2 + usize::from(swap))?;
        let at = self.address(first, space)?;
        let a = self.source(first + 1, ty)?;
        let b = if swap { self.source(first + 2, ty)? } else { a };
        let d: Slot = if reduction { SINK } else { self.target(0, ty)? };
        let at = AtomicAt { base: at.base, space: at.space, offset: at.offset, width, order };
        let atomics = &mut self.decoder.program.atomics;
        atomics.push(at);
        let index = u16::try_from(atomics.len() - 1).map_err(|_| Reason::TooLarge("too many atomics".into()))?;
        self.emit(Op::Atomic { f, d, a, b, at: Atomic(index) });
        Ok(())
    }
}

/// What an atomic makes of the old value and its operands.
fn operation(name: &str, ty: Type) -> Option<Ternary> {
    Some(match (name, ty.class, ty.bits) {
        (".add", Class::Unsigned | Class::Signed, 32) => |old, a, _| u64::from((old as u32).wrapping_add(a as u32)),
        (".add", Class::Unsigned | Class::Signed, 64) => |old, a, _| old.wrapping_add(a),
        // Atomics of floats flush where hardware does in global memory; here subnormal numbers are kept.
        (".add", Class::Float, 32) => |old, a, _| {
            let sum = f32::from_bits(old as u32) + f32::from_bits(a as u32);
            u64::from(if sum.is_nan() { 0x7FFF_FFFF } else { sum.to_bits() })
        },
        (".add", Class::Float, 64) => |old, a, _| float::output64(f64::from_bits(old) + f64::from_bits(a)),
        (".and", Class::Bits, 32 | 64) => |old, a, _| old & a,
        (".or", Class::Bits, 32 | 64) => |old, a, _| old | a,
        (".xor", Class::Bits, 32 | 64) => |old, a, _| old ^ a,
        (".exch", Class::Bits, 32 | 64) => |_, a, _| a,
        (".cas", Class::Bits, 16 | 32 | 64) => |old, a, b| if old == a { b } else { old },
        (".inc", Class::Unsigned, 32) => |old, a, _| if old >= a { 0 } else { old + 1 },
        (".dec", Class::Unsigned, 32) => |old, a, _| if old == 0 || old > a { a } else { old - 1 },
        (".min", Class::Unsigned, 32 | 64) => |old, a, _| old.min(a),
        (".max", Class::Unsigned, 32 | 64) => |old, a, _| old.max(a),
        (".min", Class::Signed, 32) => |old, a, _| if (a as i32) < old as i32 { a } else { old },
        (".max", Class::Signed, 32) => |old, a, _| if (a as i32) > old as i32 { a } else { old },
        (".min", Class::Signed, 64) => |old, a, _| if (a as i64) < old as i64 { a } else { old },
        (".max", Class::Signed, 64) => |old, a, _| if (a as i64) > old as i64 { a } else { old },
        _ => return None,
    })
}
