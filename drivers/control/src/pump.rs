//! Moves bytes between a socket and the state machine of FBMT and FBBT.

use std::{hash::Hash, io, pin::pin, sync::Arc, time::Duration};

use berth_lease_io::{Progress, Step, Stream};
use berth_stream::{Place, Shares};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    select,
    time::{Instant, Interval, interval},
};

use crate::clock::Clock;

/// Bytes that are read at once, and the size that answers are gathered to: all that a connection has of each without a
/// place among the long ones.
const CHUNK: usize = 64 << 10;

/// Connections at once whose message or answer is longer than that, up to 1 MiB each way; and of one peer.
pub(crate) const LONG: (usize, usize) = (256, 64);

/// How often a connection looks whether its lease is over: it must close within a second of that. One that says nothing
/// for so long keeps no buffers.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a peer may take for a message once it has begun, and leave its answers in the socket.
const SLOWEST: Duration = Duration::from_secs(30);

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// What `until` asked for has happened: go on with another run.
    Reached,
    /// The connection is over, in good order or not.
    Closed,
    /// The peer said or took nothing for too long.
    TimedOut,
}

/// The bytes that one connection has under way. They take no memory before something arrives, and grow as it arrives.
#[derive(Debug)]
pub(crate) struct Pump<K: Eq + Hash + Ord + Clone> {
    pub(crate) peer: K,
    input: Vec<u8>,
    /// What of the input was received and not consumed.
    held: std::ops::Range<usize>,
    /// When the message began of which something is held.
    begun: Option<Instant>,
    output: Vec<u8>,
    shares: Arc<Shares<K>>,
    /// The place for buffers that are longer than [`CHUNK`].
    long: Option<Place<K>>,
}

impl<K: Eq + Hash + Ord + Clone> Pump<K> {
    /// For a connection of `peer`, which shares the places for long messages.
    pub(crate) fn new(peer: K, shares: Arc<Shares<K>>) -> Self {
        Self { peer, input: Vec::new(), held: 0..0, begun: None, output: Vec::new(), shares, long: None }
    }

    /// Serves `stream` until it closes, `until` holds, or `deadline` has passed.
    pub(crate) async fn run(
        &mut self,
        stream: &mut Stream,
        (reader, writer): (&mut (impl AsyncRead + Unpin), &mut (impl AsyncWrite + Unpin)),
        clock: &Clock,
        deadline: Option<Instant>,
        until: impl Fn(&Stream) -> bool,
    ) -> io::Result<End> {
        let mut ticks = interval(LOOK_EVERY);
        loop {
            let Progress { consumed, written, step } =
                stream.advance(&self.input[self.held.clone()], &mut self.output, clock.mono());
            self.held.start += consumed;
            if consumed > 0 || self.held.is_empty() {
                self.begun = None;
            }
            let mut sent = 0;
            while sent < written {
                let patience = Some(Instant::now() + SLOWEST);
                let wrote = writer.write(&self.output[sent..written]);
                match watched(stream, clock, &mut ticks, patience, wrote).await {
                    Ok(wrote) => sent += wrote?,
                    Err(end) => return Ok(end),
                }
            }
            if until(stream) {
                return Ok(End::Reached);
            }
            match step {
                Step::Close => return Ok(End::Closed),
                Step::Output(room) => {
                    if let Err(end) = self.enter(room, stream, clock, None, &mut ticks).await {
                        return Ok(end);
                    }
                    let more = (2 * self.output.len()).min(CHUNK);
                    self.output.resize(room.max(more).max(self.output.len()), 0);
                }
                Step::Blocks(access) => stream.landed(access.await),
                Step::Input(wanted) => {
                    if wanted <= CHUNK && self.long.is_some() && self.shares.is_wanted() {
                        self.shrink(CHUNK);
                    }
                    match self.read(wanted, stream, reader, clock, (deadline, &mut ticks)).await? {
                        Ok(0) => return Ok(End::Closed),
                        Ok(read) => self.held.end += read,
                        Err(end) => return Ok(end),
                    }
                }
            }
        }
    }

    /// Reads what comes next of a message of `wanted` bytes; returns how much that is.
    async fn read(
        &mut self,
        wanted: usize,
        stream: &mut Stream,
        reader: &mut (impl AsyncRead + Unpin),
        clock: &Clock,
        (deadline, ticks): (Option<Instant>, &mut Interval),
    ) -> io::Result<Result<usize, End>> {
        if !self.held.is_empty() {
            let begun = *self.begun.get_or_insert_with(Instant::now);
            // A place is for what has come, not for what is announced.
            let len = wanted.min(self.held.len() + 1);
            if let Err(end) = self.enter(len, stream, clock, Some(begun + SLOWEST), ticks).await {
                return Ok(Err(end));
            }
        }
        loop {
            self.make_room(wanted);
            select! {
                read = reader.read(&mut self.input[self.held.end..]) => return read.map(Ok),
                _ = ticks.tick() => {
                    if stream.is_over(clock.mono()) {
                        return Ok(Err(End::Closed));
                    }
                    let late = deadline.into_iter().chain(self.begun.map(|begun| begun + SLOWEST)).min();
                    if late.is_some_and(|late| Instant::now() > late) {
                        return Ok(Err(End::TimedOut));
                    }
                    if self.held.is_empty() {
                        self.shrink(0);
                    }
                }
            }
        }
    }

    /// Waits for the place that a buffer of so many bytes needs.
    async fn enter(
        &mut self,
        len: usize,
        stream: &mut Stream,
        clock: &Clock,
        patience: Option<Instant>,
        ticks: &mut Interval,
    ) -> Result<(), End> {
        if len > CHUNK && self.long.is_none() {
            let place = self.shares.enter(self.peer.clone());
            self.long = Some(watched(stream, clock, ticks, patience, place).await?);
        }
        Ok(())
    }

    /// Makes room for what comes next of a message of `wanted` bytes; where the input is full, four times as much.
    fn make_room(&mut self, wanted: usize) {
        self.compact();
        let len = self.input.len();
        if self.held.len() == len {
            let most = if self.long.is_some() { wanted.max(CHUNK) } else { CHUNK };
            self.input.resize((4 * len).max(64).min(most).max(len + 1), 0);
        }
    }

    /// Moves what is held to the front.
    fn compact(&mut self) {
        if self.held.start > 0 {
            self.input.copy_within(self.held.clone(), 0);
            self.held = 0..self.held.len();
        }
    }

    /// Cuts the buffers to what is held, and at least `most` where they are longer, and gives the place back.
    fn shrink(&mut self, most: usize) {
        self.compact();
        for (buffer, held) in [(&mut self.input, self.held.len()), (&mut self.output, 0)] {
            buffer.truncate(most.max(held));
            buffer.shrink_to_fit();
        }
        self.long = None;
    }
}

/// What `event` comes to; how the connection ends where its lease is over, or `patience` has passed, before.
async fn watched<T>(
    stream: &mut Stream,
    clock: &Clock,
    ticks: &mut Interval,
    patience: Option<Instant>,
    event: impl Future<Output = T>,
) -> Result<T, End> {
    let mut event = pin!(event);
    loop {
        select! {
            happened = &mut event => return Ok(happened),
            _ = ticks.tick() => {
                if stream.is_over(clock.mono()) {
                    return Err(End::Closed);
                }
                if patience.is_some_and(|patience| Instant::now() > patience) {
                    return Err(End::TimedOut);
                }
            }
        }
    }
}
