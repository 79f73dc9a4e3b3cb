//! Least-weight matching of the events of a shot, each with another or with the boundary, by the primal-dual method of
//! sparse blossom (arXiv 2303.15933).
//!
//! Every event has a dual, the radius of its region. Regions may touch but not overlap, nor reach beyond the boundary:
//! the duals of two events never sum to more than the path between them weighs, and the dual of one to no more than its
//! path to the boundary. If all matched regions touch, the matching has least weight. The regions of an odd cycle of
//! touching events grow together, as a blossom (`blossom`).
//!
//! Sparse blossom floods the detectors around each event. This implementation looks them up in lists of the nearest
//! detectors ([`crate::nearest`]), and only as far as a region has grown: an event has found all events nearer than its
//! `limit`, and its dual is at most half of that, so no two regions overlap unnoticed. Beyond its list an event walks
//! the graph.
//!
//! 1. Each region starts as large as it can be whatever the others do: half the way to the nearest event, or up to
//!    the boundary. Most events touch the other one or the boundary then, and are matched.
//! 2. Each of the rest in turn is the root of an alternating tree that grows until it finds a way to match one more
//!    event (`search`). What it touches is local; all else stands still.

mod blossom;
mod clusters;
mod extract;
mod overlaid;
mod search;
mod trace;

use std::{cmp::Reverse, collections::BinaryHeap};

pub(crate) use clusters::Anchors;
use clusters::Clusters;
use trace::Trace;

use crate::{
    graph::{Path, Walk},
    mwpm::Paths,
    overlay::Overlay,
};

/// Marks the absence of an event, node or arc.
const NONE: u32 = u32::MAX;
/// In [`Node::mate`], marks a match with the boundary; the other bits are the event that is next to it.
const BOUNDARY: u32 = 1 << 31;
/// Detectors of a list that are looked at before other events get their turn.
const STRIDE: u32 = 16;
/// Steps that a detector takes which a walk visits, for its edges and its place in the walk's queue.
const VISIT: usize = 8;
/// Steps that an event takes to start and to be matched.
const START: usize = 8;
/// Steps that the queue of a search takes.
const POP: usize = 4;

#[derive(Debug, Clone)]
struct Event {
    detector: u32,
    /// Outermost node around it.
    top: u32,
    /// Next event of the same node.
    next: u32,
    /// First of its arcs.
    arc: u32,
    /// Index of the next detector of its list.
    cursor: u32,
    /// Its dual when `top` got its label; its present dual if `top` has none.
    dual: i64,
    /// All events nearer than this are known.
    limit: i64,
    /// The path to the boundary, or the lightest that is known.
    boundary: Path,
}

/// One direction of the path between two events. The other direction is its neighbour: the index with the last bit
/// flipped.
#[derive(Debug, Clone, Copy)]
struct Arc {
    to: u32,
    /// Next arc of the same event.
    next: u32,
    weight: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    /// Not in the tree; its region does not change.
    Outside,
    /// At an even distance from the root; its region grows.
    Plus,
    /// At an odd distance from the root; its region shrinks.
    Minus,
}

/// An event, or a blossom: an odd cycle of nodes.
#[derive(Debug, Clone)]
struct Node {
    label: Label,
    /// Blossom around it.
    parent: u32,
    /// The arc to its mate from one of its events, or [`BOUNDARY`] and the event; [`NONE`] if unmatched.
    mate: u32,
    /// For a minus node, the arc by which the tree reached it.
    entry: u32,
    /// First of its events, which are linked up to `last`.
    first: u32,
    last: u32,
    /// For a blossom, one node of its cycle.
    child: u32,
    /// Next node of the cycle that it is on, and the arc there.
    sibling: u32,
    link: u32,
    /// Last [`Matching::mark`] that it got.
    mark: u32,
    /// Time at which it got its label.
    since: i64,
    /// For a blossom, its own part of its events' duals when it got its label.
    dual: i64,
}

impl Node {
    fn new(event: u32) -> Self {
        Self {
            label: Label::Outside,
            parent: NONE,
            mate: NONE,
            entry: NONE,
            first: event,
            last: event,
            child: NONE,
            sibling: NONE,
            link: NONE,
            mark: 0,
            since: 0,
            dual: 0,
        }
    }
}

/// An event that a search waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    /// The regions at the ends of an arc touch.
    Touch(u32),
    /// The region of an event outgrows the part that it has looked at.
    Look(u32),
    /// A shrinking blossom has reached zero.
    Burst(u32),
}

/// Why there is no matching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// An odd number of events has no path to the boundary.
    Unmatchable,
    /// The steps of a shot are used up, or the room for what they found.
    Exhausted,
}

/// Pairs of arcs and entries of a search's lists that there is room for: so many, and so many by detector. Random syndromes of
/// surface codes, of any number of events, take at most 3.7 and 1.3 by detector; the others are for small graphs without
/// boundary, in which most events meet most others.
const PAIRS: [usize; 2] = [16384, 6];
const ENTRIES: [usize; 2] = [32768, 4];

/// Scratch memory of one decoder. It never grows: a shot that finds no room in it is out of steps.
#[derive(Debug)]
pub(crate) struct Matching {
    /// Steps that the shot may still take: arcs, events and listed detectors that are looked at.
    steps: u64,
    /// Event at each detector.
    event_at: Vec<u32>,
    events: Vec<Event>,
    arcs: Vec<Arc>,
    /// Flips of the path of each pair of arcs.
    flips: Vec<u64>,
    /// The events, followed by blossoms.
    nodes: Vec<Node>,
    unused: Vec<u32>,
    /// What the search waits for, by time.
    queue: BinaryHeap<Reverse<(i64, Wait)>>,
    /// Nodes that got a label.
    tree: Vec<u32>,
    now: i64,
    /// Time and place at which the search can end: an arc, or [`BOUNDARY`] and an event.
    horizon: i64,
    way_out: u32,
    /// Number of paths up the tree that were marked.
    mark: u32,
    /// Nodes, or nodes and events, that a step has yet to handle.
    pending: Vec<u32>,
    walk: Walk,
    /// Detectors of unmatched events.
    rest: Vec<u32>,
    clusters: Clusters,
    trace: Trace,
    /// Weights of the shot (`overlaid`), and whether they are used.
    pub(crate) overlay: Overlay,
    is_overlaid: bool,
}

impl Matching {
    pub(crate) fn new(paths: &Paths) -> Self {
        let detectors = paths.graph.num_detectors();
        let overlay = Overlay::new(paths);
        // Two events that are as near to each other as to a third may both find their pair.
        let pairs = (PAIRS[0] + PAIRS[1] * detectors).min(detectors * detectors);
        let entries = ENTRIES[0] + ENTRIES[1] * detectors;
        Self {
            steps: 0,
            event_at: vec![NONE; detectors],
            events: Vec::with_capacity(detectors),
            arcs: Vec::with_capacity(2 * pairs),
            flips: Vec::with_capacity(pairs),
            nodes: Vec::with_capacity(detectors + detectors / 2),
            unused: Vec::with_capacity(detectors / 2),
            queue: BinaryHeap::with_capacity(entries),
            tree: Vec::with_capacity(entries),
            now: 0,
            horizon: 0,
            way_out: NONE,
            mark: 0,
            pending: Vec::with_capacity(3 * detectors),
            walk: Walk::new(&paths.graph, overlay.room()),
            rest: Vec::with_capacity(detectors),
            clusters: Clusters::new(detectors),
            trace: Trace::new(paths),
            overlay,
            is_overlaid: false,
        }
    }

    /// Starts a shot.
    #[inline]
    fn clear(&mut self) {
        for event in &self.events {
            self.event_at[event.detector as usize] = NONE;
        }
        self.events.clear();
        self.arcs.clear();
        self.flips.clear();
        self.nodes.clear();
        self.unused.clear();
        self.mark = 0;
    }

    #[inline]
    fn add(&mut self, detector: u32, cursor: u32, boundary: Path) {
        let at = self.events.len() as u32;
        self.event_at[detector as usize] = at;
        self.events.push(Event { detector, top: at, next: NONE, arc: NONE, cursor, dual: 0, limit: 0, boundary });
        self.nodes.push(Node::new(at));
    }

    /// Flips and weight of a least-weight matching of the events at these detectors, found in the steps that the shot has left.
    #[inline]
    pub(crate) fn run(&mut self, detectors: &[u32], paths: &Paths) -> Result<Path, Stop> {
        self.clear();
        for &detector in detectors {
            let row = paths.nearest.row(detector);
            self.add(detector, row.start, row.boundary);
        }
        for event in 0..self.events.len() as u32 {
            self.start(event, paths);
            if self.steps == 0 {
                return Err(Stop::Exhausted);
            }
        }
        self.match_rest(paths)
    }

    /// Matches the events that have not been so by their first regions.
    #[inline]
    fn match_rest(&mut self, paths: &Paths) -> Result<Path, Stop> {
        for event in 0..self.events.len() as u32 {
            let top = self.events[event as usize].top;
            if self.nodes[top as usize].mate == NONE {
                self.search(top, paths)?;
            }
        }
        if self.steps == 0 { Err(Stop::Exhausted) } else { Ok(self.extract()) }
    }

    /// Ends a run that was out of steps, in bounded time: what it matched stays, and the rest is matched by clusters.
    /// `None` if there is no matching.
    #[cold]
    pub(crate) fn finish(&mut self, paths: &Paths) -> Option<Path> {
        let mut total = self.extract();
        for event in &self.events {
            self.event_at[event.detector as usize] = NONE;
        }
        self.rest.clear();
        for at in 0..self.events.len() as u32 {
            let top = self.top(at);
            let Node { mate, first, .. } = self.nodes[top as usize];
            if mate == NONE && first == at {
                self.open(top, at, &mut total);
                let detector = self.events[at as usize].detector;
                self.event_at[detector as usize] = self.rest.len() as u32;
                self.rest.push(detector);
            }
        }
        let rest = self.clusters.run(&self.rest, &self.event_at, paths, &mut self.trace)?;
        Some(Path { weight: total.weight + rest.weight, flips: total.flips ^ rest.flips })
    }

    /// Steps that the shot may still take.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the weights are those of the shot.
    pub(crate) fn is_overlaid(&self) -> bool {
        self.is_overlaid
    }

    /// Counts steps of the shot.
    #[inline]
    fn spend(&mut self, steps: usize) {
        self.steps = self.steps.saturating_sub(steps as u64);
    }

    /// Gives an event its first region; matches it if that touches the boundary or its unmatched nearest event.
    #[inline]
    fn start(&mut self, at: u32, paths: &Paths) {
        self.spend(START);
        let arc = self.look(at, u32::MAX, paths);
        let event = &mut self.events[at as usize];
        if arc == NONE {
            event.dual = event.boundary.weight.min(event.limit / 2);
            if event.dual == event.boundary.weight {
                self.nodes[at as usize].mate = BOUNDARY | at;
            }
            return;
        }
        self.meet(at, arc);
    }

    /// Gives an event half of the way to its nearest event; matches them if both do.
    #[inline]
    fn meet(&mut self, at: u32, arc: u32) {
        let Arc { to, weight, .. } = self.arcs[arc as usize];
        self.events[at as usize].dual = weight / 2;
        if self.events[to as usize].dual == weight / 2 && self.nodes[to as usize].mate == NONE {
            self.nodes[at as usize].mate = arc;
            self.nodes[to as usize].mate = arc ^ 1;
        }
    }

    /// Looks for the next event in an event's list, among at most `stride` detectors. Returns the arc to it.
    #[inline]
    fn look(&mut self, at: u32, stride: u32, paths: &Paths) -> u32 {
        let event = &mut self.events[at as usize];
        let list = paths.nearest.row(event.detector);
        let looked_at = event.cursor..list.end.min(event.cursor.saturating_add(stride));
        let detectors = &paths.nearest.detectors()[looked_at.start as usize..looked_at.end as usize];
        let found = detectors.iter().position(|&detector| self.event_at[detector as usize] != NONE);
        self.steps = self.steps.saturating_sub(found.unwrap_or(detectors.len()) as u64 + 1);
        event.cursor = found.map_or(looked_at.end, |found| looked_at.start + found as u32 + 1);
        event.limit =
            if event.cursor < list.end { paths.nearest.paths()[event.cursor as usize].weight } else { list.limit };
        let Some(found) = found else { return NONE };
        let (other, path) =
            (self.event_at[detectors[found] as usize], paths.nearest.paths()[event.cursor as usize - 1]);
        if path.weight < self.events[other as usize].limit {
            // The other one has found this one.
            let mut arc = self.events[at as usize].arc;
            while self.arcs[arc as usize].to != other {
                self.steps = self.steps.saturating_sub(1);
                arc = self.arcs[arc as usize].next;
            }
            return arc;
        }
        self.connect(at, other, path)
    }

    /// Looks for events beyond the list of an event, a quarter further than it has looked so far.
    #[cold]
    fn look_beyond(&mut self, at: u32, paths: &Paths) {
        let Event { detector, limit: from, boundary, .. } = self.events[at as usize];
        let to = (from + from / 8 * 2 + 2).min(boundary.reach());
        let mut walk = std::mem::take(&mut self.walk);
        walk.run(&paths.graph, None, detector, to, |other, path| {
            let event = self.event_at[other as usize];
            self.spend(VISIT);
            if event != NONE
                && path.weight >= from
                && paths.nearest.are_near(detector, other, path.weight)
                && path.weight >= self.events[event as usize].limit
            {
                self.connect(at, event, path);
            }
            self.steps > 0
        });
        self.walk = walk;
        self.events[at as usize].limit = to;
    }

    /// Makes both arcs of a path between two events; returns the first. Without room there is none, and the shot ends.
    fn connect(&mut self, one: u32, other: u32, path: Path) -> u32 {
        if self.arcs.len() + 2 > self.arcs.capacity() || self.flips.len() == self.flips.capacity() {
            self.steps = 0;
            return NONE;
        }
        let arc = self.arcs.len() as u32;
        for (from, to) in [(one, other), (other, one)] {
            let next = std::mem::replace(&mut self.events[from as usize].arc, self.arcs.len() as u32);
            self.arcs.push(Arc { to, next, weight: path.weight });
        }
        self.flips.push(path.flips);
        arc
    }

    /// Present radius of an event's region.
    #[inline]
    fn dual(&self, event: u32) -> i64 {
        let event = &self.events[event as usize];
        let top = &self.nodes[event.top as usize];
        match top.label {
            Label::Outside => event.dual,
            Label::Plus => event.dual + (self.now - top.since),
            Label::Minus => event.dual - (self.now - top.since),
        }
    }

    /// Outermost node around an event.
    #[inline]
    fn top(&self, event: u32) -> u32 {
        self.events[event as usize].top
    }

    /// Event at which an arc starts.
    #[inline]
    fn from(&self, arc: u32) -> u32 {
        self.arcs[arc as usize ^ 1].to
    }

    /// Event at which an arc ends.
    #[inline]
    fn to(&self, arc: u32) -> u32 {
        self.arcs[arc as usize].to
    }

    /// Distance between the regions at the ends of an arc.
    #[inline]
    fn slack(&self, arc: u32) -> i64 {
        self.arcs[arc as usize].weight - self.dual(self.from(arc)) - self.dual(self.to(arc))
    }
}
