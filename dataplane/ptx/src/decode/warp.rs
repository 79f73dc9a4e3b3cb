//! What threads of a block or a warp do together.

use super::{Decoding, One, operand_error};
use crate::{
    alu::{Binary, bits, int},
    module::Operand,
    program::{Barrier, BarrierKind, Op, SINK, Slot, Special, Warp, WarpKind},
    types::{Class, Type},
};

impl One<'_, '_, '_> {
    pub(super) fn together(&mut self, opcode: &str) -> Decoding<()> {
        match opcode {
            "bar" if self.modifiers.take(".warp") => self.warp_barrier(),
            "bar" | "barrier" => self.barrier(opcode == "bar"),
            "activemask" => {
                let ty = self.modifiers.ty()?;
                self.count(1)?;
                let d = self.target(0, ty)?;
                self.emit(Op::Special { d, which: Special::ActiveMask });
                self.modifiers.end()
            }
            // Without .sync they are gone from sm_70 on.
            _ if !self.modifiers.take(".sync") => self.unsupported(),
            "shfl" => self.shuffle(),
            "vote" => self.vote(),
            "match" => self.matching(),
            _ => self.reduce(),
        }
    }

    fn warp(&mut self, kind: WarpKind, mask: Slot, [d, p]: [Slot; 2], [a, b, c]: [Slot; 3]) -> Decoding<()> {
        self.modifiers.end()?;
        self.emit(Op::Warp(Warp { kind, mask, d, p, a, b, c }));
        Ok(())
    }

    fn warp_barrier(&mut self) -> Decoding<()> {
        self.modifiers.take(".sync");
        self.count(1)?;
        let mask = self.source(0, Type::B32)?;
        self.warp(WarpKind::Sync, mask, [SINK; 2], [mask; 3])
    }

    fn barrier(&mut self, aligned: bool) -> Decoding<()> {
        self.modifiers.take(".cta");
        let aligned = self.modifiers.take(".aligned") || aligned;
        let (mut d, mut a, mut first) = (SINK, SINK, 0);
        let kind = match self.modifiers.one_of(&[".sync", ".arrive", ".red"]) {
            Some(".sync") => BarrierKind::Sync,
            Some(".arrive") => BarrierKind::Arrive,
            Some(_) => {
                let ty = self.modifiers.ty()?;
                let kind = match (self.modifiers.one_of(&[".popc", ".and", ".or"]), ty) {
                    (Some(".popc"), Type::U32) => BarrierKind::Count,
                    (Some(".and"), Type::PRED) => BarrierKind::All,
                    (Some(".or"), Type::PRED) => BarrierKind::Any,
                    _ => return self.unsupported(),
                };
                d = self.target(0, ty)?;
                first = 1;
                kind
            }
            None => return self.unsupported(),
        };
        self.modifiers.end()?;
        let mut end = self.instruction.operands.len();
        if first == 1 {
            end = end.saturating_sub(1);
            a = self.source(end, Type::PRED)?;
        }
        if !(first + 1..=first + 2).contains(&end) || kind == BarrierKind::Arrive && end == first + 1 {
            return Err(operand_error("a number of operands that this barrier does not take"));
        }
        let id = self.source(first, Type::U32)?;
        let threads = if end == first + 2 { self.source(first + 1, Type::U32)? } else { SINK };
        self.emit(Op::Barrier(Barrier { id, threads, kind, aligned, d, a }));
        Ok(())
    }

    /// A register, or `d|p`.
    fn target_and_predicate(&mut self, ty: Type) -> Decoding<[Slot; 2]> {
        Ok(match *self.operand(0)? {
            Operand::Pair(d, p) => [self.written(d, ty)?, self.written(p, Type::PRED)?],
            _ => [self.target(0, ty)?, SINK],
        })
    }

    /// `shfl.sync.mode.b32 d{|p}, a, b, c, mask`
    fn shuffle(&mut self) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        let kind = match self.modifiers.one_of(&[".up", ".down", ".bfly", ".idx"]) {
            Some(".up") => WarpKind::ShuffleUp,
            Some(".down") => WarpKind::ShuffleDown,
            Some(".bfly") => WarpKind::ShuffleButterfly,
            Some(_) => WarpKind::ShuffleIndex,
            None => return self.unsupported(),
        };
        self.count(5)?;
        if ty.bits != 32 || ty.class == Class::Pred {
            return self.unsupported();
        }
        let sources = [self.source(1, ty)?, self.source(2, Type::B32)?, self.source(3, Type::B32)?];
        let mask = self.source(4, Type::B32)?;
        let targets = self.target_and_predicate(ty)?;
        self.warp(kind, mask, targets, sources)
    }

    /// `vote.sync.mode.type d, a, mask`
    fn vote(&mut self) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        let kind = match (self.modifiers.one_of(&[".all", ".any", ".uni", ".ballot"]), ty) {
            (Some(".all"), Type::PRED) => WarpKind::VoteAll,
            (Some(".any"), Type::PRED) => WarpKind::VoteAny,
            (Some(".uni"), Type::PRED) => WarpKind::VoteUniform,
            (Some(".ballot"), Type::B32) => WarpKind::Ballot,
            _ => return self.unsupported(),
        };
        self.count(3)?;
        let (a, mask, d) = (self.source(1, Type::PRED)?, self.source(2, Type::B32)?, self.target(0, ty)?);
        self.warp(kind, mask, [d, SINK], [a; 3])
    }

    /// `match.any.sync.type d, a, mask`, `match.all.sync.type d{|p}, a, mask`
    fn matching(&mut self) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        let kind = match self.modifiers.one_of(&[".any", ".all"]) {
            Some(".any") => WarpKind::MatchAny,
            Some(_) => WarpKind::MatchAll,
            None => return self.unsupported(),
        };
        self.count(3)?;
        if ty.bits < 32 {
            return self.unsupported();
        }
        let (a, mask) = (self.source(1, ty)?, self.source(2, Type::B32)?);
        let targets = self.target_and_predicate(Type::B32)?;
        self.warp(kind, mask, targets, [a; 3])
    }

    /// `redux.sync.op.type d, a, mask`
    fn reduce(&mut self) -> Decoding<()> {
        let ty = self.modifiers.ty()?;
        let opcode = match self.modifiers.first() {
            Some(op @ (".add" | ".min" | ".max" | ".and" | ".or" | ".xor")) => &op[1..],
            _ => return self.unsupported(),
        };
        self.count(3)?;
        let logic = matches!(opcode, "and" | "or" | "xor");
        let f: Option<Binary> = if logic { bits::binary(opcode, ty) } else { int::binary(opcode, ty) };
        let Some(f) = f.filter(|_| ty.bits == 32 && !ty.is_float() && logic == (ty.class == Class::Bits)) else {
            return self.unsupported();
        };
        let (a, mask, d) = (self.source(1, ty)?, self.source(2, Type::B32)?, self.target(0, ty)?);
        self.warp(WarpKind::Reduce(f), mask, [d, SINK], [a; 3])
    }
}
