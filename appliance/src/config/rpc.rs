//! `[port.rpc]`: how calls are spoken, and where they run.

use std::{iter::once, time::Duration};

use berth_gpu::Choice;
use berth_keys::{At, Table, instead};
use berth_rpc::{Dispatch, Order, RingIndex, Undispatchable};
use berth_wire::rpc::{HeaderForm, PtpEncoding};

use super::{Gpu, Host, RingKernel, name, port::cpu_list, unique};

/// `[port.rpc]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rpc {
    /// Which header the peers speak: the wire does not tell the two apart.
    pub header: HeaderForm,
    /// The longest request and the longest answer, header included, in bytes: 64 to 65507.
    pub slot_size: usize,
    /// Where handlers run unless the function says otherwise.
    pub dispatch: Mode,
    /// The ring of functions that name none.
    pub ring: Ring,
    /// The rings of `[[port.rpc.ring]]`, each with a name.
    pub named: Vec<Ring>,
    /// What happens to a request that no handler can take.
    pub on_undispatchable: Undispatchable,
    /// How the peers encode their time stamps.
    pub ptp: PtpEncoding,
    /// In which order each client gets its answers; always as they are ready where the driver has slots.
    pub order: Order,
}

/// `dispatch`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// On the core that received the request.
    Inline,
    /// Behind a ring.
    Ring,
    /// Behind the ring that a GPU serves.
    Gpu,
}

/// A ring of each queue of the port: of `[port.rpc]` itself, or `[[port.rpc.ring]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    /// The name by which functions choose it; `None` for the port's own.
    pub name: Option<String>,
    /// Requests that can wait, 1 to 65536.
    pub slots: usize,
    /// The CPUs of its workers; empty where a GPU, another process or nobody serves it.
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
    /// A shared memory object: another process serves the ring.
    Shared {
        /// Its name: `/dev/shm/berth-NAME`, and for further CPUs of the port `NAME.1` and so on.
        name: String,
        /// How long after its request was freed an answer may come: 0 to 60 s.
        patience: Duration,
    },
    /// Memory that a GPU reads, by position in [`super::Config::gpus`]: it serves the ring, whose requests lie there.
    Gpu(usize, Place),
}

/// Where requests lie that a GPU serves. Answers lie in memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In memory of the host.
    Pinned,
    /// In memory of the GPU, which the CPU writes.
    Vram,
    /// There, where that can be; else in memory of the host.
    Auto,
}

impl Rpc {
    /// The rings that there are, each with somebody who serves it.
    pub fn rings(&self) -> impl Iterator<Item = &Ring> {
        let is_served = |ring: &&Ring| {
            !ring.worker_cpus.is_empty() || matches!(ring.memory, Memory::Shared { .. } | Memory::Gpu(..))
        };
        once(&self.ring).filter(is_served).chain(&self.named)
    }

    /// Where a function runs that says this of `dispatch` and `ring`; nowhere if the port has no such ring.
    pub fn dispatch_of(&self, mode: Option<Mode>, ring: Option<&str>) -> Option<Dispatch> {
        let at = match mode.unwrap_or(self.dispatch) {
            Mode::Inline => return Some(Dispatch::Inline),
            Mode::Ring => self.ring_of(ring),
            Mode::Gpu => self.rings().position(is_gpus).map(RingIndex),
        };
        at.map(Dispatch::Ring)
    }

    /// Whether a function that says this of `dispatch` runs on a GPU.
    pub fn is_on_gpu(&self, mode: Option<Mode>) -> bool {
        mode.unwrap_or(self.dispatch) == Mode::Gpu
    }

    /// Where a ring kernel runs; nowhere if the port has no such ring.
    pub fn dispatch_of_kernel(&self, kernel: &RingKernel) -> Option<Dispatch> {
        match kernel.settings.queue {
            None => Some(Dispatch::Inline),
            Some(_) => Some(Dispatch::Queue(self.ring_of(kernel.ring.as_deref())?)),
        }
    }

    /// The ring of this name that no GPU serves.
    fn ring_of(&self, name: Option<&str>) -> Option<RingIndex> {
        self.rings().position(|ring| ring.name.as_deref() == name && !is_gpus(ring)).map(RingIndex)
    }
}

fn is_gpus(ring: &Ring) -> bool {
    matches!(ring.memory, Memory::Gpu(..))
}

/// The words of `dispatch`.
pub(super) const DISPATCH: &[(&str, Mode)] = &[("inline", Mode::Inline), ("ring", Mode::Ring), ("gpu", Mode::Gpu)];

/// What the rings of all ports are called.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// In functions.
    pub(super) rings: Vec<At<String>>,
    /// In `/dev/shm`.
    pub(super) shared: Vec<At<String>>,
}

pub(super) fn rpc(mut t: Table<'_, '_>, has_slots: bool, host: &Host, names: &mut Names, gpus: &[Gpu]) -> Rpc {
    let header = t.chosen("header", &[("v24", HeaderForm::V24), ("v16", HeaderForm::V16)]);
    let slot_size = t.number("slot_size") as usize;
    let dispatch = t.chosen("dispatch", DISPATCH);
    let gpu = t.text("gpu");
    let own = match &gpu {
        Some(at) => gpu_ring(&mut t, at, gpus),
        None => ring(&mut t, None, OWN_MEMORY, dispatch == Mode::Ring, host, &mut names.shared),
    };
    if dispatch == Mode::Gpu {
        t.require("gpu", gpu, "gpu = the name of a [[gpu]]");
    }
    let mut known = Vec::new();
    let mut named = Vec::new();
    for mut t in t.tables("ring").into_iter().flatten() {
        let name = name(&mut t, "decoders");
        let ring = ring(&mut t, name.as_ref().map(|at| at.value.clone()), MEMORY, true, host, &mut names.shared);
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

/// Reads the keys of the port's own ring, which a GPU serves.
fn gpu_ring(t: &mut Table<'_, '_>, at: &At<&str>, gpus: &[Gpu]) -> Ring {
    t.refuse(&["worker_cpus"], "the GPU serves the port's own ring; [[port.rpc.ring]] has workers beside it");
    let place = t.place("slots");
    let slots = t.number("slots") as usize;
    let found = gpus.iter().position(|gpu| gpu.name == at.value);
    let is_soft = found.is_some_and(|found| gpus[found].device == Choice::Soft);
    let memory = t.choice("memory", OWN_MEMORY);
    let requests = match memory.as_ref().map(|at| at.value) {
        None | Some(Kind::Auto) => Place::Auto,
        Some(Kind::Pinned) => Place::Pinned,
        Some(Kind::Vram) => Place::Vram,
        Some(Kind::Heap | Kind::Hugepages | Kind::Shared) => {
            let message = "is not for a GPU; write \"pinned\", \"vram\" or \"auto\"";
            if let Some(at) = &memory {
                t.sink().wrong(at, message);
            }
            Place::Auto
        }
    };
    if let Some(at) = memory.filter(|at| is_soft && matches!(at.value, Kind::Vram)) {
        t.sink().wrong(&at, "the GPU in software has no memory but the host's; write \"pinned\" or \"auto\"");
    }
    match found.map(|found| gpus[found].blocks) {
        None => {
            let advice = instead(at.value, gpus.iter().map(|gpu| &*gpu.name));
            t.sink().wrong(at, format_args!("there is no [[gpu]] \"{}\"; {advice}", at.value));
        }
        Some(blocks) if !slots.is_multiple_of(blocks as usize) => {
            let message =
                format_args!("{slots} slots cannot be shared by {blocks} blocks of \"{}\"; take a multiple", at.value);
            t.sink().mistake(place, &format!("{}.slots", t.path()), message);
        }
        Some(_) => {}
    }
    Ring { name: None, slots, worker_cpus: Vec::new(), memory: Memory::Gpu(found.unwrap_or(0), requests) }
}

/// Reads the keys of a ring; somebody serves it where that is `needed`.
fn ring(
    t: &mut Table<'_, '_>,
    name: Option<String>,
    words: &[(&str, Kind)],
    needed: bool,
    host: &Host,
    shared: &mut Vec<At<String>>,
) -> Ring {
    let slots = t.number("slots") as usize;
    let worker_cpus = cpu_list(t, "worker_cpus", host).unwrap_or_default();
    let memory = memory(t, words, shared);
    if matches!(memory, Memory::Shared { .. }) {
        t.refuse(&["worker_cpus"], "with memory = \"shared\" whoever attaches to the ring serves it");
    } else if needed {
        let given = (!worker_cpus.is_empty()).then_some(());
        t.require("worker_cpus", given, "worker_cpus = [1], the CPUs that run handlers for dispatch = \"ring\"");
    }
    Ring { name, slots, worker_cpus, memory }
}

/// The words of `memory`, of the port's own ring.
const OWN_MEMORY: &[(&str, Kind)] = &[
    ("heap", Kind::Heap),
    ("hugepages", Kind::Hugepages),
    ("shared", Kind::Shared),
    ("pinned", Kind::Pinned),
    ("vram", Kind::Vram),
    ("auto", Kind::Auto),
];

/// Of the others, which are not for GPUs.
const MEMORY: &[(&str, Kind)] = OWN_MEMORY.split_at(3).0;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Heap,
    Hugepages,
    Shared,
    Pinned,
    Vram,
    Auto,
}

fn memory(t: &mut Table<'_, '_>, words: &[(&str, Kind)], shared: &mut Vec<At<String>>) -> Memory {
    let at = t.place("memory");
    match t.chosen("memory", words) {
        Kind::Heap => Memory::Heap,
        Kind::Hugepages => Memory::Hugepages,
        Kind::Pinned | Kind::Vram | Kind::Auto => {
            t.sink().mistake(
                at,
                &format!("{}.memory", t.path()),
                "is for a ring that a GPU serves; name it: gpu = \"gpu0\"",
            );
            Memory::Heap
        }
        Kind::Shared => {
            let name = t.text("shared_name");
            let name = t.require("shared_name", name, "shared_name = \"fpga0\"").map(|at| at.map(str::to_owned));
            if let Some(at) = name.as_ref().filter(|at| at.value.is_empty() || at.value.contains('/')) {
                t.sink().wrong(at, format_args!("\"{}\" is not the name of a file; leave slashes out", at.value));
            }
            shared.extend(name.clone());
            let patience = Duration::from_millis(t.number("unanswered_ms"));
            Memory::Shared { name: name.map_or_else(String::new, |at| at.value), patience }
        }
    }
}
