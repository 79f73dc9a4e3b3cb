//! The waist of byte streams: what a protocol on a connection is to the pump that moves its bytes.

use std::task::{Context, Poll};

use crate::Nanos;

/// The server's side of a protocol on one connection, without I/O.
///
/// It buffers no messages: a pump lends what was received and room for answers, for one call. What takes time, such as
/// an access to blocks, goes on between calls, and its answer comes when it has ended:
///
/// ```text
/// loop { session.advance(input, output, now)  ->  send what was written, then as Progress::next says:
///            Input       receive more, or wait for poll_completion
///            Output      lend more room, or wait for poll_completion
///            Completion  wait for poll_completion
///            Close       }
/// ```
pub trait Session {
    /// Serves the messages at the front of `input`, and writes to the front of `output`, as far as there is room.
    ///
    /// A message or an answer may be longer than either: a session that needs all of one in a piece asks for it by
    /// [`Next`], another one takes, or writes, a part at a time.
    fn advance(&mut self, input: &[u8], output: &mut [u8], now: Nanos) -> Progress;

    /// Whether the peer has said who it is, or what it wants.
    fn is_identified(&self) -> bool;

    /// Whether nothing is to be served any more, for a reason that did not come by the connection: close it. Asked
    /// several times a second.
    fn is_over(&mut self, now: Nanos) -> bool;

    /// Requests that were taken and are not answered yet. The buffers that were lent stay as long while there are any.
    fn outstanding(&self) -> usize {
        0
    }

    /// Ready where [`Session::advance`] has something to do though nothing was received; wakes its task otherwise.
    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = cx;
        Poll::Pending
    }
}

/// What one call of [`Session::advance`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes from the front of the input that are done with.
    pub consumed: usize,
    /// Bytes at the front of the output that are to be sent.
    pub written: usize,
    /// What it takes to go on.
    pub next: Next,
}

/// What a session waits for. All but the end may also be a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// So many bytes of input, counted from the first that was not consumed.
    Input(usize),
    /// An output of so many bytes: send what is there first.
    Output(usize),
    /// A completion, before more input is taken.
    Completion,
    /// Nothing more: send what was written and close.
    Close,
}
