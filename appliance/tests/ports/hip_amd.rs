//! `[hip]` with a GPU of AMD's, by a library in C that has the runtime's functions.

use std::{path::Path, process::Command};

use berth_hip::Client;
use tempfile::TempDir;

use super::hip_nvidia::until;
use crate::common::{ADMIN, Berth, admin, fails, get};

const CONFIG: &str = "[hip]\nlisten = \"127.0.0.1:0\"\n[hip.session]\nmemory = \"64 MiB\"\nhandles = 1000\n\
                      kernel_timeout_ms = 3000\n[[gpu]]\nname = \"gpu0\"\ndevice = \"hip:0\"\nuse = \
                      \"hip\"\n[[hip.device]]\ngpu = \"gpu0\"\nmemory = \"96 MiB\"\n";

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with the library, as of this version of ROCm.
fn library(options: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(FOLDER).join("../drivers/gpu/tests/hip/amdhip64.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC"]).args(options);
    cc.arg("-o").arg(folder.path().join("libamdhip64.so.6")).arg(source);
    assert!(cc.status().unwrap().success());
    folder
}

#[test]
fn a_stranger_in_python_finds_the_rules_kept() {
    for options in [&[][..], &["-DROCM5"]] {
        let folder = library(options);
        let berth = Berth::start_as(&format!("{CONFIG}{ADMIN}"), |command| {
            command.env("LD_LIBRARY_PATH", folder.path()).env("HIP_TEST_ARCH", "gfx906:sramecc+:xnack-");
        });
        let worker = berth.ready["endpoints"]["hip"].as_str().unwrap();
        let properties = Client::connect(worker).unwrap().device(0).unwrap().properties().unwrap();
        assert!(properties.gcn_arch_name.starts_with(b"gfx906:sramecc+:xnack-\0"));
        let mut python = Command::new("python3");
        python.arg(format!("{FOLDER}/../drivers/hip/tests/client.py")).arg(worker);
        python.arg(format!("{FOLDER}/../dataplane/amdgpu/tests/kernels")).arg("--amd");
        assert!(python.status().unwrap().success(), "{options:?}");
        let ends = |reason, count| format!("berth_hip_worker_ends_total{{reason=\"{reason}\"}} {count}\n");
        until("three faults and a time limit, and memory that is free again", || {
            let (_, metrics) = get(admin(&berth), "/metrics", "");
            let used = "berth_hip_device_used_bytes{device=\"0\"} 0.0\n";
            [&ends("fault", 3), &ends("timeout", 1), used].iter().all(|line| metrics.contains(*line))
        });
    }
}

#[test]
fn what_is_missing_is_told() {
    let (code, text) = fails(CONFIG);
    assert!(code != Some(0) && text.contains("gpu gpu0") && text.contains("libamdhip64.so is not there"), "{text}");
}
