//! A port that writes its frames to a capture file.

use std::{
    io::{self, BufWriter, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::RawFd,
};

use etherparse::{PacketBuilder, PacketBuilderStep, UdpHeader};

use crate::{Clock, DeviceCounters, Frame, Nanos, Peer, Port, PostError, ReplyTo, Verdict};

/// Magic number of a pcap file with nanosecond stamps.
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Version of the file format, as (major, minor).
const VERSION: [u16; 2] = [2, 4];
/// Limit on a captured packet: a maximal IP packet.
const SNAPLEN: u32 = 65_535;
/// `LINKTYPE_RAW`: packets begin with their IP header.
const LINKTYPE_RAW: u32 = 101;
const FILE_HEADER_BYTES: u64 = 24;
const RECORD_HEADER_BYTES: usize = 16;

/// Writes the frames that `P` receives and sends to a pcap file. This is middleware for tests and debugging, not for
/// the hot path.
///
/// Each frame becomes an IP/UDP packet with made-up headers; addresses and ports are the frame's own. Its stamp is
/// [`Now::wall`](crate::Now), so stamps are TAI if the clock is, ahead of UTC by the leap seconds. Received frames are
/// written before they are handled. The file is complete once the port is dropped. The capture ends at its size limit
/// or at the first write error; frames still pass, and `pcap_missed` counts them.
#[derive(Debug)]
pub struct Pcap<P, W: Write, C> {
    inner: P,
    clock: C,
    capture: Capture<W>,
}

#[derive(Debug)]
struct Capture<W: Write> {
    out: BufWriter<W>,
    open: bool,
    bytes_left: u64,
    counters: Counters,
}

crate::counters! {
    pub(crate) struct Counters {
        frames = pcap_frames: "frames written to the capture",
        missed = pcap_missed: "frames that the capture had no room for",
        write_errors = pcap_write_errors: "writes to the capture that failed",
    }
}

impl<P: Port, W: Write, C: Clock> Pcap<P, W, C> {
    /// Wraps a port. Writes at most `limit` bytes to `out`, in few large writes.
    pub fn new(inner: P, out: W, limit: u64, clock: C) -> Self {
        let mut capture = Capture {
            out: BufWriter::new(out),
            open: limit >= FILE_HEADER_BYTES,
            bytes_left: limit.saturating_sub(FILE_HEADER_BYTES),
            counters: Counters::default(),
        };
        if capture.open {
            let written = capture.write_file_header();
            capture.check(&written);
        }
        Self { inner, clock, capture }
    }
}

impl<W: Write> Capture<W> {
    fn write_file_header(&mut self) -> io::Result<()> {
        self.out.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        self.out.write_all(&VERSION.map(u16::to_le_bytes).concat())?;
        // Time zone and accuracy, both zero by custom.
        self.out.write_all(&[0; 8])?;
        self.out.write_all(&SNAPLEN.to_le_bytes())?;
        self.out.write_all(&LINKTYPE_RAW.to_le_bytes())
    }

    /// Writes one frame, unless the capture has ended.
    fn record(&mut self, [from, to]: [SocketAddr; 2], data: &[u8], wire_len: usize, at: Nanos) {
        let packet = headers(from, to);
        let len = packet.size(data.len());
        let bytes = (RECORD_HEADER_BYTES + len) as u64;
        let fits = len <= SNAPLEN as usize;
        // What no IP packet holds is missed alone; what is beyond the limit ends the capture.
        self.open &= !fits || bytes <= self.bytes_left;
        if !self.open || !fits {
            self.counters.missed += 1;
            return;
        }
        self.bytes_left -= bytes;
        let wire_len = len + wire_len.saturating_sub(data.len());
        let (seconds, nanos) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
        let header = [seconds as u32, nanos as u32, len as u32, wire_len as u32].map(u32::to_le_bytes).concat();
        let written = self
            .out
            .write_all(&header)
            .and_then(|()| packet.write(&mut self.out, data).map_err(|error| io::Error::other(error.to_string())));
        self.counters.frames += u64::from(written.is_ok());
        self.counters.missed += u64::from(written.is_err());
        self.check(&written);
    }

    fn check(&mut self, written: &io::Result<()>) {
        if written.is_err() {
            self.counters.write_errors += 1;
            self.open = false;
        }
    }
}

/// Headers of a packet between two addresses. If the families differ, both become IPv6.
fn headers(from: SocketAddr, to: SocketAddr) -> PacketBuilderStep<UdpHeader> {
    const HOPS: u8 = 64;
    let v6 = |ip| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        (from, to) => PacketBuilder::ipv6(v6(from), v6(to), HOPS),
    };
    ip.udp(from.port(), to.port())
}

/// The address that stands for a peer: for a connection, the low bits of its number are the port.
fn shown(peer: Peer) -> SocketAddr {
    match peer {
        Peer::Address(addr) => addr,
        Peer::Connection { number, host } => {
            SocketAddr::new(host.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), number as u16)
        }
    }
}

impl<P: Port, W: Write, C: Clock> Port for Pcap<P, W, C> {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        let Self { inner, clock, capture } = self;
        let (at, local) = (clock.now().wall, inner.local_addr());
        inner.rx(|frame| {
            let peer = shown(frame.peer());
            capture.record([peer, local], frame.data(), frame.wire_len(), at);
            let verdict = handle(frame);
            if verdict == Verdict::Reply {
                capture.record([local, peer], frame.data(), frame.len(), at);
            }
            verdict
        })
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        self.reply(peer.into(), fill)
    }

    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, to: ReplyTo, fill: F) -> Result<(), PostError> {
        let Self { inner, clock, capture } = self;
        let (at, local) = (clock.now().wall, inner.local_addr());
        inner.reply(to, |out| {
            let len = fill(out);
            capture.record([local, shown(to.peer())], &out[..len], len, at);
            len
        })
    }

    fn release(&mut self, number: u32) {
        self.inner.release(number);
    }

    fn tx(&mut self) {
        self.inner.tx();
    }

    fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.inner.wait_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
        self.capture.counters.report(visit);
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        self.inner.device()
    }
}
