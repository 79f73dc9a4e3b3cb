//! A baseline that answers commands without being a controller: what it gets and what it sends are as long as those are.

use std::{collections::VecDeque, net::SocketAddr};

use anyhow::{Context as _, anyhow, ensure};
use berth_port::{BURST, Frame, Next, Peer, Port, PostError, Progress, Verdict};
use berth_wire::{
    nvme::{
        Status,
        pdu::{Framing, Kind},
    },
    rpc::{HeaderForm, RequestHeader},
};

use super::{Disk, port::answer, wire::Wire};

/// The form of frames' headers.
const FORM: HeaderForm = HeaderForm::V16;

/// One connection to such a server.
#[derive(Debug)]
pub(super) struct EchoPort {
    wire: Wire,
    /// Requests that are to be sent.
    queued: usize,
    /// Requests without an answer, in order.
    sent: VecDeque<u32>,
    /// How many of them are answered, and how much has come of the next one's answer.
    received: (usize, usize),
    depth: usize,
    /// Bytes of an answer.
    answer: usize,
    frame: Vec<u8>,
    peer: Peer,
    local: SocketAddr,
    over: bool,
}

impl EchoPort {
    pub(super) fn open(disk: &Disk, longest: usize) -> anyhow::Result<Self> {
        ensure!(disk.queues == 1, "--echo is for one connection");
        let wire = Wire::connect(disk.address).with_context(|| format!("cannot connect to {}", disk.address))?;
        let (around, response) = (Kind::C2hData.header_len(), Kind::CapsuleResp.header_len());
        Ok(Self {
            local: wire.local_addr()?,
            wire,
            queued: 0,
            sent: VecDeque::with_capacity(disk.depth.into()),
            received: (0, 0),
            depth: disk.depth.into(),
            answer: around + disk.longest as usize + response,
            frame: vec![0; longest.max(FORM.len())],
            peer: disk.address.into(),
            over: false,
        })
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        if !self.wire.receive()? {
            return Ok(());
        }
        let ((answered, behind), answer) = (&mut self.received, self.answer);
        self.wire.advance(|input, _| {
            *behind += input.len();
            *answered += *behind / answer;
            *behind %= answer;
            Progress { consumed: input.len(), written: 0, next: Next::Input(1) }
        })?;
        ensure!(self.received.0 <= self.sent.len(), "more answers than requests");
        Ok(())
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        let queued = &mut self.queued;
        self.wire.advance(|_, output| {
            let len = Kind::CapsuleCmd.header_len();
            let count = (*queued).min(output.len() / len);
            output[..count * len].fill(0);
            for request in output[..count * len].chunks_exact_mut(len) {
                let sqe = berth_wire::nvme::Sqe::zeroed();
                Framing::default().command(request, &sqe, 0);
            }
            *queued -= count;
            let next = if *queued > 0 { Next::Output(len) } else { Next::Input(1) };
            Progress { consumed: 0, written: count * len, next }
        })?;
        self.wire.flush()?;
        Ok(())
    }

    fn lost(&mut self, error: &anyhow::Error) {
        eprintln!("the connection: {error:#}");
        self.over = true;
    }
}

impl Port for EchoPort {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        if self.received.0 == 0
            && !self.over
            && let Err(error) = self.poll()
        {
            self.lost(&error);
        }
        let mut lent = 0;
        while lent < BURST
            && self.received.0 > 0
            && let Some(request) = self.sent.pop_front()
        {
            self.received.0 -= 1;
            lent += 1;
            let _ = handle(&mut answer(&mut self.frame, request, Status::SUCCESS, 0, self.peer));
        }
        lent
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, fill: F) -> Result<(), PostError> {
        if self.over {
            return Err(PostError::Unreachable);
        }
        if self.sent.len() == self.depth {
            return Err(PostError::Full);
        }
        let len = fill(&mut self.frame);
        let header = RequestHeader::parse(FORM, &self.frame[..len]).map_err(|_| PostError::Full)?;
        self.sent.push_back(header.request_id);
        self.queued += 1;
        Ok(())
    }

    fn tx(&mut self) {
        if !self.over
            && let Err(error) = self.flush()
        {
            self.lost(&anyhow!(error));
        }
    }

    fn max_frame(&self) -> usize {
        self.frame.len()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}
