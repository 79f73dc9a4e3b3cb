//! What stands around data: headers, digests, pads.

use zerocopy::IntoBytes;

use super::{
    super::command::{Cqe, Sqe},
    Common, DIGEST_LEN, Kind, flags,
};

/// The most bytes before a PDU's data: a command's header, its digest and the pad up to a multiple of 72.
pub const HEAD_MAX: usize = 144;

/// How one side sends its PDUs: with which digests, and with data aligned to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Framing {
    /// Whether a digest follows each header.
    pub header_digest: bool,
    /// Whether a digest follows all data.
    pub data_digest: bool,
    /// HPDA or CPDA, up to 31.
    alignment: u8,
}

impl Framing {
    /// Digests, and `alignment` as HPDA and CPDA have it, of which the low five bits count.
    pub const fn new(header_digest: bool, data_digest: bool, alignment: u8) -> Self {
        Self { header_digest, data_digest, alignment: alignment & 31 }
    }

    /// What data is aligned to, in bytes from the PDU's first.
    #[inline]
    pub const fn alignment(self) -> usize {
        (self.alignment as usize + 1) * 4
    }

    /// Bytes of a header of `kind` with its digest.
    #[inline]
    pub const fn header_len(self, kind: Kind) -> usize {
        let digest =
            self.header_digest && !matches!(kind, Kind::IcReq | Kind::IcResp | Kind::H2cTermReq | Kind::C2hTermReq);
        kind.header_len() + if digest { DIGEST_LEN } else { 0 }
    }

    /// Bytes before the data of a PDU of `kind` that has data.
    #[inline]
    pub const fn data_at(self, kind: Kind) -> usize {
        self.header_len(kind).next_multiple_of(self.alignment())
    }

    /// Writes what precedes the data of `CapsuleCmd` to the front of `to`.
    ///
    /// This and the others return how many bytes they wrote, of which none is more than [`HEAD_MAX`]; `None` where `to`
    /// is too short or the PDU too long. `data_len` bytes of data follow, and their digest, which is the caller's to write.
    pub fn command(self, to: &mut [u8], sqe: &Sqe, data_len: u32) -> Option<usize> {
        self.head(to, Kind::CapsuleCmd, 0, sqe.as_bytes(), data_len)
    }

    /// Writes `CapsuleResp`.
    #[inline]
    pub fn response(self, to: &mut [u8], cqe: &Cqe) -> Option<usize> {
        self.head(to, Kind::CapsuleResp, 0, cqe.as_bytes(), 0)
    }

    /// Writes what precedes the data of `H2CData`. `offset` is from the first byte of the command's data, and `last` says
    /// that the R2T has all its data.
    pub fn h2c_data(
        self,
        to: &mut [u8],
        cccid: u16,
        ttag: u16,
        offset: u32,
        data_len: u32,
        last: bool,
    ) -> Option<usize> {
        let flags = if last { flags::LAST } else { 0 };
        self.head(to, Kind::H2cData, flags, &transfer(cccid, ttag, offset, data_len), data_len)
    }

    /// Writes what precedes the data of `C2HData`, with [`flags::LAST`], that and [`flags::SUCCESS`], or no flag.
    #[inline]
    pub fn c2h_data(self, to: &mut [u8], cccid: u16, offset: u32, data_len: u32, flags: u8) -> Option<usize> {
        self.head(to, Kind::C2hData, flags, &transfer(cccid, 0, offset, data_len), data_len)
    }

    /// Writes an R2T for `len` bytes from `offset` of the command's data.
    #[inline]
    pub fn r2t(self, to: &mut [u8], cccid: u16, ttag: u16, offset: u32, len: u32) -> Option<usize> {
        self.head(to, Kind::R2t, 0, &transfer(cccid, ttag, offset, len), 0)
    }

    #[inline]
    fn head(self, to: &mut [u8], kind: Kind, flags: u8, body: &[u8], data_len: u32) -> Option<usize> {
        let (hlen, header_len) = (kind.header_len(), self.header_len(kind));
        let (mut flags, mut pdo, mut plen) = (flags, 0, header_len as u32);
        if self.header_digest {
            flags |= flags::HEADER_DIGEST;
        }
        if data_len > 0 {
            pdo = self.data_at(kind);
            plen = (pdo as u32).checked_add(data_len)?;
            if self.data_digest {
                flags |= flags::DATA_DIGEST;
                plen = plen.checked_add(DIGEST_LEN as u32)?;
            }
        }
        let to = to.get_mut(..header_len.max(pdo))?;
        let common = Common { kind: kind as u8, flags, hlen: hlen as u8, pdo: pdo as u8, plen: plen.into() };
        to[..Common::LEN].copy_from_slice(common.as_bytes());
        to[Common::LEN..hlen].copy_from_slice(body);
        if self.header_digest {
            let digest = crc32c::crc32c(&to[..hlen]);
            to[hlen..header_len].copy_from_slice(&digest.to_le_bytes());
        }
        to[header_len..].fill(0);
        Some(to.len())
    }
}

/// The header of a data PDU and of an R2T from byte 8.
#[inline]
fn transfer(cccid: u16, ttag: u16, offset: u32, len: u32) -> [u8; 16] {
    let words = [u32::from(ttag) << 16 | u32::from(cccid), offset, len, 0].map(u32::to_le_bytes);
    std::array::from_fn(|i| words[i / 4][i % 4])
}
