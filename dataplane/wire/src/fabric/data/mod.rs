//! Messages that read and write leased bytes: two-sided messages, the UDP shims FBMU and FBBU, the streams FBMT and
//! FBBT, and page operations. Everything is big-endian.

pub mod page;
pub mod shim;
pub mod stream;
pub mod two_sided;

/// Bytes of a block of FBBU and FBBT (profile, "FBMU / FBBU").
pub const BLOCK: u64 = 512;

/// The outcome of an FBMU, FBBU, FBMT or FBBT operation ("TCP memory protocol (FBMT)", status codes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum IoStatus {
    /// Done.
    Ok = 0x00,
    /// No such lease: never granted, or freed.
    InvalidLease = 0x01,
    /// The lease's time is over.
    Expired = 0x02,
    /// Revoked, of another generation, or the token that allocated it lacked the right.
    Fenced = 0x03,
    /// The range leaves the lease.
    OutOfRange = 0x04,
    /// The length is zero, above the limit, or not that of the message.
    BadLength = 0x05,
    /// Too much is under way; try again.
    Busy = 0x06,
    /// The storage failed.
    Internal = 0x07,
}

impl IoStatus {
    const ALL: [Self; 8] = [
        Self::Ok,
        Self::InvalidLease,
        Self::Expired,
        Self::Fenced,
        Self::OutOfRange,
        Self::BadLength,
        Self::Busy,
        Self::Internal,
    ];

    /// The status of a byte; `None` for bytes nobody defined.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Its name in the specification.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::InvalidLease => "INVALID_LEASE",
            Self::Expired => "EXPIRED",
            Self::Fenced => "FENCED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::BadLength => "BAD_LENGTH",
            Self::Busy => "BUSY",
            Self::Internal => "INTERNAL",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_published_numbers() {
        for (byte, status) in IoStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, byte);
            assert_eq!(IoStatus::from_byte(byte as u8), Some(status));
        }
        assert_eq!(IoStatus::from_byte(8), None);
        assert_eq!(IoStatus::Fenced as u8, 3);
    }
}
