//! What the names of a function stand for, by block; slots and the frame.

use std::collections::HashMap;

use super::{Decoding, parameters};
use crate::{
    error::{LoadError, Reason},
    link::{Linked, Symbol},
    module::{Function, Param, Signature, Statement, StatementKind},
    program::{Parameter, Passed, SINK, Site, Slot},
    types::{Space, Type},
};

/// What frames begin at multiples of, the largest alignment there is.
pub(super) const FRAME_ALIGN: u32 = 128;
/// Most bytes of a frame in the local space.
const FRAME_MAX: u64 = 1 << 20;

/// Most bytes of a kernel's parameters, as CUDA has it.
const PARAMS_MAX: u64 = 32_764;

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Name<'a> {
    Register(Slot, Type),
    /// A variable in this frame.
    Frame(Passed),
    /// A parameter of this kernel, by its offset in the block of parameters.
    Param(u32),
    Variable(Symbol),
    Label(u32),
    Prototype(&'a Signature<'a>),
    /// A list of labels, by its number.
    Targets(u32),
}

/// A row of registers: the first, how many, their type.
type Row = (Slot, u32, Type);

pub(super) struct Names<'a> {
    known: HashMap<(u32, &'a str), Name<'a>>,
    rows: HashMap<(u32, &'a str), Row>,
    /// The block that each block is in.
    parents: Vec<u32>,
    /// The block that is open, and how many were opened.
    block: u32,
    opened: u32,
    labels: Vec<u32>,
    /// The labels of each list, and the block that it is in.
    lists: Vec<(u32, &'a [&'a str])>,
    pub(super) constants: HashMap<u64, Slot>,
    pub(super) slots: u16,
    pub(super) frame: u32,
    pub(super) passed: Site,
    pub(super) parameters: Vec<Parameter>,
}

impl<'a> Names<'a> {
    /// Collects what a function declares.
    pub(super) fn declare(
        linked: &Linked<'a>,
        (module, index): (usize, usize),
        function: &'a Function<'a>,
        body: &'a [Statement<'a>],
    ) -> Result<Self, LoadError> {
        let mut names = Self {
            known: HashMap::new(),
            rows: HashMap::new(),
            parents: vec![0],
            block: 0,
            opened: 0,
            labels: Vec::new(),
            lists: Vec::new(),
            constants: HashMap::new(),
            slots: SINK + 1,
            frame: 0,
            passed: Site::default(),
            parameters: Vec::new(),
        };
        names.declare_parameters(function).map_err(|reason| LoadError::new(function.line, function.name, reason))?;
        for (at, statement) in body.iter().enumerate() {
            let declared = names.declare_statement(linked, (module, index), at, statement);
            declared.map_err(|reason| LoadError::new(statement.line, "", reason))?;
        }
        (names.block, names.opened) = (0, 0);
        Ok(names)
    }

    fn declare_parameters(&mut self, function: &'a Function<'a>) -> Decoding<()> {
        if function.entry {
            let bytes = function.signature.params.iter().fold(0, |all: u64, param| all.saturating_add(param.bytes()));
            if bytes > PARAMS_MAX {
                return Err(Reason::TooLarge(format!(
                    "parameters of {bytes} bytes; a kernel takes at most {PARAMS_MAX}"
                )));
            }
            self.parameters = parameters(function);
            for (param, parameter) in function.signature.params.iter().zip(self.parameters.clone()) {
                self.insert(param.name, Name::Param(parameter.offset as u32))?;
            }
            return Ok(());
        }
        let mut place = |list: &'a [Param<'a>]| -> Decoding<Vec<Passed>> {
            list.iter().map(|param| self.in_frame(param.name, param.bytes(), param.align)).collect()
        };
        let returns = place(&function.signature.returns)?;
        let params = place(&function.signature.params)?;
        self.passed = Site { params, returns };
        Ok(())
    }

    fn declare_statement(
        &mut self,
        linked: &Linked<'a>,
        function: (usize, usize),
        at: usize,
        statement: &'a Statement<'a>,
    ) -> Decoding<()> {
        match &statement.kind {
            StatementKind::Open => {
                self.parents.push(self.block);
                self.open();
            }
            StatementKind::Close => self.close(),
            StatementKind::Registers { name, ty, count: None } => {
                let slot = self.slot()?;
                self.insert(name, Name::Register(slot, *ty))?;
            }
            StatementKind::Registers { name, ty, count: Some(count) } => {
                let first = self.slots;
                let end = u64::from(first) + u64::from(*count);
                self.slots = u16::try_from(end).map_err(|_| too_many())?;
                if self.rows.insert((self.block, name), (first, *count, *ty)).is_some() {
                    return Err(Reason::Doubled((*name).into()));
                }
            }
            StatementKind::Variable(variable) => match variable.space {
                Space::Local | Space::Param => {
                    if !variable.init.is_empty() {
                        return Err(Reason::Syntax("a local variable with a first value".into()));
                    }
                    self.in_frame(variable.name, variable.bytes, variable.align)?;
                }
                _ => {
                    let symbol = linked.inner(function, at).ok_or_else(|| Reason::Undeclared(variable.name.into()))?;
                    self.insert(variable.name, Name::Variable(symbol))?;
                }
            },
            StatementKind::Label(name) => {
                let label = self.labels.len() as u32;
                self.labels.push(0);
                self.insert(name, Name::Label(label))?;
            }
            StatementKind::Prototype(name, signature) => self.insert(name, Name::Prototype(signature))?,
            StatementKind::Targets(name, targets) => {
                let list = self.lists.len() as u32;
                self.lists.push((self.block, targets));
                self.insert(name, Name::Targets(list))?;
            }
            StatementKind::Instruction(_) => {}
        }
        Ok(())
    }

    fn insert(&mut self, name: &'a str, what: Name<'a>) -> Decoding<()> {
        // A prototype calls all of its parameters so.
        if name != "_" && self.known.insert((self.block, name), what).is_some() {
            return Err(Reason::Doubled(name.into()));
        }
        Ok(())
    }

    /// Places a variable in the frame.
    fn in_frame(&mut self, name: &'a str, bytes: u64, align: u64) -> Decoding<Passed> {
        let at = u64::from(self.frame).next_multiple_of(align.max(1));
        let end = at.saturating_add(bytes);
        if end > FRAME_MAX {
            return Err(Reason::TooLarge(format!("local variables of more than {FRAME_MAX} bytes")));
        }
        self.frame = end as u32;
        let passed = Passed { offset: at as u32, bytes: bytes as u32 };
        self.insert(name, Name::Frame(passed))?;
        Ok(passed)
    }

    pub(super) fn open(&mut self) {
        self.opened += 1;
        self.block = self.opened;
    }

    pub(super) fn close(&mut self) {
        self.block = self.parents[self.block as usize];
    }

    /// Says where the next step is that a label of this block names.
    pub(super) fn place(&mut self, name: &'a str, pc: u32) {
        if let Some(Name::Label(label)) = self.known.get(&(self.block, name)) {
            self.labels[*label as usize] = pc;
        }
    }

    pub(super) fn target(&self, label: u32) -> u32 {
        self.labels[label as usize]
    }

    /// The names of a list's labels, and what each stands for where the list is.
    pub(super) fn list(&self, list: u32) -> impl Iterator<Item = (&'a str, Option<Name<'a>>)> {
        let (block, labels) = self.lists[list as usize];
        labels.iter().map(move |label| (*label, self.find_in(block, label)))
    }

    /// What a name stands for in the open block.
    pub(super) fn find(&self, name: &'a str) -> Option<Name<'a>> {
        self.find_in(self.block, name)
    }

    fn find_in(&self, mut block: u32, name: &'a str) -> Option<Name<'a>> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(digits);
        let plain = number.len() == 1 || !number.starts_with('0');
        let number: Option<u32> = if plain { number.parse().ok() } else { None };
        loop {
            if let Some(found) = self.known.get(&(block, name)) {
                return Some(*found);
            }
            if let Some(number) = number
                && let Some((first, count, ty)) = self.rows.get(&(block, prefix))
                && number < *count
            {
                return Some(Name::Register(first + number as u16, *ty));
            }
            if block == 0 {
                return None;
            }
            block = self.parents[block as usize];
        }
    }

    /// A new slot.
    pub(super) fn slot(&mut self) -> Decoding<Slot> {
        let slot = self.slots;
        self.slots = slot.checked_add(1).ok_or_else(too_many)?;
        Ok(slot)
    }

    /// The slot of a constant.
    pub(super) fn constant(&mut self, value: u64) -> Decoding<Slot> {
        if let Some(slot) = self.constants.get(&value) {
            return Ok(*slot);
        }
        let slot = self.slot()?;
        self.constants.insert(value, slot);
        Ok(slot)
    }
}

fn too_many() -> Reason {
    Reason::TooLarge(format!("a function with more than {} registers and constants", u16::MAX - 1))
}
