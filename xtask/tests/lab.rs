//! `cargo xtask lab` with suites that pass, fail, hang and are written wrongly.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// One test at a time: runs of a suite share its folder.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs suites of `tests/suites`.
fn lab(args: &[&str]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_xtask"));
    lab.args(["lab", "--from", "xtask/tests/suites"]).args(args).output().unwrap()
}

fn native(suite: &str) -> Output {
    lab(&["--native", suite])
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a suite's run left.
fn left(suite: &str, file: &str) -> String {
    let target: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/lab");
    fs::read_to_string(target.join(suite).join(file)).unwrap()
}

#[test]
fn a_suite_that_passes_leaves_its_log_and_files() {
    let _alone = alone();
    let output = native("passes");
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).ends_with("\n2 passed, 0 failed\n"), "{output:?}");
    assert_eq!(left("passes", "log"), "ok this\nok that\n");
    assert_eq!(left("passes", "out/note"), "note\n");
}

#[test]
fn a_failure_of_any_kind_is_counted_once_and_told() {
    let _alone = alone();
    for (suite, told, count) in [
        ("fails", "not ok that: on purpose", "1 passed, 1 failed"),
        ("exits", "not ok exits: ended with exit code 3", "1 passed, 1 failed"),
        ("silent", "not ok silent: it checked nothing", "0 passed, 1 failed"),
        ("hangs", "not ok hangs: stopped after 1 s", "1 passed, 1 failed"),
    ] {
        let output = native(suite);
        assert!(!output.status.success(), "{suite}");
        assert!(stdout(&output).lines().any(|line| line == told), "{output:?}");
        assert_eq!(stdout(&output).lines().last(), Some(count), "{suite}");
    }
}

#[test]
fn a_wrong_head_is_refused_with_its_line_and_nothing_runs() {
    for (suite, place, told) in [
        ("valueless", "valueless.sh:3", "`# memory:` has no value"),
        ("misspelt", "misspelt.sh:2", "`# memroy:` is none of modules, memory,"),
        ("wordy", "wordy.sh:2", "`# memory: much` is not a whole number"),
    ] {
        let output = native(suite);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{suite}");
        assert!(stderr.contains(place) && stderr.contains(told), "{stderr}");
        assert_eq!(stdout(&output), "", "{suite}");
    }
    let output = native("smok");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("there is no suite \"smok\"") && stderr.contains("passes"), "{stderr}");
}

#[test]
fn a_guest_that_hangs_or_panics_fails_its_suite_and_not_the_next() {
    let _alone = alone();
    let output = lab(&["hangs", "panics", "passes"]);
    assert!(!output.status.success(), "{output:?}");
    let text = stdout(&output);
    assert!(text.contains("\nnot ok hangs: stopped after 1 s\n"), "{text}");
    assert!(text.contains("sysrq triggered crash"), "{text}");
    assert!(text.contains("\nnot ok panics: the guest ended without an exit code\n"), "{text}");
    assert!(text.ends_with("\n4 passed, 2 failed\n"), "{text}");
    // What the guest wrote came back.
    assert_eq!(left("hangs", "out/note"), "note\n");
    assert_eq!(left("passes", "out/note"), "note\n");
}

#[test]
fn blktests_are_the_users_own() {
    for (args, told) in
        [(&["blktests"][..], "wants a checkout of blktests"), (&["blktests", "/nowhere"], "no /nowhere")]
    {
        let output = lab(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(told), "{stderr}");
    }
}
