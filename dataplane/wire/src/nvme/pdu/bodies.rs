//! The PDUs whose headers are no command or completion.

use zerocopy::{
    FromBytes, IntoBytes,
    little_endian::{U16, U32},
};

use super::{super::macros::layout, Common, Fatal, Framing, Header, Kind};

/// Digests that a host asks for and a controller grants (DGST).
pub const HEADER_DIGEST: u8 = 1;
/// As [`HEADER_DIGEST`].
pub const DATA_DIGEST: u8 = 2;

/// The highest HPDA and CPDA: data aligned to 128 bytes.
const ALIGNMENT_MAX: u8 = 31;

layout! {
    /// `ICReq` ("Initialize Connection Request PDU").
    pub struct IcReq: 128 {
        /// Of kind [`Kind::IcReq`].
        0 pub common: Common,
        /// PFV: the format of the PDUs, 0.
        8 pub pfv: U16,
        /// HPDA: what data that the host receives is aligned to, in units of 4 bytes, less 1; up to 31.
        10 pub hpda: u8,
        /// DGST: [`HEADER_DIGEST`], [`DATA_DIGEST`].
        11 pub digests: u8,
        /// MAXR2T: how many R2Ts a command may have outstanding, less 1.
        12 pub max_r2t: U32,
        16 reserved: [u8; 112],
    }

    /// `ICResp` ("Initialize Connection Response PDU").
    pub struct IcResp: 128 {
        /// Of kind [`Kind::IcResp`].
        0 pub common: Common,
        /// PFV: the format of the PDUs, 0.
        8 pub pfv: U16,
        /// CPDA: what data that the controller receives is aligned to, in units of 4 bytes, less 1; up to 31.
        10 pub cpda: u8,
        /// DGST: those of the request that the controller grants.
        11 pub digests: u8,
        /// MAXH2CDATA: the most bytes of data in an `H2CData`; at least 4096, and a multiple of 4.
        12 pub max_h2c_data: U32,
        16 reserved: [u8; 112],
    }

    /// `H2CTermReq` and `C2HTermReq` ("Terminate Connection Request PDU"). The header of the PDU in error follows as data.
    pub struct TermReq: 24 {
        /// Of kind [`Kind::H2cTermReq`] or [`Kind::C2hTermReq`].
        0 pub common: Common,
        /// FES.
        8 pub status: U16,
        /// FEI.
        10 pub information: U32,
        14 reserved: [u8; 10],
    }

    /// The header of `H2CData` and `C2HData` ("Host To Controller Data Transfer PDU" and its counterpart).
    pub struct DataPdu: 24 {
        /// Of kind [`Kind::H2cData`] or [`Kind::C2hData`].
        0 pub common: Common,
        /// CCCID: the command's identifier.
        8 pub cccid: U16,
        /// TTAG of the R2T; 0 in `C2HData`.
        10 pub ttag: U16,
        /// DATAO: where the data belongs, in bytes from the first of the command's data.
        12 pub offset: U32,
        /// DATAL: bytes of data.
        16 pub len: U32,
        20 reserved: [u8; 4],
    }

    /// R2T ("Ready to Transfer PDU").
    pub struct R2t: 24 {
        /// Of kind [`Kind::R2t`].
        0 pub common: Common,
        /// CCCID: the command's identifier.
        8 pub cccid: U16,
        /// TTAG: what the controller knows the transfer by.
        10 pub ttag: U16,
        /// R2TO: where the data that is asked for begins, in bytes from the first of the command's data.
        12 pub offset: U32,
        /// R2TL: bytes of data that are asked for.
        16 pub len: U32,
        20 reserved: [u8; 4],
    }
}

impl Common {
    /// Of a PDU without digests and pad, with `data_len` bytes behind the header.
    fn plain(kind: Kind, data_len: usize) -> Self {
        let hlen = kind.header_len();
        Self { kind: kind as u8, flags: 0, hlen: hlen as u8, pdo: 0, plen: ((hlen + data_len) as u32).into() }
    }
}

impl IcReq {
    /// A host's wishes, for [`IcReq::hpda`], [`IcReq::digests`] and [`IcReq::max_r2t`].
    pub fn new(hpda: u8, digests: u8, max_r2t: u32) -> Self {
        Self { common: Common::plain(Kind::IcReq, 0), hpda, digests, max_r2t: max_r2t.into(), ..Self::zeroed() }
    }

    /// Checks format and alignment: what the controller sends from now on, if it grants the digests that are asked for.
    pub fn accept(&self) -> Result<Framing, Fatal> {
        accept(self.pfv, self.hpda, self.digests)
    }
}

impl IcResp {
    /// A controller's answer: [`IcResp::cpda`], [`IcResp::digests`] and [`IcResp::max_h2c_data`].
    pub fn new(cpda: u8, digests: u8, max_h2c_data: u32) -> Self {
        let max_h2c_data = max_h2c_data.into();
        Self { common: Common::plain(Kind::IcResp, 0), cpda, digests, max_h2c_data, ..Self::zeroed() }
    }

    /// Checks format and alignment: what the host sends from now on.
    pub fn accept(&self) -> Result<Framing, Fatal> {
        accept(self.pfv, self.cpda, self.digests)
    }
}

fn accept(pfv: U16, alignment: u8, digests: u8) -> Result<Framing, Fatal> {
    if pfv.get() != 0 {
        return Err(Fatal::unsupported(8));
    }
    if alignment > ALIGNMENT_MAX {
        return Err(Fatal::field(10));
    }
    Ok(Framing::new(digests & HEADER_DIGEST != 0, digests & DATA_DIGEST != 0, alignment))
}

impl TermReq {
    /// The most bytes behind the header: the longest header there is, less its digest.
    pub const DATA_MAX: u32 = 128;

    /// Bytes of the longest.
    pub const MAX: usize = Self::LEN + Self::DATA_MAX as usize;

    /// Writes a whole `TermReq` of `kind` to the front of `to`: what was wrong, and as many bytes as it may have of the
    /// PDU that was, `in_error`. Returns its length; `None` where `to` has no room for it.
    pub fn write(to: &mut [u8], kind: Kind, fatal: Fatal, in_error: &[u8]) -> Option<usize> {
        let in_error = &in_error[..in_error.len().min(Self::DATA_MAX as usize)];
        let (header, data) = to.get_mut(..Self::LEN + in_error.len())?.split_first_chunk_mut::<{ Self::LEN }>()?;
        let term = Self {
            common: Common::plain(kind, in_error.len()),
            status: fatal.status.into(),
            information: fatal.information.into(),
            ..Self::zeroed()
        };
        header.copy_from_slice(term.as_bytes());
        data.copy_from_slice(in_error);
        Some(Self::LEN + in_error.len())
    }

    /// What was wrong.
    pub fn fatal(&self) -> Fatal {
        Fatal { status: self.status.get(), information: self.information.get() }
    }
}

impl DataPdu {
    /// Reads the header of a data PDU whose common header is `header`, and checks that DATAL is the length that PLEN
    /// leaves for data, and not over `max`.
    #[inline]
    pub fn checked<'b>(head: &'b [u8], header: &Header, max: u32) -> Result<&'b Self, Fatal> {
        let Ok((data, _)) = Self::ref_from_prefix(head) else { return Err(Fatal::field(2)) };
        if data.len.get() != header.data_len {
            return Err(Fatal::field(4));
        }
        if data.len.get() > max { Err(Fatal::LIMIT_EXCEEDED) } else { Ok(data) }
    }
}
