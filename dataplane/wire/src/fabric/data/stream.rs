//! FBMT and FBBT: messages on a byte stream, TCP or QUIC (sections "TCP memory protocol (FBMT)" and "TCP block storage
//! protocol (FBBT)").

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32, U64, U128},
};

use super::super::{
    codec::{FabricError, Reader, Wire},
    macros::codes,
};

pub use super::shim::Kind;

codes! {
    /// `op`, at offset 5 of the header.
    pub enum Op: u8 {
        Hello = 0x01, "HELLO", "names the lease of the connection";
        HelloAck = 0x02, "HELLO_ACK", "its size and limits, or why not";
        Read = 0x10, "READ", "asks for data";
        ReadResp = 0x11, "READ_RESP", "the data";
        Write = 0x20, "WRITE", "brings data";
        WriteResp = 0x21, "WRITE_RESP", "whether it was written";
        Ping = 0x30, "PING", "asks whether anybody is there";
        Pong = 0x31, "PONG", "somebody is";
        Error = 0x7F, "ERROR", "what the client did wrong, before the server closes";
    }
}

/// The header as it lies on the stream, before each payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    magic: [u8; 4],
    version: u8,
    op: u8,
    flags: U16,
    payload_len: U32,
    request_id: U32,
}

const VERSION: u8 = 1;

impl Header {
    /// Header size in bytes.
    pub const LEN: usize = 16;

    /// Builds the header of a message with `payload_len` bytes of payload.
    pub fn new(kind: Kind, op: Op, payload_len: u32, request_id: u32) -> Self {
        Self {
            magic: *magic(kind),
            version: VERSION,
            op: op as u8,
            flags: 0.into(),
            payload_len: payload_len.into(),
            request_id: request_id.into(),
        }
    }

    /// Reads the header at the front of `bytes`; `None` if they are too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self::read_from_prefix(bytes).ok()?.0)
    }

    /// Whether magic, version and flags are those of `kind`. If not, the connection is closed.
    pub fn is_sound(&self, kind: Kind) -> bool {
        (&self.magic, self.version, self.flags.get()) == (magic(kind), VERSION, 0)
    }

    /// The operation; `None` for undefined op codes.
    pub fn op(&self) -> Option<Op> {
        Op::from_code(self.op)
    }

    /// Bytes of payload after the header.
    pub fn payload_len(&self) -> u32 {
        self.payload_len.get()
    }

    /// Chosen by the client, echoed in the answer; not 0 for reads and writes.
    pub fn request_id(&self) -> u32 {
        self.request_id.get()
    }
}

fn magic(kind: Kind) -> &'static [u8; 4] {
    match kind {
        Kind::Memory => b"FBMT",
        Kind::Block => b"FBBT",
    }
}

/// Start of a READ or WRITE payload: `offset` and `length`, in bytes (FBMT) or blocks (FBBT).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Range {
    offset: U64,
    length: U32,
}

impl Range {
    /// Encoded size in bytes.
    pub const LEN: usize = 12;

    /// Covers `length` bytes or blocks from `offset`.
    pub fn new(offset: u64, length: u32) -> Self {
        Self { offset: offset.into(), length: length.into() }
    }

    /// Reads the range at the front of a payload; `None` if it is too short.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        Some(Self::read_from_prefix(payload).ok()?.0)
    }

    /// First byte or block, counted from the lease's first.
    pub fn offset(&self) -> u64 {
        self.offset.get()
    }

    /// Number of bytes or blocks.
    pub fn length(&self) -> u32 {
        self.length.get()
    }
}

/// Payload of HELLO, which opens a connection to one lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Hello {
    lease_id: U128,
}

impl Hello {
    /// Encoded size in bytes.
    pub const LEN: usize = 16;

    /// Asks for access to `lease_id`.
    pub fn new(lease_id: u128) -> Self {
        Self { lease_id: lease_id.into() }
    }

    /// Reads a whole payload; `None` if its length is wrong.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        Self::read_from_bytes(payload).ok()
    }

    /// Full id of the lease that the client wants.
    pub fn lease_id(&self) -> u128 {
        self.lease_id.get()
    }
}

/// Payload of `HELLO_ACK`; the data of FBMU's and FBBU's too (decision 20).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelloAck {
    /// FBMT's form.
    Memory {
        /// 0, or the [`super::IoStatus`] of a refusal; then the other fields are 0.
        status: u8,
        /// Size of the lease in bytes.
        resource_len: u64,
        /// Longest READ in bytes.
        max_read_len: u32,
        /// Longest WRITE in bytes.
        max_write_len: u32,
    },
    /// FBBT's form.
    Block {
        /// 0, or the [`super::IoStatus`] of a refusal; then the other fields are 0.
        status: u8,
        /// Bytes per block.
        block_size: u32,
        /// Size of the lease in blocks.
        block_count: u64,
        /// Limit on the blocks of one operation.
        max_blocks_per_io: u32,
    },
}

impl HelloAck {
    /// Encoded size in bytes, the same in both forms.
    pub const LEN: usize = 20;

    /// The encoding, with its reserved bytes zero.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        match self {
            Self::Memory { status, resource_len, max_read_len, max_write_len } => {
                bytes[0] = status;
                bytes[4..12].copy_from_slice(&resource_len.to_be_bytes());
                bytes[12..16].copy_from_slice(&max_read_len.to_be_bytes());
                bytes[16..].copy_from_slice(&max_write_len.to_be_bytes());
            }
            Self::Block { status, block_size, block_count, max_blocks_per_io } => {
                bytes[0] = status;
                bytes[4..8].copy_from_slice(&block_size.to_be_bytes());
                bytes[8..16].copy_from_slice(&block_count.to_be_bytes());
                bytes[16..].copy_from_slice(&max_blocks_per_io.to_be_bytes());
            }
        }
        bytes
    }

    /// Reads a whole payload. Reserved bytes are not checked.
    pub fn parse(kind: Kind, payload: &[u8]) -> Option<Self> {
        let payload: &[u8; Self::LEN] = payload.try_into().ok()?;
        let word = |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let status = payload[0];
        Some(match kind {
            Kind::Memory => {
                Self::Memory { status, resource_len: long(4), max_read_len: word(12), max_write_len: word(16) }
            }
            Kind::Block => {
                Self::Block { status, block_size: word(4), block_count: long(8), max_blocks_per_io: word(16) }
            }
        })
    }
}

/// Start of a `READ_RESP` payload, before the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadResp {
    status: u8,
    reserved: [u8; 3],
    length: U32,
}

impl ReadResp {
    /// Encoded size in bytes.
    pub const LEN: usize = 8;

    /// `length` is in bytes or blocks; it must be 0 unless `status` is 0.
    pub fn new(status: u8, length: u32) -> Self {
        Self { status, reserved: [0; 3], length: length.into() }
    }

    /// Reads the front of a payload. Reserved bytes are not checked.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        Some(Self::read_from_prefix(payload).ok()?.0)
    }

    /// A [`super::IoStatus`] code.
    pub fn status(&self) -> u8 {
        self.status
    }

    /// Bytes or blocks of data that follow; 0 after an error.
    pub fn length(&self) -> u32 {
        self.length.get()
    }
}

/// Payload of `WRITE_RESP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteResp {
    status: u8,
    reserved: [u8; 3],
}

impl WriteResp {
    /// Encoded size in bytes.
    pub const LEN: usize = 4;

    /// Answers a WRITE with an [`super::IoStatus`] code.
    pub fn new(status: u8) -> Self {
        Self { status, reserved: [0; 3] }
    }

    /// Reads a whole payload. Reserved bytes are not checked.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        Self::read_from_bytes(payload).ok()
    }

    /// A [`super::IoStatus`] code.
    pub fn status(&self) -> u8 {
        self.status
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_laid_out_as_documented() {
        let header = Header::new(Kind::Memory, Op::Read, 12, 7);
        assert_eq!(header.as_bytes(), b"FBMT\x01\x10\0\0\0\0\0\x0C\0\0\0\x07");
        assert_eq!(Range::new(0x10, 0x20).as_bytes(), b"\0\0\0\0\0\0\0\x10\0\0\0\x20");
        assert_eq!(Hello::new(1).as_bytes(), [&[0; 15][..], &[1]].concat());
        assert_eq!(ReadResp::new(4, 0).as_bytes(), b"\x04\0\0\0\0\0\0\0");
        assert_eq!(WriteResp::new(3).as_bytes(), b"\x03\0\0\0");
        let memory = HelloAck::Memory { status: 0, resource_len: 0x100, max_read_len: 2, max_write_len: 3 };
        assert_eq!(memory.to_bytes(), *b"\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\x02\0\0\0\x03");
        let block = HelloAck::Block { status: 1, block_size: 512, block_count: 9, max_blocks_per_io: 16 };
        assert_eq!(block.to_bytes(), *b"\x01\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x09\0\0\0\x10");
    }

    #[test]
    fn a_header_is_sound_for_one_protocol_only() {
        let header = Header::new(Kind::Block, Op::Ping, 0, 0);
        assert!(header.is_sound(Kind::Block) && !header.is_sound(Kind::Memory));
        for at in [0, 4, 6, 7] {
            let mut bytes = [0; Header::LEN];
            bytes.copy_from_slice(header.as_bytes());
            bytes[at] ^= 0x40;
            assert!(!Header::parse(&bytes).unwrap().is_sound(Kind::Block), "byte {at}");
        }
        assert_eq!(Header::parse(&header.as_bytes()[..15]), None);
    }

    proptest! {
        #[test]
        fn acknowledgements_round_trip(bytes: [u8; 20]) {
            let mut bytes = bytes;
            bytes[1..4].fill(0);
            for kind in [Kind::Memory, Kind::Block] {
                prop_assert_eq!(HelloAck::parse(kind, &bytes).unwrap().to_bytes(), bytes);
                prop_assert_eq!(HelloAck::parse(kind, &bytes[1..]), None);
            }
        }

        #[test]
        fn ranges_round_trip(offset: u64, length: u32) {
            let range = Range::parse(Range::new(offset, length).as_bytes()).unwrap();
            prop_assert_eq!((range.offset(), range.length()), (offset, length));
        }

        #[test]
        fn ops_are_those_of_the_document(byte: u8) {
            let mut bytes = *b"FBMT\x01\x10\0\0\0\0\0\x0C\0\0\0\x07";
            bytes[5] = byte;
            let op = Header::parse(&bytes).unwrap().op();
            let known = [0x01, 0x02, 0x10, 0x11, 0x20, 0x21, 0x30, 0x31, 0x7F].contains(&byte);
            prop_assert_eq!(op.map(|op| op as u8), known.then_some(byte));
        }
    }
}
