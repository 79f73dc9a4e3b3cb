//! From text to a flat list of instructions.

use super::{DemError, Instruction, MAX_COORDINATES, MAX_NESTING, MAX_STEPS, Op, Program, Target};

pub(super) struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0, line: 1, line_start: 0 }
    }

    pub(super) fn program(mut self) -> Result<Program, DemError> {
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
                let op = self.instruction(&mut program)?;
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

    /// Reads one instruction other than `}`, and appends its targets and coordinates.
    fn instruction(&mut self, program: &mut Program) -> Result<Op, DemError> {
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
        let targets = &mut program.targets;
        let first = targets.len();
        let coordinates = program.coordinates.len();
        if matches!(name.as_slice(), b"detector" | b"shift_detectors") {
            if arguments.len() > MAX_COORDINATES {
                return Err(fail(format!("there are at most {MAX_COORDINATES} coordinates")));
            }
            program.coordinates.extend(&arguments);
        }
        let coordinates = (coordinates as u32, arguments.len() as u32);
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
            b"detector" => Op::Detector { coordinates },
            b"logical_observable" if arguments.is_empty() => Op::Observable,
            b"logical_observable" => return Err(fail("'logical_observable' takes no argument".into())),
            b"shift_detectors" => Op::Shift { by: 0, coordinates },
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
            (Op::Shift { coordinates, .. }, &[Target::Number(by)]) => Op::Shift { by, coordinates },
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
