//! Kernels that never stop, of somebody else on our ring and ours on somebody else's, by programs in C that call NVIDIA's driver:
//! here the one in software.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use crate::common::{Host, compiled, host, perf};

/// A file or folder of this crate.
fn path(within: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(within)
}

#[test]
fn the_text_is_what_clang_makes_of_the_source() {
    let made = Command::new("clang-14")
        .args(["-x", "cuda", "-nocudainc", "-nocudalib", "--cuda-device-only", "--cuda-gpu-arch=sm_70"])
        .args(["-Xclang", "-target-feature", "-Xclang", "+ptx63", "-O2", "-S", "-o", "-"])
        .arg(path("tests/cuda/dispatcher.cu"))
        .output()
        .expect("clang-14, which `cargo xtask setup` installs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let committed = fs::read_to_string(path("tests/cuda/dispatcher.ptx")).unwrap();
    assert_eq!(String::from_utf8(made.stdout).unwrap(), committed);
}

#[test]
fn a_foreign_dispatcher_serves_our_ring() {
    for shape in ["cuda", "cuda-early"] {
        // The software GPU may be slow on a host that others use, and so may an answer that follows its freed request.
        let options = format!("{shape} --transport=berth --port=0 --pinned-rings --unanswered-ms=20000");
        let mut host = host(&[], &options);
        host.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap());
        let host = Host::run(host.env("BERTH_TEST_PTX", path("tests/cuda/dispatcher.ptx")));
        // More than there are slots, which wait in the socket.
        let (code, report) =
            perf(&format!("--peer 127.0.0.1:{} --count 1000 --window 16 --timeout 20000", host.port()));
        let counts = &report.cases[0].counts;
        assert_eq!((code, counts.answered, counts.wrong), (ExitCode::SUCCESS, 1000, 0), "{shape}");
        assert_eq!(host.end(), ("served 1000".to_owned(), String::new()), "{shape}");
    }
}

#[test]
fn our_dispatcher_serves_a_foreign_ring() {
    let program = compiled("cuda/producer.c", "producer", &["-ldl"]);
    for blocks in ["1", "8"] {
        let mut producer = Command::new(program.path().join("producer"));
        producer.arg(path("../gpu/kernels")).args(["2000", blocks]);
        let said = producer.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap()).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        // Five that are wrong, and a ring that is full when the kernel is told to leave.
        assert_eq!(String::from_utf8(said.stdout).unwrap(), "answered 2069\n");
    }
}
