//! PTX text as data: what a module declares and defines, names not yet resolved.

use crate::types::{Space, Type};

/// A module, whose names borrow its text.
#[derive(Debug)]
pub struct Module<'a> {
    /// `.version`: major, minor.
    pub version: (u32, u32),
    /// `.target`, such as `sm_70`.
    pub target: &'a str,
    /// Entries and functions, declared and defined.
    pub functions: Vec<Function<'a>>,
    /// Variables outside of functions.
    pub variables: Vec<Variable<'a>>,
}

/// Who sees a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// This module alone.
    Internal,
    /// `.visible`: all modules that are linked.
    Visible,
    /// `.weak`, `.common`: all modules; several may define it, the first one counts.
    Weak,
    /// `.extern`: another module defines it.
    Extern,
}

/// A kernel or a function.
#[derive(Debug)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it is an `.entry`.
    pub entry: bool,
    /// Who sees it.
    pub linkage: Linkage,
    /// What it takes and returns.
    pub signature: Signature<'a>,
    /// Its statements; `None` of a declaration.
    pub body: Option<Vec<Statement<'a>>>,
    /// Line of its name, from 1.
    pub line: u32,
}

/// Parameters in order.
#[derive(Debug, Default, Clone)]
pub struct Signature<'a> {
    /// What is returned.
    pub returns: Vec<Param<'a>>,
    /// What is taken.
    pub params: Vec<Param<'a>>,
}

/// One parameter.
#[derive(Debug, Clone)]
pub struct Param<'a> {
    /// Its name; `_` in a prototype.
    pub name: &'a str,
    /// The type, or that of the elements.
    pub ty: Type,
    /// Number of elements of an array; `None` if it is none.
    pub elements: Option<u64>,
    /// Its alignment in bytes, a power of two: that of its type unless `.align` says another.
    pub align: u64,
}

impl Param<'_> {
    /// Bytes of the value, or of all elements together.
    pub fn bytes(&self) -> u64 {
        self.ty.bytes() * self.elements.unwrap_or(1)
    }
}

/// A variable.
#[derive(Debug)]
pub struct Variable<'a> {
    /// Its name.
    pub name: &'a str,
    /// State space that it is declared in.
    pub space: Space,
    /// Who sees it.
    pub linkage: Linkage,
    /// The type of its elements.
    pub ty: Type,
    /// How many bytes it takes; 0 of an array without a length.
    pub bytes: u64,
    /// Its alignment in bytes, a power of two: that of its type or vector unless `.align` says another.
    pub align: u64,
    /// What it holds at first, by the index of the element; the rest is zero.
    pub init: Vec<(u64, Initial<'a>)>,
    /// Line of its name, from 1.
    pub line: u32,
}

/// The first value of an element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Initial<'a> {
    /// The bits of an integer, of any size.
    Int(u64),
    /// The bits of an `.f32`.
    Single(u32),
    /// The bits of an `.f64`.
    Double(u64),
    /// The address of a function or variable, and what is added.
    Name(&'a str, u64),
}

/// A statement of a body, and its line.
#[derive(Debug)]
pub struct Statement<'a> {
    /// What it is.
    pub kind: StatementKind<'a>,
    /// Its line, from 1.
    pub line: u32,
}

/// What stands in a body.
#[derive(Debug)]
pub enum StatementKind<'a> {
    /// `{`
    Open,
    /// `}`
    Close,
    /// A register, or `count` of them: name0, name1 and so on.
    Registers {
        /// The name, or what precedes the numbers.
        name: &'a str,
        /// Of what type.
        ty: Type,
        /// How many, if they are numbered.
        count: Option<u32>,
    },
    /// A variable of this function, or a `.param` for calls.
    Variable(Variable<'a>),
    /// `name:`
    Label(&'a str),
    /// `name: .callprototype`
    Prototype(&'a str, Signature<'a>),
    /// `name: .branchtargets`
    Targets(&'a str, Vec<&'a str>),
    /// An instruction.
    Instruction(Instruction<'a>),
}

/// An instruction.
#[derive(Debug)]
pub struct Instruction<'a> {
    /// `@p` or, with true, `@!p`.
    pub guard: Option<(bool, &'a str)>,
    /// What stands before the first point.
    pub opcode: &'a str,
    /// What follows it, each with its point.
    pub modifiers: Vec<&'a str>,
    /// What stands between commas.
    pub operands: Vec<Operand<'a>>,
    /// All of it.
    pub text: &'a str,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand<'a> {
    /// A register, label, function, variable, or `_`.
    Name(&'a str),
    /// A special register's component, such as `%tid.x`.
    Member(&'a str, &'a str),
    /// `name+4`
    Sum(&'a str, u64),
    /// An integer; of a negative one, its two's complement.
    Int(u64),
    /// The bits of an `.f32`.
    Single(u32),
    /// The bits of an `.f64`.
    Double(u64),
    /// `!p`
    Not(&'a str),
    /// `p|q`
    Pair(&'a str, &'a str),
    /// `[name+4]`, or `[4]` without a name.
    Address(Option<&'a str>, u64),
    /// `[name, {a, b}]`, of textures and tensors; what it says is not kept.
    Coordinates,
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `(a, b)` of a call.
    List(Vec<Operand<'a>>),
}
