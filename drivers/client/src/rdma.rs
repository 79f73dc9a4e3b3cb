//! LEASE_BIND for RDMA.

use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, FabricError, Tlvs, Wire as _};

use crate::{Client, Error, Token};

/// The client's side of an RDMA connection: a queue pair of type RC in the state INIT, not connected yet.
///
/// It must allow remote writes, because the node checks whether its client is alive by writing zero bytes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPeer {
    /// Number of the queue pair.
    pub qp_num: u32,
    /// GID of the port; `::ffff:a.b.c.d` for an IPv4 address.
    pub gid: [u8; 16],
    /// First packet sequence number that the client will send, 24 bits.
    pub psn: u32,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u16,
}

/// The node's side: what the client connects its queue pair to, and the key for the lease's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaBinding {
    /// Remote key of the lease's bytes, valid on this connection only.
    pub rkey: u32,
    /// Remote address of the lease's first byte, even if a RANGE caveat excludes that byte.
    pub remote_addr: u64,
    /// Number of the node's queue pair.
    pub qp_num: u32,
    /// GID of the node's port.
    pub gid: [u8; 16],
    /// Port number on the node's RDMA device.
    pub port: u16,
    /// First packet sequence number that the node sends.
    pub psn: u32,
}

impl RdmaBinding {
    /// Reads the result of LEASE_BIND; unknown TLVs are skipped.
    pub fn parse(result: &[u8]) -> Result<Self, FabricError> {
        let (mut rkey, mut remote_addr, mut qp_num, mut gid, mut port, mut psn) = (None, None, None, None, None, None);
        for tlv in &Tlvs::parse(result)? {
            match BindingTlv::read(tlv)? {
                Some(BindingTlv::RdmaRkey(value)) => rkey = Some(value),
                Some(BindingTlv::RdmaRemoteAddr(value)) => remote_addr = Some(value),
                Some(BindingTlv::RdmaQpNum(value)) => qp_num = Some(value),
                Some(BindingTlv::RdmaGid(value)) => gid = Some(value),
                Some(BindingTlv::RdmaPort(value)) => port = Some(value),
                Some(BindingTlv::RdmaPsn(value)) => psn = Some(value),
                _ => {}
            }
        }
        Ok(Self {
            rkey: rkey.ok_or(FabricError::Value("RDMA_RKEY"))?,
            remote_addr: remote_addr.ok_or(FabricError::Value("RDMA_REMOTE_ADDR"))?,
            qp_num: qp_num.ok_or(FabricError::Value("RDMA_QP_NUM"))?,
            gid: gid.ok_or(FabricError::Value("RDMA_GID"))?,
            port: port.ok_or(FabricError::Value("RDMA_PORT"))?,
            psn: psn.ok_or(FabricError::Value("RDMA_PSN"))?,
        })
    }
}

impl Client {
    /// Connects a lease to a queue pair of this client. A queue pair that was connected to it before is disconnected.
    pub async fn bind_rdma(&self, token: &Token, lease_id: u128, peer: RdmaPeer) -> Result<RdmaBinding, Error> {
        let RdmaPeer { qp_num, gid, psn, mtu } = peer;
        let mut described = Vec::new();
        ClientTlv::RdmaPeer { qp_num, gid, psn, mtu }.write(&mut described);
        let result = self.lease_bind(token, lease_id, BindKind::Rdma, &described).await?;
        Ok(RdmaBinding::parse(&result)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_needs_every_field_and_skips_unknown_ones() {
        let tlvs = [
            BindingTlv::RdmaRkey(1),
            BindingTlv::RdmaRemoteAddr(2),
            BindingTlv::RdmaQpNum(3),
            BindingTlv::RdmaGid([4; 16]),
            BindingTlv::RdmaPort(5),
            BindingTlv::RdmaPsn(6),
        ];
        let encoded = |without: Option<usize>| {
            let mut bytes = vec![0x02, 0x77, 0, 1, 9];
            let rest = tlvs.iter().enumerate().filter(|(nth, _)| Some(*nth) != without);
            rest.for_each(|(_, tlv)| tlv.write(&mut bytes));
            bytes
        };
        let whole = RdmaBinding { rkey: 1, remote_addr: 2, qp_num: 3, gid: [4; 16], port: 5, psn: 6 };
        assert_eq!(RdmaBinding::parse(&encoded(None)), Ok(whole));
        let names = ["RDMA_RKEY", "RDMA_REMOTE_ADDR", "RDMA_QP_NUM", "RDMA_GID", "RDMA_PORT", "RDMA_PSN"];
        for (nth, name) in names.into_iter().enumerate() {
            assert_eq!(RdmaBinding::parse(&encoded(Some(nth))), Err(FabricError::Value(name)));
        }
    }
}
