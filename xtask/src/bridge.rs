//! `cargo xtask bridge`: the library by which the servers of CUDA-Q Realtime use our ports.

use std::fs;

use anyhow::{Result, ensure};

use crate::{
    setup,
    sh::{cargo, cmd, output, run},
};

/// Where servers look for it, by this name. Cargo's own name for it cannot have hyphens.
pub(crate) const LIBRARY: &str = "target/release/libcudaq-realtime-bridge-berth.so";
const BUILT: &str = "target/release/libberth_bridge.so";

/// Builds it, with drivers beyond those of the kernel's sockets, and says where it is.
pub(crate) fn command(features: &[&str]) -> Result<()> {
    setup::build()?;
    run(cargo(["build", "--release", "-p", "berth-bridge"]).arg(format!("--features={}", features.join(","))))?;
    if features.is_empty() {
        check()?;
    }
    place()?;
    println!("{LIBRARY}");
    Ok(())
}

/// That it exports one symbol alone; drivers have more.
pub(crate) fn check() -> Result<()> {
    let symbols = output(&mut cmd("nm", ["-D", "--defined-only", "--format=just-symbols", BUILT]))?;
    ensure!(symbols == "cudaq_realtime_get_bridge_interface\n", "{BUILT} exports more than it should: {symbols}");
    Ok(())
}

/// Gives it the name that servers look for.
pub(crate) fn place() -> Result<()> {
    fs::copy(BUILT, LIBRARY)?;
    Ok(())
}
