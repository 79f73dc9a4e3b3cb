//! Why calls fail.

use std::io;

use berth_wire::hip::Code;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no worker, or it does not speak HIP Remote.
    #[error("no worker answers: {0}")]
    Unreachable(io::Error),
    /// The connection broke. Told once; what is used of this session later is [`Error::Gone`].
    #[error("the connection to the worker broke, and its memory, streams, events and modules are gone: {0}")]
    Lost(io::Error),
    /// What came is no answer to what was asked. The connection is closed, as with [`Error::Lost`].
    #[error("the worker broke the protocol, and the session is closed: {0}")]
    Protocol(&'static str),
    /// What is used belongs to a session that has ended with its connection.
    #[error("it is gone with the connection of its session")]
    Gone,
    /// The worker refused, or work before it failed.
    #[error("{call}: {}", said(*code))]
    Refused {
        /// The operation, in the words of the specification.
        call: &'static str,
        /// The `hipError_t` of the answer, or of a check that this client made itself.
        code: Code,
    },
}

/// What calls return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// `hipError_t` for a HIP program: `NO_DEVICE` where no worker answers, `CONTEXT_DESTROYED` of an ended session.
    pub fn code(&self) -> Code {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Unreachable(_) => Code::NO_DEVICE,
            Self::Lost(_) | Self::Protocol(_) | Self::Gone => Code::CONTEXT_DESTROYED,
        }
    }

    /// True of [`Error::Lost`], [`Error::Protocol`] and [`Error::Gone`]: no handle of the session is of use any more.
    pub fn ends_session(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Protocol(_) | Self::Gone)
    }
}

fn said(code: Code) -> String {
    code.describe().map_or_else(|| format!("error {}", code.0), |(name, meaning)| format!("{name} ({meaning})"))
}
