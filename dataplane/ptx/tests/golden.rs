//! Instructions with edge operands, against results that `golden/make_vectors.py` worked out.

mod common;
#[path = "golden/mod.rs"]
mod golden;

use std::{path::Path, process::Command};

use common::Gpu;
use golden::{VECTORS, groups, kernel};

#[test]
fn every_result_is_the_one_that_was_worked_out() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for group in groups() {
        let mut gpu = Gpu::load(&[&kernel(&group)]);
        let operands: Vec<u64> = group.iter().flat_map(|case| case.operands).collect();
        let (input, output) = (gpu.buffer(&operands), gpu.buffer(&vec![0_u64; group.len()]));
        gpu.run("k", 1, group.len() as u32, &[input, output]);
        for (case, found) in group.iter().zip(gpu.read::<u64>(output)) {
            count += 1;
            if !case.is(found) {
                wrong.push(format!("{} of {:x?}: {found:x}, not {}", case.instruction, case.operands, case.result));
            }
        }
    }
    assert!(count > 15_000);
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_vectors_are_what_the_script_makes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut python = Command::new("python3");
    python.arg(folder.join("make_vectors.py")).arg("-");
    let made = python.output().expect("python3");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    assert!(made.stdout == VECTORS.as_bytes(), "run make_vectors.py, and look at what changed");
}
