//! One queue of one port on one CPU: opens the driver, puts the layers around it, joins it to its service.

use std::{fs::File, net::SocketAddr};

use anyhow::Context as _;
use berth_admission::Admission;
use berth_engine::{Lane, Lcore, Polled};
use berth_port::{Fault, FaultSpec, Faults, Pcap, Port, Recorder, Task};
use berth_ports::{OpenQueue as _, QueueUser};
use berth_ring::Producer;
use berth_rpc::Stage;

use super::{Shared, service};
use crate::config::Service;

/// One queue, not joined to its service yet.
pub(super) struct Queue {
    /// Position in the configuration.
    pub(super) port: usize,
    /// Which of the port's queues this is, from 0: the position of its CPU.
    pub(super) number: usize,
    /// Where its frames come from.
    pub(super) source: berth_ports::Queue,
    /// Lead to the queue's workers.
    pub(super) rings: Vec<Producer>,
    /// Brings new functions, where it has any.
    pub(super) updates: Option<service::Updates>,
    /// What it admits, where that is limited.
    pub(super) admission: Option<Admission>,
}

impl Queue {
    /// Opens the queue on the thread of its CPU, adds it to the lcore, and returns where peers reach it.
    pub(super) fn open(self, lcore: &mut Lcore, shared: &Shared) -> anyhow::Result<SocketAddr> {
        let config = &shared.config.ports[self.port];
        let Self { port, number, source, rings, updates, admission } = self;
        source
            .open(Layers { lcore, shared, port, number, rings, updates, admission })
            .with_context(|| format!("port {}", config.name))
    }
}

/// What a queue gets around its port.
struct Layers<'a> {
    lcore: &'a mut Lcore,
    shared: &'a Shared,
    port: usize,
    number: usize,
    rings: Vec<Producer>,
    updates: Option<service::Updates>,
    admission: Option<Admission>,
}

impl QueueUser for Layers<'_> {
    type Output = SocketAddr;

    /// Puts the fault layer around `port`, if there is one.
    fn port<P: Port + 'static>(self, port: P) -> anyhow::Result<SocketAddr> {
        let Some(fault) = self.shared.config.ports[self.port].fault else { return self.capture(port) };
        let faults = Faults {
            drop: fault.drop,
            corrupt: fault.corrupt,
            duplicate: fault.duplicate,
            reorder: fault.reorder,
            delay: if fault.delay_us > 0 { 1.0 } else { 0.0 },
            delay_us: [fault.delay_us; 2],
        };
        // Queues of one port draw different faults.
        let spec = FaultSpec { seed: fault.seed.wrapping_add(self.number as u64), rx: faults, tx: faults };
        let clock = self.shared.clock.clone();
        self.capture(Fault::new(port, spec, clock))
    }

    fn streams<T: Task + 'static>(self, task: T, addr: SocketAddr) -> anyhow::Result<SocketAddr> {
        let config = &self.shared.config.ports[self.port];
        self.lcore.add(Polled::port(&config.name, task).weight(config.weight));
        Ok(addr)
    }
}

impl Layers<'_> {
    /// Puts the capture layer around `port`, if there is one.
    fn capture<P: Port + 'static>(self, port: P) -> anyhow::Result<SocketAddr> {
        let Some(pcap) = &self.shared.config.ports[self.port].pcap else { return self.join(port) };
        let path = match self.number {
            0 => pcap.file.clone(),
            queue => pcap.file.with_extension(format!("{queue}.pcap")),
        };
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        let capture = Pcap::new(port, file, pcap.max_bytes, self.shared.clock.clone());
        self.join(capture)
    }

    /// Joins `port` to its service.
    fn join<P: Port + 'static>(self, port: P) -> anyhow::Result<SocketAddr> {
        let Self { lcore, shared, .. } = self;
        let addr = port.local_addr();
        let config = &shared.config.ports[self.port];
        match &config.service {
            Service::Rpc(rpc) => {
                let updates = self.updates.context("RPC has functions")?;
                let [wire_time, ring_wait, ring_time] = [(); 3].map(|()| Recorder::default());
                let named = [("wire_time", &wire_time), ("ring_wait", &ring_wait), ("ring_time", &ring_time)];
                // Those of rings are shown where there are any.
                let shown = if self.rings.is_empty() { &named[..1] } else { &named[..] };
                let record = {
                    let [wire_time, ring_wait, ring_time] = named.map(|(_, recorder)| recorder.clone());
                    move |stage, nanos| match stage {
                        Stage::Wire => wire_time.record(nanos),
                        Stage::RingWait => ring_wait.record(nanos),
                        Stage::RingTime => ring_time.record(nanos),
                    }
                };
                let service = service::service(shared, self.port, rpc, self.rings, updates, self.admission, record)?;
                let lane = Lane::new(&config.name, port, service).weight(config.weight).timed(shared.clock.clone());
                lcore.add(shown.iter().fold(lane, |lane, (name, recorder)| lane.histogram(name, recorder)));
            }
            Service::LeaseIo => {
                let lane = Lane::new(&config.name, port, service::lease_io(shared, self.admission)?);
                lcore.add(lane.weight(config.weight).timed(shared.clock.clone()));
            }
        }
        Ok(addr)
    }
}
