//! HIP Remote: HIP calls over a TCP connection. Everything is little-endian and packed.
//!
//! Names are those of the protocol page of ROCm/TheRock (February 2026); docs/hip-remote.md has all that it leaves open.
//!
//! ```text
//! header 24 | structure of the op | descriptors, names, inline data
//! ```

pub mod error;
pub mod launch;
mod op;
pub mod request;
pub mod response;

use zerocopy::little_endian::{U16, U32, U64};

pub use self::{
    error::Code,
    op::{Answer, LAUNCH_MAX, NAME_MAX, Op, Prefix, name as op_name},
};
use crate::nvme::macros::layout;

/// `"RPIH"` on the wire.
pub const MAGIC: u32 = 0x4849_5052;

/// Version 1.0. Only the upper byte, the major version, is looked at.
pub const VERSION: u16 = 0x0100;

/// Bits of [`Header::flags`].
pub mod flags {
    /// The message is a response.
    pub const RESPONSE: u32 = 1;
    /// Its error code is not 0.
    pub const ERROR: u32 = 2;
    /// Data stands behind the structure.
    pub const HAS_INLINE_DATA: u32 = 4;
    /// The request is not answered.
    pub const NO_REPLY: u32 = 8;
}

layout! {
    /// What every message begins with ("Message Format").
    pub struct Header: 24 {
        0 magic: U32,
        4 version: U16,
        /// The operation, also in its response.
        6 pub op_code: U16,
        /// The client's, echoed.
        8 pub request_id: U32,
        /// Bytes that follow.
        12 pub payload_length: U64,
        /// See [`flags`].
        20 pub flags: U32,
    }
}

/// Why a header ends its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadHeader {
    /// Not [`MAGIC`].
    Magic,
    /// Another major version than 1.
    Version,
    /// A payload that is longer than is taken.
    Length,
}

impl Header {
    /// A request.
    pub fn request(op: Op, request_id: u32, payload_length: u64, flags: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION.into(),
            op_code: (op as u16).into(),
            request_id: request_id.into(),
            payload_length: payload_length.into(),
            flags: flags.into(),
        }
    }

    /// The header of the response to this request.
    #[must_use]
    pub fn response(&self, payload_length: u64, flags: u32) -> Self {
        Self {
            version: VERSION.into(),
            payload_length: payload_length.into(),
            flags: (flags | flags::RESPONSE).into(),
            ..*self
        }
    }

    /// Checks what a header must be, in the order of the fields.
    ///
    /// # Errors
    /// The first field that is wrong; `longest` is the longest payload that is taken.
    pub fn check(&self, longest: u64) -> Result<(), BadHeader> {
        if self.magic != MAGIC {
            Err(BadHeader::Magic)
        } else if self.version.get() >> 8 != VERSION >> 8 {
            Err(BadHeader::Version)
        } else if self.payload_length > longest {
            Err(BadHeader::Length)
        } else {
            Ok(())
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags.get() & flag != 0
    }
}

/// A name in a field of fixed length: what precedes the first NUL. `None` without a NUL, or where nothing precedes it.
pub fn name(field: &[u8]) -> Option<&[u8]> {
    let end = field.iter().position(|byte| *byte == 0)?;
    (end > 0).then(|| &field[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn a_header_is_laid_out_as_documented() {
        let header = Header::request(Op::Memcpy, 0x0102_0304, 0x1122_3344_5566_7788, flags::NO_REPLY);
        let bytes = [
            0x52, 0x50, 0x49, 0x48, 0, 1, 0x10, 2, 4, 3, 2, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 8, 0, 0,
            0,
        ];
        assert_eq!(header.as_bytes(), bytes);
        let answer = header.response(4, flags::ERROR);
        assert_eq!(answer.as_bytes()[12..], [4, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(answer.as_bytes()[..12], bytes[..12]);
    }

    #[test]
    fn a_header_is_refused_for_its_first_wrong_field() {
        let good = Header::request(Op::Ping, 1, 10, 0);
        assert_eq!(good.check(10), Ok(()));
        assert_eq!(good.check(9), Err(BadHeader::Length));
        let minor = Header { version: 0x01FF.into(), ..good };
        assert_eq!(minor.check(10), Ok(()), "the minor version is not looked at");
        let version = Header { version: 0x0200.into(), ..good };
        assert_eq!(version.check(9), Err(BadHeader::Version));
        assert_eq!(Header { magic: 1.into(), ..version }.check(9), Err(BadHeader::Magic));
    }

    #[test]
    fn a_name_ends_with_a_nul() {
        assert_eq!(name(b"vadd\0\0"), Some(&b"vadd"[..]));
        assert_eq!((name(b"vadd"), name(b"\0vadd"), name(b"")), (None, None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_too_few(bytes: Vec<u8>, longest: u64) {
            match Header::parse(&bytes) {
                Some(header) => {
                    prop_assert_eq!(header.as_bytes(), &bytes[..Header::LEN]);
                    prop_assert_eq!(header.check(longest).is_ok(), header.magic == MAGIC
                        && header.version.get() >> 8 == 1 && header.payload_length <= longest);
                }
                None => prop_assert!(bytes.len() < Header::LEN),
            }
        }
    }
}
