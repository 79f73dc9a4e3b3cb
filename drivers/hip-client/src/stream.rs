//! The bytes of a connection: as they are, or under TLS.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};

use berth_tls::stream::{ClientConfig, ClientConnection, connection};
use berth_wire::hip::request::Bind;
use socket2::SockRef;

/// A connection to a worker, in plain text or under TLS.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
}

/// A socket that is written to without signals: in a process of C a write to a connection that is closed would be one.
#[derive(Debug)]
struct Socket(TcpStream);

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SockRef::from(&self.0).send_with_flags(bytes, libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// After the handshake, where there is one.
    pub(crate) fn new(socket: TcpStream, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let address = socket.peer_addr()?.ip();
        let mut socket = Socket(socket);
        let tls = match tls {
            Some(config) => {
                let mut tls = connection(config.clone(), address).map_err(io::Error::other)?;
                while tls.is_handshaking() {
                    if let Err(error) = tls.complete_io(&mut socket) {
                        // The worker is told why, where it still listens.
                        let _ = flush(&mut tls, &mut socket);
                        return Err(error);
                    }
                }
                Some(Box::new(tls))
            }
            None => None,
        };
        Ok(Self { socket, tls })
    }

    /// What a proof is bound to the connection by; nothing in plain text.
    pub(crate) fn exporter(&self) -> io::Result<Option<[u8; 32]>> {
        let exported = self.tls.as_ref().map(|tls| tls.export_keying_material([0; 32], Bind::EXPORTER, None));
        exported.transpose().map_err(io::Error::other)
    }

    pub(crate) fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.socket.0.set_read_timeout(timeout)
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        // It may be over already.
        let _ = self.socket.0.shutdown(Shutdown::Both);
    }

    pub(crate) fn send(&mut self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            let socket = SockRef::from(&self.socket.0);
            IoSlice::advance_slices(&mut slices, 0);
            while !slices.is_empty() {
                match socket.send_vectored_with_flags(slices, libc::MSG_NOSIGNAL) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            return Ok(());
        };
        for slice in slices {
            let mut left = &slice[..];
            while !left.is_empty() {
                // As much as it collects.
                let taken = tls.writer().write(left)?;
                left = &left[taken..];
                if !left.is_empty() {
                    flush(tls, &mut self.socket)?;
                }
            }
        }
        flush(tls, &mut self.socket)
    }
}

/// Sends what is encrypted.
fn flush(tls: &mut ClientConnection, socket: &mut Socket) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(into) };
        loop {
            match tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            match tls.read_tls(&mut self.socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            tls.process_new_packets().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}
