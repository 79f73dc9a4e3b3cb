//! The keys whose signatures are accepted.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{NodeId, PublicKey};

/// Limit on the keys that a node knows, and on those that it remembers as removed. It bounds what peers can make an
/// open node remember.
pub const MAX_ENROLLED: usize = 65_536;

/// How keys become enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Enrolment {
    /// Only the keys of the configuration are.
    #[default]
    Closed,
    /// Every key that asks is enrolled.
    Open,
}

/// The keys that a node knows, by id. Clones share the same set, so that code which verifies signatures needs no other
/// part of the node.
#[derive(Debug, Clone, Default)]
pub struct Enrolled {
    keys: Arc<RwLock<Keys>>,
}

#[derive(Debug, Default)]
struct Keys {
    /// Keys of the configuration.
    listed: HashMap<NodeId, PublicKey>,
    /// Keys that enrolled by request. They are accepted while enrolment is open.
    asked: HashMap<NodeId, PublicKey>,
    /// Keys that are never accepted again, even if they are in the other sets.
    removed: HashSet<NodeId>,
    enrolment: Enrolment,
}

/// The standing of a key with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The configuration lists it.
    Listed(PublicKey),
    /// It enrolled by request.
    Asked(PublicKey),
    /// It was removed, and is never accepted again.
    Removed,
}

/// Why a key was not enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnrolError {
    /// Enrolment is closed.
    #[error("enrolment is closed: the key has to be listed in the node's configuration")]
    Closed,
    /// The key was removed before.
    #[error("the key was removed: its holder has to make a new one")]
    Removed,
    /// [`MAX_ENROLLED`] keys are known, or are remembered as removed.
    #[error("the node knows {MAX_ENROLLED} keys, and no more fit")]
    Full,
}

impl Enrolled {
    /// Starts with the keys of the configuration.
    pub fn new(listed: impl IntoIterator<Item = PublicKey>, enrolment: Enrolment) -> Self {
        let keys = Self::default();
        keys.list(listed, enrolment);
        keys
    }

    /// Replaces the keys of the configuration and the way of enrolment.
    pub fn list(&self, listed: impl IntoIterator<Item = PublicKey>, enrolment: Enrolment) {
        let mut keys = self.write();
        keys.listed = listed.into_iter().map(|key| (key.id(), key)).collect();
        keys.enrolment = enrolment;
    }

    /// The key with this id, if it is accepted.
    pub fn get(&self, id: NodeId) -> Option<PublicKey> {
        self.read().get(id)
    }

    /// Number of keys known, those enrolled by request included.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enrols a key by request; false if it is enrolled already.
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

    /// Adds a key that enrolled before a restart. While enrolment is closed it is kept but not accepted.
    pub fn restore(&self, key: PublicKey) {
        self.write().asked.insert(key.id(), key);
    }

    /// Removes a key for good, even if it is listed or asks again.
    pub fn remove(&self, id: NodeId) -> Result<(), EnrolError> {
        let mut keys = self.write();
        if keys.removed.len() >= MAX_ENROLLED && !keys.removed.contains(&id) {
            return Err(EnrolError::Full);
        }
        keys.removed.insert(id);
        keys.asked.remove(&id);
        Ok(())
    }

    /// The accepted and the removed keys with ids above `after`, by id.
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
