//! Hostcalls of tasklets that make, ask for, renew and end leases (T7). Accesses to their bytes need no node.

use std::time::Duration;

use berth_lease::{LeaseError, LeaseId, RegionId, RegionKind, Status as LeaseStatus, Wanted};
use berth_port::Now;
use berth_tasklet::{
    hostcall::{BLOCK_LEN, Kind, code},
    schedule::RunId,
};
use berth_wire::fabric::Op;

use crate::{
    clock::secs,
    host::{Host, random_u128},
    journal::Record,
    node::Node,
    pending::{Origin, Pending},
    request::{Answer, Job, Outcome, Step, Work},
};

/// A call whose entry and right were checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseCall {
    /// A new lease for the run's presenter, under the terms of the run's token.
    Alloc {
        /// Of memory or blocks.
        kind: Kind,
        /// Bytes, or blocks of 512 bytes; 0 is refused.
        min: u64,
        /// Seconds from now; 0 is refused.
        secs: u32,
    },
    /// How a lease stands, when it expires, and its size.
    Query(LeaseId),
    /// Renews a lease; answers its new expiry in Unix seconds.
    Renew {
        /// Held by the run's presenter.
        lease: LeaseId,
        /// Seconds from now.
        secs: u32,
    },
    /// The end of a lease that the run's presenter holds.
    Free(LeaseId),
}

/// The code of a call, and what it writes to the guest, from the answer of its [`Step`].
pub fn answered(answer: &Answer) -> (i64, &[u8]) {
    match answer.result.split_first_chunk() {
        Some((code, out)) => (i64::from_le_bytes(*code), out),
        None => (code::INTERNAL, &[]),
    }
}

fn done(out: &[u8]) -> Outcome {
    Outcome::with([&0_i64.to_le_bytes(), out].concat())
}

/// A call that failed with this code.
pub(crate) fn call_failed(code: i64) -> Step {
    Outcome::with(code.to_le_bytes().to_vec()).into()
}

fn code_of(error: LeaseError) -> i64 {
    match error {
        LeaseError::NotFound => code::INVALID_LEASE,
        LeaseError::Expired => code::EXPIRED,
        LeaseError::Revoked | LeaseError::Fenced => code::FENCED,
        LeaseError::NotHolder | LeaseError::Rights | LeaseError::Range => code::DENIED,
        LeaseError::Invalid(_) => code::BAD_PARAM,
        LeaseError::Capacity | LeaseError::Quota => code::NO_CAPACITY,
        LeaseError::Busy => code::BUSY,
    }
}

impl<H: Host> Node<H> {
    /// Executes a call of a run, to be done like an operation; [`answered`] reads the answer.
    pub fn lease_call(&mut self, run: RunId, call: LeaseCall, now: Now) -> Step {
        let presenter = self.tasklets.as_ref().and_then(|tasklets| tasklets.runs.get(&run)).map(|run| run.presenter);
        // What is stopped allocates nothing under a token that was revoked.
        let Some(presenter) = presenter.filter(|_| !self.is_stopped(run)) else { return call_failed(code::FENCED) };
        let reply = match call {
            LeaseCall::Alloc { kind, min, secs } => self.call_alloc(run, kind, min, secs, now),
            LeaseCall::Query(lease) => self.call_query(lease, now).map(Step::from),
            LeaseCall::Renew { lease, secs } => self.call_renew(presenter, lease, secs, now).map(Step::from),
            LeaseCall::Free(lease) => self.call_free(presenter, lease, now).map(Step::from),
        };
        reply.unwrap_or_else(call_failed)
    }

    /// A LEASE_ALLOC under the terms of the run's token.
    fn call_alloc(&mut self, run: RunId, kind: Kind, min: u64, duration: u32, now: Now) -> Result<Step, i64> {
        if min == 0 || duration == 0 {
            return Err(code::BAD_PARAM);
        }
        if self.degraded {
            return Err(code::INTERNAL);
        }
        let of = self.tasklets.as_ref().and_then(|tasklets| tasklets.runs.get(&run)).ok_or(code::INTERNAL)?;
        let (terms, presenter) = (of.terms, of.presenter);
        if of.allocs == 0 || self.is_full() {
            return Err(code::NO_CAPACITY);
        }
        let (wanted, unit) = match kind {
            Kind::Memory => (RegionKind::Memory, 1),
            Kind::Block => (RegionKind::Block, BLOCK_LEN as u64),
        };
        let bytes = min.checked_mul(unit).ok_or(code::NO_CAPACITY)?;
        let covered = |id| terms.resource == 0 || self.region_resource(id) == terms.resource;
        let of_kind: Vec<RegionId> =
            self.regions().iter().filter(|(_, region)| region.kind == wanted).map(|(id, _)| id).collect();
        let regions: Vec<RegionId> = of_kind.iter().copied().filter(|id| covered(*id)).collect();
        match (regions.is_empty(), of_kind.is_empty()) {
            (true, true) => return Err(code::NO_CAPACITY),
            (true, false) => return Err(code::DENIED),
            (false, _) => {}
        }
        let request = berth_lease::Request {
            wanted: Wanted::Bytes(&regions),
            near: None,
            bytes,
            range: Some(terms.span),
            rights: terms.rights,
            holder: presenter,
            token: terms.token,
            duration: secs(duration),
            grace: Duration::ZERO,
        };
        let host = &mut self.host;
        let granted = self.leases.alloc(&request, now.mono, &mut || random_u128(host)).map_err(code_of)?;
        if let Some(run) = self.tasklets.as_mut().and_then(|tasklets| tasklets.runs.get_mut(&run)) {
            run.allocs -= 1;
        }
        if granted.zero.is_empty() {
            return Ok(self.call_granted(granted.id, now));
        }
        let region = granted.zero[0].region;
        let mut jobs: Vec<Job> = granted.zero.into_iter().map(Job::Zero).collect();
        if !self.leases.is_volatile(region) {
            jobs.push(Job::Flush(region));
        }
        let pending = Pending::Alloc { id: granted.id, run: Some(run) };
        let work = self.work(pending, Origin::node(Op::LeaseAlloc, presenter));
        Ok(Work { jobs, ..work }.into())
    }

    /// Answers an alloc whose bytes are zeroed.
    pub(crate) fn call_granted(&mut self, id: LeaseId, now: Now) -> Step {
        let Some(lease) = self.leases.get(id) else { return call_failed(code::INTERNAL) };
        let mut out = Vec::with_capacity(Kind::Block.alloc_len());
        for word in [(id.0 >> 64) as u64, id.0 as u64, self.clock.unix_secs(lease.expires)] {
            out.extend(word.to_le_bytes());
        }
        if self.kind_of(id) == Some(Kind::Block) {
            out.extend((lease.len / BLOCK_LEN as u64).to_le_bytes());
            out.extend((BLOCK_LEN as u32).to_le_bytes());
            out.extend([0; 4]);
        } else {
            out.extend(lease.len.to_le_bytes());
        }
        let journal = vec![self.grant_record(&lease, now.mono)];
        Outcome { journal, ..done(&out) }.into()
    }

    fn kind_of(&self, id: LeaseId) -> Option<Kind> {
        Some(match self.regions().get(self.leases.get(id)?.region()?)?.kind {
            RegionKind::Memory | RegionKind::Vram => Kind::Memory,
            RegionKind::Block => Kind::Block,
        })
    }

    fn call_query(&self, id: LeaseId, now: Now) -> Result<Outcome, i64> {
        let (status, expires) = self.leases.query(id, now.mono).ok_or(code::INVALID_LEASE)?;
        let lease = self.leases.get(id).ok_or(code::INVALID_LEASE)?;
        let status: u32 = match status {
            LeaseStatus::Active => 0,
            LeaseStatus::Expired => 1,
            LeaseStatus::Revoked => 2,
        };
        let (block_size, size) = match self.kind_of(id) {
            Some(Kind::Block) => (BLOCK_LEN as u32, lease.len / BLOCK_LEN as u64),
            _ => (0, lease.len),
        };
        let mut out = Vec::with_capacity(24);
        out.extend(status.to_le_bytes());
        out.extend(block_size.to_le_bytes());
        out.extend(self.clock.unix_secs(expires).to_le_bytes());
        out.extend(size.to_le_bytes());
        Ok(done(&out))
    }

    fn call_renew(&mut self, presenter: u128, id: LeaseId, duration: u32, now: Now) -> Result<Outcome, i64> {
        if self.degraded {
            return Err(code::INTERNAL);
        }
        if self.is_full() {
            return Err(code::NO_CAPACITY);
        }
        let expires = self.leases.renew(id, presenter, secs(duration), now.mono).map_err(code_of)?;
        self.prolong_work(id, now.mono);
        let (at, until) = (self.clock.unix(now.mono), self.clock.unix(expires));
        let journal = vec![Record::Renewed { lease: id.0, at, expires: until }];
        Ok(Outcome { journal, ..done(&self.clock.unix_secs(expires).to_le_bytes()) })
    }

    fn call_free(&mut self, presenter: u128, id: LeaseId, now: Now) -> Result<Outcome, i64> {
        if self.degraded {
            return Err(code::INTERNAL);
        }
        self.leases.free(id, presenter, now.mono).map_err(code_of)?;
        let mut outcome = done(&[]);
        self.wind_up(id, now, &mut outcome);
        outcome.quiescence = Some(self.leases.quiescence());
        Ok(outcome)
    }
}
