//! Detector error models, in Stim's text format.
//!
//! A model lists independent error mechanisms. Each has a probability, and flips a set of detectors `D#` and logical
//! observables `L#`. `^` splits a mechanism into parts that a matching decoder treats separately. Loops are expanded
//! here, within [`MAX_STEPS`]. Of the coordinates of a detector the last one is kept, its time. Tags are checked for their
//! form and dropped.
//!
//! Parsing has two passes, neither of them recursive: from text to a flat list of instructions, then its execution.

mod parser;

use std::ops::Range;

use parser::Parser;

/// Limit on the detectors of a model.
pub const MAX_DETECTORS: u32 = 1 << 20;
/// Limit on the logical observables of a model.
pub const MAX_OBSERVABLES: u32 = 1024;
/// Limit on the coordinates of a detector, that of Stim.
pub const MAX_COORDINATES: usize = 16;
/// Limit on the instructions and targets of a model with its `repeat` blocks expanded.
pub const MAX_STEPS: usize = 1 << 22;
/// Limit on the nesting of `repeat` blocks.
pub const MAX_NESTING: usize = 16;

/// A fault in the text of a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct DemError {
    /// Line in the text, from 1.
    pub line: u32,
    /// Column in the text in bytes, from 1.
    pub column: u32,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// One error mechanism, or one part of a decomposed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symptoms<'a> {
    /// Detectors that it flips, ascending, each once.
    pub detectors: &'a [u32],
    /// Logical observables that it flips, up to `L63`; bit `i` is `L`i.
    pub observables: u64,
    /// Those from `L64` on, 64 in a word; words at the end that would be zero may lack.
    pub more_observables: &'a [u64],
}

impl Symptoms<'_> {
    /// Flips the observables in `words`, of 64 observables each, which hold all of the model's.
    pub(crate) fn flip(&self, words: &mut [u64]) {
        for (word, flips) in words.iter_mut().zip(std::iter::once(&self.observables).chain(self.more_observables)) {
            *word ^= flips;
        }
    }
}

/// A detector error model with its loops expanded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DetectorErrorModel {
    num_detectors: u32,
    num_observables: u32,
    mechanisms: Vec<Mechanism>,
    parts: Vec<Part>,
    detectors: Vec<u32>,
    /// Observables beyond the first 64 that parts flip.
    more_observables: Vec<u64>,
    /// Times of the detectors, up to the last one that has one.
    times: Vec<Option<f64>>,
}

#[derive(Debug, Clone, PartialEq)]
struct Mechanism {
    probability: f64,
    line: u32,
    parts: Range<usize>,
}

#[derive(Debug, Clone, PartialEq)]
struct Part {
    detectors: Range<usize>,
    observables: u64,
    more: Range<usize>,
}

impl DetectorErrorModel {
    /// Parses the text of a model and expands its loops; the first fault ends that.
    pub fn parse(text: &str) -> Result<Self, DemError> {
        expand(&Parser::new(text).program()?)
    }

    /// Whether the other model differs in probabilities alone: it has the same detectors at the same times, and the same errors in the
    /// same order.
    pub fn is_alike(&self, other: &Self) -> bool {
        let Self { num_detectors, num_observables, mechanisms, parts, detectors, more_observables, times } = self;
        let of = |mechanisms: &[Mechanism]| mechanisms.iter().map(|of| of.parts.clone()).collect::<Vec<_>>();
        (num_detectors, num_observables, parts, detectors, more_observables, times)
            == (
                &other.num_detectors,
                &other.num_observables,
                &other.parts,
                &other.detectors,
                &other.more_observables,
                &other.times,
            )
            && of(mechanisms) == of(&other.mechanisms)
    }

    /// A model of so many detectors and observables, without errors and times.
    pub(crate) fn of_size(num_detectors: usize, num_observables: usize) -> Self {
        Self { num_detectors: num_detectors as u32, num_observables: num_observables as u32, ..Self::default() }
    }

    /// Adds an error: of each part its detectors, ascending, and the observables, 64 in a word.
    pub(crate) fn push(&mut self, probability: f64, line: u32, parts: &[(Vec<u32>, Vec<u64>)]) {
        let before = self.parts.len();
        for (detectors, flips) in parts {
            let (first, more) = (self.detectors.len(), self.more_observables.len());
            self.detectors.extend(detectors);
            self.more_observables.extend(flips.iter().skip(1));
            self.parts.push(Part {
                detectors: first..self.detectors.len(),
                observables: flips.first().copied().unwrap_or(0),
                more: more..self.more_observables.len(),
            });
        }
        self.mechanisms.push(Mechanism { probability, line, parts: before..self.parts.len() });
    }

    /// Number of detectors: one more than the highest one named.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors as usize
    }

    /// Number of logical observables: one more than the highest one named.
    pub fn num_observables(&self) -> usize {
        self.num_observables as usize
    }

    /// Time of a detector: the last coordinate that its first declaration has, if it has any.
    pub fn time(&self, detector: usize) -> Option<f64> {
        *self.times.get(detector)?
    }

    /// The error mechanisms, in the order of the text.
    pub fn mechanisms(&self) -> impl ExactSizeIterator<Item = MechanismRef<'_>> {
        self.mechanisms.iter().map(|mechanism| MechanismRef { model: self, mechanism })
    }
}

/// One error mechanism of a model.
#[derive(Debug, Clone, Copy)]
pub struct MechanismRef<'a> {
    model: &'a DetectorErrorModel,
    mechanism: &'a Mechanism,
}

impl<'a> MechanismRef<'a> {
    /// Probability that it occurs, from 0 to 1.
    pub fn probability(&self) -> f64 {
        self.mechanism.probability
    }

    /// Line of the text that it comes from, from 1; for messages.
    pub fn line(&self) -> u32 {
        self.mechanism.line
    }

    /// What it flips, split at each `^`.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Symptoms<'a>> + use<'a> {
        let model = self.model;
        model.parts[self.mechanism.parts.clone()].iter().map(|part| Symptoms {
            detectors: &model.detectors[part.detectors.clone()],
            observables: part.observables,
            more_observables: &model.more_observables[part.more.clone()],
        })
    }
}

/// An instruction; its targets are a range of [`Program::targets`].
struct Instruction {
    op: Op,
    targets: Range<usize>,
    line: u32,
    column: u32,
}

#[derive(Clone, Copy)]
enum Op {
    Error {
        probability: f64,
    },
    /// `coordinates` are the first of [`Program::coordinates`] and their number.
    Detector {
        coordinates: (u32, u32),
    },
    Observable,
    Shift {
        by: u64,
        coordinates: (u32, u32),
    },
    Repeat {
        count: u64,
    },
    End,
}

#[derive(Clone, Copy)]
enum Target {
    Detector(u64),
    Observable(u64),
    Separator,
    Number(u64),
}

#[derive(Default)]
struct Program {
    instructions: Vec<Instruction>,
    targets: Vec<Target>,
    coordinates: Vec<f64>,
}

/// Executes a program: follows loops and shifts, and collects the mechanisms.
fn expand(program: &Program) -> Result<DetectorErrorModel, DemError> {
    let mut model = DetectorErrorModel::default();
    let mut shift = 0u64;
    let mut shift_coordinates = [0.0; MAX_COORDINATES];
    let coordinates = |(first, count): (u32, u32)| &program.coordinates[first as usize..][..count as usize];
    let mut steps = 0;
    // The first instruction of each open loop's body, and how often it runs again.
    let mut loops: Vec<(usize, u64)> = Vec::new();
    let mut next = 0;
    while let Some(instruction) = program.instructions.get(next) {
        next += 1;
        let fail = |message| DemError { line: instruction.line, column: instruction.column, message };
        steps += 1 + instruction.targets.len();
        if steps > MAX_STEPS {
            return Err(fail(format!("the model expands to more than {MAX_STEPS} instructions and targets")));
        }
        let targets = &program.targets[instruction.targets.clone()];
        match instruction.op {
            Op::Error { probability } => {
                let first = model.parts.len();
                for targets in targets.split(|target| matches!(target, Target::Separator)) {
                    model.push_part(targets, shift).map_err(fail)?;
                }
                let parts = first..model.parts.len();
                model.mechanisms.push(Mechanism { probability, line: instruction.line, parts });
            }
            Op::Detector { coordinates: at } => {
                let time = coordinates(at).last().map(|time| time + shift_coordinates[at.1 as usize - 1]);
                for &target in targets {
                    if let Noted::Detector(id) = model.note(target, shift).map_err(fail)? {
                        model.note_time(id, time);
                    }
                }
            }
            Op::Observable => {
                for &target in targets {
                    model.note(target, shift).map_err(fail)?;
                }
            }
            Op::Shift { by, coordinates: at } => {
                shift = shift.saturating_add(by);
                shift_coordinates.iter_mut().zip(coordinates(at)).for_each(|(sum, by)| *sum += by);
            }
            Op::Repeat { count } => loops.push((next, count - 1)),
            Op::End => {
                let (body, left) = loops.last_mut().expect("the parser pairs the ends of loops");
                if *left == 0 {
                    loops.pop();
                } else {
                    *left -= 1;
                    next = *body;
                }
            }
        }
    }
    Ok(model)
}

enum Noted {
    Detector(u32),
    Observable(u32),
}

impl DetectorErrorModel {
    /// Checks a target against the limits, shifts it, and enlarges the model to hold it.
    fn note(&mut self, target: Target, shift: u64) -> Result<Noted, String> {
        match target {
            Target::Detector(id) => {
                let id = id.saturating_add(shift);
                if id >= u64::from(MAX_DETECTORS) {
                    return Err(format!("detector D{id} is beyond the limit: the highest is D{}", MAX_DETECTORS - 1));
                }
                self.num_detectors = self.num_detectors.max(id as u32 + 1);
                Ok(Noted::Detector(id as u32))
            }
            Target::Observable(id) => {
                if id >= u64::from(MAX_OBSERVABLES) {
                    return Err(format!(
                        "observable L{id} is beyond the limit: the highest is L{}",
                        MAX_OBSERVABLES - 1
                    ));
                }
                self.num_observables = self.num_observables.max(id as u32 + 1);
                Ok(Noted::Observable(id as u32))
            }
            Target::Separator | Target::Number(_) => unreachable!("the parser admits only detectors and observables"),
        }
    }

    /// Keeps the time of a detector, unless it has one.
    fn note_time(&mut self, detector: u32, time: Option<f64>) {
        let at = detector as usize;
        if time.is_some() && self.times.len() <= at {
            self.times.resize(at + 1, None);
        }
        if let Some(known) = self.times.get_mut(at) {
            *known = known.or(time);
        }
    }

    /// Adds one part of a mechanism. Targets that are named twice cancel.
    fn push_part(&mut self, targets: &[Target], shift: u64) -> Result<(), String> {
        let first = self.detectors.len();
        let first_word = self.more_observables.len();
        let mut observables = 0;
        for &target in targets {
            match self.note(target, shift)? {
                Noted::Detector(id) => self.detectors.push(id),
                Noted::Observable(id @ ..64) => observables ^= 1 << id,
                Noted::Observable(id) => {
                    let at = first_word + (id as usize - 64) / 64;
                    if self.more_observables.len() <= at {
                        self.more_observables.resize(at + 1, 0);
                    }
                    self.more_observables[at] ^= 1 << (id % 64);
                }
            }
        }
        let kept = cancel_pairs(&mut self.detectors[first..]);
        self.detectors.truncate(first + kept);
        let (detectors, more) = (first..self.detectors.len(), first_word..self.more_observables.len());
        self.parts.push(Part { detectors, observables, more });
        Ok(())
    }
}

/// Sorts, and moves the values that occur an odd number of times to the front, once each. Returns their number.
pub(crate) fn cancel_pairs(values: &mut [u32]) -> usize {
    values.sort_unstable();
    let mut kept = 0;
    for i in 0..values.len() {
        if kept > 0 && values[kept - 1] == values[i] {
            kept -= 1;
        } else {
            values[kept] = values[i];
            kept += 1;
        }
    }
    kept
}
