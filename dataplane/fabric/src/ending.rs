//! How leases release what they hold: connections are torn down, then units are taken back. Both may take time, which
//! the host spends without holding the node.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Waker},
};

use berth_lease::{Holding, Lease, LeaseId, Standing, Status as LeaseStatus};
use berth_port::Now;
use berth_wire::fabric::Status;

use crate::{
    binding::{TeardownFailed, binding_id},
    blocking::BlockingWork,
    gpu::Done,
    host::Host,
    journal::Record,
    node::Node,
    request::{Effects, Outcome},
};

/// Progress of an ending that takes time. Shared by the node and by those who wait for it.
#[derive(Debug, Clone, Default)]
pub struct Ending(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    state: AtomicU8,
    waiting: Mutex<Vec<Waker>>,
}

const UNDER_WAY: u8 = 0;
const OVER: u8 = 1;
const FAILED: u8 = 2;

impl Ending {
    /// Whether it has succeeded or failed.
    pub fn is_over(&self) -> bool {
        self.0.state.load(Ordering::Acquire) != UNDER_WAY
    }

    /// Whether it has failed: what the lease held is fenced, or still connected.
    pub fn has_failed(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == FAILED
    }

    /// Ready when it is over; whoever waits is woken then.
    pub fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_over() {
            return Poll::Ready(());
        }
        // Below the lock, `set` has not woken anybody yet.
        if !waiting.iter().any(|other| other.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) fn set(&self, failed: bool) {
        self.0.state.store(if failed { FAILED } else { OVER }, Ordering::Release);
        let waiting = mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// A teardown to be run without holding the node. Call [`Node::torn_down`] afterwards.
#[derive(Debug)]
pub struct Teardown {
    /// To be passed to [`Node::torn_down`].
    pub ticket: u64,
    /// Holder of the lease, to whom the time is accounted.
    pub holder: u128,
    /// May take seconds.
    pub work: BlockingWork,
}

/// The thing that is torn down.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// The connection over the binding with this index.
    Connection(usize),
    /// The unit of the resource with this index.
    Unit(usize),
    /// Kernels that are ended, or bytes of a GPU that are scrubbed; whether that is done.
    Gpu(Done),
}

/// Why a lease's connections end. Later variants end more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Why {
    /// Only the connections end: the client is gone or connects again, or the lease's bytes are to be moved.
    Disconnected,
    /// The lease has expired; it may be renewed. Bindings that look at the clock themselves keep theirs.
    Expired,
    /// The lease is over; what it holds may go to another holder.
    Over,
}

/// Connection of a lease over a binding.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) holder: u128,
    /// Whether it is being torn down. False again if that failed; the connection then still exists.
    ending: bool,
}

/// An ending that takes time, as the node keeps it.
#[derive(Debug)]
pub(crate) struct UnderWay {
    why: Why,
    /// Number of teardowns that are not done.
    left: u32,
    failed: bool,
    /// Whether the resource has been asked to take the unit back.
    unit_asked: bool,
    ending: Ending,
}

impl<H: Host> Node<H> {
    /// Ends what a lease held once the lease is over: connections are closed, bindings torn down, its unit is taken
    /// back, and its bytes become free. If something cannot be torn down, the lease keeps its bytes and the region is
    /// fenced. The answer waits for everything that takes time.
    pub(crate) fn wind_up(&mut self, id: LeaseId, now: Now, outcome: &mut Outcome) {
        outcome.effects.ended.push(id);
        self.stop_work(id);
        self.close_composite(id, now, &mut outcome.endings);
        match self.end(id, Why::Over, None, now, outcome) {
            Ok(ending) => outcome.endings.extend(ending),
            Err(TeardownFailed) => outcome.answer.status = Status::ResourceFenced,
        }
    }

    /// Ends all connections of a lease, or only the one over binding `only`, and whatever else `why` requires. Returns
    /// the progress if it takes time.
    pub(crate) fn end(
        &mut self,
        id: LeaseId,
        why: Why,
        only: Option<usize>,
        now: Now,
        outcome: &mut Outcome,
    ) -> Result<Option<Ending>, TeardownFailed> {
        let (mut left, failed) = self.disconnect(id, why, only, outcome);
        if only.is_none() {
            left += self.end_kernels(id, outcome);
        }
        self.go_on_with(id, why, left, failed, now, outcome)
    }

    /// Ends what runs the kernels of a lease, of which none waits or runs. The lease goes on, and its next kernel gets another.
    pub(crate) fn end_idle(&mut self, id: LeaseId, now: Now, outcome: &mut Outcome) {
        let left = self.end_kernels(id, outcome);
        let _ = self.go_on_with(id, Why::Disconnected, left, false, now, outcome);
    }

    /// Begins to end what runs the kernels of a lease. Returns how many teardowns that takes.
    fn end_kernels(&mut self, id: LeaseId, outcome: &mut Outcome) -> u32 {
        let Some((stopped, work)) = self.stop_kernels(id) else { return 0 };
        let holder = self.leases.get(id).map_or(0, |lease| lease.holder);
        self.tear_down(id, Part::Gpu(stopped), holder, work, outcome);
        1
    }

    /// Adds to a lease's ending, or begins one: so many teardowns are under way, and whether something has failed.
    fn go_on_with(
        &mut self,
        id: LeaseId,
        why: Why,
        left: u32,
        failed: bool,
        now: Now,
        outcome: &mut Outcome,
    ) -> Result<Option<Ending>, TeardownFailed> {
        let fresh = UnderWay { why, left: 0, failed: false, unit_asked: false, ending: Ending::default() };
        let known = self.endings.remove(&id);
        let under_way = known.unwrap_or(fresh);
        let (why, left, failed) = (under_way.why.max(why), under_way.left + left, under_way.failed | failed);
        self.go_on(id, UnderWay { why, left, failed, ..under_way }, now, outcome)
    }

    /// Continues an ending as far as it goes without waiting.
    fn go_on(
        &mut self,
        id: LeaseId,
        mut under_way: UnderWay,
        now: Now,
        outcome: &mut Outcome,
    ) -> Result<Option<Ending>, TeardownFailed> {
        let UnderWay { why, failed, .. } = under_way;
        if under_way.left == 0 && why == Why::Over && !failed && !under_way.unit_asked {
            under_way.unit_asked = true;
            match self.take_back(id, outcome) {
                Ok(left) => under_way.left = left,
                Err(TeardownFailed) => under_way.failed = true,
            }
        }
        if under_way.left > 0 {
            let ending = under_way.ending.clone();
            self.endings.insert(id, under_way);
            return Ok(Some(ending));
        }
        let UnderWay { failed, ending, .. } = under_way;
        ending.set(failed);
        match why {
            Why::Over if failed => self.fence_lease(id, now, outcome),
            Why::Over => {
                self.units.remove(&id);
                self.leases.unfence(id);
                self.release(id, now.mono);
                if self.leases.get(id).is_none_or(|lease| lease.standing == Standing::Over) {
                    outcome.journal.push(Record::Ended { lease: id.0 });
                }
            }
            // A binding goes on past the table: nobody else may ever get these bytes.
            Why::Expired if failed && !self.is_active(id, now) && self.leases.revoke(id, now.mono).is_ok() => {
                self.stop_work(id);
                self.fence_lease(id, now, outcome);
            }
            Why::Expired | Why::Disconnected => {}
        }
        if failed { Err(TeardownFailed) } else { Ok(None) }
    }

    /// Why a connection ends that nobody asked to end: where it fences the unit of a lease that is over, that is free next.
    pub(crate) fn why_lost(&self, id: LeaseId) -> Why {
        let fences = |lease: &Lease| lease.fenced && matches!(lease.holds, Holding::Unit(_));
        if self.leases.get(id).is_some_and(|lease| fences(&lease)) { Why::Over } else { Why::Disconnected }
    }

    fn is_active(&self, id: LeaseId, now: Now) -> bool {
        self.leases.query(id, now.mono).is_some_and(|(status, _)| status == LeaseStatus::Active)
    }

    /// Fences what a lease that is over holds: it goes to no other holder.
    fn fence_lease(&mut self, id: LeaseId, now: Now, outcome: &mut Outcome) {
        self.leases.fence(id);
        let Some(lease) = self.leases.get(id) else { return };
        if lease.standing == Standing::Over {
            // Its end may have been journaled before a teardown failed that began later.
            outcome.journal.push(self.grant_record(&lease, now.mono));
        }
        outcome.journal.push(Record::LeaseRevoked { lease: id.0, at: self.clock.unix(now.mono) });
        outcome.journal.push(Record::LeaseFenced { lease: id.0 });
    }

    /// Begins to tear down connections. Returns how many take time, and whether one failed.
    fn disconnect(&mut self, id: LeaseId, why: Why, only: Option<usize>, outcome: &mut Outcome) -> (u32, bool) {
        let (mut left, mut failed) = (0, false);
        for index in only.map_or(0..self.bindings.len(), |only| only..only + 1) {
            let Some(connection) = self.connections.get_mut(&(id, index)).filter(|connection| !connection.ending)
            else {
                continue;
            };
            if why == Why::Expired && self.bindings[index].outlasts_expiry() {
                continue;
            }
            match self.bindings[index].teardown(id) {
                Ok(None) => self.disconnected(id, index, outcome),
                Ok(Some(work)) => {
                    connection.ending = true;
                    let holder = connection.holder;
                    self.tear_down(id, Part::Connection(index), holder, work, outcome);
                    left += 1;
                }
                Err(TeardownFailed) => {
                    self.counts.counters.teardowns_failed += 1;
                    failed = true;
                }
            }
        }
        (left, failed)
    }

    /// Begins to take back a lease's unit, if it has one, or to scrub its bytes, where they are a GPU's. Returns how many teardowns that takes.
    fn take_back(&mut self, id: LeaseId, outcome: &mut Outcome) -> Result<u32, TeardownFailed> {
        let Some(lease) = self.leases.get(id) else { return Ok(0) };
        if let Some((scrubbed, work)) = self.scrub(&lease) {
            self.tear_down(id, Part::Gpu(scrubbed), lease.holder, work, outcome);
            return Ok(1);
        }
        let Holding::Unit(unit) = lease.holds else { return Ok(0) };
        if !self.units.contains_key(&id) {
            return Ok(0);
        }
        let index = usize::from(unit.resource);
        let ended = self.resources[index].end(id);
        let work = ended.inspect_err(|TeardownFailed| self.counts.counters.teardowns_failed += 1)?;
        let left = u32::from(work.is_some());
        if let Some(work) = work {
            self.tear_down(id, Part::Unit(index), lease.holder, work, outcome);
        }
        Ok(left)
    }

    fn tear_down(&mut self, id: LeaseId, part: Part, holder: u128, work: BlockingWork, outcome: &mut Outcome) {
        let ticket = self.ticket();
        self.teardowns.insert(ticket, (id, part));
        outcome.effects.teardowns.push(Teardown { ticket, holder, work });
    }

    /// Continues the ending that a completed [`Teardown`] belongs to.
    ///
    /// # Panics
    /// If no teardown with this ticket is under way.
    pub fn torn_down(&mut self, ticket: u64, now: Now) -> Effects {
        let (id, part) = self.teardowns.remove(&ticket).expect("a teardown is done once");
        let mut outcome = Outcome::default();
        let done = match part {
            Part::Connection(index) => self.bindings[index].torn_down(id),
            Part::Unit(index) => self.resources[index].ended(id),
            Part::Gpu(ref gone) => gone.get().copied().ok_or(TeardownFailed),
        };
        if done.is_err() {
            self.counts.counters.teardowns_failed += 1;
        }
        if let Part::Connection(index) = part {
            match done {
                Ok(()) => self.disconnected(id, index, &mut outcome),
                Err(TeardownFailed) => {
                    if let Some(connection) = self.connections.get_mut(&(id, index)) {
                        connection.ending = false;
                    }
                }
            }
        }
        if let Some(mut under_way) = self.endings.remove(&id) {
            under_way.left -= 1;
            under_way.failed |= done.is_err();
            // Whoever waits looks at the ending itself.
            let _ = self.go_on(id, under_way, now, &mut outcome);
        }
        outcome.into_effects()
    }

    /// Makes the answer to a revocation wait also for those leases of `which` that it did not end but that may still be
    /// connected: leases revoked before, or over without a tick since. If one cannot be disconnected, the answer says
    /// so again. Call this after the live leases are revoked and before they are wound up.
    pub(crate) fn await_others(&mut self, which: impl Fn(&Lease) -> bool, now: Now, outcome: &mut Outcome) {
        let of_which = |id: &LeaseId| self.leases.get(*id).filter(&which);
        let under_way = self.endings.iter().filter(|(id, _)| of_which(id).is_some());
        outcome.endings.extend(under_way.map(|(_, under_way)| under_way.ending.clone()));
        let connected: Vec<Lease> = self.connections.keys().filter_map(|(id, _)| of_which(id)).collect();
        for lease in connected {
            let failed = match lease.standing {
                Standing::Live => match self.end(lease.id, Why::Disconnected, None, now, outcome) {
                    Ok(ending) => {
                        outcome.endings.extend(ending);
                        false
                    }
                    Err(TeardownFailed) => true,
                },
                Standing::Revoked { .. } | Standing::Over => lease.fenced,
            };
            if failed {
                outcome.answer.status = Status::ResourceFenced;
            }
        }
    }

    /// Records that a lease is, or may be, connected.
    pub(crate) fn connected(&mut self, id: LeaseId, index: usize, holder: u128) {
        if self.connections.insert((id, index), Connection { holder, ending: false }).is_none() {
            self.leases.bound(holder);
        }
    }

    /// Records that a lease is no longer connected.
    fn disconnected(&mut self, id: LeaseId, index: usize, outcome: &mut Outcome) {
        if let Some(connection) = self.connections.remove(&(id, index)) {
            self.leases.unbound(connection.holder);
            let binding = binding_id(&*self.bindings[index]);
            outcome.journal.push(Record::Unbound { lease: id.0, binding });
        }
    }

    /// Whether a lease is, or may be, connected over any binding.
    pub(crate) fn is_connected(&self, id: LeaseId) -> bool {
        self.connections.range((id, 0)..=(id, usize::MAX)).next().is_some()
    }
}
