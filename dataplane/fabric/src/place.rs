//! Placement of allocations: the lease intents of LEASE_ALLOC, applied to regions as filters and scores.

use berth_lease::{LeaseId, RegionId, RegionKind};
use berth_wire::fabric::{Affinity, AffinityStrength, AffinityTarget, IntentTier, Intents, MemTierKind, Status, Tlvs};

use crate::{host::Host, inventory::Gpu, node::Node};

impl<H: Host> Node<H> {
    /// Candidates that meet every required affinity, best first: by the number of preferred affinities, preferred tiers
    /// and near GPUs that they meet, then in the order of the configuration. Isolation and exclusivity do not apply to
    /// memory and blocks; their values are only checked.
    pub(crate) fn place(&self, candidates: Vec<RegionId>, intents: Tlvs<'_>) -> Result<Vec<RegionId>, Status> {
        let intents = Intents::read(intents).map_err(|_| Status::InvalidParams)?;
        let mut regions = candidates;
        let met = |affinity: &Affinity<'_>, region| self.is_near(&affinity.target, region) != affinity.anti;
        let required = |affinity: &Affinity<'_>| affinity.strength == AffinityStrength::Required;
        regions.retain(|region| intents.affinities().filter(required).all(|affinity| met(&affinity, *region)));
        if regions.is_empty() {
            return Err(Status::CapacityExceeded);
        }
        let score = |region: RegionId| {
            let preferred = intents.affinities().filter(|affinity| !required(affinity));
            let affinities = preferred.filter(|affinity| met(affinity, region)).count();
            let cache = intents.kv_cache.map_or(0, |cache| {
                let tier = self.tier_of(region).is_some_and(|tier| tier == tier_kind(cache.preferred_tier));
                let gpu = cache.gpu_resource_id.is_some_and(|gpu| self.is_beside(gpu, region));
                usize::from(tier) + usize::from(gpu)
            });
            affinities + cache
        };
        regions.sort_by_key(|region| std::cmp::Reverse(score(*region)));
        Ok(regions)
    }

    /// The resources of units that meet every required affinity.
    pub(crate) fn place_units(&self, candidates: Vec<usize>, intents: Tlvs<'_>) -> Result<Vec<usize>, Status> {
        let intents = Intents::read(intents).map_err(|_| Status::InvalidParams)?;
        let is_near = |target: &AffinityTarget<'_>, unit: usize| match *target {
            AffinityTarget::Node(id) => id == self.id(),
            AffinityTarget::Resource(id) => id == self.resource_ids[unit],
            AffinityTarget::TrustDomain(name) => !name.is_empty() && name == self.config.trust_domain,
            AffinityTarget::Rack(rack) => rack == self.config.rack,
            AffinityTarget::Lease(_) | AffinityTarget::Service(_) => false,
        };
        let mut units = candidates;
        units.retain(|unit| {
            let mut required = intents.affinities().filter(|it| it.strength == AffinityStrength::Required);
            required.all(|affinity| is_near(&affinity.target, *unit) != affinity.anti)
        });
        if units.is_empty() { Err(Status::CapacityExceeded) } else { Ok(units) }
    }

    /// Whether `region` counts as near the target.
    fn is_near(&self, target: &AffinityTarget<'_>, region: RegionId) -> bool {
        match *target {
            AffinityTarget::Node(id) => id == self.id(),
            AffinityTarget::Resource(id) => self.is_beside(id, region),
            AffinityTarget::Lease(id) => {
                let lease = self.leases.get(LeaseId(id));
                lease.and_then(|lease| lease.region()).is_some_and(|other| self.are_together(other, region))
            }
            AffinityTarget::Service(_) => false,
            AffinityTarget::TrustDomain(name) => !name.is_empty() && name == self.config.trust_domain,
            AffinityTarget::Rack(rack) => rack == self.config.rack,
        }
    }

    /// Whether a resource of this node is on the region's NUMA node, or may be because one of the two is unknown.
    fn is_beside(&self, resource: u128, region: RegionId) -> bool {
        if let Some((other, _)) = self.regions().iter().find(|(id, _)| self.region_resource(*id) == resource) {
            return self.are_together(other, region);
        }
        let gpus = &self.config.facts.gpus;
        if let Some(gpu) = gpus.iter().find(|gpu| self.gpu_resource(gpu) == resource) {
            return same_node(gpu.numa, self.numa_of(region));
        }
        resource == self.cpu_resource()
    }

    fn are_together(&self, one: RegionId, other: RegionId) -> bool {
        one == other || same_node(self.numa_of(one), self.numa_of(other))
    }

    fn numa_of(&self, region: RegionId) -> Option<u16> {
        let region = self.regions().get(region)?;
        let is_region = |gpu: &&Gpu| region.kind == RegionKind::Vram && region.name == gpu.name;
        region.numa.or_else(|| self.config.facts.gpus.iter().find(is_region)?.numa)
    }
}

fn same_node(one: Option<u16>, other: Option<u16>) -> bool {
    one.is_none() || other.is_none() || one == other
}

fn tier_kind(tier: IntentTier) -> MemTierKind {
    match tier {
        IntentTier::Hbm => MemTierKind::Hbm,
        IntentTier::Ddr => MemTierKind::Dram,
        IntentTier::Cxl => MemTierKind::CxlExpander,
        IntentTier::Pmem => MemTierKind::Pmem,
    }
}
