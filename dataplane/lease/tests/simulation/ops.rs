//! What clients ask of the node, and what it must answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_lease::{
    GRANULE, Handle, Item, Lease, LeaseError, LeaseId, LeaseKey, Mode, RegionId, RelocateError, Request, Rights, Span,
    Standing, Status, Unit, Wanted,
};

use crate::sim::{HOLDERS, Known, Sim, TOKENS, Unanswered, granule};

impl Sim {
    pub(crate) fn alloc(&mut self) {
        let memory = Wanted::Bytes(&[RegionId(0), RegionId(1)]);
        let proxy = Wanted::Unit(Unit { resource: 3, item: Item::Proxies });
        let [blocks, vram] = [Wanted::Bytes(&[RegionId(2)]), Wanted::Bytes(&[RegionId(3)])];
        let either = Wanted::Bytes(&[RegionId(3), RegionId(0)]);
        let wanted = self.rng.choice([memory, blocks, vram, either, proxy]).unwrap();
        let request = Request {
            wanted,
            near: self.rng.choice([None, Some(0), Some(1), Some(7)]).unwrap(),
            bytes: if matches!(wanted, Wanted::Unit(_)) { 0 } else { self.rng.u64(1..4 * GRANULE) },
            range: if self.chance(4) { Some((self.rng.u64(0..2 * GRANULE), 2 * GRANULE)) } else { None },
            rights: Rights::from_bits(self.rng.choice([0, 1, 2, 3, 3, 3]).unwrap()),
            holder: self.rng.u128(0..HOLDERS),
            token: self.rng.u128(0..TOKENS),
            duration: self.secs(40),
            grace: self.secs(20),
        };
        // Few keys, so that they are drawn twice while they live; but none that lived before, as none of 64 bits would.
        let (now, draws) = (self.now, &mut self.rng);
        let ended = self.known.values().filter(|known| known.status(now).is_none());
        let ended: BTreeSet<LeaseKey> = ended.map(|known| known.lease.id.key()).collect();
        let mut random = || {
            let low = std::iter::repeat_with(|| draws.u64(0..300)).find(|low| !ended.contains(&LeaseKey(*low)));
            u128::from(draws.u64(..)) << 64 | u128::from(low.unwrap())
        };
        let granted = match self.leases.alloc(&request, self.now, &mut random) {
            Ok(granted) => granted,
            Err(refusal) => {
                let expected = match refusal {
                    LeaseError::Invalid(_) => request.duration.is_zero(),
                    LeaseError::Range => request.range.is_some_and(|(_, end)| request.bytes > end),
                    LeaseError::Busy => !self.flights.is_empty(),
                    LeaseError::Fenced => self.known.values().any(|known| known.lease.fenced),
                    LeaseError::Capacity => true,
                    LeaseError::Quota => {
                        let least = match wanted {
                            Wanted::Bytes(regions) => regions.iter().map(|region| granule(*region)).min().unwrap(),
                            Wanted::Unit(_) => 1,
                        };
                        let bytes = request.bytes.next_multiple_of(least);
                        !self.has_room(request.holder, Item::Leases, 1)
                            || !self.has_room(request.holder, Item::Bytes, bytes)
                    }
                    _ => false,
                };
                assert!(expected, "{request:?} is refused: {refusal}");
                return;
            }
        };
        for dirty in &granted.zero {
            self.zero(*dirty);
        }
        let lease = self.leases.get(granted.id).unwrap();
        if self.crashed_first() {
            return;
        }
        self.counts.granted += 1;
        let quota = self.leases.quotas().get(request.holder);
        assert!(self.leases.usage(request.holder)[Item::Bytes] <= quota[Item::Bytes], "{request:?} exceeds the quota");
        let known = Known { lease, wrote: BTreeMap::new(), over: false, revoked: false };
        if lease.region().is_some() {
            self.take(granted.id, known.extent());
            let all = self.read(known.extent());
            assert!(all.iter().all(|byte| *byte == 0), "{lease:?} has bytes of another");
        }
        assert!(self.known.insert(granted.id, known).is_none(), "an id was granted twice");
    }

    /// Whether the holder's quota allows `more`.
    fn has_room(&self, holder: u128, item: Item, more: u64) -> bool {
        self.leases.usage(holder)[item] + more <= self.leases.quotas().get(holder)[item]
    }

    /// A holder gets bytes: they must have no holder, and no access to them may be under way.
    pub(crate) fn take(&mut self, id: LeaseId, extent: Span) {
        for at in (extent.at..extent.at + extent.len).step_by(GRANULE as usize) {
            if let Some(before) = self.owners.insert((extent.region, at), id)
                && let Some(known) = self.known.get(&before)
            {
                let ended = known.status(self.now).is_none_or(|status| status == Status::Revoked);
                assert!(before == id || ended, "{extent:?} of {id} is held by {known:?}");
                assert!(before == id || !known.lease.fenced, "{extent:?} of {id} is fenced: {known:?}");
            }
        }
        for flight in &self.flights {
            let Span { region, at, len } = flight.span;
            let apart = region != extent.region || at + len <= extent.at || extent.at + extent.len <= at;
            assert!(apart || flight.id == id, "{extent:?} of {id} is still accessed by {}", flight.id);
        }
    }

    pub(crate) fn renew(&mut self) {
        let Some(id) = self.any_lease() else { return };
        let (presenter, duration) = (self.presenter(id), self.secs(40));
        let (status, lease) = (self.known[&id].status(self.now), self.known[&id].lease);
        let expected = match status {
            _ if duration.is_zero() => Err(LeaseError::Invalid("a lease lasts at least a second")),
            None => Err(LeaseError::NotFound),
            Some(_) if presenter != lease.holder => Err(LeaseError::NotHolder),
            Some(Status::Revoked) => Err(LeaseError::Revoked),
            Some(Status::Active | Status::Expired) => Ok(self.now + duration),
        };
        let renewed = self.leases.renew(id, presenter, duration, self.now);
        if self.is_pending(id) {
            // Its revocation is not answered yet: whether it still lives is for nobody to know.
            return;
        }
        assert_eq!(renewed, expected, "{lease:?}");
        if let Ok(expires) = renewed
            && !self.crashed_first()
        {
            self.known.get_mut(&id).unwrap().lease.expires = expires;
        }
    }

    pub(crate) fn free(&mut self) {
        let Some(id) = self.any_lease().filter(|id| !self.is_pending(*id)) else { return };
        let presenter = self.presenter(id);
        let expected = match self.known[&id].status(self.now) {
            None => Err(LeaseError::NotFound),
            Some(_) if presenter != self.known[&id].lease.holder => Err(LeaseError::NotHolder),
            Some(Status::Revoked) => Err(LeaseError::Revoked),
            Some(_) => Ok(()),
        };
        let freed = self.leases.free(id, presenter, self.now);
        assert_eq!(freed, expected);
        if freed.is_ok() && !self.crashed_first() {
            self.known.get_mut(&id).unwrap().over = true;
            self.tear_down(id);
        }
    }

    pub(crate) fn revoke(&mut self) {
        let Some(id) = self.any_lease().filter(|id| !self.is_pending(*id)) else { return };
        let expected = match self.known[&id].status(self.now) {
            None => Err(LeaseError::NotFound),
            Some(Status::Revoked) => Err(LeaseError::Revoked),
            Some(_) => Ok(()),
        };
        let revoked = self.leases.revoke(id, self.now);
        assert_eq!(revoked, expected);
        if revoked.is_ok() {
            self.await_quiescence(vec![id]);
        }
    }

    pub(crate) fn revoke_token(&mut self) {
        let token = self.rng.u128(0..TOKENS);
        let live = |known: &&Known| {
            let status = known.status(self.now);
            known.lease.token == token && matches!(status, Some(Status::Active | Status::Expired))
        };
        let expected: BTreeSet<LeaseId> = self.known.values().filter(live).map(|known| known.lease.id).collect();
        let pending: BTreeSet<LeaseId> = expected.iter().copied().filter(|id| self.is_pending(*id)).collect();
        let ids = self.leases.revoke_token(token, self.now);
        assert_eq!(ids.iter().copied().collect::<BTreeSet<_>>(), &expected - &pending);
        self.await_quiescence(ids);
    }

    pub(crate) fn await_quiescence(&mut self, ids: Vec<LeaseId>) {
        let mut quiescence = self.leases.quiescence();
        self.counts.revoked_in_use += u32::from(!quiescence.is_over());
        self.unanswered.push(Unanswered { quiescence, ids });
    }

    pub(crate) fn is_pending(&self, id: LeaseId) -> bool {
        self.unanswered.iter().any(|unanswered| unanswered.ids.contains(&id))
    }

    /// Journals and answers the revocations whose accesses have ended.
    pub(crate) fn answer(&mut self) {
        while let Some(index) = self.unanswered.iter_mut().position(|unanswered| unanswered.quiescence.is_over()) {
            let ids = self.unanswered.swap_remove(index).ids;
            if self.crashed_first() {
                return;
            }
            for id in ids {
                let standing = self.leases.get(id).map(|lease| lease.standing);
                let known = self.known.get_mut(&id).unwrap();
                if let Some(standing @ Standing::Revoked { .. }) = standing {
                    known.lease.standing = standing;
                }
                known.revoked = true;
                self.tear_down(id);
            }
        }
    }

    /// Tears down the bindings of an ended lease, which fails now and then.
    pub(crate) fn tear_down(&mut self, id: LeaseId) {
        if self.chance(400) {
            assert!(self.leases.fence(id));
            self.known.get_mut(&id).unwrap().lease.fenced = true;
            self.counts.fenced += 1;
        } else {
            assert!(self.leases.release(id, self.now), "{:?}", self.known[&id]);
        }
    }

    pub(crate) fn export(&mut self) {
        let Some(id) = self.any_lease().filter(|id| !self.is_pending(*id)) else { return };
        let (presenter, target, rights) = (self.presenter(id), self.rng.u128(0..=HOLDERS), self.rng.u32(1..8));
        let ttl = Duration::from_secs(self.rng.u64(1..30));
        let (status, lease) = (self.known[&id].status(self.now), self.known[&id].lease);
        let draw = self.rng.u128(..);
        let room = self.has_room(lease.holder, Item::Handles, 1);
        let exported = self.leases.export(id.key(), presenter, target, 1, rights, ttl, self.now, &mut || draw);
        let has = |right: Rights, bits| rights & bits == 0 || lease.rights.contains(right);
        let sound = status == Some(Status::Active)
            && presenter == lease.holder
            && lease.region().is_some()
            && has(Rights::READ, 1)
            && has(Rights::WRITE, 6);
        let expected = if room { Ok(()) } else { Err(LeaseError::Quota) };
        assert_eq!(exported.is_ok(), sound && room, "{exported:?} of {lease:?}");
        assert!(!sound || exported.map(drop) == expected, "{exported:?} of {lease:?}");
        if let Ok(handle) = exported
            && !self.crashed_first()
        {
            assert_eq!(handle.expires, lease.expires.min(self.now + ttl));
            self.handles.insert(handle.id, handle);
        }
    }

    pub(crate) fn import(&mut self) {
        let any = self.chance(8);
        let handles = self.handles.values().filter(|handle| any || self.now < handle.expires);
        let handles: Vec<Handle> = handles.copied().collect();
        let Some(handle) = self.rng.choice(handles).filter(|handle| !self.is_pending(handle.lease)) else { return };
        let presenter = self.rng.u128(1..=HOLDERS);
        let room = self.has_room(presenter, Item::Attachments, 1);
        let draws = &mut self.rng;
        let imported = self.leases.import(handle.id, presenter, self.now, &mut || draws.u128(..));
        let status = self.known[&handle.lease].status(self.now);
        let sound = self.now < handle.expires
            && (handle.target == 0 || handle.target == presenter)
            && status == Some(Status::Active);
        match imported {
            Ok(attachment) => {
                assert!(sound, "{handle:?} attaches {presenter}");
                let expires = handle.expires.min(self.known[&handle.lease].lease.expires);
                assert_eq!((attachment.rights, attachment.expires), (handle.rights, expires));
                let id = LeaseId(attachment.key.0.into());
                assert!(self.leases.is_of(id, presenter) && !self.leases.is_of(id, presenter + 1));
                if !self.crashed_first() {
                    self.attached.insert(id, (handle.id, presenter));
                }
                self.counts.attached += 1;
            }
            Err(LeaseError::Quota) => assert!(sound && !room, "{handle:?}"),
            Err(refusal) => assert!(!sound || refusal == LeaseError::Capacity, "{handle:?}: {refusal}"),
        }
    }

    pub(crate) fn relocate(&mut self) {
        let (Some(src), Some(mut dst)) = (self.any_lease(), self.any_lease()) else { return };
        if !self.chance(4) {
            // One of the same holder.
            let holder = self.known[&src].lease.holder;
            let larger =
                self.known.values().filter(|known| known.status(self.now) == Some(Status::Active)).filter(|known| {
                    let Lease { id, len, .. } = known.lease;
                    id != src && known.lease.holder == holder && len >= self.known[&src].lease.len
                });
            let larger: Vec<LeaseId> = larger.map(|known| known.lease.id).collect();
            dst = self.rng.choice(larger).unwrap_or(dst);
        }
        if self.is_pending(src) || self.is_pending(dst) {
            return;
        }
        let presenter = self.presenter(src);
        let mode = self.rng.choice([Mode::Copy, Mode::Move, Mode::CowSeed]).unwrap();
        let relocation = match self.leases.relocate(src.key(), dst.key(), mode, presenter, self.now) {
            Ok(relocation) => relocation,
            Err(RelocateError::Failed(_)) => return,
            Err(RelocateError::Refused(_)) => {
                let fit = |id: &LeaseId, right| {
                    let known = &self.known[id];
                    let Lease { holder, rights, .. } = known.lease;
                    known.status(self.now) == Some(Status::Active) && holder == presenter && rights.contains(right)
                };
                assert!(!fit(&src, Rights::READ) || !fit(&dst, Rights::WRITE));
                return;
            }
        };
        if mode == Mode::Move && !self.leases.quiescence().is_over() {
            self.leases.relocate_failed(&relocation);
            return;
        }
        self.write(relocation.to, &self.read(relocation.from));
        let first = relocation.from.at - self.known[&src].lease.base;
        let covered = first..first + relocation.from.len;
        let copied: Vec<(u64, u8)> =
            self.known[&src].wrote.range(covered.clone()).map(|(at, byte)| (*at, *byte)).collect();
        let wrote = &mut self.known.get_mut(&dst).unwrap().wrote;
        wrote.retain(|at, _| !covered.contains(at));
        wrote.extend(copied);
        if mode == Mode::Move {
            self.counts.moved += 1;
            if self.chance(2) {
                let until = self.now + self.secs(20);
                self.leases.preserve(src, until, self.now);
            }
            assert_eq!(self.leases.revoke(src, self.now), Ok(()), "its move can no longer fail");
            self.await_quiescence(vec![src]);
        }
    }
}
