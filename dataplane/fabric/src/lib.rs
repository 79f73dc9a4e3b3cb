//! A fabricBIOS node without I/O: the operations of its control plane, discovery, and its journal's format.
//!
//! ```text
//! link (berth-identity) -> Request -> Node::request -> Step::Done(Outcome)    answer, journal, quiescence, effects
//!                                          |           Step::Work(Work)       bytes to zero or to copy first, a client to find
//!                                          |                |
//!                                          +---- Node::resume(ticket)
//! time  -> Node::tick -> Effects            connections to close, records, and what is being torn down
//!                          Teardown -> Node::torn_down(ticket) -> Effects
//! bytes -> journal::Replay -> Recovered -> Starting -> Node::start
//! ```
//!
//! An answer leaves once its records are durable and its quiescence is over; neither wait holds the node. Time is
//! always an argument. In this crate `Now::wall` is Unix time by the host's clock.
#![forbid(unsafe_code)]
#![allow(clippy::doc_markdown)] // the documents' names of ops

mod binding;
mod blocking;
mod clock;
mod composite;
mod counts;
pub mod discovery;
mod ending;
mod gpu;
mod host;
mod inventory;
pub mod journal;
mod node;
mod ops;
mod pending;
mod place;
mod policy;
mod recover;
mod recovered;
mod request;
mod resource;
mod scrub;
mod status;
mod tasklet;
mod throttle;

pub use binding::{BindSecret, Binding, BoundLease, Reach, TeardownFailed};
pub use blocking::BlockingWork;
pub use clock::Clock;
pub use counts::COUNTERS;
pub use ending::{Ending, Teardown};
pub use gpu::{GpuDone, GpuExecutor, GpuWorker, Kernel, Ran, code as gpu_code};
pub use host::Host;
pub use inventory::{Facts, Gpu, Tier};
pub use node::{Config, Node, Settings};
pub use ops::{HipClaim, HipGrant, HipSession, LeaseCall, Listing, Proxy, answered};
pub use pending::{Deadline, WorkFailed};
pub use policy::{Policy, Rule};
pub use recover::{RecoverError, Started, Starting};
pub use recovered::{Attached, Recovered, RecoveredLease};
pub use request::{Answer, Carrier, Effects, Job, Outcome, Request, Step, Work};
pub use resource::{Resource, Stock, resource_id};
pub use tasklet::{SliceOver, Start, TaskletConfig, Turn};
pub use throttle::OncePerSecond;
