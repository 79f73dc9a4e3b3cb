//! The description of an endpoint for its peers, in 0x06xx TLVs.

use berth_wire::fabric::{BindingTlv, OfiAccess, OfiEndpoint};

/// Version of the two-sided framing (wire v0, "OFI (libfabric) dataplane binding TLVs", 0x0608).
const FRAMING: u8 = 1;

/// An endpoint as it is described to peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Provider name with its layers, such as `udp;ofi_rxd`.
    pub provider: String,
    /// Fabric name from `fi_fabric_attr`.
    pub fabric: String,
    /// Address from `fi_getname`.
    pub address: Vec<u8>,
    /// Capability bits from `fi_info->caps`.
    pub caps: u64,
    /// Longest message in bytes.
    pub max_message: u64,
}

impl Facts {
    /// TLVs 0x0601 to 0x0608, and 0x0609 with the low 64 bits of the lease id if `lease` is given.
    pub fn tlvs(&self, lease: Option<u64>) -> impl Iterator<Item = BindingTlv<'_>> {
        let of_all = [
            BindingTlv::OfiProvider(&self.provider),
            BindingTlv::OfiFabricName(&self.fabric),
            BindingTlv::OfiEpType(OfiEndpoint::Rdm),
            BindingTlv::OfiAddr(&self.address),
            BindingTlv::OfiAccessModel(OfiAccess::Msg),
            BindingTlv::OfiCapabilityFlags(self.caps),
            BindingTlv::OfiMaxMsgSize(self.max_message),
            BindingTlv::OfiProtocolVersion(FRAMING),
        ];
        of_all.into_iter().chain(lease.map(BindingTlv::OfiLeaseId))
    }
}
