//! What the dataplane needs of the host: a clock, pinned threads, huge pages, a way to sleep.

mod clock;

pub use clock::TscClock;
