//! Which function is called next: scripts of one or several steps, drawn in a fixed weighted order.

use crate::verify::Step;

/// Calls that belong together, with how often they are drawn.
#[derive(Debug, Clone)]
pub struct Script {
    /// The steps in order. A script of several is a session: the next step waits for the answer to the one before, and
    /// after a step that failed the script goes on with its last step, which must bring the session back to its start.
    pub steps: Vec<Step>,
    /// How many of the mix's calls, in parts of the sum of all weights; at least 1.
    pub weight: u32,
}

/// The functions a case calls, and where it stands.
#[derive(Debug)]
pub struct Mix {
    steps: Vec<Step>,
    cursors: Vec<Cursor>,
    /// One period of the weighted order: indices into `cursors`.
    order: Vec<u16>,
    at: usize,
}

#[derive(Debug)]
struct Cursor {
    first: usize,
    len: usize,
    step: usize,
    row: usize,
    rows: usize,
    busy: bool,
}

/// The next call: row `row` of step `step`, of script `script`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Index of the script.
    pub script: u16,
    /// Index into [`Mix::steps`].
    pub step: u16,
    /// Which payload of the step.
    pub row: u32,
}

impl Mix {
    /// A mix of `scripts`, interleaved evenly by weight (smooth weighted round robin).
    ///
    /// # Panics
    /// Without scripts, and for a script without steps or rows, or of weight 0.
    pub fn new(scripts: &[Script]) -> Self {
        let mut steps = Vec::new();
        let mut cursors = Vec::new();
        for script in scripts {
            let rows = script.steps.iter().map(|step| step.payloads.rows()).min().unwrap_or(0);
            assert!(rows > 0 && script.weight > 0, "a script has steps, rows and a weight");
            let (first, len) = (steps.len(), script.steps.len());
            cursors.push(Cursor { first, len, step: 0, row: 0, rows, busy: false });
            steps.extend(script.steps.iter().cloned());
        }
        Self { steps, cursors, order: weighted_order(scripts), at: 0 }
    }

    /// Every step, script after script.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The call to make next. A session that waits for an answer loses its turn; `None` while there are only such.
    #[inline]
    pub fn upcoming(&mut self) -> Option<Call> {
        let idle = |script: &u16| !self.cursors[*script as usize].busy;
        let (before, after) = self.order.split_at(self.at);
        let skipped = after.iter().chain(before).position(idle)?;
        self.at = (self.at + skipped) % self.order.len();
        let script = self.order[self.at];
        let cursor = &self.cursors[script as usize];
        let step = (cursor.first + cursor.step) as u16;
        Some(Call { script, step, row: cursor.row as u32 })
    }

    /// Takes note that the call that [`Mix::upcoming`] returned was sent.
    #[inline]
    pub fn sent(&mut self) {
        let cursor = &mut self.cursors[self.order[self.at] as usize];
        self.at = if self.at + 1 == self.order.len() { 0 } else { self.at + 1 };
        if cursor.len == 1 {
            cursor.advance_row();
        } else {
            cursor.busy = true;
        }
    }

    /// Takes note that a call ended, successfully or not.
    #[inline]
    pub fn ended(&mut self, call: Call, success: bool) {
        let cursor = &mut self.cursors[call.script as usize];
        if cursor.len == 1 {
            return;
        }
        cursor.busy = false;
        if !success {
            cursor.step = cursor.len - 1;
        } else if cursor.step + 1 < cursor.len {
            cursor.step += 1;
        } else {
            cursor.step = 0;
            cursor.advance_row();
        }
    }
}

impl Cursor {
    #[inline]
    fn advance_row(&mut self) {
        self.row = if self.row + 1 == self.rows { 0 } else { self.row + 1 };
    }
}

fn weighted_order(scripts: &[Script]) -> Vec<u16> {
    let total: i64 = scripts.iter().map(|script| i64::from(script.weight)).sum();
    let mut credit = vec![0_i64; scripts.len()];
    let mut order = Vec::new();
    for _ in 0..total {
        for (credit, script) in credit.iter_mut().zip(scripts) {
            *credit += i64::from(script.weight);
        }
        let richest = (0..credit.len()).max_by_key(|&i| (credit[i], std::cmp::Reverse(i))).expect("a mix has scripts");
        credit[richest] -= total;
        order.push(richest as u16);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::{Expect, Table};

    fn step(function_id: u32, rows: usize) -> Step {
        let table = Table::build(1, rows, |row, bytes| bytes[0] = row as u8);
        Step { name: "step", function_id, payloads: table.clone(), expect: Expect::Bytes(table) }
    }

    #[test]
    fn weights_interleave() {
        let scripts = [3, 1].map(|weight| Script { steps: vec![step(weight, 2)], weight });
        let mut mix = Mix::new(&scripts);
        let drawn: Vec<_> = (0..8)
            .map(|_| {
                let call = mix.upcoming().unwrap();
                mix.sent();
                (call.script, call.row)
            })
            .collect();
        assert_eq!(drawn, [(0, 0), (0, 1), (1, 0), (0, 0), (0, 1), (0, 0), (1, 1), (0, 1)]);
    }

    #[test]
    fn a_waiting_session_does_not_hold_up_the_others() {
        let session = Script { steps: vec![step(0, 2), step(1, 2)], weight: 1 };
        let mut mix = Mix::new(&[session, Script { steps: vec![step(2, 9)], weight: 1 }]);
        let mut drawn = Vec::new();
        for turn in 0..5 {
            let call = mix.upcoming().unwrap();
            mix.sent();
            drawn.push(call.step);
            if turn == 3 {
                mix.ended(Call { script: 0, step: 0, row: 0 }, true);
            }
        }
        assert_eq!(drawn, [0, 2, 2, 2, 1]);
    }

    #[test]
    fn a_session_waits_and_recovers_with_its_last_step() {
        let mut mix = Mix::new(&[Script { steps: (0..3).map(|id| step(id, 2)).collect(), weight: 1 }]);
        let mut drawn = Vec::new();
        for success in [true, true, true, true, false, false, true, true] {
            let call = mix.upcoming().unwrap();
            mix.sent();
            assert_eq!(mix.upcoming(), None);
            mix.ended(call, success);
            drawn.push((call.step, call.row));
        }
        assert_eq!(drawn, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (2, 1), (0, 0)]);
    }
}
