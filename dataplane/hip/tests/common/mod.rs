//! A session between random splits of its bytes, on a software GPU that takes its time.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use berth_hip_session::{
    Done, Random, Session,
    soft::{Gpu, Runner, Soft, Task},
};
use berth_port::{Nanos, Next, Progress, Session as _};
use berth_wire::hip::{Header, Op, flags, request as q};
use fastrand::Rng;
use zerocopy::IntoBytes as _;

/// Ends each task after some polls.
pub(crate) struct Slow {
    polls: u32,
    task: Option<(u32, Task)>,
    /// Counts what it is given.
    tasks: Arc<AtomicU32>,
}

impl Slow {
    pub(crate) fn new(polls: u32, tasks: Arc<AtomicU32>) -> Self {
        Self { polls, task: None, tasks }
    }
}

impl Runner for Slow {
    fn start(&mut self, task: Task) {
        assert!(self.task.is_none(), "one task at a time");
        self.tasks.fetch_add(1, Relaxed);
        self.task = Some((self.polls, task));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<(Box<Gpu>, Done)> {
        match self.task.take() {
            Some((0, mut task)) => {
                let done = task.run(&mut || 0);
                Poll::Ready((task.into_gpu(), done))
            }
            Some((left, task)) => {
                self.task = Some((left - 1, task));
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

/// Numbers from a seed.
pub(crate) fn random(seed: u64) -> Random {
    let rng = Mutex::new(Rng::with_seed(seed ^ 0x5EED));
    Arc::new(move || rng.lock().unwrap().u64(..))
}

/// An answer: its code, and what follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) body: Vec<u8>,
}

/// A connection to a session.
pub(crate) struct Line {
    pub(crate) session: Session<Soft<Slow>>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Requests that are answered, in order: op and id.
    asked: Vec<(u16, u32)>,
    next: u32,
    rng: Rng,
    now: Nanos,
    pub(crate) closed: bool,
}

impl Line {
    pub(crate) fn new(session: Session<Soft<Slow>>, seed: u64) -> Self {
        let rng = Rng::with_seed(seed);
        let (input, output, asked) = (Vec::new(), Vec::new(), Vec::new());
        Self { session, input, output, asked, next: 1, rng, now: Nanos(1), closed: false }
    }

    pub(crate) fn send(&mut self, op: Op, payload: &[u8], flags: u32) {
        self.send_code(op as u16, payload, flags);
    }

    pub(crate) fn send_code(&mut self, op: u16, payload: &[u8], flags: u32) {
        self.next += 1;
        let mut header = Header::request(Op::Ping, self.next, payload.len() as u64, flags);
        header.op_code = op.into();
        self.input.extend_from_slice(header.as_bytes());
        self.input.extend_from_slice(payload);
        if flags & flags::NO_REPLY == 0 {
            self.asked.push((op, self.next));
        }
    }

    /// Gives the session all that was sent, until it has taken it; what it took each time.
    pub(crate) fn by_turns(&mut self) -> Vec<usize> {
        let mut taken = Vec::new();
        while !self.input.is_empty() {
            let mut output = vec![0; 4096];
            let Progress { consumed, written, .. } = self.session.advance(&self.input, &mut output, self.now);
            self.input.drain(..consumed);
            self.output.extend_from_slice(&output[..written]);
            taken.push(consumed);
            assert!(taken.len() < 1000, "it takes nothing more");
            let _ = self.session.poll_completion(&mut Context::from_waker(Waker::noop()));
        }
        taken
    }

    /// Lets the session go on with a random part of what was sent, and random room.
    pub(crate) fn some(&mut self) {
        let mut given = self.rng.usize(0..=self.input.len());
        let mut room = [700, 700, 4096, 70_000][self.rng.usize(0..4)];
        for _ in 0..6 {
            let mut output = vec![0; room];
            self.now.0 += 1000;
            let Progress { consumed, written, next } =
                self.session.advance(&self.input[..given], &mut output, self.now);
            assert!(consumed <= given && written <= room);
            self.input.drain(..consumed);
            given -= consumed;
            self.output.extend_from_slice(&output[..written]);
            match next {
                Next::Close => {
                    self.closed = true;
                    return;
                }
                Next::Output(wanted) => room = wanted.max(room),
                Next::Completion => {
                    let _ = self.session.poll_completion(&mut Context::from_waker(Waker::noop()));
                }
                Next::Input(wanted) => {
                    assert!(wanted > given, "it asks for what it has");
                    let _ = self.session.poll_completion(&mut Context::from_waker(Waker::noop()));
                    given = (given + self.rng.usize(0..200)).min(self.input.len());
                }
            }
        }
    }

    /// So many answers; everything that was sent is taken.
    pub(crate) fn answers(&mut self, count: usize) -> Vec<Answer> {
        assert_eq!(count, self.asked.len());
        let mut rounds = 0;
        while !self.input.is_empty() || self.whole() < count || self.session.outstanding() > 0 {
            self.some();
            rounds += 1;
            assert!(rounds < 100_000, "it does not go on");
        }
        let mut answers = Vec::new();
        for (op, id) in std::mem::take(&mut self.asked) {
            let header = *Header::parse(&self.output).unwrap();
            assert_eq!(header.check(u64::MAX), Ok(()));
            assert_eq!((header.op_code.get(), header.request_id.get()), (op, id));
            let end = Header::LEN + header.payload_length.get() as usize;
            let payload: Vec<_> = self.output.drain(..end).skip(Header::LEN).collect();
            let code = i32::from_le_bytes(payload[..4].try_into().unwrap());
            assert!(header.has(flags::RESPONSE));
            assert_eq!(header.has(flags::ERROR), code != 0);
            answers.push(Answer { code, body: payload[4..].to_vec() });
        }
        assert!(self.output.is_empty(), "an answer that nobody asked for");
        answers
    }

    /// Whole answers in the output.
    fn whole(&self) -> usize {
        let (mut rest, mut count) = (&self.output[..], 0);
        while let Some(header) = Header::parse(rest)
            && let Some(behind) = rest.get(Header::LEN + header.payload_length.get() as usize..)
        {
            (rest, count) = (behind, count + 1);
        }
        count
    }
}

pub(crate) fn handle(handle: u64) -> q::Handle {
    q::Handle { handle: handle.into() }
}

pub(crate) fn memcpy(dst: u64, src: u64, size: usize, kind: i32) -> q::Memcpy {
    let size = size as u64;
    q::Memcpy { dst: dst.into(), src: src.into(), size: size.into(), kind: kind.into(), stream: 0.into() }
}

pub(crate) fn memcpy_2d(
    (dst, dpitch): (u64, usize),
    (src, spitch): (u64, usize),
    (width, height): (usize, usize),
    kind: i32,
) -> q::Memcpy2d {
    q::Memcpy2d {
        dst: dst.into(),
        dpitch: (dpitch as u64).into(),
        src: src.into(),
        spitch: (spitch as u64).into(),
        width: (width as u64).into(),
        height: (height as u64).into(),
        kind: kind.into(),
        ..q::Memcpy2d::zeroed()
    }
}
