//! Whose signatures count.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

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

/// The keys that a node knows, by id. Clones are handles to the same set, so that who verifies signatures needs nothing
/// else of the node.
#[derive(Debug, Clone, Default)]
pub struct Enrolled {
    keys: Arc<RwLock<HashMap<NodeId, PublicKey>>>,
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
        let keys = keys.into_iter().map(|key| (key.id(), key)).collect();
        Self { keys: Arc::new(RwLock::new(keys)), enrolment }
    }

    /// The key of an enrolled id.
    pub fn get(&self, id: NodeId) -> Option<PublicKey> {
        self.read().get(&id).copied()
    }

    /// How many keys are known.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.read().is_empty()
    }

    /// Enrols a key at its holder's own request. A known key stays as it is.
    pub fn enrol(&self, key: PublicKey) -> Result<(), EnrolError> {
        if self.enrolment == Enrolment::Closed {
            return Err(EnrolError::Closed);
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.len() >= MAX_ENROLLED && !keys.contains_key(&key.id()) {
            return Err(EnrolError::Full);
        }
        keys.insert(key.id(), key);
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<NodeId, PublicKey>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }
}
