//! A lease of a GPU's memory behind an engine, over each carrier of memory leases: any offset and any length.

mod common;

use std::{
    fmt::Debug,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use berth_lease::{BlockError, Op};
use berth_lease_io::{Answer, Gate, LeaseService, Served, Shim, Stream, TaskletLeases, TwoSided, answer};
use berth_port::Session as _;
use berth_tasklet::{
    capability::Capabilities,
    hostcall::{Kind as CallKind, code},
};
use berth_wire::fabric::data::{
    IoStatus,
    shim::{Fields, Header, Kind, Op as Message},
    stream::{self, Hello, Range, ReadResp, WriteResp},
    two_sided::{Opcode, Request, Status},
};
use common::*;
use zerocopy::IntoBytes;

const ROOM: usize = 9000;

/// Offsets and lengths: whole blocks of 512 bytes are of no account here.
const RANGES: [(u64, usize); 6] = [(0, 1), (3, 513), (511, 2), (1001, MAX_IO as usize), (4096, 4096), (LEN - 1, 1)];

/// What a carrier answers: what was read, or a status; `None` where it is silent.
type Answered = Result<Vec<u8>, Option<i64>>;

/// One access over a carrier. The engine ends it with the given result.
trait Carrier: Debug {
    fn access(&mut self, node: &Node, op: Op, offset: u64, data: &mut Vec<u8>, ends: Ends) -> Answered;

    /// How it says that the engine is busy, that it failed, and that the range leaves the lease.
    fn statuses(&self) -> [Option<i64>; 3] {
        [IoStatus::Busy, IoStatus::Internal, IoStatus::OutOfRange].map(|status| Some(status as i64))
    }
}

type Ends = Result<(), BlockError>;

/// Ends the access under way, if there is one.
fn land(node: &Node, ends: Ends) {
    let waiting = node.gpu.waiting.lock().unwrap().len();
    assert!(waiting <= 1);
    if waiting == 1 {
        node.gpu.land(ends);
    }
}

/// Waits for a future whose access the engine ends.
fn wait<T>(node: &Node, ends: Ends, future: impl Future<Output = T>) -> T {
    let (mut future, mut cx) = (pin!(future), Context::from_waker(Waker::noop()));
    if let Poll::Ready(over) = future.as_mut().poll(&mut cx) {
        return over;
    }
    assert_eq!(node.gpu.waiting.lock().unwrap().len(), 1);
    node.gpu.land(ends);
    let Poll::Ready(over) = future.poll(&mut cx) else { panic!("its access has ended") };
    over
}

fn datagram(op: Op, offset: u64, data: &[u8]) -> Vec<u8> {
    let (op, carried) = match op {
        Op::Read => (Message::Read, &[][..]),
        Op::Write => (Message::Write, data),
    };
    let (generation, lease_id, length) = (GENERATION, VRAM.0, data.len() as u32);
    let fields = Fields { kind: Kind::Memory, op, status: 0, request_id: 77, lease_id, generation, offset, length };
    let header = Header::new(&fields);
    let sum = crc32c::crc32c(&[header.as_bytes(), carried].concat());
    [header.with_crc(sum).as_bytes(), carried].concat()
}

fn answered(datagram: &[u8]) -> Answered {
    let fields = Header::parse(datagram).unwrap().fields().unwrap();
    let data = datagram[Header::LEN..].to_vec();
    assert_eq!(fields.length as usize, data.len());
    if fields.status == 0 { Ok(data) } else { Err(Some(fields.status.into())) }
}

/// FBMU on a polled port.
#[derive(Debug)]
struct PolledShim(LeaseService<Shim>);

impl Carrier for PolledShim {
    fn access(&mut self, node: &Node, op: Op, offset: u64, data: &mut Vec<u8>, ends: Ends) -> Answered {
        let mut line = Line::new(4, ROOM);
        line.ask(&datagram(op, offset, data));
        line.serve(&mut self.0);
        land(node, ends);
        line.serve(&mut self.0);
        let [answer] = &line.answers()[..] else { panic!("one answer") };
        answered(answer)
    }
}

/// FBMU on a socket of a task.
#[derive(Debug)]
struct TaskShim(Gate);

impl Carrier for TaskShim {
    fn access(&mut self, node: &Node, op: Op, offset: u64, data: &mut Vec<u8>, ends: Ends) -> Answered {
        let mut buf = datagram(op, offset, data);
        let len = buf.len();
        buf.resize(ROOM, 0);
        let later = match answer::<Shim>(&mut self.0, &mut buf, len, true, NOW) {
            Answer::Now(len) => return answered(&buf[..len]),
            Answer::Later(later) => later,
            Answer::Never => panic!("it is sound"),
        };
        let ended = wait(node, ends, later.start(&self.0, &buf, NOW).unwrap());
        let len = later.finish::<Shim>(&mut self.0, ended, &mut buf).unwrap();
        answered(&buf[..len])
    }
}

/// Two-sided messages.
#[derive(Debug)]
struct Messages(LeaseService<TwoSided>);

impl Carrier for Messages {
    fn access(&mut self, node: &Node, op: Op, offset: u64, data: &mut Vec<u8>, ends: Ends) -> Answered {
        let (opcode, carried) = match op {
            Op::Read => (Opcode::Read, &[][..]),
            Op::Write => (Opcode::Write, &data[..]),
        };
        let header = Request::new(opcode, key(VRAM).0, GENERATION, offset, data.len() as u64);
        let mut line = Line::new(4, ROOM);
        line.ask(&[header.as_bytes(), carried].concat());
        line.serve(&mut self.0);
        land(node, ends);
        line.serve(&mut self.0);
        match &line.answers()[..] {
            [] => Err(None),
            [answer] if answer[0] == 0 => Ok(answer[1..].to_vec()),
            [answer] => Err(Some(answer[0].into())),
            more => panic!("{more:?}"),
        }
    }

    fn statuses(&self) -> [Option<i64>; 3] {
        [None, None, Some(Status::OutOfRange as i64)]
    }
}

/// FBMT, over TCP or QUIC.
#[derive(Debug)]
struct Bytes(Stream);

impl Bytes {
    fn new(node: &Node) -> Self {
        let mut stream = Self(Stream::new(Kind::Memory, &node.table, &node.regions, Arc::default()));
        assert_eq!(stream.send(stream::Op::Hello, Hello::new(VRAM.0).as_bytes()).unwrap()[0], 0);
        stream
    }

    /// What it answers to a message, or by itself.
    fn send(&mut self, op: stream::Op, payload: &[u8]) -> Option<Vec<u8>> {
        let header = stream::Header::new(Kind::Memory, op, payload.len() as u32, 5);
        let mut output = vec![0; ROOM];
        let input = [header.as_bytes(), payload].concat();
        let written = self.0.advance(&input, &mut output, NOW).written;
        Self::payload(&output[..written])
    }

    fn payload(output: &[u8]) -> Option<Vec<u8>> {
        let header = stream::Header::parse(output)?;
        assert_eq!(output.len(), stream::Header::LEN + header.payload_len() as usize, "one answer");
        Some(output[stream::Header::LEN..].to_vec())
    }
}

impl Carrier for Bytes {
    fn access(&mut self, node: &Node, op: Op, offset: u64, data: &mut Vec<u8>, ends: Ends) -> Answered {
        let range = Range::new(offset, data.len() as u32);
        let now = match op {
            Op::Read => self.send(stream::Op::Read, range.as_bytes()),
            Op::Write => self.send(stream::Op::Write, &[range.as_bytes(), data].concat()),
        };
        let answer = now.unwrap_or_else(|| {
            land(node, ends);
            let mut output = vec![0; ROOM];
            let written = self.0.advance(&[], &mut output, NOW).written;
            Self::payload(&output[..written]).expect("it has ended")
        });
        match answer[0] {
            0 if op == Op::Read => Ok(answer[ReadResp::LEN..].to_vec()),
            0 => Ok(answer[WriteResp::LEN..].to_vec()),
            status => Err(Some(status.into())),
        }
    }
}

/// Hostcalls of a tasklet.
#[derive(Debug)]
struct Calls(TaskletLeases);

impl Carrier for Calls {
    fn access(&mut self, node: &Node, op: Op, offset: u64, data: &mut Vec<u8>, ends: Ends) -> Answered {
        let (kind, lease) = (CallKind::Memory, Some(VRAM.0));
        let done = match op {
            Op::Read => match self.0.read(kind, lease, offset, data, NOW) {
                Ok(Served::Blocks) => wait(node, ends, self.0.read_blocks(kind, lease, offset, data, NOW)),
                other => other.map(drop),
            },
            Op::Write => match self.0.write(kind, lease, offset, data, NOW) {
                Ok(Served::Blocks) => wait(node, ends, self.0.write_blocks(kind, lease, offset, data, NOW)),
                other => other.map(drop),
            },
        };
        done.map(|()| if op == Op::Read { data.clone() } else { Vec::new() }).map_err(Some)
    }

    fn statuses(&self) -> [Option<i64>; 3] {
        [code::BUSY, code::INTERNAL, code::OUT_OF_RANGE].map(Some)
    }
}

/// Each carrier on a node of its own.
fn carriers() -> Vec<(Node, Box<dyn Carrier>)> {
    type New = fn(&Node) -> Box<dyn Carrier>;
    let new: [New; 5] = [
        |node| Box::new(PolledShim(LeaseService::new(&node.table, &node.regions, 2))),
        |node| Box::new(TaskShim(Gate::new(&node.table, &node.regions))),
        |node| Box::new(Messages(LeaseService::new(&node.table, &node.regions, 2))),
        |node| Box::new(Bytes::new(node)),
        |node| {
            let mut capabilities = Capabilities::default();
            capabilities.allocated(VRAM.0, CallKind::Memory);
            Box::new(Calls(TaskletLeases::new(capabilities, Gate::new(&node.table, &node.regions))))
        },
    ];
    let on = |new: New| {
        let node = Node::new();
        let carrier = new(&node);
        (node, carrier)
    };
    new.map(on).into()
}

#[test]
fn any_range_is_written_and_read_back() {
    for (node, mut carrier) in carriers() {
        let mut model = original(0, LEN as usize);
        for (number, (offset, len)) in RANGES.into_iter().enumerate() {
            let range = offset as usize..offset as usize + len;
            let read = carrier.access(&node, Op::Read, offset, &mut vec![0; len], Ok(()));
            assert_eq!(read.unwrap(), model[range.clone()], "{carrier:?} at {offset}");
            let mut data: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
            model[range].copy_from_slice(&data);
            assert_eq!(carrier.access(&node, Op::Write, offset, &mut data, Ok(())), Ok(Vec::new()));
            let read = carrier.access(&node, Op::Read, offset, &mut vec![0; len], Ok(()));
            assert_eq!(read, Ok(data), "{carrier:?} at {offset}");
            assert_eq!(node.gpu.heap.bytes()[BASE as usize..][..LEN as usize], model, "{carrier:?} at {offset}");
        }
        assert!(node.canaries_live());
    }
}

#[test]
fn what_an_engine_does_not_do_is_a_status() {
    for (node, mut carrier) in carriers() {
        let [busy, failed, out_of_range] = carrier.statuses();
        for op in [Op::Read, Op::Write] {
            let mut access = |offset, ends| carrier.access(&node, op, offset, &mut vec![9; 513], ends);
            assert_eq!(access(3, Err(BlockError::Busy)), Err(busy));
            assert_eq!(access(3, Err(BlockError::Io(5))), Err(failed));
            assert_eq!(access(LEN - 512, Ok(())), Err(out_of_range));
            assert!(access(3, Ok(())).is_ok(), "{carrier:?} goes on");
        }
    }
}
