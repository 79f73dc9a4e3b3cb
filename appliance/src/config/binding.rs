//! `[[binding]]`: transports of their own that leases can be connected to.

use berth_keys::Table;
use berth_ports::{Rdma, Windows};

use super::Host;

/// One transport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// One-sided reads and writes by RDMA.
    Rdma(Rdma),
}

pub(super) fn read_all(root: &mut Table<'_, '_>, host: &Host, leases: bool) -> Vec<Binding> {
    let mut bindings = Vec::new();
    for mut t in root.tables("binding").unwrap_or_default() {
        if !leases {
            t.sink().mistake(t.span(), t.path(), "connects leases, and nothing grants any; add [control]");
        }
        let kind = t.choice("kind", &[("rdma", ())]);
        let kind = t.require("kind", kind, "kind = \"rdma\"");
        if let Some(at) = kind.as_ref().filter(|_| !(host.has_feature)("verbs")) {
            t.sink().wrong(at, berth_ports::not_built("RDMA", "verbs"));
        }
        let device = t.text("device");
        let device = t.require("device", device, "device = \"mlx5_0\", a name that `rdma link` prints");
        let (port, gid_index) = (t.number("port") as u8, t.number("gid_index") as u8);
        let max_leases = t.number("max_leases") as u32;
        let words = [("auto", Windows::Auto), ("always", Windows::Always), ("never", Windows::Never)];
        let windows = t.chosen("windows", &words);
        let is_same = |Binding::Rdma(other): &Binding| device.as_ref().is_some_and(|it| other.device == it.value);
        if let (Some(at), true) = (&device, bindings.iter().any(is_same)) {
            t.sink().wrong(at, "there is a binding of this device already");
        }
        t.finish();
        if let Some(device) = device {
            let device = device.value.to_string();
            bindings.push(Binding::Rdma(Rdma { device, port, gid_index, max_leases, windows }));
        }
    }
    bindings
}
