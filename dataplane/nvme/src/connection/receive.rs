//! What a connection takes: PDUs, capsules, and data in pieces.

use berth_port::{Nanos, Next};
use berth_wire::nvme::{
    Sqe, Status,
    command::{Pointer, Refused},
    opcode,
    pdu::{
        Common, DATA_DIGEST, DIGEST_LEN, DataPdu, Fatal, Framing, HEADER_DIGEST, Header, IcReq, IcResp, Kind, flags,
    },
};
use zerocopy::IntoBytes as _;

use super::{CAPSULE_DATA_MAX, Connection, H2C_DATA_MAX, Incoming, Role, Step, auth};
use crate::{
    auth::QueueAuth,
    connect::{self, Joined},
    counts::Event,
    io::Turn,
    output::Output,
};

impl Connection {
    /// Takes a PDU, or the header of one.
    pub(super) fn pdu(&mut self, input: &[u8], output: &mut Output<'_>, now: Nanos) -> Result<Step, Fatal> {
        let Some(common) = input.first_chunk::<{ Common::LEN }>() else {
            return Ok(Step::Stop(Next::Input(Common::LEN)));
        };
        let header = Header::parse(common, &self.rules)?;
        let Some(head) = input.get(..header.data_at) else { return Ok(Step::Stop(Next::Input(header.data_at))) };
        header.check_digest(head)?;
        match header.kind {
            Kind::IcReq => self.initialise(head, output),
            Kind::CapsuleCmd => self.capsule(&header, input, now),
            Kind::H2cData => self.h2c_data(&header, head, now),
            _ => {
                self.counts.add(Event::EndedByHost);
                self.closing = true;
                Ok(Step::Taken(head.len()))
            }
        }
    }

    fn initialise(&mut self, head: &[u8], output: &mut Output<'_>) -> Result<Step, Fatal> {
        let Some(request) = IcReq::parse(head) else { return Ok(Step::Stop(Next::Input(IcReq::LEN))) };
        self.framing = request.accept()?;
        let Framing { header_digest, data_digest, .. } = self.framing;
        self.rules.framing = Framing::new(header_digest, data_digest, 0);
        self.rules.initialised = true;
        let digests = request.digests & (HEADER_DIGEST | DATA_DIGEST);
        let response = IcResp::new(0, digests, H2C_DATA_MAX);
        output.append(|to| {
            to.get_mut(..IcResp::LEN)?.copy_from_slice(response.as_bytes());
            Some(IcResp::LEN)
        });
        Ok(Step::Taken(IcReq::LEN))
    }

    fn capsule(&mut self, header: &Header, input: &[u8], now: Nanos) -> Result<Step, Fatal> {
        let Some(sqe) = Sqe::parse(&input[Common::LEN..]) else { return Ok(Step::Stop(Next::Input(header.len))) };
        let is_io = matches!(self.role, Role::Io(_)) && sqe.opcode != opcode::FABRICS;
        let pointer =
            sqe.pointer(header.data_len, if is_io { self.target.limits().in_capsule } else { CAPSULE_DATA_MAX });
        if let Err(Refused::Fatal(fatal)) = pointer {
            return Err(fatal);
        }
        let len = header.data_len as usize;
        let whole = header.data_at + len + if header.data_digest { DIGEST_LEN } else { 0 };
        let Some(data) = input.get(header.data_at..whole) else { return Ok(Step::Stop(Next::Input(whole))) };
        let (data, digest) = data.split_at(len);
        match &mut self.role {
            Role::Io(io) => {
                if !io.prepare(len, &mut self.counts) {
                    return Ok(Step::Stop(Next::Completion));
                }
                self.closing = !io.hear(now);
            }
            Role::Admin(admin) => self.closing = !admin.hear(now),
            Role::New => {}
        }
        if self.closing {
            self.counts.add(Event::KeepAliveExpired);
            return Ok(Step::Taken(whole));
        }
        // More commands than the queue has entries.
        let (index, unused) = self.queue.open(sqe.cid.get(), now).map_err(|_| Fatal::SEQUENCE)?;
        let refused = if !digest.is_empty() && digest != crc32c::crc32c(data).to_le_bytes() {
            self.counts.add(Event::DataDigests);
            Some(Status::TRANSIENT_TRANSPORT_ERROR)
        } else if !unused {
            Some(Status::CID_CONFLICT)
        } else {
            None
        };
        let turn = match (refused.map_or(pointer, |status| Err(Refused::Status(status))), &mut self.role) {
            (Ok(pointer), _) => self.command(index, sqe, (pointer, data), now),
            (Err(refused), Role::Io(io)) => {
                io.interrupt(&mut self.queue);
                Err(refused)
            }
            (Err(refused), _) => Err(refused),
        };
        if let Role::Io(io) = &mut self.role {
            io.settle();
        }
        match turn {
            Ok(Turn::Later) => {}
            Ok(Turn::Done) => self.queue.respond(index, Status::SUCCESS),
            Err(Refused::Status(status)) => self.queue.respond(index, status),
            Err(Refused::Fatal(fatal)) => return Err(fatal),
        }
        Ok(Step::Taken(whole))
    }

    fn command(
        &mut self,
        index: usize,
        sqe: &Sqe,
        (pointer, data): (Pointer, &[u8]),
        now: Nanos,
    ) -> Result<Turn, Refused> {
        if let Some(proof) = &mut self.proof
            && let Some(turn) = proof.queue.command(index, sqe, (pointer, data), now)
        {
            return turn;
        }
        match &mut self.role {
            Role::New => {
                let (joined, queue) = connect::connect(
                    &self.target,
                    self.local,
                    (&mut self.queue, index),
                    sqe,
                    (pointer, data),
                    self.framing.data_digest,
                    now,
                )
                .inspect_err(|_| self.counts.add(Event::ConnectsRefused))?;
                self.counts.add(Event::Connected);
                self.queue = queue;
                match joined {
                    Joined::Queue(role) => self.role = role,
                    Joined::Unproven(joining, chap) => {
                        let queue = QueueAuth::new(chap, self.peer, now);
                        self.proof = Some(Box::new(auth::Proof { queue, joining: Some(joining) }));
                    }
                }
                Ok(Turn::Later)
            }
            Role::Admin(admin) => {
                self.counts.add(Event::Admin);
                admin.command(&mut self.queue, index, sqe, (pointer, data), now)
            }
            Role::Io(_) if sqe.opcode == opcode::FABRICS => match sqe.fctype() {
                opcode::fabrics::CONNECT => Err(Refused::Status(Status::SEQUENCE_ERROR)),
                opcode::fabrics::DISCONNECT => {
                    self.leaving = true;
                    Ok(Turn::Done)
                }
                _ => Err(Refused::Status(Status::INVALID_FIELD)),
            },
            Role::Io(io) => io.command(&mut self.queue, index, sqe, (pointer, data), &mut self.counts, now),
        }
    }

    /// Takes the header of an `H2CData`.
    fn h2c_data(&mut self, header: &Header, head: &[u8], now: Nanos) -> Result<Step, Fatal> {
        let pdu = DataPdu::checked(head, header, H2C_DATA_MAX)?;
        let index = self.queue.by_ttag(pdu.ttag.get()).ok_or(Fatal::field(10))?;
        let slot = self.queue.slot(index);
        if slot.cid != pdu.cccid.get() {
            return Err(Fatal::field(8));
        }
        let left = slot.until - slot.moved;
        if pdu.offset.get() != slot.moved || header.data_len > left {
            return Err(Fatal::OUT_OF_RANGE);
        }
        if header.has(flags::LAST) && header.data_len < left {
            return Err(Fatal::field(1));
        }
        slot.since = now;
        let digest = header.data_digest.then_some(0);
        self.incoming = Some(Incoming { slot: index, left: header.data_len, digest });
        Ok(Step::Taken(head.len()))
    }

    /// Takes what comes next of an `H2CData`.
    pub(super) fn data(&mut self, mut incoming: Incoming, input: &[u8], now: Nanos) -> Result<Step, Fatal> {
        let Role::Io(io) = &mut self.role else { return Err(Fatal::SEQUENCE) };
        let index = incoming.slot;
        let mut taken = 0;
        if incoming.left > 0 {
            taken = input.len().min(incoming.left as usize);
            if taken == 0 {
                return Ok(Step::Stop(Next::Input(1)));
            }
            let piece = &input[..taken];
            incoming.digest = incoming.digest.map(|digest| crc32c::crc32c_append(digest, piece));
            incoming.left -= taken as u32;
            io.piece(&mut self.queue, index, piece, now);
        }
        self.incoming = Some(incoming);
        if incoming.left > 0 {
            return Ok(Step::Taken(taken));
        }
        if let Some(digest) = incoming.digest {
            let Some(sent) = input[taken..].first_chunk::<DIGEST_LEN>() else {
                return Ok(if taken > 0 { Step::Taken(taken) } else { Step::Stop(Next::Input(DIGEST_LEN)) });
            };
            if *sent != digest.to_le_bytes() {
                self.counts.add(Event::DataDigests);
                self.queue.slot(index).fault.get_or_insert(Status::TRANSIENT_TRANSPORT_ERROR);
            }
            taken += DIGEST_LEN;
        }
        self.incoming = None;
        let slot = self.queue.slot(index);
        if slot.moved == slot.until {
            io.received(&mut self.queue, index, &mut self.counts, now);
        }
        Ok(Step::Taken(taken))
    }
}
