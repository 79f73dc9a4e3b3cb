//! `driver = "ofi"`: a libfabric endpoint.

#[cfg(feature = "ofi")]
mod open;

use std::{fmt, net::SocketAddr};

use berth_keys::{Kind, Owned, Table, address, key};

use crate::{Reading, Settings, Traits, common, of_driver};

/// Values of the keys of `driver = "ofi"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ofi {
    /// Name of the libfabric provider, such as `tcp`.
    pub provider: String,
    /// Name of the fabric, if the provider has several.
    pub fabric: Option<String>,
    /// Name of the domain, if the fabric has several.
    pub domain: Option<String>,
    /// Address of the endpoint, if the provider uses IP addresses; port 0 takes a free one.
    pub bind: Option<SocketAddr>,
    /// TCP address of the rendezvous, where peers are admitted; port 0 takes a free one.
    pub rendezvous: SocketAddr,
    /// Limit on the peers at a time.
    pub max_peers: usize,
}

impl Settings for Ofi {
    const WORD: &'static str = "ofi";
    const DOC: &'static str = "an endpoint of libfabric; needs a build with --features ofi";
    const LIBRARY: &'static str = "libfabric";
    const KEYS: &'static [Owned] = &[of_driver(
        Self::WORD,
        &[
            key("provider", Kind::Text, "what `berth doctor` lists with FI_EP_RDM")
                .required()
                .example("\"tcp\"")
                .more("tcp, shm, udp;ofi_rxd, verbs;ofi_rxm ..."),
            key("fabric", Kind::Text, "the fabric, where the provider has several, as `fi_info` names it")
                .example("\"192.0.2.0/24\""),
            key("domain", Kind::Text, "the domain, where the fabric has several").example("\"eth0\""),
            key("max_peers", Kind::Integer(1, 4096), "peers at a time").default("64"),
            common::BIND,
            common::RENDEZVOUS,
        ],
    )];

    fn read(t: &mut Table<'_, '_>, _: &mut Reading<'_>) -> Option<Self> {
        let [provider, fabric, domain] =
            ["provider", "fabric", "domain"].map(|key| t.text(key).map(|at| at.value.to_string()));
        let max_peers = t.number("max_peers") as usize;
        let (bind, rendezvous) = (t.text("bind"), t.text("rendezvous"));
        let wanted = "provider = \"tcp\", or another one that `berth doctor` lists with FI_EP_RDM";
        let provider = t.require("provider", provider, wanted);
        let rendezvous = t.require("rendezvous", rendezvous, "rendezvous = \"127.0.0.1:0\"");
        let bind = match bind {
            Some(at) => Some(address(t, &at)?),
            None => None,
        };
        let rendezvous = address(t, &rendezvous?)?;
        Some(Self { provider: provider?, fabric, domain, bind, rendezvous, max_peers })
    }

    fn traits(&self) -> Traits {
        let one_cpu = Some("a libfabric port has one endpoint; give it one `cpu`, and other CPUs ports of their own");
        Traits { one_cpu, speaks_udp: false, ..Traits::default() }
    }
}

impl fmt::Display for Ofi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rendezvous {}", self.provider, self.rendezvous)
    }
}

/// Undoes changes that libraries made to signals when they were loaded. Call it first in `main`.
pub fn prepare_process() {
    #[cfg(feature = "ofi")]
    berth_ofi::reset_signals();
}

/// The libfabric providers that can be used on this host now, each with its endpoint types.
pub fn providers() -> anyhow::Result<Vec<(String, Vec<String>)>> {
    #[cfg(not(feature = "ofi"))]
    anyhow::bail!(crate::not_built(Ofi::LIBRARY, "ofi"));
    #[cfg(feature = "ofi")]
    open::providers()
}
