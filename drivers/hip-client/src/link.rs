//! A connection: requests that want no answer are collected, and sent together.

use std::{
    io::{self, BufReader, IoSlice, Read as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, Weak},
    thread::{self, Thread},
    time::Duration,
};

use berth_wire::hip::{Code, Header, Op, flags, request as q, response as r};
use socket2::{SockRef, TcpKeepalive};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{
    Error, Result,
    access::{Access, Lease},
    stream::Stream,
};

/// Bytes that are collected at most.
const BUFFER: usize = 64 << 10;
/// How long requests may stay collected.
const TICK: Duration = Duration::from_millis(1);
/// Ticks without a request, after which the timer sleeps until there is one.
const QUIET: u32 = 100;
/// How long an address may take to accept, and a worker to answer the first requests.
const HELLO: Duration = Duration::from_secs(10);
/// How long a worker may take to bind a session: it waits 10 s for the lease's earlier one.
const BIND: Duration = Duration::from_secs(20);
/// A peer that answers no probe for 40 s is gone. A kernel may run for longer: the peer's system answers meanwhile.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(10)).with_retries(3);
/// Bytes by which an answer may be longer than its structure.
const SLACK: u64 = 4096;
/// Copies to the host that are asked for before the first of them has come.
const AHEAD: usize = 32;
/// A number that no device has: the next request is sent behind a `SET_DEVICE`.
const NO_DEVICE: i32 = -1;
/// Parts of a request, beside what is collected and its header.
const PARTS: usize = 4;

/// A connection and the worker's session of it. Once broken, it stays so.
#[derive(Debug)]
pub(crate) struct Link {
    wire: Mutex<Wire>,
    devices: i32,
}

impl Link {
    /// Connects to the first address that accepts.
    pub(crate) fn connect(to: &[SocketAddr], access: &Access) -> Result<Arc<Self>> {
        let unreachable = |error| match error {
            Error::Lost(error) => Error::Unreachable(error),
            other => other,
        };
        let stream = open(to).and_then(|socket| Stream::new(socket, access.tls.as_ref()));
        let mut wire = Wire::new(stream.map_err(Error::Unreachable)?);
        let devices = wire.greet(access.lease.as_ref()).map_err(unreachable)?;
        let link = Arc::new(Self { wire: Mutex::new(wire), devices });
        let weak = Arc::downgrade(&link);
        let timer = thread::Builder::new().name("berth-hip-timer".into()).spawn(move || tick(&weak));
        timer.map_err(Error::Unreachable)?;
        Ok(link)
    }

    /// What `GET_DEVICE_COUNT` answered when the connection was made.
    pub(crate) fn devices(&self) -> i32 {
        self.devices
    }

    /// Whether the session is over; so it is where a thread has panicked with the connection.
    pub(crate) fn is_broken(&self) -> bool {
        self.wire.lock().map_or(true, |wire| wire.is_broken)
    }

    /// Calls `f` with the connection, which nobody else uses meanwhile.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Wire) -> Result<T>) -> Result<T> {
        let Ok(mut wire) = self.wire.lock() else { return Err(Error::Gone) };
        if wire.is_broken {
            return Err(wire.untold.take().unwrap_or(Error::Gone));
        }
        let result = f(&mut wire);
        if result.as_ref().is_err_and(Error::ends_session) {
            wire.close();
        }
        result
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(timer) = self.wire.get_mut().ok().and_then(|wire| wire.timer.take()) {
            timer.unpark();
        }
    }
}

/// Sends what nobody else sends, until the connection is dropped or broken.
fn tick(link: &Weak<Link>) {
    let mut quiet = 0;
    loop {
        thread::sleep(TICK);
        {
            let Some(link) = link.upgrade() else { return };
            let Ok(mut wire) = link.wire.lock() else { return };
            if wire.is_broken {
                return;
            }
            quiet = if wire.buffer.is_empty() { quiet + 1 } else { 0 };
            if let Err(error) = wire.flush() {
                wire.untold = Some(error);
                wire.close();
                return;
            }
            if quiet == QUIET {
                wire.timer = Some(thread::current());
            }
        }
        if quiet == QUIET {
            thread::park();
            quiet = 0;
        }
    }
}

fn open(to: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in to {
        match TcpStream::connect_timeout(address, HELLO) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(HELLO))?;
                SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// What breaks a connection while an answer is read.
fn lost(error: io::Error) -> Error {
    let is_end = error.kind() == io::ErrorKind::UnexpectedEof;
    Error::Lost(if is_end { io::Error::new(error.kind(), "the worker closed it") } else { error })
}

/// The socket, and the requests that are collected for it.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: BufReader<Stream>,
    /// The number of the next request.
    next: u32,
    /// The device that the worker uses for what comes next.
    device: i32,
    buffer: Vec<u8>,
    /// The timer, where it sleeps until something is collected.
    timer: Option<Thread>,
    is_broken: bool,
    /// What broke it, while no call has said so.
    untold: Option<Error>,
}

impl Wire {
    fn new(stream: Stream) -> Self {
        Self {
            stream: BufReader::new(stream),
            next: 1,
            device: 0,
            buffer: Vec::with_capacity(BUFFER),
            timer: None,
            is_broken: false,
            untold: None,
        }
    }

    /// The claim on the lease; then INIT, and the number of devices, asked for together.
    fn greet(&mut self, lease: Option<&Lease>) -> Result<i32> {
        if let Some(lease) = lease {
            self.bind(lease)?;
        }
        let init = self.put(Op::Init, &[], 0)?;
        let count = self.put(Op::GetDeviceCount, &[], 0)?;
        self.flush()?;
        self.answer::<r::Status>(Op::Init, init)?;
        let devices = self.answer::<r::Int>(Op::GetDeviceCount, count)?.value.get();
        self.stream.get_ref().set_read_timeout(None).map_err(Error::Lost)?;
        Ok(devices)
    }

    /// Claims a lease: asks for a nonce, signs it with the lease's id and the TLS exporter, and sends the token.
    fn bind(&mut self, lease: &Lease) -> Result<()> {
        let nonce = self.ask::<r::Nonce>(0, Op::BerthChallenge, &[], 0)?.nonce;
        let exporter = self.stream.get_ref().exporter().map_err(Error::Lost)?;
        let lease_id = lease.id.to_be_bytes();
        let signed = q::Bind::signed(&nonce, &lease_id, exporter.as_ref());
        let mut claim = q::Bind::zeroed();
        (claim.lease_id, claim.signature) = (lease_id, lease.holder.sign(&signed));
        claim.token_length = (lease.token.len() as u32).into();
        self.stream.get_ref().set_read_timeout(Some(BIND)).map_err(Error::Lost)?;
        self.ask::<r::Status>(0, Op::BerthBind, &[claim.as_bytes(), &lease.token], 0).map(drop)
    }

    fn close(&mut self) {
        self.is_broken = true;
        self.buffer.clear();
        self.stream.get_ref().close();
    }

    /// Sends a request for a device that is not answered, now or later.
    pub(crate) fn post(&mut self, device: i32, op: Op, parts: &[&[u8]], flags: u32) -> Result<()> {
        self.select(device)?;
        self.put(op, parts, flags | flags::NO_REPLY)?;
        if let Some(timer) = self.timer.take() {
            timer.unpark();
        }
        Ok(())
    }

    /// Sends a request for a device behind all that is collected, and waits for its answer.
    pub(crate) fn ask<T>(&mut self, device: i32, op: Op, parts: &[&[u8]], flags: u32) -> Result<T>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned,
    {
        self.select(device)?;
        let id = self.put(op, parts, flags)?;
        self.flush()?;
        self.answer(op, id)
    }

    /// Copies to the host, of which some are asked for ahead. After one that is refused no more are asked for; the first
    /// refusal is returned.
    pub(crate) fn fetch(&mut self, device: i32, op: Op, copies: &mut [(q::Memcpy, &mut [u8])]) -> Result<()> {
        self.select(device)?;
        let (mut ids, mut most) = (Vec::with_capacity(copies.len()), copies.len());
        let mut result = Ok(());
        for at in 0..copies.len() {
            while ids.len() < most.min(at + AHEAD) {
                ids.push(self.put(op, &[copies[ids.len()].0.as_bytes()], 0)?);
            }
            if at == most {
                break;
            }
            self.flush()?;
            match self.data(op, ids[at], copies[at].1) {
                Err(refused @ Error::Refused { .. }) => {
                    most = ids.len();
                    result = result.and(Err(refused));
                }
                other => other?,
            }
        }
        result
    }

    /// Has all freed that the session has. Which device the worker uses then is its own affair.
    pub(crate) fn reset(&mut self, device: i32) -> Result<()> {
        let reset = self.ask::<r::Status>(device, Op::DeviceReset, &[], 0).map(drop);
        self.device = NO_DEVICE;
        reset
    }

    fn data(&mut self, op: Op, id: u32, into: &mut [u8]) -> Result<()> {
        let (code, rest) = self.begin(op, id)?;
        if code != Code::SUCCESS {
            self.skip(rest)?;
            return Err(Error::Refused { call: op.name(), code });
        }
        if rest != into.len() as u64 {
            return Err(Error::Protocol("another number of bytes than was asked for"));
        }
        self.stream.read_exact(into).map_err(lost)
    }

    /// Makes the worker use a device for what comes next.
    fn select(&mut self, device: i32) -> Result<()> {
        if self.device != device {
            let request = q::Device { device_id: device.into() };
            self.put(Op::SetDevice, &[request.as_bytes()], flags::NO_REPLY)?;
            self.device = device;
        }
        Ok(())
    }

    /// Collects a request, or sends it with all that is collected where it does not fit; returns its number.
    fn put(&mut self, op: Op, parts: &[&[u8]], flags: u32) -> Result<u32> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let header = Header::request(op, id, len as u64, flags);
        if self.buffer.len() + Header::LEN + len <= BUFFER {
            self.buffer.extend_from_slice(header.as_bytes());
            for part in parts {
                self.buffer.extend_from_slice(part);
            }
        } else {
            self.send(header.as_bytes(), parts)?;
        }
        Ok(id)
    }

    /// Sends what is collected.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.send(&[], &[]) }
    }

    /// Sends what is collected and a request behind it.
    fn send(&mut self, header: &[u8], parts: &[&[u8]]) -> Result<()> {
        let mut slices = [IoSlice::new(&[]); PARTS + 2];
        slices[0] = IoSlice::new(&self.buffer);
        slices[1] = IoSlice::new(header);
        for (slice, part) in slices[2..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        self.stream.get_mut().send(&mut slices[..2 + parts.len()]).map_err(Error::Lost)?;
        self.buffer.clear();
        Ok(())
    }

    /// The error code of an answer, and how many bytes follow it.
    fn begin(&mut self, op: Op, id: u32) -> Result<(Code, u64)> {
        let (mut header, mut status) = (Header::zeroed(), r::Status::zeroed());
        self.stream.read_exact(header.as_mut_bytes()).map_err(lost)?;
        let is_answer = header.check(u64::MAX).is_ok() && header.has(flags::RESPONSE);
        if !is_answer || header.op_code.get() != op as u16 || header.request_id.get() != id {
            return Err(Error::Protocol("an answer to nothing that was asked"));
        }
        let Some(rest) = header.payload_length.get().checked_sub(r::Status::LEN as u64) else {
            return Err(Error::Protocol("an answer without an error code"));
        };
        self.stream.read_exact(status.as_mut_bytes()).map_err(lost)?;
        Ok((Code(status.error_code.get()), rest))
    }

    fn answer<T>(&mut self, op: Op, id: u32) -> Result<T>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned,
    {
        let (code, rest) = self.begin(op, id)?;
        if code != Code::SUCCESS {
            self.skip(rest)?;
            return Err(Error::Refused { call: op.name(), code });
        }
        let mut answer = T::new_zeroed();
        let fields = &mut answer.as_mut_bytes()[r::Status::LEN..];
        let Some(more) = rest.checked_sub(fields.len() as u64) else {
            return Err(Error::Protocol("an answer that is too short"));
        };
        self.stream.read_exact(fields).map_err(lost)?;
        self.skip(more)?;
        Ok(answer)
    }

    /// Reads and forgets what an answer has beyond its structure.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        if bytes > SLACK {
            return Err(Error::Protocol("an answer that is too long"));
        }
        let skipped = io::copy(&mut (&mut self.stream).take(bytes), &mut io::sink()).map_err(Error::Lost)?;
        if skipped == bytes { Ok(()) } else { Err(lost(io::ErrorKind::UnexpectedEof.into())) }
    }
}
