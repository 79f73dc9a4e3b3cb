//! The state that a journal's records add up to.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    iter, mem,
};

use berth_identity::{HolderRevoked, NodeId};
use berth_lease::REMEMBERED;
use berth_port::Nanos;

use crate::journal::{Grant, Handle, Record};

/// Attachments that are kept, at least, before those are looked for whose handles are gone.
const ATTACHMENTS: usize = 1 << 18;

/// What a node must know again after a restart. Records are applied in the journal's order, then [`Recovered::settle`]
/// ends it. All of that takes a time linear in the journal, whatever it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Number of the last start; 0 if there was none.
    pub epoch: u64,
    /// The latest time that a record tells: the node's clock does not go back behind it.
    pub latest: Nanos,
    /// Leases that did not end, by id. Boxed: the map's nodes are half empty where ids come in order.
    pub leases: BTreeMap<u128, Box<RecoveredLease>>,
    /// Revoked tokens, and when that may be forgotten.
    pub revoked_tokens: BTreeMap<u128, Nanos>,
    /// Epoch of the last scheduler fence that was installed.
    pub fence: Option<u64>,
    /// Holders whose tokens of before were revoked, and when.
    pub revoked_holders: BTreeMap<u128, (Nanos, HolderRevoked)>,
    /// Keys that were enrolled by request, by id.
    pub enrolled: BTreeMap<u128, [u8; 32]>,
    /// Ids of keys that were removed, which are never served again.
    pub removed: BTreeSet<u128>,
    /// The highest nonce of each sender whose request must not be executed again.
    pub seen: BTreeMap<u128, u64>,
    /// What leases are connected, or may be, by lease and binding: what their holders said of the clients.
    pub bound: BTreeMap<(u128, u64), Box<[u8]>>,
    /// The handles of each lease that has any, by the lease's full id.
    pub handles: BTreeMap<u128, Vec<Handle>>,
    /// Attachments, by handle and importer once they are settled. Until then in the order in which they were made, and
    /// some of them are gone: a journal may be full of them, and none is looked up in it.
    pub attachments: Vec<Attached>,
    /// At so many attachments those that are gone are dropped; 0 when settled.
    crowded: usize,
    /// Revocations of many leases that are not settled: when, each with its number.
    revocations: BTreeMap<LeasesOf, Vec<(u64, Nanos)>>,
    /// How many those are.
    revoked: u64,
}

/// Which leases a revocation took back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LeasesOf {
    Token(u128),
    Holder(u128),
}

/// A lease that did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredLease {
    /// How it was granted, and its newest expiry.
    pub grant: Grant,
    /// When it was revoked: its bytes may since be another lease's.
    pub revoked: Option<Nanos>,
    /// Whether a binding of it could not be torn down: its bytes are nobody's until that succeeds.
    pub fenced: bool,
    /// The number of the first revocation of many leases that came after its grant.
    since: u64,
}

/// An imported handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attached {
    /// Id of the handle.
    pub handle: u128,
    /// Id of the importer's key.
    pub importer: u128,
    /// The attachment's key.
    pub key: u64,
    /// The number of the first revocation of many leases that came after it.
    since: u64,
}

impl Recovered {
    /// Adds one record. A record about a lease that is not there changes nothing.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Started { epoch, at } => {
                self.epoch = epoch;
                self.set_clock(at);
            }
            Record::Granted(grant) => {
                self.saw(grant.at);
                let lease = RecoveredLease { grant, revoked: None, fenced: false, since: self.revoked };
                self.leases.insert(lease.grant.lease, lease.into());
            }
            Record::Renewed { lease, at, expires } => {
                self.saw(at);
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.grant.expires = expires;
                }
            }
            Record::Ended { lease } => {
                self.leases.remove(&lease);
                self.handles.remove(&lease);
                self.bound.extract_if((lease, 0)..=(lease, u64::MAX), |_, _| true).for_each(drop);
            }
            Record::Bound { lease, binding, client } => {
                self.bound.insert((lease, binding), client.into());
            }
            Record::Unbound { lease, binding } => {
                self.bound.remove(&(lease, binding));
            }
            Record::LeaseRevoked { lease, at } => {
                self.saw(at);
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.revoked = Some(at);
                }
                self.handles.remove(&lease);
            }
            Record::LeasesRevoked { token, at } => self.revoke_all(LeasesOf::Token(token), at),
            Record::LeaseFenced { lease } => {
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.fenced = true;
                }
            }
            Record::TokenRevoked { token, until } => {
                let known = self.revoked_tokens.entry(token).or_default();
                *known = until.max(*known);
            }
            Record::FenceSet { epoch } => self.fence = Some(epoch),
            Record::Enrolled { public_key } => {
                self.enrolled.insert(NodeId::of(&public_key).0, public_key);
            }
            Record::Unenrolled { key } => {
                self.enrolled.remove(&key);
                self.removed.insert(key);
            }
            Record::HolderRevoked { holder, at, issued_by, until } => {
                let revoked = HolderRevoked { issued_by, until: until.0 / 1_000_000_000 };
                self.revoked_holders.insert(holder, (at, revoked));
                self.revoke_all(LeasesOf::Holder(holder), at);
            }
            Record::Seen { sender, nonce } => {
                let known = self.seen.entry(sender).or_default();
                *known = nonce.max(*known);
            }
            Record::Exported(handle) => self.handles.entry(handle.lease).or_default().push(handle),
            Record::Imported { handle, importer, key } => {
                self.attachments.push(Attached { handle, importer, key, since: self.revoked });
                if self.attachments.len() > self.crowded.max(ATTACHMENTS) {
                    // As many more as are looked at now: it stays linear.
                    let looked_at = self.settle_attachments();
                    self.crowded = 2 * looked_at;
                }
            }
        }
    }

    /// Ends a replay: what was revoked together is revoked one by one. Takes a time linear in what there is.
    pub fn settle(&mut self) {
        self.settle_leases();
        self.settle_attachments();
        self.attachments.iter_mut().for_each(|attached| attached.since = 0);
        self.attachments.shrink_to_fit();
        self.revocations.clear();
        (self.revoked, self.crowded) = (0, 0);
    }

    /// Revokes the leases that were revoked together.
    fn settle_leases(&mut self) {
        let Self { leases, handles, revocations, .. } = self;
        if revocations.is_empty() {
            return;
        }
        for lease in leases.values_mut() {
            let since = mem::take(&mut lease.since);
            let Grant { lease: id, token, holder, expires, grace, .. } = lease.grant;
            let first = [LeasesOf::Token(token), LeasesOf::Holder(holder)].into_iter().filter_map(|of| {
                let all = revocations.get(&of)?;
                all.get(all.partition_point(|(number, _)| *number < since)).copied()
            });
            // One whose grace was over had ended, though no record says so yet.
            let first = first.min().filter(|(_, at)| at.0 < expires.0.saturating_add(grace.0));
            if let (None, Some((_, at))) = (lease.revoked, first) {
                lease.revoked = Some(at);
                handles.remove(&id);
            }
        }
    }

    /// Drops the attachments that are gone, with their handles or by a revocation of their importer, and sorts the
    /// others. Returns how many things it looked at.
    fn settle_attachments(&mut self) -> usize {
        let Self { handles, attachments, revocations, .. } = self;
        let handles: HashSet<u128> = handles.values().flatten().map(|handle| handle.handle).collect();
        attachments.retain(|attached| {
            let revoked = revocations.get(&LeasesOf::Holder(attached.importer)).and_then(|all| all.last());
            handles.contains(&attached.handle) && revoked.is_none_or(|(number, _)| *number < attached.since)
        });
        // Of one that was imported twice the later holds.
        attachments.sort_by_key(|attached| (attached.handle, attached.importer));
        attachments.dedup_by(|later, kept| {
            let same = (later.handle, later.importer) == (kept.handle, kept.importer);
            if same {
                *kept = *later;
            }
            same
        });
        handles.len() + attachments.len()
    }

    /// Sets the clock: where `at` is before what was told, all times that leases and handles have go back as far, so
    /// that each lasts as long as it would have. Not those of tokens, which go by the host's clock.
    pub(crate) fn set_clock(&mut self, at: Nanos) {
        let by = self.latest.0.saturating_sub(at.0);
        self.latest = at;
        if by == 0 {
            return;
        }
        let back = |time: &mut Nanos| time.0 = time.0.saturating_sub(by);
        for lease in self.leases.values_mut() {
            let Grant { at, expires, .. } = &mut lease.grant;
            [at, expires].into_iter().chain(&mut lease.revoked).for_each(back);
        }
        self.handles.values_mut().flatten().map(|handle| &mut handle.expires).for_each(back);
        self.revocations.values_mut().flatten().map(|(_, at)| at).for_each(back);
        self.revoked_holders.values_mut().map(|(at, _)| at).for_each(back);
    }

    /// Forgets what has lapsed by the latest time, for a snapshot to be without it.
    pub fn forget_lapsed(&mut self) {
        self.settle();
        let latest = self.latest;
        self.revoked_tokens.retain(|_, until| *until > latest);
        self.revoked_holders.retain(|_, (_, revoked)| Nanos(revoked.until * 1_000_000_000) > latest);
        self.handles.retain(|_, handles| {
            handles.retain(|handle| handle.expires > latest);
            !handles.is_empty()
        });
        self.settle_attachments();
        let Self { leases, bound, .. } = self;
        let remembered = |lease: &RecoveredLease| lease.revoked.is_none_or(|at| at + REMEMBERED > latest);
        let connected = |lease| bound.range((lease, 0)..=(lease, u64::MAX)).next().is_some();
        leases.retain(|id, lease| lease.fenced || remembered(lease) || connected(*id));
        bound.retain(|(lease, _), _| leases.contains_key(lease));
    }

    /// The records that add up to this state, once it is settled: what a snapshot consists of.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let revoked_tokens = self.revoked_tokens.iter();
        let revoked_holders = self.revoked_holders.iter();
        iter::once(Record::Started { epoch: self.epoch, at: self.latest })
            .chain(self.fence.map(|epoch| Record::FenceSet { epoch }))
            .chain(self.enrolled.values().map(|&public_key| Record::Enrolled { public_key }))
            .chain(self.removed.iter().map(|&key| Record::Unenrolled { key }))
            .chain(self.seen.iter().map(|(&sender, &nonce)| Record::Seen { sender, nonce }))
            .chain(revoked_tokens.map(|(&token, &until)| Record::TokenRevoked { token, until }))
            .chain(revoked_holders.map(|(&holder, &(at, HolderRevoked { issued_by, until }))| Record::HolderRevoked {
                holder,
                at,
                issued_by,
                until: Nanos(until * 1_000_000_000),
            }))
            .chain(self.lease_records())
    }

    /// Those of [`Recovered::records`] that tell of leases and of their handles.
    pub fn lease_records(&self) -> impl Iterator<Item = Record> {
        let leases = self.leases.iter().flat_map(|(&lease, known)| {
            iter::once(Record::Granted(known.grant.clone()))
                .chain(known.revoked.map(|at| Record::LeaseRevoked { lease, at }))
                .chain(known.fenced.then_some(Record::LeaseFenced { lease }))
        });
        let bound = self.bound.iter();
        let bound = bound.map(|(&(lease, binding), client)| Record::Bound { lease, binding, client: client.to_vec() });
        let attachments = self.attachments.iter();
        leases.chain(bound).chain(self.handles.values().flatten().copied().map(Record::Exported)).chain(
            attachments.map(|&Attached { handle, importer, key, .. }| Record::Imported { handle, importer, key }),
        )
    }

    /// What lives of these leases is revoked, when all is settled.
    fn revoke_all(&mut self, of: LeasesOf, at: Nanos) {
        self.saw(at);
        self.revocations.entry(of).or_default().push((self.revoked, at));
        self.revoked += 1;
    }

    fn saw(&mut self, at: Nanos) {
        self.latest = self.latest.max(at);
    }
}

/// Settled.
impl FromIterator<Record> for Recovered {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        let mut recovered = Self::default();
        records.into_iter().for_each(|record| recovered.apply(record));
        recovered.settle();
        recovered
    }
}
