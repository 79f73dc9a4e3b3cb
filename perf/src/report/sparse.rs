//! A histogram as a report holds it: `value:count` pairs in one string, so that readers need no library for it.

use std::{fmt::Write as _, str::FromStr};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::tally::{LONGEST, histogram};

/// The recorded values in nanoseconds, rising, each with how often it was recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Sparse(Vec<(u64, u64)>);

/// Why a text is no histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SparseError {
    /// Something else than pairs of numbers.
    #[error("a histogram is written as value:count value:count ..")]
    NoPairs,
    /// Values out of order, or beyond what is measured.
    #[error("the values of a histogram rise, up to {} ns", LONGEST.as_nanos())]
    NoOrder,
    /// A count of 0, or more than can be counted.
    #[error("the counts of a histogram are from 1, and 2^63 together at most")]
    NoCount,
}

impl Sparse {
    /// The recorded values of a histogram.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect())
    }

    /// The pairs of value and count, rising.
    pub fn pairs(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// As a histogram again, with the bounds of `tally::histogram`.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut whole = histogram();
        for (value, count) in &self.0 {
            whole.record_n(*value, *count).expect("values were checked to be within the bounds");
        }
        whole
    }
}

impl From<Sparse> for String {
    fn from(sparse: Sparse) -> Self {
        let mut text = Self::new();
        for (value, count) in sparse.0 {
            let space = if text.is_empty() { "" } else { " " };
            let _ = write!(text, "{space}{value}:{count}");
        }
        text
    }
}

impl TryFrom<String> for Sparse {
    type Error = SparseError;

    fn try_from(text: String) -> Result<Self, SparseError> {
        text.parse()
    }
}

impl FromStr for Sparse {
    type Err = SparseError;

    fn from_str(text: &str) -> Result<Self, SparseError> {
        let (mut pairs, mut last, mut total) = (Vec::new(), None, 0_u64);
        // The highest bucket's own upper end is beyond the bound.
        let highest = histogram().highest_equivalent(LONGEST.as_nanos() as u64);
        for pair in text.split_ascii_whitespace() {
            let numbers =
                pair.split_once(':').and_then(|(value, count)| Some((value.parse().ok()?, count.parse().ok()?)));
            let (value, count): (u64, u64) = numbers.ok_or(SparseError::NoPairs)?;
            if value > highest || last.is_some_and(|last| value <= last) {
                return Err(SparseError::NoOrder);
            }
            total =
                total.checked_add(count).filter(|total| count > 0 && *total <= 1 << 63).ok_or(SparseError::NoCount)?;
            last = Some(value);
            pairs.push((value, count));
        }
        Ok(Self(pairs))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_recorded_comes_back(values in prop::collection::vec((0..=LONGEST.as_nanos() as u64, 1..1000_u64), 0..50)) {
            let mut whole = histogram();
            for (value, count) in values {
                whole.record_n(value, count).unwrap();
            }
            let text = String::from(Sparse::of(&whole));
            prop_assert_eq!(text.parse::<Sparse>().unwrap().histogram(), whole);
        }

        #[test]
        fn any_text_is_a_histogram_or_an_error(text in "[0-9: x-]{0,60}") {
            if let Ok(sparse) = text.parse::<Sparse>() {
                prop_assert_eq!(sparse.histogram().len(), sparse.count());
            }
        }
    }

    #[test]
    fn mistakes_are_told_apart() {
        let parse = |text: &str| text.parse::<Sparse>().unwrap_err();
        assert_eq!(parse("1:2 x"), SparseError::NoPairs);
        assert_eq!(parse("5:1 4:1"), SparseError::NoOrder);
        assert_eq!(parse("999999999999999:1"), SparseError::NoOrder);
        assert_eq!([parse("1:0"), parse("1:9223372036854775807 2:9")], [SparseError::NoCount; 2]);
    }
}
