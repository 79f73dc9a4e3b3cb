//! Page operations over leases (profile, decision 22).
//!
//! An operation has three parts, so that the node's state is never locked while blocks are read or written:
//! [`PageOp::begin`] looks up the holder's leases, [`PageOp::run`] does the access, [`PageOp::end`] notes it in the
//! pages' state and writes the response.

use berth_lease::{Access, LeaseId, Leases, Op, Refusal, RegionKind};
use berth_port::Nanos;
use berth_wire::fabric::data::page::{PageRef, Request, Response, State, Status};

use crate::{AccessRequest, Counts, Failure, Gate, Served, counts::Event};

/// A page operation that has been allowed so far.
#[derive(Debug)]
pub struct PageOp<'a> {
    request: Request<'a>,
    work: Work,
}

#[derive(Debug)]
enum Work {
    Read(AccessRequest),
    Write(AccessRequest),
    Copy(AccessRequest, AccessRequest),
    /// Nothing is accessed, but the lease must be one that could be.
    Look(AccessRequest),
}

/// `tier` of a page's state: local DRAM, and what outlives a restart.
const TIERS: [u8; 2] = [0, 2];

impl<'a> PageOp<'a> {
    /// Looks up what `request` needs among the leases of `holder`.
    pub fn begin(request: Request<'a>, leases: &Leases, holder: u128, now: Nanos) -> Result<Self, Status> {
        let place = |page: PageRef| Place::find(page, leases, holder, now);
        let known = |page| place(page).owned().ok_or(Status::LeaseNotFound);
        let work = match request {
            Request::Read { page, offset, length } => Work::Read(known(page)?.part(Op::Read, offset, length)),
            Request::Write { page, offset, data } => {
                Work::Write(known(page)?.part(Op::Write, offset, u32::try_from(data.len()).unwrap_or(u32::MAX)))
            }
            Request::Zero(page) => Work::Write(known(page)?.whole(Op::Write)),
            Request::Advise { page, .. } | Request::Query(page) => Work::Look(known(page)?.whole(Op::Read)),
            Request::Copy { src, dst } => {
                let (src, dst) = match (place(src), place(dst)) {
                    (Found::Owned(src), Found::Owned(dst)) => (src, dst),
                    (Found::Owned(_), Found::Foreign) | (Found::Foreign, Found::Owned(_)) => {
                        return Err(Status::CrossTenantCopyDenied);
                    }
                    (Found::Owned(_), Found::Nothing) => return Err(Status::DstLeaseNotFound),
                    _ => return Err(Status::SrcLeaseNotFound),
                };
                let from = src.whole(Op::Read);
                Work::Copy(from, dst.first(from.access.len))
            }
        };
        // What is noted of a page counts as its holder's.
        let noted = match request {
            Request::Query(_) => [None, None],
            Request::Copy { src, dst } => [Some(src), Some(dst)],
            Request::Read { page, .. } | Request::Write { page, .. } | Request::Advise { page, .. } => {
                [Some(page), None]
            }
            Request::Zero(page) => [Some(page), None],
        };
        let noted: Vec<_> = noted.into_iter().flatten().map(|page| (LeaseId(page.lease_id), page.page)).collect();
        if !leases.may_keep(&noted, now) {
            return Err(Status::InsufficientCapacity);
        }
        Ok(Self { request, work })
    }

    /// Counts an operation that [`PageOp::begin`] has refused.
    pub fn refused(status: Status, counts: &mut Counts) {
        counts.add(match status {
            Status::InsufficientCapacity => Event::OverQuota,
            Status::CrossTenantCopyDenied => Event::NotTheirs,
            _ => Event::UnknownLease,
        });
    }

    /// Does the access, and returns what was read where the operation reads. `clock` tells the time: a copy takes a while,
    /// and its write begins when the read has ended.
    pub async fn run(&self, gate: &mut Gate, clock: impl Fn() -> Nanos) -> Result<Vec<u8>, Status> {
        let clock = &clock;
        let done = match (&self.work, &self.request) {
            (Work::Read(ask), _) => read(gate, ask, clock).await,
            (Work::Write(ask), Request::Write { data, .. }) => write(gate, ask, data, clock).await,
            (Work::Write(ask), _) => write(gate, ask, &vec![0; ask.access.len as usize], clock).await,
            (Work::Copy(from, to), _) => match read(gate, from, clock).await {
                Ok(data) => write(gate, to, &data, clock).await,
                failed => failed,
            },
            (Work::Look(ask), _) => {
                inside(gate, ask, clock()).inspect_err(|failure| gate.counts.add((*failure).into()))
            }
        };
        done.map_err(|failure| match (failure, &self.work) {
            (Failure::Refused(Refusal::Unknown), Work::Copy(..)) => Status::SrcLeaseNotFound,
            (failure, _) => status(failure),
        })
    }

    /// Notes the operation in the pages' state, `at_ms` since the Unix epoch, and appends its response to `out`.
    pub fn end(self, done: Result<&[u8], Status>, leases: &mut Leases, at_ms: u64, out: &mut Vec<u8>) {
        let op = self.request.op();
        let data = match done {
            Ok(data) => data,
            Err(status) => return Response::Status(op, status).write(out),
        };
        let mut touch = |page: PageRef, wrote| leases.touch(LeaseId(page.lease_id), page.page, wrote, at_ms);
        match self.request {
            Request::Read { page, .. } => {
                touch(page, false);
                return Response::Data(data).write(out);
            }
            Request::Write { page, .. } | Request::Zero(page) => touch(page, true),
            Request::Copy { src, dst } => {
                touch(src, false);
                touch(dst, true);
            }
            Request::Advise { page, flags } => leases.advise(LeaseId(page.lease_id), page.page, flags),
            Request::Query(page) => return Response::State(state(page, leases)).write(out),
        }
        Response::Status(op, Status::Ok).write(out);
    }
}

/// A page of the holder's own lease.
#[derive(Debug, Clone, Copy)]
struct Place {
    id: LeaseId,
    /// Its first byte, from the lease's first.
    start: u64,
    /// Its length; 0 where the lease ends before it.
    len: u64,
}

enum Found {
    Owned(Place),
    Foreign,
    Nothing,
}

impl Found {
    fn owned(self) -> Option<Place> {
        match self {
            Self::Owned(place) => Some(place),
            Self::Foreign | Self::Nothing => None,
        }
    }
}

impl Place {
    fn find(page: PageRef, leases: &Leases, holder: u128, now: Nanos) -> Found {
        let id = LeaseId(page.lease_id);
        let Some(lease) = leases.get(id).filter(|_| leases.query(id, now).is_some()) else { return Found::Nothing };
        if lease.holder != holder {
            return Found::Foreign;
        }
        let size = u64::from(leases.config().page_size);
        let start = u64::from(page.page) * size;
        Found::Owned(Self { id, start, len: lease.len.saturating_sub(start).min(size) })
    }

    /// An access to `length` bytes from `offset` of the page: outside of the lease where it is outside of the page.
    fn part(self, op: Op, offset: u32, length: u32) -> AccessRequest {
        let (offset, len) = (u64::from(offset), u64::from(length));
        let offset = if offset + len <= self.len { self.start + offset } else { u64::MAX };
        let access = Access { op, key: self.id.key(), generation: None, offset, len: len.max(1), well_formed: len > 0 };
        AccessRequest { id: Some(self.id), access }
    }

    fn whole(self, op: Op) -> AccessRequest {
        self.part(op, 0, u32::try_from(self.len).unwrap_or(u32::MAX))
    }

    /// A write to the first `len` bytes of the page.
    fn first(self, len: u64) -> AccessRequest {
        self.part(Op::Write, 0, u32::try_from(len).unwrap_or(u32::MAX))
    }
}

async fn read(gate: &mut Gate, ask: &AccessRequest, clock: &impl Fn() -> Nanos) -> Result<Vec<u8>, Failure> {
    // An access that is out of range may ask for 4 GiB: the room is made for what a page can hold.
    let inside = ask.access.offset != u64::MAX;
    let mut data = vec![0; if inside { ask.access.len as usize } else { 0 }];
    let done = match gate.read(ask, &mut data, clock()) {
        Ok(Served::Done) => Ok(data),
        Ok(Served::Blocks) => match gate.start(ask, &[], clock()) {
            Ok(io) => io.await.map(|read| {
                read.read_at(0, &mut data);
                data
            }),
            Err(refusal) => Err(refusal.into()),
        },
        Err(refusal) => Err(refusal.into()),
    };
    gate.counts.outcome(Op::Read, ask.access.len, done.as_ref().map(|_| ()).map_err(|failure| *failure));
    done
}

async fn write(
    gate: &mut Gate,
    ask: &AccessRequest,
    data: &[u8],
    clock: &impl Fn() -> Nanos,
) -> Result<Vec<u8>, Failure> {
    let done = match gate.write(ask, data, clock()) {
        Ok(Served::Done) => Ok(()),
        Ok(Served::Blocks) => match gate.start(ask, data, clock()) {
            Ok(io) => io.await.map(|_| ()),
            Err(refusal) => Err(refusal.into()),
        },
        Err(refusal) => Err(refusal.into()),
    };
    gate.counts.outcome(Op::Write, ask.access.len, done);
    done.map(|()| Vec::new())
}

/// Whether the lease takes accesses and the page lies in it.
fn inside(gate: &mut Gate, ask: &AccessRequest, now: Nanos) -> Result<Vec<u8>, Failure> {
    let entry = gate.look(ask, now)?;
    if ask.access.offset < entry.len && ask.access.well_formed {
        Ok(Vec::new())
    } else {
        Err(Refusal::OutOfRange.into())
    }
}

fn state(page: PageRef, leases: &Leases) -> State {
    let id = LeaseId(page.lease_id);
    let region = leases.get(id).and_then(|lease| leases.regions().get(lease.region()?));
    let persistent = region.is_some_and(|region| region.kind == RegionKind::Block);
    let known = leases.page(id, page.page);
    State {
        page: page.page,
        tier: TIERS[usize::from(persistent)],
        dirty: known.dirty,
        accesses: known.accesses,
        last_access_ms: known.last_access_ms,
        advice: known.advice,
    }
}

fn status(failure: Failure) -> Status {
    match failure {
        Failure::Refused(Refusal::Unknown) => Status::LeaseNotFound,
        Failure::Refused(Refusal::Revoked) => Status::LeaseRevoked,
        Failure::Refused(Refusal::Expired) => Status::LeaseExpired,
        Failure::Refused(Refusal::Denied | Refusal::StaleGeneration) => Status::LeaseFenced,
        Failure::Refused(Refusal::BadRequest | Refusal::TooLong | Refusal::OutOfRange) => Status::PageOutOfRange,
        Failure::Busy => Status::InsufficientCapacity,
        Failure::Storage => Status::LeaseNotActive,
    }
}
