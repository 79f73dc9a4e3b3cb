//! Placement: lease intents as filters and scores, and what clients are told about them.
#![allow(clippy::doc_markdown)] // the names of ops and TLVs

use crate::common::*;
use berth_fabric::{Config, Facts, Gpu, Tier, resource_id};
use berth_lease::{LeaseId, Region, RegionKind, Regions, Storage};
use berth_wire::fabric::{
    Affinity, AffinityCategory, AffinityStrength, AffinityTarget, CpuIsolation, GpuExclusivity, IntentSharing,
    IntentTier, IntentTlv, InventoryTlv, KvCacheIntent, LeaseAlloc, LeaseGrant, MemTierKind, MilliCelsius, Op,
    ResourceFlags, ResourceType, SensorStatus, Status, Thermal, TierFlags, Tlv, Tlvs, Wire as _,
};

/// Memory on two NUMA nodes, DRAM and HBM, and memory anywhere; a GPU next to the HBM.
fn world() -> World {
    let region =
        |name: &str, kind, numa| Region { name: name.into(), kind, numa, storage: Storage::Bytes(Heap::of(64 << 10)) };
    let regions = Regions::new(vec![
        region("far", RegionKind::Memory, Some(0)),
        region("near", RegionKind::Memory, Some(1)),
        region("any", RegionKind::Memory, None),
        region("disk", RegionKind::Block, None),
    ]);
    let tier = |numa, kind| Tier { numa, kind, latency_ns: 90, bandwidth_bps: 0, flags: TierFlags::ECC };
    let gpu = Gpu { name: "0000:3b:00.0".into(), numa: Some(1), vram: 8 << 30, host_map: true };
    let tiers = vec![tier(0, MemTierKind::Dram), tier(1, MemTierKind::Hbm)];
    let facts = Facts { cpus: 8, tiers, gpus: vec![gpu] };
    let config = Config { site: 3, row: 2, rack: 7, trust_domain: "lab".into(), facts, ..config() };
    World::start(config, regions, berth_fabric::Recovered::default(), START, 7)
}

fn encode(intents: &[IntentTlv<'_>]) -> Vec<u8> {
    let mut tlvs = Vec::new();
    for intent in intents {
        intent.write(&mut tlvs);
    }
    tlvs
}

/// Name of the region that a lease with these intents is placed in.
fn place(world: &mut World, intents: &[u8]) -> Result<String, Status> {
    let token = world.token(1, ALL);
    let params = LeaseAlloc {
        duration_secs: 60,
        grace_secs: 0,
        resource_type: Some(ResourceType::Mem),
        requested_bytes: Some(4096),
        intents: Tlvs::parse(intents).unwrap(),
    };
    let answer = world.ask(1, Op::LeaseAlloc, 0, &token, &params.to_vec());
    if answer.status != Status::Ok {
        return Err(answer.status);
    }
    let id = LeaseId(LeaseGrant::parse(&answer.result).unwrap().lease_id);
    let region = world.node.leases().get(id).unwrap().region().unwrap();
    Ok(world.regions.get(region).unwrap().name.clone())
}

fn affinity(strength: AffinityStrength, anti: bool, target: AffinityTarget<'_>) -> IntentTlv<'_> {
    IntentTlv::Affinity(Affinity { category: AffinityCategory::Resource, strength, anti, target })
}

fn cache(preferred_tier: IntentTier, gpu_resource_id: Option<u128>) -> IntentTlv<'static> {
    IntentTlv::KvCache(KvCacheIntent {
        model_fingerprint: [1; 32],
        preferred_tier,
        page_bytes: 4096,
        sharing_mode: IntentSharing::Exclusive,
        gpu_resource_id,
    })
}

fn gpu(world: &World) -> u128 {
    resource_id(world.node.id(), ResourceType::Gpu, "0000:3b:00.0")
}

#[test]
fn hints_are_honoured_where_they_can_be() {
    let mut world = world();
    let gpu = gpu(&world);
    let near = |world: &mut World, intents: &[IntentTlv<'_>]| place(world, &encode(intents)).unwrap();
    assert_eq!(near(&mut world, &[]), "far", "in the order of the configuration");
    assert_eq!(near(&mut world, &[cache(IntentTier::Hbm, None)]), "near");
    assert_eq!(near(&mut world, &[cache(IntentTier::Ddr, None)]), "far");
    assert_eq!(near(&mut world, &[cache(IntentTier::Pmem, None)]), "far", "there is none");
    assert_eq!(near(&mut world, &[cache(IntentTier::Cxl, Some(gpu))]), "near");
    let preferred = affinity(AffinityStrength::Preferred, false, AffinityTarget::Resource(gpu));
    assert_eq!(near(&mut world, &[preferred]), "near");
    let anywhere_else = affinity(AffinityStrength::Preferred, true, AffinityTarget::Resource(gpu));
    assert_eq!(near(&mut world, &[anywhere_else]), "far");
    let classes = [IntentTlv::CpuIsolation(CpuIsolation::WholeCore), IntentTlv::GpuExclusivity(GpuExclusivity::Shared)];
    assert_eq!(near(&mut world, &classes), "far", "memory has no processors");
}

#[test]
fn required_affinities_are_met_or_nothing_is_granted() {
    let mut world = world();
    let (gpu, node, region) = (gpu(&world), world.node.id(), world.node.resources()[1].resource_id);
    let mut ask = |targets: &[(bool, AffinityTarget<'_>)]| {
        let intents: Vec<_> =
            targets.iter().map(|(anti, target)| affinity(AffinityStrength::Required, *anti, *target)).collect();
        place(&mut world, &encode(&intents))
    };
    let none = Err(Status::CapacityExceeded);
    assert_eq!(ask(&[(false, AffinityTarget::Resource(gpu))]), Ok("near".into()));
    assert_eq!(ask(&[(true, AffinityTarget::Resource(gpu))]), Ok("far".into()));
    assert_eq!(ask(&[(false, AffinityTarget::Resource(region)), (true, AffinityTarget::Resource(gpu))]), none);
    assert_eq!(ask(&[(false, AffinityTarget::Resource(5))]), none);
    assert_eq!(ask(&[(false, AffinityTarget::Node(node))]), Ok("far".into()));
    assert_eq!(ask(&[(true, AffinityTarget::Node(node))]), none);
    assert_eq!(ask(&[(false, AffinityTarget::Node(5))]), none);
    assert_eq!(ask(&[(false, AffinityTarget::Rack(7))]), Ok("far".into()));
    assert_eq!(ask(&[(false, AffinityTarget::Rack(8))]), none);
    assert_eq!(ask(&[(true, AffinityTarget::Rack(8))]), Ok("far".into()));
    assert_eq!(ask(&[(false, AffinityTarget::TrustDomain("lab"))]), Ok("far".into()));
    assert_eq!(ask(&[(false, AffinityTarget::TrustDomain("zoo"))]), none);
    assert_eq!(ask(&[(false, AffinityTarget::Service(1))]), none, "services are nothing the node knows");
    assert_eq!(ask(&[(false, AffinityTarget::Lease(1))]), none);
    let lease = world.alloc(1, ResourceType::Mem, 4096);
    let near_lease = |anti| encode(&[affinity(AffinityStrength::Required, anti, AffinityTarget::Lease(lease.0))]);
    assert_eq!(place(&mut world, &near_lease(false)), Ok("far".into()));
    assert_eq!(place(&mut world, &near_lease(true)), Ok("near".into()));
}

#[test]
fn malformed_intents_are_refused_and_unknown_ones_skipped() {
    let mut world = world();
    let mut tlv = |tag: u16, value: &[u8]| place(&mut world, &Tlv::of(tag, value).unwrap().to_vec());
    let bad = Err(Status::InvalidParams);
    assert_eq!(tlv(0x0977, b"anything"), Ok("far".into()));
    for class in [3, 0x7F, 0xFF] {
        assert_eq!(tlv(0x0902, &[class]), bad);
        assert_eq!(tlv(0x0903, &[class]), bad);
    }
    assert_eq!(tlv(0x0902, &[]), bad);
    assert_eq!(tlv(0x0902, &[0, 0]), bad);
    let required = |category, strength, kind, len: u16, target: &[u8]| {
        [&[category, strength, kind][..], &len.to_be_bytes(), target].concat()
    };
    assert_eq!(tlv(0x0910, &required(3, 1, 6, 4, &[0, 0, 0, 7])), Ok("far".into()));
    for wrong in [
        required(5, 1, 6, 4, &[0, 0, 0, 7]),
        required(0, 1, 6, 4, &[0, 0, 0, 7]),
        required(3, 3, 6, 4, &[0, 0, 0, 7]),
        required(3, 0x80, 6, 4, &[0, 0, 0, 7]),
        required(3, 1, 7, 4, &[0, 0, 0, 7]),
        required(3, 1, 6, 3, &[0, 0, 7]),
        required(3, 1, 6, 5, &[0, 0, 0, 7]),
    ] {
        assert_eq!(tlv(0x0910, &wrong), bad, "{wrong:?}");
    }
    assert_eq!(tlv(0x0901, &[0; 40]), bad);
}

/// A card of which memory is leased, one that serves rings, and one that nobody uses, each once.
#[test]
fn a_gpu_is_what_the_node_calls_it_and_nothing_beside_that() {
    let region =
        |name: &str, kind, numa| Region { name: name.into(), kind, numa, storage: Storage::Bytes(Heap::of(64 << 10)) };
    let regions = Regions::new(vec![
        region("far", RegionKind::Memory, Some(0)),
        region("near", RegionKind::Memory, Some(1)),
        region("vram0", RegionKind::Vram, None),
    ]);
    let card = |bus: u8, host_map| {
        let (name, numa) = (format!("0000:{bus:02x}:00.0"), Some(1));
        Gpu { name, numa, vram: 8 << 30, host_map }
    };
    let facts = Facts { gpus: vec![card(1, true), card(2, true), card(3, true)], ..Facts::default() };
    let gpu_addresses =
        [("gpu0", "0000:01:00.0"), ("vram0", "0000:02:00.0")].map(|(name, at)| (name.into(), at.into()));
    let (gpus_in_use, gpu_addresses) = (vec!["gpu0".into(), "soft0".into()], gpu_addresses.into());
    let config = Config { facts, gpus_in_use, gpu_addresses, ..config() };
    let mut world = World::start(config, regions, berth_fabric::Recovered::default(), START, 7);
    let id = |name| resource_id(world.node.id(), ResourceType::Gpu, name);
    let [leased, serving, free, soft] = ["vram0", "gpu0", "0000:03:00.0", "soft0"].map(id);
    let gpus: Vec<_> = world.node.resources().into_iter().filter(|of| of.resource_type == 5).collect();
    let told: Vec<_> = gpus.iter().map(|of| (of.resource_id, of.flags, of.capacity, of.available)).collect();
    let (none, fenced) = (ResourceFlags::NONE, ResourceFlags::FENCED);
    let [bytes, whole] = [64 << 10, 8 << 30];
    let wanted =
        [(leased, none, bytes, bytes), (serving, fenced, whole, 0), (free, none, whole, 0), (soft, fenced, 0, 0)];
    assert_eq!(told, wanted);
    let tlvs = world.node.inventory_tlvs();
    let tlvs = Tlvs::parse(&tlvs).unwrap();
    let attached = tlvs.iter().filter_map(|tlv| match InventoryTlv::read(tlv).unwrap()? {
        InventoryTlv::GpuAttach(of) => Some((of.gpu_resource_id, of.vram_bytes, of.supports_host_map)),
        _ => None,
    });
    assert_eq!(attached.collect::<Vec<_>>(), [(serving, whole, true), (free, whole, true), (leased, bytes, true)]);
    for gpu in [leased, serving, free] {
        let preferred = affinity(AffinityStrength::Preferred, false, AffinityTarget::Resource(gpu));
        assert_eq!(place(&mut world, &encode(&[preferred])).unwrap(), "near");
    }
}

#[test]
fn the_inventory_tells_what_placement_needs() {
    let mut world = world();
    let tlvs = world.node.inventory_tlvs();
    let tlvs = Tlvs::parse(&tlvs).unwrap();
    let tlvs: Vec<_> = tlvs.iter().map(|tlv| InventoryTlv::read(tlv).unwrap().unwrap()).collect();
    let [tiers @ .., InventoryTlv::GpuAttach(attach), place, isolation] = &tlvs[..] else { panic!("{tlvs:?}") };
    let tiers = tiers.iter().map(|tlv| {
        let InventoryTlv::MemTier(tier) = tlv else { panic!("{tlv:?}") };
        let domains: Vec<u128> = tier.attach_domains.iter().collect();
        (tier.tier_kind, tier.capacity_bytes, tier.latency_class_ns, tier.flags, domains)
    });
    let (ecc, none) = (TierFlags::ECC, TierFlags::NONE);
    let expected = [
        (MemTierKind::Dram, 64 << 10, 90, ecc, vec![0]),
        (MemTierKind::Hbm, 64 << 10, 90, ecc, vec![1]),
        (MemTierKind::Dram, 64 << 10, 0, none, vec![]),
        (MemTierKind::Block, 64 << 10, 0, none, vec![]),
    ];
    assert_eq!(tiers.collect::<Vec<_>>(), expected, "regions, not what the host has");
    assert_eq!((attach.gpu_resource_id, attach.vram_bytes, attach.supports_host_map), (gpu(&world), 8 << 30, true));
    let InventoryTlv::NodeAffinity(place) = place else { panic!("{place:?}") };
    assert_eq!((place.site_id, place.row_id, place.rack_id, place.trust_domain.get()), (3, 2, 7, "lab"));
    let InventoryTlv::SupportedIsolation(isolation) = isolation else { panic!("{isolation:?}") };
    assert_eq!((isolation.cpu, isolation.gpu), (&[CpuIsolation::BestEffort][..], &[GpuExclusivity::Shared][..]));
    let kinds: Vec<u16> = world.node.resources().iter().map(|resource| resource.resource_type).collect();
    assert_eq!(kinds, [2, 2, 2, 3, 4, 1, 5]);

    let thermal = Thermal {
        age_ms: Some(5),
        soc_temp: MilliCelsius::new(51_000),
        soc_status: Some(SensorStatus::Ok),
        ..Thermal::default()
    };
    world.asked.lock().unwrap().thermal = thermal;
    let result = world.ok(3, Op::GetThermal, 0, &[], &[]);
    assert_eq!(result, thermal.to_vec());
    assert_eq!(world.refused(3, Op::GetThermal, 0, &[], &[0]), Status::InvalidParams);
}
