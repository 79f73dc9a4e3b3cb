//! What keys a table has.

use std::fmt;

/// A table, or each table of a list.
#[derive(Debug)]
pub struct Section {
    /// What it is about: sentences.
    pub doc: &'static str,
    /// In the order of the default file.
    pub keys: &'static [Key],
    /// Keys that mean something with one word of another key only, which stands in the same table or in one above it.
    /// The same key may belong to several words.
    pub owned: &'static [&'static [Owned]],
}

/// Keys that belong to one word of another key.
#[derive(Debug, Clone, Copy)]
pub struct Owned {
    /// The word.
    pub by: Owner,
    /// The keys.
    pub keys: &'static [Key],
}

/// A key and one of the words that it may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The key.
    pub key: &'static str,
    /// The word.
    pub word: &'static str,
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

/// A key that is not required, with neither a default nor an example.
pub const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        default: None,
        otherwise: "",
        example: None,
        doc,
        more: "",
        required: false,
        reload: Reload::AsTable,
        said: false,
    }
}

impl Key {
    /// What holds without it, in TOML.
    #[must_use]
    pub const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// What holds without it, in words.
    #[must_use]
    pub const fn otherwise(self, otherwise: &'static str) -> Self {
        Self { otherwise, ..self }
    }

    /// A value that makes sense, in TOML.
    #[must_use]
    pub const fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    /// What else is to be known: sentences.
    #[must_use]
    pub const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// It must be given.
    #[must_use]
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// A reload changes it.
    #[must_use]
    pub const fn live(self) -> Self {
        Self { reload: Reload::Live, ..self }
    }

    /// A reload does not change it, although it does its table.
    #[must_use]
    pub const fn fixed(self) -> Self {
        Self { reload: Reload::Fixed, ..self }
    }

    /// The default file says it.
    #[must_use]
    pub const fn said(self) -> Self {
        Self { said: true, ..self }
    }
}

impl Key {
    /// The table that it is.
    pub fn section(&self) -> Option<&'static Section> {
        match self.kind {
            Kind::Table(section) | Kind::Tables(section) => Some(section),
            _ => None,
        }
    }
}

/// What the reader takes from here. All panic where the schema says nothing of the kind.
impl Key {
    fn literal(&self) -> &'static str {
        self.default.unwrap_or_else(|| panic!("{} has no default", self.name))
    }

    /// The string that is the default.
    pub fn word(&self) -> &'static str {
        self.literal().trim_matches('"')
    }

    /// The integer that is the default.
    pub fn number(&self) -> u64 {
        let text = self.literal();
        let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
        number.unwrap_or_else(|_| panic!("the default of {} is an integer", self.name))
    }

    /// The number that is the default.
    pub fn probability(&self) -> f64 {
        self.literal().parse().unwrap_or_else(|_| panic!("the default of {} is a number", self.name))
    }
}

impl Section {
    /// A section whose keys all belong to it whatever others say.
    pub const fn new(doc: &'static str, keys: &'static [Key]) -> Self {
        Self { doc, keys, owned: &[] }
    }

    /// Keys that belong to words of other keys.
    #[must_use]
    pub const fn owned(self, owned: &'static [&'static [Owned]]) -> Self {
        Self { owned, ..self }
    }

    fn groups(&self) -> impl Iterator<Item = &'static Owned> {
        self.owned.iter().flat_map(|list| list.iter())
    }

    /// Every key, each once.
    pub fn all(&self) -> Vec<&'static Key> {
        let mut all: Vec<&'static Key> = self.keys.iter().collect();
        for key in self.groups().flat_map(|group| group.keys) {
            if !all.iter().any(|known| known.name == key.name) {
                all.push(key);
            }
        }
        all
    }

    /// The key of this name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        let owned = self.groups().flat_map(|group| group.keys);
        self.keys.iter().chain(owned).find(|key| key.name == name)
    }

    /// What the key of this name belongs to; to nothing in particular where this is empty.
    pub fn owners(&self, name: &str) -> Owners {
        if self.keys.iter().any(|key| key.name == name) {
            return Owners(Vec::new());
        }
        let groups = self.groups().filter(|group| group.keys.iter().any(|key| key.name == name));
        Owners(groups.map(|group| group.by).collect())
    }
}

/// Words that a key belongs to. Displayed as in `driver = "dpdk" or "verbs"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners(pub Vec<Owner>);

impl fmt::Display for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys = Vec::new();
        for owner in &self.0 {
            if !keys.contains(&owner.key) {
                keys.push(owner.key);
            }
        }
        for (nth, key) in keys.into_iter().enumerate() {
            f.write_str(if nth > 0 { ", or " } else { "" })?;
            write!(f, "{key} = ")?;
            let words: Vec<_> = self.0.iter().filter(|owner| owner.key == key).map(|owner| owner.word).collect();
            for (nth, word) in words.iter().enumerate() {
                f.write_str(match nth {
                    0 => "",
                    n if n + 1 == words.len() => " or ",
                    _ => ", ",
                })?;
                write!(f, "\"{word}\"")?;
            }
        }
        Ok(())
    }
}
