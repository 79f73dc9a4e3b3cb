//! Which thread serves what: queues of all ports over the CPUs that poll them, their workers over the CPUs of workers.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_engine::Idle;
use berth_fabric::Binding;
use berth_ring::{Dispatcher, Producer};

use super::{
    queue::{Facts, Queue, Source},
    reload::{Seat, Seats},
    service,
};
use crate::config::{Config, Port, Service};

/// What an lcore thread needs to start.
pub(super) struct LcorePlan {
    pub(super) cpu: usize,
    pub(super) idle: Idle,
    pub(super) queues: Vec<Queue>,
    pub(super) workers: Vec<Worker>,
}

/// The worker for one queue of a port, by position in the configuration.
pub(super) struct Worker {
    pub(super) port: usize,
    pub(super) ring: Dispatcher,
    pub(super) updates: service::Updates,
}

/// The threads by their CPUs.
type Lcores = BTreeMap<usize, LcorePlan>;

/// Every thread of the dataplane.
pub(super) struct Plan {
    pub(super) lcores: Vec<LcorePlan>,
    /// What is known of each port, in the order of the configuration, beside its address.
    pub(super) facts: Vec<Facts>,
    /// Where functions can be replaced.
    pub(super) seats: Seats,
}

pub(super) fn plan(config: &Config) -> anyhow::Result<Plan> {
    let mut lcores = Lcores::new();
    let mut facts = Vec::new();
    let (mut seats, mut at_workers) = (Vec::new(), Vec::new());
    for (index, port) in config.ports.iter().enumerate() {
        let (sources, known) = Source::of(port, &config.runtime).with_context(|| format!("port {}", port.name))?;
        facts.push(known);
        for ((number, &cpu), source) in port.cpus.iter().enumerate().zip(sources) {
            let ring = ring(&mut lcores, &mut at_workers, index, port, number)?;
            let updates = port.rpc().map(|_| Seat::add(&mut seats, index, format!("cpu{cpu}")));
            lcore(&mut lcores, cpu, port.idle).queues.push(Queue { port: index, number, source, ring, updates });
        }
    }
    let lcores = lcores.into_values().collect();
    Ok(Plan { lcores, facts, seats: Seats { workers: at_workers, lcores: seats } })
}

impl Plan {
    /// What connects leases to ports that serve them, in the order of the configuration.
    pub(super) fn bindings(&self, config: &Config) -> Vec<Box<dyn Binding>> {
        let queues = self.lcores.iter().flat_map(|lcore| &lcore.queues);
        let serving = queues.map(|queue| (queue, &config.ports[queue.port]));
        let serving = serving.filter(|(_, port)| port.service == Service::LeaseIo);
        let bindings = serving.filter_map(|(queue, port)| Some((queue.port, queue.source.binding(&port.name)?)));
        let bindings: BTreeMap<_, _> = bindings.collect();
        bindings.into_values().collect()
    }
}

/// The thread of a CPU; the eagerest port that it polls or works for sets how it idles.
fn lcore(lcores: &mut Lcores, cpu: usize, idle: Idle) -> &mut LcorePlan {
    let new = || LcorePlan { cpu, idle, queues: Vec::new(), workers: Vec::new() };
    let lcore = lcores.entry(cpu).or_insert_with(new);
    lcore.idle = lcore.idle.max(idle);
    lcore
}

/// The ring from one queue to a worker; the queues of a port go to its workers' CPUs in turn.
fn ring(
    lcores: &mut Lcores,
    seats: &mut Vec<Seat>,
    index: usize,
    port: &Port,
    number: usize,
) -> anyhow::Result<Option<Producer>> {
    let Some(rpc) = port.rpc().filter(|rpc| !rpc.worker_cpus.is_empty()) else { return Ok(None) };
    let cpus = &rpc.worker_cpus;
    let (producer, dispatcher) = berth_ring::pair(rpc.slots as u32, rpc.slot_size)?;
    let cpu = cpus[number % cpus.len()];
    let updates = Seat::add(seats, index, format!("cpu{cpu}"));
    lcore(lcores, cpu, port.idle).workers.push(Worker { port: index, ring: dispatcher, updates });
    Ok(Some(producer))
}
