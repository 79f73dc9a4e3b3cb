//! Whose signatures count.

use std::collections::HashMap;

use crate::{NodeId, PublicKey};

/// The most keys that a node knows: what a peer can make an open node remember is bounded.
pub const MAX_ENROLLED: usize = 65_536;

/// How keys become known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enrolment {
    /// Only those of the configuration.
    #[default]
    Closed,
    /// Whoever asks is enrolled.
    Open,
}

/// The keys that a node knows, by id.
#[derive(Debug, Clone, Default)]
pub struct Enrolled {
    keys: HashMap<NodeId, PublicKey>,
    enrolment: Enrolment,
}

/// Why a key was not enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnrolError {
    /// The node's list is closed.
    #[error("enrolment is closed: the key has to be listed in the node's configuration")]
    Closed,
    /// [`MAX_ENROLLED`] keys are known.
    #[error("the node knows {MAX_ENROLLED} keys, and no more fit")]
    Full,
}

impl Enrolled {
    /// A set that starts with these keys.
    pub fn new(keys: impl IntoIterator<Item = PublicKey>, enrolment: Enrolment) -> Self {
        Self { keys: keys.into_iter().map(|key| (key.id(), key)).collect(), enrolment }
    }

    /// The key of an enrolled id.
    pub fn get(&self, id: NodeId) -> Option<&PublicKey> {
        self.keys.get(&id)
    }

    /// Enrols a key at its holder's own request. A known key stays as it is.
    pub fn enrol(&mut self, key: PublicKey) -> Result<(), EnrolError> {
        match self.enrolment {
            Enrolment::Closed => Err(EnrolError::Closed),
            Enrolment::Open if self.keys.len() >= MAX_ENROLLED && !self.keys.contains_key(&key.id()) => {
                Err(EnrolError::Full)
            }
            Enrolment::Open => {
                self.keys.insert(key.id(), key);
                Ok(())
            }
        }
    }

    /// Every key, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &PublicKey> {
        self.keys.values()
    }
}
