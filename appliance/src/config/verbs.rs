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
    let gid_index = t.integer("gid_index", 0..=255).map_or(1, |at| at.value as u8);
    let rendezvous = roce::rendezvous(t);
    let rendezvous = t.require("rendezvous", rendezvous, "rendezvous = \"10.0.1.2:4791\", where peers come");
    let (mut port, mut peers, mut immediate, mut slots) = (1, 64, ImmForm::Psn20, None);
    if let Some(mut t) = t.table("rdma") {
        port = t.integer("port", 1..=255).map_or(port, |at| at.value as u8);
        peers = t.integer("peers", 1..=1024).map_or(peers, |at| at.value as usize);
        let form = t.choice("immediate", &[("psn20", ImmForm::Psn20), ("psn24", ImmForm::Psn24)]);
        immediate = form.map_or(immediate, |at| at.value);
        slots = t.integer("slots", 1..=u64::from(ImmForm::Psn20.max_slots()));
        if let Some(at) = slots.as_ref().filter(|at| at.value > u64::from(immediate.max_slots())) {
            let most = immediate.max_slots();
            t.sink()
                .wrong(at, format_args!("immediates of the form {immediate} name {most} slots; write at most that"));
        }
        t.finish();
    }
    let slots = slots.map_or(immediate.max_slots().min(64), |at| at.value as u32);
    Some(Verbs { device: device?.value, gid_index, rendezvous: rendezvous?, port, immediate, slots, peers })
}
