//! The thread of one polled CPU.

use std::sync::{atomic::Ordering::Relaxed, mpsc::Sender};

use anyhow::Context as _;
use berth_engine::{Idle, Lcore, Step};
use berth_host::{Sleeper, pin_current_thread};
use berth_port::Clock as _;

use super::{DRAIN, Event, Shared, plan::LcorePlan, pulse::Pulse};

/// Runs on the lcore's thread until it is drained.
pub(super) fn run(plan: LcorePlan, shared: &Shared, pulse: &Pulse, events: &Sender<Event>) -> anyhow::Result<()> {
    pin_current_thread(plan.cpu)?;
    // A core of its own has nothing to yield to, and a pause hint takes longer than a poll.
    let pauses = plan.idle != Idle::Spin;
    let mut lcore = Lcore::new(format!("cpu{}", plan.cpu), plan.idle, &shared.telemetry);
    let mut opened = Vec::new();
    for queue in plan.queues {
        opened.push((queue.port, queue.open(&mut lcore, shared)?));
    }
    let mut sleeper = Sleeper::new(lcore.wait_fds()).context("opening what wakes the lcore")?;
    events.send(Event::Ready(opened, Some(sleeper.waker()))).context("the appliance is gone")?;

    let mut draining = false;
    loop {
        pulse.beat();
        if !draining && shared.stop.load(Relaxed) {
            lcore.drain(shared.clock.now(), DRAIN);
            draining = true;
        }
        match lcore.poll(shared.clock.now()) {
            Step::Spin if pauses => std::hint::spin_loop(),
            Step::Busy | Step::Spin => {}
            Step::Sleep(most) => {
                sleeper.sleep(Some(most));
            }
            Step::Done => return Ok(()),
        }
    }
}
