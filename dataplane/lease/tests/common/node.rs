//! A node with one region of memory and one of blocks.

use std::time::Duration;

use berth_lease::{
    Access, Config, Entry, GRANULE, Granted, LeaseError, LeaseId, LeaseKey, Leases, Op, Refusal, Region, RegionId,
    Regions, Request, Rights, Span, Wanted, check,
};
use berth_port::Nanos;

use super::{blocks, memory};

pub(crate) const ANN: u128 = 0xA;
pub(crate) const BOB: u128 = 0xB;
pub(crate) const TOKEN: u128 = 0x70;
pub(crate) const MEMORY: RegionId = RegionId(0);
pub(crate) const BLOCKS: RegionId = RegionId(1);

pub(crate) const fn at(secs: u64) -> Nanos {
    Nanos(secs * 1_000_000_000)
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) struct Node {
    pub(crate) leases: Leases,
    next_id: u128,
}

impl Node {
    pub(crate) fn with(config: Config, regions: Vec<Region>) -> Self {
        Self { leases: Leases::new(config, Regions::new(regions)), next_id: 1 << 64 }
    }

    pub(crate) fn new() -> Self {
        Self::with(
            Config { capacity: 64, max_io: 8192, ..Config::default() },
            vec![memory(64 * GRANULE, None), blocks(64 * GRANULE)],
        )
    }

    pub(crate) fn try_alloc(&mut self, request: &Request<'_>, now: Nanos) -> Result<Granted, LeaseError> {
        let next = &mut self.next_id;
        self.leases.alloc(request, now, &mut || {
            *next += (1 << 64) | 1;
            *next
        })
    }

    pub(crate) fn alloc(&mut self, request: &Request<'_>, now: Nanos) -> LeaseId {
        self.try_alloc(request, now).unwrap().id
    }

    pub(crate) fn probe(&self, key: LeaseKey) -> Option<Entry> {
        self.leases.table().reader().enter().probe(key)
    }

    pub(crate) fn access(&self, op: Op, id: LeaseId, offset: u64, len: u64, now: Nanos) -> Result<Span, Refusal> {
        let access = Access { op, key: id.key(), generation: None, offset, len, well_formed: true };
        check(self.probe(id.key()).as_ref(), &access, now)
    }

    pub(crate) fn read(&self, id: LeaseId, now: Nanos) -> Result<Span, Refusal> {
        self.access(Op::Read, id, 0, 1, now)
    }
}

/// A request for 10 s, with 5 s of grace.
pub(crate) fn request(bytes: u64) -> Request<'static> {
    Request {
        wanted: Wanted::Bytes(&[MEMORY]),
        near: None,
        bytes,
        range: None,
        rights: Rights::ALL,
        holder: ANN,
        token: TOKEN,
        duration: secs(10),
        grace: secs(5),
    }
}
