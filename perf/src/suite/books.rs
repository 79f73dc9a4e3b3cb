//! What became of every frame that a server's ports received.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_engine::{Counters, LaneSnapshot, Snapshot};

use super::process::{Finished, Process};
use crate::report::suite::{Book, Verdict};

/// Outcomes of an RPC service that are answers to what was asked.
const CALLS_ANSWERED: [&str; 2] = ["answered", "handler_error"];
/// Outcomes of an RPC service that are answers of another kind.
const CALLS_REFUSED: [&str; 6] =
    ["unknown_function", "bad_length", "schema_mismatch", "result_too_large", "overloaded", "handler_failed"];
/// Outcomes of an RPC service without an answer.
const CALLS_DROPPED: [&str; 2] = ["bad_magic", "truncated"];

/// The same of a service for leases, whose other outcomes are refusals.
const MESSAGES_ANSWERED: [&str; 4] = ["read", "written", "greeted", "pinged"];
const MESSAGES_DROPPED: [&str; 1] = ["malformed"];
/// What a service for leases counts beside outcomes.
const MESSAGES_BESIDE: [&str; 4] = ["received", "bytes_read", "bytes_written", "unroutable"];

/// Stops a server of ours, and reads what it counted.
pub(super) fn close(server: Process) -> anyhow::Result<Snapshot> {
    let finished: Finished = server.terminate()?.check()?;
    let stopped = finished.lines.iter().find_map(|line| line.strip_prefix("berth stopped "));
    serde_json::from_str(stopped.context("the server printed no `berth stopped` line")?).context("the stopped line")
}

/// Each port's book; queues of one port are one.
pub(super) fn books(snapshot: &Snapshot) -> Vec<Book> {
    let mut books: Vec<Book> = Vec::new();
    for lane in snapshot.lcores.iter().flat_map(|lcore| &lcore.lanes) {
        let book = book(lane);
        match books.iter_mut().find(|known| known.port == book.port) {
            Some(known) => {
                known.received += book.received;
                known.answered += book.answered;
                for (sum, part) in [(&mut known.refused, book.refused), (&mut known.dropped, book.dropped)] {
                    for (reason, count) in part {
                        *sum.entry(reason).or_default() += count;
                    }
                }
            }
            None => books.push(book),
        }
    }
    books
}

fn book(lane: &LaneSnapshot) -> Book {
    let service = &lane.service;
    let sum = |names: &[&str]| names.iter().filter_map(|name| service.get(*name)).sum();
    let of = |names: &[&str]| -> BTreeMap<String, u64> {
        let counts = names.iter().filter_map(|name| Some(((*name).to_owned(), *service.get(*name)?)));
        counts.filter(|(_, count)| *count > 0).collect()
    };
    let (answered, refused, dropped) = if service.contains_key("answered") {
        (sum(&CALLS_ANSWERED), of(&CALLS_REFUSED), of(&CALLS_DROPPED))
    } else {
        let known = [&MESSAGES_ANSWERED[..], &MESSAGES_DROPPED, &MESSAGES_BESIDE].concat();
        let refused: Vec<&str> = service.keys().map(String::as_str).filter(|name| !known.contains(name)).collect();
        (sum(&MESSAGES_ANSWERED), of(&refused), of(&MESSAGES_DROPPED))
    };
    Book { port: lane.name.clone(), received: count(&lane.counters, "frames_rx"), answered, refused, dropped }
}

/// A counter of every lane's port together, such as `rx_overrun`: what the kernel dropped before the port saw it.
pub(super) fn port_sum(snapshot: &Snapshot, name: &str) -> u64 {
    snapshot.lcores.iter().flat_map(|lcore| &lcore.lanes).map(|lane| count(&lane.port, name)).sum()
}

fn count(counters: &Counters, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

/// Whether all books add up.
pub(super) fn verdict(books: &[Book]) -> Verdict {
    let line = |book: &Book| {
        let reasons = |counts: &BTreeMap<String, u64>| {
            let all: Vec<_> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            if all.is_empty() { "0".into() } else { all.join(" + ") }
        };
        let Book { port, received, answered, refused, dropped } = book;
        let gap = if book.missing() == 0 { String::new() } else { format!(": {} unaccounted for", book.missing()) };
        format!(
            "{port}: {received} received = {answered} answered + {} refused + {} dropped{gap}",
            reasons(refused),
            reasons(dropped)
        )
    };
    Verdict {
        what: "the books add up".into(),
        passed: !books.is_empty() && books.iter().all(|book| book.missing() == 0),
        detail: books.iter().map(line).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str, frames_rx: u64, service: &[(&str, u64)]) -> LaneSnapshot {
        let counters = |all: &[(&str, u64)]| all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        LaneSnapshot {
            name: name.into(),
            counters: counters(&[("frames_rx", frames_rx)]),
            port: counters(&[]),
            service: counters(service),
            histograms: BTreeMap::new(),
        }
    }

    #[test]
    fn every_frame_is_accounted_for_once() {
        let calls = book(&lane(
            "p",
            17,
            &[("received", 17), ("answered", 10), ("overloaded", 4), ("bad_magic", 3), ("limited_peer", 4)],
        ));
        assert_eq!((calls.missing(), calls.answered), (0, 10));
        assert!(
            verdict(std::slice::from_ref(&calls))
                .detail
                .contains("17 received = 10 answered + 4 overloaded refused + 3 bad_magic dropped")
        );
        let leases =
            book(&lane("l", 9, &[("received", 9), ("read", 5), ("denied", 2), ("malformed", 1), ("bytes_read", 320)]));
        assert_eq!(leases.missing(), 1);
        assert!(!verdict(&[calls, leases]).passed);
        assert!(!verdict(&[]).passed);
    }
}
