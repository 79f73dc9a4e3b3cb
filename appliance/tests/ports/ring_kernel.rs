//! A client that was written in Python from the pages in docs/ alone asks ring kernels of a running appliance.

use std::{
    path::Path,
    process::{Command, Stdio},
};

#[cfg(feature = "wasm")]
use crate::common;
use crate::common::{Berth, Stopped};

/// `VectorAdd` as a WASM kernel: it sees and gives the raw format, and leaves the head to its host.
#[cfg(feature = "wasm")]
const VECTOR_ADD: &str = r#"(module (memory (export "memory") 1)
  (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "ring_kernel_run") (param $at i32) (param i32) (result i64)
    (f32.store offset=34 (i32.const 0)
      (f32.add (f32.load offset=34 (local.get $at)) (f32.load offset=38 (local.get $at))))
    (i64.const 38)))"#;

/// A sum that lives on: the request has `Add i32`, the response `Sum i64`. Adding 0 traps, adding -1 logs.
#[cfg(feature = "wasm")]
const ACCUMULATE: &str = r#"(module (import "fabricbios_log_v0" "fb_log" (func $log (param i32 i32 i32)))
  (memory (export "memory") 1) (data (i32.const 500) "down") (global $sum (mut i64) (i64.const 0))
  (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "ring_kernel_run") (param $at i32) (param i32) (result i64) (local $add i64)
    (local.set $add (i64.load32_s offset=34 (local.get $at)))
    (if (i64.eqz (local.get $add)) (then (unreachable)))
    (if (i64.eq (local.get $add) (i64.const -1)) (then (call $log (i32.const 1) (i32.const 500) (i32.const 4))))
    (global.set $sum (i64.add (global.get $sum) (local.get $add)))
    (i64.store offset=34 (i32.const 0) (global.get $sum))
    (i64.const 42)))"#;

/// What answers in the tests below: the built-in kernel, and the same as a module where this build runs them.
#[cfg_attr(not(feature = "wasm"), expect(unused_variables, reason = "modules need a folder"))]
fn kernels(folder: &Path) -> Vec<String> {
    vec![
        "builtin:vector_add".to_owned(),
        #[cfg(feature = "wasm")]
        format!("wasm:{}", module(folder, "add.wasm", VECTOR_ADD).display()),
    ]
}

#[cfg(feature = "wasm")]
fn module(folder: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
    path
}

/// The port and the kernel of each round.
fn rounds(kernels: &[String]) -> impl Iterator<Item = (&'static str, &String)> {
    kernels.iter().flat_map(|kernel| ["v24", "v16"].map(|port| (port, kernel)))
}

/// Runs a part of the client against a port, and returns what it counted.
fn ask(berth: &Berth, part: &str, port: &str) -> Vec<u64> {
    let output = Command::new("python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ring_kernel/client.py"))
        .args([part, port, &berth.addr(port).to_string()])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "{part} over {port}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// What became of messages.
fn outcomes<const N: usize>(stopped: &Stopped, port: &str, message: &str, outcomes: [&str; N]) -> [u64; N] {
    outcomes.map(|outcome| stopped.sum(port, "service", &format!("kernel_{message}_{outcome}")))
}

const AT_ONCE: [&str; 5] = ["answered", "repeated", "duplicate", "not_active", "malformed"];

#[test]
fn a_stranger_finds_every_rule_kept_over_both_headers() {
    let folder = tempfile::tempdir().unwrap();
    for (port, kernel) in rounds(&kernels(folder.path())) {
        let berth = Berth::start(&include_str!("../ring_kernel/node.toml").replace("builtin:vector_add", kernel));
        let lengths = ask(&berth, "lengths", port)[0];
        let rules = ask(&berth, "rules", port)[0];
        let [answered, repeated, duplicate] = ask(&berth, "dedup", port)[..] else { panic!("three counts") };
        ask(&berth, "formats", port);
        let stopped = berth.stop();
        assert!(stopped.status.success());
        // 1,997 lengths thrice, 255 counts of each format that has one, 255 flags.
        let malformed = 1997 * 3 + 3 * 255 + 255;
        assert_eq!(outcomes(&stopped, port, "VectorAddRequest", AT_ONCE), [lengths + rules, 0, 0, 0, malformed]);
        assert_eq!(outcomes(&stopped, port, "NarrowRequest", AT_ONCE), [answered, repeated, duplicate, 0, 0]);
        assert_eq!(outcomes(&stopped, port, "ForgetfulRequest", AT_ONCE), [2, 0, 0, 0, 0]);
        assert_eq!(outcomes(&stopped, port, "RawRequest", AT_ONCE), [1, 0, 0, 0, 3]);
        assert_eq!(outcomes(&stopped, port, "RestingRequest", AT_ONCE), [0, 0, 0, 4, 1]);
        let service = |counter| stopped.sum(port, "service", counter);
        assert_eq!(service("answered"), lengths + rules + answered + repeated + 3);
        assert_eq!(service("handler_error"), duplicate + 4);
        assert_eq!(service("schema_mismatch"), malformed + 3 + 1);
        assert_eq!(service("unknown_function"), 1);
        assert_eq!(service("received"), service("answered") + service("handler_error") + malformed + 5);
    }
}

#[test]
fn a_stranger_finds_messages_queued_as_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    for (port, kernel) in rounds(&kernels(folder.path())) {
        let berth = Berth::start(&include_str!("../ring_kernel/queued.toml").replace("builtin:vector_add", kernel));
        let rules = ask(&berth, "queued", port)[0];
        let flood = ask(&berth, "flood", port);
        let stopped = berth.stop();
        assert!(stopped.status.success());
        assert_eq!(outcomes(&stopped, port, "VectorAddRequest", AT_ONCE), [rules, 1, 1, 0, 1]);
        // Of each kernel, as many messages as the client has counted answers with each status.
        for (at, (message, full)) in
            [("RejectRequest", "rejected"), ("NewRequest", "dropped"), ("OldRequest", "dropped")]
                .into_iter()
                .enumerate()
        {
            let [answered, turned_away] = outcomes(&stopped, port, message, ["answered", full]);
            assert_eq!([answered, turned_away], [flood[2 * at], flood[2 * at + 1]], "{message}");
            assert!(turned_away > 0, "{message}: a flood fits into 16 places");
            let none = outcomes(&stopped, port, message, ["repeated", "duplicate", "malformed", "failed"]);
            assert_eq!(none, [0; 4], "{message}");
        }
    }
}

#[cfg(feature = "wasm")]
#[test]
fn the_state_of_a_module_lives_on_until_it_traps_or_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let sum = module(folder.path(), "sum.wasm", ACCUMULATE);
    let config = |kernel: &str| {
        let head = "MessageId guid\", \"Priority u8\", \"CorrelationId guid?";
        format!(
            "{}[[message]]\nname = \"AddRequest\"\nmembers = [\"{head}\", \"Add i32\"]\nresponse = \"AddResponse\"\n\
             [[message]]\nname = \"AddResponse\"\nmembers = [\"{head}\", \"Sum i64\"]\n\
             [[ring_kernel]]\nmessage = \"AddRequest\"\nkernel = \"wasm:{}\"\n{kernel}",
            common::port("a", ""),
            sum.display()
        )
    };
    let berth = Berth::start(&config(""));
    let client = berth.client("a");
    let function =
        "AddRequest".bytes().fold(0x811C_9DC5, |id: u32, byte| (id ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let add = |number: i32| {
        let message = [&[0; 34][..], &number.to_le_bytes()].concat();
        let answer = client.call(function, &message);
        (answer.status, answer.result.last_chunk().map(|sum| i64::from_le_bytes(*sum)))
    };
    let reload = |text: &str| {
        berth.write("berth.toml", text);
        berth.signal("-HUP");
        std::thread::sleep(std::time::Duration::from_millis(1500));
    };
    assert_eq!([add(5), add(-1)], [(0, Some(5)), (0, Some(4))]);
    reload(&config("dedup = 0\n"));
    assert_eq!(add(1), (0, Some(5)), "the same module under other settings");
    assert_eq!([add(0), add(3)], [(-6, None), (0, Some(3))], "a trap, and a fresh instance");
    reload(&config("dedup = 0\nfuel = 4\n"));
    assert_eq!(add(1), (-6, None), "no message has so little fuel");
    let stopped = berth.stop();
    assert!(stopped.stderr.contains("ring kernel AddRequest: \"down\""), "{}", stopped.stderr);
    assert!(
        stopped.stderr.contains("unreachable") && stopped.stderr.contains("the limit is 4 units"),
        "{}",
        stopped.stderr
    );
}

#[cfg(feature = "wasm")]
#[test]
fn a_module_that_is_none_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let empty = module(folder.path(), "empty.wasm", "(module)");
    let kernel = format!("[[ring_kernel]]\nmessage = \"VectorAddRequest\"\nkernel = \"wasm:{}\"\n", empty.display());
    let (code, said) = common::fails(&format!("{}{kernel}", common::port("a", "")));
    let wanted = format!("ring_kernel[0].kernel: {}: it does not export its memory as \"memory\"", empty.display());
    assert!(code == Some(2) && said.contains(&wanted), "{code:?}: {said}");
}
