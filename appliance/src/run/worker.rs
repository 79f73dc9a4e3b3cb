//! The thread of one worker CPU: runs the handlers of functions with `dispatch = "ring"`.

use std::{
    sync::{atomic::Ordering::Relaxed, mpsc::Sender},
    thread,
};

use anyhow::Context as _;
use berth_engine::{Idle, SHORTEST_SLEEP, SPIN_AFTER_WORK, WorkerMeter};
use berth_host::{TscClock, pin_current_thread};
use berth_plugin::Plugin;
use berth_port::Clock as _;
use berth_ring::Dispatcher;
use berth_rpc::{Worker, handlers::HandlerSet};

use super::{Event, Shared, pulse::Pulse, service};

/// What a worker thread needs to start.
pub(super) struct Plan {
    pub(super) cpu: usize,
    pub(super) idle: Idle,
    /// The ports served, by position in the configuration, with the ring from each of their queues.
    pub(super) rings: Vec<(usize, Dispatcher, service::Updates)>,
}

/// Runs on the worker's thread until every lcore has ended.
pub(super) fn run(plan: Plan, shared: &Shared, pulse: &Pulse, events: &Sender<Event>) -> anyhow::Result<()> {
    pin_current_thread(plan.cpu)?;
    let mut meter = WorkerMeter::new(format!("worker{}", plan.cpu), &shared.telemetry);
    let mut workers: Vec<Worker<HandlerSet<Plugin>, TscClock>> = Vec::new();
    for (index, ring, updates) in plan.rings {
        let port = &shared.config.ports[index];
        let rpc = port.rpc().context("only RPC has workers")?;
        let worker = service::worker(shared, rpc, ring, updates)?;
        meter.add(&port.name, |visit| worker.counters(visit));
        workers.push(worker);
    }
    let publish = |meter: &mut WorkerMeter, workers: &[Worker<_, _>]| {
        workers.iter().enumerate().for_each(|(index, worker)| meter.publish(index, |visit| worker.counters(visit)));
    };
    events.send(Event::Ready(Vec::new(), None)).context("the appliance is gone")?;

    let mut last_work = shared.clock.now().mono;
    while !shared.stop_workers.load(Relaxed) {
        pulse.beat();
        let mut served = 0;
        let mut now = shared.clock.now();
        for (index, worker) in workers.iter_mut().enumerate() {
            if index > 0 {
                now = shared.clock.now();
            }
            let requests = worker.poll(now);
            meter.turn(index, now.mono, requests);
            served += requests;
        }
        if meter.is_due(now.mono) {
            publish(&mut meter, &workers);
        }
        if served > 0 {
            last_work = now.mono;
        } else if plan.idle == Idle::Spin {
            // A core of its own has nothing to yield to, and a pause hint takes longer than a look into the ring.
        } else if now.mono - last_work < SPIN_AFTER_WORK {
            std::hint::spin_loop();
        } else {
            // Nothing announces a request in the ring: look for one at each tick.
            thread::sleep(SHORTEST_SLEEP);
        }
    }
    publish(&mut meter, &workers);
    Ok(())
}
