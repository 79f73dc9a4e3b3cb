//! Reading and writing a lease's bytes.

mod datagram;
mod stream;

use std::time::Duration;

use berth_identity::{Identity, PublicKey};
use berth_tls::quic::Alpn;
use berth_wire::fabric::{EndpointKind, data::BLOCK};
use tokio::time::timeout;

use crate::{Error, Grant, client::too_late, quic::Link};

/// Time limit for one access.
const PATIENCE: Duration = Duration::from_secs(5);

/// The dataplane used for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// FBMT or FBBT messages on QUIC streams; the client must be the lease's holder.
    Quic,
    /// FBMT or FBBT over TCP.
    Tcp,
    /// FBMU or FBBU over UDP.
    Shim,
    /// Two-sided messages over UDP.
    TwoSided,
}

/// Access to the bytes of one lease.
#[derive(Debug)]
pub struct Data {
    carrier: Carrier,
    len: u64,
    /// Limit on one access, in bytes.
    most: u64,
    /// Offsets and lengths must be multiples of this, in bytes.
    unit: u64,
}

#[derive(Debug)]
enum Carrier {
    Stream(stream::Stream),
    Shim(datagram::Shim),
    TwoSided(datagram::TwoSided),
}

impl Data {
    /// Opens access to a lease. Over QUIC, the node's key must be `expected` if that is given, and `identity` must be
    /// the lease's holder.
    pub async fn open(
        identity: &Identity,
        lease: &Grant,
        via: Via,
        expected: Option<PublicKey>,
    ) -> Result<Self, Error> {
        let unit = if lease.is_block() { BLOCK } else { 1 };
        let datagrams = |most| stream::Limits { len: lease.len, most };
        let (carrier, limits) = match via {
            Via::Quic => {
                let alpn = if lease.is_block() { Alpn::Block } else { Alpn::Memory };
                let node = lease.endpoint([EndpointKind::QuicMem, EndpointKind::QuicBlock], "QUIC")?;
                let opening = async {
                    let link = Link::open(identity, node, alpn, expected).await?;
                    stream::Stream::quic(link, lease).await
                };
                let (stream, limits) = timeout(PATIENCE, opening).await.map_err(|_| too_late(node, PATIENCE))??;
                (Carrier::Stream(stream), limits)
            }
            Via::Tcp => {
                let node = lease.endpoint([EndpointKind::Fbmt, EndpointKind::Fbbt], "TCP")?;
                let opened = timeout(PATIENCE, stream::Stream::tcp(node, lease)).await;
                let (stream, limits) = opened.map_err(|_| too_late(node, PATIENCE))??;
                (Carrier::Stream(stream), limits)
            }
            Via::Shim => {
                let node = lease.endpoint([EndpointKind::Fbmu, EndpointKind::Fbbu], "FBMU")?;
                (Carrier::Shim(datagram::Shim::open(node, lease).await?), datagrams(datagram::Shim::MOST))
            }
            Via::TwoSided => {
                let node = lease.endpoint([EndpointKind::TwoSidedUdp; 2], "two-sided UDP")?;
                (Carrier::TwoSided(datagram::TwoSided::open(node, lease).await?), datagrams(datagram::TwoSided::MOST))
            }
        };
        let most = limits.most.min(lease.max_io.into()) / unit * unit;
        Ok(Self { carrier, len: limits.len, most: most.max(unit), unit })
    }

    /// Size of the lease in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a lease has at least one byte")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads `len` bytes from `offset` on, in as many accesses as needed.
    pub async fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, Error> {
        self.check(offset, len)?;
        let mut all = Vec::with_capacity(len as usize);
        while (all.len() as u64) < len {
            let at = offset + all.len() as u64;
            let piece = self.most.min(len - all.len() as u64) as u32;
            let read = match &mut self.carrier {
                Carrier::Stream(stream) => stream.read(at, piece).await,
                Carrier::Shim(shim) => shim.read(at, piece).await,
                Carrier::TwoSided(two_sided) => two_sided.read(at, piece).await,
            }?;
            if read.len() != piece as usize {
                return Err(Error::Mismatch);
            }
            all.extend_from_slice(&read);
        }
        Ok(all)
    }

    /// Writes bytes from `offset` on, in as many accesses as needed.
    pub async fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len() as u64)?;
        let mut at = offset;
        for piece in bytes.chunks(self.most as usize) {
            match &mut self.carrier {
                Carrier::Stream(stream) => stream.write(at, piece).await,
                Carrier::Shim(shim) => shim.write(at, piece).await,
                Carrier::TwoSided(two_sided) => two_sided.write(at, piece).await,
            }?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn check(&self, offset: u64, asked: u64) -> Result<(), Error> {
        if !offset.is_multiple_of(self.unit) || !asked.is_multiple_of(self.unit) {
            return Err(Error::Unaligned);
        }
        if offset.checked_add(asked).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange { offset, asked, len: self.len });
        }
        Ok(())
    }
}
