//! `[port.rpc]`: how calls are spoken, and where they run.

use berth_keys::Table;
use berth_rpc::{Dispatch, Order, Undispatchable};
use berth_wire::rpc::{HeaderForm, PtpEncoding};

use super::{Host, port::cpu_list};

/// `[port.rpc]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rpc {
    /// Which header the peers speak.
    pub header: HeaderForm,
    /// Slots of the ring to each worker.
    pub slots: usize,
    /// The longest request and the longest answer, header included, in bytes.
    pub slot_size: usize,
    /// Where handlers run unless the function says otherwise.
    pub dispatch: Dispatch,
    /// The CPUs of the workers for ring dispatch.
    pub worker_cpus: Vec<usize>,
    /// What slots are made of.
    pub memory: Memory,
    /// What happens to a request that no handler can take.
    pub on_undispatchable: Undispatchable,
    /// How the peers encode their time stamps.
    pub ptp: PtpEncoding,
    /// In which order each client gets its answers.
    pub order: Order,
}

/// `rpc.memory`
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
    /// Whether there is a ring to dispatch through.
    pub fn has_ring(&self) -> bool {
        !self.worker_cpus.is_empty() || matches!(self.memory, Memory::Shared(_))
    }
}

/// `dispatch`
pub(super) const DISPATCH: &[(&str, Dispatch)] = &[("inline", Dispatch::Inline), ("ring", Dispatch::Ring)];

pub(super) fn rpc(mut t: Table<'_, '_>, has_slots: bool, host: &Host) -> Rpc {
    let header = t.chosen("header", &[("v24", HeaderForm::V24), ("v16", HeaderForm::V16)]);
    let (slots, slot_size) = (t.number("slots") as usize, t.number("slot_size") as usize);
    let dispatch = t.chosen("dispatch", DISPATCH);
    let worker_cpus = cpu_list(&mut t, "worker_cpus", host).unwrap_or_default();
    let memory = memory(&mut t);
    if matches!(memory, Memory::Shared(_)) {
        t.refuse(&["worker_cpus"], "with memory = \"shared\" whoever attaches to the ring serves it");
    } else if dispatch == Dispatch::Ring {
        let given = (!worker_cpus.is_empty()).then_some(());
        t.require("worker_cpus", given, "worker_cpus = [1], the CPUs that run handlers for dispatch = \"ring\"");
    }
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
    Rpc { header, slots, slot_size, dispatch, worker_cpus, memory, on_undispatchable, ptp, order }
}

fn memory(t: &mut Table<'_, '_>) -> Memory {
    match t.chosen("memory", &[("heap", 0), ("hugepages", 1), ("shared", 2)]) {
        0 => Memory::Heap,
        1 => Memory::Hugepages,
        _ => {
            let name = t.text("shared_name");
            let name = t.require("shared_name", name, "shared_name = \"fpga0\"");
            if let Some(at) = name.as_ref().filter(|at| at.value.is_empty() || at.value.contains('/')) {
                t.sink().wrong(at, format_args!("\"{}\" is not the name of a file; leave slashes out", at.value));
            }
            Memory::Shared(name.map_or_else(String::new, |at| at.value.to_string()))
        }
    }
}
