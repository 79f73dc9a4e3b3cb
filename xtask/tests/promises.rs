//! What docs/security.md and docs/reliability.md promise is kept by tests that exist.

use std::{fs, path::Path};

/// The last head of a table of promises.
const KEPT_BY: &str = "kept by";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split(" | ").map(str::trim).collect()
}

/// The rows of every table of promises: the promise and what keeps it.
fn promises(page: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut rows = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let cells = cells(line);
        match (line.starts_with('|'), inside) {
            (false, _) => inside = false,
            (true, false) => inside = cells.last() == Some(&KEPT_BY),
            (true, true) if line.starts_with("|---") => {}
            (true, true) => rows.push((cells[0].to_owned(), (*cells.last().unwrap()).to_owned())),
        }
    }
    rows
}

/// Whether this file has a test of this name: a function that is one, or a step of a Python scenario.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let rust = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        let python = line.strip_prefix("def ");
        let named = |rest: &str| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('('));
        let attributes = || lines[..at].iter().rev().take_while(|line| line.starts_with('#') || line.starts_with("//"));
        python.is_some_and(named) || rust.is_some_and(named) && attributes().any(|line| line.contains("test"))
    })
}

/// What is wrong with what a row says keeps its promise: files in code spans, each with its tests behind it.
fn wrong(kept_by: &str) -> Option<String> {
    let spans: Vec<_> = kept_by.split('`').skip(1).step_by(2).collect();
    let mut file: Option<(&str, String)> = None;
    let mut named = true;
    for span in spans {
        if span.contains('/') {
            if !named {
                return file.map(|(path, _)| format!("no test of {path} is named"));
            }
            let Ok(text) = fs::read_to_string(root().join(span)) else { return Some(format!("there is no {span}")) };
            // A suite of the lab and a fuzz target are a test each.
            named = span.starts_with("lab/suites/") || span.starts_with("fuzz/fuzz_targets/");
            file = Some((span, text));
        } else {
            let Some((path, text)) = &file else { return Some(format!("{span} stands behind no file")) };
            if !has_test(text, span) {
                return Some(format!("{path} has no test {span}"));
            }
            named = true;
        }
    }
    match file {
        None => Some("no test is named".to_owned()),
        Some((path, _)) if !named => Some(format!("no test of {path} is named")),
        Some(_) => None,
    }
}

#[test]
fn every_promise_names_tests_that_exist() {
    for (page, least) in [("docs/security.md", 20), ("docs/reliability.md", 20)] {
        let promises = promises(page);
        assert!(promises.len() >= least, "{page} has {} promises", promises.len());
        let wrong: Vec<_> =
            promises.iter().filter_map(|(promise, by)| Some(format!("{promise}: {}", wrong(by)?))).collect();
        assert!(wrong.is_empty(), "{page}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn what_is_no_test_is_told() {
    let here = "xtask/tests/promises.rs";
    for (kept_by, told) in [
        ("somebody", "no test is named"),
        ("`xtask/tests/none.rs` `it`", "there is no xtask/tests/none.rs"),
        (&format!("`{here}`"), "no test of xtask/tests/promises.rs is named"),
        (&format!("`{here}` `promises`"), "xtask/tests/promises.rs has no test promises"),
        (&format!("`{here}`, `lab/suites/smoke.sh`"), "no test of xtask/tests/promises.rs is named"),
        ("`it`", "it stands behind no file"),
    ] {
        assert_eq!(wrong(kept_by).as_deref(), Some(told));
    }
    let sound =
        format!("`lab/suites/smoke.sh`, `{here}` `what_is_no_test_is_told` `every_promise_names_tests_that_exist`");
    assert_eq!(wrong(&sound), None);
}
