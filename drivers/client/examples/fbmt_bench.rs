//! The speed of FBMT reads over one TCP connection, as a JSON line:
//! `cargo run --release -p berth-client --example fbmt_bench -- CONTROL IDENTITY SECONDS`.
//!
//! CONTROL is the QUIC address of a node that serves FBMT, IDENTITY the key file of an enrolled client. Memory is
//! leased, written through the same connection, read back and compared byte by byte. Then 64 KiB reads are requested, a
//! few ahead, for SECONDS.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client};
use berth_wire::fabric::{
    EndpointKind, Perms,
    data::stream::{Header, Hello, HelloAck, Kind, Op, Range, ReadResp},
};
use zerocopy::IntoBytes as _;

/// Size of each read in bytes.
const LEN: usize = 64 << 10;
/// Number of reads requested ahead.
const AHEAD: usize = 8;
/// Size of the lease in bytes.
const LEASE: usize = 4 << 20;
/// Size of an answer before its data, in bytes.
const HEAD: usize = Header::LEN + ReadResp::LEN;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let [_, control, identity, seconds] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY SECONDS".into());
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, grant) = runtime.block_on(async {
        let client = Client::quic(identity, control.parse()?, None).await?;
        let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 60, 0, None).await?;
        let grant = client.lease_alloc(&token, &Alloc::memory(LEASE as u64, 3600)).await?;
        Ok::<_, Failure>((client, grant))
    })?;
    let served = grant.endpoints.iter().find(|(kind, _)| *kind == EndpointKind::Fbmt);
    let (_, addr) = served.ok_or("the node serves no FBMT")?;
    let rate = reads(&mut Connection::open(TcpStream::connect(addr)?, grant.lease_id)?, seconds.parse()?)?;
    println!("{{\"bytes_per_s\": {rate:.0}}}");
    runtime.block_on(async {
        client.lease_free(grant.lease_id).await?;
        client.close().await;
        Ok(())
    })
}

/// Speed in bytes per second.
fn reads(connection: &mut Connection, seconds: f64) -> Result<f64, Failure> {
    let pattern: Vec<u8> = (0..LEASE).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (index, data) in pattern.chunks(LEN).enumerate() {
        connection.ask(Op::Write, index * LEN, data)?;
        connection.expect(Op::WriteResp, 4)?;
    }
    let mut buf = vec![0; HEAD + LEN];
    for (index, data) in pattern.chunks(LEN).enumerate() {
        connection.ask(Op::Read, index * LEN, &[])?;
        connection.data(&mut buf)?;
        if buf[HEAD..] != *data {
            return Err(format!("what was read from {} is not what was written", index * LEN).into());
        }
    }
    let mut asked = 0;
    let mut ask = |connection: &mut Connection| {
        asked += 1;
        connection.ask(Op::Read, asked * LEN % LEASE, &[])
    };
    (0..AHEAD).try_for_each(|_| ask(connection))?;
    let (start, mut answers) = (Instant::now(), 0_u64);
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        connection.data(&mut buf)?;
        answers += 1;
        ask(connection)?;
    }
    Ok((answers * LEN as u64) as f64 / start.elapsed().as_secs_f64())
}

struct Connection {
    socket: TcpStream,
    request: Vec<u8>,
}

impl Connection {
    fn open(socket: TcpStream, lease_id: u128) -> Result<Self, Failure> {
        socket.set_nodelay(true)?;
        let mut connection = Self { socket, request: Vec::new() };
        connection.send(Op::Hello, Hello::new(lease_id).as_bytes(), &[])?;
        let ack = connection.expect(Op::HelloAck, HelloAck::LEN)?;
        match HelloAck::parse(Kind::Memory, &ack) {
            Some(HelloAck::Memory { status: 0, max_read_len, .. }) if max_read_len as usize >= LEN => Ok(connection),
            other => Err(format!("the node answered {other:?}").into()),
        }
    }

    fn ask(&mut self, op: Op, offset: usize, data: &[u8]) -> Result<(), Failure> {
        self.send(op, Range::new(offset as u64, LEN as u32).as_bytes(), data)
    }

    fn send(&mut self, op: Op, payload: &[u8], data: &[u8]) -> Result<(), Failure> {
        let header = Header::new(Kind::Memory, op, (payload.len() + data.len()) as u32, 1);
        self.request.clear();
        for part in [header.as_bytes(), payload, data] {
            self.request.extend_from_slice(part);
        }
        Ok(self.socket.write_all(&self.request)?)
    }

    /// The payload of a short answer, whose status must be 0.
    fn expect(&mut self, op: Op, len: usize) -> Result<Vec<u8>, Failure> {
        let mut answer = vec![0; Header::LEN + len];
        self.socket.read_exact(&mut answer)?;
        let payload = answer.split_off(Header::LEN);
        let header = Header::parse(&answer).filter(|header| header.op() == Some(op));
        if header.is_none() || payload[0] != 0 {
            return Err(format!("{op:?} was refused: {payload:?}").into());
        }
        Ok(payload)
    }

    /// Fills `buf` with the next answer to a read, which must have all of its data.
    fn data(&mut self, buf: &mut [u8]) -> Result<(), Failure> {
        self.socket.read_exact(buf)?;
        let header = Header::parse(buf).filter(|header| header.op() == Some(Op::ReadResp));
        let whole = ReadResp::parse(&buf[Header::LEN..]).filter(|read| read.status() == 0);
        if header.is_none() || whole.is_none_or(|read| read.length() as usize != LEN) {
            return Err(format!("a read was refused: {:?}", &buf[..HEAD]).into());
        }
        Ok(())
    }
}
