//! The commands of a client against a real node: handles, relocation, pages, revocation, fences.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::Berth;

/// A user with a home and a key.
struct User {
    home: PathBuf,
    node: String,
}

impl User {
    fn try_run(&self, args: &[&str], input: &[u8]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(args).env("HOME", &self.home).env("BERTH_NODE", &self.node);
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    fn run(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.try_run(args, input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.run(&[args, &["--json"]].concat(), b"")).unwrap()
    }

    /// What a command that fails says.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.try_run(args, b"");
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn alloc(&self, size: &str) -> String {
        text(&self.json(&["lease", "alloc", "--size", size])["lease_id"])
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// A node, and two users that are enrolled.
fn site(folder: &Path) -> (Berth, User, User, [String; 2]) {
    let [mut ann, mut bob] = ["ann", "bob"].map(|name| User { home: folder.join(name), node: String::new() });
    let keys = [&ann, &bob].map(|user| {
        let key = user.json(&["key", "new"]);
        (text(&key["public_key"]), text(&key["id"]))
    });
    let berth = Berth::start(&format!(
        "[node]\nstate_dir = \"{}/state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
         enrolled = [\"{}\", \"{}\"]\n[[control.policy]]\npresenter = \"*\"\n\
         perms = [\"read\", \"write\", \"alloc\", \"revoke\", \"admin\"]\n\
         [[region]]\nname = \"m\"\nkind = \"memory\"\nsize = \"1 MiB\"\n",
        folder.display(),
        keys[0].0,
        keys[1].0
    ));
    let node = text(&berth.ready["endpoints"]["quic"]);
    (ann.node, bob.node) = (node.clone(), node);
    (berth, ann, bob, keys.map(|(_, id)| id))
}

#[test]
fn handles_and_relocation() {
    let folder = TempDir::new().unwrap();
    let (_berth, ann, bob, [_, bobs_id]) = site(folder.path());
    let (lease, copy, short) = (ann.alloc("8 KiB"), ann.alloc("8 KiB"), ann.alloc("4 KiB"));
    ann.run(&["lease", "write", &lease, "hello"], b"");

    let exported = ann.json(&["lease", "export", &lease, "--to", &bobs_id, "--rights", "read", "--ttl", "60"]);
    assert_eq!(exported["binding"], format!("fabric-page {lease} 0+8192"));
    let handle = text(&exported["export_handle"]);
    assert!(ann.refused(&["lease", "import", &handle]).contains("INSUFFICIENT_PERM"));
    let imported = bob.json(&["lease", "import", &handle]);
    assert_eq!((&imported["rights"][0], &imported["expires_at"]), (&"read".into(), &exported["expires_at"]));
    let attachment = text(&imported["attachment"]);
    let whole = bob.run(&["lease", "read", &attachment], b"");
    assert_eq!((whole.len(), &whole[..5]), (8192, &b"hello"[..]));
    assert!(bob.refused(&["lease", "write", &attachment, "no"]).contains("FENCED"));
    let refused = bob.refused(&["lease", "export", &lease, "--rights", "read,write"]);
    assert!(refused.contains("INSUFFICIENT_PERM"), "{refused}");

    let read = |lease: &str| ann.run(&["lease", "read", lease, "--len", "5"], b"");
    assert_eq!(ann.json(&["lease", "relocate", &lease, &copy])["bytes_transferred"], 8192);
    assert_eq!(read(&copy), b"hello");
    let larger = ann.refused(&["lease", "relocate", &lease, &short]);
    assert!(larger.contains("the node could not do it: the source is larger than the destination"), "{larger}");
    ann.run(&["lease", "write", &lease, "moved"], b"");
    ann.run(&["lease", "relocate", &lease, &copy, "--mode", "move", "--preserve", "1"], b"");
    assert_eq!(read(&copy), b"moved");
    assert_eq!(ann.json(&["lease", "query", &lease])["status"], "REVOKED");
    assert!(bob.refused(&["lease", "import", &handle]).contains("LEASE_EXPIRED"));
}

#[test]
fn pages() {
    let folder = TempDir::new().unwrap();
    let (_berth, ann, bob, _) = site(folder.path());
    let lease = ann.alloc("8 KiB");
    let page = |op: &str, args: &[&str], input: &[u8]| ann.run(&[&["lease", "page", op, &lease], args].concat(), input);
    page("write", &["1", "--offset", "7"], b"from a pipe");
    assert_eq!(page("read", &["1", "--offset", "7", "--len", "11"], b""), b"from a pipe");
    page("copy", &["1", &lease, "0"], b"");
    assert_eq!(ann.run(&["lease", "read", &lease, "--offset", "7", "--len", "11"], b""), b"from a pipe");
    page("zero", &["1"], b"");
    assert_eq!(page("read", &["1", "--offset", "7", "--len", "2"], b""), [0, 0]);
    page("advise", &["1", "5"], b"");
    let state = ann.json(&["lease", "page", "query", &lease, "1"]);
    let expected = (&5.into(), &5.into(), &true.into(), &1.into());
    assert_eq!((&state["advice"], &state["access_count"], &state["dirty"], &state["page"]), expected, "{state}");
    let beyond = ann.refused(&["lease", "page", "query", &lease, "2"]);
    assert!(beyond.contains("PAGE_QUERY: the node answered PAGE_OUT_OF_RANGE"), "{beyond}");
    assert!(bob.refused(&["lease", "page", "zero", &lease, "0"]).contains("LEASE_NOT_FOUND"));
}

#[test]
fn revocation_and_fences() {
    let folder = TempDir::new().unwrap();
    let (_berth, ann, _, _) = site(folder.path());
    let file = folder.path().join("token");
    let file = file.to_str().unwrap();
    std::fs::write(file, ann.run(&["token", "request"], b"")).unwrap();
    let id = text(&ann.json(&["token", "show", file])["token_id"]);
    let lease = text(&ann.json(&["lease", "alloc", "--size", "4096", "--token", file])["lease_id"]);
    let revoked = ann.json(&["token", "revoke", &id, "--ttl", "1000"]);
    assert_eq!(revoked["revoked"], id);
    assert!(revoked["until"].as_u64().unwrap() > 1_000_000_000);
    assert_eq!(ann.json(&["lease", "query", &lease])["status"], "REVOKED");
    assert!(ann.refused(&["lease", "alloc", "--size", "1", "--token", file]).contains("INVALID_TOKEN"));

    let fence = |args: &[&str]| ann.json(&[&["fence"], args].concat());
    assert_eq!(fence(&["get"]), serde_json::json!({"installed": false, "epoch": 0}));
    fence(&["set", "5"]);
    assert_eq!(fence(&["get"]), serde_json::json!({"installed": true, "epoch": 5}));
    assert!(ann.refused(&["fence", "set", "6"]).contains("STALE_EPOCH"), "the token has no term");
    assert!(ann.refused(&["fence", "set", "5", "--epoch", "5"]).contains("STALE_EPOCH"));
    assert!(ann.refused(&["lease", "alloc", "--size", "1"]).contains("STALE_EPOCH"));
    ann.run(&["lease", "alloc", "--size", "1", "--epoch", "5"], b"");
    fence(&["set", "6", "--epoch", "5"]);
    assert!(ann.refused(&["lease", "alloc", "--size", "1", "--epoch", "5"]).contains("STALE_EPOCH"));
}
