//! Connect: what a connection becomes.

use std::{net::SocketAddr, sync::Arc};

use berth_lease::Refusal;
use berth_port::Nanos;
use berth_wire::nvme::{
    Sqe, Status,
    command::{Pointer, Refused},
    fabrics::{Connect, ConnectData, Connected, invalid_parameter},
    opcode,
};

use crate::{
    Target,
    admin::Admin,
    auth::Chap,
    connection::Role,
    controller::Controller,
    io::Io,
    queue::{DEPTH_MAX, Queue},
    target::Subsystem,
};

/// The subsystem of discovery (Base, "Discovery Service").
pub(crate) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// KATO of controllers of discovery whose host asks for none, in milliseconds.
const DISCOVERY_KEEP_ALIVE: u32 = 120_000;

/// Connect Controller Busy: as many controllers as there may be, now.
const CONTROLLER_BUSY: Status = Status::retryable(0x181);

/// Where the data of Connect has HOSTID, as [`invalid_parameter`] has others.
const HOST_ID: u32 = 1 << 16;

/// A refusal of Connect: its status, and dword 0, which names the field that is wrong.
pub(crate) struct Invalid(Status, u32);

impl From<Status> for Invalid {
    fn from(status: Status) -> Self {
        Self(status, 0)
    }
}

fn invalid(parameter: u32) -> Invalid {
    Invalid(Status::CONNECT_INVALID_PARAMETERS, parameter)
}

/// The role of a connection after a Connect that succeeds.
pub(crate) enum Joined {
    /// The queue that it asked for.
    Queue(Role),
    /// Nothing, until its host has proved who it is.
    Unproven(Box<Joining>, Arc<Chap>),
}

/// A connection that may become a queue. It holds nothing of the target: a host that proves nothing keeps nobody out.
#[derive(Debug)]
pub(crate) struct Joining {
    subsystem: Option<Arc<Subsystem>>,
    host: String,
    host_id: [u8; 16],
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// The admin queue of a new controller with this id, and its KATO in milliseconds.
    Admin { id: u16, keep_alive: u32 },
    /// An I/O queue.
    Io { controller: Arc<Controller>, queue: u16 },
}

/// Serves the first command of a connection: what it is from now on, and its queue, in which the answer waits. `collects`
/// says that data has digests.
pub(crate) fn connect(
    target: &Target,
    local: SocketAddr,
    (queue, index): (&mut Queue, usize),
    sqe: &Sqe,
    (pointer, data): (Pointer, &[u8]),
    collects: bool,
    now: Nanos,
) -> Result<(Joined, Queue), Refused> {
    if (sqe.opcode, sqe.fctype()) != (opcode::FABRICS, opcode::fabrics::CONNECT) {
        return Err(Refused::Status(Status::SEQUENCE_ERROR));
    }
    let Pointer::Capsule(_) = pointer else { return Err(Refused::Status(Status::SGL_TYPE_INVALID)) };
    let data = ConnectData::parse(data).filter(|_| data.len() == ConnectData::LEN);
    let data = data.ok_or(Refused::Status(Status::SGL_LENGTH_INVALID))?;
    let command = Connect::of(sqe);
    let joined = check(target, command, data, now).and_then(|joining| {
        let controller = joining.controller();
        let chap = joining.subsystem.as_ref().and_then(|subsystem| subsystem.chap.clone());
        Ok(match chap {
            Some(chap) => (Joined::Unproven(Box::new(joining), chap), controller, true),
            None => (Joined::Queue(joining.enter(target, local, collects, now)?), controller, false),
        })
    });
    let (joined, controller, authenticate) = joined.map_err(|Invalid(status, result)| {
        queue.slot(index).result = result.into();
        Refused::Status(status)
    })?;
    let flow_control = command.attributes & Connect::NO_FLOW_CONTROL == 0;
    let entries = command.size + 1;
    let mut queue = Queue::new(entries, flow_control.then_some(entries));
    // The first command of an empty queue finds room in it.
    if let Ok((index, _)) = queue.open(sqe.cid.get(), now) {
        queue.slot(index).result = Connected { controller, authenticate }.dword().into();
        queue.respond(index, Status::SUCCESS);
    }
    Ok((joined, queue))
}

/// What Connect asks for, checked against what there is. Nothing is taken of the target yet.
fn check(target: &Target, command: Connect, data: &ConnectData, now: Nanos) -> Result<Joining, Invalid> {
    if command.format != 0 {
        return Err(Status::CONNECT_FORMAT.into());
    }
    let name = data.subnqn.name().ok_or(invalid(invalid_parameter::SUBNQN))?;
    let host = data.hostnqn.name().and_then(|host| std::str::from_utf8(host).ok()).filter(|host| !host.is_empty());
    let host = host.ok_or(invalid(invalid_parameter::HOSTNQN))?;
    let subsystem = if name == DISCOVERY.as_bytes() {
        None
    } else {
        let found = target.subsystem(name).filter(|found| lives(target, found, now));
        Some(found.ok_or(invalid(invalid_parameter::SUBNQN))?)
    };
    if subsystem.as_ref().is_some_and(|subsystem| subsystem.host != host) {
        return Err(Status::CONNECT_INVALID_HOST.into());
    }
    let most = if command.queue == 0 { DEPTH_MAX } else { target.limits().depth };
    if command.size == 0 || command.size >= most {
        return Err(invalid(invalid_parameter::SIZE));
    }
    let kind = if command.queue == 0 {
        if data.controller.get() != ConnectData::ANY_CONTROLLER {
            return Err(invalid(invalid_parameter::CONTROLLER));
        }
        // Nobody keeps a controller of discovery by saying nothing.
        let keep_alive = match (command.keep_alive, &subsystem) {
            (0, None) => DISCOVERY_KEEP_ALIVE,
            (keep_alive, _) => keep_alive,
        };
        let id = target.controller_id(subsystem.as_ref()).ok_or(CONTROLLER_BUSY)?;
        Kind::Admin { id, keep_alive }
    } else {
        let subsystem = subsystem.as_ref().ok_or(invalid(invalid_parameter::QUEUE))?;
        if command.queue > target.limits().io_queues {
            return Err(invalid(invalid_parameter::QUEUE));
        }
        let controller = target.controller(data.controller.get()).filter(|controller| controller.is_of(subsystem));
        let controller = controller.ok_or(invalid(invalid_parameter::CONTROLLER))?;
        if controller.host_id != data.host_id {
            return Err(invalid(HOST_ID));
        }
        let enabled = controller.enabled().ok_or(invalid(invalid_parameter::CONTROLLER))?;
        if enabled.is_claimed(command.queue) {
            return Err(Status::INVALID_QUEUE_ID.into());
        }
        Kind::Io { controller, queue: command.queue }
    };
    Ok(Joining { subsystem, host: host.to_owned(), host_id: data.host_id, kind })
}

impl Joining {
    /// CNTLID of the controller that it makes or joins.
    fn controller(&self) -> u16 {
        match &self.kind {
            Kind::Admin { id, .. } => *id,
            Kind::Io { controller, .. } => controller.id,
        }
    }

    /// Whether what it would join was unbound.
    pub(crate) fn has_ended(&self) -> bool {
        self.subsystem.as_ref().is_some_and(|subsystem| subsystem.has_ended())
    }

    /// Makes the connection a queue. Others may have taken its place since it was checked.
    pub(crate) fn enter(self, target: &Target, local: SocketAddr, collects: bool, now: Nanos) -> Result<Role, Invalid> {
        let Self { subsystem, host, host_id, kind } = self;
        match (kind, subsystem) {
            (Kind::Admin { id, keep_alive }, subsystem) => {
                let controller = Controller::new(id, host, host_id, subsystem, keep_alive, now);
                let controller = target.enter(controller).ok_or(CONTROLLER_BUSY)?;
                Ok(Role::Admin(Box::new(Admin::new(target, controller, local))))
            }
            (Kind::Io { .. }, None) => Err(invalid(invalid_parameter::QUEUE)),
            (Kind::Io { controller, queue }, Some(subsystem)) => {
                let enabled = controller.enabled().ok_or(invalid(invalid_parameter::CONTROLLER))?;
                let queue = enabled.claim(queue).ok_or(Status::INVALID_QUEUE_ID)?;
                let over = enabled.over.clone();
                Ok(Role::Io(Box::new(Io::new(target, controller, subsystem, (queue, over), collects))))
            }
        }
    }
}

/// Whether the lease is still the host's.
fn lives(target: &Target, subsystem: &Arc<Subsystem>, now: Nanos) -> bool {
    matches!(target.gate().look(&subsystem.namespace.whole(), now), Ok(_) | Err(Refusal::Expired))
}
