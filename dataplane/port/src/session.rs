//! The interface of byte streams: what a pump, which moves a connection's bytes, sees of the protocol on it.

use std::task::{Context, Poll};

use crate::Nanos;

/// The server's side of a protocol on one connection, without I/O.
///
/// It buffers no messages: for one call, a pump lends received bytes and room for answers. What takes time, such as
/// access to blocks, continues between calls, and its answer comes when it has ended:
///
/// ```text
/// loop { session.advance(input, output, now)  ->  send what was written, then as Progress::next says:
///            Input       receive more, or wait for poll_completion
///            Output      lend more room, or wait for poll_completion
///            Completion  wait for poll_completion
///            Close       }
/// ```
pub trait Session {
    /// Serves the messages at the front of `input`, and writes answers to the front of `output`, as far as there is
    /// room.
    ///
    /// A message or an answer may be longer than either. A session that needs all of it at once asks for that by
    /// [`Next`]; others take or write a part at a time.
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress;

    /// Whether the peer has identified itself, or has said what it wants.
    fn is_identified(&self) -> bool;

    /// Whether the connection must be closed for a reason that did not arrive on it. Called several times a second.
    fn is_over(&mut self, now: Nanos) -> bool;

    /// Number of requests taken and not answered yet. While there are any, the lent buffers must stay.
    fn outstanding(&self) -> usize {
        0
    }

    /// Whether the session is over at `now`, whatever is under way, for its peer sends nothing more. Asked several times a
    /// second from then on. Otherwise it is once all is answered.
    fn ends_with_input(&mut self, now: Nanos) -> bool {
        let _ = now;
        false
    }

    /// Ready if [`Session::advance`] has work although nothing was received; otherwise wakes its task later.
    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }
}

/// What one call of [`Session::advance`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input, from its front, that are no longer needed.
    pub consumed: usize,
    /// Bytes of the output, from its front, that are to be sent.
    pub written: usize,
    /// What the session needs to go on.
    pub next: Next,
}

/// What a session waits for. Except for `Close`, a completion may end the wait, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This many bytes of input, counted from the first that was not consumed.
    Input(usize),
    /// Room for this many bytes of output: send what is there first.
    Output(usize),
    /// A completion; more input is not taken before.
    Completion,
    /// Nothing: send what was written, then close.
    Close,
}
