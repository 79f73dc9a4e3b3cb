//! The ring shape: a thread of ours moves requests from the port into a ring, which somebody else serves, and answers
//! back.

use std::{
    net::SocketAddr,
    os::fd::RawFd,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{
            AtomicU8,
            Ordering::{AcqRel, Acquire},
        },
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use berth_engine::{Idle, Lcore, Polled, Step, Telemetry};
use berth_host::{Sleeper, TscClock, Waker, pin_current_thread};
use berth_port::{BURST, Clock as _, DeviceCounters, Now, Part, Port, Task, Verdict, Work};
use berth_ports::{OpenQueue as _, Queue, QueueUser};
use berth_ring::Producer;

use crate::{
    exchange::{Caller, Counts, Rules, Stash, Taken},
    failure::tell,
};

/// How long the clock is calibrated: time decides about patience alone.
const CALIBRATION: Duration = Duration::from_millis(5);

/// A port joined to the producer's end of a ring.
struct Pump<P> {
    port: P,
    rules: Rules,
    ring: Producer,
    /// By slot, who asked.
    callers: Box<[Option<Caller>]>,
    stash: Stash,
    counts: Counts,
}

impl<P: Port> Task for Pump<P> {
    fn turn(&mut self, now: Now, receive: bool, _: bool) -> Work {
        let Self { port, rules, ring, callers, stash, counts } = self;
        ring.tell_time(now.mono);
        while let Some((caller, message)) = stash.front()
            && put(ring, callers, caller, message)
        {
            stash.pop();
        }
        let mut received = 0;
        // While the ring is full, frames wait in the port.
        if receive && stash.is_empty() && ring.can_push() {
            received = port.rx(|frame| match rules.take(frame, counts) {
                Taken::Done(verdict) => verdict,
                Taken::Request(caller, len) => {
                    let message = &frame.data()[..len];
                    if !stash.is_empty() || !put(ring, callers, caller, message) {
                        stash.keep(caller, message);
                    }
                    Verdict::Drop
                }
            });
        }
        let mut replied = 0;
        while replied < BURST as u64
            && ring.collect_if(|slot, answer| {
                let caller = callers[slot.0 as usize].as_ref();
                caller.is_none_or(|caller| rules.answer(port, caller, answer.ok(), counts))
            })
        {
            replied += 1;
        }
        port.tx();
        Work { received: received as u64, replied, polls: 1, began: now.mono }
    }

    fn outstanding(&self) -> usize {
        self.ring.outstanding() as usize
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.port.wait_fd()
    }

    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        if part == Part::Port {
            self.port.counters(visit);
        }
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        None
    }
}

/// Puts a request into the next slot; false if that is not free.
#[inline]
fn put(ring: &mut Producer, callers: &mut [Option<Caller>], caller: Caller, message: &[u8]) -> bool {
    if !ring.can_push() {
        return false;
    }
    let pushed = ring.push(|slot| {
        slot[..message.len()].copy_from_slice(message);
        message.len()
    });
    if let Ok(slot) = pushed {
        callers[slot.0 as usize] = Some(caller);
    }
    pushed.is_ok()
}

impl<P> Drop for Pump<P> {
    fn drop(&mut self) {
        if self.counts.are_odd() {
            tell(self.counts);
        }
    }
}

/// What the thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// Nothing: frames wait in the port.
    Parked,
    /// It moves requests and answers.
    Pumping,
    /// It has ended.
    Ended,
}

/// What the thread is to do, and what it does.
struct Control {
    wanted: AtomicU8,
    is: Mutex<State>,
    changed: Condvar,
}

impl Control {
    fn set(&self, state: State) {
        *self.is.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Wants a state. Nothing follows the end.
    fn want(&self, state: State) {
        let kept = |wanted| (wanted != State::Ended as u8).then_some(state as u8);
        // Refused where the end is wanted already, which then stays so.
        let _ = self.wanted.fetch_update(AcqRel, Acquire, kept);
    }
}

/// Says that the thread has ended, however it did.
struct Ending<'a>(&'a Control);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set(State::Ended);
    }
}

/// The thread, as its bridge has it.
pub(crate) struct Thread {
    control: Arc<Control>,
    waker: Waker,
    /// To unpark it.
    parked: thread::Thread,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// What a thread is started with.
pub(crate) struct Plan {
    pub(crate) queue: Queue,
    pub(crate) rules: Rules,
    pub(crate) ring: Producer,
    pub(crate) cpu: Option<usize>,
    pub(crate) idle: Idle,
}

impl Thread {
    /// Opens the port on a new thread; returns the address, too.
    pub(crate) fn start(plan: Plan) -> Result<(Self, SocketAddr)> {
        let wanted = AtomicU8::new(State::Parked as u8);
        let control = Arc::new(Control { wanted, is: Mutex::new(State::Parked), changed: Condvar::new() });
        let (opened, told) = mpsc::channel();
        let its = Arc::clone(&control);
        let run = move || {
            let _ending = Ending(&its);
            let clock = TscClock::calibrate(CALIBRATION);
            match open(plan) {
                Err(why) => drop(opened.send(Err(why))),
                Ok((core, mut sleeper, addr)) => {
                    if opened.send(Ok((sleeper.waker(), addr))).is_ok() {
                        drop(opened);
                        pump(core, &mut sleeper, &clock, &its);
                    }
                }
            }
        };
        let handle = thread::Builder::new().name("berth-bridge".into()).spawn(run).context("starting a thread")?;
        let parked = handle.thread().clone();
        let (waker, addr) = told.recv().context("the thread of the port has ended")??;
        Ok((Self { control, waker, parked, handle: Mutex::new(Some(handle)) }, addr))
    }

    fn want(&self, state: State) {
        self.control.want(state);
        self.waker.wake();
        self.parked.unpark();
    }

    /// Has the thread in a state, unless it ends or somebody else wants another one.
    fn reach(&self, state: State) {
        self.want(state);
        let Control { wanted, is, changed } = &*self.control;
        let waits = |is: &mut State| ![state, State::Ended].contains(is) && wanted.load(Acquire) == state as u8;
        let is = is.lock().unwrap_or_else(PoisonError::into_inner);
        // Who waits for another state looks again.
        changed.notify_all();
        drop(changed.wait_while(is, waits));
    }

    /// Lets requests into the ring.
    pub(crate) fn launch(&self) {
        self.reach(State::Pumping);
    }

    /// Lets no more requests into the ring; when it returns, the thread does not touch it.
    pub(crate) fn park(&self) {
        self.reach(State::Parked);
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.control.is.lock().unwrap_or_else(PoisonError::into_inner) == State::Ended
    }

    /// Ends the thread and waits for it.
    pub(crate) fn end(&self) {
        self.want(State::Ended);
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            // That it panicked was told by then.
            let _ = handle.join();
        }
    }
}

/// A core that polls, whether it yields, what it sleeps on, and the port's address.
type Opened = (Core, Sleeper, SocketAddr);

struct Core {
    lcore: Lcore,
    /// Whether the CPU is shared with others, maybe with the dispatcher.
    yields: bool,
}

fn open(plan: Plan) -> Result<Opened> {
    let Plan { queue, rules, ring, cpu, idle } = plan;
    if let Some(cpu) = cpu {
        pin_current_thread(cpu)?;
    }
    let (lcore, addr) = queue.open(Opening { rules, ring, idle })?;
    let sleeper = Sleeper::new(lcore.wait_fds()).context("opening what wakes the thread")?;
    Ok((Core { lcore, yields: cpu.is_none() }, sleeper, addr))
}

/// Makes a pump of the port that is opened.
struct Opening {
    rules: Rules,
    ring: Producer,
    idle: Idle,
}

impl QueueUser for Opening {
    type Output = (Lcore, SocketAddr);

    fn port<P: Port + 'static>(self, port: P) -> Result<Self::Output> {
        let Self { rules, ring, idle } = self;
        let mut lcore = Lcore::new("bridge", idle, &Telemetry::default());
        let addr = port.local_addr();
        let callers = vec![None; ring.slots() as usize].into();
        let stash = Stash::new(rules.slot_size);
        lcore.add(Polled::port("bridge", Pump { port, rules, ring, callers, stash, counts: Counts::default() }));
        Ok((lcore, addr))
    }

    fn streams<T: Task + 'static>(self, _: T, _: SocketAddr) -> Result<Self::Output> {
        bail!("the port has no frames")
    }
}

/// Does what is wanted until that is the end.
fn pump(core: Core, sleeper: &mut Sleeper, clock: &TscClock, control: &Control) {
    let Core { mut lcore, yields } = core;
    let mut is = State::Parked;
    loop {
        let wanted = control.wanted.load(Acquire);
        if wanted != is as u8 {
            is = match wanted {
                wanted if wanted == State::Parked as u8 => State::Parked,
                wanted if wanted == State::Pumping as u8 => State::Pumping,
                _ => return,
            };
            control.set(is);
        }
        if is == State::Parked {
            thread::park();
            continue;
        }
        match lcore.poll(clock.now()) {
            Step::Busy => {}
            Step::Spin if yields => thread::yield_now(),
            Step::Spin => std::hint::spin_loop(),
            Step::Sleep(most) => {
                sleeper.sleep(Some(most));
            }
            Step::Done => return,
        }
    }
}
