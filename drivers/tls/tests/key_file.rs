//! Key files: which are read, which are refused, and how they are made.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use berth_tls::key_file::{self, KeyFileError};
use tempfile::TempDir;

fn file(folder: &TempDir, contents: &str, mode: u32) -> PathBuf {
    let path = folder.path().join("key");
    fs::write(&path, contents).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// RFC 8032, section 7.1, test 1.
const SEED: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

#[test]
fn a_line_of_hex_is_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    for text in [SEED.to_string(), format!("{}\n", SEED.to_uppercase())] {
        let key = key_file::read(&file(&folder, &text, 0o600)).unwrap();
        assert_eq!(key.public_key().to_string(), PUBLIC);
    }
}

#[test]
fn pem_of_openssl_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let made = Command::new("openssl").args(["genpkey", "-algorithm", "ed25519", "-out"]).arg(&path).output().unwrap();
    assert!(made.status.success());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
    let key = key_file::read(&path).unwrap();
    let text = Command::new("openssl").args(["pkey", "-pubout", "-outform", "DER", "-in"]).arg(&path).output().unwrap();
    assert!(text.stdout.ends_with(key.public_key().as_bytes()));
}

/// Version 1, without the public key: OpenSSL 3.0 refuses the other.
#[test]
fn openssl_reads_what_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let key = key_file::generate().unwrap();
    key_file::create(&path, &key).unwrap();
    let read = Command::new("openssl").args(["pkey", "-pubout", "-outform", "DER", "-in"]).arg(&path).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    assert!(read.stdout.ends_with(key.public_key().as_bytes()));
    let der = Command::new("openssl").args(["pkey", "-outform", "DER", "-in"]).arg(&path).output().unwrap().stdout;
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("---"));
    assert_eq!(lines.collect::<String>().len(), 64, "48 bytes: {text}");
    assert_eq!((der.len(), &der[..5]), (48, &[0x30, 46, 2, 1, 0][..]), "version 1 is the number 0");
}

/// Keys that Berth made in the past: version 2, with the public key.
#[test]
fn version_2_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = "-----BEGIN PRIVATE KEY-----\nMFECAQEwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
                gSEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PRIVATE KEY-----\n";
    let key = key_file::read(&file(&folder, text, 0o600)).unwrap();
    assert_eq!(key.public_key().to_string(), PUBLIC);
}

#[test]
fn a_new_key_is_its_owners_alone_and_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let key = key_file::read_or_create(&path).unwrap();
    assert_eq!(mode(&path), 0o600);
    assert!(fs::read_to_string(&path).unwrap().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert_eq!(key_file::read_or_create(&path).unwrap().id(), key.id());
    let other = key_file::generate().unwrap();
    assert_ne!(other.id(), key.id());
    assert!(key_file::create(&path, &other).is_err(), "a key is never overwritten");
    assert_eq!(key_file::read(&path).unwrap().id(), key.id());
}

#[test]
fn files_that_others_may_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for open in [0o644, 0o640, 0o604, 0o620, 0o777] {
        let path = file(&folder, SEED, open);
        let error = key_file::read(&path).unwrap_err();
        assert!(matches!(error, KeyFileError::Open { mode, .. } if mode == open), "{error}");
        let shown = path.display();
        assert_eq!(error.to_string(), format!("{shown} is open to others (mode {open:04o}): run `chmod 600 {shown}`"));
    }
}

#[test]
fn what_is_no_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rsa = Command::new("openssl").args(["genpkey", "-algorithm", "rsa"]).output().unwrap();
    let rsa = String::from_utf8(rsa.stdout).unwrap();
    for text in ["", "x", &SEED[1..], &SEED.replace('9', "g"), &format!("{SEED} {SEED}"), "ß", &rsa] {
        let error = key_file::read(&file(&folder, text, 0o600)).unwrap_err();
        assert!(matches!(error, KeyFileError::NoKey { .. }), "{text}: {error}");
    }
    assert!(key_file::read(Path::new("/nowhere/key")).unwrap_err().is_missing());
}
