//! Inventory TLVs 0x0801, 0x0802, 0x0804 and 0x0805: memory tiers, GPUs, locality and isolation.

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

use super::{
    codec::{FabricError, List, Reader, ShortText, Wire},
    macros::{bits, codes, wire},
    tlv::Tlv,
};

/// Limit on the attach domains of a memory tier.
pub const MAX_ATTACH_DOMAINS: usize = 64;
/// Limit on the preferred tiers of a GPU.
pub const MAX_PREFERRED_TIERS: usize = 16;
/// Limit on a trust domain's name, in bytes.
pub const MAX_TRUST_DOMAIN: usize = 255;

codes! {
    /// `tier_kind` values; unknown ones are rejected.
    pub enum MemTierKind: u16 {
        Dram = 0, "Dram", "DDR memory";
        Hbm = 1, "Hbm", "high-bandwidth memory";
        CxlExpander = 2, "CxlExpander", "a CXL memory expander";
        Pmem = 3, "Pmem", "persistent memory";
        VramVisibleHost = 4, "VramVisibleHost", "GPU memory that the host can address";
        Block = 5, "Block", "block storage, not addressable";
    }

    /// `share_mode`: who may use a memory tier at once.
    pub enum TierShare: u16 {
        Exclusive = 0, "EXCLUSIVE", "one holder";
        SharedRo = 1, "SHARED_RO", "shared for reading";
        SharedRw = 2, "SHARED_RW", "shared for writing";
    }

    /// How far a lease has its processors for itself (0x0805, 0x0902).
    #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub enum CpuIsolation: u8 {
        BestEffort = 0, "BestEffort", "no pinning";
        WholeCore = 1, "WholeCore", "whole cores, no sibling thread of another lease";
        StrictIsolated = 2, "StrictIsolated", "whole cores of one memory node";
    }

    /// How far a lease has its GPU for itself (0x0805, 0x0903).
    #[derive(TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub enum GpuExclusivity: u8 {
        Shared = 0, "Shared", "other holders may use the device too";
        SessionExclusive = 1, "SessionExclusive", "alone on the device during a session";
        DeviceExclusive = 2, "DeviceExclusive", "the whole device for the lease's life";
        PartitionExclusive = 3, "PartitionExclusive", "a partition of the device; reserved";
    }
}

bits! {
    /// `flags` of a memory tier.
    pub struct TierFlags: u32 {
        ECC = 1, "errors are corrected";
        HOTPLUG = 2, "can be added and removed while running";
        INTERLEAVED = 4, "spread over channels";
    }
}

wire! {
    /// 0x0801: one memory tier of a node.
    pub struct MemTierInfo<'a> {
        /// Technology of the memory.
        pub tier_kind: MemTierKind,
        /// Total capacity in bytes.
        pub capacity_bytes: u64,
        /// Approximate latency of a local access, in nanoseconds.
        pub latency_class_ns: u32,
        /// Approximate bandwidth, in bits per second.
        pub bandwidth_hint_bps: u64,
        /// Smallest allocation, in bytes.
        pub page_granule_bytes: u32,
        /// Who may use the tier at once.
        pub share_mode: TierShare,
        /// Ids of the NUMA, CXL or PCIe domains that the tier is attached to.
        pub attach_domains: List<'a, u128, MAX_ATTACH_DOMAINS>,
        /// ECC, hotplug, interleaving.
        pub flags: TierFlags,
    }

    /// 0x0802: how a GPU is attached to the memory fabric.
    pub struct GpuAttachInfo<'a> {
        /// Resource id of the GPU.
        pub gpu_resource_id: u128,
        /// GPUs with the same id can copy to each other directly, as over NVLink.
        pub peer_group_id: u128,
        /// Capacity of the GPU's memory in bytes.
        pub vram_bytes: u64,
        /// Whether the host's processors can map the GPU's memory.
        pub supports_host_map: bool,
        /// Whether other nodes can reach the GPU's memory over the fabric.
        pub supports_remote_map: bool,
        /// Memory tiers that suit the GPU, best first.
        pub preferred_mem_tiers: List<'a, MemTierKind, MAX_PREFERRED_TIERS>,
    }

    /// 0x0804: where a node is, and its trust domain.
    pub struct NodeAffinityMeta<'a> {
        /// Rack number, as the operator assigned it.
        pub rack_id: u32,
        /// Row or aisle number.
        pub row_id: u32,
        /// Site or data centre number.
        pub site_id: u32,
        /// Geographic hash; its scheme is up to the site.
        pub geo_hash: u64,
        /// Name of the trust domain; empty if none is announced.
        pub trust_domain: ShortText<'a, MAX_TRUST_DOMAIN>,
    }
}

/// 0x0805: the isolation classes a node honours, at most 255 of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SupportedIsolation<'a> {
    /// Classes of processor isolation that a lease may ask for.
    pub cpu: &'a [CpuIsolation],
    /// Classes of GPU exclusivity that a lease may ask for.
    pub gpu: &'a [GpuExclusivity],
}

impl<'a> Wire<'a> for SupportedIsolation<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let len = from.get::<u8>()?;
        let cpu = <[CpuIsolation]>::try_ref_from_bytes(from.take(usize::from(len))?)
            .map_err(|_| FabricError::Value("CpuIsolation"))?;
        let len = from.get::<u8>()?;
        let gpu = <[GpuExclusivity]>::try_ref_from_bytes(from.take(usize::from(len))?)
            .map_err(|_| FabricError::Value("GpuExclusivity"))?;
        Ok(Self { cpu, gpu })
    }

    /// # Panics
    /// If there are more than 255 classes of one kind.
    fn write(&self, to: &mut Vec<u8>) {
        for classes in [self.cpu.as_bytes(), self.gpu.as_bytes()] {
            to.push(u8::try_from(classes.len()).expect("at most 255 classes"));
            to.extend_from_slice(classes);
        }
    }
}

/// One inventory TLV of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InventoryTlv<'a> {
    /// 0x0801, one per memory tier.
    MemTier(MemTierInfo<'a>),
    /// 0x0802, one per GPU.
    GpuAttach(GpuAttachInfo<'a>),
    /// 0x0804: where the node is.
    NodeAffinity(NodeAffinityMeta<'a>),
    /// 0x0805: which isolation classes it honours.
    SupportedIsolation(SupportedIsolation<'a>),
}

impl<'a> InventoryTlv<'a> {
    /// Reads a TLV. `Ok(None)` means that the tag is unknown and the TLV is to be skipped.
    pub fn read(tlv: Tlv<'a>) -> Result<Option<Self>, FabricError> {
        Ok(Some(match tlv.tag {
            0x0801 => Self::MemTier(tlv.parse_value()?),
            0x0802 => Self::GpuAttach(tlv.parse_value()?),
            0x0804 => Self::NodeAffinity(tlv.parse_value()?),
            0x0805 => Self::SupportedIsolation(tlv.parse_value()?),
            _ => return Ok(None),
        }))
    }

    /// The tag to send the value under.
    pub fn tag(&self) -> u16 {
        match self {
            Self::MemTier(_) => 0x0801,
            Self::GpuAttach(_) => 0x0802,
            Self::NodeAffinity(_) => 0x0804,
            Self::SupportedIsolation(_) => 0x0805,
        }
    }

    /// The encoded value, for [`Tlv::of`] in [`super::Announce::tlvs`].
    pub fn value(&self) -> Vec<u8> {
        match self {
            Self::MemTier(info) => info.to_vec(),
            Self::GpuAttach(info) => info.to_vec(),
            Self::NodeAffinity(meta) => meta.to_vec(),
            Self::SupportedIsolation(classes) => classes.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    const ONE: &str = "00000000000000000000000000000001";
    const TWO: &str = "00000000000000000000000000000002";

    #[test]
    fn inventory_tlvs_are_laid_out_as_documented() {
        let tier = MemTierInfo {
            tier_kind: MemTierKind::CxlExpander,
            capacity_bytes: 0x1000,
            latency_class_ns: 250,
            bandwidth_hint_bps: 0x2000,
            page_granule_bytes: 4096,
            share_mode: TierShare::SharedRw,
            attach_domains: List::of(&[1, 2]).unwrap(),
            flags: TierFlags::ECC | TierFlags::INTERLEAVED,
        };
        let bytes = format!("0002 0000000000001000 000000fa 0000000000002000 00001000 0002 0002 {ONE} {TWO} 00000005");
        assert_eq!(hex(&bytes).len(), 34 + 2 * 16);
        exact(&tier, &bytes);
        let gpu = GpuAttachInfo {
            gpu_resource_id: 1,
            peer_group_id: 2,
            vram_bytes: 0x1000,
            supports_host_map: true,
            supports_remote_map: false,
            preferred_mem_tiers: List::of(&[MemTierKind::Hbm]).unwrap(),
        };
        let bytes = format!("{ONE} {TWO} 0000000000001000 01 00 0001 0001");
        assert_eq!(hex(&bytes).len(), 44 + 2);
        exact(&gpu, &bytes);
        let meta = NodeAffinityMeta {
            rack_id: 1,
            row_id: 2,
            site_id: 3,
            geo_hash: 4,
            trust_domain: ShortText::of("lab").unwrap(),
        };
        exact(&meta, "00000001 00000002 00000003 0000000000000004 0003 6c6162");
        let classes = SupportedIsolation {
            cpu: &[CpuIsolation::BestEffort, CpuIsolation::WholeCore],
            gpu: &[GpuExclusivity::PartitionExclusive],
        };
        exact(&classes, "02 00 01 01 03");
    }

    #[test]
    fn values_outside_of_the_tables_are_refused() {
        let tier = |kind: &str, share: &str, flags: &str| {
            let value =
                hex(&format!("{kind} {} 00000000 {} 00000000 {share} 0000 {flags}", "00".repeat(8), "00".repeat(8)));
            InventoryTlv::read(Tlv::of(0x0801, &value).unwrap()).err()
        };
        assert_eq!(tier("0005", "0000", "00000000"), None);
        assert_eq!(tier("0006", "0000", "00000000"), Some(FabricError::Value("MemTierKind")));
        assert_eq!(tier("0000", "0003", "00000000"), Some(FabricError::Value("TierShare")));
        assert_eq!(tier("0000", "0000", "00000008"), Some(FabricError::Flags("TierFlags")));
        let isolation = |bytes| InventoryTlv::read(Tlv::of(0x0805, &hex(bytes)).unwrap()).err();
        assert_eq!(isolation("01 03 00"), Some(FabricError::Value("CpuIsolation")));
        assert_eq!(isolation("00 01 ff"), Some(FabricError::Value("GpuExclusivity")));
        assert_eq!(isolation("00 00 00"), Some(FabricError::Surplus));
        assert_eq!(InventoryTlv::read(Tlv::of(0x0803, &[]).unwrap()), Ok(None));
    }

    #[test]
    fn a_tlv_keeps_its_tag_and_value() {
        let classes = SupportedIsolation { cpu: &[CpuIsolation::WholeCore], gpu: &[] };
        let tlv = InventoryTlv::SupportedIsolation(classes);
        assert_eq!(InventoryTlv::read(Tlv::of(tlv.tag(), &tlv.value()).unwrap()), Ok(Some(tlv)));
    }
}
