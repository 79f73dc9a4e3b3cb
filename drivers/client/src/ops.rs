//! The operations, with typed arguments and results.

use berth_identity::NodeId;
use berth_wire::fabric::{
    BindKind, CapRefresh, CapRequest, CapRevoke, Certificate, Enroll, FenceSet, FenceState, Identity, Inventory,
    KeyEntry, KeyList, KeyListAsked, KeyRevoke, KeyRevoked, LeaseAlloc, LeaseBind, LeaseEntry, LeaseExport,
    LeaseExported, LeaseImport, LeaseImported, LeaseList, LeaseRef, LeaseRelocate, LeaseRelocated, LeaseRenew,
    LeaseRenewed, LeaseState, Op, Perms, Pong, RelocateMode, Relocation, ResourceSummary, ResourceType,
    RevokeBroadcast, SvcTcpBind, SvcTcpGrant, SvcTcpQuery, SvcTcpState, Thermal, Tlvs, Wire as _,
};

use crate::{Client, Error, Grant, Token};

/// Arguments of LEASE_ALLOC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alloc {
    /// The resource to lease from; 0 for any of the type.
    pub resource: u128,
    /// MEM or BLOCK, for example.
    pub kind: ResourceType,
    /// Size in bytes; 0 for the node's default, and for what is leased one by one.
    pub bytes: u64,
    /// Seconds for which the lease is active.
    pub duration_secs: u32,
    /// Seconds after that in which it can still be renewed.
    pub grace_secs: u32,
    /// Encoded intent TLVs (0x09xx); may be empty.
    pub intents: Vec<u8>,
}

impl Alloc {
    /// Asks for memory, without intents.
    pub fn memory(bytes: u64, duration_secs: u32) -> Self {
        let kind = ResourceType::Mem;
        Self { resource: 0, kind, bytes, duration_secs, grace_secs: 0, intents: Vec::new() }
    }

    /// Asks for a virtual function.
    pub fn function(duration_secs: u32) -> Self {
        Self { kind: ResourceType::Net, ..Self::memory(0, duration_secs) }
    }

    /// Asks for memory of a GPU, without intents.
    pub fn gpu(bytes: u64, duration_secs: u32) -> Self {
        Self { kind: ResourceType::Gpu, ..Self::memory(bytes, duration_secs) }
    }

    /// Asks for blocks, without intents.
    pub fn block(bytes: u64, duration_secs: u32) -> Self {
        Self { kind: ResourceType::Block, ..Self::memory(bytes, duration_secs) }
    }
}

pub use berth_wire::fabric::LeaseExported as Exported;

/// Result of a relocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// Number of bytes copied.
    pub bytes: u64,
    /// The reason, if it failed.
    pub failed: Option<String>,
}

impl Client {
    /// Uptime of the node in seconds.
    pub async fn ping(&self) -> Result<u64, Error> {
        let result = self.call(Op::Ping, 0, None, &[]).await?;
        Ok(Pong::parse(&result)?.uptime_secs)
    }

    /// Id and public key of the node.
    pub async fn node_identity(&self) -> Result<Identity, Error> {
        Ok(Identity::parse(&self.call(Op::GetIdentity, 0, None, &[]).await?)?)
    }

    /// The node's resources.
    pub async fn inventory(&self) -> Result<Vec<ResourceSummary>, Error> {
        let result = self.call(Op::GetInventory, 0, None, &[]).await?;
        Ok(Inventory::parse(&result)?.iter().collect())
    }

    /// Temperatures of the node, as far as it has sensors.
    pub async fn thermal(&self) -> Result<Thermal, Error> {
        Ok(Thermal::parse(&self.call(Op::GetThermal, 0, None, &[]).await?)?)
    }

    /// Asks a node with open enrolment to enrol this key; returns the node's certificate. Over UDP only.
    pub async fn enroll(&self) -> Result<Vec<u8>, Error> {
        let key = self.identity().public_key();
        let params = Enroll { node_id: key.id().0, public_key: *key.as_bytes() };
        let certificate = self.call(Op::EnrollRequest, 0, None, &params.to_vec()).await?;
        Certificate::parse(&certificate)?;
        Ok(certificate)
    }

    /// Asks for a token for this client and `resource` (0: any), valid for `ttl_secs` (at most 300). `epoch` is the
    /// scheduler's; it is needed if the node has a fence.
    pub async fn cap_request(
        &self,
        perms: Perms,
        ttl_secs: u32,
        resource: u128,
        epoch: Option<u64>,
    ) -> Result<Token, Error> {
        self.cap_request_for(self.identity().id(), perms, ttl_secs, resource, epoch).await
    }

    /// Asks for a token that `audience` will hold.
    pub async fn cap_request_for(
        &self,
        audience: NodeId,
        perms: Perms,
        ttl_secs: u32,
        resource: u128,
        epoch: Option<u64>,
    ) -> Result<Token, Error> {
        let params = CapRequest { perms: perms.bits(), ttl_secs, audience: audience.0, epoch };
        Ok(Token::from_bytes(self.call(Op::CapRequest, resource, None, &params.to_vec()).await?)?)
    }

    /// Asks for a new token with the same rights, valid for `ttl_secs` from now.
    pub async fn cap_refresh(&self, token: &Token, ttl_secs: u32) -> Result<Token, Error> {
        let params = CapRefresh { ttl_secs };
        Ok(Token::from_bytes(self.call(Op::CapRefresh, 0, Some(token), &params.to_vec()).await?)?)
    }

    /// Revokes a token and every lease allocated with it. Returns until when the node remembers the revocation, in Unix
    /// seconds. `token` must permit REVOKE.
    pub async fn cap_revoke(&self, token: &Token, token_id: u128, ttl_secs: u32) -> Result<u64, Error> {
        let params = CapRevoke { token_id, ttl_secs };
        let result = self.call(Op::CapRevoke, 0, Some(token), &params.to_vec()).await?;
        Ok(RevokeBroadcast::parse(&result)?.until)
    }

    /// Revokes all tokens and leases of a key and, with `remove`, its enrolment for good. `token` must permit ADMIN.
    pub async fn key_revoke(&self, token: &Token, key: NodeId, remove: bool) -> Result<KeyRevoked, Error> {
        let params = KeyRevoke { key_id: key.0, remove };
        Ok(KeyRevoked::parse(&self.call(Op::KeyRevoke, 0, Some(token), &params.to_vec()).await?)?)
    }

    /// Every key that the node knows or has removed, by ascending ids. `token` must permit ADMIN.
    pub async fn key_list(&self, token: &Token) -> Result<Vec<KeyEntry>, Error> {
        let mut keys: Vec<KeyEntry> = Vec::new();
        loop {
            let after = keys.last().map_or(0, |last| last.key_id);
            let params = KeyListAsked { after, max: u16::MAX };
            let result = self.call(Op::KeyList, 0, Some(token), &params.to_vec()).await?;
            let page = KeyList::parse(&result)?;
            let before = keys.len();
            keys.extend(page.keys.iter());
            if !page.more || keys.len() == before {
                return Ok(keys);
            }
        }
    }

    /// Installs a scheduler's epoch. `token` must permit ADMIN.
    pub async fn fence_set(&self, token: &Token, new_epoch: u64) -> Result<(), Error> {
        self.call(Op::SchedulerFenceSet, 0, Some(token), &FenceSet { new_epoch }.to_vec()).await.map(drop)
    }

    /// The installed epoch, if there is one.
    pub async fn fence_get(&self) -> Result<FenceState, Error> {
        Ok(FenceState::parse(&self.call(Op::SchedulerFenceGet, 0, None, &[]).await?)?)
    }

    /// Allocates a lease; its bytes are zero.
    pub async fn lease_alloc(&self, token: &Token, alloc: &Alloc) -> Result<Grant, Error> {
        let params = LeaseAlloc {
            duration_secs: alloc.duration_secs,
            grace_secs: alloc.grace_secs,
            resource_type: Some(alloc.kind),
            requested_bytes: (alloc.bytes > 0).then_some(alloc.bytes),
            intents: Tlvs::parse(&alloc.intents)?,
        };
        let result = self.call(Op::LeaseAlloc, alloc.resource, Some(token), &params.to_vec()).await?;
        Ok(Grant::parse(&result)?)
    }

    /// Extends a lease to `duration_secs` from now; returns the new expiry in Unix seconds.
    pub async fn lease_renew(&self, token: &Token, lease_id: u128, duration_secs: u32) -> Result<u64, Error> {
        let params = LeaseRenew { lease_id, duration_secs };
        let result = self.call(Op::LeaseRenew, 0, Some(token), &params.to_vec()).await?;
        Ok(LeaseRenewed::parse(&result)?.expires_at)
    }

    /// Ends a lease.
    pub async fn lease_free(&self, lease_id: u128) -> Result<(), Error> {
        self.call(Op::LeaseFree, 0, None, &LeaseRef { lease_id }.to_vec()).await.map(drop)
    }

    /// State and expiry of a lease.
    pub async fn lease_query(&self, lease_id: u128) -> Result<LeaseState, Error> {
        let result = self.call(Op::LeaseQuery, 0, None, &LeaseRef { lease_id }.to_vec()).await?;
        Ok(LeaseState::parse(&result)?)
    }

    /// Every active lease of the node.
    pub async fn lease_list(&self) -> Result<Vec<LeaseEntry>, Error> {
        let result = self.call(Op::LeaseListActive, 0, None, &[]).await?;
        Ok(LeaseList::parse(&result)?.iter().collect())
    }

    /// Connects a lease over another transport. `peer` has the encoded TLVs of the client; returns those of the
    /// binding.
    pub async fn lease_bind(
        &self,
        token: &Token,
        lease_id: u128,
        kind: BindKind,
        peer: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let params = LeaseBind { lease_id, kind: kind.code(), client: Tlvs::parse(peer)? };
        self.call(Op::LeaseBind, 0, Some(token), &params.to_vec()).await
    }

    /// Makes a handle to a lease for another runtime.
    pub async fn lease_export(&self, export: &LeaseExport) -> Result<LeaseExported, Error> {
        Ok(LeaseExported::parse(&self.call(Op::LeaseExportHandle, 0, None, &export.to_vec()).await?)?)
    }

    /// Attaches to a lease by its handle.
    pub async fn lease_import(&self, export_handle: u128) -> Result<LeaseImported, Error> {
        let params = LeaseImport { export_handle };
        Ok(LeaseImported::parse(&self.call(Op::LeaseImportHandle, 0, None, &params.to_vec()).await?)?)
    }

    /// Copies or moves the bytes of one lease to another; both are named by their keys. The bytes of a moved source are
    /// not leased again until `preserve_until_ms`, in milliseconds since the Unix epoch.
    pub async fn lease_relocate(
        &self,
        src: u64,
        dst: u64,
        mode: RelocateMode,
        preserve_until_ms: Option<u64>,
    ) -> Result<Relocated, Error> {
        let params = LeaseRelocate { src_lease_id: src, dst_lease_id: dst, mode, preserve_until_ms };
        let result = self.call(Op::LeaseRelocate, 0, None, &params.to_vec()).await?;
        let LeaseRelocated { bytes_transferred, outcome } = LeaseRelocated::parse(&result)?;
        let failed = match outcome {
            Relocation::Failed { reason } => Some(reason.get().to_string()),
            Relocation::Complete | Relocation::InProgress => None,
        };
        Ok(Relocated { bytes: bytes_transferred, failed })
    }

    /// Leases a TCP proxy on the node, which forwards to one of the node's local ports.
    pub async fn svc_tcp_bind(&self, token: &Token, backend_port: u16, secs: u32) -> Result<SvcTcpGrant, Error> {
        let params = SvcTcpBind { duration_secs: secs, backend_port };
        let result = self.call(Op::SvcTcpBind, 0, Some(token), &params.to_vec()).await?;
        Ok(SvcTcpGrant::parse(&result)?)
    }

    /// State of such a proxy.
    pub async fn svc_tcp_query(&self, lease_id: u128) -> Result<SvcTcpState, Error> {
        let result = self.call(Op::SvcTcpQuery, 0, None, &SvcTcpQuery { lease_id }.to_vec()).await?;
        Ok(SvcTcpState::parse(&result)?)
    }
}
