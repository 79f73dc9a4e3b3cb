//! Blossoms: how they form and how they are dissolved.

use super::{Label, Matching, NONE, Node, Wait};

impl Matching {
    /// Makes a blossom from the cycle that an arc between two plus nodes closes.
    pub(super) fn contract(&mut self, arc: u32) {
        let base = self.fork(arc);
        self.link(arc, base);
        let blossom = self.new_blossom(base);
        // Settle all of them, then wait for those that did not grow before.
        let mut child = base;
        let mut last = NONE;
        loop {
            let node = &self.nodes[child as usize];
            let (was_minus, first, end, sibling) = (node.label == Label::Minus, node.first, node.last, node.sibling);
            self.settle(child);
            self.nodes[child as usize].parent = blossom;
            if was_minus {
                self.pending.push(child);
            }
            if last != NONE {
                self.events[last as usize].next = first;
            }
            last = end;
            self.retop(child, blossom);
            child = sibling;
            if child == base {
                break;
            }
        }
        self.nodes[blossom as usize].last = last;
        self.enter(blossom);
        while let Some(child) = self.pending.pop() {
            let mut event = self.nodes[child as usize].first;
            while event != NONE {
                self.wait(event);
                event = self.next(child, event);
            }
        }
    }

    /// The plus node at which the tree's paths to both ends of an arc part.
    fn fork(&mut self, arc: u32) -> u32 {
        self.mark += 1;
        let mut one = self.top(self.from(arc));
        while one != NONE {
            self.spend(1);
            self.nodes[one as usize].mark = self.mark;
            one = self.up(one);
        }
        let mut other = self.top(self.to(arc));
        while self.nodes[other as usize].mark != self.mark {
            other = self.up(other);
        }
        other
    }

    /// The plus node above a plus node in the tree.
    fn up(&self, plus: u32) -> u32 {
        let mate = self.nodes[plus as usize].mate;
        if mate == NONE {
            return NONE;
        }
        let minus = self.top(self.to(mate));
        self.top(self.from(self.nodes[minus as usize].entry))
    }

    /// Links the nodes of a cycle: from one end of the arc up to the base, down to the other end, and along the arc.
    fn link(&mut self, arc: u32, base: u32) {
        let (one, other) = (self.top(self.from(arc)), self.top(self.to(arc)));
        let mut plus = one;
        while plus != base {
            let mate = self.nodes[plus as usize].mate;
            let minus = self.top(self.to(mate));
            let entry = self.nodes[minus as usize].entry;
            let up = self.top(self.from(entry));
            self.set_link(plus, minus, mate);
            self.set_link(minus, up, entry ^ 1);
            plus = up;
        }
        self.set_link(other, one, arc ^ 1);
        let mut plus = other;
        while plus != base {
            let mate = self.nodes[plus as usize].mate;
            let minus = self.top(self.to(mate));
            let entry = self.nodes[minus as usize].entry;
            let up = self.top(self.from(entry));
            self.set_link(minus, plus, mate ^ 1);
            self.set_link(up, minus, entry);
            plus = up;
        }
    }

    fn set_link(&mut self, node: u32, sibling: u32, link: u32) {
        let node = &mut self.nodes[node as usize];
        node.sibling = sibling;
        node.link = link;
    }

    fn new_blossom(&mut self, base: u32) -> u32 {
        let Node { mate, first, .. } = self.nodes[base as usize];
        let node = Node { label: Label::Plus, mate, child: base, since: self.now, ..Node::new(first) };
        if let Some(unused) = self.unused.pop() {
            self.nodes[unused as usize] = node;
            return unused;
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Records `top` as the outermost node around a node and all within it.
    fn retop(&mut self, node: u32, top: u32) {
        let mut event = self.nodes[node as usize].first;
        while event != NONE {
            self.spend(1);
            self.events[event as usize].top = top;
            event = self.next(node, event);
        }
    }

    /// Dissolves a minus blossom whose own radius has shrunk to zero. The even part of its cycle, between the arc by
    /// which the tree enters and its mate, stays in the tree; the rest leaves it, matched within itself.
    pub(super) fn burst(&mut self, blossom: u32) {
        let Node { label, parent, child, entry, mate, dual, since, .. } = self.nodes[blossom as usize];
        if parent != NONE || label != Label::Minus || dual != self.now - since {
            return;
        }
        self.settle(blossom);
        let (first, last) = (self.child_around(self.to(entry), blossom), self.child_around(self.from(mate), blossom));
        let mut node = child;
        loop {
            self.nodes[node as usize].parent = NONE;
            self.retop(node, node);
            node = self.nodes[node as usize].sibling;
            if node == child {
                break;
            }
        }
        self.unused.push(blossom);

        let forward = self.is_even(first, last);
        let (start, end) = if forward { (first, last) } else { (last, first) };
        self.nodes[last as usize].mate = mate;
        let (mut minus, mut arc) = (start, entry);
        while minus != end {
            let Node { sibling: plus, link: to_plus, .. } = self.nodes[minus as usize];
            let Node { sibling: next, link: from_plus, .. } = self.nodes[plus as usize];
            if forward {
                self.match_along(to_plus, minus, plus);
                self.shrink(minus, arc);
                arc = from_plus;
            } else {
                self.match_along(from_plus, plus, next);
                self.shrink(minus, to_plus ^ 1);
            }
            self.pending.push(plus);
            minus = next;
        }
        self.shrink(end, if forward { arc } else { entry });

        let mut node = self.nodes[end as usize].sibling;
        while node != start {
            let Node { sibling: other, link, .. } = self.nodes[node as usize];
            self.match_along(link, node, other);
            self.release(node);
            self.release(other);
            node = self.nodes[other as usize].sibling;
        }
        while let Some(plus) = self.pending.pop() {
            self.grow(plus);
        }
    }

    /// Whether the path along a cycle from one node to another has an even number of links.
    fn is_even(&self, from: u32, to: u32) -> bool {
        let (mut node, mut even) = (from, true);
        while node != to {
            node = self.nodes[node as usize].sibling;
            even = !even;
        }
        even
    }

    fn match_along(&mut self, arc: u32, one: u32, other: u32) {
        self.nodes[one as usize].mate = arc;
        self.nodes[other as usize].mate = arc ^ 1;
    }

    /// Makes growing regions wait for a node that has left the tree.
    fn release(&mut self, node: u32) {
        let mut event = self.nodes[node as usize].first;
        while event != NONE {
            let mut arc = self.events[event as usize].arc;
            while arc != NONE {
                if self.nodes[self.top(self.to(arc)) as usize].label == Label::Plus {
                    self.wait_for(self.now + self.slack(arc), Wait::Touch(arc ^ 1));
                }
                self.spend(1);
                arc = self.arcs[arc as usize].next;
            }
            event = self.next(node, event);
        }
    }

    /// The node of a blossom's cycle that contains an event.
    pub(super) fn child_around(&self, event: u32, blossom: u32) -> u32 {
        let mut node = event;
        while self.nodes[node as usize].parent != blossom {
            node = self.nodes[node as usize].parent;
        }
        node
    }
}
