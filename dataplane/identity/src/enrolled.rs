//! Whose signatures count.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{NodeId, PublicKey};

/// The most keys that a node knows, and the most that it remembers as removed: what a peer can make an open node
/// remember is bounded.
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
    keys: Arc<RwLock<Keys>>,
}

#[derive(Debug, Default)]
struct Keys {
    /// Those of the configuration.
    listed: HashMap<NodeId, PublicKey>,
    /// Those that enrolled themselves: they count while enrolment is open.
    asked: HashMap<NodeId, PublicKey>,
    /// Those that never count again, wherever else they are.
    removed: HashSet<NodeId>,
    enrolment: Enrolment,
}

/// How a key stands with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The configuration lists it.
    Listed(PublicKey),
    /// It enrolled itself.
    Asked(PublicKey),
    /// It was removed.
    Removed,
}

/// Why a key was not enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnrolError {
    /// The node's list is closed.
    #[error("enrolment is closed: the key has to be listed in the node's configuration")]
    Closed,
    /// The key was removed.
    #[error("the key was removed: its holder has to make a new one")]
    Removed,
    /// [`MAX_ENROLLED`] keys are known, or remembered as removed.
    #[error("the node knows {MAX_ENROLLED} keys, and no more fit")]
    Full,
}

impl Enrolled {
    /// A set that starts with these keys.
    pub fn new(listed: impl IntoIterator<Item = PublicKey>, enrolment: Enrolment) -> Self {
        let keys = Self::default();
        keys.list(listed, enrolment);
        keys
    }

    /// Puts these keys in the place of those of the configuration, and says how others become known.
    pub fn list(&self, listed: impl IntoIterator<Item = PublicKey>, enrolment: Enrolment) {
        let mut keys = self.write();
        keys.listed = listed.into_iter().map(|key| (key.id(), key)).collect();
        keys.enrolment = enrolment;
    }

    /// The key of an enrolled id.
    pub fn get(&self, id: NodeId) -> Option<PublicKey> {
        self.read().get(id)
    }

    /// How many keys are known, those that enrolled themselves included.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enrols a key at its holder's own request; false if it is enrolled already.
    pub fn enrol(&self, key: PublicKey) -> Result<bool, EnrolError> {
        let mut keys = self.write();
        let id = key.id();
        match () {
            () if keys.enrolment == Enrolment::Closed => Err(EnrolError::Closed),
            () if keys.removed.contains(&id) => Err(EnrolError::Removed),
            () if keys.get(id).is_some() => Ok(false),
            () if keys.len() >= MAX_ENROLLED => Err(EnrolError::Full),
            () => {
                keys.asked.insert(id, key);
                Ok(true)
            }
        }
    }

    /// Enters a key that enrolled itself before a restart, also while enrolment is closed: it does not count then.
    pub fn restore(&self, key: PublicKey) {
        self.write().asked.insert(key.id(), key);
    }

    /// Has a key never count again, whoever lists or enrols it.
    pub fn remove(&self, id: NodeId) -> Result<(), EnrolError> {
        let mut keys = self.write();
        if keys.removed.len() >= MAX_ENROLLED && !keys.removed.contains(&id) {
            return Err(EnrolError::Full);
        }
        keys.removed.insert(id);
        keys.asked.remove(&id);
        Ok(())
    }

    /// The keys that count, and those that were removed, by their ids behind `after`.
    pub fn behind(&self, after: NodeId) -> BTreeMap<NodeId, Known> {
        let keys = self.read();
        let open = keys.enrolment == Enrolment::Open;
        let asked = keys.asked.iter().filter(|_| open).map(|(id, key)| (*id, Known::Asked(*key)));
        let listed = keys.listed.iter().map(|(id, key)| (*id, Known::Listed(*key)));
        let removed = keys.removed.iter().map(|id| (*id, Known::Removed));
        asked.chain(listed).chain(removed).filter(|(id, _)| *id > after).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Keys> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keys {
    fn get(&self, id: NodeId) -> Option<PublicKey> {
        if self.removed.contains(&id) {
            return None;
        }
        let asked = || self.asked.get(&id).filter(|_| self.enrolment == Enrolment::Open);
        self.listed.get(&id).or_else(asked).copied()
    }

    fn len(&self) -> usize {
        self.listed.len() + self.asked.len()
    }
}
