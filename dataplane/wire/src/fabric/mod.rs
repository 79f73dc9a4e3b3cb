//! fabricBIOS v0: every frame, payload, TLV and status, big-endian. "Section" refers to the wire document; decisions
//! are the numbered ones of `docs/fabricbios-profile.md`.
//!
//! Parsing checks lengths, counts, versions, flag bits and tables. It allocates nothing and borrows the parts of
//! variable length. Each value has one encoding, so writing what was parsed gives the same bytes. Nothing here hashes
//! or signs: the `signed_bytes` functions return what a signature covers.
#![allow(clippy::doc_markdown)] // the documents' names of ops and TLVs

mod announce;
mod binding;
mod certificate;
mod codec;
mod codes;
pub mod data;
mod export;
mod frame;
mod gpu;
mod intent;
mod inventory;
mod lease;
pub(crate) mod macros;
mod node;
mod request;
mod solicit;
mod tasklet;
#[cfg(test)]
mod testing;
mod thermal;
mod tlv;
mod token;

pub use announce::{
    Announce, Endpoint, MAX_ADDR, MAX_ANNOUNCE, MAX_ANNOUNCE_TLVS, MAX_ENDPOINTS, MAX_RELAYED, Relayed, Withdraw,
    WithdrawDetail, WithdrawReason,
};
pub use binding::{BindKind, BindingTlv, ClientTlv, NvmeTransport, OfiAccess, OfiEndpoint, PciAddress};
pub use certificate::{CERT_DOMAIN, Certificate, MAX_EXTENSIONS, MAX_REVOKED, RevokeBroadcast};
pub use codec::{Bytes, FabricError, List, ListIter, Reader, ShortText, Text, Wire};
pub use codes::{EndpointKind, KeyStanding, LeaseStatus, MsgType, Op, Perms, ResourceFlags, ResourceType, Status};
pub use export::{
    Binding, LeaseExport, LeaseExported, LeaseImport, LeaseImported, LeaseRelocate, LeaseRelocated, MAX_REASON,
    RelocateMode, Relocation, Rights, TargetRuntime,
};
pub use frame::{
    FRAME_DOMAIN, Fragment, Frame, FrameFlags, FrameHeader, MAGIC, MAX_DATAGRAM_PAYLOAD, MAX_MESSAGE, VERSION,
};
pub use gpu::{GpuStatus, GpuSubmit, GpuSubmitted, MAX_ARGS, MAX_KERNEL_NAME};
pub use intent::{
    Affinity, AffinityCategory, AffinityStrength, AffinityTarget, IntentSharing, IntentTier, IntentTlv, Intents,
    KvCacheIntent, MAX_AFFINITIES, MAX_TARGET,
};
pub use inventory::{
    CpuIsolation, GpuAttachInfo, GpuExclusivity, InventoryTlv, MAX_ATTACH_DOMAINS, MAX_PREFERRED_TIERS,
    MAX_TRUST_DOMAIN, MemTierInfo, MemTierKind, NodeAffinityMeta, SupportedIsolation, TierFlags, TierShare,
};
pub use lease::{
    LeaseAlloc, LeaseBind, LeaseEntry, LeaseGrant, LeaseList, LeaseRef, LeaseRenew, LeaseRenewed, LeaseState,
    MAX_LISTED,
};
pub use node::{
    CapRefresh, CapRequest, CapRevoke, Enroll, FenceSet, FenceState, Identity, Inventory, KeyEntry, KeyList,
    KeyListAsked, KeyRevoke, KeyRevoked, MAX_KEYS, MAX_RESOURCES, Pong, ResourceSummary, SvcTcpBind, SvcTcpGrant,
    SvcTcpQuery, SvcTcpState,
};
pub use request::{Presenter, REQUEST_DOMAIN, Request, Response};
pub use solicit::{Filter, FilterField, FilterOp, MAX_FILTERS, QUERY_INVENTORY, Solicit};
pub use tasklet::{
    CapEntry, LogRecord, MAX_CAPS, MAX_LOG, MAX_LOGS, TaskletAffinity, TaskletInput, TaskletLeaseAlloc,
    TaskletLeaseFree, TaskletLeaseGrant, TaskletLimits, TaskletLogs, TaskletOutput, TaskletRef, TaskletRights,
    TaskletState, TaskletStatus, TaskletSubmit, TaskletSubmitted,
};
pub use thermal::{MilliCelsius, SensorStatus, Thermal};
pub use tlv::{Tlv, Tlv8, Tlvs};
pub use token::{
    CAP_DOMAIN, CLOCK_SKEW, CapabilityToken, Caveat, Caveats, LINK_DOMAIN, Link, MAX_CAVEATS, MAX_LINKS, MAX_TOKEN,
    MAX_TOKEN_TTL, TOKEN_VERSION,
};

/// Size of an Ed25519 signature in bytes.
pub const SIGNATURE_LEN: usize = 64;
