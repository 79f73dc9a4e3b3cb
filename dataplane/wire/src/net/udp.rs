//! UDP (RFC 768; over IPv6, RFC 8200 section 8.1).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, network_endian::U16};

use super::Malformed;

/// The UDP header, as it lies on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    source_port: U16,
    destination_port: U16,
    len: U16,
    checksum: U16,
}

impl UdpHeader {
    /// Header size in bytes.
    pub const LEN: usize = 8;

    /// Builds a header for `payload_len` bytes; its checksum is still zero.
    #[inline]
    pub fn new(source_port: u16, destination_port: u16, payload_len: usize) -> Self {
        Self {
            source_port: source_port.into(),
            destination_port: destination_port.into(),
            len: ((Self::LEN + payload_len) as u16).into(),
            checksum: 0.into(),
        }
    }

    /// Splits a segment into header and payload. Bytes beyond the length field are cut off.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(&Self, &[u8]), Malformed> {
        let (header, _) = Self::ref_from_prefix(segment).map_err(|_| Malformed::Truncated)?;
        let len = usize::from(header.len.get());
        if len < Self::LEN {
            return Err(Malformed::Length);
        }
        let segment = segment.get(..len).ok_or(Malformed::Truncated)?;
        Ok((header, &segment[Self::LEN..]))
    }

    /// The sender's port; 0 if it wants no answer.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.source_port.get()
    }

    /// The port that the datagram is sent to.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.destination_port.get()
    }

    /// Length of header and payload in bytes.
    #[inline]
    pub fn len(&self) -> u16 {
        self.len.get()
    }

    /// Whether there is no payload.
    #[inline]
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) == Self::LEN
    }

    /// The checksum field; 0 means that the sender computed none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// Stores a checksum. A computed 0 must be sent as 0xffff.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        self.checksum = checksum.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn segments_round_trip(s: u16, d: u16, payload in proptest::collection::vec(any::<u8>(), 0..100), pad in 0usize..9) {
            let segment = [UdpHeader::new(s, d, payload.len()).as_bytes(), &payload, &vec![0; pad]].concat();
            let (h, body) = UdpHeader::parse(&segment).unwrap();
            prop_assert_eq!((h.source_port(), h.destination_port(), body), (s, d, &payload[..]));
            for cut in 0..segment.len() - pad {
                prop_assert_eq!(UdpHeader::parse(&segment[..cut]), Err(Malformed::Truncated));
            }
            let mut short = segment;
            short[4..6].copy_from_slice(&7u16.to_be_bytes());
            prop_assert_eq!(UdpHeader::parse(&short), Err(Malformed::Length));
        }
    }
}
