//! libfabric: which providers there are here, and what kinds of endpoints they have.

use super::Findings;

#[cfg(feature = "ofi")]
pub(super) fn examine(live: bool, f: &mut Findings) {
    const WHAT: &str = "libfabric";
    if !live {
        // Providers look at the machine for themselves.
        return;
    }
    match berth_ofi::providers() {
        Ok(providers) => {
            let usable = |name: &&berth_ofi::Provider| name.endpoints.iter().any(|kind| kind == "FI_EP_RDM");
            for provider in &providers {
                f.ok(format!("{WHAT} {}", provider.name), provider.endpoints.join(", "));
            }
            if providers.iter().find(usable).is_none() {
                f.missing(WHAT, "no provider has FI_EP_RDM endpoints, which ports need", INSTALL);
            }
        }
        Err(e) => f.missing(WHAT, format!("no provider: {e}"), INSTALL),
    }
}

/// What brings the providers that any host can have.
#[cfg(feature = "ofi")]
const INSTALL: &str = "apt-get install libfabric1, and see `fi_info` of libfabric-bin";

#[cfg(not(feature = "ofi"))]
pub(super) fn examine(_: bool, f: &mut Findings) {
    f.warn("ofi driver", "not built in", "cargo build --release --features ofi");
}
