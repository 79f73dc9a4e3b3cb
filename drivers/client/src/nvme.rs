//! LEASE_BIND for NVMe-oF.

use std::fmt;

use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, FabricError, NvmeTransport, Tlvs, Wire as _};

use crate::{Client, Error, Token};

/// How an NVMe host finds the lease as a disk.
#[derive(Clone, PartialEq, Eq)]
pub struct NvmeBinding {
    /// NQN of the lease's subsystem.
    pub nqn: String,
    /// Transport that the target listens on.
    pub transport: NvmeTransport,
    /// IP address of the node, as text; empty for loop, which has none.
    pub address: String,
    /// Port at that address; 0 for loop.
    pub port: u16,
    /// The secret that the host proves to know, `DHHC-1:hh:BASE64:`, where the node asks for that. The node proves to
    /// know the same one, where the host asks.
    pub secret: Option<String>,
}

/// Does not tell the secret.
impl fmt::Debug for NvmeBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nqn, transport, address, port, secret } = self;
        let secret = secret.is_some();
        write!(f, "NvmeBinding({nqn}, {transport:?}, {address}, {port}, secret: {secret})")
    }
}

impl NvmeBinding {
    /// Reads the result of LEASE_BIND; unknown TLVs are skipped.
    pub fn parse(result: &[u8]) -> Result<Self, FabricError> {
        let (mut nqn, mut transport, mut address, mut port, mut secret) = (None, None, None, None, None);
        for tlv in &Tlvs::parse(result)? {
            match BindingTlv::read(tlv)? {
                Some(BindingTlv::NvmeNqn(value)) => nqn = Some(value.to_owned()),
                Some(BindingTlv::NvmeTrType(value)) => transport = Some(value),
                Some(BindingTlv::NvmeTrAddr(value)) => address = Some(value.to_owned()),
                Some(BindingTlv::NvmeTrSvcId(value)) => port = Some(value),
                Some(BindingTlv::NvmeDhChapSecret(value)) => secret = Some(value.to_owned()),
                _ => {}
            }
        }
        let transport = transport.ok_or(FabricError::Value("NVMEOF_TRTYPE"))?;
        if transport == NvmeTransport::Loop {
            (address, port) = (address.or(Some(String::new())), port.or(Some(0)));
        }
        Ok(Self {
            nqn: nqn.ok_or(FabricError::Value("NVMEOF_NQN"))?,
            transport,
            address: address.ok_or(FabricError::Value("NVMEOF_TRADDR"))?,
            port: port.ok_or(FabricError::Value("NVMEOF_TRSVCID"))?,
            secret,
        })
    }
}

impl Client {
    /// Makes a block lease available as a disk to the host with this NQN. A host that it was bound to before loses it.
    /// Without a transport the node chooses.
    pub async fn bind_nvme(
        &self,
        token: &Token,
        lease_id: u128,
        host_nqn: &str,
        transport: Option<NvmeTransport>,
    ) -> Result<NvmeBinding, Error> {
        let mut described = Vec::new();
        ClientTlv::HostNqn(host_nqn).write(&mut described);
        if let Some(transport) = transport {
            BindingTlv::NvmeTrType(transport).write(&mut described);
        }
        let result = self.lease_bind(token, lease_id, BindKind::NvmeOf, &described).await?;
        Ok(NvmeBinding::parse(&result)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_needs_every_field_and_skips_unknown_ones() {
        let tlvs = [
            BindingTlv::NvmeNqn("nqn.x"),
            BindingTlv::NvmeTrType(NvmeTransport::Tcp),
            BindingTlv::NvmeTrAddr("::1"),
            BindingTlv::NvmeTrSvcId(4420),
        ];
        let encoded = |without: Option<usize>| {
            let mut bytes = vec![0x03, 0x77, 0, 1, 9];
            BindingTlv::NvmeDhChapSecret("DHHC-1:").write(&mut bytes);
            let rest = tlvs.iter().enumerate().filter(|(nth, _)| Some(*nth) != without);
            rest.for_each(|(_, tlv)| tlv.write(&mut bytes));
            bytes
        };
        let (nqn, transport, address) = ("nqn.x".to_owned(), NvmeTransport::Tcp, "::1".to_owned());
        let secret = Some("DHHC-1:".to_owned());
        assert_eq!(NvmeBinding::parse(&encoded(None)), Ok(NvmeBinding { nqn, transport, address, port: 4420, secret }));
        let mut of_loop = Vec::new();
        BindingTlv::NvmeNqn("nqn.x").write(&mut of_loop);
        BindingTlv::NvmeTrType(NvmeTransport::Loop).write(&mut of_loop);
        let (nqn, transport, address) = ("nqn.x".to_owned(), NvmeTransport::Loop, String::new());
        assert_eq!(NvmeBinding::parse(&of_loop), Ok(NvmeBinding { nqn, transport, address, port: 0, secret: None }));
        let names = ["NVMEOF_NQN", "NVMEOF_TRTYPE", "NVMEOF_TRADDR", "NVMEOF_TRSVCID"];
        for (nth, name) in names.into_iter().enumerate() {
            assert_eq!(NvmeBinding::parse(&encoded(Some(nth))), Err(FabricError::Value(name)));
        }
    }
}
