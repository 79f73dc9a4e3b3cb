//! State of leased pages (page profile).

use berth_port::Nanos;

use super::{Item, Lease, Leases, Status};
use crate::LeaseId;

/// The state of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Page {
    /// Whether a page operation has written it.
    pub dirty: bool,
    /// Number of page operations that accessed it.
    pub accesses: u32,
    /// Time of the last access in ms since the Unix epoch; 0 before the first.
    pub last_access_ms: u64,
    /// Flags of the last `PAGE_ADVISE`; 0 before the first.
    pub advice: u32,
}

impl Leases {
    /// State of a page. Untouched pages and unknown leases have the default state.
    pub fn page(&self, id: LeaseId, index: u32) -> Page {
        let pages = self.pages.get(&id.key()).filter(|_| self.get(id).is_some());
        pages.and_then(|pages| pages.get(&index)).copied().unwrap_or_default()
    }

    /// Whether the holder's quota allows a page operation on these pages: each page without stored state needs one
    /// more. Nothing is stored for a lease that cannot be used, or a page that does not exist.
    pub fn may_keep(&self, pages: &[(LeaseId, u32)], now: Nanos) -> bool {
        let owner = |(id, index): (LeaseId, u32)| {
            let usable = |lease: &Lease| lease.status(now) == Some(Status::Active) && self.has_page(lease, index);
            let kept = self.pages.get(&id.key()).is_some_and(|pages| pages.contains_key(&index));
            self.get(id).filter(|lease| !kept && usable(lease)).map(|lease| lease.holder)
        };
        let once = pages.iter().enumerate().filter(|(at, page)| !pages[..*at].contains(page));
        let owners: Vec<u128> = once.filter_map(|(_, page)| owner(*page)).collect();
        let more = owners.len() as u64;
        owners.first().is_none_or(|holder| self.accounts.check(*holder, Item::PageState, more).is_ok())
    }

    /// Counts an access to a page at `at_ms`, in ms since the Unix epoch. A write also makes the page dirty.
    pub fn touch(&mut self, id: LeaseId, index: u32, wrote: bool, at_ms: u64) {
        if let Some(page) = self.page_mut(id, index) {
            page.dirty |= wrote;
            page.accesses = page.accesses.saturating_add(1);
            page.last_access_ms = at_ms;
        }
    }

    /// Replaces the advice flags of a page.
    pub fn advise(&mut self, id: LeaseId, index: u32, flags: u32) {
        if let Some(page) = self.page_mut(id, index) {
            page.advice = flags;
        }
    }

    /// `None` if the lease has no such page.
    fn page_mut(&mut self, id: LeaseId, index: u32) -> Option<&mut Page> {
        let lease = self.get(id).filter(|lease| self.has_page(lease, index))?;
        let pages = self.pages.entry(id.key()).or_default();
        if !pages.contains_key(&index) {
            self.accounts.take(lease.holder, Item::PageState, 1);
        }
        Some(pages.entry(index).or_default())
    }

    fn has_page(&self, lease: &Lease, index: u32) -> bool {
        u64::from(index) < lease.len.div_ceil(self.config.page_size.into())
    }
}
