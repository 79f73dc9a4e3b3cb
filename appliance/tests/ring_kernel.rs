//! A client that was written in Python from the pages in docs/ alone asks ring kernels of a running appliance.

mod common;

use std::process::{Command, Stdio};

use common::{Berth, Stopped};

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

/// What became of messages: answered, repeated, duplicate, not active, malformed.
fn outcomes(stopped: &Stopped, port: &str, message: &str) -> [u64; 5] {
    ["answered", "repeated", "duplicate", "not_active", "malformed"]
        .map(|outcome| stopped.sum(port, "service", &format!("kernel_{message}_{outcome}")))
}

#[test]
fn a_stranger_finds_every_rule_kept_over_both_headers() {
    for port in ["v24", "v16"] {
        let berth = Berth::start(include_str!("ring_kernel/node.toml"));
        let lengths = ask(&berth, "lengths", port)[0];
        let rules = ask(&berth, "rules", port)[0];
        let [answered, repeated, duplicate] = ask(&berth, "dedup", port)[..] else { panic!("three counts") };
        ask(&berth, "formats", port);
        let stopped = berth.stop();
        assert!(stopped.status.success());
        // 1,997 lengths thrice, 255 counts of each format that has one, 255 flags.
        let malformed = 1997 * 3 + 3 * 255 + 255;
        assert_eq!(outcomes(&stopped, port, "VectorAddRequest"), [lengths + rules, 0, 0, 0, malformed]);
        assert_eq!(outcomes(&stopped, port, "NarrowRequest"), [answered, repeated, duplicate, 0, 0]);
        assert_eq!(outcomes(&stopped, port, "ForgetfulRequest"), [2, 0, 0, 0, 0]);
        assert_eq!(outcomes(&stopped, port, "RawRequest"), [1, 0, 0, 0, 3]);
        assert_eq!(outcomes(&stopped, port, "RestingRequest"), [0, 0, 0, 4, 1]);
        let service = |counter| stopped.sum(port, "service", counter);
        assert_eq!(service("answered"), lengths + rules + answered + repeated + 3);
        assert_eq!(service("handler_error"), duplicate + 4);
        assert_eq!(service("schema_mismatch"), malformed + 3 + 1);
        assert_eq!(service("unknown_function"), 1);
        assert_eq!(service("received"), service("answered") + service("handler_error") + malformed + 5);
    }
}
