//! FBMT and FBBT over TCP and QUIC.

use std::{io, net::SocketAddr};

use berth_wire::fabric::{
    FabricError,
    data::{
        BLOCK, IoStatus,
        stream::{Header, Hello, HelloAck, Kind, Op, Range, ReadResp, WriteResp},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use zerocopy::IntoBytes as _;

use super::PATIENCE;
use crate::{Error, Grant, client::too_late, quic::Link};

/// Limit on an answer in bytes: the largest operation of any node, and its fields.
const MAX_ANSWER: usize = (16 << 20) + 64;

/// Bytes per unit of length on the wire: 1 or a block.
fn unit(kind: Kind) -> u64 {
    match kind {
        Kind::Memory => 1,
        Kind::Block => BLOCK,
    }
}

fn message(kind: Kind, op: Op, request_id: u32, parts: &[&[u8]]) -> Vec<u8> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut message = Header::new(kind, op, len as u32, request_id).as_bytes().to_vec();
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}

fn read_request(kind: Kind, request_id: u32, offset: u64, len: u32) -> Vec<u8> {
    let range = Range::new(offset / unit(kind), len / unit(kind) as u32);
    message(kind, Op::Read, request_id, &[range.as_bytes()])
}

fn write_request(kind: Kind, request_id: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let range = Range::new(offset / unit(kind), (data.len() as u64 / unit(kind)) as u32);
    message(kind, Op::Write, request_id, &[range.as_bytes(), data])
}

/// Checks the header of an answer; returns its operation and the length of its payload.
fn payload_len(header: &[u8], (kind, wanted, request_id): Expected) -> Result<(Op, usize), Error> {
    let header = Header::parse(header).ok_or(FabricError::Truncated)?;
    let op = header.op().filter(|_| header.is_sound(kind)).ok_or(FabricError::Value("op"))?;
    if op != Op::Error && (op, header.request_id()) != (wanted, request_id) {
        return Err(Error::Mismatch);
    }
    let len = header.payload_len() as usize;
    if len > MAX_ANSWER { Err(FabricError::Limit("payload_len").into()) } else { Ok((op, len)) }
}

fn status(byte: u8) -> Result<(), Error> {
    match IoStatus::from_code(byte) {
        Some(IoStatus::Ok) => Ok(()),
        Some(status) => Err(Error::Access(status)),
        None => Err(FabricError::Value("status").into()),
    }
}

/// The payload of an answer behind its fixed fields, if its status is OK.
fn outcome(op: Op, mut payload: Vec<u8>) -> Result<Vec<u8>, Error> {
    let fixed = match op {
        Op::ReadResp => ReadResp::LEN,
        Op::WriteResp => WriteResp::LEN,
        _ => 1,
    };
    status(*payload.first().ok_or(FabricError::Truncated)?)?;
    if op == Op::Error || payload.len() < fixed {
        return Err(FabricError::Truncated.into());
    }
    payload.drain(..fixed);
    Ok(payload)
}

/// The limits in `HELLO_ACK`, converted to bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Size of the lease.
    pub(super) len: u64,
    /// Largest access.
    pub(super) most: u64,
}

fn greeted(kind: Kind, payload: &[u8]) -> Result<Limits, Error> {
    let ack = HelloAck::parse(kind, payload).ok_or(FabricError::Truncated)?;
    match ack {
        HelloAck::Memory { status: code, resource_len, max_read_len, max_write_len } => {
            status(code).map(|()| Limits { len: resource_len, most: max_read_len.min(max_write_len).into() })
        }
        HelloAck::Block { status: code, block_size, block_count, max_blocks_per_io } => {
            let size = u64::from(block_size);
            let limits = Limits { len: size.saturating_mul(block_count), most: size * u64::from(max_blocks_per_io) };
            status(code).map(|()| limits)
        }
    }
}

/// A lease reached through a byte stream.
#[derive(Debug)]
pub(super) struct Stream {
    carrier: Carrier,
    kind: Kind,
    request_id: u32,
}

#[derive(Debug)]
enum Carrier {
    /// One connection for all accesses.
    Tcp(SocketAddr, TcpStream),
    /// A new stream for each access.
    Quic(Link),
}

impl Stream {
    /// Connects over TCP and names the lease.
    pub(super) async fn tcp(node: SocketAddr, lease: &Grant) -> Result<(Self, Limits), Error> {
        let io = |source| Error::Io { node, source };
        let stream = TcpStream::connect(node).await.map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        Self::open(Carrier::Tcp(node, stream), lease).await
    }

    /// Names the lease on the connection's first stream.
    pub(super) async fn quic(link: Link, lease: &Grant) -> Result<(Self, Limits), Error> {
        Self::open(Carrier::Quic(link), lease).await
    }

    async fn open(carrier: Carrier, lease: &Grant) -> Result<(Self, Limits), Error> {
        let kind = if lease.is_block() { Kind::Block } else { Kind::Memory };
        let mut stream = Self { carrier, kind, request_id: 0 };
        let hello = message(kind, Op::Hello, 0, &[Hello::new(lease.lease_id).as_bytes()]);
        let (op, payload) = stream.exchange(&hello, Op::HelloAck).await?;
        if op != Op::HelloAck {
            outcome(op, payload)?;
            return Err(Error::Mismatch);
        }
        Ok((stream, greeted(kind, &payload)?))
    }

    async fn exchange(&mut self, request: &[u8], wanted: Op) -> Result<(Op, Vec<u8>), Error> {
        let expected = (self.kind, wanted, self.request_id);
        match &mut self.carrier {
            Carrier::Tcp(node, stream) => over_tcp(*node, stream, request, expected).await,
            Carrier::Quic(link) => over_quic(link, request, expected).await,
        }
    }

    fn next(&mut self) -> u32 {
        self.request_id = self.request_id.wrapping_add(1).max(1);
        self.request_id
    }

    pub(super) async fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        let request = read_request(self.kind, self.next(), offset, len);
        let (op, payload) = self.exchange(&request, Op::ReadResp).await?;
        outcome(op, payload)
    }

    pub(super) async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let request = write_request(self.kind, self.next(), offset, data);
        let (op, payload) = self.exchange(&request, Op::WriteResp).await?;
        outcome(op, payload).map(drop)
    }
}

/// Protocol, operation and request id that an answer must have.
type Expected = (Kind, Op, u32);

async fn over_tcp(
    node: SocketAddr,
    stream: &mut TcpStream,
    request: &[u8],
    expected: Expected,
) -> Result<(Op, Vec<u8>), Error> {
    let exchanged = timeout(PATIENCE, async {
        stream.write_all(request).await?;
        let mut header = [0; Header::LEN];
        stream.read_exact(&mut header).await?;
        let found = payload_len(&header, expected);
        let mut payload = vec![0; found.as_ref().map_or(0, |(_, len)| *len)];
        stream.read_exact(&mut payload).await?;
        io::Result::Ok(found.map(|(op, _)| (op, payload)))
    });
    match exchanged.await.map_err(|_| too_late(node, PATIENCE))? {
        Ok(answer) => answer,
        Err(source) => match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Err(Error::Closed)
            }
            _ => Err(Error::Io { node, source }),
        },
    }
}

async fn over_quic(link: &mut Link, request: &[u8], expected: Expected) -> Result<(Op, Vec<u8>), Error> {
    let exchanged = timeout(PATIENCE, link.stream(request, MAX_ANSWER + Header::LEN)).await;
    let mut answer = exchanged.map_err(|_| too_late(link.node, PATIENCE))??;
    let (op, len) = payload_len(&answer, expected)?;
    if answer.len() != Header::LEN + len {
        return Err(FabricError::Truncated.into());
    }
    answer.drain(..Header::LEN);
    Ok((op, answer))
}
