//! FBMU, FBBU and two-sided messages, which take one datagram each way.

use std::{io, net::SocketAddr, time::Duration};

use berth_wire::fabric::{
    FabricError,
    data::{
        BLOCK, IoStatus,
        shim::{Fields, Header, Kind, MAX_DATA, Op},
        two_sided::{Opcode, Request, Status},
    },
};
use tokio::{net::UdpSocket, time::timeout};
use zerocopy::IntoBytes as _;

use super::PATIENCE;
use crate::{Error, Grant, client::too_late};

/// Time that each try waits for its answer.
const TRIES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(1300),
    Duration::from_secs(3),
];

/// Longest UDP datagram in bytes.
const MAX_DATAGRAM: usize = 65_507;

async fn connect(node: SocketAddr) -> Result<UdpSocket, Error> {
    let any = SocketAddr::new(if node.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
    let connected = async {
        let socket = UdpSocket::bind(any).await?;
        socket.connect(node).await?;
        Ok(socket)
    };
    connected.await.map_err(|source| Error::Io { node, source })
}

/// The next datagram within `patience`. A node that cannot be reached may be back at the next try.
async fn receive(socket: &UdpSocket, patience: Duration) -> io::Result<Option<Vec<u8>>> {
    let mut answer = vec![0; MAX_DATAGRAM];
    match timeout(patience, socket.recv(&mut answer)).await {
        Ok(Ok(len)) => {
            answer.truncate(len);
            Ok(Some(answer))
        }
        Ok(Err(e)) if e.kind() != io::ErrorKind::ConnectionRefused => Err(e),
        Ok(Err(_)) => {
            tokio::time::sleep(patience).await;
            Ok(None)
        }
        Err(_) => Ok(None),
    }
}

/// A lease over FBMU or FBBU.
#[derive(Debug)]
pub(super) struct Shim {
    node: SocketAddr,
    socket: UdpSocket,
    kind: Kind,
    lease_id: u128,
    generation: u64,
    request_id: u64,
}

impl Shim {
    /// Limit on one access, in bytes.
    pub(super) const MOST: u64 = MAX_DATA as u64;

    pub(super) async fn open(node: SocketAddr, lease: &Grant) -> Result<Self, Error> {
        let mut first = [0; 8];
        getrandom::fill(&mut first)?;
        Ok(Self {
            node,
            socket: connect(node).await?,
            kind: if lease.is_block() { Kind::Block } else { Kind::Memory },
            lease_id: lease.lease_id,
            generation: lease.generation,
            request_id: u64::from_be_bytes(first),
        })
    }

    /// Repeats a request until its answer comes; it is safe to repeat accesses.
    async fn exchange(&mut self, op: Op, offset: u64, len: u32, data: &[u8]) -> Result<Vec<u8>, Error> {
        self.request_id = self.request_id.wrapping_add(1);
        let unit = if self.kind == Kind::Block { BLOCK } else { 1 };
        let fields = Fields {
            kind: self.kind,
            op,
            status: 0,
            request_id: self.request_id,
            lease_id: self.lease_id,
            generation: self.generation,
            offset: offset / unit,
            length: len / unit as u32,
        };
        let header = Header::new(&fields);
        let crc = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), data);
        let request = [header.with_crc(crc).as_bytes(), data].concat();
        let wanted = if op == Op::Read { Op::ReadResp } else { Op::WriteResp };
        let io = |source| Error::Io { node: self.node, source };
        for patience in TRIES {
            // A refusal of the last try is reported by this one.
            let _ = self.socket.send(&request).await;
            while let Some(mut answer) = receive(&self.socket, patience).await.map_err(io)? {
                let Some(status) = self.status_of(&answer, wanted) else { continue };
                if status != IoStatus::Ok {
                    return Err(Error::Access(status));
                }
                answer.drain(..Header::LEN);
                return Ok(answer);
            }
        }
        Err(too_late(self.node, PATIENCE))
    }

    /// The status of the answer to the current request; `None` for any other datagram.
    fn status_of(&self, answer: &[u8], wanted: Op) -> Option<IoStatus> {
        let header = Header::parse(answer)?;
        let data = &answer[Header::LEN..];
        if crc32c::crc32c_append(crc32c::crc32c(header.with_crc(0).as_bytes()), data) != header.crc() {
            return None;
        }
        let fields = header.fields()?;
        let ours = (self.kind, wanted, self.request_id, self.lease_id);
        let found = (fields.kind, fields.op, fields.request_id, fields.lease_id);
        IoStatus::from_code(fields.status).filter(|_| found == ours)
    }

    pub(super) async fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        self.exchange(Op::Read, offset, len, &[]).await
    }

    pub(super) async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.exchange(Op::Write, offset, data.len() as u32, data).await.map(drop)
    }
}

/// A lease over two-sided messages.
#[derive(Debug)]
pub(super) struct TwoSided {
    node: SocketAddr,
    socket: UdpSocket,
    key: u64,
    generation: u64,
}

impl TwoSided {
    /// Limit on one access, in bytes. With its header it fits a datagram of 1400 bytes, which every network carries
    /// whole.
    pub(super) const MOST: u64 = 1024;

    pub(super) async fn open(node: SocketAddr, lease: &Grant) -> Result<Self, Error> {
        Ok(Self { node, socket: connect(node).await?, key: lease.key, generation: lease.generation })
    }

    /// Repeats a request until its answer comes. Answers do not name their request, so every try uses a new port.
    async fn exchange(&mut self, opcode: Opcode, offset: u64, len: u64, data: &[u8]) -> Result<Vec<u8>, Error> {
        let header = Request::new(opcode, self.key, self.generation, offset, len);
        let request = [header.as_bytes(), data].concat();
        let io = |source| Error::Io { node: self.node, source };
        for patience in TRIES {
            self.socket.send(&request).await.map_err(io)?;
            let Some(mut answer) = receive(&self.socket, patience).await.map_err(io)? else {
                self.socket = connect(self.node).await?;
                continue;
            };
            let status = answer.first().copied().ok_or(FabricError::Truncated)?;
            return match Status::from_code(status) {
                Some(Status::Ok) => {
                    answer.remove(0);
                    Ok(answer)
                }
                Some(status) => Err(Error::TwoSided(status)),
                None => Err(FabricError::Value("status").into()),
            };
        }
        Err(too_late(self.node, PATIENCE))
    }

    pub(super) async fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        self.exchange(Opcode::Read, offset, len.into(), &[]).await
    }

    pub(super) async fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.exchange(Opcode::Write, offset, data.len() as u64, data).await.map(drop)
    }
}
