//! Sessions that lease a device: `BERTH_CHALLENGE`, `BERTH_BIND`, and the end of a lease ("Leases").

use std::{
    any::Any,
    task::{Context, Poll, Waker},
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::hip::{
    Code, Header, Op,
    request::Bind,
    response::{Nonce, Status},
};

use crate::{
    device::Device,
    session::{Flow, Output, Phase, Session, done, put},
};

/// Refusals after which a connection is closed.
const REFUSALS: u8 = 3;

/// How long a session that needs a lease may do without.
const UNBOUND: Duration = Duration::from_secs(10);

/// Longest token.
const TOKEN_MAX: usize = berth_wire::hip::LAUNCH_MAX;

/// What a client presents in `BERTH_BIND`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Full id of the lease.
    pub lease: u128,
    /// The encoded token, at most 32 KiB.
    pub token: Vec<u8>,
    /// Signature of `signed` by the key of the lease's holder.
    pub signature: [u8; 64],
    /// What is signed: it covers the session's nonce, the lease's id and, under TLS, the connection's exporter.
    pub signed: Vec<u8>,
}

/// A device that a session has alone for as long as its lease lives.
pub struct Grant {
    /// Index of the device among the worker's.
    pub device: usize,
    /// Bytes of the lease: all memory that the session then has.
    pub bytes: u64,
    /// Asked from then on whether the lease still lives.
    pub standing: Box<dyn Standing>,
    /// Dropped when nothing of the session's memory is left.
    pub held: Box<dyn Any + Send>,
}

/// Decides on the claims of one session. Dropped, it gives up.
pub trait Binder: Send {
    /// Starts to look at a claim. None is under way.
    fn start(&mut self, claim: Claim);

    /// What became of it; otherwise wakes its task later.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`] if it is refused, others where that was nobody's fault.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Grant, Code>>;
}

/// How a lease stands.
pub trait Standing: Send {
    /// Whether it was ended by its node.
    fn is_stopped(&self) -> bool;

    /// Whether it may be used at `now`.
    fn is_live(&self, now: Nanos) -> bool;
}

/// A session's part in leases.
pub(crate) struct Leasing {
    binder: Box<dyn Binder>,
    /// Nothing is served without.
    required: bool,
    nonce: [u8; 32],
    /// Of the connection's TLS.
    exporter: Option<[u8; 32]>,
    began: Nanos,
    refused: u8,
    /// The lease of the last claim.
    claimed: u128,
    standing: Option<Box<dyn Standing>>,
    /// What became of the last claim, and was not looked at.
    ended: Option<Result<Grant, Code>>,
}

impl<D: Device> Session<D> {
    /// Lets the client bind the session to a lease, or, where it is `required`, serves nothing before.
    #[must_use]
    pub fn leasing(mut self, binder: Box<dyn Binder>, required: bool) -> Self {
        let words: [u64; 4] = std::array::from_fn(|_| (self.random)());
        let mut nonce = [0; 32];
        nonce.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        let began = self.last;
        let (exporter, standing, ended) = (None, None, None);
        let (refused, claimed) = (0, 0);
        self.leasing = Some(Leasing { binder, required, nonce, exporter, began, refused, claimed, standing, ended });
        self
    }

    /// Under TLS, what binds proofs to this connection: 32 bytes of its exporter.
    pub fn export(&mut self, exporter: [u8; 32]) {
        if let Some(leasing) = &mut self.leasing {
            leasing.exporter = Some(exporter);
        }
    }

    /// Whether this operation is refused for want of a lease.
    pub(crate) fn lacks_lease(&self, op: Option<Op>) -> bool {
        let is_open = matches!(op, Some(Op::Ping | Op::Shutdown | Op::BerthChallenge | Op::BerthBind));
        self.leasing.as_ref().is_some_and(|leasing| leasing.required && leasing.standing.is_none()) && !is_open
    }

    pub(crate) fn challenge(&self, room: &mut [u8]) -> Result<Flow, Code> {
        let leasing = self.leasing.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        Ok(put(room, &Nonce { error_code: 0.into(), nonce: leasing.nonce }))
    }

    pub(crate) fn claim(&self, payload: &[u8]) -> Result<Flow, Code> {
        let leasing = self.leasing.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        if leasing.standing.is_some() {
            return Err(Code::INVALID_CONTEXT);
        }
        let request = Bind::parse(payload).ok_or(Code::INVALID_VALUE)?;
        let len = request.token_length.get() as usize;
        let token = payload[Bind::LEN..].get(..len).filter(|_| self.rest == 0 && len <= TOKEN_MAX);
        let token = token.ok_or(Code::INVALID_VALUE)?.to_vec();
        let signed = Bind::signed(&leasing.nonce, &request.lease_id, leasing.exporter.as_ref());
        let lease = u128::from_be_bytes(request.lease_id);
        Ok(Flow::Bind(Box::new(Claim { lease, token, signature: request.signature, signed })))
    }

    /// Has a claim looked at.
    pub(crate) fn bind(&mut self, header: Header, claim: Claim) {
        if let Some(leasing) = &mut self.leasing {
            leasing.claimed = claim.lease;
            leasing.binder.start(claim);
            self.phase = Phase::Bind(header);
        }
    }

    /// Whether a claim is decided.
    pub(crate) fn is_decided(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(leasing) = &mut self.leasing else { return true };
        if leasing.ended.is_none()
            && let Poll::Ready(ended) = leasing.binder.poll(cx)
        {
            leasing.ended = Some(ended);
        }
        leasing.ended.is_some()
    }

    /// Answers a claim that is decided.
    pub(crate) fn bound(&mut self, header: &Header, out: &mut Output<'_>, now: Nanos) {
        if !self.is_decided(&mut Context::from_waker(Waker::noop())) {
            return;
        }
        self.phase = Phase::Head;
        let ended = self.leasing.as_mut().and_then(|leasing| leasing.ended.take());
        let result = ended.unwrap_or(Err(Code::INVALID_CONTEXT)).and_then(|grant| self.confine(grant, now));
        let refused = result == Err(Code::INVALID_CONTEXT);
        done(&mut out.left()[Header::LEN..]);
        self.finish(header, result.map(|()| Status::LEN), out);
        if let Some(leasing) = self.leasing.as_mut().filter(|_| refused) {
            leasing.refused += 1;
            if leasing.refused >= REFUSALS {
                self.phase = Phase::Closed;
            }
        }
    }

    /// Leaves the session with the device of a lease alone. What it had is freed, unless there is an error.
    fn confine(&mut self, grant: Grant, now: Nanos) -> Result<(), Code> {
        let Grant { device, bytes, standing, held } = grant;
        if !standing.is_live(now) {
            return Err(Code::INVALID_CONTEXT);
        }
        self.device.confine(device, bytes, held)?;
        self.reset();
        self.current = 0;
        if let Some(leasing) = &mut self.leasing {
            leasing.standing = Some(standing);
            if let Some(activity) = &self.tally.activity {
                // A session has one lease.
                let _ = activity.lease.set(leasing.claimed);
            }
        }
        Ok(())
    }

    /// How the lease stands that it got, and was not told of yet.
    fn got(&self) -> Option<&dyn Standing> {
        let ended = self.leasing.as_ref()?.ended.as_ref()?;
        Some(&*ended.as_ref().ok()?.standing)
    }

    /// Whether its lease was ended by its node.
    pub(crate) fn is_stopped(&self) -> bool {
        let standing = self.leasing.as_ref().and_then(|leasing| leasing.standing.as_deref());
        standing.or(self.got()).is_some_and(Standing::is_stopped)
    }

    /// Whether it got a lease that is over. A client that takes no answers is not told, and must not keep it.
    pub(crate) fn has_lost(&mut self, now: Nanos) -> bool {
        if matches!(self.phase, Phase::Bind(_)) {
            self.is_decided(&mut Context::from_waker(Waker::noop()));
        }
        self.got().is_some_and(|standing| !standing.is_live(now))
    }

    /// Whether it may not be served any more for its lease, or for want of one.
    pub(crate) fn is_out(&self, now: Nanos) -> bool {
        let Some(leasing) = &self.leasing else { return false };
        match &leasing.standing {
            Some(standing) => !standing.is_live(now),
            None => leasing.required && now > leasing.began + UNBOUND && !matches!(self.phase, Phase::Bind(_)),
        }
    }
}
