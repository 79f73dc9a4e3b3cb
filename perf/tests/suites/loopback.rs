//! The whole command against Berth's own service on a second core, with faults in between that are counted exactly.

use std::{fs, process::ExitCode};

use crate::common::{run, run_suite, try_suite};

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

#[test]
fn a_streamed_experiment_is_corrected_as_the_library_says() {
    let folder = tempfile::tempdir().unwrap();
    let html = folder.path().join("page.html");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/data/surface_d7x29.dem");
    let args = format!("--port loopback --model {model} --html {} --window-rounds 14 --commit 6", html.display());
    let report = |more: &str| {
        let (code, report) = run_suite("stream", &format!("{args} {more}")).unwrap();
        let case = report.cases.into_iter().next().unwrap();
        let stream = case.streams[0].clone();
        assert_eq!((code, &case.first_mistake, case.counts.wrong), (ExitCode::SUCCESS, &None, 0));
        assert_eq!((stream.parts.len() as u64, stream.corrections_right), (20, 20));
        assert_eq!((case.latency.n, case.counts.answered), (stream.rounds, stream.rounds + 20));
        assert!(case.hiccups.polls > 0 && stream.parts.is_sorted_by_key(|part| (part.rounds, part.at_ns)));
        (case, stream)
    };
    // Without --count as long as the model; as fast as 16 rounds under way let it.
    let (_, whole) = report("--window 16");
    assert_eq!((whole.rounds, whole.offered_ns), (30, None));
    assert!(whole.backlog_most() <= 16);
    // Answers that come twice count once.
    let (doubled, _) = report("--count 1002 --window 16 --fault rx.duplicate=0.3,seed=5");
    assert!(doubled.counts.stale > 200, "{:?}", doubled.counts);
    let (_, longer) = report("--count 1002 --rate 20000 --seed 5");
    assert_eq!((longer.rounds, longer.offered_ns), (1002, Some(50_000.0)));
    assert!(longer.round_ns > 45_000.0, "not faster than offered: {longer:?}");
    // All are due at once: those of the last tenth wait at nine tenths.
    let (_, fast) = report("--count 10002 --rate 1000000000");
    assert_eq!((fast.backlog_late(), fast.keeps_up()), (1001, false), "{fast:?}");
    let page = fs::read_to_string(html).unwrap();
    for told in ["<h2>Streams</h2>", "<h3>A round each 1 ns</h3>", "<td>1\u{202f}001</td><td>no</td>"] {
        assert!(page.contains(told), "{told}: {page}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"));
    let error = try_suite("stream", &format!("{args} --count 1003")).unwrap_err();
    assert!(format!("{error:#}").contains("any multiple of 6 more"), "{error:#}");
}
