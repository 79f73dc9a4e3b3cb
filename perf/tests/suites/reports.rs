//! What the reports hold: the page needs nothing else, the log and the JSON document agree with each other.

use std::{fs, process::ExitCode};

use hdrhistogram::serialization::{
    Deserializer,
    interval_log::{IntervalLogIterator, LogEntry},
};

use berth_perf::decode::Rate;

use crate::common::{run, try_run};

#[test]
fn the_page_is_self_contained_and_the_log_has_every_latency() {
    let dir = tempfile::tempdir().unwrap();
    let (html, hlog) = (dir.path().join("page.html"), dir.path().join("log.hlog"));
    let (code, report) = run(&format!(
        "--port loopback --duration 0.3 --interval 20 --payload 8,64 --html {} --hlog {}",
        html.display(),
        hlog.display()
    ));
    assert_eq!((code, report.cases.len(), report.schema_version), (ExitCode::SUCCESS, 2, 1));

    let page = fs::read_to_string(html).unwrap();
    for outside in ["http:", "https:", "src=", "<script", "<link", "url(", "@import", "href="] {
        assert!(!page.contains(outside), "{outside}");
    }
    // One chart of percentiles, two over time for each case.
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (5, 5));
    assert!(!page.contains("NaN") && !page.contains("inf"));
    for case in &report.cases {
        assert!(page.contains(&case.name));
    }

    let log = fs::read(hlog).unwrap();
    let mut recorded = [0; 2];
    let mut deserializer = Deserializer::new();
    for entry in IntervalLogIterator::new(&log) {
        let LogEntry::Interval(interval) = entry.unwrap() else { continue };
        let (case, function) = interval.tag().unwrap().as_str().split_once('.').unwrap();
        if function == "rpc_increment" {
            let bytes = base64(interval.encoded_histogram());
            let histogram: hdrhistogram::Histogram<u64> = deserializer.deserialize(&mut &bytes[..]).unwrap();
            recorded[case.parse::<usize>().unwrap() - 1] += histogram.len();
        }
    }
    assert_eq!(recorded.to_vec(), report.cases.iter().map(|case| case.latency.n).collect::<Vec<_>>());
    for case in &report.cases {
        assert_eq!(case.timeline.iter().map(|point| point.answered).sum::<u64>(), case.counts.answered);
        assert!(case.spectrum.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!(case.spectrum.last().unwrap().1, case.latency.max);
        assert!(case.hiccups.polls > case.counts.answered);
    }
}

/// However often the shots are asked, their rate of logical errors rests on each of them once.
#[test]
fn the_rate_of_logical_errors_is_that_of_the_shots() {
    let dir = tempfile::tempdir().unwrap();
    let html = dir.path().join("page.html");
    let run = |count: u32| {
        let shots = concat!(env!("CARGO_MANIFEST_DIR"), "/data/surface_d5_p5e-3");
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/decoders/surface_d5_p5e-3.dem");
        let html = html.display();
        run(&format!(
            "--port loopback --count {count} --window 8 --function qec_decode --shots {shots} --model {model} --html {html}"
        ))
    };
    let (code, report) = run(20_000);
    assert_eq!((code, report.cases[0].shots), (ExitCode::SUCCESS, Some(10_000)));
    assert_eq!(report.cases[0].logical_errors(), Some(Rate { errors: 110, shots: 10_000 }));
    let page = fs::read_to_string(&html).unwrap();
    let row = "<td>10\u{202f}000</td><td>1.100 %</td><td>0.914 to 1.324 %</td>";
    assert!(page.contains("<h2>Accuracy and latency</h2>") && page.contains(row), "{page}");
    assert_eq!((page.matches("<svg").count(), page.matches("</svg>").count()), (4, 4));
    assert!(!page.contains("NaN") && !page.contains("inf"));
    // Fewer than there are shots.
    assert_eq!(run(500).1.cases[0].logical_errors().map(|rate| rate.shots), Some(500));
}

/// Standard base64 with padding, as the log has it.
fn base64(text: &str) -> Vec<u8> {
    let value = |byte| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u32> = text.bytes().filter(|byte| *byte != b'=').map(|byte| u32::from(value(byte))).collect();
    let bytes = digits.chunks(4).flat_map(|chunk| {
        let word = chunk.iter().fold(0, |word, digit| word << 6 | digit) << (6 * (4 - chunk.len()));
        word.to_be_bytes()[1..chunk.len()].to_vec()
    });
    bytes.collect()
}

#[test]
fn mistakes_on_the_command_line_say_what_would_be_right() {
    for (args, expected) in [
        ("--port loopback --function qec_decode", "qec_decode needs --shots PREFIX"),
        ("--port loopback --function mock_decode", "mock_decode needs --syndromes FILE"),
        ("--port loopback --echo", "--echo is for baseline servers"),
        ("--port loopback --cpu 4095", "cpu 4095 does not exist"),
        ("--port udp --bind 127.0.0.1:0 --payload 70000", "choose a smaller --payload"),
    ] {
        let error = try_run(args).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{args}: {error:#}");
    }
}
