//! States of queue pairs, independent of a device.

use std::fmt;

use rdma_mummy_sys::ibv_qp_state as raw;

/// Types of queue pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpKind {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl fmt::Display for QpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// States of queue pairs (InfiniBand architecture 1.4, section 10.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// New, or reset; holds no work.
    Reset,
    /// Receives can be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Sends are being drained; no new ones start.
    Sqd,
    /// A send failed; an unreliable queue pair only.
    Sqe,
    /// All work completes flushed.
    Error,
}

impl State {
    /// Whether a queue pair may be moved from this state to `to`.
    pub fn leads_to(self, to: Self) -> bool {
        match to {
            Self::Reset | Self::Error => true,
            Self::Init => matches!(self, Self::Reset | Self::Init),
            Self::Rtr => self == Self::Init,
            Self::Rts => matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe),
            Self::Sqd | Self::Sqe => false,
        }
    }

    /// Whether receives may be posted.
    pub fn takes_receives(self) -> bool {
        self != Self::Reset
    }

    /// Whether sends may be posted; in [`State::Error`] they complete flushed.
    pub fn takes_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Error)
    }

    pub(crate) fn from_raw(state: raw::Type) -> Self {
        match state {
            raw::IBV_QPS_RESET => Self::Reset,
            raw::IBV_QPS_INIT => Self::Init,
            raw::IBV_QPS_RTR => Self::Rtr,
            raw::IBV_QPS_RTS => Self::Rts,
            raw::IBV_QPS_SQD => Self::Sqd,
            raw::IBV_QPS_SQE => Self::Sqe,
            _ => Self::Error,
        }
    }

    pub(crate) fn to_raw(self) -> raw::Type {
        match self {
            Self::Reset => raw::IBV_QPS_RESET,
            Self::Init => raw::IBV_QPS_INIT,
            Self::Rtr => raw::IBV_QPS_RTR,
            Self::Rts => raw::IBV_QPS_RTS,
            Self::Sqd => raw::IBV_QPS_SQD,
            Self::Sqe => raw::IBV_QPS_SQE,
            Self::Error => raw::IBV_QPS_ERR,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERROR",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [State; 7] = [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Sqe, State::Error];

    #[test]
    fn the_way_up_has_no_short_cut_and_the_way_down_is_always_open() {
        for from in ALL {
            assert!(from.leads_to(State::Error) && from.leads_to(State::Reset));
            let up: Vec<_> =
                [State::Init, State::Rtr, State::Rts].into_iter().filter(|to| from.leads_to(*to)).collect();
            let expected: &[State] = match from {
                State::Reset => &[State::Init],
                State::Init => &[State::Init, State::Rtr],
                State::Rtr | State::Rts | State::Sqd | State::Sqe => &[State::Rts],
                State::Error => &[],
            };
            assert_eq!(up, expected, "from {from}");
        }
    }

    #[test]
    fn states_are_the_librarys() {
        for state in ALL {
            assert_eq!(State::from_raw(state.to_raw()), state);
        }
    }

    #[test]
    fn work_is_taken_when_the_architecture_says() {
        let receives: Vec<_> = ALL.into_iter().filter(|state| state.takes_receives()).collect();
        assert_eq!(receives, ALL[1..]);
        let sends: Vec<_> = ALL.into_iter().filter(|state| state.takes_sends()).collect();
        assert_eq!(sends, [State::Rts, State::Sqd, State::Sqe, State::Error]);
    }
}
