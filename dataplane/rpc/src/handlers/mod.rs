//! The builtin handlers, and the interface for others such as plug-ins.

mod decode;
mod session;

use std::convert::Infallible;

use berth_kernels::{Kernel, OUTCOMES, Refusal};
use berth_port::Recorder;
use berth_qec::mock::MockTable;
use berth_wire::rpc::{
    HandlerSchema, SchemaError, TypeDesc, TypeId,
    decoding::{self, EnqueueSyndromes, GetCorrections, ResetDecoder},
};
pub use decode::{BAD_VALUE, QecDecode, Shot, UNMATCHABLE};
pub use session::{MapMismatch, Session, Streaming};

use crate::{Call, Failure, Function, FunctionIndex, Handlers, Outcome, table::kept};

/// A handler that is not builtin, such as a plug-in.
pub trait Custom {
    /// Arguments and results of the function.
    fn schema(&self) -> HandlerSchema;

    /// Runs the function, under the rules of [`Handlers::call`].
    fn call(&mut self, call: &mut Call<'_>) -> Outcome;
}

/// The type of a set without custom handlers.
impl Custom for Infallible {
    fn schema(&self) -> HandlerSchema {
        match *self {}
    }

    fn call(&mut self, _: &mut Call<'_>) -> Outcome {
        match *self {}
    }
}

/// The implementation of a function.
#[derive(Debug)]
pub enum Handler<X = Infallible> {
    /// `rpc_increment`: adds one to every byte, wrapping.
    Increment,
    /// `mock_decode`: takes a byte per measurement and returns a byte per observable, looked up in the table; zeros for
    /// unknown measurements.
    MockDecode(MockTable),
    /// `qec_decode`: takes a shot and its number of events or outcomes, returns flips of observables, and their confidence.
    QecDecode(QecDecode),
    /// Buffers measurements for the decoder that the request names.
    EnqueueSyndromes,
    /// Returns the corrections of the decoder that the request names.
    GetCorrections,
    /// Clears the decoder that the request names.
    ResetDecoder,
    /// A ring kernel, which answers messages of one type.
    Kernel(Box<Kernel>),
    /// A handler that is not builtin.
    Custom(X),
    /// A function that only dispatchers of others have, behind a ring: requests are checked by its schema.
    Elsewhere(HandlerSchema),
}

/// Why a set of handlers cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// A function refers to a decoder that does not exist.
    #[error("function {function:?} uses decoder {decoder}, there are {decoders}")]
    NoDecoder {
        /// Name of the function.
        function: String,
        /// Index of the decoder, from 0.
        decoder: usize,
        /// Number of decoders.
        decoders: usize,
    },
    /// A function takes or answers what its decoder does not.
    #[error("function {function:?} uses decoder {decoder}, which has no readout or gap")]
    Unable {
        /// Name of the function.
        function: String,
        /// Index of the decoder, from 0.
        decoder: usize,
    },
    /// No schema can express the sizes of the function with this name.
    #[error("function {0:?}: {1}")]
    Schema(String, SchemaError),
}

/// The handlers of one core, and its decoders.
///
/// The sessions of the decoding server are here. Its three functions belong to the same set, and so to the same core.
#[derive(Debug)]
pub struct HandlerSet<X = Infallible> {
    handlers: Vec<Handler<X>>,
    functions: Vec<Function>,
    /// The kernels that answer senders.
    kernels: Vec<Shown>,
    sessions: Vec<Session>,
    /// Sessions that continue from the replaced set: pairs of indices, here and there.
    inherited: Vec<(usize, usize)>,
    /// `mock_decode`'s answer while its arguments are still needed.
    scratch: Vec<u8>,
}

/// A kernel in telemetry.
#[derive(Debug)]
struct Shown {
    /// Its place among the handlers.
    at: usize,
    counters: [&'static str; OUTCOMES.len()],
    times: &'static str,
}

impl<X: Custom> HandlerSet<X> {
    /// Makes a set from named functions. The index of a session is its `decoder_id`.
    pub fn new(functions: Vec<(String, Handler<X>)>, sessions: Vec<Session>) -> Result<Self, HandlerError> {
        let mut set = Self {
            handlers: Vec::new(),
            functions: Vec::new(),
            kernels: Vec::new(),
            sessions,
            inherited: Vec::new(),
            scratch: Vec::new(),
        };
        for (name, handler) in functions {
            let schema = schema(&name, &handler, &mut set.sessions)?;
            if let Handler::MockDecode(table) = &handler {
                let longest = set.scratch.len().max(table.num_observables());
                set.scratch.resize(longest, 0);
            }
            let checks_length =
                matches!(handler, Handler::EnqueueSyndromes | Handler::GetCorrections | Handler::ResetDecoder);
            if matches!(&handler, Handler::Kernel(kernel) if !kernel.is_on_worker()) {
                let counters = OUTCOMES.map(|outcome| kept(format!("kernel_{name}_{outcome}")));
                let times = kept(format!("kernel_time_{name}"));
                set.kernels.push(Shown { at: set.handlers.len(), counters, times });
            }
            set.functions.push(Function { checks_length, ..Function::new(&name, schema) });
            set.handlers.push(handler);
        }
        Ok(set)
    }

    /// Lets sessions continue when this set replaces another; takes pairs of indices, in this set and in the other.
    #[must_use]
    pub fn inheriting(self, inherited: Vec<(usize, usize)>) -> Self {
        Self { inherited, ..self }
    }

    /// The same functions without decoders, for a core that calls none of them.
    #[must_use]
    pub fn without_sessions(self) -> Self {
        Self { sessions: Vec::new(), ..self }
    }

    /// The kernels that answer senders.
    fn shown(&self) -> impl Iterator<Item = (&Shown, &Kernel)> {
        self.kernels.iter().filter_map(|shown| match &self.handlers[shown.at] {
            Handler::Kernel(kernel) => Some((shown, &**kernel)),
            _ => None,
        })
    }

    /// The functions in order, for the table: inline and without a budget until the caller changes that.
    pub fn functions(&self) -> Vec<Function> {
        self.functions.clone()
    }
}

fn schema<X: Custom>(
    name: &str,
    handler: &Handler<X>,
    sessions: &mut [Session],
) -> Result<HandlerSchema, HandlerError> {
    let bytes = TypeDesc::variable(TypeId::ArrayUInt8);
    let array = |n: usize| TypeDesc::new(TypeId::ArrayUInt8, n as u32, n as u32);
    let made = match handler {
        Handler::MockDecode(table) => array(table.num_measurements())
            .and_then(|arg| HandlerSchema::new(&[arg], &[array(table.num_observables())?])),
        Handler::QecDecode(function) => {
            let (decoder, decoders) = (function.decoder, sessions.len());
            let missing = || HandlerError::NoDecoder { function: name.to_owned(), decoder, decoders };
            let schema = function.schema(sessions.get_mut(decoder).ok_or_else(missing)?.decoder());
            schema.ok_or_else(|| HandlerError::Unable { function: name.to_owned(), decoder })?
        }
        // The decoding server's statuses are for requests of any length; a kernel's messages have several.
        Handler::Increment
        | Handler::Kernel(_)
        | Handler::EnqueueSyndromes
        | Handler::GetCorrections
        | Handler::ResetDecoder => HandlerSchema::new(&[bytes], &[bytes]),
        Handler::Custom(custom) => Ok(custom.schema()),
        Handler::Elsewhere(schema) => Ok(*schema),
    };
    made.map_err(|error| HandlerError::Schema(name.to_owned(), error))
}

impl<X: Custom> Handlers for HandlerSet<X> {
    #[inline]
    fn call(&mut self, function: FunctionIndex, call: &mut Call<'_>) -> Outcome {
        match &mut self.handlers[function.0] {
            Handler::Increment => Ok(increment(call)),
            Handler::MockDecode(table) => mock_decode(table, &mut self.scratch, call),
            Handler::QecDecode(function) => decode::run(*function, &mut self.sessions[function.decoder], call),
            Handler::EnqueueSyndromes => {
                let session = addressed(&mut self.sessions, call)?;
                session.enqueue(whole(call).and_then(EnqueueSyndromes::parse))
            }
            Handler::GetCorrections => {
                let session = addressed(&mut self.sessions, call)?;
                let request = whole(call).and_then(GetCorrections::parse).ok_or(decoding::status::BAD_REQUEST)?;
                session.corrections(request, call.results())
            }
            Handler::ResetDecoder => {
                let session = addressed(&mut self.sessions, call)?;
                whole(call).and_then(ResetDecoder::parse).ok_or(decoding::status::BAD_REQUEST)?;
                session.reset();
                Ok(0)
            }
            Handler::Kernel(kernel) => run_kernel(kernel, call),
            Handler::Custom(custom) => custom.call(call),
            Handler::Elsewhere(_) => Err(Failure::FAILED),
        }
    }

    fn adopt(&mut self, old: &mut Self) {
        for (new, function) in self.handlers.iter_mut().zip(&self.functions) {
            let Handler::Kernel(new) = new else { continue };
            let Some(there) = old.functions.iter().position(|old| old.name == function.name) else { continue };
            if let Handler::Kernel(old) = &mut old.handlers[there] {
                new.adopt(old);
            }
        }
        for session in &mut self.sessions {
            session.count_on(&old.sessions);
        }
        for &(here, there) in &self.inherited {
            if let (Some(new), Some(old)) = (self.sessions.get_mut(here), old.sessions.get_mut(there)) {
                new.inherit(old);
            }
        }
    }

    fn kernel(&mut self, function: FunctionIndex) -> Option<&mut Kernel> {
        match self.handlers.get_mut(function.0) {
            Some(Handler::Kernel(kernel)) => Some(kernel),
            _ => None,
        }
    }

    fn waiting(&self) -> usize {
        self.shown().map(|(_, kernel)| kernel.waiting()).sum()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (shown, kernel) in self.shown() {
            shown.counters.iter().zip(kernel.counts()).for_each(|(name, count)| visit(name, *count));
        }
        self.sessions.iter().flat_map(Session::counts).for_each(|(name, count)| visit(name, count));
    }

    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        for (shown, kernel) in self.shown() {
            kernel.times().into_iter().for_each(|times| visit(shown.times, times));
        }
    }
}

#[inline]
fn run_kernel(kernel: &mut Kernel, call: &mut Call<'_>) -> Outcome {
    let answer = match call.peer() {
        Some(peer) => kernel.run(peer, call.args()),
        // What waited for this worker is remembered where it waited.
        None => kernel.execute(call.args()),
    };
    let answer = answer.map_err(|refusal| match refusal {
        Refusal::Malformed => Failure::Mismatch,
        Refusal::Status(status) => Failure::Status(status),
        Refusal::Overloaded | Refusal::Failed => Failure::FAILED,
    })?;
    call.results().get_mut(..answer.len()).ok_or(Failure::TooLarge)?.copy_from_slice(answer);
    Ok(answer.len())
}

#[inline]
fn increment(call: &mut Call<'_>) -> usize {
    let len = call.args().len();
    for byte in &mut call.results()[..len] {
        *byte = byte.wrapping_add(1);
    }
    len
}

#[inline]
fn mock_decode(table: &MockTable, scratch: &mut [u8], call: &mut Call<'_>) -> Outcome {
    let answer = &mut scratch[..table.num_observables()];
    table.answer(call.args(), answer);
    call.results().get_mut(..answer.len()).ok_or(Failure::TooLarge)?.copy_from_slice(answer);
    Ok(answer.len())
}

/// The session that a request of the decoding server addresses, or the failure to answer with.
#[inline]
fn addressed<'a>(sessions: &'a mut [Session], call: &Call<'_>) -> Result<&'a mut Session, i32> {
    let id = decoding::decoder_id(call.args()).ok_or(decoding::status::BAD_REQUEST)?;
    usize::try_from(id).ok().and_then(|id| sessions.get_mut(id)).ok_or(decoding::status::INVALID_DECODER)
}

/// The arguments; `None` if the header claims more than there are.
#[inline]
fn whole<'a>(call: &'a Call<'_>) -> Option<&'a [u8]> {
    (call.claimed_len() == call.args().len()).then(|| call.args())
}
