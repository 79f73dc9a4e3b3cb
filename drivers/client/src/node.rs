//! What announcements say.

use std::net::SocketAddr;

use berth_identity::NodeId;
use berth_wire::fabric::{Announce, EndpointKind, ResourceSummary};

/// A node as it announced itself. A relay vouches for nothing: who is at an address shows when it is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its id.
    pub id: NodeId,
    /// Rises with each announcement.
    pub sequence: u64,
    /// Where it stands.
    pub site: u32,
    /// Where it stands.
    pub row: u32,
    /// Where it stands.
    pub rack: u32,
    /// Where it is reached; kinds that this client does not know are left out.
    pub endpoints: Vec<(EndpointKind, SocketAddr)>,
    /// What it offers.
    pub resources: Vec<ResourceSummary>,
}

impl NodeInfo {
    pub(crate) fn new(announce: &Announce<'_>) -> Self {
        let endpoints = announce.endpoints.iter();
        let endpoints = endpoints
            .filter_map(|endpoint| Some((EndpointKind::from_code(endpoint.kind)?, endpoint.addr.get().parse().ok()?)));
        Self {
            id: NodeId(announce.node_id),
            sequence: announce.sequence,
            site: announce.site,
            row: announce.row,
            rack: announce.rack,
            endpoints: endpoints.collect(),
            resources: announce.resources.iter().collect(),
        }
    }
}
