//! `berth perf suite`, `compare` and `report` as their users call them.

use std::{
    fs, io,
    path::Path,
    process::{Command, Output},
    sync::{Mutex, PoisonError},
};

use berth::config::{self, Host};
use berth_perf::report;

fn perf(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("perf").args(args).output().unwrap()
}

/// Suites take the first and the last CPU: one at a time.
static CPUS: Mutex<()> = Mutex::new(());

fn suite(name: &str, out: &Path, more: &[&str]) -> Output {
    let _mine = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    perf(&[&["suite", name, "--out", at(out)], more].concat())
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn at(folder: &Path) -> &str {
    folder.to_str().unwrap()
}

/// Every configuration of every suite, as it would be run.
#[test]
fn configurations_of_suites_are_valid() {
    // Of streams the model itself: the rounds of their decoders must be such as it has.
    let model = |path: &Path| {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf/data");
        let known = fs::read_to_string(data.join(path.file_name().unwrap_or_default()));
        Ok::<_, io::Error>(known.unwrap_or("detector(0) D0\nerror(0.1) D0 L0\n".to_string()))
    };
    let host = Host { cpus: vec![0, 1], has_feature: |_| true, is_file: |_| true, is_public: |_| false, read: model };
    let suites = berth_perf::suite::built_in().unwrap().suites;
    for (name, suite) in suites {
        for server in suite.server {
            let filled = [("{server_cpu}", "1"), ("{run}", "/tmp/x"), ("{rdma_device}", "mlx5_0")];
            let key = ("{key}", "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29");
            let config =
                filled.iter().chain([&key]).fold(server.config, |text, (name, value)| text.replace(name, value));
            let mistakes = config::parse(&config, Path::new("c.toml"), &host).err().unwrap_or_default();
            assert!(mistakes.is_empty(), "{name}, {}: {}", server.name, mistakes[0]);
        }
    }
}

#[test]
fn smoke_passes_and_its_report_can_be_read() {
    let out = tempfile::tempdir().unwrap();
    let output = suite("smoke", out.path(), &["--turns", "1"]);
    assert!(output.status.success(), "{}", text(&output));
    let report = report::read(out.path()).unwrap();
    let suite = report.suite.as_ref().unwrap();
    assert!(suite.seconds < 60.0 && suite.verdicts.iter().all(|verdict| verdict.passed));
    // What this host cannot do is named, and nothing else is left out.
    let names: Vec<_> = report.cases.iter().map(|case| case.name.as_str()).collect();
    let suites = berth_perf::suite::built_in().unwrap().suites;
    for case in &suites.iter().find(|(name, _)| name == "smoke").unwrap().1.case {
        let missing = suite.missing.iter().any(|missing| missing.what == case.name);
        assert!(missing || names.contains(&case.name.as_str()), "{}", case.name);
    }
    for case in &report.cases {
        assert_eq!((case.turns.len(), case.histogram.count()), (1, case.counts.answered), "{}", case.name);
    }
    let files: Vec<_> = fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let count =
        |extension| files.iter().filter(|file| file.extension().is_some_and(|found| found == extension)).count();
    assert_eq!((count("hlog"), count("hgrm"), count("html")), (names.len(), names.len(), 1));
}

/// A suite file of one's own, twice: the same report has no regression, and a slower one has.
#[test]
fn reports_are_compared_and_shown_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.toml");
    let case = "about = \"x\"\nturns = 6\nseconds = 0.1\nwarmup = 0\n[[case]]\nname = \"a\"\nclient = \"rpc --port loopback --timeout 5000\"\n";
    fs::write(&own, case).unwrap();
    let (a, b) = (folder.path().join("a"), folder.path().join("b"));
    let output = suite(at(&own), &a, &[]);
    assert!(output.status.success(), "{}", text(&output));

    let mut slower = report::read(&a).unwrap();
    // A host that stalls makes turns differ by more than a factor of two: here they are all as the first was.
    let first = slower.cases[0].turns[0].histogram.clone();
    for turn in &mut slower.cases[0].turns {
        let pairs = first.pairs().iter().map(|(value, count)| format!("{}:{count}", value * 2)).collect::<Vec<_>>();
        turn.histogram = pairs.join(" ").parse().unwrap();
        // Whatever mood the cores were in, it is one.
        (turn.bounce_before, turn.bounce_after) = (None, None);
    }
    fs::create_dir(&b).unwrap();
    fs::write(b.join("report.json"), serde_json::to_string(&slower).unwrap()).unwrap();
    let mut alike = report::read(&a).unwrap();
    for turn in &mut alike.cases[0].turns {
        turn.histogram = first.clone();
        (turn.bounce_before, turn.bounce_after) = (None, None);
    }
    fs::write(a.join("report.json"), serde_json::to_string(&alike).unwrap()).unwrap();

    let same = perf(&["compare", at(&a), at(&a)]);
    assert_eq!(same.status.code(), Some(0), "{}", text(&same));
    assert_eq!(text(&same).matches("no difference seen").count(), 4, "{}", text(&same));
    let worse = perf(&["compare", at(&a), at(&b)]);
    assert_eq!(worse.status.code(), Some(1), "{}", text(&worse));
    assert!(text(&worse).contains("slower: REGRESSION"), "{}", text(&worse));
    let better = perf(&["compare", at(&b), at(&a), "--json"]);
    assert_eq!(better.status.code(), Some(0));
    assert!(text(&better).contains("\"faster\""));
    alike.environment.kernel = Some("0.0".into());
    fs::write(b.join("report.json"), serde_json::to_string(&alike).unwrap()).unwrap();
    let elsewhere = perf(&["compare", at(&a), at(&b)]);
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(text(&elsewhere).contains("not comparable: different kernels"), "{}", text(&elsewhere));

    let page = folder.path().join("page.html");
    assert!(perf(&["report", at(&a), at(&b), "--html", at(&page)]).status.success());
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("a, b side by side") && page.contains("class=\"differs\"") && !page.contains("NaN"));
}

/// The built-in suites with less time: what they judge about a host is not asked here, what they write is.
#[test]
fn overload_and_soak_keep_their_books() {
    let folder = tempfile::tempdir().unwrap();
    let (_, overload) = berth_perf::suite::SUITES.iter().find(|(name, _)| *name == "overload.toml").unwrap();
    let short = overload
        .replace("seconds = 1.5", "seconds = 1.0")
        .replace("0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0", "0.5, 2.0");
    let file = folder.path().join("short.toml");
    fs::write(&file, short).unwrap();
    let output = suite(at(&file), folder.path(), &["--turns", "1"]);
    let facts = report::read(folder.path()).unwrap_or_else(|_| panic!("{}", text(&output))).suite.unwrap();
    let steps: Vec<_> = facts.overload.unwrap().steps.iter().map(|step| step.load).collect();
    assert_eq!(steps, [0.5, 2.0]);
    let held = |facts: &[report::suite::Verdict], what: &str| {
        let verdict = facts.iter().find(|verdict| verdict.what == what).unwrap_or_else(|| panic!("{facts:?}"));
        assert!(verdict.passed, "{verdict:?}");
    };
    held(&facts.verdicts, "the books of turn 1 add up");
    held(&facts.verdicts, "every answer is right");

    if cfg!(feature = "dpdk") {
        let output = suite("soak", folder.path(), &["--duration", "4"]);
        let facts = report::read(folder.path()).unwrap_or_else(|_| panic!("{}", text(&output))).suite.unwrap();
        let soak = facts.soak.unwrap();
        assert_eq!((soak.loads.len(), soak.books.len()), (7, 3));
        assert!(soak.samples.iter().all(|sample| sample.rss_kib > 1000 && sample.descriptors > 3));
        for what in [
            "the books add up",
            "every answer is right",
            "no request is lost or doubled",
            "sessions of HIP Remote leave nothing",
        ] {
            held(&facts.verdicts, what);
        }
    }
}

/// A stream in a suite of one's own, twice: each turn has its backlog, and the report says what a core sustains.
#[test]
fn streams_are_cases_with_their_backlog() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.toml");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../perf/data/surface_d7x29.dem");
    let case = |name: &str, rate: u32| {
        format!(
            "[[case]]\nname = \"{name}\"\ndistance = 7\nclient = \"stream --port loopback --model {model} --window-rounds 14 --commit 6 \
             --count 1002 --rate {rate} --timeout 5000\"\n"
        )
    };
    // No core is as fast as the second.
    let both = [case("a", 10_000), case("b", 1_000_000_000)].concat();
    fs::write(&own, format!("about = \"x\"\nturns = 2\n{both}")).unwrap();
    let output = suite(at(&own), folder.path(), &[]);
    assert!(output.status.success(), "{}", text(&output));
    let report = report::read(folder.path()).unwrap();
    for case in &report.cases {
        assert_eq!((case.streams.len(), case.turns.len(), case.distance), (2, 2, Some(7)), "{}", case.name);
        assert_eq!((case.latency.n, case.counts.answered), (2 * 1002, 2 * 1022), "{}", case.name);
        assert!(case.streams.iter().all(|stream| stream.parts.len() == 20 && stream.corrections_right == 20));
    }
    let said = "a round each 0.0 us: a core sustains no distance, of 7";
    assert!(text(&output).contains(said), "{}", text(&output));
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    for said in
        ["<h3>A round each 100.00 µs</h3>", "<h3>A round each 1 ns</h3>\n<p>a core sustains no distance, of 7</p>"]
    {
        assert!(page.contains(said), "{said}: {page}");
    }
}

/// Streams and the codes that are no surface codes, of the built-in suite with less time.
#[cfg(feature = "dpdk")]
#[test]
fn qec_streams_at_fixed_rounds_and_decodes_every_code() {
    let folder = tempfile::tempdir().unwrap();
    let (_, qec) = berth_perf::suite::SUITES.iter().find(|(name, _)| *name == "qec.toml").unwrap();
    let wanted = |block: &&str| {
        !block.starts_with("case]]") || ["stream", "colour", "bicycle"].iter().any(|word| block.contains(word))
    };
    let short: Vec<_> = qec.split("\n[[").filter(wanted).collect();
    let file = folder.path().join("short.toml");
    fs::write(&file, short.join("\n[[").replace("seconds = 0.4", "seconds = 0.1")).unwrap();
    let output = suite(at(&file), folder.path(), &["--turns", "1"]);
    assert!(output.status.success(), "{}", text(&output));
    let report = report::read(folder.path()).unwrap();
    let (streams, codes): (Vec<_>, Vec<_>) = report.cases.iter().partition(|case| !case.streams.is_empty());
    let rounds: Vec<_> = streams
        .iter()
        .map(|case| (case.distance.unwrap(), case.streams[0].offered_ns.unwrap().round(), case.streams[0].rounds))
        .collect();
    let all = |ns, rounds| [3, 5, 7, 9].map(|distance| (distance, ns, rounds));
    assert_eq!(rounds, [all(1100.0, 100_014), all(1e6, 510)].concat());
    for case in streams {
        assert_eq!((case.streams[0].corrections_right, case.counts.wrong), (20, 0), "{}", case.name);
    }
    assert_eq!(codes.len(), 8);
    for case in codes {
        // Flips that are anything else than those of the shots would be wrong about every other time.
        let rate = case.logical_errors().unwrap();
        assert!(rate.shots > 10 && rate.share() < 0.1, "{}: {rate:?}", case.name);
        assert_eq!(case.counts.compared(), 0, "{}: nothing decodes its shots but us", case.name);
    }
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    for told in ["<h3>A round each 1.10 µs</h3>", "<h3>A round each 1.00 ms</h3>", "bicycle_144 bp_osd, p99.99: "] {
        assert!(page.contains(told), "{told}");
    }
    assert_eq!(page.matches(", of 3, 5, 7, 9</p>").count(), 2, "what a core sustains is said of both");
    assert!(
        !page.contains("<h2>Throughput and latency</h2>"),
        "decoders that are asked alike differ in more than their pacing"
    );
}

#[test]
fn mistakes_are_told_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let suite = folder.path().join("own.toml");
    fs::write(&suite, "about = \"x\"\n[[case]]\nname = \"a\"\nclient = \"rpc --prot loopback\"\n").unwrap();
    let output = perf(&["suite", at(&suite), "--out", at(&folder.path().join("out"))]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("own.toml:4:10: case[0].client: `berth perf` says: "), "{}", text(&output));
    let output = perf(&["suite", "frobnicate"]);
    assert!(
        text(&output).contains("built in are smoke, rpc, lease, nvme, hip, qec, overload, soak"),
        "{}",
        text(&output)
    );
    fs::write(&suite, "{\"schema_version\": 1}").unwrap();
    let output = perf(&["compare", at(&suite), at(&suite)]);
    assert!(text(&output).contains("own.toml is no report of `berth perf`: missing field"), "{}", text(&output));
}
