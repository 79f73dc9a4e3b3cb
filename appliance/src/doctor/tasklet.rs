//! The processes of tasklets: who starts them, and what stands around them. One is started to see.

use super::Findings;
use crate::sys::Root;

#[cfg(not(feature = "wasm"))]
pub(super) fn examine(_: &Root, _: bool, _: &mut Findings) {}

#[cfg(feature = "wasm")]
pub(super) fn examine(root: &Root, live: bool, f: &mut Findings) {
    use berth_wasm::{Isolated, Isolation, Parent};

    use crate::{config::Executors, wasm};

    const WHAT: &str = "tasklets";
    /// A page of memory for runs, of which there are none.
    const MEMORY: u64 = 64 << 10;
    const UNIT: &str = "systemctl start berth-executor.socket";

    if !live {
        return;
    }
    let started = wasm::starter(Executors::Auto).and_then(|starter| {
        let isolation = Isolation { starter, cpus: Vec::new(), memory: MEMORY };
        Ok(Isolated::new(isolation, wasm::compiler())?)
    });
    match started {
        Err(error) => f.missing(WHAT, format!("no executor starts: {error:#}"), UNIT),
        Ok(isolated) => {
            let (parent, walls) = (isolated.parent(), isolated.walls());
            let mut found = format!("executors are {parent}");
            // A unit has namespaces of its own.
            if parent == Parent::Node && !walls.namespaces {
                found += "; no namespaces";
            }
            if !walls.landlock {
                found += "; no Landlock";
            }
            // Without systemd there is no unit.
            if parent == (Parent::Unit { cgroup: true }) || !root.exists("/run/systemd/system") {
                f.ok(WHAT, found);
            } else {
                f.warn(WHAT, found, UNIT);
            }
        }
    }
}
