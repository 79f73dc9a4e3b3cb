//! The windows of a model.

use std::{collections::HashMap, sync::Arc};

use super::{
    Layout, MAX_DIFFERENT, MAX_OVERLAPPING, StreamError, Window, WindowError,
    model::{Cut, Errors, Parts, Rounds},
};
use crate::{
    bits,
    decoder::{ModelError, Tables},
    dem::DetectorErrorModel,
    window::Inner,
};

/// What is computed once from a model.
#[derive(Debug)]
pub(crate) struct Windows {
    pub(super) window: usize,
    /// Rounds from the beginning of a window to that of the next.
    pub(super) step: usize,
    pub(super) num_observables: usize,
    /// Detectors of each round, ascending.
    pub(super) rounds: Vec<Vec<u32>>,
    /// Of each window which of the slices it is.
    plan: Vec<u32>,
    /// Of those that are parallel.
    pub(super) gaps: Option<Gaps>,
    pub(super) slices: Vec<Slice>,
    /// The first window that is the same as the next one, where neither is the last; and the gap behind it.
    periodic: Option<usize>,
    /// Rounds that a window can know of, from its first on.
    pub(super) reach: usize,
    /// Words that hold the events of any round.
    pub(super) round_words: usize,
}

/// What lies between the decided rounds of parallel windows.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Of each gap which of the slices it is.
    plan: Vec<u32>,
    /// Rounds of a window, but the last, up to the last that it decides.
    pub(super) until: usize,
}

/// A window, or several that are alike.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) tables: Arc<Tables>,
    /// For each round of it where its detectors stand in `detectors`.
    pub(super) starts: Vec<u32>,
    /// By round and place in it, the detector of the window's model.
    detectors: Vec<u32>,
    /// Round, counted from the first of the window, and place of the detectors whose flips by decided errors others need to know.
    later: Vec<(u32, u32)>,
}

impl Slice {
    /// Makes the events of the window from those of the rounds: `word` has 64 detectors of a round of it, counted from its first.
    pub(super) fn load(&self, events: &mut [u64], word: impl Fn(u64, usize) -> u64) {
        events.fill(0);
        for (round, bounds) in self.starts.array_windows::<2>().enumerate() {
            let detectors = &self.detectors[bounds[0] as usize..bounds[1] as usize];
            for (at, detectors) in detectors.chunks(64).enumerate() {
                let mut word = word(round as u64, at);
                while word != 0 {
                    let detector = detectors[word.trailing_zeros() as usize];
                    events[detector as usize / 64] |= 1 << (detector % 64);
                    word &= word - 1;
                }
            }
        }
    }

    /// Adds what the window has decided to the observables in `flips`, and tells the detectors that others need to know: the round,
    /// counted from the first of the window, and the place in it.
    pub(super) fn tell(&self, decided: &[u64], observables: usize, flips: &mut [u64], mut tell: impl FnMut(u64, u32)) {
        for (at, word) in decided.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let bit = at * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                match bit.checked_sub(observables) {
                    Some(later) => {
                        let (round, place) = self.later[later];
                        tell(round.into(), place);
                    }
                    None => flips[bit / 64] ^= 1 << (bit % 64),
                }
            }
        }
    }
}

/// The different windows so far.
struct Slices {
    inner: Inner,
    all: Vec<Slice>,
    known: HashMap<Vec<u64>, u32>,
    reach: usize,
}

impl Slices {
    fn add(&mut self, cut: Cut) -> Result<u32, ModelError> {
        if let Some(slice) = self.known.get(&cut.key) {
            return Ok(*slice);
        }
        if self.all.len() == MAX_DIFFERENT {
            return Err(WindowError::NotAlike.into());
        }
        let slice = self.all.len() as u32;
        self.reach = cut.later.iter().fold(self.reach, |reach, (round, _)| reach.max(*round as usize + 1));
        self.all.push(Slice {
            tables: Arc::new(Tables::new(&cut.model, self.inner.into())?),
            starts: cut.starts,
            detectors: cut.detectors,
            later: cut.later,
        });
        self.known.insert(cut.key, slice);
        Ok(slice)
    }
}

impl Windows {
    pub(crate) fn new(model: &DetectorErrorModel, parameters: Window) -> Result<Self, ModelError> {
        let Window { window, commit, layout, inner } = parameters;
        if !(1..=window).contains(&commit) {
            return Err(WindowError::Commit { window, commit }.into());
        }
        let parts = match inner {
            Inner::Mwpm => Parts::Apart,
            Inner::CorrelatedMwpm | Inner::BeliefMwpm => Parts::Linked,
            _ => Parts::Together,
        };
        let errors = Errors::new(model, parts)?;
        let count = errors.rounds.len();
        let (step, windows) = match layout {
            Layout::Sliding => (commit, window.min(count).div_ceil(commit)),
            Layout::Parallel => (window, 2),
        };
        if (count + model.num_detectors()).saturating_mul(windows) > MAX_OVERLAPPING {
            return Err(WindowError::Overlapping { windows }.into());
        }
        let mut slices = Slices { inner, all: Vec::new(), known: HashMap::new(), reach: window.min(count) };
        let (plan, gaps) = match layout {
            Layout::Sliding => (sliding(&errors, window, commit, &mut slices)?, None),
            Layout::Parallel => {
                let (plan, gaps) = parallel(&errors, window, commit, &mut slices)?;
                (plan, Some(gaps))
            }
        };
        let alike = |plan: &[u32], at: usize| plan.get(at).is_some_and(|one| plan.get(at + 1) == Some(one));
        let inner_windows = &plan[..plan.len() - 1];
        let periodic = (0..inner_windows.len())
            .find(|at| alike(inner_windows, *at) && gaps.as_ref().is_none_or(|gaps| alike(&gaps.plan, *at)));
        let largest = errors.rounds.iter().map(Vec::len).max().unwrap_or(0);
        Ok(Self {
            window,
            step,
            num_observables: model.num_observables(),
            periodic,
            plan,
            gaps,
            slices: slices.all,
            rounds: errors.rounds,
            reach: slices.reach,
            round_words: bits::words_for(largest).max(1),
        })
    }

    /// Whether the windows of another model are of the same rounds and detectors.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        let shape = |of: &Self| (of.window, of.step, of.num_observables, of.periodic, of.reach);
        let gaps = |of: &Self| of.gaps.as_ref().map(|gaps| (gaps.plan.clone(), gaps.until));
        let same = |(one, other): (&Slice, &Slice)| {
            (&one.starts, &one.detectors, &one.later) == (&other.starts, &other.detectors, &other.later)
        };
        shape(self) == shape(other)
            && gaps(self) == gaps(other)
            && (&self.rounds, &self.plan) == (&other.rounds, &other.plan)
            && self.slices.len() == other.slices.len()
            && self.slices.iter().zip(&other.slices).all(same)
    }

    /// Detectors of each round of the model, ascending.
    pub(crate) fn rounds(&self) -> &[Vec<u32>] {
        &self.rounds
    }

    /// The first round of the repeated part of longer experiments: the one behind the first window that is the same as the next.
    pub(super) fn edge(&self) -> Option<u64> {
        self.periodic.map(|first| (first * self.step + self.window) as u64)
    }

    /// How often `step` rounds come in addition in an experiment of so many rounds; for ever in one without end.
    pub(super) fn repeats(&self, total: Option<u64>) -> Result<u64, StreamError> {
        let (model, step) = (self.rounds.len() as u64, self.step as u64);
        let repeated = match total {
            None => u64::MAX,
            Some(total) if total >= model && (total - model).is_multiple_of(step) => (total - model) / step,
            Some(_) => return Err(StreamError::Rounds { model, step }),
        };
        if repeated > 0 && self.periodic.is_none() {
            return Err(StreamError::Rounds { model, step });
        }
        Ok(repeated)
    }

    /// The round of the model that this one of an experiment is like.
    pub(super) fn in_model(&self, round: u64, repeated: u64) -> u64 {
        let Some(edge) = self.edge().filter(|_| repeated > 0) else { return round };
        let step = self.step as u64;
        match round.checked_sub(edge) {
            None => round,
            Some(after) if after / step >= repeated => round - repeated * step,
            Some(after) => edge + after % step,
        }
    }

    /// Number of windows of an experiment.
    pub(super) fn count(&self, repeated: u64) -> u64 {
        (self.plan.len() as u64).saturating_add(repeated)
    }

    /// Which of the slices a window of an experiment is.
    pub(super) fn slice(&self, window: u64, repeated: u64) -> usize {
        self.plan[self.like(window, repeated)] as usize
    }

    /// Which of the slices the gap behind a window is.
    pub(super) fn gap(&self, gaps: &Gaps, window: u64, repeated: u64) -> usize {
        gaps.plan[self.like(window, repeated)] as usize
    }

    /// The window of the model that this one of an experiment is like.
    fn like(&self, window: u64, repeated: u64) -> usize {
        let like = match self.periodic.map(|at| at as u64).filter(|_| repeated > 0) {
            Some(periodic) if window > periodic => window.saturating_sub(repeated).max(periodic),
            _ => window,
        };
        like as usize
    }
}

/// Windows that begin behind what the one before has decided.
fn sliding(errors: &Errors, window: usize, commit: usize, slices: &mut Slices) -> Result<Vec<u32>, ModelError> {
    let count = errors.rounds.len();
    let mut plan = Vec::new();
    for first in (0_usize..).step_by(commit) {
        let end = count.min(first.saturating_add(window));
        let decided = first..if end == count { count } else { first + commit };
        plan.push(slices.add(errors.cut(&Rounds { shown: first..end, taken: first..end, decided, head: 0..0 }))?);
        if end == count {
            break;
        }
    }
    Ok(plan)
}

/// Windows side by side, and the gaps between what they decide. The last one decides a round at least.
fn parallel(
    errors: &Errors,
    window: usize,
    commit: usize,
    slices: &mut Slices,
) -> Result<(Vec<u32>, Gaps), ModelError> {
    let (count, span) = (errors.rounds.len(), errors.span());
    // A gap may read the first of the rounds that the window behind it decides, and the next gap none of these.
    let least = (span - 1).max(1);
    if commit.min(window - commit) < least {
        return Err(WindowError::Parallel { window, commit, least }.into());
    }
    let before = (window - commit) / 2;
    let until = before + commit;
    let windows = count.saturating_sub(before).div_ceil(window).max(1);
    let (mut plan, mut gaps) = (Vec::new(), Vec::new());
    for at in 0..windows {
        let (first, is_last) = (at * window, at + 1 == windows);
        let begin = if at == 0 { 0 } else { first + before };
        let end = if is_last { count } else { first + window };
        plan.push(slices.add(errors.cut(&Rounds {
            shown: first..end,
            taken: first.saturating_sub(span - 1)..end,
            decided: begin..if is_last { count } else { first + until },
            head: if at == 0 { 0..0 } else { begin..begin + span - 1 },
        }))?);
        if !is_last {
            let gap = first + until..first + window + before;
            let shown = gap.start..count.min(gap.end + span - 1);
            let (taken, decided) = (gap.clone(), gap);
            let cut = errors.cut(&Rounds { shown, taken, decided: decided.start..count, head: 0..0 });
            gaps.push(slices.add(cut)?);
        }
    }
    Ok((plan, Gaps { plan: gaps, until }))
}
