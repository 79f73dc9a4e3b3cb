//! Accesses to leases.

use berth_lease::{Access, Generation, LeaseKey, Span, check};

use super::world::{DataOp, Event, MILLI, SLOT, World};

impl World {
    pub(super) fn use_a_lease(&mut self, index: usize) {
        let leases = &self.clients[index].leases;
        if leases.is_empty() {
            return;
        }
        // Newer leases are likelier to live.
        let from = if self.random.bool() { leases.len().saturating_sub(4) } else { 0 };
        let lease = leases[self.random.usize(from..leases.len())];
        let write = self.random.bool().then(|| self.random.u64(1..));
        let access =
            DataOp { key: lease.key, generation: lease.generation, slot: self.random.u64(0..=lease.slots), write };
        let delay = self.random.u64(0..300 * MILLI);
        self.after(delay, Event::Access(access));
    }

    /// Decides on an access as every dataplane does.
    pub(super) fn access(&mut self, access: DataOp) {
        let now = self.time().mono;
        let op = if access.write.is_some() { berth_lease::Op::Write } else { berth_lease::Op::Read };
        let asked = Access {
            op,
            key: LeaseKey(access.key),
            generation: Some(Generation(access.generation)),
            offset: access.slot * SLOT,
            len: SLOT,
            well_formed: true,
        };
        let entry = self.process.reader.enter().probe(asked.key);
        let Ok(span) = check(entry.as_ref(), &asked, now) else {
            self.summary.refused += 1;
            return;
        };
        let id = self.oracle.begins(access.key, access.generation, self.now);
        self.summary.served += 1;
        if span.region.0 == 0 {
            return self.touch(span, id, access);
        }
        let held = self.process.node.table().reader().hold();
        self.numbered += 1;
        let (flight, delay, run) = (self.numbered, self.slow(30 * MILLI), self.run);
        self.process.flights.insert(flight, (held, span, id, access));
        self.after(delay, Event::Io(run, flight));
    }

    pub(super) fn io(&mut self, flight: u64) {
        let (held, span, id, access) = self.process.flights.remove(&flight).expect("it is in flight");
        self.touch(span, id, access);
        held.end();
    }

    pub(super) fn touch(&mut self, span: Span, id: u128, access: DataOp) {
        self.oracle.touches(id);
        self.oracle.reaches(access.key);
        let heap = self.stores.heap(span.region.0);
        if let Some(tag) = access.write {
            heap.store(span.at, &tag.to_be_bytes().repeat(SLOT as usize / 8));
            self.oracle.wrote(id, access.slot, tag);
        } else {
            let mut bytes = [0; SLOT as usize];
            heap.load(span.at, &mut bytes);
            let tag = u64::from_be_bytes(*bytes.first_chunk().expect("8 bytes"));
            assert_eq!(bytes[..], tag.to_be_bytes().repeat(SLOT as usize / 8), "bytes of two writes");
            self.oracle.read(id, access.slot, tag);
        }
    }
}
