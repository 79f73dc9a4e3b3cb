//! What nodes publish about themselves: ANNOUNCE, WITHDRAW, and the inventory that a relay answers with.

use super::{
    EndpointKind, MAX_RESOURCES, ResourceSummary,
    codec::{Bytes, FabricError, List, Reader, Text, Wire},
    macros::{codes, wire},
    tlv::Tlv,
};

/// Limit on the endpoints of one announcement.
pub const MAX_ENDPOINTS: usize = 64;
/// Limit on an endpoint's address, in bytes.
pub const MAX_ADDR: usize = 128;
/// Limit on the TLVs of one announcement.
pub const MAX_ANNOUNCE_TLVS: usize = 256;
/// Limit on the announcements in a relay's answer.
pub const MAX_RELAYED: usize = 1024;
/// Limit on one encoded announcement, in bytes.
pub const MAX_ANNOUNCE: usize = 64 * 1024;

wire! {
    /// An address at which a node serves one protocol.
    pub struct Endpoint<'a> {
        /// An [`EndpointKind`] code. Kept as a number: newer nodes may send kinds that this build does not know.
        pub kind: u8,
        /// `ip:port` in UTF-8.
        pub addr: Text<'a, MAX_ADDR>,
    }

    /// Payload of ANNOUNCE. The node always signs the frame (SIGNED).
    pub struct Announce<'a> {
        /// The node's id, equal to the frame's sender (decision 24).
        pub node_id: u128,
        /// Rises with each announcement and withdrawal; a lower or equal one is ignored (decision 24).
        pub sequence: u64,
        /// Seconds for which receivers keep the announcement.
        pub ttl_secs: u32,
        /// Site number, as the operator assigned it.
        pub site: u32,
        /// Row number within the site.
        pub row: u32,
        /// Rack number within the row.
        pub rack: u32,
        /// Site-defined locality, opaque to the protocol.
        pub locality_custom: [u8; 32],
        /// Where each of the node's protocols is reached.
        pub endpoints: List<'a, Endpoint<'a>, MAX_ENDPOINTS>,
        /// What can be leased from the node.
        pub resources: List<'a, ResourceSummary, MAX_RESOURCES>,
        /// Inventory TLVs (0x08xx), read by [`super::InventoryTlv`].
        pub tlvs: List<'a, Tlv<'a>, MAX_ANNOUNCE_TLVS>,
    }
}

impl<'a> Announce<'a> {
    /// The address of the first endpoint of this kind.
    pub fn endpoint(&self, kind: EndpointKind) -> Option<&'a str> {
        self.endpoints.iter().find(|endpoint| endpoint.kind == kind.code()).map(|endpoint| endpoint.addr.get())
    }
}

/// Payload of the RESPONSE to SOLICIT: encoded [`Announce`]s in no particular order, each to be parsed on its own.
pub type Relayed<'a> = List<'a, Bytes<'a, MAX_ANNOUNCE>, MAX_RELAYED>;

codes! {
    /// Why a node leaves (WITHDRAW, "Reason codes").
    pub enum WithdrawReason: u8 {
        GracefulShutdown = 0, "GRACEFUL_SHUTDOWN", "the node was stopped";
        Maintenance = 1, "MAINTENANCE", "the node is being worked on";
        ResourceExhaustion = 2, "RESOURCE_EXHAUSTION", "the node has nothing left";
        Policy = 3, "POLICY", "an operator's decision";
    }
}

/// Payload of WITHDRAW, always SIGNED by the node: 25 bytes, or 16 in the older form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdraw {
    /// The node that leaves.
    pub node_id: u128,
    /// `None` in the 16-byte form, which counts as sequence 0 and GRACEFUL_SHUTDOWN and is obeyed (decision 24).
    pub detail: Option<WithdrawDetail>,
}

wire! {
    /// The fields that the 16-byte form of WITHDRAW lacks.
    pub struct WithdrawDetail {
        /// Above that of the node's last announcement.
        pub sequence: u64,
        /// A [`WithdrawReason`] code. Kept as a number: newer nodes may send others.
        pub reason: u8,
    }
}

impl<'a> Wire<'a> for Withdraw {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let node_id = from.get()?;
        Ok(Self { node_id, detail: if from.remaining() == 0 { None } else { Some(from.get()?) } })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.node_id.write(to);
        if let Some(detail) = self.detail {
            detail.write(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{
            ResourceFlags,
            testing::{canonical, exact, exact_but},
        },
        *,
    };

    const NINE: &str = "00000000000000000000000000000009";

    #[test]
    fn announcements_are_laid_out_as_documented() {
        let endpoints = [Endpoint { kind: 2, addr: Text::of("[::1]:5701").unwrap() }];
        let resources = [ResourceSummary {
            resource_id: 8,
            resource_type: 0x00FF,
            flags: ResourceFlags::FENCED,
            capacity: 7,
            available: 6,
        }];
        let tlvs = [Tlv::of(0x08FF, &[1]).unwrap()];
        let announce = Announce {
            node_id: 9,
            sequence: 1,
            ttl_secs: 2,
            site: 3,
            row: 4,
            rack: 5,
            locality_custom: [0xCC; 32],
            endpoints: List::of(&endpoints).unwrap(),
            resources: List::of(&resources).unwrap(),
            tlvs: List::of(&tlvs).unwrap(),
        };
        let bytes = format!(
            "{NINE} 0000000000000001 00000002 00000003 00000004 00000005 {}
             0001 02 0000000a 5b3a3a315d3a35373031
             0001 00000000000000000000000000000008 00ff 0001 0000000000000007 0000000000000006
             0001 08ff 0001 01",
            "cc".repeat(32)
        );
        exact(&announce, &bytes);
        assert_eq!(announce.endpoint(EndpointKind::Quic), Some("[::1]:5701"));
        assert_eq!(announce.endpoint(EndpointKind::ControlUdp), None);
        exact(&Relayed::of(&[Bytes::of(&[0xAA]).unwrap()]).unwrap(), "0001 00000001 aa");
    }

    #[test]
    fn withdrawals_have_25_bytes_or_16() {
        let detail = WithdrawDetail { sequence: 7, reason: WithdrawReason::Policy.code() };
        let bytes = format!("{NINE} 0000000000000007 03");
        exact_but(&Withdraw { node_id: 9, detail: Some(detail) }, &bytes, &[16]);
        exact(&Withdraw { node_id: 9, detail: None }, NINE);
    }

    proptest! {
        #[test]
        fn announcements_round_trip(
            words: [u32; 4], node_id: u128, sequence: u64,
            endpoints in prop::collection::vec((any::<u8>(), "[0-9.:]{0,20}"), 0..4),
            resources in prop::collection::vec((any::<u128>(), any::<u16>(), 0..4_u16, any::<u64>()), 0..4),
            tlvs in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..9)), 0..4),
            flip: prop::sample::Index, mask: u8,
        ) {
            let [ttl_secs, site, row, rack] = words;
            let endpoints: Vec<_> =
                endpoints.iter().map(|(kind, addr)| Endpoint { kind: *kind, addr: Text::of(addr).unwrap() }).collect();
            let resources: Vec<_> = resources
                .iter()
                .map(|&(resource_id, resource_type, flags, capacity)| ResourceSummary {
                    resource_id,
                    resource_type,
                    flags: ResourceFlags::from_bits(flags).unwrap(),
                    capacity,
                    available: !capacity,
                })
                .collect();
            let tlvs: Vec<_> = tlvs.iter().map(|(tag, value)| Tlv::of(*tag, value).unwrap()).collect();
            let announce = Announce {
                node_id, sequence, ttl_secs, site, row, rack,
                locality_custom: [words[0] as u8; 32],
                endpoints: List::of(&endpoints).unwrap(),
                resources: List::of(&resources).unwrap(),
                tlvs: List::of(&tlvs).unwrap(),
            };
            let mut bytes = announce.to_vec();
            prop_assert_eq!(Announce::parse(&bytes), Ok(announce));
            prop_assert!(Announce::parse(&bytes[..flip.index(bytes.len())]).is_err());
            let at = flip.index(bytes.len());
            bytes[at] ^= mask;
            canonical::<Announce<'_>>(bytes);
        }
    }
}
