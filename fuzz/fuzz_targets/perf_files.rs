#![no_main]
//! Reports, suites and baselines: any text gives one of them or an error; a report that is read can be shown and compared.

use std::path::Path;

use berth_perf::{
    compare, report,
    suite::{Baseline, Suite},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(report) = report::parse(text) {
        report::html::render(&[("a", &report), ("b", &report)]);
        compare::compare(&report, &report, 0.05, 3);
    }
    let lines = text.matches('\n').count() + 1;
    let suite = Suite::parse(Path::new("s.toml"), text).map(drop);
    for mistakes in [suite, Baseline::parse(Path::new("b.toml"), text).map(drop)].into_iter().filter_map(Result::err) {
        assert!(mistakes.0.iter().all(|mistake| (1..=lines).contains(&mistake.line) && mistake.column > 0));
    }
});
