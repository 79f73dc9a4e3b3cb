//! A share of shots.

/// The 97.5th percentile of the normal distribution: an interval of 95 %.
const Z: f64 = 1.959_963_984_540_054;

/// How many of a number of shots went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// So many did.
    pub errors: u64,
    /// Of so many.
    pub shots: u64,
}

impl Rate {
    /// The share; 0 of no shots.
    pub fn share(self) -> f64 {
        if self.shots == 0 { 0.0 } else { self.errors as f64 / self.shots as f64 }
    }

    /// Wilson's interval, which holds the true share in 95 of 100 such experiments: 0 to 1 of no shots.
    pub fn wilson(self) -> [f64; 2] {
        if self.shots == 0 {
            return [0.0, 1.0];
        }
        let (n, p) = (self.shots as f64, self.share());
        let denominator = 1.0 + Z * Z / n;
        let middle = (p + Z * Z / (2.0 * n)) / denominator;
        let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / denominator;
        // At the ends rounding would leave a little less than nothing.
        let low = if self.errors == 0 { 0.0 } else { middle - half };
        let high = if self.errors == self.shots { 1.0 } else { middle + half };
        [low, high]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end of the interval is a share of which what was seen is just so far as 95 % allow.
    #[test]
    fn ends_of_intervals_are_as_far_away_as_allowed() {
        for (errors, shots) in [(0, 100), (1, 10_000), (10, 100), (50, 100), (99, 100), (100, 100)] {
            let rate = Rate { errors, shots };
            for (end, at_edge) in rate.wilson().into_iter().zip([errors == 0, errors == shots]) {
                let deviation = (end * (1.0 - end) / shots as f64).sqrt();
                let away = (rate.share() - end).abs() / deviation.max(f64::MIN_POSITIVE);
                assert!(
                    at_edge && away == 0.0 || (away - 1.96).abs() < 1e-4,
                    "{errors} of {shots}: {end} is {away} away"
                );
            }
        }
        assert_eq!(format!("{:?}", Rate { errors: 0, shots: 0 }.wilson()), "[0.0, 1.0]");
    }
}
