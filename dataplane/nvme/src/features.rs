//! Get Features and Set Features.

use berth_lease::Op;
use berth_port::Nanos;
use berth_wire::nvme::{
    Sqe, Status,
    admin::{Event, GetFeatures, QueueCounts, SetFeatures, feature},
};

use crate::admin::{Admin, Answer};

/// SEL 3: what a feature can do.
const CAPABILITIES: u8 = 3;
/// It can be changed.
const CHANGEABLE: u64 = 1 << 2;
/// EXHID of the host identifier: 128 bits.
const EXTENDED: u32 = 1;
/// Feature Not Changeable.
const NOT_CHANGEABLE: Status = Status::last(0x10E);

pub(crate) fn get(admin: &mut Admin, sqe: &Sqe) -> Result<Answer, Status> {
    let command = GetFeatures::of(sqe);
    if command.select > CAPABILITIES {
        return Err(Status::INVALID_FIELD);
    }
    let is_io = admin.controller.subsystem.is_some();
    let (value, changeable) = match command.feature {
        feature::NUMBER_OF_QUEUES if is_io => (granted(admin).into(), true),
        feature::VOLATILE_WRITE_CACHE if flushes(admin) => (1, false),
        feature::ASYNC_EVENT_CONFIGURATION => (admin.events.wanted.into(), true),
        feature::KEEP_ALIVE_TIMER => (admin.controller.kato().into(), true),
        feature::HOST_IDENTIFIER if sqe.cdw10[1].get() & EXTENDED == 0 => return Err(Status::INVALID_FIELD),
        feature::HOST_IDENTIFIER if command.select != CAPABILITIES => {
            return Ok(Answer::page(admin.controller.host_id.to_vec()));
        }
        feature::HOST_IDENTIFIER => (0, false),
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok(Answer::result(match (command.select, changeable) {
        (CAPABILITIES, true) => CHANGEABLE,
        (CAPABILITIES, false) => 0,
        _ => value,
    }))
}

pub(crate) fn set(admin: &mut Admin, sqe: &Sqe, now: Nanos) -> Result<Answer, Status> {
    let command = SetFeatures::of(sqe);
    if command.save {
        return Err(Status::FEATURE_NOT_SAVEABLE);
    }
    match command.feature {
        feature::NUMBER_OF_QUEUES if admin.controller.subsystem.is_some() => {
            let asked = QueueCounts::of(command.value);
            if asked.submission > u16::MAX.into() || asked.completion > u16::MAX.into() {
                return Err(Status::INVALID_FIELD);
            }
            if admin.controller.has_queues() {
                return Err(Status::SEQUENCE_ERROR);
            }
            return Ok(Answer::result(granted(admin).into()));
        }
        feature::VOLATILE_WRITE_CACHE if flushes(admin) && command.value & 1 == 0 => return Err(NOT_CHANGEABLE),
        feature::VOLATILE_WRITE_CACHE if flushes(admin) => {}
        feature::ASYNC_EVENT_CONFIGURATION => admin.events.wanted = command.value & offered(admin),
        feature::KEEP_ALIVE_TIMER => admin.controller.set_kato(command.value, now),
        feature::HOST_IDENTIFIER => return Err(Status::SEQUENCE_ERROR),
        _ => return Err(Status::INVALID_FIELD),
    }
    Ok(Answer::NONE)
}

/// OAES: the events that a controller tells.
pub(crate) fn offered(admin: &Admin) -> u32 {
    match admin.controller.subsystem {
        Some(_) => Event::Namespace.bit() | Event::Ana.bit(),
        None => Event::Discovery.bit(),
    }
}

/// Whether there is a cache that Flush empties.
pub(crate) fn flushes(admin: &Admin) -> bool {
    let namespace = admin.controller.subsystem.as_ref().map(|subsystem| &subsystem.namespace);
    namespace.is_some_and(|namespace| {
        namespace.rights.contains(Op::Write.right()) && namespace.engine.is_some_and(|engine| engine.flush)
    })
}

/// How many I/O queues a controller has, as a dword.
fn granted(admin: &Admin) -> u32 {
    let queues = admin.target.limits().io_queues.into();
    QueueCounts { submission: queues, completion: queues }.dword()
}
