//! The result of LEASE_ALLOC.

use std::net::SocketAddr;

use berth_wire::fabric::{BindingTlv, EndpointKind, FabricError, LeaseGrant, LeaseImported, Tlvs, Wire as _};

use crate::Error;

/// A lease as its holder needs it: size, limits and endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Full id of the lease; of an attachment, its key.
    pub lease_id: u128,
    /// When it expires, in Unix seconds.
    pub expires_at: u64,
    /// Rises when a restart loses the lease's contents.
    pub generation: u64,
    /// Low 64 bits of the lease id, which the dataplanes use.
    pub key: u64,
    /// Size in bytes.
    pub len: u64,
    /// Largest access in bytes.
    pub max_io: u32,
    /// Where its bytes are served, by protocol.
    pub endpoints: Vec<(EndpointKind, SocketAddr)>,
    /// All binding TLVs as received, encoded.
    pub bindings: Vec<u8>,
}

impl Grant {
    /// Access to an imported lease: its attachment, over QUIC at the node that it was imported from. Its size is known
    /// once it is opened.
    pub fn attached(imported: &LeaseImported, node: SocketAddr) -> Self {
        let endpoints = vec![(EndpointKind::QuicMem, node)];
        let max_io = u32::MAX;
        let mut bindings = Vec::new();
        BindingTlv::Endpoint { kind: EndpointKind::QuicMem, addr: &node.to_string() }.write(&mut bindings);
        BindingTlv::Limits { offset: 0, len: 0, max_io }.write(&mut bindings);
        let (key, expires_at) = (imported.local_attach_id, imported.expires_at);
        Self { lease_id: key.into(), expires_at, generation: 0, key, len: 0, max_io, endpoints, bindings }
    }

    /// Reads the result of LEASE_ALLOC; unknown TLVs are skipped.
    pub fn parse(result: &[u8]) -> Result<Self, FabricError> {
        let LeaseGrant { lease_id, expires_at, bindings } = LeaseGrant::parse(result)?;
        let mut grant = Self {
            lease_id,
            expires_at,
            generation: 0,
            key: lease_id as u64,
            len: 0,
            max_io: 0,
            endpoints: Vec::new(),
            bindings: bindings.as_bytes().to_vec(),
        };
        for tlv in &bindings {
            match BindingTlv::read(tlv)? {
                Some(BindingTlv::Generation(generation)) => grant.generation = generation,
                Some(BindingTlv::LeaseKey(key)) => grant.key = key,
                Some(BindingTlv::Limits { len, max_io, .. }) => (grant.len, grant.max_io) = (len, max_io),
                Some(BindingTlv::Endpoint { kind, addr }) => {
                    grant.endpoints.extend(addr.parse().ok().map(|addr| (kind, addr)));
                }
                _ => {}
            }
        }
        Ok(grant)
    }

    /// Encodes the result of LEASE_ALLOC again.
    ///
    /// # Panics
    /// Never: the TLVs were read before.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bindings = Tlvs::parse(&self.bindings).expect("TLVs that were parsed");
        LeaseGrant { lease_id: self.lease_id, expires_at: self.expires_at, bindings }.to_vec()
    }

    /// Whether it is leased as blocks.
    pub fn is_block(&self) -> bool {
        use EndpointKind::{Fbbt, Fbbu, QuicBlock};
        self.endpoints.iter().any(|(kind, _)| matches!(kind, Fbbt | Fbbu | QuicBlock))
    }

    /// The first endpoint of one of these kinds; errors call them `name`.
    pub(crate) fn endpoint(&self, kinds: [EndpointKind; 2], name: &'static str) -> Result<SocketAddr, Error> {
        let found = self.endpoints.iter().find(|(kind, _)| kinds.contains(kind));
        found.map(|(_, addr)| *addr).ok_or(Error::NoEndpoint(name))
    }
}
