//! Exported handles, and the attachments that their importers get.

use std::{collections::BTreeMap, time::Duration};

use berth_port::Nanos;

use super::{Item, Lease, LeaseError, Leases, Standing, Timer};
use crate::{Entry, LeaseId, LeaseKey, Rights};

/// Limit on the handles of a lease, and on the attachments of a handle.
const MOST: usize = 64;

/// `RIGHT_READ`.
const READ: u32 = 1;
/// `RIGHT_WRITE` and `RIGHT_APPEND`.
const CHANGE: u32 = 2 | 4;

/// All handles and attachments.
#[derive(Debug, Default)]
pub(super) struct Handles {
    by_id: BTreeMap<u128, HandleRecord>,
    /// Ids of each lease's handles.
    by_lease: BTreeMap<LeaseKey, Vec<u128>>,
    /// Importer of each attachment.
    importers: BTreeMap<LeaseKey, u128>,
}

/// An exported handle (`LEASE_EXPORT_HANDLE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    /// Random.
    pub id: u128,
    /// The exported lease.
    pub lease: LeaseId,
    /// Id of the presenter that may import it; 0 for anyone.
    pub target: u128,
    /// `target_runtime_kind`, the runtime that it was made for.
    pub kind: u16,
    /// Rights bits: 1 read, 2 write, 4 append.
    pub rights: u32,
    /// Monotonic time at which it expires: no later than its lease did when the handle was made.
    pub expires: Nanos,
}

/// What an importer gets: a key that the dataplanes serve like a lease's, with the handle's rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// `local_attach_id`; as a lease id, its high 64 bits are zero.
    pub key: LeaseKey,
    /// Rights bits of the handle: 1 read, 2 write, 4 append.
    pub rights: u32,
    /// Monotonic time at which it ends: with its handle, or sooner with its lease.
    pub expires: Nanos,
}

#[derive(Debug)]
pub(super) struct HandleRecord {
    handle: Handle,
    /// Id of the presenter that exported it.
    holder: u128,
    /// Attachment keys by importer.
    attachments: BTreeMap<u128, LeaseKey>,
}

impl Leases {
    /// Makes a handle to a lease for `target`; 0 allows anyone to import it.
    #[expect(clippy::too_many_arguments, reason = "the fields of the op")]
    pub fn export(
        &mut self,
        key: LeaseKey,
        holder: u128,
        target: u128,
        kind: u16,
        rights: u32,
        ttl: Duration,
        now: Nanos,
        random: &mut dyn FnMut() -> u128,
    ) -> Result<Handle, LeaseError> {
        let lease = self.exportable(key, holder, rights, ttl, now)?;
        let of_lease = self.handles.by_lease.get(&key).map_or(0, Vec::len);
        if of_lease >= MOST || self.handles.by_id.len() >= self.config.capacity {
            return Err(LeaseError::Capacity);
        }
        self.accounts.check(holder, Item::Handles, 1)?;
        let id = loop {
            let id = random();
            if !self.handles.by_id.contains_key(&id) {
                break id;
            }
        };
        let handle = Handle { id, lease: lease.id, target, kind, rights, expires: lease.expires.min(now + ttl) };
        self.add_handle(handle, holder);
        Ok(handle)
    }

    /// The lease that `holder` may export like this, if there is room for the handle.
    pub fn exportable(
        &self,
        key: LeaseKey,
        holder: u128,
        rights: u32,
        ttl: Duration,
        now: Nanos,
    ) -> Result<Lease, LeaseError> {
        let id = self.by_key(key).ok_or(LeaseError::NotFound)?.id;
        let (_, lease) = self.usable(id, holder, now)?;
        if rights == 0 || rights & !(READ | CHANGE) != 0 {
            return Err(LeaseError::Invalid("rights are 1 read, 2 write, 4 append"));
        }
        if ttl.is_zero() {
            return Err(LeaseError::Invalid("a handle lasts at least a second"));
        }
        if lease.region().is_none() {
            return Err(LeaseError::Invalid("the lease has no bytes"));
        }
        if !lease.rights.contains(rights_of(rights)) {
            return Err(LeaseError::Rights);
        }
        Ok(lease)
    }

    /// Restores a handle from the journal. False if its lease does not live, or the handle is known.
    pub fn restore_handle(&mut self, handle: Handle) -> bool {
        let lease = self.get(handle.lease).filter(|lease| lease.standing != Standing::Over);
        let lease = lease.filter(|_| !self.handles.by_id.contains_key(&handle.id));
        if let Some(lease) = lease {
            self.add_handle(handle, lease.holder);
        }
        lease.is_some()
    }

    /// Restores an attachment from the journal. False if its handle is unknown, or its key is taken.
    pub fn restore_attachment(&mut self, handle: u128, importer: u128, key: LeaseKey) -> bool {
        let Some(HandleRecord { handle, attachments, .. }) = self.handles.by_id.get(&handle) else { return false };
        !attachments.contains_key(&importer)
            && LeaseId(key.0.into()).is_usable()
            && self.is_free(key)
            && self.attach(*handle, importer, key).is_ok()
    }

    /// Whether a presenter holds this lease, or imported this attachment.
    pub fn is_of(&self, id: LeaseId, presenter: u128) -> bool {
        let importer = || self.handles.importers.get(&id.key()).filter(|_| id.0 >> 64 == 0).copied();
        self.get(id).map(|lease| lease.holder).or_else(importer) == Some(presenter)
    }

    /// The handle with this id, if it has not expired.
    pub fn handle(&self, id: u128, now: Nanos) -> Option<&Handle> {
        self.handles.by_id.get(&id).map(|record| &record.handle).filter(|handle| now < handle.expires)
    }

    /// Every handle that has not expired yet.
    pub fn handles(&self) -> impl Iterator<Item = &Handle> {
        self.handles.by_id.values().map(|record| &record.handle)
    }

    /// Attaches an importer. A second import returns the same attachment.
    pub fn import(
        &mut self,
        handle: u128,
        presenter: u128,
        now: Nanos,
        random: &mut dyn FnMut() -> u128,
    ) -> Result<Attachment, LeaseError> {
        let record = self.handles.by_id.get(&handle).filter(|record| now < record.handle.expires);
        let HandleRecord { handle, attachments, .. } = record.ok_or(LeaseError::NotFound)?;
        if handle.target != 0 && handle.target != presenter {
            return Err(LeaseError::NotHolder);
        }
        let lease = self.get(handle.lease).ok_or(LeaseError::NotFound)?;
        self.usable(lease.id, lease.holder, now)?;
        let expires = handle.expires.min(lease.expires);
        let attached = |key| Attachment { key, rights: handle.rights, expires };
        if let Some(key) = attachments.get(&presenter) {
            return Ok(attached(*key));
        }
        if attachments.len() >= MOST {
            return Err(LeaseError::Capacity);
        }
        self.accounts.check(presenter, Item::Attachments, 1)?;
        let (handle, key) = (*handle, self.draw(random)?.key());
        self.attach(handle, presenter, key)?;
        Ok(Attachment { key, rights: handle.rights, expires })
    }

    /// Records an attachment under a free key, and publishes it.
    fn attach(&mut self, handle: Handle, importer: u128, key: LeaseKey) -> Result<(), LeaseError> {
        let entry = self.attachment(&handle, key).ok_or(LeaseError::NotFound)?;
        self.writer.insert(&entry).map_err(|_| LeaseError::Capacity)?;
        self.handles.by_id.get_mut(&handle.id).expect("it was found").attachments.insert(importer, key);
        self.handles.importers.insert(key, importer);
        self.accounts.take(importer, Item::Attachments, 1);
        Ok(())
    }

    fn add_handle(&mut self, handle: Handle, holder: u128) {
        self.accounts.take(holder, Item::Handles, 1);
        self.handles.by_lease.entry(handle.lease.key()).or_default().push(handle.id);
        self.timers.insert((handle.expires, Timer::Handle(handle.id)));
        self.handles.by_id.insert(handle.id, HandleRecord { handle, holder, attachments: BTreeMap::new() });
    }

    /// The table's entry for an attachment; `None` if its lease is not published.
    fn attachment(&self, handle: &Handle, key: LeaseKey) -> Option<Entry> {
        let lease = self.entry(&self.get(handle.lease)?)?;
        let rights = lease.rights.and(rights_of(handle.rights));
        // A renewal may have made the lease shorter than it was when the handle was made.
        let expires = handle.expires.min(lease.expires);
        Some(Entry { id: LeaseId(u128::from(key.0)), rights, expires, ..lease })
    }

    /// Publishes the state of a lease to its attachments.
    pub(super) fn publish_attachments(&mut self, lease: LeaseKey) {
        for handle in self.handles.by_lease.get(&lease).into_iter().flatten() {
            let HandleRecord { handle, attachments, .. } = &self.handles.by_id[handle];
            for key in attachments.values() {
                if let Some(entry) = self.attachment(handle, *key) {
                    self.writer.update(&entry);
                }
            }
        }
    }

    /// Ends all attachments of an importer.
    pub(super) fn detach(&mut self, importer: u128) {
        let of_importer = self.handles.importers.iter().filter(|(_, of)| **of == importer);
        let keys: Vec<_> = of_importer.map(|(key, _)| *key).collect();
        for key in &keys {
            self.handles.importers.remove(key);
            self.writer.remove(*key);
        }
        self.accounts.give(importer, Item::Attachments, keys.len() as u64);
        if !keys.is_empty() {
            for record in self.handles.by_id.values_mut() {
                record.attachments.remove(&importer);
            }
        }
    }

    /// Ends an expired handle and its attachments.
    pub(super) fn drop_handle(&mut self, handle: u128) {
        let Some(HandleRecord { handle, holder, attachments }) = self.handles.by_id.remove(&handle) else { return };
        self.accounts.give(holder, Item::Handles, 1);
        self.timers.remove(&(handle.expires, Timer::Handle(handle.id)));
        for (importer, key) in attachments {
            self.writer.remove(key);
            self.handles.importers.remove(&key);
            self.accounts.give(importer, Item::Attachments, 1);
        }
        if let Some(handles) = self.handles.by_lease.get_mut(&handle.lease.key()) {
            handles.retain(|id| *id != handle.id);
            if handles.is_empty() {
                self.handles.by_lease.remove(&handle.lease.key());
            }
        }
    }

    /// Ends the handles of a lease that is over.
    pub(super) fn drop_handles(&mut self, lease: LeaseKey) {
        for handle in self.handles.by_lease.remove(&lease).unwrap_or_default() {
            self.drop_handle(handle);
        }
    }
}

/// Data rights that follow from a handle's rights; append counts as write.
fn rights_of(rights: u32) -> Rights {
    Rights::from_bits(rights & READ | if rights & CHANGE == 0 { 0 } else { 2 })
}
