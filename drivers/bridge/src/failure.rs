//! What a call of the interface fails with.

use std::{
    ffi::c_int,
    fmt::Display,
    io::{Write as _, stderr},
};

use crate::abi;

/// A status that is not [`abi::OK`], and what standard error is told of it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: c_int,
    message: Option<String>,
}

impl Failure {
    /// Without a word: the caller knows what it passed.
    pub(crate) const fn silent(status: c_int) -> Self {
        Self { status, message: None }
    }

    /// A mistake in the options.
    pub(crate) fn option(message: impl Display) -> Self {
        Self { status: abi::INVALID_ARG, message: Some(message.to_string()) }
    }

    /// Something that is no mistake of the caller.
    pub(crate) fn internal(why: &anyhow::Error) -> Self {
        Self { status: abi::INTERNAL, message: Some(format!("{why:#}")) }
    }

    /// Of the driver of GPUs.
    pub(crate) fn cuda(message: impl Display) -> Self {
        Self { status: abi::CUDA, message: Some(message.to_string()) }
    }

    /// Says on standard error what is wrong.
    pub(crate) fn tell(&self) {
        if let Some(message) = &self.message {
            tell(message);
        }
    }
}

/// Says something on standard error. Standard output is the caller's.
pub(crate) fn tell(message: impl Display) {
    // Nobody is left to be told that nothing can be told.
    let _ = writeln!(stderr(), "berth bridge: {message}");
}
