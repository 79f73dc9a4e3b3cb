//! The schema in three forms: the commented default file, a JSON schema, and a reference for people.

use std::fmt::Write as _;

use berth_keys::{CPU_MAX, Key, Kind, Reload, Section, schema::Owners};
use serde_json::{Map, Value, json};

use super::ROOT;

/// Columns of the default file.
const WIDTH: usize = 118;

/// Where the comment behind a value begins, unless the value is longer.
const COMMENT: usize = 32;

/// `config/berth.toml`: what must be said, and in comments all that may be.
pub fn default_file() -> String {
    let mut out = "# Berth. `berth check FILE` reports every mistake in a file like this one; `berth run --config FILE` runs it.\n\
                   # Keys behind `#` show their default, or an example. docs/config.md has all there is to know of each.\n"
        .to_owned();
    for key in ROOT.keys {
        table(&mut out, key, &ROOT.owners(key.name), "", true);
    }
    out
}

/// One table with all below it; in comments, unless it is said and what it is in is.
fn table(out: &mut String, key: &Key, owners: &Owners, above: &str, said: bool) {
    let (section, list) = match key.kind {
        Kind::Table(section) => (section, false),
        Kind::Tables(section) => (section, true),
        _ => return,
    };
    let path = format!("{above}{}", key.name);
    let said = said && key.said;
    let mark = if said { "" } else { "# " };
    out.push('\n');
    comment(out, "", &if section.doc.is_empty() { sentence(key.doc) } else { section.doc.to_owned() });
    if !owners.0.is_empty() {
        comment(out, "", &format!("With {owners}."));
    }
    let _ = if list { writeln!(out, "{mark}[[{path}]]") } else { writeln!(out, "{mark}[{path}]") };
    let mut before = Owners(Vec::new());
    let (tables, scalars): (Vec<_>, Vec<_>) = section.all().into_iter().partition(|key| key.section().is_some());
    for key in scalars {
        let owners = section.owners(key.name);
        if owners != before {
            comment(out, "", &format!("With {owners}:"));
            before = owners;
        }
        scalar(out, key, if key.said { mark } else { "# " });
    }
    for key in tables {
        table(out, key, &section.owners(key.name), &format!("{path}."), said);
    }
}

fn scalar(out: &mut String, key: &Key, mark: &str) {
    let example = if key.said { "" } else { "example; " };
    let (value, note) = match (key.default, key.example) {
        (Some("[]" | "\"\"") | None, Some(value)) => (value, example),
        (Some(value), _) => (value, ""),
        (None, None) => ("", ""),
    };
    if let Kind::Choice(words) = key.kind {
        comment(out, "", &format!("{}:", key.name));
        let longest = words.iter().map(|(word, _)| word.len()).max().unwrap_or_default();
        for (word, doc) in words {
            comment(out, &format!("   {word:longest$} "), doc);
        }
    }
    // Two spaces at least.
    let line = format!("{mark}{} = {value}  ", key.name);
    let _ = writeln!(out, "{line:COMMENT$}# {note}{}", key.doc);
}

/// Lines of a comment, broken between words; `lead` stands before the first.
fn comment(out: &mut String, lead: &str, text: &str) {
    let mut line = format!("#{lead}");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = format!("#{}", " ".repeat(lead.len()));
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(out, "{line}");
}

/// A phrase as a sentence.
fn sentence(phrase: &str) -> String {
    let mut letters = phrase.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).chain(['.']).collect())
}

/// What the reference and the JSON schema say of a key.
fn description(key: &Key, owners: &Owners) -> String {
    let mut all = vec![sentence(key.doc)];
    all.extend((!key.more.is_empty()).then(|| key.more.to_owned()));
    all.extend((!owners.0.is_empty()).then(|| format!("Only with {owners}.")));
    all.join(" ")
}

/// `config/berth.schema.json`: a JSON schema of the draft 2020-12, for editors.
pub fn json_schema() -> String {
    let mut root = object(&ROOT);
    root.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    root.insert("title".into(), "The configuration of Berth".into());
    let mut text = serde_json::to_string_pretty(&root).unwrap_or_default();
    text.push('\n');
    text
}

fn object(section: &Section) -> Map<String, Value> {
    let all = section.all().into_iter();
    let properties: Map<_, _> =
        all.map(|key| (key.name.to_owned(), property(key, &section.owners(key.name)).into())).collect();
    let required: Vec<_> = section.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut object = Map::new();
    object.insert("type".into(), "object".into());
    object.insert("properties".into(), properties.into());
    if !required.is_empty() {
        object.insert("required".into(), required.into());
    }
    object.insert("additionalProperties".into(), false.into());
    object
}

fn property(key: &Key, owners: &Owners) -> Map<String, Value> {
    let value = match key.kind {
        Kind::Flag => json!({"type": "boolean"}),
        Kind::FlagOr(word) => json!({"enum": [true, false, word]}),
        Kind::Integer(low, high) => json!({"type": "integer", "minimum": low, "maximum": high}),
        Kind::Probability => json!({"type": "number", "minimum": 0, "maximum": 1}),
        Kind::Size => json!({"oneOf": [
            {"type": "integer", "minimum": 1},
            {"type": "string", "pattern": "^ *[0-9]+ *([KMGT]i)?B *$"},
        ]}),
        Kind::Text => json!({"type": "string"}),
        Kind::Texts => json!({"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
        Kind::Cpus => json!({
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": CPU_MAX},
            "minItems": 1,
            "uniqueItems": true,
        }),
        Kind::Choice(words) => {
            let words = words.iter().map(|(word, doc)| json!({"const": word, "description": doc}));
            json!({"oneOf": words.collect::<Vec<_>>()})
        }
        Kind::Table(section) => object(section).into(),
        Kind::Tables(section) => json!({"type": "array", "items": object(section), "minItems": 1}),
    };
    let Value::Object(mut property) = value else { return Map::new() };
    property.insert("description".into(), description(key, owners).into());
    let default = key.default.and_then(|literal| toml::from_str::<toml::Table>(&format!("x = {literal}")).ok());
    if let Some(default) = default.and_then(|mut table| serde_json::to_value(table.remove("x")).ok()) {
        property.insert("default".into(), default);
    }
    property
}

/// `docs/config.md`: the reference.
pub fn reference() -> String {
    let mut out = "# Configuration\n\n\
         This page, the commented default file `config/berth.toml` and `config/berth.schema.json` are printed by\n\
         `berth config docs`, `default` and `schema` from the one schema that the program reads by.\n\n\
         The file is TOML. `conf.d/*.toml` beside it are merged into it in the order of their names: tables are merged,\n\
         lists of tables appended, other values replaced. `--set PATH=VALUE` comes last; the path is as mistakes name it,\n\
         such as `port[0].cpu`, and the value is TOML. `berth check` reports every mistake with its file, line and column.\n\
         Relative paths start at the folder of the main file.\n\n\
         SIGHUP (`systemctl reload`) reads all of it again. What is marked **live** changes without losing a request; any\n\
         other change refuses the whole reload, and all goes on as it was: the log, `berth status` and the service manager\n\
         say what was refused and where. `berth check NEW --against OLD` says it beforehand.\n"
        .to_owned();
    for key in ROOT.keys {
        chapter(&mut out, key, &ROOT.owners(key.name), "", false);
    }
    out
}

fn chapter(out: &mut String, key: &Key, owners: &Owners, above: &str, live: bool) {
    let (Kind::Table(section) | Kind::Tables(section)) = key.kind else { return };
    let (path, live) = (format!("{above}{}", key.name), live || key.reload == Reload::Live);
    let _ = match key.kind {
        Kind::Tables(_) => writeln!(out, "\n## `[[{path}]]`\n"),
        _ => writeln!(out, "\n## `[{path}]`\n"),
    };
    let doc = if section.doc.is_empty() { sentence(key.doc) } else { section.doc.to_owned() };
    let only = if owners.0.is_empty() { String::new() } else { format!(" Only with {owners}.") };
    let reload = if live { " **Live.**" } else { "" };
    let _ = writeln!(out, "{doc}{only}{reload}\n\n| key | value | default | meaning |\n|---|---|---|---|");
    let (tables, scalars): (Vec<_>, Vec<_>) = section.all().into_iter().partition(|key| key.section().is_some());
    for key in scalars {
        let mark = match key.reload {
            Reload::Live if !live => " **live**",
            Reload::Fixed => " needs a restart",
            _ => "",
        };
        let default = match key.default {
            Some(literal) => format!("`{literal}`"),
            None if key.required => "must be given".to_owned(),
            None if key.otherwise.is_empty() => "none".to_owned(),
            None => key.otherwise.to_owned(),
        };
        let example = key.example.map_or_else(String::new, |example| format!(" Example: `{example}`."));
        let _ = writeln!(
            out,
            "| `{}`{mark} | {} | {default} | {}{example} |",
            key.name,
            values(key.kind),
            cell(&description(key, &section.owners(key.name)))
        );
    }
    for key in tables {
        chapter(out, key, &section.owners(key.name), &format!("{path}."), live);
    }
}

/// What a key takes, in words.
fn values(kind: Kind) -> String {
    match kind {
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::FlagOr(word) => format!("`true`, `false` or `\"{word}\"`"),
        Kind::Integer(low, high) => format!("{low} to {high}"),
        Kind::Probability => "0 to 1".to_owned(),
        Kind::Size => "bytes, or a string such as `\"64 MiB\"`".to_owned(),
        Kind::Text => "string".to_owned(),
        Kind::Texts => "string, or list of strings".to_owned(),
        Kind::Cpus => "list of CPUs".to_owned(),
        Kind::Choice(words) => {
            let words: Vec<_> = words.iter().map(|(word, doc)| format!("`\"{word}\"`: {}", cell(doc))).collect();
            words.join("<br>")
        }
        Kind::Table(_) | Kind::Tables(_) => String::new(),
    }
}

/// Text as a cell of a table may hold it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
