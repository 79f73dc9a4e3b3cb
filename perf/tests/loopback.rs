//! The whole command against Berth's own service on a second core, with faults in between that are counted exactly.

mod common;

use std::process::ExitCode;

use common::run;

#[test]
fn injected_losses_and_duplicates_are_counted_one_by_one() {
    let fault = "--fault drop=0.02,duplicate=0.03,seed=11";
    let (_, report) = run(&format!("--port loopback --count 3000 --window 32 --timeout 500 {fault} --payload 16"));
    let case = &report.cases[0];
    let injected = |name: &str| case.port_counters[name];
    assert!(injected("fault_tx_dropped") > 30 && injected("fault_rx_dropped") > 30, "{:?}", case.port_counters);
    assert_eq!((case.counts.wrong, case.counts.malformed, case.counts.refused), (0, 0, 0));
    assert_eq!(case.counts.sent, 3000);
    assert_eq!(case.counts.answered + case.counts.lost, 3000);
    // What the client's port received and did not drop is an answer, or a duplicate of one.
    let received = injected("rx_frames") - injected("fault_rx_dropped") + injected("fault_rx_duplicated");
    let counts = &case.counts;
    assert_eq!(received, counts.answered + counts.duplicates + counts.late + counts.stale);
    // A request sent twice is lost only where both its answers are; here no request drew so much.
    assert!(counts.lost <= injected("fault_tx_dropped") + injected("fault_rx_dropped"));
}

#[test]
fn every_loss_is_one_that_was_injected() {
    let args = "--port loopback --count 3000 --window 32 --timeout 500 --fault drop=0.02,seed=3";
    let (code, report) = run(&format!("{args} --expect-losses"));
    let case = &report.cases[0];
    let injected = case.port_counters["fault_tx_dropped"] + case.port_counters["fault_rx_dropped"];
    assert_eq!((code, case.counts.lost, case.counts.answered), (ExitCode::SUCCESS, injected, 3000 - injected));
    assert!(injected > 60);
    assert_eq!(run(args).0, ExitCode::FAILURE, "losses that nobody expects");
}

#[test]
fn a_doubled_answer_fails_the_run() {
    let args = "--port loopback --count 500 --timeout 500 --fault rx.duplicate=0.1,seed=3";
    let (code, report) = run(args);
    let counts = &report.cases[0].counts;
    assert_eq!((code, counts.answered), (ExitCode::FAILURE, 500));
    assert!(counts.duplicates + counts.stale > 20);
    assert_eq!(run(&format!("{args} --expect-losses")).0, ExitCode::SUCCESS);
}

#[test]
fn corrupted_frames_never_pass_for_answers() {
    let (code, report) = run("--port loopback --count 2000 --window 8 --timeout 500 --fault rx.corrupt=0.05,seed=5");
    let case = &report.cases[0];
    let corrupted = case.port_counters["fault_rx_corrupted"];
    let counts = &case.counts;
    assert_eq!(code, ExitCode::FAILURE);
    assert!(corrupted > 50);
    // A flipped bit makes an answer wrong, or it names another request, or it becomes a refusal.
    assert!(counts.wrong + counts.malformed + counts.refused + counts.stale + counts.duplicates >= corrupted);
    assert_eq!(counts.answered + counts.refused + counts.wrong + counts.lost, 2000);
}

#[test]
fn a_mix_with_a_real_decoder_agrees_with_the_reference() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let (code, report) = run(&format!(
        "--port loopback --count 4000 --window 4 --function qec_decode:2 --function decoding_server --function rpc_increment \
         --shots {root}/perf/data/surface_d5_p1e-3 --model {root}/config/decoders/surface_d5.dem"
    ));
    let case = &report.cases[0];
    assert_eq!(code, ExitCode::SUCCESS);
    assert_eq!(case.counts.answered, 4000);
    let calls: Vec<_> = case.functions.iter().map(|function| function.latency.n).collect();
    let [decode, enqueue, get, reset, increment] = calls[..] else { panic!("{calls:?}") };
    // Without a wait the mix is 2:1:1; the session waits for each answer, and loses turns meanwhile to the others.
    assert!(enqueue + get + reset <= 1000 && enqueue > 0 && increment >= 1000 && decode >= 2000, "{calls:?}");
    assert!(enqueue - get <= 1 && get - reset <= 1, "{calls:?}");
    assert_eq!(case.counts.predictions, decode + get);
    assert!(case.counts.agreements as f64 >= 0.999 * case.counts.predictions as f64, "{:?}", case.counts);
}
