//! A transport of its own beside the lease table: bound, bound again, torn down, and what happens where that fails.
#![allow(clippy::doc_markdown)] // the names of ops

mod common;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_fabric::{Binding, BoundLease, Recovered, TeardownFailed, journal::Record};
use berth_lease::{Generation, LeaseId, RegionId, Rights, Span, Status as Standing};
use berth_wire::fabric::{
    BindKind, BindingTlv, CapRevoke, CapabilityToken, ClientTlv, LeaseBind, LeaseRef, Op, Perms, ResourceFlags,
    ResourceType, Status, Tlvs, Wire as _,
};
use common::*;

/// What the transport has been told.
#[derive(Debug, Default)]
struct Told {
    bound: BTreeSet<LeaseId>,
    last: Option<BoundLease>,
    torn_down: Vec<LeaseId>,
    stuck: bool,
}

/// RDMA without a device.
struct Rdma(Arc<Mutex<Told>>);

impl Binding for Rdma {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }

    fn bind(&mut self, lease: &BoundLease, client: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let peer = client.iter().find_map(|tlv| ClientTlv::read(tlv).ok().flatten()).ok_or(Status::InvalidParams)?;
        let ClientTlv::RdmaPeer { psn, .. } = peer else { return Err(Status::InvalidParams) };
        let mut told = self.0.lock().unwrap();
        assert!(told.bound.insert(lease.id), "it was torn down first");
        told.last = Some(*lease);
        BindingTlv::RdmaRkey(7).write(out);
        BindingTlv::RdmaPsn(psn + 1).write(out);
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        let mut told = self.0.lock().unwrap();
        if told.stuck {
            return Err(TeardownFailed);
        }
        told.bound.remove(&lease);
        told.torn_down.push(lease);
        Ok(())
    }
}

fn world() -> (World, Arc<Mutex<Told>>) {
    restarted(Recovered::default(), 0)
}

fn restarted(recovered: Recovered, after: u64) -> (World, Arc<Mutex<Told>>) {
    let told = Arc::<Mutex<Told>>::default();
    let bindings: Vec<Box<dyn Binding>> = vec![Box::new(Rdma(told.clone()))];
    let now = START.after(Duration::from_secs(after));
    (World::start_with(config(), regions(), bindings, recovered, now, 7 + after), told)
}

fn bind(lease: LeaseId, kind: u8) -> Vec<u8> {
    let mut client = Vec::new();
    ClientTlv::RdmaPeer { qp_num: 1, gid: [0; 16], psn: 41, mtu: 1024 }.write(&mut client);
    LeaseBind { lease_id: lease.0, kind, client: Tlvs::parse(&client).unwrap() }.to_vec()
}

fn of(lease: LeaseId) -> Vec<u8> {
    LeaseRef { lease_id: lease.0 }.to_vec()
}

#[test]
fn a_lease_is_bound_and_bound_again() {
    let (mut world, told) = world();
    let token = world.token(1, Perms::ALLOC.or(Perms::READ));
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let mut expected = Vec::new();
    BindingTlv::RdmaRkey(7).write(&mut expected);
    BindingTlv::RdmaPsn(42).write(&mut expected);
    for times in 0..2 {
        assert_eq!(world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), expected);
        assert_eq!(told.lock().unwrap().torn_down.len(), times);
    }
    let bytes = Span { region: RegionId(0), at: 0, len: 4096 };
    let bound = BoundLease { id: lease, generation: Generation(1), rights: Rights::READ, bytes, first: 0 };
    assert_eq!(told.lock().unwrap().last, Some(bound));

    let other = world.token(2, ALL);
    let unfit = world.token(1, Perms::READ);
    let no_client = LeaseBind { lease_id: lease.0, kind: 2, client: Tlvs::EMPTY }.to_vec();
    let mut refused = |n, token: &[u8], params: &[u8]| world.refused(n, Op::LeaseBind, 0, token, params);
    assert_eq!(refused(1, &[], &bind(lease, 2)), Status::InvalidToken);
    assert_eq!(refused(1, &unfit, &bind(lease, 2)), Status::InsufficientPerm);
    assert_eq!(refused(2, &other, &bind(lease, 2)), Status::InsufficientPerm);
    assert_eq!(refused(1, &token, &bind(LeaseId(9), 2)), Status::ResourceNotFound);
    assert_eq!(refused(1, &token, &bind(lease, 4)), Status::InvalidParams, "no such kind");
    assert_eq!(refused(1, &token, &bind(lease, 6)), Status::UnsupportedOp, "not live here");
    assert_eq!(refused(1, &token, &bind(lease, 2)[..16]), Status::InvalidParams);
    assert_eq!(refused(1, &token, &no_client), Status::InvalidParams, "what the binding says");
    world.pass(Duration::from_mins(1));
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), Status::LeaseExpired);
}

#[test]
fn every_end_of_a_lease_tears_its_binding_down() {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let leases = [(); 3].map(|()| {
        let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
        world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
        lease
    });
    world.ok(1, Op::LeaseFree, 0, &[], &of(leases[0]));
    assert_eq!(told.lock().unwrap().torn_down, [leases[0]]);
    // At the expiry, not at the end of the grace: the transport does not look at the clock.
    world.pass(Duration::from_mins(1));
    world.node.tick(world.now);
    assert_eq!(told.lock().unwrap().bound, BTreeSet::new());
    world.pass(Duration::from_mins(1));
    let effects = world.node.tick(world.now);
    let ended: BTreeSet<LeaseId> = effects.ended.into_iter().collect();
    assert_eq!(ended, leases[1..].iter().copied().collect());
    assert_eq!(told.lock().unwrap().torn_down.len(), 3, "once each");
}

#[test]
fn a_failed_teardown_fences_the_resource_until_a_restart_succeeds() {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    told.lock().unwrap().stuck = true;
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), Status::ResourceBusy);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let params = CapRevoke { token_id, ttl_secs: 1 }.to_vec();
    let outcome = world.ask_whole(1, Op::CapRevoke.code(), 0, &token, &params);
    assert_eq!((outcome.answer.status, outcome.answer.result), (Status::ResourceFenced, vec![]));
    assert!(outcome.journal.contains(&Record::LeaseFenced { lease: lease.0 }));
    assert_eq!(outcome.effects.broadcasts.len(), 1, "the token is revoked all the same");
    let fenced = |world: &World| world.node.resources()[0].flags == ResourceFlags::FENCED;
    assert!(fenced(&world));
    let token = world.token(2, ALL);
    let alloc = berth_wire::fabric::LeaseAlloc {
        duration_secs: 1,
        grace_secs: 0,
        resource_type: Some(ResourceType::Mem),
        requested_bytes: Some(1),
        intents: Tlvs::EMPTY,
    };
    assert_eq!(world.refused(2, Op::LeaseAlloc, 0, &token, &alloc.to_vec()), Status::ResourceFenced);
    assert_eq!(world.node.resources()[0].available, (1 << 20) - 4096, "the bytes are nobody's");

    let recovered: Recovered = world.journal.iter().cloned().collect();
    // Without its driver nobody knows whether the transport still serves it.
    let world = World::start(config(), regions(), recovered.clone(), START.after(Duration::from_secs(400)), 9);
    assert!(fenced(&world));
    let (world, told) = restarted(recovered, 5);
    assert_eq!(told.lock().unwrap().torn_down, [lease]);
    assert!(!fenced(&world));
    assert_eq!(world.node.leases().query(lease, world.now.mono).unwrap().0, Standing::Revoked);
    assert_eq!(world.node.resources()[0].available, 1 << 20);
}
