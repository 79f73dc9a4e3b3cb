//! Detector error models, in Stim's text format.
//!
//! A model lists independent error mechanisms. Each has a probability, and flips a set of detectors `D#` and logical
//! observables `L#`. `^` splits a mechanism into parts that a matching decoder treats separately. Loops are expanded
//! here, within [`MAX_STEPS`]. Coordinates and tags are checked for their form and dropped.
//!
//! Parsing has two passes, neither of them recursive: from text to a flat list of instructions, then its execution.

use std::ops::Range;

/// Limit on the detectors of a model.
pub const MAX_DETECTORS: u32 = 1 << 20;
/// Limit on the logical observables of a model; predicted flips are one word.
pub const MAX_OBSERVABLES: u32 = 64;
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
    /// Logical observables that it flips; bit `i` is `L`i.
    pub observables: u64,
}

/// A detector error model with its loops expanded.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectorErrorModel {
    num_detectors: u32,
    num_observables: u32,
    mechanisms: Vec<Mechanism>,
    parts: Vec<Part>,
    detectors: Vec<u32>,
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
}

impl DetectorErrorModel {
    /// Parses the text of a model.
    pub fn parse(text: &str) -> Result<Self, DemError> {
        expand(&Parser::new(text).program()?)
    }

    /// Number of detectors: one more than the highest one named.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors as usize
    }

    /// Number of logical observables: one more than the highest one named.
    pub fn num_observables(&self) -> usize {
        self.num_observables as usize
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
        model.parts[self.mechanism.parts.clone()]
            .iter()
            .map(|part| Symptoms { detectors: &model.detectors[part.detectors.clone()], observables: part.observables })
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
    Error { probability: f64 },
    Declare,
    Shift { by: u64 },
    Repeat { count: u64 },
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
}

/// Executes a program: follows loops and shifts, and collects the mechanisms.
fn expand(program: &Program) -> Result<DetectorErrorModel, DemError> {
    let mut model = DetectorErrorModel {
        num_detectors: 0,
        num_observables: 0,
        mechanisms: Vec::new(),
        parts: Vec::new(),
        detectors: Vec::new(),
    };
    let mut shift = 0u64;
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
            Op::Declare => {
                for &target in targets {
                    model.note(target, shift).map_err(fail)?;
                }
            }
            Op::Shift { by } => shift = shift.saturating_add(by),
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

    /// Adds one part of a mechanism. Targets that are named twice cancel.
    fn push_part(&mut self, targets: &[Target], shift: u64) -> Result<(), String> {
        let first = self.detectors.len();
        let mut observables = 0;
        for &target in targets {
            match self.note(target, shift)? {
                Noted::Detector(id) => self.detectors.push(id),
                Noted::Observable(id) => observables ^= 1 << id,
            }
        }
        let kept = cancel_pairs(&mut self.detectors[first..]);
        self.detectors.truncate(first + kept);
        self.parts.push(Part { detectors: first..self.detectors.len(), observables });
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

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0, line: 1, line_start: 0 }
    }

    fn program(mut self) -> Result<Program, DemError> {
        let mut program = Program::default();
        let mut open: Vec<(u32, u32)> = Vec::new();
        loop {
            self.skip_between_instructions();
            let (line, column) = self.position();
            let Some(byte) = self.peek() else { break };
            if program.instructions.len() + program.targets.len() >= MAX_STEPS {
                return Err(self.fail(format!("the model has more than {MAX_STEPS} instructions and targets")));
            }
            let first = program.targets.len();
            let op = if byte == b'}' {
                self.at += 1;
                if open.pop().is_none() {
                    return Err(DemError { line, column, message: "'}' without a 'repeat N {' before it".into() });
                }
                Op::End
            } else {
                let op = self.instruction(&mut program.targets)?;
                if matches!(op, Op::Repeat { .. }) {
                    if open.len() == MAX_NESTING {
                        let message = format!("'repeat' blocks nest at most {MAX_NESTING} deep");
                        return Err(DemError { line, column, message });
                    }
                    open.push((line, column));
                }
                op
            };
            program.instructions.push(Instruction { op, targets: first..program.targets.len(), line, column });
        }
        match open.pop() {
            Some((line, column)) => Err(DemError { line, column, message: "'repeat' block without its '}'".into() }),
            None => Ok(program),
        }
    }

    /// Reads one instruction other than `}`, and appends its targets.
    fn instruction(&mut self, targets: &mut Vec<Target>) -> Result<Op, DemError> {
        let (line, column) = self.position();
        let fail = |message: String| DemError { line, column, message };
        let name = self.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_').to_ascii_lowercase();
        if self.peek() == Some(b'[') {
            self.take_while(|byte| byte != b']' && byte != b'\n');
            if self.peek() != Some(b']') {
                return Err(self.fail("a tag ends with ']' on the line it starts on".into()));
            }
            self.at += 1;
        }
        let arguments = self.arguments()?;
        let first = targets.len();
        let op = match name.as_slice() {
            b"error" => {
                let [probability] = arguments[..] else {
                    return Err(fail("'error' takes one argument, its probability: error(0.001) D0 D1".into()));
                };
                if !(0.0..=1.0).contains(&probability) {
                    return Err(fail(format!("the probability {probability} is not between 0 and 1")));
                }
                Op::Error { probability }
            }
            b"detector" => Op::Declare,
            b"logical_observable" if arguments.is_empty() => Op::Declare,
            b"logical_observable" => return Err(fail("'logical_observable' takes no argument".into())),
            b"shift_detectors" => Op::Shift { by: 0 },
            b"repeat" if arguments.is_empty() => Op::Repeat { count: 0 },
            b"repeat" => return Err(fail("'repeat' takes no argument in parentheses: repeat 5 {".into())),
            _ => {
                return Err(fail(format!(
                    "unknown instruction '{}': expected error, detector, logical_observable, shift_detectors or repeat",
                    String::from_utf8_lossy(&name)
                )));
            }
        };
        self.targets(targets)?;
        let found = &targets[first..];
        let is_block = self.peek() == Some(b'{');
        let op = match (op, found) {
            (Op::Shift { .. }, &[Target::Number(by)]) => Op::Shift { by },
            (Op::Shift { .. }, _) => return Err(fail("'shift_detectors' takes one number: shift_detectors 8".into())),
            (Op::Repeat { .. }, &[Target::Number(0)]) => return Err(fail("'repeat' runs at least once".into())),
            (Op::Repeat { .. }, &[Target::Number(count)]) if is_block => Op::Repeat { count },
            (Op::Repeat { .. }, _) => return Err(fail("'repeat' takes a count and a block: repeat 5 {".into())),
            (op, found) => {
                check_targets(&name, found).map_err(fail)?;
                op
            }
        };
        match op {
            Op::Repeat { .. } => {
                self.at += 1;
                targets.truncate(first);
            }
            _ if is_block => return Err(self.fail("only 'repeat' has a block".into())),
            Op::Shift { .. } => targets.truncate(first),
            _ => {}
        }
        Ok(op)
    }

    /// Reads `(1, 2.5)`, or nothing.
    fn arguments(&mut self) -> Result<Vec<f64>, DemError> {
        let mut arguments = Vec::new();
        if self.peek() != Some(b'(') {
            return Ok(arguments);
        }
        self.at += 1;
        loop {
            self.skip_blanks();
            let start = self.at;
            let word = self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'));
            let number = std::str::from_utf8(word).ok().and_then(|word| word.parse::<f64>().ok());
            let Some(number) = number.filter(|number| number.is_finite()) else {
                self.at = start;
                return Err(self.fail("expected a number, as in (0.001)".into()));
            };
            arguments.push(number);
            self.skip_blanks();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b')') => break,
                _ => return Err(self.fail("expected ',' or ')' after an argument".into())),
            }
        }
        self.at += 1;
        Ok(arguments)
    }

    /// Reads targets up to the end of the line, a comment or `{`.
    fn targets(&mut self, targets: &mut Vec<Target>) -> Result<(), DemError> {
        loop {
            let before = self.at;
            self.skip_blanks();
            let separated = self.at > before;
            let kind = match self.peek() {
                None | Some(b'\n' | b'#' | b'{') => return Ok(()),
                _ if !separated => return Err(self.fail("expected a blank before a target".into())),
                Some(byte) => byte,
            };
            if targets.len() >= MAX_STEPS {
                return Err(self.fail(format!("the model has more than {MAX_STEPS} targets")));
            }
            let start = self.at;
            if !kind.is_ascii_digit() {
                self.at += 1;
            }
            let digits = self.take_while(|byte| byte.is_ascii_digit());
            let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
            let target = match (kind, number) {
                (b'D' | b'd', Some(id)) => Target::Detector(id),
                (b'L' | b'l', Some(id)) => Target::Observable(id),
                (b'^', None) if digits.is_empty() => Target::Separator,
                (b'0'..=b'9', Some(number)) => Target::Number(number),
                _ => {
                    self.at = start;
                    return Err(self.fail("expected a target: D5 (detector), L0 (observable), ^ or a number".into()));
                }
            };
            targets.push(target);
        }
    }

    fn position(&self) -> (u32, u32) {
        (self.line, (self.at - self.line_start + 1) as u32)
    }

    fn fail(&self, message: String) -> DemError {
        let (line, column) = self.position();
        DemError { line, column, message }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn skip_blanks(&mut self) {
        self.take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
    }

    /// Skips blanks, line ends and comments.
    fn skip_between_instructions(&mut self) {
        loop {
            self.skip_blanks();
            match self.peek() {
                Some(b'\n') => {
                    self.at += 1;
                    self.line += 1;
                    self.line_start = self.at;
                }
                Some(b'#') => {
                    self.take_while(|byte| byte != b'\n');
                }
                _ => return,
            }
        }
    }
}

/// Checks that an `error`, `detector` or `logical_observable` has targets of the right kinds.
fn check_targets(name: &[u8], targets: &[Target]) -> Result<(), String> {
    let admits = |target: &Target| match name {
        b"error" => !matches!(target, Target::Number(_)),
        b"detector" => matches!(target, Target::Detector(_)),
        _ => matches!(target, Target::Observable(_)),
    };
    if !targets.iter().all(admits) {
        return Err(match name {
            b"error" => "the targets of 'error' are D# and L#, with ^ between parts".into(),
            b"detector" => "the targets of 'detector' are D#".into(),
            _ => "the targets of 'logical_observable' are L#".into(),
        });
    }
    if name == b"error" {
        let empty = targets.split(|target| matches!(target, Target::Separator)).any(<[Target]>::is_empty);
        if empty && !targets.is_empty() {
            return Err("'^' stands between two parts, each with a target".into());
        }
    } else if targets.is_empty() {
        return Err("expected a target: detector D5, logical_observable L0".into());
    }
    Ok(())
}
