//! What peers are told about an endpoint: the 0x06xx TLVs.

use berth_wire::fabric::{BindingTlv, OfiAccess, OfiEndpoint};

/// Version of the two-sided framing (wire v0, "OFI (libfabric) dataplane binding TLVs", 0x0608).
const FRAMING: u8 = 1;

/// An endpoint, as it is described to peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The provider, layers included.
    pub provider: String,
    /// The fabric's name.
    pub fabric: String,
    /// The endpoint's address.
    pub address: Vec<u8>,
    /// `fi_info->caps`.
    pub caps: u64,
    /// The longest message in bytes.
    pub max_message: u64,
}

impl Facts {
    /// The TLVs 0x0601 to 0x0608, and 0x0609 where it is about the lease with this key.
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
