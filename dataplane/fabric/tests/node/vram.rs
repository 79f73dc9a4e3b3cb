//! Leases of GPU memory: inventory, exclusivity classes, handles, and what their end leaves.
#![allow(clippy::doc_markdown)] // the names of ops and TLVs

use std::{
    ops::Range,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use crate::{
    common::*,
    rdma::{Rdma, Told, bind},
};
use berth_fabric::{
    Carrier, Config, GpuDone, GpuExecutor, GpuWorker, Job, Kernel, Outcome, Recovered, Request, Step, journal::Record,
    resource_id,
};
use berth_lease::{
    BlockInfo, BlockOp, BlockRequest, Blocks, Bytes, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Span,
    Status as Standing, Storage,
};
use berth_wire::fabric::{
    Binding, BindingTlv, CapRevoke, CapabilityToken, EndpointKind, GpuExclusivity, IntentTlv, InventoryTlv, LeaseAlloc,
    LeaseExport, LeaseExported, LeaseGrant, LeaseRef, MemTierKind, Op, ResourceFlags, ResourceType, Rights, Status,
    TargetRuntime, Tlvs, Wire as _,
};

const BASE: u64 = 1 << 40;

/// A GPU that runs nothing.
#[derive(Debug)]
struct Idle;

impl GpuExecutor for Idle {
    fn base(&self) -> u64 {
        BASE
    }
    fn open(&self, _: u64, _: Range<u64>) -> Arc<dyn GpuWorker> {
        Arc::new(Self)
    }
}

impl GpuWorker for Idle {
    fn launch(&self, _: &Kernel, _: GpuDone) {}
    fn stop(&self) {}
}

/// A GPU's own memory, leased in units of 8 KiB: operations on it end later, on another thread.
struct Engine(Arc<Heap>);

impl Blocks for Engine {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn info(&self) -> BlockInfo {
        BlockInfo { granule: UNIT, volatile: true, ..BlockInfo::default() }
    }
    fn submit(&self, request: BlockRequest) {
        let BlockOp::Zero(len) = request.op else { panic!("{request:?}") };
        let heap = self.0.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            heap.zero(request.at, len);
            request.done.done(request.tag, request.pieces, Ok(()));
        });
    }
}

const UNIT: u64 = 8 << 10;

/// A GPU with 64 KiB beside ordinary memory, and one that serves rings.
fn world() -> (World, Arc<Heap>) {
    let vram = Heap::of(64 << 10);
    (world_of(Storage::Bytes(vram.clone())), vram)
}

/// The same, where the host cannot address the memory of the GPU.
fn world_behind_engine() -> (World, Arc<Heap>) {
    let vram = Heap::of(64 << 10);
    (world_of(Storage::Blocks(Arc::new(Engine(vram.clone())))), vram)
}

fn world_of(vram: Storage) -> World {
    bound_world(vram, Vec::new())
}

/// A world whose leases are bound by an RDMA transport, which takes time to tear down.
fn world_behind_rdma(vram: Storage) -> (World, Arc<Mutex<Told>>) {
    let told = Arc::new(Mutex::new(Told { slow: true, ..Told::default() }));
    (bound_world(vram, vec![Box::new(Rdma("mlx5_0", told.clone()))]), told)
}

fn bound_world(vram: Storage, bindings: Vec<Box<dyn berth_fabric::Binding>>) -> World {
    let region = |name: &str, kind, storage| Region { name: name.into(), kind, numa: None, storage };
    let regions = Regions::new(vec![
        region("mem", RegionKind::Memory, Storage::Bytes(Heap::of(64 << 10))),
        region("vram0", RegionKind::Vram, vram),
    ]);
    let fbmt = (EndpointKind::Fbmt, "127.0.0.1:5704".parse().unwrap());
    let gpus = vec![(RegionId(1), Arc::new(Idle) as Arc<dyn GpuExecutor>)];
    let config = Config { gpus, gpus_in_use: vec!["gpu0".into()], endpoints: vec![fbmt], ..config() };
    World::start_with(config, regions, bindings, Recovered::default(), START, 7)
}

fn wanted(bytes: u64, class: Option<u8>) -> Vec<u8> {
    let mut intents = Vec::new();
    if let Some(class) = class {
        intents.extend([0x09, 0x03, 0, 1, class]);
    }
    let params = LeaseAlloc {
        duration_secs: 60,
        grace_secs: 10,
        resource_type: Some(ResourceType::Gpu),
        requested_bytes: Some(bytes),
        intents: Tlvs::parse(&intents).unwrap(),
    };
    params.to_vec()
}

fn alloc(world: &mut World, n: u8, class: Option<u8>) -> Result<LeaseId, Status> {
    let token = world.token(n, ALL);
    let answer = world.ask(n, Op::LeaseAlloc, 0, &token, &wanted(4096, class));
    match answer.status {
        Status::Ok => Ok(LeaseId(LeaseGrant::parse(&answer.result).unwrap().lease_id)),
        status => Err(status),
    }
}

fn free(world: &mut World, n: u8, lease: LeaseId) {
    world.ok(n, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
}

#[test]
fn memory_of_a_gpu_is_leased_as_a_gpu() {
    let (mut world, _) = world();
    let id = resource_id(world.node.id(), ResourceType::Gpu, "vram0");
    let resources = world.node.resources();
    let vram = resources.iter().find(|resource| resource.resource_id == id).unwrap();
    assert_eq!((vram.resource_type, vram.capacity, vram.available), (5, 64 << 10, 64 << 10));
    let tlvs = world.node.inventory_tlvs();
    let tlvs: Vec<_> = Tlvs::parse(&tlvs).unwrap().iter().map(|tlv| InventoryTlv::read(tlv).unwrap()).collect();
    let has = |is: fn(&InventoryTlv<'_>) -> bool| tlvs.iter().flatten().any(is);
    assert!(has(|tlv| matches!(tlv, InventoryTlv::MemTier(tier)
        if tier.tier_kind == MemTierKind::VramVisibleHost && tier.capacity_bytes == 64 << 10)));
    assert!(has(|tlv| matches!(tlv, InventoryTlv::SupportedIsolation(of) if of.gpu.len() == 3)));
    let attach = tlvs.iter().flatten().find_map(|tlv| match tlv {
        InventoryTlv::GpuAttach(attach) => Some((attach.gpu_resource_id, attach.vram_bytes, attach.supports_host_map)),
        _ => None,
    });
    assert_eq!(attach, Some((id, 64 << 10, true)));

    let token = world.token(1, ALL);
    let first = world.ok(1, Op::LeaseAlloc, id, &token, &wanted(4096, None));
    let second = world.ok(1, Op::LeaseAlloc, id, &token, &wanted(8192, None));
    let grant = LeaseGrant::parse(&second).unwrap();
    let tlvs: Vec<_> = grant.bindings.iter().map(|tlv| BindingTlv::read(tlv).unwrap().unwrap()).collect();
    assert!(tlvs.contains(&BindingTlv::GpuVram { base: BASE + 4096, len: 8192 }), "{tlvs:?}");
    let memory = |tlv: &BindingTlv<'_>| matches!(tlv, BindingTlv::Endpoint { kind: EndpointKind::Fbmt, .. });
    assert!(tlvs.iter().any(memory), "the carriers of memory serve it");
    let available = world.node.resources().iter().find(|of| of.resource_id == id).unwrap().available;
    assert_eq!(available, (64 << 10) - 4096 - 8192);
    // A lease of memory comes from elsewhere.
    let mem = world.alloc(1, ResourceType::Mem, 4096);
    assert_eq!(world.node.leases().get(mem).unwrap().region(), Some(RegionId(0)));
    drop(first);
}

/// No kind of memory tier is one that the host cannot address.
#[test]
fn memory_that_the_host_cannot_address_is_not_said_to_be_such() {
    let (mut world, _) = world_behind_engine();
    let id = resource_id(world.node.id(), ResourceType::Gpu, "vram0");
    let tlvs = world.node.inventory_tlvs();
    let tlvs: Vec<_> = Tlvs::parse(&tlvs).unwrap().iter().map(|tlv| InventoryTlv::read(tlv).unwrap()).collect();
    let tiers = tlvs.iter().flatten().filter_map(|tlv| match tlv {
        InventoryTlv::MemTier(tier) => Some((tier.tier_kind, tier.capacity_bytes, tier.page_granule_bytes)),
        _ => None,
    });
    assert_eq!(tiers.collect::<Vec<_>>(), [(MemTierKind::Dram, 64 << 10, 4096)]);
    let attach = tlvs.iter().flatten().find_map(|tlv| match tlv {
        InventoryTlv::GpuAttach(attach) => Some(*attach),
        _ => None,
    });
    let attach = attach.unwrap();
    assert_eq!((attach.gpu_resource_id, attach.vram_bytes), (id, 64 << 10));
    assert!(!attach.supports_host_map && attach.supports_remote_map, "carriers reach it");

    let token = world.token(1, ALL);
    world.ok(1, Op::LeaseAlloc, id, &token, &wanted(1, None));
    let second = world.ok(1, Op::LeaseAlloc, id, &token, &wanted(5000, None));
    let grant = LeaseGrant::parse(&second).unwrap();
    let tlvs: Vec<_> = grant.bindings.iter().map(|tlv| BindingTlv::read(tlv).unwrap().unwrap()).collect();
    assert!(tlvs.contains(&BindingTlv::GpuVram { base: BASE + UNIT, len: 5000 }), "{tlvs:?}");
    let memory = |tlv: &BindingTlv<'_>| matches!(tlv, BindingTlv::Endpoint { kind: EndpointKind::Fbmt, .. });
    assert!(tlvs.iter().any(memory), "the carriers of memory serve it");
    let available = world.node.resources().iter().find(|of| of.resource_id == id).unwrap().available;
    assert_eq!(available, (64 << 10) - 2 * UNIT);
}

#[test]
fn a_gpu_that_serves_something_else_is_fenced() {
    let (mut world, _) = world();
    let id = resource_id(world.node.id(), ResourceType::Gpu, "gpu0");
    let other = *world.node.resources().iter().find(|resource| resource.resource_id == id).unwrap();
    assert_eq!((other.resource_type, other.flags, other.available), (5, ResourceFlags::FENCED, 0));
    let token = world.token(1, ALL);
    assert_eq!(world.refused(1, Op::LeaseAlloc, id, &token, &wanted(4096, None)), Status::ResourceFenced);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 77, &token, &wanted(4096, None)), Status::ResourceNotFound);
}

#[test]
fn a_whole_device_is_one_leases() {
    let (mut world, _) = world();
    let shared = alloc(&mut world, 1, Some(0)).unwrap();
    assert_eq!(alloc(&mut world, 2, Some(2)), Err(Status::ResourceBusy), "there is another");
    let session = alloc(&mut world, 2, Some(1)).unwrap();
    free(&mut world, 1, shared);
    free(&mut world, 2, session);
    let whole = alloc(&mut world, 2, Some(2)).unwrap();
    for class in [None, Some(0), Some(1), Some(2)] {
        assert_eq!(alloc(&mut world, 2, class), Err(Status::ResourceBusy));
    }
    // So it is after a restart.
    let recovered: Recovered = world.journal.iter().cloned().collect();
    let config = world.node.config().clone();
    let mut world = World::start(config, world.regions.clone(), recovered, world.now, 8);
    assert_eq!(alloc(&mut world, 1, None), Err(Status::ResourceBusy));
    free(&mut world, 2, whole);
    assert!(alloc(&mut world, 1, None).is_ok());
    for reserved in [3, 4, 0xFF] {
        assert_eq!(alloc(&mut world, 1, Some(reserved)), Err(Status::InvalidParams));
    }
}

#[test]
fn the_end_of_a_lease_scrubs_its_bytes_before_the_answer() {
    let (mut world, vram) = world();
    let at = |world: &World, lease| world.node.leases().get(lease).unwrap().base;
    let dirty = |at: u64| {
        let mut byte = [0];
        vram.read(at, &mut byte);
        byte[0] != 0
    };
    // Freed.
    let lease = alloc(&mut world, 1, None).unwrap();
    let base = at(&world, lease);
    vram.write(base, &[7; 4096]);
    world.held = Some(Vec::new());
    let answer = world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    assert!(answer.endings.iter().any(|ending| !ending.is_over()), "it waits for the scrubbing");
    assert!(dirty(base));
    for teardown in world.held.take().unwrap() {
        world.tear_down(teardown);
    }
    assert!(answer.endings.iter().all(|ending| ending.is_over() && !ending.has_failed()) && !dirty(base));
    // Revoked.
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Gpu, 4096, &token);
    let base = at(&world, lease);
    vram.write(base, &[7; 4096]);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let admin = world.token(2, ALL);
    world.ok(2, Op::CapRevoke, 0, &admin, &CapRevoke { token_id, ttl_secs: 300 }.to_vec());
    assert!(!dirty(base));
    // Over. In its grace it can be renewed, and has its bytes.
    let lease = alloc(&mut world, 1, None).unwrap();
    let base = at(&world, lease);
    vram.write(base, &[7; 4096]);
    world.pass(Duration::from_secs(65));
    world.tick();
    assert!(dirty(base));
    world.pass(Duration::from_secs(10));
    world.tick();
    assert!(!dirty(base) && world.node.leases().get(lease).is_none());
}

/// A kernel may have written what lies behind a lease's last byte.
#[test]
fn whole_granules_are_scrubbed_and_nothing_else() {
    for ((mut world, vram), unit) in [(world(), 4096), (world_behind_engine(), UNIT)] {
        let token = world.token(1, ALL);
        let lease = world.alloc_under(1, ResourceType::Gpu, unit + 1, &token);
        let beside = world.alloc_under(1, ResourceType::Gpu, 1, &token);
        let base = |id| world.node.leases().get(id).unwrap().base;
        assert_eq!((base(lease), base(beside)), (0, 2 * unit));
        vram.write(0, &vec![7; 64 << 10]);
        free(&mut world, 1, lease);
        let mut bytes = vec![0; 64 << 10];
        vram.read(0, &mut bytes);
        let scrubbed = bytes.iter().position(|byte| *byte != 0);
        assert_eq!(scrubbed, Some(2 * unit as usize));
        assert!(bytes[2 * unit as usize..].iter().all(|byte| *byte == 7));
    }
}

/// Also where it was the host's memory before, or is less than it was: leases that have no place in it are revoked.
#[test]
fn a_restart_gives_leases_of_a_gpu_higher_generations() {
    let smaller = || world_of(Storage::Bytes(Heap::of(4096)));
    for (next, available) in [(world_behind_engine().0, (64 << 10) - UNIT), (smaller(), 0)] {
        let (mut world, _) = world();
        let [first, second] = [(); 2].map(|()| alloc(&mut world, 1, None).unwrap());
        let recovered: Recovered = world.journal.iter().cloned().collect();
        let (config, now) = (world.node.config().clone(), world.now);
        let (regions, journal) = (next.regions, world.journal);
        let world = World::start(config.clone(), regions.clone(), recovered, now, 8);
        let lease = world.node.leases().get(first).unwrap();
        assert_eq!((lease.base, lease.generation), (0, Generation(2)));
        assert_eq!(world.node.leases().available(RegionId(1)), available);
        assert_eq!(world.node.leases().query(second, now.mono).unwrap().0, Standing::Revoked);
        assert!(world.journal.contains(&Record::LeaseRevoked { lease: second.0, at: now.wall }));

        let recovered: Recovered = journal.into_iter().chain(world.journal).collect();
        let again = World::start(config, regions, recovered, now, 9);
        assert_eq!(again.node.leases().get(first).unwrap().generation, Generation(3));
        assert_eq!(again.node.leases().query(second, now.mono).unwrap().0, Standing::Revoked);
    }
}

/// Its zeroes need not outlive a loss of power, which it does not outlive itself.
#[test]
fn memory_behind_an_engine_is_zeroed_for_a_grant_but_not_flushed() {
    let (mut world, _) = world_behind_engine();
    let lease = alloc(&mut world, 1, None).unwrap();
    free(&mut world, 1, lease);
    let token = world.token(1, ALL);
    let request = Request {
        carrier: Carrier::Quic,
        presenter: identity(1).id().0,
        source: ([10, 0, 0, 1], 1).into(),
        op: Op::LeaseAlloc.code(),
        resource: 0,
        token: &token,
        params: &wanted(513, None),
    };
    let Step::Work(work) = world.node.request(&request, world.now) else { panic!("it is dirty") };
    assert_eq!(work.jobs, [Job::Zero(Span { region: RegionId(1), at: 0, len: UNIT })]);
    assert_eq!(work.journal, None);
    let outcome = done(world.node.resume(work.ticket, Ok(()), world.now));
    assert_eq!(outcome.answer.status, Status::Ok);
}

#[test]
fn a_scrubbing_that_fails_fences_the_gpu() {
    let (mut world, _) = world();
    let lease = alloc(&mut world, 1, None).unwrap();
    world.held = Some(Vec::new());
    world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    for teardown in world.held.take().unwrap() {
        // The work has panicked.
        let effects = world.node.torn_down(teardown.ticket, world.now);
        world.apply(effects);
    }
    assert_eq!(alloc(&mut world, 2, None), Err(Status::ResourceFenced));
}

/// A GPU's memory of the host, and its own, whose zeroing ends on another thread.
fn storages() -> [(Storage, Arc<Heap>); 2] {
    let (addressed, behind) = (Heap::of(64 << 10), Heap::of(64 << 10));
    [(Storage::Bytes(addressed.clone()), addressed), (Storage::Blocks(Arc::new(Engine(behind.clone()))), behind)]
}

/// A lease whose client has connected and written, and the token that it was had by.
fn written_by_rdma(world: &mut World, vram: &Heap) -> (LeaseId, Vec<u8>) {
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Gpu, 4096, &token);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    vram.write(world.node.leases().get(lease).unwrap().base, &[7; 4096]);
    (lease, token)
}

/// What a transport may still write is not taken for scrubbed.
#[test]
fn bytes_are_scrubbed_when_the_transport_has_let_go_of_them() {
    for (storage, vram) in storages() {
        for way in [Op::LeaseFree, Op::CapRevoke] {
            let (mut world, told) = world_behind_rdma(storage.clone());
            let (lease, token) = written_by_rdma(&mut world, &vram);
            let base = world.node.leases().get(lease).unwrap().base;
            let bytes = || {
                let mut bytes = [0; 4096];
                vram.read(base, &mut bytes);
                bytes
            };
            let available = |world: &World| world.node.leases().available(RegionId(1));
            let before = available(&world);
            world.held = Some(Vec::new());
            let answer = if way == Op::LeaseFree {
                world.ask_whole(1, way.code(), 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec())
            } else {
                revoke(&mut world, &token)
            };
            // The teardown of the transport alone, and after it the scrubbing.
            for is_bound in [true, false] {
                assert!(answer.endings.iter().any(|ending| !ending.is_over()), "{way}: it waits");
                assert_eq!(told.lock().unwrap().bound.contains(&lease), is_bound);
                assert_eq!((bytes(), available(&world)), ([7; 4096], before), "{way}");
                let [teardown] = <[_; 1]>::try_from(std::mem::take(world.held.as_mut().unwrap())).unwrap();
                world.tear_down(teardown);
            }
            assert!(answer.endings.iter().all(|ending| ending.is_over() && !ending.has_failed()), "{way}");
            assert_eq!((bytes(), available(&world)), ([0; 4096], 64 << 10), "{way}");
        }
    }
}

#[test]
fn bytes_that_the_transport_does_not_let_go_of_are_nobodys() {
    for (storage, vram) in storages() {
        let (mut world, told) = world_behind_rdma(storage);
        let (lease, token) = written_by_rdma(&mut world, &vram);
        let before = world.node.leases().available(RegionId(1));
        told.lock().unwrap().stuck = true;
        let answer = revoke(&mut world, &token);
        assert!(answer.endings.iter().all(|ending| ending.is_over() && ending.has_failed()));
        assert_eq!(answer.answer.status, Status::ResourceFenced);
        assert!(world.journal.contains(&Record::LeaseFenced { lease: lease.0 }));
        assert_eq!(world.node.leases().available(RegionId(1)), before);
        assert_eq!(alloc(&mut world, 2, None), Err(Status::ResourceFenced));
        let gpu = resource_id(world.node.id(), ResourceType::Gpu, "vram0");
        let flags = world.node.resources().iter().find(|of| of.resource_id == gpu).unwrap().flags;
        assert_eq!(flags, ResourceFlags::FENCED);
    }
}

fn revoke(world: &mut World, token: &[u8]) -> Outcome {
    let admin = world.token(2, ALL);
    let token_id = CapabilityToken::parse(token).unwrap().token_id;
    world.ask_whole(2, Op::CapRevoke.code(), 0, &admin, &CapRevoke { token_id, ttl_secs: 300 }.to_vec())
}

#[test]
fn handles_name_the_place_in_the_gpu() {
    let (mut world, _) = world();
    alloc(&mut world, 1, None).unwrap();
    let lease = alloc(&mut world, 1, None).unwrap();
    let mut export = |target_runtime_kind| {
        let (rights, lease_id) = (Rights::READ, lease.key().0);
        let params = LeaseExport { lease_id, target_runtime_kind, target_identity: 0, rights, ttl_secs: 20 };
        let answer = world.ask(1, Op::LeaseExportHandle, 0, &[], &params.to_vec());
        match answer.status {
            Status::Ok => Ok(LeaseExported::parse(&answer.result).unwrap().binding),
            status => Err(status),
        }
    };
    assert_eq!(export(TargetRuntime::GpuWorker), Ok(Binding::VramOffset { vram_offset: 4096, len: 4096 }));
    let page = Binding::FabricPage { page_id: lease.0, offset: 0, len: 4096 };
    assert_eq!([export(TargetRuntime::Tasklet), export(TargetRuntime::NativeService)], [Ok(page), Ok(page)]);
    assert_eq!(export(TargetRuntime::Accelerator), Err(Status::UnsupportedOp), "there is no dma-buf");
}

#[test]
fn classes_are_those_of_the_wire() {
    let mut tlv = Vec::new();
    IntentTlv::GpuExclusivity(GpuExclusivity::DeviceExclusive).write(&mut tlv);
    assert_eq!(tlv, [0x09, 0x03, 0, 1, 2]);
}
