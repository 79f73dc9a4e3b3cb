//! Quotas of holders, and what they use.

use std::{
    collections::BTreeMap,
    ops::{Index, IndexMut},
};

use super::{LeaseError, Leases};

/// The items that quotas count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// Leases, until nothing remembers them: those in grace, revoked or kept count too.
    Leases,
    /// Bytes that nobody else can have, rounded up to the region's granule per lease; kept ones count too.
    Bytes,
    /// Handles to the holder's leases.
    Handles,
    /// Attachments that the holder imported, whoever exported the handle.
    Attachments,
    /// Leases of TCP proxies.
    Proxies,
    /// Connections of the holder's leases over transports of their own.
    Bindings,
    /// Pages of the holder's leases whose state is stored.
    PageState,
    /// Leases of virtual functions.
    Functions,
    /// Composite leases: of cores and an arena.
    Composites,
}

impl Item {
    /// Every item, in the order of the counts in a [`Quota`].
    pub const ALL: [Self; 9] = [
        Self::Leases,
        Self::Bytes,
        Self::Handles,
        Self::Attachments,
        Self::Proxies,
        Self::Bindings,
        Self::PageState,
        Self::Functions,
        Self::Composites,
    ];

    /// The name used in config keys, as in `max_leases`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leases => "leases",
            Self::Bytes => "bytes",
            Self::Handles => "handles",
            Self::Attachments => "attachments",
            Self::Proxies => "proxies",
            Self::Bindings => "bindings",
            Self::PageState => "page_state",
            Self::Functions => "functions",
            Self::Composites => "composites",
        }
    }
}

/// An amount of each item: a limit, or what is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota([u64; Item::ALL.len()]);

impl Quota {
    /// Zero of every item.
    pub const NOTHING: Self = Self([0; Item::ALL.len()]);
}

impl Default for Quota {
    /// No limit on leases, bytes, functions and composite leases. The other limits are above what a well-behaved tenant needs.
    fn default() -> Self {
        Self([u64::MAX, u64::MAX, 4096, 4096, 1024, 1024, 1 << 20, u64::MAX, u64::MAX])
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

/// Limits of every holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Quotas {
    /// Holders with limits of their own.
    pub of: BTreeMap<u128, Quota>,
    /// Limits of all other holders.
    pub others: Quota,
}

/// Limits that one policy sets, for one holder or for all (`None`).
pub type Limits = (Option<u128>, Vec<(Item, u64)>);

impl Quotas {
    /// Combines policies. Those for a holder override those for all; of several, the largest limit counts. Items
    /// without a policy get [`Quota::default`].
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

    /// Limits of this holder.
    pub fn get(&self, holder: u128) -> Quota {
        self.of.get(&holder).copied().unwrap_or(self.others)
    }
}

/// Usage and limits of all holders.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    quotas: Quotas,
    /// Only holders that use anything.
    usage: BTreeMap<u128, Quota>,
}

impl Accounts {
    fn usage(&self, holder: u128) -> Quota {
        self.usage.get(&holder).copied().unwrap_or(Quota::NOTHING)
    }

    /// How much more the limit of `item` allows.
    pub(super) fn room(&self, holder: u128, item: Item) -> u64 {
        self.quotas.get(holder)[item].saturating_sub(self.usage(holder)[item])
    }

    /// Whether the limit of `item` allows `more`.
    pub(super) fn check(&self, holder: u128, item: Item, more: u64) -> Result<(), LeaseError> {
        if more <= self.room(holder, item) { Ok(()) } else { Err(LeaseError::Quota) }
    }

    /// Adds to a holder's usage, even beyond its limit: a journal or a smaller quota can leave it there.
    pub(super) fn take(&mut self, holder: u128, item: Item, more: u64) {
        if more > 0 {
            self.usage.entry(holder).or_insert(Quota::NOTHING)[item] += more;
        }
    }

    /// Subtracts from a holder's usage.
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
    /// Replaces the limits. A holder that is above its new limit keeps what it has, and gets nothing more.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.accounts.quotas = quotas;
    }

    /// The limits in force.
    pub fn quotas(&self) -> &Quotas {
        &self.accounts.quotas
    }

    /// What a holder uses of each item.
    pub fn usage(&self, holder: u128) -> Quota {
        self.accounts.usage(holder)
    }

    /// Every holder that uses anything.
    pub fn usages(&self) -> impl Iterator<Item = (u128, Quota)> {
        self.accounts.usage.iter().map(|(holder, usage)| (*holder, *usage))
    }

    /// Whether a holder may have one more connection, besides `begun` that are being made.
    pub fn check_binding(&self, holder: u128, begun: u64) -> Result<(), LeaseError> {
        self.accounts.check(holder, Item::Bindings, begun + 1)
    }

    /// Counts a connection of the holder's over a transport of its own.
    pub fn bound(&mut self, holder: u128) {
        self.accounts.take(holder, Item::Bindings, 1);
    }

    /// Counts such a connection less.
    pub fn unbound(&mut self, holder: u128) {
        self.accounts.give(holder, Item::Bindings, 1);
    }
}
