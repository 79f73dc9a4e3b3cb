//! Messages that read and write leased bytes: two-sided messages, the UDP shims FBMU and FBBU, the streams FBMT and
//! FBBT, and page operations. Everything is big-endian.

pub mod page;
pub mod shim;
pub mod stream;
pub mod two_sided;

use super::{
    codec::{FabricError, Reader, Wire},
    macros::codes,
};

/// Block size of FBBU and FBBT in bytes (profile, "FBMU / FBBU").
pub const BLOCK: u64 = 512;

codes! {
    /// `status` of FBMU, FBBU, FBMT and FBBT answers ("TCP memory protocol (FBMT)", status codes).
    pub enum IoStatus: u8 {
        Ok = 0x00, "OK", "done";
        InvalidLease = 0x01, "INVALID_LEASE", "there is no such lease: never granted, or freed";
        Expired = 0x02, "EXPIRED", "the lease has expired";
        Fenced = 0x03, "FENCED", "the lease was revoked, is of another generation, or its token did not allow this";
        OutOfRange = 0x04, "OUT_OF_RANGE", "the range leaves the lease, or its token's RANGE";
        BadLength = 0x05, "BAD_LENGTH", "the length is zero, above the limit, or not that of the message";
        Busy = 0x06, "BUSY", "too much is under way; try again";
        Internal = 0x07, "INTERNAL", "the storage failed";
    }
}
