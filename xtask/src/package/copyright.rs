//! The packages' copyright file in Debian's machine-readable form: ours, and of every crate that is linked into `berth`.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::sh::{cargo, output};

/// Licences whose text every Debian system has, and its file.
const COMMON: &[(&str, &str)] =
    &[("Apache-2.0", "Apache-2.0"), ("LGPL-3.0", "LGPL-3"), ("MPL-2.0", "MPL-2.0"), ("GPL-2.0", "GPL-2")];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    #[serde(default)]
    authors: Vec<String>,
    license: Option<String>,
    source: Option<String>,
    manifest_path: String,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `None` for what is linked, `build` and `dev` for the others.
    kind: Option<String>,
}

/// A crate with the words of its own licence files.
struct Linked {
    package: Package,
    /// An SPDX expression.
    license: String,
    files: BTreeMap<String, String>,
}

/// The copyright file of `berth` with these features.
pub(super) fn text(features: &str) -> Result<String> {
    let crates = linked(features)?;
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: berth\n\
         Comment: Names of licences are those of SPDX. vendor/ stands for the crates that are linked into the program.\n\n\
         Files: *\nCopyright: the Berth contributors\nLicense: Apache-2.0 or MIT\n\n\
         Files: vendor/rust-std/*\nCopyright: the Rust project contributors\nLicense: Apache-2.0 or MIT\n\n",
    );
    let mut licenses = BTreeSet::from(["Apache-2.0".to_owned(), "MIT".to_owned()]);
    for Linked { package, license, files } in &crates {
        let holders = holders(package, files);
        let synopsis = license.replace(" OR ", " or ").replace(['('], "").replace(')', ",");
        let synopsis = synopsis.replace(" AND ", " and ");
        writeln!(text, "Files: vendor/{}-{}/*", package.name, package.version)?;
        writeln!(text, "Copyright: {}\nLicense: {synopsis}\n", holders.join("\n           "))?;
        licenses.extend(identifiers(license));
    }
    for license in &licenses {
        writeln!(text, "License: {license}\n{}", paragraph(license, &crates)?)?;
    }
    Ok(text)
}

/// Every crate from a registry that `berth` is linked with, by name and version.
fn linked(features: &str) -> Result<Vec<Linked>> {
    let filter = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut cargo = cargo(["metadata", "--format-version", "1", "--locked", "--filter-platform", &filter]);
    let Metadata { packages, resolve } = serde_json::from_str(&output(cargo.args(["--features", features]))?)?;
    let edges: HashMap<_, _> = resolve.nodes.into_iter().map(|node| (node.id, node.deps)).collect();
    let root = packages.iter().find(|package| package.source.is_none() && package.name == "berth");
    let mut todo = vec![root.context("no package berth in the workspace")?.id.clone()];
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        let deps = edges[&id].iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        todo.extend(deps.map(|dep| dep.pkg.clone()).filter(|id| !seen.contains(id)));
        seen.insert(id);
    }
    let mut crates = Vec::new();
    for package in packages.into_iter().filter(|package| package.source.is_some() && seen.contains(&package.id)) {
        let license = package.license.clone().with_context(|| format!("{} names no licence", package.name))?;
        // Older crates write a slash, some with spaces around it.
        let license = license.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" ");
        let folder = Path::new(&package.manifest_path).parent().context("a manifest lies in a folder")?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(folder)?.flatten() {
            let name = entry.file_name().to_string_lossy().to_uppercase();
            if ["LICEN", "COPY", "NOTICE", "UNLICEN"].iter().any(|start| name.starts_with(start))
                && entry.path().is_file()
            {
                files.insert(name, fs::read_to_string(entry.path())?);
            }
        }
        crates.push(Linked { package, license, files });
    }
    crates.sort_by(|a, b| (&a.package.name, &a.package.version).cmp(&(&b.package.name, &b.package.version)));
    Ok(crates)
}

/// Whose a crate is: as its licence files say, else its authors.
fn holders(package: &Package, files: &BTreeMap<String, String>) -> Vec<String> {
    let lines = files.values().flat_map(|text| text.lines()).map(str::trim);
    let stated = lines.filter(|line| {
        let line = line.to_lowercase();
        line.starts_with("copyright")
            && line.contains(|c: char| c.is_ascii_digit() || c == '©')
            && !line.contains("yyyy")
            || line.starts_with("copyright (c)") && !line.contains('<')
    });
    // "Copyright (c) 2015 Somebody." is "2015 Somebody".
    let bare = |line: &str| {
        let line = line["copyright".len()..].trim_start_matches([':', ' ']);
        let marks = ["(c)", "(C)", "©"];
        marks.iter().fold(line, |line, mark| line.trim_start_matches(mark)).trim_matches([' ', '.']).to_owned()
    };
    let mut holders: Vec<_> = stated.map(bare).collect();
    holders.sort();
    holders.dedup();
    if holders.is_empty() {
        holders.extend(package.authors.iter().cloned());
    }
    if holders.is_empty() {
        holders.push(format!("the authors of {}", package.name));
    }
    holders
}

/// The licences that an SPDX expression names.
fn identifiers(license: &str) -> impl Iterator<Item = String> {
    let words = license.split(['(', ')', ' ']).filter(|word| !["", "OR", "AND", "WITH"].contains(word));
    words.map(str::to_owned)
}

/// A licence's own text, from a crate that has it.
fn paragraph(license: &str, crates: &[Linked]) -> Result<String> {
    if let Some((_, file)) = COMMON.iter().find(|(name, _)| *name == license) {
        return Ok(format!(" The whole text is in /usr/share/common-licenses/{file} on Debian systems.\n"));
    }
    // A crate under this licence alone, else a file named after it.
    let alone = crates.iter().filter(|linked| linked.license == license).flat_map(|linked| linked.files.values());
    let family = license.to_uppercase();
    let family = family.trim_end_matches("-CLAUSE").split('-').next().unwrap_or_default();
    // The Boost licence's files have its whole name.
    let family = if family == "BSL" { "BOOST" } else { family };
    let named = crates.iter().filter(|linked| identifiers(&linked.license).any(|name| name == license));
    let named = named.flat_map(|linked| &linked.files).filter(|(name, _)| name.contains(family)).map(|(_, text)| text);
    let words = alone.chain(named).next().with_context(|| format!("no crate has the text of the licence {license}"))?;
    let mut paragraph = String::new();
    let mut blank = true;
    for line in words.lines().map(str::trim_end).filter(|line| !line.trim_start().starts_with("Copyright")) {
        // One empty line between paragraphs, and none before the first.
        if !(blank && line.is_empty()) {
            writeln!(paragraph, " {}", if line.is_empty() { "." } else { line })?;
        }
        blank = line.is_empty();
    }
    Ok(paragraph)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_linked_crate_is_named_and_every_licence_has_its_text() {
        let text = super::text(crate::build::FEATURES).unwrap();
        // One linked always, one for a feature, and one that only builds.
        assert!(text.contains("\nFiles: vendor/tokio-1."));
        assert!(text.contains("\nFiles: vendor/rdma-mummy-sys-0."));
        assert!(!text.contains("\nFiles: vendor/bindgen-"));
        let stanzas = text.split("\n\n").skip(1);
        let (files, texts): (Vec<_>, Vec<_>) = stanzas.partition(|stanza| stanza.starts_with("Files: "));
        assert!(files.iter().all(|stanza| stanza.lines().nth(1).is_some_and(|line| line.len() > "Copyright: ".len())));
        let field = |stanza: &str| stanza.lines().find_map(|line| Some(line.strip_prefix("License: ")?.to_owned()));
        let named = files.iter().flat_map(|stanza| {
            let words = field(stanza).unwrap_or_default().replace(',', "");
            words.split(' ').filter(|word| !["or", "and", "WITH"].contains(word)).map(str::to_owned).collect::<Vec<_>>()
        });
        let named: BTreeSet<_> = named.collect();
        let explained: BTreeSet<_> = texts.iter().filter_map(|stanza| field(stanza)).collect();
        assert_eq!(named, explained);
        assert!(texts.iter().filter(|stanza| !stanza.is_empty()).all(|stanza| stanza.lines().count() > 1));
    }
}
