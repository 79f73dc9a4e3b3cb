//! Operations that wait for work on bytes, which the host does without holding the node.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use berth_lease::{LeaseId, Mode, Relocation};
use berth_port::{Nanos, Now};
use berth_tasklet::{hostcall::code, schedule::RunId};
use berth_wire::fabric::{Op, Status};

use crate::{
    host::Host,
    journal::Record,
    node::Node,
    ops::{Attempt, STILL_CONNECTED, Submission, Submit, call_failed, cancelled},
    request::{Carrier, Effects, Outcome, Request, Step, Work},
};

/// The host could not do a [`Job`](crate::Job), or stopped because the [`Deadline`] had passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the storage failed")]
pub struct WorkFailed;

/// Until when work on leased bytes may go on: until the first of the leases ends, for whatever reason. The node moves
/// it, and the host checks it before each piece.
///
/// A piece that touches bytes of a granted lease is done under a guard of the lease table
/// ([`berth_lease::Reader::hold`]), and the host checks the deadline under that guard. The
/// [`Quiescence`](berth_lease::Quiescence) of a lease's end then waits for the piece under way, and none begins later.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<AtomicU64>);

impl Deadline {
    fn new(at: Nanos) -> Self {
        Self(Arc::new(AtomicU64::new(at.0)))
    }

    /// Whether the work must stop.
    pub fn is_over(&self, now: Nanos) -> bool {
        now.0 >= self.0.load(Ordering::Acquire)
    }

    fn set(&self, at: Nanos) {
        self.0.store(at.0, Ordering::Release);
    }
}

/// An operation that waits for work.
#[derive(Debug, Clone)]
pub(crate) enum Pending {
    /// The bytes of a new lease are being zeroed.
    Alloc {
        id: LeaseId,
        /// The tasklet that allocates it.
        run: Option<RunId>,
    },
    /// Bytes are being copied from one lease to another.
    Relocate {
        relocation: Relocation,
        /// Until when the source's bytes are kept, in Unix time.
        keep_until: Option<Nanos>,
    },
    /// A lease is being connected.
    Bind(Attempt),
    /// A tasklet is being admitted, or runs.
    Submit(Box<Submission>),
    /// A tasklet is being stopped.
    Cancel,
    /// A kernel waits for its turn, or runs.
    Kernel(Box<Submit>),
}

/// The operation, and who asked for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    op: Op,
    carrier: Carrier,
    pub(crate) presenter: u128,
}

impl Origin {
    pub(crate) fn of(op: Op, request: &Request<'_>) -> Self {
        Self { op, carrier: request.carrier, presenter: request.presenter }
    }

    pub(crate) fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// For what the node does on its own on behalf of a holder.
    pub(crate) fn node(op: Op, holder: u128) -> Self {
        Self { op, carrier: Carrier::Quic, presenter: holder }
    }
}

impl Pending {
    fn leases(&self) -> impl Iterator<Item = LeaseId> + use<> {
        match *self {
            Self::Alloc { id, .. } => [Some(id), None],
            Self::Relocate { relocation, .. } => [Some(relocation.src), Some(relocation.dst)],
            Self::Bind(ref attempt) => [Some(attempt.lease), None],
            Self::Kernel(ref submit) => [Some(submit.lease), None],
            Self::Submit(_) | Self::Cancel => [None, None],
        }
        .into_iter()
        .flatten()
    }
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) pending: Pending,
    deadline: Deadline,
    pub(crate) origin: Origin,
}

impl<H: Host> Node<H> {
    /// Registers an operation that waits for work on leases; their bytes go to no other holder meanwhile. The caller
    /// adds the work.
    pub(crate) fn work(&mut self, pending: Pending, origin: Origin) -> Work {
        for id in pending.leases() {
            *self.pinned.entry(id).or_default() += 1;
        }
        let ticket = self.ticket();
        let Origin { carrier, presenter, .. } = origin;
        let journal = match (&pending, carrier) {
            // A copy of the request that comes after a restart must not overwrite what was written since.
            (Pending::Relocate { .. }, Carrier::Udp { nonce }) => Some(vec![Record::Seen { sender: presenter, nonce }]),
            (Pending::Submit(of), Carrier::Udp { nonce }) if of.is_new() => {
                Some(vec![Record::Seen { sender: presenter, nonce }])
            }
            (Pending::Kernel(of), Carrier::Udp { nonce }) if of.is_new() => {
                Some(vec![Record::Seen { sender: presenter, nonce }])
            }
            // Its bytes were another's until now: a kill must not find them overwritten, and the end of that other lease
            // not in the journal. Memory is lost by a restart, whoever has it.
            (Pending::Alloc { id, .. }, _) if !self.is_in_memory(*id) => Some(Vec::new()),
            _ => None,
        };
        let deadline = Deadline::new(self.first_end(&pending));
        self.pending.insert(ticket, Waiting { pending, deadline: deadline.clone(), origin });
        let (jobs, effects) = (Vec::new(), Effects::default());
        Work { ticket, deadline, journal, quiescence: None, ending: None, patience: None, effects, jobs, prepare: None }
    }

    /// Continues an operation whose work is done, has failed, or was stopped.
    ///
    /// # Panics
    /// If no work with this ticket is under way.
    pub fn resume(&mut self, ticket: u64, work: Result<(), WorkFailed>, now: Now) -> Step {
        let waiting = self.pending.remove(&ticket).expect("a ticket is resumed once");
        let Waiting { pending, deadline, origin } = waiting;
        let in_time = !deadline.is_over(now.mono);
        let leases = pending.leases();
        for id in pending.leases() {
            self.unpin(id);
        }
        let step = match pending {
            Pending::Alloc { id, run: None } if work.is_ok() && in_time => self.granted(id, now.mono).map(Step::from),
            Pending::Alloc { id, run: Some(_) } if work.is_ok() && in_time => Ok(self.call_granted(id, now)),
            Pending::Alloc { id, run } => {
                self.not_granted(id, now);
                match run {
                    Some(_) => Ok(call_failed(if in_time { code::INTERNAL } else { code::FENCED })),
                    None => Err(if in_time { Status::InternalError } else { Status::LeaseExpired }),
                }
            }
            Pending::Relocate { relocation, keep_until } => {
                let reason = match (in_time, work) {
                    _ if relocation.mode == Mode::Move && self.is_connected(relocation.src) => Some(STILL_CONNECTED),
                    (true, Ok(())) => None,
                    (true, Err(WorkFailed)) => Some("the storage failed"),
                    (false, _) => Some("one of the leases ended meanwhile"),
                };
                if reason.is_some() {
                    self.leases.relocate_failed(&relocation);
                }
                Ok(self.relocated(&relocation, keep_until, reason, now).into())
            }
            Pending::Bind(attempt) => self.go_on_binding(attempt, work, origin, now),
            Pending::Submit(_) if work.is_err() => Err(Status::InternalError),
            Pending::Submit(submission) => self.go_on_submitting(*submission, origin, now),
            Pending::Cancel => Ok(Outcome::with(cancelled()).into()),
            Pending::Kernel(submit) if work.is_err() => Err(self.kernel_failed(&submit)),
            Pending::Kernel(submit) => self.go_on_with_kernel(*submit, origin, now),
        };
        for id in leases {
            self.release(id, now.mono);
        }
        let Origin { op, carrier, presenter } = origin;
        match step {
            Ok(Step::Done(outcome)) => self.done(op, Ok(outcome), carrier, presenter).into(),
            Ok(step) => step,
            Err(status) => self.done(op, Err(status), carrier, presenter).into(),
        }
    }

    /// Stops the work on the bytes of a lease that ends. Call this before taking the quiescence that its end waits for.
    pub(crate) fn stop_work(&mut self, id: LeaseId) {
        for waiting in self.works_on(id) {
            waiting.deadline.set(Nanos(0));
        }
    }

    /// Moves the deadline of the work on a lease that expires at another time, unless it has passed.
    pub(crate) fn prolong_work(&mut self, id: LeaseId, now: Nanos) {
        for waiting in self.works_on(id).filter(|waiting| !waiting.deadline.is_over(now)) {
            waiting.deadline.set(self.first_end(&waiting.pending));
        }
    }

    fn is_in_memory(&self, id: LeaseId) -> bool {
        self.leases.get(id).and_then(|lease| lease.region()).is_some_and(|region| self.leases.is_volatile(region))
    }

    fn works_on(&self, id: LeaseId) -> impl Iterator<Item = &Waiting> {
        let all = self.pinned.contains_key(&id).then(|| self.pending.values());
        all.into_iter().flatten().filter(move |waiting| waiting.pending.leases().any(|other| other == id))
    }

    /// When the first of the operation's leases expires.
    fn first_end(&self, pending: &Pending) -> Nanos {
        if matches!(pending, Pending::Submit(_) | Pending::Cancel) {
            return Nanos(u64::MAX);
        }
        let expiries = pending.leases().filter_map(|id| self.leases.get(id)).map(|lease| lease.expires);
        expiries.min().unwrap_or(Nanos(0))
    }

    /// Whether a lease is not answered yet because its bytes are still being zeroed.
    pub(crate) fn is_being_zeroed(&self, id: LeaseId) -> bool {
        self.works_on(id).any(|waiting| matches!(waiting.pending, Pending::Alloc { .. }))
    }

    /// Frees the bytes of a lease that is over. If they are being worked on, [`Node::resume`] does so later; nor are
    /// they freed while something of the lease is being torn down.
    pub(crate) fn release(&mut self, id: LeaseId, now: Nanos) {
        if !self.pinned.contains_key(&id) && !self.endings.contains_key(&id) {
            self.leases.release(id, now);
        }
    }

    fn unpin(&mut self, id: LeaseId) {
        if let Some(pins) = self.pinned.get_mut(&id) {
            *pins -= 1;
            if *pins == 0 {
                self.pinned.remove(&id);
            }
        }
    }
}
