//! TCP proxies that live as long as their lease: SVC_TCP_BIND and SVC_TCP_QUERY.

use std::time::Duration;

use berth_lease::{Rights, Status as LeaseStanding};
use berth_wire::fabric::{Perms, Status, SvcTcpBind, SvcTcpGrant, SvcTcpQuery, SvcTcpState, Wire as _};

use super::{Ask, Reply, lease::wire_status, params};
use crate::{
    clock::secs,
    host::{Host, random_u128},
    inventory::PROXIES,
    journal::Proxy,
    node::Node,
    request::Outcome,
    status::of_lease,
};

impl<H: Host> Node<H> {
    /// Leases a proxy from a port of 127.0.0.1 to another; it needs WRITE.
    pub(super) fn svc_tcp_bind(&mut self, ask: &Ask<'_>) -> Reply {
        let granted = self.verify(ask, Perms::WRITE, self.proxy_resource(), None)?;
        let SvcTcpBind { duration_secs, backend_port: backend } = params(ask)?;
        if duration_secs == 0 || backend == 0 {
            return Err(Status::InvalidParams);
        }
        if self.proxies.len() as u64 >= PROXIES {
            return Err(Status::CapacityExceeded);
        }
        let request = berth_lease::Request {
            regions: &[],
            near: None,
            bytes: 0,
            range: None,
            rights: Rights::NONE,
            holder: ask.request.presenter,
            token: granted.token.token_id,
            duration: secs(duration_secs),
            grace: Duration::ZERO,
        };
        let host = &mut self.host;
        let granted = self.leases.alloc(&request, ask.now.mono, &mut || random_u128(host)).map_err(of_lease)?;
        let Some(ingress) = self.host.open_proxy(granted.id, Proxy { ingress: 0, backend }) else {
            // Nobody knows the lease yet.
            let _ = self.leases.free(granted.id, ask.request.presenter, ask.now.mono);
            self.leases.release(granted.id, ask.now.mono);
            return Err(Status::CapacityExceeded);
        };
        self.proxies.insert(granted.id, Proxy { ingress, backend });
        let lease = self.leases.get(granted.id).expect("it was just granted");
        let grant = SvcTcpGrant {
            lease_id: lease.id.0,
            expires_at: self.clock.unix_secs(lease.expires),
            ingress_port: ingress,
        };
        let mut outcome = Outcome::default();
        outcome.answer.result = grant.to_vec();
        outcome.journal.push(self.grant_record(&lease, ask.now.mono));
        Ok(outcome.into())
    }

    pub(super) fn svc_tcp_query(&mut self, ask: &Ask<'_>) -> Reply {
        let SvcTcpQuery { lease_id } = params(ask)?;
        let id = berth_lease::LeaseId(lease_id);
        let lease = self.leases.get(id).filter(|lease| lease.region.is_none()).ok_or(Status::ResourceNotFound)?;
        let (status, expires) = self.leases.query(lease.id, ask.now.mono).ok_or(Status::ResourceNotFound)?;
        let proxy = self.proxies.get(&id).filter(|_| status == LeaseStanding::Active);
        let state = SvcTcpState {
            status: wire_status(status),
            expires_at: self.clock.unix_secs(expires),
            ingress_port: proxy.map_or(0, |proxy| proxy.ingress),
        };
        Ok(Outcome::ok(state.to_vec()))
    }
}
