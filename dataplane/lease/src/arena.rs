//! Which bytes of a region are free, and which of those still need zeroing.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::GRANULE;

/// A run of bytes in a region; start and length are multiples of the region's granule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset of the first byte in the region.
    pub at: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.at + self.len
    }
}

/// The free bytes of one region.
///
/// Extents are placed by best fit, at the lowest of equal places, and merge again when they are freed. Bytes that were
/// leased are dirty until they are zeroed; a caller that is given dirty bytes is told to zero them first.
#[derive(Debug)]
pub struct Arena {
    len: u64,
    granule: u64,
    free: Extents,
    /// The part of `free` that is not zero.
    dirty: Extents,
}

impl Arena {
    /// All `len` bytes are free; a last partial granule, of `granule` bytes, is never used. `zeroed` says whether the
    /// bytes are known to be zero.
    ///
    /// # Panics
    /// If `granule` is not a power of two, or less than [`GRANULE`].
    pub fn new(len: u64, granule: u64, zeroed: bool) -> Self {
        assert!(granule.is_power_of_two() && granule >= GRANULE, "a granule of {granule} bytes");
        let len = len / granule * granule;
        let (mut free, mut dirty) = (Extents::default(), Extents::default());
        let all = Extent { at: 0, len };
        free.insert(all);
        if !zeroed {
            dirty.insert(all);
        }
        Self { len, granule, free, dirty }
    }

    /// Bytes that can be leased, free or not.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The unit of placement in bytes.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// Whether the region is too small for a single granule.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that are free, dirty ones included.
    pub fn available(&self) -> u64 {
        self.free.total
    }

    /// Free bytes that still need zeroing.
    pub fn dirty(&self) -> u64 {
        self.dirty.total
    }

    /// Takes `len` bytes, rounded up to the granule. Returns them and those parts of them that the caller must zero
    /// first.
    pub fn allocate(&mut self, len: u64) -> Option<(Extent, Vec<Extent>)> {
        let len = len.checked_next_multiple_of(self.granule).filter(|len| *len > 0)?;
        let at = self.free.best_fit(len)?;
        let extent = Extent { at, len };
        Some((extent, self.take(extent)))
    }

    /// Takes exactly these bytes; `None` if not all of them are free.
    pub fn allocate_at(&mut self, extent: Extent) -> Option<Vec<Extent>> {
        let Extent { at, len } = extent;
        let sound = at % self.granule == 0 && len % self.granule == 0 && len > 0 && self.free.contains(extent);
        sound.then(|| self.take(extent))
    }

    /// Returns bytes of an allocation. They count as dirty from now on.
    pub fn release(&mut self, extent: Extent) {
        self.free.insert(extent);
        self.dirty.insert(extent);
    }

    /// Dirty free bytes, at most `max` of them (but at least a granule), which count as zero from now on: the caller
    /// must zero them before its next call.
    pub fn clean(&mut self, max: u64) -> Option<Extent> {
        let found = self.dirty.largest()?;
        let extent = Extent { at: found.at, len: found.len.min((max / self.granule).max(1) * self.granule) };
        self.dirty.remove(extent);
        Some(extent)
    }

    fn take(&mut self, extent: Extent) -> Vec<Extent> {
        self.free.remove(extent);
        self.dirty.remove(extent)
    }
}

/// A set of extents that neither overlap nor touch.
#[derive(Debug, Default)]
struct Extents {
    /// Length, by first byte.
    by_at: BTreeMap<u64, u64>,
    /// Pairs of length and first byte, for best fit.
    by_len: BTreeSet<(u64, u64)>,
    total: u64,
}

impl Extents {
    fn add(&mut self, extent: Extent) {
        if extent.len > 0 {
            self.by_at.insert(extent.at, extent.len);
            self.by_len.insert((extent.len, extent.at));
            self.total += extent.len;
        }
    }

    fn drop(&mut self, extent: Extent) {
        self.by_at.remove(&extent.at);
        self.by_len.remove(&(extent.len, extent.at));
        self.total -= extent.len;
    }

    /// The last extent that starts at or before `at`.
    fn before(&self, at: u64) -> Option<Extent> {
        self.by_at.range(..=at).next_back().map(|(at, len)| Extent { at: *at, len: *len })
    }

    fn contains(&self, extent: Extent) -> bool {
        let end = extent.at.checked_add(extent.len);
        self.before(extent.at).is_some_and(|found| end.is_some_and(|end| end <= found.end()))
    }

    /// Adds bytes, none of which is in the set yet.
    fn insert(&mut self, mut extent: Extent) {
        if let Some(left) = self.before(extent.at) {
            assert!(left.end() <= extent.at, "{extent:?} is freed twice: {left:?} is free");
            if left.end() == extent.at {
                self.drop(left);
                extent = Extent { at: left.at, len: left.len + extent.len };
            }
        }
        let right = self.by_at.range((Bound::Excluded(extent.at), Bound::Unbounded)).next();
        if let Some(right) = right.map(|(at, len)| Extent { at: *at, len: *len }) {
            assert!(extent.end() <= right.at, "{extent:?} is freed twice: {right:?} is free");
            if extent.end() == right.at {
                self.drop(right);
                extent.len += right.len;
            }
        }
        self.add(extent);
    }

    /// Removes those bytes of `extent` that are in the set, and returns them.
    fn remove(&mut self, extent: Extent) -> Vec<Extent> {
        let first = self.before(extent.at).map_or(extent.at, |left| left.at);
        let touched = self.by_at.range(first..extent.end()).map(|(at, len)| Extent { at: *at, len: *len });
        let touched: Vec<Extent> = touched.filter(|found| found.end() > extent.at).collect();
        let mut removed = Vec::with_capacity(touched.len());
        for found in touched {
            let (at, end) = (found.at.max(extent.at), found.end().min(extent.end()));
            self.drop(found);
            self.add(Extent { at: found.at, len: at - found.at });
            self.add(Extent { at: end, len: found.end() - end });
            removed.push(Extent { at, len: end - at });
        }
        removed
    }

    fn best_fit(&self, len: u64) -> Option<u64> {
        self.by_len.range((len, 0)..).next().map(|(_, at)| *at)
    }

    fn largest(&self) -> Option<Extent> {
        self.by_len.last().map(|(len, at)| Extent { at: *at, len: *len })
    }
}
