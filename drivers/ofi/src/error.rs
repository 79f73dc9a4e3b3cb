//! Errors of setting up an endpoint.

use std::{
    ffi::{CStr, c_int},
    net::SocketAddr,
};

use berth_libfabric_sys as sys;
use berth_rendezvous::CallError;

/// An error number of libfabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason(pub i32);

impl Reason {
    /// Checks the result of a call that returns a negative error number on failure.
    pub(crate) fn check(result: impl Into<i64>) -> Result<i64, Self> {
        let result = result.into();
        if result < 0 { Err(Self(-result as c_int)) } else { Ok(result) }
    }

    /// Whether to try again after some progress.
    #[inline]
    pub(crate) fn is_again(self) -> bool {
        self.0 == sys::FI_EAGAIN as c_int
    }

    /// Whether the operation was cancelled, as we asked.
    pub(crate) fn is_cancelled(self) -> bool {
        self.0 == sys::FI_ECANCELED as c_int
    }

    /// Whether a message was longer than its buffer.
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

/// Why an endpoint could not be opened. The text says how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No provider has a suitable endpoint.
    #[error(
        "no libfabric provider matches {place}: {reason}; `berth doctor` lists the providers of this host, and \
         `fi_info -t FI_EP_RDM` their domains and addresses"
    )]
    NoProvider {
        /// What was looked for.
        place: String,
        /// libfabric's error.
        reason: Reason,
    },
    /// The provider requires modes that this driver does not implement.
    #[error("the libfabric provider {provider} needs {modes} of its users, which Berth does not do; use another one")]
    Modes {
        /// Name of the provider.
        provider: String,
        /// Names of the modes.
        modes: String,
    },
    /// This string has a NUL byte.
    #[error("{0:?} contains a NUL byte")]
    Nul(String),
    /// The place has an address, but this provider does not use IP addresses.
    #[error("the libfabric provider {0} has no IP addresses; leave `bind` out")]
    NoBind(String),
    /// A call of libfabric failed.
    #[error("libfabric, {place}: {call}: {reason}")]
    Call {
        /// Name of the function.
        call: &'static str,
        /// Where the endpoint was to be opened.
        place: String,
        /// libfabric's error.
        reason: Reason,
    },
    /// This provider's address vector does not number its entries.
    #[error("the libfabric provider {0} has no address tables (FI_AV_TABLE); use another one")]
    NoTable(String),
    /// The server did not admit us.
    #[error("the rendezvous at {server}: {source}")]
    Rendezvous {
        /// Address of the server's rendezvous.
        server: SocketAddr,
        /// The reason.
        source: CallError,
    },
    /// This server's answer has no endpoint.
    #[error("the rendezvous at {0} is not that of a libfabric port")]
    NoAddress(SocketAddr),
    /// The server's address is not one of the provider used here.
    #[error("the server's endpoint has no address of this provider; use the provider of the server")]
    Address,
}
