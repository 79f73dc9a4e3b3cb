//! A socket that is polled, and the bytes on their way.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    ops::Range,
    time::Duration,
};

use berth_nvme::host::Queue;
use berth_port::{Next, Progress};

/// Bytes that are received, or sent, at once.
const ROOM: usize = 256 << 10;

const _: () = assert!(Queue::INPUT <= ROOM && Queue::OUTPUT <= ROOM);

/// How long a connection may take to come up.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A connection over TCP.
#[derive(Debug)]
pub(super) struct Wire {
    socket: TcpStream,
    input: Box<[u8]>,
    /// Of which these were received and are not done with.
    held: Range<usize>,
    output: Box<[u8]>,
    /// Of which these are to be sent.
    sending: Range<usize>,
}

impl Wire {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let buffer = || vec![0; ROOM].into_boxed_slice();
        Ok(Self { socket, input: buffer(), held: 0..0, output: buffer(), sending: 0..0 })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Receives what is there; whether there was something.
    pub(super) fn receive(&mut self) -> io::Result<bool> {
        match self.socket.read(&mut self.input[self.held.end..]) {
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the server has closed the connection")),
            Ok(bytes) => {
                self.held.end += bytes;
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has `advance` take what was received and write what is to be sent, as far as there is room; whether it goes on.
    pub(super) fn advance(&mut self, mut advance: impl FnMut(&[u8], &mut [u8]) -> Progress) -> io::Result<bool> {
        loop {
            let to = &mut self.output[self.sending.end..];
            let Progress { consumed, written, next } = advance(&self.input[self.held.clone()], to);
            self.held.start += consumed;
            self.sending.end += written;
            match next {
                Next::Output(_) => {
                    if !self.flush()? {
                        break;
                    }
                }
                Next::Close => {
                    // What is told last is lost where the socket takes it not at once: the connection is over anyway.
                    self.flush()?;
                    return Ok(false);
                }
                Next::Input(_) | Next::Completion => break,
            }
        }
        self.input.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
        Ok(true)
    }

    /// Sends what is to be sent; whether all of it is.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        while !self.sending.is_empty() {
            match self.socket.write(&self.output[self.sending.clone()]) {
                Ok(bytes) => self.sending.start += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.sending = 0..0;
        Ok(true)
    }
}
