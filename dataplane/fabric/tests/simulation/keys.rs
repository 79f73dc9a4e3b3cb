//! The oracle's knowledge of revoked and removed keys, and of quotas.

use std::collections::HashMap;

use berth_identity::{Enrolled, NodeId};
use berth_lease::Item;
use berth_wire::fabric::{KeyList, KeyRevoke, KeyRevoked, KeyStanding, Op, Wire as _};

use super::{
    oracle::{Note, Oracle},
    world::{Executing, MOST_HANDLES, World, keys},
};

#[derive(Debug, Default)]
pub struct Keyring {
    /// Keys whose removal was executed in this run or is durable, and whether that was answered.
    pub removed: HashMap<u128, bool>,
    /// To which key each token was issued, in any run.
    pub issued: HashMap<u128, u128>,
}

/// What the revocation of one key ends.
#[derive(Debug)]
pub struct KeyEnds {
    key: u128,
    remove: bool,
    leases: Vec<u128>,
    attachments: Vec<u64>,
    tokens: Vec<u128>,
}

impl Oracle {
    /// A revocation by holder is executed: all that the key has is over.
    pub(super) fn revokes_key(&mut self, key: u128, remove: bool) -> KeyEnds {
        let held = self.leases.iter_mut().filter(|(_, lease)| lease.holder == key);
        let leases: Vec<u128> = held
            .map(|(id, lease)| {
                (lease.over, lease.holder_revoked) = (true, true);
                *id
            })
            .collect();
        let imported = self.attachments.iter_mut().filter(|(_, attached)| attached.importer == key);
        let attachments: Vec<u64> = imported
            .map(|(key, attached)| {
                (attached.at_least, attached.over) = (None, true);
                *key
            })
            .collect();
        for key in &attachments {
            // An access by it that begins from now on is one to nothing.
            self.keys.remove(key);
        }
        let tokens: Vec<u128> =
            self.keyring.issued.iter().filter(|(_, to)| **to == key).map(|(token, _)| *token).collect();
        for token in &tokens {
            self.revoked.entry(*token).or_insert(false);
        }
        if remove {
            self.keyring.removed.entry(key).or_insert(false);
        }
        KeyEnds { key, remove, leases, attachments, tokens }
    }

    /// A revocation by holder is answered.
    pub fn key_ended(&mut self, ends: &KeyEnds) {
        self.answered(&Note::Over(ends.leases.clone(), None));
        for key in &ends.attachments {
            self.attachments.get_mut(key).expect("it was imported").over_for_good = true;
        }
        self.revoked.extend(ends.tokens.iter().map(|token| (*token, true)));
        if ends.remove {
            self.keyring.removed.insert(ends.key, true);
        }
    }

    /// An access under this attachment or lease key reads or writes bytes.
    pub fn reaches(&self, key: u64) {
        let over = self.attachments.get(&key).is_some_and(|attached| attached.over_for_good);
        assert!(!over, "an access by attachment {key:016x} went on after its importer's revocation was answered");
    }

    /// A node has started: it must serve no key whose removal was answered.
    pub fn finds_keys(&mut self, known: &Enrolled) {
        self.keyring.removed.retain(|key, answered| {
            let served = known.get(NodeId(*key)).is_some();
            assert!(!served || !*answered, "key {key:032x} is back after its removal was answered");
            !served
        });
    }

    /// Checks the answer of `KEY_LIST`: every client's key and its standing.
    pub fn listed(&self, list: &KeyList<'_>) {
        assert!(!list.more);
        for key in keys() {
            let entry = list.keys.iter().find(|entry| entry.key_id == key).expect("it is listed");
            let removed = self.keyring.removed.contains_key(&key);
            assert_eq!(entry.standing == KeyStanding::Removed, removed, "key {key:032x}");
        }
    }
}

impl World {
    pub(super) fn key_revoked(&mut self, asked: &Executing, result: &[u8]) -> Note {
        let KeyRevoke { key_id, remove } = KeyRevoke::parse(&asked.params).expect("it was served");
        // Leases whose grant is not answered yet count, too.
        KeyRevoked::parse(result).expect("how many leases");
        let ends = self.oracle.revokes_key(key_id, remove);
        self.summary.keys_revoked += 1;
        self.summary.keys_removed += u64::from(remove);
        self.summary.detached += ends.attachments.len() as u64;
        Note::Key(ends)
    }

    /// Checks that a client has no more handles or attachments than its quota.
    pub(super) fn within_quota(&self, who: u128) {
        let has = self.process.node.leases().usage(who);
        let [handles, attachments] = [has[Item::Handles], has[Item::Attachments]];
        assert!(handles.max(attachments) <= MOST_HANDLES, "{handles} handles, {attachments} attachments");
    }

    /// Checks that no handle or attachment is refused because of what others have.
    pub(super) fn over_quota(&mut self, asked: &Executing) {
        let item = match asked.op {
            Op::LeaseExportHandle => Item::Handles,
            Op::LeaseImportHandle => Item::Attachments,
            _ => return,
        };
        let has = self.process.node.leases().usage(asked.sender)[item];
        assert_eq!(has, MOST_HANDLES, "{} was refused to who has not its quota", asked.op);
        self.summary.over_quota += 1;
    }
}
