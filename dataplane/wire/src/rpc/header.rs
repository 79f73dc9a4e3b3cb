//! Request and response headers (section "RPC Header / Response" of the messaging document, both forms).

use std::fmt;

use super::{MAGIC_REQUEST, MAGIC_RESPONSE};

/// Which header a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderForm {
    /// The current form: 24 bytes, with the sender's PTP time.
    #[default]
    V24,
    /// The older form: 16 bytes, without it.
    V16,
}

impl HeaderForm {
    /// Size of the header in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // a header is never empty
    pub const fn len(self) -> usize {
        match self {
            Self::V24 => 24,
            Self::V16 => 16,
        }
    }
}

/// The header of a request, before its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestHeader {
    /// [`super::fnv1a`] of the handler's name.
    pub function_id: u32,
    /// Length of the arguments behind the header, in bytes.
    pub arg_len: u32,
    /// Chosen by the caller, echoed in the response.
    pub request_id: u32,
    /// The caller's send time, echoed; 0 if unused. [`HeaderForm::V16`] does not carry it.
    pub ptp_timestamp: u64,
}

/// The header of a response, before its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseHeader {
    /// 0: success; positive: an error of the handler; negative: one of [`super::status`].
    pub status: i32,
    /// Length of the results behind the header, in bytes.
    pub result_len: u32,
    /// Copied from the request.
    pub request_id: u32,
    /// Copied from the request; 0 if unused. [`HeaderForm::V16`] does not carry it.
    pub ptp_timestamp: u64,
}

/// Why a header could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer bytes than the header form needs.
    Truncated,
    /// The first word is not the expected magic: another protocol, or a request in place of a response.
    WrongMagic,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "fewer bytes than an RPC header has",
            Self::WrongMagic => "not the magic of this kind of RPC message",
        })
    }
}

impl std::error::Error for HeaderError {}

impl RequestHeader {
    /// Reads the header at the front of `bytes`. The magic is checked before the length.
    #[inline]
    pub fn parse(form: HeaderForm, bytes: &[u8]) -> Result<Self, HeaderError> {
        let ([function_id, arg_len, request_id], ptp_timestamp) = read(MAGIC_REQUEST, form, bytes)?;
        Ok(Self { function_id, arg_len, request_id, ptp_timestamp })
    }

    /// Writes the header to the front of `bytes` and returns its length.
    #[inline]
    pub fn write(&self, form: HeaderForm, bytes: &mut [u8]) -> Result<usize, HeaderError> {
        write(MAGIC_REQUEST, [self.function_id, self.arg_len, self.request_id], self.ptp_timestamp, form, bytes)
    }
}

impl ResponseHeader {
    /// Reads the header at the front of `bytes`. The magic is checked before the length.
    #[inline]
    pub fn parse(form: HeaderForm, bytes: &[u8]) -> Result<Self, HeaderError> {
        let ([status, result_len, request_id], ptp_timestamp) = read(MAGIC_RESPONSE, form, bytes)?;
        Ok(Self { status: status as i32, result_len, request_id, ptp_timestamp })
    }

    /// Writes the header to the front of `bytes` and returns its length.
    #[inline]
    pub fn write(&self, form: HeaderForm, bytes: &mut [u8]) -> Result<usize, HeaderError> {
        write(MAGIC_RESPONSE, [self.status as u32, self.result_len, self.request_id], self.ptp_timestamp, form, bytes)
    }
}

/// Reads the fields behind the magic: three words, and the time if the form has it.
#[inline]
fn read(magic: u32, form: HeaderForm, bytes: &[u8]) -> Result<([u32; 3], u64), HeaderError> {
    let found = bytes.first_chunk().ok_or(HeaderError::Truncated)?;
    if u32::from_le_bytes(*found) != magic {
        return Err(HeaderError::WrongMagic);
    }
    match form {
        HeaderForm::V24 => {
            let bytes: &[u8; HeaderForm::V24.len()] = bytes.first_chunk().ok_or(HeaderError::Truncated)?;
            Ok((words(bytes), u64::from_le_bytes(at(bytes, 16))))
        }
        HeaderForm::V16 => {
            let bytes: &[u8; HeaderForm::V16.len()] = bytes.first_chunk().ok_or(HeaderError::Truncated)?;
            Ok((words(bytes), 0))
        }
    }
}

/// Writes a header. Each form has a constant length, so this compiles to a few stores.
#[inline]
fn write(
    magic: u32,
    [a, b, c]: [u32; 3],
    ptp_timestamp: u64,
    form: HeaderForm,
    bytes: &mut [u8],
) -> Result<usize, HeaderError> {
    let pair = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let (first, second) = (pair(magic, a), pair(b, c));
    match form {
        HeaderForm::V24 => {
            let to: &mut [u8; HeaderForm::V24.len()] = bytes.first_chunk_mut().ok_or(HeaderError::Truncated)?;
            to[..8].copy_from_slice(&first);
            to[8..16].copy_from_slice(&second);
            to[16..].copy_from_slice(&ptp_timestamp.to_le_bytes());
        }
        HeaderForm::V16 => {
            let to: &mut [u8; HeaderForm::V16.len()] = bytes.first_chunk_mut().ok_or(HeaderError::Truncated)?;
            to[..8].copy_from_slice(&first);
            to[8..].copy_from_slice(&second);
        }
    }
    Ok(form.len())
}

#[inline]
fn words<const N: usize>(bytes: &[u8; N]) -> [u32; 3] {
    [4, 8, 12].map(|offset| u32::from_le_bytes(at(bytes, offset)))
}

#[inline]
fn at<const N: usize, const LEN: usize>(bytes: &[u8; N], offset: usize) -> [u8; LEN] {
    std::array::from_fn(|i| bytes[offset + i])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_laid_out_as_documented() {
        let header =
            RequestHeader { function_id: 0x191B_6322, arg_len: 8, request_id: 7, ptp_timestamp: 0x0102_0304_0506_0708 };
        let mut bytes = [0xFF; 25];
        assert_eq!(header.write(HeaderForm::V24, &mut bytes), Ok(24));
        assert_eq!(
            bytes,
            [0x52, 0x51, 0x55, 0x43, 0x22, 0x63, 0x1B, 0x19, 8, 0, 0, 0, 7, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0xFF]
        );
    }

    #[test]
    fn the_one_byte_response_example_of_the_document() {
        let header = ResponseHeader { status: 0, result_len: 1, request_id: 0xAABB_CCDD, ptp_timestamp: 0 };
        let mut bytes = [0xFF; 16];
        assert_eq!(header.write(HeaderForm::V16, &mut bytes), Ok(16));
        assert_eq!(bytes, [0x53, 0x51, 0x55, 0x43, 0, 0, 0, 0, 1, 0, 0, 0, 0xDD, 0xCC, 0xBB, 0xAA]);
    }

    #[test]
    fn truncation_and_a_wrong_magic_are_told_apart() {
        let mut bytes = [0; 24];
        RequestHeader::default().write(HeaderForm::V24, &mut bytes).unwrap();
        for len in 0..24 {
            assert_eq!(RequestHeader::parse(HeaderForm::V24, &bytes[..len]), Err(HeaderError::Truncated), "{len}");
        }
        assert_eq!(ResponseHeader::parse(HeaderForm::V24, &bytes), Err(HeaderError::WrongMagic));
        assert_eq!(ResponseHeader::parse(HeaderForm::V24, &bytes[..4]), Err(HeaderError::WrongMagic));
        assert_eq!(RequestHeader::default().write(HeaderForm::V24, &mut bytes[..23]), Err(HeaderError::Truncated));
    }

    fn form() -> impl Strategy<Value = HeaderForm> {
        prop_oneof![Just(HeaderForm::V24), Just(HeaderForm::V16)]
    }

    proptest! {
        #[test]
        fn headers_round_trip(form in form(), a: u32, b: u32, request_id: u32, stamp: u64) {
            let ptp_timestamp = if form == HeaderForm::V24 { stamp } else { 0 };
            let mut bytes = [0; 24];
            let request = RequestHeader { function_id: a, arg_len: b, request_id, ptp_timestamp };
            prop_assert_eq!(request.write(form, &mut bytes), Ok(form.len()));
            prop_assert_eq!(RequestHeader::parse(form, &bytes), Ok(request));
            let response = ResponseHeader { status: a as i32, result_len: b, request_id, ptp_timestamp };
            prop_assert_eq!(response.write(form, &mut bytes), Ok(form.len()));
            prop_assert_eq!(ResponseHeader::parse(form, &bytes), Ok(response));
        }

        #[test]
        fn random_bytes_never_panic(form in form(), bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = RequestHeader::parse(form, &bytes);
            let _ = ResponseHeader::parse(form, &bytes);
        }
    }
}
