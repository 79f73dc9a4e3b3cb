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

/// What became of messages.
fn outcomes<const N: usize>(stopped: &Stopped, port: &str, message: &str, outcomes: [&str; N]) -> [u64; N] {
    outcomes.map(|outcome| stopped.sum(port, "service", &format!("kernel_{message}_{outcome}")))
}

const AT_ONCE: [&str; 5] = ["answered", "repeated", "duplicate", "not_active", "malformed"];

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
    for port in ["v24", "v16"] {
        let berth = Berth::start(include_str!("ring_kernel/queued.toml"));
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
