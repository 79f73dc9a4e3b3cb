//! FBMU and FBBU: datagrams with a header, a checksum and data (profile, decisions 20 and 21).

use berth_lease::{Access, Entry, Generation, LeaseId, Op, Refusal};
use berth_wire::fabric::data::{
    BLOCK, IoStatus,
    shim::{Fields, Header, Kind, MAX_DATA, Op as Message},
    stream::HelloAck,
};
use zerocopy::IntoBytes;

use crate::{
    AccessRequest, Failure,
    datagram::{Protocol, Request},
};

/// FBMU and FBBU, which share a port.
#[derive(Debug, Clone, Copy)]
pub struct Shim;

impl Protocol for Shim {
    type Echo = Fields;

    const HEAD: usize = Header::LEN;

    fn parse(message: &[u8], whole: bool, room: usize) -> Request<Fields> {
        let Some(fields) = sound(message).filter(|_| whole) else { return Request::Malformed };
        let (echo, payload) = (fields, message.len() - Header::LEN);
        let unit = unit(fields.kind);
        let len = u64::from(fields.length) * unit;
        let data = usize::try_from(len).ok().filter(|len| *len <= MAX_DATA && Header::LEN + len <= room);
        let ask = |op, well_formed| AccessRequest {
            id: Some(LeaseId(fields.lease_id)),
            access: Access {
                op,
                key: LeaseId(fields.lease_id).key(),
                generation: Some(Generation(fields.generation)),
                offset: bytes(fields.offset, unit),
                len,
                well_formed,
            },
        };
        let access = |op, carried: Option<usize>| {
            let data = data.filter(|_| carried == Some(payload));
            let ask = ask(op, data.is_some());
            Request::Access { ask, data: data.map_or(0..0, |len| Header::LEN..Header::LEN + len), echo }
        };
        match fields.op {
            Message::Read => access(Op::Read, Some(0)),
            Message::Write => access(Op::Write, data),
            Message::Hello if payload == 0 && Header::LEN + HelloAck::LEN <= room => {
                Request::Greeting(ask(Op::Read, true), echo)
            }
            Message::Ping if payload == 0 => Request::Ping(echo),
            _ => Request::Malformed,
        }
    }

    fn answers(_: Failure) -> bool {
        true
    }

    fn finish(echo: &Fields, data: Result<usize, Failure>, buf: &mut [u8]) -> usize {
        let op = if echo.op == Message::Read { Message::ReadResp } else { Message::WriteResp };
        let (status, len) = match data {
            Ok(len) => (IoStatus::Ok, len),
            Err(failure) => (status(failure), 0),
        };
        let length = (len as u64 / unit(echo.kind)) as u32;
        seal(&Fields { op, status: status as u8, length, ..*echo }, len, buf)
    }

    fn greet(echo: &Fields, lease: Option<Result<Entry, Refusal>>, buf: &mut [u8]) -> usize {
        let Some(lease) = lease else {
            return seal(&Fields { op: Message::Pong, length: 0, ..*echo }, 0, buf);
        };
        let (outcome, len) = match lease {
            Ok(entry) => {
                let ack = limits(echo.kind, &entry, MAX_DATA as u32);
                buf[Header::LEN..][..HelloAck::LEN].copy_from_slice(&ack.to_bytes());
                (IoStatus::Ok, HelloAck::LEN)
            }
            Err(refusal) => (status(refusal.into()), 0),
        };
        let fields = Fields { op: Message::HelloAck, status: outcome as u8, length: len as u32, ..*echo };
        seal(&fields, len, buf)
    }
}

/// A message whose header is sound, of a request, with the right checksum.
fn sound(message: &[u8]) -> Option<Fields> {
    let header = Header::parse(message)?;
    let fields = header.fields().filter(|fields| fields.status == 0)?;
    (checksum(&header, &message[Header::LEN..]) == header.crc()).then_some(fields)
}

/// The checksum of a message whose header's own is left out.
fn checksum(header: &Header, data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(header.with_crc(0).as_bytes()), data)
}

/// Writes the header before `len` bytes of data and returns the message's length.
fn seal(fields: &Fields, len: usize, buf: &mut [u8]) -> usize {
    let header = Header::new(fields);
    let (front, data) = buf.split_at_mut(Header::LEN);
    front.copy_from_slice(header.with_crc(checksum(&header, &data[..len])).as_bytes());
    Header::LEN + len
}

/// Bytes that offsets and lengths count in.
pub(crate) fn unit(kind: Kind) -> u64 {
    match kind {
        Kind::Memory => 1,
        Kind::Block => BLOCK,
    }
}

/// An offset in bytes, of so many units; beyond every lease, and still of whole units, where it does not fit.
pub(crate) fn bytes(offset: u64, unit: u64) -> u64 {
    offset.min(u64::MAX / unit) * unit
}

/// What `HELLO_ACK` says of a lease, whose operations have at most `most` bytes on this carrier.
pub(crate) fn limits(kind: Kind, entry: &Entry, most: u32) -> HelloAck {
    let (status, most) = (0, entry.max_io.min(most));
    match kind {
        Kind::Memory => HelloAck::Memory { status, resource_len: entry.len, max_read_len: most, max_write_len: most },
        Kind::Block => HelloAck::Block {
            status,
            block_size: BLOCK as u32,
            block_count: entry.len / BLOCK,
            max_blocks_per_io: most / BLOCK as u32,
        },
    }
}

/// The status of the shims and streams for a failure (profile, decisions 9, 20 and 21).
pub(crate) fn status(failure: Failure) -> IoStatus {
    match failure {
        Failure::Refused(Refusal::Unknown) => IoStatus::InvalidLease,
        Failure::Refused(Refusal::Expired) => IoStatus::Expired,
        Failure::Refused(Refusal::Revoked | Refusal::StaleGeneration | Refusal::Denied) => IoStatus::Fenced,
        Failure::Refused(Refusal::BadRequest | Refusal::TooLong) => IoStatus::BadLength,
        Failure::Refused(Refusal::OutOfRange) => IoStatus::OutOfRange,
        Failure::Busy => IoStatus::Busy,
        Failure::Storage => IoStatus::Internal,
    }
}
