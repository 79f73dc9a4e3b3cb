//! What a node offers: its resources, and what tells clients where they lie.

use std::mem;

use berth_lease::{Holding, Lease, RegionId, RegionKind, Regions, Storage};
use berth_wire::fabric::{
    CpuIsolation, GpuAttachInfo, GpuExclusivity, InventoryTlv, List, MAX_TRUST_DOMAIN, MemTierInfo, MemTierKind,
    NodeAffinityMeta, ResourceFlags, ResourceSummary, ResourceType, ShortText, SupportedIsolation, TierFlags,
    TierShare, Tlv,
};

use crate::{
    gpu,
    host::Host,
    node::Node,
    resource::{Stock, resource_id},
};

/// What the host knows of itself. All of it is optional: what is not there is not announced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Number of processors; 0 where nobody knows.
    pub cpus: u32,
    /// Memory nodes: what regions can lie in.
    pub tiers: Vec<Tier>,
    /// Graphics processors and accelerators.
    pub gpus: Vec<Gpu>,
}

/// One memory node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tier {
    /// Its NUMA node.
    pub numa: u16,
    /// What it is.
    pub kind: MemTierKind,
    /// Latency of an access by a near processor; 0 where nobody knows.
    pub latency_ns: u32,
    /// Bits per second; 0 where nobody knows.
    pub bandwidth_bps: u64,
    /// Its properties.
    pub flags: TierFlags,
}

/// One graphics processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// What tells it from others on this node for as long as it stays where it is: its PCI address, or what the node calls it.
    pub name: String,
    /// The memory node that it is attached to, where that is known.
    pub numa: Option<u16>,
    /// Bytes of its own memory.
    pub vram: u64,
    /// Whether the processor can map that memory.
    pub host_map: bool,
}

impl Facts {
    /// Has GPUs go by the names of the node's resources that they are; `addresses`: these names, each with a PCI address.
    pub(crate) fn name_gpus(&mut self, addresses: &[(String, String)]) {
        let named = |gpu: Gpu| {
            let names = addresses.iter().filter(|(_, address)| *address == gpu.name);
            let named: Vec<_> = names.map(|(name, _)| Gpu { name: name.clone(), ..gpu }).collect();
            if named.is_empty() { vec![gpu] } else { named }
        };
        self.gpus = mem::take(&mut self.gpus).into_iter().flat_map(named).collect();
    }
}

/// Regions of one kind of memory on one memory node.
struct ExportedTier {
    kind: MemTierKind,
    numa: Option<u16>,
    /// Leases take multiples of this many bytes.
    granule: u64,
    /// Bytes that can be leased, free or not.
    capacity: u64,
}

/// As what a region is leased.
pub(crate) fn region_type(kind: RegionKind) -> ResourceType {
    match kind {
        RegionKind::Memory => ResourceType::Mem,
        RegionKind::Block => ResourceType::Block,
        RegionKind::Vram => ResourceType::Gpu,
    }
}

impl<H: Host> Node<H> {
    /// What GET_INVENTORY answers and ANNOUNCE carries: what can be leased, then the processors and GPUs, which are told
    /// for placement.
    pub fn resources(&self) -> Vec<ResourceSummary> {
        let degraded = if self.degraded { ResourceFlags::DEGRADED } else { ResourceFlags::NONE };
        let summary = |resource_id, kind: ResourceType, fenced, capacity, available| ResourceSummary {
            resource_id,
            resource_type: kind.code(),
            flags: if fenced { degraded.or(ResourceFlags::FENCED) } else { degraded },
            capacity,
            available,
        };
        let leased = self.resources.iter().zip(&self.resource_ids).map(|(resource, id)| {
            let mut stock = resource.stock(&self.leases);
            if let Some(tasklets) = self.tasklets.as_ref().filter(|_| resource.kind() == ResourceType::Cpu) {
                stock.available = tasklets.schedule.free().cores.into();
            }
            let Stock { capacity, available, fenced } = stock;
            summary(*id, resource.kind(), fenced, capacity, available)
        });
        // Where they are leased, they are among the resources.
        let cpus = if self.tasklets.is_some() { 0 } else { self.config.facts.cpus };
        let cpus = (cpus > 0).then(|| summary(self.cpu_resource(), ResourceType::Cpu, false, cpus.into(), 0));
        let gpu = |name: &str, vram| {
            let id = resource_id(self.id(), ResourceType::Gpu, name);
            summary(id, ResourceType::Gpu, self.is_in_use(id), vram, 0)
        };
        let gpus = self.other_gpus().map(|of| gpu(&of.name, of.vram));
        let is_known = |name: &&String| self.config.facts.gpus.iter().any(|gpu| gpu.name == **name);
        let unknown = self.config.gpus_in_use.iter().filter(|name| !is_known(name)).map(|name| gpu(name, 0));
        leased.chain(cpus).chain(gpus).chain(unknown).collect()
    }

    /// The 0x08xx TLVs of ANNOUNCE, encoded.
    pub fn inventory_tlvs(&self) -> Vec<u8> {
        let mut tlvs = Vec::new();
        let mut put = |tlv: InventoryTlv<'_>| {
            let value = tlv.value();
            Tlv::append(&mut tlvs, tlv.tag(), |to| to.extend_from_slice(&value));
        };
        let facts = &self.config.facts;
        for ExportedTier { kind, numa, granule, capacity } in self.exported_tiers() {
            // What the host's memory is like says nothing of blocks.
            let host = facts.tiers.iter().find(|tier| tier.kind == kind && Some(tier.numa) == numa);
            let domain = numa.map(u128::from);
            put(InventoryTlv::MemTier(MemTierInfo {
                tier_kind: kind,
                capacity_bytes: capacity,
                latency_class_ns: host.map_or(0, |tier| tier.latency_ns),
                bandwidth_hint_bps: host.map_or(0, |tier| tier.bandwidth_bps),
                page_granule_bytes: u32::try_from(granule).unwrap_or(u32::MAX),
                share_mode: TierShare::Exclusive,
                attach_domains: List::of(domain.as_slice()).expect("at most one"),
                flags: host.map_or(TierFlags::NONE, |tier| tier.flags),
            }));
        }
        for gpu in self.other_gpus() {
            let id = self.gpu_resource(gpu);
            put(InventoryTlv::GpuAttach(GpuAttachInfo {
                gpu_resource_id: id,
                // What reaches what directly, nobody has told: each is a group of its own.
                peer_group_id: id,
                vram_bytes: gpu.vram,
                supports_host_map: gpu.host_map,
                supports_remote_map: false,
                preferred_mem_tiers: List::EMPTY,
            }));
        }
        let of_gpus = self.regions().iter().filter(|(_, region)| region.kind == RegionKind::Vram);
        let vram: Vec<RegionId> = of_gpus.map(|(id, _)| id).collect();
        for id in &vram {
            let gpu = self.region_resource(*id);
            put(InventoryTlv::GpuAttach(GpuAttachInfo {
                gpu_resource_id: gpu,
                peer_group_id: gpu,
                vram_bytes: self.leases.capacity(*id),
                supports_host_map: self.is_host_visible(*id),
                // Every carrier of memory leases reads and writes it, unless it is for sessions of HIP Remote.
                supports_remote_map: self.hip_device(*id).is_none(),
                preferred_mem_tiers: List::EMPTY,
            }));
        }
        let config = &self.config;
        let trust_domain = ShortText::<MAX_TRUST_DOMAIN>::of(&config.trust_domain).unwrap_or_default();
        put(InventoryTlv::NodeAffinity(NodeAffinityMeta {
            rack_id: config.rack,
            row_id: config.row,
            site_id: config.site,
            geo_hash: 0,
            trust_domain,
        }));
        put(InventoryTlv::SupportedIsolation(SupportedIsolation {
            cpu: &[CpuIsolation::BestEffort],
            gpu: if vram.is_empty() { &[GpuExclusivity::Shared] } else { &gpu::CLASSES },
        }));
        tlvs
    }

    /// What is known of GPUs whose memory is no region.
    fn other_gpus(&self) -> impl Iterator<Item = &Gpu> {
        let regions = self.regions();
        let is_region = |gpu: &&Gpu| regions.iter().any(|(_, of)| of.kind == RegionKind::Vram && of.name == gpu.name);
        self.config.facts.gpus.iter().filter(move |gpu| !is_region(gpu))
    }

    /// Whether the host's processors can address a GPU's memory.
    fn is_host_visible(&self, vram: RegionId) -> bool {
        let storage = self.regions().get(vram).map(|region| &region.storage);
        matches!(storage, Some(Storage::Bytes(_))) && self.hip_device(vram).is_none()
    }

    /// What can be leased of each kind of memory on each memory node: the regions, and not the host's memory. There is
    /// no kind for memory of a GPU that the host cannot address: of that, GPU_ATTACH tells.
    fn exported_tiers(&self) -> Vec<ExportedTier> {
        let mut exported: Vec<ExportedTier> = Vec::new();
        for (id, region) in self.regions().iter() {
            if region.kind == RegionKind::Vram && !self.is_host_visible(id) {
                continue;
            }
            // Where nobody knows what it lies in, it is ordinary memory.
            let kind = self.tier_of(id).unwrap_or(MemTierKind::Dram);
            let numa = region.numa.or(match (region.kind, &self.config.facts.tiers[..]) {
                (RegionKind::Memory, [only]) => Some(only.numa),
                _ => None,
            });
            let (granule, capacity) = (region.storage.granule(), self.leases.capacity(id));
            let same = |tier: &&mut ExportedTier| (tier.kind, tier.numa, tier.granule) == (kind, numa, granule);
            match exported.iter_mut().find(same) {
                Some(tier) => tier.capacity += capacity,
                None => exported.push(ExportedTier { kind, numa, granule, capacity }),
            }
        }
        exported
    }

    /// The regions that leases come from.
    pub fn regions(&self) -> &Regions {
        self.leases.regions()
    }

    /// Id of the resource that a region is; 0 if there is no such region.
    pub fn region_resource(&self, region: RegionId) -> u128 {
        self.resource_ids.get(usize::from(region.0)).copied().unwrap_or(0)
    }

    pub(crate) fn lease_resource(&self, lease: &Lease) -> u128 {
        match lease.holds {
            Holding::Bytes(region) => self.region_resource(region),
            Holding::Unit(unit) => self.resource_ids[usize::from(unit.resource)],
            Holding::Nothing => 0,
        }
    }

    pub(crate) fn cpu_resource(&self) -> u128 {
        resource_id(self.id(), ResourceType::Cpu, "cpu")
    }

    pub(crate) fn gpu_resource(&self, gpu: &Gpu) -> u128 {
        resource_id(self.id(), ResourceType::Gpu, &gpu.name)
    }

    /// What kind of memory a region lies in.
    pub(crate) fn tier_of(&self, id: RegionId) -> Option<MemTierKind> {
        let region = self.regions().get(id)?;
        let tiers = &self.config.facts.tiers;
        match (region.kind, region.numa, tiers.as_slice()) {
            (RegionKind::Block, ..) => Some(MemTierKind::Block),
            (RegionKind::Vram, ..) => self.is_host_visible(id).then_some(MemTierKind::VramVisibleHost),
            (RegionKind::Memory, Some(numa), _) => tiers.iter().find(|tier| tier.numa == numa).map(|tier| tier.kind),
            // With one kind of memory there is no question where it comes from.
            (RegionKind::Memory, None, [tier]) => Some(tier.kind),
            (RegionKind::Memory, None, _) => None,
        }
    }
}
