//! Moves bytes between a connection and its session, on threads that sleep.

use std::{future::poll_fn, hash::Hash, io, pin::pin, sync::Arc, time::Duration};

use berth_port::{Nanos, Next, Progress, Session};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    select,
    time::{Instant, Interval, interval},
};

use crate::{Place, Shares};

/// Bytes per read, and size to which answers are gathered. A connection without a place among the long ones has no more
/// than this each way.
const CHUNK: usize = 64 << 10;

/// Limit on connections whose message or answer is longer than that, or which have more bytes under way; in all, and
/// per peer.
pub const LONG: (usize, usize) = (256, 64);

/// Interval at which a connection checks whether its session is over: a lease's must close within a second of its end.
/// A connection that is silent for that long keeps no buffers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Time limit for a peer to complete a message that it has begun, and to take its answers from the socket.
const SLOWEST: Duration = Duration::from_secs(30);

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer has identified itself: continue with [`Pump::serve`].
    Identified,
    /// The connection has ended, properly or not.
    Closed,
    /// The peer sent or took nothing for too long.
    TimedOut,
}

/// The bytes that a connection has under way. They take no memory before something arrives, and grow with what arrives.
#[derive(Debug)]
pub struct Pump<K: Eq + Hash + Ord + Clone> {
    peer: K,
    input: Vec<u8>,
    /// Range of the input that was received and not consumed.
    held: std::ops::Range<usize>,
    /// The last bytes that were received took all the room there was.
    filled: bool,
    /// When the message in `held` began; `None` if nothing is held.
    begun: Option<Instant>,
    /// The peer sends nothing more.
    finished: bool,
    output: Vec<u8>,
    shares: Arc<Shares<K>>,
    /// The place for buffers longer than [`CHUNK`].
    long: Option<Place<K>>,
    /// Whether something was begun since it got that place.
    is_used: bool,
}

/// The deadlines of a run.
struct Times<'a, N> {
    now: &'a N,
    ticks: Interval,
    /// When a peer with nothing under way must have sent more.
    deadline: Option<Instant>,
}

impl<K: Eq + Hash + Ord + Clone> Pump<K> {
    /// For a connection of `peer`; `shares` are the places for long messages.
    pub fn new(peer: K, shares: Arc<Shares<K>>) -> Self {
        Self {
            peer,
            input: Vec::new(),
            held: 0..0,
            filled: false,
            begun: None,
            finished: false,
            output: Vec::new(),
            shares,
            long: None,
            is_used: false,
        }
    }

    /// Serves `session` until its peer has identified itself. The peer may be silent until `deadline`.
    pub async fn identify<S: Session>(
        &mut self,
        session: &mut S,
        ends: (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
        now: &impl Fn() -> Nanos,
        deadline: Option<Instant>,
    ) -> io::Result<End> {
        self.run(session, ends, now, deadline, S::is_identified).await
    }

    /// Serves `session` to its end. The peer may be silent until `deadline`.
    pub async fn serve(
        &mut self,
        session: &mut impl Session,
        ends: (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
        now: &impl Fn() -> Nanos,
        deadline: Option<Instant>,
    ) -> io::Result<End> {
        self.run(session, ends, now, deadline, |_| false).await
    }

    /// Bytes that were received and not served, for the code that continues with the connection.
    pub fn received(&self) -> &[u8] {
        &self.input[self.held.clone()]
    }

    async fn run<S: Session>(
        &mut self,
        session: &mut S,
        (reader, writer): (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
        now: &impl Fn() -> Nanos,
        deadline: Option<Instant>,
        until: impl Fn(&S) -> bool,
    ) -> io::Result<End> {
        let mut times = Times { now, ticks: interval(LOOK_EVERY), deadline };
        loop {
            // A place that others wait for serves what was begun with it, and no more.
            let wanted = self.is_used && self.shares.is_wanted();
            let yields = wanted && session.outstanding() > 0;
            if wanted && !yields && self.held.len() <= CHUNK {
                self.shrink(CHUNK);
            }
            let input = if yields { &[] } else { &self.input[self.held.clone()] };
            let Progress { consumed, written, next } = session.advance(input, &mut self.output, now());
            self.held.start += consumed;
            if consumed > 0 || self.held.is_empty() {
                self.begun = None;
            }
            self.is_used |= consumed > 0 && self.long.is_some();
            let mut sent = 0;
            while sent < written {
                let patience = Some(Instant::now() + SLOWEST);
                match times.watched(session, patience, false, writer.write(&self.output[sent..written])).await {
                    Ok(wrote) => sent += wrote.transpose()?.unwrap_or_default(),
                    Err(end) => return Ok(end),
                }
            }
            if until(session) {
                return Ok(End::Identified);
            }
            let waited = match next {
                Next::Close => return Ok(End::Closed),
                Next::Output(wanted) => self.grow(wanted, session, &mut times).await,
                Next::Input(wanted) if !yields => self.receive(wanted, session, reader, &mut times).await?,
                Next::Input(_) if session.outstanding() == 0 => Ok(()),
                Next::Input(_) | Next::Completion => {
                    poll_fn(|cx| session.poll_completion(cx)).await;
                    Ok(())
                }
            };
            if let Err(end) = waited {
                return Ok(end);
            }
        }
    }

    /// Makes the output as long as required, unless a completion comes first.
    async fn grow(
        &mut self,
        wanted: usize,
        session: &mut impl Session,
        times: &mut Times<'_, impl Fn() -> Nanos>,
    ) -> Result<(), End> {
        if self.enter(wanted, session, None, times).await? {
            let more = (2 * self.output.len()).min(CHUNK);
            self.output.resize(wanted.max(more).max(self.output.len()), 0);
        }
        Ok(())
    }

    /// Receives the next part of a message of `wanted` bytes, unless a completion comes first.
    async fn receive(
        &mut self,
        wanted: usize,
        session: &mut impl Session,
        reader: &mut (impl AsyncRead + Unpin),
        times: &mut Times<'_, impl Fn() -> Nanos>,
    ) -> io::Result<Result<(), End>> {
        if !self.held.is_empty() {
            let begun = *self.begun.get_or_insert_with(Instant::now);
            // A place is for what has come, not for what is announced.
            let len = wanted.min(self.held.len() + 1);
            match self.enter(len, session, Some(begun + SLOWEST), times).await {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(())),
                Err(end) => return Ok(Err(end)),
            }
        }
        loop {
            if self.finished && (session.outstanding() == 0 || session.ends_with_input((times.now)())) {
                return Ok(Err(End::Closed));
            }
            self.make_room(wanted);
            select! {
                read = reader.read(&mut self.input[self.held.end..]), if !self.finished => match read? {
                    0 => self.finished = true,
                    read => {
                        self.held.end += read;
                        self.filled = self.held.end == self.input.len();
                        return Ok(Ok(()));
                    }
                },
                () = poll_fn(|cx| session.poll_completion(cx)) => return Ok(Ok(())),
                _ = times.ticks.tick() => {
                    let idle = session.outstanding() == 0;
                    if idle && session.is_over((times.now)()) {
                        return Ok(Err(End::Closed));
                    }
                    let deadline = times.deadline.filter(|_| idle);
                    let late = deadline.into_iter().chain(self.begun.filter(|_| idle).map(|begun| begun + SLOWEST)).min();
                    if late.is_some_and(|late| Instant::now() > late) {
                        return Ok(Err(End::TimedOut));
                    }
                    if idle && self.held.is_empty() {
                        self.shrink(0);
                    }
                }
            }
        }
    }

    /// Waits for the place that a buffer of this length needs; false if a completion comes first.
    async fn enter(
        &mut self,
        len: usize,
        session: &mut impl Session,
        patience: Option<Instant>,
        times: &mut Times<'_, impl Fn() -> Nanos>,
    ) -> Result<bool, End> {
        if len > CHUNK && self.long.is_none() {
            let place = self.shares.enter(self.peer.clone());
            self.long = times.watched(session, patience, true, place).await?;
        }
        Ok(len <= CHUNK || self.long.is_some())
    }

    /// Makes room for the next part of a message of `wanted` bytes. If the input is full, or was when it was received into
    /// last, quadruples it.
    fn make_room(&mut self, wanted: usize) {
        self.compact();
        let len = self.input.len();
        if self.held.len() == len || self.filled && len < CHUNK {
            let most = if self.long.is_some() { wanted.max(CHUNK) } else { CHUNK };
            self.input.resize((4 * len).max(64).min(most).max(len + 1), 0);
        }
    }

    /// Moves the held bytes to the front.
    fn compact(&mut self) {
        if self.held.start > 0 {
            self.input.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
    }

    /// Cuts the buffers to the held bytes, but not below `most`, and gives back the place for long ones.
    fn shrink(&mut self, most: usize) {
        self.compact();
        for (buffer, held) in [(&mut self.input, self.held.len()), (&mut self.output, 0)] {
            buffer.truncate(most.max(held));
            buffer.shrink_to_fit();
        }
        (self.long, self.is_used) = (None, false);
    }
}

impl<N: Fn() -> Nanos> Times<'_, N> {
    /// The result of `event`; `None` if a completion that is waited for comes first. Fails with the connection's end if
    /// the session is over, or `patience` has passed, before.
    async fn watched<T>(
        &mut self,
        session: &mut impl Session,
        patience: Option<Instant>,
        completions: bool,
        event: impl Future<Output = T>,
    ) -> Result<Option<T>, End> {
        let mut event = pin!(event);
        loop {
            select! {
                happened = &mut event => return Ok(Some(happened)),
                () = poll_fn(|cx| session.poll_completion(cx)), if completions => return Ok(None),
                _ = self.ticks.tick() => {
                    // What is under way is answered first, where somebody waits for that.
                    if (!completions || session.outstanding() == 0) && session.is_over((self.now)()) {
                        return Err(End::Closed);
                    }
                    if patience.is_some_and(|patience| Instant::now() > patience) {
                        return Err(End::TimedOut);
                    }
                }
            }
        }
    }
}
