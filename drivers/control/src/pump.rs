//! Moves bytes between a socket and the state machine of FBMT and FBBT.

use std::{io, time::Duration};

use berth_lease_io::{Progress, Step, Stream};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, interval},
};

use crate::clock::Clock;

/// Bytes that are read at once, and the size that answers are gathered to.
const CHUNK: usize = 64 << 10;

/// How often a connection looks whether its lease is over: it must close within a second of that.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a peer may leave its answers in the socket.
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

/// The bytes that one connection has under way. They take no memory before something arrives.
#[derive(Debug, Default)]
pub(crate) struct Pump {
    input: Vec<u8>,
    /// What of the input was received and not consumed.
    held: std::ops::Range<usize>,
    output: Vec<u8>,
}

impl Pump {
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
            let mut sent = 0;
            let mut patience = Instant::now() + SLOWEST;
            while sent < written {
                tokio::select! {
                    wrote = writer.write(&self.output[sent..written]) => {
                        sent += wrote?;
                        patience = Instant::now() + SLOWEST;
                    }
                    _ = ticks.tick() => {
                        if stream.is_over(clock.mono()) {
                            return Ok(End::Closed);
                        }
                        if Instant::now() > patience {
                            return Ok(End::TimedOut);
                        }
                    }
                }
            }
            if until(stream) {
                return Ok(End::Reached);
            }
            match step {
                Step::Close => return Ok(End::Closed),
                Step::Output(room) => self.output.resize(room.max(self.output.len()), 0),
                Step::Blocks(access) => stream.landed(access.await),
                Step::Input(wanted) => {
                    self.make_room(wanted);
                    let read = loop {
                        tokio::select! {
                            read = reader.read(&mut self.input[self.held.end..]) => break read?,
                            _ = ticks.tick() => {
                                if stream.is_over(clock.mono()) {
                                    return Ok(End::Closed);
                                }
                                if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                                    return Ok(End::TimedOut);
                                }
                            }
                        }
                    };
                    if read == 0 {
                        return Ok(End::Closed);
                    }
                    self.held.end += read;
                    if self.output.is_empty() {
                        self.output.resize(CHUNK, 0);
                    }
                }
            }
        }
    }

    /// Makes the input long enough for a message of `wanted` bytes, and for at least one byte more than there are.
    fn make_room(&mut self, wanted: usize) {
        self.input.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
        let least = if self.input.is_empty() { 64 } else { CHUNK };
        self.input.resize(wanted.max(self.held.end + 1).max(least).max(self.input.len()), 0);
    }
}
