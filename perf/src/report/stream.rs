//! Experiments that were streamed round by round: how far the answers were behind, and what a core sustains.

use serde::{Deserialize, Serialize};

use super::json::CaseReport;

/// An experiment that was streamed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Its rounds, all of which were answered.
    pub rounds: u64,
    /// Rounds of a window of the decoder.
    pub window_rounds: u64,
    /// Nanoseconds from one round to the next; `null` where they were sent as fast as they were answered.
    pub offered_ns: Option<f64>,
    /// Nanoseconds from the beginning to the last answer, for each round.
    pub round_ns: f64,
    /// Part by part, twenty where there are as many rounds.
    pub parts: Vec<Part>,
    /// `get_corrections` that were answered as the library says.
    pub corrections_right: u64,
    /// Whether the last corrections are not what the errors flipped.
    pub logical_error: bool,
}

/// A part of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Rounds answered, from the beginning.
    pub rounds: u64,
    /// When the last of them was answered, in nanoseconds from the beginning.
    pub at_ns: u64,
    /// Rounds that were due then and not answered.
    pub backlog: u64,
    /// The most of them within this part.
    pub backlog_most: u64,
}

/// How a report says what it takes to keep up.
pub(crate) const RULE: &str = "a core keeps up with a distance if no more rounds wait in the last quarter of them than a window has: the \
                               median of the ends of its parts, in most turns";

impl Stream {
    /// The most rounds that were due and not answered.
    pub fn backlog_most(&self) -> u64 {
        self.parts.iter().map(|part| part.backlog_most).max().unwrap_or(0)
    }

    /// Rounds that waited in the last quarter: the median of the ends of its parts, for a stall of the host is none of the decoder's.
    pub fn backlog_late(&self) -> u64 {
        let mut late: Vec<_> = self.parts[self.parts.len() * 3 / 4..].iter().map(|part| part.backlog).collect();
        late.sort_unstable();
        late.get(late.len() / 2).copied().unwrap_or(0)
    }

    /// Whether the backlog stayed bounded: no more rounds waited in the last quarter than a window has.
    pub fn keeps_up(&self) -> bool {
        self.backlog_late() <= self.window_rounds
    }
}

impl CaseReport {
    /// Of its streams the one whose late backlog is the median.
    pub(crate) fn usual_stream(&self) -> Option<&Stream> {
        let mut streams: Vec<_> = self.streams.iter().collect();
        streams.sort_by_key(|stream| stream.backlog_late());
        streams.get(streams.len() / 2).copied()
    }
}

/// Cases whose rounds come equally fast.
pub(crate) struct Pace<'a> {
    /// Nanoseconds from one round to the next.
    pub(crate) offered_ns: f64,
    /// Each with its usual stream.
    pub(crate) cases: Vec<(&'a CaseReport, &'a Stream)>,
}

impl<'a> Pace<'a> {
    /// Those of a report, in order of first appearance.
    pub(crate) fn all(cases: &'a [CaseReport]) -> Vec<Self> {
        let mut paces: Vec<Self> = Vec::new();
        for case in cases {
            let Some(stream) = case.usual_stream() else { continue };
            let Some(offered_ns) = stream.offered_ns else { continue };
            match paces.iter_mut().find(|pace| pace.offered_ns.total_cmp(&offered_ns).is_eq()) {
                Some(pace) => pace.cases.push((case, stream)),
                None => paces.push(Self { offered_ns, cases: vec![(case, stream)] }),
            }
        }
        paces
    }

    /// The largest distance that a core sustains, in words; `None` where no case has a distance.
    pub(crate) fn sustained(&self) -> Option<String> {
        let distances = |sustained: bool| {
            let cases = self.cases.iter().filter(move |(_, stream)| stream.keeps_up() || !sustained);
            cases.filter_map(|(case, _)| case.distance)
        };
        let tried: Vec<_> = distances(false).map(|distance| distance.to_string()).collect();
        let tried = tried.join(", ");
        match distances(true).max() {
            _ if tried.is_empty() => None,
            Some(largest) => Some(format!("{largest} is the largest distance that a core sustains, of {tried}")),
            None => Some(format!("a core sustains no distance, of {tried}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::case::Case;

    /// A stream in windows of 14 rounds whose parts end with these backlogs.
    fn stream(backlog: impl Fn(u64) -> u64) -> Stream {
        let part = |i| Part { rounds: 50 * (i + 1), at_ns: 50_000 * (i + 1), backlog: backlog(i), backlog_most: 99 };
        Stream {
            rounds: 1000,
            window_rounds: 14,
            offered_ns: Some(1100.0),
            round_ns: 1100.0,
            parts: (0..20).map(part).collect(),
            corrections_right: 20,
            logical_error: false,
        }
    }

    #[test]
    fn a_backlog_that_grows_is_told_from_one_that_comes_and_goes() {
        assert!(stream(|_| 14).keeps_up() && !stream(|_| 15).keeps_up());
        assert!(!stream(|i| 10 * i).keeps_up());
        // What waited before the last quarter, or in two of its parts, was a stall.
        assert!(stream(|i| if i < 15 { 5000 } else { 3 }).keeps_up());
        assert!(stream(|i| if i > 17 { 5000 } else { 3 }).keeps_up());
        assert_eq!(stream(|i| i).backlog_late(), 17);
    }

    #[test]
    fn the_largest_distance_is_of_those_that_keep_up_in_most_turns() {
        let case = |distance, backlogs: [u64; 3]| CaseReport {
            distance: Some(distance),
            streams: backlogs.map(|backlog| stream(|_| backlog)).into(),
            ..CaseReport::of(&Case::new("c".into(), None, &[]))
        };
        let mut cases = vec![case(3, [1, 1, 1]), case(5, [2000, 1, 2]), case(7, [1, 2000, 3000])];
        let said = |cases: &[CaseReport]| Pace::all(cases).iter().map(Pace::sustained).collect::<Vec<_>>();
        assert_eq!(said(&cases), [Some("5 is the largest distance that a core sustains, of 3, 5, 7".into())]);
        cases.drain(..2);
        assert_eq!(said(&cases), [Some("a core sustains no distance, of 7".into())]);
        cases[0].distance = None;
        assert_eq!(said(&cases), [None]);
        cases[0].streams.clear();
        assert!(said(&cases).is_empty());
    }
}
