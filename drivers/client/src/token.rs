//! Capability tokens on their holder's side.

use berth_identity::{Identity, NodeId, token};
use berth_wire::fabric::{CapabilityToken, Caveat, FabricError, Wire as _};

use crate::Error;

/// An encoded capability token, as requests carry it. Only the node that issued it checks it. Its holder can restrict
/// it and pass it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// Checks that the bytes parse as a token; signatures are not verified.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, FabricError> {
        let bytes = bytes.into();
        CapabilityToken::parse(&bytes)?;
        Ok(Self(bytes))
    }

    /// The encoded token, for requests.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The token, parsed.
    ///
    /// # Panics
    /// Never: the bytes were read before.
    pub fn fields(&self) -> CapabilityToken<'_> {
        CapabilityToken::parse(&self.0).expect("a token is checked when it is made")
    }

    /// The token passed on to `to` with further `caveats`; `holder` is the key that holds it now.
    pub fn delegate(&self, holder: &Identity, to: NodeId, caveats: &[Caveat]) -> Result<Self, Error> {
        Ok(Self(token::delegate(&self.0, holder, to, caveats)?))
    }
}
