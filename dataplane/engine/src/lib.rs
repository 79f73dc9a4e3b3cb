//! The poll loop, without I/O: it makes no system calls and starts no threads. Time is an argument; only one burst in
//! [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY) is timed in its stages, by a clock that its lane was given.
//!
//! # Threading model
//!
//! One thread is pinned to one core and runs one [`Lcore`]. The lcore owns its [tasks](berth_port::Task); nothing else
//! ever touches them. One kind of task is a [`Lane`]: a port and a service, where a frame is received, handled,
//! answered and transmitted by plain function calls on plain data, without a lock, an atomic operation or a hand-off to
//! another thread. The other kind is a worker: it runs the handlers of requests that a lane on any core put into a
//! ring.
//!
//! ```text
//!  housekeeping threads             core 1: Lcore                     core 2: Lcore
//!  build ports and services ──move─▶ Lane: Port + Service              Lane: Port + Service
//!  Telemetry::snapshot ◀──relaxed──  Lane: Port + Service ◀──ring────▶ Worker
//!                         loads      counters, histograms              ...
//! ```
//!
//! This is all that crosses cores:
//!
//! - **Tasks, once.** They may be built on any thread; they move to the thread of their lcore, which adds them there.
//!   A port whose kernel object is bound to a thread is built on that thread.
//! - **Telemetry, outwards.** The core stores and readers load, word by word and relaxed: see [`Telemetry`] and
//!   [`Recorder`](berth_port::Recorder). Reading costs the core one shared cache line per line read, and never a wait.
//! - **The ends of rings and mailboxes that a task owns.** A service that dispatches to workers owns one end of each
//!   ring, and the worker the other. The loop only sees how much each still [owes](berth_port::Task::outstanding), and
//!   whether it [is fed](berth_port::Task::is_fed). Peers and functions come to a task and leave it by its own
//!   [mailbox](berth_port::Mailbox).
//! - **Nothing else inwards.** A request to stop is a flag that the thread's runner reads between polls and turns into
//!   [`Lcore::drain`].
//!
//! The runner is the part of the appliance that has a clock and makes system calls:
//!
//! ```text
//! loop {
//!     if stop requested, once { lcore.drain(clock.now(), deadline) }
//!     match lcore.poll(clock.now()) {
//!         Step::Busy => {}
//!         Step::Spin => spin_loop(),
//!         Step::Sleep(most) => wait for lcore.wait_fds() or at most that long,
//!         Step::Done => break,
//!     }
//! }
//! ```
//!
//! A drain drops each task that is done, and with it its ends of rings. That is how a worker on any core learns that
//! nobody sends it requests any more, so that it is done, too.
//!
//! With the feature `no-telemetry` there are no histograms, no samples, and no publication before the end; counters
//! still count. The feature exists to measure the cost of telemetry.
//!
//! Tasks of one core share its time fairly, by weight, but a turn is not interrupted. Tasks whose handlers may take
//! long belong on cores of their own; otherwise the other tasks wait for them.
#![forbid(unsafe_code)]

mod idle;
mod lane;
mod lcore;
mod pace;
mod polled;
mod stages;
mod telemetry;

pub use idle::{Idle, LONGEST_SLEEP, SHORTEST_SLEEP, SPIN_AFTER_WORK};
pub use lane::Lane;
pub use lcore::{HICCUP, LANE_COUNTERS, LCORE_COUNTERS, Lcore, PUBLISH_EVERY, Step};
pub use pace::TRANSMIT_AFTER;
pub use polled::Polled;
pub use stages::Untimed;
pub use telemetry::{
    Counters, LaneSnapshot, LcoreSnapshot, Snapshot, Summary, Telemetry, Timed, WORKER_COUNTERS, WorkerSnapshot,
};
