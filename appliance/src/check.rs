//! `berth check`: every mistake of a configuration file, or what it would run.

use std::{collections::BTreeSet, fmt::Write as _, net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path};

use berth_gpu::Code;
use berth_identity::Enrolment;
use berth_kernels::{Choice, Format, Settings};
use berth_plugin::Plugin;
use berth_ports::{KernelNvme, Nvme, Rdma, Sriov, nvme::Auth, sriov::Card};
use berth_qec::{
    Algorithm,
    osd::{BpOsd, Statistics},
    relay::{Arithmetic, RelayBp},
    window::{Layout, Window},
};

use crate::{
    config::{
        Backing, Binding, Bucket, Config, Control, Dataplane, Decode, Executors, Handler, Host, Kind, Limits, Loaded,
        Mode, Node, Note, Policy, Port, Region, Ring, RingKernel, SHOTS, Service, Tasklet, type_word,
    },
    sys::Root,
};

/// The host this process runs on.
pub fn this_host() -> Host {
    Host {
        cpus: Root::new(Path::new("/")).allowed_cpus(),
        has_feature: |feature| berth_ports::has_feature(feature) || feature == "wasm" && cfg!(feature = "wasm"),
        is_file: Path::is_file,
        is_public: |path| std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o006 != 0),
        read: |path| std::fs::read_to_string(path),
    }
}

/// Loads every plug-in as `berth run` would, once for each slot size; their initialisers run. Returns what failed.
pub fn load_plugins(loaded: &Loaded) -> Result<(), Vec<Note>> {
    let sink = loaded.sink();
    let slot_sizes: BTreeSet<_> = loaded.config.ports.iter().filter_map(|port| Some(port.rpc()?.slot_size)).collect();
    for function in &loaded.config.functions {
        if let Handler::Plugin { library, symbol, abi, schema } = &function.handler.value {
            let failed = slot_sizes.iter().find_map(|size| Plugin::load(library, symbol, *abi, **schema, *size).err());
            if let Some(e) = failed {
                sink.wrong(&function.handler, e);
            }
        }
    }
    for gpu in 0..loaded.config.gpus.len() {
        let (functions, places) = loaded.config.gpu_functions(gpu);
        for problem in berth_gpu::check(&functions) {
            let calls = |function: &berth_gpu::Function| match function.code {
                Code::Symbol { module, .. } => Some(module) == problem.module,
                Code::Increment | Code::MockDecode { .. } => false,
            };
            let own = problem.function.or_else(|| functions.all.iter().position(calls));
            let function = own.and_then(|own| loaded.config.functions.get(places[own]));
            let Some(function) = function.or(loaded.config.functions.first()) else { continue };
            let module = problem.module.and_then(|module| functions.modules.get(module)).map(|module| &*module.name);
            let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
            let message = &problem.message;
            sink.wrong(&function.handler, format_args!("{}{line}: {message}", module.unwrap_or_default()));
        }
    }
    sink.finish().map(drop)
}

fn describe_algorithm(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::Mwpm => "mwpm".to_string(),
        Algorithm::CorrelatedMwpm => "correlated_mwpm".to_string(),
        Algorithm::BeliefMwpm => "belief_mwpm".to_string(),
        Algorithm::Lut { depth } => format!("lut of depth {depth}"),
        Algorithm::MultiErrorLut { depth } => format!("multi_error_lut of depth {depth}"),
        Algorithm::RelayBp(RelayBp { relays, legs, iterations, arithmetic, .. }) => {
            let arithmetic = match arithmetic {
                Arithmetic::Fixed16 => "fixed point",
                Arithmetic::Float64 => "floating point",
            };
            format!("relay_bp of {relays} relays, {legs} legs of {iterations} iterations, {arithmetic}")
        }
        Algorithm::BpOsd(BpOsd { iterations, statistics, order, .. }) => {
            let statistics = match statistics {
                Statistics::Ordered => "ordered",
                Statistics::Localized => "localized",
            };
            format!("bp_osd of {iterations} iterations, {statistics} statistics of order {order}")
        }
        Algorithm::Window(Window { window, commit, layout, inner }) => {
            let layout = match layout {
                Layout::Sliding => "windows",
                Layout::Parallel => "parallel windows",
            };
            let inner = describe_algorithm(inner.into());
            format!("{layout} of {window} rounds, {commit} decided at a time, by {inner}")
        }
    }
}

/// What `config` would run, a line each.
pub fn summary(config: &Config) -> String {
    let mut out = String::new();
    for port in &config.ports {
        let _ = writeln!(out, "port {}: {}", port.name, describe_port(port));
    }
    for (id, decoder) in config.decoders.iter().enumerate() {
        let algorithm = describe_algorithm(decoder.algorithm);
        let _ = writeln!(out, "decoder {id} {}: {algorithm}, {}", decoder.name, decoder.file.display());
    }
    for gpu in &config.gpus {
        let _ = writeln!(out, "gpu {}: soft, {} blocks of each ring", gpu.name, gpu.blocks);
    }
    for function in &config.functions {
        let _ = writeln!(out, "function {}: {}", function.name, describe_handler(&function.handler.value, config));
    }
    for message in config.messages.added() {
        let schema = &message.schema;
        let lengths = Format::WORDS.map(|(word, format)| format!("{word} {}", schema.len(format)));
        let _ = writeln!(out, "message {}: bytes {}", schema.name(), lengths.join(", "));
    }
    for RingKernel { settings, ring, module: _ } in &config.kernels {
        let Settings { request, response, runs, format, dedup, active, queue } = settings;
        let format = match format {
            Choice::Auto => "auto",
            Choice::Only(format) => format.word(),
        };
        let inactive = if *active { "" } else { ", not active" };
        let queue = queue.map_or_else(String::new, |queue| {
            let ring = ring.as_ref().map_or_else(String::new, |ring| format!(" of ring {ring}"));
            format!(", on workers{ring}, {} wait at most {} ms", queue.waiting, queue.timeout.as_millis())
        });
        let (name, response, runs) = (request.name(), response.name(), runs.name());
        let _ =
            writeln!(out, "ring kernel {name}: {runs} -> {response}, format {format}, dedup {dedup}{queue}{inactive}");
    }
    for region in &config.regions {
        let _ = writeln!(out, "region {}: {}", region.name, describe_region(region));
    }
    if let Some(control) = &config.control {
        let _ = writeln!(out, "{}", describe_control(control, &config.node));
        for policy in &control.policies {
            let _ = writeln!(out, "policy {}", describe_policy(policy, &config.regions));
        }
        for (name, address) in endpoints(config, control) {
            let _ = writeln!(out, "endpoint {name}: {address}");
        }
    }
    if let Some(Tasklet { isolated, executors, cpus, memory, .. }) = &config.tasklet {
        let by = match (isolated, executors) {
            (false, _) => "on threads of this process",
            (true, Executors::Auto) => "in processes of their unit, or of this one where it is not there",
            (true, Executors::Unit) => "in processes of their unit",
            (true, Executors::Child) => "in processes of this one",
        };
        let _ = writeln!(out, "tasklets: {by}, on cpu {}, {memory} bytes of memory", numbers(cpus));
    }
    if let Some(hip) = &config.hip {
        let wire = if hip.tls.is_some() { "TLS 1.3" } else { "plain text" };
        let _ = writeln!(out, "endpoint hip: {}, {} sessions, {wire}", hip.listen, hip.max_sessions);
        for (id, (gpu, bytes, device)) in hip.devices.iter().enumerate() {
            let what = match device {
                berth_gpu::Choice::Soft => "the software GPU".to_owned(),
                other @ berth_gpu::Choice::Hip(_) => format!("AMD's {other}"),
                other => format!("NVIDIA's {other}"),
            };
            let _ = writeln!(out, "hip device {id}: {gpu}, {what}, {bytes} bytes for sessions");
        }
    }
    for binding in &config.bindings {
        let _ = match binding {
            Binding::Rdma(Rdma { device, port, gid_index, max_leases, .. }) => {
                writeln!(out, "binding rdma: {device} port {port} gid {gid_index}, {max_leases} leases")
            }
            Binding::Sriov(Sriov { kill }) => {
                writeln!(out, "binding sriov: {}", if *kill { "holders are ended" } else { "functions are fenced" })
            }
            Binding::Nvme(Nvme { listen, cpus, idle, max_leases, max_hosts, auth, .. }) => {
                let listen: Vec<_> = listen.iter().map(ToString::to_string).collect();
                let (listen, cpus) = (listen.join(", "), numbers(cpus));
                let auth = match auth {
                    Auth::None => "none",
                    Auth::DhChap => "dhchap",
                };
                writeln!(
                    out,
                    "binding nvme: {listen} on cpu {cpus}, idle {idle:?}, {max_leases} leases, {max_hosts} controllers, \
                     auth {auth}"
                )
            }
            Binding::KernelNvme(KernelNvme { rdma, max_leases }) => {
                let rdma: Vec<_> = rdma.iter().map(|address| format!("rdma {address}")).collect();
                let over = if rdma.is_empty() { "loop".to_string() } else { rdma.join(", ") };
                writeln!(out, "binding nvme: {over} by the kernel, {max_leases} leases")
            }
        };
    }
    out
}

fn numbers(cpus: &[usize]) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn describe_port(port: &Port) -> String {
    let (cpus, idle) = (numbers(&port.cpus), port.idle);
    let service = match &port.service {
        Service::Rpc(rpc) => {
            let dispatch = match rpc.dispatch {
                Mode::Inline => "inline",
                Mode::Ring => "ring",
                Mode::Gpu => "gpu",
            };
            let ring = |Ring { name, slots, .. }: &Ring| Some(format!(", ring {} {slots}", name.as_ref()?));
            let named: String = rpc.named.iter().filter_map(ring).collect();
            format!("rpc {:?} {} x {} B, {dispatch}{named}", rpc.header, rpc.ring.slots, rpc.slot_size)
        }
        Service::LeaseIo => "lease-io".to_string(),
    };
    let weight = if port.weight.get() == 1 { String::new() } else { format!(", weight {}", port.weight) };
    format!("{}, cpu {cpus}, idle {idle:?}{weight}, {service}{}", port.driver, describe_limits(&port.limits))
}

fn describe_limits(limits: &Limits) -> String {
    let bucket = |who: &str, bucket: Bucket| format!(", {who} {}/s and {} at once", bucket.rps, bucket.burst);
    let per_peer = limits.per_peer.map(|of_each| bucket("each peer", of_each));
    let all = limits.all.map(|of_all| bucket("all peers", of_all));
    let queue = limits.queue.map(|frames| format!(", {frames} frames may wait"));
    [per_peer, all, queue].into_iter().flatten().collect()
}

fn describe_region(region: &Region) -> String {
    let kind = match region.kind {
        Kind::Memory => "memory",
        Kind::Block => "block",
        Kind::Vram => "vram",
        Kind::Functions => "vf",
    };
    let size = region.size.map_or_else(|| "all".to_string(), |bytes| format!("{bytes} B"));
    let backing = match &region.backing {
        Backing::Ram => "ram".to_string(),
        Backing::Hugepages => "hugepages".to_string(),
        Backing::Path(path) => path.display().to_string(),
        Backing::Gpu(gpu) => gpu.name.clone(),
        Backing::Functions(pool) => {
            let count = pool.count.map_or_else(|| "all".to_string(), |count| count.to_string());
            let namespaces = match pool.card {
                Card::Network(_) => String::new(),
                Card::Nvme { namespace } => format!(", namespaces from {namespace} on"),
            };
            return format!("{kind}, {count} of {}{namespaces}", pool.pf);
        }
    };
    let numa = region.numa.map_or_else(String::new, |node| format!(", numa node {node}"));
    format!("{kind}, {size} of {backing}{numa}")
}

fn describe_control(control: &Control, node: &Node) -> String {
    let enroll = match control.enroll {
        Enrolment::Closed => "closed",
        Enrolment::Open => "open",
    };
    let (enrolled, state, key) = (control.enrolled.len(), node.state_dir.display(), node.key_file.display());
    let fence = if control.require_fence { ", tokens only under a fence" } else { "" };
    format!("control: {enrolled} enrolled, enrolment {enroll}{fence}, state {state}, key {key}")
}

fn describe_policy(policy: &Policy, regions: &[Region]) -> String {
    let presenter = policy.presenter.map_or_else(|| "*".to_string(), |id| id.to_string());
    let perms: Vec<_> = policy.perms.names().collect();
    let names = policy.regions.as_ref().map(|list| list.iter().map(|i| regions[*i].name.as_str()).collect::<Vec<_>>());
    let regions = names.map_or_else(|| "all regions".to_string(), |names| names.join(", "));
    format!("{presenter}: {} on {regions}", perms.join(", "))
}

/// What the lease plane of `config` listens on, as in the ready line.
fn endpoints(config: &Config, control: &Control) -> Vec<(&'static str, SocketAddr)> {
    let Dataplane { fbmt, fbbt, fbmu } = config.dataplane;
    let always = [("control-udp", Some(control.udp)), ("quic", Some(control.quic))];
    let optional = [("relay", control.relay), ("fbmu", fbmu), ("fbmt", fbmt), ("fbbt", fbbt)];
    always.into_iter().chain(optional).filter_map(|(name, address)| Some((name, address?))).collect()
}

fn describe_decode(Decode { decoder, shot, readout, gap }: &Decode, config: &Config) -> String {
    let word = SHOTS.iter().find(|(_, known)| known == shot).map_or("", |(word, _)| *word);
    let readout = readout.as_ref().map(|readout| format!(", {word} of {} measurements", readout.num_measurements()));
    let gap = if gap.is_some() { ", with confidence" } else { "" };
    format!("qec_decode with {}{}{gap}", config.decoders[*decoder].name, readout.unwrap_or_default())
}

fn describe_handler(handler: &Handler, config: &Config) -> String {
    match handler {
        Handler::RpcIncrement => "rpc_increment".to_string(),
        Handler::MockDecode { table } => format!("mock_decode of {} shots", table.shots().len()),
        Handler::QecDecode(decode) => describe_decode(decode, config),
        Handler::EnqueueSyndromes => "enqueue_syndromes".to_string(),
        Handler::GetCorrections => "get_corrections".to_string(),
        Handler::ResetDecoder => "reset_decoder".to_string(),
        Handler::Plugin { library, symbol, schema, .. } => {
            let list = |types: &[_]| types.iter().map(type_word).collect::<Vec<_>>().join(", ");
            format!("{symbol}({}) -> ({}) of {}", list(schema.args()), list(schema.results()), library.display())
        }
        Handler::Gpu { file, symbol, schema, parallel, graph, .. } => {
            let list = |types: &[_]| types.iter().map(type_word).collect::<Vec<_>>().join(", ");
            let (args, results) = (list(schema.args()), list(schema.results()));
            let by = if *parallel { "block" } else { "thread" };
            let graph = if *graph { ", a graph" } else { "" };
            format!("{symbol}({args}) -> ({results}) of {}, by {by} on a GPU{graph}", file.display())
        }
    }
}
