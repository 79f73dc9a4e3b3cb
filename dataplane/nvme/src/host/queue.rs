//! One connection of a host, which is one queue.

use std::time::Duration;

use berth_port::{Nanos, Next, Progress};
use berth_wire::nvme::{
    Cqe, Status,
    fabrics::{ConnectData, Connected},
    pdu::{
        Common, DIGEST_LEN, DataPdu, Fatal, Framing, HEAD_MAX, Header, IcReq, IcResp, Kind, R2t, Rules, Side, TermReq,
        flags,
    },
};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{
    ADMIN_IN_CAPSULE, Command, Data, Error, IN_CAPSULE_MAX, Settings, User,
    slots::{Phase, Slots},
};
use crate::output::Output;

/// The longest header there can be: PDO is one byte.
const HEADER_ROOM: usize = 256;

/// As little data as an `H2CData` has, unless it is the last of its R2T.
const DATA_MIN: usize = 4096;

/// MAXH2CDATA is at least so much (TCP, "Initialize Connection Response PDU").
const H2C_DATA_LEAST: u32 = 4096;

/// SQHD in the response to Connect where flow control is off.
const NO_HEAD: u16 = 0xFFFF;

/// The host's side of one NVMe/TCP connection: it initialises, connects the queue, and carries its commands.
///
/// Whoever moves its bytes gives what was received and room for what is to be sent to [`Queue::advance`], as
/// [`berth_port::Session`] has it, in buffers of at least [`Queue::INPUT`] and [`Queue::OUTPUT`] bytes.
#[derive(Debug)]
pub struct Queue {
    settings: Settings,
    /// Limits and framing of the PDUs that the controller sends.
    rules: Rules,
    /// Digests and alignment of the PDUs that it gets.
    framing: Framing,
    /// MAXH2CDATA of `ICResp`: the most bytes of an `H2CData`.
    h2c_data_max: u32,
    in_capsule: u32,
    /// `ICReq` was sent.
    greeted: bool,
    connect: Box<ConnectData>,
    joined: Option<Connected>,
    /// A read may end with its last data: flow control is off.
    omits_responses: bool,
    slots: Slots,
    incoming: Option<Incoming>,
    begun: Nanos,
    error: Option<Error>,
}

/// A `C2HData` of which the header has been taken.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    slot: usize,
    /// Bytes of data that are to come.
    left: u32,
    /// Of those that have come, where a digest follows.
    digest: Option<u32>,
    /// No response follows.
    ends: bool,
}

enum Step {
    /// So many bytes of input are done with.
    Taken(usize),
    /// It takes so many.
    Wants(usize),
}

impl From<Fatal> for Error {
    fn from(fatal: Fatal) -> Self {
        Self::Violation(fatal)
    }
}

impl Queue {
    /// The least room for input, in bytes: for the longest header. Data is taken in pieces.
    pub const INPUT: usize = HEADER_ROOM;

    /// The least room for output, in bytes: for the longest capsule.
    pub const OUTPUT: usize = HEAD_MAX + IN_CAPSULE_MAX as usize + DIGEST_LEN;

    /// A new connection, for a queue with room for `depth` commands, of which capsules bring up to `in_capsule` bytes.
    pub(super) fn new(
        settings: Settings,
        number: u16,
        depth: u16,
        in_capsule: u32,
        connect: &ConnectData,
        now: Nanos,
    ) -> Self {
        let mut slots = Slots::new(depth);
        let command = settings.connect(number, depth).command(0);
        // An empty queue has room for one command.
        let _ = slots.open(Command { sqe: command, data: Data::Out(ConnectData::LEN as u32) }, ADMIN_IN_CAPSULE, now);
        Self {
            settings,
            rules: Rules {
                sender: Side::Controller,
                initialised: false,
                framing: Framing::default(),
                capsule_data_max: 0,
            },
            framing: Framing::default(),
            h2c_data_max: H2C_DATA_LEAST,
            in_capsule: in_capsule.min(IN_CAPSULE_MAX),
            greeted: false,
            connect: Box::new(*connect),
            joined: None,
            omits_responses: false,
            slots,
            incoming: None,
            begun: now,
            error: None,
        }
    }

    /// The controller that it is a queue of, once that is so: commands can be submitted then.
    pub fn joined(&self) -> Option<u16> {
        self.joined.map(|connected| connected.controller)
    }

    /// Why the connection has ended; `None` while it goes on.
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// Commands that [`Queue::submit`] has taken and that have not ended.
    pub fn outstanding(&self) -> usize {
        self.slots.used()
    }

    /// Takes a command, and says by which number it is known until it has ended; `None` where the queue has no room for it,
    /// or is not connected.
    #[inline]
    pub fn submit(&mut self, command: Command, now: Nanos) -> Option<usize> {
        if self.joined.is_none() || self.error.is_some() {
            return None;
        }
        self.slots.open(command, self.in_capsule, now)
    }

    /// Ends the connection where an answer has not come in time. Looks at every command: for now and then.
    pub fn expire(&mut self, now: Nanos) {
        let allowed = Duration::as_nanos(&self.settings.timeout) as u64;
        let than = Nanos(now.0.saturating_sub(allowed));
        if self.error.is_none() && (!self.rules.initialised && self.begun < than || self.slots.has_older(than)) {
            self.error = Some(Error::Timeout);
        }
    }

    /// Takes PDUs from the front of `input`, tells `user` of its commands, and writes to the front of `output`.
    ///
    /// After [`Next::Close`] the connection has ended, and [`Queue::error`] says why.
    pub fn advance(&mut self, input: &[u8], output: &mut [u8], user: &mut impl User) -> Progress {
        let mut output = Output::new(output);
        let mut consumed = 0;
        let next = loop {
            if self.error.is_some() {
                break Next::Close;
            }
            let wants_room = self.send(&mut output, user);
            match self.take(&input[consumed..], user) {
                Ok(Step::Taken(bytes)) => consumed += bytes,
                Ok(Step::Wants(bytes)) => break wants_room.map_or(Next::Input(bytes), Next::Output),
                Err(error) => self.fail(error, &input[consumed..], &mut output),
            }
        };
        Progress { consumed, written: output.written(), next }
    }

    /// Ends the connection; a controller that broke the protocol is told so.
    #[cold]
    fn fail(&mut self, error: Error, input: &[u8], output: &mut Output<'_>) {
        if let Error::Violation(fatal) = error
            && output.room() >= TermReq::MAX
        {
            let hlen = input.get(2).map_or(0, |hlen| usize::from(*hlen)).max(Common::LEN);
            let head = &input[..input.len().min(hlen).min(TermReq::DATA_MAX as usize)];
            output.append(|to| TermReq::write(to, Kind::H2cTermReq, fatal, head));
        }
        self.error = Some(error);
    }

    /// Sends what commands have to send; how much room it takes to go on, where there is more.
    fn send(&mut self, output: &mut Output<'_>, user: &mut impl User) -> Option<usize> {
        if !self.greeted {
            if output.room() < IcReq::LEN {
                return Some(IcReq::LEN);
            }
            let request = IcReq::new(0, self.settings.digests(), 0);
            output.append(|to| {
                to.get_mut(..IcReq::LEN)?.copy_from_slice(request.as_bytes());
                Some(IcReq::LEN)
            });
            self.greeted = true;
        }
        if !self.rules.initialised {
            return None;
        }
        while let Some(index) = self.slots.first() {
            let wanted = match self.slots.get(index).phase {
                Phase::Asked { ttag, until } => self.send_data(index, (ttag, until), output, user),
                _ => self.send_capsule(index, output, user),
            };
            if wanted.is_some() {
                return wanted;
            }
        }
        None
    }

    #[inline]
    fn send_capsule(&mut self, index: usize, output: &mut Output<'_>, user: &mut impl User) -> Option<usize> {
        let slot = self.slots.get(index);
        let len = match slot.data {
            Data::Out(len) if slot.sqe.sgl.kind == berth_wire::nvme::Sgl::IN_CAPSULE => len,
            _ => 0,
        };
        let room = HEAD_MAX + len as usize + DIGEST_LEN;
        if output.room() < room {
            return Some(room);
        }
        let sqe = slot.sqe;
        slot.moved = len;
        output.append(|to| self.framing.command(to, &sqe, len));
        if len > 0 {
            let to = &mut output.rest()[..len as usize];
            if self.joined.is_some() {
                user.data(index, 0, to);
            } else {
                to.copy_from_slice(self.connect.as_bytes());
            }
            self.append_data(output, len as usize);
        }
        self.slots.sent();
        None
    }

    /// Sends one `H2CData`.
    fn send_data(
        &mut self,
        index: usize,
        (ttag, until): (u16, u32),
        output: &mut Output<'_>,
        user: &mut impl User,
    ) -> Option<usize> {
        let at = self.framing.data_at(Kind::H2cData);
        let around = at + DIGEST_LEN;
        let slot = self.slots.get(index);
        let left = (until - slot.moved) as usize;
        let most = left.min(self.h2c_data_max as usize);
        if output.room() < around + most.min(DATA_MIN) {
            return Some(around + most.min(DATA_MIN));
        }
        let mut len = most.min(output.room() - around);
        if len < left {
            len -= len % 4;
        }
        let (cid, offset) = (slot.sqe.cid.get(), slot.moved);
        slot.moved += len as u32;
        let framing = self.framing;
        output.append(|to| framing.h2c_data(to, cid, ttag, offset, len as u32, len == left));
        user.data(index, offset as usize, &mut output.rest()[..len]);
        self.append_data(output, len);
        if len == left {
            self.slots.sent();
        }
        None
    }

    /// Appends data that lies there already, and its digest.
    #[inline]
    fn append_data(&self, output: &mut Output<'_>, len: usize) {
        let digest = self.framing.data_digest.then(|| crc32c::crc32c(&output.rest()[..len]).to_le_bytes());
        output.append(|to| {
            let Some(digest) = digest else { return Some(len) };
            to.get_mut(len..len + DIGEST_LEN)?.copy_from_slice(&digest);
            Some(len + DIGEST_LEN)
        });
    }

    /// Takes a PDU, or the header of one, or data.
    #[inline]
    fn take(&mut self, input: &[u8], user: &mut impl User) -> Result<Step, Error> {
        if let Some(incoming) = self.incoming {
            return Ok(self.take_data(incoming, input, user));
        }
        let Some(common) = input.first_chunk::<{ Common::LEN }>() else { return Ok(Step::Wants(Common::LEN)) };
        let header = Header::parse(common, &self.rules)?;
        let Some(head) = input.get(..header.data_at) else { return Ok(Step::Wants(header.data_at)) };
        header.check_digest(head)?;
        match header.kind {
            Kind::C2hData => self.data_header(&header, head)?,
            Kind::CapsuleResp => self.response(head, user)?,
            Kind::R2t => self.r2t(head)?,
            Kind::IcResp => self.initialise(head)?,
            Kind::C2hTermReq => {
                let fatal = TermReq::parse(head).map_or(Fatal::SEQUENCE, TermReq::fatal);
                return Err(Error::Terminated(fatal));
            }
            _ => return Err(Fatal::SEQUENCE.into()),
        }
        Ok(Step::Taken(head.len()))
    }

    fn initialise(&mut self, head: &[u8]) -> Result<(), Error> {
        let response = IcResp::parse(head).ok_or(Fatal::field(4))?;
        if !self.greeted {
            return Err(Fatal::SEQUENCE.into());
        }
        if response.common.plen.get() as usize != IcResp::LEN {
            return Err(Fatal::field(4).into());
        }
        self.framing = response.accept()?;
        if response.digests != self.settings.digests() {
            return Err(Error::Digests(response.digests));
        }
        self.h2c_data_max = response.max_h2c_data.get();
        if self.h2c_data_max < H2C_DATA_LEAST || !self.h2c_data_max.is_multiple_of(4) {
            return Err(Fatal::field(12).into());
        }
        self.rules.framing = Framing::new(self.settings.header_digest, self.settings.data_digest, 0);
        self.rules.initialised = true;
        Ok(())
    }

    #[inline]
    fn response(&mut self, head: &[u8], user: &mut impl User) -> Result<(), Error> {
        let (cqe, _) = Cqe::ref_from_prefix(&head[Common::LEN..]).map_err(|_| Fatal::field(2))?;
        let index = self.slots.by_cid(cqe.cid.get()).ok_or(Fatal::field(20))?;
        let slot = self.slots.get(index);
        let (mut status, moved) = (cqe.status(), slot.moved);
        if status.is_success() {
            match slot.data {
                Data::In(len) | Data::Out(len) if moved != len => return Err(Fatal::SEQUENCE.into()),
                _ => {}
            }
            if slot.corrupt {
                status = Status::TRANSIENT_TRANSPORT_ERROR;
            }
        }
        self.slots.close(index);
        if self.joined.is_none() {
            let dword = cqe.result() as u32;
            if !status.is_success() {
                return Err(Error::Refused(status, dword));
            }
            let connected = Connected::of(dword);
            if connected.authenticate {
                return Err(Error::Authentication);
            }
            (self.joined, self.omits_responses) = (Some(connected), cqe.sqhd.get() == NO_HEAD);
            return Ok(());
        }
        user.ended(index, status, cqe.result());
        Ok(())
    }

    fn r2t(&mut self, head: &[u8]) -> Result<(), Error> {
        let r2t = R2t::parse(head).ok_or(Fatal::field(2))?;
        let index = self.slots.by_cid(r2t.cccid.get()).ok_or(Fatal::field(8))?;
        let slot = self.slots.get(index);
        let Data::Out(len) = slot.data else { return Err(Fatal::field(8).into()) };
        if slot.phase != Phase::Sent {
            return Err(Fatal::LIMIT_EXCEEDED.into());
        }
        let until = r2t.offset.get().checked_add(r2t.len.get()).filter(|until| *until <= len);
        let until = until.filter(|until| r2t.offset.get() == slot.moved && *until > slot.moved);
        let until = until.ok_or(Fatal::OUT_OF_RANGE)?;
        self.slots.ask(index, r2t.ttag.get(), until);
        Ok(())
    }

    #[inline]
    fn data_header(&mut self, header: &Header, head: &[u8]) -> Result<(), Error> {
        let pdu = DataPdu::checked(head, header, u32::MAX)?;
        let index = self.slots.by_cid(pdu.cccid.get()).ok_or(Fatal::field(8))?;
        let slot = self.slots.get(index);
        let Data::In(len) = slot.data else { return Err(Fatal::field(8).into()) };
        let left = len - slot.moved;
        if pdu.offset.get() != slot.moved || header.data_len > left {
            return Err(Fatal::OUT_OF_RANGE.into());
        }
        let (last, ends) = (header.has(flags::LAST), header.has(flags::SUCCESS));
        if last != (header.data_len == left) || ends && !(last && self.omits_responses) {
            return Err(Fatal::field(1).into());
        }
        let digest = header.data_digest.then_some(0);
        self.incoming = Some(Incoming { slot: index, left: header.data_len, digest, ends });
        Ok(())
    }

    /// Takes what comes next of a `C2HData`.
    #[inline]
    fn take_data(&mut self, mut incoming: Incoming, input: &[u8], user: &mut impl User) -> Step {
        let taken = input.len().min(incoming.left as usize);
        if taken > 0 {
            let piece = &input[..taken];
            let slot = self.slots.get(incoming.slot);
            let offset = slot.moved as usize;
            slot.moved += taken as u32;
            incoming.digest = incoming.digest.map(|digest| crc32c::crc32c_append(digest, piece));
            incoming.left -= taken as u32;
            user.received(incoming.slot, offset, piece);
            self.incoming = Some(incoming);
        }
        if incoming.left > 0 {
            return if taken > 0 { Step::Taken(taken) } else { Step::Wants(1) };
        }
        let mut behind = 0;
        if let Some(digest) = incoming.digest {
            let Some(sent) = input[taken..].first_chunk::<DIGEST_LEN>() else {
                return if taken > 0 { Step::Taken(taken) } else { Step::Wants(DIGEST_LEN) };
            };
            self.slots.get(incoming.slot).corrupt |= *sent != digest.to_le_bytes();
            behind = DIGEST_LEN;
        }
        self.incoming = None;
        if incoming.ends {
            let corrupt = self.slots.get(incoming.slot).corrupt;
            self.slots.close(incoming.slot);
            user.ended(incoming.slot, if corrupt { Status::TRANSIENT_TRANSPORT_ERROR } else { Status::SUCCESS }, 0);
        }
        Step::Taken(taken + behind)
    }
}
