//! What holders have, and what each may have.

use std::{
    collections::BTreeMap,
    ops::{Index, IndexMut},
};

use super::{LeaseError, Leases};

/// What is counted of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// Leases, until nothing remembers them: those in grace, revoked or kept too.
    Leases,
    /// Bytes that nobody else can have, each lease's rounded up to [`GRANULE`](crate::GRANULE): kept ones too.
    Bytes,
    /// Handles of its leases.
    Handles,
    /// Attachments, by handles of anyone's.
    Attachments,
    /// Leases of proxies.
    Proxies,
    /// Connections of its leases over transports of their own.
    Bindings,
    /// Pages of its leases whose state is kept.
    PageState,
}

impl Item {
    /// Every item, in order.
    pub const ALL: [Self; 7] =
        [Self::Leases, Self::Bytes, Self::Handles, Self::Attachments, Self::Proxies, Self::Bindings, Self::PageState];

    /// Its name, as in `max_leases`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leases => "leases",
            Self::Bytes => "bytes",
            Self::Handles => "handles",
            Self::Attachments => "attachments",
            Self::Proxies => "proxies",
            Self::Bindings => "bindings",
            Self::PageState => "page_state",
        }
    }
}

/// How much of each item one holder may have, or has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota([u64; Item::ALL.len()]);

impl Quota {
    /// Nothing.
    pub const NOTHING: Self = Self([0; Item::ALL.len()]);
}

impl Default for Quota {
    /// Leases and bytes as many as there are; of the rest, what a tenant that means well does not come near.
    fn default() -> Self {
        Self([u64::MAX, u64::MAX, 4096, 4096, 1024, 1024, 1 << 20])
    }
}

impl Index<Item> for Quota {
    type Output = u64;
    fn index(&self, item: Item) -> &u64 {
        &self.0[item as usize]
    }
}

impl IndexMut<Item> for Quota {
    fn index_mut(&mut self, item: Item) -> &mut u64 {
        &mut self.0[item as usize]
    }
}

/// What each holder may have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quotas {
    /// Holders with a quota of their own.
    pub of: BTreeMap<u128, Quota>,
    /// The quota of every other one.
    pub others: Quota,
}

/// What one policy says of one holder, or of every one (`None`).
pub type Limits = (Option<u128>, Vec<(Item, u64)>);

impl Quotas {
    /// What policies add up to. Those for a holder go before those for every one; of several the largest counts; and
    /// where none says anything, [`Quota::default`].
    pub fn new(policies: &[Limits]) -> Self {
        let quota = |holder: Option<u128>, mut quota: Quota| {
            let of_holder = policies.iter().filter(|(of, _)| *of == holder).flat_map(|(_, limits)| limits);
            for item in Item::ALL {
                let limits = of_holder.clone().filter(|(of, _)| *of == item);
                quota[item] = limits.map(|(_, most)| *most).max().unwrap_or(quota[item]);
            }
            quota
        };
        let others = quota(None, Quota::default());
        let holders = policies.iter().filter_map(|(holder, _)| *holder);
        Self { of: holders.map(|holder| (holder, quota(Some(holder), others))).collect(), others }
    }

    /// What a holder may have.
    pub fn get(&self, holder: u128) -> Quota {
        self.of.get(&holder).copied().unwrap_or(self.others)
    }
}

/// What holders have, beside what they may have.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    quotas: Quotas,
    /// Holders that have anything.
    usage: BTreeMap<u128, Quota>,
}

impl Accounts {
    fn usage(&self, holder: u128) -> Quota {
        self.usage.get(&holder).copied().unwrap_or(Quota::NOTHING)
    }

    /// Whether a holder may have so much more.
    pub(super) fn check(&self, holder: u128, item: Item, more: u64) -> Result<(), LeaseError> {
        let sum = self.usage(holder)[item].checked_add(more);
        let within = sum.is_some_and(|sum| sum <= self.quotas.get(holder)[item]);
        if within { Ok(()) } else { Err(LeaseError::Quota) }
    }

    /// A holder has so much more, also where that is more than it may have: what a journal or a smaller quota leaves it.
    pub(super) fn take(&mut self, holder: u128, item: Item, more: u64) {
        if more > 0 {
            self.usage.entry(holder).or_insert(Quota::NOTHING)[item] += more;
        }
    }

    /// A holder has so much less.
    pub(super) fn give(&mut self, holder: u128, item: Item, less: u64) {
        if let Some(usage) = self.usage.get_mut(&holder) {
            usage[item] -= less;
            if *usage == Quota::NOTHING {
                self.usage.remove(&holder);
            }
        }
    }
}

impl Leases {
    /// Says what each holder may have from now on. Who has more keeps it, and gets nothing more.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.accounts.quotas = quotas;
    }

    /// What each holder may have.
    pub fn quotas(&self) -> &Quotas {
        &self.accounts.quotas
    }

    /// What a holder has.
    pub fn usage(&self, holder: u128) -> Quota {
        self.accounts.usage(holder)
    }

    /// Everyone who has anything, and what.
    pub fn usages(&self) -> impl Iterator<Item = (u128, Quota)> {
        self.accounts.usage.iter().map(|(holder, usage)| (*holder, *usage))
    }

    /// Whether a holder may have one more connection, beside `begun` that are being made.
    pub fn check_binding(&self, holder: u128, begun: u64) -> Result<(), LeaseError> {
        self.accounts.check(holder, Item::Bindings, begun + 1)
    }

    /// A lease of this holder is connected over a transport of its own.
    pub fn bound(&mut self, holder: u128) {
        self.accounts.take(holder, Item::Bindings, 1);
    }

    /// One that was connected is not any more.
    pub fn unbound(&mut self, holder: u128) {
        self.accounts.give(holder, Item::Bindings, 1);
    }
}
