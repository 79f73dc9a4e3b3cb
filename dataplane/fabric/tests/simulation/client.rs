//! Presenters: what each of them tries next, based on the answers so far.

use berth_identity::{Identity, link::Client as Link};
use berth_lease::LeaseId;
use berth_wire::fabric::{
    BindKind, BindingTlv, CapRequest, CapRevoke, CapabilityToken, FenceSet, FenceState, KeyListAsked, KeyRevoke,
    LeaseAlloc, LeaseBind, LeaseExport, LeaseExported, LeaseGrant, LeaseImport, LeaseImported, LeaseRef, LeaseRelocate,
    LeaseRenew, Op, Perms, RelocateMode, ResourceType, Rights, Status, TargetRuntime, Tlvs, Wire as _,
};
use fastrand::Rng;

use super::{stores::MEMORY, world::SLOT};

/// A lease that a client knows of: its own, or through a handle.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    pub id: u128,
    pub key: u64,
    pub generation: u64,
    pub slots: u64,
    pub own: bool,
}

/// A request that is not answered yet.
#[derive(Debug)]
pub struct Asked {
    pub request_id: u64,
    pub op: Op,
    pub params: Vec<u8>,
    pub tries: u32,
}

pub struct Client {
    pub link: Link,
    pub leases: Vec<Lease>,
    token: Option<Vec<u8>>,
    epoch: Option<u64>,
    pub asked: Option<Asked>,
    /// Number of tokens asked for and received.
    pub refused: u64,
    greed: Greed,
}

/// What a greedy client wants for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greed {
    None,
    /// It leases all it can and frees it again, and makes sure that much ends while it is worked on.
    Bytes,
    /// It exports and imports handles, as many as it may and more.
    Handles,
}

/// What clients tell each other.
#[derive(Debug, Default)]
pub struct Rumours {
    pub handles: Vec<(u128, Lease)>,
    pub tokens: Vec<u128>,
    /// The ids of everybody's keys.
    pub keys: Vec<u128>,
}

/// An operation, with its token and params.
pub type Plan = (Op, Vec<u8>, Vec<u8>);

impl Client {
    pub fn new(identity: Identity, greed: Greed, random: &mut Rng) -> Self {
        let link = Link::new(identity, 1_000_000, random.u64(..));
        Self { link, leases: Vec::new(), token: None, epoch: None, asked: None, refused: 0, greed }
    }

    pub fn is_hostile(&self) -> bool {
        self.greed != Greed::None
    }

    fn own(&self, random: &mut Rng) -> Option<Lease> {
        let own: Vec<&Lease> = self.leases.iter().filter(|lease| lease.own).collect();
        // Newer leases are likelier to live.
        let from = if random.u8(..) < 220 { own.len().saturating_sub(3) } else { 0 };
        (!own.is_empty()).then(|| *own[random.usize(from..own.len())])
    }

    /// The client's next operation.
    pub fn plan(&mut self, rumours: &Rumours, random: &mut Rng) -> Plan {
        let Some(token) = self.token.clone() else {
            if random.u8(..) < 20 {
                return (Op::SchedulerFenceGet, Vec::new(), Vec::new());
            }
            let audience = self.link.identity().id().0;
            let params = CapRequest { perms: Perms::ALL.bits(), ttl_secs: 300, audience, epoch: self.epoch };
            return (Op::CapRequest, Vec::new(), params.to_vec());
        };
        let of_lease = |lease: Option<Lease>, random: &mut Rng| lease.map_or(random.u128(..), |lease| lease.id);
        // Without a lease, only another's can be tried.
        let most = if self.leases.is_empty() { 40 } else { 100 };
        // Who hoards handles has little else in mind once it has a lease.
        let least = if self.greed == Greed::Handles && most == 100 && random.u8(..) < 160 { 44 } else { 0 };
        let next = match random.u8(least..most) {
            // An own lease is freed, or its token revoked, or it is copied.
            44.. if self.greed == Greed::Bytes => [44, 44, 58, 66, 66, 86][random.usize(0..6)],
            44.. if self.greed == Greed::Handles => [86, 86, 86, 86, 86, 90, 90, 96][random.usize(0..8)],
            next => next,
        };
        if let Some(lease) = self.own(random).filter(|_| self.greed == Greed::None && random.u8(..) < 64) {
            let params = LeaseBind { lease_id: lease.id, kind: BindKind::NvmeOf as u8, client: Tlvs::EMPTY };
            return (Op::LeaseBind, token, params.to_vec());
        }
        let (op, params) = match next {
            0..36 => {
                let kind = if random.bool() { ResourceType::Mem } else { ResourceType::Block };
                let slots = match (self.greed, kind) {
                    (Greed::Bytes, ResourceType::Mem) => {
                        [MEMORY, MEMORY - (1 << 20), MEMORY / 2][random.usize(0..3)] / SLOT
                    }
                    _ => random.u64(1..=40),
                };
                let params = LeaseAlloc {
                    duration_secs: random.u32(1..8),
                    grace_secs: random.u32(0..3),
                    resource_type: Some(kind),
                    requested_bytes: Some(SLOT * slots),
                    intents: Tlvs::EMPTY,
                };
                (Op::LeaseAlloc, params.to_vec())
            }
            36..44 => {
                let lease_id = of_lease(self.own(random), random);
                (Op::LeaseRenew, LeaseRenew { lease_id, duration_secs: random.u32(1..8) }.to_vec())
            }
            44..54 => (Op::LeaseFree, LeaseRef { lease_id: of_lease(self.own(random), random) }.to_vec()),
            54..58 => {
                // Another's lease: it may only be refused.
                let other =
                    (!rumours.handles.is_empty()).then(|| rumours.handles[random.usize(0..rumours.handles.len())].1);
                let op = if random.bool() { Op::LeaseFree } else { Op::LeaseRenew };
                let lease_id = of_lease(other, random);
                let params = LeaseRef { lease_id }.to_vec();
                (op, if op == Op::LeaseFree { params } else { LeaseRenew { lease_id, duration_secs: 5 }.to_vec() })
            }
            58..66 => {
                let own = CapabilityToken::parse(&token).expect("it came from the node").token_id;
                // The newest ones are in use.
                let tokens = &rumours.tokens[rumours.tokens.len().saturating_sub(4)..];
                let any = (!tokens.is_empty()).then(|| tokens[random.usize(0..tokens.len())]);
                let token_id = if random.bool() { own } else { any.unwrap_or(own) };
                (Op::CapRevoke, CapRevoke { token_id, ttl_secs: random.u32(0..600) }.to_vec())
            }
            66..86 => {
                let (Some(src), Some(dst)) = (self.own(random), self.own(random)) else {
                    return (Op::LeaseListActive, Vec::new(), Vec::new());
                };
                let mode = [RelocateMode::Copy, RelocateMode::Move, RelocateMode::CowSeed][random.usize(0..3)];
                let params =
                    LeaseRelocate { src_lease_id: src.key, dst_lease_id: dst.key, mode, preserve_until_ms: None };
                (Op::LeaseRelocate, params.to_vec())
            }
            86..90 => {
                let params = LeaseExport {
                    lease_id: self.own(random).map_or(1, |lease| lease.key),
                    target_runtime_kind: TargetRuntime::NativeService,
                    target_identity: 0,
                    rights: Rights::READ.or(Rights::WRITE),
                    ttl_secs: random.u32(1..20),
                };
                (Op::LeaseExportHandle, params.to_vec())
            }
            90..94 if !rumours.handles.is_empty() => {
                let export_handle = rumours.handles[random.usize(0..rumours.handles.len())].0;
                (Op::LeaseImportHandle, LeaseImport { export_handle }.to_vec())
            }
            94..95 => (Op::SchedulerFenceSet, FenceSet { new_epoch: self.epoch.unwrap_or(0) + 1 }.to_vec()),
            95..96 => (Op::SchedulerFenceGet, Vec::new()),
            96..98 => {
                let key_id = rumours.keys[random.usize(0..rumours.keys.len())];
                (Op::KeyRevoke, KeyRevoke { key_id, remove: random.u8(..) < 24 }.to_vec())
            }
            98..99 => (Op::KeyList, KeyListAsked { after: 0, max: 16 }.to_vec()),
            _ => (Op::LeaseListActive, Vec::new()),
        };
        (op, token, params)
    }

    /// Updates the client's knowledge from an answer.
    pub fn learn(&mut self, asked: &Asked, status: Status, result: &[u8], rumours: &mut Rumours) {
        match (asked.op, status) {
            (_, Status::InvalidToken | Status::StaleEpoch) => {
                self.token = None;
                self.refused += 1;
                if status == Status::StaleEpoch {
                    // Somebody has set a fence; the next FENCE_GET tells which.
                    self.epoch = None;
                }
            }
            (Op::CapRequest, Status::Ok) => {
                let token = CapabilityToken::parse(result).expect("a token").token_id;
                rumours.tokens.push(token);
                self.token = Some(result.to_vec());
            }
            (Op::SchedulerFenceGet, Status::Ok) => {
                let state = FenceState::parse(result).expect("a fence state");
                self.epoch = state.installed.then_some(state.epoch);
            }
            (Op::SchedulerFenceSet, Status::Ok) => {
                self.epoch = Some(FenceSet::parse(&asked.params).expect("it was sent").new_epoch);
                self.token = None;
            }
            (Op::LeaseAlloc, Status::Ok) => {
                let grant = LeaseGrant::parse(result).expect("a grant");
                let tlvs = || grant.bindings.iter().filter_map(|tlv| BindingTlv::read(tlv).expect("sound TLVs"));
                let generation =
                    tlvs().find_map(|tlv| if let BindingTlv::Generation(it) = tlv { Some(it) } else { None });
                let len =
                    tlvs().find_map(|tlv| if let BindingTlv::Limits { len, .. } = tlv { Some(len) } else { None });
                self.leases.push(Lease {
                    id: grant.lease_id,
                    key: LeaseId(grant.lease_id).key().0,
                    generation: generation.expect("0x0102"),
                    slots: len.expect("0x0104") / SLOT,
                    own: true,
                });
            }
            (Op::LeaseExportHandle, Status::Ok) => {
                let exported = LeaseExported::parse(result).expect("a handle");
                let key = LeaseExport::parse(&asked.params).expect("it was sent").lease_id;
                if let Some(lease) = self.leases.iter().find(|lease| lease.key == key) {
                    rumours.handles.push((exported.export_handle, Lease { own: false, ..*lease }));
                }
            }
            (Op::LeaseImportHandle, Status::Ok) => {
                let imported = LeaseImported::parse(result).expect("an attachment");
                let handle = LeaseImport::parse(&asked.params).expect("it was sent").export_handle;
                if let Some((_, lease)) = rumours.handles.iter().find(|(known, _)| *known == handle) {
                    self.leases.push(Lease { key: imported.local_attach_id, ..*lease });
                }
            }
            _ => {}
        }
    }
}
