//! Accesses, which take some time.

use berth_lease::{Access, Entry, GRANULE, Generation, LeaseId, Op, Refusal, Rights, Span, Status, check};

use crate::sim::{Flight, MAX_IO, Sim};

impl Sim {
    /// Begins an access under the key of a lease or an attachment.
    pub(crate) fn access(&mut self) {
        let attachments: Vec<LeaseId> = self.attached.keys().copied().collect();
        let through = if self.chance(3) { self.rng.choice(attachments) } else { self.any_lease() };
        let Some(through) = through else { return };
        let handle = self.attached.get(&through).map(|(handle, _)| self.handles[handle]);
        let id = handle.map_or(through, |handle| handle.lease);
        let known = &self.known[&id];
        let (lease, status) = (known.lease, known.status(self.now));
        let stale = self.rng.u32(0..8) == 0;
        let access = Access {
            op: if self.rng.bool() { Op::Read } else { Op::Write },
            key: through.key(),
            generation: Some(if stale { Generation(lease.generation.0 - 1) } else { lease.generation }),
            offset: if self.rng.bool() { self.rng.u64(0..4 * GRANULE) } else { lease.first },
            len: self.rng.u64(1..=u64::from(MAX_IO) + 4),
            well_formed: true,
        };
        let held = self.readers.pop().unwrap_or_else(|| self.leases.table().reader()).hold();
        let entry: Option<Entry> = held.probe(access.key);
        let checked = check(entry.as_ref().filter(|entry| entry.id == through), &access, self.now);
        let pending = self.is_pending(id);
        let rights = handle.map_or(lease.rights, |handle| {
            lease.rights.and(Rights::from_bits(handle.rights & 1 | if handle.rights & 6 > 0 { 2 } else { 0 }))
        });
        let handle_over = handle.is_some_and(|handle| self.now >= handle.expires);
        let inside = access.offset >= lease.first && access.offset + access.len <= lease.len;
        // Where it lives, what is answered follows from what it is; where it does not, it must be refused.
        let expected = match status {
            _ if pending => Err(Refusal::Revoked),
            Some(Status::Active) if lease.region().is_some() && !handle_over => match () {
                () if stale => Err(Refusal::StaleGeneration),
                () if access.len > u64::from(MAX_IO) => Err(Refusal::TooLong),
                () if !inside => Err(Refusal::OutOfRange),
                () if !rights.contains(access.op.right()) => Err(Refusal::Denied),
                () => Ok(Span { region: lease.region().unwrap(), at: lease.base + access.offset, len: access.len }),
            },
            Some(Status::Revoked) => Err(Refusal::Revoked),
            _ => Err(Refusal::Expired),
        };
        let gone = |refused| matches!(refused, Refusal::Unknown | Refusal::Revoked | Refusal::Expired);
        match (checked, expected) {
            // Ended, or without bytes: a tick may have taken it out already, or not.
            (Err(refused), Err(Refusal::Expired | Refusal::Revoked)) if gone(refused) => {}
            _ => assert_eq!(checked, expected, "{access:?} by {through} of {known:?}"),
        }
        match checked {
            Ok(span) => {
                assert!(!known.revoked && !known.over);
                let stamp = self.rng.u8(1..);
                self.flights.push(Flight { held, id, span, offset: access.offset, op: access.op, stamp });
            }
            Err(refused) => {
                *self.counts.refused.entry(refused_as(refused)).or_default() += 1;
                self.readers.push(held.end());
            }
        }
    }

    /// Ends an access, which touches its bytes only now.
    pub(crate) fn end_access(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let index = self.rng.usize(0..self.flights.len());
        let Flight { held, id, span, offset, op, stamp } = self.flights.swap_remove(index);
        let known = &self.known[&id];
        assert!(!known.revoked, "an access to {id} goes on after its revocation was answered");
        let granule = span.at / GRANULE * GRANULE;
        assert_eq!(self.owners[&(span.region, granule)], id, "an access to {id} goes on after its bytes are another's");
        match op {
            Op::Write => {
                self.write(span, &vec![stamp; span.len as usize]);
                let wrote = &mut self.known.get_mut(&id).unwrap().wrote;
                wrote.extend((offset..offset + span.len).map(|at| (at, stamp)));
            }
            Op::Read => {
                let expected: Vec<u8> =
                    (offset..offset + span.len).map(|at| known.wrote.get(&at).copied().unwrap_or(0)).collect();
                assert_eq!(self.read(span), expected, "{id} at {offset}");
            }
        }
        self.counts.served += 1;
        self.readers.push(held.end());
    }
}

fn refused_as(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Unknown => "unknown",
        Refusal::Revoked => "revoked",
        Refusal::Expired => "expired",
        Refusal::StaleGeneration => "stale",
        Refusal::BadRequest => "bad",
        Refusal::TooLong => "long",
        Refusal::OutOfRange => "range",
        Refusal::Denied => "denied",
    }
}
