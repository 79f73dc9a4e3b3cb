//! What can go wrong before frames flow.

use std::{
    ffi::{CStr, c_int},
    net::SocketAddr,
};

use berth_libfabric_sys as sys;
use berth_rendezvous::CallError;

/// A failure of libfabric, as its error number tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub i32);

impl Reason {
    /// The result of a call that returns a negative error number.
    pub(crate) fn check(result: impl Into<i64>) -> Result<i64, Self> {
        let result = result.into();
        if result < 0 { Err(Self(-result as c_int)) } else { Ok(result) }
    }

    /// Nothing is wrong: try again when some progress was made.
    #[inline]
    pub(crate) fn is_again(self) -> bool {
        self.0 == sys::FI_EAGAIN as c_int
    }

    /// We wanted it so.
    pub(crate) fn is_cancelled(self) -> bool {
        self.0 == sys::FI_ECANCELED as c_int
    }

    /// A message was longer than the buffer for it.
    pub(crate) fn is_truncation(self) -> bool {
        self.0 == sys::FI_ETRUNC as c_int
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: returns a NUL-terminated string of libfabric's own, for any number.
        let text = unsafe { CStr::from_ptr(sys::fi_strerror(self.0)) };
        write!(f, "{} ({})", text.to_string_lossy(), self.0)
    }
}

/// Why an endpoint could not be opened. The text says what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No provider has such endpoints.
    #[error(
        "no libfabric provider matches {place}: {reason}; `berth doctor` lists the providers of this host, and \
         `fi_info -t FI_EP_RDM` their domains and addresses"
    )]
    NoProvider {
        /// What was looked for.
        place: String,
        /// What libfabric said.
        reason: Reason,
    },
    /// The provider wants of its users what this driver does not do.
    #[error("the libfabric provider {provider} needs {modes} of its users, which Berth does not do; use another one")]
    Modes {
        /// Its name.
        provider: String,
        /// The modes, by their names.
        modes: String,
    },
    /// A string with a NUL byte.
    #[error("{0:?} contains a NUL byte")]
    Nul(String),
    /// An IP address if there are none.
    #[error("the libfabric provider {0} has no IP addresses; leave `bind` out")]
    NoBind(String),
    /// A call failed.
    #[error("libfabric, {place}: {call}: {reason}")]
    Call {
        /// What was called.
        call: &'static str,
        /// Where the endpoint was to be.
        place: String,
        /// What libfabric said.
        reason: Reason,
    },
    /// The provider's address vector does not number its entries.
    #[error("the libfabric provider {0} has no address tables (FI_AV_TABLE); use another one")]
    NoTable(String),
    /// The server did not let us in.
    #[error("the rendezvous at {server}: {source}")]
    Rendezvous {
        /// Where it is.
        server: SocketAddr,
        /// Why.
        source: CallError,
    },
    /// The server's answer names no endpoint.
    #[error("the rendezvous at {0} is not that of a libfabric port")]
    NoAddress(SocketAddr),
    /// The server's address is not one of the provider here.
    #[error("the server's endpoint has no address of this provider; use the provider of the server")]
    Address,
}
