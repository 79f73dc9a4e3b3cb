//! This node's own announcements.

use berth_port::Now;
use berth_wire::fabric::{
    Announce, Endpoint, List, MAX_ANNOUNCE_TLVS, MAX_ENDPOINTS, MAX_RESOURCES, Text, Tlvs, Wire as _, WithdrawReason,
};

use super::{ANNOUNCE_TTL_SECS, Relay, STEPS_PER_REQUEST, Search};
use crate::{Host, Node};

impl<H: Host> Node<H> {
    /// Payload of an ANNOUNCE with this node's present state, newer than all before.
    pub fn announcement(&mut self, now: Now) -> Vec<u8> {
        let addresses: Vec<_> = self.config.endpoints.iter().map(|(kind, addr)| (*kind, addr.to_string())).collect();
        let endpoints: Vec<_> = addresses
            .iter()
            .filter_map(|(kind, addr)| Some(Endpoint { kind: kind.code(), addr: Text::of(addr).ok()? }))
            .take(MAX_ENDPOINTS)
            .collect();
        let mut resources = self.resources();
        resources.truncate(MAX_RESOURCES);
        let tlvs = self.inventory_tlvs();
        let tlvs: Vec<_> = Tlvs::parse(&tlvs).unwrap_or_default().iter().take(MAX_ANNOUNCE_TLVS).collect();
        let announce = Announce {
            node_id: self.id(),
            sequence: 0,
            ttl_secs: ANNOUNCE_TTL_SECS,
            site: self.config.site,
            row: self.config.row,
            rack: self.config.rack,
            locality_custom: [0; 32],
            endpoints: List::of(&endpoints).unwrap_or_default(),
            resources: List::of(&resources).unwrap_or_default(),
            tlvs: List::of(&tlvs).unwrap_or_default(),
        };
        self.discovery.announcement(announce, self.clock.unix(now.mono))
    }

    /// Payload of a WITHDRAW of this node, newer than all its announcements.
    pub fn withdrawal(&mut self, reason: WithdrawReason, now: Now) -> Vec<u8> {
        self.discovery.withdrawal(self.id(), reason, self.clock.unix(now.mono))
    }

    /// Begins to answer a SOLICIT; see [`Discovery::begin`](super::Discovery::begin). `signed_by` is the sender of a
    /// signed one. It counts towards that sender's rate limit, a costly one as several requests; over the limit there
    /// is no answer.
    pub fn solicit(
        &mut self,
        payload: &[u8],
        signed_by: Option<u128>,
        relay: Option<&Relay>,
        now: Now,
    ) -> Option<Search> {
        if signed_by.is_some_and(|sender| !self.admit(sender, now)) {
            return None;
        }
        let own = self.announcement(now);
        let search = self.discovery.begin(payload, signed_by.is_some(), own, relay, now.mono)?;
        if let Some(sender) = signed_by {
            self.charge(sender, (search.work() / STEPS_PER_REQUEST) as usize, now);
        }
        Some(search)
    }

    /// Ends the answer to a SOLICIT; see [`Discovery::end`](super::Discovery::end).
    pub fn answer_solicit(&mut self, search: Search, relay: Option<&mut Relay>) -> Option<Vec<u8>> {
        self.discovery.end(search, relay)
    }

    /// Begins, searches and ends in one call.
    pub fn solicited(
        &mut self,
        payload: &[u8],
        signed_by: Option<u128>,
        relay: Option<&mut Relay>,
        now: Now,
    ) -> Option<Vec<u8>> {
        let mut search = self.solicit(payload, signed_by, relay.as_deref(), now)?;
        while !search.step() {}
        self.answer_solicit(search, relay)
    }
}
