//! Ring kernels (K6).

use berth_tasklet::run::Rejected;
use berth_wasm::{KernelLimits, NoAnswer, RingKernel};

use crate::common::{Record, node};

const LIMITS: KernelLimits = KernelLimits { fuel: 1_000_000, memory: 1 << 20, request: 64, response: 16 };

fn kernel(text: &str, limits: KernelLimits) -> Result<RingKernel, Rejected> {
    node().ring_kernel(&wat::parse_str(text).unwrap(), limits)
}

/// Adds the first byte of each message to a sum, which it answers with; 255 traps, 254 fails, 253 never ends, 252 logs.
const SUM: &str = r#"(module
    (import "fabricbios_log_v0" "fb_log" (func $log (param i32 i32 i32)))
    (memory (export "memory") 1) (global $allocs (mut i32) (i32.const 0))
    (func (export "ring_kernel_alloc") (param i32) (result i32)
        (global.set $allocs (i32.add (global.get $allocs) (i32.const 1))) (local.get 0))
    (func (export "ring_kernel_run") (param $at i32) (param $len i32) (result i64) (local $byte i32)
        (local.set $byte (i32.load8_u (local.get $at)))
        (if (i32.eq (local.get $byte) (i32.const 255)) (then (unreachable)))
        (if (i32.eq (local.get $byte) (i32.const 254)) (then (return (i64.const 0xFFFFFFFF00000007))))
        (if (i32.eq (local.get $byte) (i32.const 253)) (then (loop (br 0))))
        (if (i32.eq (local.get $byte) (i32.const 252)) (then (call $log (i32.const 2) (local.get $at) (local.get $len))))
        (i32.store (i32.const 1000) (i32.add (i32.load (i32.const 1000)) (local.get $byte)))
        (i32.store (i32.const 1004) (global.get $allocs))
        (i64.const 0x3E8_00000008)))"#;

fn answer(kernel: &mut RingKernel, message: &[u8]) -> Result<(u32, u32), NoAnswer> {
    let mut out = [0; 16];
    let len = kernel.answer(message, &mut Record::default(), &mut out)?;
    assert_eq!(len, 8);
    let word = |at: usize| u32::from_le_bytes(out[at..at + 4].try_into().unwrap());
    Ok((word(0), word(4)))
}

#[test]
fn the_state_of_a_kernel_lives_on_and_room_is_taken_once() {
    let mut kernel = kernel(SUM, LIMITS).unwrap();
    assert_eq!(answer(&mut kernel, &[5]), Ok((5, 1)));
    assert_eq!(answer(&mut kernel, &[7]), Ok((12, 1)));
    // Its own failure keeps the state.
    assert_eq!(answer(&mut kernel, &[254]), Err(NoAnswer::Failed(7)));
    assert_eq!(answer(&mut kernel, &[1]), Ok((13, 1)));
    // A trap and the end of fuel do not.
    assert_eq!(
        answer(&mut kernel, &[255]).map_err(|error| error.to_string()).unwrap_err(),
        "wasm trap: wasm `unreachable` instruction executed in function 2"
    );
    assert_eq!(answer(&mut kernel, &[2]), Ok((2, 1)));
    let NoAnswer::Trapped(why) = answer(&mut kernel, &[253]).unwrap_err() else { panic!("it ended") };
    assert!(why.starts_with("out of fuel") && why.ends_with("1000000 units"), "{why}");
    assert_eq!(answer(&mut kernel, &[3]), Ok((3, 1)));
}

#[test]
fn each_message_has_its_fuel_and_logs_go_to_its_host() {
    let mut kernel = kernel(SUM, KernelLimits { fuel: 300, ..LIMITS }).unwrap();
    for n in 1..100 {
        assert_eq!(answer(&mut kernel, &[1]), Ok((n, 1)));
    }
    let mut host = Record::default();
    kernel.answer(&[252, 1], &mut host, &mut [0; 16]).unwrap();
    assert_eq!(host.calls, ["Log { level: 2, message: [252, 1] }"]);
}

#[test]
fn what_is_no_kernel_is_refused() {
    let refused = |text: &str| match kernel(text, LIMITS) {
        Err(Rejected::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    let module = |import: &str, alloc: &str, run: &str| {
        format!(
            r#"(module {import} (memory (export "memory") 1)
            (func (export "{alloc}") (param i32) (result i32) (i32.const 0))
            (func (export "{run}") (param i32 i32) (result i64) (i64.const 0)))"#
        )
    };
    assert!(kernel(&module("", "ring_kernel_alloc", "ring_kernel_run"), LIMITS).is_ok());
    assert_eq!(refused(&module("", "tasklet_alloc", "tasklet_run")), "it does not export ring_kernel_run");
    assert_eq!(refused(&module("", "alloc", "ring_kernel_run")), "it does not export ring_kernel_alloc");
    let lease = r#"(import "fabricbios_fbmu_v0" "fbmu_hello" (func (result i32)))"#;
    assert_eq!(
        refused(&module(lease, "ring_kernel_alloc", "ring_kernel_run")),
        "fabricbios_fbmu_v0.fbmu_hello is unknown"
    );
    // A kernel whose room or answer is outside memory, or whose answer is too long, never answers.
    for (room, returned) in [(65_473, "0"), (0, "0x10000_00000001"), (0, "17")] {
        let text = format!(
            r#"(module (memory (export "memory") 1)
            (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const {room}))
            (func (export "ring_kernel_run") (param i32 i32) (result i64) (i64.const {returned})))"#
        );
        let mut kernel = kernel(&text, LIMITS).unwrap();
        for _ in 0..2 {
            let answer = kernel.answer(&[1], &mut Record::default(), &mut [0; 16]);
            assert!(matches!(answer, Err(NoAnswer::Trapped(_))), "{text}: {answer:?}");
        }
    }
}
