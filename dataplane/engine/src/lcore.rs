//! Several tasks on one core.

use std::{num::NonZeroU32, os::fd::RawFd, time::Duration};

use berth_port::{Family, Nanos, Now, Part, Recorder, Sampler, Tables, Task, Work};

use crate::{
    Idle, Polled, Telemetry,
    idle::IdleState,
    polled::Shown,
    telemetry::{Attached, Publisher, Shelf, TaskBoard},
};

/// Least time between two publications of the counters.
///
/// A publication stores some tens of words of memory that the core itself wrote; once in 1 ms that is less than 0.1 %
/// of a core. The burst of the poll that publishes waits for it, and its service time shows that. Counters that need a
/// system call or a device register are read by [`Telemetry::read_devices`].
pub const PUBLISH_EVERY: Duration = Duration::from_millis(1);

/// A turn without work that takes at least this long counts as a hiccup. No driver needs 10 us to find nothing; an
/// interrupt, the scheduler or a hypervisor that takes the CPU away does.
pub const HICCUP: Duration = Duration::from_micros(10);

/// What the thread of an lcore does before its next [`Lcore::poll`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There was work: poll again at once.
    Busy,
    /// There was no work: poll again after a pause hint to the CPU.
    Spin,
    /// There is no work: wait until one of [`Lcore::wait_fds`] is readable, at most for this long.
    Sleep(Duration),
    /// The drain is over and every task is gone: stop polling. Either everything was answered, or the deadline passed.
    Done,
}

/// One core's poll loop: tasks of any types, which take turns.
///
/// A poll gives one task one turn, which is at most one burst. Tasks are served in rotation, and share time fairly:
/// each turn's duration is charged to its task, and a task that is ahead of another one with work, by their weights, is
/// passed over until the other has caught up. A task without work is looked at in every round, gets no credit for time
/// that it did not need, and delays nobody. At worst, a task waits for one turn of each other task.
///
/// Tasks are called dynamically, once per turn. Everything within a turn, the handler of each frame included, is
/// monomorphised. An lcore stays on the thread that made it.
pub struct Lcore {
    slots: Vec<Slot>,
    next: usize,
    /// Turns without work since the last turn with work or the last sleep.
    empty_turns: usize,
    idle: IdleState,
    drain: Option<Drain>,
    counts: Counts,
    /// What the last poll did. Its time ends where this poll begins.
    last: Option<Last>,
    publish_at: Nanos,
    board: Publisher,
    hiccups: Recorder,
    telemetry: Telemetry,
    index: usize,
}

struct Slot {
    /// Dropped before the port.
    _device: Option<Attached>,
    task: Box<dyn Task>,
    /// False once a drain has found this task's source empty.
    receiving: bool,
    /// Whether its last turn found work, so that there may be more.
    backlogged: bool,
    weight: NonZeroU32,
    /// Time charged to the task, divided by its weight, in nanoseconds. Follows that of the others while it has no
    /// work.
    charged: u64,
    counts: TaskCounts,
    times: Times,
    boards: [Publisher; 3],
    /// Histograms that come and go.
    shelf: Shelf,
}

impl Slot {
    #[cold]
    fn publish(&mut self) {
        let Self { task, counts, boards: [counters, port, service], shelf, .. } = self;
        counters.publish(|visit| counts.report(visit));
        port.publish(|visit| task.counters(Part::Port, visit));
        service.publish(|visit| task.counters(Part::Service, visit));
        shelf.publish(|visit| task.histograms(visit));
    }
}

/// How the time of a turn is recorded.
enum Times {
    /// The whole turn's time for each frame of the burst, within which the last one is answered.
    Burst(Recorder),
    /// The mean time per request, as they are answered one by one; only for turns that are samples.
    Mean(Recorder, Sampler),
}

impl Times {
    #[inline]
    fn record(&mut self, began: Nanos, took: u64, received: u64) {
        match self {
            Self::Burst(recorder) => recorder.record_n(took, received),
            Self::Mean(recorder, sampler) => {
                let sampled = sampler.is_due(began);
                sampler.seen(sampled, began);
                if sampled {
                    recorder.record_n(took / received, received);
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Last {
    at: Nanos,
    did: Did,
}

#[derive(Clone, Copy)]
enum Did {
    Nothing,
    Sleep,
    Work { slot: usize, received: u64 },
}

#[derive(Clone, Copy)]
struct Drain {
    receive_until: Nanos,
    deadline: Nanos,
}

/// Declarations of the counters per lcore.
pub const LCORE_COUNTERS: Tables = &[Counts::TABLE];

/// Declarations of the counters per lane, those of its port and service aside.
pub const LANE_COUNTERS: Tables = &[TaskCounts::TABLE];

const BUSY_NS: Family = Family::counter("busy_ns", "time of turns that received or answered something");

berth_port::counters! {
    struct Counts {
        elapsed_ns: "time since the first poll",
        busy_ns: BUSY_NS,
        sleeps: "times that the loop slept",
        slept_ns: "time that the loop slept",
        drain_abandoned: "answers owed when a drain ran out of time",
    }
}

berth_port::counters! {
    struct TaskCounts {
        polls: "turns that it had",
        empty_polls: "turns that received and answered nothing",
        busy_ns: BUSY_NS,
        frames_rx: "frames given to the service",
        frames_replied: "frames that the service answered, at once or later",
    }
}

impl Lcore {
    /// An lcore without tasks. `name` appears in `telemetry`.
    pub fn new(name: impl Into<String>, idle: Idle, telemetry: &Telemetry) -> Self {
        let counts = Counts::default();
        let board = Publisher::new(|visit| counts.report(visit));
        let hiccups = Recorder::default();
        Self {
            slots: Vec::new(),
            next: 0,
            empty_turns: 0,
            idle: IdleState::new(idle),
            drain: None,
            counts,
            last: None,
            publish_at: Nanos(0),
            index: telemetry.add_lcore(name.into(), board.board(), hiccups.reader()),
            board,
            hiccups,
            telemetry: telemetry.clone(),
        }
    }

    /// Adds a task and allocates its telemetry, so not for the hot path.
    pub fn add<T: Task + 'static>(&mut self, polled: Polled<T>) {
        let Polled { task, shown, weight, histograms } = polled;
        let counts = TaskCounts::default();
        let boards = [
            Publisher::new(|visit| counts.report(visit)),
            Publisher::new(|visit| task.counters(Part::Port, visit)),
            Publisher::new(|visit| task.counters(Part::Service, visit)),
        ];
        let [counters, port, service] = [0, 1, 2].map(|board: usize| boards[board].board());
        let time = Recorder::default();
        let (name, times) = match shown {
            Shown::Lane(_) => ("service_time", Times::Burst(time.clone())),
            Shown::Worker { .. } => ("worker_time", Times::Mean(time.clone(), Sampler::default())),
        };
        let histograms = [(name, time)].into_iter().chain(histograms);
        let histograms = histograms.map(|(name, recorder)| (name, recorder.reader())).collect();
        let shelf = Shelf::new(|visit| task.histograms(visit));
        let changing = shelf.board();
        let attached = task.device().map(Attached::new);
        let device = attached.as_ref().map(Attached::board);
        self.telemetry.add_task(self.index, TaskBoard { shown, counters, port, device, service, histograms, changing });
        let (receiving, backlogged, charged) = (true, false, 0);
        self.slots.push(Slot {
            _device: attached,
            task: Box::new(task),
            receiving,
            backlogged,
            weight,
            charged,
            counts,
            times,
            boards,
            shelf,
        });
    }

    /// Descriptors that a sleeping thread waits on for readability. Tasks without one keep [`Step::Sleep`] short.
    pub fn wait_fds(&self) -> impl Iterator<Item = RawFd> {
        self.slots.iter().filter_map(|slot| slot.task.wait_fd())
    }

    /// Gives the next task its turn. `now` ends the previous turn and begins this one.
    ///
    /// The service time of a burst therefore runs from just before its receive call to the end of its transmit call,
    /// plus what the caller does between polls. On an lcore that spins for a single lane with a clock, one turn polls
    /// up to 16 times and reads the clock when frames come, so that a burst begins with its first frame. Each frame of
    /// a burst is recorded with the burst's time, within which the last is answered. A turn that only posts late
    /// answers counts as busy and records no service time.
    #[inline]
    pub fn poll(&mut self, now: Now) -> Step {
        self.settle(now.mono);
        if now.mono >= self.publish_at && !cfg!(feature = "no-telemetry") {
            self.publish(now.mono);
        }
        if self.drain.is_some_and(|drain| now.mono >= drain.deadline || self.slots.is_empty()) {
            return self.finish(now.mono);
        }
        let (index, floor) = self.choose();
        let work = self.turn(index, now);
        self.next = if index + 1 < self.slots.len() { index + 1 } else { 0 };
        if let Some(slot) = self.slots.get_mut(index) {
            slot.backlogged = !work.is_none();
            slot.charged = slot.charged.max(floor);
        }
        if !work.is_none() {
            self.idle.worked(now.mono);
            self.empty_turns = 0;
            self.idled(work.began.0.saturating_sub(now.mono.0));
            self.last = Some(Last { at: work.began, did: Did::Work { slot: index, received: work.received } });
            return Step::Busy;
        }
        self.last = Some(Last { at: now.mono, did: Did::Nothing });
        if self.drain.is_some() {
            return self.end(index, now.mono);
        }
        self.empty_turns += 1;
        let settled = self.empty_turns >= self.slots.len() && !self.slots.iter().any(|slot| slot.backlogged);
        if settled { self.quiet(now.mono) } else { Step::Spin }
    }

    /// Chooses the task whose turn it is, and returns its index and its charge: the next one that is not known to have
    /// work, or, among those with work, the one that was charged least.
    #[inline]
    fn choose(&self) -> (usize, u64) {
        let slots = &self.slots;
        let Some(floor) = slots.iter().filter(|slot| slot.backlogged).map(|slot| slot.charged).min() else {
            return (self.next, 0);
        };
        let due = |index: &usize| !slots[*index].backlogged || slots[*index].charged <= floor;
        let index = (self.next..slots.len()).find(due).or_else(|| (0..self.next).find(due));
        (index.unwrap_or(self.next), floor)
    }

    /// Ends the loop gracefully. Each task receives until it finds nothing for the first time, at the latest until half
    /// of `within` has passed; after that it only finishes what it owes. A task that owes nothing is dropped, and with
    /// it its ends of rings: a task [that is fed](Task::is_fed) by them receives until then. [`Step::Done`] follows
    /// when no task is left, or after `within`; answers still owed then are counted in `drain_abandoned`.
    pub fn drain(&mut self, now: Now, within: Duration) {
        self.empty_turns = 0;
        self.drain = Some(Drain { receive_until: now.mono + within / 2, deadline: now.mono + within });
    }

    /// Charges the time since the last poll to the task that it served.
    #[inline]
    fn settle(&mut self, now: Nanos) {
        let Some(last) = self.last else { return };
        let took = now.0.saturating_sub(last.at.0);
        match last.did {
            Did::Nothing => self.idled(took),
            Did::Sleep => {
                self.counts.elapsed_ns += took;
                self.counts.slept_ns += took;
            }
            Did::Work { slot, received } => {
                self.counts.elapsed_ns += took;
                self.counts.busy_ns += took;
                let slot = &mut self.slots[slot];
                slot.counts.busy_ns += took;
                slot.charged += took.div_ceil(slot.weight.get().into());
                if received > 0 {
                    slot.times.record(last.at, took, received);
                }
            }
        }
    }

    /// Counts time that passed in polls without work.
    #[inline]
    fn idled(&mut self, took: u64) {
        self.counts.elapsed_ns += took;
        if took >= HICCUP.as_nanos() as u64 {
            self.hiccups.record(took);
        }
    }

    #[inline]
    fn turn(&mut self, index: usize, now: Now) -> Work {
        let alone = self.slots.len() == 1 && self.drain.is_none() && self.idle.spins();
        let Some(slot) = self.slots.get_mut(index) else { return Work::default() };
        let drain = self.drain.filter(|_| !slot.task.is_fed());
        if drain.is_some_and(|drain| now.mono >= drain.receive_until) {
            slot.receiving = false;
        }
        let work = slot.task.turn(now, slot.receiving, alone);
        if drain.is_some() && work.received == 0 {
            slot.receiving = false;
        }
        slot.counts.polls += work.polls;
        slot.counts.empty_polls += work.polls - u64::from(!work.is_none());
        slot.counts.frames_rx += work.received;
        slot.counts.frames_replied += work.replied;
        work
    }

    /// Decides what to do after a whole round of turns without work.
    fn quiet(&mut self, now: Nanos) -> Step {
        let slots = &self.slots;
        let expecting = || slots.iter().any(|slot| slot.task.outstanding() > 0 || slot.task.is_fed());
        let step = self.idle.step(now, expecting, || slots.iter().all(|slot| slot.task.wait_fd().is_some()));
        if let Step::Sleep(_) = step {
            // Each is asked, whatever another said.
            let mut rests = true;
            for slot in &mut self.slots {
                rests &= slot.task.rest();
            }
            if !rests {
                return Step::Spin;
            }
            self.counts.sleeps += 1;
            self.empty_turns = 0;
            self.last = Some(Last { at: now, did: Did::Sleep });
        }
        step
    }

    /// Drops a task that had nothing to do in a drain, if it owes nothing.
    #[cold]
    fn end(&mut self, index: usize, now: Nanos) -> Step {
        let slot = &mut self.slots[index];
        if !slot.receiving && slot.task.outstanding() == 0 {
            slot.publish();
            self.slots.remove(index);
            self.next = if index < self.slots.len() { index } else { 0 };
        }
        if self.slots.is_empty() { self.finish(now) } else { Step::Spin }
    }

    #[cold]
    fn finish(&mut self, now: Nanos) -> Step {
        self.counts.drain_abandoned += self.slots.iter().map(|slot| slot.task.outstanding() as u64).sum::<u64>();
        self.last = None;
        self.publish(now);
        self.slots.clear();
        Step::Done
    }

    #[cold]
    fn publish(&mut self, now: Nanos) {
        self.publish_at = now + PUBLISH_EVERY;
        self.board.publish(|visit| self.counts.report(visit));
        self.slots.iter_mut().for_each(Slot::publish);
    }
}
