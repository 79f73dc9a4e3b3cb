//! A host's admin queue: it enables a controller, learns what it needs of it, and keeps it alive.

use std::time::Duration;

use berth_port::{Nanos, Next, Progress};
use berth_wire::nvme::{
    Sqe, Status,
    admin::{Identify, QueueCounts, SetFeatures, feature},
    fabrics::{ConnectData, Property, property},
    identify::{self, Namespace, cns},
    opcode::admin,
};

use super::{ADMIN_IN_CAPSULE, Command, DEPTH_MAX, Data, Error, Names, Queue, Settings, User};

/// Commands of the admin queue: as many entries, less one, as every controller takes.
const DEPTH: u16 = 31;

/// The one namespace that is looked at.
const NSID: u32 = 1;

/// How long until CSTS is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The unit of CAP.TO (Base, "Controller Capabilities").
const READY_UNIT: Duration = Duration::from_millis(500);

/// Bytes of a page of the smallest size, which MDTS counts in.
const PAGE: u64 = 4096;

/// The sizes of blocks that are looked for, as powers of two.
const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 9..=16;

/// Bit of NSATTR: nobody writes now.
const WRITE_PROTECTED: u8 = 1;

/// What a host has learnt of a controller and its namespace 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// CNTLID, which Connect has answered.
    pub controller: u16,
    /// Commands that an I/O queue has room for, 1 to 1024.
    pub depth: u16,
    /// I/O queues that were granted, never more than were asked for.
    pub queues: u16,
    /// Bytes of data that the capsule of an I/O command may bring.
    pub in_capsule: u32,
    /// The most bytes that a command transfers; `None`: no limit.
    pub longest: Option<u64>,
    /// NSZE: blocks of the namespace, at least 1.
    pub blocks: u64,
    /// Bytes of a block, a power of two from 512 to 65536.
    pub block: u32,
    /// Bit 0 of NSATTR: the namespace takes no writes now.
    pub write_protected: bool,
}

/// A controller, as a host has it. Its I/O queues are [`Controller::queue`]'s; they end with it.
#[derive(Debug)]
pub struct Controller {
    settings: Settings,
    names: Names,
    queues: u16,
    queue: Queue,
    page: Page,
    step: Step,
    /// When the next look at CSTS is, and until when it has to say ready.
    look: (Nanos, Nanos),
    /// When a command was sent last, which restarts the controller's keep alive.
    spoke: Nanos,
    facts: Facts,
    error: Option<Error>,
}

/// What comes next, or has been asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Connect,
    Capabilities,
    Enable,
    Ready,
    Identify,
    Queues,
    Namespace,
    Live,
}

/// The data of the one command that is under way, and how it ended.
#[derive(Debug)]
struct Page {
    bytes: Box<[u8; identify::LEN]>,
    ended: Option<(Status, u64)>,
}

impl User for Page {
    fn data(&mut self, _: usize, _: usize, to: &mut [u8]) {
        to.fill(0);
    }

    fn received(&mut self, _: usize, offset: usize, bytes: &[u8]) {
        if let Some(to) = self.bytes.get_mut(offset..offset + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    fn ended(&mut self, _: usize, status: Status, result: u64) {
        self.ended = Some((status, result));
    }
}

impl Controller {
    /// The admin queue of a controller that is to have so many I/O queues.
    pub fn new(settings: Settings, names: Names, queues: u16, now: Nanos) -> Self {
        let connect = names.connect(ConnectData::ANY_CONTROLLER);
        Self {
            settings,
            queue: Queue::new(settings, 0, DEPTH, ADMIN_IN_CAPSULE, &connect, now),
            names,
            queues,
            page: Page { bytes: Box::new([0; identify::LEN]), ended: None },
            step: Step::Connect,
            look: (now, now),
            spoke: now,
            facts: Facts {
                controller: 0,
                depth: 0,
                queues: 0,
                in_capsule: 0,
                longest: None,
                blocks: 0,
                block: 0,
                write_protected: false,
            },
            error: None,
        }
    }

    /// The facts, once it is enabled and all have been read.
    pub fn facts(&self) -> Option<&Facts> {
        (self.step == Step::Live).then_some(&self.facts)
    }

    /// Why the association has ended; `None` while it goes on.
    pub fn error(&self) -> Option<Error> {
        self.error.or(self.queue.error())
    }

    /// I/O queue `number`, from 1 to [`Facts::queues`], for `depth` commands, up to [`Facts::depth`].
    pub fn queue(&self, number: u16, depth: u16, now: Nanos) -> Queue {
        let connect = self.names.connect(self.facts.controller);
        Queue::new(self.settings, number, depth.min(self.facts.depth), self.facts.in_capsule, &connect, now)
    }

    /// Goes on, as [`Queue::advance`] does. While nothing comes, it wants to be called now and then, for what it has to say
    /// by itself.
    pub fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        let mut done = Progress { consumed: 0, written: 0, next: Next::Close };
        self.queue.expire(now);
        while self.error.is_none() {
            let to = &mut output[done.written..];
            let progress = self.queue.advance(&input[done.consumed..], to, &mut self.page);
            done.consumed += progress.consumed;
            done.written += progress.written;
            done.next = progress.next;
            if progress.next == Next::Close {
                break;
            }
            match self.go_on(now) {
                Ok(true) => {}
                Ok(false) => return done,
                Err(error) => self.error = Some(error),
            }
        }
        Progress { next: Next::Close, ..done }
    }

    /// Takes what has ended, and asks for what comes next; whether there is something to send.
    fn go_on(&mut self, now: Nanos) -> Result<bool, Error> {
        if self.step == Step::Connect {
            let Some(controller) = self.queue.joined() else { return Ok(false) };
            self.facts.controller = controller;
            self.step = Step::Capabilities;
            return Ok(self.ask(now));
        }
        let Some((status, result)) = self.page.ended.take() else {
            let looks = self.step == Step::Ready && now >= self.look.0;
            let speaks = self.step == Step::Live && self.is_silent(now);
            return Ok(self.queue.outstanding() == 0 && (looks || speaks) && self.ask(now));
        };
        if !status.is_success() {
            return Err(Error::Failed(self.step.name(), status));
        }
        self.take(result, now)?;
        let waits = self.step == Step::Live || self.step == Step::Ready && now < self.look.0;
        Ok(!waits && self.ask(now))
    }

    /// Half of KATO has passed since anything was said.
    fn is_silent(&self, now: Nanos) -> bool {
        let allowed = self.settings.keep_alive / 2;
        !allowed.is_zero() && now >= self.spoke + allowed
    }

    /// Sends the command of this step.
    fn ask(&mut self, now: Nanos) -> bool {
        let none = |sqe| Command { sqe, data: Data::None };
        let identify = |cns, nsid| {
            let mut sqe = Sqe::new(admin::IDENTIFY, 0, nsid);
            Identify { cns, controller: 0, command_set: 0 }.put(&mut sqe);
            Command { sqe, data: Data::In(identify::LEN as u32) }
        };
        let command = match self.step {
            Step::Connect | Step::Capabilities => none(Property { offset: property::CAP, wide: true, value: 0 }.get(0)),
            Step::Enable => {
                let value = property::cc::ENABLED.into();
                none(Property { offset: property::CC, wide: false, value }.set(0))
            }
            Step::Ready => none(Property { offset: property::CSTS, wide: false, value: 0 }.get(0)),
            Step::Identify => identify(cns::CONTROLLER, 0),
            Step::Queues => {
                let count = u32::from(self.queues);
                let value = QueueCounts { submission: count, completion: count }.dword();
                let mut sqe = Sqe::new(admin::SET_FEATURES, 0, 0);
                SetFeatures { feature: feature::NUMBER_OF_QUEUES, save: false, value }.put(&mut sqe);
                none(sqe)
            }
            Step::Namespace => identify(cns::NAMESPACE, NSID),
            Step::Live => none(Sqe::new(admin::KEEP_ALIVE, 0, 0)),
        };
        self.page.bytes.fill(0);
        self.spoke = now;
        self.queue.submit(command, now).is_some()
    }

    /// What the command of this step answered.
    fn take(&mut self, result: u64, now: Nanos) -> Result<(), Error> {
        let facts = &mut self.facts;
        self.step = match self.step {
            Step::Connect => Step::Capabilities,
            Step::Capabilities => {
                facts.depth = property::entries_max(result).min(DEPTH_MAX);
                if facts.depth == 0 {
                    return Err(Error::Nonsense("queues of one entry"));
                }
                let ready = READY_UNIT * u32::from(property::ready_time(result)).max(1);
                self.look = (now, now + ready);
                Step::Enable
            }
            Step::Enable => Step::Ready,
            Step::Ready if result as u32 & property::csts::FATAL != 0 => {
                return Err(Error::Nonsense("it has failed"));
            }
            Step::Ready if result as u32 & property::csts::READY != 0 => Step::Identify,
            Step::Ready if now > self.look.1 => return Err(Error::Timeout),
            Step::Ready => {
                self.look.0 = now + LOOK_EVERY;
                Step::Ready
            }
            Step::Identify => {
                let page = identify::Controller::parse(&self.page.bytes[..]);
                identified(facts, page.ok_or(Error::Nonsense("no page"))?, self.settings.keep_alive)?;
                Step::Queues
            }
            Step::Queues => {
                let granted = QueueCounts::of(result as u32);
                facts.queues = granted.submission.min(granted.completion).min(self.queues.into()) as u16;
                Step::Namespace
            }
            Step::Namespace => {
                let page = Namespace::parse(&self.page.bytes[..]).ok_or(Error::Nonsense("no page"))?;
                let format = page.format();
                if page.nsze.get() == 0 {
                    return Err(Error::Nonsense("there is no namespace 1"));
                }
                if !BLOCK_SHIFTS.contains(&format.shift) || format.metadata.get() != 0 {
                    return Err(Error::Nonsense("blocks of that format"));
                }
                facts.blocks = page.nsze.get();
                facts.block = 1 << format.shift;
                facts.write_protected = page.nsattr & WRITE_PROTECTED != 0;
                Step::Live
            }
            Step::Live => Step::Live,
        };
        Ok(())
    }
}

/// Reads what a controller says of itself, and refuses what hosts cannot do with (Base, "Identify Controller").
fn identified(facts: &mut Facts, page: &identify::Controller, keep_alive: Duration) -> Result<(), Error> {
    let checks = [
        (page.controller.get() == facts.controller, "another CNTLID than Connect's"),
        (page.kas.get() > 0 || keep_alive.is_zero(), "no keep alive"),
        (page.ioccsz.get() >= 4, "IOCCSZ below a command's"),
        (page.iorcsz.get() >= 1, "IORCSZ below a response's"),
        (page.icdoff.get() == 0, "an offset of data in capsules"),
        (page.sgls.get() & 3 != 0, "no SGLs"),
    ];
    if let Some((_, what)) = checks.iter().find(|(sound, _)| !sound) {
        return Err(Error::Nonsense(what));
    }
    facts.in_capsule = page.in_capsule_max();
    facts.longest = match page.mdts {
        0 => None,
        shift => Some(PAGE.checked_shl(shift.into()).unwrap_or(u64::MAX).max(PAGE)),
    };
    Ok(())
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Connect => "Connect",
            Self::Capabilities => "Property Get of CAP",
            Self::Enable => "Property Set of CC",
            Self::Ready => "Property Get of CSTS",
            Self::Identify => "Identify Controller",
            Self::Queues => "Set Features of the number of queues",
            Self::Namespace => "Identify Namespace",
            Self::Live => "Keep Alive",
        }
    }
}
