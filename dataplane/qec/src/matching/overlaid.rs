//! Matching with the weights of a shot: those that the errors of a first pass have left ([`correlated`](crate::correlated)),
//! or those of its readout ([`readout`](crate::readout)).
//!
//! The lists of the nearest detectors do not have these weights, so every event walks the graph, up to the next event or as
//! far as its region can reach, each time that this has outgrown what it knows.

use super::{BOUNDARY, Event, Matching, NONE, START, Stop, VISIT};
use crate::{
    graph::{FAR, Path, Step},
    mwpm::Paths,
};

impl Matching {
    /// Flips and weight of a least-weight matching of the events at these detectors, with the weights of the shot, found in
    /// the steps that it has left.
    pub(crate) fn run_overlaid(&mut self, detectors: &[u32], paths: &Paths) -> Result<Path, Stop> {
        self.is_overlaid = true;
        self.clear();
        for &detector in detectors {
            self.add(detector, 0, Path { weight: FAR, flips: 0 });
        }
        for event in 0..self.events.len() as u32 {
            self.start_overlaid(event, paths);
            if self.steps == 0 {
                return Err(Stop::Exhausted);
            }
        }
        self.match_rest(paths)
    }

    /// Gives an event its first region; matches it if that touches the boundary or its unmatched nearest event.
    fn start_overlaid(&mut self, at: u32, paths: &Paths) {
        self.spend(START);
        self.look_around(at, paths);
        let Event { boundary, arc: mut other, .. } = self.events[at as usize];
        let (mut nearest, mut weight) = (NONE, 2 * boundary.weight);
        while other != NONE {
            let arc = self.arcs[other as usize];
            if arc.weight < weight {
                (nearest, weight) = (other, arc.weight);
            }
            other = arc.next;
        }
        if nearest != NONE {
            self.meet(at, nearest);
        } else if boundary.weight < FAR {
            self.events[at as usize].dual = boundary.weight;
            self.nodes[at as usize].mate = BOUNDARY | at;
        }
    }

    /// Looks for the nearest event, and the boundary, among what an event does not know.
    pub(super) fn look_around(&mut self, at: u32, paths: &Paths) {
        let Event { detector, limit: from, mut boundary, .. } = self.events[at as usize];
        let mut limit = boundary.reach();
        // The ball is walked anew each time: a quarter further at least.
        let quarter = from + from / 8 * 2 + 2;
        let mut walk = std::mem::take(&mut self.walk);
        walk.begin(detector);
        while let Some((place, path)) = walk.next(limit) {
            self.spend(VISIT);
            let event = self.event_at[place as usize];
            if event != NONE && event != at && path.weight >= from && path.weight >= self.events[event as usize].limit {
                self.connect(at, event, path);
            }
            if self.steps == 0 {
                break;
            }
            // All that is as far away as what has been met will be known.
            let take = |step: &Step| {
                let weight = path.weight + step.path.weight;
                if weight >= limit {
                    return false;
                }
                let flips = path.flips ^ step.path.flips;
                if walk.reach(step.to, Path { weight, flips })
                    && self.event_at[step.to as usize] != NONE
                    && weight >= from
                {
                    limit = limit.min(quarter.max(weight + 2));
                }
                true
            };
            self.overlay.visit(&paths.graph, place, take);
            let exit = self.overlay.to_boundary(place, &paths.graph);
            let weight = path.weight + exit.path.weight;
            if weight < boundary.weight {
                boundary = Path { weight, flips: path.flips ^ exit.path.flips };
                limit = limit.min(boundary.reach());
            }
        }
        self.walk = walk;
        let event = &mut self.events[at as usize];
        event.limit = limit;
        event.boundary = boundary;
    }
}
