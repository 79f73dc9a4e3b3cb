//! What a handler gets and returns.

use berth_kernels::Kernel;
use berth_port::{Peer, Recorder};
use berth_wire::rpc::{HeaderForm, status};

use crate::FunctionIndex;

/// Length of the results that the call wrote, in bytes, or why there are none. After a failure no results are sent.
pub type Outcome = Result<usize, Failure>;

/// Why a call has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A positive status of the handler's own. Others are answered as [`status::HANDLER_FAILED`], because negative ones
    /// belong to the protocol.
    Status(i32),
    /// The arguments do not suit the handler; answered as [`status::SCHEMA_MISMATCH`].
    Mismatch,
    /// The results do not fit; answered as [`status::RESULT_TOO_LARGE`].
    TooLarge,
}

impl Failure {
    /// The handler ran, and its result cannot be sent.
    pub const FAILED: Self = Self::Status(status::HANDLER_FAILED);

    /// The status that is sent for it.
    #[inline]
    pub(crate) fn status(self) -> i32 {
        match self {
            Self::Status(own) if own > 0 => own,
            Self::Status(_) => status::HANDLER_FAILED,
            Self::Mismatch => status::SCHEMA_MISMATCH,
            Self::TooLarge => status::RESULT_TOO_LARGE,
        }
    }
}

impl From<i32> for Failure {
    fn from(own: i32) -> Self {
        Self::Status(own)
    }
}

/// All handlers of one core with their state: one value, monomorphised into its service or worker.
pub trait Handlers {
    /// Runs a function. Must not block.
    ///
    /// A panic is caught and answered, and the value is used again. State that a panic can leave half changed must be
    /// marked as such before it is changed.
    fn call(&mut self, function: FunctionIndex, call: &mut Call<'_>) -> Outcome;

    /// Takes over state from the handlers that these replace. Runs on their core between two bursts, so it must not
    /// allocate or drop anything large.
    fn adopt(&mut self, old: &mut Self)
    where
        Self: Sized,
    {
        let _ = old;
    }

    /// The ring kernel that is this function.
    fn kernel(&mut self, function: FunctionIndex) -> Option<&mut Kernel> {
        let _ = function;
        None
    }

    /// Messages that wait for ring kernels.
    fn waiting(&self) -> usize {
        0
    }

    /// Calls `visit` with the name and value of every counter of its own, as services do.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let _ = visit;
    }

    /// Calls `visit` with the name and recorder of each histogram of its own, as services do.
    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        let _ = visit;
    }
}

/// A request in the slot that its answer is written to: results overwrite arguments.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) slot: &'a mut [u8],
    pub(crate) form: HeaderForm,
    /// Bytes of arguments in the slot.
    pub(crate) arg_len: usize,
    /// `arg_len` as the header has it, which may be more.
    pub(crate) claimed_len: usize,
    /// `None` on a worker.
    pub(crate) peer: Option<Peer>,
}

impl Call<'_> {
    /// The arguments that arrived.
    #[inline]
    pub fn args(&self) -> &[u8] {
        &self.slot[self.form.len()..][..self.arg_len]
    }

    /// `arg_len` as the header has it. It exceeds [`Call::args`] only for functions with
    /// [`Function::checks_length`](crate::Function::checks_length).
    #[inline]
    pub fn claimed_len(&self) -> usize {
        self.claimed_len
    }

    /// The sender; `None` on a worker, which a ring does not tell.
    #[inline]
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Room for the results. It overlaps the arguments.
    #[inline]
    pub fn results(&mut self) -> &mut [u8] {
        &mut self.slot[self.form.len()..]
    }

    /// The message as received: header and arguments.
    #[inline]
    pub fn message(&self) -> &[u8] {
        &self.slot[..self.form.len() + self.arg_len]
    }

    /// The form of the message's header.
    #[inline]
    pub fn form(&self) -> HeaderForm {
        self.form
    }
}
