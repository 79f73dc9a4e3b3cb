//! The schema of the configuration: what is printed from it is what is checked in, and what the reader reads.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use berth::config::{
    self, Host, Note,
    schema::{self, Key, Kind, ROOT, Section},
};
use berth_keys::Owner;
use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_checked_in_files_are_what_the_schema_prints() {
    for (form, file) in
        [("default", "config/berth.toml"), ("schema", "config/berth.schema.json"), ("docs", "docs/config.md")]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(["config", form]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let (printed, file) = (String::from_utf8(output.stdout).unwrap(), repository().join(file));
        let found = fs::read_to_string(&file).unwrap();
        assert!(found == printed, "run `berth config {form} > {}`", file.display());
    }
}

/// A host that has everything.
fn any_host() -> Host {
    let read = |path: &Path| match path.extension() {
        Some(extension) if extension == "dem" => Ok("error(0.1) D0 L0\n".to_owned()),
        _ => Err(io::Error::other("nothing")),
    };
    Host { cpus: (0..8).collect(), has_feature: |_| true, is_file: |_| true, is_public: |_| false, read }
}

fn mistakes(text: &str) -> Vec<Note> {
    config::parse(text, Path::new("berth.toml"), &any_host()).err().unwrap_or_default()
}

/// The lines by which keys mean something that belong to `owner`; none where it stands in a table above.
fn lines(section: &Section, owner: Owner) -> String {
    if section.key(owner.key).is_none() {
        return String::new();
    }
    let above = section.owners(owner.key).0.first().map_or_else(String::new, |owner| lines(section, *owner));
    format!("{above}{} = \"{}\"\n", owner.key, owner.word)
}

/// Visits every key that is no table, with the heads of the tables that it is in; once for each word that it belongs to.
fn each_key(section: &Section, path: &str, heads: &str, visit: &mut impl FnMut(&Key, &str, &str)) {
    for key in section.all() {
        let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
        let owners = section.owners(key.name).0;
        let mut ways: Vec<_> = owners.iter().map(|owner| format!("{heads}{}", lines(section, *owner))).collect();
        if ways.is_empty() {
            ways.push(heads.to_owned());
        }
        for heads in ways {
            match key.kind {
                Kind::Table(section) => each_key(section, &path, &format!("{heads}[{path}]\n"), visit),
                Kind::Tables(section) => each_key(section, &path, &format!("{heads}[[{path}]]\n"), visit),
                _ => visit(key, &path, &heads),
            }
        }
    }
}

#[test]
fn every_key_of_the_schema_is_read_as_it_says() {
    let mut keys = 0;
    each_key(&ROOT, "", "", &mut |key, path, heads| {
        keys += 1;
        let said = |value: &str| {
            let notes = mistakes(&format!("{heads}{} = {value}\n", key.name));
            let ours = notes.into_iter().filter(|note| note.field.replace("[0]", "") == path);
            ours.map(|note| note.message).collect::<Vec<_>>()
        };
        let wrong = said("1979-05-27");
        assert!(wrong.iter().any(|message| message.ends_with(" is wanted")), "{path} is not read: {wrong:?}");
        // Bounds, words and defaults are those of the schema.
        let refused =
            |value: &str| said(value).iter().any(|message| message.contains("wanted") || message.contains("unknown"));
        match key.kind {
            Kind::Integer(low, high) => {
                assert!(!refused(&low.to_string()) && !refused(&high.to_string()), "{path}");
                assert!(low == 0 || refused(&(low - 1).to_string()), "{path}");
                assert!(high >= i64::MAX as u64 || refused(&(high + 1).to_string()), "{path}");
            }
            Kind::Choice(words) => {
                assert!(words.iter().all(|(word, _)| !refused(&format!("{word:?}"))), "{path}");
                assert!(refused("\"nothing\""), "{path}");
            }
            _ => {}
        }
        for literal in [key.default, key.example].into_iter().flatten() {
            assert!(!refused(literal), "{path} = {literal}");
        }
    });
    assert!(keys > 100, "{keys}");
}

/// Checks a JSON schema against the schema of schemas, and prints where each instance breaks it.
const VALIDATOR: &str = "
import json, sys
from jsonschema import Draft202012Validator as Validator
task = json.load(sys.stdin)
Validator.check_schema(task['schema'])
errors = Validator(task['schema']).iter_errors
json.dump([['/' + '/'.join(map(str, e.absolute_path)) for e in errors(i)] for i in task['instances']], sys.stdout)
";

/// The paths of what breaks the schema, for each of these configurations.
fn validate(configurations: &[String]) -> Vec<Vec<String>> {
    let schema: Value = serde_json::from_str(&schema::json_schema()).unwrap();
    let instances: Vec<_> = configurations.iter().map(|text| toml::from_str::<toml::Table>(text).unwrap()).collect();
    let task = serde_json::json!({ "schema": schema, "instances": instances });
    let mut python = Command::new("python3");
    let mut child =
        python.args(["-c", VALIDATOR]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    serde_json::to_writer(child.stdin.take().unwrap(), &task).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_json_schema_takes_every_configuration_and_refuses_wrong_ones() {
    let folders = ["config", "config/examples", "config/profiles"].map(|folder| repository().join(folder));
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    assert!(files.len() >= 12, "{files:?}");
    let texts: Vec<_> = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    for (file, errors) in files.iter().zip(validate(&texts)) {
        assert_eq!(errors, [] as [String; 0], "{}", file.display());
    }
    let wrong = [
        ("idle = \"spinn\"", "/port/0/idle"),
        ("nme = 1", "/port/0"),
        ("[port.rpc]\nslots = 0", "/port/0/rpc/slots"),
        ("[[region]]\nsize = \"1 MB\"", "/region/0"),
        ("[runtime.dpdk]\nhugepages = 1", "/runtime/dpdk/hugepages"),
    ];
    let port = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\n";
    let texts = wrong.map(|(wrong, _)| format!("{port}{wrong}\n"));
    for ((wrong, place), errors) in wrong.iter().zip(validate(&texts)) {
        assert!(errors.iter().any(|path| path.starts_with(place)), "{wrong}: {errors:?}");
    }
}

#[test]
fn the_default_file_shows_every_key_once_in_its_table() {
    let text = schema::default_file();
    let mut head = String::new();
    let mut shown = Vec::new();
    for line in text.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        if let Some(table) = line.strip_prefix('[') {
            head = table.trim_matches(['[', ']']).to_owned();
        } else if let Some((name, _)) = line.split_once(" = ").filter(|(name, _)| !name.contains([' ', ':'])) {
            shown.push(format!("{head}.{name}"));
        }
    }
    let mut wanted = Vec::new();
    each_key(&ROOT, "", "", &mut |_, path, _| wanted.push(path.to_owned()));
    shown.sort();
    wanted.sort();
    wanted.dedup();
    assert_eq!(shown, wanted);
    assert!(text.lines().all(|line| line.len() <= 200), "{text}");
}

#[test]
fn live_is_what_a_reload_takes_and_nothing_beside_it() {
    for live in [
        "function[3].handler",
        "decoder[0]",
        "log.level",
        "port[1].rpc.dispatch",
        "control.policy[0].perms[1]",
        "control.enroll",
        "control.enrolled[0]",
    ] {
        assert!(schema::is_live(live), "{live}");
    }
    for fixed in [
        "port[0].bind",
        "port[0]",
        "port[0].rpc.ring[0].slots",
        "control",
        "control.udp",
        "tune.cpu_dma_latency_us",
        "functions",
        "",
    ] {
        assert!(!schema::is_live(fixed), "{fixed}");
    }
}
