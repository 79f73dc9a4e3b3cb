//! What a run is given: `TaskletInputV0`.

use crate::Error;

/// A capability, as the submitter named it to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    /// The lease, handle or token.
    pub token: u128,
    /// Bits: QUERY, REVOKE, FBMU_ALLOC, FBMU_LEASE_IO, FBBU_ALLOC, FBBU_LEASE_IO, from the lowest.
    pub rights: u32,
}

/// The input of a run, read where it lies.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    caps: &'a [u8],
    /// What the submitter sent beside the capabilities.
    pub payload: &'a [u8],
}

const CAP_LEN: usize = 20;

impl<'a> Input<'a> {
    /// Reads it; no bytes are an input without capabilities or payload.
    ///
    /// # Errors
    /// [`Error::BAD_INPUT`] if it is no input of version 0.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Ok(Self { caps: &[], payload: &[] });
        }
        let (version, rest) = bytes.split_first_chunk().ok_or(Error::BAD_INPUT)?;
        let (_flags, rest) = rest.split_first_chunk::<2>().ok_or(Error::BAD_INPUT)?;
        let (count, rest) = rest.split_first_chunk().ok_or(Error::BAD_INPUT)?;
        let caps = usize::from(u16::from_be_bytes(*count)) * CAP_LEN;
        let (caps, rest) = rest.split_at_checked(caps).ok_or(Error::BAD_INPUT)?;
        let (len, payload) = rest.split_first_chunk().ok_or(Error::BAD_INPUT)?;
        if *version != [0, 0] || u32::from_be_bytes(*len) as usize != payload.len() {
            return Err(Error::BAD_INPUT);
        }
        Ok(Self { caps, payload })
    }

    /// The capabilities, in the submitter's order.
    pub fn caps(self) -> impl Iterator<Item = Cap> + 'a {
        self.caps.chunks_exact(CAP_LEN).filter_map(|entry| {
            let (token, rights) = entry.split_first_chunk()?;
            Some(Cap { token: u128::from_be_bytes(*token), rights: u32::from_be_bytes(rights.try_into().ok()?) })
        })
    }
}
