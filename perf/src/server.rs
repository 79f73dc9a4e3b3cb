//! The server of a loopback: Berth's own service on a second core of this process.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, bail};
use berth_engine::{Idle, Lane, Lcore, Telemetry};
use berth_host::{TscClock, pin_current_thread};
use berth_port::{Clock, Loopback, Port};
use berth_qec::{
    Algorithm, Decoder,
    mock::{MockTable, SyndromeFile},
};
use berth_rpc::{
    FunctionTable, Order, RpcService, Stage, Undispatchable,
    handlers::{Handler, HandlerSet, QecDecode, Session},
};
use berth_wire::rpc::PtpEncoding;

use crate::args::RpcArgs;

/// A poll loop on a thread of its own.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Server {
    /// Serves `port` on `cpu` until [`Server::stop`], with the service made there for frames of so many bytes.
    pub(crate) fn start<S: berth_port::Service + 'static>(
        port: Loopback,
        cpu: usize,
        clock: &TscClock,
        service: impl FnOnce(usize, TscClock) -> anyhow::Result<S> + Send + 'static,
    ) -> anyhow::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (clock, stopped) = (clock.clone(), Arc::clone(&stop));
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new().name("server".into()).spawn(move || -> anyhow::Result<()> {
            pin_current_thread(cpu)?;
            let mut lcore = Lcore::new("server", Idle::Spin, &Telemetry::default());
            let service = service(port.max_frame(), clock.clone())?;
            lcore.add(Lane::new("loopback", port, service));
            let _ = ready.send(());
            while !stopped.load(Relaxed) {
                lcore.poll(clock.now());
            }
            Ok(())
        })?;
        if started.recv().is_err() {
            thread.join().expect("the server does not panic")?;
            bail!("the server ended before it began");
        }
        Ok(Self { stop, thread })
    }

    /// Ends the thread, and returns the error that it ended with.
    pub(crate) fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("the server does not panic")
    }
}

/// Starts the server of a loopback on a CPU.
pub(crate) type Serve = dyn Fn(Loopback, usize, &TscClock) -> anyhow::Result<Server> + Send + Sync;

/// Serves the functions that the command line gives the data of.
pub(crate) fn rpc(args: &RpcArgs) -> Arc<Serve> {
    let args = args.clone();
    Arc::new(move |port, cpu, clock| {
        if args.echo {
            bail!("--echo is for baseline servers; the server of a loopback is Berth's own");
        }
        let args = args.clone();
        Server::start(port, cpu, clock, move |slot_size, clock| service(&args, slot_size, clock))
    })
}

type Service = RpcService<HandlerSet, TscClock, fn(Stage, u64)>;

fn unrecorded(_: Stage, _nanos: u64) {}

/// Every function that the command line gives the data of.
fn service(args: &RpcArgs, slot_size: usize, clock: TscClock) -> anyhow::Result<Service> {
    let mut functions = vec![("rpc_increment".to_owned(), Handler::Increment)];
    let read =
        |path: &std::path::Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    if let Some(path) = &args.syndromes {
        let table = MockTable::from_file(&SyndromeFile::parse(&read(path)?)?);
        functions.push(("mock_decode".to_owned(), Handler::MockDecode(table)));
    }
    let mut sessions = Vec::new();
    if let Some(path) = &args.model {
        sessions.push(Session::new(Decoder::from_dem(&read(path)?, Algorithm::Mwpm)?));
        functions.extend([
            ("qec_decode".to_owned(), Handler::QecDecode(QecDecode::events(0))),
            ("enqueue_syndromes".to_owned(), Handler::EnqueueSyndromes),
            ("get_corrections".to_owned(), Handler::GetCorrections),
            ("reset_decoder".to_owned(), Handler::ResetDecoder),
        ]);
    }
    let handlers = HandlerSet::new(functions, sessions)?;
    let table = Arc::new(FunctionTable::new(handlers.functions())?);
    let config = berth_rpc::Config {
        header: args.header(),
        slot_size,
        on_undispatchable: Undispatchable::Reply,
        ptp: args.ptp().unwrap_or(PtpEncoding::Ns),
        order: Order::Arrival,
    };
    Ok(RpcService::new(config, table, handlers, None, clock, unrecorded as fn(Stage, u64))?)
}
