//! The Debian packages and the Python environment that the other commands need.

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail};

use crate::sh::{cmd, run};

/// To build with the features `dpdk` and `ofi`, and to start and stop what was built: the libraries, and libclang for
/// bindgen.
const BUILD: &[&str] = &[
    "binutils",
    "gcc",
    "g++",
    "libc6-dev",
    "pkg-config",
    "cmake",
    "libdpdk-dev",
    "libfabric-dev",
    "libclang-14-dev",
    "clang-14",
    "procps",
];
/// To test: network namespaces, file systems, independent peers and readers, a browser, the linker of WASM modules in C, and
/// what watches over memory.
const TEST: &[&str] = &[
    "chromium",
    "e2fsprogs",
    "ethtool",
    "iproute2",
    "iputils-arping",
    "iputils-ping",
    "lld-14",
    "mount",
    "openssl",
    "python3",
    "python3-jsonschema",
    "python3-prometheus-client",
    "python3-venv",
    "tcpdump",
    "util-linux",
    "valgrind",
];
/// To run the lab: what its sysroot is unpacked with, and what suites run in the guest.
const LAB: &[&str] = &[
    "coreutils",
    "dmsetup",
    "dpdk-dev",
    "e2fsprogs",
    "fio",
    "iproute2",
    "kmod",
    "nvme-cli",
    "procps",
    "python3",
    "strace",
    "util-linux",
    "xfsprogs",
    "xz-utils",
    "zstd",
    "libibverbs-dev",
    "ibverbs-utils",
    "librdmacm-dev",
    "perftest",
    "rdmacm-utils",
];
/// To make packages, and a clean Debian for the lab to try them in.
const PACKAGE: &[&str] = &["binutils", "dpkg-dev", "git", "gzip", "mmdebstrap"];
/// To measure: the programs that the baselines are made of.
const BENCH: &[&str] = &["dpdk", "dpdk-dev", "libfabric-bin", "iperf3", "liburing-dev"];

/// What tasklets are built for.
pub(crate) const WASM: &str = "wasm32-unknown-unknown";

const FOR_DEMO: &[&[&str]] = &[BUILD];
const FOR_TEST: &[&[&str]] = &[BUILD, TEST];
const FOR_LAB: &[&[&str]] = &[BUILD, PACKAGE, LAB];
const FOR_PACKAGE: &[&[&str]] = &[BUILD, PACKAGE];
const FOR_BENCH: &[&[&str]] = &[BUILD, TEST, PACKAGE, LAB, BENCH];

/// Installs what `demo` needs.
pub(crate) fn build() -> Result<()> {
    packages(&FOR_DEMO.concat())
}

/// Installs what `demo tasklet` needs.
pub(crate) fn tasklets() -> Result<()> {
    build()?;
    wasm_target()
}

/// Installs what `test` needs.
pub(crate) fn test() -> Result<()> {
    packages(&FOR_TEST.concat())?;
    wasm_target()?;
    fabric()?;
    nvidia().map(drop)
}

/// Installs what `lab` needs beside its sysroot.
pub(crate) fn lab() -> Result<()> {
    packages(&FOR_LAB.concat())
}

/// Installs what `package` needs.
pub(crate) fn package() -> Result<()> {
    packages(&FOR_PACKAGE.concat())
}

/// Installs what `bench` needs, and all else.
pub(crate) fn all() -> Result<()> {
    packages(&FOR_BENCH.concat())?;
    wasm_target()?;
    fabric()?;
    nvidia().map(drop)
}

/// Installs what tasklets in Rust are built with, unless the tool chain has it.
fn wasm_target() -> Result<()> {
    let mut print = cmd("rustc", ["--print", "target-libdir", "--target", WASM]);
    if Path::new(crate::sh::output(&mut print)?.trim()).exists() {
        return Ok(());
    }
    eprintln!("installing the target {WASM}");
    run(&mut cmd("rustup", ["target", "add", WASM]))
}

fn packages(wanted: &[&str]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().copied().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing the Debian packages {}", missing.join(" "));
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("this is not Debian: install the equivalents of {} and run again", missing.join(" "));
    }
    let root = crate::sh::output(&mut cmd("id", ["-u"]))?.trim() == "0";
    let apt = |args: &[&str]| {
        let mut apt = if root { cmd("apt-get", args) } else { cmd("sudo", std::iter::once(&"apt-get").chain(args)) };
        run(apt.env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null()))
    };
    apt(&["update", "-q"])?;
    apt(&[&["install", "-y", "-q", "--no-install-recommends"], &missing[..]].concat())
}

fn installed(package: &str) -> bool {
    let mut query = cmd("dpkg-query", ["--show", "--showformat=${db:Status-Status}", package]);
    query.stderr(Stdio::null()).output().is_ok_and(|out| out.stdout == b"installed")
}

/// Stim and `PyMatching`.
const PYMATCHING: [&str; 2] = ["stim==1.16.0", "pymatching==2.4.0"];

/// A Python with Stim and `PyMatching`, the reference decoder.
pub(crate) fn python() -> Result<PathBuf> {
    venv("venv", &PYMATCHING)
}

/// The folders of their sources in C++, `PyMatching`'s first, fetched once under `target/`.
pub(crate) fn pymatching_sources() -> Result<[PathBuf; 2]> {
    let python = python()?;
    let folder = Path::new("target/pymatching");
    let source = |wanted: &str| -> Result<PathBuf> {
        let name = wanted.replace("==", "-");
        if !folder.join(&name).exists() {
            eprintln!("fetching the sources of {name} to {}", folder.display());
            let pip =
                ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "pymatching,stim", wanted, "--dest"];
            run(cmd(&python.to_string_lossy(), pip).arg(folder))?;
            run(cmd("tar", ["xzf", &format!("{name}.tar.gz")]).current_dir(folder))?;
        }
        Ok(folder.join(name).join("src"))
    };
    let [stim, pymatching] = PYMATCHING;
    Ok([source(pymatching)?, source(stim)?])
}

/// A Python with another relay belief propagation.
pub(crate) fn relay() -> Result<PathBuf> {
    venv("relay-venv", &["relay-bp==0.2.2"])
}

/// A Python with another ordered-statistics decoder.
pub(crate) fn ldpc() -> Result<PathBuf> {
    venv("ldpc-venv", &["ldpc==2.4.1"])
}

/// A Python with what the independent fabricBIOS client of the tests stands on; Debian 12 has no aioquic.
fn fabric() -> Result<PathBuf> {
    venv("fabric-venv", &["aioquic==1.7.2", "cryptography==50.0.2"])
}

/// NVIDIA's assembler and linker of PTX, which need no GPU.
fn nvidia() -> Result<PathBuf> {
    venv("nvidia-venv", &["nvidia-cuda-nvcc-cu12==12.9.86", "nvidia-nvjitlink-cu12==12.9.86"])
}

/// A Python with these packages, made once under `target/`.
fn venv(name: &str, wanted: &[&str]) -> Result<PathBuf> {
    let venv = Path::new("target").join(name);
    let python = venv.join("bin/python");
    let stamp = venv.join("berth-packages");
    let list = wanted.join(" ");
    if !std::fs::read_to_string(&stamp).is_ok_and(|made| made == list) {
        eprintln!("making a Python environment with {list} in {}", venv.display());
        run(&mut cmd("python3", ["-m".as_ref(), "venv".as_ref(), venv.as_os_str()]))?;
        run(cmd(&python.to_string_lossy(), ["-m", "pip", "install", "--quiet"]).args(wanted))?;
        std::fs::write(&stamp, list).with_context(|| format!("cannot write {}", stamp.display()))?;
    }
    Ok(std::env::current_dir()?.join(python))
}
