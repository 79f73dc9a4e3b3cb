//! The outcomes of commands (Base, "Status Field Definition").

use std::fmt;

/// The status field of a completion without its phase bit: code in bits 7:0, type of code in 10:8, Do Not Retry in 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(u16);

impl Status {
    const DNR: u16 = 1 << 14;

    /// A status by its type of code and code, 0xTCC, that lets the host try again.
    pub const fn retryable(number: u16) -> Self {
        Self(number & 0x7ff)
    }

    /// A status by its type of code and code, 0xTCC, with Do Not Retry.
    pub const fn last(number: u16) -> Self {
        Self(number & 0x7ff | Self::DNR)
    }

    /// The status of a completion's status word, whose bit 0 is the phase.
    pub const fn from_word(word: u16) -> Self {
        Self(word >> 1)
    }

    /// As a completion's status word, its phase bit 0.
    pub const fn word(self) -> u16 {
        self.0 << 1
    }

    /// Type of code and code, as 0xTCC.
    pub const fn number(self) -> u16 {
        self.0 & 0x7ff
    }

    /// Whether the same command would fail again (DNR).
    pub const fn is_last(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// Whether the command did what it says.
    pub const fn is_success(self) -> bool {
        self.number() == 0
    }

    /// The constant's name; `None` for statuses that have none here.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(status, _)| status.number() == self.number()).map(|(_, name)| *name)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dnr = if self.is_last() { ", DNR" } else { "" };
        write!(f, "Status({:#05x} {}{dnr})", self.number(), self.name().unwrap_or("unnamed"))
    }
}

macro_rules! statuses {
    ($($name:ident = $of:ident($number:literal), $doc:literal;)*) => {
        impl Status {
            $(#[doc = $doc] pub const $name: Self = Self::$of($number);)*
        }

        /// Every status that has a name.
        const NAMES: &[(Status, &str)] = &[$((Status::$name, stringify!($name))),*];
    };
}

statuses! {
    SUCCESS = retryable(0x000), "Done.";
    INVALID_OPCODE = last(0x001), "There is no such command on this queue.";
    INVALID_FIELD = last(0x002), "A field of the command has a value that it may not have.";
    CID_CONFLICT = retryable(0x003), "The command identifier is in use.";
    ABORT_REQUESTED = retryable(0x007), "Abort ended it.";
    FAILED_FUSED = last(0x009), "The other command of the fused pair failed.";
    MISSING_FUSED = last(0x00A), "The other command of the fused pair is not next to it.";
    INVALID_NAMESPACE = last(0x00B), "There is no such namespace.";
    SEQUENCE_ERROR = last(0x00C), "Not at this time: before Connect, or a second one.";
    SGL_LENGTH_INVALID = last(0x00F), "The descriptor's length is not that of the command's data.";
    SGL_TYPE_INVALID = last(0x011), "The descriptor is of a type that is not for this command.";
    WRITE_PROTECTED = last(0x020), "The namespace is write protected.";
    TRANSIENT_TRANSPORT_ERROR = retryable(0x022), "The data's digest is wrong.";
    LBA_OUT_OF_RANGE = last(0x080), "The range leaves the namespace.";
    CAPACITY_EXCEEDED = last(0x081), "There is no room.";
    NAMESPACE_NOT_READY = last(0x082), "The namespace cannot be accessed now.";
    INVALID_QUEUE_ID = last(0x101), "The queue identifier is in use.";
    ABORT_LIMIT = last(0x103), "More Abort commands than the controller takes.";
    ASYNC_EVENT_LIMIT = last(0x105), "More asynchronous event requests than the controller takes.";
    INVALID_LOG_PAGE = last(0x109), "There is no such log page.";
    FEATURE_NOT_SAVEABLE = last(0x10D), "The feature cannot be saved.";
    NAMESPACE_ALREADY_ATTACHED = last(0x118), "The namespace is attached to the controller.";
    NAMESPACE_NOT_ATTACHED = last(0x11A), "The namespace is not attached to the controller.";
    CONTROLLER_LIST_INVALID = last(0x11C), "The list names a controller that there is not.";
    INVALID_CONTROLLER = last(0x11F), "There is no such controller.";
    INVALID_SECONDARY_STATE = last(0x120), "The secondary controller is online, or has too little to go online.";
    INVALID_RESOURCE_COUNT = last(0x121), "More resources than a controller may have.";
    INVALID_RESOURCE = last(0x122), "There are not as many resources left.";
    CONNECT_FORMAT = last(0x180), "Connect has a record format that is not known.";
    CONNECT_INVALID_PARAMETERS = last(0x182), "A parameter of Connect is wrong; the first dword says which.";
    CONNECT_INVALID_HOST = last(0x184), "The host may not use this subsystem.";
    AUTHENTICATION_REQUIRED = last(0x191), "The queue has not been authenticated.";
    WRITE_FAULT = last(0x280), "The medium did not take the data.";
    UNRECOVERED_READ_ERROR = last(0x281), "The medium did not give the data.";
    COMPARE_FAILURE = retryable(0x285), "The data is not the same.";
    ACCESS_DENIED = last(0x286), "The host has no right to this access.";
    ANA_INACCESSIBLE = retryable(0x302), "The namespace cannot be reached over this controller now.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_completion() {
        // SC 0x86, SCT 2, DNR: 1 << 15 | 2 << 9 | 0x86 << 1.
        assert_eq!(Status::ACCESS_DENIED.word(), 0x850C);
        assert_eq!(Status::ANA_INACCESSIBLE.word(), 0x0604);
        assert_eq!(Status::from_word(0x850D), Status::ACCESS_DENIED, "whatever the phase");
        assert_eq!(format!("{:?}", Status::ACCESS_DENIED), "Status(0x286 ACCESS_DENIED, DNR)");
        assert_eq!(format!("{:?}", Status::retryable(0x7ff)), "Status(0x7ff unnamed)");
    }

    #[test]
    fn which_statuses_let_the_host_try_again() {
        let retryable = NAMES.iter().filter(|(status, _)| !status.is_last()).map(|(status, _)| status.number());
        assert_eq!(retryable.collect::<Vec<_>>(), [0, 0x003, 0x007, 0x022, 0x285, 0x302]);
        assert!(NAMES.iter().all(|(status, _)| status.is_success() == (status.number() == 0)));
        assert!(NAMES.is_sorted_by(|(a, _), (b, _)| a.number() < b.number()), "no number twice");
    }
}
