//! What differs between two configurations, and what of it a running appliance can take.

use std::{collections::BTreeMap, ops::Range};

use berth_identity::Enrolment;
use toml::de::{DeTable, DeValue};

use super::{Config, Limits, Loaded, Mode, Note, Port, Service, schema::is_live};

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Where the new configuration says it, and what it was.
    pub note: Note,
    /// Whether a reload takes it; else it needs a restart.
    pub live: bool,
}

/// A value or table of a document, outliving its text.
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// As in [`Note::field`].
    field: String,
    span: Range<usize>,
    /// What stands there; nothing for tables.
    value: Option<String>,
}

/// Every place by its path; tables of a list that have names are found by them, wherever they stand in the list.
pub(super) type Places = BTreeMap<Vec<String>, Place>;

impl Loaded {
    /// What this configuration changes, were it to replace `old`; a value that says what held anyway is no change.
    pub fn changes_from(&self, old: &Self) -> Vec<Change> {
        let sink = self.sink();
        let root = Place { field: String::new(), span: 0..0, value: None };
        let differing = differing(&old.config, &self.config);
        let mut seen = Vec::new();
        let mut changes = Vec::new();
        let mut add = |path: &[String], at: &Place, field: &str, message: &str| {
            let live = is_live(field) && self.limits_are_live(old, field) && self.keeps_layout(old, path);
            if live || differing.contains(&path[0].as_str()) {
                let message = match path[0].as_str() {
                    _ if live => message.to_owned(),
                    "message" => format!("{message}; a message keeps its layout, give the new one a name of its own"),
                    _ => format!("{message}; this needs a restart"),
                };
                seen.extend((!live).then(|| path[0].clone()));
                changes.push((at.span.start, Change { note: sink.note(&at.span, field, message), live }));
            }
        };
        let parent = |path: &[String], places: &Places| match path {
            [_] => Some(root.clone()),
            [above @ .., _] => places.get(above).cloned(),
            [] => None,
        };
        for (path, new) in &self.places {
            match old.places.get(path) {
                Some(before) if before.value == new.value => {}
                Some(Place { value: Some(before), .. }) => {
                    let now = new.value.as_deref().unwrap_or("a table");
                    add(path, new, &new.field, &format!("is {now}, it was {before}"));
                }
                Some(_) => add(path, new, &new.field, "is no table any more"),
                // Below a table that is new itself, this was said.
                None if parent(path, &old.places).is_some() => add(path, new, &new.field, "is new"),
                None => {}
            }
        }
        for (path, before) in &old.places {
            if !self.places.contains_key(path)
                && let Some(above) = parent(path, &self.places)
            {
                add(path, &above, &before.field, "is gone");
            }
        }
        // Words that name a file can mean something else than before, and so can what stands below a new table.
        for section in differing {
            if !seen.iter().any(|known| known == section) {
                let at = self.places.get(&[section.to_owned()][..]).unwrap_or(&root);
                let message = "means something else than before; this needs a restart";
                changes.push((at.span.start, Change { note: sink.note(&at.span, section, message), live: false }));
            }
        }
        changes.sort_by_key(|(start, _)| *start);
        changes.into_iter().map(|(_, change)| change).collect()
    }

    /// Whether a change below `path` leaves every message that there was, and still is, as it was.
    fn keeps_layout(&self, old: &Self, path: &[String]) -> bool {
        let [section, name, ..] = path else { return true };
        section != "message" || keeps_layout(name.trim_matches(['[', ']']), &old.config, &self.config)
    }

    /// Whether a change at `field` is none of a port's limits, or one that a reload takes: of an RPC port, and not of
    /// what waits before it, which is a driver's from its start.
    fn limits_are_live(&self, old: &Self, field: &str) -> bool {
        let port = field.strip_prefix("port[").and_then(|rest| rest.split_once("].limits"));
        let Some(index) = port.and_then(|(index, _)| index.parse::<usize>().ok()) else { return true };
        let [new, old] = [self, old].map(|loaded| loaded.config.ports.get(index));
        new.zip(old).is_some_and(|(new, old)| new.rpc().is_some() && new.limits.queue == old.limits.queue)
    }
}

/// The tables of the root whose meaning differs, leaving aside what a reload takes.
fn differing(old: &Config, new: &Config) -> Vec<&'static str> {
    let fixed = |ports: &[Port]| ports.iter().map(fixed_port).collect::<Vec<_>>();
    let control = |config: &Config| {
        config.control.clone().map(|mut control| {
            control.policies.clear();
            control.enrolled.clear();
            control.enroll = Enrolment::default();
            control.max_requests_per_sec = 0;
            control
        })
    };
    // Every field is named, so that one that is added is not forgotten here.
    let Config {
        // A reload takes these whole.
        decoders: _,
        functions: _,
        kernels: _,
        // Compared in functions that take both configurations.
        control: _,
        messages: _,
        admin,
        bindings,
        dataplane,
        gpus,
        hip,
        log,
        node,
        ports,
        regions,
        runtime,
        tasklet,
        tune,
    } = new;
    let all = [
        ("admin", old.admin == *admin),
        ("binding", old.bindings == *bindings),
        ("control", control(old) == control(new)),
        ("dataplane", old.dataplane == *dataplane),
        ("gpu", old.gpus == *gpus),
        ("hip", old.hip == *hip),
        ("log", old.log.format == log.format),
        ("message", old.messages.added().iter().all(|message| keeps_layout(message.schema.name(), old, new))),
        ("node", old.node == *node),
        ("port", fixed(&old.ports) == fixed(ports)),
        ("region", old.regions == *regions),
        ("runtime", old.runtime == *runtime),
        ("tasklet", old.tasklet == *tasklet),
        ("tune", old.tune.cpu_dma_latency_us == tune.cpu_dma_latency_us),
    ];
    all.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

/// Whether a message is as it was, or not in both.
fn keeps_layout(name: &str, old: &Config, new: &Config) -> bool {
    old.messages.find(name).zip(new.messages.find(name)).is_none_or(|(old, new)| old.schema == new.schema)
}

/// A port without what a reload takes.
fn fixed_port(port: &Port) -> Port {
    let mut port = port.clone();
    if let Service::Rpc(rpc) = &mut port.service {
        rpc.dispatch = Mode::Inline;
        port.limits = Limits { queue: port.limits.queue, ..Limits::default() };
    }
    port
}

/// Collects what stands in a document.
pub(super) fn places(root: &DeTable<'_>) -> Places {
    let mut places = Places::new();
    collect(root, &[], "", &mut places);
    places
}

fn collect(table: &DeTable<'_>, path: &[String], field: &str, into: &mut Places) {
    for (key, value) in table {
        let key: &str = key.get_ref();
        let field = if field.is_empty() { key.to_owned() } else { format!("{field}.{key}") };
        let path = [path, &[key.to_owned()]].concat();
        visit(value.get_ref(), value.span(), path, field, into);
    }
}

fn visit(value: &DeValue<'_>, span: Range<usize>, path: Vec<String>, field: String, into: &mut Places) {
    match value {
        DeValue::Table(table) => {
            collect(table, &path, &field, into);
            into.insert(path, Place { field, span, value: None });
        }
        DeValue::Array(elements) if elements.iter().any(|element| element.get_ref().is_table()) => {
            for (i, element) in elements.iter().enumerate() {
                let name = element.get_ref().get("name").and_then(|name| name.get_ref().as_str());
                let name = name.map_or_else(|| format!("[{i}]"), |name| format!("[{name}]"));
                let path = [&path[..], &[name]].concat();
                visit(element.get_ref(), element.span(), path, format!("{field}[{i}]"), into);
            }
            into.insert(path, Place { field, span, value: None });
        }
        value => {
            into.insert(path, Place { field, span, value: Some(text(value)) });
        }
    }
}

/// A value as a document may say it.
fn text(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(n) => {
            i64::from_str_radix(n.as_str(), n.radix()).map_or_else(|_| n.to_string(), |n| n.to_string())
        }
        DeValue::Float(x) => x.to_string(),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(at) => at.to_string(),
        DeValue::Array(all) => {
            let all: Vec<_> = all.iter().map(|element| text(element.get_ref())).collect();
            format!("[{}]", all.join(", "))
        }
        DeValue::Table(_) => "a table".to_owned(),
    }
}
