//! Localized statistics: clusters of detectors that grow around the events, each by its likeliest error, until the errors in it
//! make its events (arXiv 2406.18655).

use super::{
    OsdTables,
    elimination::{Elimination, NONE, ones, place},
};
use crate::decoder::DecodeError;

/// The clusters of a shot. What they took is undone in time linear in their size.
#[derive(Debug)]
pub(super) struct Clusters {
    /// Of each detector in a cluster, itself if it is the root, or one on the way there; else `NONE`.
    parents: Vec<u32>,
    /// Of each root, events that the errors in its cluster do not make, transformed.
    open: Vec<u32>,
    /// Of each root, the top of its heap: an edge of its likeliest error. Edges of errors that were taken may be left in it.
    tops: Vec<u32>,
    /// Of each edge in a heap, the edges below it.
    below: Vec<[u32; 2]>,
    /// Detectors in clusters.
    detectors: Vec<u32>,
    /// Errors that were taken, and a bit for each.
    errors: Vec<u32>,
    taken: Vec<u64>,
    /// Roots of clusters that do not make their events yet, and some that were roots or do by now.
    growing: Vec<u32>,
}

impl Clusters {
    pub(super) fn new(tables: &OsdTables) -> Self {
        let (detectors, errors) = (tables.graph.detector_starts.len() - 1, tables.graph.num_errors());
        Self {
            parents: vec![NONE; detectors],
            open: vec![0; detectors],
            tops: vec![NONE; detectors],
            below: vec![[NONE; 2]; tables.graph.num_edges()],
            detectors: Vec::with_capacity(detectors),
            errors: Vec::with_capacity(errors),
            taken: vec![0; errors.div_ceil(64)],
            growing: Vec::with_capacity(detectors),
        }
    }

    /// Lets elimination take errors until they make the events, or there are no more that could.
    pub(super) fn grow(
        &mut self,
        tables: &OsdTables,
        marginals: &[f32],
        events: &[u64],
        elimination: &mut Elimination,
    ) -> Result<(), DecodeError> {
        self.clear(elimination);
        elimination.start(events);
        for detector in ones(events) {
            self.join(tables, marginals, detector as u32, detector as u32);
            self.open[detector] = 1;
            self.growing.push(detector as u32);
        }
        let mut left = elimination.left();
        while !self.growing.is_empty() {
            let mut at = 0;
            while let Some(&root) = self.growing.get(at) {
                if self.parents[root as usize] != root || self.open[root as usize] == 0 {
                    self.growing.swap_remove(at);
                    continue;
                }
                let error = self.pop(tables, marginals, root).ok_or(DecodeError::Unmatchable)?;
                self.add(tables, marginals, root, error);
                elimination.take(tables, error);
                let before = std::mem::replace(&mut left, elimination.left());
                self.open[root as usize] = self.open[root as usize] + left - before;
                at += 1;
            }
        }
        if tables.parameters.order > 0 {
            self.fill(tables, marginals, elimination);
        }
        Ok(())
    }

    /// Lets elimination take the other errors within a cluster, for the sweep: likeliest first.
    fn fill(&mut self, tables: &OsdTables, marginals: &[f32], elimination: &mut Elimination) {
        let (grown, starts) = (self.errors.len(), &tables.graph.detector_starts);
        for at in 0..self.detectors.len() {
            let detector = self.detectors[at];
            let root = self.find(detector);
            for edge in starts[detector as usize]..starts[detector as usize + 1] {
                let error = tables.graph.edge_errors[edge as usize];
                let mut detectors = tables.graph.detectors(error as usize).iter();
                if !self.is_taken(error) && detectors.all(|detector| self.find(*detector) == root) {
                    self.mark(error);
                }
            }
        }
        self.errors[grown..].sort_unstable_by_key(|error| (place(marginals[*error as usize]), *error));
        self.errors[grown..].iter().for_each(|error| elimination.take(tables, *error));
    }

    fn is_taken(&self, error: u32) -> bool {
        self.taken[error as usize / 64] >> (error % 64) & 1 == 1
    }

    fn mark(&mut self, error: u32) {
        self.errors.push(error);
        self.taken[error as usize / 64] |= 1 << (error % 64);
    }

    /// Undoes the last shot.
    fn clear(&mut self, elimination: &mut Elimination) {
        elimination.reset(self.detectors.iter().map(|detector| *detector as usize));
        self.detectors.drain(..).for_each(|detector| self.parents[detector as usize] = NONE);
        self.errors.drain(..).for_each(|error| self.taken[error as usize / 64] = 0);
        self.growing.clear();
    }

    /// Puts a detector that is in no cluster in that of a root, or makes it a root, and its errors in the heap.
    fn join(&mut self, tables: &OsdTables, marginals: &[f32], detector: u32, root: u32) {
        self.parents[detector as usize] = root;
        self.detectors.push(detector);
        if detector == root {
            self.tops[root as usize] = NONE;
        }
        let starts = &tables.graph.detector_starts;
        for edge in starts[detector as usize]..starts[detector as usize + 1] {
            self.below[edge as usize] = [NONE; 2];
            self.tops[root as usize] = self.meld(tables, marginals, self.tops[root as usize], edge);
        }
    }

    /// Adds an error to the cluster of a root, and the clusters that it touches.
    fn add(&mut self, tables: &OsdTables, marginals: &[f32], root: u32, error: u32) {
        self.mark(error);
        for detector in tables.graph.detectors(error as usize) {
            match self.find(*detector) {
                NONE => self.join(tables, marginals, *detector, root),
                other if other == root => {}
                other => {
                    self.parents[other as usize] = root;
                    self.open[root as usize] += self.open[other as usize];
                    let tops = [root, other].map(|root| self.tops[root as usize]);
                    self.tops[root as usize] = self.meld(tables, marginals, tops[0], tops[1]);
                }
            }
        }
    }

    /// The root of a detector's cluster; halves the way there.
    fn find(&mut self, mut detector: u32) -> u32 {
        loop {
            let parent = self.parents[detector as usize];
            if parent == NONE || parent == detector {
                return parent;
            }
            let next = self.parents[parent as usize];
            self.parents[detector as usize] = next;
            detector = next;
        }
    }

    /// Takes the likeliest error out of a root's heap that was not taken.
    fn pop(&mut self, tables: &OsdTables, marginals: &[f32], root: u32) -> Option<u32> {
        loop {
            let top = self.tops[root as usize];
            let [left, right] = *self.below.get(top as usize)?;
            self.tops[root as usize] = self.meld(tables, marginals, left, right);
            let error = tables.graph.edge_errors[top as usize];
            if !self.is_taken(error) {
                return Some(error);
            }
        }
    }

    /// Makes one heap of two: a skew heap, whose tops' sides change places on the way down.
    fn meld(&mut self, tables: &OsdTables, marginals: &[f32], mut one: u32, mut two: u32) -> u32 {
        let key = |edge: u32| {
            let error = tables.graph.edge_errors[edge as usize];
            (place(marginals[error as usize]), error)
        };
        let (mut top, mut above) = (NONE, NONE);
        loop {
            if one == NONE || two != NONE && key(two) < key(one) {
                std::mem::swap(&mut one, &mut two);
            }
            match self.below.get_mut(above as usize) {
                Some(below) => below[0] = one,
                None => top = one,
            }
            let Some(below) = self.below.get_mut(one as usize).filter(|_| two != NONE) else { return top };
            let next = below[1];
            below[1] = below[0];
            above = std::mem::replace(&mut one, next);
        }
    }
}
