//! LEASE_EXPORT_HANDLE, LEASE_IMPORT_HANDLE and LEASE_RELOCATE through the node (decision 16).
#![allow(clippy::doc_markdown)] // the names of ops

use std::time::Duration;

use crate::common::*;
use berth_fabric::{Carrier, Recovered, Request, Step, WorkFailed};
use berth_lease::{
    Access, Bytes, LeaseId, LeaseKey, Op as Io, Refusal, Region, RegionKind, Regions, Status as Standing, Storage,
    check,
};
use berth_wire::fabric::{
    Binding, CapRequest, CapRevoke, CapabilityToken, LeaseExport, LeaseExported, LeaseImport, LeaseImported, LeaseRef,
    LeaseRelocate, LeaseRelocated, Op, Perms, RelocateMode, Relocation, ResourceType, Rights, Status, TargetRuntime,
    Wire as _,
};

fn export(lease: LeaseId, target: u128, rights: Rights, ttl_secs: u32) -> Vec<u8> {
    LeaseExport {
        lease_id: lease.key().0,
        target_runtime_kind: TargetRuntime::Tasklet,
        target_identity: target,
        rights,
        ttl_secs,
    }
    .to_vec()
}

fn import(export_handle: u128) -> Vec<u8> {
    LeaseImport { export_handle }.to_vec()
}

fn read(world: &World, key: LeaseKey) -> Result<(), Refusal> {
    let mut reader = world.node.table().reader();
    let entry = reader.enter().probe(key);
    let access = Access { op: Io::Read, key, generation: None, offset: 0, len: 1, well_formed: true };
    check(entry.as_ref(), &access, world.now.mono).map(|_| ())
}

/// That there is no dma-buf is nothing for those who may not export the lease.
#[test]
fn a_gpus_memory_is_refused_for_an_accelerator_after_all_else() {
    let storage = Storage::Bytes(Heap::of(64 << 10));
    let vram = Region { name: "vram0".into(), kind: RegionKind::Vram, numa: None, storage };
    let mut world = World::start(config(), Regions::new(vec![vram]), Recovered::default(), START, 7);
    let token = world.token(1, Perms::ALLOC | Perms::READ);
    let lease = world.alloc_under(1, ResourceType::Gpu, 4096, &token);
    let export = |world: &mut World, n, rights, ttl_secs| {
        let target_runtime_kind = TargetRuntime::Accelerator;
        let wanted = LeaseExport { lease_id: lease.key().0, target_runtime_kind, target_identity: 0, rights, ttl_secs };
        world.refused(n, Op::LeaseExportHandle, 0, &[], &wanted.to_vec())
    };
    assert_eq!(export(&mut world, 2, Rights::READ, 20), Status::InsufficientPerm, "another's");
    assert_eq!(export(&mut world, 1, Rights::WRITE, 20), Status::InsufficientPerm);
    assert_eq!(export(&mut world, 1, Rights::READ, 0), Status::InvalidParams);
    assert_eq!(export(&mut world, 1, Rights::READ, 20), Status::UnsupportedOp);
    world.pass(Duration::from_secs(61));
    world.tick();
    assert_eq!(export(&mut world, 1, Rights::READ, 20), Status::LeaseExpired);
}

#[test]
fn a_handle_attaches_whom_it_is_for() {
    let mut world = World::new();
    let lease = world.alloc(1, ResourceType::Mem, 8192);
    let target = identity(2).id().0;
    let result = world.ok(1, Op::LeaseExportHandle, 0, &[], &export(lease, target, Rights::READ, 20));
    let exported = LeaseExported::parse(&result).unwrap();
    assert_eq!(exported.expires_at, START_SECS + 20);
    assert_eq!(exported.binding, Binding::FabricPage { page_id: lease.0, offset: 0, len: 8192 });
    let handle = import(exported.export_handle);
    assert_eq!(world.refused(3, Op::LeaseImportHandle, 0, &[], &handle), Status::InsufficientPerm);
    assert_eq!(world.refused(2, Op::LeaseImportHandle, 0, &[], &import(5)), Status::ResourceNotFound);
    assert_eq!(world.refused(2, Op::LeaseImportHandle, 0, &[], &handle[..15]), Status::InvalidParams);
    let result = world.ok(2, Op::LeaseImportHandle, 0, &[], &handle);
    let imported = LeaseImported::parse(&result).unwrap();
    assert_eq!((imported.rights, imported.expires_at), (Rights::READ, START_SECS + 20));
    assert_eq!(read(&world, LeaseKey(imported.local_attach_id)), Ok(()));
    assert_eq!(world.ok(2, Op::LeaseImportHandle, 0, &[], &handle), result, "it is reusable");

    // A restart keeps the handle and what was attached by it.
    let recovered: Recovered = world.journal.iter().cloned().collect();
    let mut world = World::start(config(), world.regions.clone(), recovered, world.now, 8);
    let attached = LeaseKey(imported.local_attach_id);
    assert_eq!(read(&world, attached), Ok(()));
    assert_eq!(world.ok(2, Op::LeaseImportHandle, 0, &[], &handle), result);
    world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    assert_eq!(read(&world, attached), Err(Refusal::Unknown));
    assert_eq!(world.refused(2, Op::LeaseImportHandle, 0, &[], &handle), Status::ResourceNotFound);
}

#[test]
fn an_export_is_the_holders_and_within_the_rights_of_the_lease() {
    let mut world = World::new();
    let perms = Perms::ALLOC.or(Perms::READ).bits();
    let audience = identity(1).id().0;
    let params = CapRequest { perms, ttl_secs: 300, audience, epoch: None }.to_vec();
    let token = world.ok(1, Op::CapRequest, 0, &[], &params);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let mut ask = |n, params: &[u8]| world.ask(n, Op::LeaseExportHandle, 0, &[], params).status;
    let all = Rights::READ.or(Rights::WRITE);
    assert_eq!(ask(2, &export(lease, 0, Rights::READ, 9)), Status::InsufficientPerm);
    assert_eq!(ask(1, &export(LeaseId(lease.0 + 1), 0, Rights::READ, 9)), Status::ResourceNotFound);
    assert_eq!(ask(1, &export(lease, 0, all, 9)), Status::InsufficientPerm);
    assert_eq!(ask(1, &export(lease, 0, Rights::APPEND, 9)), Status::InsufficientPerm, "it counts as WRITE");
    assert_eq!(ask(1, &export(lease, 0, Rights::READ, 0)), Status::InvalidParams);
    let mut unknown_kind = export(lease, 0, Rights::READ, 9);
    unknown_kind[9] = 4;
    assert_eq!(ask(1, &unknown_kind), Status::InvalidParams);
    let mut unknown_right = export(lease, 0, Rights::READ, 9);
    unknown_right[29] = 8;
    assert_eq!(ask(1, &unknown_right), Status::InvalidParams);
    assert_eq!(ask(1, &export(lease, 0, Rights::READ, 9)), Status::Ok);
}

fn bytes(world: &World, lease: LeaseId) -> (std::sync::Arc<dyn Bytes>, u64) {
    let lease = world.node.leases().get(lease).unwrap();
    let Storage::Bytes(bytes) = &world.regions.get(lease.region().unwrap()).unwrap().storage else { panic!() };
    (bytes.clone(), lease.base)
}

fn fill(world: &World, lease: LeaseId, with: &[u8]) {
    let (bytes, base) = bytes(world, lease);
    bytes.write(base, with);
}

fn found(world: &World, lease: LeaseId) -> [u8; 4] {
    let (bytes, base) = bytes(world, lease);
    let mut found = [0; 4];
    bytes.read(base, &mut found);
    found
}

fn relocate(src: LeaseId, dst: LeaseId, mode: RelocateMode) -> Vec<u8> {
    let (src_lease_id, dst_lease_id) = (src.key().0, dst.key().0);
    LeaseRelocate { src_lease_id, dst_lease_id, mode, preserve_until_ms: None }.to_vec()
}

fn complete(bytes_transferred: u64) -> Vec<u8> {
    LeaseRelocated { bytes_transferred, outcome: Relocation::Complete }.to_vec()
}

#[test]
fn contents_are_copied_and_moved() {
    let mut world = World::new();
    let (src, dst) = (world.alloc(1, ResourceType::Mem, 4096), world.alloc(1, ResourceType::Block, 8192));
    fill(&world, src, b"data");
    for mode in [RelocateMode::Copy, RelocateMode::CowSeed] {
        fill(&world, dst, b"....");
        assert_eq!(world.ok(1, Op::LeaseRelocate, 0, &[], &relocate(src, dst, mode)), complete(4096));
        assert_eq!((found(&world, dst), read(&world, src.key())), (*b"data", Ok(())));
    }
    fill(&world, src, b"more");
    assert_eq!(world.ok(1, Op::LeaseRelocate, 0, &[], &relocate(src, dst, RelocateMode::Move)), complete(4096));
    assert_eq!((found(&world, dst), read(&world, src.key())), (*b"more", Err(Refusal::Revoked)));
    let recovered: Recovered = world.journal.iter().cloned().collect();
    assert!(recovered.leases[&src.0].revoked.is_some());
    let again = relocate(src, dst, RelocateMode::Copy);
    assert_eq!(world.refused(1, Op::LeaseRelocate, 0, &[], &again), Status::LeaseExpired);
}

#[test]
fn a_relocation_that_cannot_be_has_a_reason() {
    let mut world = World::new();
    let (small, large) = (world.alloc(1, ResourceType::Mem, 4096), world.alloc(1, ResourceType::Mem, 8192));
    let other = world.alloc(2, ResourceType::Mem, 8192);
    let mut ask = |params: &[u8]| world.ask(1, Op::LeaseRelocate, 0, &[], params);
    let answer = ask(&relocate(large, small, RelocateMode::Copy));
    let failed = LeaseRelocated::parse(&answer.result).unwrap();
    assert!(answer.status == Status::Ok && failed.bytes_transferred == 0);
    assert!(matches!(failed.outcome, Relocation::Failed { reason } if !reason.get().is_empty()));
    assert_eq!(ask(&relocate(small, other, RelocateMode::Copy)).status, Status::InsufficientPerm);
    assert_eq!(ask(&relocate(other, large, RelocateMode::Copy)).status, Status::InsufficientPerm);
    assert_eq!(ask(&relocate(LeaseId(5), large, RelocateMode::Copy)).status, Status::ResourceNotFound);
    let mut unknown = relocate(small, large, RelocateMode::Copy);
    unknown[16] = 3;
    assert_eq!(ask(&unknown).status, Status::InvalidParams);
}

/// Between the beginning and the end of a move, the source's token is revoked and the copy fails.
#[test]
fn a_failed_move_gives_the_source_back_unless_it_was_revoked_meanwhile() {
    for revoke in [false, true] {
        let mut world = World::new();
        let token = world.token(1, ALL);
        let src = world.alloc_under(1, ResourceType::Mem, 4096, &token);
        let dst = world.alloc(1, ResourceType::Mem, 4096);
        let params = relocate(src, dst, RelocateMode::Move);
        let request = Request {
            carrier: Carrier::Quic,
            presenter: identity(1).id().0,
            source: ([10, 0, 0, 1], 1).into(),
            op: Op::LeaseRelocate.code(),
            resource: 0,
            token: &[],
            params: &params,
        };
        let Step::Work(work) = world.node.request(&request, world.now) else { panic!("bytes are to be copied") };
        assert_eq!(read(&world, src.key()), Err(Refusal::Revoked), "what is written now would be lost");
        if revoke {
            let token_id = CapabilityToken::parse(&token).unwrap().token_id;
            world.ok(1, Op::CapRevoke, 0, &token, &CapRevoke { token_id, ttl_secs: 1 }.to_vec());
        }
        let outcome = done(world.node.resume(work.ticket, Err(WorkFailed), world.now));
        let failed = LeaseRelocated::parse(&outcome.answer.result).unwrap();
        assert!(matches!(failed.outcome, Relocation::Failed { .. }));
        let expected = if revoke { Err(Refusal::Revoked) } else { Ok(()) };
        assert_eq!(read(&world, src.key()), expected);
        world.journal.extend(outcome.journal);

        let recovered: Recovered = world.journal.iter().cloned().collect();
        let world = World::start(config(), world.regions.clone(), recovered, world.now, 8);
        let status = world.node.leases().query(src, world.now.mono).unwrap().0;
        assert_eq!(status, if revoke { Standing::Revoked } else { Standing::Active });
    }
}

/// While bytes are worked on, they are leased to nobody else.
#[test]
fn bytes_under_work_are_not_leased_again() {
    let mut world = World::new();
    let (src, dst) = (world.alloc(1, ResourceType::Mem, 4096), world.alloc(1, ResourceType::Mem, 4096));
    let params = relocate(src, dst, RelocateMode::Copy);
    let request = Request {
        carrier: Carrier::Quic,
        presenter: identity(1).id().0,
        source: ([10, 0, 0, 1], 1).into(),
        op: Op::LeaseRelocate.code(),
        resource: 0,
        token: &[],
        params: &params,
    };
    let Step::Work(work) = world.node.request(&request, world.now) else { panic!("bytes are to be copied") };
    for lease in [src, dst] {
        world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    }
    let rest = (1 << 20) - 8192;
    assert_eq!(world.node.resources()[0].available, rest);
    world.node.resume(work.ticket, Ok(()), world.now);
    assert_eq!(world.node.resources()[0].available, 1 << 20);
    world.pass(Duration::from_secs(1));
}
