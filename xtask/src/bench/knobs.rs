//! What the knobs of docs/tune.md do here: the knob turned, against the same server with it as it was.

use std::fs;

use anyhow::{Context, Result};

use super::{
    Reach, Row,
    network::{Contest, Figure, OUT, PAGES, Peer, contest, port_lines},
};
use crate::{hugepages::Hugepages, serve::Server};

/// Turns of each side; a row needs no better than to show which way a knob goes.
const TURNS: usize = 5;

/// Requests a second of a quiet FPGA: a millisecond of silence between two.
const QUIET: &[&str] = &["--rate", "1000"];
const BUSY: &[&str] = &["--window", "64"];

/// A knob: what turns it, and what it shows in.
struct Knob {
    name: &'static str,
    port: &'static str,
    /// The configuration's text, and what replaces it.
    from: &'static str,
    to: &'static str,
    figures: Vec<Figure>,
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    fs::create_dir_all(OUT)?;
    let idle = |name, to, busy, quiet| Knob {
        name,
        port: "udp",
        from: "idle = \"spin\"",
        to,
        figures: vec![round_trip(busy, &[]), round_trip(quiet, QUIET)],
    };
    let on_memif = |name, from, to, case| Knob { name, port: "memif", from, to, figures: vec![throughput(case, BUSY)] };
    let knobs = [
        idle(
            "idle-adaptive",
            "idle = \"adaptive\"",
            "idle = \"adaptive\", udp, one request after another, RTT p50",
            "idle = \"adaptive\", udp, 1,000 requests/s, RTT p50",
        ),
        idle(
            "idle-wait",
            "idle = \"wait\"",
            "idle = \"wait\", udp, one request after another, RTT p50",
            "idle = \"wait\", udp, 1,000 requests/s, RTT p50",
        ),
        on_memif(
            "hugepages",
            "[[port]]",
            "[runtime.dpdk]\nhugepages = false\n[[port]]",
            "hugepages = false, memif, 64 in flight, throughput",
        ),
        on_memif(
            "budget",
            "handler = \"builtin:rpc_increment\"",
            "handler = \"builtin:rpc_increment\"\nbudget_us = 100",
            "budget_us = 100, memif, 64 in flight, throughput",
        ),
        on_memif(
            "pcap",
            "service = \"rpc\"",
            "service = \"rpc\"\npcap = { file = \"knobs.pcap\", max_bytes = 100000000 }",
            "[port.pcap], memif, 64 in flight, throughput",
        ),
    ];
    let mut rows = Vec::new();
    for Knob { name, port, from, to, figures } in knobs {
        rows.extend(contest(&Contest {
            name,
            baseline: "as it was",
            ours: Box::new(move || server(port, &[(from, to)])),
            theirs: Box::new(move || server(port, &[])),
            figures,
            turns: TURNS,
        })?);
    }
    Ok(rows)
}

fn round_trip(case: &'static str, pacing: &'static [&'static str]) -> Figure {
    Figure { case, pacing, pointer: "/latency/p50", scale: 1e-3, unit: "us", reach: Reach::Printed }
}

fn throughput(case: &'static str, pacing: &'static [&'static str]) -> Figure {
    Figure { case, pacing, pointer: "/answered_per_s", scale: 1e-6, unit: "M/s", reach: Reach::Printed }
}

/// Our RPC service with some of its configuration replaced.
fn server(port: &str, changes: &[(&str, &str)]) -> Result<(Server, Peer)> {
    let (lines, client) = port_lines(port, 32);
    let mut config = format!(
        "{lines}service = \"rpc\"\n[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n"
    );
    for (from, to) in changes {
        config = config.replacen(from, to, 1);
    }
    let path = format!("{OUT}/knobs.toml");
    fs::write(&path, config)?;
    let (server, ready) = Server::berth(&path)?;
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    Ok((server, Peer::rpc(address, client, 32)))
}
