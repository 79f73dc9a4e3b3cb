//! Windows of experiments that several cores decode.

use std::{fmt::Write as _, net::SocketAddr, process::Command};

use crate::common::{Berth, port};

/// Memory of a repetition code of distance 5: four checks a round, 31 rounds.
fn memory() -> String {
    let mut text = String::new();
    for round in 0..31 {
        for check in 0..4 {
            let at = 4 * round + check;
            writeln!(text, "detector({check}, {round}) D{at}").unwrap();
            match check {
                0 => writeln!(text, "error(0.04) D{at} L0").unwrap(),
                _ => writeln!(text, "error(0.04) D{} D{at}", at - 1).unwrap(),
            }
            if check == 3 {
                writeln!(text, "error(0.04) D{at}").unwrap();
            }
            if round < 30 {
                writeln!(text, "error(0.04) D{at} D{}", at + 4).unwrap();
            }
        }
    }
    text
}

/// Streams rounds, and compares each twentieth answer with the library's, which decodes alone.
fn stream(berth: &Berth, to: SocketAddr, rounds: usize) {
    let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
    perf.args(["perf", "stream", "--no-progress", "--cpu", "0", "--window-rounds", "6", "--commit", "2", "--parallel"]);
    perf.arg("--model").arg(berth.folder().join("memory.dem"));
    perf.args(["--peer", &to.to_string(), "--count", &rounds.to_string()]);
    let output = perf.output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("20 corrections, all as they must be"), "{told}");
}

#[test]
fn any_number_of_cores_answers_the_same() {
    let rounds = 31 + 6 * 60;
    for (parallel, rpc, decoded_elsewhere) in [
        (1, "", false),
        (8, "", false),
        (1, "[port.rpc]\nworker_cpus = [0, 1]\n", false),
        (3, "[port.rpc]\nworker_cpus = [0, 1]\n", true),
        (2, "[port.rpc]\nworker_cpus = [0, 1]\ndispatch = \"ring\"\n", true),
        (2, "[port.rpc]\nworker_cpus = [0]\ndispatch = \"ring\"\n", false),
    ] {
        let decoder = format!(
            "[[decoder]]\nname = \"memory\"\nalgorithm = \"window\"\nmodel = \"memory.dem\"\nwindow = 6\ncommit = 2\nparallel = \
             {parallel}\nrounds = {rounds}\ncounter = \"round\"\ncorrections = \"decided\"\n"
        );
        let functions = ["enqueue_syndromes", "get_corrections", "reset_decoder"]
            .map(|name| format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:{name}\"\n"));
        let text = format!("{}{decoder}{}", port("a", rpc), functions.concat());
        let berth = Berth::start_with(&text, &[("memory.dem", &memory())]);
        stream(&berth, berth.addr("a"), rounds);
        let stopped = berth.stop();
        let workers = stopped.counters["workers"].as_array().unwrap();
        let decoded = workers.iter().filter_map(|worker| worker["counters"]["windows"].as_u64());
        let windows = decoded.sum::<u64>();
        assert_eq!(windows > 0, decoded_elsewhere, "{parallel} {rpc} {windows}");
    }
}
