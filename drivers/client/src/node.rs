//! Announcements of nodes.

use std::net::SocketAddr;

use berth_identity::NodeId;
use berth_wire::fabric::{Announce, EndpointKind, ResourceSummary};

/// A node as it announced itself. A relay vouches for nothing: only a connection proves which node is at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The node's id.
    pub id: NodeId,
    /// Rises with each announcement.
    pub sequence: u64,
    /// Site number.
    pub site: u32,
    /// Row number within the site.
    pub row: u32,
    /// Rack number within the row.
    pub rack: u32,
    /// Its addresses by protocol. Protocols that this client does not know are left out.
    pub endpoints: Vec<(EndpointKind, SocketAddr)>,
    /// What can be leased from it.
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
