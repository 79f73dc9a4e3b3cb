//! Every key of the configuration, once. The reader takes ranges, words and defaults from here, a reload what it may
//! change, and `berth config` prints the commented default file, the JSON schema and the reference from it.

mod host;
mod leases;
mod port;
mod print;
mod rpc;

pub use print::{default_file, json_schema, reference};

/// A table, or each table of a list.
#[derive(Debug)]
pub struct Section {
    /// What it is about: sentences.
    pub doc: &'static str,
    /// In the order of the default file.
    pub keys: &'static [Key],
}

/// One key of a table.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What holds without it, in TOML; `None`: `otherwise` says.
    pub default: Option<&'static str>,
    /// What holds without it, in words.
    pub otherwise: &'static str,
    /// A value that makes sense, in TOML, where the default does not.
    pub example: Option<&'static str>,
    /// What it says: a phrase, with the unit.
    pub doc: &'static str,
    /// What else is to be known: sentences.
    pub more: &'static str,
    /// The key and value that it belongs to, if it does not belong to all.
    pub only: &'static str,
    /// Whether it must be given.
    pub required: bool,
    /// Whether a reload changes it.
    pub reload: Reload,
    /// Whether the default file says it, rather than only shows it in a comment.
    pub said: bool,
}

/// Whether a reload changes a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// As it does the table that the key stands in; not at the root.
    AsTable,
    /// It does, with all below that is not fixed.
    Live,
    /// It does not, although it does the table that the key stands in.
    Fixed,
}

/// What a key holds.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// `true`, `false` or this word.
    FlagOr(&'static str),
    /// An integer from the first to the second.
    Integer(u64, u64),
    /// From 0 to 1.
    Probability,
    /// A number of bytes, or a string such as `64 MiB`.
    Size,
    /// A string.
    Text,
    /// A string, or a list of strings.
    Texts,
    /// A list of numbers of CPUs.
    Cpus,
    /// One of these words; each with what it means.
    Choice(&'static [(&'static str, &'static str)]),
    /// A table.
    Table(&'static Section),
    /// A list of tables.
    Tables(&'static Section),
}

/// The highest number of a CPU.
pub const CPU_MAX: u64 = 4095;

const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        default: None,
        otherwise: "",
        example: None,
        doc,
        more: "",
        only: "",
        required: false,
        reload: Reload::AsTable,
        said: false,
    }
}

impl Key {
    const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn otherwise(self, otherwise: &'static str) -> Self {
        Self { otherwise, ..self }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    const fn only(self, only: &'static str) -> Self {
        Self { only, ..self }
    }

    const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    const fn live(self) -> Self {
        Self { reload: Reload::Live, ..self }
    }

    const fn fixed(self) -> Self {
        Self { reload: Reload::Fixed, ..self }
    }

    const fn said(self) -> Self {
        Self { said: true, ..self }
    }
}

/// What the reader takes from here. All panic where the schema says nothing of the kind.
impl Key {
    fn literal(&self) -> &'static str {
        self.default.unwrap_or_else(|| panic!("{} has no default", self.name))
    }

    /// The string that is the default.
    pub(super) fn word(&self) -> &'static str {
        self.literal().trim_matches('"')
    }

    /// The integer that is the default.
    pub(super) fn number(&self) -> u64 {
        let text = self.literal();
        let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
        number.unwrap_or_else(|_| panic!("the default of {} is an integer", self.name))
    }

    /// The number that is the default.
    pub(super) fn probability(&self) -> f64 {
        self.literal().parse().unwrap_or_else(|_| panic!("the default of {} is a number", self.name))
    }
}

impl Section {
    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The root of the document.
pub static ROOT: Section = Section {
    doc: "",
    keys: &[
        key("runtime", Kind::Table(&host::RUNTIME), "where the appliance runs, and on which memory").said(),
        key("log", Kind::Table(&host::LOG), "what is logged").live(),
        key("tune", Kind::Table(&host::TUNE), "what `berth tune` makes of the host"),
        key("admin", Kind::Table(&host::ADMIN), "where the appliance tells how it is").otherwise("off"),
        key("port", Kind::Tables(&port::PORT), "where requests come in").said(),
        key("node", Kind::Table(&leases::NODE), "this host as a node of the fabric"),
        key("control", Kind::Table(&leases::CONTROL), "the lease plane").otherwise("off"),
        key("region", Kind::Tables(&leases::REGION), "what can be leased"),
        key("dataplane", Kind::Table(&leases::DATAPLANE), "where leases are read and written beside ports"),
        key("binding", Kind::Tables(&leases::BINDING), "transports of their own that leases are connected to"),
        key("decoder", Kind::Tables(&rpc::DECODER), "detector error models and what decodes them").live(),
        key("function", Kind::Tables(&rpc::FUNCTION), "what requests can call").live().said(),
    ],
};

/// Whether a reload takes what stands at `field`, a path with or without positions in lists.
pub fn is_live(field: &str) -> bool {
    let (mut section, mut live) = (Some(&ROOT), false);
    for step in field.split('.') {
        let name = step.split('[').next().unwrap_or(step);
        let Some(key) = section.and_then(|section| section.key(name)) else { return false };
        live = match key.reload {
            Reload::AsTable => live,
            Reload::Live => true,
            Reload::Fixed => return false,
        };
        section = match key.kind {
            Kind::Table(section) | Kind::Tables(section) => Some(section),
            _ => None,
        };
    }
    live
}
