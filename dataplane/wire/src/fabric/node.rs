//! Params and results of operations on a node: identity, inventory, keys, tokens, fences, TCP proxies. PING, GET_*,
//! SCHEDULER_FENCE_GET and LEASE_LIST_ACTIVE have empty params.

use super::{
    KeyStanding, LeaseStatus, ResourceFlags,
    codec::{FabricError, List, Reader, Wire},
    macros::wire,
};

/// Limit on the resources of an inventory or an announcement.
pub const MAX_RESOURCES: usize = 1024;

/// Limit on the keys in one answer to KEY_LIST.
pub const MAX_KEYS: usize = 1024;

wire! {
    /// Result of PING.
    pub struct Pong {
        /// Seconds since the node started.
        pub uptime_secs: u64,
    }

    /// Result of GET_IDENTITY.
    pub struct Identity {
        /// Id of the node's key: the first 16 bytes of its SHA-256.
        pub node_id: u128,
        /// The node's Ed25519 key. It signs tokens, certificates, announcements and the TLS certificate (decision 26).
        pub controller_pubkey: [u8; 32],
    }

    /// Params of ENROLL_REQUEST; the result is a [`super::Certificate`].
    pub struct Enroll {
        /// Id of the key to enrol: the first 16 bytes of its SHA-256.
        pub node_id: u128,
        /// The Ed25519 key to enrol; it also signs the request (decision 2).
        pub public_key: [u8; 32],
    }

    /// Params of CAP_REFRESH. The request carries the token to refresh; the result is the new token.
    pub struct CapRefresh {
        /// Seconds from now; more than [`super::MAX_TOKEN_TTL`] is cut to it.
        pub ttl_secs: u32,
    }

    /// Params of CAP_REVOKE; the result is a [`super::RevokeBroadcast`].
    pub struct CapRevoke {
        /// `token_id` of the token to revoke.
        pub token_id: u128,
        /// Seconds for which the revocation is remembered; less than 300 counts as 300 (decision 12).
        pub ttl_secs: u32,
    }

    /// Params of KEY_REVOKE.
    pub struct KeyRevoke {
        /// Id of the key whose tokens and leases end.
        pub key_id: u128,
        /// Whether to end the key's enrolment too, for good.
        pub remove: bool,
    }

    /// Result of KEY_REVOKE.
    pub struct KeyRevoked {
        /// Tokens issued before are remembered as revoked until this time, in seconds since the Unix epoch.
        pub until: u64,
        /// Number of leases that ended.
        pub leases: u32,
    }

    /// Params of KEY_LIST.
    pub struct KeyListAsked {
        /// Returns only keys with higher ids; 0 for the first page.
        pub after: u128,
        /// Limit on the keys returned; more than [`MAX_KEYS`] is cut, 0 is INVALID_PARAMS.
        pub max: u16,
    }

    /// One key in KEY_LIST's result: 49 bytes.
    pub struct KeyEntry {
        /// The first 16 bytes of the key's SHA-256.
        pub key_id: u128,
        /// The Ed25519 key; zeros if only the id is remembered.
        pub public_key: [u8; 32],
        /// How the key came to be known, and whether it is served.
        pub standing: KeyStanding,
    }

    /// Params of SCHEDULER_FENCE_SET; the result is empty.
    pub struct FenceSet {
        /// Must exceed the installed epoch (STALE_EPOCH), and not be 0.
        pub new_epoch: u64,
    }

    /// Result of SCHEDULER_FENCE_GET.
    pub struct FenceState {
        /// False until the first SCHEDULER_FENCE_SET.
        pub installed: bool,
        /// The installed epoch; 0 if there is none.
        pub epoch: u64,
    }

    /// Params of SVC_TCP_BIND.
    pub struct SvcTcpBind {
        /// Lifetime of the proxy and its lease, in seconds.
        pub duration_secs: u32,
        /// Local TCP port that the proxy connects to.
        pub backend_port: u16,
    }

    /// Result of SVC_TCP_BIND.
    pub struct SvcTcpGrant {
        /// The proxy stops when this lease ends.
        pub lease_id: u128,
        /// When the lease expires, in seconds since the Unix epoch.
        pub expires_at: u64,
        /// TCP port at 127.0.0.1 that the proxy listens on.
        pub ingress_port: u16,
    }

    /// Params of SVC_TCP_QUERY.
    pub struct SvcTcpQuery {
        /// From the result of SVC_TCP_BIND.
        pub lease_id: u128,
    }

    /// Result of SVC_TCP_QUERY.
    pub struct SvcTcpState {
        /// State of the proxy's lease.
        pub status: LeaseStatus,
        /// When the lease expires or expired, in seconds since the Unix epoch.
        pub expires_at: u64,
        /// TCP port that the proxy listens on; 0 if it no longer does.
        pub ingress_port: u16,
    }

    /// One resource in an inventory or announcement: 36 bytes.
    pub struct ResourceSummary {
        /// Names the resource in requests and tokens.
        pub resource_id: u128,
        /// A [`super::ResourceType`] code. Kept as a number: newer nodes may send others.
        pub resource_type: u16,
        /// FENCED and DEGRADED.
        pub flags: ResourceFlags,
        /// Total size: bytes for MEM and BLOCK, otherwise units of the resource's own kind.
        pub capacity: u64,
        /// The part of `capacity` that can be leased now.
        pub available: u64,
    }
}

wire! {
    /// Result of KEY_LIST.
    pub struct KeyList<'w> {
        /// Whether there are keys with higher ids than the last one here.
        pub more: bool,
        /// In ascending order of their ids.
        pub keys: List<'w, KeyEntry, MAX_KEYS>,
    }
}

/// Result of GET_INVENTORY.
pub type Inventory<'a> = List<'a, ResourceSummary, MAX_RESOURCES>;

/// Params of CAP_REQUEST: 24 bytes, 32 with the epoch trailer. The result is a [`super::CapabilityToken`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapRequest {
    /// [`super::Perms`] bits; others are answered INSUFFICIENT_PERM (decision 8).
    pub perms: u32,
    /// Seconds from now; more than [`super::MAX_TOKEN_TTL`] is cut to it, 0 is INVALID_PARAMS.
    pub ttl_secs: u32,
    /// Id of the key that may use the token.
    pub audience: u128,
    /// The scheduler's epoch; must equal the installed fence. Ignored if none is installed.
    pub epoch: Option<u64>,
}

impl<'a> Wire<'a> for CapRequest {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        Ok(Self {
            perms: from.get()?,
            ttl_secs: from.get()?,
            audience: from.get()?,
            epoch: if from.remaining() == 0 { None } else { Some(from.get()?) },
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.perms.write(to);
        self.ttl_secs.write(to);
        self.audience.write(to);
        if let Some(epoch) = self.epoch {
            epoch.write(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, exact_but, hex},
        *,
    };

    const NINE: &str = "00000000000000000000000000000009";

    #[test]
    fn node_ops_are_laid_out_as_documented() {
        exact(&Pong { uptime_secs: 5 }, "0000000000000005");
        let key = "ab".repeat(32);
        exact(&Identity { node_id: 9, controller_pubkey: [0xAB; 32] }, &format!("{NINE} {key}"));
        exact(&Enroll { node_id: 9, public_key: [0xAB; 32] }, &format!("{NINE} {key}"));
        exact(&FenceSet { new_epoch: 3 }, "0000000000000003");
        exact(&FenceState { installed: true, epoch: 3 }, "01 0000000000000003");
        assert!(FenceState::parse(&hex("02 0000000000000003")).is_err());
    }

    #[test]
    fn token_ops_are_laid_out_as_documented() {
        let request = CapRequest { perms: 0x80, ttl_secs: 60, audience: 9, epoch: None };
        exact(&request, &format!("00000080 0000003c {NINE}"));
        let with_epoch = CapRequest { epoch: Some(2), ..request };
        exact_but(&with_epoch, &format!("00000080 0000003c {NINE} 0000000000000002"), &[24]);
        exact(&CapRefresh { ttl_secs: 60 }, "0000003c");
        exact(&CapRevoke { token_id: 9, ttl_secs: 60 }, &format!("{NINE} 0000003c"));
    }

    #[test]
    fn key_ops_are_laid_out_as_documented() {
        exact(&KeyRevoke { key_id: 9, remove: true }, &format!("{NINE} 01"));
        exact(&KeyRevoked { until: 5, leases: 3 }, "0000000000000005 00000003");
        exact(&KeyListAsked { after: 9, max: 3 }, &format!("{NINE} 0003"));
        let entry = KeyEntry { key_id: 9, public_key: [0xAB; 32], standing: KeyStanding::Enrolled };
        let keys = [entry];
        let list = KeyList { more: true, keys: List::of(&keys).unwrap() };
        exact(&list, &format!("01 0001 {NINE} {} 02", "ab".repeat(32)));
    }

    #[test]
    fn proxies_are_laid_out_as_documented() {
        exact(&SvcTcpBind { duration_secs: 60, backend_port: 8080 }, "0000003c 1f90");
        let grant = SvcTcpGrant { lease_id: 9, expires_at: 7, ingress_port: 8080 };
        exact(&grant, &format!("{NINE} 0000000000000007 1f90"));
        exact(&SvcTcpQuery { lease_id: 9 }, NINE);
        let state = SvcTcpState { status: LeaseStatus::Revoked, expires_at: 7, ingress_port: 0 };
        exact(&state, "02 0000000000000007 0000");
    }

    #[test]
    fn an_inventory_is_a_list_of_36_byte_summaries() {
        let memory = ResourceSummary {
            resource_id: 9,
            resource_type: 2,
            flags: ResourceFlags::DEGRADED,
            capacity: 0x1000,
            available: 0x800,
        };
        let entry = format!("{NINE} 0002 0002 0000000000001000 0000000000000800");
        assert_eq!(hex(&entry).len(), 36);
        exact(&Inventory::of(&[memory]).unwrap(), &format!("0001 {entry}"));
        let reserved = format!("0001 {NINE} 0002 0004 0000000000001000 0000000000000800");
        assert_eq!(Inventory::parse(&hex(&reserved)), Err(FabricError::Flags("ResourceFlags")));
    }
}
