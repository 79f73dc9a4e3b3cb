//! A matching that is found in bounded time and need not have the least weight: union-find, for what a shot that is out of
//! steps has not matched.
//!
//! Clusters of events grow as in union-find decoding (arXiv 1709.06218), but by whole paths between events: in each round, every
//! cluster with an odd number of events and without the boundary is joined along its lightest path to another cluster or to
//! the boundary, lighter paths first. A cluster that has become even waits. The paths of a cluster are a tree, and those of
//! them are taken that its events demand, from the leaves inwards.
//!
//! After [`ROUNDS`] rounds, what is still odd is matched with the boundary, or where there is none with one detector of
//! its component (`anchors`). So a shot takes at most that many looks at each event, and one at each listed detector.

use super::{NONE, trace::Trace};
use crate::{
    dem::cancel_pairs,
    graph::{FAR, Graph, Path, Walk},
    mwpm::Paths,
    nearest::Nearest,
};

/// Rounds in which clusters grow. Each of them joins every odd cluster with another one.
const ROUNDS: usize = 32;

/// For detectors that no path leads to the boundary from: the lowest detector of their component, and the path there.
#[derive(Debug, Default)]
pub(crate) struct Anchors(Vec<(u32, Path)>);

impl Anchors {
    /// The anchors of a graph; none are needed where every detector reaches the boundary.
    pub(crate) fn new(graph: &Graph, nearest: &Nearest) -> Self {
        let detectors = graph.num_detectors();
        let is_lost = |detector: u32| nearest.row(detector).boundary.weight >= FAR;
        let mut anchors = Vec::new();
        if (0..detectors as u32).any(is_lost) {
            anchors.resize(detectors, (NONE, Path { weight: FAR, flips: 0 }));
            let mut walk = Walk::new(graph, 0);
            for lowest in (0..detectors as u32).filter(|at| is_lost(*at)) {
                if anchors[lowest as usize].0 == NONE {
                    walk.run(graph, None, lowest, FAR, |to, path| {
                        anchors[to as usize] = (lowest, path);
                        true
                    });
                }
            }
        }
        Self(anchors)
    }
}

/// An event and, where it is the root of a cluster, the cluster.
#[derive(Debug, Clone)]
struct Member {
    /// A member nearer to the root; the root is its own.
    parent: u32,
    /// The next member of the cluster, in a ring.
    next: u32,
    size: u32,
    /// Whether the cluster touches the boundary.
    bounded: bool,
    /// Index of the first detector of its list that may have an event of another cluster.
    cursor: u32,
    /// Number of links at this event, and all of them, combined by exclusive or.
    degree: u32,
    links: u32,
    /// Whether the event has yet to be matched.
    unmatched: bool,
}

/// A path that joined two clusters, or one (the other end is [`NONE`]) with the boundary.
#[derive(Debug, Clone, Copy)]
struct Link {
    ends: [u32; 2],
    path: Path,
}

/// Scratch memory for the events of a shot.
#[derive(Debug)]
pub(crate) struct Clusters {
    members: Vec<Member>,
    links: Vec<Link>,
    /// Roots of the odd clusters without boundary.
    odd: Vec<u32>,
    /// Of each of these, the weight of its lightest link and the event that it starts at.
    offers: Vec<(i64, u32)>,
}

impl Clusters {
    pub(crate) fn new(detectors: usize) -> Self {
        Self {
            members: Vec::with_capacity(detectors),
            links: Vec::with_capacity(detectors),
            odd: Vec::with_capacity(detectors),
            offers: Vec::with_capacity(detectors),
        }
    }

    /// Flips and weight of a matching of the events at these detectors, whose indices are in `event_at`. `None` if there is
    /// none.
    pub(super) fn run(
        &mut self,
        detectors: &[u32],
        event_at: &[u32],
        paths: &Paths,
        trace: &mut Trace,
    ) -> Option<Path> {
        self.members.clear();
        self.links.clear();
        self.odd.clear();
        for (at, detector) in detectors.iter().enumerate() {
            let (at, cursor) = (at as u32, paths.nearest.row(*detector).start);
            self.odd.push(at);
            self.members.push(Member {
                parent: at,
                next: at,
                size: 1,
                bounded: false,
                cursor,
                degree: 0,
                links: 0,
                unmatched: true,
            });
        }
        for _ in 0..ROUNDS {
            self.offers.clear();
            for at in 0..self.odd.len() {
                let offer = self.offer(self.odd[at], detectors, event_at, paths);
                self.offers.extend(offer);
            }
            if self.offers.is_empty() {
                break;
            }
            self.offers.sort_unstable();
            for at in 0..self.offers.len() {
                let (weight, event) = self.offers[at];
                self.accept(event, weight, detectors, event_at, paths);
            }
            self.note_odd();
        }
        self.give_up(detectors, paths).then(|| self.peel(detectors, paths, trace))
    }

    fn root(&mut self, mut event: u32) -> u32 {
        while self.members[event as usize].parent != event {
            let above = self.members[self.members[event as usize].parent as usize].parent;
            self.members[event as usize].parent = above;
            event = above;
        }
        event
    }

    fn is_odd(&self, root: u32) -> bool {
        let Member { size, bounded, .. } = self.members[root as usize];
        size % 2 == 1 && !bounded
    }

    /// The lightest link of a cluster: its weight and the event it starts at. To the boundary it counts twice, as only one
    /// of its ends grows.
    fn offer(&mut self, root: u32, detectors: &[u32], event_at: &[u32], paths: &Paths) -> Option<(i64, u32)> {
        let mut least = None;
        let mut event = root;
        loop {
            let reach = paths.nearest.row(detectors[event as usize]).boundary.reach();
            let weight =
                self.advance(event, root, detectors, event_at, paths).map_or(reach, |path| path.weight.min(reach));
            if weight < FAR && least.is_none_or(|least| (weight, event) < least) {
                least = Some((weight, event));
            }
            event = self.members[event as usize].next;
            if event == root {
                return least;
            }
        }
    }

    /// Moves the cursor of an event to the nearest event of another cluster; returns the path there.
    fn advance(&mut self, event: u32, root: u32, detectors: &[u32], event_at: &[u32], paths: &Paths) -> Option<Path> {
        let row = paths.nearest.row(detectors[event as usize]);
        let mut cursor = self.members[event as usize].cursor;
        while cursor < row.end {
            let other = event_at[paths.nearest.detectors()[cursor as usize] as usize];
            if other != NONE && self.root(other) != root {
                break;
            }
            cursor += 1;
        }
        self.members[event as usize].cursor = cursor;
        (cursor < row.end).then(|| paths.nearest.paths()[cursor as usize])
    }

    /// Joins the cluster of an event along the link that it offered, unless that is no longer its lightest one.
    fn accept(&mut self, event: u32, weight: i64, detectors: &[u32], event_at: &[u32], paths: &Paths) {
        let root = self.root(event);
        if !self.is_odd(root) {
            return;
        }
        let cursor = self.members[event as usize].cursor;
        match self.advance(event, root, detectors, event_at, paths) {
            Some(path) if path.weight == weight && self.members[event as usize].cursor == cursor => {
                let other = event_at[paths.nearest.detectors()[cursor as usize] as usize];
                self.link(event, other, path);
                self.unite(root, other);
            }
            _ => {
                let row = paths.nearest.row(detectors[event as usize]);
                if row.boundary.reach() == weight {
                    self.link(event, NONE, row.boundary);
                    self.members[root as usize].bounded = true;
                }
            }
        }
    }

    fn link(&mut self, one: u32, other: u32, path: Path) {
        let link = self.links.len() as u32;
        for end in [one, other].into_iter().filter(|end| *end != NONE) {
            let member = &mut self.members[end as usize];
            member.degree += 1;
            member.links ^= link;
        }
        self.links.push(Link { ends: [one, other], path });
    }

    fn unite(&mut self, root: u32, other: u32) {
        let other = self.root(other);
        let (root, child) = if self.members[root as usize].size < self.members[other as usize].size {
            (other, root)
        } else {
            (root, other)
        };
        let Member { next, size, bounded, .. } = self.members[child as usize];
        let above = &mut self.members[root as usize];
        above.size += size;
        above.bounded |= bounded;
        let after = std::mem::replace(&mut above.next, next);
        let below = &mut self.members[child as usize];
        below.next = after;
        below.parent = root;
    }

    /// Replaces the roots of clusters that were odd by those of clusters that are.
    fn note_odd(&mut self) {
        let mut odd = std::mem::take(&mut self.odd);
        for root in &mut odd {
            *root = self.root(*root);
        }
        odd.retain(|root| self.is_odd(*root));
        odd.sort_unstable();
        odd.dedup();
        self.odd = odd;
    }

    /// Matches odd clusters with the boundary or their anchors. Whether each of these has an even number of them.
    fn give_up(&mut self, detectors: &[u32], paths: &Paths) -> bool {
        for at in 0..self.odd.len() {
            let detector = detectors[self.odd[at] as usize];
            let boundary = paths.nearest.row(detector).boundary;
            let path = if boundary.weight < FAR { boundary } else { paths.anchors.0[detector as usize].1 };
            self.link(self.odd[at], NONE, path);
        }
        self.odd.retain_mut(|event| {
            let detector = detectors[*event as usize];
            let is_lost = paths.nearest.row(detector).boundary.weight >= FAR;
            if is_lost {
                *event = paths.anchors.0[detector as usize].0;
            }
            is_lost
        });
        cancel_pairs(&mut self.odd) == 0
    }

    /// Sum of the links that match every event: from the leaves of each tree, a link counts if its leaf is unmatched.
    fn peel(&mut self, detectors: &[u32], paths: &Paths, trace: &mut Trace) -> Path {
        let mut total = Path { weight: 0, flips: 0 };
        for at in 0..self.members.len() {
            let mut leaf = at as u32;
            while leaf != NONE && self.members[leaf as usize].degree == 1 {
                let member = &mut self.members[leaf as usize];
                member.degree = 0;
                let (link, unmatched) = (member.links, member.unmatched);
                let Link { ends: [one, other], path } = self.links[link as usize];
                let next = if one == leaf { other } else { one };
                if let Some(next) = self.members.get_mut(next as usize) {
                    next.degree -= 1;
                    next.links ^= link;
                    next.unmatched ^= unmatched;
                }
                if unmatched {
                    total.weight += path.weight;
                    total.flips ^= path.flips;
                    let detector = detectors[one as usize];
                    match detectors.get(other as usize) {
                        Some(other) => trace.note(detector, *other),
                        None if paths.nearest.row(detector).boundary.weight < FAR => trace.note(detector, NONE),
                        None => trace.note(detector, paths.anchors.0[detector as usize].0),
                    }
                }
                leaf = next;
            }
        }
        total
    }
}
