//! Walks a TOML document and collects every mistake in one pass.
//!
//! A [`Table`] remembers which keys its reader asked for. Everything else in the document is an unknown key, which
//! [`Table::finish`] reports with the nearest key that exists.

use std::{
    cell::RefCell,
    fmt::{self, Display},
    ops::Range,
    path::PathBuf,
    sync::LazyLock,
};

use toml::de::{DeTable, DeValue};

use crate::{
    document::{self, Source},
    schema::{CPU_MAX, Key, Kind, Owner, Section},
};

/// A mistake or a warning about a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The file, or the option of the command line.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The field as a path from the root of the document, such as `port[0].rpc.slots`.
    pub field: String,
    /// What is wrong, and after a semicolon what would be right.
    pub message: String,
}

impl Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, field, message } = self;
        write!(f, "{}:{line}:{column}: ", file.display())?;
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(message)
    }
}

/// A value and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At<T> {
    /// As read, or as mapped from that.
    pub value: T,
    /// Path of the field, as in [`Note::field`].
    pub field: String,
    /// Byte range in the documents.
    pub span: Range<usize>,
}

impl<T> At<T> {
    /// Another value with the same position.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> At<U> {
        At { value: f(self.value), field: self.field, span: self.span }
    }
}

/// Collects the notes about a configuration.
#[derive(Debug)]
pub struct Sink<'s> {
    sources: &'s [Source],
    /// Pairs of position and note.
    mistakes: RefCell<Vec<(usize, Note)>>,
    warnings: RefCell<Vec<Note>>,
}

impl<'s> Sink<'s> {
    /// An empty sink for these documents.
    pub fn new(sources: &'s [Source]) -> Self {
        Self { sources, mistakes: RefCell::default(), warnings: RefCell::default() }
    }

    /// Makes a note about `span`, and does not add it: that is up to the caller.
    pub fn note(&self, span: &Range<usize>, field: &str, message: impl Display) -> Note {
        let (file, before) = document::holding(self.sources, span).map_or_else(Default::default, |source| {
            let before = source.text.get(..span.start - source.start).unwrap_or(&source.text);
            (source.name.clone(), before)
        });
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Note {
            file,
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            field: field.to_string(),
            message: message.to_string(),
        }
    }

    /// Adds a mistake at `span`; [`Sink::finish`] then fails.
    pub fn mistake(&self, span: Range<usize>, field: &str, message: impl Display) {
        let note = self.note(&span, field, message);
        self.mistakes.borrow_mut().push((span.start, note));
    }

    /// Adds a mistake about `value`.
    pub fn wrong<T>(&self, value: &At<T>, message: impl Display) {
        self.mistake(value.span.clone(), &value.field, message);
    }

    /// Adds a warning: allowed, but probably not intended.
    pub fn warn(&self, span: Range<usize>, field: &str, message: impl Display) {
        let note = self.note(&span, field, message);
        self.warnings.borrow_mut().push(note);
    }

    /// The warnings; or, if there are mistakes, all of those in the order of the documents.
    pub fn finish(self) -> Result<Vec<Note>, Vec<Note>> {
        let mut mistakes = self.mistakes.into_inner();
        mistakes.sort_by_key(|(start, _)| *start);
        if mistakes.is_empty() {
            Ok(self.warnings.into_inner())
        } else {
            Err(mistakes.into_iter().map(|(_, note)| note).collect())
        }
    }
}

/// A table of the document, read key by key. Its section of the schema tells the types of its keys. To ask for a key
/// that the schema does not have, or has with another type, is a bug and panics.
pub struct Table<'a, 'i> {
    sink: &'a Sink<'a>,
    section: &'static Section,
    entries: &'a DeTable<'i>,
    path: String,
    span: Range<usize>,
    asked: Vec<&'static str>,
    /// Words read here and in the tables above; keys that belong to other words are refused.
    words: Vec<Owner>,
    /// Keys whose word is missing or wrong, so that it is unknown which keys belong here.
    undecided: Vec<&'static str>,
}

impl<'a, 'i> Table<'a, 'i> {
    /// The root of a document, with the keys of `section`.
    pub fn root(sink: &'a Sink<'a>, section: &'static Section, table: &'a DeTable<'i>) -> Self {
        Self {
            sink,
            section,
            entries: table,
            path: String::new(),
            span: 0..0,
            asked: Vec::new(),
            words: Vec::new(),
            undecided: Vec::new(),
        }
    }

    /// The sink that mistakes in this table go to.
    pub fn sink(&self) -> &'a Sink<'a> {
        self.sink
    }

    /// Byte range in the documents: `0..0` of the root, that of the table above if this one is absent.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Path of the table, as in [`Note::field`].
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Position of a key's value; if it is absent, that of this table.
    pub fn place(&self, key: &str) -> Range<usize> {
        self.place_of(key).unwrap_or_else(|| self.span())
    }

    fn place_of(&self, key: &str) -> Option<Range<usize>> {
        let (_, value) = self.entries.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(value.span())
    }

    fn field(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    fn get(&mut self, key: &'static str) -> Option<At<&'a DeValue<'i>>> {
        if self.is_foreign(key) {
            return None;
        }
        self.asked.push(key);
        let (_, value) = self.entries.iter().find(|(name, _)| name.get_ref() == key)?;
        Some(At { value: value.get_ref(), field: self.field(key), span: value.span() })
    }

    fn expect<T>(
        &self,
        at: At<&'a DeValue<'i>>,
        wanted: &str,
        pick: impl FnOnce(&'a DeValue<'i>) -> Option<T>,
    ) -> Option<At<T>> {
        if let Some(value) = pick(at.value) {
            return Some(at.map(|_| value));
        }
        self.sink.wrong(&at, format_args!("is {}; {wanted} is wanted", describe(at.value)));
        None
    }

    /// The schema of a key. To ask for one that the section does not have panics.
    fn known(&self, key: &str) -> &'static Key {
        self.section.key(key).unwrap_or_else(|| panic!("the schema has no {}", self.field(key)))
    }

    /// Notes a mistake if nothing was found and the key is absent; `example` is what to write. Returns `found`.
    pub fn require<T>(&self, key: &str, found: Option<T>, example: impl Display) -> Option<T> {
        // A key that is there with a wrong value has been reported already.
        if found.is_none() && !self.entries.iter().any(|(name, _)| name.get_ref() == key) {
            self.sink.mistake(self.span(), &self.field(key), format_args!("is missing; write {example}"));
        }
        found
    }

    /// Reads a string; `None` if it is absent or wrong.
    pub fn text(&mut self, key: &'static str) -> Option<At<&'a str>> {
        assert!(matches!(self.known(key).kind, Kind::Text), "{}", self.field(key));
        self.string(key)
    }

    fn string(&mut self, key: &'static str) -> Option<At<&'a str>> {
        let at = self.get(key)?;
        self.expect(at, "a string", DeValue::as_str)
    }

    /// The key's default in the schema, a string; panics if it has none.
    pub fn default_text(&self, key: &str) -> &'static str {
        self.known(key).word()
    }

    /// Reads an integer within the schema's range; `None` if it is absent or wrong.
    pub fn integer(&mut self, key: &'static str) -> Option<At<u64>> {
        let Kind::Integer(low, high) = self.known(key).kind else { panic!("{} is no integer", self.field(key)) };
        let wanted = format!("an integer from {low} to {high}");
        self.value(key, &wanted, |value| integer(value).filter(|n| (low..=high).contains(n)))
    }

    /// The key's default in the schema, an integer; panics if it has none.
    pub fn default_number(&self, key: &str) -> u64 {
        self.known(key).number()
    }

    /// Reads an integer; its default if it is absent or wrong.
    pub fn number(&mut self, key: &'static str) -> u64 {
        self.integer(key).map_or_else(|| self.default_number(key), |at| at.value)
    }

    /// Reads a number from 0 to 1; its default if it is absent or wrong.
    pub fn probability(&mut self, key: &'static str) -> f64 {
        let known = self.known(key);
        assert!(matches!(known.kind, Kind::Probability), "{}", self.field(key));
        let number = self.value(key, "a probability from 0 to 1", |value| {
            let number: f64 = match value {
                DeValue::Float(float) => float.as_str().parse().ok()?,
                DeValue::Integer(_) => integer(value)? as f64,
                _ => return None,
            };
            (0.0..=1.0).contains(&number).then_some(number)
        });
        number.map_or_else(|| known.probability(), |at| at.value)
    }

    /// Reads `true` or `false`; `None` if it is absent or wrong.
    pub fn flag(&mut self, key: &'static str) -> Option<bool> {
        assert!(matches!(self.known(key).kind, Kind::Flag), "{}", self.field(key));
        Some(self.value(key, "true or false", DeValue::as_bool)?.value)
    }

    /// Reads `true` or `false`; the default if it is absent or wrong.
    pub fn is_on(&mut self, key: &'static str) -> bool {
        let default = self.known(key).default == Some("true");
        self.flag(key).unwrap_or(default)
    }

    /// Reads `true`, `false` or the schema's word, which is the default and gives `None`.
    pub fn flag_or_word(&mut self, key: &'static str) -> Option<bool> {
        let Kind::FlagOr(word) = self.known(key).kind else { panic!("{} has no word", self.field(key)) };
        let wanted = format!("true, false or \"{word}\"");
        self.value(key, &wanted, |value| match value {
            DeValue::Boolean(flag) => Some(Some(*flag)),
            DeValue::String(text) if text == word => Some(None),
            _ => None,
        })?
        .value
    }

    /// Reads a number of bytes, at least 1: an integer, or a string such as `64 MiB`.
    pub fn size(&mut self, key: &'static str) -> Option<At<u64>> {
        assert!(matches!(self.known(key).kind, Kind::Size), "{}", self.field(key));
        self.value(key, "a number of bytes such as 67108864 or \"64 MiB\"", |value| match value {
            DeValue::String(text) => parse_size(text),
            value => integer(value).filter(|bytes| *bytes > 0),
        })
    }

    /// Reads a value that `pick` accepts; `wanted` describes those in the mistake.
    fn value<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        pick: impl FnOnce(&'a DeValue<'i>) -> Option<T>,
    ) -> Option<At<T>> {
        let at = self.get(key)?;
        self.expect(at, wanted, pick)
    }

    /// Reads one of the schema's words, and maps it by `words`, which must have all of them in their order.
    pub fn choice<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Option<At<T>> {
        let at = self.word(key)?;
        let Kind::Choice(known) = self.known(key).kind else { panic!("{} is no choice", self.field(key)) };
        let same = known.iter().map(|word| word.0).eq(words.iter().map(|word| word.0));
        assert!(same, "the words of {} are those of the schema, in its order", self.field(key));
        let value = words.iter().find(|(word, _)| *word == at.value)?.1;
        Some(at.map(|_| value))
    }

    /// Reads one of the schema's words. Keys that belong to its other words are refused from then on.
    pub fn word(&mut self, key: &'static str) -> Option<At<&'static str>> {
        let known = self.known(key);
        let Kind::Choice(words) = known.kind else { panic!("{} is no choice", self.field(key)) };
        let is_given = self.place_of(key).is_some();
        let at = self.string(key);
        let found = at.as_ref().and_then(|at| words.iter().find(|(word, _)| *word == at.value));
        if let (Some(at), None) = (&at, found) {
            let all = words.iter().map(|(word, _)| *word);
            self.sink.wrong(at, format_args!("\"{}\" is unknown; {}", at.value, instead(at.value, all)));
        }
        match found {
            Some((word, _)) => self.decide(key, Some(word)),
            None if is_given || known.required => self.decide(key, None),
            None if known.default.is_some() => self.decide(key, Some(known.word())),
            None => {}
        }
        at.zip(found).map(|(at, (word, _))| at.map(|_| *word))
    }

    /// Records the word that `key` has: keys that belong to its other words are refused, unless the word is unknown.
    pub fn decide(&mut self, key: &'static str, word: Option<&'static str>) {
        match word {
            Some(word) => self.words.push(Owner { key, word }),
            None => self.undecided.push(key),
        }
    }

    /// Whether a key only belongs to words that were not read.
    fn is_foreign(&self, key: &str) -> bool {
        let owners = self.section.owners(key).0;
        let may_own = |owner: &Owner| self.words.contains(owner) || self.is_undecided(owner.key);
        !owners.is_empty() && !owners.iter().any(may_own)
    }

    /// Whether the word of `key`, or of what it belongs to, is unknown.
    fn is_undecided(&self, key: &str) -> bool {
        self.undecided.contains(&key) || self.section.owners(key).0.iter().any(|owner| self.is_undecided(owner.key))
    }

    /// Reads one of the schema's words, or takes its default, and maps it by `words`.
    pub fn chosen<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> T {
        let default = self.known(key).word();
        let found = self.choice(key, words).map(|at| at.value);
        let otherwise = words.iter().find(|(word, _)| *word == default).map(|word| word.1);
        found.or(otherwise).unwrap_or_else(|| panic!("{default:?} is no word of {}", self.field(key)))
    }

    /// Reads a list of CPU numbers, each with its position. Wrong ones are reported and left out.
    pub fn cpus(&mut self, key: &'static str) -> Option<At<Vec<At<u64>>>> {
        assert!(matches!(self.known(key).kind, Kind::Cpus), "{}", self.field(key));
        let wanted = format!("an integer from 0 to {CPU_MAX}");
        self.elements(key, "a list of integers", &wanted, |value| integer(value).filter(|n| *n <= CPU_MAX))
    }

    /// Reads a string or a list of strings, each with its position. Wrong elements are reported and left out.
    pub fn texts(&mut self, key: &'static str) -> Option<At<Vec<At<&'a str>>>> {
        assert!(matches!(self.known(key).kind, Kind::Texts), "{}", self.field(key));
        if let Some(at) = self.get(key).filter(|at| at.value.is_str()) {
            let one = self.expect(at, "a string", DeValue::as_str)?;
            return Some(At { field: one.field.clone(), span: one.span.clone(), value: vec![one] });
        }
        self.elements(key, "a string or a list of strings", "a string", DeValue::as_str)
    }

    fn elements<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        each: &str,
        pick: impl Fn(&'a DeValue<'i>) -> Option<T>,
    ) -> Option<At<Vec<At<T>>>> {
        let at = self.get(key)?;
        let array = self.expect(at, wanted, DeValue::as_array)?;
        let mut all = Vec::new();
        for (i, element) in array.value.iter().enumerate() {
            let at = At { value: element.get_ref(), field: format!("{}[{i}]", array.field), span: element.span() };
            all.extend(self.expect(at, each, &pick));
        }
        Some(array.map(|_| all))
    }

    /// Reads a sub-table; `None` if it is absent or no table.
    pub fn table(&mut self, key: &'static str) -> Option<Table<'a, 'i>> {
        let at = self.get(key)?;
        let at = self.expect(at, &format!("a table [{}]", self.field(key)), DeValue::as_table)?;
        Some(self.below(key, at))
    }

    /// Reads a sub-table, which is empty if it is absent.
    #[must_use]
    pub fn table_or_empty(&mut self, key: &'static str) -> Table<'a, 'i> {
        static EMPTY: LazyLock<DeTable<'static>> = LazyLock::new(DeTable::new);
        let found = self.table(key);
        found.unwrap_or_else(|| self.below(key, At { value: &EMPTY, field: self.field(key), span: self.span() }))
    }

    fn below(&self, key: &str, at: At<&'a DeTable<'i>>) -> Table<'a, 'i> {
        let (Kind::Table(section) | Kind::Tables(section)) = self.known(key).kind else {
            panic!("{} is no table", self.field(key));
        };
        let (words, undecided) = (self.words.clone(), self.undecided.clone());
        let (sink, path, span) = (self.sink, at.field, at.span);
        Table { sink, section, entries: at.value, path, span, asked: Vec::new(), words, undecided }
    }

    /// Reads an array of tables; `None` if it is absent or no array. An empty one is a mistake.
    pub fn tables(&mut self, key: &'static str) -> Option<Vec<Table<'a, 'i>>> {
        let (sink, head) = (self.sink, format!("[[{}]]", self.field(key)));
        let wanted = format!("a list of tables, each headed {head},");
        let tables = self.elements(key, &wanted, "a table", DeValue::as_table)?;
        if tables.value.is_empty() {
            sink.wrong(&tables, format_args!("is empty; write {head} and its keys"));
        }
        Some(tables.value.into_iter().map(|at| self.below(key, at)).collect())
    }

    /// Reports keys that are present but have no meaning here, because of another key's value.
    pub fn refuse(&mut self, keys: &[&'static str], because: impl Display) {
        for (name, _) in self.entries.iter().filter(|(name, _)| keys.contains(&name.get_ref().as_ref())) {
            self.sink.mistake(name.span(), &self.field(name.get_ref()), format_args!("means nothing here; {because}"));
            // Said once is enough.
            self.asked.extend(keys.iter().filter(|key| *key == name.get_ref()));
        }
    }

    /// Reports every key that does not exist, or that belongs to another word than the one read.
    pub fn finish(self) {
        for (name, _) in self.entries.iter().filter(|(name, _)| !self.asked.contains(&name.get_ref().as_ref())) {
            let key: &str = name.get_ref();
            let (span, field) = (name.span(), self.field(key));
            if self.section.key(key).is_none() {
                let advice = instead(key, self.asked.iter().copied());
                self.sink.mistake(span, &field, format_args!("is not a key; {advice}"));
                continue;
            }
            if self.is_foreign(key) {
                let owners = self.section.owners(key);
                let message = format_args!("means nothing here; it belongs to {owners}, leave it out");
                self.sink.mistake(span, &field, message);
            }
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let number = value.as_integer()?;
    u64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Parses a number with a unit, such as `64 MiB`, with or without a space; at least 1. Returns bytes.
fn parse_size(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 5] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let text = text.trim();
    let (number, shift) = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))?;
    let number: u64 = number.trim_end().parse().ok()?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

/// Parses bytes as a command line has them: a bare number, or one with a unit, such as `4096` or `64 MiB`; at least 1.
///
/// # Errors
/// What is wrong, with an example.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let bare = text.parse().ok().filter(|bytes| *bytes > 0);
    let wrong = || format!("{text:?} is not a size; write one such as 4096 or \"64 MiB\"");
    bare.or_else(|| parse_size(text)).ok_or_else(wrong)
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(s) => format!("the string \"{s}\""),
        DeValue::Integer(n) => n.to_string(),
        DeValue::Float(x) => x.to_string(),
        DeValue::Boolean(b) => b.to_string(),
        DeValue::Datetime(_) => "a date".to_string(),
        DeValue::Array(_) => "a list".to_string(),
        DeValue::Table(_) => "a table".to_string(),
    }
}

/// A hint for a mistyped word: the nearest one if any is near, otherwise all of them.
pub fn instead<'w>(given: &str, words: impl Iterator<Item = &'w str>) -> String {
    let mut words: Vec<_> = words.collect();
    words.sort_unstable();
    words.dedup();
    let likeness = words.iter().map(|word| (strsim::jaro_winkler(given, word), word));
    match likeness.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, word)) if likeness > 0.85 => format!("did you mean `{word}`?"),
        Some(_) => format!("there are: {}", words.join(", ")),
        None => "there are none".to_string(),
    }
}
