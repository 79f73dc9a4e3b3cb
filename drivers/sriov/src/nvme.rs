//! Functions of an NVMe controller: that of the physical function is the primary one, whose admin commands bring the secondary
//! ones up and take them down (Base, "Virtualization Enhancements").
//!
//! ```text
//! make      primary: flexible resources 0, reset ── sriov_numvfs
//! give      secondary: offline, queues and interrupts, online, namespace attached
//! cut       secondary: offline
//! restore   namespace: detached, attached to the primary, erased, detached
//! ```

use std::{path::PathBuf, time::Duration};

use berth_wire::nvme::{
    Sqe, Status,
    admin::Identify,
    identify::{self, Namespace, cns},
    opcode::admin as opcode,
    virtualization::{
        Attachment, Flexible, Format, Primary, SECONDARIES_MAX, Secondary, VirtualizationManagement, action,
        controller_list, controllers, resource, secondaries,
    },
};

use crate::{
    Address,
    function::{Failure, Host, io_error, until},
};

/// How long a controller may take for a command, and to come back from a reset.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long it may take to erase a namespace.
const ERASING: Duration = Duration::from_hours(1);

/// What a secondary controller needs at least: the admin queue and one for I/O, and an interrupt.
const QUEUES: u16 = 2;
const INTERRUPTS: u16 = 1;

/// What a holder gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) namespace: u32,
    /// Among how many functions the controller's resources are shared.
    pub(crate) share: u16,
}

/// The controller of a physical function.
struct Controller<'a> {
    host: &'a Host,
    node: PathBuf,
}

/// What must hold before a function is anybody's: it is not in use, its namespace is nobody else's, and it has no other.
pub(crate) fn check(host: &Host, pf: Address, index: u16, wanted: Wanted) -> Result<(), Failure> {
    let controller = Controller::of(host, pf)?;
    let secondary = controller.secondary(index)?;
    let id = secondary.controller.get();
    if secondary.is_online() {
        return Err(Failure::Online(id));
    }
    controller.attached_to(wanted.namespace, &[id])?;
    let mut above = 0;
    loop {
        let data = controller.identify(cns::ALLOCATED_NAMESPACES, above, 0)?;
        for namespace in identify::namespaces(&data) {
            let others = namespace != wanted.namespace;
            if others
                && controllers(&controller.identify(cns::ATTACHED_CONTROLLERS, namespace, 0)?).any(|has| has == id)
            {
                return Err(Failure::Has { controller: id, namespace });
            }
        }
        // A full list goes on behind its last.
        match identify::namespaces(&data).nth(identify::LEN / 4 - 1).filter(|last| *last > above) {
            Some(last) => above = last,
            None => return Ok(()),
        }
    }
}

/// A secondary controller gets its resources, goes online, and has its namespace.
pub(crate) fn configure(host: &Host, pf: Address, index: u16, wanted: Wanted) -> Result<(), Failure> {
    let Wanted { namespace, share } = wanted;
    let controller = Controller::of(host, pf)?;
    let (primary, secondary) = (controller.primary()?, controller.secondary(index)?);
    let id = secondary.controller.get();
    controller.manage(action::OFFLINE, 0, id, 0)?;
    let fair = |kind: &Flexible, least: u16| {
        let fair = kind.total.get() / u32::from(share.max(1));
        fair.min(kind.max.get().into()).max(least.into()) as u16
    };
    for (kind, count) in [
        (resource::QUEUES, fair(&primary.queues, QUEUES)),
        (resource::INTERRUPTS, fair(&primary.interrupts, INTERRUPTS)),
    ] {
        controller.manage(action::ASSIGN, kind, id, count)?;
    }
    controller.manage(action::ONLINE, 0, id, 0)?;
    if !controller.attached_to(namespace, &[id])?.contains(&id) {
        controller.attach(Attachment::Attach, namespace, id)?;
    }
    Ok(())
}

/// From now on the function serves nobody, and reads and writes nobody's memory.
pub(crate) fn cut(host: &Host, pf: Address, index: u16) -> Result<(), Failure> {
    let controller = Controller::of(host, pf)?;
    let id = controller.secondary(index)?.controller.get();
    controller.manage(action::OFFLINE, 0, id, 0)
}

/// Takes its namespace from a function that is offline, and erases it: only a controller that has it can.
pub(crate) fn restore(host: &Host, pf: Address, index: u16, namespace: u32) -> Result<(), Failure> {
    let controller = Controller::of(host, pf)?;
    let secondary = controller.secondary(index)?.controller.get();
    let primary = controller.primary()?.controller.get();
    controller.manage(action::OFFLINE, 0, secondary, 0)?;
    let attached = controller.attached_to(namespace, &[primary, secondary])?;
    if attached.contains(&secondary) {
        controller.attach(Attachment::Detach, namespace, secondary)?;
    }
    if !attached.contains(&primary) {
        controller.attach(Attachment::Attach, namespace, primary)?;
    }
    controller.erase(namespace)?;
    controller.attach(Attachment::Detach, namespace, primary)
}

/// What keeps the functions of a controller from being leased.
pub(crate) fn unfit(host: &Host, pf: Address) -> Result<(), Failure> {
    let data = Controller::of(host, pf)?.identify(cns::CONTROLLER, 0, 0)?;
    let Some(is) = identify::Controller::parse(&data) else { return Ok(()) };
    let oacs = is.oacs.get();
    for (bit, name) in [(1, "Format NVM"), (3, "Namespace Attachment"), (7, "Virtualization Management")] {
        if oacs & 1 << bit == 0 {
            return Err(Failure::Lacks(name));
        }
    }
    // Bit 0: it formats all of them, bit 1: it erases all.
    let (formats_all, erases_all) = (is.fna & 1 != 0, is.fna & 2 != 0);
    if !formats_all && !erases_all { Ok(()) } else { Err(Failure::Lacks("Format NVM of one namespace alone")) }
}

/// The primary controller keeps what is its own alone, so that there is something for the functions to share. There are none
/// now: its reset would end them.
pub(crate) fn share_out(host: &Host, pf: Address) -> Result<(), Failure> {
    let controller = Controller::of(host, pf)?;
    let primary = controller.primary()?;
    if (primary.queues.primary.get(), primary.interrupts.primary.get()) == (0, 0) {
        return Ok(());
    }
    for kind in [resource::QUEUES, resource::INTERRUPTS] {
        controller.manage(action::ALLOCATE_PRIMARY, kind, primary.controller.get(), 0)?;
    }
    host.sysfs.write(pf, "reset", "1").map_err(io_error("reset"))?;
    // Its driver sets it up again.
    if until(PATIENCE, || Controller::of(host, pf).is_ok()) { Ok(()) } else { Err(Failure::NoController) }
}

impl<'a> Controller<'a> {
    fn of(host: &'a Host, pf: Address) -> Result<Self, Failure> {
        let name = host.sysfs.live_controller(pf).ok_or(Failure::NoController)?;
        Ok(Self { host, node: host.sysfs.path("/dev").join(name) })
    }

    fn submit(&self, what: &'static str, command: &Sqe, data: &mut [u8], patience: Duration) -> Result<(), Failure> {
        let status = self.host.admin.submit(&self.node, command, data, patience).map_err(io_error(what))?;
        if status == Status::SUCCESS { Ok(()) } else { Err(Failure::Refuses { what, status }) }
    }

    fn identify(&self, cns: u8, namespace: u32, controller: u16) -> Result<Vec<u8>, Failure> {
        let mut command = Sqe::new(opcode::IDENTIFY, 0, namespace);
        Identify { cns, controller, command_set: 0 }.put(&mut command);
        let mut data = vec![0; identify::LEN];
        self.submit("Identify", &command, &mut data, PATIENCE)?;
        Ok(data)
    }

    fn primary(&self) -> Result<Primary, Failure> {
        let data = self.identify(cns::PRIMARY_CAPABILITIES, 0, 0)?;
        Primary::parse(&data).copied().ok_or(Failure::NoController)
    }

    /// The secondary controller of a function.
    fn secondary(&self, index: u16) -> Result<Secondary, Failure> {
        let mut from = 0;
        loop {
            let data = self.identify(cns::SECONDARY_CONTROLLERS, 0, from)?;
            // Functions are counted from 1.
            let is_its = |entry: &&Secondary| u32::from(entry.function.get()) == u32::from(index) + 1;
            if let Some(its) = secondaries(&data).find(is_its) {
                return Ok(*its);
            }
            // A full list goes on behind its last.
            let last = secondaries(&data).nth(SECONDARIES_MAX - 1).map(|last| last.controller.get());
            let next = last.filter(|last| *last >= from).and_then(|last| last.checked_add(1));
            from = next.ok_or(Failure::NoSecondary)?;
        }
    }

    /// The controllers that have a namespace, of which each is to be one of `known`.
    fn attached_to(&self, namespace: u32, known: &[u16]) -> Result<Vec<u16>, Failure> {
        let data = self.identify(cns::ATTACHED_CONTROLLERS, namespace, 0)?;
        let attached: Vec<_> = controllers(&data).collect();
        let other = attached.iter().copied().find(|id| !known.contains(id));
        other.map_or(Ok(attached), |controller| Err(Failure::Attached { namespace, controller }))
    }

    fn manage(&self, action: u8, resource: u8, controller: u16, count: u16) -> Result<(), Failure> {
        let mut command = Sqe::new(opcode::VIRTUALIZATION_MANAGEMENT, 0, 0);
        VirtualizationManagement { action, resource, controller, count }.put(&mut command);
        let what = match action {
            action::OFFLINE => "taking it offline",
            action::ONLINE => "taking it online",
            _ => "sharing out queues and interrupts",
        };
        self.submit(what, &command, &mut [], PATIENCE)
    }

    fn attach(&self, attachment: Attachment, namespace: u32, controller: u16) -> Result<(), Failure> {
        let mut command = Sqe::new(opcode::NAMESPACE_ATTACHMENT, 0, namespace);
        attachment.put(&mut command);
        self.submit("Namespace Attachment", &command, &mut controller_list(&[controller]), PATIENCE)
    }

    fn erase(&self, namespace: u32) -> Result<(), Failure> {
        let data = self.identify(cns::NAMESPACE, namespace, 0)?;
        let is = Namespace::parse(&data).ok_or(Failure::NoController)?;
        let mut command = Sqe::new(opcode::FORMAT_NVM, 0, namespace);
        Format::erasing(is).put(&mut command);
        self.submit("Format NVM", &command, &mut [], ERASING)
    }
}
