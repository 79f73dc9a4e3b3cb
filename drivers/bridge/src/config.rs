//! A `[[port]]` of a configuration file. What handlers, services and other ports are is none of the bridge's business;
//! `berth check` reads the whole file.

use std::path::Path;

use berth_engine::Idle;
use berth_keys::{Binds, CPU_MAX, Kind, Note, Origin, Section, Sink, Table, document, key};
use berth_ports::{Driver, Hugepages, Reading, Runtime};
use berth_wire::rpc::HeaderForm;

use crate::failure::Failure;

/// A port, as the bridge uses it.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) driver: Driver,
    /// The CPU of its thread; `None` for any.
    pub(crate) cpu: Option<usize>,
    pub(crate) idle: Idle,
    pub(crate) form: HeaderForm,
    pub(crate) slots: u32,
    pub(crate) slot_size: u32,
    /// What all ports share.
    pub(crate) runtime: Runtime,
}

static ROOT: Section =
    Section::new("", &[key("port", Kind::Tables(&PORT), ""), key("runtime", Kind::Table(&RUNTIME), "")]);

static PORT: Section = Section::new(
    "",
    &[
        key("name", Kind::Text, "").required(),
        key("driver", Kind::Choice(berth_ports::WORDS), "").required(),
        key("cpu", Kind::Integer(0, CPU_MAX), ""),
        key("cpus", Kind::Cpus, ""),
        key("idle", Kind::Choice(&[("spin", ""), ("adaptive", ""), ("wait", "")]), "").default("\"spin\""),
        key("service", Kind::Choice(&[("rpc", ""), ("lease-io", "")]), "").default("\"rpc\""),
        key("rpc", Kind::Table(&RPC), ""),
    ],
)
.owned(berth_ports::KEYS);

static RPC: Section = Section::new(
    "",
    &[
        key("header", Kind::Choice(&[("v24", ""), ("v16", "")]), "").default("\"v24\""),
        key("slots", Kind::Integer(1, 65_536), "").default("64"),
        key("slot_size", Kind::Integer(64, 65_507), "").default("2048"),
    ],
);

static RUNTIME: Section =
    Section::new("", &[key("housekeeping_cpus", Kind::Cpus, ""), key("dpdk", Kind::Table(&DPDK), "")]);

static DPDK: Section = Section::new(
    "",
    &[
        key("hugepages", Kind::FlagOr("auto"), "").default("\"auto\""),
        key("memory_mb", Kind::Integer(16, 1 << 20), "").default("256"),
    ],
);

/// Reads the port of this name.
pub(crate) fn read(file: &Path, name: &str) -> Result<Port, Failure> {
    let told = |notes: Vec<Note>| {
        let lines: Vec<_> = notes.iter().map(ToString::to_string).collect();
        Failure::option(lines.join("\nberth bridge: "))
    };
    let sources = Origin { file: file.to_path_buf(), sets: Vec::new() }.read().map_err(told)?;
    let sink = Sink::new(&sources);
    let texts = document::shifted(&sources);
    let document = document::merged(&sources, &texts, &sink);
    let mut root = Table::root(&sink, &ROOT, &document);
    let runtime = runtime(root.table_or_empty("runtime"));
    let port = root.tables("port").into_iter().flatten().find_map(|mut t| {
        let is_it = t.text("name").is_some_and(|at| at.value == name);
        is_it.then(|| port(t, name, runtime.clone()))
    });
    sink.finish().map_err(told)?;
    port.flatten().ok_or_else(|| Failure::option(format_args!("{} has no [[port]] \"{name}\"", file.display())))
}

/// `None` if there are mistakes, which are noted.
fn port(mut t: Table<'_, '_>, label: &str, runtime: Runtime) -> Option<Port> {
    let has_feature = berth_ports::has_feature;
    let driver = Driver::read(&mut t, &mut Reading { label, binds: &mut Binds::new(), has_feature });
    t.refuse(&["limits", "fault", "pcap"], "the bridge has none of it");
    if driver.as_ref().is_some_and(|driver| !driver.traits().has_frames) {
        t.refuse(&["driver"], "the bridge is for frames, and this driver has none");
    }
    if t.chosen("service", &[("rpc", false), ("lease-io", true)]) {
        t.refuse(&["service"], "the bridge is for RPC");
    }
    let cpu = t.integer("cpu").map(|at| at.value as usize);
    let cpus = t.cpus("cpus").map_or_else(Vec::new, |list| list.value);
    if cpus.len() > 1 {
        t.refuse(&["cpus"], "a bridge has one queue; name one CPU");
    }
    let idle = t.chosen("idle", &[("spin", Idle::Spin), ("adaptive", Idle::Adaptive), ("wait", Idle::Wait)]);
    let mut rpc = t.table_or_empty("rpc");
    Some(Port {
        driver: driver?,
        cpu: cpu.or_else(|| cpus.first().map(|at| at.value as usize)),
        idle,
        form: rpc.chosen("header", &[("v24", HeaderForm::V24), ("v16", HeaderForm::V16)]),
        slots: rpc.number("slots") as u32,
        slot_size: rpc.number("slot_size") as u32,
        runtime,
    })
}

fn runtime(mut t: Table<'_, '_>) -> Runtime {
    let cpus = t.cpus("housekeeping_cpus").map(|list| list.value.iter().map(|at| at.value as usize).collect());
    let mut dpdk = t.table_or_empty("dpdk");
    let hugepages = match dpdk.flag_or_word("hugepages") {
        Some(true) => Hugepages::Always,
        Some(false) => Hugepages::Never,
        None => Hugepages::Auto,
    };
    Runtime {
        housekeeping_cpus: cpus.unwrap_or_else(|| vec![0]),
        hugepages,
        memory_mb: dpdk.number("memory_mb") as u32,
    }
}
