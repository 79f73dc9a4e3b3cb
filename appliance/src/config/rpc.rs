//! `[port.rpc]`: how calls are spoken, and where they run.

use std::iter::once;

use berth_keys::{At, Table};
use berth_rpc::{Dispatch, Order, RingIndex, Undispatchable};
use berth_wire::rpc::{HeaderForm, PtpEncoding};

use super::{Host, RingKernel, name, port::cpu_list, unique};

/// `[port.rpc]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rpc {
    /// Which header the peers speak.
    pub header: HeaderForm,
    /// The longest request and the longest answer, header included, in bytes.
    pub slot_size: usize,
    /// Where handlers run unless the function says otherwise.
    pub dispatch: Mode,
    /// The ring of functions that name none.
    pub ring: Ring,
    /// The others.
    pub named: Vec<Ring>,
    /// What happens to a request that no handler can take.
    pub on_undispatchable: Undispatchable,
    /// How the peers encode their time stamps.
    pub ptp: PtpEncoding,
    /// In which order each client gets its answers.
    pub order: Order,
}

/// `dispatch`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// On the core that received the request.
    Inline,
    /// Behind a ring.
    Ring,
}

/// A ring of each queue of the port: of `[port.rpc]` itself, or `[[port.rpc.ring]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    /// The name by which functions choose it; `None` for the port's own.
    pub name: Option<String>,
    /// Requests that can wait.
    pub slots: usize,
    /// The CPUs of its workers.
    pub worker_cpus: Vec<usize>,
    /// Memory of its slots.
    pub memory: Memory,
}

/// `memory`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Memory {
    /// The process's own.
    Heap,
    /// Huge pages of 2 MiB.
    Hugepages,
    /// A shared memory object of this name: another process serves the ring.
    Shared(String),
}

impl Rpc {
    /// The rings that there are, each with somebody who serves it.
    pub fn rings(&self) -> impl Iterator<Item = &Ring> {
        let is_served = |ring: &&Ring| !ring.worker_cpus.is_empty() || matches!(ring.memory, Memory::Shared(_));
        once(&self.ring).filter(is_served).chain(&self.named)
    }

    /// Where a function runs that says this of `dispatch` and `ring`; nowhere if the port has no such ring.
    pub fn dispatch_of(&self, mode: Option<Mode>, ring: Option<&str>) -> Option<Dispatch> {
        match mode.unwrap_or(self.dispatch) {
            Mode::Inline => Some(Dispatch::Inline),
            Mode::Ring => Some(Dispatch::Ring(self.ring_of(ring)?)),
        }
    }

    /// Where a ring kernel runs; nowhere if the port has no such ring.
    pub fn dispatch_of_kernel(&self, kernel: &RingKernel) -> Option<Dispatch> {
        match kernel.settings.queue {
            None => Some(Dispatch::Inline),
            Some(_) => Some(Dispatch::Queue(self.ring_of(kernel.ring.as_deref())?)),
        }
    }

    fn ring_of(&self, name: Option<&str>) -> Option<RingIndex> {
        self.rings().position(|ring| ring.name.as_deref() == name).map(RingIndex)
    }
}

/// The words of `dispatch`.
pub(super) const DISPATCH: &[(&str, Mode)] = &[("inline", Mode::Inline), ("ring", Mode::Ring)];

/// What the rings of all ports are called.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// In functions.
    pub(super) rings: Vec<At<String>>,
    /// In `/dev/shm`.
    pub(super) shared: Vec<At<String>>,
}

pub(super) fn rpc(mut t: Table<'_, '_>, has_slots: bool, host: &Host, names: &mut Names) -> Rpc {
    let header = t.chosen("header", &[("v24", HeaderForm::V24), ("v16", HeaderForm::V16)]);
    let slot_size = t.number("slot_size") as usize;
    let dispatch = t.chosen("dispatch", DISPATCH);
    let own = ring(&mut t, None, dispatch == Mode::Ring, host, &mut names.shared);
    let mut known = Vec::new();
    let mut named = Vec::new();
    for mut t in t.tables("ring").into_iter().flatten() {
        let name = name(&mut t, "decoders");
        let ring = ring(&mut t, name.as_ref().map(|at| at.value.clone()), true, host, &mut names.shared);
        t.finish();
        named.extend(name.is_some().then_some(ring));
        known.extend(name);
    }
    unique(t.sink(), known.iter());
    names.rings.append(&mut known);
    let words = [("reply", Undispatchable::Reply), ("drop", Undispatchable::Drop)];
    let on_undispatchable = t.chosen("on_undispatchable", &words);
    let order = if has_slots {
        t.refuse(&["order"], "RDMA peers know answers by their slots");
        Order::Ready
    } else {
        t.chosen("order", &[("arrival", Order::Arrival), ("ready", Order::Ready)])
    };
    let ptp = t.chosen("ptp", &[("ns", PtpEncoding::Ns), ("sec_nsec", PtpEncoding::SecNsec)]);
    t.finish();
    Rpc { header, slot_size, dispatch, ring: own, named, on_undispatchable, ptp, order }
}

/// Reads the keys of a ring; somebody serves it where that is `needed`.
fn ring(t: &mut Table<'_, '_>, name: Option<String>, needed: bool, host: &Host, shared: &mut Vec<At<String>>) -> Ring {
    let slots = t.number("slots") as usize;
    let worker_cpus = cpu_list(t, "worker_cpus", host).unwrap_or_default();
    let memory = memory(t, shared);
    if matches!(memory, Memory::Shared(_)) {
        t.refuse(&["worker_cpus"], "with memory = \"shared\" whoever attaches to the ring serves it");
    } else if needed {
        let given = (!worker_cpus.is_empty()).then_some(());
        t.require("worker_cpus", given, "worker_cpus = [1], the CPUs that run handlers for dispatch = \"ring\"");
    }
    Ring { name, slots, worker_cpus, memory }
}

fn memory(t: &mut Table<'_, '_>, shared: &mut Vec<At<String>>) -> Memory {
    match t.chosen("memory", &[("heap", 0), ("hugepages", 1), ("shared", 2)]) {
        0 => Memory::Heap,
        1 => Memory::Hugepages,
        _ => {
            let name = t.text("shared_name");
            let name = t.require("shared_name", name, "shared_name = \"fpga0\"").map(|at| at.map(str::to_owned));
            if let Some(at) = name.as_ref().filter(|at| at.value.is_empty() || at.value.contains('/')) {
                t.sink().wrong(at, format_args!("\"{}\" is not the name of a file; leave slashes out", at.value));
            }
            shared.extend(name.clone());
            Memory::Shared(name.map_or_else(String::new, |at| at.value))
        }
    }
}
