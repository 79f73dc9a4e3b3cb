//! The service of a queue, and the handlers that it or its worker runs.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use berth_admission::Admission;
use berth_host::TscClock;
use berth_kernels::Kernel;
use berth_lease_io::{LeaseService, TwoSided};
use berth_plugin::{Plugin, PluginError};
use berth_port::Service;
use berth_qec::{Decoder, mock::MockTable, mwpm::STEPS_PER_US, window::Pool};
use berth_ring::{Dispatcher, Producer};
use berth_rpc::{
    Config, Dispatch, FunctionTable, RpcService, Stage, Worker,
    handlers::{Handler, HandlerSet, MapMismatch, QecDecode, Session},
};

use super::{Leased, Shared};
use crate::config::{self, RingKernel};

/// What a queue or a worker runs.
pub(super) type Program = berth_rpc::Program<HandlerSet<Plugin>>;

/// Takes in what replaces it.
pub(super) type Updates = berth_rpc::Updates<HandlerSet<Plugin>>;

/// Makes the RPC service of a queue; `rings` lead to its workers. `record` is told how long stages took.
pub(super) fn service(
    shared: &Shared,
    port: usize,
    rpc: &config::Rpc,
    rings: Vec<Producer>,
    updates: Updates,
    admission: Option<Admission>,
    record: impl FnMut(Stage, u64) + 'static,
) -> anyhow::Result<impl Service + 'static> {
    let (table, handlers) = functions(&shared.config, rpc, Runner::Queue, &shared.pools[port])?;
    let settings = Config {
        header: rpc.header,
        slot_size: rpc.slot_size,
        on_undispatchable: rpc.on_undispatchable,
        ptp: rpc.ptp,
        order: rpc.order,
    };
    let service = RpcService::new(settings, table, handlers, rings, shared.clock.clone(), record)?;
    Ok(service.limited(admission).updated_by(updates))
}

/// Block accesses that one queue has under way at most.
const FLIGHTS: usize = 64;

/// Makes the service of two-sided messages of a queue, with a reader of the lease table of its own.
pub(super) fn lease_io(shared: &Shared, admission: Option<Admission>) -> anyhow::Result<LeaseService<TwoSided>> {
    let Leased { table, regions } = shared.leased.as_ref().context("nothing grants leases; add [control]")?;
    Ok(LeaseService::new(table, regions, FLIGHTS).limited(admission))
}

/// Makes the worker at the other end of a queue's ring.
pub(super) fn worker(
    shared: &Shared,
    port: usize,
    rpc: &config::Rpc,
    ring: Dispatcher,
    updates: Updates,
) -> anyhow::Result<Worker<HandlerSet<Plugin>, TscClock>> {
    let (table, handlers) = functions(&shared.config, rpc, Runner::Worker, &shared.pools[port])?;
    Ok(Worker::new(rpc.header, table, handlers, ring, shared.clock.clone())?.updated_by(updates))
}

/// Whose program it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// A queue's, which calls the functions that run inline.
    Queue,
    /// A worker's, which calls whatever it finds in its ring.
    Worker,
}

/// Makes what replaces the program of a queue of the port at `port`, or of its worker: from `old` to `new`.
pub(super) fn successor(
    old: &config::Config,
    new: &config::Config,
    port: usize,
    runner: Runner,
    pool: &Pool,
) -> anyhow::Result<Program> {
    let rpc = |config: &config::Config| config.ports.get(port).and_then(|port| port.rpc().cloned());
    let (before, rpc) = rpc(old).zip(rpc(new)).context("only RPC has functions")?;
    let (table, handlers) = functions(new, &rpc, runner, pool)?;
    let program = Program::new(table, handlers.inheriting(inherited(old, &before, new, &rpc)));
    program.check(rpc.header, rpc.slot_size, rpc.rings().count())?;
    Ok(program)
}

/// Decoding sessions that go on, by place in `new` and `old`: of decoders that stay as they are but for probabilities, while the
/// decoding server runs where it did.
fn inherited(
    old: &config::Config,
    before: &config::Rpc,
    new: &config::Config,
    rpc: &config::Rpc,
) -> Vec<(usize, usize)> {
    let server = |config: &config::Config, rpc: &config::Rpc| {
        let mut functions = config.functions.iter();
        // All three run at one place.
        let function = functions.find(|function| matches!(function.handler.value, config::Handler::EnqueueSyndromes));
        function.map(|function| rpc.dispatch_of(function.dispatch, function.ring.as_deref()))
    };
    if server(old, before) != server(new, rpc) {
        return Vec::new();
    }
    let place = |decoder: &config::Decoder| old.decoders.iter().position(|before| decoder.continues(before));
    new.decoders.iter().enumerate().filter_map(|(here, decoder)| Some((here, place(decoder)?))).collect()
}

/// The functions as a port dispatches them, and handlers with sessions of their own on the decoders' shared tables, whose windows
/// wait in the pool of the port.
fn functions(
    config: &config::Config,
    rpc: &config::Rpc,
    runner: Runner,
    pool: &Pool,
) -> anyhow::Result<(Arc<FunctionTable>, HandlerSet<Plugin>)> {
    // A worker is one of those that help.
    let cores = pool.helpers() + usize::from(runner == Runner::Queue);
    let sessions = (0..config.decoders.len()).map(|at| session(config, at, (pool, cores))).collect::<Result<_, _>>()?;
    let named = config
        .functions
        .iter()
        .map(|function| Ok((function.name.clone(), handler(&function.handler.value, rpc.slot_size)?)));
    let mut named: Vec<_> = named.collect::<anyhow::Result<_>>()?;
    let kernels = || config.kernels.iter().filter(|kernel| runner == Runner::Queue || kernel.settings.queue.is_some());
    for RingKernel { settings, .. } in kernels() {
        let make = if runner == Runner::Queue { Kernel::new } else { Kernel::for_worker };
        named.push((settings.request.name().to_owned(), Handler::Kernel(Box::new(make(settings.clone())?))));
    }
    let handlers = HandlerSet::new(named, sessions)?;
    let mut functions = handlers.functions();
    for (entry, function) in functions.iter_mut().zip(&config.functions) {
        let mode = rpc.dispatch_of(function.dispatch, function.ring.as_deref());
        entry.mode = mode.with_context(|| format!("function {} has no ring", function.name))?;
        entry.budget = function.budget_us.map(Duration::from_micros);
    }
    for (entry, kernel) in functions.iter_mut().skip(config.functions.len()).zip(kernels()) {
        let name = kernel.settings.request.name();
        entry.mode = rpc.dispatch_of_kernel(kernel).with_context(|| format!("ring kernel {name} has no ring"))?;
    }
    // Ring kernels, behind the functions, use no decoder.
    let mut calls = functions.iter().take(config.functions.len());
    let calls_none = runner == Runner::Queue && calls.all(|function| function.mode != Dispatch::Inline);
    let handlers = if calls_none { handlers.without_sessions() } else { handlers };
    Ok((Arc::new(FunctionTable::new(functions)?), handlers))
}

/// A session of a decoder, with as many steps as fit into the least budget of the functions that use it. So many cores at most
/// decode its windows.
fn session(config: &config::Config, at: usize, (pool, most): (&Pool, usize)) -> Result<Session, MapMismatch> {
    let uses = |handler: &config::Handler| match handler {
        config::Handler::QecDecode(decode) => decode.decoder == at,
        handler => matches!(handler, config::Handler::EnqueueSyndromes),
    };
    let users = config.functions.iter().filter(|function| uses(&function.handler.value));
    let is_served =
        config.functions.iter().any(|function| matches!(function.handler.value, config::Handler::EnqueueSyndromes));
    let config::Decoder { name, tables, measurements, experiment, cores, .. } = &config.decoders[at];
    let decodes = config.functions.iter().filter_map(|function| match &function.handler.value {
        config::Handler::QecDecode(decode) if decode.decoder == at => Some(decode),
        _ => None,
    });
    let mut decoder = Decoder::new(tables.clone());
    if let Some(readout) = decodes.clone().find_map(|decode| decode.readout.as_ref()) {
        decoder = decoder.with_readout(readout.clone());
    }
    if let Some(gap) = decodes.clone().find_map(|decode| decode.gap.as_ref()) {
        decoder = decoder.with_gap(gap.clone());
    }
    if let Some(budget) = users.filter_map(|function| function.budget_us).min() {
        decoder.set_steps(budget * STEPS_PER_US);
    }
    let session = match experiment.as_ref().filter(|_| is_served) {
        Some((experiment, streaming)) => {
            Session::streaming(decoder, experiment.clone(), *streaming, Some((pool, most.min(*cores))))
        }
        None => Session::with_map(decoder, measurements.clone())?,
    };
    Ok(session.named(name))
}

fn handler(handler: &config::Handler, slot_size: usize) -> Result<Handler<Plugin>, PluginError> {
    Ok(match handler {
        config::Handler::RpcIncrement => Handler::Increment,
        config::Handler::MockDecode { table } => Handler::MockDecode(MockTable::from_file(table)),
        config::Handler::QecDecode(config::Decode { decoder, shot, gap, .. }) => {
            Handler::QecDecode(QecDecode { decoder: *decoder, shot: *shot, confidence: gap.is_some() })
        }
        config::Handler::EnqueueSyndromes => Handler::EnqueueSyndromes,
        config::Handler::GetCorrections => Handler::GetCorrections,
        config::Handler::ResetDecoder => Handler::ResetDecoder,
        config::Handler::Plugin { library, symbol, abi, schema } => {
            Handler::Custom(Plugin::load(library, symbol, *abi, **schema, slot_size)?)
        }
        config::Handler::Gpu { schema, .. } => Handler::Elsewhere(**schema),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::config::{Host, Loaded, Origin};

    const PORT: &str = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpus = [1, 2]\n";
    const RINGS: &str = "rpc.worker_cpus = [3]\nrpc.ring = [{ name = \"r\", worker_cpus = [4] }]\n";
    const DECODERS: &str = "[[decoder]]\nname = \"one\"\nalgorithm = \"mwpm\"\nmodel = \"one.dem\"\n\
                            [[decoder]]\nname = \"two\"\nalgorithm = \"lut\"\nmodel = \"two.dem\"\n";

    fn load(folder: &Path, functions: &str) -> Loaded {
        let file = folder.join("berth.toml");
        fs::write(&file, format!("{PORT}{RINGS}{DECODERS}{functions}")).unwrap();
        for model in ["one.dem", "two.dem"] {
            fs::write(folder.join(model), "error(0.1) D0 L0\nerror(0.1) D0 D1 L1\n").unwrap();
        }
        let (is_file, cpus) = (Path::is_file, (0..8).collect());
        let (is_public, read) = (|_: &Path| false, |path: &Path| fs::read_to_string(path));
        let host = Host { cpus, has_feature: |_| false, is_file, is_public, read };
        config::load(&Origin { file, sets: Vec::new() }, &host).unwrap()
    }

    fn function(name: &str, dispatch: &str) -> String {
        let decoder = "handler = \"builtin:qec_decode\"\ndecoder = \"one\"";
        format!("[[function]]\nname = \"{name}\"\n{decoder}\ndispatch = \"{dispatch}\"\n")
    }

    fn users(loaded: &Loaded) -> Vec<usize> {
        loaded.config.decoders.iter().map(|decoder| Arc::strong_count(&decoder.tables)).collect()
    }

    #[test]
    fn every_core_shares_the_tables_of_a_decoder_and_one_that_runs_nothing_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let mixed = load(folder.path(), &[function("f", "ring"), function("g", "inline")].concat());
        let rpc = mixed.config.ports[0].rpc().unwrap();
        let made = [Runner::Queue, Runner::Queue, Runner::Worker]
            .map(|runner| functions(&mixed.config, rpc, runner, &Pool::new(0)).unwrap());
        assert_eq!(users(&mixed), [4, 4], "the configuration, two queues and a worker");
        drop(made);
        let away = load(folder.path(), &function("f", "ring"));
        let made = [Runner::Queue, Runner::Queue, Runner::Worker]
            .map(|runner| functions(&away.config, rpc, runner, &Pool::new(0)).unwrap());
        assert_eq!(users(&away), [2, 2], "the configuration and the worker");
        drop(made);
    }

    #[test]
    fn sessions_stay_with_the_worker_that_has_them() {
        let folder = tempfile::tempdir().unwrap();
        let server = |place: &str| {
            let names = ["enqueue_syndromes", "get_corrections", "reset_decoder"];
            let one = |name| format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:{name}\"\n{place}\n");
            load(folder.path(), &names.map(one).concat())
        };
        let places = ["", "dispatch = \"ring\"", "dispatch = \"ring\"\nring = \"r\""];
        let all = places.map(server);
        for (a, old) in all.iter().enumerate() {
            for (b, new) in all.iter().enumerate() {
                let [before, rpc] = [old, new].map(|loaded| loaded.config.ports[0].rpc().unwrap());
                let kept = inherited(&old.config, before, &new.config, rpc);
                assert_eq!(kept, if a == b { vec![(0, 0), (1, 1)] } else { vec![] }, "{a} to {b}");
            }
        }
    }

    #[test]
    fn a_reload_works_out_only_the_models_that_changed() {
        let folder = tempfile::tempdir().unwrap();
        let before = load(folder.path(), &function("f", "inline"));
        fs::write(folder.path().join("two.dem"), "error(0.2) D0 L0\n").unwrap();
        let after = before.again().unwrap();
        let same = |at: usize| Arc::ptr_eq(&before.config.decoders[at].tables, &after.config.decoders[at].tables);
        assert_eq!([0, 1].map(same), [true, false]);
        let program = successor(&before.config, &after.config, 0, Runner::Queue, &Pool::new(0)).unwrap();
        assert_eq!(users(&before), [3, 1], "both configurations and the new program");
        drop(program);
    }
}
