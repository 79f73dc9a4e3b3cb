//! The iterations of belief propagation.

use super::{
    OsdTables, RESOLUTION, Schedule, Statistics,
    clusters::Clusters,
    elimination::{Elimination, Order},
    prior,
};
use crate::{
    decoder::DecodeError,
    hyper::{either, flip},
};

/// The greatest size of a message. What all iterations can add to a marginal stays far from infinity.
const MOST: f32 = 1e6;
/// What of a message's size is sent: the least of the others overstates it.
const SCALE: f32 = 0.75;
const SIGN: u32 = 1 << 31;

/// Scratch memory of a decoder.
#[derive(Debug)]
pub(crate) struct Beliefs {
    /// Of the shot, by error.
    priors: Vec<f32>,
    weights: Vec<u32>,
    /// Errors whose priors are not those of the tables.
    weighed: Vec<u32>,
    /// By error; below 0 if it is likelier to have happened.
    marginals: Vec<f32>,
    /// Those of the next iteration.
    next: Vec<f32>,
    /// By edge, from the detector to the error.
    messages: Vec<f32>,
    /// Events that are to be explained, and those that are left.
    events: Vec<u64>,
    left: Vec<u64>,
    elimination: Elimination,
    choice: Choice,
    /// Of the last answer.
    weight: u64,
}

/// What chooses the errors that elimination takes.
#[derive(Debug)]
enum Choice {
    Ordered(Order),
    Localized(Clusters),
}

impl Beliefs {
    pub(crate) fn new(tables: &OsdTables) -> Self {
        let (errors, words) = (tables.graph.num_errors(), tables.graph.certain_events.len());
        let is_parallel = tables.parameters.schedule == Schedule::Parallel;
        Self {
            priors: tables.priors.clone(),
            weights: tables.weights.clone(),
            weighed: Vec::with_capacity(errors),
            marginals: vec![0.0; errors],
            next: vec![0.0; if is_parallel { errors } else { 0 }],
            messages: vec![0.0; tables.graph.num_edges()],
            events: vec![0; words],
            left: vec![0; words],
            elimination: Elimination::new(tables),
            choice: match tables.parameters.statistics {
                Statistics::Ordered => Choice::Ordered(Order::new(tables)),
                Statistics::Localized => Choice::Localized(Clusters::new(tables)),
            },
            weight: 0,
        }
    }

    /// Flips of a set of errors that makes the events, which are given as one bit for each detector. The errors in `wrong` are
    /// joined by others of the same detectors, of these probabilities.
    pub(crate) fn decode(
        &mut self,
        tables: &OsdTables,
        events: &[u64],
        wrong: impl IntoIterator<Item = (u32, f64)>,
        flips: &mut [u64],
    ) -> Result<(), DecodeError> {
        let mut weigh = |error: usize, prior| (self.priors[error], self.weights[error]) = prior;
        for error in self.weighed.drain(..).map(|error| error as usize) {
            weigh(error, (tables.priors[error], tables.weights[error]));
        }
        for (error, wrong) in wrong {
            let probability = either(tables.graph.probabilities[error as usize], wrong);
            weigh(error as usize, prior(probability));
            self.weighed.push(error);
        }
        flips.copy_from_slice(&tables.graph.certain_flips);
        self.events.copy_from_slice(events);
        flip(&mut self.events, &tables.graph.certain_events);
        self.weight = 0;
        if self.events.iter().all(|word| *word == 0) {
            return Ok(());
        }
        self.marginals.copy_from_slice(&self.priors);
        self.messages.fill(0.0);
        for _ in 0..tables.parameters.iterations {
            match tables.parameters.schedule {
                Schedule::Serial => self.serial(tables),
                Schedule::Parallel => self.parallel(tables),
            }
            if self.is_solution(tables) {
                for (error, _) in self.marginals.iter().enumerate().filter(|(_, marginal)| **marginal < 0.0) {
                    self.weight += u64::from(self.weights[error]);
                    flip(flips, tables.graph.flips(error));
                }
                return Ok(());
            }
        }
        let Self { elimination, choice, marginals, weights, events, .. } = self;
        match choice {
            Choice::Ordered(order) => order.eliminate(tables, marginals, events, elimination),
            Choice::Localized(clusters) => clusters.grow(tables, marginals, events, elimination)?,
        }
        self.weight = elimination.finish(tables, weights, flips)?;
        Ok(())
    }

    /// Weight of the last answer, in units of ln((1 - p) / p).
    pub(crate) fn weight(&self) -> f64 {
        self.weight as f64 / RESOLUTION
    }

    /// An iteration in which each detector sees what those before it have sent.
    fn serial(&mut self, tables: &OsdTables) {
        let bounds = tables.graph.detector_starts.array_windows::<2>();
        for (detector, [start, end]) in bounds.enumerate() {
            let errors = &tables.graph.edge_errors[*start as usize..*end as usize];
            let messages = &mut self.messages[*start as usize..*end as usize];
            let sent = Sent::collect(errors, messages, &self.marginals, event(&self.events, detector));
            for (error, message) in errors.iter().zip(messages) {
                let to_detector = *message;
                *message = sent.to(to_detector);
                self.marginals[*error as usize] = to_detector + *message;
            }
        }
    }

    /// An iteration in which all detectors see the same marginals.
    fn parallel(&mut self, tables: &OsdTables) {
        self.next.copy_from_slice(&self.priors);
        let bounds = tables.graph.detector_starts.array_windows::<2>();
        for (detector, [start, end]) in bounds.enumerate() {
            let errors = &tables.graph.edge_errors[*start as usize..*end as usize];
            let messages = &mut self.messages[*start as usize..*end as usize];
            let sent = Sent::collect(errors, messages, &self.marginals, event(&self.events, detector));
            for (error, message) in errors.iter().zip(messages) {
                *message = sent.to(*message);
                self.next[*error as usize] += *message;
            }
        }
        std::mem::swap(&mut self.marginals, &mut self.next);
    }

    /// Whether the errors that are likelier than not make the events.
    fn is_solution(&mut self, tables: &OsdTables) -> bool {
        self.left.copy_from_slice(&self.events);
        for (error, _) in self.marginals.iter().enumerate().filter(|(_, marginal)| **marginal < 0.0) {
            for detector in tables.graph.detectors(error) {
                self.left[*detector as usize / 64] ^= 1 << (detector % 64);
            }
        }
        self.left.iter().all(|word| *word == 0)
    }
}

/// The sign bit of a detector with an event.
fn event(events: &[u64], detector: usize) -> u32 {
    (events[detector / 64] >> (detector % 64)) as u32 & 1
}

/// What a detector sends to its errors.
struct Sent {
    /// The least size of what it got, and what is sent to all errors but the one that it came from.
    least: f32,
    to_others: f32,
    /// What is sent to that one.
    to_least: f32,
    /// Product of all signs.
    sign: u32,
}

impl Sent {
    /// Replaces what the detector has sent last by what its errors send now.
    #[inline]
    fn collect(errors: &[u32], messages: &mut [f32], marginals: &[f32], event: u32) -> Self {
        let (mut least, mut second, mut sign) = (MOST, MOST, event << 31);
        for (error, message) in errors.iter().zip(messages) {
            let to_detector = (marginals[*error as usize] - *message).clamp(-MOST, MOST);
            *message = to_detector;
            sign ^= to_detector.to_bits();
            let size = to_detector.abs();
            second = second.min(least.max(size));
            least = least.min(size);
        }
        Self { least, to_others: least * SCALE, to_least: second * SCALE, sign }
    }

    /// What is sent to the error that sent this.
    #[inline]
    fn to(&self, message: f32) -> f32 {
        let size = if message.abs() <= self.least { self.to_least } else { self.to_others };
        f32::from_bits(size.to_bits() | (self.sign ^ message.to_bits()) & SIGN)
    }
}
