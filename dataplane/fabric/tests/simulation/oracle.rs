//! What may be observed. The oracle sees requests, answers and accesses, and never the node's own state, except for
//! what the node must still have after a restart.

use std::collections::{BTreeMap, HashMap, HashSet};

use berth_lease::{LeaseId, Leases, Standing, Status};
use berth_port::Nanos;

use super::{
    keys::{KeyEnds, Keyring},
    stores::Heap,
    world::SLOT,
};

/// A lease, as far as its state shows from outside.
#[derive(Debug)]
pub struct Known {
    pub holder: u128,
    pub token: u128,
    pub region: u16,
    pub base: u64,
    pub len: u64,
    pub generation: u64,
    /// No access may begin after this, whatever was answered: set by the last executed grant or renewal.
    pub expires_at_most: u64,
    /// The latest expiry it ever had: a shorter renewal that was not answered may be lost.
    pub expires_ever: u64,
    /// From then on its bytes may be another's.
    pub ends_at_most: u64,
    /// Until then accesses must be served, even after a restart: set by answers.
    pub expires_at_least: Option<u64>,
    /// It was freed, revoked or moved: no access may begin.
    pub over: bool,
    /// That end was answered: it must never come back.
    pub over_for_good: bool,
    /// Its holder's key was revoked.
    pub holder_revoked: bool,
    /// Tag by slot; nothing written is 0.
    pub contents: BTreeMap<u64, u64>,
    /// Every tag that a slot ever had: writes that were not flushed may be lost with the power.
    pub ever: HashSet<(u64, u64)>,
}

impl Known {
    fn set(&mut self, slot: u64, tag: u64) {
        self.contents.insert(slot, tag);
        self.ever.insert((slot, tag));
    }
}

/// An imported handle.
#[derive(Debug)]
pub struct Attached {
    pub lease: u128,
    pub importer: u128,
    /// Until then it must exist if its lease lives: set by answers.
    pub at_least: Option<u64>,
    /// Its importer's key was revoked.
    pub over: bool,
    /// That end was answered: it must never come back.
    pub over_for_good: bool,
}

/// What the oracle learns when an answer leaves the node.
#[derive(Debug)]
pub enum Note {
    Nothing,
    /// Lease and expiry of a grant or renewal.
    Lives(u128, u64),
    /// Leases that are over, and the token if its revocation ended them.
    Over(Vec<u128>, Option<u128>),
    Fence(u64),
    /// All that a key had is over.
    Key(KeyEnds),
    /// Key and expiry of an attachment.
    Attached(u64, u64),
}

#[derive(Debug, Default)]
pub struct Oracle {
    pub leases: HashMap<u128, Known>,
    /// Lease by key, those of imported handles included.
    pub keys: HashMap<u64, u128>,
    /// Attachments by key.
    pub attachments: HashMap<u64, Attached>,
    /// Tokens whose revocation was executed in this run, or was answered.
    pub revoked: HashMap<u128, bool>,
    /// The keys that the node no longer serves, and the tokens it has issued.
    pub keyring: Keyring,
    /// The highest fence that was answered.
    pub fence: Option<u64>,
    /// Sender and nonce of what was executed with an effect, with the batch of its records; 0 once durable.
    executed: HashMap<(u128, u64), u64>,
    /// What was executed since the last start.
    this_run: HashSet<(u128, u64)>,
}

impl Oracle {
    /// A request is about to be executed; it must not have been before.
    pub fn executes(&mut self, sender: u128, nonce: u64) {
        assert!(self.this_run.insert((sender, nonce)), "a request was executed twice in one run");
        assert!(!self.keyring.removed.contains_key(&sender), "a request of a removed key was executed");
        assert!(!self.executed.contains_key(&(sender, nonce)), "a durable request was executed again after a restart");
    }

    /// The request had an effect, which is journaled in this batch.
    pub fn journaled(&mut self, sender: u128, nonce: u64, batch: u64) {
        self.executed.insert((sender, nonce), batch);
    }

    pub fn granted(&mut self, id: u128, known: Known, now: u64) {
        assert!(!self.revoked.contains_key(&known.token), "a grant under a revoked token");
        for (other, lease) in &self.leases {
            let apart = lease.region != known.region
                || lease.base + lease.len <= known.base
                || known.base + known.len <= lease.base;
            assert!(
                apart || lease.over || now >= lease.ends_at_most,
                "lease {id:032x} has bytes of {other:032x}, which is not over"
            );
        }
        self.keys.insert(id as u64, id);
        self.leases.insert(id, known);
    }

    /// A lease was renewed until then.
    pub fn renewed(&mut self, id: u128, until: u64) {
        let lease = self.leases.get_mut(&id).expect("a lease that was never granted was renewed");
        assert!(!lease.over, "lease {id:032x} was renewed after it was over");
        lease.ends_at_most = lease.ends_at_most - lease.expires_at_most + until;
        lease.expires_at_most = until;
        lease.expires_ever = lease.expires_ever.max(until);
        lease.expires_at_least = lease.expires_at_least.map(|least| least.min(until));
    }

    /// These leases are over from now on.
    pub fn ended(&mut self, ids: &[u128]) {
        for id in ids {
            if let Some(lease) = self.leases.get_mut(id) {
                lease.over = true;
            }
        }
    }

    /// Leases that a revocation of `token`, executed now, must end.
    pub fn revokes(&mut self, token: u128) -> Vec<u128> {
        self.revoked.entry(token).or_insert(false);
        let under: Vec<u128> =
            self.leases.iter().filter(|(_, lease)| lease.token == token).map(|(id, _)| *id).collect();
        self.ended(&under);
        under
    }

    pub fn is_revoked(&self, token: u128) -> bool {
        self.revoked.contains_key(&token)
    }

    /// A move failed, so its source lives again.
    pub fn lives_again(&mut self, id: u128) {
        self.leases.get_mut(&id).expect("it is known").over = false;
    }

    pub fn answered(&mut self, note: &Note) {
        match note {
            Note::Nothing => {}
            Note::Lives(id, until) => {
                if let Some(lease) = self.leases.get_mut(id) {
                    lease.expires_at_least = Some((*until).min(lease.expires_at_most));
                }
            }
            Note::Over(ids, token) => {
                for id in ids {
                    let lease = self.leases.get_mut(id).expect("it is known");
                    assert!(lease.over, "lease {id:032x} lives though its end is answered");
                    lease.over_for_good = true;
                }
                if let Some(token) = token {
                    self.revoked.insert(*token, true);
                }
            }
            Note::Fence(epoch) => self.fence = self.fence.max(Some(*epoch)),
            Note::Key(ends) => self.key_ended(ends),
            Note::Attached(key, until) => {
                let attached = self.attachments.get_mut(key).expect("it was imported");
                attached.at_least = Some(*until).filter(|_| !attached.over);
            }
        }
    }

    /// An access was admitted at `now`; returns its lease.
    pub fn begins(&self, key: u64, generation: u64, now: u64) -> u128 {
        let id = self.keys.get(&key).expect("an access to something that was never granted");
        let lease = &self.leases[id];
        assert!(!lease.over, "an access to lease {id:032x} began after it was over");
        assert!(now < lease.expires_at_most, "an access to lease {id:032x} began after it expired");
        assert_eq!(lease.generation, generation, "an access to bytes of an older generation");
        *id
    }

    /// An admitted access reads or writes bytes.
    pub fn touches(&self, id: u128) {
        assert!(!self.leases[&id].over_for_good, "an access to lease {id:032x} went on after its end was answered");
    }

    pub fn wrote(&mut self, id: u128, slot: u64, tag: u64) {
        self.leases.get_mut(&id).expect("it is known").set(slot, tag);
    }

    pub fn read(&self, id: u128, slot: u64, found: u64) {
        let expected = self.leases[&id].contents.get(&slot).copied().unwrap_or(0);
        assert_eq!(found, expected, "slot {slot} of lease {id:032x}");
    }

    /// Bytes were copied between two leases, from slot `first` on: both must still exist.
    pub fn copied(&mut self, from: u128, to: u128, first: u64, slots: u64) {
        self.touches(from);
        self.touches(to);
        let range = first..first + slots;
        let copied: Vec<(u64, u64)> =
            self.leases[&from].contents.range(range.clone()).map(|(slot, tag)| (*slot, *tag)).collect();
        let target = self.leases.get_mut(&to).expect("it is known");
        let before: Vec<u64> = target.contents.range(range).map(|(slot, _)| *slot).collect();
        for (slot, tag) in before.into_iter().map(|slot| (slot, 0)).chain(copied) {
            target.set(slot, tag);
        }
    }

    /// A relocation is complete: its leases lived throughout, except for the source of a move.
    pub fn relocated(&self, src: u128, dst: u128, moved: bool, now: u64) {
        for (id, may_be_over) in [(src, moved), (dst, false)] {
            let lease = &self.leases[&id];
            assert!(may_be_over || !lease.over, "a relocation is complete though lease {id:032x} is over");
            assert!(now < lease.expires_at_most, "a relocation is complete though lease {id:032x} has expired");
        }
    }

    /// After a restart, block leases must have their own bytes and nobody else's.
    pub fn finds(&mut self, disk: &Heap) {
        for (id, lease) in self.leases.iter_mut().filter(|(_, lease)| lease.region == 1 && !lease.over) {
            for slot in 0..lease.len / SLOT {
                let mut tag = [0; 8];
                disk.load(lease.base + slot * SLOT, &mut tag);
                let tag = u64::from_be_bytes(tag);
                let own = tag == 0 || lease.ever.contains(&(slot, tag));
                assert!(own, "slot {slot} of lease {id:032x} has what it never had");
                lease.contents.insert(slot, tag);
            }
        }
    }

    /// The process died; everything up to this batch is durable.
    pub fn crashed(&mut self, durable_to: u64) {
        self.this_run.clear();
        self.executed.retain(|_, batch| *batch <= durable_to);
        self.executed.values_mut().for_each(|batch| *batch = 0);
        self.revoked.retain(|_, answered| *answered);
        self.keys.clear();
    }

    /// A node has started: it must have everything that was answered, and nothing that is over.
    pub fn restarted(&mut self, leases: &Leases, fence: Option<u64>, mono: Nanos, now: u64) {
        let time = |at: Nanos| now + at.0 - mono.0;
        assert!(fence >= self.fence, "the fence {:?} is lost: {fence:?}", self.fence);
        for (id, known) in &mut self.leases {
            let status = leases.query(LeaseId(*id), mono).map(|(status, _)| status);
            if known.over_for_good {
                assert!(
                    matches!(status, None | Some(Status::Revoked)),
                    "lease {id:032x} is back after its end was answered"
                );
                continue;
            }
            let must_live = !known.over && known.expires_at_least.is_some_and(|until| now < until);
            if must_live {
                assert_eq!(status, Some(Status::Active), "lease {id:032x} is lost");
            }
            let Some(lease) = leases.get(LeaseId(*id)).filter(|lease| lease.standing == Standing::Live) else {
                known.over = true;
                continue;
            };
            // What was executed and not answered may have been forgotten.
            (known.over, known.holder_revoked) = (false, false);
            let place = (lease.region().unwrap().0, lease.base, lease.len, lease.holder, lease.token);
            assert_eq!(place, (known.region, known.base, known.len, known.holder, known.token), "lease {id:032x}");
            let (expires, ends) = (time(lease.expires), time(lease.ends()));
            assert!(status != Some(Status::Active) || expires <= known.expires_ever, "lease {id:032x} lives longer");
            (known.expires_at_most, known.ends_at_most) = (expires, ends);
            if known.region == 0 {
                assert!(lease.generation.0 > known.generation, "lease {id:032x} lost its bytes and does not tell");
                known.generation = lease.generation.0;
                known.contents.clear();
            } else {
                assert_eq!(lease.generation.0, known.generation, "lease {id:032x}");
            }
            self.keys.insert(*id as u64, *id);
        }
        for (key, attached) in &mut self.attachments {
            let Attached { lease, importer, at_least, over, over_for_good } = attached;
            let kept = leases.is_of(LeaseId((*key).into()), *importer);
            assert!(!kept || !*over_for_good, "attachment {key:016x} is back though its importer's key was revoked");
            if !self.keys.contains_key(&(*lease as u64)) {
                continue;
            }
            assert!(kept || at_least.is_none_or(|until| now >= until), "attachment {key:016x} is lost");
            if kept {
                *over = false;
                self.keys.insert(*key, *lease);
            }
        }
        for lease in leases.active(mono) {
            assert!(self.leases.contains_key(&lease.id.0), "lease {} was never granted", lease.id);
        }
    }
}
