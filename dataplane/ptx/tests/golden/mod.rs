//! Instructions with edge operands, and the results that `make_vectors.py` worked out.
#![allow(dead_code, reason = "each test file uses a part")]

use super::common::text;

pub(crate) const VECTORS: &str = include_str!("vectors.txt");

/// What instructions may use beside their operands.
const DECLARE: &str = ".reg .b32 %x32;\n.reg .b64 %x64;\n.reg .pred %p;";

/// An instruction with operands.
pub(crate) struct Case<'v> {
    pub(crate) instruction: &'v str,
    /// Types of its operands, and of its result.
    types: &'v str,
    /// As they are written.
    given: &'v str,
    pub(crate) operands: [u64; 4],
    /// As it is written: hexadecimal digits, or `nan`.
    pub(crate) result: &'v str,
}

impl<'v> Case<'v> {
    fn parse(line: &'v str) -> Self {
        let mut parts = line.split(" | ");
        let mut next = || parts.next().expect("three parts");
        let (instruction, types, case) = (next(), next(), next());
        let (given, result) = case.split_once(" = ").expect("a result");
        let mut operands = [0; 4];
        for (operand, word) in operands.iter_mut().zip(given.split(' ')) {
            *operand = u64::from_str_radix(word, 16).expect("a number");
        }
        Self { instruction, types, given, operands, result }
    }

    fn result_type(&self) -> &'v str {
        self.types.split_once(" -> ").expect("types").1
    }

    /// Whether that is the result.
    pub(crate) fn is(&self, found: u64) -> bool {
        match (self.result, self.result_type()) {
            ("nan", "f32") => f32::from_bits(found as u32).is_nan(),
            ("nan", _) => f64::from_bits(found).is_nan(),
            (expected, _) => u64::from_str_radix(expected, 16).expect("a number") == found,
        }
    }

    /// The line of a device that has found this.
    pub(crate) fn line(&self, found: u64) -> String {
        let digits =
            if self.result == "nan" { if self.result_type() == "f32" { 8 } else { 16 } } else { self.result.len() };
        format!("{} | {} | {} = {found:0digits$x}\n", self.instruction, self.types, self.given)
    }
}

/// All cases, by instructions.
pub(crate) fn groups() -> Vec<Vec<Case<'static>>> {
    let mut groups: Vec<Vec<Case<'_>>> = Vec::new();
    for case in VECTORS.lines().map(Case::parse) {
        match groups.last_mut().filter(|group| (group[0].instruction, group[0].types) == (case.instruction, case.types))
        {
            Some(group) => group.push(case),
            None => groups.push(vec![case]),
        }
    }
    groups
}

/// The kernel that runs a group, see [`text`].
pub(crate) fn kernel(group: &[Case<'_>]) -> String {
    let (types, result) = group[0].types.split_once(" -> ").expect("types");
    let dotted: Vec<_> = types.split(' ').map(|ty| format!(".{ty}")).collect();
    let dotted: Vec<&str> = dotted.iter().map(String::as_str).collect();
    text(DECLARE, group[0].instruction, &dotted, &format!(".{result}"))
}
