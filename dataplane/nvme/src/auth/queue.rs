//! One queue whose host has to prove who it is: Authentication Send and Receive.

use std::{
    net::IpAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::nvme::{
    Sqe, Status,
    auth::Message,
    command::{Pointer, Refused},
    fabrics::Authentication,
    opcode::{self, fabrics},
};

use super::{Chap, Controller, Next, Reason, job::Computing, job::Job};
use crate::{
    counts::{Counts, Event},
    io::Turn,
    queue::{Phase, Queue},
};

/// How long a failure waits before it is told: who guesses does so slowly.
const FAILURE_DELAY: Duration = Duration::from_millis(100);

/// How long a host may leave its next message due.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most room that Authentication Receive may give, in bytes; Linux gives 4096.
const RECEIVE_MAX: u32 = 8192;

/// Authentication on one queue, and again whenever its host wants.
pub(crate) struct QueueAuth {
    chap: Arc<Chap>,
    peer: IpAddr,
    /// While one is under way.
    transaction: Option<Controller>,
    computing: Option<Computing>,
    /// The Authentication Receive that waits for its message, and its room in bytes.
    receive: Option<(usize, u32)>,
    /// When a failure may be told: [`FAILURE_DELAY`] after it happened.
    failing: Option<Nanos>,
    /// That time has come.
    is_due: bool,
    /// When the host's next message became due.
    since: Nanos,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The host has proved nothing.
    Unproven,
    /// It has; and may do so again.
    Proven,
    /// It could not, or did not want to: its connection ends.
    Failed,
}

impl std::fmt::Debug for QueueAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "QueueAuth({:?})", self.outcome)
    }
}

impl QueueAuth {
    pub(crate) fn new(chap: Arc<Chap>, peer: IpAddr, now: Nanos) -> Self {
        Self {
            chap,
            peer,
            transaction: None,
            computing: None,
            receive: None,
            failing: None,
            is_due: false,
            since: now,
            outcome: Outcome::Unproven,
        }
    }

    pub(crate) fn is_proven(&self) -> bool {
        self.outcome == Outcome::Proven
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.outcome == Outcome::Failed
    }

    /// Serves Authentication Send and Receive. Before the host has proved who it is, all else is refused; `None` after that.
    pub(crate) fn command(
        &mut self,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        now: Nanos,
    ) -> Option<Result<Turn, Refused>> {
        let result = match (sqe.opcode, sqe.fctype()) {
            (opcode::FABRICS, fabrics::AUTHENTICATION_SEND) => self.send(sqe, pointer, data).map(|()| Turn::Done),
            (opcode::FABRICS, fabrics::AUTHENTICATION_RECEIVE) => {
                self.receive(index, sqe, pointer).map(|()| Turn::Later)
            }
            _ if self.is_proven() => return None,
            _ => Err(Status::AUTHENTICATION_REQUIRED),
        };
        if result.is_ok() {
            self.since = now;
        }
        Some(result.map_err(Refused::Status))
    }

    /// Takes the host's message.
    fn send(&mut self, sqe: &Sqe, pointer: Pointer, data: &[u8]) -> Result<(), Status> {
        let Authentication { len } = Authentication::of(sqe).ok_or(Status::INVALID_FIELD)?;
        let Pointer::Capsule(_) = pointer else { return Err(Status::SGL_TYPE_INVALID) };
        if len == 0 {
            return Err(Status::INVALID_FIELD);
        }
        if len as usize != data.len() {
            return Err(Status::SGL_LENGTH_INVALID);
        }
        self.transaction().receive(data);
        self.computing = None;
        Ok(())
    }

    /// Has the command wait for this side's message.
    fn receive(&mut self, index: usize, sqe: &Sqe, pointer: Pointer) -> Result<(), Status> {
        let Authentication { len } = Authentication::of(sqe).ok_or(Status::INVALID_FIELD)?;
        if let Pointer::Capsule(_) = pointer {
            return Err(Status::SGL_TYPE_INVALID);
        }
        if len == 0 || len > RECEIVE_MAX {
            return Err(Status::INVALID_FIELD);
        }
        if len != pointer.len() {
            return Err(Status::SGL_LENGTH_INVALID);
        }
        if self.receive.is_some() || self.transaction.is_none() && self.is_proven() {
            return Err(Status::SEQUENCE_ERROR);
        }
        self.transaction().wanted();
        self.receive = Some((index, len));
        Ok(())
    }

    /// That under way, or a new one.
    fn transaction(&mut self) -> &mut Controller {
        let chap = &self.chap;
        self.transaction.get_or_insert_with(|| Controller::new(chap.parameters.clone(), chap.machine.random()))
    }

    /// Goes on with the transaction as far as it can.
    pub(crate) fn go_on(&mut self, queue: &mut Queue, counts: &mut Counts, now: Nanos) {
        while let Some(transaction) = &mut self.transaction {
            match transaction.next() {
                Next::Receive => return,
                Next::Compute => {
                    if let Some(work) = transaction.work() {
                        let (job, computing) = Job::new(work);
                        self.computing = Some(computing);
                        self.chap.machine.compute(self.peer, job);
                    }
                    let Some(computing) = self.computing.take_if(|computing| computing.is_over()) else { return };
                    transaction.computed(computing.take());
                    self.since = now;
                }
                Next::Send => {
                    if transaction.is_failing() {
                        let until = *self.failing.get_or_insert(now + FAILURE_DELAY);
                        if now < until {
                            return;
                        }
                        self.is_due = false;
                    }
                    let Some((index, len)) = self.receive.take() else { return };
                    answer(transaction, queue, index, len);
                    self.since = now;
                }
                Next::Done => {
                    counts.add(Event::Authenticated);
                    (self.transaction, self.outcome) = (None, Outcome::Proven);
                }
                Next::Failed(reason) => {
                    counts.add(failure(reason));
                    (self.transaction, self.outcome) = (None, Outcome::Failed);
                }
            }
        }
    }

    /// Whether the host has kept this side waiting for too long.
    pub(crate) fn is_late(&mut self, counts: &mut Counts, now: Nanos) -> bool {
        self.is_due = self.receive.is_some() && self.failing.is_some_and(|until| now >= until);
        let is_under_way = self.transaction.is_some() || !self.is_proven();
        let waits = is_under_way && self.computing.is_none() && self.receive.is_none();
        let late = waits && now > self.since + PATIENCE;
        if late {
            counts.add(Event::AuthenticationsLate);
        }
        late
    }

    /// Arithmetic that goes on elsewhere.
    pub(crate) fn outstanding(&self) -> usize {
        usize::from(self.computing.is_some())
    }

    /// Ready where [`QueueAuth::go_on`] has something to do.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.computing {
            _ if self.is_due => Poll::Ready(()),
            Some(computing) => computing.poll(cx),
            None => Poll::Pending,
        }
    }
}

/// Answers Authentication Receive with this side's message, which is due.
fn answer(transaction: &mut Controller, queue: &mut Queue, index: usize, len: u32) {
    let mut page = vec![0; Message::MAX.min(len as usize)];
    let Some(written) = transaction.send(&mut page) else {
        // It stays due: the host may give it more room.
        return queue.respond(index, Status::INVALID_FIELD);
    };
    page.truncate(written);
    let slot = queue.slot(index);
    (slot.len, slot.page) = (len, page);
    queue.send(index, Phase::Sending);
}

fn failure(reason: Reason) -> Event {
    match reason {
        Reason::Failed => Event::AuthenticationsFailed,
        Reason::ProtocolNotUsable | Reason::ConcatenationMismatch | Reason::HashNotUsable | Reason::GroupNotUsable => {
            Event::AuthenticationsNotUsable
        }
        Reason::IncorrectPayload | Reason::IncorrectMessage => Event::AuthenticationsMalformed,
    }
}
