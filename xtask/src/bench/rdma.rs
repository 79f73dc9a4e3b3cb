//! Rows of RDMA and what stands in for it.

use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::{
    Pair, Reach, Row,
    network::{self, Contest, OUT, PAGES, Peer, SERVER_CPU, TURNS, contest, round_trip},
};
use crate::{
    hugepages::Hugepages,
    lab,
    sh::{self, Process},
};

/// Rows that this host can run without RDMA.
pub(super) fn host_rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    fs::create_dir_all(OUT)?;
    contest(&Contest {
        name: "roce",
        baseline: "our rpc over UDP, memif",
        ours: Box::new(roce),
        theirs: Box::new(|| network::berth("memif", 32)),
        figures: vec![round_trip("rpc_increment 32 B, RoCE in software, memif, RTT p50", 1.15)],
        turns: TURNS,
    })
}

/// A pair of figures, as a suite of `lab/bench` prints it.
#[derive(Deserialize)]
struct Line {
    case: String,
    baseline: String,
    /// The ratio to reach at most; without it the row is printed.
    reach: Option<f64>,
    ours: f64,
    theirs: f64,
}

/// Rows that need RDMA: suites of the lab, each in a guest with soft-RoCE.
pub(super) fn guest_rows() -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for line in lab::bench()?.lines() {
        let Line { case, baseline, reach, ours, theirs } =
            serde_json::from_str(line).with_context(|| format!("not a pair of figures: {line}"))?;
        let pair = Pair { state: "guest".into(), ours, theirs };
        if let Some(row) = rows.iter_mut().find(|row| row.case == case) {
            row.pairs.push(pair);
        } else {
            let reach = reach.map_or(Reach::Printed, Reach::AtMost);
            rows.push(Row { case, baseline, unit: "us", reach, pairs: vec![pair] });
        }
    }
    Ok(rows)
}

/// Our RPC service behind an unreliable connection that we speak ourselves.
fn roce() -> Result<(Process, Peer)> {
    let device = network::memif(0, "server", 32);
    let config = format!(
        "[[port]]\nname = \"roce\"\ndriver = \"dpdk\"\ndevice = \"{device}\"\naddress = \"10.0.0.2/24\"\ntransport = \"roce\"\n\
         rendezvous = \"127.0.0.1:0\"\ncpu = {SERVER_CPU}\nidle = \"spin\"\n\
         [[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n"
    );
    let path = format!("{OUT}/roce.toml");
    fs::write(&path, config)?;
    let (server, ready) = sh::berth(&path)?;
    let rendezvous = ready["ports"][0]["rendezvous"].as_str().context("a port without a rendezvous")?;
    let device = network::memif(1, "client", 32);
    let args = ["rpc", "--port", "roce", "--device", &device, "--address", "10.0.0.1/24", "--rendezvous", rendezvous];
    Ok((server, Peer(args.map(String::from).into())))
}
