//! The schema: which keys a table has.

use std::fmt;

/// A table, or each table of an array.
#[derive(Debug)]
pub struct Section {
    /// What the table is about, in sentences.
    pub doc: &'static str,
    /// Keys that are always allowed, in the order of the default file.
    pub keys: &'static [Key],
    /// Keys that are allowed only with a certain word of another key, in the same table or in one above it. A key may
    /// belong to several words.
    pub owned: &'static [&'static [Owned]],
}

/// Keys that belong to one word of another key.
#[derive(Debug, Clone, Copy)]
pub struct Owned {
    /// The key and the word that they belong to.
    pub by: Owner,
    /// Allowed only with that word.
    pub keys: &'static [Key],
}

/// A key, and one of the words that it may have as a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Name of a key of the same table, or of a table above it.
    pub key: &'static str,
    /// A word of its `Kind::Choice`, or one that its reader gives to `Table::decide`.
    pub word: &'static str,
}

/// One key of a table.
#[derive(Debug)]
pub struct Key {
    /// As in the TOML file.
    pub name: &'static str,
    /// Type of the value, and its range.
    pub kind: Kind,
    /// The value if the key is absent, in TOML. If `None`, `otherwise` describes it.
    pub default: Option<&'static str>,
    /// What applies if the key is absent, in words.
    pub otherwise: &'static str,
    /// A sensible value in TOML, if the default is not one.
    pub example: Option<&'static str>,
    /// Meaning of the value: a phrase, with the unit.
    pub doc: &'static str,
    /// Further documentation, in sentences.
    pub more: &'static str,
    /// Whether the key must be present. Its reader checks that, by `Table::require`.
    pub required: bool,
    /// [`Reload::AsTable`], unless [`Key::live`] or [`Key::fixed`] was called.
    pub reload: Reload,
    /// Whether the default file sets the key, rather than show it in a comment.
    pub said: bool,
}

/// Whether a reload applies a changed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// As for the table that contains the key; not for keys at the root.
    AsTable,
    /// Yes, with everything below that is not `Fixed`.
    Live,
    /// No, although the table that contains the key can be reloaded.
    Fixed,
}

/// Type of a key's value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// `true`, `false` or this word.
    FlagOr(&'static str),
    /// An integer in this range; both ends are allowed.
    Integer(u64, u64),
    /// A number from 0 to 1.
    Probability,
    /// A number of bytes, at least 1, or a string such as `64 MiB`.
    Size,
    /// A string.
    Text,
    /// A string, or a list of strings.
    Texts,
    /// A list of CPU numbers, each from 0 to [`CPU_MAX`].
    Cpus,
    /// One of these words, each with its meaning.
    Choice(&'static [(&'static str, &'static str)]),
    /// A sub-table with this schema.
    Table(&'static Section),
    /// An array of tables with this schema. An empty one is a mistake.
    Tables(&'static Section),
}

/// Highest CPU number that is accepted.
pub const CPU_MAX: u64 = 4095;

/// A key that may be absent, without a default or an example. The methods below add to it.
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
    /// Sets the value that applies if the key is absent, in TOML.
    #[must_use]
    pub const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// Sets what applies if the key is absent, in words.
    #[must_use]
    pub const fn otherwise(self, otherwise: &'static str) -> Self {
        Self { otherwise, ..self }
    }

    /// Sets a sensible value, in TOML. The default file shows it where there is no default, or an empty one.
    #[must_use]
    pub const fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    /// Sets the sentences that follow `doc` in the reference and in the JSON schema.
    #[must_use]
    pub const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// Makes it a key that must be present.
    #[must_use]
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Says that a reload applies changes, also of what is below the key and not `fixed`.
    #[must_use]
    pub const fn live(self) -> Self {
        Self { reload: Reload::Live, ..self }
    }

    /// Says that a reload does not apply changes, although it does for the rest of the table.
    #[must_use]
    pub const fn fixed(self) -> Self {
        Self { reload: Reload::Fixed, ..self }
    }

    /// Makes the default file set the key.
    #[must_use]
    pub const fn said(self) -> Self {
        Self { said: true, ..self }
    }
}

impl Key {
    /// The schema of its table or tables; `None` for other types.
    pub fn section(&self) -> Option<&'static Section> {
        match self.kind {
            Kind::Table(section) | Kind::Tables(section) => Some(section),
            _ => None,
        }
    }
}

/// Values that readers take from the schema. All panic if the schema has none of that kind.
impl Key {
    fn literal(&self) -> &'static str {
        self.default.unwrap_or_else(|| panic!("{} has no default", self.name))
    }

    /// The default, a string, without its quotes.
    pub fn word(&self) -> &'static str {
        self.literal().trim_matches('"')
    }

    /// The default, an integer: decimal, or hexadecimal after `0x`.
    pub fn number(&self) -> u64 {
        let text = self.literal();
        let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
        number.unwrap_or_else(|_| panic!("the default of {} is an integer", self.name))
    }

    /// The default, a number from 0 to 1.
    pub fn probability(&self) -> f64 {
        self.literal().parse().unwrap_or_else(|_| panic!("the default of {} is a number", self.name))
    }
}

impl Section {
    /// A section whose keys do not depend on other keys.
    pub const fn new(doc: &'static str, keys: &'static [Key]) -> Self {
        Self { doc, keys, owned: &[] }
    }

    /// Sets the keys that belong to words of other keys, in place of those set before.
    #[must_use]
    pub const fn owned(self, owned: &'static [&'static [Owned]]) -> Self {
        Self { owned, ..self }
    }

    fn groups(&self) -> impl Iterator<Item = &'static Owned> {
        self.owned.iter().flat_map(|list| list.iter())
    }

    /// Every key once, those that belong to words included.
    pub fn all(&self) -> Vec<&'static Key> {
        let mut all: Vec<&'static Key> = self.keys.iter().collect();
        for key in self.groups().flat_map(|group| group.keys) {
            if !all.iter().any(|known| known.name == key.name) {
                all.push(key);
            }
        }
        all
    }

    /// The key of this name, those that belong to words included; `None` if the section has none.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        let owned = self.groups().flat_map(|group| group.keys);
        self.keys.iter().chain(owned).find(|key| key.name == name)
    }

    /// What this key belongs to; empty if it is always allowed.
    pub fn owners(&self, name: &str) -> Owners {
        if self.keys.iter().any(|key| key.name == name) {
            return Owners(Vec::new());
        }
        let groups = self.groups().filter(|group| group.keys.iter().any(|key| key.name == name));
        Owners(groups.map(|group| group.by).collect())
    }
}

/// The words that a key belongs to. Displayed as in `driver = "dpdk" or "verbs"`.
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
