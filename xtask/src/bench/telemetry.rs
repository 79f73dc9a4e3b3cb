//! What telemetry costs: Berth against itself with telemetry compiled out.

use std::fs;

use anyhow::Result;

use super::{
    Reach, Row,
    network::{self, Contest, OUT, PAGES, berth_of, contest, round_trip, throughput},
};
use crate::{
    hugepages::Hugepages,
    serve::{self, BERTH},
    sh::{cargo, run},
};

/// The same program that times nothing and publishes nothing.
const WITHOUT: &str = "target/bench/berth-no-telemetry";

/// Builds both; the other one first, since both come out under the same name.
pub(super) fn build() -> Result<()> {
    fs::create_dir_all(OUT)?;
    let features = format!("{},no-telemetry", serve::FEATURES);
    run(&mut cargo(["build", "--release", "-p", "berth", "--features", &features]))?;
    fs::copy(BERTH, WITHOUT)?;
    serve::build()
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    contest(&Contest {
        name: "telemetry",
        baseline: "telemetry compiled out",
        // A hundredth is to be told apart.
        turns: 21,
        ours: Box::new(|| network::berth("memif", 32)),
        theirs: Box::new(|| berth_of(WITHOUT, "memif", 32)),
        figures: vec![
            throughput("rpc_increment 32 B, memif, open throughput", Reach::AtLeast(0.99)),
            network::Figure { reach: Reach::Printed, ..round_trip("rpc_increment 32 B, memif, RTT p50", 1.0) },
        ],
    })
}
