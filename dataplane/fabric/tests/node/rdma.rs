//! A binding without a device, which remembers what the node has told it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::common::*;
use berth_fabric::{Binding, BlockingWork, BoundLease, Recovered, TeardownFailed};
use berth_lease::LeaseId;
use berth_port::Nanos;
use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, LeaseBind, LeaseRef, Status, Tlvs, Wire as _};

/// What the node has told the transport.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is another fault")]
pub(crate) struct Told {
    pub(crate) bound: BTreeSet<LeaseId>,
    pub(crate) last: Option<BoundLease>,
    pub(crate) torn_down: Vec<LeaseId>,
    pub(crate) stuck: bool,
    pub(crate) ticks: u64,
    /// Whether clients must be looked for first.
    pub(crate) far: bool,
    pub(crate) found: bool,
    /// Whether tearing down takes time.
    pub(crate) slow: bool,
    /// Whether it finds no client.
    pub(crate) blind: bool,
    /// Whether its clients carry on after a restart.
    pub(crate) resumes: bool,
    /// Whether it looks at the clock itself.
    pub(crate) outlasts_expiry: bool,
    /// Leases whose clients are gone.
    pub(crate) lost: Vec<LeaseId>,
}

/// An RDMA binding without a device.
#[derive(Debug)]
pub(crate) struct Rdma(pub(crate) &'static str, pub(crate) Arc<Mutex<Told>>);

impl Binding for Rdma {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }

    fn name(&self) -> &'static str {
        self.0
    }

    fn resumes(&self) -> bool {
        self.told().resumes
    }

    fn outlasts_expiry(&self) -> bool {
        self.told().outlasts_expiry
    }

    fn prepare(&mut self, _: &BoundLease, _: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let Told { far, blind, .. } = *self.told();
        if blind {
            return Err(Status::ResourceBusy);
        }
        let told = self.1.clone();
        Ok(far.then(|| BlockingWork::new(move || told.lock().unwrap().found = true)))
    }

    fn bind(&mut self, lease: &BoundLease, client: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let peer = client.iter().find_map(|tlv| ClientTlv::read(tlv).ok().flatten()).ok_or(Status::InvalidParams)?;
        let ClientTlv::RdmaPeer { psn, .. } = peer else { return Err(Status::InvalidParams) };
        let mut told = self.told();
        assert!(told.bound.insert(lease.id), "it was torn down first");
        assert_eq!(told.far, told.found, "the client was looked for");
        told.last = Some(*lease);
        BindingTlv::RdmaRkey(7).write(out);
        BindingTlv::RdmaPsn(psn + 1).write(out);
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        if self.told().slow {
            let told = self.1.clone();
            return Ok(Some(BlockingWork::new(move || told.lock().unwrap().end(lease))));
        }
        self.told().end(lease);
        self.torn_down(lease).map(|()| None)
    }

    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        if self.told().bound.contains(&lease) { Err(TeardownFailed) } else { Ok(()) }
    }

    fn tick(&mut self, _: Nanos, lost: &mut Vec<LeaseId>) {
        let mut told = self.told();
        told.ticks += 1;
        lost.append(&mut told.lost);
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        visit("rdma_ticks", self.told().ticks);
    }
}

impl Rdma {
    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.1.lock().unwrap()
    }
}

impl Told {
    pub(crate) fn end(&mut self, lease: LeaseId) {
        if self.stuck {
            self.bound.insert(lease);
        } else {
            self.bound.remove(&lease);
            self.torn_down.push(lease);
        }
    }
}

pub(crate) fn world() -> (World, Arc<Mutex<Told>>) {
    restarted(Recovered::default(), 0)
}

pub(crate) fn restarted(recovered: Recovered, after: u64) -> (World, Arc<Mutex<Told>>) {
    let told = Arc::<Mutex<Told>>::default();
    let bindings: Vec<Box<dyn Binding>> = vec![Box::new(Rdma("mlx5_0", told.clone()))];
    let now = START.after(Duration::from_secs(after));
    (World::start_with(config(), regions(), bindings, recovered, now, 7 + after), told)
}

pub(crate) fn bind(lease: LeaseId, kind: u8) -> Vec<u8> {
    let mut client = Vec::new();
    ClientTlv::RdmaPeer { qp_num: 1, gid: [0; 16], psn: 41, mtu: 1024 }.write(&mut client);
    LeaseBind { lease_id: lease.0, kind, client: Tlvs::parse(&client).unwrap() }.to_vec()
}

pub(crate) fn of(lease: LeaseId) -> Vec<u8> {
    LeaseRef { lease_id: lease.0 }.to_vec()
}
