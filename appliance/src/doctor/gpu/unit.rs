//! The device nodes that systemd lets the appliance have, as its unit that is installed says.

use std::collections::BTreeMap;

use super::{Findings, Root};

/// Where systemd looks for units, the first before the others.
const FOLDERS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

const UNIT: &str = "berth.service";

/// What a unit says of devices.
#[derive(Default)]
struct Devices {
    private: bool,
    policy: String,
    /// `DeviceAllow=`, those that may be read and written.
    allowed: Vec<String>,
}

impl Devices {
    /// Takes the lines of a unit or of a drop-in.
    fn read(&mut self, text: &str) {
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            let value = value.trim();
            match key.trim() {
                "PrivateDevices" => self.private = matches!(value, "yes" | "true" | "on" | "1"),
                "DevicePolicy" => value.clone_into(&mut self.policy),
                "DeviceAllow" if value.is_empty() => self.allowed.clear(),
                "DeviceAllow" => {
                    let mut words = value.split_whitespace();
                    let (Some(node), may) = (words.next(), words.next().unwrap_or("rwm")) else { continue };
                    if may.contains('r') && may.contains('w') {
                        self.allowed.push(node.to_owned());
                    }
                }
                _ => {}
            }
        }
    }

    /// `groups`: the names of `/proc/devices`.
    fn allows(&self, groups: &str, node: &str) -> bool {
        let is_open = self.allowed.is_empty() && matches!(&*self.policy, "" | "auto");
        let group = format!("char-{}", group(groups, node));
        let is_its = |allowed: &String| allowed == &format!("/dev/{node}") || matches(allowed, &group);
        !self.private && (is_open || self.allowed.iter().any(is_its))
    }
}

/// The group of a node in `/proc/devices`, as NVIDIA's modules name them: of the driver's own nodes `nvidia` and `nvidiactl` since
/// 550, `nvidia-frontend` before 545, and `nvidia` between.
fn group<'n>(groups: &str, node: &'n str) -> &'n str {
    let has = |group: &str| groups.lines().any(|line| line.split_whitespace().nth(1) == Some(group));
    match node {
        _ if node.starts_with("nvidia-uvm") => "nvidia-uvm",
        _ if node.starts_with("nvidia-caps/") => "nvidia-caps",
        _ if node.starts_with("nvidia-") => node,
        _ if has("nvidia-frontend") => "nvidia-frontend",
        "nvidiactl" if has("nvidiactl") => "nvidiactl",
        _ => "nvidia",
    }
}

/// Whether a pattern with `*` and `?` stands for the whole of a text.
fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern_rest, mut text_rest) = (pattern.chars(), text.chars());
    match (pattern_rest.next(), text_rest.next()) {
        (None, None) => true,
        (Some('*'), _) if matches(pattern_rest.as_str(), text) => true,
        (Some('*'), Some(_)) => matches(pattern, text_rest.as_str()),
        (Some(wanted), Some(has)) if wanted == '?' || wanted == has => {
            matches(pattern_rest.as_str(), text_rest.as_str())
        }
        _ => false,
    }
}

pub(super) fn examine(root: &Root, f: &mut Findings) {
    const WHAT: &str = "gpu device nodes of the unit";
    let Some(text) = FOLDERS.iter().find_map(|folder| root.read(&format!("{folder}/{UNIT}"))) else { return };
    let mut devices = Devices::default();
    devices.read(&text);
    for (name, folder) in drop_ins(root) {
        devices.read(&root.read(&format!("{folder}/{name}")).unwrap_or_default());
    }
    let groups = root.read("/proc/devices").unwrap_or_default();
    let lacking: Vec<_> = nodes(root).into_iter().filter(|node| !devices.allows(&groups, node)).collect();
    if lacking.is_empty() {
        f.ok(WHAT, format!("{UNIT} lets them in"));
        return;
    }
    let found = format!("{UNIT} lets in no /dev/{}", lacking.join(", /dev/"));
    if devices.private {
        f.warn(WHAT, format!("{found}: PrivateDevices="), "systemctl edit berth: [Service] PrivateDevices=no");
    } else {
        f.warn(WHAT, found, "systemctl edit berth: [Service] DeviceAllow=char-nvidia* rw");
    }
}

/// The drop-ins of the unit in their order, each with its folder: of those with one name the first folder's counts.
fn drop_ins(root: &Root) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for folder in FOLDERS.map(|folder| format!("{folder}/{UNIT}.d")) {
        for name in root.names(&folder).into_iter().filter(|name| name.strip_suffix(".conf").is_some()) {
            all.entry(name).or_insert_with(|| folder.clone());
        }
    }
    all
}

/// The nodes that a driver opens, those among them that are there or not yet, below `/dev`.
fn nodes(root: &Root) -> Vec<String> {
    let mut nodes: Vec<_> = ["nvidia0", "nvidiactl", "nvidia-uvm"].map(str::to_owned).into();
    nodes.extend(
        root.names("/dev").into_iter().filter(|name| name.starts_with("nvidia") && !name.starts_with("nvidia-caps")),
    );
    nodes.extend(root.names("/dev/nvidia-caps").into_iter().map(|name| format!("nvidia-caps/{name}")));
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}
