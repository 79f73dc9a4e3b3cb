//! The alternating tree of one unmatched node.

use std::cmp::Reverse;

use super::{BOUNDARY, Label, Matching, NONE, POP, STRIDE, Stop, Wait};
use crate::{graph::FAR, mwpm::Paths};

impl Matching {
    /// Matches an unmatched node. Grows a tree from it until a path leads out: to the boundary, to another unmatched
    /// node, or to a node that is matched with the boundary.
    pub(super) fn search(&mut self, root: u32, paths: &Paths) -> Result<(), Stop> {
        self.now = 0;
        self.horizon = i64::MAX;
        self.way_out = NONE;
        self.queue.clear();
        self.tree.clear();
        self.pending.clear();
        self.grow(root);
        while let Some(Reverse((time, wait))) = self.queue.pop() {
            if self.steps == 0 {
                return Err(Stop::Exhausted);
            }
            if time >= self.horizon {
                break;
            }
            self.spend(POP);
            self.now = time;
            match wait {
                Wait::Touch(arc) => self.touch(arc),
                Wait::Look(event) => self.look_on(event, paths),
                Wait::Burst(blossom) => self.burst(blossom),
            }
        }
        if self.way_out == NONE {
            return Err(if self.steps == 0 { Stop::Exhausted } else { Stop::Unmatchable });
        }
        self.now = self.horizon;
        self.leave();
        while let Some(node) = self.tree.pop() {
            self.settle(node);
        }
        Ok(())
    }

    /// Makes a node a plus node.
    pub(super) fn grow(&mut self, node: u32) {
        let top = &mut self.nodes[node as usize];
        top.label = Label::Plus;
        top.since = self.now;
        let mut event = top.first;
        self.enter(node);
        while event != NONE {
            self.wait(event);
            event = self.next(node, event);
        }
    }

    /// Notes that a node got a label.
    pub(super) fn enter(&mut self, node: u32) {
        if self.tree.len() < self.tree.capacity() {
            self.tree.push(node);
        } else {
            self.steps = 0;
        }
    }

    /// Waits for what the growing region of an event can touch.
    pub(super) fn wait(&mut self, event: u32) {
        let dual = self.dual(event);
        let state = &self.events[event as usize];
        let mut arc = state.arc;
        self.steps = self.steps.saturating_sub(1);
        if state.boundary.weight < FAR {
            self.way_out_at(self.now + state.boundary.weight - dual, BOUNDARY | event);
        }
        self.wait_to_look(event, dual);
        while arc != NONE {
            self.wait_to_touch(arc, dual);
            arc = self.arcs[arc as usize].next;
        }
    }

    fn wait_to_look(&mut self, event: u32, dual: i64) {
        let state = &self.events[event as usize];
        if state.limit < state.boundary.reach() {
            self.wait_for(self.now + state.limit / 2 - dual, Wait::Look(event));
        }
    }

    /// Waits until the ends of an arc touch. Its first end grows, from the given dual.
    fn wait_to_touch(&mut self, arc: u32, dual: i64) {
        self.spend(1);
        let other = self.to(arc);
        let top = self.top(other);
        if top == self.top(self.from(arc)) {
            return;
        }
        let slack = self.arcs[arc as usize].weight - dual - self.dual(other);
        match self.nodes[top as usize].label {
            Label::Minus => {}
            Label::Plus => self.wait_for(self.now + slack / 2, Wait::Touch(arc)),
            // Unmatched (`NONE`) or matched with the boundary.
            Label::Outside if self.nodes[top as usize].mate & BOUNDARY != 0 => self.way_out_at(self.now + slack, arc),
            Label::Outside => self.wait_for(self.now + slack, Wait::Touch(arc)),
        }
    }

    pub(super) fn wait_for(&mut self, time: i64, wait: Wait) {
        if time < self.horizon {
            if self.queue.len() < self.queue.capacity() {
                self.queue.push(Reverse((time, wait)));
            } else {
                self.steps = 0;
            }
        }
    }

    fn way_out_at(&mut self, time: i64, way_out: u32) {
        if time < self.horizon {
            self.horizon = time;
            self.way_out = way_out;
        }
    }

    fn look_on(&mut self, event: u32, paths: &Paths) {
        if self.is_overlaid {
            self.look_around(event, paths);
            self.wait(event);
        } else if self.events[event as usize].cursor < paths.nearest.row(self.events[event as usize].detector).end {
            let arc = self.look(event, STRIDE, paths);
            let dual = self.dual(event);
            if arc != NONE {
                self.wait_to_touch(arc, dual);
            }
            self.wait_to_look(event, dual);
        } else {
            self.look_beyond(event, paths);
            self.wait(event);
        }
    }

    /// Handles a growing region that touches another one, unless things have changed in the meantime.
    fn touch(&mut self, arc: u32) {
        let (one, other) = (self.top(self.from(arc)), self.top(self.to(arc)));
        if one == other || self.slack(arc) != 0 {
            return;
        }
        match self.nodes[other as usize].label {
            Label::Minus => {}
            Label::Plus => self.contract(arc),
            Label::Outside => {
                self.shrink(other, arc);
                self.grow(self.top(self.to(self.nodes[other as usize].mate)));
            }
        }
    }

    /// Makes a node a minus node that the tree enters by an arc.
    pub(super) fn shrink(&mut self, node: u32, entry: u32) {
        let minus = &mut self.nodes[node as usize];
        minus.label = Label::Minus;
        minus.since = self.now;
        minus.entry = entry;
        let (is_blossom, time) = (minus.child != NONE, self.now + minus.dual);
        self.enter(node);
        if is_blossom {
            self.wait_for(time, Wait::Burst(node));
        }
    }

    /// Matches along the tree's path from the way out to the root.
    fn leave(&mut self) {
        let mut mate = self.way_out;
        let mut plus = if mate & BOUNDARY == 0 {
            let other = self.top(self.to(mate));
            self.nodes[other as usize].mate = mate ^ 1;
            self.top(self.from(mate))
        } else {
            self.top(mate & !BOUNDARY)
        };
        loop {
            let old = std::mem::replace(&mut self.nodes[plus as usize].mate, mate);
            if old == NONE {
                return;
            }
            let minus = self.top(self.to(old));
            mate = self.nodes[minus as usize].entry;
            self.nodes[minus as usize].mate = mate ^ 1;
            plus = self.top(self.from(mate));
        }
    }

    /// Removes a node's label, and applies the growth since then to its duals.
    pub(super) fn settle(&mut self, node: u32) {
        let top = &mut self.nodes[node as usize];
        let grown = match std::mem::replace(&mut top.label, Label::Outside) {
            Label::Outside => return,
            Label::Plus => self.now - top.since,
            Label::Minus => top.since - self.now,
        };
        top.dual += grown;
        let mut event = top.first;
        while event != NONE {
            self.spend(1);
            self.events[event as usize].dual += grown;
            event = self.next(node, event);
        }
    }

    /// The next event of a node.
    #[inline]
    pub(super) fn next(&self, node: u32, event: u32) -> u32 {
        if event == self.nodes[node as usize].last { NONE } else { self.events[event as usize].next }
    }
}
