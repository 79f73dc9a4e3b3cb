//! The documents of a configuration: a file, the drop-ins next to it, and values from the command line.
//!
//! Positions in them are byte ranges of one text, in which each document begins where the one before ended. A merged
//! table therefore still knows which document each of its values came from.

use std::{
    ffi::OsStr,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{Note, Sink};

/// Name of the folder of drop-ins, next to the configuration file.
const DROP_INS: &str = "conf.d";

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The configuration file. `conf.d/*.toml` next to it are merged into it, in the order of their names.
    pub file: PathBuf,
    /// Values that override all files: `path=value`, with a path as in [`Note::field`] and a TOML value.
    pub sets: Vec<String>,
}

/// One document of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Name in notes: a path, or the option of the command line.
    pub(crate) name: PathBuf,
    pub(crate) text: String,
    /// Byte at which the document begins. It lies one byte behind the end of the document before.
    pub(crate) start: usize,
    /// Whether it is an option with a path and a value.
    set: bool,
}

impl Origin {
    /// Reads all documents, in the order in which they are merged. Fails at the first that is unreadable or not UTF-8.
    pub fn read(&self) -> Result<Vec<Source>, Vec<Note>> {
        let mut sources = Sources::default();
        sources.file(&self.file)?;
        let folder = self.file.parent().unwrap_or(Path::new("")).join(DROP_INS);
        let listed = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut drop_ins: Vec<_> = listed.filter(|path| path.extension() == Some(OsStr::new("toml"))).collect();
        drop_ins.sort();
        for file in drop_ins {
            sources.file(&file)?;
        }
        for (n, set) in (1..).zip(&self.sets) {
            sources.add(PathBuf::from(format!("--set {n}")), set.clone(), true);
        }
        Ok(sources.0)
    }
}

#[derive(Default)]
struct Sources(Vec<Source>);

impl Sources {
    fn file(&mut self, path: &Path) -> Result<(), Vec<Note>> {
        let unreadable = |message: String| {
            vec![Note { file: path.to_path_buf(), line: 1, column: 1, field: String::new(), message }]
        };
        let bytes = fs::read(path).map_err(|e| unreadable(format!("cannot be read: {e}; name a TOML file")))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            unreadable(format!("byte {} is not UTF-8; save the file as UTF-8 text", e.utf8_error().valid_up_to()))
        })?;
        self.add(path.to_path_buf(), text, false);
        Ok(())
    }

    fn add(&mut self, name: PathBuf, text: String, set: bool) {
        // The end of one document is a place of its own.
        let start = self.0.last().map_or(0, |last| last.start + last.text.len() + 1);
        self.0.push(Source { name, text, start, set });
    }
}

/// A single document that was read already; its positions begin at 0.
pub fn one(name: &Path, text: &str) -> Vec<Source> {
    vec![Source { name: name.to_path_buf(), text: text.to_owned(), start: 0, set: false }]
}

/// The texts of the documents, each behind as many spaces as make the parser's positions equal to ours.
pub fn shifted(sources: &[Source]) -> Vec<String> {
    let shift = |source: &Source| {
        let spaces = " ".repeat(source.start);
        match source.text.split_once('=') {
            // `x` stands for the path.
            Some((path, value)) if source.set && !path.is_empty() => {
                format!("{spaces}{}x={value}", " ".repeat(path.len() - 1))
            }
            _ => spaces + &source.text,
        }
    };
    sources.iter().map(shift).collect()
}

/// Parses and merges the documents; `shifted` holds their texts as the function of that name returns them.
pub fn merged<'i>(sources: &'i [Source], shifted: &'i [String], sink: &Sink<'_>) -> DeTable<'i> {
    let mut root = DeTable::new();
    for (source, text) in sources.iter().zip(shifted) {
        let (document, errors) = DeTable::parse_recoverable(text);
        let document = document.into_inner();
        let path = source.text.split_once('=').map_or("", |(path, _)| path.trim());
        if source.set && (path.is_empty() || document.len() > 1) {
            let message = "write PATH=VALUE, such as port[0].cpu=3 or log.level='\"debug\"'";
            sink.mistake(source.start..source.start, "", message);
            continue;
        }
        for error in &errors {
            let at = error.span().unwrap_or(source.start..source.start);
            sink.mistake(at, "", format_args!("not TOML: {}", error.message()));
        }
        if !source.set {
            merge(&mut root, document);
        } else if let Some((_, value)) = document.into_iter().next().filter(|_| errors.is_empty())
            && let Err(why) = assign(&mut root, path, value)
        {
            sink.mistake(source.start..source.start, path, why);
        }
    }
    root
}

/// Merges tables, appends arrays of tables, and replaces everything else.
fn merge<'i>(into: &mut DeTable<'i>, from: DeTable<'i>) {
    for (key, value) in from {
        let Some(known) = into.get_mut(&key) else {
            into.insert(key, value);
            continue;
        };
        let span = value.span();
        match (known.get_mut(), value.into_inner()) {
            (DeValue::Table(into), DeValue::Table(from)) => merge(into, from),
            (DeValue::Array(into), DeValue::Array(from)) if is_tables(into) && is_tables(&from) => {
                from.into_iter().for_each(|element| into.push(element));
            }
            (_, value) => {
                into.remove(&key);
                into.insert(key, Spanned::new(span, value));
            }
        }
    }
}

fn is_tables(array: &[Spanned<DeValue<'_>>]) -> bool {
    array.iter().all(|element| element.get_ref().is_table())
}

/// Puts a value at a path, and makes the tables on the way that do not exist yet.
fn assign<'i>(table: &mut DeTable<'i>, path: &'i str, value: Spanned<DeValue<'i>>) -> Result<(), String> {
    let (step, rest) = path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)));
    let (key, position) = match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
        Some((key, n)) => (key, Some(n.parse::<usize>().map_err(|_| format!("\"{n}\" is no position, count from 0"))?)),
        None => (step, None),
    };
    let span = value.span();
    let key = Spanned::new(span.clone(), key.into());
    let slot = match (position, rest) {
        (None, None) => {
            table.remove(&key);
            table.insert(key, value);
            return Ok(());
        }
        (None, Some(_)) => table.entry(key).or_insert_with(|| Spanned::new(span, DeValue::Table(DeTable::new()))),
        (Some(n), _) => {
            let array = table.get_mut(&key).and_then(|value| match value.get_mut() {
                DeValue::Array(array) => array.get_mut(n),
                _ => None,
            });
            array.ok_or_else(|| format!("there is no {step}; a list begins with [0]"))?
        }
    };
    match (slot.get_mut(), rest) {
        (DeValue::Table(table), Some(rest)) => assign(table, rest, value),
        (_, Some(_)) => Err(format!("{step} is no table")),
        (_, None) => {
            *slot = value;
            Ok(())
        }
    }
}

/// The document that contains a position.
pub(crate) fn holding<'s>(sources: &'s [Source], span: &Range<usize>) -> Option<&'s Source> {
    sources.iter().rev().find(|source| source.start <= span.start)
}
