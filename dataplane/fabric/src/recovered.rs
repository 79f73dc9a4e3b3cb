//! The state that a journal's records add up to.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use berth_identity::{HolderRevoked, NodeId};
use berth_lease::REMEMBERED;
use berth_port::Nanos;

use crate::journal::{Grant, Handle, Record};

/// What a node must know again after a restart. Records are applied in the journal's order.
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
}

impl Recovered {
    /// Adds one record. A record about a lease that is not there changes nothing.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Started { epoch, at } => {
                self.epoch = epoch;
                self.saw(at);
            }
            Record::Granted(grant) => {
                self.saw(grant.at);
                self.leases.insert(grant.lease, RecoveredLease { grant, revoked: None, fenced: false }.into());
            }
            Record::Renewed { lease, at, expires } => {
                self.saw(at);
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.grant.expires = expires;
                }
            }
            Record::Ended { lease } => {
                self.leases.remove(&lease);
                self.forget_handles(|handle| handle.lease == lease);
            }
            Record::LeaseRevoked { lease, at } => {
                self.saw(at);
                if let Some(lease) = self.leases.get_mut(&lease) {
                    lease.revoked = Some(at);
                }
                self.forget_handles(|handle| handle.lease == lease);
            }
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
                self.saw(at);
                let revoked = HolderRevoked { issued_by, until: until.0 / 1_000_000_000 };
                self.revoked_holders.insert(holder, (at, revoked));
                for lease in self.leases.values_mut().filter(|lease| lease.grant.holder == holder) {
                    lease.revoked.get_or_insert(at);
                }
                self.attachments.retain(|(_, importer), _| *importer != holder);
                let Self { leases, handles, attachments, .. } = self;
                let revoked = |id| leases.get(&id).is_some_and(|lease| lease.grant.holder == holder);
                handles.retain(|_, handle| !revoked(handle.lease));
                attachments.retain(|(handle, _), _| handles.contains_key(handle));
            }
            Record::Seen { sender, nonce } => {
                let known = self.seen.entry(sender).or_default();
                *known = nonce.max(*known);
            }
            Record::Exported(handle) => {
                self.handles.insert(handle.handle, handle);
            }
            Record::Imported { handle, importer, key } => {
                if self.handles.contains_key(&handle) {
                    self.attachments.insert((handle, importer), key);
                }
            }
        }
    }

    /// Forgets what has lapsed by the latest time, for a snapshot to be without it.
    pub fn forget_lapsed(&mut self) {
        let latest = self.latest;
        self.revoked_tokens.retain(|_, until| *until > latest);
        self.revoked_holders.retain(|_, (_, revoked)| Nanos(revoked.until * 1_000_000_000) > latest);
        self.forget_handles(|handle| handle.expires <= latest);
        self.leases.retain(|_, lease| lease.fenced || lease.revoked.is_none_or(|at| at + REMEMBERED > latest));
    }

    /// The records that add up to this state: what a snapshot consists of.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let revoked_tokens = self.revoked_tokens.iter();
        let revoked_holders = self.revoked_holders.iter();
        let attachments = self.attachments.iter();
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
            .chain(self.handles.values().copied().map(Record::Exported))
            .chain(attachments.map(|(&(handle, importer), &key)| Record::Imported { handle, importer, key }))
    }

    /// Those of [`Recovered::records`] that tell of leases, their handles aside.
    pub fn lease_records(&self) -> impl Iterator<Item = Record> {
        self.leases.iter().flat_map(|(&lease, known)| {
            iter::once(Record::Granted(known.grant.clone()))
                .chain(known.revoked.map(|at| Record::LeaseRevoked { lease, at }))
                .chain(known.fenced.then_some(Record::LeaseFenced { lease }))
        })
    }

    /// Forgets handles, and what was attached by them.
    fn forget_handles(&mut self, gone: impl Fn(&Handle) -> bool) {
        self.handles.retain(|_, handle| !gone(handle));
        self.attachments.retain(|(handle, _), _| self.handles.contains_key(handle));
    }

    fn saw(&mut self, at: Nanos) {
        self.latest = self.latest.max(at);
    }
}

impl FromIterator<Record> for Recovered {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        let mut recovered = Self::default();
        records.into_iter().for_each(|record| recovered.apply(record));
        recovered
    }
}
