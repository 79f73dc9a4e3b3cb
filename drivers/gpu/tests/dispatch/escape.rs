//! Workers that were taken over: what they can reach from inside.

#[path = "../../../process/tests/attempts/mod.rs"]
mod attempts;

use std::{
    env, fs,
    io::{Read as _, Write as _},
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::{net::UnixStream, process::parent_id},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use attempts::{attempts, descriptors, made};
use berth_gpu::{Functions, shut_in};
use serde_json::{Value, json};

use crate::common::{BOTH, On, Rig, increment};

/// The variable that makes a process of this test program one that tries to get out: its device, and the secret's path.
const ESCAPE: &str = "BERTH_GPU_TEST_ESCAPE";

/// What a driver of NVIDIA's or AMD's is left: names of files, sockets that wait on this host, memory, and itself.
const OF_DRIVERS: &[&str] = &[
    "stat",
    "statx",
    "chdir",
    "unix",
    "socketpair",
    "prctl",
    "seccomp",
    "memfd",
    "anonymous code",
    "shared memory",
    "written code",
    "mprotect",
    "write",
    "sendmsg",
];

/// What Landlock refuses, where the filter of system calls lets a driver open files.
const OF_LANDLOCK: &[&str] = &["open", "open to write", "create", "environment", "memory", "unlink"];

/// Whether this kernel has Landlock: it is asked for its version.
fn has_landlock() -> bool {
    // SAFETY: numbers and null are passed.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) > 0 }
}

/// What the other test starts.
#[test]
fn escapee() {
    let Some(told) = env::var_os(ESCAPE) else { return };
    let (device, secret) = told.to_str().unwrap().split_once(' ').unwrap();
    // SAFETY: nothing else of this process uses standard input.
    let mut out = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let (secret, parent) = (PathBuf::from(secret), parent_id().into());
    let mut all = attempts(&secret, parent);
    if device != "soft" {
        all.retain(|(name, ..)| !OF_DRIVERS.contains(name));
    }
    let walls = shut_in(&device.parse().unwrap(), 0, &[]).unwrap();
    // Threads that begin later are behind the same walls.
    let tried = thread::spawn(move || all.iter().map(|attempt| (attempt.0, made(attempt))).collect::<Vec<_>>());
    let (tried, open) = (tried.join().unwrap(), descriptors());
    let told = json!({ "tried": tried, "open": open, "namespaces": walls.namespaces, "landlock": walls.landlock });
    out.write_all(told.to_string().as_bytes()).unwrap();
}

/// What came of the attempts of a worker with this device.
fn escape(device: &str, secret: &Path) -> Value {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["escape::escapee", "--exact", "--test-threads=1"])
        .env(ESCAPE, format!("{device} {}", secret.display()));
    let mut child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn().unwrap();
    drop(command);
    let mut told = String::new();
    ours.read_to_string(&mut told).unwrap();
    child.wait().unwrap();
    serde_json::from_str(&told).unwrap_or_else(|_| panic!("it told {told:?}"))
}

#[test]
fn nothing_is_in_reach_from_inside() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "key").unwrap();
    // A region that a library has left open to children.
    // SAFETY: a constant name and a number are passed.
    let region = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"region".as_ptr(), 0)) };
    for (device, count) in [("soft", 50), ("auto", 50 - OF_DRIVERS.len()), ("hip:0", 50 - OF_DRIVERS.len())] {
        let told = escape(device, &secret);
        let tried = told["tried"].as_array().unwrap();
        assert_eq!(tried.len(), count);
        for attempt in tried {
            let (name, error) = (attempt[0].as_str().unwrap(), attempt[1].as_i64().unwrap());
            let wanted = match name {
                "clone3" => libc::ENOSYS,
                _ if device != "soft" && OF_LANDLOCK.contains(&name) && !has_landlock() => continue,
                _ if device != "soft" && OF_LANDLOCK.contains(&name) => libc::EACCES,
                _ => libc::EPERM,
            };
            assert_eq!(error, i64::from(wanted), "{device}: {name}");
        }
        assert_eq!((&told["open"], &told["landlock"]), (&json!([]), &has_landlock().into()), "{device}");
    }
    drop(region);
}

#[test]
fn a_worker_is_shut_in_before_it_is_told_of_functions() {
    for on in BOTH {
        let mut rig = Rig::new(on, 90, 4, 64, 1);
        assert_eq!(rig.load(&Functions { all: vec![increment(1)], modules: vec![], lost: false }), "loaded");
        let process = PathBuf::from(format!("/proc/{}", rig.worker.id()));
        // The first thread is the test program's own.
        let own = process.join(format!("task/{}", rig.worker.id()));
        let threads = fs::read_dir(process.join("task")).unwrap().map(|thread| thread.unwrap().path());
        let threads: Vec<_> = threads.filter(|thread| *thread != own).collect();
        assert!(!threads.is_empty());
        for thread in threads {
            let status = fs::read_to_string(thread.join("status")).unwrap();
            let says = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
            assert_eq!([says("Seccomp:"), says("NoNewPrivs:")], ["2", "1"]);
            for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
                assert_eq!(says(set), "0000000000000000", "{set}");
            }
        }
        assert_eq!(rig.walls["landlock"], has_landlock());
        // Who is not root does not see them.
        if let Ok(files) = fs::read_dir(process.join("fd"))
            && on == On::Soft
        {
            assert_eq!(files.count(), 3, "a ring's file is mapped and closed");
        }
        assert_eq!(rig.call(1, &[1]), (0, vec![2]));
        assert!(rig.end());
    }
}
