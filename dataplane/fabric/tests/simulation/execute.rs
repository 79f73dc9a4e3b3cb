//! Requests at the node: execution, work, conclusion.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use berth_fabric::{Carrier, Outcome, Step};
use berth_identity::{NodeId, link::Received};
use berth_lease::LeaseId;
use berth_port::Nanos;
use berth_wire::fabric::{
    Bytes, CapRevoke, CapabilityToken, FenceSet, KeyList, KeyRevoke, LeaseExport, LeaseExported, LeaseGrant,
    LeaseImport, LeaseImported, LeaseRef, LeaseRelocate, LeaseRelocated, LeaseRenew, Op, RelocateMode, Relocation,
    Request, Response, Status, Wire as _,
};

use super::{
    oracle::{Attached, Known, Note},
    stores::MEMORY,
    world::{Executing, HELD, JOURNALED, Leaving, NODE, SLOWEST, World, address},
};

impl World {
    /// A datagram arrives at the node.
    pub(super) fn arrives(&mut self, from: u8, bytes: &[u8]) {
        let now = self.time();
        let process = &mut self.process;
        match process.server.receive(bytes, address(from), process.node.keys(), now.mono) {
            Received::Nothing => {}
            Received::Again(answer) => {
                let frames: Vec<Vec<u8>> = answer.frames().collect();
                for frame in frames {
                    self.send(NODE, from, &frame);
                }
            }
            Received::New(message, reply) => {
                let request = Request::parse(&message.payload).expect("the link has looked");
                let asked = berth_fabric::Request {
                    carrier: Carrier::Udp { nonce: message.nonce },
                    presenter: message.sender.0,
                    source: address(from),
                    op: request.op,
                    resource: request.resource_id,
                    token: request.token.get(),
                    params: request.params.get(),
                };
                let executing = Executing {
                    reply,
                    sender: message.sender.0,
                    nonce: message.nonce,
                    op: Op::from_code(request.op).expect("clients know their ops"),
                    params: request.params.get().to_vec(),
                    came: self.at,
                };
                self.oracle.executes(executing.sender, executing.nonce);
                self.summary.executed += 1;
                match process.node.request(&asked, now) {
                    Step::Done(outcome) => {
                        let due = executing.came
                            + HELD
                            + if outcome.journal.is_empty() { 0 } else { JOURNALED }
                            + if outcome.quiescence.is_none() { 0 } else { SLOWEST };
                        self.conclude(&executing, outcome, due);
                    }
                    Step::Work(work) => {
                        if let Some((src, _)) = moved(&executing) {
                            let src = self.oracle.keys[&src];
                            self.oracle.ended(&[src]);
                        }
                        self.takes(work, Some(executing));
                    }
                    Step::List(mut listing) => {
                        while !listing.is_whole() {
                            process.node.list(&mut listing, now);
                        }
                        let due = executing.came + HELD;
                        self.conclude(&executing, Outcome { answer: listing.answer(), ..Outcome::default() }, due);
                    }
                    Step::Drop => unreachable!("clients are enrolled"),
                }
            }
        }
    }

    /// Handles an executed operation: what it means, and when its answer may leave.
    pub(super) fn conclude(&mut self, asked: &Executing, outcome: Outcome, due: u64) {
        let Outcome { answer, journal, quiescence, endings, effects } = outcome;
        let (op, status, result) = (asked.op, answer.status, &answer.result);
        self.say(|| format!("{op} of {} -> {status}, {journal:?}", NodeId(asked.sender)));
        assert!(status != Status::InternalError || self.process.node.is_degraded() || op == Op::LeaseAlloc);
        if status == Status::CapacityExceeded {
            self.over_quota(asked);
        }
        let note = match status {
            Status::Ok => self.meaning(asked, result),
            Status::ResourceFenced => self.fenced(asked),
            _ => Note::Nothing,
        };
        let waits = !journal.is_empty();
        let staged = if waits { self.journal.stage(&journal) } else { 0 };
        if waits {
            self.oracle.journaled(asked.sender, asked.nonce, staged);
        }
        self.apply(effects);
        let result = Bytes::of(&answer.result).expect("it is short");
        let payload = Response { status: status.code(), op: op.code(), result }.to_vec();
        // How long connections take to end is their transport's affair.
        let due = if endings.is_empty() { due } else { u64::MAX };
        let (reply, batch) = (asked.reply, staged);
        self.process.leaving.push(Leaving { reply, payload, batch, quiescence, endings, note, due });
    }

    /// An operation has ended leases of which some may still be connected: none of them is over for good.
    fn fenced(&mut self, asked: &Executing) -> Note {
        match asked.op {
            Op::LeaseFree => {
                let LeaseRef { lease_id } = LeaseRef::parse(&asked.params).expect("it was served");
                self.oracle.ended(&[lease_id]);
            }
            Op::CapRevoke => {
                let token = CapRevoke::parse(&asked.params).expect("it was served").token_id;
                self.oracle.revokes(token);
            }
            Op::KeyRevoke => {
                let KeyRevoke { key_id, remove } = KeyRevoke::parse(&asked.params).expect("it was served");
                self.oracle.revokes_key(key_id, remove);
            }
            _ => {}
        }
        Note::Nothing
    }

    /// What a successful operation means to the oracle.
    pub(super) fn meaning(&mut self, asked: &Executing, result: &[u8]) -> Note {
        match asked.op {
            Op::LeaseAlloc => {
                let grant = LeaseGrant::parse(result).expect("a grant");
                let lease = self.process.node.leases().get(LeaseId(grant.lease_id)).expect("it was granted");
                let mono = self.process.mono(self.now);
                let time = |at: Nanos| self.now + at.0 - mono.0;
                let known = Known {
                    holder: lease.holder,
                    token: lease.token,
                    region: lease.region().expect("it has bytes").0,
                    base: lease.base,
                    len: lease.len,
                    generation: lease.generation.0,
                    expires_at_most: time(lease.expires),
                    expires_ever: time(lease.expires),
                    ends_at_most: time(lease.ends()),
                    expires_at_least: None,
                    over: false,
                    over_for_good: false,
                    holder_revoked: false,
                    contents: BTreeMap::new(),
                    ever: HashSet::new(),
                };
                assert_eq!(lease.holder, asked.sender);
                self.oracle.granted(grant.lease_id, known, self.now);
                self.summary.grants += 1;
                self.summary.hoarded += u64::from(lease.len >= MEMORY / 2);
                Note::Lives(grant.lease_id, time(lease.expires))
            }
            Op::LeaseRenew => {
                let params = LeaseRenew::parse(&asked.params).expect("it was served");
                let until = self.now + Duration::from_secs(params.duration_secs.into()).as_nanos() as u64;
                assert_eq!(self.oracle.leases[&params.lease_id].holder, asked.sender, "another's lease was renewed");
                self.oracle.renewed(params.lease_id, until);
                Note::Lives(params.lease_id, until)
            }
            Op::LeaseFree => {
                let LeaseRef { lease_id } = LeaseRef::parse(&asked.params).expect("it was served");
                assert_eq!(self.oracle.leases[&lease_id].holder, asked.sender, "another's lease was freed");
                assert!(!self.oracle.leases[&lease_id].over, "a lease was freed twice");
                self.oracle.ended(&[lease_id]);
                Note::Over(vec![lease_id], None)
            }
            Op::CapRevoke => {
                let token = CapRevoke::parse(&asked.params).expect("it was served").token_id;
                self.summary.revocations += 1;
                Note::Over(self.oracle.revokes(token), Some(token))
            }
            Op::LeaseRelocate => {
                let relocated = LeaseRelocated::parse(result).expect("a relocation");
                let complete = relocated.outcome == Relocation::Complete;
                self.summary.relocations += u64::from(complete);
                if complete {
                    let params = LeaseRelocate::parse(&asked.params).expect("it was served");
                    let [src, dst] = [params.src_lease_id, params.dst_lease_id].map(|key| self.oracle.keys[&key]);
                    self.oracle.relocated(src, dst, params.mode == RelocateMode::Move, self.now);
                }
                let Some((src, _)) = moved(asked) else { return Note::Nothing };
                let src = self.oracle.keys[&src];
                if complete {
                    return Note::Over(vec![src], None);
                }
                let token = self.oracle.leases[&src].token;
                let leases = self.process.node.leases();
                let lives = leases.get(LeaseId(src)).is_some_and(|lease| lease.standing == berth_lease::Standing::Live);
                if lives {
                    let revoked = self.oracle.is_revoked(token) || self.oracle.leases[&src].holder_revoked;
                    assert!(!revoked, "a failed move brought a revoked lease back");
                    self.oracle.lives_again(src);
                }
                Note::Nothing
            }
            Op::LeaseExportHandle => {
                let exported = LeaseExported::parse(result).expect("a handle");
                let key = LeaseExport::parse(&asked.params).expect("it was served").lease_id;
                self.handles.insert(exported.export_handle, self.oracle.keys[&key]);
                self.within_quota(asked.sender);
                Note::Nothing
            }
            Op::LeaseImportHandle => {
                let imported = LeaseImported::parse(result).expect("an attachment");
                let handle = LeaseImport::parse(&asked.params).expect("it was served").export_handle;
                let (key, lease, importer) = (imported.local_attach_id, self.handles[&handle], asked.sender);
                let leases = self.process.node.leases();
                let expires = leases.handles().find(|known| known.id == handle).expect("it was imported").expires;
                self.oracle.keys.insert(key, lease);
                let attached = Attached { lease, importer, at_least: None, over: false, over_for_good: false };
                self.oracle.attachments.entry(key).or_insert(attached);
                self.within_quota(asked.sender);
                Note::Attached(key, self.now + expires.0 - self.process.mono(self.now).0)
            }
            Op::CapRequest => {
                let token = CapabilityToken::parse(result).expect("a token").token_id;
                self.oracle.keyring.issued.insert(token, asked.sender);
                Note::Nothing
            }
            Op::LeaseBind => {
                self.summary.binds += 1;
                Note::Nothing
            }
            Op::KeyRevoke => self.key_revoked(asked, result),
            Op::KeyList => {
                self.summary.keys_listed += 1;
                self.oracle.listed(&KeyList::parse(result).expect("a list"));
                Note::Nothing
            }
            Op::SchedulerFenceSet => Note::Fence(FenceSet::parse(&asked.params).expect("it was served").new_epoch),
            _ => Note::Nothing,
        }
    }
}

/// The keys of a relocation that moves its source.
fn moved(asked: &Executing) -> Option<(u64, u64)> {
    let params = (asked.op == Op::LeaseRelocate).then(|| LeaseRelocate::parse(&asked.params).ok()).flatten()?;
    (params.mode == RelocateMode::Move).then_some((params.src_lease_id, params.dst_lease_id))
}
