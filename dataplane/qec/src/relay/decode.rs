//! The iterations, of all relays at once: a row has a value of each.

use super::{
    MAX_RELAYS, MESSAGE_MAX, UNIT,
    tables::{Relay, Row},
};
use crate::{decoder::DecodeError, hyper::flip};

/// Scratch memory of a decoder.
#[derive(Debug)]
pub(crate) struct Relays {
    /// By error.
    marginals: Vec<Row>,
    /// By edge, from the detector to the error.
    messages: Vec<Row>,
    /// Of the last solution.
    weight: u32,
}

/// A row of what `f` makes of each relay's values. Rows go by value: so they are vectors to the compiler.
#[inline(always)]
fn each(a: Row, b: Row, f: impl Fn(i16, i16) -> i16) -> Row {
    std::array::from_fn(|at| f(a[at], b[at]))
}

impl Relays {
    pub(crate) fn new(tables: &Relay) -> Self {
        let zeros = [0; MAX_RELAYS];
        let (errors, edges) = (tables.priors.len(), tables.graph.edge_errors.len());
        Self { marginals: vec![zeros; errors], messages: vec![zeros; edges], weight: 0 }
    }

    /// Flips of the lightest of the solutions that come first for the events, a bit for each detector.
    pub(crate) fn decode(&mut self, tables: &Relay, events: &[u64], flips: &mut [u64]) -> Result<(), DecodeError> {
        flips.copy_from_slice(&tables.graph.certain_flips);
        if events == tables.graph.certain_events {
            self.weight = 0;
            return Ok(());
        }
        for (marginals, prior) in self.marginals.iter_mut().zip(&tables.priors) {
            *marginals = [*prior; MAX_RELAYS];
        }
        let all = u8::MAX >> (MAX_RELAYS - tables.parameters.relays);
        for strengths in tables.strengths.chunks(tables.priors.len().max(1)) {
            self.messages.fill([0; MAX_RELAYS]);
            for _ in 0..tables.parameters.iterations {
                self.errors(tables, strengths);
                let solved = all & !self.detectors(tables, events);
                let solutions = (0..MAX_RELAYS).filter(|relay| solved >> relay & 1 != 0);
                if let Some((weight, relay)) = solutions.map(|relay| (self.weight_of(tables, relay), relay)).min() {
                    self.weight = weight;
                    let happened = self.marginals.iter().enumerate().filter(|(_, marginals)| marginals[relay] <= 0);
                    happened.for_each(|(error, _)| flip(flips, tables.graph.flips(error)));
                    return Ok(());
                }
            }
        }
        Err(DecodeError::NoSolution)
    }

    /// Weight of the last solution, in units of ln((1 - p) / p).
    pub(crate) fn weight(&self) -> f64 {
        f64::from(self.weight) / UNIT
    }

    /// Step 2 of the [definition](super).
    fn errors(&mut self, tables: &Relay, strengths: &[Row]) {
        let bounds = tables.graph.error_starts.array_windows::<2>();
        for (((marginals, prior), strengths), [start, end]) in
            self.marginals.iter_mut().zip(&tables.priors).zip(strengths).zip(bounds)
        {
            let prior = [*prior; MAX_RELAYS];
            let change = each(*marginals, prior, i16::saturating_sub);
            let change = each(change, change, i16::saturating_add);
            let kept = each(change, *strengths, |change, strength| {
                let product = i32::from(change) * i32::from(strength);
                (product >> 16) as i16
            });
            let mut sums = each(prior, kept, i16::saturating_add);
            for edge in &tables.graph.error_edges[*start as usize..*end as usize] {
                sums = each(sums, self.messages[*edge as usize], i16::saturating_add);
            }
            *marginals = sums;
        }
    }

    /// Step 3 of the [definition](super). Returns the relays whose errors do not make the syndrome, a bit each.
    fn detectors(&mut self, tables: &Relay, events: &[u64]) -> u8 {
        let mut unsolved = [0_i16; MAX_RELAYS];
        for (detector, [start, end]) in tables.graph.detector_starts.array_windows::<2>().enumerate() {
            let word = detector / 64;
            let event = (events[word] ^ tables.graph.certain_events[word]) >> (detector % 64) & 1;
            // Negative numbers stand for odd.
            let mut parities = [-(event as i16); MAX_RELAYS];
            let mut signs = parities;
            let mut least = [MESSAGE_MAX; MAX_RELAYS];
            let mut second = least;
            let errors = &tables.graph.edge_errors[*start as usize..*end as usize];
            let messages = &mut self.messages[*start as usize..*end as usize];
            for (error, messages) in errors.iter().zip(&mut *messages) {
                let marginals = self.marginals[*error as usize];
                let to_detector = each(marginals, *messages, i16::saturating_sub);
                let to_detector = to_detector.map(|message| message.clamp(-MESSAGE_MAX, MESSAGE_MAX));
                *messages = to_detector;
                signs = each(signs, to_detector, |sign, message| sign ^ message);
                // Negative if the marginal is at most 0.
                parities = each(parities, marginals, |parity, marginal| parity ^ marginal.saturating_sub(1));
                let sizes = to_detector.map(i16::abs);
                second = each(second, each(least, sizes, Ord::max), Ord::min);
                least = each(least, sizes, Ord::min);
            }
            unsolved = each(unsolved, parities, |unsolved, parity| unsolved | parity);
            // The least of the others: of the least itself it is the second, which is the same if two are the least.
            let [least_sent, second_sent] = [least, second].map(|row| row.map(|size| size - (size >> 4)));
            for messages in messages {
                let sizes = messages.map(i16::abs);
                let signs = each(signs, *messages, |sign, message| (sign ^ message) >> 15);
                let is_least = each(sizes, least, |size, least| -i16::from(size == least));
                let sent: Row =
                    std::array::from_fn(|at| second_sent[at] & is_least[at] | least_sent[at] & !is_least[at]);
                *messages = each(sent, signs, |size, sign| (size ^ sign) - sign);
            }
        }
        let odd = unsolved.iter().enumerate().map(|(at, unsolved)| u8::from(*unsolved < 0) << at);
        odd.fold(0, |all, one| all | one)
    }

    /// Weight of what a relay takes to have happened.
    fn weight_of(&self, tables: &Relay, relay: usize) -> u32 {
        let happened = self.marginals.iter().zip(&tables.priors).filter(|(marginals, _)| marginals[relay] <= 0);
        happened.map(|(_, prior)| *prior as u32).sum()
    }
}
