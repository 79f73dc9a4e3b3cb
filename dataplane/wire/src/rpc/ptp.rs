//! The two encodings of `ptp_timestamp` (section "PTP Timestamp Semantics"; host API, "Transports").

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// How a port's senders encode their PTP time. The port echoes it unchanged either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PtpEncoding {
    /// Nanoseconds, the messaging document's convention.
    #[default]
    Ns,
    /// Seconds in the upper 32 bits, nanoseconds in the lower, as the FPGA's sample player writes it.
    SecNsec,
}

impl PtpEncoding {
    /// Nanoseconds since the PTP epoch. `None` for 0 (unused) and if the nanosecond part is a second or more.
    #[inline]
    pub const fn to_nanos(self, stamp: u64) -> Option<u64> {
        if stamp == 0 {
            return None;
        }
        match self {
            Self::Ns => Some(stamp),
            Self::SecNsec => {
                let nanos = stamp & 0xFFFF_FFFF;
                if nanos < NANOS_PER_SECOND { Some((stamp >> 32) * NANOS_PER_SECOND + nanos) } else { None }
            }
        }
    }

    /// Encodes a time in nanoseconds since the PTP epoch. [`PtpEncoding::SecNsec`] keeps 32 bits of the seconds.
    #[inline]
    pub const fn from_nanos(self, nanos: u64) -> u64 {
        match self {
            Self::Ns => nanos,
            Self::SecNsec => ((nanos / NANOS_PER_SECOND) << 32) | (nanos % NANOS_PER_SECOND),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PtpEncoding::{Ns, SecNsec};

    #[test]
    fn both_encodings_convert() {
        let nanos = 1_700_000_000_999_999_999;
        assert_eq!(SecNsec.from_nanos(nanos), (1_700_000_000 << 32) + 999_999_999);
        assert_eq!(SecNsec.to_nanos(SecNsec.from_nanos(nanos)), Some(nanos));
        assert_eq!(Ns.to_nanos(Ns.from_nanos(nanos)), Some(nanos));
        assert_eq!(SecNsec.to_nanos((u64::from(u32::MAX) << 32) + 999_999_999), Some(4_294_967_295_999_999_999));
    }

    #[test]
    fn unused_and_malformed_stamps_are_no_time() {
        assert_eq!(Ns.to_nanos(0), None);
        assert_eq!(SecNsec.to_nanos(0), None);
        assert_eq!(SecNsec.to_nanos((1 << 32) + 1_000_000_000), None);
    }
}
