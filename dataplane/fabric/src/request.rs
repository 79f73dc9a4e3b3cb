//! What goes into a node and what comes out.

use std::net::SocketAddr;

use berth_lease::{LeaseId, Quiescence, RegionId, Regions, Span, Storage};
use berth_wire::fabric::Status;

use crate::{
    blocking::BlockingWork,
    ending::{Ending, Teardown},
    journal::Record,
    ops::Listing,
    pending::Deadline,
};

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// In signed datagrams, with this nonce.
    Udp {
        /// The frame's nonce: the node's journal keeps it from being executed again after a restart.
        nonce: u64,
    },
    /// On a stream of a TLS connection.
    Quic,
}

/// One op whose presenter is known to be who it says: a signature or TLS has proved it, and its key is enrolled (but
/// for ENROLL_REQUEST, where the key in the params has signed).
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// How it came.
    pub carrier: Carrier,
    /// Who asks.
    pub presenter: u128,
    /// From where.
    pub source: SocketAddr,
    /// A number of `berth_wire::fabric::Op`, or not.
    pub op: u16,
    /// The resource; 0 for any.
    pub resource: u128,
    /// An encoded token, or empty.
    pub token: &'a [u8],
    /// The op's own fields.
    pub params: &'a [u8],
}

/// What a node says to a request.
#[derive(Debug)]
pub enum Step {
    /// The op is done.
    Done(Outcome),
    /// Bytes must be worked on before it is: then call `Node::resume`.
    Work(Work),
    /// All leases are to be looked at, a part at a time: call `Node::list` until the listing is whole, then answer it.
    List(Listing),
    /// The request is malformed in a way that is dropped on UDP, and resets the stream on QUIC.
    Drop,
}

/// An answer, and what must have happened before it leaves.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The answer.
    pub answer: Answer,
    /// The answer leaves when all of these are durable, in this order behind earlier ones.
    pub journal: Vec<Record>,
    /// The answer leaves when this is over: no access is served after a revocation was answered.
    pub quiescence: Option<Quiescence>,
    /// The answer leaves when all of these are over, and what was journaled at their end is durable. Where one has
    /// failed, it is [`Status::ResourceFenced`].
    pub endings: Vec<Ending>,
    /// To be done at once, beside the above.
    pub effects: Effects,
}

/// The status and result of a RESPONSE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What became of the op.
    pub status: Status,
    /// The op's own fields; empty unless the status is OK.
    pub result: Vec<u8>,
}

impl Default for Answer {
    fn default() -> Self {
        Self { status: Status::Ok, result: Vec::new() }
    }
}

/// Work, for the host to do without holding the node: first wait, then do the jobs in order and in small pieces, then
/// what may block. Where the ending that it waits for fails, so does the work, and nothing of it is done.
#[derive(Debug)]
pub struct Work {
    /// Names it to `Node::resume`.
    pub ticket: u64,
    /// To be looked at before each piece; where it is over, the rest of the jobs is left undone.
    pub deadline: Deadline,
    /// To be durable, with all that was journaled before, when the first job begins; `None` if nothing need be.
    pub journal: Option<Vec<Record>>,
    /// To wait for before the first job.
    pub quiescence: Option<Quiescence>,
    /// To wait for before the first job, too.
    pub ending: Option<Ending>,
    /// To be done at once.
    pub effects: Effects,
    /// What to do.
    pub jobs: Vec<Job>,
    /// What a binding has to do, which may block.
    pub prepare: Option<BlockingWork>,
}

/// One piece of work on bytes. Spans of block regions are multiples of 512 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Zero these bytes.
    Zero(Span),
    /// Copy the first bytes to the second, which are as many and do not overlap them.
    Copy(Span, Span),
    /// Make what was zeroed in this region survive a loss of power.
    Flush(RegionId),
}

/// Bytes that a job moves at a time.
const CHUNK: u64 = 64 << 10;

impl Job {
    /// Does the job where all of its bytes are memory; false if some are behind a block engine: then nothing was
    /// done, and the host does it through [`Blocks`](berth_lease::Blocks).
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

/// What the host is to do.
#[derive(Debug, Default)]
pub struct Effects {
    /// Leases that serve no more I/O: their data connections are to be closed within a second.
    pub ended: Vec<LeaseId>,
    /// What is being torn down.
    pub teardowns: Vec<Teardown>,
    /// A key is not served any more: its connections are to be closed at once.
    pub unenrolled: bool,
    /// Payloads of REVOKE_BROADCAST frames to sign and send to whoever listens.
    pub broadcasts: Vec<Vec<u8>>,
    /// To be made durable some time, behind earlier ones; nothing waits for it.
    pub journal: Vec<Record>,
}

impl Outcome {
    /// What is left of an outcome that nobody waits for.
    pub(crate) fn into_effects(mut self) -> Effects {
        self.effects.journal.splice(..0, self.journal);
        self.effects
    }
}
