//! The transport headers, as they lie on the wire.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32, U64},
};

use super::numbers::{PKey, Psn, Qpn};

/// The base transport header, 12 bytes (IBTA 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// From the high bit: solicited event 1, migration state 1, pad count 2, header version 4.
    flags: u8,
    p_key: U16,
    /// From the high bit: congestion bits and reserved 8, destination 24.
    destination: U32,
    /// From the high bit: acknowledge request 1, reserved 7, sequence number 24.
    sequence: U32,
}

impl Bth {
    /// Header size in bytes.
    pub const LEN: usize = 12;
    /// Offset of the byte with the congestion bits. Routers may change it, so the ICRC leaves it out (annex A17.3.3).
    pub(super) const CONGESTION_AT: usize = 4;

    /// Builds a header of version 0 without an acknowledge request. `pad` is the number of padding bytes, 0 to 3.
    #[inline]
    pub fn new(opcode: u8, pad: usize, p_key: PKey, destination: Qpn, psn: Psn) -> Self {
        /// Migrated (IBTA 17.2.8): set by senders that know no alternate path.
        const MIGRATED: u8 = 0x40;
        Self {
            opcode,
            flags: MIGRATED | ((pad as u8 & 3) << 4),
            p_key: p_key.0.into(),
            destination: destination.get().into(),
            sequence: psn.get().into(),
        }
    }

    /// The operation, with the transport in its upper three bits.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Bytes of padding behind the payload, which make it a multiple of four.
    #[inline]
    pub fn pad(&self) -> usize {
        usize::from(self.flags >> 4 & 3)
    }

    /// Version of the transport headers; 0.
    #[inline]
    pub fn version(&self) -> u8 {
        self.flags & 0xf
    }

    /// Partition key of the sender.
    #[inline]
    pub fn p_key(&self) -> PKey {
        PKey(self.p_key.get())
    }

    /// Number of the queue pair that the packet is for.
    #[inline]
    pub fn destination(&self) -> Qpn {
        Qpn::new(self.destination.get())
    }

    /// The packet's place in the sender's sequence.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(self.sequence.get())
    }
}

/// The RDMA extended transport header, 16 bytes: where a write goes (IBTA 9.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reth {
    address: U64,
    rkey: U32,
    len: U32,
}

impl Reth {
    /// Header size in bytes.
    pub const LEN: usize = 16;

    /// Describes a write of `len` bytes to `address`, permitted by `rkey`.
    #[inline]
    pub fn new(address: u64, rkey: u32, len: u32) -> Self {
        Self { address: address.into(), rkey: rkey.into(), len: len.into() }
    }

    /// Virtual address of the first byte, as the receiver announced it.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address.get()
    }

    /// Remote key that permits the access.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey.get()
    }

    /// Length of the whole message in bytes, all its packets together.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len.get()
    }

    /// Whether nothing is written. The address and the key then have no meaning (IBTA 9.4.3).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
