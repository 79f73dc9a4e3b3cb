//! Two-sided messages: a request header with an optional payload, and a status byte with an optional payload (section
//! "Two-sided messaging protocol"; profile, "Two-sided messages").

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U64};

use super::super::{
    codec::{FabricError, Reader, Wire},
    macros::codes,
};

codes! {
    /// The operation, in the high byte of the generation word.
    pub enum Opcode: u8 {
        Write = 0x01, "WRITE", "the payload goes into the lease";
        Read = 0x02, "READ", "bytes of the lease come back";
    }

    /// The first byte of a response. After OK on a READ the data follows.
    pub enum Status: u8 {
        Ok = 0x00, "OK", "done";
        LeaseRevoked = 0x10, "LEASE_REVOKED", "the lease was revoked";
        LeaseExpired = 0x11, "LEASE_EXPIRED", "the lease has expired";
        StaleGeneration = 0x12, "STALE_GENERATION", "the lease is of another generation: what the client knows is out of date";
        OutOfRange = 0x13, "OUT_OF_RANGE", "the range leaves the lease, or its token's RANGE";
        UnknownLease = 0x14, "UNKNOWN_LEASE", "no lease has this key";
        BadRequest = 0x15, "BAD_REQUEST", "the message's opcode, payload or length is wrong";
        Denied = 0x16, "DENIED", "the lease's token did not allow this";
    }
}

/// The request header as it lies on the wire, before the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Request {
    key: U64,
    word: U64,
    offset: U64,
    len: U64,
}

/// Mask of the generation within the generation word.
const GENERATION: u64 = (1 << 56) - 1;

impl Request {
    /// Header size in bytes.
    pub const LEN: usize = 32;

    /// Requests `len` bytes from `offset` of the lease named by `key`. Only the low 56 bits of `generation` are sent.
    pub fn new(opcode: Opcode, key: u64, generation: u64, offset: u64, len: u64) -> Self {
        let word = u64::from(opcode as u8) << 56 | generation & GENERATION;
        Self { key: key.into(), word: word.into(), offset: offset.into(), len: len.into() }
    }

    /// Reads the header at the front of `bytes`; `None` if they are too short.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self::read_from_prefix(bytes).ok()?.0)
    }

    /// The lease's key: the low 64 bits of its id.
    #[inline]
    pub fn key(&self) -> u64 {
        self.key.get()
    }

    /// The operation; `None` for undefined opcodes.
    #[inline]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_code((self.word.get() >> 56) as u8)
    }

    /// The lease's generation as the client knows it; 56 bits.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.word.get() & GENERATION
    }

    /// First byte, counted from the lease's first.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset.get()
    }

    /// Bytes to read, or the length of the write's payload.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len.get()
    }

    /// Whether `len` is 0, which every server answers with BAD_REQUEST (decision 19).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_read_is_laid_out_as_documented() {
        let request = Request::new(Opcode::Read, 0x0102_0304_0506_0708, u64::MAX, 0x40, 0x1000);
        let bytes = [
            1, 2, 3, 4, 5, 6, 7, 8, 2, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0,
            0, 0, 0x10, 0,
        ];
        assert_eq!(request.as_bytes(), bytes);
        assert_eq!(Request::parse(&bytes), Some(request));
        assert_eq!(request.generation(), (1 << 56) - 1);
        assert_eq!(Request::parse(&bytes[..31]), None);
    }

    proptest! {
        #[test]
        fn requests_round_trip(write: bool, key: u64, generation in 0..1_u64 << 56, offset: u64, len: u64) {
            let opcode = if write { Opcode::Write } else { Opcode::Read };
            let request = Request::parse(Request::new(opcode, key, generation, offset, len).as_bytes()).unwrap();
            prop_assert_eq!(request.opcode(), Some(opcode));
            prop_assert_eq!((request.key(), request.generation()), (key, generation));
            prop_assert_eq!((request.offset(), request.len()), (offset, len));
        }

        #[test]
        fn other_opcodes_are_none(mut bytes: [u8; 32], opcode in 3..=255_u8) {
            bytes[8] = opcode;
            prop_assert_eq!(Request::parse(&bytes).unwrap().opcode(), None);
        }
    }
}
