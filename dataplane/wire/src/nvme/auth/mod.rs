//! Authentication by DH-HMAC-CHAP: its messages, which Authentication Send and Receive carry, and the text of a secret
//! (Base, "Authentication Messages" and "DH-HMAC-CHAP Protocol").
//!
//! | from | message |
//! |---|---|
//! | host | negotiate: which hashes and groups it takes |
//! | controller | challenge: which of them, its challenge and DH value |
//! | host | reply: the response, its own challenge where it wants one answered, its DH value |
//! | controller | success1: the response to that |
//! | host | success2: where it wanted that |
//! | either | failure1 of the controller, failure2 of the host |

mod message;
mod secret;

pub use message::{Challenge, DESCRIPTOR_LEN, Message, Negotiate, Reply};
pub use secret::{SECRET_TEXT_MAX, Secret};

/// A hash function, and HMAC with it ("`HashID`").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];
    /// Bytes of the longest digest.
    pub const LEN_MAX: usize = 64;

    /// The hash with this number.
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Sha256,
            2 => Self::Sha384,
            3 => Self::Sha512,
            _ => return None,
        })
    }

    /// Bytes of its digest, which a challenge and a response have as well.
    #[allow(clippy::len_without_is_empty)] // a digest is never empty
    pub const fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// A Diffie-Hellman group (RFC 7919; "`DHgID`").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Group {
    /// No Diffie-Hellman exchange.
    None = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
    /// ffdhe6144.
    Ffdhe6144 = 4,
    /// ffdhe8192.
    Ffdhe8192 = 5,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::None, Self::Ffdhe2048, Self::Ffdhe3072, Self::Ffdhe4096, Self::Ffdhe6144, Self::Ffdhe8192];
    /// Bytes of the longest DH value.
    pub const LEN_MAX: usize = 1024;

    /// The group with this number.
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Ffdhe2048,
            2 => Self::Ffdhe3072,
            3 => Self::Ffdhe4096,
            4 => Self::Ffdhe6144,
            5 => Self::Ffdhe8192,
            _ => return None,
        })
    }

    /// Bytes of a DH value; 0 of [`Group::None`].
    #[allow(clippy::len_without_is_empty)] // whether there is a value is asked by the group's name
    pub const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }
}

/// Why an authentication failed: the explanation of failure1 and failure2, whose reason code is always 1
/// ("`AUTH_Failure1` message").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The response is not that of the secret.
    Failed = 1,
    /// No authentication protocol that both know.
    ProtocolNotUsable = 2,
    /// A secure channel was asked for that is not offered, or the other way round.
    ConcatenationMismatch = 3,
    /// No hash that both take.
    HashNotUsable = 4,
    /// No group that both take.
    GroupNotUsable = 5,
    /// The message's content is wrong.
    IncorrectPayload = 6,
    /// Another message was due.
    IncorrectMessage = 7,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Failed,
        Self::ProtocolNotUsable,
        Self::ConcatenationMismatch,
        Self::HashNotUsable,
        Self::GroupNotUsable,
        Self::IncorrectPayload,
        Self::IncorrectMessage,
    ];

    /// The reason with this number; [`Reason::Failed`] of numbers that nobody has defined.
    pub fn of(number: u8) -> Self {
        Self::ALL.into_iter().find(|&reason| reason as u8 == number).unwrap_or(Self::Failed)
    }
}
