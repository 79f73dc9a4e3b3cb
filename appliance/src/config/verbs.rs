//! `driver = "verbs"`: queue pairs of an RDMA device.

use berth_wire::rendezvous::ImmForm;

use super::{
    roce::{self, Rendezvous},
    walk::{At, Table},
};

/// The keys of `driver = "verbs"`, and `[port.rdma]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verbs {
    /// The device's name.
    pub device: String,
    /// The place of our address in the GID table of the device's port.
    pub gid_index: u8,
    /// Where peers come.
    pub rendezvous: Rendezvous,
    /// The device's port.
    pub port: u8,
    /// How immediates name slots.
    pub immediate: ImmForm,
    /// Slots of each peer.
    pub slots: u32,
    /// Peers of each queue.
    pub peers: usize,
}

/// The keys that belong to it alone.
pub(super) const KEYS: &[&str] = &["gid_index", "rdma"];

pub(super) fn verbs(t: &mut Table<'_, '_>, device: Option<At<String>>) -> Option<Verbs> {
    let device = t.require("device", device, "device = \"mlx5_0\", a name that `rdma link` prints");
    let gid_index = t.number("gid_index") as u8;
    let rendezvous = roce::rendezvous(t);
    let rendezvous = t.require("rendezvous", rendezvous, "rendezvous = \"10.0.1.2:4791\", where peers come");
    let mut t = t.table_or_empty("rdma");
    let (port, peers) = (t.number("port") as u8, t.number("peers") as usize);
    let immediate = t.chosen("immediate", roce::IMMEDIATE);
    let most = u64::from(immediate.max_slots());
    let slots = t.integer("slots");
    if let Some(at) = slots.as_ref().filter(|at| at.value > most) {
        t.sink().wrong(at, format_args!("immediates of the form {immediate} name {most} slots; write at most that"));
    }
    let slots = slots.map_or(t.default_number("slots").min(most), |at| at.value) as u32;
    t.finish();
    Some(Verbs { device: device?.value, gid_index, rendezvous: rendezvous?, port, immediate, slots, peers })
}
