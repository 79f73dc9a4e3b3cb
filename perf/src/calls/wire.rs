//! A connection to a worker: calls that are waited for, and pieces that are sent while answers come.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::{SocketAddr, TcpStream},
    ops::Range,
    rc::Rc,
    sync::Arc,
};

use anyhow::{Context as _, bail, ensure};
use berth_tls::stream::{ClientConfig, ClientConnection, TlsStream, connection};
use berth_wire::hip::{Header, Op};
use zerocopy::IntoBytes as _;

/// Bytes that are received at once.
const ROOM: usize = 256 << 10;

/// Pieces that are sent at once.
const PIECES: usize = 64;

#[derive(Debug)]
pub(super) struct Wire {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    input: Box<[u8]>,
    /// Of which these were received and not looked at.
    held: Range<usize>,
    /// What is to be sent.
    out: VecDeque<Rc<[u8]>>,
    /// Bytes of the first that were.
    sent: usize,
}

impl Wire {
    /// Connects, through TLS where there are settings of it, and sends INIT unless the server is a baseline.
    pub(super) fn connect(address: SocketAddr, tls: Option<&Arc<ClientConfig>>, echo: bool) -> anyhow::Result<Self> {
        let mut socket = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        socket.set_nodelay(true)?;
        let mut connect = |config: &Arc<ClientConfig>| {
            let mut tls = Box::new(connection(config.clone(), address.ip())?);
            while tls.is_handshaking() {
                tls.complete_io(&mut socket).context("the TLS handshake failed")?;
            }
            anyhow::Ok(tls)
        };
        let tls = tls.map(&mut connect).transpose()?;
        let input = vec![0; ROOM].into_boxed_slice();
        let mut wire = Self { socket, tls, input, held: 0..0, out: VecDeque::new(), sent: 0 };
        if !echo {
            wire.call(Op::Init, &[])?;
        }
        Ok(wire)
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for the answer of a request: what follows its error code.
    pub(super) fn call(&mut self, op: Op, payload: &[u8]) -> anyhow::Result<Vec<u8>> {
        self.socket.set_nonblocking(false)?;
        let header = Header::request(op, 0, payload.len() as u64, 0);
        let request = [header.as_bytes(), payload].concat();
        let (answer, payload) = match &mut self.tls {
            Some(tls) => exchange(&mut TlsStream::new(&mut **tls, &mut self.socket), &request)?,
            None => exchange(&mut self.socket, &request)?,
        };
        ensure!(answer.op_code == header.op_code, "{} has no answer", op.name());
        match payload.split_first_chunk::<4>() {
            Some((code, rest)) if i32::from_le_bytes(*code) == 0 => Ok(rest.to_vec()),
            Some((code, _)) => bail!("{} failed with {}", op.name(), i32::from_le_bytes(*code)),
            None => bail!("{} is answered without an error code", op.name()),
        }
    }

    /// From now on nothing waits.
    pub(super) fn poll(&mut self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
    }

    pub(super) fn send(&mut self, piece: &Rc<[u8]>) {
        if !piece.is_empty() {
            self.out.push_back(piece.clone());
        }
    }

    /// Sends what the socket takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        loop {
            // Records that TLS has made already go first.
            if let Some(tls) = &mut self.tls {
                while tls.wants_write() {
                    match tls.write_tls(&mut self.socket) {
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                        Err(error) => return Err(error),
                    }
                }
            }
            if self.out.is_empty() {
                return Ok(());
            }
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.out) {
                let from = if count == 0 { self.sent } else { 0 };
                *slice = IoSlice::new(&piece[from..]);
                count += 1;
            }
            let written = match &mut self.tls {
                Some(tls) => tls.writer().write_vectored(&slices[..count]),
                None => self.socket.write_vectored(&slices[..count]),
            };
            match written {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            while let Some(first) = self.out.front()
                && self.sent >= first.len()
            {
                self.sent -= first.len();
                self.out.pop_front();
            }
        }
    }

    /// Receives behind what is held.
    fn read(&mut self) -> io::Result<usize> {
        let room = &mut self.input[self.held.end..];
        let Some(tls) = &mut self.tls else { return self.socket.read(room) };
        loop {
            match tls.reader().read(room) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Has `take` look at what was received, and returns how many bytes of it are done with; receives more if nothing is
    /// there.
    pub(super) fn receive(&mut self, take: impl FnOnce(&[u8]) -> anyhow::Result<usize>) -> anyhow::Result<()> {
        match self.read() {
            Ok(0) => bail!("the server has closed the connection"),
            Ok(bytes) => self.held.end += bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.held.start += take(&self.input[self.held.clone()])?;
        self.input.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
        Ok(())
    }
}

/// Sends a request and waits for its answer.
fn exchange(stream: &mut (impl Read + Write), request: &[u8]) -> anyhow::Result<(Header, Vec<u8>)> {
    stream.write_all(request)?;
    stream.flush()?;
    let mut answer = Header::zeroed();
    stream.read_exact(answer.as_mut_bytes())?;
    ensure!(answer.check(1 << 20).is_ok(), "what came is no answer");
    let mut payload = vec![0; answer.payload_length.get() as usize];
    stream.read_exact(&mut payload)?;
    Ok((answer, payload))
}
