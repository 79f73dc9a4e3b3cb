//! LEASE_BIND for RDMA.

use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, FabricError, Tlvs, Wire as _};

use crate::{Client, Error, Token};

/// The client's side of an RDMA connection: a queue pair of type RC that is still to be connected, in the state INIT.
///
/// It must allow remote writes: the node finds out whether its client lives by writing no bytes to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaPeer {
    /// The queue pair's number.
    pub qp_num: u32,
    /// The port's address; of an IPv4 address `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// The first packet sequence number that the client will send with; 24 bits.
    pub psn: u32,
    /// The longest payload of one packet in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u16,
}

/// The node's side: what the client connects its queue pair to, and by which key it reaches the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaBinding {
    /// The remote key of the lease's bytes, good on this connection only.
    pub rkey: u32,
    /// The remote address of the lease's first byte, whether or not a RANGE caveat lets the client reach that one.
    pub remote_addr: u64,
    /// The node's queue pair.
    pub qp_num: u32,
    /// The address of the node's port.
    pub gid: [u8; 16],
    /// The number of the node's port.
    pub port: u16,
    /// The first packet sequence number that the node sends with.
    pub psn: u32,
}

impl RdmaBinding {
    /// Reads the result of LEASE_BIND; fields that this client does not know are skipped.
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
    /// Connects a lease to a queue pair of this client. Whatever queue pair was connected to it before no longer is.
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
