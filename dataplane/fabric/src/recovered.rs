//! The state that a journal's records add up to.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use berth_identity::{HolderRevoked, NodeId};
use berth_lease::REMEMBERED;
use berth_port::Nanos;

use crate::journal::{Grant, Handle, Record};

/// What a node must know again after a restart. Records are applied in the journal's order, then [`Recovered::settle`]
/// ends it. All of that takes a time linear in the journal, whatever it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovered {
    /// How often the node started.
    pub epoch: u64,
    /// The latest time that a record tells: the node's clock does not go back behind it.
    pub latest: Nanos,
    /// Leases that did not end, by id. Boxed: the map's nodes are half empty where ids come in order.
    pub leases: BTreeMap<u128, Box<RecoveredLease>>,
    /// Revoked tokens, and when that may be forgotten.
    pub revoked_tokens: BTreeMap<u128, Nanos>,
    /// The installed fence.
    pub fence: Option<u64>,
    /// Holders whose tokens of before were revoked, and when.
    pub revoked_holders: BTreeMap<u128, (Nanos, HolderRevoked)>,
    /// Keys that were enrolled by request, by id.
    pub enrolled: BTreeMap<u128, [u8; 32]>,
    /// Keys that were removed.
    pub removed: BTreeSet<u128>,
    /// The highest nonce of each sender whose request must not be executed again.
    pub seen: BTreeMap<u128, u64>,
    /// Exported handles, by id.
    pub handles: BTreeMap<u128, Handle>,
    /// The keys of attachments, by handle and importer.
    pub attachments: BTreeMap<(u128, u128), u64>,
    /// Each lease with each of its handles.
    by_lease: BTreeSet<(u128, u128)>,
    /// Each importer with each handle that it imported.
    by_importer: BTreeSet<(u128, u128)>,
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
                self.forget_handles(lease);
            }
            Record::LeaseRevoked { lease, at } => {
                self.saw(at);
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.revoked = Some(at);
                }
                self.forget_handles(lease);
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
                while let Some(&(_, handle)) = self.by_importer.range((holder, 0)..=(holder, u128::MAX)).next() {
                    self.by_importer.remove(&(holder, handle));
                    self.attachments.remove(&(handle, holder));
                }
            }
            Record::Seen { sender, nonce } => {
                let known = self.seen.entry(sender).or_default();
                *known = nonce.max(*known);
            }
            Record::Exported(handle) => {
                if let Some(before) = self.handles.insert(handle.handle, handle) {
                    self.by_lease.remove(&(before.lease, before.handle));
                }
                self.by_lease.insert((handle.lease, handle.handle));
            }
            Record::Imported { handle, importer, key } => {
                if self.handles.contains_key(&handle) {
                    self.attachments.insert((handle, importer), key);
                    self.by_importer.insert((importer, handle));
                }
            }
        }
    }

    /// Ends a replay: what was revoked together is revoked one by one. Takes a time linear in what there is.
    pub fn settle(&mut self) {
        let revocations = std::mem::take(&mut self.revocations);
        self.revoked = 0;
        if revocations.is_empty() {
            return;
        }
        let mut revoked = Vec::new();
        for lease in self.leases.values_mut() {
            let since = std::mem::take(&mut lease.since);
            let Grant { lease: id, token, holder, expires, grace, .. } = lease.grant;
            let first = [LeasesOf::Token(token), LeasesOf::Holder(holder)].into_iter().filter_map(|of| {
                let all = revocations.get(&of)?;
                all.get(all.partition_point(|(number, _)| *number < since)).copied()
            });
            // One whose grace was over had ended, though no record says so yet.
            let first = first.min().filter(|(_, at)| at.0 < expires.0.saturating_add(grace.0));
            if let (None, Some((_, at))) = (lease.revoked, first) {
                lease.revoked = Some(at);
                revoked.push(id);
            }
        }
        for lease in revoked {
            self.forget_handles(lease);
        }
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
        self.handles.values_mut().map(|handle| &mut handle.expires).for_each(back);
        self.revocations.values_mut().flatten().map(|(_, at)| at).for_each(back);
        self.revoked_holders.values_mut().map(|(at, _)| at).for_each(back);
    }

    /// Forgets what has lapsed by the latest time, for a snapshot to be without it.
    pub fn forget_lapsed(&mut self) {
        self.settle();
        let latest = self.latest;
        self.revoked_tokens.retain(|_, until| *until > latest);
        self.revoked_holders.retain(|_, (_, revoked)| Nanos(revoked.until * 1_000_000_000) > latest);
        let lapsed: Vec<Handle> = self.handles.values().filter(|handle| handle.expires <= latest).copied().collect();
        for handle in lapsed {
            self.forget_handle(handle.lease, handle.handle);
        }
        self.leases.retain(|_, lease| lease.fenced || lease.revoked.is_none_or(|at| at + REMEMBERED > latest));
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
        let attachments = self.attachments.iter();
        leases
            .chain(self.handles.values().copied().map(Record::Exported))
            .chain(attachments.map(|(&(handle, importer), &key)| Record::Imported { handle, importer, key }))
    }

    /// Forgets the handles of a lease, and what was attached by them.
    fn forget_handles(&mut self, lease: u128) {
        while let Some(&(_, handle)) = self.by_lease.range((lease, 0)..=(lease, u128::MAX)).next() {
            self.forget_handle(lease, handle);
        }
    }

    fn forget_handle(&mut self, lease: u128, handle: u128) {
        self.by_lease.remove(&(lease, handle));
        self.handles.remove(&handle);
        let attached = self.attachments.range((handle, 0)..=(handle, u128::MAX)).map(|(key, _)| *key);
        for (handle, importer) in attached.collect::<Vec<_>>() {
            self.attachments.remove(&(handle, importer));
            self.by_importer.remove(&(importer, handle));
        }
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
