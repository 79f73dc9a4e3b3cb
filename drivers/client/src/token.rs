//! Capability tokens as their holder has them.

use berth_identity::{Identity, NodeId, token};
use berth_wire::fabric::{CapabilityToken, Caveat, FabricError, Wire as _};

use crate::Error;

/// A capability token: the bytes that go into requests. The node that issued it checks it; its holder can narrow it
/// and pass it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl Token {
    /// Reads an encoded token.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Self, FabricError> {
        let bytes = bytes.into();
        CapabilityToken::parse(&bytes)?;
        Ok(Self(bytes))
    }

    /// The encoded token.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its fields.
    ///
    /// # Panics
    /// Never: the bytes were read before.
    pub fn fields(&self) -> CapabilityToken<'_> {
        CapabilityToken::parse(&self.0).expect("a token is checked when it is made")
    }

    /// The same token in the hands of `to`, narrowed by `caveats`; `holder` is who has it now.
    pub fn delegate(&self, holder: &Identity, to: NodeId, caveats: &[Caveat]) -> Result<Self, Error> {
        Ok(Self(token::delegate(&self.0, holder, to, caveats)?))
    }
}
