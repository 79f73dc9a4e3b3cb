//! `[[decoder]]`: detector error models and what decodes them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_keys::{At, Table};
use berth_qec::{
    Algorithm, Tables,
    dem::DetectorErrorModel,
    osd::{BpOsd, Schedule, Statistics},
    relay::{Arithmetic, RelayBp},
    sparse::{MeasurementMap, SparseMatrix},
    window::{Experiment, Inner, Layout, Window},
};
use berth_rpc::handlers::Streaming;

use super::{Host, contents, name, resolve, unique};

/// One decoder; its position in the file is the `decoder_id` of the decoding server.
#[derive(Debug, Clone)]
pub struct Decoder {
    /// Unique name: 1 to 64 printable ASCII characters, no spaces.
    pub name: String,
    /// `algorithm`, with the keys that belong to it.
    pub algorithm: Algorithm,
    /// Where the model was read from.
    pub file: PathBuf,
    /// The detector error model that the file holds.
    pub model: Arc<DetectorErrorModel>,
    /// What the algorithm has worked out of the model, once for all cores.
    pub tables: Arc<Tables>,
    /// Which measurements make up each detection event.
    pub measurements: MeasurementMap,
    /// Of windows: the experiments of the decoding server, and how their rounds come and their corrections go.
    pub experiment: Option<(Arc<Experiment>, Streaming)>,
    /// Cores that decode windows of the decoding server at a time.
    pub cores: usize,
}

impl Decoder {
    /// Whether sessions of the other decoder go on with this one: it is the same, or only its errors have other probabilities.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        let Self { name, algorithm, file: _, model, tables, measurements, experiment: _, cores } = self;
        (name, algorithm, measurements, cores) == (&other.name, &other.algorithm, &other.measurements, &other.cores)
            && self.rounds() == other.rounds()
            && model.is_alike(&other.model)
            && tables.is_alike(&other.tables)
    }

    /// Of windows: the rounds of an experiment of the decoding server, and how it is told of them.
    fn rounds(&self) -> Option<(Option<u64>, Streaming)> {
        self.experiment.as_ref().map(|(experiment, streaming)| (experiment.rounds(), *streaming))
    }
}

impl PartialEq for Decoder {
    /// The tables follow from the model and the algorithm, the experiment from these, the measurements and its rounds.
    fn eq(&self, other: &Self) -> bool {
        let Self { name, algorithm, file, model, tables: _, measurements, experiment: _, cores } = self;
        (name, algorithm, file, model, measurements, cores)
            == (&other.name, &other.algorithm, &other.file, &other.model, &other.measurements, &other.cores)
            && self.rounds() == other.rounds()
    }
}

/// The decoders without mistakes, and the names of all. Tables of a model are those of `known` where it is there.
pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    folder: &Path,
    host: &Host,
    known: &[Decoder],
) -> (Vec<Decoder>, Vec<String>) {
    let mut names = Vec::new();
    let tables = root.tables("decoder").unwrap_or_default();
    let decoders = tables.into_iter().filter_map(|t| decoder(t, folder, host, known, &mut names)).collect();
    unique(root.sink(), names.iter());
    (decoders, names.into_iter().map(|at| at.value).collect())
}

fn decoder(
    mut t: Table<'_, '_>,
    folder: &Path,
    host: &Host,
    known: &[Decoder],
    names: &mut Vec<At<String>>,
) -> Option<Decoder> {
    let name = name(&mut t, "surface-d5");
    names.extend(name.clone());
    let (algorithm, windows) = algorithm(&mut t);
    let file = t.text("model");
    let file = t.require("model", file, "model = \"decoders/surface_d5.dem\"");
    let file = file.and_then(|at| resolve(&t, at, folder, host.is_file));
    let measurements = t.text("measurements").map(|at| resolve(&t, at, folder, host.is_file));
    let (model, tables) = file.as_ref().and_then(|at| model(&t, at, algorithm, host, known)).unzip();
    let measurements = match (measurements, &model) {
        (None, Some(model)) => Some(MeasurementMap::identity(model.num_detectors())),
        (Some(Some(at)), Some(model)) => measurement_map(&t, &at, model, host),
        _ => None,
    };
    let cores = windows.as_ref().map_or(1, |windows| windows.cores);
    let experiment = match (windows, &tables, &measurements) {
        (Some(Windows { rounds, streaming, .. }), Some(tables), Some(map)) => {
            experiment(&t, rounds.as_ref(), tables, map).map(|experiment| (experiment, streaming))
        }
        _ => None,
    };
    t.finish();
    Some(Decoder {
        name: name?.value,
        algorithm: algorithm?,
        file: file?.value,
        model: model?,
        tables: tables?,
        measurements: measurements?,
        experiment,
        cores,
    })
}

/// What the decoding server is to know of experiments that are decoded in windows.
struct Windows {
    /// Rounds of an experiment as they are written.
    rounds: Option<At<u64>>,
    streaming: Streaming,
    cores: usize,
}

fn experiment(
    t: &Table<'_, '_>,
    rounds: Option<&At<u64>>,
    tables: &Arc<Tables>,
    map: &MeasurementMap,
) -> Option<Arc<Experiment>> {
    let made = |total| Experiment::new(tables.clone(), map, total).map(Arc::new);
    let Some(at) = rounds else {
        return made(tables.num_rounds()).ok();
    };
    made((at.value > 0).then_some(at.value)).map_err(|e| t.sink().wrong(at, format_args!("{e}"))).ok()
}

/// `algorithm`
#[derive(Clone, Copy)]
enum Word {
    /// One that decodes windows, too.
    Inner(Inner),
    MultiErrorLut,
    Window,
}

/// The algorithm, and of windows what the decoding server is to know.
fn algorithm(t: &mut Table<'_, '_>) -> (Option<Algorithm>, Option<Windows>) {
    let inner = [
        ("mwpm", Inner::Mwpm),
        ("correlated_mwpm", Inner::CorrelatedMwpm),
        ("belief_mwpm", Inner::BeliefMwpm),
        ("lut", Inner::Lut { depth: 1 }),
        ("relay_bp", Inner::RelayBp(RelayBp::default())),
        ("bp_osd", Inner::BpOsd(BpOsd::default())),
    ];
    let whole = inner.map(|(word, inner)| (word, Word::Inner(inner)));
    let others = [("multi_error_lut", Word::MultiErrorLut), ("window", Word::Window)];
    let algorithm = t.choice("algorithm", &[&whole[..], &others].concat());
    let known = "algorithm = \"mwpm\", \"correlated_mwpm\", \"belief_mwpm\", \"lut\", \"relay_bp\", \"bp_osd\", \"multi_error_lut\" or \"window\"";
    let algorithm = t.require("algorithm", algorithm, known);
    match algorithm.map(|at| at.value) {
        None => (None, None),
        Some(Word::Inner(whole)) => (Some(parameters(t, whole).into()), None),
        Some(Word::MultiErrorLut) => (Some(Algorithm::MultiErrorLut { depth: t.number("depth") as usize }), None),
        Some(Word::Window) => {
            let parallel = t.integer("parallel").map(|at| at.value as usize);
            let layout = if parallel.is_some() { Layout::Parallel } else { Layout::Sliding };
            let algorithm = window(t, layout, &inner);
            let rounds = t.integer("rounds");
            let early = t.chosen("corrections", &[("whole", false), ("decided", true)]);
            let numbered = t.chosen("counter", &[("ignored", false), ("round", true)]);
            (
                algorithm,
                Some(Windows { rounds, streaming: Streaming { numbered, early }, cores: parallel.unwrap_or(1) }),
            )
        }
    }
}

fn window(t: &mut Table<'_, '_>, layout: Layout, inner: &[(&'static str, Inner)]) -> Option<Algorithm> {
    let inner = t.chosen("inner", inner);
    let inner = parameters(t, inner);
    let (window, commit) = (t.integer("window"), t.integer("commit"));
    let window = t.require("window", window, "window = 10");
    let commit = t.require("commit", commit, "commit = 5");
    Some(Algorithm::Window(Window { window: window?.value as usize, commit: commit?.value as usize, layout, inner }))
}

/// Reads the keys of an algorithm.
fn parameters(t: &mut Table<'_, '_>, algorithm: Inner) -> Inner {
    match algorithm {
        Inner::Mwpm | Inner::CorrelatedMwpm | Inner::BeliefMwpm => algorithm,
        Inner::Lut { .. } => Inner::Lut { depth: t.number("depth") as usize },
        Inner::RelayBp(_) => Inner::RelayBp(RelayBp {
            relays: t.number("relays") as usize,
            legs: t.number("legs") as usize,
            iterations: t.number("iterations") as usize,
            seed: t.number("seed"),
            arithmetic: t.chosen("arithmetic", &[("fixed16", Arithmetic::Fixed16), ("float64", Arithmetic::Float64)]),
        }),
        Inner::BpOsd(_) => Inner::BpOsd(BpOsd {
            schedule: t.chosen("schedule", &[("serial", Schedule::Serial), ("parallel", Schedule::Parallel)]),
            iterations: t.number("iterations") as usize,
            statistics: t
                .chosen("statistics", &[("ordered", Statistics::Ordered), ("localized", Statistics::Localized)]),
            order: t.number("order") as usize,
        }),
    }
}

/// Reads the model, and works out the tables if they are not known: some models are none that the algorithm can take.
fn model(
    t: &Table<'_, '_>,
    at: &At<PathBuf>,
    algorithm: Option<Algorithm>,
    host: &Host,
    known: &[Decoder],
) -> Option<(Arc<DetectorErrorModel>, Arc<Tables>)> {
    let path = at.value.display();
    let text = contents(t, at, host)?;
    let model = match DetectorErrorModel::parse(&text) {
        Ok(model) => model,
        Err(e) => {
            t.sink()
                .wrong(at, format_args!("not a detector error model: {path}:{}:{}: {}", e.line, e.column, e.message));
            return None;
        }
    };
    let algorithm = algorithm?;
    if let Some(known) = known.iter().find(|known| known.algorithm == algorithm && *known.model == model) {
        return Some((known.model.clone(), known.tables.clone()));
    }
    match Tables::new(&model, algorithm) {
        Ok(tables) => Some((Arc::new(model), Arc::new(tables))),
        Err(e) => {
            t.sink().wrong(at, format_args!("{path} suits another algorithm: {e}"));
            None
        }
    }
}

/// Reads a `D_sparse` matrix: the measurements of each detector in turn, -1 after each, separated by white space or commas.
fn measurement_map(
    t: &Table<'_, '_>,
    at: &At<PathBuf>,
    model: &DetectorErrorModel,
    host: &Host,
) -> Option<MeasurementMap> {
    let text = contents(t, at, host)?;
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let numbers: Result<Vec<i64>, _> = words.map(|word| word.parse().map_err(|_| word)).collect();
    let wrong = match numbers {
        Err(word) => format!("\"{word}\" is not a number; write each detector's measurements and -1"),
        Ok(numbers) => match SparseMatrix::from_flat(&numbers, None) {
            Err(e) => format!("{e}; write each detector's measurements and -1"),
            Ok(matrix) if matrix.num_rows() != model.num_detectors() => {
                format!("has {} rows; the model has {} detectors", matrix.num_rows(), model.num_detectors())
            }
            Ok(matrix) => return Some(MeasurementMap::new(matrix)),
        },
    };
    t.sink().wrong(at, format_args!("{}: {wrong}", at.value.display()));
    None
}
