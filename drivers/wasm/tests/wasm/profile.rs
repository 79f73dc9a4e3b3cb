//! Which modules run here, and which of the two refusals the others get (T1, T5).

use berth_tasklet::run::{Executor, Rejected};

use crate::common::{compile, node, tasklet};

fn invalid(text: &str) -> String {
    match compile(text) {
        Err(Rejected::Invalid(why)) => why,
        other => panic!("{text}: {other:?}"),
    }
}

fn with(fields: &str) -> String {
    tasklet("(i64.const 0)").replace("(module ", &format!("(module {fields} "))
}

#[test]
fn what_belongs_to_core_wasm_runs() {
    for fields in [
        r#"(import "fabricbios_log_v0" "fb_log" (func (param i32 i32 i32)))"#,
        "(table 65536 funcref)",
        "(table 1 funcref) (table 2 70000 funcref)",
        "(global i32 (i32.add (i32.const 1) (i32.const 2)))",
        "(func (result i32 i32) (i32.const 1) (i32.const 2))",
        "(func (drop (i32.extend8_s (i32.trunc_sat_f32_s (f32.const 1)))))",
        "(func (drop (i32x4.splat (i32.const 1))))",
        r#"(func (export "other") (param f64))"#,
        r#"(@custom "anything" "goes")"#,
    ] {
        assert!(compile(&with(fields)).is_ok(), "{fields}: {:?}", compile(&with(fields)));
    }
}

#[test]
fn every_other_proposal_is_refused_with_status_1() {
    for fields in [
        // Threads.
        "(memory $shared 1 1 shared)",
        "(func (drop (i32.atomic.load (i32.const 0))))",
        // Memory64, several memories, pages of other sizes.
        "(table i64 1 funcref)",
        "(memory $second 1)",
        // Tail calls.
        "(func $f (return_call $f))",
        // Exceptions.
        "(tag $e) (func (throw $e))",
        "(func (block $out (result exnref) (try_table (catch_all_ref $out)) (unreachable)) (drop))",
        // References to functions by type, GC.
        "(type $t (func)) (func (param (ref $t)) (call_ref $t (local.get 0)))",
        "(type $s (struct (field i32))) (func (drop (struct.new $s (i32.const 1))))",
        "(func (drop (ref.i31 (i32.const 1))))",
        "(func (param externref))",
        // Relaxed SIMD, wide arithmetic.
        "(func (param v128 v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) (local.get 1)))",
        "(func (result i64 i64) (i64.mul_wide_u (i64.const 1) (i64.const 2)))",
        // Stack switching.
        "(type $f (func)) (type $c (cont $f)) (func (param (ref $c)))",
    ] {
        let why = invalid(&with(fields));
        assert!(why.starts_with("a feature that this profile leaves out: "), "{fields}: {why}");
    }
    let memory64 = with("").replace(r#"(export "memory") 1"#, r#"(export "memory") i64 1"#);
    assert!(invalid(&memory64).contains("leaves out"), "{}", invalid(&memory64));
    let small = with("").replace(r#"(export "memory") 1"#, r#"(export "memory") 1 (pagesize 1)"#);
    assert!(invalid(&small).contains("leaves out"), "{}", invalid(&small));
    assert!(matches!(node().compile(b"\0asm\x0d\0\x01\0"), Err(Rejected::Invalid(_))), "a component");
}

#[test]
fn imports_are_known_or_of_another_version() {
    let import = |module: &str, name: &str, signature: &str| {
        with(&format!(r#"(import "{module}" "{name}" (func {signature}))"#))
    };
    let hello = "(result i32)";
    for (module, name, signature) in [
        ("env", "abort", ""),
        ("wasi_snapshot_preview1", "fd_write", ""),
        ("fabricbios_fbmu_v0", "fbmu_hallo", hello),
        ("fabricbios_fbmu_v0", "fbbu_hello", hello),
        ("fabricbios_fbmu_v0", "fbmu_hello", ""),
        ("fabricbios_fbmu_v0", "fbmu_hello", "(result i64)"),
        ("fabricbios_fbmu_v0", "fbmu_hello", "(param i32) (result i32)"),
        ("fabricbios_fbmu_v0", "fbmu_read", "(param i64 i32 i64) (result i32)"),
        ("fabricbios_log_v0", "fb_log", "(param i32 i32 i32) (result i32)"),
        ("fabricbios_gpu_v0", "gpu_hello", hello),
        // None of these is a version above 0.
        ("fabricbios__v", "f", ""),
        ("fabricbios_fbmu_v", "fbmu_hello", hello),
        ("fabricbios_fbmu_v01", "fbmu_hello", hello),
        ("fabricbios_fbmu_v-1", "fbmu_hello", hello),
        ("fabricbios_fbmu_v1x", "fbmu_hello", hello),
        ("fabricbios_v1", "fbmu_hello", hello),
        ("Fabricbios_fbmu_v1", "fbmu_hello", hello),
    ] {
        invalid(&import(module, name, signature));
    }
    for (module, name, signature) in [
        ("fabricbios_fbmu_v1", "fbmu_hello", hello),
        ("fabricbios_fbmu_v10", "whatever", "(param f32)"),
        ("fabricbios_log_v2", "fb_log", ""),
        ("fabricbios_gpu_v1", "gpu_hello", hello),
        ("fabricbios_a_v_b_v99999999999999999999999", "f", ""),
    ] {
        let refused = compile(&import(module, name, signature));
        assert!(matches!(refused, Err(Rejected::UnsupportedProfile(_))), "{module}: {refused:?}");
    }
    // What makes a module invalid comes first.
    let newer = r#"(import "fabricbios_fbmu_v1" "fbmu_hello" (func (result i32)))"#;
    invalid(&format!(r#"(module {newer} (memory (export "memory") 1))"#));
    invalid(&with(&format!(r#"{newer} (import "env" "abort" (func))"#)));
    // Only functions can be imported.
    for what in ["(memory 1)", "(table 1 funcref)", "(global i32)"] {
        let why = invalid(&format!(
            r#"(module (import "fabricbios_fbmu_v0" "fbmu_hello" {what}) (func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0)))"#
        ));
        assert!(why.contains("is not a function"), "{why}");
    }
}

#[test]
fn exports_are_there_and_have_their_types() {
    let run = r#"(func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0))"#;
    let memory = r#"(memory (export "memory") 1)"#;
    let module = |fields: &[&str]| format!("(module {})", fields.join(" "));
    assert_eq!(invalid(&module(&[])), "it does not export its memory as \"memory\"");
    assert_eq!(invalid(&module(&[run])), "it does not export its memory as \"memory\"");
    assert_eq!(invalid(&module(&[memory])), "it does not export tasklet_run");
    let memory_by_another_name = r#"(memory (export "mem") 1) (func (export "memory"))"#;
    assert_eq!(invalid(&module(&[memory_by_another_name, run])), "it does not export its memory as \"memory\"");
    for (name, signature, body) in [
        ("tasklet_run", "(param i32) (result i64)", "(i64.const 0)"),
        ("tasklet_run", "(param i32 i64) (result i64)", "(i64.const 0)"),
        ("tasklet_run", "(param i32 i32) (result i32)", "(i32.const 0)"),
        ("tasklet_run", "(param i32 i32)", ""),
        ("tasklet_alloc", "(param i64) (result i32)", "(i32.const 0)"),
        ("tasklet_alloc", "(param i32)", ""),
        ("_initialize", "(param i32)", ""),
        ("_initialize", "(result i32)", "(i32.const 0)"),
    ] {
        let function = format!(r#"(func (export "{name}") {signature} {body})"#);
        let others = if name == "tasklet_run" { "" } else { run };
        assert_eq!(invalid(&module(&[memory, others, &function])), format!("{name} has another signature"));
    }
    assert_eq!(
        invalid(&module(&[memory, run, r#"(global (export "tasklet_alloc") i32 (i32.const 0))"#])),
        "tasklet_alloc has another signature"
    );
}

#[test]
fn tables_are_bounded() {
    assert_eq!(invalid(&with("(table 65537 funcref)")), "a table of 65537 elements: at most 65536");
    assert!(compile(&with(&"(table 1 funcref) ".repeat(16))).is_ok());
    assert_eq!(invalid(&with(&"(table 1 funcref) ".repeat(17))), "17 tables: at most 16");
}

/// A module that was cut anywhere, or has a byte changed, is refused or runs; nothing else happens.
#[test]
fn modules_that_were_cut_are_refused() {
    let text = r#"(module (import "fabricbios_log_v0" "fb_log" (func (param i32 i32 i32)))
        (memory (export "memory") 1) (table 3 funcref) (elem (i32.const 0) func 1) (data (i32.const 0) "data")
        (global (mut i32) (i32.const 1)) (func $start) (start $start)
        (func (export "tasklet_run") (param i32 i32) (result i64) (loop (br_if 0 (i32.const 0))) (i64.const 4)))"#;
    let whole = wat::parse_str(text).unwrap();
    assert!(node().compile(&whole).is_ok());
    // Sections begin at these; a module that ends between two of them lacks an export at least.
    for len in 0..whole.len() {
        let cut = node().compile(&whole[..len]);
        // Custom sections at its end may be cut off whole.
        if let Ok(module) = cut {
            assert!(module.size() > 0 && len + 40 > whole.len(), "{len} of {}", whole.len());
        }
    }
    for garbage in [&b""[..], b"\0asm", b"#!/bin/sh", &[0xFF; 4096]] {
        assert!(matches!(node().compile(garbage), Err(Rejected::Invalid(_))));
    }
}

/// Modules that are made to keep a compiler busy are compiled or refused, within the limits of its process.
#[test]
fn modules_that_are_hard_to_compile_cost_a_bounded_time() {
    let function = |body: &str| with(&format!("(func {body})"));
    let deep = |count: usize| format!("{}{}", "(block ".repeat(count), ")".repeat(count));
    let bombs = [
        ("50,000 locals", function(&format!("(local {})", "i32 ".repeat(50_000)))),
        ("50,001 locals", function(&format!("(local {})", "i32 ".repeat(50_001)))),
        ("a huge br_table", function(&format!("(block (br_table {}(i32.const 0)))", "0 ".repeat(60_000)))),
        (
            "a br_table that is too large",
            function(&format!("(block (br_table {}(i32.const 0)))", "0 ".repeat(200_000))),
        ),
        ("deep nesting", function(&deep(2000))),
        ("10,000 functions", with(&"(func (drop (i32.add (i32.const 1) (i32.const 2)))) ".repeat(10_000))),
    ];
    for (name, text) in bombs {
        let begun = std::time::Instant::now();
        let compiled = compile(&text);
        println!("{name}: {} in {:?}", if compiled.is_ok() { "compiled" } else { "refused" }, begun.elapsed());
        assert!(begun.elapsed().as_secs() < 12, "{name}: {:?}", begun.elapsed());
        assert!(
            compiled.is_ok() != (name == "50,001 locals" || name.contains("too large")),
            "{name}: {:?}",
            compiled.err()
        );
    }
}
