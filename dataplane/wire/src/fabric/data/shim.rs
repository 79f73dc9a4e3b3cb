//! FBMU and FBBU: one datagram each way, a 56-byte header and data (profile, "FBMU / FBBU").
//!
//! The checksum is CRC-32C over the header, with the checksum field zero, and the data. [`Header`] only carries it: the
//! code that holds the data computes it.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U16, U32, U64, U128},
};

use super::super::{
    codec::{FabricError, Reader, Wire},
    macros::codes,
};

/// The protocol, which the magic tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `FBMU`: offsets and lengths count bytes.
    Memory,
    /// `FBBU`: offsets and lengths count blocks of [`super::BLOCK`] bytes.
    Block,
}

codes! {
    /// `op`, at offset 5 of the header.
    pub enum Op: u8 {
        Hello = 0x01, "HELLO", "asks for the lease's size and limits";
        HelloAck = 0x02, "HELLO_ACK", "their answer";
        Read = 0x10, "READ", "asks for data";
        ReadResp = 0x11, "READ_RESP", "the data";
        Write = 0x20, "WRITE", "brings data";
        WriteResp = 0x21, "WRITE_RESP", "whether it was written";
        Ping = 0x30, "PING", "asks whether anybody is there";
        Pong = 0x31, "PONG", "somebody is";
    }
}

/// Limit on the data of one datagram, in bytes.
pub const MAX_DATA: usize = 8192;

/// The header as it lies on the wire, before the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    magic: [u8; 4],
    version: u8,
    op: u8,
    flags: U16,
    request_id: U64,
    lease_id: U128,
    generation: U64,
    offset: U64,
    length: U32,
    crc: U32,
}

/// The header's fields, decoded and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    /// From the magic.
    pub kind: Kind,
    /// Request or response, and its operation.
    pub op: Op,
    /// [`super::IoStatus`] code in a response, 0 in a request; the low byte of the flags.
    pub status: u8,
    /// Chosen by the client, echoed in the response.
    pub request_id: u64,
    /// Full id of the lease.
    pub lease_id: u128,
    /// The lease's generation as the client knows it, echoed.
    pub generation: u64,
    /// First byte or block, counted from the lease's first; echoed.
    pub offset: u64,
    /// Bytes or blocks to read or write; in a response the length of its data.
    pub length: u32,
}

impl Header {
    /// Header size in bytes.
    pub const LEN: usize = 56;

    /// Builds a header with the checksum still zero, ready to be summed.
    pub fn new(fields: &Fields) -> Self {
        Self {
            magic: *match fields.kind {
                Kind::Memory => b"FBMU",
                Kind::Block => b"FBBU",
            },
            version: 0,
            op: fields.op as u8,
            flags: u16::from(fields.status).into(),
            request_id: fields.request_id.into(),
            lease_id: fields.lease_id.into(),
            generation: fields.generation.into(),
            offset: fields.offset.into(),
            length: fields.length.into(),
            crc: 0.into(),
        }
    }

    /// Reads the header at the front of `bytes`; `None` if they are too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self::read_from_prefix(bytes).ok()?.0)
    }

    /// Decodes the fields; `None` for another magic or version, flag bits beyond the status, and unknown ops.
    pub fn fields(&self) -> Option<Fields> {
        let kind = match &self.magic {
            b"FBMU" => Kind::Memory,
            b"FBBU" => Kind::Block,
            _ => return None,
        };
        if self.version != 0 {
            return None;
        }
        Some(Fields {
            kind,
            op: Op::from_code(self.op)?,
            status: u8::try_from(self.flags.get()).ok()?,
            request_id: self.request_id.get(),
            lease_id: self.lease_id.get(),
            generation: self.generation.get(),
            offset: self.offset.get(),
            length: self.length.get(),
        })
    }

    /// The checksum field, unchecked.
    pub fn crc(&self) -> u32 {
        self.crc.get()
    }

    /// The same header with its checksum set to `crc`.
    #[must_use]
    pub fn with_crc(self, crc: u32) -> Self {
        Self { crc: crc.into(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_header_is_laid_out_as_documented() {
        let fields = Fields {
            kind: Kind::Block,
            op: Op::WriteResp,
            status: 5,
            request_id: 0x0102_0304_0506_0708,
            lease_id: 0x1112_1314_1516_1718_191A_1B1C_1D1E_1F20,
            generation: 0x2122_2324_2526_2728,
            offset: 0x3132_3334_3536_3738,
            length: 0x4142_4344,
        };
        let header = Header::new(&fields).with_crc(0x5152_5354);
        let mut expected = b"FBBU\0\x21\0\x05".to_vec();
        expected.extend((1..=8).chain(0x11..=0x20).chain(0x21..=0x28).chain(0x31..=0x38_u8));
        expected.extend([0x41, 0x42, 0x43, 0x44, 0x51, 0x52, 0x53, 0x54]);
        assert_eq!(header.as_bytes(), expected);
        assert_eq!(Header::parse(&expected).unwrap().fields(), Some(fields));
        assert_eq!(Header::parse(&expected).unwrap().crc(), 0x5152_5354);
        assert_eq!(Header::parse(&expected[..55]), None);
        for (at, byte) in [(0, b'X'), (4, 1), (5, 0x12), (6, 1)] {
            let mut bad = expected.clone();
            bad[at] = byte;
            assert_eq!(Header::parse(&bad).unwrap().fields(), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn what_parses_is_written_the_same(bytes: [u8; 56]) {
            let mut bytes = bytes;
            bytes[..8].copy_from_slice(b"FBMU\0\x10\0\0");
            let header = Header::parse(&bytes).unwrap();
            let again = Header::new(&header.fields().unwrap()).with_crc(header.crc());
            prop_assert_eq!(again.as_bytes(), &bytes[..]);
        }
    }
}
