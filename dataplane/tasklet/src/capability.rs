//! The capabilities of a run: what it may touch, by which name, and with which rights (T6).

use berth_port::Nanos;
use berth_wire::fabric::TaskletRights;

use crate::hostcall::{Kind, Named, code};

/// The thing that a `cap_token` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// A lease that the presenter holds.
    Lease {
        /// Full id of the lease.
        lease: u128,
        /// Memory or blocks.
        kind: Kind,
    },
    /// A handle to a lease, for tasklets of this presenter or of anyone.
    Handle {
        /// Full id of the lease.
        lease: u128,
        /// Memory or blocks.
        kind: Kind,
        /// Rights bits of the handle: 1 read, 2 write, 4 append.
        rights: u32,
        /// Monotonic time at which the handle expires.
        until: Nanos,
    },
    /// The token of the submission.
    Token {
        /// Whether it has ALLOC; without, the entry can have no right.
        alloc: bool,
    },
}

impl Object {
    /// Every right that an entry for it can have.
    fn may(&self) -> TaskletRights {
        match *self {
            Self::Lease { kind, .. } => TaskletRights::QUERY | TaskletRights::REVOKE | kind.alloc() | kind.io(),
            Self::Handle { kind, .. } => TaskletRights::QUERY | kind.io(),
            Self::Token { alloc: true } => TaskletRights::FBMU_ALLOC | TaskletRights::FBBU_ALLOC,
            Self::Token { alloc: false } => TaskletRights::NONE,
        }
    }

    fn kind(&self) -> Option<Kind> {
        match *self {
            Self::Lease { kind, .. } | Self::Handle { kind, .. } => Some(kind),
            Self::Token { .. } => None,
        }
    }
}

impl Kind {
    /// The right to allocate leases of this kind, or to renew one.
    pub fn alloc(self) -> TaskletRights {
        match self {
            Self::Memory => TaskletRights::FBMU_ALLOC,
            Self::Block => TaskletRights::FBBU_ALLOC,
        }
    }

    /// The right to access leases of this kind.
    pub fn io(self) -> TaskletRights {
        match self {
            Self::Memory => TaskletRights::FBMU_LEASE_IO,
            Self::Block => TaskletRights::FBBU_LEASE_IO,
        }
    }
}

/// One entry of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The `cap_token`, or the id of a lease that the run allocated.
    pub name: u128,
    /// What the name stands for; a second [`Capabilities::add`] of the name does not change it.
    pub object: Object,
    /// The run's rights, joined over each [`Capabilities::add`] of the name.
    pub rights: TaskletRights,
}

/// An object does not allow a right that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a right that this capability cannot have")]
pub struct NotPermitted;

/// All capabilities of a run, in the order in which they were given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities(Vec<Entry>);

impl Capabilities {
    /// Adds an entry. Rights for a name that is there already add up.
    pub fn add(&mut self, name: u128, object: Object, rights: TaskletRights) -> Result<(), NotPermitted> {
        if !object.may().contains(rights) {
            return Err(NotPermitted);
        }
        match self.0.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => entry.rights = entry.rights | rights,
            None => self.0.push(Entry { name, object, rights }),
        }
        Ok(())
    }

    /// Adds a lease that the run allocated, with all rights.
    pub fn allocated(&mut self, lease: u128, kind: Kind) {
        let object = Object::Lease { lease, kind };
        self.0.push(Entry { name: lease, object, rights: object.may() });
    }

    /// Every entry, in the order in which they were added.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// The entry for a lease that a call names, if it has `right`: first the entry is looked for, then the right.
    ///
    /// # Errors
    /// A hostcall's [`code`].
    pub fn lease(&self, kind: Kind, named: Named, right: TaskletRights) -> Result<&Entry, i64> {
        let of_kind = |entry: &&Entry| entry.object.kind() == Some(kind);
        let entry = match named {
            Some(name) => self.0.iter().find(|entry| entry.name == name).filter(of_kind),
            None => self.0.iter().filter(of_kind).find(|entry| entry.rights.contains(kind.io())),
        };
        let entry = entry.ok_or(code::INVALID_LEASE)?;
        if entry.rights.contains(right) { Ok(entry) } else { Err(code::DENIED) }
    }

    /// Whether the run may allocate leases of this kind.
    pub fn may_allocate(&self, kind: Kind) -> bool {
        let may = |entry: &Entry| matches!(entry.object, Object::Token { .. }) && entry.rights.contains(kind.alloc());
        self.0.iter().any(may)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Object = Object::Lease { lease: 7, kind: Kind::Memory };
    const BLOCKS: Object = Object::Lease { lease: 8, kind: Kind::Block };
    const HANDLE: Object = Object::Handle { lease: 9, kind: Kind::Memory, rights: 1, until: Nanos(5) };

    /// Each object, and each right alone.
    #[test]
    fn an_entry_has_only_rights_that_its_object_allows() {
        let allowed = |object| {
            let bits = (0..8).map(|bit| TaskletRights::from_bits(1 << bit).unwrap());
            let may = bits.filter(|right| Capabilities::default().add(1, object, *right).is_ok());
            may.fold(TaskletRights::NONE, |all, right| all | right).bits()
        };
        assert_eq!(allowed(LEASE), 0b00_1111);
        assert_eq!(allowed(BLOCKS), 0b11_0011);
        assert_eq!(allowed(HANDLE), 0b00_1001);
        assert_eq!(allowed(Object::Token { alloc: true }), 0b01_0100);
        assert_eq!(allowed(Object::Token { alloc: false }), 0);
    }

    #[test]
    fn rights_of_one_name_add_up() {
        let mut caps = Capabilities::default();
        caps.add(7, LEASE, TaskletRights::QUERY).unwrap();
        assert_eq!(caps.lease(Kind::Memory, Some(7), Kind::Memory.io()), Err(code::DENIED));
        assert_eq!(caps.lease(Kind::Memory, None, Kind::Memory.io()), Err(code::INVALID_LEASE));
        caps.add(7, LEASE, Kind::Memory.io()).unwrap();
        assert_eq!(caps.entries().len(), 1);
        let both = TaskletRights::QUERY | Kind::Memory.io();
        assert_eq!(caps.lease(Kind::Memory, Some(7), both).map(|entry| entry.object), Ok(LEASE));
    }

    #[test]
    fn a_call_without_an_id_means_the_first_entry_of_its_kind_with_lease_io() {
        let mut caps = Capabilities::default();
        caps.add(1, LEASE, TaskletRights::QUERY).unwrap();
        caps.add(8, BLOCKS, Kind::Block.io()).unwrap();
        caps.add(2, HANDLE, Kind::Memory.io()).unwrap();
        caps.add(3, LEASE, Kind::Memory.io()).unwrap();
        let name = |kind: Kind, named| caps.lease(kind, named, kind.io()).map(|entry| entry.name);
        assert_eq!(name(Kind::Memory, None), Ok(2));
        assert_eq!(name(Kind::Block, None), Ok(8));
        assert_eq!(name(Kind::Memory, Some(8)), Err(code::INVALID_LEASE), "of the other kind");
        assert_eq!(name(Kind::Memory, Some(9)), Err(code::INVALID_LEASE), "a handle's lease is named by the handle");
        assert_eq!(name(Kind::Memory, Some(1)), Err(code::DENIED));
    }

    #[test]
    fn a_token_allocates_and_is_no_lease() {
        let mut caps = Capabilities::default();
        caps.add(4, Object::Token { alloc: true }, TaskletRights::FBBU_ALLOC).unwrap();
        assert_eq!([Kind::Memory, Kind::Block].map(|kind| caps.may_allocate(kind)), [false, true]);
        assert_eq!(caps.lease(Kind::Block, Some(4), TaskletRights::FBBU_ALLOC), Err(code::INVALID_LEASE));
        caps.allocated(70, Kind::Block);
        let all = TaskletRights::QUERY | TaskletRights::REVOKE | Kind::Block.alloc() | Kind::Block.io();
        assert_eq!(caps.lease(Kind::Block, Some(70), all).map(|entry| entry.name), Ok(70));
        let mut renews = Capabilities::default();
        renews.add(7, LEASE, TaskletRights::FBMU_ALLOC).unwrap();
        assert!(!renews.may_allocate(Kind::Memory), "the ALLOC of a lease renews it");
    }
}
