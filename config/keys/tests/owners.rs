//! Keys that belong to a word of another key.

use std::path::Path;

use berth_keys::{Key, Kind, Owned, Owner, Section, Sink, Table, document, key};

const fn of(key: &'static str, word: &'static str, keys: &'static [Key]) -> Owned {
    Owned { by: Owner { key, word }, keys }
}

const BIND: Key = key("bind", Kind::Text, "");

static LIMITS: Section = Section::new("", &[key("rate", Kind::Integer(0, 9), "").default("1")]).owned(&[&[of(
    "driver",
    "a",
    &[key("queue", Kind::Integer(0, 9), "").default("2")],
)]]);

static ROOT: Section = Section::new(
    "",
    &[
        key("driver", Kind::Choice(&[("a", ""), ("b", ""), ("c", "")]), "").required(),
        key("limits", Kind::Table(&LIMITS), ""),
    ],
)
.owned(&[
    &[of("driver", "a", &[BIND])],
    &[of("driver", "b", &[BIND, key("form", Kind::Choice(&[("x", ""), ("y", "")]), "").default("\"x\"")])],
    &[of("form", "y", &[key("deep", Kind::Text, "")])],
]);

/// Reads like a driver: its own keys, and those that every driver has.
fn mistakes(text: &str) -> Vec<String> {
    let sources = document::one(Path::new("f"), text);
    let texts = document::shifted(&sources);
    let sink = Sink::new(&sources);
    let document = document::merged(&sources, &texts, &sink);
    let mut t = Table::root(&sink, &ROOT, &document);
    if let Some("b") = t.word("driver").map(|at| at.value) {
        t.word("form");
    }
    let _ = (t.text("bind"), t.text("deep"));
    let mut limits = t.table_or_empty("limits");
    let _ = (limits.number("rate"), limits.number("queue"));
    limits.finish();
    t.finish();
    sink.finish().err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

#[test]
fn a_key_of_other_words_is_refused_with_their_names() {
    let none: [&str; 0] = [];
    assert_eq!(mistakes("driver = \"a\"\nbind = \"\"\nlimits.queue = 3"), none);
    assert_eq!(mistakes("driver = \"b\"\nbind = \"\"\nform = \"y\"\ndeep = \"\""), none);
    assert_eq!(
        mistakes("driver = \"c\"\nbind = \"\"\nform = \"y\"\nlimits.queue = 3"),
        [
            "f:2:1: bind: means nothing here; it belongs to driver = \"a\" or \"b\", leave it out",
            "f:3:1: form: means nothing here; it belongs to driver = \"b\", leave it out",
            "f:4:8: limits.queue: means nothing here; it belongs to driver = \"a\", leave it out",
        ]
    );
    // The default is a word, too.
    let deep = "f:2:1: deep: means nothing here; it belongs to form = \"y\", leave it out";
    assert_eq!(mistakes("driver = \"b\"\ndeep = \"\""), [deep]);
    assert_eq!(mistakes("driver = \"a\"\ndeep = \"\""), [deep]);
}

#[test]
fn nothing_is_refused_for_a_word_that_is_missing_or_wrong() {
    let rest = "bind = \"\"\nform = \"y\"\ndeep = \"\"\nlimits.queue = 3\n";
    assert_eq!(mistakes(&format!("driver = \"d\"\n{rest}")), ["f:1:10: driver: \"d\" is unknown; there are: a, b, c"]);
    let none: [&str; 0] = [];
    assert_eq!(mistakes(rest), none);
    assert_eq!(mistakes("driver = \"b\"\nform = \"z\"\ndeep = \"\"").len(), 1);
}
