//! Rows of RDMA and what stands in for it.

use std::fs;

use anyhow::{Context, Result};

use super::{
    Row,
    network::{self, Contest, OUT, PAGES, Peer, SERVER_CPU, TURNS, contest, round_trip},
};
use crate::{
    hugepages::Hugepages,
    sh::{self, Process},
};

/// Suites of `lab/bench` that need RDMA, with soft-RoCE.
pub(super) const GUESTS: [&str; 2] = ["rdma-lease", "rdma-rpc"];

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
