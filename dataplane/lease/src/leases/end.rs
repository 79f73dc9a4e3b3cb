//! How leases end (freed, revoked, expired), and what becomes of their bytes.

use berth_port::Nanos;

use super::{Holding, Item, Lease, LeaseError, Leases, REMEMBERED, Standing, Timer, record::Slot};
use crate::LeaseId;

/// Limit on the deadlines that one [`Leases::tick`] handles, so that no tick takes long.
const PER_TICK: usize = 4096;

/// A change that the passage of time brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The lease expired and is in its grace: close its connections.
    Expired(LeaseId),
    /// Its grace is over: tear down its bindings, then release or fence it.
    Ended(LeaseId),
}

impl Leases {
    /// Ends a lease at its holder's request. Tear down its bindings, then release or fence it.
    pub fn free(&mut self, id: LeaseId, holder: u128, now: Nanos) -> Result<(), LeaseError> {
        let (slot, lease) = self.held(id, holder, now)?;
        if lease.standing != Standing::Live {
            return Err(LeaseError::Revoked);
        }
        self.end(slot);
        Ok(())
    }

    /// Takes a lease back: accesses that start from now on are refused.
    ///
    /// Before the revocation is answered, wait for a [`Leases::quiescence`] taken after this call and tear down the
    /// bindings; then release or fence the lease.
    pub fn revoke(&mut self, id: LeaseId, now: Nanos) -> Result<(), LeaseError> {
        let known = self.known(id).filter(|(_, lease)| lease.status(now).is_some());
        let (slot, lease) = known.ok_or(LeaseError::NotFound)?;
        if lease.standing == Standing::Live {
            self.revoke_live(slot, now);
        } else if !self.stop_moving(slot) {
            return Err(LeaseError::Revoked);
        }
        Ok(())
    }

    /// Revokes every lease that was allocated under a token; see [`Leases::revoke`]. Returns them in the order of their
    /// keys.
    pub fn revoke_token(&mut self, token: u128, now: Nanos) -> Vec<LeaseId> {
        let under: Vec<_> = self.grantees.under(token).collect();
        self.revoke_all(under, now)
    }

    /// Revokes every lease that a presenter holds, see [`Leases::revoke`], and ends its attachments. Returns the leases
    /// in the order of their keys.
    pub fn revoke_holder(&mut self, holder: u128, now: Nanos) -> Vec<LeaseId> {
        self.detach(holder);
        let held: Vec<_> = self.grantees.held_by(holder).collect();
        self.revoke_all(held, now)
    }

    fn revoke_all(&mut self, slots: Vec<Slot>, now: Nanos) -> Vec<LeaseId> {
        let all = slots.into_iter().map(|slot| (slot, self.lease(slot)));
        // One whose grace is over at `now` has ended, though no tick has said so yet.
        let mut live: Vec<(Slot, LeaseId)> =
            all.filter(|(_, lease)| lease.status(now).is_some()).map(|(slot, lease)| (slot, lease.id)).collect();
        live.sort_unstable_by_key(|(_, id)| id.key());
        for (slot, _) in &live {
            if !self.stop_moving(*slot) {
                self.revoke_live(*slot, now);
            }
        }
        live.into_iter().map(|(_, id)| id).collect()
    }

    /// Frees the bytes of a lease that was freed, was revoked or has ended, once its bindings are torn down. False if
    /// the lease still lives, holds no bytes any more, or is fenced.
    pub fn release(&mut self, id: LeaseId, now: Nanos) -> bool {
        let Some((slot, lease)) = self.known(id) else { return false };
        if lease.standing == Standing::Live || !self.records[slot].holds || lease.fenced {
            return false;
        }
        if let Some(until) = self.kept.get(&id.key()).filter(|until| now < **until) {
            self.timers.insert((*until, Timer::Kept(id.key())));
            return true;
        }
        self.records[slot].holds = false;
        let extent = self.places.extent(&lease);
        self.accounts.give(lease.holder, Item::Bytes, extent.len);
        self.stop_moving(slot);
        if let Some(region) = lease.region() {
            self.places.drain(region, extent, self.writer.quiescence());
        }
        if lease.standing == Standing::Over {
            self.erase(slot);
        }
        true
    }

    /// Keeps the bytes of a lease that was freed, was revoked or has ended from ever being leased again, because a
    /// binding could not be torn down. Nothing is leased from its region any more. False if the lease still lives or
    /// was released.
    pub fn fence(&mut self, id: LeaseId) -> bool {
        let Some((slot, lease)) = self.known(id) else { return false };
        if lease.standing == Standing::Live || !self.records[slot].holds {
            return false;
        }
        self.change(slot, |lease| lease.fenced = true);
        self.stop_moving(slot);
        if let Some(region) = lease.region() {
            self.places.fence(region);
        }
        true
    }

    /// What kept a lease fenced is over, and it holds a unit: that may be another's when it is released. Bytes stay fenced:
    /// accesses to them may be anywhere.
    pub fn unfence(&mut self, id: LeaseId) {
        if let Some((slot, lease)) = self.known(id)
            && matches!(lease.holds, Holding::Unit(_))
        {
            self.change(slot, |lease| lease.fenced = false);
        }
    }

    /// Handles what is due, and returns the events that the caller must act on. If it returned any, call it again at
    /// once.
    pub fn tick(&mut self, now: Nanos) -> Vec<Event> {
        for _ in 0..PER_TICK {
            let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) else { break };
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Kept(key) => {
                    if let Some(lease) = self.by_key(key) {
                        self.release(lease.id, now);
                    }
                }
                Timer::Handle(handle) => self.drop_handle(handle),
            }
        }
        let mut events = Vec::new();
        for _ in 0..PER_TICK {
            let Some(slot) = self.deadlines.pop(now) else { break };
            let lease = self.lease(slot);
            match lease.standing {
                Standing::Live if self.records[slot].in_grace => {
                    events.push(Event::Ended(lease.id));
                    self.end(slot);
                }
                Standing::Live => {
                    events.push(Event::Expired(lease.id));
                    self.records[slot].in_grace = true;
                    self.deadlines.set(slot, lease.ends());
                }
                Standing::Revoked { .. } => self.forget(slot),
                Standing::Over => {}
            }
        }
        events
    }

    /// Turns a live lease into one that is over.
    fn end(&mut self, slot: Slot) {
        let lease = self.change(slot, |lease| lease.standing = Standing::Over);
        self.deadlines.clear(slot);
        self.no_longer_live(slot, &lease);
        self.drop_handles(lease.id.key());
    }

    /// Turns a live lease into a revoked one.
    pub(super) fn revoke_live(&mut self, slot: Slot, now: Nanos) {
        let lease = self.change(slot, |lease| lease.standing = Standing::Revoked { at: now });
        self.deadlines.set(slot, now + REMEMBERED);
        self.no_longer_live(slot, &lease);
        self.publish_attachments(lease.id.key());
    }

    /// Takes a revocation back: the lease's move failed before anyone was told.
    pub(super) fn unrevoke(&mut self, slot: Slot) {
        let lease = self.change(slot, |lease| lease.standing = Standing::Live);
        self.deadlines.set(slot, lease.expires);
        self.grantees.list(self.records[slot].grantee, slot);
        self.count(&lease, true);
        self.publish_attachments(lease.id.key());
    }

    fn no_longer_live(&mut self, slot: Slot, lease: &Lease) {
        let record = &mut self.records[slot];
        record.in_grace = false;
        self.grantees.unlist(record.grantee, slot);
        self.count(lease, false);
    }

    /// Drops a revoked lease that has been remembered long enough.
    fn forget(&mut self, slot: Slot) {
        self.stop_moving(slot);
        let lease = self.change(slot, |lease| lease.standing = Standing::Over);
        self.drop_handles(lease.id.key());
        if !self.records[slot].holds {
            self.erase(slot);
        }
    }
}
