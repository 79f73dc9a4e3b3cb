//! The baselines of a GPU, which know nothing of Berth, over NVIDIA's driver in software: that they run, and check their answers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

/// A file of the baselines.
fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../perf/baselines").join(name)
}

/// The program, which ends with its folder.
fn compiled() -> TempDir {
    let folder = TempDir::new().unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(folder.path().join("cuda_bare"));
    assert!(cc.arg(path("cuda_bare.c")).arg("-ldl").status().unwrap().success());
    folder
}

fn run(program: &TempDir, text: &Path, args: &[&str]) -> Output {
    let mut bare = Command::new(program.path().join("cuda_bare"));
    bare.arg(text).args(args).env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).output().unwrap()
}

#[test]
fn each_mode_has_figures_and_says_of_which_device() {
    let program = compiled();
    for (mode, figure) in [
        (&["ping", "40"][..], "p50"),
        (&["flag", "40"], "p50"),
        (&["open", "400", "1"], "per_s"),
        (&["open", "400", "8"], "per_s"),
        (&["graph", "40"], "p50"),
        (&["launch", "40"], "p50"),
        (&["copy-in", "40"], "p50"),
        (&["copy-out", "40"], "p50"),
    ] {
        let said = run(&program, &path("cuda_bare.ptx"), mode);
        assert!(said.status.success(), "{mode:?}: {}", String::from_utf8_lossy(&said.stderr));
        let line: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert!(line[figure].as_f64().is_some_and(|figure| figure > 0.0), "{line}");
        assert_eq!((&line["mode"], &line["count"].to_string()), (&mode[0].into(), &mode[1].to_owned()));
        assert_eq!((&line["device"], &line["address"]), (&"GPU in software".into(), &"0000:3B:00.0".into()));
    }
}

#[test]
fn wrong_answers_are_no_figures() {
    let program = compiled();
    let text = fs::read_to_string(path("cuda_bare.ptx")).unwrap();
    let wrong = program.path().join("wrong.ptx");
    assert!(text.contains(", 1;\n"), "it adds one");
    fs::write(&wrong, text.replace(", 1;\n", ", 2;\n")).unwrap();
    for mode in ["ping", "open", "graph"] {
        let said = run(&program, &wrong, &[mode, "10"]);
        assert_eq!((said.status.code(), String::from_utf8_lossy(&said.stderr)), (Some(1), "a wrong answer\n".into()));
    }
    let said = run(&program, &path("cuda_bare.ptx"), &["nothing", "10"]);
    assert_eq!((said.status.code(), said.stdout), (Some(2), b"".to_vec()));
}
