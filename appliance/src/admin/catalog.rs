//! What each counter is called in `/metrics`, as it says itself where it is declared.
//!
//! Layers report counters as flat names. `berth_port::counters!` declares each with its family, labels and help; here the
//! tables of all layers are put together. docs/telemetry.md has them too; a test keeps them equal.

use std::sync::LazyLock;

use berth_port::{Counter, Family, Tables};

/// What each part of the appliance counts, and what is put before the names.
const TABLES: &[(&str, &str, &[Tables])] = &[
    ("lcore", "", &[berth_engine::LCORE_COUNTERS]),
    ("lane", "", &[berth_engine::LANE_COUNTERS]),
    ("port", "", &[berth_port::COUNTERS]),
    ("worker", "", &[berth_engine::WORKER_COUNTERS]),
    ("rpc", "", &[berth_rpc::COUNTERS, berth_ring::COUNTERS, berth_rpc::WINDOW_COUNTERS]),
    ("data", "", &[berth_lease_io::COUNTERS]),
    (
        "control",
        "",
        &[berth_control::COUNTERS, berth_identity::link::COUNTERS, berth_fabric::COUNTERS, berth_journal::COUNTERS],
    ),
    ("control", "region_*_", &[berth_lease::BLOCK_COUNTERS]),
    ("control", "", berth_ports::Rdma::COUNTERS),
    ("control", "", berth_ports::Nvme::COUNTERS),
    ("control", "", berth_ports::KernelNvme::COUNTERS),
    ("control", "", berth_ports::Sriov::COUNTERS),
    ("gpu", "", &[berth_gpu::COUNTERS]),
    ("hip", "", &[berth_hip_worker::COUNTERS]),
    ("admin", "", &[super::counts::COUNTERS]),
];

/// A counter of a part, with its whole name.
struct Entry {
    part: &'static str,
    name: String,
    counter: &'static Counter,
}

static CATALOG: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let of_ports = berth_ports::COUNTERS.iter().map(|tables| ("port", "", *tables));
    let tables = TABLES.iter().copied().chain(of_ports);
    let tables = tables.flat_map(|(part, prefix, tables)| tables.iter().map(move |table| (part, prefix, *table)));
    let counters = tables.flat_map(|(part, prefix, tables)| {
        tables.iter().copied().flatten().map(move |counter| Entry {
            part,
            name: format!("{prefix}{}", counter.name),
            counter,
        })
    });
    counters.collect()
});

/// Where a counter is shown.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) family: Family,
    pub(super) labels: Vec<(&'static str, String)>,
}

impl Place {
    /// Whether it counts what was not served, or failed.
    pub(super) fn is_loss(&self) -> bool {
        let name = self.family.name;
        let ends = |end: &str| name.ends_with(end);
        // What hosts of NVMe were told, and why they lost their connections.
        ends("dropped") || ends("refused") || name.starts_with("nvme_") && (ends("errors") || ends("ended"))
    }
}

/// The family and labels of a counter that `part` reports: `lcore`, `lane`, `port`, `service`, `worker`, `control`,
/// `data`, `gpu` or `admin`.
pub(super) fn locate(part: &str, counter: &str) -> Option<Place> {
    // Services of both kinds and workers count much the same.
    let parts: &[&str] = match part {
        "service" => &["rpc", "data"],
        "worker" => &["worker", "rpc"],
        part => &[part],
    };
    parts.iter().find_map(|part| {
        CATALOG.iter().filter(|entry| entry.part == *part).find_map(|entry| {
            let star = matched(&entry.name, counter)?;
            let value = |value: &str| if value == "*" { star.to_owned() } else { value.to_owned() };
            let labels = entry.counter.labels.iter().map(|(key, label)| (*key, value(label))).collect();
            Some(Place { family: entry.counter.family, labels })
        })
    })
}

/// What the star of `pattern` stands for in `name`; nothing where there is no star, `None` where they do not match.
fn matched<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    match pattern.split_once('*') {
        None => (pattern == name).then_some(""),
        Some((before, after)) => name.strip_prefix(before)?.strip_suffix(after).filter(|star| !star.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_counter_has_its_family_and_labels() {
        let shown = |part, counter| {
            let place = locate(part, counter)?;
            let labels: Vec<_> = place.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            Some((place.family.name, labels.join(",")))
        };
        assert_eq!(shown("port", "rx_overrun"), Some(("rx_dropped", "reason=socket_full".into())));
        assert_eq!(shown("service", "calls_qec_decode"), Some(("calls", "function=qec_decode".into())));
        assert_eq!(shown("worker", "busy_ns"), Some(("busy_ns", String::new())));
        assert_eq!(shown("worker", "overloaded"), Some(("refused", "reason=overloaded".into())));
        assert_eq!(shown("service", "expired"), Some(("access_refused", "reason=expired".into())));
        let expected = ("region_refused", "region=a-1,reason=busy".into());
        assert_eq!(shown("control", "region_a-1_block_busy"), Some(expected));
        assert_eq!(shown("control", "op_lease_alloc_refused"), Some(("ops_refused", "op=lease_alloc".into())));
        assert_eq!(shown("service", "calls_"), None);
        assert_eq!(shown("port", "no_such_thing"), None);
    }

    #[test]
    fn what_is_declared_more_than_once_means_the_same() {
        let (mut counters, mut families) = (BTreeMap::new(), BTreeMap::new());
        for Entry { part, name, counter } in &*CATALOG {
            let known = *counters.entry((part, name)).or_insert((counter.family, counter.labels));
            assert_eq!(known, (counter.family, counter.labels), "{part} {name}");
            let known = *families.entry((part, counter.family.name)).or_insert(counter.family);
            assert_eq!(known, counter.family, "{part} {name}");
        }
    }

    /// What stands in a line of docs/telemetry.md: the names, the kind and the meaning, and of each label its values.
    type Lines = BTreeMap<[String; 3], BTreeMap<String, BTreeSet<String>>>;

    fn declared() -> Lines {
        let mut lines = Lines::new();
        for Entry { part, counter, .. } in &*CATALOG {
            let Family { name, help, is_gauge } = counter.family;
            let prefixes: &[&str] = match part {
                &"rpc" => &["service", "worker"],
                &"data" => &["service", "data"],
                part => std::slice::from_ref(part),
            };
            let (name, unit) = name.strip_suffix("_ns").map_or((name, ""), |name| (name, "_seconds"));
            let (kind, total) = if is_gauge { ("gauge", "") } else { ("counter", "_total") };
            let names: Vec<_> = prefixes.iter().map(|prefix| format!("`berth_{prefix}_{name}{unit}{total}`")).collect();
            let labels = lines.entry([names.join(", "), kind.to_owned(), help.to_owned()]).or_default();
            for (key, value) in counter.labels {
                let values = labels.entry(format!("`{key}`")).or_default();
                values.extend((*value != "*").then(|| (*value).to_owned()));
            }
        }
        lines
    }

    fn documented() -> Lines {
        let table = include_str!("../../../docs/telemetry.md").lines().filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
            let (names, kind, labels, help) = match cells[..] {
                [names, kind, help] => (names, kind.strip_suffix(" |")?, "", help),
                [names, kind, labels, help] => (names, kind, labels, help),
                _ => return None,
            };
            let labels = labels.split("; ").filter(|label| !label.is_empty()).map(|label| {
                let (key, values) = label.split_once(": ").unwrap_or((label, ""));
                (key.to_owned(), values.split(", ").filter(|value| !value.is_empty()).map(str::to_owned).collect())
            });
            names.starts_with('`').then(|| ([names, kind, help].map(str::to_owned), labels.collect()))
        });
        table.collect()
    }

    #[test]
    fn every_counter_has_its_place_in_the_docs() {
        let (declared, documented) = (declared(), documented());
        for (line, labels) in &declared {
            let [names, kind, help] = line;
            let row = documented.get(line);
            let missing = |key: &String, values: &BTreeSet<String>| {
                row.and_then(|row| row.get(key)).is_none_or(|known| !known.is_superset(values))
            };
            let lacks = row.is_none() || labels.iter().any(|(key, values)| missing(key, values));
            assert!(!lacks, "docs/telemetry.md lacks | {names} | {kind} | {labels:?} | {help} |");
        }
        // Drivers that are not built in declare nothing.
        if ["dpdk", "ofi", "verbs"].into_iter().all(berth_ports::has_feature) {
            assert_eq!(documented, declared, "docs/telemetry.md has what no counter declares");
        }
    }
}
