//! Requests to a node, and its answers.

use std::{net::SocketAddr, time::Duration};

use berth_lease::{LeaseId, Quiescence, RegionId, Regions, Span, Storage};
use berth_wire::fabric::Status;

use crate::{
    blocking::BlockingWork,
    ending::{Ending, Teardown},
    journal::Record,
    ops::Listing,
    pending::Deadline,
};

/// How a request arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// In signed datagrams.
    Udp {
        /// Nonce of the frame. The journal keeps it, against a second execution after a restart.
        nonce: u64,
    },
    /// On a stream of a TLS connection.
    Quic,
}

/// One operation of an authenticated presenter: a signature or TLS has proved the key, which is enrolled (except for
/// ENROLL_REQUEST, which the key in its params has signed).
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// How the request arrived.
    pub carrier: Carrier,
    /// Id of the key that asks.
    pub presenter: u128,
    /// Address that the request came from.
    pub source: SocketAddr,
    /// `berth_wire::fabric::Op` code, not checked yet.
    pub op: u16,
    /// The resource to act on; 0 for any.
    pub resource: u128,
    /// An encoded token, or empty.
    pub token: &'a [u8],
    /// The operation's own fields, not parsed yet.
    pub params: &'a [u8],
}

/// What comes next for a request.
#[derive(Debug)]
pub enum Step {
    /// The operation is done.
    Done(Outcome),
    /// Bytes must be worked on first: then call `Node::resume`.
    Work(Work),
    /// The leases must be listed in parts: call `Node::list` until the listing is whole, then answer with it.
    List(Listing),
    /// Malformed in a way that is dropped on UDP and resets the stream on QUIC.
    Drop,
}

/// An answer, and what must happen before it leaves.
#[derive(Debug, Default)]
pub struct Outcome {
    /// To be sent to the presenter.
    pub answer: Answer,
    /// To be made durable, in this order and after earlier ones, before the answer leaves.
    pub journal: Vec<Record>,
    /// Must be over before the answer leaves, so that no access is served after a revocation was answered.
    pub quiescence: Option<Quiescence>,
    /// Must be over before the answer leaves, and what was journaled at their end durable. If one has failed, the
    /// answer becomes [`Status::ResourceFenced`].
    pub endings: Vec<Ending>,
    /// To be done at once; the answer does not wait for it.
    pub effects: Effects,
}

/// Status and result of a RESPONSE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// OK, or why the operation was refused.
    pub status: Status,
    /// The operation's own fields; empty unless the status is OK.
    pub result: Vec<u8>,
}

impl Default for Answer {
    fn default() -> Self {
        Self { status: Status::Ok, result: Vec::new() }
    }
}

/// Work for the host to do without holding the node: wait for what is named here, then do the jobs in order and in
/// small pieces, then what may block. If the ending fails, the work fails too, and none of it is done.
#[derive(Debug)]
pub struct Work {
    /// To be passed to `Node::resume`.
    pub ticket: u64,
    /// To be checked before each piece. Once it is over, the rest of the jobs is not done.
    pub deadline: Deadline,
    /// To be made durable, with everything journaled before, before the first job begins; `None` if nothing need be.
    pub journal: Option<Vec<Record>>,
    /// Over once no access from before goes on; to be waited for before the first job begins.
    pub quiescence: Option<Quiescence>,
    /// To be waited for before the first job begins; if it fails, nothing of this is done.
    pub ending: Option<Ending>,
    /// For how long at most; `None` for as long as it takes. After that the work goes on as if it were over.
    pub patience: Option<Duration>,
    /// To be done at once.
    pub effects: Effects,
    /// Work on bytes, in order.
    pub jobs: Vec<Job>,
    /// A task that may block, such as a binding's; run after the jobs.
    pub prepare: Option<BlockingWork>,
}

/// One piece of work on bytes. Spans in block regions are multiples of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Zero these bytes.
    Zero(Span),
    /// Copy the first span to the second, which has the same length and does not overlap it.
    Copy(Span, Span),
    /// Make what was zeroed in this region survive a power loss.
    Flush(RegionId),
}

/// Bytes that a job moves at a time.
const CHUNK: u64 = 64 << 10;

impl Job {
    /// Does the job if all of its bytes are memory. False if some are behind a block engine: then nothing was done, and
    /// the host does it through [`Blocks`](berth_lease::Blocks).
    pub fn in_memory(&self, regions: &Regions) -> bool {
        let in_region = |id| match &regions.get(id)?.storage {
            Storage::Bytes(bytes) => Some(bytes),
            Storage::Blocks(_) => None,
        };
        let memory = |span: &Span| in_region(span.region);
        match self {
            Self::Flush(region) => in_region(*region).is_some(),
            Self::Zero(span) => memory(span).map(|bytes| bytes.zero(span.at, span.len)).is_some(),
            Self::Copy(from, to) => {
                let (Some(source), Some(target)) = (memory(from), memory(to)) else { return false };
                let mut chunk = vec![0; CHUNK.min(from.len) as usize];
                let mut done = 0;
                while done < from.len {
                    let chunk = &mut chunk[..CHUNK.min(from.len - done) as usize];
                    source.read(from.at + done, chunk);
                    target.write(to.at + done, chunk);
                    done += chunk.len() as u64;
                }
                true
            }
        }
    }
}

/// What the host must do besides answering.
#[derive(Debug, Default)]
pub struct Effects {
    /// Leases that serve no more I/O: close their data connections within a second.
    pub ended: Vec<LeaseId>,
    /// To be run without holding the node.
    pub teardowns: Vec<Teardown>,
    /// Whether a key is no longer served: close its connections at once.
    pub unenrolled: bool,
    /// Payloads of REVOKE_BROADCAST frames, to be signed and sent to all listeners.
    pub broadcasts: Vec<Vec<u8>>,
    /// To be made durable eventually, after earlier ones; nothing waits for it.
    pub journal: Vec<Record>,
}

impl Outcome {
    /// The part of an outcome that matters if nobody waits for the answer.
    pub(crate) fn into_effects(mut self) -> Effects {
        self.effects.journal.splice(..0, self.journal);
        self.effects
    }
}
