//! LEASE_BIND: connections over transports that bypass the lease table.

use berth_identity::Identity;
use berth_lease::{Holding, Lease, LeaseId, Span, Status as Standing};
use berth_port::Now;
use berth_wire::fabric::{BindKind, LeaseBind, Op, Perms, Status, Tlv, Tlvs, Wire as _};

use super::{Reply, TimedRequest, params};
use crate::{
    binding::{BindSecret, BoundLease, Reach, binding_id},
    ending::{Ending, Why},
    host::Host,
    journal::Record,
    node::Node,
    pending::{Origin, Pending, WorkFailed},
    request::{Carrier, Effects, Outcome, Step, Work},
    status::of_lease,
};

/// Limit on a client's TLVs in bytes, as they are journaled.
const MAX_CLIENT: usize = 1024;

/// A TLV that the node puts behind the client's where a binding answers secrets: random bytes that are drawn for each
/// LEASE_BIND. They are journaled; the secret is not.
const SALT: u16 = 0x04FF;

/// Bytes of it.
const SALT_LEN: usize = 16;

/// An attempt to connect a lease.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) lease: LeaseId,
    kind: BindKind,
    /// The client's TLVs, as received.
    client: Vec<u8>,
    /// Index of the binding that is tried, or of the first one to try.
    at: usize,
    /// Whether that binding has prepared the connection. If not, an earlier connection is being torn down.
    prepared: bool,
    /// Status of the first binding that refused. UNSUPPORTED_OP gives way to any other.
    refused: Option<Status>,
}

impl<H: Host> Node<H> {
    /// Connects a lease for its holder. An earlier connection of the same kind is torn down first.
    pub(super) fn lease_bind(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let granted = self.verify(ask, Perms::ALLOC, 0, None)?;
        let LeaseBind { lease_id, kind, client } = params(ask)?;
        let kind = BindKind::from_code(kind).ok_or(Status::InvalidParams)?;
        if !self.bindings.iter().any(|binding| binding.kind() == kind) {
            return Err(Status::UnsupportedOp);
        }
        let id = LeaseId(lease_id);
        let lease = self.leases.get(id).ok_or(Status::ResourceNotFound)?;
        match self.leases.query(id, ask.now.mono) {
            None => return Err(Status::ResourceNotFound),
            Some(_) if lease.holder != ask.request.presenter => return Err(Status::InsufficientPerm),
            Some((Standing::Expired | Standing::Revoked, _)) => return Err(Status::LeaseExpired),
            Some((Standing::Active, _)) => {}
        }
        if !granted.covers(self.lease_resource(&lease)) {
            return Err(Status::InsufficientPerm);
        }
        if client.as_bytes().len() > MAX_CLIENT || client.iter().any(|tlv| tlv.tag == SALT) {
            return Err(Status::InvalidParams);
        }
        let mut of_kind = self.bindings.iter().filter(|binding| binding.kind() == kind);
        if ask.request.carrier != Carrier::Quic && of_kind.all(|binding| binding.answers_secrets()) {
            return Err(Status::InsufficientPerm);
        }
        if self.is_being_bound(id, kind) {
            return Err(Status::ResourceBusy);
        }
        let mut client = client.as_bytes().to_vec();
        if self.bindings.iter().any(|binding| binding.kind() == kind && binding.answers_secrets()) {
            let mut salt = [0; SALT_LEN];
            self.host.random(&mut salt);
            Tlv::append(&mut client, SALT, |to| to.extend_from_slice(&salt));
        }
        let attempt = Attempt { lease: id, kind, client, at: 0, prepared: false, refused: None };
        let origin = Origin::of(Op::LeaseBind, &ask.request);
        let (ending, effects) = self.clear_way(id, kind, ask.now)?;
        match ending {
            Some(_) => Ok(Work { ending, effects, ..self.work(Pending::Bind(attempt), origin) }.into()),
            None => Ok(self.attempt(attempt, effects, origin, ask.now)),
        }
    }

    /// Ends the connection that a lease has over a binding of this kind.
    fn clear_way(&mut self, id: LeaseId, kind: BindKind, now: Now) -> Result<(Option<Ending>, Effects), Status> {
        let mut outcome = Outcome::default();
        let of_kind = |index: &usize| self.bindings[*index].kind() == kind;
        let connected = |index: &usize| self.connections.contains_key(&(id, *index));
        let ending = match (0..self.bindings.len()).filter(of_kind).find(connected) {
            Some(index) => self.end(id, Why::Disconnected, Some(index), now, &mut outcome),
            None => Ok(None),
        };
        let ending = ending.map_err(|_| Status::ResourceBusy)?;
        Ok((ending, outcome.into_effects()))
    }

    /// Continues an attempt once the earlier connection is gone, or the client was found.
    pub(crate) fn go_on_binding(
        &mut self,
        attempt: Attempt,
        work: Result<(), WorkFailed>,
        origin: Origin,
        now: Now,
    ) -> Reply {
        let mut outcome = Outcome::default();
        match (attempt.prepared, work) {
            (false, Ok(())) => Ok(self.attempt(attempt, Effects::default(), origin, now)),
            (false, Err(WorkFailed)) => Err(Status::ResourceBusy),
            (true, Ok(())) => match self.connect(&attempt, &mut outcome, now) {
                Ok(tlvs) => Ok(Outcome { answer: Outcome::with(tlvs).answer, ..outcome }.into()),
                Err(status) => Ok(self.attempt(attempt.refused(status), outcome.into_effects(), origin, now)),
            },
            (true, Err(WorkFailed)) => {
                self.give_up(&attempt, &mut outcome, now);
                outcome.answer.status = Status::InternalError;
                Ok(outcome.into())
            }
        }
    }

    /// Asks one binding after the other. `effects` are those of earlier steps.
    fn attempt(&mut self, mut attempt: Attempt, mut effects: Effects, origin: Origin, now: Now) -> Step {
        // That a connection ended is journaled before the next one, or a restart would find none.
        let journal = std::mem::take(&mut effects.journal);
        let mut outcome = Outcome { journal, effects, ..Outcome::default() };
        while attempt.at < self.bindings.len() {
            if self.bindings[attempt.at].kind() != attempt.kind {
                attempt.at += 1;
                continue;
            }
            let readable = origin.carrier() != Carrier::Quic && self.bindings[attempt.at].answers_secrets();
            let begun = if readable { Err(Status::InsufficientPerm) } else { Ok(()) }
                .and_then(|()| self.check_attempt(&attempt, origin, now))
                .and_then(|bound| self.bindings[attempt.at].prepare(&bound, attempt.client()));
            let record = self.bound_record(&attempt);
            match begun {
                Ok(Some(prepare)) => {
                    attempt.prepared = true;
                    let work = self.work(Pending::Bind(attempt), origin);
                    let (journal, effects) = (Some(vec![record]), outcome.into_effects());
                    return Work { journal, effects, prepare: Some(prepare), ..work }.into();
                }
                Ok(None) => {
                    outcome.journal.push(record);
                    match self.connect(&attempt, &mut outcome, now) {
                        Ok(tlvs) => {
                            outcome.answer.result = tlvs;
                            return outcome.into();
                        }
                        Err(status) => attempt = attempt.refused(status),
                    }
                }
                Err(status) => attempt = attempt.refused(status),
            }
        }
        outcome.answer.status = attempt.refused.unwrap_or(Status::UnsupportedOp);
        outcome.into()
    }

    /// The lease of an attempt, if it is still active and its holder's quota allows one more connection.
    fn check_attempt(&self, attempt: &Attempt, origin: Origin, now: Now) -> Result<BoundLease, Status> {
        let active =
            self.leases.query(attempt.lease, now.mono).is_some_and(|(standing, _)| standing == Standing::Active);
        let lease = self.leases.get(attempt.lease).filter(|_| active).ok_or(Status::LeaseExpired)?;
        let binds = |pending: &Pending| matches!(pending, Pending::Bind(_));
        let begun = self
            .pending
            .values()
            .filter(|waiting| binds(&waiting.pending) && waiting.origin.presenter == origin.presenter);
        self.leases.check_binding(lease.holder, begun.count() as u64).map_err(of_lease)?;
        self.bound_lease(&lease, attempt).ok_or(Status::LeaseExpired)
    }

    fn bound_record(&self, attempt: &Attempt) -> Record {
        let binding = binding_id(&*self.bindings[attempt.at]);
        Record::Bound { lease: attempt.lease.0, binding, client: attempt.client.clone() }
    }

    /// Connects a lease whose client can be reached; returns the binding's TLVs.
    fn connect(&mut self, attempt: &Attempt, outcome: &mut Outcome, now: Now) -> Result<Vec<u8>, Status> {
        let Attempt { lease: id, at, .. } = *attempt;
        let active = self.leases.query(id, now.mono).is_some_and(|(standing, _)| standing == Standing::Active);
        let bound = self.leases.get(id).filter(|_| active).and_then(|lease| self.bound_lease(&lease, attempt));
        let mut tlvs = Vec::new();
        let binding = &mut self.bindings[at];
        // It may have ended while its client was looked for.
        let connected =
            bound.ok_or(Status::LeaseExpired).and_then(|bound| binding.bind(&bound, attempt.client(), &mut tlvs));
        match connected {
            Ok(()) => {
                let holder = self.leases.get(id).map_or(0, |lease| lease.holder);
                self.connected(id, at, holder);
            }
            Err(_) => self.give_up(attempt, outcome, now),
        }
        connected.map(|()| tlvs)
    }

    /// Makes a binding drop what it prepared for a lease that was not connected.
    fn give_up(&mut self, attempt: &Attempt, outcome: &mut Outcome, now: Now) {
        let Some(lease) = self.leases.get(attempt.lease) else { return };
        self.connected(lease.id, attempt.at, lease.holder);
        // Where its client may reach what a lease held that is over, it is nobody else's.
        let over = lease.standing != berth_lease::Standing::Live;
        let why = if over { Why::Over } else { Why::Disconnected };
        if let Ok(Some(ending)) = self.end(lease.id, why, Some(attempt.at), now, outcome) {
            outcome.endings.push(ending);
        }
    }

    fn is_being_bound(&self, id: LeaseId, kind: BindKind) -> bool {
        let binds = |pending: &Pending| matches!(pending, Pending::Bind(attempt) if (attempt.lease, attempt.kind) == (id, kind));
        self.pending.values().any(|waiting| binds(&waiting.pending))
    }

    /// Connects a lease again after a restart, with the client's TLVs from before.
    pub(crate) fn bind_anew(&mut self, lease: &Lease, at: usize, client: Vec<u8>, now: Now) -> Step {
        let kind = self.bindings[at].kind();
        let attempt = Attempt { lease: lease.id, kind, client, at, prepared: false, refused: None };
        self.attempt(attempt, Effects::default(), Origin::node(Op::LeaseBind, lease.holder), now)
    }
}

impl Attempt {
    fn client(&self) -> Tlvs<'_> {
        Tlvs::parse(&self.client).expect("TLVs that were parsed")
    }

    /// Moves on to the next binding after this one refused.
    fn refused(self, status: Status) -> Self {
        let said = self.refused.filter(|said| *said != Status::UnsupportedOp);
        Self { at: self.at + 1, prepared: false, refused: said.or(Some(status)), ..self }
    }
}

impl<H: Host> Node<H> {
    /// A lease as bindings see it; `None` if it no longer holds anything.
    fn bound_lease(&self, lease: &Lease, attempt: &Attempt) -> Option<BoundLease> {
        let &Lease { id, generation, rights, base, len, .. } = lease;
        let first = lease.first.min(len);
        let reach = match lease.holds {
            Holding::Bytes(region) => Reach::Bytes { span: Span { region, at: base + first, len: len - first }, first },
            Holding::Unit(_) => Reach::Unit,
            Holding::Nothing => return None,
        };
        let answers = self.bindings[attempt.at].answers_secrets();
        let salt = attempt.client().iter().find(|tlv| tlv.tag == SALT).filter(|_| answers);
        let secret = salt.map(|salt| secret_of(&self.identity, id, salt.value()));
        Some(BoundLease { id, generation, rights, reach, secret })
    }
}

/// The secret of the LEASE_BIND that drew `salt`.
fn secret_of(identity: &Identity, lease: LeaseId, salt: &[u8]) -> BindSecret {
    BindSecret(*identity.derive("berth-bind-secret-v0", &[&lease.0.to_be_bytes(), salt]))
}
