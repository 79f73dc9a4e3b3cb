//! The neighbour table: link-layer addresses of hosts on the link.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::net::MacAddr;

/// Number of sets in the table. With [`WAYS`], a host knows at most 4096 neighbours, in 160 KiB.
const SETS: usize = 1024;
/// Entries per set. A new entry replaces the one that was confirmed longest ago.
const WAYS: usize = 4;
/// Limit on solicitations under way, which bounds what a flood of unknown peers makes us send.
const PENDING: usize = 16;
/// Time between two solicitations of one neighbour.
const RETRY: Duration = Duration::from_millis(100);
/// How long a neighbour counts as reachable without a sign of life. After that it is solicited again, while frames
/// still go to it (as RFC 4861 section 7.3.2 has it for IPv6).
const REACHABLE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    address: IpAddr,
    mac: MacAddr,
    confirmed: Nanos,
}

/// A set-associative table of fixed size.
#[derive(Debug)]
struct Table {
    sets: Box<[[Option<Entry>; WAYS]]>,
    /// The entry inserted last. To insert it again changes nothing, which is the usual case.
    last: Option<Entry>,
}

impl Default for Table {
    fn default() -> Self {
        Self { sets: vec![[None; WAYS]; SETS].into(), last: None }
    }
}

impl Table {
    #[inline]
    fn set(address: IpAddr) -> usize {
        let bits = match address {
            IpAddr::V4(a) => u64::from(a.to_bits()),
            IpAddr::V6(a) => (a.to_bits() >> 64) as u64 ^ a.to_bits() as u64,
        };
        // Fibonacci hashing: the multiplier is 2^64 divided by the golden ratio; the top bits are the best mixed.
        (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.trailing_zeros())) as usize
    }

    #[inline]
    fn get(&self, address: IpAddr) -> Option<Entry> {
        self.sets[Self::set(address)].iter().flatten().find(|e| e.address == address).copied()
    }

    #[inline]
    fn insert(&mut self, entry: Entry) {
        if self.last == Some(entry) {
            return;
        }
        self.last = Some(entry);
        let set = &mut self.sets[Self::set(entry.address)];
        let own = set.iter().position(|e| e.is_some_and(|e| e.address == entry.address));
        let way = own.unwrap_or_else(|| {
            let age = |e: &Option<Entry>| e.map(|e| e.confirmed);
            (0..WAYS).min_by_key(|&way| age(&set[way])).unwrap_or(0)
        });
        set[way] = Some(entry);
    }
}

/// Neighbours that the queues of one device share: the answer to a solicitation may arrive at any of them.
#[derive(Debug, Clone, Default)]
pub struct SharedNeighbours(Arc<Mutex<Table>>);

/// The neighbours known to one queue.
#[derive(Debug)]
pub(crate) struct Neighbours {
    fixed: Vec<(IpAddr, MacAddr)>,
    table: Table,
    shared: SharedNeighbours,
    pending: [Option<(IpAddr, Nanos)>; PENDING],
}

/// The state of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its address, confirmed lately.
    At(MacAddr),
    /// Its last known address, confirmed too long ago.
    Stale(MacAddr),
    /// Unknown.
    No,
}

impl Neighbours {
    pub(crate) fn new(fixed: &[(IpAddr, MacAddr)], shared: SharedNeighbours) -> Self {
        Self { fixed: fixed.to_vec(), table: Table::default(), shared, pending: [None; PENDING] }
    }

    /// Notes a valid packet from this neighbour.
    #[inline]
    pub(crate) fn heard(&mut self, address: IpAddr, mac: MacAddr, now: Nanos) {
        self.table.insert(Entry { address, mac, confirmed: now });
    }

    /// Notes an address that a neighbour told by ARP or NDP, and shares it with the other queues.
    pub(crate) fn told(&mut self, address: IpAddr, mac: MacAddr, now: Nanos) {
        let entry = Entry { address, mac, confirmed: now };
        self.table.insert(entry);
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).insert(entry);
    }

    #[inline]
    pub(crate) fn find(&mut self, address: IpAddr, now: Nanos) -> Known {
        if let Some((_, mac)) = self.fixed.iter().find(|(a, _)| *a == address) {
            return Known::At(*mac);
        }
        let fresh = |e: &Entry| now - e.confirmed < REACHABLE;
        let local = self.table.get(address);
        if let Some(entry) = local.filter(fresh) {
            return Known::At(entry.mac);
        }
        // The slow path: before anything is asked on the link, what another queue was told.
        let told = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).get(address);
        match told.into_iter().chain(local).max_by_key(|e| e.confirmed) {
            Some(entry) => {
                self.table.insert(entry);
                if fresh(&entry) { Known::At(entry.mac) } else { Known::Stale(entry.mac) }
            }
            None => Known::No,
        }
    }

    /// Whether a solicitation of `address` may be sent now; if so, counts it as sent.
    pub(crate) fn may_solicit(&mut self, address: IpAddr, now: Nanos) -> bool {
        let recent = |p: &Option<(IpAddr, Nanos)>| p.is_some_and(|(_, at)| now - at < RETRY);
        if self.pending.iter().any(|p| recent(p) && p.is_some_and(|(a, _)| a == address)) {
            return false;
        }
        let Some(slot) = self.pending.iter_mut().find(|p| !recent(p)) else { return false };
        *slot = Some((address, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn the_table_is_bounded_and_keeps_the_latest() {
        let mut neighbours = Neighbours::new(&[(ip(7), MacAddr([7; 6]))], SharedNeighbours::default());
        for n in 0..100_000 {
            neighbours.heard(ip(n), MacAddr([1; 6]), Nanos(u64::from(n) + 1));
        }
        assert_eq!(neighbours.find(ip(7), Nanos(1)), Known::At(MacAddr([7; 6])));
        assert_eq!(neighbours.find(ip(99_999), Nanos(100_000)), Known::At(MacAddr([1; 6])));
        assert_eq!(neighbours.find(ip(0), Nanos(100_000)), Known::No);
        let known = (0..100_000).filter(|&n| neighbours.find(ip(n), Nanos(100_000)) != Known::No).count();
        assert_eq!(known, SETS * WAYS + 1);
    }

    #[test]
    fn entries_turn_stale_and_recover() {
        let mut neighbours = Neighbours::new(&[], SharedNeighbours::default());
        neighbours.told(ip(1), MacAddr([1; 6]), Nanos(0));
        let later = Nanos(0) + REACHABLE;
        assert_eq!(neighbours.find(ip(1), later), Known::Stale(MacAddr([1; 6])));
        neighbours.heard(ip(1), MacAddr([2; 6]), later);
        assert_eq!(neighbours.find(ip(1), later), Known::At(MacAddr([2; 6])));
    }

    #[test]
    fn queues_share_what_they_are_told() {
        let shared = SharedNeighbours::default();
        let (mut a, mut b) = (Neighbours::new(&[], shared.clone()), Neighbours::new(&[], shared));
        a.told(ip(1), MacAddr([1; 6]), Nanos(0));
        assert_eq!(b.find(ip(1), Nanos(1)), Known::At(MacAddr([1; 6])));
    }

    #[test]
    fn solicitations_are_limited_per_neighbour_and_together() {
        let mut neighbours = Neighbours::new(&[], SharedNeighbours::default());
        assert!(neighbours.may_solicit(ip(0), Nanos(0)));
        assert!(!neighbours.may_solicit(ip(0), Nanos(RETRY.as_nanos() as u64 - 1)));
        let sent = (1..1000).filter(|&n| neighbours.may_solicit(ip(n), Nanos(1))).count();
        assert_eq!(sent, PENDING - 1);
        assert!(neighbours.may_solicit(ip(0), Nanos(0) + RETRY));
    }
}
