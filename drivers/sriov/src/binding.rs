//! `LEASE_BIND`, kind 5: a virtual function becomes the holder's, through vfio-pci.

use std::{
    collections::BTreeMap,
    iter,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_fabric::{Binding, BlockingWork, BoundLease, OncePerSecond, TeardownFailed};
use berth_lease::LeaseId;
use berth_port::{Family, Nanos};
use berth_wire::{
    fabric::{BindKind, BindingTlv, ClientTlv, Status, Tlvs},
    net::MacAddr,
};

use crate::{
    State,
    function::{Failure, Function, Host, Setup, Wanted},
    net, nvme,
    pool::{Card, Network, Pool, take_back},
};

/// How often functions are looked at: those that are fenced, and those that may be gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const BY_STATE: Family = Family::gauge("sriov_functions", "virtual functions of pools, by what they are to them");

berth_port::counters! {
    /// In the order of [`State`].
    pub(crate) const STATES {
        "sriov_free": BY_STATE { state: "free" },
        "sriov_leased": BY_STATE { state: "leased" },
        "sriov_bound": BY_STATE { state: "bound" },
        "sriov_ending": BY_STATE { state: "ending" },
        "sriov_fenced_now": BY_STATE { state: "fenced" },
    }
}

/// Hands functions of pools to the holders of leases.
#[derive(Debug)]
pub struct SriovBinding {
    pools: Vec<Arc<Pool>>,
    host: Arc<Host>,
    /// How the hand-overs ended that were begun.
    given: BTreeMap<LeaseId, Given>,
    looked: Option<Nanos>,
    now: Nanos,
    refusals: OncePerSecond,
    /// Looks after functions that are fenced or gone.
    watch: Option<JoinHandle<()>>,
    /// Leases whose functions were taken back, or are gone, and nobody was told yet.
    lost: Arc<Mutex<Vec<LeaseId>>>,
}

type Given = Arc<Mutex<Option<Result<(), Failure>>>>;

impl SriovBinding {
    pub(crate) fn new(pools: Vec<Arc<Pool>>, host: Arc<Host>) -> Self {
        Self {
            pools,
            host,
            given: BTreeMap::new(),
            looked: None,
            now: Nanos(0),
            refusals: OncePerSecond::default(),
            watch: None,
            lost: Arc::default(),
        }
    }

    /// The function that a lease has, or that was handed over for it before a restart.
    fn of(&self, lease: LeaseId) -> Option<(&Arc<Pool>, &Arc<Function>)> {
        let functions = self.pools.iter().flat_map(|pool| iter::repeat(pool).zip(&pool.functions));
        let mut functions = functions.filter(|(_, function)| {
            let slot = function.slot();
            slot.is_of(lease) || slot.given_to() == Some(lease)
        });
        functions.next()
    }

    /// What the client asks for, as far as the pool allows it.
    fn wanted(pool: &Pool, function: &Function, client: Tlvs<'_>) -> Result<Wanted, Status> {
        let setup = match &pool.config.card {
            Card::Network(config) => Setup::Net(network(config, function.index, client)?),
            Card::Nvme { namespace } => {
                for tlv in &client {
                    // A controller has no address and no VLAN.
                    let tlv = ClientTlv::read(tlv).map_err(|_| Status::InvalidParams)?;
                    if let Some(ClientTlv::VfMac(_) | ClientTlv::VfVlan(_)) = tlv {
                        return Err(Status::InvalidParams);
                    }
                }
                let namespace = namespace.saturating_add(function.index.into());
                Setup::Nvme(nvme::Wanted { namespace, share: pool.functions.len() as u16 })
            }
        };
        Ok(Wanted { setup, owner: pool.owner })
    }

    /// Looks after functions that are fenced or gone, on a thread of its own: the kernel may keep whoever asks.
    fn look(&mut self) {
        if self.watch.as_ref().is_some_and(|watch| !watch.is_finished()) {
            return;
        }
        let (pools, lost, host) = (self.pools.clone(), self.lost.clone(), self.host.clone());
        let watch = thread::Builder::new().name("sriov".into()).spawn(move || {
            for function in pools.iter().flat_map(|pool| &pool.functions) {
                if let Some(lease) = look_at(function, &host) {
                    lost.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
                }
            }
        });
        // Without a thread, the next tick tries again.
        self.watch = watch.ok();
    }
}

/// Tries again to take back a function that is fenced; looks whether one that is handed over is still there. Returns the lease
/// that is not connected any more.
fn look_at(function: &Function, host: &Host) -> Option<LeaseId> {
    let (state, given_to) = {
        let slot = function.slot();
        (slot.state(), slot.given_to())
    };
    match state {
        State::Fenced => {
            let turn = function.slot().end()?;
            take_back(function, host, turn, false);
            given_to.filter(|_| matches!(function.slot().state(), State::Free | State::Leased))
        }
        State::Bound if !function.is_there(host) => {
            host.counts.lost.add(1);
            tracing::warn!("virtual function {} is gone: somebody changed sriov_numvfs", function.address);
            given_to
        }
        _ => None,
    }
}

/// What a client asks for of a network card's function.
fn network(config: &Network, index: u16, client: Tlvs<'_>) -> Result<net::Wanted, Status> {
    let (mut mac, mut vlan) = (config.mac.map(|first| nth(first, index)), config.vlan);
    for tlv in &client {
        match ClientTlv::read(tlv).map_err(|_| Status::InvalidParams)? {
            Some(ClientTlv::VfMac(wanted)) => {
                if !config.client.mac {
                    return Err(Status::InsufficientPerm);
                }
                let wanted = MacAddr(wanted);
                if !wanted.is_station() {
                    return Err(Status::InvalidParams);
                }
                mac = Some(wanted);
            }
            Some(ClientTlv::VfVlan(wanted)) => {
                if !config.client.vlan {
                    return Err(Status::InsufficientPerm);
                }
                if wanted > 4094 {
                    return Err(Status::InvalidParams);
                }
                vlan = wanted;
            }
            _ => {}
        }
    }
    let (rate, trust, spoofchk) = (config.rate, config.trust, config.spoofchk);
    Ok(net::Wanted { mac: mac.unwrap_or_else(drawn), vlan, rate, trust, spoofchk })
}

/// The address of the n-th function of a pool.
fn nth(first: MacAddr, index: u16) -> MacAddr {
    let [a, b, c, d, e, f] = first.0;
    let low = u32::from_be_bytes([c, d, e, f]).wrapping_add(index.into());
    let [c, d, e, f] = low.to_be_bytes();
    MacAddr([a, b, c, d, e, f])
}

/// An address of this site's own, of one station.
fn drawn() -> MacAddr {
    let mut mac = [0; 6];
    mac.fill_with(|| fastrand::u8(..));
    mac[0] = mac[0] & 0xFC | 0x02;
    MacAddr(mac)
}

impl Binding for SriovBinding {
    fn kind(&self) -> BindKind {
        BindKind::SrIov
    }

    fn name(&self) -> &'static str {
        "vfio"
    }

    fn outlives(&mut self, lease: LeaseId) -> bool {
        let Some((_, function)) = self.of(lease) else { return false };
        let stands = function.is_given(&self.host);
        if stands {
            function.slot().adopt(lease);
        }
        stands
    }

    fn prepare(&mut self, lease: &BoundLease, client: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let (pool, function) = self.of(lease.id).ok_or(Status::UnsupportedOp)?;
        let wanted = Self::wanted(pool, function, client)?;
        let turn = function.slot().give(lease.id).ok_or(Status::ResourceBusy)?;
        let (function, host, id, given) = (function.clone(), self.host.clone(), lease.id, Given::default());
        self.given.insert(id, given.clone());
        Ok(Some(BlockingWork::new(move || {
            let done = function.give(&host, id, turn, &wanted);
            *given.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        })))
    }

    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let given = self.given.remove(&lease.id);
        let done = given.and_then(|given| given.lock().unwrap_or_else(PoisonError::into_inner).take());
        let (_, function) = self.of(lease.id).ok_or(Status::LeaseExpired)?;
        let (address, index, pf) = (function.address, function.index, function.pf);
        if let Err(error) = done.unwrap_or(Err(Failure::Overtaken)) {
            self.host.counts.give_failed.add(1);
            if self.refusals.is_due(self.now) {
                tracing::warn!("virtual function {address} is not handed over: {error}");
            }
            return Err(match error {
                Failure::Overtaken => Status::LeaseExpired,
                Failure::Held
                | Failure::Down(_)
                | Failure::Gone
                | Failure::NoController
                | Failure::Online(_)
                | Failure::Attached { .. }
                | Failure::Has { .. } => Status::ResourceBusy,
                _ => Status::InternalError,
            });
        }
        for tlv in
            [BindingTlv::SrIovVf(address.into()), BindingTlv::SrIovVfIndex(index), BindingTlv::SrIovPf(pf.into())]
        {
            tlv.write(out);
        }
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        self.given.remove(&lease);
        let Some((pool, function)) = self.of(lease) else { return Ok(None) };
        pool.take_back(function, true)
    }

    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        let clean = self.of(lease).is_none_or(|(_, function)| function.slot().given_to().is_none());
        if clean { Ok(()) } else { Err(TeardownFailed) }
    }

    fn tick(&mut self, now: Nanos, lost: &mut Vec<LeaseId>) {
        self.now = now;
        lost.append(&mut self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        if self.looked.is_none_or(|looked| now >= looked + LOOK_EVERY) {
            self.looked = Some(now);
            self.look();
        }
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        self.host.counts.report(&mut |name, count| visit(name, count));
        let mut states = [0; 5];
        for function in self.pools.iter().flat_map(|pool| &pool.functions) {
            states[function.slot().state() as usize] += 1;
        }
        STATES.iter().zip(states).for_each(|(counter, count)| visit(counter.name, count));
    }
}
