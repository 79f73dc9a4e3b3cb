//! The flips of a finished matching.

use super::{BOUNDARY, Event, Matching, NONE};
use crate::graph::Path;

impl Matching {
    /// Sum of the flips and weights of all matched paths.
    pub(super) fn extract(&mut self) -> Path {
        let mut total = Path { weight: 0, flips: 0 };
        for event in 0..self.events.len() as u32 {
            let top = self.top(event);
            let mate = self.nodes[top as usize].mate;
            if mate & BOUNDARY != 0 {
                // One event of the node is this one.
                if mate == BOUNDARY | event {
                    let Event { detector, boundary: path, .. } = self.events[event as usize];
                    self.trace.note(detector, NONE);
                    total.weight += path.weight;
                    total.flips ^= path.flips;
                    self.open(top, event, &mut total);
                }
            } else if self.from(mate) == event {
                // Of both directions of the path one counts.
                if mate & 1 == 0 {
                    self.count(mate, &mut total);
                }
                self.open(top, event, &mut total);
            }
        }
        total
    }

    fn count(&mut self, arc: u32, total: &mut Path) {
        let [one, other] = [self.from(arc), self.to(arc)].map(|event| self.events[event as usize].detector);
        self.trace.note(one, other);
        total.weight += self.arcs[arc as usize].weight;
        total.flips ^= self.flips[arc as usize / 2];
    }

    /// Matches the nodes within a node, one event of which is matched outside.
    pub(super) fn open(&mut self, node: u32, event: u32, total: &mut Path) {
        self.pending.clear();
        self.pending.extend([node, event]);
        while let (Some(event), Some(node)) = (self.pending.pop(), self.pending.pop()) {
            if self.nodes[node as usize].child == NONE {
                continue;
            }
            let base = self.child_around(event, node);
            self.pending.extend([base, event]);
            let mut one = self.nodes[base as usize].sibling;
            while one != base {
                let (other, arc) = (self.nodes[one as usize].sibling, self.nodes[one as usize].link);
                self.count(arc, total);
                self.pending.extend([one, self.from(arc), other, self.to(arc)]);
                one = self.nodes[other as usize].sibling;
            }
        }
    }
}
