//! Statements to operations: names, types and widths are checked here, once.

mod control;
mod data;
mod float;
mod int;
mod memory;
mod names;
mod warp;

use std::collections::HashMap;

use crate::{
    error::{LoadError, Reason},
    link::Linked,
    module::{Function, Instruction, Operand, Statement, StatementKind},
    program::{Function as Decoded, Op, Parameter, Program, SINK, Slot, Special, Step},
    types::{Class, Type},
};
use names::{Name, Names};

type Decoding<T> = Result<T, Reason>;

/// Most mistakes that are told of one function.
const ERRORS_MAX: usize = 64;

/// The modifiers of an instruction that nobody has asked for yet.
struct Modifiers<'a>(Vec<&'a str>);

impl<'a> Modifiers<'a> {
    /// Takes a modifier if it is there.
    fn take(&mut self, name: &str) -> bool {
        let found = self.0.iter().position(|modifier| *modifier == name);
        found.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes the first of these that is there.
    fn one_of(&mut self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().find(|name| self.take(name)).copied()
    }

    /// Takes the first modifier.
    fn first(&mut self) -> Option<&'a str> {
        if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
    }

    /// Takes the last modifier, which is a type.
    fn ty(&mut self) -> Decoding<Type> {
        let Some(word) = self.0.pop() else { return Err(Reason::Syntax("a type is missing".into())) };
        Type::parse(word).ok_or_else(|| Reason::Unsupported(format!("the type {word}")))
    }

    /// What is left is not covered.
    fn end(&self) -> Decoding<()> {
        match self.0.first() {
            None => Ok(()),
            Some(word) => Err(Reason::Unsupported(format!("the modifier {word}"))),
        }
    }
}

struct Decoder<'m, 'a> {
    linked: &'m Linked<'a>,
    module: usize,
    names: Names<'a>,
    entry: bool,
    program: &'m mut Program,
    /// Labels that steps go to: step, label.
    fixups: Vec<(usize, u32)>,
    /// Lists of `brx.idx`, by their number: index in the program, labels.
    tables: HashMap<u32, (u16, Vec<u32>)>,
}

fn operand_error(what: impl Into<String>) -> Reason {
    Reason::Operand(what.into())
}

/// Decodes one function; what is wrong with it is added to `errors`.
pub(crate) fn function<'a>(
    linked: &Linked<'a>,
    (module, index): (usize, usize),
    function: &'a Function<'a>,
    program: &mut Program,
    errors: &mut Vec<LoadError>,
) {
    let body = function.body.as_deref().unwrap_or_default();
    let names = match Names::declare(linked, (module, index), function, body) {
        Ok(names) => names,
        Err(error) => return errors.push(error),
    };
    let start = program.code.len() as u32;
    let mut decoder =
        Decoder { linked, module, names, entry: function.entry, program, fixups: Vec::new(), tables: HashMap::new() };
    let before = errors.len();
    for statement in body {
        if let Err(reason) = decoder.statement(statement) {
            let text = match &statement.kind {
                StatementKind::Instruction(instruction) => instruction.text,
                _ => "",
            };
            errors.push(LoadError::new(statement.line, text, reason));
            if errors.len() - before >= ERRORS_MAX {
                return;
            }
        }
    }
    // Whoever runs off the end returns.
    let last = body.last().map_or(function.line, |statement| statement.line);
    decoder.emit(Op::Return, last);
    decoder.program.code.last_mut().expect("a step").cost = 1;
    decoder.settle();
    let names = decoder.names;
    let decoded = Decoded {
        name: function.name.to_owned(),
        module,
        entry: function.entry,
        start,
        slots: names.slots,
        constants: names.constants.iter().map(|(value, slot)| (*slot, *value)).collect(),
        frame: names.frame.next_multiple_of(names::FRAME_ALIGN),
        passed: names.passed,
        parameters: names.parameters,
    };
    let number = program.functions.len() as u32;
    if function.entry && program.kernels.insert(function.name.to_owned(), number).is_some() {
        errors.push(LoadError::new(function.line, function.name, Reason::Doubled(function.name.into())));
    }
    program.functions.push(decoded);
}

impl<'a> Decoder<'_, 'a> {
    fn emit(&mut self, op: Op, line: u32) {
        self.program.code.push(Step { op, cost: 0 });
        self.program.lines.push(line);
    }

    fn statement(&mut self, statement: &'a Statement<'a>) -> Decoding<()> {
        let pc = self.program.code.len() as u32;
        match &statement.kind {
            StatementKind::Open => self.names.open(),
            StatementKind::Close => self.names.close(),
            StatementKind::Label(name) => self.names.place(name, pc),
            StatementKind::Instruction(instruction) => self.guarded(instruction, statement.line)?,
            _ => {}
        }
        Ok(())
    }

    fn guarded(&mut self, instruction: &'a Instruction<'a>, line: u32) -> Decoding<()> {
        let start = self.program.code.len();
        let mut one = One { decoder: self, line, instruction, modifiers: Modifiers(instruction.modifiers.clone()) };
        let result = one.decode();
        if result.is_err() {
            self.program.code.truncate(start);
            self.program.lines.truncate(start);
            self.fixups.retain(|(step, _)| *step < start);
            return result;
        }
        if let Some(last) = self.program.code[start..].last_mut() {
            last.cost = 1;
        }
        let end = self.program.code.len() as u32;
        if let Op::Guard { to, .. } = &mut self.program.code[start].op {
            *to = end;
        }
        Ok(())
    }

    /// Fills in where branches go.
    fn settle(&mut self) {
        for (step, label) in &self.fixups {
            let target = self.names.target(*label);
            if let Op::Branch { to } | Op::BranchIf { to, .. } = &mut self.program.code[*step].op {
                *to = target;
            }
        }
        for (index, labels) in self.tables.values() {
            self.program.targets[usize::from(*index)] = labels.iter().map(|label| self.names.target(*label)).collect();
        }
    }
}

/// One instruction on its way.
struct One<'d, 'm, 'a> {
    decoder: &'d mut Decoder<'m, 'a>,
    line: u32,
    instruction: &'a Instruction<'a>,
    modifiers: Modifiers<'a>,
}

impl<'a> One<'_, '_, 'a> {
    fn decode(&mut self) -> Decoding<()> {
        let opcode = self.instruction.opcode;
        if let Some((negate, name)) = self.instruction.guard {
            let p = self.register(name, Type::PRED)?;
            if opcode == "bra" {
                return self.branch(Some((p, negate)));
            }
            self.emit(Op::Guard { p, negate, to: 0 });
        }
        match opcode {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "sad" | "mul24"
            | "mad24" | "addc" | "subc" | "madc" | "dp4a" => self.arithmetic(opcode),
            "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "popc" | "clz" | "brev" | "bfind" | "bfe"
            | "bfi" | "lop3" | "prmt" | "shf" => self.bits(opcode),
            "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign" | "testp" => {
                self.float_function(opcode)
            }
            "mov" | "cvt" | "cvta" | "setp" | "set" | "selp" | "slct" | "isspacep" => self.data(opcode),
            "ld" | "ldu" | "st" | "atom" | "red" | "fence" | "membar" | "prefetch" | "prefetchu" => self.memory(opcode),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "pmevent" => {
                self.control(opcode)
            }
            "bar" | "barrier" | "shfl" | "vote" | "match" | "activemask" | "redux" => self.together(opcode),
            _ => Err(Reason::Unsupported(format!("the instruction {opcode}"))),
        }
    }

    fn emit(&mut self, op: Op) {
        self.decoder.emit(op, self.line);
    }

    fn operand(&self, index: usize) -> Decoding<&'a Operand<'a>> {
        self.instruction.operands.get(index).ok_or_else(|| Reason::Syntax("an operand is missing".into()))
    }

    /// Wants so many operands.
    fn count(&self, wanted: usize) -> Decoding<()> {
        match self.instruction.operands.len() {
            count if count == wanted => Ok(()),
            count => Err(Reason::Syntax(format!("{count} operands; {wanted} are expected"))),
        }
    }

    /// The register of that name, which has to have this type's size and kind.
    fn register(&mut self, name: &'a str, ty: Type) -> Decoding<Slot> {
        let (slot, own) = self.any_register(name)?;
        if own.bits == ty.bits && own.suits(ty) {
            Ok(slot)
        } else {
            Err(operand_error(format!("{name} is a register of {own}; the instruction wants {ty}")))
        }
    }

    fn any_register(&mut self, name: &'a str) -> Decoding<(Slot, Type)> {
        match self.decoder.names.find(name) {
            Some(Name::Register(slot, ty)) => Ok((slot, ty)),
            Some(_) => Err(operand_error(format!("{name} is no register"))),
            None => match special(name, None) {
                Some((which, ty)) => {
                    let d = self.temporary()?;
                    self.emit(Op::Special { d, which });
                    Ok((d, ty))
                }
                None => Err(Reason::Undeclared(name.into())),
            },
        }
    }

    fn constant(&mut self, value: u64) -> Decoding<Slot> {
        self.decoder.names.constant(value)
    }

    fn temporary(&mut self) -> Decoding<Slot> {
        self.decoder.names.slot()
    }

    /// An operand that is read.
    fn source(&mut self, index: usize, ty: Type) -> Decoding<Slot> {
        let operand = self.operand(index)?;
        self.read(operand, ty)
    }

    fn read(&mut self, operand: &'a Operand<'a>, ty: Type) -> Decoding<Slot> {
        let mask = u64::MAX >> (64 - ty.bits);
        match *operand {
            Operand::Name("WARP_SZ") if !ty.is_float() => self.constant(32),
            Operand::Name("_") => Err(operand_error("\"_\" cannot be read")),
            Operand::Name(name) => self.register(name, ty),
            Operand::Member(name, member) => {
                let (which, own) =
                    special(name, Some(member)).ok_or_else(|| Reason::Undeclared(format!("{name}{member}")))?;
                if own.bits != ty.bits || ty.is_float() {
                    return Err(operand_error(format!("{name}{member} is of {own}; the instruction wants {ty}")));
                }
                let d = self.temporary()?;
                self.emit(Op::Special { d, which });
                Ok(d)
            }
            Operand::Int(value) if ty == Type::PRED => self.constant(u64::from(value != 0)),
            Operand::Int(value) if !ty.is_float() => self.constant(value & mask),
            Operand::Single(bits) if ty.bits == 32 && matches!(ty.class, Class::Float | Class::Bits) => {
                self.constant(bits.into())
            }
            Operand::Double(bits) if matches!(ty.class, Class::Float | Class::Bits) && ty.bits >= 32 => {
                self.constant(if ty.bits == 32 { (f64::from_bits(bits) as f32).to_bits().into() } else { bits })
            }
            Operand::Not(name) if ty == Type::PRED => {
                let a = self.register(name, ty)?;
                let d = self.temporary()?;
                self.emit(Op::Unary { f: |a| a ^ 1, d, a });
                Ok(d)
            }
            _ => Err(operand_error(format!("an operand is not of {ty}"))),
        }
    }

    /// An operand that is written.
    fn target(&mut self, index: usize, ty: Type) -> Decoding<Slot> {
        match *self.operand(index)? {
            Operand::Name(name) => self.written(name, ty),
            _ => Err(operand_error("the result has to be a register")),
        }
    }

    fn written(&mut self, name: &'a str, ty: Type) -> Decoding<Slot> {
        match self.decoder.names.find(name) {
            _ if name == "_" => Ok(SINK),
            None if special(name, None).is_some() => Err(operand_error(format!("{name} cannot be written"))),
            _ => self.register(name, ty),
        }
    }

    /// A register that is written and may have more bits than the type, and how many it has.
    fn wide_target(&mut self, operand: &Operand<'a>, ty: Type) -> Decoding<(Slot, u8)> {
        let Operand::Name(name) = *operand else { return Err(operand_error("the result has to be a register")) };
        if name == "_" {
            return Ok((SINK, ty.bits.max(8)));
        }
        let Some(Name::Register(slot, own)) = self.decoder.names.find(name) else {
            return Err(Reason::Undeclared(name.into()));
        };
        let fits = if own.is_float() { own.bits == ty.bits } else { own.bits >= ty.bits };
        if fits && own.suits(ty) {
            Ok((slot, own.bits))
        } else {
            Err(operand_error(format!("{name} is a register of {own}; the instruction wants {ty}")))
        }
    }

    /// A register that is read and may have more bits than the type.
    fn wide_source(&mut self, operand: &'a Operand<'a>, ty: Type) -> Decoding<Slot> {
        if let Operand::Name(name) = *operand
            && let Some(Name::Register(slot, own)) = self.decoder.names.find(name)
            && own.bits > ty.bits
            && !own.is_float()
            && own.suits(ty)
        {
            return Ok(slot);
        }
        self.read(operand, ty)
    }

    fn unsupported<T>(&self) -> Decoding<T> {
        let words: String = self.instruction.modifiers.concat();
        Err(Reason::Unsupported(format!("{}{words}", self.instruction.opcode)))
    }
}

/// A special register and its type (PTX ISA 10).
fn special(name: &str, member: Option<&str>) -> Option<(Special, Type)> {
    use crate::program::{Half, LaneMask};
    if let Some(member) = member {
        let axis = match member {
            ".x" => 0,
            ".y" => 1,
            ".z" => 2,
            _ => return None,
        };
        let which = match name {
            "%tid" => Special::Thread(axis),
            "%ntid" => Special::Threads(axis),
            "%ctaid" => Special::Block(axis),
            "%nctaid" => Special::Blocks(axis),
            _ => return None,
        };
        return Some((which, Type::U32));
    }
    let long = Type { bits: 64, ..Type::U32 };
    Some(match name {
        "%laneid" => (Special::Lane, Type::U32),
        "%warpid" => (Special::Warp, Type::U32),
        "%nwarpid" => (Special::Warps, Type::U32),
        "%lanemask_eq" => (Special::LaneMask(LaneMask::Equal), Type::U32),
        "%lanemask_lt" => (Special::LaneMask(LaneMask::Below), Type::U32),
        "%lanemask_le" => (Special::LaneMask(LaneMask::UpTo), Type::U32),
        "%lanemask_ge" => (Special::LaneMask(LaneMask::From), Type::U32),
        "%lanemask_gt" => (Special::LaneMask(LaneMask::Above), Type::U32),
        "%clock" => (Special::Clock(Half::Low), Type::U32),
        "%clock_hi" => (Special::Clock(Half::High), Type::U32),
        "%clock64" => (Special::Clock(Half::All), long),
        "%globaltimer" => (Special::GlobalTimer(Half::All), long),
        "%globaltimer_lo" => (Special::GlobalTimer(Half::Low), Type::U32),
        "%globaltimer_hi" => (Special::GlobalTimer(Half::High), Type::U32),
        "%dynamic_smem_size" => (Special::DynamicShared, Type::U32),
        "%total_smem_size" => (Special::TotalShared, Type::U32),
        "%smid" | "%gridid" => (Special::Zero, Type::U32),
        "%nsmid" => (Special::One, Type::U32),
        _ => return None,
    })
}

/// The parameters of a kernel, in the block that a launch gives.
fn parameters(function: &Function<'_>) -> Vec<Parameter> {
    let mut at = 0_u64;
    let place = |param: &crate::module::Param<'_>| {
        let offset = at.next_multiple_of(param.align.max(1));
        at = offset + param.bytes();
        let (offset, bytes) = (offset as usize, param.bytes() as usize);
        Parameter { name: param.name.to_owned(), ty: param.ty, array: param.elements.is_some(), offset, bytes }
    };
    function.signature.params.iter().map(place).collect()
}
