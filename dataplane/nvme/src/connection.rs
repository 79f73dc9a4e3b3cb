//! One connection: its PDUs, in and out.

mod auth;
mod receive;
mod send;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    task::{Context, Poll},
};

use berth_port::{Nanos, Next, Progress, Session};
use berth_wire::nvme::pdu::{Common, DIGEST_LEN, Framing, HEAD_MAX, Kind, Rules, Side, TermReq};

use crate::{
    Latencies, Target,
    admin::Admin,
    counts::{Counts, Event},
    io::Io,
    latency::Timing,
    output::Output,
    queue::Queue,
};

/// MAXH2CDATA: the most bytes of an `H2CData`, and of an R2T.
const H2C_DATA_MAX: u32 = 128 << 10;

/// Bytes that the capsule of an admin or fabrics command may bring.
const CAPSULE_DATA_MAX: u32 = 8192;

/// What an answer without data takes, or the word on a violation.
const SHORT: usize = 160;

/// The controller's side of one NVMe/TCP connection, which is one queue.
///
/// After a violation it writes `C2HTermReq` and wants to be closed. Whoever moves its bytes must then send all, shut its
/// direction down, and take what comes until the host closes, or a second is over, before it closes the socket: a host
/// whose bytes nobody takes may lose the last ones to it. Input and output need room for [`Connection::room`] bytes.
#[derive(Debug)]
pub struct Connection {
    target: Target,
    /// Where the host has reached this node: what discovery answers.
    local: SocketAddr,
    /// From where.
    peer: IpAddr,
    /// Limits and framing of the PDUs that the host sends.
    rules: Rules,
    /// Digests and alignment of the PDUs that it gets.
    framing: Framing,
    /// The rest of an `H2CData`.
    incoming: Option<Incoming>,
    queue: Queue,
    role: Role,
    /// Of a host that has to prove who it is.
    proof: Option<Box<auth::Proof>>,
    /// The host has disconnected its queue: close once that is answered.
    leaving: bool,
    closing: bool,
    counts: Counts,
    /// Where a poll core serves it that asks how long commands take.
    timing: Option<Timing>,
}

/// An `H2CData` of which the header has been taken.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    slot: usize,
    /// Bytes of data that are to come.
    left: u32,
    /// Of those that have come, where a digest follows.
    digest: Option<u32>,
}

/// The kind of queue that Connect has made of the connection.
#[derive(Debug)]
pub(crate) enum Role {
    /// Nothing yet, or nothing before the host has proved who it is.
    New,
    /// The admin queue of a controller.
    Admin(Box<Admin>),
    /// An I/O queue.
    Io(Box<Io>),
}

/// The result of a step.
enum Step {
    /// So many bytes of input are done with.
    Taken(usize),
    /// Nothing, until this has happened.
    Stop(Next),
}

impl Connection {
    /// The least room for input and for output in bytes: for the longest capsule, where I/O capsules bring so much.
    pub const fn room(in_capsule: u32) -> usize {
        let data = if in_capsule > CAPSULE_DATA_MAX { in_capsule } else { CAPSULE_DATA_MAX };
        HEAD_MAX + data as usize + DIGEST_LEN
    }

    /// A new connection, which the host made to `local`.
    pub fn new(target: &Target, local: SocketAddr) -> Self {
        Self {
            target: target.clone(),
            local,
            peer: Ipv4Addr::UNSPECIFIED.into(),
            rules: Rules {
                sender: Side::Host,
                initialised: false,
                framing: Framing::default(),
                capsule_data_max: CAPSULE_DATA_MAX.max(target.limits().in_capsule),
            },
            framing: Framing::default(),
            incoming: None,
            queue: Queue::new(1, None),
            role: Role::New,
            proof: None,
            leaving: false,
            closing: false,
            counts: Counts::default(),
            timing: None,
        }
    }

    /// Says where the host is: one of many that authenticate gets its share.
    #[must_use]
    pub fn with_peer(self, peer: IpAddr) -> Self {
        Self { peer, ..self }
    }

    /// Has the stages of its I/O commands recorded from now on, on the core of these histograms alone.
    pub fn time(&mut self, latencies: &Latencies) {
        self.timing = Some(Timing::new(latencies.clone()));
    }

    /// Does what comes first: sends, goes on with what has ended, or takes a PDU.
    fn step(&mut self, input: &[u8], output: &mut Output<'_>, now: Nanos) -> Step {
        if self.closing {
            return Step::Stop(Next::Close);
        }
        if let Some(next) = self.send(output, now) {
            return Step::Stop(next);
        }
        if let Some(step) = self.prove(now) {
            return step;
        }
        match &mut self.role {
            _ if self.leaving => {
                self.closing = true;
                return Step::Taken(0);
            }
            Role::Io(io) if io.is_over() => {
                self.closing = true;
                return Step::Taken(0);
            }
            Role::Io(io) => {
                if io.finish(&mut self.queue, &mut self.counts, now) {
                    return Step::Taken(0);
                }
                if io.is_asked() {
                    io.abort(&mut self.queue, self.incoming.map(|incoming| incoming.slot));
                }
                io.go_on(&mut self.queue, now);
                io.go_on_fused(&mut self.queue, now);
            }
            Role::Admin(admin) => admin.tell(&mut self.queue),
            Role::New => {}
        }
        if self.queue.first().is_some() {
            return Step::Taken(0);
        }
        if output.room() < SHORT {
            return Step::Stop(Next::Output(SHORT));
        }
        let taken = match self.incoming {
            Some(incoming) => self.data(incoming, input, now),
            None => self.pdu(input, output, now),
        };
        taken.unwrap_or_else(|fatal| {
            self.counts.fatal(fatal);
            self.closing = true;
            let head = input.len().min(HEAD_MAX);
            output.append(|to| TermReq::write(to, Kind::C2hTermReq, fatal, &input[..head.min(header_of(input))]));
            Step::Taken(head)
        })
    }
}

/// Bytes of the header that `input` begins with, as far as it says so: at most what a `TermReq` has room for.
fn header_of(input: &[u8]) -> usize {
    input.get(2).map_or(0, |hlen| usize::from(*hlen)).clamp(Common::LEN, TermReq::DATA_MAX as usize)
}

impl Session for Connection {
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        if let Some(timing) = &mut self.timing {
            timing.sent(now);
        }
        let mut output = Output::new(output);
        let mut consumed = 0;
        let next = loop {
            match self.step(&input[consumed..], &mut output, now) {
                Step::Taken(bytes) => consumed += bytes,
                Step::Stop(next) => break next,
            }
        };
        if let Role::Io(io) = &self.role {
            io.record(&self.counts);
        }
        self.target.totals().take(&mut self.counts);
        Progress { consumed, written: output.written(), next }
    }

    /// Connect has succeeded.
    fn is_identified(&self) -> bool {
        !matches!(self.role, Role::New) && !self.closing
    }

    fn is_over(&mut self, now: Nanos) -> bool {
        let unproven = self.is_unproven(now);
        let over = match &mut self.role {
            _ if unproven => true,
            Role::New => false,
            Role::Admin(admin) => admin.is_over(now, &mut self.counts),
            Role::Io(io) => {
                let late = self.queue.is_late(now);
                if late {
                    self.counts.add(Event::DataLate);
                }
                late || io.is_over() || io.is_silent(now) || io.ended_long_ago(now)
            }
        };
        self.target.totals().take(&mut self.counts);
        over
    }

    /// Accesses to blocks, commands that wait for buffers, and what waits for room to be sent.
    fn outstanding(&self) -> usize {
        let io = if let Role::Io(io) = &self.role { io.outstanding(&self.queue) } else { 0 };
        let proof = self.proof.as_ref().map_or(0, |proof| proof.queue.outstanding());
        io + proof + usize::from(self.queue.first().is_some())
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(proof) = &self.proof
            && proof.queue.poll(cx).is_ready()
        {
            return Poll::Ready(());
        }
        match &self.role {
            Role::New => Poll::Pending,
            Role::Admin(admin) => admin.poll(cx),
            Role::Io(io) => io.poll(&self.queue, cx),
        }
    }
}
