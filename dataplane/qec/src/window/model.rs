//! The errors of a model by rounds, and the models of windows.

use std::{collections::BTreeMap, ops::Range};

use super::WindowError;
use crate::{
    bits,
    dem::{DetectorErrorModel, MechanismRef, cancel_pairs},
    hyper::flip,
};

/// What a window takes of an error with several parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// Each part that it shows, as an error by itself.
    Apart,
    /// The same, as parts of one error.
    Linked,
    /// All parts as one, or none.
    Together,
}

/// An error, or a part of one, that a window takes or leaves whole.
#[derive(Debug)]
struct Error {
    probability: f64,
    line: u32,
    /// The same of the parts of one error that are linked, which stand one after the other.
    mechanism: u32,
    detectors: Vec<u32>,
    flips: Vec<u64>,
    /// The first round of its detectors, and the one after the last.
    first: usize,
    end: usize,
}

/// The errors and rounds of a model.
#[derive(Debug)]
pub(super) struct Errors {
    num_observables: usize,
    /// Detectors of each round, ascending.
    pub(super) rounds: Vec<Vec<u32>>,
    /// Round of each detector, and its place there.
    places: Vec<(u32, u32)>,
    /// In the order of the model.
    all: Vec<Error>,
    /// The errors that begin in each round.
    beginning: Vec<Vec<u32>>,
}

/// Of a window.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Those of its detectors.
    pub(super) shown: Range<usize>,
    /// Those in which the errors begin that it takes: of these the ones that flip one of its detectors.
    pub(super) taken: Range<usize>,
    /// Those in which the errors begin that it decides.
    pub(super) decided: Range<usize>,
    /// Those beside the ones after `decided` of which others need to know what is decided.
    pub(super) head: Range<usize>,
}

pub(super) struct Cut {
    pub(super) model: DetectorErrorModel,
    pub(super) starts: Vec<u32>,
    pub(super) detectors: Vec<u32>,
    pub(super) later: Vec<(u32, u32)>,
    /// The same of two windows that are alike.
    pub(super) key: Vec<u64>,
}

impl Errors {
    pub(super) fn new(model: &DetectorErrorModel, parts: Parts) -> Result<Self, WindowError> {
        let time = |at: usize| model.time(at).filter(|time| time.is_finite()).ok_or(WindowError::NoTime(at));
        let times = (0..model.num_detectors()).map(time).collect::<Result<Vec<f64>, _>>()?;
        let mut distinct = times.clone();
        distinct.sort_unstable_by(f64::total_cmp);
        distinct.dedup();
        let mut rounds = vec![Vec::new(); distinct.len()];
        let mut places = Vec::with_capacity(times.len());
        for (detector, time) in times.iter().enumerate() {
            let round = distinct.partition_point(|other| other < time);
            places.push((round as u32, rounds[round].len() as u32));
            rounds[round].push(detector as u32);
        }
        let mut errors = Self {
            num_observables: model.num_observables(),
            beginning: vec![Vec::new(); rounds.len()],
            rounds,
            places,
            all: Vec::new(),
        };
        let words = bits::words_for(model.num_observables());
        let mut number = 0;
        for mechanism in model.mechanisms() {
            let (mut detectors, mut flips) = (Vec::new(), vec![0; words]);
            let count = mechanism.parts().len();
            number += 1;
            for (at, part) in mechanism.parts().enumerate() {
                detectors.extend(part.detectors);
                part.flip(&mut flips);
                if parts != Parts::Together || at + 1 == count {
                    let taken = (std::mem::take(&mut detectors), std::mem::replace(&mut flips, vec![0; words]));
                    errors.push(mechanism, number, taken);
                    number += u32::from(parts == Parts::Apart);
                }
            }
        }
        Ok(errors)
    }

    /// The errors that begin in a round: of each its probability, the observables that it flips, and its detectors by how many
    /// rounds later they are and their place there.
    pub(super) fn of_round(
        &self,
        round: usize,
    ) -> impl Iterator<Item = (f64, &[u64], impl Iterator<Item = (usize, u32)>)> {
        self.beginning[round].iter().map(|at| {
            let error = &self.all[*at as usize];
            let places = error.detectors.iter().map(|detector| self.places[*detector as usize]);
            let places = places.map(|(round, place)| (round as usize - error.first, place));
            (error.probability, &error.flips[..], places)
        })
    }

    /// How many rounds, from its first on, an error can flip detectors of; at least 1.
    pub(super) fn span(&self) -> usize {
        self.all.iter().map(|error| error.end - error.first).max().unwrap_or(1)
    }

    fn push(&mut self, of: MechanismRef<'_>, mechanism: u32, (mut detectors, flips): (Vec<u32>, Vec<u64>)) {
        let kept = cancel_pairs(&mut detectors);
        detectors.truncate(kept);
        let of_rounds = detectors.iter().map(|detector| self.places[*detector as usize].0 as usize);
        // What no detector shows is of the first round.
        let first = of_rounds.clone().min().unwrap_or(0);
        let end = of_rounds.max().unwrap_or(0) + 1;
        if let Some(beginning) = self.beginning.get_mut(first) {
            beginning.push(self.all.len() as u32);
            let (probability, line) = (of.probability(), of.line());
            self.all.push(Error { probability, line, mechanism, detectors, flips, first, end });
        }
    }

    /// A window.
    pub(super) fn cut(&self, of: &Rounds) -> Cut {
        let Rounds { shown, taken, decided, head } = of;
        let mut of_window: Vec<u32> = self.rounds[shown.clone()].iter().flatten().copied().collect();
        of_window.sort_unstable();
        let local = |detector: &u32| of_window.binary_search(detector).ok().map(|at| at as u32);
        let mut taken: Vec<u32> = self.beginning[taken.clone()].iter().flatten().copied().collect();
        taken.sort_unstable();
        let taken: Vec<_> = taken.iter().map(|at| &self.all[*at as usize]).collect();
        let taken: Vec<_> = taken.into_iter().filter(|error| error.end > shown.start).collect();
        // The detectors whose flips by decided errors others need to know, and which observable each is.
        let is_told = |detector: &&u32| {
            let round = self.places[**detector as usize].0 as usize;
            round >= decided.end || head.contains(&round)
        };
        let of_decided = taken.iter().filter(|error| decided.contains(&error.first));
        let mut later: BTreeMap<u32, usize> =
            of_decided.flat_map(|error| error.detectors.iter().filter(is_told)).map(|at| (*at, 0)).collect();
        later.values_mut().enumerate().for_each(|(at, observable)| *observable = self.num_observables + at);

        let num_observables = self.num_observables + later.len();
        let mut model = DetectorErrorModel::of_size(of_window.len(), num_observables);
        let mut keys = Vec::new();
        let part = |error: &&Error| {
            let detectors: Vec<u32> = error.detectors.iter().filter_map(local).collect();
            let mut flips = vec![0; bits::words_for(num_observables)];
            if decided.contains(&error.first) {
                flip(&mut flips, &error.flips);
                for observable in error.detectors.iter().filter_map(|detector| later.get(detector)) {
                    flips[observable / 64] ^= 1 << (observable % 64);
                }
            }
            (detectors, flips)
        };
        for linked in taken.chunk_by(|one, next| one.mechanism == next.mechanism) {
            let parts: Vec<_> = linked.iter().map(part).collect();
            let mut key = vec![linked[0].probability.to_bits(), parts.len() as u64];
            for (detectors, flips) in &parts {
                key.push(detectors.len() as u64);
                key.extend(detectors.iter().map(|at| u64::from(*at)));
                key.extend(flips);
            }
            keys.push(key);
            model.push(linked[0].probability, linked[0].line, &parts);
        }
        keys.sort_unstable();

        let mut starts = vec![0];
        let mut detectors = Vec::with_capacity(of_window.len());
        for round in &self.rounds[shown.clone()] {
            detectors.extend(round.iter().filter_map(local));
            starts.push(detectors.len() as u32);
        }
        let later: Vec<(u32, u32)> = later
            .keys()
            .map(|detector| {
                let (round, place) = self.places[*detector as usize];
                (round - shown.start as u32, place)
            })
            .collect();
        let numbers = [&starts, &detectors].into_iter().flatten().copied();
        let numbers = numbers.chain(later.iter().flat_map(|(round, place)| [*round, *place])).map(u64::from);
        let key = [later.len() as u64, u64::from(decided.end == self.rounds.len())]
            .into_iter()
            .chain(numbers)
            .chain(keys.into_iter().flatten());
        Cut { model, key: key.collect(), starts, detectors, later }
    }
}
