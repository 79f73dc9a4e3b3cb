//! Two-sided messages: a request header and payload, a status byte and payload (profile, decisions 18 and 19).

use berth_lease::{Access, Entry, Generation, LeaseKey, Op, Refusal};
use berth_wire::fabric::data::two_sided::{self, Opcode, Status};

use crate::{
    AccessRequest, Failure,
    datagram::{Protocol, Request},
};

/// Two-sided messages, one UDP datagram each.
#[derive(Debug, Clone, Copy)]
pub struct TwoSided;

const HEADER: usize = two_sided::Request::LEN;

impl Protocol for TwoSided {
    type Echo = ();

    const HEAD: usize = 1;

    #[inline]
    fn parse(message: &[u8], whole: bool, room: usize) -> Request<()> {
        let Some(request) = two_sided::Request::parse(message) else { return Request::Malformed };
        let payload = message.len() - HEADER;
        let len = usize::try_from(request.len()).unwrap_or(usize::MAX);
        let (op, well_formed, from) = match request.opcode() {
            Some(Opcode::Read) => (Op::Read, payload == 0 && len < room, Self::HEAD),
            Some(Opcode::Write) => (Op::Write, payload == len, HEADER),
            None => (Op::Read, false, 0),
        };
        let well_formed = well_formed && whole;
        let access = Access {
            op,
            key: LeaseKey(request.key()),
            generation: Some(Generation(request.generation())),
            offset: request.offset(),
            len: request.len(),
            well_formed,
        };
        let data = if well_formed { from..from + len } else { 0..0 };
        Request::Access { ask: AccessRequest { id: None, access }, data, echo: () }
    }

    /// Storage that is busy or fails has no status here.
    fn answers(failure: Failure) -> bool {
        status(failure).is_some()
    }

    #[inline]
    fn finish((): &(), data: Result<usize, Failure>, buf: &mut [u8]) -> usize {
        let (status, len) = match data {
            Ok(len) => (Status::Ok, len),
            Err(failure) => (status(failure).unwrap_or(Status::BadRequest), 0),
        };
        buf[0] = status as u8;
        Self::HEAD + len
    }

    /// The protocol has no greetings.
    fn greet((): &(), _: Option<Result<Entry, Refusal>>, _: &mut [u8]) -> usize {
        0
    }
}

fn status(failure: Failure) -> Option<Status> {
    let Failure::Refused(refusal) = failure else { return None };
    Some(match refusal {
        Refusal::Unknown => Status::UnknownLease,
        Refusal::Revoked => Status::LeaseRevoked,
        Refusal::Expired => Status::LeaseExpired,
        Refusal::StaleGeneration => Status::StaleGeneration,
        Refusal::BadRequest | Refusal::TooLong => Status::BadRequest,
        Refusal::OutOfRange => Status::OutOfRange,
        Refusal::Denied => Status::Denied,
    })
}
