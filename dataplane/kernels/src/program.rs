//! What a kernel runs: a built-in program, or code of the operator's (K6).

use std::{fmt::Debug, sync::Arc};

use crate::{KernelError, Scalar, Schema, part};

/// The kernels that are built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Builtin {
    /// `Result` = `A` + `B` in IEEE single precision, subnormal numbers kept; NaN is 0x7FC00000.
    VectorAdd,
}

impl Builtin {
    /// Every built-in kernel and its word.
    pub const WORDS: [(&str, Self); 1] = [("vector_add", Self::VectorAdd)];
}

/// Compiled code, of which each core that runs the kernel has an instance.
pub trait Code: Debug + Send + Sync {
    /// Where it is from, for people.
    fn name(&self) -> &str;

    /// Makes an instance, whose state begins anew.
    ///
    /// # Errors
    /// Why there is none.
    fn instance(&self) -> Result<Box<dyn Instance>, String>;

    /// Calls `visit` with the level and the text of what its instances have logged since the last call, and returns how many records
    /// were lost. Not for poll cores.
    fn take_log(&self, visit: &mut dyn FnMut(u32, &[u8])) -> u64;
}

/// An instance of [`Code`] on one core.
pub trait Instance: Debug + Send {
    /// Answers a message in its raw format; `response` has the length of the answer and is all zeros.
    ///
    /// # Errors
    /// [`Failed`]: what stands in `response` is not used.
    fn answer(&mut self, request: &[u8], response: &mut [u8]) -> Result<(), Failed>;
}

/// There is no answer to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed;

/// What a kernel is to run.
#[derive(Debug, Clone)]
pub enum Runs {
    /// What is built in.
    Builtin(Builtin),
    /// Code of the operator's.
    Code(Arc<dyn Code>),
}

impl PartialEq for Runs {
    /// Code is equal to itself alone: who reads it again decides whether it is still the same.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Builtin(a), Self::Builtin(b)) => a == b,
            (Self::Code(a), Self::Code(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Runs {}

impl Runs {
    /// For people: its word of [`Builtin::WORDS`], or what the code says of itself.
    pub fn name(&self) -> &str {
        match self {
            Self::Builtin(builtin) => {
                Builtin::WORDS.iter().find(|(_, known)| known == builtin).map_or("", |(word, _)| word)
            }
            Self::Code(code) => code.name(),
        }
    }

    /// Checks that it suits its messages.
    pub(crate) fn check(&self, request: &Schema, response: &Schema) -> Result<(), KernelError> {
        match self {
            Self::Builtin(Builtin::VectorAdd) => Program::vector_add(request, response).map(drop),
            // It sees the raw format of whatever it was written for.
            Self::Code(_) => Ok(()),
        }
    }
}

/// What runs on one core.
#[derive(Debug)]
pub(crate) enum Program {
    /// Where it finds its members, by offset in the raw format.
    VectorAdd { a: usize, b: usize, result: usize },
    /// One indirect call a message: the code was not there when this was compiled.
    Code(Box<dyn Instance>),
    /// Another core runs it.
    Elsewhere,
}

impl Program {
    pub(crate) fn new(runs: &Runs, request: &Schema, response: &Schema) -> Result<Self, KernelError> {
        match runs {
            Runs::Builtin(Builtin::VectorAdd) => Self::vector_add(request, response),
            Runs::Code(code) => {
                let instance = code.instance();
                instance.map(Self::Code).map_err(|why| KernelError::NoInstance(code.name().to_owned(), why))
            }
        }
    }

    fn vector_add(request: &Schema, response: &Schema) -> Result<Self, KernelError> {
        let input =
            |name| request.find(name, Scalar::F32).ok_or_else(|| KernelError::NoInput(request.name().to_owned(), name));
        let output = |name| {
            response.find(name, Scalar::F32).ok_or_else(|| KernelError::NoOutput(response.name().to_owned(), name))
        };
        Ok(Self::VectorAdd { a: input("A")?, b: input("B")?, result: output("Result")? })
    }

    /// Runs on a raw request; the response is all zeros.
    #[inline]
    pub(crate) fn run(&mut self, request: &[u8], response: &mut [u8]) -> Result<(), Failed> {
        match self {
            Self::VectorAdd { a, b, result } => {
                let sum = f32::from_le_bytes(part(request, *a)) + f32::from_le_bytes(part(request, *b));
                let sum = if sum.is_nan() { 0x7FC0_0000 } else { sum.to_bits() };
                response[*result..][..4].copy_from_slice(&sum.to_le_bytes());
                Ok(())
            }
            Self::Code(instance) => instance.answer(request, response),
            Self::Elsewhere => Err(Failed),
        }
    }
}
