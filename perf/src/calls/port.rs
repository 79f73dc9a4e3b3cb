//! Calls of HIP Remote as a port: a request of the run is a call or a batch of them, and its answer a status.

use std::{collections::VecDeque, net::SocketAddr, rc::Rc, sync::Arc};

use anyhow::{Context as _, ensure};
use berth_port::{BURST, Frame, Peer, Port, PostError, Verdict};
use berth_ports::PortUser;
use berth_tls::stream::ClientConfig;
use berth_wire::{
    hip::{
        Header, Op, flags,
        request::{self as q, kind},
    },
    rpc::{HeaderForm, RequestHeader, ResponseHeader},
};
use zerocopy::IntoBytes as _;

use super::{READ_BACK, wire::Wire};
use crate::args::hip::HipOp;

/// The form of frames' headers.
const FORM: HeaderForm = HeaderForm::V16;

/// The status of an answer that is not what it has to be.
const WRONG: i32 = -1;

/// After so many bytes what copies carry repeats. They stay in a CPU's caches, as iperf3's do: what is compared is not
/// read from memory once more. A prime, so that a piece from elsewhere is wrong.
const PERIOD: usize = 65_521;

/// A kernel that does nothing.
const EMPTY: &[u8] = b".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry empty() {\nret;\n}\n";

/// What is called, and whom.
#[derive(Debug, Clone)]
pub(crate) struct Calls {
    pub(crate) address: SocketAddr,
    /// Settings of TLS, where calls go through it.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The server is a baseline.
    pub(crate) echo: bool,
    pub(crate) op: HipOp,
    /// Bytes of a copy or a set.
    pub(crate) size: u32,
    /// Calls without a reply in a request; 1 for operations that are answered.
    pub(crate) batch: u32,
    /// Requests under way at most.
    pub(crate) window: u32,
    /// Sessions beside it that are connected and idle.
    pub(crate) idle_sessions: u32,
}

impl Calls {
    /// Connects on the calling thread, and hands the port to `user`.
    pub(crate) fn open(&self, longest: usize, user: impl PortUser) -> anyhow::Result<()> {
        user.run(HipPort::open(self, longest)?, self.address.into());
        Ok(())
    }
}

/// What a request sends, and what comes back.
#[derive(Debug)]
struct Ask {
    pieces: Vec<Rc<[u8]>>,
    /// Answers, of which the last may have data.
    answers: Rc<[Answer]>,
}

#[derive(Debug)]
struct Answer {
    op: Op,
    data: Option<Data>,
}

/// `len` bytes that consist of `block`, over and over.
#[derive(Debug, Clone)]
struct Data {
    block: Rc<[u8]>,
    len: usize,
}

impl Data {
    fn random(len: usize) -> Self {
        let mut block = vec![0; len.min(PERIOD)];
        fastrand::Rng::with_seed(len as u64).fill(&mut block);
        Self { block: block.into(), len }
    }

    /// Its pieces in order, to be sent.
    fn pieces(&self) -> impl Iterator<Item = Rc<[u8]>> {
        let last = self.len.checked_rem(self.block.len()).unwrap_or(0);
        let whole = std::iter::repeat_n(self.block.clone(), self.len.checked_div(self.block.len()).unwrap_or(0));
        whole.chain((last > 0).then(|| self.block[..last].into()))
    }

    /// Whether these are its bytes from `at` on.
    fn has(&self, mut at: usize, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let expected = &self.block[at % self.block.len()..];
            let (now, later) = bytes.split_at(bytes.len().min(expected.len()));
            if *now != expected[..now.len()] {
                return false;
            }
            at += now.len();
            bytes = later;
        }
        true
    }
}

/// A request under way: its number, what of its answers came, and its status so far.
#[derive(Debug)]
struct Sent {
    request: u32,
    answers: Rc<[Answer]>,
    at: usize,
    status: i32,
}

#[derive(Debug)]
struct HipPort {
    wire: Wire,
    /// Sessions that do nothing.
    _idle: Vec<Wire>,
    call: Ask,
    read_back: Ask,
    sent: VecDeque<Sent>,
    /// Bytes of data of the first answer that are to come.
    data_left: usize,
    done: VecDeque<(u32, i32)>,
    window: usize,
    frame: Vec<u8>,
    peer: Peer,
    local: SocketAddr,
    over: bool,
}

/// A request with its structure and `data` bytes behind it.
fn message(op: Op, payload: &[u8], data: usize, flags: u32) -> Vec<u8> {
    let header = Header::request(op, 1, (payload.len() + data) as u64, flags);
    [header.as_bytes(), payload].concat()
}

fn memcpy(dst: u64, src: u64, size: usize, kind: i32) -> q::Memcpy {
    q::Memcpy { dst: dst.into(), src: src.into(), size: (size as u64).into(), kind: kind.into(), stream: 0.into() }
}

impl HipPort {
    fn open(calls: &Calls, longest: usize) -> anyhow::Result<Self> {
        let Calls { address, echo, op, size, batch, window, idle_sessions, .. } = *calls;
        let connect = || Wire::connect(address, calls.tls.as_ref(), echo);
        let idle = (0..idle_sessions).map(|_| connect()).collect::<anyhow::Result<_>>()?;
        let mut wire = connect()?;
        let (size, batch) = (size as usize, batch as usize);
        // What the memory holds in the end: of each set its number, of a copy any bytes.
        let len = if op == HipOp::Memset { size * batch } else { size };
        let value_of = |place: usize| (place / size) as u8 | 1;
        let memory = match op {
            HipOp::Memset => Data { block: (0..len).map(value_of).collect(), len },
            _ => Data::random(len),
        };
        let mut at = 0;
        if len > 0 && !echo {
            let request = q::Malloc { size: (len as u64).into(), flags: 0.into() };
            at = long(&wire.call(Op::Malloc, request.as_bytes())?)?;
        }
        let answer = |op| Answer { op, data: None };
        let status = |op| -> Rc<[Answer]> { Rc::new([answer(op)]) };
        let to_host = message(Op::Memcpy, memcpy(0, at, len, kind::DEVICE_TO_HOST).as_bytes(), 0, 0);
        let read: Rc<[Answer]> = Rc::new([Answer { op: Op::Memcpy, data: Some(memory.clone()) }]);
        let request = memcpy(at, 0, len, kind::HOST_TO_DEVICE);
        let to_device = message(Op::Memcpy, request.as_bytes(), len, flags::HAS_INLINE_DATA);
        let read_back = Ask { pieces: vec![to_host.clone().into()], answers: read.clone() };
        let call = match op {
            HipOp::Ping => Ask { pieces: vec![message(Op::Ping, &[], 0, 0).into()], answers: status(Op::Ping) },
            HipOp::Memset => {
                let mut bytes = Vec::new();
                for nth in 0..batch {
                    let place = nth * size;
                    let request = q::Memset {
                        dst: (at + place as u64).into(),
                        value: i32::from(value_of(place)).into(),
                        size: (size as u64).into(),
                        stream: 0.into(),
                    };
                    bytes.extend(message(Op::Memset, request.as_bytes(), 0, flags::NO_REPLY));
                }
                bytes.extend(message(Op::DeviceSynchronize, &[], 0, 0));
                Ask { pieces: vec![bytes.into()], answers: status(Op::DeviceSynchronize) }
            }
            HipOp::Launch | HipOp::LaunchSync => {
                let is_told = op == HipOp::LaunchSync;
                let function = if echo { 1 } else { empty_kernel(&mut wire)? };
                let one = [1.into(); 3];
                let request = q::Launch { function: function.into(), grid: one, block: one, ..q::Launch::zeroed() };
                let flags = if is_told { 0 } else { flags::NO_REPLY };
                let mut bytes = message(Op::LaunchKernel, request.as_bytes(), 0, flags).repeat(batch);
                bytes.extend(message(Op::DeviceSynchronize, &[], 0, 0));
                let answers: Rc<[Answer]> = if is_told {
                    Rc::new([answer(Op::LaunchKernel), answer(Op::DeviceSynchronize)])
                } else {
                    status(Op::DeviceSynchronize)
                };
                Ask { pieces: vec![bytes.into()], answers }
            }
            HipOp::H2d => Ask {
                pieces: std::iter::once(to_device.into()).chain(memory.pieces()).collect(),
                answers: status(Op::Memcpy),
            },
            HipOp::D2h => Ask { pieces: vec![to_host.into()], answers: read },
        };
        let local = wire.local_addr()?;
        wire.poll()?;
        let mut port = Self {
            wire,
            _idle: idle,
            call,
            read_back,
            sent: VecDeque::with_capacity(window as usize),
            data_left: 0,
            done: VecDeque::with_capacity(window as usize),
            window: window as usize,
            frame: vec![0; longest.max(FORM.len())],
            peer: address.into(),
            local,
            over: false,
        };
        if op == HipOp::D2h && !echo {
            port.fill(&memory, at)?;
        }
        Ok(port)
    }

    /// Has the device's memory hold what is read from it.
    fn fill(&mut self, memory: &Data, at: u64) -> anyhow::Result<()> {
        let answers: Rc<[Answer]> = Rc::new([Answer { op: Op::Memcpy, data: None }]);
        let request = memcpy(at, 0, memory.len, kind::HOST_TO_DEVICE);
        let head = message(Op::Memcpy, request.as_bytes(), memory.len, flags::HAS_INLINE_DATA);
        self.wire.send(&head.into());
        memory.pieces().for_each(|piece| self.wire.send(&piece));
        self.sent.push_back(Sent { request: 0, answers, at: 0, status: 0 });
        loop {
            self.poll()?;
            if let Some((_, status)) = self.done.pop_front() {
                ensure!(status == 0, "a copy to the device failed with {status}");
                return Ok(());
            }
        }
    }

    fn poll(&mut self) -> anyhow::Result<()> {
        self.wire.flush()?;
        let (sent, done, data_left) = (&mut self.sent, &mut self.done, &mut self.data_left);
        self.wire.receive(|input| {
            let mut taken = 0;
            while let Some(first) = sent.front_mut() {
                let input = &input[taken..];
                let expected = &first.answers[first.at];
                if *data_left > 0 {
                    let data = expected.data.as_ref().context("data that nobody asked for")?;
                    let len = input.len().min(*data_left);
                    if !data.has(data.len - *data_left, &input[..len]) {
                        first.status = WRONG;
                    }
                    taken += len;
                    *data_left -= len;
                    if *data_left > 0 {
                        break;
                    }
                } else {
                    let Some((header, payload)) = Header::parse(input).zip(input.get(Header::LEN..)) else { break };
                    let Some(code) = payload.first_chunk::<4>() else { break };
                    let code = i32::from_le_bytes(*code);
                    let len = expected.data.as_ref().filter(|_| code == 0).map_or(0, |data| data.len);
                    let is_whole = header.payload_length.get() == 4 + len as u64;
                    let is_answer = header.check(u64::MAX).is_ok() && header.op_code.get() == expected.op as u16;
                    ensure!(
                        is_answer && is_whole && header.request_id.get() == 1,
                        "an answer to nothing that was asked"
                    );
                    first.status = if first.status == 0 { code } else { first.status };
                    taken += Header::LEN + 4;
                    *data_left = len;
                    if len > 0 {
                        continue;
                    }
                }
                first.at += 1;
                if first.at == first.answers.len()
                    && let Some(Sent { request, status, .. }) = sent.pop_front()
                {
                    done.push_back((request, status));
                }
            }
            ensure!(!sent.is_empty() || taken == input.len(), "more answers than requests");
            Ok(taken)
        })
    }

    fn lost(&mut self, error: &anyhow::Error) {
        eprintln!("the connection: {error:#}");
        self.over = true;
    }
}

/// The pointer or handle that is an answer.
fn long(answer: &[u8]) -> anyhow::Result<u64> {
    answer.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).context("an answer that is too short")
}

fn empty_kernel(wire: &mut Wire) -> anyhow::Result<u64> {
    let request = q::ModuleLoad { data_size: (EMPTY.len() as u64).into() };
    let module = long(&wire.call(Op::ModuleLoadData, &[request.as_bytes(), EMPTY].concat())?)?;
    let mut name = [0; 256];
    name[..5].copy_from_slice(b"empty");
    let request = q::ModuleGetFunction { module: module.into() };
    long(&wire.call(Op::ModuleGetFunction, &[request.as_bytes(), &name].concat())?)
}

impl Port for HipPort {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        if self.done.is_empty()
            && !self.over
            && let Err(error) = self.poll()
        {
            self.lost(&error);
        }
        let mut lent = 0;
        while lent < BURST
            && let Some((request, status)) = self.done.pop_front()
        {
            lent += 1;
            let response = ResponseHeader { request_id: request, status, result_len: 0, ptp_timestamp: 0 };
            let len = response.write(FORM, &mut self.frame).expect("there is room for a header");
            let _ = handle(&mut Frame::new(&mut self.frame, len, len, self.peer));
        }
        lent
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, fill: F) -> Result<(), PostError> {
        if self.over {
            return Err(PostError::Unreachable);
        }
        if self.sent.len() == self.window {
            return Err(PostError::Full);
        }
        let len = fill(&mut self.frame);
        let header = RequestHeader::parse(FORM, &self.frame[..len]).map_err(|_| PostError::Full)?;
        let ask = if header.function_id == READ_BACK { &self.read_back } else { &self.call };
        ask.pieces.iter().for_each(|piece| self.wire.send(piece));
        self.sent.push_back(Sent { request: header.request_id, answers: ask.answers.clone(), at: 0, status: 0 });
        Ok(())
    }

    fn tx(&mut self) {
        if !self.over
            && let Err(error) = self.wire.flush()
        {
            self.lost(&error.into());
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
