//! A port's books: everything it received was answered, refused or dropped, each by its reason, and everything it owed was
//! sent or is missing by its reason.

use std::{collections::BTreeMap, fmt::Display};

use berth_engine::{Counters, LaneSnapshot, Snapshot};
use serde::Serialize;

/// What became of the frames of one queue of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Name of the lcore that polls the queue.
    pub lcore: String,
    /// Name of the port.
    pub port: String,
    /// Frames that the port lent to its service.
    pub received: u64,
    /// Those whose answer is what was asked for, a handler's own errors among them.
    pub answered: u64,
    /// Those that were refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// How many of the refused got no answer that says so, because the port is to stay silent.
    pub silent: u64,
    /// Those that nothing can be answered to, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Those whose answer is still to come.
    pub owed: u64,
    /// Answers that were sent, without what the port sends of its own accord.
    pub sent: u64,
    /// Answers that were not sent, by the counter of the port, the fault layer or the service.
    pub unsent: BTreeMap<&'static str, u64>,
}

/// Outcomes of a kind of service, as it counts them.
struct Outcomes {
    answered: &'static [&'static str],
    refused: &'static [&'static str],
    dropped: &'static [&'static str],
}

const RPC: Outcomes = Outcomes {
    answered: &["answered", "handler_error"],
    refused: &["unknown_function", "bad_length", "schema_mismatch", "result_too_large", "overloaded", "handler_failed"],
    dropped: &["bad_magic", "truncated"],
};

const LEASE_IO: Outcomes = Outcomes {
    answered: &["read", "written", "greeted", "pinged"],
    refused: &[
        "unknown_lease",
        "revoked",
        "expired",
        "stale_generation",
        "bad_request",
        "too_long",
        "out_of_range",
        "denied",
    ],
    dropped: &[
        "busy",
        "storage_failed",
        "not_theirs",
        "over_quota",
        "limited_peer",
        "limited_crowd",
        "limited_port",
        "malformed",
    ],
};

/// Why an answer that a port was given does not leave, as the drivers and the fault layer count it.
const UNSENT: [&str; 7] =
    ["tx_dropped", "tx_errors", "tx_gone", "tx_too_long", "fault_tx_dropped", "fault_tx_refused", "unroutable"];

/// What a port sends beside answers: of the network's own protocols, and copies on purpose.
const BESIDE: [&str; 3] = ["rx_answered", "tx_solicited", "fault_tx_duplicated"];

/// A counter; 0 where there is none of this name.
pub(crate) fn get(counters: &Counters, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

fn pick(counters: &Counters, names: &[&'static str]) -> BTreeMap<&'static str, u64> {
    names.iter().map(|name| (*name, get(counters, name))).filter(|(_, count)| *count > 0).collect()
}

fn sum(counts: &BTreeMap<&'static str, u64>) -> u64 {
    counts.values().sum()
}

/// The books of every queue, or every place where they do not add up. `owed` is how many requests of a queue may be
/// neither answered nor given up: none once an appliance has stopped, a ring and a burst while it runs. A snapshot of one
/// that runs is whole only while nothing arrives.
pub fn check(snapshot: &Snapshot, owed: u64) -> Result<Vec<Entry>, Vec<String>> {
    let (entries, wrong) = entries(snapshot, owed);
    if wrong.is_empty() { Ok(entries) } else { Err(wrong) }
}

/// The books of every queue, and every place where they do not add up.
pub(crate) fn entries(snapshot: &Snapshot, owed: u64) -> (Vec<Entry>, Vec<String>) {
    let lanes = snapshot.lcores.iter().flat_map(|lcore| lcore.lanes.iter().map(move |lane| (lcore, lane)));
    // Connections of a byte stream are a lane without a service: what it receives are no frames.
    let lanes = lanes.filter(|(_, lane)| !lane.service.is_empty());
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    for (lcore, lane) in lanes {
        let abandoned = get(&lcore.counters, "drain_abandoned");
        entries.push(entry(&lcore.name, lane, owed + abandoned, &mut wrong));
    }
    (entries, wrong)
}

fn entry(lcore: &str, lane: &LaneSnapshot, may_owe: u64, wrong: &mut Vec<String>) -> Entry {
    let LaneSnapshot { counters, port, service, .. } = lane;
    let rpc = service.contains_key("bad_magic");
    let outcomes = if rpc { &RPC } else { &LEASE_IO };
    let answered = sum(&pick(service, outcomes.answered));
    let (refused, dropped) = (pick(service, outcomes.refused), pick(service, outcomes.dropped));
    let received = get(service, "received");
    let known = answered + sum(&refused) + sum(&dropped);
    let owed = received.wrapping_sub(known);
    let mut law = |what: &str, left: u64, right: u64, tolerance: u64| {
        if left.abs_diff(right) > tolerance {
            wrong.push(format!("{lcore} {}: {what}: {left} is not {right}", lane.name));
        }
    };

    // Frames that a fault layer holds back are nobody's.
    let held = |side: &str| get(port, &format!("fault_{side}_held")) - get(port, &format!("fault_{side}_released"));
    let lent = get(port, "rx_frames") + get(port, "fault_rx_duplicated") - get(port, "fault_rx_dropped") - held("rx");
    law("frames that the port received, and those that were lent", lent, get(counters, "frames_rx"), 0);
    law("frames that were lent, and those that the service received", get(counters, "frames_rx"), received, 0);
    law("what was received, and all that became of it", received, known, may_owe);

    let silent = get(service, "dropped_undispatchable");
    let replied = get(counters, "frames_replied");
    law(
        "answers that were made, and those that were handed to the port",
        answered + sum(&refused) - silent,
        replied,
        0,
    );
    let mut unsent = pick(port, &UNSENT);
    unsent.extend(pick(service, &["unroutable"]));
    let sent = get(port, "tx_frames");
    let beside = sum(&pick(port, &BESIDE));
    law(
        "what the port was to send, and what became of it",
        replied + beside,
        sent + sum(&unsent) + held("tx"),
        may_owe,
    );
    let (lcore, port) = (lcore.to_owned(), lane.name.clone());
    Entry { lcore, port, received, answered, refused, silent, dropped, owed, sent: sent.saturating_sub(beside), unsent }
}

impl Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { lcore, port, received, answered, refused, silent, dropped, owed, sent, unsent } = self;
        write!(f, "{lcore} {port}: {received} received = {answered} answered")?;
        for (kind, counts) in [("refused", refused), ("dropped", dropped)] {
            for (reason, count) in counts {
                write!(f, " + {count} {kind} ({reason})")?;
            }
        }
        write!(f, " + {owed} owed; {silent} in silence, {sent} sent")?;
        unsent.iter().try_for_each(|(reason, count)| write!(f, ", {count} unsent ({reason})"))
    }
}
