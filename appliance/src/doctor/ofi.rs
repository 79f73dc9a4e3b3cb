//! libfabric: which providers there are here, and what kinds of endpoints they have.

use super::Findings;

/// What brings the providers that any host can have.
const INSTALL: &str = "apt-get install libfabric1, and see `fi_info` of libfabric-bin";

pub(super) fn examine(live: bool, f: &mut Findings) {
    const WHAT: &str = "libfabric";
    if !berth_ports::has_feature("ofi") {
        f.warn("ofi driver", "not built in", "cargo build --release --features ofi");
        return;
    }
    if !live {
        // Providers look at the machine for themselves.
        return;
    }
    match berth_ports::providers() {
        Ok(providers) => {
            for (name, endpoints) in &providers {
                f.ok(format!("{WHAT} {name}"), endpoints.join(", "));
            }
            if !providers.iter().any(|(_, endpoints)| endpoints.iter().any(|kind| kind == "FI_EP_RDM")) {
                f.missing(WHAT, "no provider has FI_EP_RDM endpoints, which ports need", INSTALL);
            }
        }
        Err(e) => f.missing(WHAT, format!("no provider: {e}"), INSTALL),
    }
}
