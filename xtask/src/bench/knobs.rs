//! What the knobs of docs/tune.md do here: the knob turned, against the same server with it as it was. Over a memif, to the
//! most that the server can do: a client that waits for answers hides what a request costs.

use std::fs;

use anyhow::{Context, Result};

use super::{
    Reach, Row,
    capacity::{self, Messages, Target},
    network::{Contest, Figure, OUT, PAGES, Peer, contest, port_lines},
};
use crate::{
    hugepages::Hugepages,
    sh::{self, Process},
};

/// Turns of each side; a row needs no better than to show which way a knob goes.
const TURNS: usize = 5;

/// Requests a second of a quiet FPGA: a millisecond of silence between two.
const QUIET: &[&str] = &["--rate", "1000"];

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    fs::create_dir_all(OUT)?;
    let mut rows = Vec::new();
    for (name, to, busy, quiet) in [
        (
            "idle-adaptive",
            "idle = \"adaptive\"",
            "idle = \"adaptive\", udp, one request after another, RTT p50",
            "idle = \"adaptive\", udp, 1,000 requests/s, RTT p50",
        ),
        (
            "idle-wait",
            "idle = \"wait\"",
            "idle = \"wait\", udp, one request after another, RTT p50",
            "idle = \"wait\", udp, 1,000 requests/s, RTT p50",
        ),
    ] {
        rows.extend(contest(&Contest {
            name,
            baseline: BASELINE,
            ours: Box::new(move || server("udp", Some(("idle = \"spin\"", to)))),
            theirs: Box::new(|| server("udp", None)),
            figures: vec![round_trip(busy, &[]), round_trip(quiet, QUIET)],
            turns: TURNS,
        })?);
    }
    for (case, from, to) in [
        ("hugepages = false", "[[port]]", "[runtime.dpdk]\nhugepages = false\n[[port]]"),
        (
            "budget_us = 100",
            "handler = \"builtin:rpc_increment\"",
            "handler = \"builtin:rpc_increment\"\nbudget_us = 100",
        ),
        (
            "[port.pcap]",
            "service = \"rpc\"",
            "service = \"rpc\"\npcap = { file = \"knobs.pcap\", max_bytes = 100000000 }",
        ),
    ] {
        rows.push(
            capacity::Contest {
                case: format!("{case}, memif, server's capacity"),
                baseline: BASELINE,
                ours: Box::new(move || busy(Some((from, to)))),
                theirs: Box::new(|| busy(None)),
                least: None,
                turns: TURNS,
            }
            .row()?,
        );
    }
    Ok(rows)
}

const BASELINE: &str = "as it was";

fn round_trip(case: &'static str, pacing: &'static [&'static str]) -> Figure {
    Figure { case, pacing, pointer: "/latency/p50", scale: 1e-3, unit: "us", reach: Reach::Printed }
}

/// The service on a memif, asked for all that it can do.
fn busy(change: Option<(&str, &str)>) -> Result<Target> {
    let (server, _) = server("memif", change)?;
    Ok(Target { server, messages: Messages::rpc(32), frame_ns: capacity::of_berth })
}

/// Our RPC service, with a part of its configuration replaced.
fn server(port: &str, change: Option<(&str, &str)>) -> Result<(Process, Peer)> {
    let (lines, client) = port_lines(port, 32);
    let mut config = format!(
        "{lines}service = \"rpc\"\n[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n"
    );
    if let Some((from, to)) = change {
        config = config.replacen(from, to, 1);
    }
    let path = format!("{OUT}/knobs.toml");
    fs::write(&path, config)?;
    let (server, ready) = sh::berth(&path)?;
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    Ok((server, Peer::rpc(address, client, 32)))
}
