//! `berth decode`: files of Stim's shots through the decoders, and the choice of one.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

fn decode(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("decode").args(args).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = decode(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = decode(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn file(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path).display().to_string()
}

fn model(name: &str) -> String {
    file(&format!("config/decoders/{name}.dem"))
}

/// The detection events, the observables and `PyMatching`'s predictions of them, as `perf/data/make_shots.py` wrote them.
fn shots(name: &str) -> [String; 3] {
    ["dets", "obs", "pymatching"].map(|kind| file(&format!("perf/data/{name}.{kind}.b8")))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The value of a line.
fn value<'a>(printed: &'a str, name: &str) -> &'a str {
    let line = printed.lines().find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name} in {printed}")).trim()
}

#[test]
fn confidences_tell_predictions_that_are_wrong() {
    let folder = TempDir::new().unwrap();
    let [events, observables, _] = shots("surface_d5_p5e-3");
    let model = model("surface_d5_p5e-3");
    let mut all = Vec::new();
    for threads in ["1", "3"] {
        let [gaps, flips] = ["gaps", "flips.b8"].map(|name| folder.path().join(name));
        let whole = ["--model", &model, "--shots", &events, "--threads", threads];
        printed(&[&whole[..], &["--confidence-out", text(&gaps), "--obs-out", text(&flips)]].concat());
        let gaps = fs::read(gaps).unwrap();
        let gaps: Vec<f32> = gaps.as_chunks().0.iter().map(|gap| f32::from_le_bytes(*gap)).collect();
        let (found, wanted) = (fs::read(flips).unwrap(), fs::read(&observables).unwrap());
        let wrong = |at: &usize| found[*at] != wanted[*at];
        assert_eq!((gaps.len(), (0..10_000).filter(wrong).count()), (10_000, 110));
        assert!(gaps.iter().all(|gap| *gap >= 0.0 && *gap < 1000.0));
        let small = |at: &usize| gaps[*at] < 4.0;
        let (small, both) =
            ((0..10_000).filter(small).count(), (0..10_000).filter(|at| small(at) && wrong(at)).count());
        assert!(small < 1000 && both > 88, "{both} of {small}");
        all.push(gaps);
    }
    assert_eq!(all[0], all[1], "whatever the number of threads");
    let out = folder.path().join("none");
    let message =
        refused(&["--model", &model, "--shots", &events, "--algorithm", "lut", "--confidence-out", text(&out)]);
    assert!(
        message.contains("lut has no confidence: only mwpm finds the lightest answer with other flips"),
        "{message}"
    );
    assert!(!out.exists());
}

#[test]
fn predictions_are_those_of_pymatching_whatever_the_number_of_threads() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out.b8");
    for (name, errors) in [("surface_d3", "164"), ("surface_d5", "110"), ("surface_d7", "66")] {
        let [events, observables, pymatching] = shots(&format!("{name}_p5e-3"));
        for threads in ["1", "3"] {
            let printed = printed(&[
                "--model",
                &model(&format!("{name}_p5e-3")),
                "--shots",
                &events,
                "--obs-out",
                text(&out),
                "--compare",
                &observables,
                "--threads",
                threads,
            ]);
            assert_eq!(fs::read(&out).unwrap(), fs::read(&pymatching).unwrap(), "{name}, {threads} threads");
            assert_eq!(value(&printed, "logical_errors"), errors);
            assert_eq!(value(&printed, "unanswered"), "0");
        }
    }
}

#[test]
fn what_differs_from_a_reference_is_counted_with_its_interval() {
    let [events, observables, pymatching] = shots("surface_d5_p5e-3");
    let model = model("surface_d5_p5e-3");
    let against = |reference: &str, algorithm: &str| {
        printed(&["--model", &model, "--shots", &events, "--compare", reference, "--algorithm", algorithm, "--json"])
    };
    let result: serde_json::Value = serde_json::from_str(&against(&observables, "mwpm")).unwrap();
    assert_eq!((&result["shots"], &result["logical_errors"]), (&10_000.into(), &110.into()));
    // Wilson's interval of 110 of 10,000.
    assert_eq!(result["logical_error_rate"], 0.011);
    assert_eq!(result["interval_95"], serde_json::json!([0.009_135, 0.013_24]));
    let result: serde_json::Value = serde_json::from_str(&against(&pymatching, "mwpm")).unwrap();
    assert_eq!(result["logical_errors"], 0);
    let result: serde_json::Value = serde_json::from_str(&against(&observables, "lut")).unwrap();
    assert!(result["logical_errors"].as_u64().unwrap() > 1000, "a table of single errors is no match: {result}");
}

/// Every format, read and written; 9,984 shots, since `ptb64` holds multiples of 64.
#[test]
fn formats_are_those_that_suffixes_or_options_name() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [events, _, pymatching] = shots("surface_d3_p5e-3");
    let model = model("surface_d3_p5e-3");
    let (events, expected) = (fs::read(events).unwrap(), fs::read(pymatching).unwrap());
    let (events, expected) = (&events[..9984 * 3], &expected[..9984]);
    fs::write(at("in.b8"), events).unwrap();
    let row = |shot: usize| (0..24).map(move |bit| events[3 * shot + bit / 8] >> (bit % 8) & 1 == 1);
    let mut files = [("in.01", Vec::new()), ("in.dets", Vec::new()), ("in.r8", Vec::new())];
    for shot in 0..9984 {
        files[0].1.extend(row(shot).map(|bit| b'0' + u8::from(bit)).chain([b'\n']));
        let names: Vec<_> = row(shot).zip(0..).filter(|(bit, _)| *bit).map(|(_, at)| format!(" D{at}")).collect();
        files[1].1.extend(format!("shot{}\n", names.concat()).into_bytes());
        let mut unset = 0;
        for bit in row(shot).chain([true]) {
            if bit {
                files[2].1.push(unset);
            }
            unset = if bit { 0 } else { unset + 1 };
        }
    }
    let mut ptb64 = vec![0; events.len()];
    for (shot, bit) in (0..9984).flat_map(|shot| (0..24).map(move |bit| (shot, bit))) {
        let set = events[3 * shot + bit / 8] >> (bit % 8) & 1;
        ptb64[shot / 64 * 24 * 8 + bit * 8 + shot % 64 / 8] |= set << (shot % 8);
    }
    let files: Vec<_> = files.into_iter().chain([("in.ptb64", ptb64), ("in.b8", events.to_vec())]).collect();
    for (name, bytes) in files {
        fs::write(at(name), bytes).unwrap();
        fs::remove_file(at("out.b8")).unwrap_or_default();
        printed(&["--model", &model, "--shots", text(&at(name)), "--obs-out", text(&at("out.b8"))]);
        assert_eq!(fs::read(at("out.b8")).unwrap(), expected, "{name}");
    }
    for format in ["01", "b8", "r8", "dets", "ptb64"] {
        let (input, out, bare) = (at("in.b8"), at(&format!("out.{format}")), at("out"));
        let args = ["--model", &model, "--shots", text(&input), "--obs-out"];
        printed(&[&args[..], &[text(&out)]].concat());
        // What was written is read, and is the same.
        let compared = printed(&[&args[..], &[text(&at("again.b8")), "--compare", text(&out)]].concat());
        assert_eq!(value(&compared, "logical_errors"), "0", "{format}");
        printed(&[&args[..], &[text(&bare), "--out-format", format]].concat());
        assert_eq!(fs::read(&bare).unwrap(), fs::read(&out).unwrap(), "{format}");
    }
    let first =
        |name: &str| fs::read_to_string(at(name)).unwrap().lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    let flipped = |flips: &u8| if *flips == 1 { ["1", "shot L0"] } else { ["0", "shot"] };
    let wanted: Vec<_> = expected[..2].iter().map(flipped).collect();
    assert_eq!(first("out.01"), [wanted[0][0], wanted[1][0]]);
    assert_eq!(first("out.dets"), [wanted[0][1], wanted[1][1]]);
}

#[test]
fn mistakes_are_told_with_their_place() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [events, _, _] = shots("surface_d5_p5e-3");
    let (d3, d5) = (model("surface_d3"), model("surface_d5"));
    let says = |args: &[&str], what: &str| {
        let said = refused(args);
        assert!(said.contains(what), "{args:?}: {said}");
    };
    // The predictions before a shot that is cut off are there.
    fs::write(at("cut.b8"), &fs::read(&events).unwrap()[..15 * 7000 + 4]).unwrap();
    let out = at("out.b8");
    for threads in ["1", "2"] {
        says(
            &["--model", &d5, "--shots", text(&at("cut.b8")), "--obs-out", text(&out), "--threads", threads],
            "cut.b8: shot 7000, from byte 105000: the file ends after 4 of its 15 bytes for 120 detectors",
        );
        assert_eq!(fs::read(&out).unwrap().len(), 7000);
    }
    fs::write(at("other.01"), "0".repeat(120) + "\n").unwrap();
    says(
        &["--model", &d3, "--shots", text(&at("other.01"))],
        "other.01: shot 0, from byte 0: its line has more than 24 characters; the model has 24 detectors",
    );
    fs::write(at("short.b8"), [0; 9_999]).unwrap();
    says(&["--model", &d5, "--shots", &events, "--compare", text(&at("short.b8"))], "short.b8 has 9999 shots; ");
    fs::write(at("long.b8"), [0; 10_001]).unwrap();
    says(
        &["--model", &d5, "--shots", &events, "--compare", text(&at("long.b8"))],
        "long.b8 has more shots than the 10000 of ",
    );
    says(
        &["--model", &d3, "--shots", "shots.bin"],
        "its suffix names none of the formats 01, b8, r8, dets and ptb64; give --in-format",
    );
    says(&["--model", "nowhere.dem", "--shots", &events], "there is no file nowhere.dem");
    says(&["--model", &d5, "--shots", "nowhere.b8"], "nowhere.b8: No such file");
    says(&["--model", &d5, "--shots", &events, "--algorithm", "mwmp"], "algorithm: ");
    says(&["--model", &d5, "--shots", &events, "--set", "depth=2"], "depth: ");
    says(&["--model", &d5, "--shots", &events, "--algorithm", "lut", "--set", "depth=9"], "depth: ");
    says(
        &["--model", &d5, "--shots", &events, "--obs-out", text(&at("o.ptb64"))],
        "ptb64 holds multiples of 64 shots, not 10000; choose another format",
    );
    fs::write(at("blind.dem"), "error(0.1) D0\n").unwrap();
    says(&["--model", text(&at("blind.dem")), "--shots", &events], "the model has no observables");
    let usage = decode(&["--model", &d5]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("--shots"));
}

/// What sinter 1.16 reads: `sinter.read_stats_from_csv_files`.
#[test]
fn results_are_written_as_sinter_has_them() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let [events, observables, _] = shots("surface_d5_p5e-3");
    let csv = |name: &str, more: &[&str]| {
        let model = model("surface_d5_p5e-3");
        let args = ["--model", &model, "--shots", &events, "--compare", &observables, "--sinter-out"];
        printed(&[&args[..], &[text(&at(name))], more].concat());
        fs::read_to_string(at(name)).unwrap()
    };
    let one = csv("one.csv", &[]);
    let (head, result) = one.split_once('\n').unwrap();
    assert_eq!(head, "     shots,    errors,  discards, seconds,decoder,strong_id,json_metadata,custom_counts");
    let cells: Vec<_> = result.trim_end().splitn(7, ',').collect();
    assert_eq!(cells[..3], ["     10000", "       110", "         0"]);
    assert!(cells[3].trim().parse::<f64>().unwrap() >= 0.0);
    assert_eq!(cells[4], "berth:mwpm");
    assert!(cells[5].len() == 64 && cells[5].bytes().all(|digit| digit.is_ascii_hexdigit()), "{}", cells[5]);
    assert_eq!(cells[6], "\"{\"\"model\"\":\"\"surface_d5_p5e-3\"\"}\",");
    // Another algorithm or another experiment is another id.
    let id = |csv: &str| csv.lines().nth(1).unwrap().split(',').nth(5).unwrap().to_owned();
    assert_eq!(id(&csv("again.csv", &[])), id(&one));
    let described = csv("two.csv", &["--metadata", "{\"d\": 5}"]);
    assert!(described.trim_end().ends_with(",\"{\"\"d\"\":5}\","), "{described}");
    assert_ne!(id(&described), id(&one));
    assert_ne!(id(&csv("lut.csv", &["--algorithm", "lut"])), id(&one));
}

/// With ten seconds for a shot every algorithm is in time, so that errors alone decide, and those are the same everywhere.
#[test]
fn tune_prints_the_most_accurate_decoder_within_the_deadline() {
    let folder = TempDir::new().unwrap();
    let tune = |model: &str, deadline: &str| {
        decode(&["tune", "--model", model, "--deadline", deadline, "--shots", "3000", "--seed", "5"])
    };
    let d3 = model("surface_d3_p5e-3");
    let output = tune(&d3, "10s");
    let (decoder, tried) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{tried}");
    // Every algorithm of the configuration was tried, and nothing has fewer errors than what was chosen.
    let errors = |line: &str| -> u64 {
        let (before, _) = line.split_once(" of 3000: ").unwrap_or_else(|| panic!("{line}"));
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let lines: Vec<_> = tried.lines().skip(1).collect();
    for word in ["mwpm", "lut", "relay_bp"] {
        assert!(lines.iter().any(|line| line.starts_with(word)), "{tried}");
    }
    let chosen: Vec<_> = lines.iter().filter(|line| line.ends_with("  chosen")).collect();
    assert_eq!(chosen.len(), 1, "{tried}");
    let least = lines.iter().filter(|line| line.contains(" of 3000: ")).map(|line| errors(line)).min().unwrap();
    assert_eq!(errors(chosen[0]), least, "{tried}");
    let worst = lines.iter().find(|line| line.starts_with("lut  ")).map(|line| errors(line)).unwrap();
    assert!(worst > 2 * least, "single errors are not enough: {tried}");
    // What was printed is part of a configuration.
    assert!(
        decoder.starts_with("# For functions with budget_us = 10000000.\n[[decoder]]\nname = \"surface_d3_p5e-3\"\n")
    );
    let config = folder.path().join("berth.toml");
    let port = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\n[[function]]\nname = \"qec_decode\"\n\
                handler = \"builtin:qec_decode\"\ndecoder = \"surface_d3_p5e-3\"\nbudget_us = 10000000\n";
    fs::write(&config, format!("{port}{decoder}")).unwrap();
    let check = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(&config).output().unwrap();
    assert!(check.status.success(), "{decoder}{}", String::from_utf8_lossy(&check.stderr));

    // Nothing answers in a nanosecond.
    let output = tune(&d3, "1ns");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
    assert!(said.contains("no algorithm answers 999 of 1000 shots of ") && said.contains("within 1ns"), "{said}");
    let bad = folder.path().join("bad.dem");
    fs::write(&bad, "error(0.1) D0 Q1\n").unwrap();
    let said = String::from_utf8(tune(text(&bad), "10us").stderr).unwrap();
    assert!(said.contains("no algorithm takes this model: ") && said.contains("bad.dem:1:"), "{said}");
    let said = String::from_utf8(tune(&d3, "10").stderr).unwrap();
    assert!(said.contains("\"10\" has none of the units ns, us, ms and s"), "{said}");
}
