//! Ring kernels' code as ports run it.

use berth_kernels::{Code, Failed};
use berth_wasm::{Compiler, KernelCode, KernelLimits};

const LIMITS: KernelLimits = KernelLimits { fuel: 20_000, memory: 1 << 20, request: 42, response: 38 };

/// Answers with its count of messages; a first byte of 1 traps, 2 fails, 3 answers a byte less, 4 logs, 5 never ends, 6 logs
/// a hundred times.
const COUNT: &str = r#"(module
    (import "fabricbios_log_v0" "fb_log" (func $log (param i32 i32 i32)))
    (memory (export "memory") 1) (global $count (mut i32) (i32.const 0))
    (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const 1000))
    (func (export "ring_kernel_run") (param $at i32) (param $len i32) (result i64) (local $byte i32) (local $i i32)
        (local.set $byte (i32.load8_u (local.get $at)))
        (global.set $count (i32.add (global.get $count) (i32.const 1)))
        (i32.store (i32.const 2000) (global.get $count))
        (if (i32.eq (local.get $byte) (i32.const 1)) (then (unreachable)))
        (if (i32.eq (local.get $byte) (i32.const 2)) (then (return (i64.const 0xFFFFFFFF00000007))))
        (if (i32.eq (local.get $byte) (i32.const 3)) (then (return (i64.const 0x7D0_00000025))))
        (if (i32.eq (local.get $byte) (i32.const 4)) (then (call $log (i32.const 2) (local.get $at) (i32.const 3))))
        (if (i32.eq (local.get $byte) (i32.const 5)) (then (loop (br 0))))
        (if (i32.eq (local.get $byte) (i32.const 6)) (then (loop $on
            (call $log (i32.const 258) (local.get $at) (i32.const 42))
            (br_if $on (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100))))))
        (i64.const 0x7D0_00000026)))"#;

fn code(text: &str, instances: u32) -> Result<KernelCode, String> {
    let compiler = Compiler { program: env!("CARGO_BIN_EXE_berth-wasm-compile").into(), args: Vec::new() };
    KernelCode::new("count.wasm".into(), &wat::parse_str(text).unwrap(), LIMITS, instances, compiler)
}

fn message(first: u8) -> [u8; 42] {
    let mut message = [b'x'; 42];
    message[0] = first;
    message
}

#[test]
fn each_core_has_its_state_and_failures_are_logged() {
    let code = code(COUNT, 3).unwrap();
    let mut cores = [code.instance().unwrap(), code.instance().unwrap()];
    let mut answer = |core: usize, first: u8| {
        let mut out = [0; 38];
        let answered = cores[core].answer(&message(first), &mut out);
        answered.map(|()| u32::from_le_bytes(out[..4].try_into().unwrap()))
    };
    let logged = || {
        let mut records = Vec::new();
        let lost = code.take_log(&mut |level, text| records.push((level, String::from_utf8_lossy(text).into_owned())));
        (records, lost)
    };
    assert_eq!([answer(0, 0), answer(0, 0), answer(1, 0)], [Ok(1), Ok(2), Ok(1)]);
    // It failed by itself, or answered too little: its state lives on.
    assert_eq!([answer(0, 2), answer(0, 3), answer(0, 0)], [Err(Failed), Err(Failed), Ok(5)]);
    let failures = ["the kernel failed with code 7", "it answered 37 bytes, its response has 38"];
    assert_eq!(logged(), (failures.map(|why| (0, why.to_owned())).to_vec(), 0));
    // A trap and the end of its fuel are the end of it.
    assert_eq!([answer(0, 1), answer(0, 0), answer(0, 5), answer(0, 0)], [Err(Failed), Ok(1), Err(Failed), Ok(1)]);
    let (records, lost) = logged();
    assert!(records[0].1.contains("unreachable") && records[1].1.contains("the limit is 20000 units"), "{records:?}");
    assert_eq!((records.len(), lost), (2, 0));
    assert_eq!(answer(1, 4), Ok(2));
    assert_eq!(logged(), (vec![(2, "\u{4}xx".to_owned())], 0));
    // A flood is counted and not kept.
    assert_eq!(answer(1, 6), Ok(3));
    let (records, lost) = logged();
    assert_eq!((records.len(), records[0].0, lost), (64, 2, 36));
    assert_eq!(logged(), (vec![], 0));
}

#[test]
fn messages_allocate_nothing() {
    let code = code(COUNT, 2).unwrap();
    let mut core = code.instance().unwrap();
    let mut out = [0; 38];
    assert_eq!(core.answer(&message(4), &mut out), Ok(()));
    let mut failed = 0;
    let measured = allocation_counter::measure(|| {
        for round in 0..100_000 {
            let first = if round % 1000 == 0 { 4 } else { 0 };
            failed += usize::from(core.answer(&message(first), &mut out).is_err());
        }
    });
    assert_eq!((measured.count_total, failed), (0, 0));
}

#[test]
fn code_that_cannot_start_is_refused_with_the_reason() {
    let refused = |text: &str| code(text, 2).unwrap_err();
    assert!(refused("(module)").contains("does not export its memory"), "{}", refused("(module)"));
    let start = COUNT.replacen("(i32.const 1000))", "(loop (br 0)) (unreachable))", 1);
    assert!(refused(&start).starts_with("it cannot be started: out of fuel"), "{}", refused(&start));
    let outside = COUNT.replacen("(i32.const 1000))", "(i32.const 65500))", 1);
    assert_eq!(refused(&outside), "it cannot be started: it gave room outside memory for what it is to work on");
}
