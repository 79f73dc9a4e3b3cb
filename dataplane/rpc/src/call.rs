//! What a handler gets, and what it returns.

use berth_wire::rpc::{HeaderForm, status};

use crate::FunctionIndex;

/// How a call ended: the bytes of results it wrote, or why there are none. Results with a failure are not sent.
pub type Outcome = Result<usize, Failure>;

/// Why a call has no results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A positive status of the handler's own. Any other is answered as [`status::HANDLER_FAILED`]: negative ones are
    /// the protocol's, which a handler has no say in.
    Status(i32),
    /// The arguments are not what the handler takes, as [`status::SCHEMA_MISMATCH`].
    Mismatch,
    /// The results do not fit, as [`status::RESULT_TOO_LARGE`].
    TooLarge,
}

impl Failure {
    /// The handler ran and made nothing that can be sent.
    pub const FAILED: Self = Self::Status(status::HANDLER_FAILED);

    /// The status that is sent.
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

/// All handlers of one core, and their state: one value, monomorphised into its service or worker.
pub trait Handlers {
    /// Runs a function. Must not block.
    ///
    /// A panic is caught and answered, and the value is used again: state that a panic can leave half changed is
    /// marked as such before it is changed.
    fn call(&mut self, function: FunctionIndex, call: &mut Call<'_>) -> Outcome;

    /// Takes over state from the handlers that these replace. Runs on their core, between two bursts: it must not
    /// allocate or drop anything large.
    fn adopt(&mut self, old: &mut Self)
    where
        Self: Sized,
    {
        let _ = old;
    }
}

/// One request, in the slot that its answer is written to: results overwrite arguments.
#[derive(Debug)]
pub struct Call<'a> {
    pub(crate) slot: &'a mut [u8],
    pub(crate) form: HeaderForm,
    /// Bytes of arguments that are there.
    pub(crate) arg_len: usize,
    /// `arg_len` of the header.
    pub(crate) claimed_len: usize,
}

impl Call<'_> {
    /// The arguments.
    #[inline]
    pub fn args(&self) -> &[u8] {
        &self.slot[self.form.len()..][..self.arg_len]
    }

    /// How many bytes of arguments the header claims. More than [`Call::args`] has only if
    /// [`Function::checks_length`](crate::Function::checks_length) is set.
    #[inline]
    pub fn claimed_len(&self) -> usize {
        self.claimed_len
    }

    /// The room for results, from its front on. The arguments lie at the same place.
    #[inline]
    pub fn results(&mut self) -> &mut [u8] {
        &mut self.slot[self.form.len()..]
    }

    /// The message as it was received: header and arguments.
    #[inline]
    pub fn message(&self) -> &[u8] {
        &self.slot[..self.form.len() + self.arg_len]
    }

    /// The form of the slot's header.
    #[inline]
    pub fn form(&self) -> HeaderForm {
        self.form
    }
}
