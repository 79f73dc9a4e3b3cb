//! LEASE_BIND for SR-IOV.

use berth_wire::fabric::{BindKind, BindingTlv, ClientTlv, FabricError, PciAddress, Tlvs, Wire as _};

use crate::{Client, Error, Token};

/// Which virtual function a lease has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SriovBinding {
    /// The virtual function.
    pub function: PciAddress,
    /// Its index within the physical one.
    pub index: u16,
    /// The physical function.
    pub pf: PciAddress,
}

impl SriovBinding {
    /// Reads the result of LEASE_BIND; fields that this client does not know are skipped.
    pub fn parse(result: &[u8]) -> Result<Self, FabricError> {
        let (mut function, mut index, mut pf) = (None, None, None);
        for tlv in &Tlvs::parse(result)? {
            match BindingTlv::read(tlv)? {
                Some(BindingTlv::SrIovVf(value)) => function = Some(value),
                Some(BindingTlv::SrIovVfIndex(value)) => index = Some(value),
                Some(BindingTlv::SrIovPf(value)) => pf = Some(value),
                _ => {}
            }
        }
        Ok(Self {
            function: function.ok_or(FabricError::Value("SRIOV_VF_PCI_ADDR"))?,
            index: index.ok_or(FabricError::Value("SRIOV_VF_INDEX"))?,
            pf: pf.ok_or(FabricError::Value("SRIOV_PF_PCI_ADDR"))?,
        })
    }
}

impl Client {
    /// Has the virtual function of a lease handed over: reset, set up and bound to vfio-pci. `mac` and `vlan` are refused
    /// where its pool does not leave them to holders.
    pub async fn bind_sriov(
        &self,
        token: &Token,
        lease_id: u128,
        mac: Option<[u8; 6]>,
        vlan: Option<u16>,
    ) -> Result<SriovBinding, Error> {
        let mut wanted = Vec::new();
        for tlv in [mac.map(ClientTlv::VfMac), vlan.map(ClientTlv::VfVlan)].into_iter().flatten() {
            tlv.write(&mut wanted);
        }
        let result = self.lease_bind(token, lease_id, BindKind::SrIov, &wanted).await?;
        Ok(SriovBinding::parse(&result)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_needs_every_field_and_skips_unknown_ones() {
        let (function, pf) =
            (PciAddress { domain: 0, bus: 3, devfn: 0x81 }, PciAddress { domain: 0, bus: 3, devfn: 0 });
        let tlvs = [BindingTlv::SrIovVf(function), BindingTlv::SrIovVfIndex(1), BindingTlv::SrIovPf(pf)];
        let encoded = |without: Option<usize>| {
            let mut bytes = vec![0x05, 0x77, 0, 1, 9];
            let rest = tlvs.iter().enumerate().filter(|(nth, _)| Some(*nth) != without);
            rest.for_each(|(_, tlv)| tlv.write(&mut bytes));
            bytes
        };
        assert_eq!(SriovBinding::parse(&encoded(None)), Ok(SriovBinding { function, index: 1, pf }));
        let names = ["SRIOV_VF_PCI_ADDR", "SRIOV_VF_INDEX", "SRIOV_PF_PCI_ADDR"];
        for (nth, name) in names.into_iter().enumerate() {
            assert_eq!(SriovBinding::parse(&encoded(Some(nth))), Err(FabricError::Value(name)));
        }
    }
}
