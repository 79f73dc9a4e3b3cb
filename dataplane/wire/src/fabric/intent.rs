//! Lease intents: TLVs 0x0901, 0x0902, 0x0903 and 0x0910 of LEASE_ALLOC (section "Lease Intent TLVs").

use super::{
    CpuIsolation, GpuExclusivity,
    codec::{FabricError, Reader, Wire, utf8},
    macros::{codes, wire},
    tlv::{Tlv, Tlvs},
};

/// Limit on the affinities of one LEASE_ALLOC.
pub const MAX_AFFINITIES: usize = 32;
/// Limit on the trust domain of an affinity, in bytes.
pub const MAX_TARGET: usize = 255;

codes! {
    /// `preferred_tier`: the kind of memory that a cache should lie in.
    pub enum IntentTier: u16 {
        Hbm = 1, "HBM", "high-bandwidth memory";
        Ddr = 2, "DDR", "DDR memory";
        Cxl = 3, "CXL", "CXL-attached memory";
        Pmem = 4, "PMEM", "persistent memory";
    }

    /// `sharing_mode`: who reads and writes a cache.
    pub enum IntentSharing: u16 {
        Exclusive = 0, "EXCLUSIVE", "one user";
        ReadShared = 1, "READ_SHARED", "many readers, one writer";
        CopyOnWrite = 2, "COPY_ON_WRITE", "readers see a snapshot";
    }

    /// What an affinity refers to. Code 5, Facility, is reserved and refused.
    pub enum AffinityCategory: u8 {
        Resource = 1, "Resource", "near a resource";
        State = 2, "State", "near data or a lease";
        Topology = 3, "Topology", "a place or failure domain";
        Trust = 4, "Trust", "a trust domain";
    }

    /// Whether an affinity is a condition or a wish. Code 3, Adaptive, is reserved and refused.
    pub enum AffinityStrength: u8 {
        Required = 1, "Required", "no lease without it";
        Preferred = 2, "Preferred", "better with it";
    }
}

wire! {
    /// 0x0901: the lease will hold the KV cache of a language model. 41 bytes, 57 with a GPU.
    pub struct KvCacheIntent {
        /// SHA-256 fingerprint of the model.
        pub model_fingerprint: [u8; 32],
        /// A hint for placement.
        pub preferred_tier: IntentTier,
        /// Size of a cache page in bytes.
        pub page_bytes: u32,
        /// Who reads and writes the cache.
        pub sharing_mode: IntentSharing,
        /// The GPU to place the lease near; `None` if it does not matter.
        pub gpu_resource_id: Option<u128>,
    }
}

/// What the lease should be near, or far from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AffinityTarget<'a> {
    /// Type 1: a node id.
    Node(u128),
    /// Type 2: a resource id.
    Resource(u128),
    /// Type 3: a lease id.
    Lease(u128),
    /// Type 4: a service id.
    Service(u128),
    /// Type 5: the name of a trust domain, UTF-8.
    TrustDomain(&'a str),
    /// Type 6: a rack number.
    Rack(u32),
}

/// 0x0910, repeatable: where the lease should be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Affinity<'a> {
    /// Resource, state, topology or trust.
    pub category: AffinityCategory,
    /// Required affinities filter the candidates; preferred ones rank them.
    pub strength: AffinityStrength,
    /// Bit 7 of the strength byte: far from the target rather than near it.
    pub anti: bool,
    /// What to be near, or far from.
    pub target: AffinityTarget<'a>,
}

/// Bit of the strength byte that makes an affinity an anti-affinity.
const ANTI: u8 = 0x80;

impl<'a> Wire<'a> for Affinity<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let category = from.get()?;
        let strength: u8 = from.get()?;
        let target_type: u8 = from.get()?;
        let len = from.get::<u16>()?;
        let target = from.take(usize::from(len))?;
        let id = || u128::parse(target).map_err(|_| FabricError::Value("target_len"));
        let target = match target_type {
            1 => AffinityTarget::Node(id()?),
            2 => AffinityTarget::Resource(id()?),
            3 => AffinityTarget::Lease(id()?),
            4 => AffinityTarget::Service(id()?),
            5 if target.len() > MAX_TARGET => return Err(FabricError::Limit("trust domain")),
            5 => AffinityTarget::TrustDomain(utf8(target)?),
            6 => AffinityTarget::Rack(u32::parse(target).map_err(|_| FabricError::Value("target_len"))?),
            _ => return Err(FabricError::Value("target_type")),
        };
        let anti = strength & ANTI != 0;
        let strength = AffinityStrength::from_code(strength & !ANTI).ok_or(FabricError::Value("AffinityStrength"))?;
        Ok(Self { category, strength, anti, target })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.category.write(to);
        to.push(self.strength.code() | if self.anti { ANTI } else { 0 });
        let mut id = |target_type: u8, id: u128| {
            to.push(target_type);
            16_u16.write(to);
            id.write(to);
        };
        match self.target {
            AffinityTarget::Node(node) => id(1, node),
            AffinityTarget::Resource(resource) => id(2, resource),
            AffinityTarget::Lease(lease) => id(3, lease),
            AffinityTarget::Service(service) => id(4, service),
            AffinityTarget::TrustDomain(name) => {
                to.push(5);
                (name.len() as u16).write(to);
                to.extend_from_slice(name.as_bytes());
            }
            AffinityTarget::Rack(rack) => {
                to.push(6);
                4_u16.write(to);
                rack.write(to);
            }
        }
    }
}

/// One intent TLV of LEASE_ALLOC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntentTlv<'a> {
    /// 0x0901: a hint for placement.
    KvCache(KvCacheIntent),
    /// 0x0902: how far the lease has its processors for itself.
    CpuIsolation(CpuIsolation),
    /// 0x0903: how far the lease has its GPU for itself.
    GpuExclusivity(GpuExclusivity),
    /// 0x0910: where the lease should be placed.
    Affinity(Affinity<'a>),
}

impl<'a> IntentTlv<'a> {
    /// Reads a TLV. `Ok(None)` means that the tag is unknown and the TLV is to be skipped. Undefined values and
    /// reserved ones (a GPU partition, Facility, Adaptive) are errors: InvalidIntent, answered INVALID_PARAMS.
    pub fn read(tlv: Tlv<'a>) -> Result<Option<Self>, FabricError> {
        Ok(Some(match tlv.tag {
            0x0901 => Self::KvCache(tlv.parse_value()?),
            0x0902 => Self::CpuIsolation(tlv.parse_value()?),
            0x0903 => match tlv.parse_value()? {
                GpuExclusivity::PartitionExclusive => return Err(FabricError::Value("GpuExclusivity")),
                class => Self::GpuExclusivity(class),
            },
            0x0910 => Self::Affinity(tlv.parse_value()?),
            _ => return Ok(None),
        }))
    }

    /// Appends the TLV.
    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::KvCache(intent) => Tlv::append(to, 0x0901, |to| intent.write(to)),
            Self::CpuIsolation(class) => Tlv::append(to, 0x0902, |to| class.write(to)),
            Self::GpuExclusivity(class) => Tlv::append(to, 0x0903, |to| class.write(to)),
            Self::Affinity(affinity) => Tlv::append(to, 0x0910, |to| affinity.write(to)),
        }
    }
}

/// All intents of one LEASE_ALLOC, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intents<'a> {
    /// From TLV 0x0901.
    pub kv_cache: Option<KvCacheIntent>,
    /// From TLV 0x0902; if absent, the node's default holds.
    pub cpu_isolation: Option<CpuIsolation>,
    /// From TLV 0x0903; if absent, the node's default holds.
    pub gpu_exclusivity: Option<GpuExclusivity>,
    tlvs: Tlvs<'a>,
}

impl<'a> Intents<'a> {
    /// Reads the TLVs after LEASE_ALLOC's flat params. Unknown tags are skipped; only affinities may repeat.
    pub fn read(tlvs: Tlvs<'a>) -> Result<Self, FabricError> {
        fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), FabricError> {
            if slot.replace(value).is_some() { Err(FabricError::Value("intent (once each)")) } else { Ok(()) }
        }
        let mut intents = Self { tlvs, ..Self::default() };
        let mut affinities = 0;
        for tlv in tlvs {
            match IntentTlv::read(tlv)? {
                Some(IntentTlv::KvCache(intent)) => once(&mut intents.kv_cache, intent)?,
                Some(IntentTlv::CpuIsolation(class)) => once(&mut intents.cpu_isolation, class)?,
                Some(IntentTlv::GpuExclusivity(class)) => once(&mut intents.gpu_exclusivity, class)?,
                Some(IntentTlv::Affinity(_)) => affinities += 1,
                None => {}
            }
        }
        if affinities > MAX_AFFINITIES { Err(FabricError::Limit("affinities")) } else { Ok(intents) }
    }

    /// Iterates over the affinities in wire order.
    pub fn affinities(&self) -> impl Iterator<Item = Affinity<'a>> + use<'a> {
        self.tlvs.iter().filter_map(|tlv| match IntentTlv::read(tlv) {
            Ok(Some(IntentTlv::Affinity(affinity))) => Some(affinity),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    const NINE: &str = "00000000000000000000000000000009";

    #[test]
    fn intents_are_laid_out_as_documented() {
        let intent = KvCacheIntent {
            model_fingerprint: [0xAA; 32],
            preferred_tier: IntentTier::Cxl,
            page_bytes: 4096,
            sharing_mode: IntentSharing::CopyOnWrite,
            gpu_resource_id: None,
        };
        let plain = format!("{} 0003 00001000 0002 00", "aa".repeat(32));
        assert_eq!(hex(&plain).len(), 41);
        exact(&intent, &plain);
        let with_gpu = format!("{} 0003 00001000 0002 01 {NINE}", "aa".repeat(32));
        assert_eq!(hex(&with_gpu).len(), 57);
        exact(&KvCacheIntent { gpu_resource_id: Some(9), ..intent }, &with_gpu);
        let near = |target| Affinity {
            category: AffinityCategory::Topology,
            strength: AffinityStrength::Preferred,
            anti: false,
            target,
        };
        exact(&near(AffinityTarget::Node(9)), &format!("03 02 01 0010 {NINE}"));
        exact(&near(AffinityTarget::Resource(9)), &format!("03 02 02 0010 {NINE}"));
        exact(&near(AffinityTarget::Lease(9)), &format!("03 02 03 0010 {NINE}"));
        exact(&near(AffinityTarget::Service(9)), &format!("03 02 04 0010 {NINE}"));
        exact(&near(AffinityTarget::TrustDomain("lab")), "03 02 05 0003 6c6162");
        let far = Affinity { strength: AffinityStrength::Required, anti: true, ..near(AffinityTarget::Rack(7)) };
        exact(&far, "03 81 06 0004 00000007");
    }

    fn read(bytes: &str) -> Result<usize, FabricError> {
        let bytes = hex(bytes);
        Intents::read(Tlvs::parse(&bytes)?).map(|intents| intents.affinities().count())
    }

    #[test]
    fn intents_are_collected_and_unknown_ones_skipped() {
        let bytes = hex("0902 0001 02  0920 0002 ffff  0910 0009 03 81 06 0004 00000007  0903 0001 00");
        let intents = Intents::read(Tlvs::parse(&bytes).unwrap()).unwrap();
        assert_eq!(intents.cpu_isolation, Some(CpuIsolation::StrictIsolated));
        assert_eq!(intents.gpu_exclusivity, Some(GpuExclusivity::Shared));
        assert_eq!(intents.kv_cache, None);
        let rack = Affinity {
            category: AffinityCategory::Topology,
            strength: AffinityStrength::Required,
            anti: true,
            target: AffinityTarget::Rack(7),
        };
        assert_eq!(intents.affinities().collect::<Vec<_>>(), [rack]);
        let mut again = Vec::new();
        IntentTlv::CpuIsolation(CpuIsolation::StrictIsolated).write(&mut again);
        again.extend(hex("0920 0002 ffff"));
        IntentTlv::Affinity(rack).write(&mut again);
        IntentTlv::GpuExclusivity(GpuExclusivity::Shared).write(&mut again);
        assert_eq!(again, bytes);
    }

    #[test]
    fn every_rule_is_enforced() {
        let kv = |tier: &str, sharing: &str, tail: &str, len: &str| {
            read(&format!("0901 {len} {} {tier} 00001000 {sharing} {tail}", "00".repeat(32)))
        };
        assert_eq!(kv("0001", "0000", "00", "0029"), Ok(0));
        assert_eq!(kv("0000", "0000", "00", "0029"), Err(FabricError::Value("IntentTier")));
        assert_eq!(kv("0005", "0000", "00", "0029"), Err(FabricError::Value("IntentTier")));
        assert_eq!(kv("0001", "0003", "00", "0029"), Err(FabricError::Value("IntentSharing")));
        assert_eq!(kv("0001", "0000", "02", "0029"), Err(FabricError::Value("flag byte (0 or 1)")));
        assert_eq!(kv("0001", "0000", "01", "0029"), Err(FabricError::Truncated));
        assert_eq!(kv("0001", "0000", &format!("00 {NINE}"), "0039"), Err(FabricError::Surplus));
        for (bytes, error) in [
            ("0902 0001 03", FabricError::Value("CpuIsolation")),
            ("0902 0001 ff", FabricError::Value("CpuIsolation")),
            ("0902 0002 0000", FabricError::Surplus),
            ("0902 0000", FabricError::Truncated),
            ("0902 0001 00 0902 0001 00", FabricError::Value("intent (once each)")),
            ("0903 0001 03", FabricError::Value("GpuExclusivity")),
            ("0903 0001 ff", FabricError::Value("GpuExclusivity")),
            ("0903 0002 0000", FabricError::Surplus),
            ("0910 0009 00 01 06 0004 00000007", FabricError::Value("AffinityCategory")),
            ("0910 0009 05 01 06 0004 00000007", FabricError::Value("AffinityCategory")),
            ("0910 0009 03 00 06 0004 00000007", FabricError::Value("AffinityStrength")),
            ("0910 0009 03 83 06 0004 00000007", FabricError::Value("AffinityStrength")),
            ("0910 0009 03 01 07 0004 00000007", FabricError::Value("target_type")),
            ("0910 0009 03 01 01 0004 00000007", FabricError::Value("target_len")),
            ("0910 0007 03 01 06 0002 0007", FabricError::Value("target_len")),
            ("0910 0006 03 01 05 0001 ff", FabricError::Utf8),
            ("0910 0006 03 01 05 0002 61", FabricError::Truncated),
            ("0910 0007 03 01 05 0001 6162", FabricError::Surplus),
        ] {
            assert_eq!(read(bytes), Err(error), "{bytes}");
        }
        let racks = |count: usize| read(&"0910 0009 03 02 06 0004 00000007".repeat(count));
        assert_eq!(racks(MAX_AFFINITIES), Ok(32));
        assert_eq!(racks(MAX_AFFINITIES + 1), Err(FabricError::Limit("affinities")));
    }
}
