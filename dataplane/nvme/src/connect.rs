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

/// Why Connect is refused: with which first dword.
struct Invalid(Status, u32);

impl From<Status> for Invalid {
    fn from(status: Status) -> Self {
        Self(status, 0)
    }
}

fn invalid(parameter: u32) -> Invalid {
    Invalid(Status::CONNECT_INVALID_PARAMETERS, parameter)
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
) -> Result<(Role, Queue), Refused> {
    if (sqe.opcode, sqe.fctype()) != (opcode::FABRICS, opcode::fabrics::CONNECT) {
        return Err(Refused::Status(Status::SEQUENCE_ERROR));
    }
    let Pointer::Capsule(_) = pointer else { return Err(Refused::Status(Status::SGL_TYPE_INVALID)) };
    let data = ConnectData::parse(data).filter(|_| data.len() == ConnectData::LEN);
    let data = data.ok_or(Refused::Status(Status::SGL_LENGTH_INVALID))?;
    let command = Connect::of(sqe);
    let (role, controller) = join(target, local, command, data, collects, now).map_err(|Invalid(status, result)| {
        queue.slot(index).result = result.into();
        Refused::Status(status)
    })?;
    let flow_control = command.attributes & Connect::NO_FLOW_CONTROL == 0;
    let entries = command.size + 1;
    let mut queue = Queue::new(entries, flow_control.then_some(entries));
    // The first command of an empty queue finds room in it.
    if let Ok((index, _)) = queue.open(sqe.cid.get()) {
        queue.slot(index).result = Connected { controller, authenticate: false }.dword().into();
        queue.respond(index, Status::SUCCESS);
    }
    Ok((role, queue))
}

fn join(
    target: &Target,
    local: SocketAddr,
    command: Connect,
    data: &ConnectData,
    collects: bool,
    now: Nanos,
) -> Result<(Role, u16), Invalid> {
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
    if command.queue == 0 {
        if data.controller.get() != ConnectData::ANY_CONTROLLER {
            return Err(invalid(invalid_parameter::CONTROLLER));
        }
        // Nobody keeps a controller of discovery by saying nothing.
        let keep_alive = match (command.keep_alive, &subsystem) {
            (0, None) => DISCOVERY_KEEP_ALIVE,
            (keep_alive, _) => keep_alive,
        };
        let make = |id| Controller::new(id, host.to_owned(), data.host_id, subsystem.clone(), keep_alive, now);
        let controller = target.enter(subsystem.as_ref(), make).ok_or(CONTROLLER_BUSY)?;
        let id = controller.id;
        return Ok((Role::Admin(Box::new(Admin::new(target, controller, local))), id));
    }
    let subsystem = subsystem.ok_or(invalid(invalid_parameter::QUEUE))?;
    if command.queue > target.limits().io_queues {
        return Err(invalid(invalid_parameter::QUEUE));
    }
    let controller = target.controller(data.controller.get()).filter(|controller| controller.is_of(&subsystem));
    let controller = controller.ok_or(invalid(invalid_parameter::CONTROLLER))?;
    if controller.host_id != data.host_id {
        return Err(invalid(HOST_ID));
    }
    let enabled = controller.enabled().ok_or(invalid(invalid_parameter::CONTROLLER))?;
    let queue = enabled.claim(command.queue).ok_or(Status::INVALID_QUEUE_ID)?;
    let (id, over) = (controller.id, enabled.over.clone());
    Ok((Role::Io(Box::new(Io::new(target, controller, subsystem, (queue, over), collects))), id))
}

/// Whether the lease is still the host's.
fn lives(target: &Target, subsystem: &Arc<Subsystem>, now: Nanos) -> bool {
    matches!(target.gate().look(&subsystem.namespace.whole(), now), Ok(_) | Err(Refusal::Expired))
}
