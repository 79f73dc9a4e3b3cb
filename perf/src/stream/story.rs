//! An experiment before it is streamed: its rounds, and what has to be answered.

use std::{fs, sync::Arc};

use anyhow::{Context as _, ensure};
use berth_qec::{
    Algorithm, Tables,
    dem::DetectorErrorModel,
    sparse::MeasurementMap,
    window::{Experiment, Inner, Intake, Layout, Sampler, Window},
};

use crate::args::StreamArgs;

/// Most rounds of an experiment, all of which are drawn before the first is sent.
const MAX_ROUNDS: u64 = 100_000_000;

/// An experiment that has been drawn.
pub(super) struct Story {
    pub(super) tables: Arc<Tables>,
    pub(super) experiment: Arc<Experiment>,
    /// The events of all rounds, each of whole bytes.
    bytes: Vec<u8>,
    /// Where each round begins there, and the end of the last one.
    starts: Vec<usize>,
    /// What `get_corrections` answers after so many rounds; `None` while no round is decided.
    corrections: Vec<Option<u64>>,
    /// What the errors have flipped in the end.
    pub(super) truth: u64,
}

impl Story {
    pub(super) fn draw(args: &StreamArgs) -> anyhow::Result<Self> {
        let path = args.model.display();
        let text = fs::read_to_string(&args.model).with_context(|| format!("cannot read {path}"))?;
        let model = DetectorErrorModel::parse(&text).with_context(|| path.to_string())?;
        let layout = if args.parallel { Layout::Parallel } else { Layout::Sliding };
        let window = Window { window: args.window_rounds, commit: args.commit, layout, inner: Inner::Mwpm };
        let tables = Arc::new(Tables::new(&model, Algorithm::Window(window)).with_context(|| path.to_string())?);
        let map = MeasurementMap::identity(model.num_detectors());
        let rounds = args.load.pace.count.or(tables.num_rounds()).unwrap_or(0);
        ensure!((1..=MAX_ROUNDS).contains(&rounds), "--count: there may be 1 to {MAX_ROUNDS} rounds");
        let experiment = Arc::new(Experiment::new(tables.clone(), &map, Some(rounds)).context("--count")?);
        let mut sampler = Sampler::new(experiment.clone(), &model)?;
        let mut decoder = Intake::new(experiment.clone());
        let mut random = fastrand::Rng::with_seed(args.seed);
        let (mut bytes, mut starts, mut corrections) = (Vec::new(), vec![0], vec![None]);
        let first = |words: &[u64]| words.first().copied().unwrap_or(0);
        for round in 0..rounds {
            let events = sampler.round(|p| random.f64() < p).context("a round less than there are")?;
            let count = experiment.measurements_before(round + 1) - experiment.measurements_before(round);
            ensure!(count == experiment.num_detectors(round) as u64, "{path}: its detectors are not ordered by rounds");
            let begin = bytes.len();
            bytes.extend(events.iter().flat_map(|word| word.to_le_bytes()).take((count as usize).div_ceil(8)));
            starts.push(bytes.len());
            decoder.take(&bytes[begin..], count as usize).with_context(|| format!("round {round}"))?;
            corrections.push((decoder.decided() > 0).then(|| first(decoder.flips())));
        }
        Ok(Self { tables, bytes, starts, corrections, truth: first(sampler.flips()), experiment })
    }

    pub(super) fn rounds(&self) -> u64 {
        self.corrections.len() as u64 - 1
    }

    /// How many observables an answer has.
    pub(super) fn observables(&self) -> u64 {
        self.tables.num_observables() as u64
    }

    /// The events of a round and how many they are.
    #[inline]
    pub(super) fn round(&self, round: u64) -> (&[u8], usize) {
        let at = round as usize;
        (&self.bytes[self.starts[at]..self.starts[at + 1]], self.experiment.num_detectors(round))
    }

    /// What `get_corrections` answers after so many rounds; `None` while no round is decided.
    pub(super) fn corrections(&self, rounds: u64) -> Option<u64> {
        self.corrections[rounds as usize]
    }
}
