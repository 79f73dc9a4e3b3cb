//! `[[message]]` and `[[ring_kernel]]`: typed messages, and what answers them on every port.

use std::{collections::BTreeMap, time::Duration};

use berth_kernels::{
    Backpressure, Choice, Format, KernelError, Member, QueueSettings, Registry, RegistryError, Settings,
};
use berth_keys::{At, Table, instead};
use berth_wire::rpc::fnv1a;

use super::{
    Memory, Mode, Port, Ring,
    function::check_ring,
    kernel::{self, Context, Module},
    unique,
};

/// A `[[ring_kernel]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingKernel {
    /// What it answers, and how.
    pub settings: Settings,
    /// Name of the ring whose worker runs it, where messages wait; `None`: the port's own.
    pub ring: Option<String>,
    /// The WASM module that it runs; `None`: the kernel is built in.
    pub module: Option<Module>,
}

/// The built-in messages and those of the document.
pub(super) fn read_all(root: &mut Table<'_, '_>) -> Registry {
    let mut registry = Registry::default();
    let mut responses = Vec::new();
    for mut t in root.tables("message").unwrap_or_default() {
        let name = t.text("name");
        let name = t.require("name", name, "name = \"AccumulateRequest\"");
        let members = members(&mut t);
        let response = t.text("response");
        if let (Some(name), Some(members)) = (name, members) {
            let added = registry.add(name.value, members.value, response.as_ref().map(|at| at.value));
            match added {
                Err(RegistryError::Schema(e)) => t.sink().mistake(members.span, &members.field, e),
                Err(e) => t.sink().wrong(&name, e),
                Ok(()) => {}
            }
        }
        t.finish();
        responses.extend(response);
    }
    for at in responses {
        if registry.find(at.value).is_none() {
            root.sink()
                .wrong(&at, format_args!("there is no message \"{}\"; {}", at.value, known(&registry, at.value)));
        }
    }
    registry
}

/// The key `members`; `None` if one of them is wrong.
fn members(t: &mut Table<'_, '_>) -> Option<At<Vec<Member>>> {
    let list = t.texts("members");
    let list = t.require("members", list, "members = [\"MessageId guid\", \"Priority u8\"]")?;
    let (mut all, mut sound) = (Vec::new(), true);
    for at in &list.value {
        match at.value.parse() {
            Ok(member) => all.push(member),
            Err(e) => {
                t.sink().wrong(at, e);
                sound = false;
            }
        }
    }
    sound.then(|| list.map(|_| all))
}

fn known(registry: &Registry, given: &str) -> String {
    instead(given, registry.messages().iter().map(|message| message.schema.name()))
}

/// The ring kernels of the document, whose messages the ports have to carry.
pub(super) fn kernels(root: &mut Table<'_, '_>, registry: &Registry, context: &Context<'_>) -> Vec<RingKernel> {
    let (mut names, mut kernels) = (Vec::new(), Vec::new());
    let mut ids: BTreeMap<u32, String> = BTreeMap::new();
    for mut t in root.tables("ring_kernel").unwrap_or_default() {
        let message = t.text("message");
        let message = t.require("message", message, "message = \"VectorAddRequest\"");
        if let Some(name) = &message {
            let other = ids.insert(fnv1a(name.value), name.value.to_owned()).filter(|other| other != name.value);
            if let Some(other) = other {
                t.sink().wrong(name, format_args!("\"{}\" has the same id as \"{other}\"; rename one", name.value));
            }
            names.push(name.clone().map(str::to_owned));
        }
        kernels.extend(kernel(&mut t, message, registry, context));
        t.finish();
    }
    unique(root.sink(), names.iter());
    kernels
}

const FORMATS: &[(&str, Choice)] = &[
    ("auto", Choice::Auto),
    ("dotcompute", Choice::Only(Format::DotCompute)),
    ("memorypack", Choice::Only(Format::MemoryPack)),
    ("raw", Choice::Only(Format::Raw)),
];

fn kernel(
    t: &mut Table<'_, '_>,
    message: Option<At<&str>>,
    registry: &Registry,
    context: &Context<'_>,
) -> Option<RingKernel> {
    let ports = context.ports;
    let kernel = t.text("kernel");
    t.decide("kernel", kernel.as_ref().and_then(|at| kernel::owner(at.value)));
    let fuel = t.number("fuel");
    let named = kernel.as_ref().and_then(|at| kernel::named(t, at, context));
    let kernel = t.require("kernel", kernel, "kernel = \"builtin:vector_add\"");
    let format = t.chosen("format", FORMATS);
    let dedup = t.integer("dedup");
    let active = t.is_on("active");
    if let Some(at) = dedup.as_ref().filter(|at| (1..16).contains(&at.value)) {
        t.sink().wrong(at, format_args!("{} is too few; write 0 for none, or 16 to 1024", at.value));
    }
    let dedup = dedup.map_or_else(|| t.default_number("dedup"), |at| at.value) as usize;
    let dispatch = t.chosen("dispatch", &[("inline", Mode::Inline), ("ring", Mode::Ring)]);
    let (queue, ring) = queue(t, dispatch, ports);
    let message = message?;
    let Some(request) = registry.find(message.value) else {
        let advice = known(registry, message.value);
        t.sink().wrong(&message, format_args!("there is no message \"{}\"; {advice}", message.value));
        return None;
    };
    let Some(response) = &request.response else {
        t.sink().wrong(&message, format_args!("\"{}\" has no response; name one in its [[message]]", message.value));
        return None;
    };
    // A response that is not known was reported where it is named.
    let response = registry.find(response)?.schema.clone();
    let request = request.schema.clone();
    let kernel = kernel?;
    let (runs, module) = kernel::runs(t, &kernel, named?, fuel, [&request, &response], context)?;
    let settings = Settings { request, response, runs, format, dedup, active, queue };
    match settings.check() {
        Err(e @ KernelError::Ambiguous(..)) => t.sink().mistake(t.place("format"), &format!("{}.format", t.path()), e),
        Err(e @ KernelError::NoPriority(_)) => {
            t.sink().mistake(t.place("priority"), &format!("{}.priority", t.path()), e);
        }
        Err(e) => t.sink().wrong(&kernel, e),
        Ok(()) => {}
    }
    for (port, rpc) in ports.iter().filter_map(|port| Some((port, port.rpc()?))) {
        let needed = rpc.header.len() + settings.longest();
        if needed > rpc.slot_size {
            let (name, slot_size) = (&port.name, rpc.slot_size);
            let message = format_args!(
                "takes {needed} bytes with the header, slots of port \"{name}\" have {slot_size}; raise its rpc.slot_size"
            );
            t.sink().mistake(t.place("message"), &format!("{}.message", t.path()), message);
        }
    }
    Some(RingKernel { settings, ring, module })
}

/// The keys of messages that wait for a worker, and the worker's ring.
fn queue(t: &mut Table<'_, '_>, dispatch: Mode, ports: &[Port]) -> (Option<QueueSettings>, Option<String>) {
    let ring = t.text("ring");
    let waiting = t.number("queue");
    if !waiting.is_power_of_two() {
        let at = t.place("queue");
        t.sink().mistake(at, &format!("{}.queue", t.path()), format_args!("{waiting} is no power of two"));
    }
    let words = [
        ("reject", Backpressure::Reject),
        ("drop_new", Backpressure::DropNew),
        ("drop_oldest", Backpressure::DropOldest),
    ];
    let backpressure = t.chosen("backpressure", &words);
    let (priority, timeout) = (t.is_on("priority"), Duration::from_millis(t.number("timeout_ms")));
    if dispatch == Mode::Inline {
        return (None, None);
    }
    check_ring(t, Some(dispatch), ring.as_ref(), ports);
    let ring = ring.map(|at| at.value.to_owned());
    let is_shared = |port: &&Port| {
        let serves = |known: &Ring| known.name == ring && matches!(known.memory, Memory::Shared { .. });
        port.rpc().is_some_and(|rpc| rpc.rings().any(serves))
    };
    if let Some(port) = ports.iter().find(is_shared) {
        let message = format_args!("another process serves that ring of port \"{}\"; give it workers", port.name);
        t.sink().mistake(t.place("dispatch"), &format!("{}.dispatch", t.path()), message);
    }
    (Some(QueueSettings { waiting: waiting as usize, priority, backpressure, timeout }), ring)
}
