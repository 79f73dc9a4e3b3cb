//! The thread of one polled CPU.

use std::sync::{atomic::Ordering::Relaxed, mpsc::Sender};

use anyhow::Context as _;
use berth_engine::{Idle, Lcore, Polled, Step};
use berth_host::{Sleeper, pin_current_thread};
use berth_port::Clock as _;
use berth_rpc::WindowHelper;

use super::{
    DRAIN, Event, Shared,
    heartbeat::Heartbeat,
    plan::{Bound, Core, Helper, LcorePlan, Worker},
    service,
};

/// Runs on the lcore's thread until it is drained.
pub(super) fn run(
    plan: LcorePlan,
    shared: &Shared,
    heartbeat: &Heartbeat,
    events: &Sender<Event>,
) -> anyhow::Result<()> {
    pin_current_thread(plan.cpu)?;
    let mut lcore = Lcore::new(format!("cpu{}", plan.cpu), plan.idle, &shared.telemetry);
    // Looks into rings alone have no pause between them: the hint takes longer than a look, and a core that spins has
    // nothing to yield to.
    let pauses = plan.idle != Idle::Spin || !plan.queues.is_empty() || !plan.bound.is_empty();
    let mut opened = Vec::new();
    for queue in plan.queues {
        opened.push((queue.port, queue.open(&mut lcore, shared)?));
    }
    for Worker { name, port: index, ring, updates } in plan.workers {
        let port = &shared.config.ports[index];
        let rpc = port.rpc().context("only RPC has workers")?;
        let worker = service::worker(shared, index, rpc, ring, updates)?;
        lcore.add(Polled::worker(name, &port.name, worker).weight(port.weight));
    }
    for Helper { port, pool } in plan.helpers {
        let port = &shared.config.ports[port];
        let name = format!("windows{}", plan.cpu);
        lcore.add(Polled::worker(name, &port.name, WindowHelper::new(pool)).weight(port.weight));
    }
    for Bound { name, core } in plan.bound {
        match core {
            Core::Nvme(core) => lcore.add(core.open(&name).with_context(|| name.clone())?),
            Core::Hip(core) => lcore.add(core.open(&name).with_context(|| name.clone())?),
        }
    }
    let mut sleeper = Sleeper::new(lcore.wait_fds()).context("opening what wakes the lcore")?;
    events.send(Event::Ready(opened, sleeper.waker())).ok().context("the appliance is gone")?;

    let mut draining = false;
    loop {
        heartbeat.beat();
        if !draining && shared.stop.load(Relaxed) {
            lcore.drain(shared.clock.now(), DRAIN);
            draining = true;
        }
        match lcore.poll(shared.clock.now()) {
            // A lane alone has looked 16 times by now. What runs on the core's other hyper-thread, often who asks, is
            // quicker for it: without the hint, round trips took 7 % longer.
            Step::Spin if pauses => std::hint::spin_loop(),
            Step::Busy | Step::Spin => {}
            Step::Sleep(most) => {
                sleeper.sleep(Some(most));
            }
            Step::Done => return Ok(()),
        }
    }
}
