//! Fuel by modules whose units are counted by hand (T4).

use berth_tasklet::run::{Limits, Status};

use crate::common::{PLENTY, Record, module, tasklet};

/// That a run takes exactly so much: with one unit less it is out of fuel.
fn takes(text: &str, fuel: u64) {
    let module = module(text);
    let outcome = module.run(&[], &Limits { fuel, ..PLENTY }, &mut Record::default());
    assert_eq!((outcome.status, outcome.fuel), (Status::Ok, fuel), "{text}: {:?}", outcome.reason);
    let outcome = module.run(&[], &PLENTY, &mut Record::default());
    assert_eq!((outcome.status, outcome.fuel), (Status::Ok, fuel), "{text}: {:?}", outcome.reason);
    let outcome = module.run(&[], &Limits { fuel: fuel - 1, ..PLENTY }, &mut Record::default());
    assert_eq!((outcome.status, outcome.fuel), (Status::FuelExhausted, fuel - 1), "{text}");
}

/// Bodies of `tasklet_run`, and their operators that cost a unit.
const BODIES: &[(&str, u64)] = &[
    ("(i64.const 0)", 1),
    // None of these costs anything.
    ("nop nop block end (i64.const 0) return", 1),
    ("(drop (i32.const 1)) (i64.const 0)", 2),
    ("(loop) (block (block)) (i64.const 0)", 1),
    // if costs, else and end do not; the branch that is not taken does not.
    ("(if (result i64) (local.get 0) (then (i64.const 1) (i64.const 1) i64.add) (else (i64.const 0)))", 3),
    // br, br_if, br_table.
    ("(block (br 0)) (i64.const 0)", 2),
    ("(block (br_if 0 (i32.const 1)) (drop (i32.const 5))) (i64.const 0)", 3),
    ("(block (block (br_table 0 1 (i32.const 1)))) (i64.const 0)", 3),
    // Locals and globals.
    ("(local.set 0 (local.get 1)) (drop (local.tee 0 (i32.const 1))) (i64.const 0)", 5),
    // Memory.
    ("(i32.store (i32.const 0) (i32.const 7)) (i64.load (i32.const 8))", 5),
    ("(drop (memory.size)) (drop (memory.grow (i32.const 0))) (i64.const 0)", 4),
    // Numbers, references, vectors.
    ("(i64.trunc_sat_f64_s (f64.sqrt (f64.const 4))) (drop) (i64.const 0)", 4),
    ("(drop (ref.is_null (ref.null func))) (i64.const 0)", 3),
    ("(drop (select (i32.const 1) (i32.const 2) (local.get 0))) (i64.const 0)", 5),
    ("(i64x2.extract_lane 0 (i32x4.add (v128.const i64x2 0 0) (v128.const i64x2 0 0))) drop (i64.const 0)", 5),
    // Bulk: one a byte more, whether the length is a constant or not.
    ("(memory.fill (i32.const 0) (i32.const 1) (i32.const 1000)) (i64.const 0)", 5 + 1000),
    ("(memory.fill (i32.const 0) (i32.const 1) (i32.const 0)) (i64.const 0)", 5),
    ("(memory.copy (i32.const 100) (i32.const 0) (i32.const 40)) (i64.const 0)", 5 + 40),
    (
        "(local.set 0 (i32.const 3000)) (memory.copy (i32.const 100) (i32.const 0) (local.get 0)) (i64.const 0)",
        2 + 5 + 3000,
    ),
];

#[test]
fn operators_cost_a_unit_and_bulk_operations_one_a_byte() {
    for (body, units) in BODIES {
        takes(&tasklet(body), 1 + units);
    }
}

#[test]
fn a_loop_costs_its_operators_each_time() {
    // Ten turns of local.get, i32.const, i32.sub, local.tee, br_if.
    let body = "(local.set 0 (i32.const 10)) \
        (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))) (i64.const 0)";
    takes(&tasklet(body), 1 + 2 + 10 * 5 + 1);
}

#[test]
fn elements_of_tables_and_bytes_of_segments_cost_a_unit_each() {
    let text = |body: &str| {
        format!(
            r#"(module (memory (export "memory") 1) (table 100 funcref) (elem $e func 0 0 0 0)
            (data $d "0123456789") (func)
            (func (export "tasklet_run") (param i32 i32) (result i64) {body} (i64.const 0)))"#
        )
    };
    takes(&text("(memory.init $d (i32.const 0) (i32.const 0) (i32.const 10)) (data.drop $d)"), 1 + 5 + 10 + 1);
    takes(&text("(table.init $e (i32.const 0) (i32.const 0) (i32.const 4)) (elem.drop $e)"), 1 + 5 + 4 + 1);
    takes(&text("(table.copy (i32.const 0) (i32.const 9) (i32.const 30))"), 1 + 4 + 30 + 1);
    takes(&text("(table.fill (i32.const 0) (ref.null func) (i32.const 50))"), 1 + 4 + 50 + 1);
    takes(&text("(drop (table.grow (ref.null func) (i32.const 7)))"), 1 + 3 + 7 + 1);
}

/// Every function's entry costs a unit; what starts a module counts, and what initializes it does not.
#[test]
fn start_initialize_alloc_and_run_count_together() {
    let text = |data: &str| {
        format!(
            r#"(module (memory (export "memory") 2) (table 200 funcref) 
            (elem (i32.const 3) func 0 0 0) (elem (offset (i32.add (i32.const 32) (i32.const 32))) func 0 0) {data}
            (func $start (drop (i32.const 1))) (start $start)
            (func (export "_initialize") (drop (i32.const 1)) (drop (i32.const 1)))
            (func (export "tasklet_alloc") (param i32) (result i32) (i32.const 4))
            (func (export "tasklet_run") (param i32 i32) (result i64) (call $start) (i64.const 0)))"#
        )
    };
    let long = "x".repeat(5000);
    for data in [
        String::new(),
        r#"(data (i32.const 0) "abc")"#.to_owned(),
        format!(
            r#"(data (offset (i32.add (i32.const 1) (i32.const 2))) "{long}") (data (offset (i32.const 65530)) "{long}")"#
        ),
    ] {
        let module = module(&text(&data));
        let start = 2;
        let (without, with) = (start + 3 + (1 + 1 + start + 1), 1 + 1);
        let outcome = module.run(&[], &PLENTY, &mut Record::default());
        assert_eq!((outcome.status, outcome.fuel), (Status::Ok, without), "{:?}", outcome.reason);
        let outcome = module.run(b"input", &PLENTY, &mut Record::default());
        assert_eq!((outcome.status, outcome.fuel), (Status::Ok, without + with));
        let short = Limits { fuel: without + with - 1, ..PLENTY };
        assert_eq!(module.run(b"input", &short, &mut Record::default()).status, Status::FuelExhausted);
        let none = Limits { fuel: 0, ..PLENTY };
        let outcome = module.run(&[], &none, &mut Record::default());
        assert_eq!((outcome.status, outcome.fuel), (Status::FuelExhausted, 0));
    }
}

#[test]
fn the_same_run_takes_the_same_fuel_however_it_ends() {
    let body = "(local $i i32) (loop (local.set $i (i32.add (local.get $i) (i32.const 1))) \
        (br_if 0 (i32.lt_u (local.get $i) (i32.const 200000)))) (unreachable)";
    let module = module(&tasklet(body));
    let first = module.run(&[], &PLENTY, &mut Record::default());
    assert_eq!(first.status, Status::ExecFailed);
    // 200,000 turns of eight.
    assert_eq!(first.fuel, 1 + 200_000 * 8);
    for _ in 0..3 {
        assert_eq!(module.run(&[], &PLENTY, &mut Record::default()), first);
    }
}
