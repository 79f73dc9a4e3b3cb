//! How leases end: freed, revoked, expired; and what becomes of their bytes.

use berth_port::Nanos;

use super::{Due, Lease, LeaseError, Leases, REMEMBERED, Standing};
use crate::{LeaseId, LeaseKey};

/// The most deadlines that one [`Leases::tick`] works off, so that no tick is long.
const PER_TICK: usize = 4096;

/// What time did to a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It expired and is in its grace: its connections are to be closed.
    Expired(LeaseId),
    /// Its grace is over: its bindings are to be torn down, then it is to be released or fenced.
    Ended(LeaseId),
}

impl Leases {
    /// Ends a lease at its holder's wish. Its bindings are to be torn down, then it is to be released or fenced.
    pub fn free(&mut self, id: LeaseId, holder: u128, now: Nanos) -> Result<(), LeaseError> {
        if self.held(id, holder, now)?.standing != Standing::Live {
            return Err(LeaseError::Revoked);
        }
        self.end(id.key());
        Ok(())
    }

    /// Takes a lease back: no access that starts from now on is served.
    ///
    /// Before this is answered, the [`Leases::quiescence`] taken after it must be over and its bindings torn down;
    /// then it is to be released or fenced.
    pub fn revoke(&mut self, id: LeaseId, now: Nanos) -> Result<(), LeaseError> {
        let lease = *self.get(id).filter(|lease| lease.status(now).is_some()).ok_or(LeaseError::NotFound)?;
        if lease.standing == Standing::Live {
            self.revoke_live(&lease, now);
        } else if !self.stop_moving(id.key()) {
            return Err(LeaseError::Revoked);
        }
        Ok(())
    }

    /// Takes back every lease that was allocated under a token, as [`Leases::revoke`] does; returns them.
    pub fn revoke_token(&mut self, token: u128, now: Nanos) -> Vec<LeaseId> {
        let under = self.by_token.range((token, LeaseKey(0))..=(token, LeaseKey(u64::MAX)));
        let under: Vec<Lease> = under.map(|(_, key)| self.records[key].lease).collect();
        // One whose grace is over at `now` has ended, though no tick has said so yet.
        let live = under.into_iter().filter(|lease| lease.status(now).is_some());
        live.map(|lease| {
            if !self.stop_moving(lease.id.key()) {
                self.revoke_live(&lease, now);
            }
            lease.id
        })
        .collect()
    }

    /// The bindings of a lease that was freed, revoked or has ended are torn down: its bytes may be leased again.
    /// False where the lease still lives, holds no bytes any more or is fenced.
    pub fn release(&mut self, id: LeaseId, now: Nanos) -> bool {
        let Some(record) = self.records.get_mut(&id.key()).filter(|record| record.lease.id == id) else { return false };
        if record.lease.standing == Standing::Live || !record.holds || record.lease.fenced {
            return false;
        }
        if now < record.keep_until {
            self.deadlines.insert((record.keep_until, Due::Kept(id.key())));
            return true;
        }
        record.holds = false;
        let lease = record.lease;
        self.stop_moving(id.key());
        if let Some(region) = lease.region {
            self.places.drain(region, lease.extent(), self.writer.quiescence());
        }
        if lease.standing == Standing::Over {
            self.records.remove(&id.key());
        }
        true
    }

    /// A binding of a lease that was freed, revoked or has ended could not be torn down: its bytes are never leased
    /// again, and nothing is leased from its region any more. False where the lease still lives or was released.
    pub fn fence(&mut self, id: LeaseId) -> bool {
        let Some(record) = self.records.get_mut(&id.key()).filter(|record| record.lease.id == id) else { return false };
        if record.lease.standing == Standing::Live || !record.holds {
            return false;
        }
        record.lease.fenced = true;
        let region = record.lease.region;
        self.stop_moving(id.key());
        if let Some(region) = region {
            self.places.fence(region);
        }
        true
    }

    /// Works off what is due, and returns what the caller has to act on. Call it again at once where it returned
    /// something, later otherwise.
    pub fn tick(&mut self, now: Nanos) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..PER_TICK {
            let Some((at, due)) = self.deadlines.pop_first() else { break };
            if at > now {
                self.deadlines.insert((at, due));
                break;
            }
            match due {
                Due::Expires(key) => {
                    let lease = &self.records[&key].lease;
                    events.push(Event::Expired(lease.id));
                    self.deadlines.insert((lease.ends(), Due::Ends(key)));
                }
                Due::Ends(key) => {
                    events.push(Event::Ended(self.records[&key].lease.id));
                    self.end(key);
                }
                Due::Forgotten(key) => self.forget(key),
                Due::Kept(key) => {
                    let id = self.records[&key].lease.id;
                    self.release(id, now);
                }
                Due::Handle(handle) => self.drop_handle(handle),
            }
        }
        events
    }

    /// A live lease is over.
    fn end(&mut self, key: LeaseKey) {
        let record = self.records.get_mut(&key).expect("a live lease");
        let before = record.lease;
        record.lease.standing = Standing::Over;
        let after = record.lease;
        self.publish(&after);
        self.no_longer_live(&before);
        self.drop_handles(key);
    }

    /// A live lease is revoked.
    pub(super) fn revoke_live(&mut self, lease: &Lease, now: Nanos) {
        let key = lease.id.key();
        let record = self.records.get_mut(&key).expect("a live lease");
        record.lease.standing = Standing::Revoked { at: now };
        let after = record.lease;
        self.publish(&after);
        self.publish_attachments(key);
        self.no_longer_live(lease);
        self.deadlines.insert((now + REMEMBERED, Due::Forgotten(key)));
    }

    /// A revoked lease lives after all: its move failed before anyone was told.
    pub(super) fn unrevoke(&mut self, key: LeaseKey) {
        let record = self.records.get_mut(&key).expect("a revoked lease");
        let Standing::Revoked { at } = record.lease.standing else { return };
        record.lease.standing = Standing::Live;
        let lease = record.lease;
        self.deadlines.remove(&(at + REMEMBERED, Due::Forgotten(key)));
        self.deadlines.insert((lease.expires, Due::Expires(key)));
        self.by_token.insert((lease.token, key));
        self.count(&lease, true);
        self.publish(&lease);
        self.publish_attachments(key);
    }

    fn no_longer_live(&mut self, lease: &Lease) {
        self.forget_deadlines(lease);
        self.by_token.remove(&(lease.token, lease.id.key()));
        self.count(lease, false);
    }

    /// A revocation has been remembered long enough.
    fn forget(&mut self, key: LeaseKey) {
        self.stop_moving(key);
        self.drop_handles(key);
        let record = self.records.get_mut(&key).expect("a revoked lease");
        record.lease.standing = Standing::Over;
        let (lease, holds) = (record.lease, record.holds);
        self.publish(&lease);
        if !holds {
            self.records.remove(&key);
        }
    }
}
