//! An NVMe controller with virtual functions, which keeps to the specification.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use berth_sriov::Admin;
use berth_wire::nvme::{
    Sqe, Status,
    admin::Identify,
    identify::{self, Controller, Namespace, cns},
    opcode::admin as opcode,
    virtualization::{
        Attachment, Flexible, Format, Primary, Secondary, VirtualizationManagement, action, controller_list,
        controllers, secondary_list,
    },
};
use zerocopy::IntoBytes as _;

use crate::fake::TOTAL;

/// The identifier of the primary controller.
pub(crate) const PRIMARY: u16 = 3;

/// That of a function's secondary one: not in the order of the functions.
pub(crate) fn secondary(index: u16) -> u16 {
    20 - index
}

/// What is to be shared out of queues and interrupts, and how much of it one may have.
const SHARED: [(u16, u16); 2] = [(14, 3), (7, 2)];

/// A controller whose commands tests can see, refuse and lose.
#[derive(Debug, Clone)]
pub(crate) struct FakeController(Arc<Mutex<Inside>>, PathBuf);

#[derive(Debug, Default)]
pub(crate) struct Inside {
    /// By function: whether it is online, its queues and interrupts.
    pub(crate) secondaries: BTreeMap<u16, (bool, [u16; 2])>,
    /// Which controllers have each namespace.
    pub(crate) attached: BTreeMap<u32, BTreeSet<u16>>,
    /// What the primary one has of the shared resources, and will have after a reset.
    primary: [u16; 2],
    next: [u16; 2],
    /// What was done.
    pub(crate) log: Vec<String>,
    /// Refuses what it logs with this beginning.
    pub(crate) refuses: Option<&'static str>,
    /// Loses all commands after so many; the first of them is done.
    pub(crate) left: Option<usize>,
    pub(crate) fna: u8,
}

impl FakeController {
    pub(crate) fn new(node: &Path) -> Self {
        let all = SHARED.map(|(total, _)| total);
        let secondaries = (0..TOTAL).map(|index| (index, (false, [0; 2]))).collect();
        // More than a list has.
        let attached = (1..1100).map(|namespace| (namespace, BTreeSet::new())).collect();
        let inside = Inside { secondaries, attached, primary: all, next: all, ..Inside::default() };
        Self(Arc::new(Mutex::new(inside)), node.to_owned())
    }

    pub(crate) fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    /// What was done since the last call, without what only looks.
    pub(crate) fn done(&self) -> Vec<String> {
        std::mem::take(&mut self.inside().log)
    }

    pub(crate) fn reset(&self) {
        let mut inside = self.inside();
        inside.primary = inside.next;
    }
}

impl Admin for FakeController {
    fn submit(&self, node: &Path, command: &Sqe, data: &mut [u8], _: Duration) -> io::Result<Status> {
        assert_eq!(node, self.1);
        let mut inside = self.inside();
        let looks = command.opcode == opcode::IDENTIFY;
        let lost = || Err(io::Error::other("killed"));
        match inside.left {
            Some(0) => return lost(),
            Some(left) if !looks => inside.left = Some(left - 1),
            _ => {}
        }
        let status = if looks { inside.identify(command, data) } else { inside.change(command, data) };
        let status = status.err().unwrap_or(Status::SUCCESS);
        if !looks && inside.left == Some(0) { lost() } else { Ok(status) }
    }
}

impl Inside {
    fn identify(&self, command: &Sqe, data: &mut [u8]) -> Result<(), Status> {
        let Identify { cns, controller, .. } = Identify::of(command);
        let namespace = command.nsid.get();
        let answer = match cns {
            cns::CONTROLLER => {
                let mut controller = Controller::zeroed();
                (controller.oacs, controller.fna) = ((1 << 1 | 1 << 3 | 1 << 7).into(), self.fna);
                controller.as_bytes().to_vec()
            }
            cns::NAMESPACE => {
                let mut found = Namespace::zeroed();
                // One that the controller does not have is all zeroes.
                if self.attached[&namespace].contains(&PRIMARY) {
                    (found.flbas, found.dps) = (0x11, 9);
                }
                found.as_bytes().to_vec()
            }
            cns::ALLOCATED_NAMESPACES => {
                let all: Vec<_> = self.attached.keys().copied().collect();
                identify::active_namespaces(namespace, &all).to_vec()
            }
            cns::ATTACHED_CONTROLLERS => {
                let its = self.attached.get(&namespace).ok_or(Status::INVALID_FIELD)?;
                controller_list(&its.iter().copied().filter(|id| *id >= controller).collect::<Vec<_>>()).to_vec()
            }
            cns::PRIMARY_CAPABILITIES => {
                let flexible = |kind: usize| {
                    let (total, max) = SHARED[kind];
                    let primary = self.primary[kind].into();
                    Flexible { total: u32::from(total).into(), primary, max: max.into(), ..Flexible::zeroed() }
                };
                let mut primary = Primary::zeroed();
                primary.controller = PRIMARY.into();
                (primary.queues, primary.interrupts) = (flexible(0), flexible(1));
                primary.as_bytes().to_vec()
            }
            cns::SECONDARY_CONTROLLERS => {
                let entry = |(index, (online, has)): (&u16, &(bool, [u16; 2]))| {
                    let mut entry = Secondary::zeroed();
                    (entry.controller, entry.primary) = (secondary(*index).into(), PRIMARY.into());
                    (entry.state, entry.function) = (u8::from(*online), (index + 1).into());
                    [entry.queues, entry.interrupts] = has.map(Into::into);
                    entry
                };
                let all = self.secondaries.iter().rev().map(entry);
                secondary_list(&all.filter(|entry| entry.controller.get() >= controller).collect::<Vec<_>>()).to_vec()
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        data.copy_from_slice(&answer);
        Ok(())
    }

    fn change(&mut self, command: &Sqe, data: &[u8]) -> Result<(), Status> {
        let namespace = command.nsid.get();
        match command.opcode {
            opcode::VIRTUALIZATION_MANAGEMENT => self.manage(VirtualizationManagement::of(command)),
            opcode::NAMESPACE_ATTACHMENT => {
                let attachment = Attachment::of(command).ok_or(Status::INVALID_FIELD)?;
                let [id] = controllers(data).collect::<Vec<_>>()[..] else { panic!("one at a time") };
                self.note(format!("{attachment:?} {namespace} {id}"))?;
                let its = self.attached.get_mut(&namespace).ok_or(Status::INVALID_FIELD)?;
                match attachment {
                    Attachment::Attach if !its.insert(id) => Err(Status::NAMESPACE_ALREADY_ATTACHED),
                    Attachment::Detach if !its.remove(&id) => Err(Status::NAMESPACE_NOT_ATTACHED),
                    _ => Ok(()),
                }
            }
            opcode::FORMAT_NVM => {
                self.note(format!("erase {namespace}"))?;
                assert_eq!(Format::of(command), Format { flbas: 0x11, dps: 9, erase: 1 }, "the format stays");
                let has = self.attached[&namespace].contains(&PRIMARY);
                if has { Ok(()) } else { Err(Status::INVALID_FIELD) }
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn manage(&mut self, command: VirtualizationManagement) -> Result<(), Status> {
        let VirtualizationManagement { action, resource, controller, count } = command;
        let kind = usize::from(resource);
        self.note(match action {
            action::ALLOCATE_PRIMARY => format!("primary {resource} {count}"),
            action::OFFLINE => format!("offline {controller}"),
            action::ASSIGN => format!("assign {controller} {resource} {count}"),
            _ => format!("online {controller}"),
        })?;
        if action == action::ALLOCATE_PRIMARY {
            assert_eq!(controller, PRIMARY);
            self.next[kind] = count;
            return Ok(());
        }
        let assigned: u16 = self.secondaries.values().map(|(_, has)| has[kind]).sum();
        let (total, max) = SHARED[kind];
        let left = total - self.primary[kind] - assigned;
        let its = self.secondaries.iter_mut().find(|(index, _)| secondary(**index) == controller);
        let (_, (online, has)) = its.ok_or(Status::INVALID_CONTROLLER)?;
        match action {
            action::OFFLINE => (*online, *has) = (false, [0; 2]),
            action::ASSIGN if *online => return Err(Status::INVALID_SECONDARY_STATE),
            action::ASSIGN if count > max => return Err(Status::INVALID_RESOURCE_COUNT),
            action::ASSIGN if count > left + has[kind] => return Err(Status::INVALID_RESOURCE),
            action::ASSIGN => has[kind] = count,
            action::ONLINE if has[0] < 2 || has[1] < 1 => return Err(Status::INVALID_SECONDARY_STATE),
            _ => *online = true,
        }
        Ok(())
    }

    fn note(&mut self, what: String) -> Result<(), Status> {
        let refused = self.refuses.is_some_and(|refused| what.starts_with(refused));
        self.log.push(what);
        if refused { Err(Status::INVALID_FIELD) } else { Ok(()) }
    }
}
