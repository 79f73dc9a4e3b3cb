//! What became of every frame that a server's ports received.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_engine::Snapshot;
use berth_process::Process;

use crate::{
    books::{self, Entry, get},
    report::suite::{Book, Verdict},
};

/// Stops a server of ours, and reads what it counted.
pub(super) fn close(server: Process) -> anyhow::Result<Snapshot> {
    serde_json::from_value(server.terminate()?.counters()?).context("the stopped line")
}

/// Each port's book, queues of one port are one; and where they do not add up.
pub(super) fn books(snapshot: &Snapshot) -> (Vec<Book>, Vec<String>) {
    let (entries, wrong) = books::entries(snapshot, 0);
    let mut all: Vec<Book> = Vec::new();
    for Entry { port, received, answered, refused, dropped, .. } in entries {
        let index = all.iter().position(|known| known.port == port).unwrap_or_else(|| {
            let (refused, dropped) = (BTreeMap::new(), BTreeMap::new());
            all.push(Book { port, received: 0, answered: 0, refused, dropped });
            all.len() - 1
        });
        let book = &mut all[index];
        book.received += received;
        book.answered += answered;
        for (sum, part) in [(&mut book.refused, refused), (&mut book.dropped, dropped)] {
            for (reason, count) in part {
                *sum.entry(reason.to_owned()).or_default() += count;
            }
        }
    }
    (all, wrong)
}

/// A counter of every lane's port together, such as `rx_overrun`: what the kernel dropped before the port saw it.
pub(super) fn port_sum(snapshot: &Snapshot, name: &str) -> u64 {
    snapshot.lcores.iter().flat_map(|lcore| &lcore.lanes).map(|lane| get(&lane.port, name)).sum()
}

/// Whether all books add up.
pub(super) fn verdict(books: &[Book], wrong: &[String]) -> Verdict {
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
        passed: !books.is_empty() && wrong.is_empty() && books.iter().all(|book| book.missing() == 0),
        detail: books.iter().map(line).chain(wrong.iter().cloned()).collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use berth_engine::{Counters, LaneSnapshot, LcoreSnapshot};

    use super::*;

    /// A queue that received and answered as its service says.
    fn lane(name: &str, frames: [u64; 2], service: &[(&str, u64)]) -> LaneSnapshot {
        let counters = |all: &[(&str, u64)]| all.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let [rx, tx] = frames;
        LaneSnapshot {
            name: name.into(),
            counters: counters(&[("frames_rx", rx), ("frames_replied", tx)]),
            port: counters(&[("rx_frames", rx), ("tx_frames", tx)]),
            service: counters(service),
            histograms: BTreeMap::new(),
        }
    }

    fn snapshot(lanes: Vec<LaneSnapshot>) -> Snapshot {
        let hiccups = hdrhistogram::Histogram::new(3).unwrap().into();
        let counters = Counters::default();
        let lcore = LcoreSnapshot { name: "cpu0".into(), busy_fraction: 0.0, hiccups, counters, lanes };
        Snapshot { lcores: vec![lcore], workers: Vec::new() }
    }

    #[test]
    fn every_frame_is_accounted_for_once() {
        let service = [("received", 17), ("answered", 10), ("overloaded", 4), ("bad_magic", 3), ("limited_peer", 4)];
        let calls = lane("p", [17, 14], &service);
        let (good, wrong) = books(&snapshot(vec![calls.clone(), calls.clone()]));
        assert_eq!((good.len(), good[0].missing(), good[0].answered, wrong.len()), (1, 0, 20, 0));
        let verdict_of_good = verdict(&good, &wrong);
        assert!(verdict_of_good.passed);
        let detail = "34 received = 20 answered + 8 overloaded refused + 6 bad_magic dropped";
        assert!(verdict_of_good.detail.contains(detail), "{}", verdict_of_good.detail);
        let leases = [("received", 9), ("read", 5), ("denied", 2), ("malformed", 1), ("bytes_read", 320)];
        let (bad, wrong) = books(&snapshot(vec![calls, lane("l", [9, 7], &leases)]));
        assert_eq!((bad[1].missing(), wrong.len()), (1, 1));
        assert!(!verdict(&bad, &wrong).passed);
        assert!(!verdict(&[], &[]).passed);
        // An answer that was made and neither sent nor lost.
        let (_, wrong) = books(&snapshot(vec![lane("p", [17, 13], &service)]));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
    }
}
