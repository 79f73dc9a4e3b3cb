//! Branches, calls, ends.

use super::{Decoding, One, names::Name, operand_error};
use crate::{
    error::Reason,
    link::{Symbol, difference},
    module::{Operand, Signature},
    program::{Op, Passed, Site, Slot},
    types::Type,
};

impl<'a> One<'_, '_, 'a> {
    pub(super) fn control(&mut self, opcode: &str) -> Decoding<()> {
        self.modifiers.take(".uni");
        match opcode {
            "bra" => return self.branch(None),
            "brx" => return self.branch_index(),
            "call" => return self.call(),
            "nanosleep" => {
                let ty = self.modifiers.ty()?;
                self.modifiers.end()?;
                self.count(1)?;
                let a = self.source(0, ty)?;
                self.emit(Op::Sleep { a });
                return Ok(());
            }
            _ => {}
        }
        self.modifiers.end()?;
        self.count(usize::from(opcode == "pmevent"))?;
        self.emit(match opcode {
            "ret" => Op::Return,
            "exit" => Op::Exit,
            "pmevent" => Op::Nothing,
            _ => Op::Trap,
        });
        Ok(())
    }

    /// `bra`, under a predicate that is to be true, or with true beside it, false.
    pub(super) fn branch(&mut self, guard: Option<(Slot, bool)>) -> Decoding<()> {
        self.modifiers.take(".uni");
        self.modifiers.end()?;
        self.count(1)?;
        let Operand::Name(name) = self.operand(0)? else { return Err(operand_error("a label is expected")) };
        let label = label((name, self.decoder.names.find(name)))?;
        self.decoder.fixups.push((self.decoder.program.code.len(), label));
        self.emit(match guard {
            Some((p, negate)) => Op::BranchIf { p, negate, to: 0 },
            None => Op::Branch { to: 0 },
        });
        Ok(())
    }

    /// `brx.idx a, list`
    fn branch_index(&mut self) -> Decoding<()> {
        if !self.modifiers.take(".idx") {
            return self.unsupported();
        }
        self.modifiers.end()?;
        self.count(2)?;
        let a = self.source(0, Type::U32)?;
        let Operand::Name(name) = self.operand(1)? else { return Err(operand_error("a list of labels is expected")) };
        let Some(Name::Targets(list)) = self.decoder.names.find(name) else {
            return Err(operand_error(format!("{name} is no list of .branchtargets")));
        };
        let targets = self.table(list)?;
        self.emit(Op::BranchIndex { a, targets });
        Ok(())
    }

    /// Where the program has a list of labels: once, however many branches go by it.
    fn table(&mut self, list: u32) -> Decoding<u16> {
        if let Some((table, _)) = self.decoder.tables.get(&list) {
            return Ok(*table);
        }
        let labels = self.decoder.names.list(list).map(label).collect::<Decoding<Vec<_>>>()?;
        let table = self.decoder.program.targets.len();
        let table = u16::try_from(table).map_err(|_| Reason::TooLarge("too many lists of labels".into()))?;
        self.decoder.program.targets.push(Vec::new());
        self.decoder.tables.insert(list, (table, labels));
        Ok(table)
    }

    /// `call {(ret),} f{, (params)};` or `call {(ret),} reg, (params), prototype;`
    fn call(&mut self) -> Decoding<()> {
        self.modifiers.end()?;
        let mut operands = self.instruction.operands.as_slice();
        let mut returns: &[Operand<'a>] = &[];
        if let Some((Operand::List(list), rest)) = operands.split_first() {
            (returns, operands) = (list, rest);
        }
        let Some((Operand::Name(callee), rest)) = operands.split_first() else {
            return Err(operand_error("a function is expected"));
        };
        let (params, rest) = match rest.split_first() {
            Some((Operand::List(list), rest)) => (list.as_slice(), rest),
            _ => (&[][..], rest),
        };
        let site = Site { params: self.passed(params)?, returns: self.passed(returns)? };
        if let Some(symbol) = self.decoder.linked.symbol(self.decoder.module, callee)
            && self.decoder.names.find(callee).is_none()
        {
            if !rest.is_empty() {
                return Err(Reason::Syntax("a direct call has no prototype".into()));
            }
            let Some(signature) = self.decoder.linked.signature(self.decoder.module, callee) else {
                return Err(operand_error(format!("{callee} is no function that can be called")));
            };
            matches_signature(callee, &site, signature)?;
            let site = self.site(site)?;
            self.emit(match symbol {
                Symbol::Function(function) => Op::Call { function, site },
                // Only looked at, never run.
                _ => Op::Trap,
            });
            return Ok(());
        }
        let a = self.register(callee, Type::B64)?;
        let [Operand::Name(prototype)] = rest else {
            return Err(Reason::Syntax("an indirect call names a .callprototype".into()));
        };
        let Some(Name::Prototype(signature)) = self.decoder.names.find(prototype) else {
            return Err(operand_error(format!("{prototype} is no .callprototype")));
        };
        matches_signature(prototype, &site, signature)?;
        let site = self.site(site)?;
        self.emit(Op::CallIndirect { a, site });
        Ok(())
    }

    /// Where the values of a call lie in this frame.
    fn passed(&self, operands: &[Operand<'a>]) -> Decoding<Vec<Passed>> {
        let one = |operand: &Operand<'a>| match *operand {
            Operand::Name(name) => match self.decoder.names.find(name) {
                Some(Name::Frame(passed)) => Ok(passed),
                Some(_) => Err(Reason::Unsupported(format!("{name}: a call passes variables of the param space"))),
                None => Err(Reason::Undeclared(name.into())),
            },
            _ => Err(Reason::Unsupported("a call that passes constants".into())),
        };
        operands.iter().map(one).collect()
    }

    fn site(&mut self, site: Site) -> Decoding<u16> {
        let sites = &mut self.decoder.program.sites;
        sites.push(site);
        u16::try_from(sites.len() - 1).map_err(|_| Reason::TooLarge("too many calls".into()))
    }
}

/// The label that a name stands for.
fn label((name, what): (&str, Option<Name<'_>>)) -> Decoding<u32> {
    match what {
        Some(Name::Label(label)) => Ok(label),
        Some(_) => Err(operand_error(format!("{name} is no label"))),
        None => Err(Reason::Undeclared(name.into())),
    }
}

/// Whether a call passes what its callee takes.
fn matches_signature(name: &str, site: &Site, signature: &Signature<'_>) -> Decoding<()> {
    let params = |passed: &[Passed]| {
        let param = |passed: &Passed| crate::module::Param {
            name: "_",
            ty: Type { bits: 8, ..Type::B32 },
            elements: Some(passed.bytes.into()),
            align: 1,
        };
        passed.iter().map(param).collect()
    };
    let called = Signature { returns: params(&site.returns), params: params(&site.params) };
    match difference(signature, &called) {
        None => Ok(()),
        Some(difference) => Err(Reason::Prototype(name.into(), difference)),
    }
}
