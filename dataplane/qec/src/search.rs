//! Least matching of a small group of events, by branch and bound.
//!
//! Each event gets a potential, such that no choice weighs less than the potentials of the events it matches. A
//! matching then weighs the sum of all potentials plus the excess of each of its choices, and a partial one can be
//! left as soon as its excess reaches that of the best so far. The potentials are the first steps of the dual ascent
//! of a blossom algorithm; with error models they come near enough to the optimum that few choices are tried.

use crate::distances::{Distances, UNREACHABLE};

/// The most events of a group.
pub(crate) const MAX_EVENTS: usize = 64;
/// How many choices are tried before a group is given up: tens of microseconds.
const MAX_TRIED: u32 = 2000;

/// The outcome of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The flips of a least matching.
    Flips(u64),
    /// There is no matching.
    Nothing,
    /// The group is larger than [`MAX_EVENTS`] or takes more than [`MAX_TRIED`] choices.
    GaveUp,
}

/// Scratch memory of the search.
#[derive(Debug)]
pub(crate) struct Search {
    /// For each event what it may be matched with, the least excess first.
    choices: Vec<Vec<Choice>>,
    /// The choice of each event on the way to the current branch.
    path: [Pair; MAX_EVENTS],
    /// Excess and path length of the best matching so far, and its path.
    least: u64,
    best: [Pair; MAX_EVENTS],
    best_length: usize,
    tried: u32,
}

/// Two events by their place in the group; the same one twice is one matched with the boundary.
type Pair = (u8, u8);

#[derive(Debug, Clone, Copy)]
struct Choice {
    excess: u32,
    /// The other event, or the event itself for the boundary.
    other: u8,
}

impl Choice {
    /// The weight or excess that is left for this event when the other one has its potential.
    #[inline]
    fn beyond(self, event: usize, potentials: &[u32]) -> u32 {
        if usize::from(self.other) == event { self.excess } else { self.excess - potentials[usize::from(self.other)] }
    }
}

impl Search {
    pub(crate) fn new() -> Self {
        Self {
            choices: (0..MAX_EVENTS).map(|_| Vec::with_capacity(MAX_EVENTS)).collect(),
            path: [(0, 0); MAX_EVENTS],
            least: u64::MAX,
            best: [(0, 0); MAX_EVENTS],
            best_length: 0,
            tried: 0,
        }
    }

    /// Finds the least matching of a group.
    pub(crate) fn run(&mut self, group: &[u32], distances: &Distances) -> Found {
        if group.len() > MAX_EVENTS {
            return Found::GaveUp;
        }
        self.weigh(group, distances);
        self.least = u64::MAX;
        self.tried = 0;
        self.branch(u64::MAX >> (MAX_EVENTS - group.len()), 0, 0);
        if self.tried > MAX_TRIED {
            return Found::GaveUp;
        }
        if self.least == u64::MAX {
            return Found::Nothing;
        }
        let flips = |flips, &(one, other): &Pair| {
            let (event, other) = (group[usize::from(one)], (one != other).then(|| group[usize::from(other)]));
            flips ^ other.map_or_else(|| distances.flips_to_boundary(event), |other| distances.flips(event, other))
        };
        Found::Flips(self.best[..self.best_length].iter().fold(0, flips))
    }

    /// Lists the choices of each event with their excess.
    fn weigh(&mut self, group: &[u32], distances: &Distances) {
        let mut potentials = [0; MAX_EVENTS];
        let rows = &mut self.choices[..group.len()];
        for (event, row) in rows.iter_mut().enumerate() {
            row.clear();
            // Half the least weight is a potential that any two events can have together.
            let mut potential = UNREACHABLE;
            for (other, &detector) in group.iter().enumerate() {
                let (weight, share) = if other == event {
                    let weight = distances.to_boundary(detector);
                    (weight, weight)
                } else {
                    let weight = distances.if_nearer(group[event], detector).unwrap_or(UNREACHABLE);
                    (weight, weight / 2)
                };
                if weight != UNREACHABLE {
                    row.push(Choice { excess: weight, other: other as u8 });
                    potential = potential.min(share);
                }
            }
            potentials[event] = potential;
        }
        // Raise each in turn as far as the others leave room.
        for (event, row) in rows.iter().enumerate() {
            let room = row.iter().map(|choice| choice.beyond(event, &potentials)).min();
            potentials[event] = room.unwrap_or(0);
        }
        for (event, row) in rows.iter_mut().enumerate() {
            for choice in &mut *row {
                choice.excess = choice.beyond(event, &potentials) - potentials[event];
            }
            row.sort_unstable_by_key(|choice| choice.excess);
        }
    }

    /// Tries every choice of the first unmatched event that can still lead to the least matching.
    fn branch(&mut self, unmatched: u64, depth: usize, excess: u64) {
        if unmatched == 0 {
            self.least = excess;
            self.best_length = depth;
            self.best[..depth].copy_from_slice(&self.path[..depth]);
            return;
        }
        let event = unmatched.trailing_zeros() as usize;
        for index in 0..self.choices[event].len() {
            let choice = self.choices[event][index];
            let excess = excess + u64::from(choice.excess);
            if excess >= self.least || self.tried > MAX_TRIED {
                return;
            }
            if unmatched >> choice.other & 1 == 1 {
                self.tried += 1;
                self.path[depth] = (event as u8, choice.other);
                self.branch(unmatched & !(1 << event | 1 << choice.other), depth + 1, excess);
            }
        }
    }
}
