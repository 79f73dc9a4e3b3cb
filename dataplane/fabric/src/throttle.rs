//! Lines of the log that clients provoke.

use std::time::Duration;

use berth_port::Nanos;

/// Lets one line a second through; a counter has to tell of all.
#[derive(Debug, Clone, Copy, Default)]
pub struct OncePerSecond {
    quiet_until: Nanos,
}

impl OncePerSecond {
    /// Whether a line is due; if so the next one is a second later.
    pub fn is_due(&mut self, now: Nanos) -> bool {
        let due = now >= self.quiet_until;
        if due {
            self.quiet_until = now + Duration::from_secs(1);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second() {
        let mut lines = OncePerSecond::default();
        let told: Vec<_> = (0..30).filter(|tenth| lines.is_due(Nanos(tenth * 100_000_000))).collect();
        assert_eq!(told, [0, 10, 20]);
    }
}
