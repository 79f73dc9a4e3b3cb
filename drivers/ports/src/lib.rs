//! The roster of port drivers.
//!
//! A driver is one file here, which has its keys, reads them, and says what the driver is and does; and one line of the
//! roster below. Whoever configures, opens or describes ports goes by the roster and names no driver.
#![forbid(unsafe_code)]

mod common;
mod dpdk;
mod ofi;
mod roce;
mod roster;
mod tcp;
mod udp;
mod uring;
mod verbs;

use std::fmt::Display;

use berth_keys::{Binds, Owned, Owner, Table};

pub use dpdk::{Dpdk, Transport};
pub use ofi::Ofi;
pub use roce::{Peer, Rendezvous, Roce};
pub use tcp::Tcp;
pub use udp::Udp;
pub use uring::Uring;
pub use verbs::Verbs;

use roster::roster;

roster! {
    Udp,
    Uring,
    Tcp,
    Dpdk if "dpdk",
    Ofi if "ofi",
    Verbs if "verbs",
}

/// What a driver's keys say. Displayed as `berth check` shows it, after the driver's word.
pub trait Settings: Display + Sized {
    /// The driver's name in the configuration and in the ready line.
    const WORD: &'static str;
    /// Where its frames come from: a phrase.
    const DOC: &'static str;
    /// What it needs at build time, where its line of the roster names a feature.
    const LIBRARY: &'static str = "";
    /// Its keys of `[[port]]`.
    const KEYS: &'static [Owned];
    /// Its keys of `[port.limits]`.
    const LIMITS: &'static [Owned] = &[];

    /// Reads its keys; mistakes are noted.
    fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self>;

    /// What others must know of it.
    fn traits(&self) -> Traits {
        Traits::default()
    }
}

/// What is known where the keys of a port are read.
#[derive(Debug)]
pub struct Reading<'a> {
    /// What mistakes call the port.
    pub label: &'a str,
    /// Who binds which address.
    pub binds: &'a mut Binds,
    /// Whether the program was built with a feature.
    pub has_feature: fn(&str) -> bool,
}

/// What of a driver matters beyond it. The default is that of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Why a port has one CPU, and what to do instead; `None`: it has a queue for each of its CPUs.
    pub one_cpu: Option<&'static str>,
    /// It carries frames. Byte streams are none: they serve leases alone, and have no limits, faults or captures.
    pub has_frames: bool,
    /// Peers tell answers apart by the slots they come to, so that their order is no setting.
    pub has_slots: bool,
    /// Its datagrams are frames, as they are to everybody who speaks UDP.
    pub speaks_udp: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self { one_cpu: None, has_frames: true, has_slots: false, speaks_udp: true }
    }
}

/// Why a driver cannot be chosen that needs a library which the program was built without.
pub fn not_built(library: &str, feature: &str) -> String {
    format!("this berth was built without {library}; build it with `cargo build --release --features {feature}`")
}

/// Keys that belong to a driver.
const fn of_driver(word: &'static str, keys: &'static [berth_keys::Key]) -> Owned {
    Owned { by: Owner { key: "driver", word }, keys }
}
