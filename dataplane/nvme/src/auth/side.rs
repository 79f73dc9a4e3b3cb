//! What the two sides of a transaction have in common.

use std::sync::Arc;

use berth_wire::nvme::auth::{Group, Hash, Reason};

use super::{Parameters, Random, group::Exponentiation};

/// One side of a transaction, whatever it waits for.
pub(super) struct Side {
    pub(super) parameters: Arc<Parameters>,
    pub(super) random: Random,
    /// The host's number of the transaction; failures carry it too.
    pub(super) t_id: u16,
    /// What is to be computed, until it is given out.
    pub(super) work: Option<Exponentiation>,
}

impl Side {
    pub(super) fn new(parameters: Arc<Parameters>, random: Random, t_id: u16) -> Self {
        Self { parameters, random, t_id, work: None }
    }

    /// Has this side's exponent applied to the generator, or to the peer's DH value.
    pub(super) fn raise(&mut self, group: Group, base: Option<Vec<u8>>) {
        self.work = Some(Exponentiation { group, base, exponent: self.random.exponent() });
    }
}

/// Whether a message has a digest and a DH value of the lengths that were agreed on.
pub(super) fn check_lengths(hash: Hash, group: Group, digest: &[u8], dh: &[u8]) -> Result<(), Reason> {
    let fit = digest.len() == hash.len() && dh.len() == group.len();
    fit.then_some(()).ok_or(Reason::IncorrectPayload)
}
