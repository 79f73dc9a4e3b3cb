//! Our own initiator, and its connections to a target.

use std::time::Duration;

use berth_nvme::{
    Connection, Limits,
    host::{Command, Controller, Data, Names, Queue, Settings, User},
};
use berth_port::{Nanos, Next, Progress, Session as _};
use berth_wire::nvme::{Sqe, Status, fabrics::Nqn, io::Access, opcode};

use super::*;

pub fn settings(digests: u8) -> Settings {
    Settings {
        header_digest: digests & 1 != 0,
        data_digest: digests & 2 != 0,
        keep_alive: Duration::from_secs(2),
        timeout: Duration::from_secs(1),
    }
}

pub fn names(subsystem: &str, host: &str) -> Names {
    let field = |name: &str| Nqn::new(name.as_bytes()).unwrap();
    Names { subsystem: field(subsystem), host: field(host), host_id: HOST_ID }
}

/// Commands that remember what they read and how they ended.
#[derive(Default)]
pub struct Mine {
    /// By number: what is written, or what was read.
    pub data: Vec<Vec<u8>>,
    pub ended: Vec<(usize, Status)>,
}

impl User for Mine {
    fn data(&mut self, command: usize, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.data[command][offset..offset + to.len()]);
    }

    fn received(&mut self, command: usize, offset: usize, bytes: &[u8]) {
        assert_eq!(self.data[command].len(), offset, "data comes in order");
        self.data[command].extend_from_slice(bytes);
    }

    fn ended(&mut self, command: usize, status: Status, _: u64) {
        self.ended.push((command, status));
    }
}

/// What a host has on one connection.
pub enum End {
    Admin(Box<Controller>),
    Io(Box<Queue>, Mine),
}

impl End {
    pub fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress {
        match self {
            Self::Admin(controller) => controller.advance(input, output, now),
            Self::Io(queue, mine) => queue.advance(input, output, mine),
        }
    }
}

/// A connection, its bytes on their way in pieces of these sizes.
pub struct Line {
    pub host: End,
    pub target: Connection,
    pub to_target: Vec<u8>,
    pub to_host: Vec<u8>,
    /// How many of those the other side has been shown.
    pub shown: [usize; 2],
    pub piece: usize,
    pub now: Nanos,
}

impl Line {
    pub fn new(node: &Node, host: End, piece: usize) -> Self {
        let target = Connection::new(&node.target, "192.0.2.1:4420".parse().unwrap());
        Self { host, target, to_target: Vec::new(), to_host: Vec::new(), shown: [0, 0], piece, now: NOW }
    }

    /// Moves a piece each way; whether anything happened.
    pub fn step(&mut self) -> bool {
        let mut output = vec![0; Queue::OUTPUT.max(self.piece)];
        let shown = (self.shown[0] + self.piece).min(self.to_host.len());
        let from_host = self.host.advance(&self.to_host[..shown], &mut output, self.now);
        self.to_host.drain(..from_host.consumed);
        self.to_target.extend_from_slice(&output[..from_host.written]);
        let grew = shown > self.shown[0];
        self.shown[0] = shown - from_host.consumed;
        let mut output = vec![0; self.piece];
        let shown = (self.shown[1] + self.piece).min(self.to_target.len());
        let mut from_target = self.target.advance(&self.to_target[..shown], &mut output, self.now);
        if let (Next::Output(wanted), 0) = (from_target.next, from_target.written) {
            output.resize(wanted, 0);
            let rest = &self.to_target[from_target.consumed..shown];
            let again = self.target.advance(rest, &mut output, self.now);
            from_target.consumed += again.consumed;
            from_target.written = again.written;
        }
        self.to_target.drain(..from_target.consumed);
        self.to_host.extend_from_slice(&output[..from_target.written]);
        let grew = grew || shown > self.shown[1];
        self.shown[1] = shown - from_target.consumed;
        grew || [from_host, from_target].iter().any(|side| side.written + side.consumed > 0)
    }

    pub fn run(&mut self) {
        while self.step() {}
    }

    pub fn admin(node: &Node, nqn: &str, digests: u8, piece: usize) -> Self {
        let controller = Controller::new(settings(digests), names(nqn, HOST), 2, NOW);
        let mut line = Self::new(node, End::Admin(Box::new(controller)), piece);
        line.run();
        line
    }

    pub fn controller(&mut self) -> &mut Controller {
        let End::Admin(controller) = &mut self.host else { panic!("no admin queue") };
        controller
    }

    pub fn io(node: &Node, admin: &mut Self, number: u16, depth: u16, piece: usize) -> Self {
        let queue = admin.controller().queue(number, depth, NOW);
        let mut mine = Mine::default();
        mine.data.resize(depth.into(), Vec::new());
        let mut line = Self::new(node, End::Io(Box::new(queue), mine), piece);
        line.run();
        let (queue, _) = line.queue();
        assert!(queue.joined().is_some(), "{:?}", queue.error());
        line
    }

    pub fn queue(&mut self) -> (&mut Queue, &mut Mine) {
        let End::Io(queue, mine) = &mut self.host else { panic!("no I/O queue") };
        (queue, mine)
    }

    pub fn read(&mut self, slba: u64, blocks: u32) -> Option<usize> {
        let (queue, mine) = self.queue();
        let number =
            queue.submit(Command { sqe: access(opcode::io::READ, slba, blocks), data: Data::In(blocks * 512) }, NOW)?;
        mine.data[number].clear();
        Some(number)
    }

    pub fn write(&mut self, slba: u64, data: Vec<u8>) -> Option<usize> {
        let (queue, mine) = self.queue();
        let sqe = access(opcode::io::WRITE, slba, data.len() as u32 / 512);
        let number = queue.submit(Command { sqe, data: Data::Out(data.len() as u32) }, NOW)?;
        mine.data[number] = data;
        Some(number)
    }

    /// The one command that has ended.
    pub fn ended(&mut self) -> (usize, Status) {
        let (_, mine) = self.queue();
        let [ended] = mine.ended[..] else { panic!("{:?}", mine.ended) };
        mine.ended.clear();
        ended
    }
}

pub fn access(opcode: u8, slba: u64, blocks: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode, 0, 1);
    Access { slba, blocks, fua: false, deallocate: false }.put(&mut sqe);
    sqe
}

/// A node whose commands bring 8 KiB with them, at most.
pub fn node() -> Node {
    Node::with(Limits { in_capsule: 8192, ..Limits::default() }, CHUNKS, memory(), blocks())
}
