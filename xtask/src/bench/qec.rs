//! Decoders beside those of others, on the same shots and one core each: `cargo xtask bench qec`.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    Pair, Reach, Row, in_turn, median,
    programs::{CPU, lines, number},
};
use crate::{
    build, setup,
    sh::{cmd, output, run},
};

/// How much is measured.
pub(super) struct Scale {
    /// Turns of each side; six are the fewest that tell an interval.
    turns: usize,
    /// Sets of `perf/data/make_shots.py`: the distances, with fewer shots where each takes long.
    sets: &'static [&'static str],
    /// The distances that are decoded in two passes, too.
    correlated: &'static [&'static str],
    /// The set of the longest decodes, and how often each of its shots is decoded.
    tail: [&'static str; 2],
    /// Where they are made, `-shots` and `-tail`.
    folder: &'static str,
    /// Shots of each model for belief propagation.
    propagated: &'static str,
    /// Experiments that windows decode.
    experiments: &'static str,
    /// The shortest experiments that windows decode at d = 31.
    long: &'static str,
    /// Random graphs whose weights are compared.
    graphs: &'static str,
}

pub(super) const WHOLE: Scale = Scale {
    turns: 6,
    sets: &["3", "5", "7", "9", "11", "13", "17", "21:300", "25:300", "31:300@1e-3"],
    correlated: &["7", "11"],
    tail: ["11:100000@5e-3", "10"],
    folder: "target/bench/qec",
    propagated: "300",
    experiments: "1000",
    long: "100",
    graphs: "1000000",
};

/// Whether everything runs, in a minute or two; its figures mean nothing.
pub(super) const QUICK: Scale = Scale {
    turns: 1,
    sets: &["3:100", "5:100", "13:20@5e-3", "31:20@1e-3"],
    correlated: &["5"],
    tail: ["11:100@5e-3", "1"],
    folder: "target/bench/qec-quick",
    propagated: "10",
    experiments: "10",
    long: "1",
    graphs: "2000",
};

pub(super) fn rows(scale: &Scale) -> Result<Vec<Row>> {
    let &Scale { turns, sets, correlated: both, tail: [longest, times], folder, propagated, experiments, long, graphs } =
        scale;
    let python = setup::python()?.to_string_lossy().into_owned();
    let [shots, tail_shots] = ["shots", "tail"].map(|what| format!("{folder}-{what}"));
    make(&python, &shots, sets)?;
    make(&python, &tail_shots, &[longest])?;
    let decode = build::example("berth-qec", "decode_bench")?;
    let mut rows = vec![weights(graphs, &python)?];
    let singles = Sides { ours: vec![decode.clone()], theirs: vec![singles()?] };
    let sides = Sides { ours: vec![decode], theirs: vec![python, "perf/baselines/pymatching_decode.py".into()] };
    let distances: Vec<_> = sets.iter().map(|set| distance(set)).collect();
    let all = [&["1", &shots], &distances[..]].concat();
    let of_sets = sides.turns(turns, &all)?;
    for (single, ((distance, p), turns)) in singles.turns(1, &all)?.values().zip(&of_sets) {
        rows.push(matching(*distance, *p, turns, theirs(single, "p50_ns")?)?);
    }
    for ((distance, p), turns) in sides.turns(turns, &[&["--correlated", "1", &shots], both].concat())? {
        rows.push(correlated(distance, p, &turns)?);
    }
    if let Some(turns) = of_sets.get(&(13, 5)) {
        rows.extend(built(turns)?);
    }
    let longest = [times, &tail_shots, distance(longest)];
    let within =
        lines(&output(&mut pinned(&singles.ours, &[&[&*format!("--budget-us={BUDGET_US}")], &longest[..]].concat()))?)?;
    for (turns, within) in singles.turns(1, &longest)?.values().zip(&within) {
        rows.extend(tail(turns, within)?);
    }
    for (other, python) in [(&RELAY, setup::relay()?), (&LDPC, setup::ldpc()?)] {
        rows.extend(beside(other, &python.to_string_lossy(), turns, propagated)?);
    }
    rows.extend(windows(turns, experiments)?);
    rows.extend(lengths(turns, long, &format!("{shots}/surface_d31.dem"))?);
    Ok(rows)
}

/// The distance of a set: 31 of `31:300@1e-3`.
fn distance(set: &str) -> &str {
    set.split([':', '@']).next().unwrap_or(set)
}

/// Makes the sets that are not there yet.
fn make(python: &str, folder: &str, sets: &[&str]) -> Result<()> {
    let last = |set: &str| {
        let noise = set.split_once('@').map_or("1e-2", |(_, noise)| noise);
        Path::new(folder).join(format!("surface_d{}_p{noise}.correlated.b8", distance(set)))
    };
    let missing: Vec<_> = sets.iter().filter(|set| !last(set).exists()).collect();
    if missing.is_empty() { Ok(()) } else { run(cmd(python, ["perf/data/make_shots.py", folder]).args(missing)) }
}

/// Matchings of random graphs, whose weights are to be `PyMatching`'s but for rounding.
fn weights(graphs: &str, python: &str) -> Result<Row> {
    let mut ours = cmd(&build::example("berth-qec", "random_graphs")?, [graphs]);
    let mut ours = ours.stdout(Stdio::piped()).spawn().context("random_graphs")?;
    let lines = ours.stdout.take().context("it was asked for")?;
    let told = output(cmd(python, ["perf/baselines/pymatching_weights.py"]).stdin(lines));
    ensure!(ours.wait()?.success(), "random_graphs failed");
    let told: Value = serde_json::from_str(&told?)?;
    let (all, differ) = (number(&told, "graphs")?, number(&told, "differ")?);
    Ok(Row {
        case: format!("mwpm, weights of {all} random graphs that are not PyMatching's"),
        baseline: "graphs".into(),
        unit: "graphs",
        reach: Reach::Other("none".into(), differ == 0.0),
        pairs: vec![Pair { state: String::new(), ours: differ, theirs: all }],
    })
}

/// The program of `PyMatching`'s single decodes.
fn singles() -> Result<String> {
    let (source, binary) = ("perf/baselines/pymatching_decode.cc", "target/bench/pymatching_decode");
    let mut compile = cmd("g++", ["-std=c++20", "-O3", "-march=native", "-ffunction-sections", "-Wl,--gc-sections"]);
    for sources in setup::pymatching_sources()? {
        compile.arg("-I").arg(sources);
    }
    run(compile.args(["-o", binary, source]))?;
    Ok(binary.into())
}

/// A program on the core of measurements.
fn pinned(program: &[String], args: &[&str]) -> Command {
    cmd("taskset", ["-c", CPU].into_iter().chain(program.iter().map(String::as_str)).chain(args.iter().copied()))
}

/// What each side printed of a set, in one turn.
type Turn = (Value, Value);

/// Two programs that take the same arguments and print a line for each set.
struct Sides {
    ours: Vec<String>,
    theirs: Vec<String>,
}

impl Sides {
    /// By distance and probability in units of 0.1 %.
    fn turns(&self, turns: usize, args: &[&str]) -> Result<BTreeMap<(u64, u64), Vec<Turn>>> {
        let take = |program: &[String]| lines(&output(&mut pinned(program, args))?);
        let mut sets = BTreeMap::<_, Vec<Turn>>::new();
        for turn in 0..turns {
            let (ours, theirs) = in_turn(turn, || take(&self.ours), || take(&self.theirs))?;
            for line in ours {
                let same = |other: &&Value| other["d"] == line["d"] && other["p"] == line["p"];
                let reference = theirs.iter().find(same).context("PyMatching did not decode this set")?.clone();
                let set = (number(&line, "d")? as u64, (number(&line, "p")? * 1e3).round() as u64);
                sets.entry(set).or_default().push((line, reference));
            }
        }
        Ok(sets)
    }
}

/// The median of a figure of ours.
fn ours(turns: &[Turn], key: &str) -> Result<f64> {
    median_of(turns.iter().map(|(ours, _)| ours), key)
}

/// The median of a figure of theirs.
fn theirs(turns: &[Turn], key: &str) -> Result<f64> {
    median_of(turns.iter().map(|(_, theirs)| theirs), key)
}

fn median_of<'a>(lines: impl Iterator<Item = &'a Value>, key: &str) -> Result<f64> {
    let figures = lines.map(|line| number(line, key)).collect::<Result<Vec<_>>>()?;
    Ok(median(figures.into_iter()))
}

fn pairs(turns: &[Turn], figure: impl Fn(&Value) -> Result<f64>) -> Result<Vec<Pair>> {
    let pair = |(ours, theirs): &Turn| Ok(Pair { state: String::new(), ours: figure(ours)?, theirs: figure(theirs)? });
    turns.iter().map(pair).collect()
}

/// Single shots of ours beside a batch of theirs, which is without the cost of a call from Python for each; `single` is the
/// median of theirs without Python.
fn matching(distance: u64, p: u64, turns: &[Turn], single: f64) -> Result<Row> {
    let (p50, p99, agrees) = (ours(turns, "p50_ns")?, ours(turns, "p99_ns")?, ours(turns, "agreement")?);
    Ok(Row {
        case: format!(
            "mwpm d = {distance}, p = {:.1} %, single shots, mean; p50 {p50:.0} ns, p99 {p99:.0} ns, agrees {:.2} %",
            p as f64 / 10.0,
            100.0 * agrees
        ),
        baseline: format!("PyMatching decode_batch, mean; single shots in C++, p50 {single:.0} ns"),
        unit: "ns",
        reach: Reach::AtMost(if distance <= 9 { 0.5 } else { 1.0 }),
        pairs: pairs(turns, |line| number(line, "mean_ns"))?,
    })
}

/// The same in two passes.
fn correlated(distance: u64, p: u64, turns: &[Turn]) -> Result<Row> {
    let (p50, p99) = (ours(turns, "p50_ns")?, ours(turns, "p99_ns")?);
    let (agrees, shots) = (ours(turns, "agreement")?, ours(turns, "shots")?);
    let [errors, their_errors] = [ours, theirs].map(|of| of(turns, "logical_errors"));
    let (errors, their_errors) = (errors?, their_errors?);
    Ok(Row {
        case: format!(
            "correlated_mwpm d = {distance}, p = {:.1} %, mean; p50 {p50:.0} ns, p99 {p99:.0} ns, agrees {:.2} %, \
             {errors} errors of {shots}",
            p as f64 / 10.0,
            100.0 * agrees
        ),
        baseline: format!("PyMatching decode_batch with correlations, mean; {their_errors} errors"),
        unit: "ns",
        reach: Reach::AtMost(1.0),
        pairs: pairs(turns, |line| number(line, "mean_ns"))?,
    })
}

/// What it takes to have decoders.
fn built(turns: &[Turn]) -> Result<[Row; 2]> {
    let took = ours(turns, "build_ms")?;
    Ok([
        Row {
            case: "build of a decoder, d = 13, p = 0.5 %, from the text of the model".into(),
            baseline: "PyMatching from_detector_error_model_file".into(),
            unit: "ms",
            reach: Reach::Other("< 100 ms".into(), took < 100.0),
            pairs: pairs(turns, |line| number(line, "build_ms"))?,
        },
        Row {
            case: "memory of four decoders of that model, with one copy of its tables".into(),
            baseline: "four of PyMatching, by resident memory".into(),
            unit: "MiB",
            reach: Reach::Printed,
            pairs: pairs(turns, |line| Ok(number(line, "four_kib")? / 1024.0))?,
        },
    ])
}

/// A limit that ends the longest decodes of the tail: `budget_us` of a function.
const BUDGET_US: u64 = 100;

/// How much longer the longest decodes take than most, in the limit of steps that decoders have unless told otherwise, and `within`
/// a lower one. A decode may be longer than its limit by what the host took from it: not each time that the shot is decoded.
fn tail(turns: &[Turn], within: &Value) -> Result<[Row; 2]> {
    let whose = |of: fn(&[Turn], &str) -> Result<f64>| -> Result<String> {
        let [p50, p9999, own] = ["p50_ns", "p9999_ns", "own_p9999_ns"].map(|key| of(turns, key));
        Ok(format!("{:.0} ns / {:.0} ns; p99.99 of the least time of each shot {:.0} ns", p9999?, p50?, own?))
    };
    let over = |line: &Value| -> Result<(String, Reach)> {
        let [budget, over, own] = ["budget_us", "over", "over_own"].map(|key| number(line, key));
        let (budget, over, own) = (budget?, over?, own?);
        let text = format!("more than 2 us over its {budget} us: {over} decodes, {own} shots each time");
        Ok((text, Reach::Other("no shot over it each time".into(), own == 0.0)))
    };
    let (ours_of, theirs_of) = turns.first().context("no turns")?;
    let ((text, reach), (text_within, reach_within)) = (over(ours_of)?, over(within)?);
    let [errors, exhausted] = ["logical_errors", "exhausted"].map(|key| number(within, key));
    let case = "mwpm d = 11, p = 0.5 %, p99.99 / p50 of 10^6 decodes";
    let row = |case, baseline, reach, ours: &Value, theirs: &Value| -> Result<Row> {
        let ratio = |line| Ok::<_, anyhow::Error>(number(line, "p9999_ns")? / number(line, "p50_ns")?);
        let pairs = vec![Pair { state: String::new(), ours: ratio(ours)?, theirs: ratio(theirs)? }];
        Ok(Row { case, baseline, unit: "x", reach, pairs })
    };
    Ok([
        row(
            format!("{case}: {}; {text}", whose(ours)?),
            format!("PyMatching, single shots in C++: {}", whose(theirs)?),
            reach,
            ours_of,
            theirs_of,
        )?,
        row(
            format!(
                "{case}, budget_us = {BUDGET_US}: {text_within}; {} shots by union-find, {} errors",
                exhausted?, errors?
            ),
            format!("without; {} errors", number(ours_of, "logical_errors")?),
            reach_within,
            within,
            ours_of,
        )?,
    ])
}

/// Decoders of others that a script of `perf/baselines` runs on the shots of `relay_bench`. Both print tables.
struct Other {
    /// Their name and version, and the script.
    name: &'static str,
    script: &'static str,
    algorithms: &'static [Compared],
}

/// An algorithm of both.
struct Compared {
    /// What is wanted of theirs.
    wanted: &'static str,
    /// What the script and `relay_bench` call it.
    theirs: &'static str,
    ours: &'static str,
    /// Its parameters, in words.
    parameters: &'static str,
    /// Whether both are to predict the same.
    alike: bool,
}

const RELAY: Other = Other {
    name: "relay-bp 0.2.2",
    script: "perf/baselines/relay_bp_decode.py",
    algorithms: &[
        Compared {
            wanted: "first solution",
            theirs: "1",
            ours: "relay_bp",
            parameters: "8 relays of 4 legs",
            alike: false,
        },
        Compared {
            wanted: "the same strengths",
            theirs: "1, strengths of relay_bench",
            ours: "relay_bp, float64, 1 relay of 60 legs",
            parameters: "predictions alike",
            alike: true,
        },
    ],
};

const LDPC: Other = Other {
    name: "ldpc 2.4.1",
    script: "perf/baselines/ldpc_decode.py",
    algorithms: &[
        Compared {
            wanted: "BpOsdDecoder, its calls from Python included",
            theirs: "serial, order 10",
            ours: "bp_osd",
            parameters: "serial, 60 iterations, OSD-CS of order 10",
            alike: false,
        },
        Compared {
            wanted: "BpLsdDecoder, its calls from Python included",
            theirs: "serial, localized, order 0",
            ours: "bp_osd, localized, order 0",
            parameters: "serial, 60 iterations, LSD-0",
            alike: false,
        },
    ],
};

/// Each algorithm and model that both decode.
fn beside(other: &Other, python: &str, turns: usize, shots: &str) -> Result<Vec<Row>> {
    let bench = build::example("berth-qec", "relay_bench")?;
    let mut models = BTreeMap::<(usize, String), Vec<[Decoded; 2]>>::new();
    for turn in 0..turns {
        let take = |program: &[&str]| {
            let program = ["-c", CPU].iter().chain(program).chain(std::iter::once(&shots));
            output(&mut cmd("taskset", program))
        };
        let theirs = [python, other.script];
        let (ours, theirs) = in_turn(turn, || take(&[&bench]), || take(&theirs))?;
        for (at, algorithm) in other.algorithms.iter().enumerate() {
            let ours = table_of(&ours, algorithm.ours);
            for (model, theirs) in table_of(&theirs, algorithm.theirs) {
                let ours = ours.get(&model).with_context(|| format!("relay_bench has no {model}"))?.clone();
                models.entry((at, model)).or_default().push([ours, theirs]);
            }
        }
    }
    let row = |((at, model), turns): ((usize, String), Vec<[Decoded; 2]>)| {
        let Compared { wanted, ours: algorithm, parameters, alike, .. } = &other.algorithms[at];
        let [ours, theirs] = turns.first().context("no turns")?;
        let differ = *alike && ours.predictions != theirs.predictions;
        let pair = |[ours, theirs]: &[Decoded; 2]| Pair { state: String::new(), ours: ours.us, theirs: theirs.us };
        Ok(Row {
            case: format!("{algorithm} {model}, {parameters}, mean; {} errors of {shots}", ours.errors),
            baseline: format!("{}, {wanted}, mean; {} errors", other.name, theirs.errors),
            unit: "us",
            reach: if differ { Reach::Other("predictions alike".into(), false) } else { Reach::AtMost(0.7) },
            pairs: turns.iter().map(pair).collect(),
        })
    };
    models.into_iter().map(row).collect()
}

/// Rounds of experiments at d = 31, of which a model may have the first alone whole.
const LENGTHS: [&str; 4] = ["30", "300", "3000", "10002"];

/// Windows beside whole matching, on the same experiments.
fn windows(turns: usize, experiments: &str) -> Result<Vec<Row>> {
    let bench = build::example("berth-qec", "window_bench")?;
    let take = || -> Result<Value> {
        let text = output(&mut cmd("taskset", ["-c", CPU, &bench, experiments]))?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    };
    let lines = std::iter::repeat_with(take).take(turns).collect::<Result<Vec<_>>>()?;
    let one = lines.first().context("no turns")?;
    let pairs = |[ours, theirs]: [[&str; 2]; 2]| -> Result<Vec<Pair>> {
        let figure = |line: &Value, [of, key]: [&str; 2]| number(&line[of], key);
        let pair = |line| Ok(Pair { state: String::new(), ours: figure(line, ours)?, theirs: figure(line, theirs)? });
        lines.iter().map(pair).collect()
    };
    let what = format!("{} experiments of {} rounds, d = 7, p = 0.5 %", one["experiments"], one["rounds"]);
    let row = |case: &str, baseline: &str, unit, reach, figures| -> Result<Row> {
        let (case, baseline) = (format!("window of 14 rounds that decides 6, {case}"), baseline.into());
        Ok(Row { case, baseline, unit, reach, pairs: pairs(figures)? })
    };
    Ok(vec![
        row(
            &format!("errors of {what}; {} answers alike", one["agree"]),
            "whole matching",
            "errors",
            Reach::AtMost(1.05),
            [["windows", "errors"], ["whole", "errors"]],
        )?,
        row(
            "a round, mean",
            "whole matching",
            "ns",
            Reach::Printed,
            [["windows", "ns_a_round"], ["whole", "ns_a_round"]],
        )?,
        row(
            "the answer after the last round, p50",
            "a window, p50",
            "ns",
            Reach::AtMost(3.0),
            [["last_ns", "p50"], ["window_ns", "p50"]],
        )?,
    ])
}

/// Windows in experiments of rising length: what a round takes does not depend on it.
fn lengths(turns: usize, experiments: &str, model: &str) -> Result<Vec<Row>> {
    let bench = [build::example("berth-qec", "window_bench")?];
    let row = |length: &str, baseline: &str, reach| Row {
        case: format!("window of 14 rounds that decides 6, d = 31, p = 0.1 %, a round of {length}, mean"),
        baseline: baseline.into(),
        unit: "ns",
        reach,
        pairs: Vec::new(),
    };
    let [short, middle, long, longest] = LENGTHS;
    let of_middle = format!("a round of {middle}");
    let mut rows = vec![
        row(short, "whole matching", Reach::Printed),
        row(long, &of_middle, Reach::AtMost(1.1)),
        row(longest, &of_middle, Reach::AtMost(1.1)),
    ];
    for _ in 0..turns {
        let printed = lines(&output(&mut pinned(&bench, &[experiments, &LENGTHS.join(","), model]))?)?;
        let figure = |at: usize, of: &str| number(&printed[at][of], "ns_a_round");
        let middle = figure(1, "windows")?;
        let pairs = [
            (figure(0, "windows")?, figure(0, "whole")?),
            (figure(2, "windows")?, middle),
            (figure(3, "windows")?, middle),
        ];
        for (row, (ours, theirs)) in rows.iter_mut().zip(pairs) {
            row.pairs.push(Pair { state: String::new(), ours, theirs });
        }
    }
    Ok(rows)
}

/// A line of such a table.
#[derive(Debug, Clone, PartialEq)]
struct Decoded {
    /// Mean time of a decode.
    us: f64,
    errors: u64,
    /// A hash over all, where the program prints one.
    predictions: Option<String>,
}

/// The lines of an algorithm, by model. Columns are found by their heads.
fn table_of(table: &str, algorithm: &str) -> BTreeMap<String, Decoded> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = table.lines().filter(|line| line.starts_with('|')).map(cells);
    let heads = lines.next().unwrap_or_default();
    let column = |start: &str| heads.iter().position(|head| head.starts_with(start)).unwrap_or(usize::MAX);
    let (rate, errors, predictions) = (column("shots/s"), column("errors of"), column("predictions"));
    let line = |cells: Vec<String>| {
        let us = 1e6 / cells.get(rate)?.parse::<f64>().ok()?;
        let errors = cells.get(errors)?.parse().ok()?;
        Some((cells[0].clone(), Decoded { us, errors, predictions: cells.get(predictions).cloned() }))
    };
    lines.filter(|cells| cells.get(1).is_some_and(|cell| cell == algorithm)).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_programs_are_read_by_their_heads() {
        let table = "| model | solutions | shots/s | p50 | p99 | errors of 300 | without answer |\n|---|---|---|---|---|---|---|\n\
                     | a | 1 | 500000 | 6.6 us | 33 us | 7 | 0 |\n| a | 5 | 100 | 6.6 us | 33 us | 9 | 0 |\n";
        let of_a = |predictions| BTreeMap::from([("a".to_owned(), Decoded { us: 2.0, errors: 7, predictions })]);
        assert_eq!(table_of(table, "1"), of_a(None));
        let hashed = "| model | solutions | shots/s | errors of 3 | predictions |\n| a | 1 | 500000 | 7 | 0f |\n";
        assert_eq!(table_of(hashed, "1"), of_a(Some("0f".into())));
        assert_eq!(table_of("", "1"), BTreeMap::new());
    }

    #[test]
    fn sets_have_distances() {
        assert_eq!(
            WHOLE.sets.iter().map(|set| distance(set)).collect::<Vec<_>>(),
            ["3", "5", "7", "9", "11", "13", "17", "21", "25", "31"]
        );
    }
}
