//! Byte streams on a poll core: the connections of one port, with a receive and a send of each in one ring.

use std::{
    net::{Shutdown, TcpStream},
    ops::Range,
    os::fd::{AsRawFd as _, RawFd},
    sync::atomic::{Ordering::SeqCst, fence},
    task::{Context, Waker},
    time::Duration,
};

use berth_port::{BURST, Nanos, Next, Now, Part, Progress, Session, Task, Work};
use io_uring::{
    IoUring, opcode,
    squeue::{self, SubmissionQueue},
    types::Fd,
};

use crate::{Handover, LOCAL_MOST, RING_ERRORS, UringError, local::Lending, setup};

/// How often each connection is looked at: whether its session is over, and whether its peer keeps time.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a peer may take for a message once it has begun, and leave its answers in the socket.
const SLOWEST: Duration = Duration::from_secs(30);

/// How long a peer may go on sending once its connection was closed. A socket with input that nobody took is reset, and
/// the last bytes to the peer with it.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// Bytes of a page, or more: processors that have larger ones keep what they cannot give back.
const PAGE: usize = 4096;

/// A connection that a poll core serves. Housekeeping threads make it and drop it.
pub struct Connection<S> {
    socket: TcpStream,
    session: S,
    input: Box<[u8]>,
    /// What of the input was received and not consumed. Nobody touches what is behind it while the kernel receives there.
    held: Range<usize>,
    receiving: bool,
    output: Box<[u8]>,
    /// What the kernel is to send; the output is nobody else's while there is any.
    sending: Range<usize>,
    /// When the message began of which something is held.
    begun: Option<Nanos>,
    /// When the bytes in `sending` were written; [`SLOWEST`] later the peer is cut off.
    written: Nanos,
    memory: Memory,
    /// The peer says nothing more.
    finished: bool,
    end: End,
    /// Dropped when the connection is over and back on a housekeeping thread.
    _token: Box<dyn Send>,
}

/// What is known of the pages of a connection's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Used,
    /// Not since the connection was looked at.
    Idle,
    GivenBack,
}

/// Stages of closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is served.
    NotYet,
    /// As soon as all is sent.
    Closing,
    /// Our direction was shut down then; what comes since is thrown away.
    Shut(Nanos),
    /// Both directions are.
    Aborted,
}

impl<S: std::fmt::Debug> std::fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?}, {:?})", self.socket, self.session)
    }
}

impl<S> Connection<S> {
    /// Of a peer that has said `received` already, where each message and answer is at most `longest` bytes; `token` is
    /// dropped with it. The socket blocks.
    pub fn new(socket: TcpStream, session: S, received: &[u8], longest: usize, token: impl Send + 'static) -> Self {
        let mut input = vec![0; longest.max(received.len())].into_boxed_slice();
        input[..received.len()].copy_from_slice(received);
        Self {
            socket,
            session,
            input,
            held: 0..received.len(),
            receiving: false,
            output: vec![0; longest].into(),
            sending: 0..0,
            begun: None,
            written: Nanos::default(),
            memory: Memory::Used,
            finished: false,
            end: End::NotYet,
            _token: Box::new(token),
        }
    }

    /// Closes it once all is sent, where that is so.
    fn close_if(&mut self, over: bool) {
        if over {
            self.end = End::Closing;
        }
    }

    /// Gives back the memory of its buffers. Nothing is held, nothing is sent, and the kernel receives only when the ring
    /// is entered.
    fn shrink(&mut self) {
        self.memory = Memory::GivenBack;
        for buffer in [&mut self.input, &mut self.output] {
            let ends = buffer.as_mut_ptr_range();
            let first = ends.start.map_addr(|at| at.next_multiple_of(PAGE));
            let len = (ends.end.addr() & !(PAGE - 1)).saturating_sub(first.addr());
            if len > 0 {
                // SAFETY: whole pages of a buffer that is nobody else's: they read as zeros from then on.
                unsafe { libc::madvise(first.cast(), len, libc::MADV_DONTNEED) };
            }
        }
    }

    /// Ends what the kernel does for it.
    fn abort(&mut self) {
        self.end = End::Aborted;
        // It may be over already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

type Arrival<S> = Box<dyn FnMut(&mut S)>;

/// The connections of one port, as a task. Stays on the thread that made it.
///
/// Counters: `connections` (taken over), `connections_timed_out` (whose peer took too long) and `ring_errors` (failed
/// calls to enter the ring).
pub struct UringStreams<S: Session> {
    ring: IoUring,
    /// Operations that sessions start in this ring, such as accesses to blocks.
    local: Lending,
    from: Handover<S>,
    /// Sees each connection that is taken over.
    arrival: Option<Arrival<S>>,
    /// What completes is announced by the hand-over's descriptor, for the core sleeps.
    announced: bool,
    connections: Vec<Option<Box<Connection<S>>>>,
    free: Vec<usize>,
    /// Those whose sessions have something under way.
    waiting: Vec<usize>,
    /// Which connection is looked at next, and when.
    look: (usize, Nanos),
    counters: Counters,
}

berth_port::counters! {
    pub(crate) struct Counters {
        connections: "connections that a poll core has taken over",
        connections_timed_out: "those whose peer took too long for a message or an answer",
        ring_errors: RING_ERRORS,
    }
}

impl<S: Session> UringStreams<S> {
    /// Serves what comes by `from`, at most `most` connections at once.
    pub fn new(from: Handover<S>, most: usize) -> Result<Self, UringError> {
        // A receive and a send of each, and what their sessions start.
        let ring = setup::ring((2 * most + LOCAL_MOST).next_power_of_two() as u32)?;
        setup::keep_workers_away(&ring);
        // With `DEFER_TASKRUN` what arrives does not make the ring readable until it is entered; this is signalled at once.
        let failed = |source| UringError::Io { what: "registering an eventfd with a ring", source };
        ring.submitter().register_eventfd(from.wake.fd()).map_err(failed)?;
        Ok(Self {
            ring,
            local: Lending::new(),
            from,
            arrival: None,
            announced: true,
            connections: std::iter::repeat_with(|| None).take(most).collect(),
            free: (0..most).rev().collect(),
            waiting: Vec::with_capacity(most),
            look: (0, Nanos::default()),
            counters: Counters::default(),
        })
    }

    /// Has `f` see the session of each connection that is taken over, once, before it is served here.
    #[must_use]
    pub fn on_arrival(mut self, f: impl FnMut(&mut S) + 'static) -> Self {
        self.arrival = Some(Box::new(f));
        self
    }

    /// Takes over what came by the mailbox.
    fn take(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while !self.from.mailbox.is_empty()
            && let Some(&at) = self.free.last()
            && let Some(mut connection) = self.from.mailbox.take()
        {
            if let Some(arrival) = &mut self.arrival {
                arrival(&mut connection.session);
            }
            self.free.pop();
            self.connections[at] = Some(connection);
            self.counters.connections += 1;
            taken += 1;
            self.serve(at, now);
        }
        taken
    }

    /// Serves what was received, as far as there is room for answers, and has the kernel send and receive.
    fn serve(&mut self, at: usize, now: Nanos) {
        let Some(connection) = &mut self.connections[at] else { return };
        let c = &mut **connection;
        if c.end == End::NotYet && c.sending.is_empty() {
            let input = &c.input[c.held.clone()];
            let Progress { consumed, written, next } = c.session.advance(input, &mut c.output, now);
            c.held.start += consumed;
            if consumed > 0 {
                c.begun = None;
            }
            let waits = c.session.outstanding() > 0;
            if waits && !self.waiting.contains(&at) {
                self.waiting.push(at);
            }
            (c.sending, c.written) = (0..written, now);
            let mut receives = false;
            match next {
                Next::Close => c.close_if(true),
                // An answer that is longer than the whole output.
                Next::Output(_) => c.close_if(written == 0 && !waits),
                Next::Input(_) if c.finished => {
                    let over = !waits || c.session.ends_with_input(now);
                    c.close_if(over && written == 0);
                }
                Next::Input(_) if !c.receiving => {
                    c.input.copy_within(c.held.clone(), 0);
                    c.held = 0..c.held.len();
                    if !c.held.is_empty() {
                        c.begun.get_or_insert(now);
                    }
                    // A message that is longer than the whole input.
                    c.close_if(c.held.len() == c.input.len());
                    receives = c.end == End::NotYet;
                }
                Next::Input(_) | Next::Completion => {}
            }
            if written > 0 {
                self.send(at);
            }
            // After the answer: the kernel looks in vain at first, where the peer waits for it.
            if receives {
                self.receive(at);
            }
        }
        self.release(at, now);
    }

    /// Has the kernel receive behind what is held.
    fn receive(&mut self, at: usize) {
        let Some(c) = &mut self.connections[at] else { return };
        c.receiving = true;
        let room = &mut c.input[c.held.end..];
        let receive = opcode::Recv::new(Fd(c.socket.as_raw_fd()), room.as_mut_ptr(), room.len() as u32);
        let entry = receive.build().user_data(2 * at as u64);
        self.push(&entry);
    }

    /// Has the kernel send what is to be sent.
    fn send(&mut self, at: usize) {
        let Some(c) = &self.connections[at] else { return };
        let bytes = &c.output[c.sending.clone()];
        let send = opcode::Send::new(Fd(c.socket.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32);
        let entry = send.flags(libc::MSG_NOSIGNAL).build().user_data(2 * at as u64 + 1);
        self.push(&entry);
    }

    fn push(&mut self, entry: &squeue::Entry) {
        push(&mut self.ring.submission(), entry);
    }

    /// Gives a connection that is over back, once its peer has closed it too or is late, and the kernel has let go of it.
    fn release(&mut self, at: usize, now: Nanos) {
        let Some(c) = &mut self.connections[at] else { return };
        if c.end == End::NotYet || !c.sending.is_empty() {
            return;
        }
        if c.end == End::Closing && !c.finished {
            // It may be over already.
            let _ = c.socket.shutdown(Shutdown::Write);
            (c.end, c.held) = (End::Shut(now), 0..0);
            if !c.receiving {
                self.receive(at);
            }
            return;
        }
        if c.receiving {
            return;
        }
        if let Some(connection) = self.connections[at].take() {
            self.waiting.retain(|waiting| *waiting != at);
            self.free.push(at);
            self.from.mailbox.give_back(connection);
        }
    }

    /// The kernel has received or sent, or failed to.
    fn completed(&mut self, user_data: u64, result: i32, now: Nanos, work: &mut Work) {
        let (at, is_send) = ((user_data / 2) as usize, user_data % 2 == 1);
        let Some(c) = &mut self.connections[at] else { return };
        let bytes = usize::try_from(result).unwrap_or(0);
        c.memory = Memory::Used;
        if is_send {
            c.sending.start += bytes;
            if bytes == 0 {
                c.sending = 0..0;
                c.abort();
            } else if !c.sending.is_empty() {
                return self.send(at);
            }
            work.replied += 1;
        } else {
            c.receiving = false;
            c.finished |= result == 0;
            if matches!(c.end, End::Shut(_)) && bytes > 0 {
                return self.receive(at);
            }
            c.held.end += bytes;
            if result < 0 {
                c.abort();
            }
            work.received += 1;
        }
        self.serve(at, now);
    }

    /// Looks at the connections for which it is time; after a sleep that may be all.
    fn look(&mut self, now: Nanos) {
        let pause = LOOK_EVERY / self.connections.len() as u32;
        for _ in 0..self.connections.len() {
            let (at, when) = self.look;
            if now < when {
                return;
            }
            // Of what was missed, one round is made up for.
            let when = when.max(Nanos(now.0.saturating_sub(LOOK_EVERY.as_nanos() as u64)));
            self.look = ((at + 1) % self.connections.len(), when + pause);
            self.look_at(at, now);
        }
    }

    /// Looks at one connection: whether its session is over, whether its peer keeps time.
    fn look_at(&mut self, at: usize, now: Nanos) {
        let Some(c) = &mut self.connections[at] else { return };
        let slow = |since: Nanos| now > since + SLOWEST;
        if c.sending.is_empty() && c.held.is_empty() {
            match c.memory {
                Memory::Used => c.memory = Memory::Idle,
                Memory::Idle => c.shrink(),
                Memory::GivenBack => {}
            }
        }
        let late = c.begun.is_some_and(slow) || !c.sending.is_empty() && slow(c.written);
        self.counters.connections_timed_out += u64::from(late && c.end == End::NotYet);
        let lingers = matches!(c.end, End::Shut(since) if now > since + LINGER);
        let ended = c.finished && c.end == End::NotYet && c.session.outstanding() > 0 && c.session.ends_with_input(now);
        if late || lingers || ended || c.session.outstanding() == 0 && c.session.is_over(now) {
            c.abort();
            self.release(at, now);
        } else if c.end == End::NotYet && c.session.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            // Something to say though nothing was asked, such as an event.
            self.serve(at, now);
        }
    }

    /// Submits what is queued, and lets the kernel complete what is due.
    fn enter(&mut self) {
        let mut queue = self.ring.submission();
        self.local.take(|entry| push(&mut queue, entry));
        let idle = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        if !idle && self.ring.submit().is_err_and(|e| e.kind() != std::io::ErrorKind::Interrupted) {
            // What was not submitted stays queued.
            self.counters.ring_errors += 1;
        }
    }
}

fn push(queue: &mut SubmissionQueue<'_>, entry: &squeue::Entry) {
    // SAFETY: a request's pointers lead into the input or the output of a connection that stays in `connections`, and
    // leaves that buffer alone, until the request has completed; or whoever started it keeps what they lead to.
    unsafe { queue.push(entry) }.expect("the queue has room for all requests there can be");
}

impl<S: Session> Task for UringStreams<S> {
    fn turn(&mut self, now: Now, receive: bool, _: bool) -> Work {
        let now = now.mono;
        let mut work = Work { polls: 1, began: now, ..Work::default() };
        if std::mem::take(&mut self.announced) {
            self.ring.completion().disable_eventfd();
            self.from.wake.clear();
        }
        if receive {
            work.received += self.take(now) as u64;
        }
        self.enter();
        for _ in 0..BURST {
            let Some(completion) = self.ring.completion().next() else { break };
            if self.local.completed(completion.user_data(), completion.result()) {
                work.received += 1;
            } else {
                self.completed(completion.user_data(), completion.result(), now, &mut work);
            }
        }
        let mut next = 0;
        while let Some(&at) = self.waiting.get(next) {
            let Some(c) = &mut self.connections[at] else { break };
            let ended = c.session.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready();
            if c.session.outstanding() == 0 {
                self.waiting.swap_remove(next);
            } else {
                next += 1;
            }
            if ended {
                self.serve(at, now);
            }
        }
        self.look(now);
        self.enter();
        work
    }

    fn rest(&mut self) -> bool {
        self.announced = true;
        // What sessions wait for elsewhere than in the ring wakes a core that sleeps.
        let waker = Waker::from(self.from.wake.clone());
        for &at in &self.waiting {
            let Some(c) = &mut self.connections[at] else { continue };
            if c.session.poll_completion(&mut Context::from_waker(&waker)).is_ready() {
                return false;
            }
        }
        let completions = self.ring.completion();
        completions.enable_eventfd();
        // Pairs with the kernel, which says that there is something to do and then looks whether to announce it.
        fence(SeqCst);
        let is_empty = completions.is_empty();
        drop(completions);
        is_empty && !self.ring.submission().taskrun()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.from.wake.fd())
    }

    fn outstanding(&self) -> usize {
        self.connections.iter().flatten().filter(|c| !c.sending.is_empty() || c.session.outstanding() > 0).count()
    }

    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        if part == Part::Port {
            self.counters.report(visit);
        }
    }
}

impl<S: Session> Drop for UringStreams<S> {
    fn drop(&mut self) {
        let mut left = 0;
        for c in self.connections.iter_mut().flatten() {
            c.abort();
            left += usize::from(c.receiving) + usize::from(!c.sending.is_empty());
        }
        Lending::close();
        self.local.take(|entry| push(&mut self.ring.submission(), entry));
        while left + self.local.under_way() > 0 {
            if self.ring.submit_and_wait(1).is_err_and(|e| e.kind() != std::io::ErrorKind::Interrupted) {
                // The kernel may still use the buffers.
                return std::mem::forget(std::mem::take(&mut self.connections));
            }
            while let Some(completion) = self.ring.completion().next() {
                left -= usize::from(!self.local.completed(completion.user_data(), completion.result()));
            }
        }
    }
}
