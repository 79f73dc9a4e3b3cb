//! The configuration file: TOML, read in one pass that reports every mistake with its place and what would be right.
//!
//! [`schema`] has every key.

mod admin;
mod binding;
mod change;
mod decoder;
mod fabric;
mod function;
mod gpu;
mod hip;
mod kernel;
mod limits;
mod log;
mod message;
mod port;
mod region;
mod rpc;
pub mod schema;
mod tasklet;
mod tune;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

pub use admin::Admin;
use berth_kernels::Registry;
pub use berth_keys::{At, Note, Origin, Sink, Source, parse_bytes};
use berth_keys::{Binds, Table, document};
use berth_ports::{Hugepages, Runtime};
pub use binding::Binding;
pub use change::Change;
pub use decoder::Decoder;
pub use fabric::{Control, Dataplane, Node, Policy};
pub use function::{Decode, Function, Handler, SHOTS, type_word};
pub use gpu::{Gpu, has_sessions};
pub use hip::{Hip, HipLease};
pub use limits::{Bucket, Limits};
pub use log::Log;
pub use message::RingKernel;
pub use port::{Fault, Pcap, Port, Service};
pub(crate) use region::station;
pub use region::{Backing, Kind, LeasedGpu, Region};
pub use rpc::{Memory, Mode, Place, Ring, Rpc};
pub use tasklet::{Executors, Tasklet};
pub use tune::{Nic, Tune};

/// A whole configuration, free of mistakes that can be seen without starting anything.
#[derive(Debug, Clone)]
pub struct Config {
    /// What all ports share: the CPUs for housekeeping, and DPDK's memory.
    pub runtime: Runtime,
    /// The ports, in file order.
    pub ports: Vec<Port>,
    /// The decoders, in file order: a decoder's position is its `decoder_id`.
    pub decoders: Vec<Decoder>,
    /// The GPUs that serve rings, in file order. Leased ones are in `regions`, those of HIP Remote in `hip`.
    pub gpus: Vec<Gpu>,
    /// The functions that every port serves.
    pub functions: Vec<Function>,
    /// The types of messages, those that are built in included.
    pub messages: Registry,
    /// What answers messages on every port; each is called by the name of its message.
    pub kernels: Vec<RingKernel>,
    /// What this node is in the fabric.
    pub node: Node,
    /// The control plane; `None` is off.
    pub control: Option<Control>,
    /// What can be leased, in file order.
    pub regions: Vec<Region>,
    /// The dataplanes of leases beside the ports.
    pub dataplane: Dataplane,
    /// The transports of their own that leases can be connected to, in file order.
    pub bindings: Vec<Binding>,
    /// HIP calls of remote clients; `None` is off.
    pub hip: Option<Hip>,
    /// What runs tasklets; `None` is off.
    pub tasklet: Option<Tasklet>,
    /// Where the appliance tells how it is; `None` is nowhere.
    pub admin: Option<Admin>,
    /// What `berth tune` makes of the host.
    pub tune: Tune,
    /// What is logged, and in which form. A reload takes the level alone.
    pub log: Log,
}

impl Config {
    /// The CPUs that poll, or that run handlers for those that do.
    pub fn polled_cpus(&self) -> BTreeSet<usize> {
        polled_cpus(&self.runtime, &self.ports, &self.bindings, self.hip.as_ref())
    }
}

fn polled_cpus(runtime: &Runtime, ports: &[Port], bindings: &[Binding], hip: Option<&Hip>) -> BTreeSet<usize> {
    let workers = ports.iter().filter_map(Port::rpc).flat_map(Rpc::rings).flat_map(|ring| &ring.worker_cpus);
    let nvme = bindings.iter().filter_map(|binding| if let Binding::Nvme(nvme) = binding { Some(nvme) } else { None });
    // Sessions may poll where housekeeping is, as they do by default; that leaves room for others.
    let sessions = nvme.flat_map(|nvme| &nvme.cpus).chain(hip.into_iter().flat_map(|hip| &hip.cpus));
    let sessions = sessions.filter(|cpu| !runtime.housekeeping_cpus.contains(cpu));
    ports.iter().flat_map(|port| &port.cpus).chain(workers).chain(sessions).copied().collect()
}

/// What of the host the configuration is checked against.
#[derive(Debug, Clone)]
pub struct Host {
    /// The CPUs this process may run on.
    pub cpus: Vec<usize>,
    /// Whether this binary was built with a feature, such as `dpdk` or `wasm`.
    pub has_feature: fn(&str) -> bool,
    /// Whether there is a file at a path.
    pub is_file: fn(&Path) -> bool,
    /// Whether everybody on the host may read or write the file at a path.
    pub is_public: fn(&Path) -> bool,
    /// Reads a text file.
    pub read: fn(&Path) -> io::Result<String>,
}

/// A configuration with the documents it came from, so that later steps can point into them.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration, its relative paths joined to the folder of the main file.
    pub config: Config,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Note>,
    origin: Origin,
    sources: Vec<Source>,
    /// What it was checked against.
    host: Host,
    places: change::Places,
}

impl Loaded {
    /// A sink for what later steps find wrong.
    pub fn sink(&self) -> Sink<'_> {
        Sink::new(&self.sources)
    }

    /// Reads and checks the same files again, against the same host. What was worked out of models that stay is kept.
    pub fn again(&self) -> Result<Self, Vec<Note>> {
        check(self.origin.clone(), self.origin.read()?, &self.host, Some(&self.config))
    }
}

/// Reads, merges and checks the documents of `origin`; relative paths in all of them start at the folder of its file.
pub fn load(origin: &Origin, host: &Host) -> Result<Loaded, Vec<Note>> {
    check(origin.clone(), origin.read()?, host, None)
}

/// Checks the document `text`, as if it stood in `file`, alone. Returns the configuration with its warnings, or every
/// mistake.
pub fn parse(text: &str, file: &Path, host: &Host) -> Result<Loaded, Vec<Note>> {
    let origin = Origin { file: file.to_path_buf(), sets: Vec::new() };
    check(origin, document::one(file, text), host, None)
}

/// The decoders of a document that has nothing else; relative paths in it start where this process is.
pub fn decoders(text: &str, host: &Host) -> Result<Vec<Decoder>, Vec<Note>> {
    let sources = document::one(Path::new("decoder"), text);
    let sink = Sink::new(&sources);
    let texts = document::shifted(&sources);
    let document = document::merged(&sources, &texts, &sink);
    let mut root = Table::root(&sink, &schema::ROOT, &document);
    let (decoders, _) = decoder::read_all(&mut root, Path::new(""), host, &[]);
    root.finish();
    sink.finish()?;
    Ok(decoders)
}

fn check(origin: Origin, sources: Vec<Source>, host: &Host, known: Option<&Config>) -> Result<Loaded, Vec<Note>> {
    let sink = Sink::new(&sources);
    let texts = document::shifted(&sources);
    let document = document::merged(&sources, &texts, &sink);
    let mut root = Table::root(&sink, &schema::ROOT, &document);
    let folder = origin.file.parent().unwrap_or(Path::new(""));
    let config = read(&mut root, folder, host, known);
    root.finish();
    let warnings = sink.finish()?;
    let places = change::places(&document);
    Ok(Loaded { config, warnings, origin, sources, host: host.clone(), places })
}

fn read(root: &mut Table<'_, '_>, folder: &Path, host: &Host, known: Option<&Config>) -> Config {
    let runtime = runtime(root.table_or_empty("runtime"), host);
    let (decoders, names) = decoder::read_all(root, folder, host, known.map_or(&[], |known| &known.decoders));
    let node = fabric::node(root.table_or_empty("node"), folder);
    let gpus = gpu::read_all(root);
    let regions = region::read_all(root, folder, &gpus.leased);
    let mut binds = Binds::new();
    let tasklet = root.table("tasklet");
    let control = root.table("control").map(|table| fabric::control(table, &regions, tasklet.is_some(), &mut binds));
    let dataplane = fabric::dataplane(root.table("dataplane"), control.is_some(), &mut binds);
    let bindings = binding::read_all(root, &runtime, host, control.is_some(), &mut binds);
    let functions = |region: &Region| region.kind == Kind::Functions;
    if regions.iter().any(functions) && !bindings.iter().any(|binding| matches!(binding, Binding::Sriov(_))) {
        let message = "has functions that nobody is handed over; add [[binding]] with kind = \"sriov\"";
        root.sink().mistake(root.place("region"), "region", message);
    }
    let leased = control.is_some().then_some(&*regions);
    let hip = hip::read(root, &gpus.hip, &runtime, (folder, host), &mut binds, leased);
    let (leases, needed) = (control.is_some(), control.is_none() && hip.is_none());
    let (ports, rings) = port::read_all(root, folder, &runtime, host, (leases, needed), &mut binds, &gpus.all);
    gpus.warn_of_unused(root, &ports, hip.as_ref(), &regions);
    let messages = message::read_all(root);
    let known = known.map_or(&[][..], |known| &known.kernels);
    let context = kernel::Context { folder, host, ports: &ports, known };
    let kernels = message::kernels(root, &messages, &context);
    let functions = function::read_all(root, folder, host, (&decoders, &names), (&ports, &gpus.all), &rings, &kernels);
    let polled = polled_cpus(&runtime, &ports, &bindings, hip.as_ref());
    let tasklet = tasklet.map(|table| tasklet::read(table, host, control.is_some(), &polled));
    let admin = root.table("admin").and_then(|table| admin::read(table, folder, host, &mut binds));
    let tune = tune::read(root.table_or_empty("tune"));
    let log = log::read(root.table_or_empty("log"));
    Config {
        runtime,
        ports,
        decoders,
        gpus: gpus.all,
        functions,
        messages,
        kernels,
        node,
        control,
        regions,
        dataplane,
        bindings,
        hip,
        tasklet,
        admin,
        tune,
        log,
    }
}

fn runtime(mut t: Table<'_, '_>, host: &Host) -> Runtime {
    let cpus = port::cpu_list(&mut t, "housekeeping_cpus", host);
    let mut dpdk = t.table_or_empty("dpdk");
    let hugepages = match dpdk.flag_or_word("hugepages") {
        Some(true) => Hugepages::Always,
        Some(false) => Hugepages::Never,
        None => Hugepages::Auto,
    };
    let memory_mb = dpdk.number("memory_mb") as u32;
    dpdk.finish();
    t.finish();
    let housekeeping_cpus = cpus.unwrap_or_else(|| host.cpus.first().copied().into_iter().collect());
    Runtime { housekeeping_cpus, hugepages, memory_mb }
}

/// The key `name`: 1 to 64 printable characters without spaces.
fn name(t: &mut Table<'_, '_>, example: &str) -> Option<At<String>> {
    let at = t.text("name");
    let at = t.require("name", at, format_args!("name = \"{example}\""))?;
    if !(1..=64).contains(&at.value.len()) || !at.value.bytes().all(|b| b.is_ascii_graphic()) {
        t.sink().wrong(
            &at,
            format_args!("{:?} is not a name; use 1 to 64 printable ASCII characters, no spaces", at.value),
        );
        return None;
    }
    Some(at.map(str::to_string))
}

/// A path relative to `folder` at which there must be a file.
fn resolve(t: &Table<'_, '_>, at: At<&str>, folder: &Path, is_file: fn(&Path) -> bool) -> Option<At<PathBuf>> {
    let path = folder.join(at.value);
    if !is_file(&path) {
        t.sink().wrong(
            &at,
            format_args!(
                "there is no file {}; relative paths start at the folder of the configuration file",
                path.display()
            ),
        );
        return None;
    }
    Some(at.map(|_| path))
}

/// Reads the text file at a path.
fn contents(t: &Table<'_, '_>, at: &At<PathBuf>, host: &Host) -> Option<String> {
    match (host.read)(&at.value) {
        Ok(text) => Some(text),
        Err(e) => {
            t.sink().wrong(at, format_args!("{} cannot be read: {e}; name a text file", at.value.display()));
            None
        }
    }
}

/// Reports names that were given before.
fn unique<'n>(sink: &Sink<'_>, names: impl Iterator<Item = &'n At<String>>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(&name.value) {
            sink.wrong(name, format_args!("\"{}\" is taken; each name is used once", name.value));
        }
    }
}
