//! The SDK's examples, built from source in Rust and in C, do the same.

use std::{fmt::Write, fs, path::Path, path::PathBuf, process::Command};

use berth_tasklet::{
    hostcall::{Call, Hostcalls, Kind},
    run::{Executor, Status},
};
use berth_wasm::KernelLimits;

use crate::common::{PLENTY, Record, node};

/// Two leases of 5,000 bytes and 20 blocks, and one that a tasklet allocates.
struct Leases {
    bytes: Vec<u8>,
    allocated: Vec<u8>,
    logs: Vec<String>,
}

const LEASE: u128 = 0x1234_5678_9ABC_DEF0_0FED_CBA9_8765_4321;
const ALLOCATED: u128 = 0xAA00_0000_0000_0000_0000_0000_0000_00BB;

impl Hostcalls for Leases {
    fn call(&mut self, call: Call<'_>) -> i64 {
        let unit = |kind| if kind == Kind::Block { 512 } else { 1 };
        match call {
            Call::Query { kind, lease: LEASE, out } => {
                out[16..].copy_from_slice(&(self.bytes.len() as u64 / unit(kind)).to_le_bytes());
            }
            Call::Read { kind, lease: Some(LEASE), at, out } => {
                let at = (at * unit(kind)) as usize;
                out.copy_from_slice(&self.bytes[at..at + out.len()]);
            }
            Call::Alloc { kind: Kind::Memory, min, secs: 3600, out } => {
                self.allocated = vec![0; min as usize];
                out[..8].copy_from_slice(&((ALLOCATED >> 64) as u64).to_le_bytes());
                out[8..16].copy_from_slice(&(ALLOCATED as u64).to_le_bytes());
            }
            Call::Write { kind: Kind::Memory, lease: Some(ALLOCATED), at, data } => {
                self.allocated[at as usize..at as usize + data.len()].copy_from_slice(data);
            }
            Call::Log { message, .. } => self.logs.push(String::from_utf8_lossy(message).into_owned()),
            _ => return -1,
        }
        0
    }

    fn turn(&mut self) -> bool {
        true
    }
}

/// Builds the example in both languages.
fn build(name: &str) -> [Vec<u8>; 2] {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk");
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--release", "--target", "wasm32-unknown-unknown", "--example", name]);
    cargo.arg("--manifest-path").arg(sdk.join("Cargo.toml")).arg("--target-dir").arg(target.join("sdk"));
    assert!(cargo.env_remove("RUSTFLAGS").status().unwrap().success(), "{name}.rs");
    let rust = target.join(format!("sdk/wasm32-unknown-unknown/release/examples/{name}.wasm"));
    let c = target.join(format!("{name}.c.wasm"));
    let mut clang = Command::new("clang-14");
    clang.args(["--target=wasm32", "-O2", "-Wall", "-Wextra", "-Werror", "-nostdlib", "-Wl,--no-entry", "-I"]);
    clang.arg(sdk.join("c")).arg(sdk.join(format!("c/examples/{name}.c"))).arg("-o").arg(&c);
    assert!(clang.status().unwrap().success(), "{name}.c");
    [fs::read(rust).unwrap(), fs::read(c).unwrap()]
}

/// `TaskletInputV0` with one capability.
fn input(payload: &[u8]) -> Vec<u8> {
    let mut input = vec![0, 0, 0, 0, 0, 1];
    input.extend(LEASE.to_be_bytes());
    input.extend(0x2B_u32.to_be_bytes());
    input.extend((payload.len() as u32).to_be_bytes());
    input.extend(payload);
    input
}

/// Runs both builds, and checks that neither takes an input that was cut.
fn outputs(name: &str, bytes: &[u8], payload: &[u8], check: impl Fn(&str, &Leases)) {
    for wasm in build(name) {
        let module = node().compile(&wasm).unwrap();
        let mut host = Leases { bytes: bytes.to_vec(), allocated: Vec::new(), logs: Vec::new() };
        let whole = input(payload);
        let outcome = module.run(&whole, &PLENTY, &mut host);
        assert_eq!(outcome.status, Status::Ok, "{name}: {:?} {:?}", outcome.reason, host.logs);
        check(std::str::from_utf8(&outcome.output).unwrap(), &host);
        let cut = module.run(&whole[..whole.len() - 1], &PLENTY, &mut host);
        assert_eq!((cut.status, cut.output), (Status::ExecFailed, vec![0, 0, 0, 1]), "{name}");
        let none = module.run(&[], &PLENTY, &mut host);
        assert_eq!((none.status, none.output), (Status::ExecFailed, vec![0xFF; 4]), "{name}");
    }
}

#[test]
fn sum_adds_a_lease() {
    let bytes: Vec<u8> = (0..5000_u32).map(|at| (at * 7) as u8).collect();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    outputs("sum", &bytes, b"", |output, _| assert_eq!(output, format!("{sum}\n")));
}

#[test]
fn grep_finds_blocks() {
    let mut bytes = vec![b'.'; 20 * 512];
    bytes[3 * 512..3 * 512 + 6].copy_from_slice(b"needle");
    bytes[12 * 512 - 6..12 * 512].copy_from_slice(b"needle");
    // One that lies across two blocks is in neither.
    bytes[15 * 512 - 3..15 * 512 + 3].copy_from_slice(b"needle");
    outputs("grep", &bytes, b"needle", |output, _| assert_eq!(output, "3\n11\n"));
}

#[test]
fn index_writes_into_a_lease_of_its_own() {
    let (mut text, mut starts) = (String::new(), Vec::new());
    for line in 0..900 {
        starts.extend((text.len() as u64).to_le_bytes());
        writeln!(text, "line {line}").unwrap();
    }
    outputs("index", text.as_bytes(), b"", |output, host| {
        assert_eq!(output, format!("{ALLOCATED:032x} 900\n"));
        assert_eq!(host.allocated, starts);
    });
}

#[test]
fn accumulate_answers_with_a_sum_that_lives_on() {
    for wasm in build("accumulate") {
        let limits = KernelLimits { fuel: 1_000_000, memory: 2 << 20, request: 38, response: 42 };
        let mut kernel = node().ring_kernel(&wasm, limits).unwrap();
        for (add, sum) in [(5_i32, 5_i64), (-7, -2), (100, 98)] {
            let mut message = [7; 38];
            message[34..].copy_from_slice(&add.to_le_bytes());
            let mut out = [0; 42];
            assert_eq!(kernel.answer(&message, &mut Record::default(), &mut out), Ok(42));
            assert_eq!((&out[..34], &out[34..]), (&message[..34], &sum.to_le_bytes()[..]));
        }
        let short = kernel.answer(&[0; 37], &mut Record::default(), &mut [0; 42]);
        assert_eq!(short, Err(berth_wasm::NoAnswer::Failed(1)));
    }
}
