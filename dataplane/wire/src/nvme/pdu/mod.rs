//! The PDUs (TCP, "Transport Specific Content"): what a header may say, and what it says.

mod bodies;
mod framing;

pub use bodies::{DATA_DIGEST, DataPdu, HEADER_DIGEST, IcReq, IcResp, R2t, TermReq};
pub use framing::{Framing, HEAD_MAX};

use zerocopy::little_endian::U32;

use super::macros::layout;

/// Bytes of the digests behind headers and data.
pub const DIGEST_LEN: usize = 4;

/// The flags of a common header.
pub mod flags {
    /// A header digest follows the header (HDGSTF).
    pub const HEADER_DIGEST: u8 = 1;
    /// A data digest follows the data (DDGSTF).
    pub const DATA_DIGEST: u8 = 2;
    /// No further data PDU belongs to this transfer (`LAST_PDU`).
    pub const LAST: u8 = 4;
    /// The command succeeded, and no response follows (SUCCESS).
    pub const SUCCESS: u8 = 8;
}

layout! {
    /// The common header of all PDUs ("PDU Common Header").
    pub struct Common: 8 {
        /// PDU-Type.
        0 pub kind: u8,
        /// [`flags`].
        1 pub flags: u8,
        /// HLEN: bytes of the header, without its digest.
        2 pub hlen: u8,
        /// PDO: where the data begins, from the PDU's first byte; 0 where there is none.
        3 pub pdo: u8,
        /// PLEN: bytes of the whole PDU, digests and pad included.
        4 pub plen: U32,
    }
}

/// What a PDU is (PDU-Type).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Initialize connection request.
    IcReq = 0,
    /// Initialize connection response.
    IcResp = 1,
    /// The host ends the connection.
    H2cTermReq = 2,
    /// The controller ends the connection.
    C2hTermReq = 3,
    /// A command, with or without data.
    CapsuleCmd = 4,
    /// A completion.
    CapsuleResp = 5,
    /// Data of a command that writes.
    H2cData = 6,
    /// Data of a command that reads.
    C2hData = 7,
    /// Ready to transfer: asks for data of a command that writes.
    R2t = 9,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::IcReq,
        Self::IcResp,
        Self::H2cTermReq,
        Self::C2hTermReq,
        Self::CapsuleCmd,
        Self::CapsuleResp,
        Self::H2cData,
        Self::C2hData,
        Self::R2t,
    ];

    /// The kind with this number.
    #[inline]
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::IcReq,
            1 => Self::IcResp,
            2 => Self::H2cTermReq,
            3 => Self::C2hTermReq,
            4 => Self::CapsuleCmd,
            5 => Self::CapsuleResp,
            6 => Self::H2cData,
            7 => Self::C2hData,
            9 => Self::R2t,
            _ => return None,
        })
    }

    /// Who sends it.
    #[inline]
    pub const fn sender(self) -> Side {
        match self {
            Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData => Side::Host,
            Self::IcResp | Self::C2hTermReq | Self::CapsuleResp | Self::C2hData | Self::R2t => Side::Controller,
        }
    }

    /// Bytes of its header, without digest.
    #[inline]
    pub const fn header_len(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            Self::H2cTermReq | Self::C2hTermReq | Self::CapsuleResp | Self::H2cData | Self::C2hData | Self::R2t => 24,
        }
    }
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The initiator.
    Host,
    /// The target.
    Controller,
}

/// A violation after which the connection ends: what a `TermReq` says ("Fatal Error Status", "Fatal Error Information").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fatal {
    /// FES.
    pub status: u16,
    /// FEI.
    pub information: u32,
}

impl Fatal {
    /// A PDU that may not come at this time.
    pub const SEQUENCE: Self = Self { status: 2, information: 0 };
    /// The header digest is wrong.
    pub const HEADER_DIGEST: Self = Self { status: 3, information: 0 };
    /// Data outside the range that was asked for.
    pub const OUT_OF_RANGE: Self = Self { status: 4, information: 0 };
    /// More data than was allowed; towards a host: more R2Ts.
    pub const LIMIT_EXCEEDED: Self = Self { status: 5, information: 0 };

    /// The field that begins at byte `offset` of the PDU is wrong.
    pub const fn field(offset: u32) -> Self {
        Self { status: 1, information: offset }
    }

    /// The field that begins at byte `offset` of the PDU asks for what is not supported.
    pub const fn unsupported(offset: u32) -> Self {
        Self { status: 6, information: offset }
    }
}

/// What the receiver of PDUs holds them to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Who sends them.
    pub sender: Side,
    /// Whether the connection is initialised: `ICReq` or `ICResp`, whichever the sender sends, has been taken.
    pub initialised: bool,
    /// The digests that were agreed on, and the alignment that the receiver asked for.
    pub framing: Framing,
    /// The most bytes of data in any command capsule.
    pub capsule_data_max: u32,
}

/// A common header that keeps the rules, with what follows from it. Nothing in it is a size to allocate but `len`, which
/// is at most [`HEAD_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the PDU is.
    pub kind: Kind,
    /// [`flags`].
    pub flags: u8,
    /// Bytes of the header with its digest.
    pub len: usize,
    /// Where the data begins, from the PDU's first byte: `len` and the pad. `len` where there is none.
    pub data_at: usize,
    /// Bytes of the data, without digest.
    pub data_len: u32,
    /// Whether a digest follows the data.
    pub data_digest: bool,
}

impl Header {
    /// Reads a common header and decides all that it decides alone.
    #[inline]
    pub fn parse(bytes: &[u8; Common::LEN], rules: &Rules) -> Result<Self, Fatal> {
        let common: Common = zerocopy::transmute!(*bytes);
        let kind = Kind::of(common.kind).filter(|kind| kind.sender() == rules.sender).ok_or(Fatal::field(KIND))?;
        let initialises = matches!(kind, Kind::IcReq | Kind::IcResp);
        // A controller refuses ICReq by C2HTermReq.
        if initialises == rules.initialised && kind != Kind::C2hTermReq {
            return Err(Fatal::SEQUENCE);
        }
        if usize::from(common.hlen) != kind.header_len() {
            return Err(Fatal::field(HLEN));
        }
        match kind {
            Kind::IcReq | Kind::IcResp => Self::undigested(common, kind, 0),
            Kind::H2cTermReq | Kind::C2hTermReq => Self::undigested(common, kind, TermReq::DATA_MAX),
            Kind::CapsuleCmd => Self::negotiated(common, kind, rules, 0, rules.capsule_data_max),
            Kind::H2cData | Kind::C2hData => Self::negotiated(common, kind, rules, 1, u32::MAX),
            Kind::CapsuleResp | Kind::R2t => Self::negotiated(common, kind, rules, 0, 0),
        }
    }

    /// Of kinds without digests and pad, whose flags and PDO are reserved.
    fn undigested(common: Common, kind: Kind, data_max: u32) -> Result<Self, Fatal> {
        let len = kind.header_len();
        let data_len = common.plen.get().checked_sub(len as u32).filter(|&data| data <= data_max);
        let data_len = data_len.ok_or(Fatal::field(PLEN))?;
        Ok(Self { kind, flags: 0, len, data_at: len, data_len, data_digest: false })
    }

    /// Of kinds with the digests that were agreed on.
    #[inline]
    fn negotiated(common: Common, kind: Kind, rules: &Rules, min: u32, max: u32) -> Result<Self, Fatal> {
        let (flags, pdo, plen) = (common.flags, usize::from(common.pdo), common.plen.get());
        let framing = rules.framing;
        if (flags & flags::HEADER_DIGEST != 0) != framing.header_digest {
            return Err(Fatal::field(FLAGS));
        }
        let len = framing.header_len(kind);
        let behind = plen.checked_sub(len as u32).ok_or(Fatal::field(PLEN))?;
        if behind == 0 {
            return if min > 0 {
                Err(Fatal::field(PLEN))
            } else if pdo != 0 {
                Err(Fatal::field(PDO))
            } else if flags & flags::DATA_DIGEST != 0 {
                Err(Fatal::field(FLAGS))
            } else {
                Ok(Self { kind, flags, len, data_at: len, data_len: 0, data_digest: false })
            };
        }
        if max == 0 {
            return Err(Fatal::field(PLEN));
        }
        if (flags & flags::DATA_DIGEST != 0) != framing.data_digest {
            return Err(Fatal::field(FLAGS));
        }
        if pdo < len || !pdo.is_multiple_of(framing.alignment()) {
            return Err(Fatal::field(PDO));
        }
        let digest = if framing.data_digest { DIGEST_LEN as u32 } else { 0 };
        let data_len = plen.checked_sub(pdo as u32 + digest).filter(|&data| 0 < data && data <= max);
        let data_len = data_len.ok_or(Fatal::field(PLEN))?;
        Ok(Self { kind, flags, len, data_at: pdo, data_len, data_digest: framing.data_digest })
    }

    /// Whether all of `flag`, of [`flags`], is set.
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag == flag
    }

    /// Checks the header digest of `head`, the PDU's first `len` bytes; right where none was agreed on.
    #[inline]
    pub fn check_digest(&self, head: &[u8]) -> Result<(), Fatal> {
        let header = head.get(..self.kind.header_len()).ok_or(Fatal::HEADER_DIGEST)?;
        let digest = head.get(header.len()..self.len).ok_or(Fatal::HEADER_DIGEST)?;
        if digest.is_empty() || digest == crc32c::crc32c(header).to_le_bytes() {
            Ok(())
        } else {
            Err(Fatal::HEADER_DIGEST)
        }
    }
}

/// The offsets of the common header's fields.
const KIND: u32 = 0;
const FLAGS: u32 = 1;
const HLEN: u32 = 2;
const PDO: u32 = 3;
const PLEN: u32 = 4;

#[cfg(test)]
mod tests;
