//! How runs end (T2, T5).

use std::{
    thread,
    time::{Duration, Instant},
};

use berth_tasklet::{
    hostcall::{Call, Hostcalls},
    run::{Limits, Status},
};

use crate::common::{PLENTY, Record, module, run, tasklet};

#[test]
fn an_output_is_the_bytes_that_the_run_returns() {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "tasklet_alloc") (param i32) (result i32) (i32.const 100))
        (func (export "tasklet_run") (param $at i32) (param $len i32) (result i64)
            (i32.store8 (local.get $at) (i32.const 33))
            (i64.or (i64.shl (i64.extend_i32_u (local.get $at)) (i64.const 32)) (i64.extend_i32_u (local.get $len)))))"#;
    let module = module(text);
    let outcome = module.run(b"hello", &PLENTY, &mut Record::default());
    assert_eq!((outcome.status, outcome.output.as_slice(), outcome.reason), (Status::Ok, &b"!ello"[..], None));
    // Nothing of one run is there in the next.
    let outcome = module.run(b"", &PLENTY, &mut Record::default());
    assert_eq!((outcome.status, outcome.output.len()), (Status::Ok, 0));
}

#[test]
fn a_loop_without_end_uses_its_fuel() {
    let outcome = run(&tasklet("(loop (br 0)) (unreachable)"), Limits { fuel: 1_000_000, ..PLENTY });
    assert_eq!((outcome.status, outcome.fuel), (Status::FuelExhausted, 1_000_000));
    let reason = outcome.reason.unwrap();
    assert!(reason.contains("the limit is 1000000 units"), "{reason}");
}

#[test]
fn a_trap_says_which_and_where() {
    let text = r#"(module (memory (export "memory") 1)
        (func $divides (param i32) (result i32) (i32.div_u (i32.const 1) (local.get 0)))
        (func (export "tasklet_run") (param i32 i32) (result i64) (i64.extend_i32_u (call $divides (local.get 0)))))"#;
    let outcome = run(text, PLENTY);
    assert_eq!((outcome.status, outcome.output.len()), (Status::ExecFailed, 0));
    assert_eq!(outcome.reason.as_deref(), Some("wasm trap: integer divide by zero in divides"));
}

/// Bodies that trap, and what is said of each.
const TRAPS: &[(&str, &str)] = &[
    ("(unreachable)", "unreachable"),
    ("(i64.load (i32.const 65529))", "out of bounds memory access"),
    ("(i64.load offset=0xFFFFFFFF (i32.const -1))", "out of bounds memory access"),
    ("(i64.div_u (i64.const 1) (i64.const 0))", "integer divide by zero"),
    ("(i64.div_s (i64.const 0x8000000000000000) (i64.const -1))", "integer overflow"),
    ("(i64.trunc_f64_s (f64.const nan))", "invalid conversion to integer"),
    ("(memory.fill (i32.const 65535) (i32.const 0) (i32.const 2)) (i64.const 0)", "out of bounds memory access"),
    ("(memory.copy (i32.const 0) (i32.const 65000) (i32.const 1000)) (i64.const 0)", "out of bounds memory access"),
    ("(call_indirect (i32.const 1)) (i64.const 0)", "uninitialized element"),
    ("(call_indirect (i32.const 9)) (i64.const 0)", "undefined element"),
    ("(call_indirect (i32.const 0)) (i64.const 0)", "indirect call type mismatch"),
    ("(drop (table.get 0 (i32.const 2))) (i64.const 0)", "out of bounds table access"),
    ("(call $deep) (i64.const 0)", "call stack exhausted"),
];

#[test]
fn every_trap_ends_with_exec_failed_and_its_name() {
    for (body, said) in TRAPS {
        let text = format!(
            r#"(module (memory (export "memory") 1) (table 2 funcref) (elem (i32.const 0) func $other)
            (func $deep (call $deep)) (func $other (param i64)) (type $plain (func))
            (func (export "tasklet_run") (param i32 i32) (result i64) {body}))"#
        );
        let outcome = run(&text, PLENTY);
        let reason = outcome.reason.unwrap_or_default();
        assert!(reason.contains(said), "{body}: {reason}");
        assert_eq!((outcome.status, outcome.output.len()), (Status::ExecFailed, 0), "{body}");
    }
}

/// The stack is bounded by its own limit, and what stands on it counts.
#[test]
fn a_deep_stack_traps() {
    let deep = |depth: u32| {
        let text = format!(
            r#"(module (memory (export "memory") 1)
            (func $deep (param i32) (result i32)
                (if (result i32) (local.get 0) (then (i32.add (call $deep (i32.sub (local.get 0) (i32.const 1))) (i32.const 1))) (else (i32.const 0))))
            (func (export "tasklet_run") (param i32 i32) (result i64) (drop (call $deep (i32.const {depth}))) (i64.const 0)))"#
        );
        run(&text, PLENTY).status
    };
    assert_eq!(deep(4_000), Status::Ok);
    assert_eq!(deep(40_000), Status::ExecFailed);
}

#[test]
fn endless_loops_end_wherever_they_are() {
    let endless = "(loop (br 0))";
    let fill = "(loop (memory.fill (i32.const 0) (i32.const 0) (i32.const 65536)) (br 0))";
    let copy = "(loop (memory.copy (i32.const 0) (i32.const 32768) (i32.const 32768)) (br 0))";
    let grow = "(loop (drop (memory.grow (i32.const 0))) (br 0))";
    let calls = "(loop (call $nothing) (br 0))";
    for body in [endless, fill, copy, grow, calls] {
        for place in ["start", "_initialize", "tasklet_alloc", "tasklet_run"] {
            let here = |name| if name == place { body } else { "" };
            let text = format!(
                r#"(module (memory (export "memory") 1) (func $nothing)
                (func $start {}) (start $start) (func (export "_initialize") {})
                (func (export "tasklet_alloc") (param i32) (result i32) {} (i32.const 0))
                (func (export "tasklet_run") (param i32 i32) (result i64) {} (i64.const 0)))"#,
                here("start"),
                here("_initialize"),
                here("tasklet_alloc"),
                here("tasklet_run")
            );
            let module = module(&text);
            let limits = Limits { fuel: 2_000_000, ..PLENTY };
            let outcome = module.run(b"x", &limits, &mut Record::default());
            assert_eq!((outcome.status, outcome.fuel), (Status::FuelExhausted, 2_000_000), "{body} in {place}");
            // A host that wants it no more gets it back, with more fuel than it could ever use.
            let mut host = Record { granted: 2, ..Record::default() };
            let outcome = module.run(b"x", &Limits { fuel: u64::MAX, ..PLENTY }, &mut host);
            assert_eq!(
                (outcome.status, outcome.reason, host.turns),
                (Status::ExecFailed, None, 3),
                "{body} in {place}"
            );
        }
    }
}

/// The host is asked within a slice, so that it can cancel in time: in a loop, and in loops over much memory. A bulk operation is not
/// interrupted.
#[test]
fn the_host_is_asked_for_turns_often_enough_to_cancel() {
    /// When it was last asked, the longest slice, turns, and slices that were too long.
    struct Clocked(Option<Instant>, Duration, u32, u32);
    impl Hostcalls for Clocked {
        fn call(&mut self, _: Call<'_>) -> i64 {
            0
        }
        fn turn(&mut self) -> bool {
            let now = Instant::now();
            if let Some(last) = self.0.replace(now) {
                self.1 = self.1.max(now - last);
                self.3 += u32::from(now - last > Duration::from_millis(50));
            }
            self.2 += 1;
            self.2 < 50
        }
    }
    for body in [
        "(loop (br 0))",
        "(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 16777216)) (br 0))",
        "(loop (memory.copy (i32.const 0) (i32.const 0) (i32.const 16777216)) (br 0))",
        "(loop (drop (memory.grow (i32.const 0))) (br 0))",
    ] {
        let text = tasklet(&format!("{body} (unreachable)")).replace(r#""memory") 1)"#, r#""memory") 1024)"#);
        let mut host = Clocked(None, Duration::ZERO, 0, 0);
        let outcome = module(&text).run(&[], &Limits { fuel: u64::MAX, ..PLENTY }, &mut host);
        assert_eq!(outcome.status, Status::ExecFailed);
        // 10 ms are wanted; a machine that is shared takes some at times.
        println!("{body}: the longest slice took {:?}", host.1);
        assert!(host.2 == 50 && host.3 <= 2, "{body}: {} of {} slices, up to {:?}", host.3, host.2, host.1);
    }
}

#[test]
fn memory_ends_at_the_limit_and_growth_at_the_modules_own() {
    let page = 64 << 10;
    let text = |memory: &str, grow: i64| {
        tasklet(&format!("(i64.store (i32.const 0) (i64.extend_i32_s (memory.grow (i32.const {grow})))) (i64.const 8)"))
            .replace(r#""memory") 1)"#, &format!(r#""memory") {memory})"#))
    };
    let grown = |memory, grow, limit| {
        let outcome = run(&text(memory, grow), Limits { memory: limit, ..PLENTY });
        let old = outcome.output.first_chunk().map(|bytes| i64::from_le_bytes(*bytes));
        (outcome.status, old)
    };
    assert_eq!(grown("2", 3, 5 * page), (Status::Ok, Some(2)));
    assert_eq!(grown("2", 3, 5 * page - 1), (Status::OutOfMemory, None));
    assert_eq!(grown("2", 0, 2 * page), (Status::Ok, Some(2)));
    assert_eq!(grown("2", 0, 2 * page - 1), (Status::OutOfMemory, None));
    assert_eq!(grown("0", 0, 0), (Status::ExecFailed, None));
    // The module's own maximum: -1, as WASM has it.
    assert_eq!(grown("2 4", 2, 64 << 20), (Status::Ok, Some(2)));
    assert_eq!(grown("2 4", 3, 64 << 20), (Status::Ok, Some(-1)));
    assert_eq!(grown("2 4", 3, 4 * page), (Status::Ok, Some(-1)));
    // More than an i32 addresses is over any limit.
    for pages in [65_534, 65_535, 65_536, -1] {
        assert_eq!(grown("2", pages, 64 << 20), (Status::OutOfMemory, None), "{pages}");
        assert_eq!(grown("2 65535", pages, 64 << 20), (Status::Ok, Some(-1)), "{pages}");
    }
    let reason = run(&text("2", 3), Limits { memory: page, ..PLENTY }).reason.unwrap();
    assert!(reason.contains(&format!("the limit is {page}")), "{reason}");
}

#[test]
fn a_storm_of_growth_ends_at_the_limit() {
    let outcome = run(&tasklet("(loop (drop (memory.grow (i32.const 1))) (br 0)) (unreachable)"), PLENTY);
    assert_eq!(outcome.status, Status::OutOfMemory);
    // Tables end with -1 at their limit, whatever the module says.
    let text = r#"(module (memory (export "memory") 1) (table 65536 funcref)
        (func (export "tasklet_run") (param i32 i32) (result i64)
            (i64.store (i32.const 0) (i64.extend_i32_s (table.grow (ref.null func) (i32.const 1)))) (i64.const 8)))"#;
    assert_eq!(run(text, PLENTY).output, [0xFF; 8]);
}

#[test]
fn outputs_are_inside_memory_and_within_the_limit() {
    let returns = |high: u32, low: u32, output| {
        let value = u64::from(high) << 32 | u64::from(low);
        let outcome = run(&tasklet(&format!("(i64.const {value})")), Limits { output, ..PLENTY });
        (outcome.status, outcome.output.len())
    };
    assert_eq!(returns(0, 100, 100), (Status::Ok, 100));
    assert_eq!(returns(0, 101, 100), (Status::OutOfMemory, 0));
    assert_eq!(returns(0, 1, 0), (Status::OutOfMemory, 0));
    assert_eq!(returns(0, 0, 0), (Status::Ok, 0));
    assert_eq!(returns(65_535, 1, 100), (Status::Ok, 1));
    assert_eq!(returns(65_535, 2, 100), (Status::ExecFailed, 0));
    assert_eq!(returns(0xFFFF_FFFE, 0xFFFF_FFFF, 1 << 40), (Status::ExecFailed, 0));
    // The tasklet's own failure: four bytes, most significant first, whatever the limit is.
    let outcome = run(&tasklet("(i64.const 0xFFFFFFFF00001234)"), Limits { output: 0, ..PLENTY });
    assert_eq!((outcome.status, outcome.output), (Status::ExecFailed, vec![0, 0, 0x12, 0x34]));
    assert_eq!(outcome.reason.as_deref(), Some("the tasklet failed with code 4660"));
}

#[test]
fn room_for_the_input_is_inside_memory() {
    let alloc = |at: u32| {
        let text = format!(
            r#"(module (memory (export "memory") 1)
            (func (export "tasklet_alloc") (param i32) (result i32) (i32.const {}))
            (func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0)))"#,
            at.cast_signed()
        );
        module(&text).run(b"abcd", &PLENTY, &mut Record::default()).status
    };
    assert_eq!(alloc(65_532), Status::Ok);
    assert_eq!(alloc(65_533), Status::ExecFailed);
    assert_eq!(alloc(u32::MAX), Status::ExecFailed);
    let none = module(&tasklet("(i64.const 0)"));
    assert!(!none.takes_input());
}

/// All NaNs that a guest can make are the same.
#[test]
fn nans_are_canonical() {
    let body = "(i64.store (i32.const 0) (i64.reinterpret_f64 (f64.add (f64.const nan:0x8000000000123) (f64.const 1)))) \
        (i32.store (i32.const 8) (i32.reinterpret_f32 (f32.neg (f32.div (f32.const 0) (f32.const 0))))) (i64.const 12)";
    let outcome = run(&tasklet(body), PLENTY);
    let (double, single) = outcome.output.split_at(8);
    assert_eq!(double, 0x7FF8_0000_0000_0000_u64.to_le_bytes());
    assert_eq!(single[..2], [0, 0]);
    assert_eq!(single[3] & 0x7F, 0x7F);
}

/// Runs on several threads at a time share compiled code and nothing else.
#[test]
fn runs_beside_each_other_do_not_meet() {
    let body = "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1))) (i64.const 4)";
    let module = module(&tasklet(body));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(module.run(&[], &PLENTY, &mut Record::default()).output, [1, 0, 0, 0]);
                }
            });
        }
    });
}
