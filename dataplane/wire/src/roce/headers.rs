//! The transport headers, as they lie on the wire.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32, U64},
};

use super::numbers::{PKey, Psn, Qpn};

/// The base transport header (IBTA 9.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Bth {
    opcode: u8,
    /// Solicited event 1, migration state 1, pad count 2, header version 4.
    flags: u8,
    p_key: U16,
    /// Congestion bits and reserved 8, destination 24.
    destination: U32,
    /// Acknowledge request 1, reserved 7, sequence number 24.
    sequence: U32,
}

impl Bth {
    /// Bytes.
    pub const LEN: usize = 12;
    /// The offset of the byte whose bits routers may change, and which the ICRC therefore leaves out (annex A17.3.3).
    pub(super) const CONGESTION_AT: usize = 4;

    /// A header of version 0 that asks for no acknowledgement and says that `pad` bytes (0 to 3) fill the payload up.
    #[inline]
    pub fn new(opcode: u8, pad: usize, p_key: PKey, destination: Qpn, psn: Psn) -> Self {
        /// Migrated (IBTA 17.2.8): what a sender says that knows no alternate path.
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

    /// How many bytes behind the payload fill it up to a multiple of four.
    #[inline]
    pub fn pad(&self) -> usize {
        usize::from(self.flags >> 4 & 3)
    }

    /// The version of the transport headers; 0.
    #[inline]
    pub fn version(&self) -> u8 {
        self.flags & 0xf
    }

    /// The sender's partition.
    #[inline]
    pub fn p_key(&self) -> PKey {
        PKey(self.p_key.get())
    }

    /// The queue pair that the packet is for.
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

/// The RDMA extended transport header: where a write goes (IBTA 9.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Reth {
    address: U64,
    rkey: U32,
    len: U32,
}

impl Reth {
    /// Bytes.
    pub const LEN: usize = 16;

    /// A write of `len` bytes to `address`, with the key that permits it.
    #[inline]
    pub fn new(address: u64, rkey: u32, len: u32) -> Self {
        Self { address: address.into(), rkey: rkey.into(), len: len.into() }
    }

    /// The virtual address of the first byte, as the receiver told it.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address.get()
    }

    /// The key that permits the access.
    #[inline]
    pub fn rkey(&self) -> u32 {
        self.rkey.get()
    }

    /// The length of the whole message in bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len.get()
    }

    /// Whether nothing is written; the address and the key mean nothing then (IBTA 9.4.3).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
