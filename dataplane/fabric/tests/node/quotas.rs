//! Quotas (docs/fabricbios-profile.md, "Limits"): a presenter over its quota is told so, and others are not affected.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{collections::BTreeMap, time::Duration};

use crate::common::*;
use berth_fabric::{Config, Recovered, Settings};
use berth_lease::{Item, LeaseId, Quota, Quotas};
use berth_wire::fabric::{
    LeaseAlloc, LeaseExport, LeaseExported, LeaseImport, LeaseRef, LeaseRelocate, Op, RelocateMode, ResourceType,
    Rights, Status, SvcTcpBind, SvcTcpGrant, TargetRuntime, Tlvs, Wire as _,
};

fn mem(bytes: u64) -> Vec<u8> {
    let resource_type = Some(ResourceType::Mem);
    let requested_bytes = Some(bytes);
    LeaseAlloc { duration_secs: 60, grace_secs: 10, resource_type, requested_bytes, intents: Tlvs::EMPTY }.to_vec()
}

fn export(lease: LeaseId) -> Vec<u8> {
    LeaseExport {
        lease_id: lease.key().0,
        target_runtime_kind: TargetRuntime::Tasklet,
        target_identity: 0,
        rights: Rights::READ,
        ttl_secs: 50,
    }
    .to_vec()
}

fn import(exported: &[u8]) -> Vec<u8> {
    LeaseImport { export_handle: LeaseExported::parse(exported).unwrap().export_handle }.to_vec()
}

fn counters(world: &World) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    world.node.counters(&mut |name, value| {
        all.insert(name.to_owned(), value);
    });
    all
}

/// Lets everything end by itself.
fn end_all(world: &mut World) {
    for _ in 0..40 {
        world.pass(Duration::from_secs(20));
        world.tick();
    }
}

#[test]
fn every_item_has_its_quota() {
    let limits =
        [(Item::Leases, 4), (Item::Bytes, 12288), (Item::Handles, 1), (Item::Attachments, 1), (Item::Proxies, 1)];
    let quotas = Quotas::new(&[(Some(identity(1).id().0), limits.to_vec()), (None, vec![(Item::Attachments, 2)])]);
    let mut world = World::with(Config { quotas, ..config() });
    let full = Status::CapacityExceeded;
    let [mine, theirs] = [1, 2].map(|n| world.token(n, ALL));
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &mine, &mem(12289)), full);
    let lease = world.alloc_under(1, ResourceType::Mem, 8192, &mine);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &mine, &mem(4097)), full);
    let other = world.alloc_under(2, ResourceType::Mem, 65536, &theirs);

    let exported = world.ok(1, Op::LeaseExportHandle, 0, &[], &export(lease));
    assert_eq!(world.refused(1, Op::LeaseExportHandle, 0, &[], &export(lease)), full);
    let foreign = world.ok(2, Op::LeaseExportHandle, 0, &[], &export(other));
    world.ok(1, Op::LeaseImportHandle, 0, &[], &import(&foreign));
    assert_eq!(world.refused(1, Op::LeaseImportHandle, 0, &[], &import(&exported)), full);
    world.ok(2, Op::LeaseImportHandle, 0, &[], &import(&exported));

    let bind = SvcTcpBind { duration_secs: 60, backend_port: 80 }.to_vec();
    let proxy = world.ok(1, Op::SvcTcpBind, 0, &mine, &bind);
    assert_eq!(world.refused(1, Op::SvcTcpBind, 0, &mine, &bind), full);
    world.ok(2, Op::SvcTcpBind, 0, &theirs, &bind);
    let lease_id = SvcTcpGrant::parse(&proxy).unwrap().lease_id;
    world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id }.to_vec());
    world.ok(1, Op::SvcTcpBind, 0, &mine, &bind);

    // The same after a restart: what the journal has counts.
    let recovered: Recovered = world.journal.iter().cloned().collect();
    let has: Vec<Quota> = [1, 2].iter().map(|n| world.node.leases().usage(identity(*n).id().0)).collect();
    let config = world.node.config().clone();
    let mut world = World::start(config, world.regions.clone(), recovered, world.now, 8);
    let again: Vec<Quota> = [1, 2].iter().map(|n| world.node.leases().usage(identity(*n).id().0)).collect();
    assert_eq!(has, again);
    let amounts = Item::ALL.map(|item| has[0][item]);
    assert_eq!(amounts, [2, 8192, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(world.refused(1, Op::LeaseExportHandle, 0, &[], &export(lease)), full);

    let counters = counters(&world);
    let me = format!("holder_{:032x}", identity(1).id().0);
    let shown = |name: &str| counters[name];
    assert_eq!([shown(&format!("{me}_bytes_used")), shown(&format!("{me}_bytes_quota"))], [8192, 12288]);
    assert_eq!([shown("holder_others_bytes_used"), shown("holder_others_attachments_quota")], [65536, 2]);
    assert_eq!(shown("holder_others_leases_quota"), 1 << 16, "the node's capacity");

    end_all(&mut world);
    assert_eq!(world.node.leases().usages().count(), 0, "when all has ended, nobody has anything");
}

/// Moving leases back and forth fills no table: what is remembered or kept counts towards the quota.
#[test]
fn what_moves_leave_counts() {
    let quotas = Quotas::new(&[(None, vec![(Item::Leases, 5), (Item::Bytes, 4 * 4096)])]);
    let mut world = World::with(Config { quotas, ..config() });
    let token = world.token(1, ALL);
    let mut src = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let mut moves = 0;
    let refused = loop {
        let answer = world.ask(1, Op::LeaseAlloc, 0, &token, &mem(4096));
        if answer.status != Status::Ok {
            break answer.status;
        }
        let dst = LeaseId(berth_wire::fabric::LeaseGrant::parse(&answer.result).unwrap().lease_id);
        let preserve_until_ms = (moves % 2 == 0).then_some(u64::MAX);
        let (src_lease_id, dst_lease_id) = (src.key().0, dst.key().0);
        let relocate = LeaseRelocate { src_lease_id, dst_lease_id, mode: RelocateMode::Move, preserve_until_ms };
        world.ok(1, Op::LeaseRelocate, 0, &[], &relocate.to_vec());
        (src, moves) = (dst, moves + 1);
    };
    // Two were kept beside the one that lives; the four that were moved are remembered.
    assert_eq!((refused, moves), (Status::CapacityExceeded, 4));
    let usage = world.node.leases().usage(identity(1).id().0);
    assert_eq!([usage[Item::Leases], usage[Item::Bytes]], [5, 3 * 4096]);
    world.alloc(2, ResourceType::Mem, 4096);
    end_all(&mut world);
    assert_eq!(world.node.leases().usages().count(), 0);
    assert_eq!(world.node.leases().available(berth_lease::RegionId(0)), 1 << 20);
}

#[test]
fn a_quota_changes_while_the_node_runs() {
    let mut world = World::new();
    world.alloc(1, ResourceType::Mem, 4096);
    let Config { policy, enrolled, enrolment, .. } = world.node.config().clone();
    let settings = |quotas| Settings {
        policy: policy.clone(),
        quotas,
        enrolled: enrolled.clone(),
        enrolment,
        max_requests_per_sec: 0,
    };
    world.node.reconfigure(settings(Quotas::new(&[(None, vec![(Item::Leases, 1)])])));
    let token = world.token(1, ALL);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &mem(1)), Status::CapacityExceeded);
    world.node.reconfigure(settings(Quotas::default()));
    world.alloc(1, ResourceType::Mem, 1);
}
