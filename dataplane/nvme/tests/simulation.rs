//! Hosts, an engine that ends its operations in any order, and leases that end at any step: what was written is what is
//! read, and after the end was told no byte is touched.
//!
//! `BERTH_SIM_SEEDS` says how many seeds are run, `BERTH_SIM_SEED` runs a single one.

mod common;

use std::{
    collections::{BTreeMap, VecDeque},
    task::{Context, Waker},
    time::Duration,
};

use berth_lease::{BlockError, Entry, Generation, LeaseId, Quiescence, State};
use berth_nvme::{Limits, Unbound};
use berth_port::{Next, Session as _};
use berth_wire::nvme::{Sqe, Status, fabrics::property, io::Access, opcode};
use common::*;
use fastrand::Rng;

/// How many runs there are.
const SEEDS: u64 = 100;
/// Blocks of an area, in which at most one command is at a time.
const AREA: u64 = 64;
/// Areas of each queue.
const AREAS: u64 = 8;
/// Steps of one run.
const STEPS: u32 = 400;

#[derive(Debug, Clone)]
enum Work {
    Read,
    Write(Vec<u8>),
    Compare { same: bool },
    Zero,
    Flush,
}

#[derive(Debug, Clone)]
struct Command {
    work: Work,
    area: u64,
    slba: u64,
    len: usize,
    data: Vec<u8>,
}

/// One I/O queue of a host.
struct Lane {
    host: Host,
    lease: usize,
    first: u64,
    under_way: BTreeMap<u16, Command>,
    /// What the host has to send, of which a part is sent at a time.
    outbox: VecDeque<u8>,
    closed: bool,
}

/// How a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Revoked,
    Removed,
    Lost,
    Expired,
    Unbound,
    Disabled,
}

enum Told {
    Quiescence(Quiescence),
    Unbound(Unbound),
    Disabled,
}

struct Simulation {
    rng: Rng,
    node: Node,
    admins: Vec<Host>,
    lanes: Vec<Lane>,
    /// Each lease's bytes, as far as they are known.
    model: [Vec<Option<u8>>; 2],
    now: berth_port::Nanos,
    end: Option<(usize, End, Told)>,
    /// The lease whose end was told, and how often it had been touched by then.
    told: Option<(usize, u64, Vec<u8>)>,
    succeeded: u32,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let limits = Limits { longest: 32 << 10, ..Limits::default() };
        let node = Node::with(limits, rng.usize(4..32), memory(), blocks());
        let digests = rng.u8(0..4);
        let names = [node.memory.clone(), node.blocks.clone()];
        let (mut admins, mut lanes) = (Vec::new(), Vec::new());
        for (lease, name) in names.iter().enumerate() {
            let (admin, id) = Host::admin(&node.target, name, digests);
            admins.push(admin);
            for queue in 1..=2 {
                let mut host = Host::io(&node.target, name, id, queue, digests);
                host.cut = Cut { input: rng.usize(1..20_000), output: rng.usize(0..70_000) };
                let first = u64::from(queue - 1) * AREA * AREAS;
                lanes.push(Lane {
                    host,
                    lease,
                    first,
                    under_way: BTreeMap::new(),
                    outbox: VecDeque::new(),
                    closed: false,
                });
            }
        }
        let original: Vec<_> = original(0, LEN as usize).into_iter().map(Some).collect();
        let model = [original.clone(), original];
        Self { rng, node, admins, lanes, model, now: NOW, end: None, told: None, succeeded: 0 }
    }

    fn run(&mut self) {
        let (end_at, lease) = (self.rng.u32(0..STEPS), self.rng.usize(0..2));
        let ends = [End::Revoked, End::Removed, End::Lost, End::Expired, End::Unbound, End::Disabled];
        let end = ends[self.rng.usize(0..ends.len())];
        for step in 0..STEPS {
            if step == end_at {
                self.end(lease, end);
            }
            self.step();
            self.look();
        }
        for _ in 0..50_000 {
            let outboxes = self.lanes.iter().any(|lane| !lane.closed && !lane.outbox.is_empty());
            let ready = self.lanes.iter_mut().any(|lane| {
                let connection = &mut lane.host.connection;
                !lane.closed && connection.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready()
            });
            if !outboxes && !ready && self.node.disk.ops().is_empty() {
                break;
            }
            self.deliver();
            self.land();
            self.look();
        }
        assert!(self.told.is_some(), "an end that is never told");
        for lane in self.lanes.iter().filter(|lane| lane.lease != lease) {
            let left: Vec<_> = lane.under_way.keys().collect();
            assert!(!lane.closed && left.is_empty(), "the other lease goes on, but {left:?}");
        }
        for lane in &self.lanes {
            for command in lane.under_way.values() {
                self.model[lane.lease][command.slba as usize * 512..][..command.len].fill(None);
            }
        }
        for (lease, heap) in [&self.node.heap, &self.node.disk.heap].into_iter().enumerate() {
            let bytes = heap.bytes();
            for (at, known) in self.model[lease].iter().enumerate() {
                assert!(known.is_none_or(|known| bytes[BASE as usize + at] == known), "byte {at} of lease {lease}");
            }
        }
        assert!(self.node.canaries_live());
    }

    fn step(&mut self) {
        match self.rng.u32(0..10) {
            0..4 => self.begin(),
            4..7 => self.deliver(),
            7..9 => self.land(),
            _ => {
                self.now = self.now + Duration::from_millis(self.rng.u64(0..50));
                for lane in &mut self.lanes {
                    lane.host.now = self.now;
                    lane.closed |= lane.host.connection.outstanding() == 0 && lane.host.connection.is_over(self.now);
                }
                let over = self.end.as_ref().map(|(lease, ..)| *lease).or(self.told.as_ref().map(|told| told.0));
                for (lease, admin) in self.admins.iter_mut().enumerate() {
                    admin.now = self.now;
                    assert!(!admin.connection.is_over(self.now) || over == Some(lease));
                }
            }
        }
    }

    /// Has a host send a command.
    fn begin(&mut self) {
        let nth = self.rng.usize(0..self.lanes.len());
        let lane = &mut self.lanes[nth];
        let area = self.rng.u64(0..AREAS);
        if lane.closed || lane.under_way.values().any(|command| command.area == area) {
            return;
        }
        let blocks = self.rng.u64(1..=AREA);
        let slba = lane.first + area * AREA + self.rng.u64(0..=AREA - blocks);
        let len = blocks as usize * 512;
        let here = slba as usize * 512..slba as usize * 512 + len;
        let cid = lane.host.cid();
        let data = pattern(self.rng.u64(..), len);
        let (opcode, work, data) = match self.rng.u32(0..10) {
            0..4 => (opcode::io::READ, Work::Read, Vec::new()),
            4..7 => (opcode::io::WRITE, Work::Write(data.clone()), data),
            7 => {
                let known: Option<Vec<u8>> = self.model[lane.lease][here].iter().copied().collect();
                match known.filter(|_| self.rng.bool()) {
                    Some(known) => (opcode::io::COMPARE, Work::Compare { same: true }, known),
                    None => (opcode::io::COMPARE, Work::Compare { same: false }, data),
                }
            }
            8 => (opcode::io::WRITE_ZEROES, Work::Zero, Vec::new()),
            _ => (opcode::io::FLUSH, Work::Flush, Vec::new()),
        };
        let mut sqe = match opcode {
            _ if data.len() <= 8192 && !data.is_empty() && self.rng.bool() => in_capsule(opcode, cid, slba, len),
            opcode::io::FLUSH => Sqe::new(opcode, cid, 1),
            _ => rw(opcode, cid, slba, blocks as u32),
        };
        if opcode == opcode::io::WRITE {
            Access { slba, blocks: blocks as u32, fua: self.rng.bool(), deallocate: false }.put(&mut sqe);
        }
        let carried = if sqe.sgl.kind == berth_wire::nvme::Sgl::IN_CAPSULE { &data[..] } else { &[] };
        let pdu = lane.host.capsule(&sqe, carried);
        lane.outbox.extend(pdu);
        lane.under_way.insert(cid, Command { work, area, slba, len, data });
    }

    /// Sends a part of what a host has to send, and takes what is answered.
    fn deliver(&mut self) {
        let nth = self.rng.usize(0..self.lanes.len());
        let lane = &mut self.lanes[nth];
        if lane.closed {
            return;
        }
        let count = self.rng.usize(0..20_000).min(lane.outbox.len());
        let bytes: Vec<u8> = lane.outbox.drain(..count).collect();
        lane.host.say(&bytes);
        self.take(nth);
    }

    /// Ends an operation of the engine, and lets all connections go on.
    fn land(&mut self) {
        let count = self.node.disk.ops().len();
        if count > 0 {
            let result = if self.rng.u32(0..20) == 0 { Err(BlockError::Io(5)) } else { Ok(()) };
            self.node.disk.land(self.rng.usize(0..count), result);
        }
        for nth in 0..self.lanes.len() {
            if !self.lanes[nth].closed {
                self.lanes[nth].host.run();
                self.take(nth);
            }
        }
    }

    /// Takes what was answered on a queue.
    fn take(&mut self, nth: usize) {
        let lane = &mut self.lanes[nth];
        let mut data: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        while let Some(pdu) = lane.host.try_hear() {
            match pdu {
                Pdu::R2t { cid, ttag, offset, len } => {
                    let command = &lane.under_way[&cid];
                    let wanted = command.data[offset as usize..][..len as usize].to_vec();
                    let most = self.rng.usize(1..4000) * 4;
                    let mut at = 0;
                    for piece in wanted.chunks(most) {
                        let is_last = at + piece.len() == wanted.len();
                        lane.outbox.extend(lane.host.h2c_data(cid, ttag, offset + at as u32, piece, is_last));
                        at += piece.len();
                    }
                }
                Pdu::Data { cid, offset, data: piece, .. } => {
                    let all = data.entry(cid).or_default();
                    assert_eq!(all.len(), offset as usize);
                    all.extend(piece);
                    lane.under_way.get_mut(&cid).unwrap().data.clone_from(all);
                }
                Pdu::Response { cid, status, .. } => {
                    let command = lane.under_way.remove(&cid).expect("a command that was not answered yet");
                    let model = &mut self.model[lane.lease][command.slba as usize * 512..];
                    self.succeeded += u32::from(status.is_success());
                    let ended = self.end.is_some() || self.told.is_some();
                    settle(&command, status, model, ended);
                }
                other => panic!("{other:?}"),
            }
        }
        lane.closed |= lane.host.next == Next::Close;
    }

    /// Ends a lease, or its association.
    fn end(&mut self, lease: usize, end: End) {
        let (id, entry): (LeaseId, Entry) = if lease == 0 { (MEMORY, memory()) } else { (BLOCK, blocks()) };
        let told = match end {
            End::Unbound => Told::Unbound(self.node.target.unbind(id).unwrap()),
            End::Disabled => {
                self.admins[lease].set_property(property::CC, 0x0046_0000);
                Told::Disabled
            }
            _ => {
                match end {
                    End::Revoked => self.node.set(Entry { state: State::Revoked, ..entry }),
                    End::Lost => self.node.set(Entry { generation: Generation(8), ..entry }),
                    End::Expired => self.node.set(Entry { expires: self.now, ..entry }),
                    _ => assert!(self.node.writer.remove(id.key())),
                }
                Told::Quiescence(self.node.writer.quiescence())
            }
        };
        self.end = Some((lease, end, told));
    }

    /// Whether the end can be told, and that nothing is touched once it was. Connections that want to be closed are.
    fn look(&mut self) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.closed) {
            lane.host = Host::new(&self.node.target);
        }
        if let Some((lease, end, mut told)) = self.end.take() {
            let is_over = match &mut told {
                Told::Quiescence(quiescence) => quiescence.is_over(),
                Told::Unbound(unbound) => unbound.is_over(),
                Told::Disabled => self.admins[lease].property(property::CSTS) == 0,
            };
            if is_over {
                let heap = self.heap(lease);
                self.told = Some((lease, heap.accesses(), heap.bytes()));
            } else {
                self.end = Some((lease, end, told));
            }
        }
        if let Some((lease, accesses, bytes)) = &self.told {
            assert_eq!(self.heap(*lease).accesses(), *accesses, "touched after the end was told");
            assert!(*lease == 0 || self.node.disk.ops().is_empty(), "an operation on blocks after the end was told");
            debug_assert_eq!(&self.heap(*lease).bytes(), bytes);
        }
    }

    fn heap(&self, lease: usize) -> &Heap {
        if lease == 0 { &self.node.heap } else { &self.node.disk.heap }
    }
}

/// What a response says of the bytes from a command's first block on.
fn settle(command: &Command, status: Status, model: &mut [Option<u8>], ended: bool) {
    let known = |model: &[Option<u8>], len: usize| model[..len].iter().copied().collect::<Option<Vec<u8>>>();
    let expected = [Status::SUCCESS, Status::WRITE_FAULT, Status::UNRECOVERED_READ_ERROR, Status::COMPARE_FAILURE];
    let refusals = [Status::ACCESS_DENIED, Status::ANA_INACCESSIBLE, Status::retryable(0x008)];
    assert!(expected.contains(&status) || ended && refusals.contains(&status), "{status:?}");
    match (&command.work, status) {
        (Work::Read, Status::SUCCESS) => {
            for (read, known) in command.data.iter().zip(model) {
                assert!(known.is_none_or(|known| known == *read), "other bytes than were written");
            }
        }
        (Work::Write(data), Status::SUCCESS) => {
            model.iter_mut().zip(data).for_each(|(known, byte)| *known = Some(*byte));
        }
        (Work::Write(_), _) => model[..command.len].fill(None),
        (Work::Compare { same }, Status::SUCCESS) => {
            assert!(*same || known(model, command.data.len()).is_none_or(|known| known == command.data));
        }
        (Work::Compare { same }, Status::COMPARE_FAILURE) => assert!(!same),
        (Work::Zero, _) => model[..command.len].fill(status.is_success().then_some(0)),
        _ => {}
    }
}

#[test]
fn seeds() {
    let number = |name| std::env::var(name).ok().map(|value| value.parse().expect("a number"));
    let seeds = match number("BERTH_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BERTH_SIM_SEEDS").unwrap_or(SEEDS),
    };
    let mut succeeded = 0;
    for seed in seeds.clone() {
        println!("seed {seed}");
        let mut simulation = Simulation::new(seed);
        simulation.run();
        succeeded += simulation.succeeded;
    }
    assert!(succeeded > 20 * (seeds.end - seeds.start) as u32, "{succeeded} commands succeeded");
}
