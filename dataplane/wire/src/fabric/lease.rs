//! Params and results of the LEASE operations.

use super::{
    LeaseStatus, ResourceType,
    codec::{FabricError, List, Reader, Wire},
    macros::wire,
    tlv::Tlvs,
};

/// Limit on the leases of one LEASE_LIST_ACTIVE: as many as a message of [`super::MAX_MESSAGE`] bytes can hold.
pub const MAX_LISTED: usize = 16_383;

/// Params of LEASE_ALLOC: 8, 10 or 18 bytes; TLVs may follow only the 18-byte form (profile, "Payloads").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseAlloc<'a> {
    /// Seconds for which the lease grants access; not 0.
    pub duration_secs: u32,
    /// Seconds after that in which it can still be renewed.
    pub grace_secs: u32,
    /// MEM if left out.
    pub resource_type: Option<ResourceType>,
    /// Size in bytes, not 0. The node's default if left out. Needs a resource type.
    pub requested_bytes: Option<u64>,
    /// Intent TLVs, read by [`super::Intents`]. They need `requested_bytes`.
    pub intents: Tlvs<'a>,
}

impl<'a> Wire<'a> for LeaseAlloc<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let (duration_secs, grace_secs) = (from.get()?, from.get()?);
        let resource_type = if from.remaining() == 0 { None } else { Some(from.get()?) };
        let requested_bytes = if from.remaining() == 0 { None } else { Some(from.get()?) };
        if duration_secs == 0 {
            return Err(FabricError::Value("duration_secs (not 0)"));
        }
        if requested_bytes == Some(0) {
            return Err(FabricError::Value("requested_bytes (not 0)"));
        }
        Ok(Self { duration_secs, grace_secs, resource_type, requested_bytes, intents: from.get()? })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.duration_secs.write(to);
        self.grace_secs.write(to);
        let Some(resource_type) = self.resource_type else { return };
        resource_type.write(to);
        let Some(requested_bytes) = self.requested_bytes else { return };
        requested_bytes.write(to);
        self.intents.write(to);
    }
}

wire! {
    /// Result of LEASE_ALLOC.
    pub struct LeaseGrant<'a> {
        /// Random; its low 64 bits are unique on the node and not 0.
        pub lease_id: u128,
        /// When the lease expires, in seconds since the Unix epoch.
        pub expires_at: u64,
        /// Binding TLVs, read by [`super::BindingTlv`].
        pub bindings: Tlvs<'a>,
    }

    /// Params of LEASE_BIND; the result is the TLVs of the binding.
    pub struct LeaseBind<'a> {
        /// A lease of the presenter.
        pub lease_id: u128,
        /// A [`super::BindKind`] code.
        pub kind: u8,
        /// TLVs about the client, read by [`super::ClientTlv`].
        pub client: Tlvs<'a>,
    }
}

wire! {
    /// Params of LEASE_RENEW.
    pub struct LeaseRenew {
        /// A lease of the presenter, active or in its grace.
        pub lease_id: u128,
        /// Seconds from now, not from the old expiry.
        pub duration_secs: u32,
    }

    /// Result of LEASE_RENEW.
    pub struct LeaseRenewed {
        /// The new expiry, in seconds since the Unix epoch.
        pub expires_at: u64,
    }

    /// Params of LEASE_FREE and LEASE_QUERY. The result of LEASE_FREE is empty.
    pub struct LeaseRef {
        /// Full id of the lease.
        pub lease_id: u128,
    }

    /// Result of LEASE_QUERY.
    pub struct LeaseState {
        /// ACTIVE, EXPIRED (in its grace) or REVOKED.
        pub status: LeaseStatus,
        /// When the lease expires or expired, in seconds since the Unix epoch.
        pub expires_at: u64,
    }

    /// One lease in LEASE_LIST_ACTIVE's result: 64 bytes.
    pub struct LeaseEntry {
        /// Full id of the lease.
        pub lease_id: u128,
        /// The resource that the lease is part of.
        pub resource_id: u128,
        /// Id of the key that holds the lease.
        pub holder: u128,
        /// Seconds since the Unix epoch.
        pub expires_at: u64,
        /// Size of the lease in bytes.
        pub alloc_bytes: u64,
    }
}

/// Result of LEASE_LIST_ACTIVE: the active leases, in no particular order.
pub type LeaseList<'a> = List<'a, LeaseEntry, MAX_LISTED>;

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, exact_but, hex},
        *,
    };

    const NINE: &str = "00000000000000000000000000000009";

    #[test]
    fn allocations_have_three_prefixes_and_then_tlvs() {
        let short = LeaseAlloc {
            duration_secs: 60,
            grace_secs: 5,
            resource_type: None,
            requested_bytes: None,
            intents: Tlvs::EMPTY,
        };
        exact(&short, "0000003c 00000005");
        let typed = LeaseAlloc { resource_type: Some(ResourceType::Block), ..short };
        exact_but(&typed, "0000003c 00000005 0003", &[8]);
        let sized = LeaseAlloc { requested_bytes: Some(4096), ..typed };
        exact_but(&sized, "0000003c 00000005 0003 0000000000001000", &[8, 10]);
        let intents = hex("0902 0001 01");
        let hinted = LeaseAlloc { intents: Tlvs::parse(&intents).unwrap(), ..sized };
        exact_but(&hinted, "0000003c 00000005 0003 0000000000001000 0902 0001 01", &[8, 10, 18]);
        for (bytes, field) in [
            ("00000000 00000005", "duration_secs (not 0)"),
            ("0000003c 00000005 0003 0000000000000000", "requested_bytes (not 0)"),
            ("0000003c 00000005 0006", "ResourceType"),
        ] {
            assert_eq!(LeaseAlloc::parse(&hex(bytes)), Err(FabricError::Value(field)), "{bytes}");
        }
    }

    #[test]
    fn lease_ops_are_laid_out_as_documented() {
        let bindings = hex("0102 0008 0000000000000001");
        let grant = LeaseGrant { lease_id: 9, expires_at: 7, bindings: Tlvs::parse(&bindings).unwrap() };
        exact_but(&grant, &format!("{NINE} 0000000000000007 0102 0008 0000000000000001"), &[24]);
        let bind = LeaseBind { lease_id: 9, kind: 2, client: Tlvs::EMPTY };
        exact(&bind, &format!("{NINE} 02"));
        exact(&LeaseRenew { lease_id: 9, duration_secs: 60 }, &format!("{NINE} 0000003c"));
        exact(&LeaseRenewed { expires_at: 7 }, "0000000000000007");
        exact(&LeaseRef { lease_id: 9 }, NINE);
        exact(&LeaseState { status: LeaseStatus::Expired, expires_at: 7 }, "01 0000000000000007");
    }

    #[test]
    fn a_listed_lease_has_64_bytes() {
        let entry = LeaseEntry { lease_id: 9, resource_id: 8, holder: 7, expires_at: 6, alloc_bytes: 5 };
        let eight = "00000000000000000000000000000008";
        let bytes = format!("{NINE} {eight} 00000000000000000000000000000007 0000000000000006 0000000000000005");
        assert_eq!(hex(&bytes).len(), 64);
        exact(&LeaseList::of(&[entry]).unwrap(), &format!("0001 {bytes}"));
        exact(&LeaseList::EMPTY, "0000");
        assert_eq!(LeaseList::parse(&hex("4000")), Err(FabricError::Limit("list")));
    }
}
