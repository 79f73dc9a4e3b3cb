//! TCP proxies, which live as long as their leases: SVC_TCP_BIND and SVC_TCP_QUERY.

use std::time::Duration;

use berth_lease::{Holding, Item, Rights, Status as LeaseStanding};
use berth_wire::fabric::{Perms, Status, SvcTcpBind, SvcTcpGrant, SvcTcpQuery, SvcTcpState, Wire as _};

use super::{Reply, TimedRequest, lease::wire_status, params, unit::UnitRequest};
use crate::{clock::secs, host::Host, node::Node, request::Outcome};

/// A TCP proxy, the unit of the node's resource of kind `ResourceType::Net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proxy {
    /// Port on 127.0.0.1 that it listens on; 0 in a request, for any free one.
    pub ingress: u16,
    /// Port on 127.0.0.1 that it connects to.
    pub backend: u16,
}

impl Proxy {
    /// Encodes it as the unit that [`Resource::grant`](crate::Resource::grant) takes and returns.
    pub fn to_bytes(self) -> Vec<u8> {
        [self.ingress, self.backend].map(u16::to_be_bytes).concat()
    }

    /// Decodes [`Proxy::to_bytes`]; `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, d] = bytes else { return None };
        Some(Self { ingress: u16::from_be_bytes([a, b]), backend: u16::from_be_bytes([c, d]) })
    }
}

impl<H: Host> Node<H> {
    /// Leases a proxy from one port of 127.0.0.1 to another. The token needs WRITE.
    pub(super) fn svc_tcp_bind(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let resource = self.proxies();
        let id = resource.map_or(0, |resource| self.resource_ids[resource]);
        let granted = self.verify(ask, Perms::WRITE, id, None)?;
        let resource = resource.ok_or(Status::UnsupportedOp)?;
        let SvcTcpBind { duration_secs, backend_port: backend } = params(ask)?;
        if duration_secs == 0 || backend == 0 {
            return Err(Status::InvalidParams);
        }
        if self.resources[resource].stock(&self.leases).available == 0 {
            return Err(Status::CapacityExceeded);
        }
        let request = UnitRequest {
            resource,
            wanted: &Proxy { ingress: 0, backend }.to_bytes(),
            rights: Rights::NONE,
            token: granted.token.token_id,
            duration: secs(duration_secs),
            grace: Duration::ZERO,
        };
        let id = self.grant_unit(ask, &request)?;
        let proxy = self.units.get(&id).and_then(|unit| Proxy::from_bytes(unit)).ok_or(Status::InternalError)?;
        let lease = self.leases.get(id).expect("it was just granted");
        let grant = SvcTcpGrant {
            lease_id: lease.id.0,
            expires_at: self.clock.unix_secs(lease.expires),
            ingress_port: proxy.ingress,
        };
        let mut outcome = Outcome::default();
        outcome.answer.result = grant.to_vec();
        outcome.journal.push(self.grant_record(&lease, ask.now.mono));
        Ok(outcome.into())
    }

    pub(super) fn svc_tcp_query(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let SvcTcpQuery { lease_id } = params(ask)?;
        let id = berth_lease::LeaseId(lease_id);
        let proxies = self.proxies().ok_or(Status::ResourceNotFound)?;
        let is_proxy = |holds| matches!(holds, Holding::Unit(unit) if usize::from(unit.resource) == proxies);
        let lease = self.leases.get(id).filter(|lease| is_proxy(lease.holds)).ok_or(Status::ResourceNotFound)?;
        let (status, expires) = self.leases.query(lease.id, ask.now.mono).ok_or(Status::ResourceNotFound)?;
        let unit = self.units.get(&id).filter(|_| status == LeaseStanding::Active);
        let proxy = unit.and_then(|unit| Proxy::from_bytes(unit));
        let state = SvcTcpState {
            status: wire_status(status),
            expires_at: self.clock.unix_secs(expires),
            ingress_port: proxy.map_or(0, |proxy| proxy.ingress),
        };
        Ok(Outcome::ok(state.to_vec()))
    }

    /// Index of the resource that proxies come from.
    fn proxies(&self) -> Option<usize> {
        self.resources.iter().position(|resource| resource.counts_as() == Some(Item::Proxies))
    }
}
