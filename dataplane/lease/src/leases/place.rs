//! Where leases are placed: an arena per region, and extents that wait to return to it.

use super::{Lease, LeaseError, Leases};
use crate::{Arena, Extent, GRANULE, Quiescence, RegionId, RegionKind, Regions, Span, Storage};

/// The arenas of all regions.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) regions: Regions,
    arenas: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    arena: Arena,
    fenced: bool,
    /// Released extents that earlier probes may still access.
    draining: Vec<(Extent, Quiescence)>,
}

impl Place {
    fn draining(&self) -> u64 {
        self.draining.iter().map(|(extent, _)| extent.len).sum()
    }

    /// Returns drained extents to the arena.
    fn reclaim(&mut self) {
        let over = self.draining.extract_if(.., |(_, quiescence)| quiescence.is_over());
        over.for_each(|(extent, _)| self.arena.release(extent));
    }
}

impl Places {
    pub(super) fn new(regions: Regions) -> Self {
        let place = |storage: &Storage| Place {
            arena: Arena::new(storage.len(), storage.granule(), storage.is_volatile()),
            fenced: false,
            draining: Vec::new(),
        };
        let arenas = regions.iter().map(|(_, region)| place(&region.storage)).collect();
        Self { regions, arenas }
    }

    fn get(&self, region: RegionId) -> Option<&Place> {
        self.arenas.get(usize::from(region.0))
    }

    fn get_mut(&mut self, region: RegionId) -> Option<&mut Place> {
        self.arenas.get_mut(usize::from(region.0))
    }

    pub(super) fn kind(&self, region: RegionId) -> Option<RegionKind> {
        self.regions.get(region).map(|region| region.kind)
    }

    /// Whether a restart loses the region's contents.
    pub(super) fn is_volatile(&self, region: RegionId) -> bool {
        self.regions.get(region).is_some_and(|region| region.storage.is_volatile())
    }

    /// Leases of the region take whole multiples of this many bytes.
    fn granule(&self, region: RegionId) -> u64 {
        self.get(region).map_or(GRANULE, |place| place.arena.granule())
    }

    /// Whether the extent begins at a granule of the region.
    pub(super) fn is_aligned(&self, region: RegionId, extent: Extent) -> bool {
        extent.at.is_multiple_of(self.granule(region))
    }

    /// The granules that a lease occupies in its region; none where it has no bytes.
    pub(super) fn extent(&self, lease: &Lease) -> Extent {
        let granule = lease.region().map_or(GRANULE, |region| self.granule(region));
        Extent { at: lease.base, len: lease.len.next_multiple_of(granule) }
    }

    /// Takes bytes in one of `candidates`, those on `near` first, and of these only such whose granules leave it with at
    /// most `room` bytes. Returns the parts that must be zeroed.
    pub(super) fn place(
        &mut self,
        candidates: &[RegionId],
        near: Option<u16>,
        len: u64,
        room: u64,
    ) -> Result<(Span, Vec<Span>), LeaseError> {
        let mut order: Vec<RegionId> =
            candidates.iter().copied().filter(|region| self.get(*region).is_some()).collect();
        order.sort_by_key(|id| near.is_some() && self.regions.get(*id).and_then(|region| region.numa) != near);
        let known = !order.is_empty();
        let charge = |region: &RegionId| len.checked_next_multiple_of(self.granule(*region));
        order.retain(|region| charge(region).is_some_and(|charge| charge <= room));
        if known && order.is_empty() {
            return Err(LeaseError::Quota);
        }
        order.retain(|region| self.get(*region).is_some_and(|place| !place.fenced));
        if known && order.is_empty() {
            return Err(LeaseError::Fenced);
        }
        for region in &order {
            let place = self.get_mut(*region).expect("it is known");
            place.reclaim();
            if let Some((extent, dirty)) = place.arena.allocate(len) {
                let span = |extent: Extent| Span { region: *region, at: extent.at, len: extent.len };
                return Ok((span(extent), dirty.into_iter().map(span).collect()));
            }
        }
        let is_draining = |region: &RegionId| self.get(*region).is_some_and(|place| !place.draining.is_empty());
        Err(if order.iter().any(is_draining) { LeaseError::Busy } else { LeaseError::Capacity })
    }

    /// Takes exactly these bytes; false if they are not all free. Memory is zeroed, blocks keep their contents.
    pub(super) fn place_at(&mut self, region: RegionId, extent: Extent) -> bool {
        let dirty = self.get_mut(region).and_then(|place| place.arena.allocate_at(extent));
        if let Some(Storage::Bytes(bytes)) = self.regions.get(region).map(|region| &region.storage) {
            dirty.iter().flatten().for_each(|dirty| bytes.zero(dirty.at, dirty.len));
        }
        dirty.is_some()
    }

    /// Frees bytes that nobody has accessed.
    pub(super) fn give_back(&mut self, region: RegionId, extent: Extent) {
        self.get_mut(region).expect("it was placed there").arena.release(extent);
    }

    /// Frees bytes once no access to them is under way.
    pub(super) fn drain(&mut self, region: RegionId, extent: Extent, mut quiescence: Quiescence) {
        let place = self.get_mut(region).expect("it was placed there");
        if quiescence.is_over() {
            place.arena.release(extent);
        } else {
            place.draining.push((extent, quiescence));
        }
    }

    pub(super) fn fence(&mut self, region: RegionId) {
        self.get_mut(region).expect("it was placed there").fenced = true;
    }
}

impl Leases {
    /// The regions that leases are placed in.
    pub fn regions(&self) -> &Regions {
        &self.places.regions
    }

    /// Bytes of a region that can be leased, free or not; 0 if there is no such region.
    pub fn capacity(&self, region: RegionId) -> u64 {
        self.places.get(region).map_or(0, |place| place.arena.len())
    }

    /// Free bytes of a region, including those that are not zeroed yet.
    pub fn available(&self, region: RegionId) -> u64 {
        self.places.get(region).map_or(0, |place| place.arena.available() + place.draining())
    }

    /// Whether a restart loses the region's contents, because they are in memory.
    pub fn is_volatile(&self, region: RegionId) -> bool {
        self.places.is_volatile(region)
    }

    /// The granules that a lease occupies: nobody else has bytes of them. `None` without bytes.
    pub fn extent(&self, lease: &Lease) -> Option<Span> {
        let Extent { at, len } = self.places.extent(lease);
        lease.region().map(|region| Span { region, at, len })
    }

    /// Whether a region is fenced: nothing is leased from it, because a binding of a lease could not be torn down.
    pub fn is_fenced(&self, region: RegionId) -> bool {
        self.places.get(region).is_some_and(|place| place.fenced)
    }

    /// Zeroes at most `budget` bytes (but at least a granule) of free dirty memory, and returns how many. The rest, and
    /// blocks behind an engine, are zeroed when they are leased.
    pub fn zero(&mut self, budget: u64) -> u64 {
        let Places { regions, arenas } = &mut self.places;
        let mut zeroed = 0;
        for ((_, region), place) in regions.iter().zip(arenas) {
            let Storage::Bytes(bytes) = &region.storage else { continue };
            place.reclaim();
            while zeroed < budget
                && let Some(dirty) = place.arena.clean(budget - zeroed)
            {
                bytes.zero(dirty.at, dirty.len);
                zeroed += dirty.len;
            }
        }
        zeroed
    }
}
