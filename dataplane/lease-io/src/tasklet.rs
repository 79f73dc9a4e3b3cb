//! Hostcalls of a tasklet that touch leased bytes (tasklet contract, T7): entry, right, then the checks that every access
//! passes.

use berth_lease::{Access, LeaseId, Op, Refusal};
use berth_port::Nanos;
use berth_tasklet::{
    capability::{Capabilities, Object},
    hostcall::{BLOCK_LEN, Kind, Named, code},
};
use berth_wire::fabric::TaskletRights;

use crate::{AccessRequest, Failure, Gate, Served};

/// `RIGHT_READ` of a handle.
const READ: u32 = 1;
/// `RIGHT_WRITE` and `RIGHT_APPEND`.
const CHANGE: u32 = 2 | 4;

/// The leases of one run, by its capabilities.
#[derive(Debug)]
pub struct TaskletLeases {
    capabilities: Capabilities,
    gate: Gate,
}

impl TaskletLeases {
    /// Accesses go through `gate`.
    pub fn new(capabilities: Capabilities, gate: Gate) -> Self {
        Self { capabilities, gate }
    }

    /// What the run may touch; leases that it allocates are to be added here.
    pub fn capabilities(&mut self) -> &mut Capabilities {
        &mut self.capabilities
    }

    /// The gate, for its counts.
    pub fn gate(&mut self) -> &mut Gate {
        &mut self.gate
    }

    /// The lease that a call names, which needs `right`, and which is not of a handle that has expired at `now`.
    ///
    /// # Errors
    /// A hostcall's [`code`].
    pub fn lease(&mut self, kind: Kind, named: Named, right: TaskletRights, now: Nanos) -> Result<LeaseId, i64> {
        match self.capabilities.lease(kind, named, right)?.object {
            Object::Handle { until, .. } if now >= until => Err(code::EXPIRED),
            Object::Lease { lease, .. } | Object::Handle { lease, .. } => Ok(LeaseId(lease)),
            Object::Token { .. } => Err(code::INVALID_LEASE),
        }
    }

    /// Bytes or blocks of the lease that calls without an id mean.
    ///
    /// # Errors
    /// A hostcall's [`code`].
    pub fn size(&mut self, kind: Kind, now: Nanos) -> Result<u64, i64> {
        let object = self.capabilities.lease(kind, None, kind.io())?.object;
        let (id, until) = bounds(&object);
        let entry = self.gate.look(&asked(id, Op::Read, 0, 1), now).map_err(code_of)?;
        match kind {
            _ if now >= until => Err(code::EXPIRED),
            Kind::Memory => Ok(entry.len),
            Kind::Block => Ok(entry.len / BLOCK_LEN as u64),
        }
    }

    /// Decides on a read, and copies to `out` where the bytes lie in memory. Where they do not, see
    /// [`TaskletLeases::read_blocks`].
    ///
    /// # Errors
    /// A hostcall's [`code`].
    #[inline]
    pub fn read(&mut self, kind: Kind, named: Named, at: u64, out: &mut [u8], now: Nanos) -> Result<Served, i64> {
        let ask = self.access(kind, named, Op::Read, at, out.len(), now)?;
        let served = self.gate.read(&ask, out, now);
        self.count(&ask, served)
    }

    /// As [`TaskletLeases::read`].
    ///
    /// # Errors
    /// A hostcall's [`code`].
    #[inline]
    pub fn write(&mut self, kind: Kind, named: Named, at: u64, data: &[u8], now: Nanos) -> Result<Served, i64> {
        let ask = self.access(kind, named, Op::Write, at, data.len(), now)?;
        let served = self.gate.write(&ask, data, now);
        self.count(&ask, served)
    }

    /// A read that lies on blocks.
    ///
    /// # Errors
    /// A hostcall's [`code`].
    pub async fn read_blocks(
        &mut self,
        kind: Kind,
        named: Named,
        at: u64,
        out: &mut [u8],
        now: Nanos,
    ) -> Result<(), i64> {
        let ask = self.access(kind, named, Op::Read, at, out.len(), now)?;
        let read = match self.gate.start(&ask, &[], now) {
            Ok(io) => io.await.map(|read| read.read_at(0, out)),
            Err(refusal) => Err(refusal.into()),
        };
        self.gate.counts.outcome(Op::Read, ask.access.len, read);
        read.map_err(failed)
    }

    /// A write that lies on blocks.
    ///
    /// # Errors
    /// A hostcall's [`code`].
    pub async fn write_blocks(
        &mut self,
        kind: Kind,
        named: Named,
        at: u64,
        data: &[u8],
        now: Nanos,
    ) -> Result<(), i64> {
        let ask = self.access(kind, named, Op::Write, at, data.len(), now)?;
        let written = match self.gate.start(&ask, data, now) {
            Ok(io) => io.await.map(|_| ()),
            Err(refusal) => Err(refusal.into()),
        };
        self.gate.counts.outcome(Op::Write, ask.access.len, written);
        written.map_err(failed)
    }

    /// Entry and right. What a handle does not allow is refused where the lease itself refuses nothing.
    #[inline]
    fn access(
        &mut self,
        kind: Kind,
        named: Named,
        op: Op,
        at: u64,
        len: usize,
        now: Nanos,
    ) -> Result<AccessRequest, i64> {
        let object = self.capabilities.lease(kind, named, kind.io())?.object;
        let (id, until) = bounds(&object);
        let offset = match kind {
            Kind::Memory => at,
            // One that no lease has, if there are not so many bytes.
            Kind::Block => at.checked_mul(BLOCK_LEN as u64).unwrap_or(u64::MAX - (BLOCK_LEN as u64 - 1)),
        };
        let ask = asked(id, op, offset, len as u64);
        if let Object::Handle { rights, .. } = object {
            let allowed = rights & if op == Op::Read { READ } else { CHANGE } != 0;
            let ends = now >= until;
            if ends || !allowed {
                let refused = self.gate.check(&ask, now).err();
                let before = |refusal| matches!(refusal, Refusal::Unknown | Refusal::Revoked | Refusal::Expired);
                return Err(match refused {
                    Some(refusal) if !ends || before(refusal) => code_of(refusal),
                    _ if ends => code::EXPIRED,
                    _ => code::DENIED,
                });
            }
        }
        Ok(ask)
    }

    #[inline]
    fn count(&mut self, ask: &AccessRequest, served: Result<Served, Refusal>) -> Result<Served, i64> {
        if served != Ok(Served::Blocks) {
            self.gate.counts.outcome(ask.access.op, ask.access.len, served.map(|_| ()).map_err(Failure::from));
        }
        served.map_err(code_of)
    }
}

/// The lease of an entry, and until when the entry counts.
#[inline]
fn bounds(object: &Object) -> (u128, Nanos) {
    match *object {
        Object::Lease { lease, .. } => (lease, Nanos(u64::MAX)),
        Object::Handle { lease, until, .. } => (lease, until),
        // No lease has it; a lookup of leases never finds a token.
        Object::Token { .. } => (0, Nanos(0)),
    }
}

#[inline]
fn asked(id: u128, op: Op, offset: u64, len: u64) -> AccessRequest {
    let id = LeaseId(id);
    let access = Access { op, key: id.key(), generation: None, offset, len, well_formed: true };
    AccessRequest { id: Some(id), access }
}

fn failed(failure: Failure) -> i64 {
    match failure {
        Failure::Refused(refusal) => code_of(refusal),
        Failure::Busy => code::BUSY,
        Failure::Storage => code::INTERNAL,
    }
}

fn code_of(refusal: Refusal) -> i64 {
    match refusal {
        Refusal::Unknown => code::INVALID_LEASE,
        Refusal::Revoked | Refusal::StaleGeneration => code::FENCED,
        Refusal::Expired => code::EXPIRED,
        Refusal::BadRequest | Refusal::TooLong => code::BAD_LENGTH,
        Refusal::OutOfRange => code::OUT_OF_RANGE,
        Refusal::Denied => code::DENIED,
    }
}
