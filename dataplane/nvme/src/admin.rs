//! Admin queues: properties, Identify, logs, features and events of a controller.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use berth_lease::{BlockOp, Op, Refusal};
use berth_lease_io::{Accesses, Buffers, Gate};
use berth_port::Nanos;
use berth_wire::nvme::{
    Sqe, Status,
    admin::{Abort, Event, GetLogPage, Identify},
    command::{Pointer, Refused},
    fabrics::{
        Property,
        property::{self, cc, csts},
    },
    log::{AnaState, id as log},
    opcode::{self, admin as op, fabrics},
    pdu::Fatal,
};

use crate::{
    SGL, Target,
    controller::Controller,
    counts::{self, Counts},
    features, identify,
    io::Turn,
    logs,
    queue::{Phase, Queue},
};

/// Asynchronous Event Requests that may wait at a time; AERL is one less (Base, "Identify Controller").
pub(crate) const EVENT_REQUESTS: usize = 4;

/// How long queues stay to tell that their lease has ended.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// What may be done with the lease of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It takes accesses.
    Active,
    /// It has expired and may be renewed.
    Grace,
    /// It is not the host's any more.
    Ended,
}

/// The admin queue of a controller. It is the controller: with it, all ends.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) target: Target,
    pub(crate) controller: Arc<Controller>,
    pub(crate) local: SocketAddr,
    gate: Gate,
    /// Property CC, as the host has set it.
    configuration: u32,
    shutdown: Shutdown,
    pub(crate) standing: Standing,
    /// How often that has changed, from 1 on: the change count of the ANA log.
    pub(crate) changes: u64,
    /// When the lease's end was seen first; [`FAREWELL`] later the queue closes.
    ended: Option<Nanos>,
    pub(crate) events: Events,
}

/// How far a shutdown is: what was written survives a loss of power before it is complete.
#[derive(Debug)]
enum Shutdown {
    /// There is none, or nothing more to do.
    None,
    /// A flush is due when all writes have ended.
    Due,
    /// It is under way.
    Flushing(Accesses),
}

/// Asynchronous events, in bits of [`Event::bit`].
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Those that the host wants.
    pub(crate) wanted: u32,
    /// Those that wait for a request.
    pending: u32,
    /// Those that were told, until their log is read.
    told: u32,
    /// The commands that ask for one.
    requests: VecDeque<usize>,
    /// The list of namespaces has changed since its log was read.
    pub(crate) namespaces: bool,
}

impl Admin {
    pub(crate) fn new(target: &Target, controller: Arc<Controller>, local: SocketAddr) -> Self {
        Self {
            target: target.clone(),
            controller,
            local,
            gate: target.gate(),
            configuration: 0,
            shutdown: Shutdown::None,
            standing: Standing::Active,
            changes: 1,
            ended: None,
            events: Events::default(),
        }
    }

    /// Notes that the host has spoken; false where that was later than KATO allows.
    pub(crate) fn hear(&self, now: Nanos) -> bool {
        self.controller.hear(now)
    }

    /// Serves a command, which has a slot.
    pub(crate) fn command(
        &mut self,
        queue: &mut Queue,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        now: Nanos,
    ) -> Result<Turn, Refused> {
        self.look(now);
        let is_ours = matches!(sqe.opcode, op::GET_LOG_PAGE | op::IDENTIFY | op::GET_FEATURES);
        if is_ours && let Pointer::Capsule(_) = pointer {
            return Err(if data.is_empty() {
                Refused::Status(Status::SGL_TYPE_INVALID)
            } else {
                Refused::Fatal(Fatal::unsupported(SGL))
            });
        }
        let answer = match sqe.opcode {
            opcode::FABRICS => self.fabrics(sqe, now),
            op::KEEP_ALIVE => Ok(Answer::NONE),
            op::IDENTIFY => identify::identify(self, Identify::of(sqe), sqe.nsid.get()).map(Answer::page),
            op::GET_LOG_PAGE => self.log(GetLogPage::of(sqe), pointer),
            op::GET_FEATURES => features::get(self, sqe),
            op::SET_FEATURES => features::set(self, sqe, now),
            op::ASYNC_EVENT_REQUEST => return self.request(index).map_err(Refused::Status),
            op::ABORT => return self.abort(queue, index, Abort::of(sqe), now).map_err(Refused::Status),
            _ => Err(Status::INVALID_OPCODE),
        };
        let Answer { result, page } = answer.map_err(Refused::Status)?;
        let slot = queue.slot(index);
        slot.result = result;
        let Some(page) = page else { return Ok(Turn::Done) };
        let is_log = sqe.opcode == op::GET_LOG_PAGE;
        let len = if is_log { pointer.len() } else { pointer.len().min(page.len() as u32) };
        if len == 0 {
            return Err(Refused::Status(Status::SGL_LENGTH_INVALID));
        }
        (slot.len, slot.page) = (len, page);
        queue.send(index, Phase::Sending);
        Ok(Turn::Later)
    }

    fn fabrics(&mut self, sqe: &Sqe, now: Nanos) -> Result<Answer, Status> {
        match sqe.fctype() {
            fabrics::PROPERTY_GET => {
                self.property(Property::of(sqe).ok_or(Status::INVALID_FIELD)?, now).map(Answer::result)
            }
            fabrics::PROPERTY_SET => {
                self.set_property(Property::of(sqe).ok_or(Status::INVALID_FIELD)?)?;
                Ok(Answer::NONE)
            }
            fabrics::CONNECT => Err(Status::SEQUENCE_ERROR),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn property(&mut self, property: Property, now: Nanos) -> Result<u64, Status> {
        match (property.offset, property.wide) {
            (property::CAP, true) => Ok(property::capabilities(self.target.limits().depth - 1, READY)),
            (property::VS, false) => Ok(property::VERSION.into()),
            (property::CC, false) => Ok(self.configuration.into()),
            (property::CSTS, false) => Ok(self.state(now).into()),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Property CSTS: RDY, CFS and SHST.
    fn state(&mut self, now: Nanos) -> u32 {
        let drained = self.controller.is_drained();
        let mut state = 0;
        if self.configuration & cc::ENABLE != 0 || !drained {
            state |= csts::READY;
        }
        if self.standing == Standing::Ended {
            state |= csts::FATAL;
        }
        if self.configuration & cc::SHUTDOWN != 0 {
            state |= if drained && self.is_flushed(now) { csts::SHUTDOWN_COMPLETE } else { SHUTDOWN_OCCURRING };
        }
        state
    }

    /// Goes on with the flush of a shutdown, whose writes have ended; whether it is over.
    fn is_flushed(&mut self, now: Nanos) -> bool {
        if let (Shutdown::Due, Some(subsystem)) = (&self.shutdown, &self.controller.subsystem) {
            let accesses = Accesses::default();
            let last = subsystem.namespace.blocks - 1;
            let started = subsystem.namespace.ask(Op::Write, last, 1).is_ok_and(|ask| {
                accesses.start(&self.gate, &ask, BlockOp::Flush, &mut Buffers::default(), 0, now).is_ok()
            });
            // A lease that has ended needs no flush.
            self.shutdown = if started { Shutdown::Flushing(accesses) } else { Shutdown::None };
        }
        if let Shutdown::Flushing(accesses) = &self.shutdown
            && accesses.next().is_some()
        {
            self.shutdown = Shutdown::None;
        }
        matches!(self.shutdown, Shutdown::None)
    }

    fn set_property(&mut self, property: Property) -> Result<(), Status> {
        if property.offset != property::CC || property.wide {
            return Err(Status::INVALID_FIELD);
        }
        let (old, new) = (self.configuration, property.value as u32);
        if new & cc::ENABLE != 0 && new & ENTRY_SIZES != cc::ENABLED & ENTRY_SIZES {
            return Err(Status::INVALID_FIELD);
        }
        self.configuration = new;
        if old & cc::SHUTDOWN == 0 && new & cc::SHUTDOWN != 0 && features::flushes(self) {
            self.shutdown = Shutdown::Due;
        }
        let works = |configuration| configuration & (cc::ENABLE | cc::SHUTDOWN) == cc::ENABLE;
        match (works(old), works(new)) {
            (false, true) => self.controller.enable(),
            (true, false) => self.controller.disable(self.target.table()),
            _ => {}
        }
        Ok(())
    }

    fn log(&mut self, command: GetLogPage, pointer: Pointer) -> Result<Answer, Status> {
        if command.len != u64::from(pointer.len()) {
            return Err(Status::SGL_LENGTH_INVALID);
        }
        let page = logs::page(self, &command)?;
        let offset = usize::try_from(command.offset).ok().filter(|at| at.is_multiple_of(4) && *at < page.len());
        let offset = offset.ok_or(Status::INVALID_FIELD)?;
        if command.len > self.longest().into() {
            return Err(Status::INVALID_FIELD);
        }
        if !command.retain {
            self.events.read(command.id);
        }
        let end = page.len().min(offset.saturating_add(command.len as usize));
        Ok(Answer::page(page[offset..end].to_vec()))
    }

    /// Bytes of the longest transfer, which MDTS says in pages of 4096.
    pub(crate) fn longest(&self) -> u32 {
        let subsystem = self.controller.subsystem.as_ref();
        subsystem.map_or(self.target.limits().longest, |subsystem| subsystem.namespace.longest)
    }

    fn request(&mut self, index: usize) -> Result<Turn, Status> {
        if self.events.requests.len() == EVENT_REQUESTS {
            return Err(Status::ASYNC_EVENT_LIMIT);
        }
        self.events.requests.push_back(index);
        Ok(Turn::Later)
    }

    /// Ends a command that waits: an event request of this queue, or what an I/O queue lets go of.
    fn abort(&mut self, queue: &mut Queue, own: usize, command: Abort, now: Nanos) -> Result<Turn, Status> {
        if command.queue != 0 && self.controller.has_queue(command.queue) {
            let asked = self.controller.aborts.ask(command, own, now);
            return if asked { Ok(Turn::Later) } else { Err(Status::ABORT_LIMIT) };
        }
        let is_it = |index: &usize| command.queue == 0 && queue.get(*index).cid == command.cid;
        let request = self.events.requests.iter().position(is_it).and_then(|at| self.events.requests.remove(at));
        match request {
            Some(index) => queue.respond(index, Status::ABORT_REQUESTED),
            None => queue.slot(own).result = Abort::NOT_ABORTED.into(),
        }
        Ok(Turn::Done)
    }

    /// Answers event requests and Abort commands, where there is something to tell.
    pub(crate) fn tell(&mut self, queue: &mut Queue) {
        while let Some((index, aborted)) = self.controller.aborts.take() {
            queue.slot(index).result = if aborted { 0 } else { Abort::NOT_ABORTED.into() };
            queue.respond(index, Status::SUCCESS);
        }
        let events = &mut self.events;
        let news = self.controller.take_notices();
        events.namespaces |= news & Event::Namespace.bit() != 0;
        events.pending = (events.pending | news) & events.wanted;
        for event in Event::ALL {
            if events.pending & !events.told & event.bit() != 0
                && let Some(index) = events.requests.pop_front()
            {
                events.pending &= !event.bit();
                events.told |= event.bit();
                queue.slot(index).result = event.dword().into();
                queue.respond(index, Status::SUCCESS);
            }
        }
    }

    /// Looks what became of the lease.
    fn look(&mut self, now: Nanos) {
        let Some(subsystem) = &self.controller.subsystem else { return };
        let standing = match self.gate.look(&subsystem.namespace.whole(), now) {
            _ if subsystem.has_ended() => Standing::Ended,
            Ok(_) => Standing::Active,
            Err(Refusal::Expired) => Standing::Grace,
            Err(_) => Standing::Ended,
        };
        if standing == self.standing {
            return;
        }
        if standing == Standing::Ended {
            self.ended = Some(now);
            self.controller.notify(Event::Namespace);
        }
        self.standing = standing;
        self.changes += 1;
        self.controller.notify(Event::Ana);
    }

    /// How the host reaches its namespace over this controller.
    pub(crate) fn ana(&self) -> AnaState {
        match self.standing {
            Standing::Active => AnaState::Optimized,
            Standing::Grace => AnaState::Inaccessible,
            Standing::Ended => AnaState::PersistentLoss,
        }
    }

    pub(crate) fn is_over(&mut self, now: Nanos, counts: &mut Counts) -> bool {
        self.look(now);
        self.controller.aborts.expire(now);
        if self.controller.is_silent(now) {
            counts.add(counts::Event::KeepAliveExpired);
            return true;
        }
        self.ended.is_some_and(|ended| now > ended + FAREWELL)
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.controller.poll_notices(cx)
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.target.remove(&self.controller);
    }
}

impl Events {
    /// A log was read, which clears its event.
    fn read(&mut self, page: u8) {
        for event in Event::ALL.into_iter().filter(|event| event.log() == page) {
            self.told &= !event.bit();
        }
        if page == log::CHANGED_NAMESPACES {
            self.namespaces = false;
        }
    }
}

/// How soon a controller is ready, in units of 500 ms.
const READY: u8 = 30;

/// SHST 1.
const SHUTDOWN_OCCURRING: u32 = 1 << 2;

/// IOSQES and IOCQES of CC.
const ENTRY_SIZES: u32 = 0xFF << 16;

/// What an admin command answers.
pub(crate) struct Answer {
    result: u64,
    page: Option<Vec<u8>>,
}

impl Answer {
    pub(crate) const NONE: Self = Self { result: 0, page: None };

    /// Without data; `result` is dwords 0 and 1 of the completion.
    pub(crate) fn result(result: u64) -> Self {
        Self { result, page: None }
    }

    /// With data, of which the host gets as much as it asked for; `result` is 0.
    pub(crate) fn page(page: Vec<u8>) -> Self {
        Self { result: 0, page: Some(page) }
    }
}
