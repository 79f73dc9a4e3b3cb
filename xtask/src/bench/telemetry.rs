//! What telemetry costs: Berth against itself with telemetry compiled out.

use std::fs;

use anyhow::Result;

use super::{
    Reach, Row, capacity,
    network::{self, Contest, Figure, OUT, PAGES, berth_of, busy_berth, contest, round_trip},
};
use crate::{
    build::FEATURES,
    hugepages::Hugepages,
    sh::{BERTH, cargo, run},
};

/// The same program that times nothing and publishes nothing.
const WITHOUT: &str = "target/bench/berth-no-telemetry";

const BASELINE: &str = "telemetry compiled out";

/// A hundredth is to be told apart.
const TURNS: usize = 21;

/// Builds both; the other one first, since both come out under the same name.
pub(super) fn build() -> Result<()> {
    fs::create_dir_all(OUT)?;
    let features = format!("{FEATURES},berth/no-telemetry");
    run(&mut cargo(["build", "--release", "-p", "berth", "--features", &features]))?;
    fs::copy(BERTH, WITHOUT)?;
    crate::build::berth()
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let _pages = Hugepages::reserve(2 * PAGES);
    let most = capacity::Contest {
        case: "rpc_increment 32 B, memif, server's capacity".into(),
        baseline: BASELINE,
        ours: Box::new(|| busy_berth(BERTH)),
        theirs: Box::new(|| busy_berth(WITHOUT)),
        least: Some(0.99),
        turns: TURNS,
    };
    let mut rows = vec![most.row()?];
    rows.extend(contest(&Contest {
        name: "telemetry",
        baseline: BASELINE,
        turns: TURNS,
        ours: Box::new(|| network::berth("memif", 32)),
        theirs: Box::new(|| berth_of(WITHOUT, "memif", 32)),
        figures: vec![Figure { reach: Reach::Printed, ..round_trip("rpc_increment 32 B, memif, RTT p50", 1.0) }],
    })?);
    Ok(rows)
}
