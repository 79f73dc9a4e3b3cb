//! Whole packets: the headers of each operation, and where the payload lies.

use core::{fmt, ops::Range};

use zerocopy::{FromBytes, IntoBytes, network_endian::U32};

use super::{
    headers::{Bth, Reth},
    icrc::Icrc,
    numbers::{PKey, Psn, Qpn},
};

/// The operations of unreliable connections that this codec knows (IBTA 9.2.1, table 38).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// UC SEND Only.
    SendOnly = 0x24,
    /// UC RDMA WRITE First.
    WriteFirst = 0x26,
    /// UC RDMA WRITE Middle.
    WriteMiddle = 0x27,
    /// UC RDMA WRITE Last.
    WriteLast = 0x28,
    /// UC RDMA WRITE Last with Immediate.
    WriteLastImmediate = 0x29,
    /// UC RDMA WRITE Only.
    WriteOnly = 0x2a,
    /// UC RDMA WRITE Only with Immediate.
    WriteOnlyImmediate = 0x2b,
}

impl Opcode {
    /// Every operation, by rising number.
    pub const ALL: [Self; 7] = [
        Self::SendOnly,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImmediate,
        Self::WriteOnly,
        Self::WriteOnlyImmediate,
    ];

    /// Decodes the opcode byte of a [`Bth`].
    #[inline]
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0x24 => Self::SendOnly,
            0x26 => Self::WriteFirst,
            0x27 => Self::WriteMiddle,
            0x28 => Self::WriteLast,
            0x29 => Self::WriteLastImmediate,
            0x2a => Self::WriteOnly,
            0x2b => Self::WriteOnlyImmediate,
            _ => return None,
        })
    }

    /// Whether it is the first packet of a message.
    #[inline]
    pub const fn starts(self) -> bool {
        matches!(self, Self::SendOnly | Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImmediate)
    }

    /// Whether it is the last packet of a message.
    #[inline]
    pub const fn ends(self) -> bool {
        !matches!(self, Self::WriteFirst | Self::WriteMiddle)
    }

    /// Whether a [`Reth`] follows the base header.
    #[inline]
    pub const fn has_reth(self) -> bool {
        matches!(self, Self::WriteFirst | Self::WriteOnly | Self::WriteOnlyImmediate)
    }

    /// Whether four bytes of immediate precede the payload.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::WriteLastImmediate | Self::WriteOnlyImmediate)
    }

    /// Bytes of all headers before the payload.
    #[inline]
    pub const fn headers_len(self) -> usize {
        Bth::LEN + if self.has_reth() { Reth::LEN } else { 0 } + if self.has_immediate() { 4 } else { 0 }
    }
}

/// Bytes of the longest combination of headers.
pub const HEADERS_MAX: usize = Bth::LEN + Reth::LEN + 4;

/// Why a datagram is not a packet of an unreliable connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than its headers, padding and ICRC.
    Truncated,
    /// A header version other than 0.
    Version,
    /// An operation of another transport, or one that this codec does not know.
    Opcode,
    /// The padding does not make the payload a multiple of four.
    Padding,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::Version => "header version other than 0",
            Self::Opcode => "not an operation of an unreliable connection",
            Self::Padding => "not padded to a multiple of four bytes",
        })
    }
}

impl core::error::Error for Malformed {}

/// The headers of a received packet, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The operation, and the packet's place in its message.
    pub opcode: Opcode,
    /// Partition key of the sender.
    pub p_key: PKey,
    /// Number of the queue pair that it is for.
    pub destination: Qpn,
    /// Its place in the sender's sequence.
    pub psn: Psn,
    /// Where it writes; `None` for operations without this header.
    pub reth: Option<Reth>,
    /// The immediate; `None` for operations without one.
    pub immediate: Option<u32>,
    /// Byte range of the payload in the datagram, without padding.
    pub payload: Range<usize>,
}

impl Packet {
    /// Reads a datagram with its ICRC. The ICRC is not checked here: see [`super::icrc`].
    #[inline]
    pub fn parse(datagram: &[u8]) -> Result<Self, Malformed> {
        let (bth, rest) = Bth::ref_from_prefix(datagram).map_err(|_| Malformed::Truncated)?;
        if bth.version() != 0 {
            return Err(Malformed::Version);
        }
        let opcode = Opcode::of(bth.opcode()).ok_or(Malformed::Opcode)?;
        let (reth, rest) = if opcode.has_reth() {
            let (reth, rest) = Reth::read_from_prefix(rest).map_err(|_| Malformed::Truncated)?;
            (Some(reth), rest)
        } else {
            (None, rest)
        };
        let (immediate, rest) = if opcode.has_immediate() {
            let (immediate, rest) = U32::read_from_prefix(rest).map_err(|_| Malformed::Truncated)?;
            (Some(immediate.get()), rest)
        } else {
            (None, rest)
        };
        let padded = rest.len().checked_sub(Icrc::LEN).ok_or(Malformed::Truncated)?;
        if padded % 4 != 0 {
            return Err(Malformed::Padding);
        }
        let len = padded.checked_sub(bth.pad()).ok_or(Malformed::Padding)?;
        let start = datagram.len() - rest.len();
        Ok(Self {
            opcode,
            p_key: bth.p_key(),
            destination: bth.destination(),
            psn: bth.psn(),
            reth,
            immediate,
            payload: start..start + len,
        })
    }
}

/// The headers of a packet to send, without its ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Partition key, the same on both sides.
    pub p_key: PKey,
    /// Number of the peer's queue pair.
    pub destination: Qpn,
    /// Its place in our sequence.
    pub psn: Psn,
    /// Where to write, and the immediate. `None` makes it a SEND Only.
    pub write: Option<(Reth, u32)>,
}

impl Head {
    /// The operation that `write` implies.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        if self.write.is_some() { Opcode::WriteOnlyImmediate } else { Opcode::SendOnly }
    }

    /// Writes the headers to the front of `datagram`, whose payload of `len` bytes follows them, and zero padding
    /// behind it. Returns the datagram's length with its ICRC, which the caller writes to the last four bytes.
    ///
    /// # Panics
    /// If `datagram` is shorter than the result.
    #[inline]
    pub fn write(&self, datagram: &mut [u8], len: usize) -> usize {
        let opcode = self.opcode();
        let pad = len.wrapping_neg() & 3;
        let bth = Bth::new(opcode as u8, pad, self.p_key, self.destination, self.psn);
        datagram[..Bth::LEN].copy_from_slice(bth.as_bytes());
        if let Some((reth, immediate)) = self.write {
            datagram[Bth::LEN..Bth::LEN + Reth::LEN].copy_from_slice(reth.as_bytes());
            datagram[Bth::LEN + Reth::LEN..HEADERS_MAX].copy_from_slice(&immediate.to_be_bytes());
        }
        let end = opcode.headers_len() + len;
        datagram[end..end + pad].fill(0);
        end + pad + Icrc::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::P_KEY_DEFAULT;
    use proptest::prelude::*;

    fn headers(opcode: Opcode, pad: usize, reth: Reth, immediate: u32) -> Vec<u8> {
        let mut bytes = Bth::new(opcode as u8, pad, P_KEY_DEFAULT, Qpn::new(0x0012_3456), Psn::new(0x00ff_fffe))
            .as_bytes()
            .to_vec();
        if opcode.has_reth() {
            bytes.extend(reth.as_bytes());
        }
        if opcode.has_immediate() {
            bytes.extend(immediate.to_be_bytes());
        }
        bytes
    }

    proptest! {
        #[test]
        fn packets_round_trip(
            which in 0..Opcode::ALL.len(),
            address: u64,
            rkey: u32,
            immediate: u32,
            payload in proptest::collection::vec(any::<u8>(), 0..70),
        ) {
            let opcode = Opcode::ALL[which];
            let pad = payload.len().wrapping_neg() & 3;
            let reth = Reth::new(address, rkey, payload.len() as u32);
            let datagram = [headers(opcode, pad, reth, immediate), payload.clone(), vec![0; pad + Icrc::LEN]].concat();
            let packet = Packet::parse(&datagram).unwrap();
            prop_assert_eq!(packet.opcode, opcode);
            prop_assert_eq!((packet.p_key, packet.destination), (P_KEY_DEFAULT, Qpn::new(0x0012_3456)));
            prop_assert_eq!(packet.psn, Psn::new(0x00ff_fffe));
            prop_assert_eq!(packet.reth, opcode.has_reth().then_some(reth));
            prop_assert_eq!(packet.immediate, opcode.has_immediate().then_some(immediate));
            prop_assert_eq!(&datagram[packet.payload], &payload[..]);
            for cut in 0..opcode.headers_len() + Icrc::LEN {
                prop_assert_eq!(Packet::parse(&datagram[..cut]), Err(Malformed::Truncated));
            }
            prop_assert_eq!(Packet::parse(&[&datagram[..], &[0]].concat()), Err(Malformed::Padding));
        }

        #[test]
        fn what_is_written_is_read(
            write in proptest::option::of((any::<u64>(), any::<u32>(), any::<u32>())),
            qpn: u32,
            psn: u32,
            payload in proptest::collection::vec(any::<u8>(), 0..70),
        ) {
            let write = write.map(|(address, rkey, imm)| (Reth::new(address, rkey, payload.len() as u32), imm));
            let head = Head { p_key: PKey(0x8001), destination: Qpn::new(qpn), psn: Psn::new(psn), write };
            let at = head.opcode().headers_len();
            let mut datagram = vec![0xee; at + payload.len() + 3 + Icrc::LEN];
            datagram[at..at + payload.len()].copy_from_slice(&payload);
            let len = head.write(&mut datagram, payload.len());
            let packet = Packet::parse(&datagram[..len]).unwrap();
            prop_assert_eq!(packet.opcode, head.opcode());
            prop_assert_eq!((packet.p_key, packet.destination, packet.psn), (head.p_key, head.destination, head.psn));
            prop_assert_eq!(packet.reth.zip(packet.immediate), head.write);
            prop_assert_eq!(&datagram[packet.payload.clone()], &payload[..]);
            prop_assert!(datagram[packet.payload.end..len - Icrc::LEN].iter().all(|&pad| pad == 0));
        }

        #[test]
        fn no_bytes_are_worse_than_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(packet) = Packet::parse(&bytes) {
                prop_assert!(packet.payload.end + Icrc::LEN <= bytes.len());
            }
        }
    }

    #[test]
    fn other_transports_and_versions_are_refused() {
        let mut datagram = [headers(Opcode::SendOnly, 0, Reth::new(0, 0, 0), 0), vec![0; 4]].concat();
        // RC SEND Only, UD SEND Only, UC SEND First, congestion notification.
        for opcode in [0x04, 0x64, 0x20, 0x81] {
            datagram[0] = opcode;
            assert_eq!(Packet::parse(&datagram), Err(Malformed::Opcode));
        }
        datagram[0] = Opcode::SendOnly as u8;
        datagram[1] |= 1;
        assert_eq!(Packet::parse(&datagram), Err(Malformed::Version));
        datagram[1] = 0x30;
        assert_eq!(Packet::parse(&datagram), Err(Malformed::Padding), "three bytes of padding and none of payload");
    }

    #[test]
    fn opcodes_know_themselves() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::of(opcode as u8), Some(opcode));
        }
        assert_eq!((0..=u8::MAX).filter_map(Opcode::of).count(), Opcode::ALL.len());
        assert_eq!(Opcode::WriteOnlyImmediate.headers_len(), HEADERS_MAX);
    }
}
