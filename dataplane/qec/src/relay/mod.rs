//! Relay belief propagation (arXiv 2506.01779) in fixed point or floating point, on any errors.
//!
//! Errors are variables, detectors are checks. Min-sum messages between them yield for each error a marginal, of which
//! a part is kept from one iteration to the next: the memory. A leg is a run with one memory strength for each error, by
//! chance; the next leg begins with the marginals of the one before and with other strengths. Some relays of legs run
//! in lockstep, an iteration of each at a time.
//!
//! # Fixed point
//! Numbers are 16-bit integers, 1 stands for 1/[`UNIT`] of ln((1 - p) / p); `+` and `-` saturate at -32768 and 32767,
//! `>>` rounds down. Each relay computes this for itself:
//!
//! 1. A relay's marginals are at first the priors `l`. At the beginning of each leg, all messages `m` are 0.
//! 2. Each iteration computes of each error, with its strength `g` in this leg, in units of 2^-15,
//!    `M := l + (d * g >> 16)`, where `d = (M - l) + (M - l)` and the product has 32 bits; then it adds the messages to
//!    the error one by one, by ascending detector. The error is taken to have happened if `M <= 0`.
//! 3. Then, of each detector: `n = M - m` of each of its errors, cut to -[`MESSAGE_MAX`] to [`MESSAGE_MAX`]. The new
//!    message to an error is the least `|n|` of the detector's other errors, [`MESSAGE_MAX`] if it has none, less its
//!    sixteenth, `>> 4`. It is negative if an odd number holds of: the detector has an event; another error's `n < 0`.
//! 4. A relay whose errors make the syndrome has a solution, which weighs the sum of their priors. The first iteration
//!    in which a relay has one is the last: of its solutions the lightest wins, of equally light ones that of the
//!    lower relay. Without one after the last leg there is no answer.
//!
//! So the order of errors, detectors and relays within a step does not matter, and a GPU gets the same bits.
//!
//! # Floating point
//! Numbers are f64; l = ln((1 - p) / p), and strengths are those of the fixed point as fractions. That is the arithmetic of the crate
//! `relay-bp` with `alpha` 1, where one relay makes the same predictions as its first solution by these strengths. Marginals are
//! at first the priors. At the beginning of each leg each error tells its detectors its prior. Each iteration, of each relay:
//!
//! 1. The message of a detector to an error is the least size of what its other errors have told it, f64's greatest number if it
//!    has none. It is negative if an odd number holds of: the detector has an event; what another error told is negative.
//! 2. Of each error, `M := l (1 - g) + M g` and the messages to it, by ascending detector. It tells a detector the same sum without that
//!    detector's message: what comes before it in this order, and to that the sum of those behind it, from the last one on. The error is
//!    taken to have happened if `M <= 0`.
//!
//! Solutions are as in step 4 above.

mod decode;
mod float;
mod tables;

pub(crate) use decode::Relays;
pub(crate) use float::Floats;
pub(crate) use tables::Relay;
pub use tables::{MAX_EDGES, MAX_ERRORS, RelayError};

/// What one unit of log-likelihood, ln((1 - p) / p), is in fixed point.
pub const UNIT: f64 = 64.0;
/// The greatest message, in units of 1/[`UNIT`].
pub const MESSAGE_MAX: i16 = 4095;
/// Most relays that run in lockstep.
pub const MAX_RELAYS: usize = 8;
/// Most legs of a relay.
pub const MAX_LEGS: usize = 64;
/// Most iterations of a leg.
pub const MAX_ITERATIONS: usize = 1000;

/// What relay belief propagation computes with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// 16-bit integers, on CPUs and GPUs.
    #[default]
    Fixed16,
    /// Double precision, on CPUs.
    Float64,
}

/// How relay belief propagation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayBp {
    /// How many relays run in lockstep, 1 to [`MAX_RELAYS`].
    pub relays: usize,
    /// How many legs each relay has, one after the other, 1 to [`MAX_LEGS`].
    pub legs: usize,
    /// How many iterations a leg has, 1 to [`MAX_ITERATIONS`].
    pub iterations: usize,
    /// Seed of the memory strengths; the same seed makes the same ones.
    pub seed: u64,
    /// What it computes with.
    pub arithmetic: Arithmetic,
}

impl Default for RelayBp {
    fn default() -> Self {
        Self { relays: 8, legs: 4, iterations: 60, seed: 0, arithmetic: Arithmetic::default() }
    }
}
