//! The client's half: a request, an answer, and the connection that keeps the peer alive.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use berth_wire::{
    fabric::{FabricError, Status},
    rendezvous::{Answer, HostApi, MAX_MESSAGE, Offer},
};

use crate::Form;

/// Time limit of each step of a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The connection could not be made, broke, or was silent for 5 s.
    #[error("the rendezvous at {0}: {1}; is a port's `rendezvous` there, and of this form?")]
    Io(SocketAddr, #[source] io::Error),
    /// The port refused the peer with this status.
    #[error("the port refused: {status} ({why})", status = .0, why = .0.meaning())]
    Refused(Status),
    /// The answer is malformed.
    #[error("the answer is malformed: {0}")]
    Malformed(FabricError),
    /// The host-API form only supports unreliable queue pairs on IPv4.
    #[error("the host-API form has room for a queue pair with an IPv4 GID only")]
    Form,
}

/// A connection to a rendezvous. In the form that binds peers to connections, dropping it ends the peer there.
#[derive(Debug)]
pub struct Held(TcpStream);

impl Held {
    /// Whether the port still keeps the connection open.
    pub fn is_open(&self) -> bool {
        let peeked = self.0.set_nonblocking(true).and_then(|()| self.0.peek(&mut [0]));
        peeked.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Offers a peer to the port behind the rendezvous at `addr`, and waits for its answer. Blocks, for at most 5 s per
/// step.
pub fn call(addr: SocketAddr, form: Form, offer: &Offer<'_>) -> Result<(Answer, Held), CallError> {
    let io = |e| CallError::Io(addr, e);
    let mut request = Vec::new();
    match form {
        Form::HostApi => request.extend(HostApi::of_offer(offer).ok_or(CallError::Form)?.to_bytes()),
        Form::Berth => offer.write(&mut request),
    }
    let mut stream = connect(addr).map_err(io)?;
    stream.write_all(&request).map_err(io)?;
    let answer = match form {
        Form::HostApi => {
            let mut answer = [0; HostApi::LEN];
            stream.read_exact(&mut answer).map_err(io)?;
            HostApi::parse(&answer).answer()
        }
        Form::Berth => {
            let mut head = [0; 6];
            stream.read_exact(&mut head).map_err(io)?;
            let [s0, s1, l0, l1, l2, l3] = head;
            let status = Status::from_code(u16::from_be_bytes([s0, s1]));
            let status = status.ok_or(CallError::Malformed(FabricError::Value("Status")))?;
            let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
            if status != Status::Ok {
                return Err(CallError::Refused(status));
            }
            if len > MAX_MESSAGE {
                return Err(CallError::Malformed(FabricError::Limit("rendezvous message")));
            }
            let mut tlvs = vec![0; len];
            stream.read_exact(&mut tlvs).map_err(io)?;
            Answer::parse(&tlvs).map_err(CallError::Malformed)?
        }
    };
    Ok((answer, Held(stream)))
}

fn connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}
