//! The poll loop, without I/O: it makes no system call and starts no thread. Time is an argument; only the stages of one
//! burst in [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY) are timed by a clock that the lane was given.
//!
//! # Threading model
//!
//! One thread is pinned to one core and runs one [`Lcore`]. The lcore owns its [tasks](berth_port::Task), and nothing
//! else ever touches them. A [`Lane`] is one: a port and a service, where a frame is received, handled, answered and
//! transmitted by plain function calls on plain data, without a lock, an atomic operation or a hand-off to another
//! thread. A worker is another: it runs the handlers of requests that a lane of any core put into a ring.
//!
//! ```text
//!  housekeeping threads             core 1: Lcore                     core 2: Lcore
//!  build ports and services ──move─▶ Lane: Port + Service              Lane: Port + Service
//!  Telemetry::snapshot ◀──relaxed──  Lane: Port + Service ◀──ring────▶ Worker
//!                         loads      counters, histograms              ...
//! ```
//!
//! What crosses cores, in full:
//!
//! - **Tasks, once.** They may be built on any thread and move to the thread of their lcore, which adds them there.
//!   A port whose kernel object is bound to a thread is built on that thread.
//! - **Telemetry, outwards.** The core stores, readers load, all relaxed and per word: see [`Telemetry`] and
//!   [`Recorder`]. Reading costs the core one shared cache line per line read, and never a wait.
//! - **What a task brings along.** A service that dispatches to workers owns its end of the ring to one, and a worker
//!   the other end; the loop sees only how much each still [owes](berth_port::Task::outstanding), and whether it
//!   [is fed](berth_port::Task::is_fed). Peers and functions come to a task and go by a
//!   [mailbox](berth_port::Mailbox) of its own.
//! - **Nothing else inwards.** A request to stop is a flag that the thread's own runner reads between polls and turns
//!   into [`Lcore::drain`].
//!
//! The runner is the few lines of the appliance that do have a clock and system calls:
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
//! A drain drops each task that is done, and with it its ends of rings. That is how a worker learns, on whatever core
//! it is, that nobody sends it requests any more, and is done too.
//!
//! With the feature `no-telemetry` there are no histograms, no samples and no publication before the end; counters still
//! count. It exists to measure what telemetry costs.
//!
//! Tasks of one core share its time fairly, by weight, but a turn is not interrupted: tasks whose handlers may take
//! long belong on cores of their own, or their latency is that of the others' bursts.
#![forbid(unsafe_code)]

mod histogram;
mod idle;
mod lane;
mod lcore;
mod pace;
mod polled;
mod stages;
mod telemetry;

pub use histogram::{HIGHEST_NS, Recorder, SIGNIFICANT_DIGITS};
pub use idle::{Idle, LONGEST_SLEEP, SHORTEST_SLEEP, SPIN_AFTER_WORK};
pub use lane::Lane;
pub use lcore::{HICCUP, LANE_COUNTERS, LCORE_COUNTERS, Lcore, PUBLISH_EVERY, Step};
pub use pace::TRANSMIT_AFTER;
pub use polled::Polled;
pub use stages::Untimed;
pub use telemetry::{
    Counters, LaneSnapshot, LcoreSnapshot, Snapshot, Summary, Telemetry, Timed, WORKER_COUNTERS, WorkerSnapshot,
};
