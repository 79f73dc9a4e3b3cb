//! Hostcalls: what the host sees, what they cost, and the order of their checks (T7, T8).

use berth_tasklet::run::{Limits, Status};

use crate::common::{PLENTY, Record, module};

/// A tasklet that makes one call with these arguments and returns its result as 8 bytes of output.
fn calling(import: &str, types: &str, result: &str, args: &str) -> String {
    let (module, name) = import.split_once('.').unwrap();
    let (returns, value) = match result {
        "" => (String::new(), format!("(call $f {args}) (i64.const 0)")),
        "i32" => ("(result i32)".to_owned(), format!("(i64.extend_i32_s (call $f {args}))")),
        _ => ("(result i64)".to_owned(), format!("(call $f {args})")),
    };
    let stored = if result.is_empty() {
        format!("(call $f {args}) (i64.store (i32.const 8) (i64.const 0))")
    } else {
        format!("(i64.store (i32.const 8) {value})")
    };
    format!(
        r#"(module (import "{module}" "{name}" (func $f (param {types}) {returns}))
        (memory (export "memory") 1) (data (i32.const 1000) "some words")
        (func (export "tasklet_run") (param i32 i32) (result i64) {stored} (i64.const 0x8_0000_1000)))"#
    )
}

/// One line a function: import, parameters, result, arguments, what the host sees, and the units for what it moves.
const CALLS: &[(&str, &str, &str, &str, &str, u64)] = &[
    ("fabricbios_fbmu_v0.fbmu_hello", "", "i32", "", "Hello(Memory)", 0),
    ("fabricbios_fbbu_v0.fbbu_hello", "", "i32", "", "Hello(Block)", 0),
    ("fabricbios_fbmu_v0.fbmu_get_size", "", "i64", "", "GetSize(Memory)", 0),
    ("fabricbios_fbbu_v0.fbbu_get_size", "", "i64", "", "GetSize(Block)", 0),
    (
        "fabricbios_fbmu_v0.fbmu_read",
        "i64 i32 i32",
        "i32",
        "(i64.const -1) (i32.const 9) (i32.const 2000)",
        "Read { kind: Memory, lease: None, at: 18446744073709551615, out: [0, 0, 0, 0, 0, 0, 0, 0, 0] }",
        1,
    ),
    (
        "fabricbios_fbmu_v0.fbmu_write",
        "i64 i32 i32",
        "i32",
        "(i64.const 3) (i32.const 1000) (i32.const 4)",
        "Write { kind: Memory, lease: None, at: 3, data: [115, 111, 109, 101] }",
        0,
    ),
    (
        "fabricbios_fbmu_v0.fbmu_read_lease",
        "i64 i64 i64 i32 i32",
        "i32",
        "(i64.const 1) (i64.const -1) (i64.const 5) (i32.const 2) (i32.const 2000)",
        "Read { kind: Memory, lease: Some(36893488147419103231), at: 5, out: [0, 0] }",
        0,
    ),
    (
        "fabricbios_fbmu_v0.fbmu_write_lease",
        "i64 i64 i64 i32 i32",
        "i32",
        "(i64.const 0) (i64.const 2) (i64.const 5) (i32.const 1000) (i32.const 2)",
        "Write { kind: Memory, lease: Some(2), at: 5, data: [115, 111] }",
        0,
    ),
    (
        "fabricbios_fbmu_v0.fbmu_renew",
        "i64 i64 i32 i32",
        "i32",
        "(i64.const 0) (i64.const 2) (i32.const -1) (i32.const 0)",
        "Renew { kind: Memory, lease: 2, secs: 4294967295, out: [0, 0, 0, 0, 0, 0, 0, 0] }",
        1,
    ),
    (
        "fabricbios_fbbu_v0.fbbu_free",
        "i64 i64",
        "i32",
        "(i64.const 0) (i64.const 2)",
        "Free { kind: Block, lease: 2 }",
        0,
    ),
    (
        "fabricbios_log_v0.fb_log",
        "i32 i32 i32",
        "",
        "(i32.const -1) (i32.const 1000) (i32.const 4)",
        "Log { level: 4294967295, message: [115, 111, 109, 101] }",
        0,
    ),
];

#[test]
fn the_host_sees_what_the_guest_passes_and_the_guest_pays_before() {
    for (import, types, result, args, seen, moved) in CALLS {
        let module = module(&calling(import, types, result, args));
        let mut host = Record::default();
        let outcome = module.run(&[], &PLENTY, &mut host);
        assert_eq!(outcome.status, Status::Ok, "{import}: {:?}", outcome.reason);
        assert_eq!(host.calls, [*seen], "{import}");
        assert_eq!(outcome.hostcalls, 1);
        // The function's entry; call, the i64's constant and its store and address, and, of an i32, its conversion.
        let operators = types.split_whitespace().count() as u64 + 1 + 4 + u64::from(*result == "i32")
            - u64::from(!result.is_empty());
        let fuel = 1 + operators + 100 + moved;
        assert_eq!(outcome.fuel, fuel, "{import}");
        // One unit less than the call needs, and nothing is asked of the host.
        let before = types.split_whitespace().count() as u64 + 1 + 1 + u64::from(!result.is_empty());
        let short = Limits { fuel: before + 100 + moved - 1, ..PLENTY };
        let mut host = Record::default();
        assert_eq!(module.run(&[], &short, &mut host).status, Status::FuelExhausted, "{import}");
        assert_eq!(host.calls, [""; 0], "{import}");
        let enough = Limits { fuel: before + 100 + moved, ..PLENTY };
        module.run(&[], &enough, &mut host);
        assert_eq!(host.calls, [*seen], "{import}");
    }
}

#[test]
fn structs_and_blocks_have_their_length_and_price() {
    let cases = [
        ("fabricbios_fbmu_v0.fbmu_alloc", "i64 i32 i32", "(i64.const 1) (i32.const 2) (i32.const AT)", 32, 0xAA),
        ("fabricbios_fbbu_v0.fbbu_alloc", "i64 i32 i32", "(i64.const 1) (i32.const 2) (i32.const AT)", 40, 0xAA),
        ("fabricbios_fbmu_v0.fbmu_query", "i64 i64 i32", "(i64.const 1) (i64.const 2) (i32.const AT)", 24, 0xBB),
        ("fabricbios_fbbu_v0.fbbu_query", "i64 i64 i32", "(i64.const 1) (i64.const 2) (i32.const AT)", 24, 0xBB),
        (
            "fabricbios_fbmu_v0.fbmu_renew",
            "i64 i64 i32 i32",
            "(i64.const 1) (i64.const 2) (i32.const 3) (i32.const AT)",
            8,
            0xCC,
        ),
        ("fabricbios_fbbu_v0.fbbu_read_block", "i64 i32", "(i64.const 0) (i32.const AT)", 512, 0),
        ("fabricbios_fbbu_v0.fbbu_write_block", "i64 i32", "(i64.const 0) (i32.const AT)", 512, 0),
        (
            "fabricbios_fbbu_v0.fbbu_read_block_lease",
            "i64 i64 i64 i32",
            "(i64.const 0) (i64.const 2) (i64.const 0) (i32.const AT)",
            512,
            0,
        ),
        (
            "fabricbios_fbbu_v0.fbbu_write_block_lease",
            "i64 i64 i64 i32",
            "(i64.const 0) (i64.const 2) (i64.const 0) (i32.const AT)",
            512,
            0,
        ),
    ];
    for (import, types, args, len, _) in cases {
        let at = |at: i64| module(&calling(import, types, "i32", &args.replace("AT", &at.to_string())));
        // The last place where it fits, and the first where it does not.
        let mut host = Record::default();
        let outcome = at(65_536 - len).run(&[], &PLENTY, &mut host);
        assert_eq!((outcome.status, host.calls.len()), (Status::Ok, 1), "{import}: {:?}", outcome.reason);
        let operators = types.split_whitespace().count() as u64 + 1 + 4;
        assert_eq!(outcome.fuel, 1 + operators + 100 + len as u64 / 8, "{import}");
        for outside in [65_536 - len + 1, 65_536, 0xFFFF_FFFF - len, 0xFFFF_FFFF] {
            let mut host = Record::default();
            let outcome = at(outside).run(&[], &PLENTY, &mut host);
            assert_eq!((outcome.status, host.calls.len(), outcome.hostcalls), (Status::ExecFailed, 0, 1), "{import}");
            let reason = outcome.reason.unwrap();
            assert!(reason.starts_with("a hostcall with bytes outside memory"), "{reason}");
        }
    }
}

#[test]
fn pointers_at_and_over_the_edge_trap() {
    let cases = [
        // Length, place, whether all is inside.
        (0_u32, 65_536_u32, true),
        (0, 65_537, false),
        (1, 65_535, true),
        (1, 65_536, false),
        (65_536, 0, true),
        (65_537, 0, false),
        (0xFFFF_FFFF, 0, false),
        (0xFFFF_FFFF, 0xFFFF_FFFF, false),
        (1, 0xFFFF_FFFF, false),
        (2, 0xFFFF_FFFF, false),
    ];
    for (len, at, inside) in cases {
        let (len, at) = (len.cast_signed(), at.cast_signed());
        for (import, types, result, args) in [
            (
                "fabricbios_fbmu_v0.fbmu_read",
                "i64 i32 i32",
                "i32",
                format!("(i64.const 0) (i32.const {len}) (i32.const {at})"),
            ),
            (
                "fabricbios_fbmu_v0.fbmu_write",
                "i64 i32 i32",
                "i32",
                format!("(i64.const 0) (i32.const {at}) (i32.const {len})"),
            ),
            (
                "fabricbios_log_v0.fb_log",
                "i32 i32 i32",
                "",
                format!("(i32.const 0) (i32.const {at}) (i32.const {len})"),
            ),
        ] {
            let mut host = Record::default();
            let outcome = module(&calling(import, types, result, &args)).run(&[], &PLENTY, &mut host);
            assert_eq!(host.calls.len(), usize::from(inside), "{import} {args}");
            assert_eq!(outcome.status, if inside { Status::Ok } else { Status::ExecFailed }, "{import} {args}");
        }
    }
}

#[test]
fn a_log_message_is_cut_and_what_is_cut_costs_nothing() {
    let mut host = Record::default();
    let text = calling("fabricbios_log_v0.fb_log", "i32 i32 i32", "", "(i32.const 0) (i32.const 0) (i32.const 60000)");
    let outcome = module(&text).run(&[], &PLENTY, &mut host);
    assert_eq!(outcome.fuel, 1 + 4 + 4 + 100 + 1024 / 8);
    assert_eq!(host.calls[0].matches(", ").count(), 1024);
}

#[test]
fn the_call_after_the_last_one_ends_the_run() {
    let text = calling("fabricbios_fbmu_v0.fbmu_hello", "", "i32", "").replace(
        "(i64.store (i32.const 8) (i64.extend_i32_s (call $f )))",
        "(loop (drop (call $f)) (br_if 0 (i32.lt_u (local.tee 0 (i32.add (local.get 0) (i32.const 1))) (i32.const 10))))",
    );
    let module = module(&text);
    for (limit, status, made) in [
        (10, Status::Ok, 10),
        (9, Status::HostcallLimit, 9),
        (1, Status::HostcallLimit, 1),
        (0, Status::HostcallLimit, 0),
    ] {
        let mut host = Record::default();
        let outcome = module.run(&[], &Limits { hostcalls: limit, ..PLENTY }, &mut host);
        assert_eq!((outcome.status, host.calls.len(), outcome.hostcalls), (status, made, made as u64));
        // A call too many is counted before it is paid.
        let limits = Limits { hostcalls: 0, fuel: 50, ..PLENTY };
        assert_eq!(module.run(&[], &limits, &mut Record::default()).status, Status::HostcallLimit);
    }
}

/// A million calls, with turns among them; a host that grants none ends the run.
#[test]
fn a_run_of_calls_alone_asks_for_turns() {
    // A process asks by the clock, and each of a million calls is a journey.
    if crate::ISOLATED {
        return;
    }
    let text = calling("fabricbios_fbmu_v0.fbmu_hello", "", "i32", "")
        .replace("(i64.store (i32.const 8) (i64.extend_i32_s (call $f )))", "(loop (drop (call $f)) (br 0))");
    let module = module(&text);
    let mut host = Record::default();
    let outcome = module.run(&[], &PLENTY, &mut host);
    assert_eq!((outcome.status, outcome.hostcalls), (Status::HostcallLimit, 1_000_000));
    // Each turn of the loop takes 102 units.
    assert!((900..=2100).contains(&host.turns), "{}", host.turns);
    let mut host = Record { granted: 3, ..Record::default() };
    let outcome = module.run(&[], &PLENTY, &mut host);
    assert_eq!((outcome.status, outcome.reason, host.turns), (Status::ExecFailed, None, 4));
}

/// What waits for the journal or a device takes more time than fuel.
#[test]
fn a_run_of_calls_that_wait_asks_for_a_turn_before_each() {
    if crate::ISOLATED {
        return;
    }
    for (import, types, args) in [
        ("fabricbios_fbmu_v0.fbmu_renew", "i64 i64 i32 i32", "(i64.const 0) (i64.const 2) (i32.const 1) (i32.const 0)"),
        ("fabricbios_fbbu_v0.fbbu_read_block", "i64 i32", "(i64.const 0) (i32.const 0)"),
    ] {
        let once = format!("(i64.store (i32.const 8) (i64.extend_i32_s (call $f {args})))");
        let endless = format!("(loop (drop (call $f {args})) (br 0))");
        let module = module(&calling(import, types, "i32", args).replace(&once, &endless));
        let mut host = Record { granted: 5, ..Record::default() };
        let outcome = module.run(&[], &PLENTY, &mut host);
        assert_eq!((outcome.status, outcome.reason, host.calls.len()), (Status::ExecFailed, None, 5), "{import}");
    }
}
