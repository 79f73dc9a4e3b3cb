//! `driver = "verbs"`: queue pairs of an RDMA device.

#[cfg(feature = "verbs")]
mod open;

use std::fmt;

use berth_keys::{Key, Kind, Owned, Section, Table, key};
use berth_wire::rendezvous::ImmForm;

use crate::{Reading, Rendezvous, Settings, Traits, common, of_driver, roce};

/// Values of the keys of `driver = "verbs"`, and of `[port.rdma]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verbs {
    /// Name of the device, such as `rxe0`.
    pub device: String,
    /// Index of our address in the GID table of the device's port.
    pub gid_index: u8,
    /// Address and messages of the rendezvous.
    pub rendezvous: Rendezvous,
    /// Port number of the device, from 1.
    pub port: u8,
    /// How immediates name slots.
    pub immediate: ImmForm,
    /// Number of slots for each peer.
    pub slots: u32,
    /// Limit on the peers of each queue.
    pub peers: usize,
}

static RDMA: Section = Section::new(
    "",
    &[
        key("port", Kind::Integer(1, 255), "the device's port").default("1"),
        common::IMMEDIATE,
        key("slots", Kind::Integer(1, 4096), "slots of each peer, at most 4 with psn24").default("64"),
        key("peers", Kind::Integer(1, 1024), "peers of each queue").default("64"),
    ],
);

const KEYS: &[Key] = &[
    common::DEVICE,
    key("gid_index", Kind::Integer(0, 255), "the place of our address in the port's table of GIDs")
        .default("1")
        .more("`berth doctor` lists them."),
    common::RENDEZVOUS,
    common::RENDEZVOUS_FORM,
    key("rdma", Kind::Table(&RDMA), "what each peer of driver = \"verbs\" has"),
];

impl Settings for Verbs {
    const WORD: &'static str = "verbs";
    const DOC: &'static str = "queue pairs of an RDMA device, or of soft-RoCE; needs a build with --features verbs";
    const LIBRARY: &'static str = "RDMA";
    const KEYS: &'static [Owned] = &[of_driver(Self::WORD, KEYS)];

    fn read(t: &mut Table<'_, '_>, _: &mut Reading<'_>) -> Option<Self> {
        let device = t.text("device").map(|at| at.value.to_string());
        let device = t.require("device", device, "device = \"mlx5_0\", a name that `rdma link` prints");
        let gid_index = t.number("gid_index") as u8;
        let rendezvous = roce::rendezvous(t);
        let rendezvous = t.require("rendezvous", rendezvous, "rendezvous = \"10.0.1.2:4791\", where peers come");
        let mut t = t.table_or_empty("rdma");
        let (port, peers) = (t.number("port") as u8, t.number("peers") as usize);
        let immediate = t.chosen("immediate", common::IMMEDIATES);
        let most = u64::from(immediate.max_slots());
        let slots = t.integer("slots");
        if let Some(at) = slots.as_ref().filter(|at| at.value > most) {
            let message = format_args!("immediates of the form {immediate} name {most} slots; write at most that");
            t.sink().wrong(at, message);
        }
        let slots = slots.map_or(t.default_number("slots").min(most), |at| at.value) as u32;
        t.finish();
        Some(Self { device: device?, gid_index, rendezvous: rendezvous?, port, immediate, slots, peers })
    }

    fn traits(&self) -> Traits {
        Traits { has_slots: true, speaks_udp: false, ..Traits::default() }
    }
}

impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, gid_index, rendezvous: Rendezvous { bind, form }, port, slots, peers, .. } = self;
        write!(f, "{device} port {port} gid {gid_index}, rendezvous {bind} {form:?}, {slots} slots, {peers} peers")
    }
}
