//! The thread of one worker CPU: runs the handlers of functions with `dispatch = "ring"`.

use std::{
    collections::BTreeMap,
    sync::{atomic::Ordering::Relaxed, mpsc::Sender},
    thread,
};

use anyhow::Context as _;
use berth_engine::{Idle, SHORTEST_SLEEP, SPIN_AFTER_WORK};
use berth_host::{TscClock, pin_current_thread};
use berth_plugin::Plugin;
use berth_port::Clock as _;
use berth_ring::Dispatcher;
use berth_rpc::{Worker, handlers::HandlerSet};
use serde::Serialize;

use super::{Event, Shared, pulse::Pulse, service};

/// What a worker thread needs to start.
pub(super) struct Plan {
    pub(super) cpu: usize,
    pub(super) idle: Idle,
    /// The ports served, by position in the configuration, with the ring from each of their queues.
    pub(super) rings: Vec<(usize, Dispatcher, service::Updates)>,
}

/// What one worker counted.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    name: String,
    port: String,
    counters: BTreeMap<&'static str, u64>,
}

/// Runs on the worker's thread until every lcore has ended.
pub(super) fn run(plan: Plan, shared: &Shared, pulse: &Pulse, events: &Sender<Event>) -> anyhow::Result<()> {
    pin_current_thread(plan.cpu)?;
    let cpu = plan.cpu;
    let mut workers = Vec::new();
    for (index, ring, updates) in plan.rings {
        let port = &shared.config.ports[index];
        let rpc = port.rpc().context("only RPC has workers")?;
        workers.push((port, service::worker(shared, rpc, ring, updates)?));
    }
    events.send(Event::Ready(Vec::new(), None)).context("the appliance is gone")?;

    let mut last_work = shared.clock.now().mono;
    while !shared.stop_workers.load(Relaxed) {
        pulse.beat();
        let now = shared.clock.now();
        let served: usize = workers
            .iter_mut()
            .map(|(_, worker): &mut (_, Worker<HandlerSet<Plugin>, TscClock>)| worker.poll(now))
            .sum();
        if served > 0 {
            last_work = now.mono;
        } else if plan.idle == Idle::Spin || now.mono - last_work < SPIN_AFTER_WORK {
            std::hint::spin_loop();
        } else {
            // Nothing announces a request in the ring: look for one at each tick.
            thread::sleep(SHORTEST_SLEEP);
        }
    }
    let reports = workers.iter().map(|(port, worker)| {
        let mut counters = BTreeMap::new();
        worker.counters(&mut |name, value| {
            counters.insert(name, value);
        });
        Report { name: format!("worker{cpu}"), port: port.name.clone(), counters }
    });
    events.send(Event::Reports(reports.collect())).context("the appliance is gone")
}
