//! What a function is to the pool. Only one that is free is granted, and a function is free when no lease has it and it is
//! clean: whoever takes one back says so at the very end.

use berth_lease::LeaseId;

/// What a function is to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No lease has it, and it is clean.
    Free,
    /// A lease has it, and its holder does not reach it.
    Leased,
    /// It is handed over, or is being handed over.
    Bound,
    /// It is being taken back.
    Ending,
    /// It could not be taken back, or was not clean when this process began.
    Fenced,
}

/// Whose a function is, and how its hardware stands.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    lease: Option<LeaseId>,
    hardware: Hardware,
    /// Counts what was begun with the hardware: who began something earlier has to leave it alone.
    turn: u64,
}

/// How the hardware stands; the lease is that for which it was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Hardware {
    #[default]
    Clean,
    Given(LeaseId),
    Ending(LeaseId),
    Fenced(LeaseId),
}

impl Slot {
    /// One that was not clean when this process began.
    pub(crate) fn unclean(lease: LeaseId) -> Self {
        Self { hardware: Hardware::Fenced(lease), ..Self::default() }
    }

    pub(crate) fn state(&self) -> State {
        match (self.hardware, self.lease) {
            (Hardware::Clean, None) => State::Free,
            (Hardware::Clean, Some(_)) => State::Leased,
            (Hardware::Given(_), _) => State::Bound,
            (Hardware::Ending(_), _) => State::Ending,
            (Hardware::Fenced(_), _) => State::Fenced,
        }
    }

    /// Whether a lease has it.
    pub(crate) fn is_of(&self, lease: LeaseId) -> bool {
        self.lease == Some(lease)
    }

    /// For which lease the hardware was handed over, if it is not clean.
    pub(crate) fn given_to(&self) -> Option<LeaseId> {
        match self.hardware {
            Hardware::Clean => None,
            Hardware::Given(lease) | Hardware::Ending(lease) | Hardware::Fenced(lease) => Some(lease),
        }
    }

    /// Gives it to a lease; false unless it is free.
    pub(crate) fn grant(&mut self, lease: LeaseId) -> bool {
        let free = self.state() == State::Free;
        if free {
            self.lease = Some(lease);
        }
        free
    }

    /// Gives a lease what it had before a restart; false where another has it.
    pub(crate) fn recover(&mut self, lease: LeaseId) -> bool {
        let its = self.lease.is_none() && self.given_to().is_none_or(|given| given == lease);
        if its {
            self.lease = Some(lease);
        }
        its
    }

    /// Begins to hand it over; the turn, unless it is leased to this lease and clean.
    pub(crate) fn give(&mut self, lease: LeaseId) -> Option<u64> {
        let ready = self.is_of(lease) && self.state() == State::Leased;
        ready.then(|| {
            self.hardware = Hardware::Given(lease);
            self.turn += 1;
            self.turn
        })
    }

    /// What was handed over before a restart stays so.
    pub(crate) fn adopt(&mut self, lease: LeaseId) {
        debug_assert_eq!(self.hardware, Hardware::Fenced(lease), "it was not clean");
        self.hardware = Hardware::Given(lease);
    }

    /// Begins to take it back; the turn, unless it is clean or being taken back.
    pub(crate) fn end(&mut self) -> Option<u64> {
        let (Hardware::Given(lease) | Hardware::Fenced(lease)) = self.hardware else { return None };
        self.hardware = Hardware::Ending(lease);
        self.turn += 1;
        Some(self.turn)
    }

    /// It was taken back, or could not be.
    pub(crate) fn ended(&mut self, turn: u64, clean: bool) {
        if let Hardware::Ending(lease) = self.hardware
            && self.turn == turn
        {
            self.hardware = if clean { Hardware::Clean } else { Hardware::Fenced(lease) };
        }
    }

    /// Whether what was begun in this turn is still to be done.
    pub(crate) fn is_turn(&self, turn: u64) -> bool {
        self.turn == turn
    }

    /// Nobody's lease has it any more; false while it is not clean.
    pub(crate) fn release(&mut self) -> bool {
        let clean = self.hardware == Hardware::Clean;
        if clean {
            self.lease = None;
        }
        clean
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is done in whatever order: it is granted only when it is clean and no lease has it, and what is begun
        /// with the hardware is the only thing that is under way with it.
        #[test]
        fn only_what_is_free_is_granted(ops in prop::collection::vec((0..7_u8, 1..4_u128, any::<bool>()), 1..200)) {
            let mut slot = Slot::default();
            let (mut owner, mut dirty, mut latest) = (None, None, 0);
            for (op, lease, flag) in ops {
                let id = LeaseId(lease);
                match op {
                    0 => prop_assert_eq!(slot.grant(id), owner.is_none() && dirty.is_none()),
                    1 => if let Some(turn) = slot.give(id) {
                        prop_assert!(owner == Some(id) && dirty.is_none() && turn > latest);
                        (dirty, latest) = (Some(id), turn);
                    },
                    2 => if let Some(turn) = slot.end() {
                        prop_assert!(dirty.is_some() && turn > latest);
                        latest = turn;
                    },
                    // Late news of an earlier turn change nothing.
                    3 => {
                        let before = slot.state();
                        slot.ended(latest.wrapping_sub(1), flag);
                        prop_assert_eq!(slot.state(), before);
                    }
                    4 => {
                        let ending = slot.state() == State::Ending;
                        slot.ended(latest, flag);
                        if ending && flag { dirty = None }
                    }
                    5 => prop_assert_eq!(slot.release(), dirty.is_none()),
                    _ => prop_assert_eq!(slot.recover(id), owner.is_none() && dirty.is_none_or(|given| given == id)),
                }
                match op {
                    0 if owner.is_none() && dirty.is_none() => owner = Some(id),
                    5 if dirty.is_none() => owner = None,
                    6 if owner.is_none() && dirty.is_none_or(|given| given == id) => owner = Some(id),
                    _ => {}
                }
                prop_assert_eq!(slot.given_to(), dirty);
                prop_assert_eq!(slot.state() == State::Free, owner.is_none() && dirty.is_none());
                prop_assert_eq!(slot.is_turn(latest), true);
            }
        }
    }
}
