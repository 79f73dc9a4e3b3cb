//! Errors, with texts that say what they mean.

use std::{io, net::SocketAddr};

use berth_identity::token::DelegateError;
use berth_tls::quic::TlsError;
use berth_wire::fabric::{
    FabricError, Op, Status,
    data::{IoStatus, page, two_sided},
};

/// Why an operation has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The node answered with a status other than OK.
    #[error("{op}: the node answered {status} (0x{:04X}): {}", status.code(), status.meaning())]
    Refused {
        /// The operation.
        op: Op,
        /// The node's answer.
        status: Status,
    },
    /// The node answered with a status that this client does not know.
    #[error("{op}: the node answered the unknown status 0x{code:04X}; it may be newer than this client")]
    UnknownStatus {
        /// The operation.
        op: Op,
        /// Code of the status.
        code: u16,
    },
    /// The node refused a page operation.
    #[error("{op}: the node answered {status}: {}", status.meaning())]
    Page {
        /// The operation.
        op: page::Op,
        /// The node's answer.
        status: page::Status,
    },
    /// An access over FBMU, FBBU, FBMT or FBBT was refused.
    #[error("the node answered {}: {}", .0, .0.meaning())]
    Access(IoStatus),
    /// A two-sided access was refused.
    #[error("the node answered {}: {}", .0, .0.meaning())]
    TwoSided(two_sided::Status),
    /// The node closed the connection: the lease has ended, or the protocol was violated.
    #[error("the node closed the connection; the lease may have ended")]
    Closed,
    /// No answer came in time.
    #[error("no answer from {node} within {seconds} s: is it running, and is this key enrolled there?")]
    Timeout {
        /// Address of the node.
        node: SocketAddr,
        /// Time waited, in seconds.
        seconds: u64,
    },
    /// The answer is malformed.
    #[error("the node's answer is malformed: {0}")]
    Malformed(#[from] FabricError),
    /// The answer does not belong to the request.
    #[error("the node answered another request")]
    Mismatch,
    /// The lease has no endpoint of this kind.
    #[error("the lease is not served over {0}; its bindings name how it is")]
    NoEndpoint(&'static str),
    /// An offset or length is not a multiple of the block size.
    #[error("offset and length of a block lease are multiples of 512")]
    Unaligned,
    /// The access goes beyond the lease.
    #[error("bytes {offset} to {} are not within the lease's {len}", offset.saturating_add(*asked))]
    OutOfRange {
        /// First byte of the access.
        offset: u64,
        /// Number of bytes.
        asked: u64,
        /// Size of the lease in bytes.
        len: u64,
    },
    /// A socket failed.
    #[error("{node}: {source}")]
    Io {
        /// Address of the node.
        node: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A connection could not be made, or was lost.
    #[error("{node}: {source}: is this key enrolled there?")]
    Connection {
        /// Address of the node.
        node: SocketAddr,
        /// QUIC's error.
        source: quinn::ConnectionError,
    },
    /// A connection could not be tried.
    #[error("{node}: {source}")]
    Connect {
        /// Address of the node.
        node: SocketAddr,
        /// QUIC's error.
        source: quinn::ConnectError,
    },
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A token could not be passed on.
    #[error(transparent)]
    Delegate(#[from] DelegateError),
    /// The system has no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}
