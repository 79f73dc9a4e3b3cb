//! Instructions with edge operands, against results that `golden/make_vectors.py` worked out.

mod common;

use std::{path::Path, process::Command};

use common::run;

const VECTORS: &str = include_str!("golden/vectors.txt");

/// The instruction, the types of its operands and of its result; then the operands and the result.
fn parse(line: &str) -> (&str, &str, [u64; 4], &str) {
    let mut parts = line.split(" | ");
    let mut next = || parts.next().expect("three parts");
    let (instruction, types, case) = (next(), next(), next());
    let (given, result) = case.split_once(" = ").expect("a result");
    let mut operands = [0; 4];
    for (operand, word) in operands.iter_mut().zip(given.split(' ')) {
        *operand = u64::from_str_radix(word, 16).expect("a number");
    }
    (instruction, types, operands, result)
}

fn is_nan(ty: &str, bits: u64) -> bool {
    if ty == "f32" { f32::from_bits(bits as u32).is_nan() } else { f64::from_bits(bits).is_nan() }
}

#[test]
fn every_result_is_the_one_that_was_worked_out() {
    let cases: Vec<_> = VECTORS.lines().map(parse).collect();
    assert!(cases.len() > 15_000);
    let mut wrong = Vec::new();
    for group in cases.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
        let (instruction, types, ..) = group[0];
        let (types, result) = types.split_once(" -> ").expect("types");
        let dotted: Vec<_> = types.split(' ').map(|ty| format!(".{ty}")).collect();
        let dotted: Vec<&str> = dotted.iter().map(String::as_str).collect();
        let operands: Vec<_> = group.iter().map(|case| case.2).collect();
        let declare = ".reg .b32 %x32;\n.reg .b64 %x64;\n.reg .pred %p;";
        let results = run(declare, instruction, &dotted, &format!(".{result}"), &operands);
        for ((_, _, operands, expected), found) in group.iter().zip(results) {
            let right = match *expected {
                "nan" => is_nan(result, found),
                expected => u64::from_str_radix(expected, 16).expect("a number") == found,
            };
            if !right {
                wrong.push(format!("{instruction} of {operands:x?}: {found:x}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
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
