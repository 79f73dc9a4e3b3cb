//! What NVIDIA's own assembler and linker say of texts that were only ever interpreted. They need no GPU; `cargo xtask setup`
//! fetches them from `PyPI`.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use berth_gpu::{Code, Function, Functions};
use tempfile::TempDir;

use crate::{
    EXAMPLE,
    common::{Rig, increment, module, symbol},
};

/// Folders of the repository with texts that a GPU is to load.
const TEXTS: [&str; 5] = [
    "drivers/gpu/kernels",
    "drivers/bridge/tests/cuda",
    "dataplane/ptx/tests/kernels",
    "dataplane/qec/kernels",
    "perf/baselines",
];

/// The oldest GPU that texts are made for, and later ones.
const TARGETS: [&str; 4] = ["sm_70", "sm_90", "sm_100", "sm_120"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of NVIDIA's packages.
fn packages() -> PathBuf {
    let python = fs::read_dir(root().join("target/nvidia-venv/lib")).expect("`cargo xtask setup` fetches it").flatten();
    python.map(|version| version.path().join("site-packages/nvidia")).next().unwrap()
}

#[test]
fn nvidias_assembler_takes_every_committed_text() {
    let (folder, assembler) = (TempDir::new().unwrap(), packages().join("cuda_nvcc/bin/ptxas"));
    let mut count = 0;
    for texts in TEXTS {
        for text in fs::read_dir(root().join(texts)).unwrap().map(|entry| entry.unwrap().path()) {
            if text.extension().is_none_or(|extension| extension != "ptx") {
                continue;
            }
            for target in TARGETS {
                let mut command = Command::new(&assembler);
                command.args(["--compile-only", "--warning-as-error", "-arch", target, "-o"]);
                let output = command.arg(folder.path().join("cubin")).arg(&text).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{target} {}: {said}", text.display());
                count += 1;
            }
        }
    }
    assert!(count >= 13 * TARGETS.len(), "{count} texts");
}

/// A worker whose driver links nothing that NVIDIA's linker does not.
fn rig(nth: usize) -> Rig {
    let folders = [berth_cuda_soft::folder().unwrap(), packages().join("nvjitlink/lib")];
    let folders: OsString = std::env::join_paths(folders).unwrap();
    Rig::start("auto", Path::new(&folders), &[("CUDA_SOFT_NVJITLINK", "1")], nth, [16, 1], 256)
}

#[test]
fn nvidias_linker_takes_what_the_driver_is_given() {
    let mut rig = rig(95);
    let mock = Code::MockDecode { measurements: 2, observables: 1, rows: "010001".into() };
    let mock = Function { code: mock, fixed: 2, unit: 0, ..increment(2) };
    let all = vec![increment(1), mock, symbol(3, "answer", false), symbol(4, "sum_by_block", true)];
    assert_eq!(rig.load(&Functions { all, modules: vec![module(EXAMPLE)], lost: false }), "loaded");
    assert_eq!(rig.call(1, &[1]), (0, vec![2]));
    assert_eq!(rig.call(2, &[1, 0]), (0, vec![1]));
    assert_eq!(rig.call(4, &[3; 100]), (0, 300_u32.to_le_bytes().to_vec()));
}

#[test]
fn nvidias_linker_is_asked() {
    // Of no version that knows the GPU it is for.
    let text = EXAMPLE.replace(".target sm_70", ".target sm_90");
    let all = vec![symbol(1, "answer", false)];
    let said = rig(96).load(&Functions { all, modules: vec![module(&text)], lost: false });
    let said = said["refused"].as_str().unwrap();
    let wanted = "PTX .version 6.3 does not support .target sm_90";
    assert!(said.starts_with("sm_75: libnvJitLink.so.12 fails with 4: ") && said.contains(wanted), "{said}");
}
