//! A connection whose host has to prove who it is before it becomes a queue.

use berth_port::Nanos;

use super::{Connection, Step};
use crate::{auth::QueueAuth, connect::Joining, counts::Event};

/// Authentication of a connection.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) queue: QueueAuth,
    /// What it becomes once its host has proved who it is.
    pub(super) joining: Option<Box<Joining>>,
}

impl Connection {
    /// Goes on with authentication; what to do where that is not to go on with the queue.
    pub(super) fn prove(&mut self, now: Nanos) -> Option<Step> {
        let proof = self.proof.as_mut()?;
        proof.queue.go_on(&mut self.queue, &mut self.counts, now);
        if self.queue.first().is_some() {
            return Some(Step::Taken(0));
        }
        self.closing |= proof.queue.has_failed();
        if proof.queue.is_proven()
            && let Some(joining) = proof.joining.take()
        {
            if let Ok(role) = joining.enter(&self.target, self.local, self.framing.data_digest, now) {
                self.role = role;
            } else {
                // Another connection of the host was faster.
                self.counts.add(Event::ConnectsRefused);
                self.closing = true;
            }
        }
        self.closing.then_some(Step::Taken(0))
    }

    /// Whether the host does not prove who it is, and what it asked for is not waited for any more.
    pub(super) fn is_unproven(&mut self, now: Nanos) -> bool {
        let Some(proof) = &mut self.proof else { return false };
        proof.queue.is_late(&mut self.counts, now) || proof.joining.as_ref().is_some_and(|joining| joining.has_ended())
    }
}
