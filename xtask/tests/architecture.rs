//! What docs/architecture.md says of floors holds: who imports whom, what the dataplane stands on, where `unsafe` is.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

const PAGE: &str = "docs/architecture.md";

/// What a state machine without I/O has no use for.
const IO: [&str; 8] =
    ["std::fs", "std::thread", "std::process", "Instant::now", "SystemTime", "TcpListener", "TcpStream", "UdpSocket"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().canonicalize().unwrap()
}

/// The code spans of `text`.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The number of each crate's floor, by its folder, and whatever is said twice or of nobody.
fn floors(page: &str) -> BTreeMap<String, u32> {
    let section = page.split("\n## ").find(|section| section.starts_with("Floors")).expect("a section of floors");
    let mut floors = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").collect();
        let Ok(floor) = cells[0].trim().parse() else { continue };
        for folder in spans(cells[1]) {
            assert_eq!(floors.insert(folder.to_owned(), floor), None, "{folder} is on two floors");
        }
    }
    floors
}

/// The crates of others that the dataplane may use.
fn allowed(page: &str) -> Vec<&str> {
    let list = page.split("\n\n").find(|paragraph| paragraph.starts_with("Crates of others in `dataplane/`:"));
    spans(list.expect("what the dataplane stands on")).skip(1).collect()
}

/// A package: its folder, and what it depends on outside of its tests.
struct Package {
    folder: String,
    dependencies: Vec<String>,
    /// Whether Cargo looks for tests in its library and its programs, and in their documentation.
    tests: bool,
    doctests: bool,
}

fn packages() -> BTreeMap<String, Package> {
    let cargo = Command::new(env!("CARGO")).args(["metadata", "--format-version", "1", "--no-deps"]).output().unwrap();
    let metadata: Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let package = |package: &Value| {
        let manifest = text(&package["manifest_path"]);
        let folder = Path::new(&manifest).parent().unwrap().strip_prefix(root()).unwrap().display().to_string();
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let dependencies = dependencies.filter(|dependency| dependency["kind"] != "dev");
        let dependencies = dependencies.map(|dependency| text(&dependency["name"])).collect();
        let targets = || package["targets"].as_array().unwrap().iter();
        let inner =
            || targets().filter(|target| ["lib", "cdylib", "bin"].iter().any(|kind| target["kind"][0] == *kind));
        let tests = inner().any(|target| target["test"] == true);
        let doctests = inner().any(|target| target["doctest"] == true);
        (text(&package["name"]), Package { folder, dependencies, tests, doctests })
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

#[test]
fn a_crate_imports_only_crates_of_floors_below_it() {
    let page = fs::read_to_string(root().join(PAGE)).unwrap();
    let (floors, allowed, packages) = (floors(&page), allowed(&page), packages());
    let mut wrong = Vec::new();
    for package in packages.values() {
        let folder = &package.folder;
        let Some(floor) = floors.get(folder) else {
            wrong.push(format!("{folder} has no floor in {PAGE}"));
            continue;
        };
        for name in &package.dependencies {
            match packages.get(name) {
                Some(other) if floors.get(&other.folder) >= Some(floor) => {
                    wrong.push(format!("{folder} imports {}, which is not below it", other.folder));
                }
                None if folder.starts_with("dataplane/") && !allowed.contains(&&**name) => {
                    wrong.push(format!("{folder} imports {name}, which {PAGE} does not name for the dataplane"));
                }
                _ => {}
            }
        }
    }
    let gone = floors.keys().filter(|folder| !packages.values().any(|package| package.folder == **folder));
    wrong.extend(gone.map(|folder| format!("{folder} has a floor and is no package")));
    let used = |name: &&&str| packages.values().any(|package| package.dependencies.iter().any(|used| used == **name));
    wrong.extend(allowed.iter().filter(|name| !used(name)).map(|name| format!("nobody uses {name}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn sources(folder: &Path, visit: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, visit);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            visit(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_dataplane_does_no_io_and_reads_no_clock() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("dataplane")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut |path, text| {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            for line in code.filter(|line| IO.iter().any(|word| line.contains(word))) {
                wrong.push(format!("{}: {}", path.display(), line.trim()));
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_is_forbidden_outside_of_drivers_rings_and_memory() {
    let may = |folder: &str| {
        folder.starts_with("drivers/") || ["dataplane/ring", "dataplane/memory", "fuzz"].contains(&folder)
    };
    for package in packages().values().filter(|package| !may(&package.folder)) {
        let src = root().join(&package.folder).join("src");
        let roots = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().filter(|root| root.exists());
        for root in roots {
            let text = fs::read_to_string(&root).unwrap();
            assert!(text.contains("#![forbid(unsafe_code)]"), "{}", root.display());
        }
    }
}

/// The modules that `code` imports by `crate::`; of a group, the first word of each member.
fn imported(code: &str) -> BTreeSet<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut modules = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            modules.insert(word(rest));
            continue;
        };
        let (mut depth, mut member) = (1, 0);
        for (at, c) in group.char_indices() {
            if depth == 1 && [',', '}'].contains(&c) {
                modules.insert(word(group[member..at].trim_start()));
                member = at + 1;
            }
            depth = match c {
                '{' => depth + 1,
                '}' => depth - 1,
                _ => depth,
            };
            if depth == 0 {
                break;
            }
        }
    }
    modules
}

#[test]
fn modules_of_perf_import_each_other_in_one_direction() {
    let src = root().join("perf/src");
    let mut imports = BTreeMap::<String, BTreeSet<String>>::new();
    sources(&src, &mut |path, text| {
        let first = path.strip_prefix(&src).unwrap().components().next().unwrap();
        let module = Path::new(first.as_os_str()).file_stem().unwrap().to_str().unwrap().to_owned();
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let others = imported(&code).into_iter().filter(|other| *other != module);
        imports.entry(module.clone()).or_default().extend(others);
    });
    assert!(imports["suite"].contains("report") && imports["report"].contains("tally"), "{imports:#?}");
    while let Some(last) = imports.iter().find(|(_, of)| of.iter().all(|name| !imports.contains_key(name))) {
        let last = last.0.clone();
        imports.remove(&last);
    }
    assert!(imports.is_empty(), "a circle: {imports:#?}");
}

/// A library without tests is not built for them; one that gets some says so in its Cargo.toml.
#[test]
fn no_test_stands_where_none_is_run() {
    let mut wrong = Vec::new();
    for package in packages().values().filter(|package| package.folder != "fuzz") {
        sources(&root().join(&package.folder).join("src"), &mut |path, text| {
            let lines = || text.lines().map(str::trim);
            if !package.tests && lines().any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test")) {
                wrong.push(format!("{}: `test = false`", path.display()));
            }
            // Fences come in pairs: the first of each names what it has, where that is no Rust.
            let mut fences = lines().filter_map(|line| line.strip_prefix("/// ```").or(line.strip_prefix("//! ```")));
            while let Some(language) = fences.next() {
                fences.next();
                if !package.doctests && ["", "no_run", "should_panic"].contains(&language) {
                    wrong.push(format!("{}: `doctest = false`", path.display()));
                }
            }
        });
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
