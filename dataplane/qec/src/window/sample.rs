//! Experiments by chance, round by round.

use std::sync::Arc;

use super::{
    Experiment, WindowError,
    model::{Errors, Parts},
    rows::Rows,
};
use crate::{bits, dem::DetectorErrorModel, hyper::flip};

/// The rounds of an experiment in which a model's errors happen, one after the other. It repeats the errors of the rounds that
/// [`Stream`](super::Stream) repeats.
#[derive(Debug)]
pub struct Sampler {
    experiment: Arc<Experiment>,
    errors: Errors,
    /// Events of this round and of those that errors have flipped detectors of.
    rows: Rows,
    /// Events of the round that was drawn last.
    drawn: Vec<u64>,
    next: u64,
    flips: Vec<u64>,
}

impl Sampler {
    /// At the beginning of an experiment of this model.
    ///
    /// # Panics
    /// If the experiment is of a model with other rounds.
    pub fn new(experiment: Arc<Experiment>, model: &DetectorErrorModel) -> Result<Self, WindowError> {
        let errors = Errors::new(model, Parts::Together)?;
        let lens = errors.rounds.iter().map(Vec::len);
        assert!(lens.clone().eq(experiment.round_lens()), "the experiment is of this model");
        let words = bits::words_for(lens.max().unwrap_or(0));
        Ok(Self {
            rows: Rows::new(errors.span(), words),
            drawn: vec![0; words],
            next: 0,
            flips: vec![0; bits::words_for(model.num_observables())],
            errors,
            experiment,
        })
    }

    /// Draws the next round, and returns its events, 64 detectors in a word; `None` behind the last one. `happens` is asked of each
    /// error that begins in the round, by its probability.
    pub fn round(&mut self, mut happens: impl FnMut(f64) -> bool) -> Option<&[u64]> {
        if self.experiment.rounds() == Some(self.next) {
            return None;
        }
        let (like, _) = self.experiment.in_model(self.next);
        for (probability, flips, places) in self.errors.of_round(like) {
            if !happens(probability) {
                continue;
            }
            flip(&mut self.flips, flips);
            for (later, place) in places {
                self.rows.flip(self.next + later as u64, place);
            }
        }
        let row = self.rows.row(self.next);
        self.drawn.copy_from_slice(row);
        row.fill(0);
        self.next += 1;
        Some(&self.drawn)
    }

    /// Goes back to the beginning, of another experiment.
    pub fn restart(&mut self) {
        self.rows.clear();
        self.flips.fill(0);
        self.next = 0;
    }

    /// Observables that the errors so far have flipped, 64 in a word.
    pub fn flips(&self) -> &[u64] {
        &self.flips
    }
}
