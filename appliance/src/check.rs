//! `berth check`: every mistake of a configuration file, or what it would run.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use berth_plugin::Plugin;
use berth_qec::Algorithm;
use berth_rpc::Dispatch;

use crate::{
    config::{Config, Driver, Handler, Host, Loaded, Note, Port, type_word},
    sys::Root,
};

/// The host this process runs on.
pub fn this_host() -> Host {
    Host {
        cpus: Root::new(Path::new("/")).allowed_cpus(),
        dpdk: cfg!(feature = "dpdk"),
        is_file: Path::is_file,
        read: |path| std::fs::read_to_string(path),
    }
}

/// Loads every plug-in as `berth run` would, once for each slot size; their initialisers run. Returns what failed.
pub fn load_plugins(loaded: &Loaded) -> Result<(), Vec<Note>> {
    let sink = loaded.sink();
    let slot_sizes: BTreeSet<_> = loaded.config.ports.iter().map(|port| port.rpc.slot_size).collect();
    for function in &loaded.config.functions {
        if let Handler::Plugin { library, symbol, abi, schema } = &function.handler.value {
            let failed = slot_sizes.iter().find_map(|size| Plugin::load(library, symbol, *abi, **schema, *size).err());
            if let Some(e) = failed {
                sink.wrong(&function.handler, e);
            }
        }
    }
    sink.finish().map(drop)
}

/// What `config` would run, a line each.
pub fn summary(config: &Config) -> String {
    let mut out = String::new();
    for port in &config.ports {
        let _ = writeln!(out, "port {}: {}", port.name, describe_port(port));
    }
    for (id, decoder) in config.decoders.iter().enumerate() {
        let algorithm = match decoder.algorithm {
            Algorithm::Mwpm => "mwpm".to_string(),
            Algorithm::Lut { depth } => format!("lut of depth {depth}"),
        };
        let _ = writeln!(out, "decoder {id} {}: {algorithm}, {}", decoder.name, decoder.file.display());
    }
    for function in &config.functions {
        let _ = writeln!(out, "function {}: {}", function.name, describe_handler(&function.handler.value, config));
    }
    out
}

fn describe_port(port: &Port) -> String {
    let place = match &port.driver {
        Driver::Udp { bind } => format!("udp {bind}"),
        Driver::Uring { bind } => format!("uring {bind}"),
        Driver::Dpdk(dpdk) => format!("dpdk {} udp port {}", dpdk.device, dpdk.udp_port),
        Driver::Loopback => "loopback".to_string(),
    };
    let cpus: Vec<_> = port.cpus.iter().map(ToString::to_string).collect();
    let dispatch = match port.rpc.dispatch {
        Dispatch::Inline => "inline",
        Dispatch::Ring => "ring",
    };
    let rpc = &port.rpc;
    let (cpus, idle, header) = (cpus.join(","), port.idle, rpc.header);
    format!("{place}, cpu {cpus}, idle {idle:?}, rpc {header:?} {} x {} B, {dispatch}", rpc.slots, rpc.slot_size)
}

fn describe_handler(handler: &Handler, config: &Config) -> String {
    match handler {
        Handler::RpcIncrement => "rpc_increment".to_string(),
        Handler::MockDecode { table } => format!("mock_decode of {} shots", table.shots().len()),
        Handler::QecDecode { decoder } => format!("qec_decode with {}", config.decoders[*decoder].name),
        Handler::EnqueueSyndromes => "enqueue_syndromes".to_string(),
        Handler::GetCorrections => "get_corrections".to_string(),
        Handler::ResetDecoder => "reset_decoder".to_string(),
        Handler::Plugin { library, symbol, schema, .. } => {
            let list = |types: &[_]| types.iter().map(type_word).collect::<Vec<_>>().join(", ");
            format!("{symbol}({}) -> ({}) of {}", list(schema.args()), list(schema.results()), library.display())
        }
    }
}
