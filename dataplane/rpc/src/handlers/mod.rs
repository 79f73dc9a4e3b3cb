//! The builtin handlers, and the place of plug-ins among them.

use std::convert::Infallible;

use berth_wire::rpc::{HandlerSchema, TypeDesc, TypeId};

use crate::{Call, FunctionIndex, Handlers, Outcome};

/// A handler that is not builtin, such as a plug-in.
pub trait Custom {
    /// Runs the function. As [`Handlers::call`].
    fn call(&mut self, call: &mut Call<'_>) -> Outcome;
}

/// No such handler.
impl Custom for Infallible {
    fn call(&mut self, _: &mut Call<'_>) -> Outcome {
        match *self {}
    }
}

/// What answers one function.
#[derive(Debug)]
pub enum Handler<X = Infallible> {
    /// `rpc_increment`: every byte plus one, wrapping.
    Increment,
    /// Not builtin.
    Custom(X),
}

impl<X> Handler<X> {
    /// What a builtin takes and returns; `None` for [`Handler::Custom`].
    pub fn schema(&self) -> Option<HandlerSchema> {
        let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
        match self {
            Self::Increment => HandlerSchema::new(&[bytes], &[bytes]).ok(),
            Self::Custom(_) => None,
        }
    }
}

/// The handlers of one core, in the order of the function table.
#[derive(Debug)]
pub struct HandlerSet<X = Infallible> {
    handlers: Vec<Handler<X>>,
}

impl<X: Custom> HandlerSet<X> {
    /// Takes one handler per function, in the order of the table.
    pub fn new(handlers: Vec<Handler<X>>) -> Self {
        Self { handlers }
    }
}

impl<X: Custom> Handlers for HandlerSet<X> {
    #[inline]
    fn call(&mut self, function: FunctionIndex, call: &mut Call<'_>) -> Outcome {
        match &mut self.handlers[function.0] {
            Handler::Increment => Ok(increment(call)),
            Handler::Custom(custom) => custom.call(call),
        }
    }
}

#[inline]
fn increment(call: &mut Call<'_>) -> usize {
    let len = call.args().len();
    for byte in &mut call.results()[..len] {
        *byte = byte.wrapping_add(1);
    }
    len
}
