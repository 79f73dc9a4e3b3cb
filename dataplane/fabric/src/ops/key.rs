//! Revocation by key: KEY_REVOKE and KEY_LIST (0x020E and 0x020F of our profile).

use berth_identity::{HolderRevoked, Known, NodeId, Revocations};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    KeyEntry, KeyList, KeyListAsked, KeyRevoke, KeyRevoked, KeyStanding, List, MAX_KEYS, Perms, Status, Wire as _,
};

use super::{Reply, TimedRequest, params, wall_secs};
use crate::{host::Host, journal::Record, node::Node, request::Outcome, tasklet::Why};

impl<H: Host> Node<H> {
    pub(super) fn key_revoke(&mut self, ask: &TimedRequest<'_>) -> Reply {
        self.verify_for_node(ask, Perms::ADMIN)?;
        let KeyRevoke { key_id, remove } = params(ask)?;
        if key_id == self.id() {
            return Err(Status::InvalidParams);
        }
        let mut outcome = Outcome::default();
        if remove {
            self.keys.remove(NodeId(key_id)).map_err(|_| Status::CapacityExceeded)?;
            outcome.journal.push(Record::Unenrolled { key: key_id });
            outcome.effects.unenrolled = true;
        }
        let (until, leases) = self.revoke_holder(key_id, ask.now, &mut outcome)?;
        outcome.answer.result = KeyRevoked { until, leases }.to_vec();
        Ok(outcome.into())
    }

    /// Revokes every token that a presenter may hold, and ends its leases and attachments. Returns until when the
    /// tokens are remembered, and the number of leases.
    fn revoke_holder(&mut self, holder: u128, now: Now, outcome: &mut Outcome) -> Result<(u64, u32), Status> {
        let wall = wall_secs(now);
        // The host's clock may be behind what it was when tokens were issued, in this run or before.
        let latest = wall.max(self.clock.unix_secs(now.mono));
        let until = self.issued_until.max(Revocations::until(latest, 0));
        let revoked = HolderRevoked { issued_by: latest.max(self.issued_latest), until };
        self.verifier.revoked.revoke_holder(holder, revoked, wall).map_err(|_| Status::CapacityExceeded)?;
        outcome.journal.push(Record::HolderRevoked {
            holder,
            at: self.clock.unix(now.mono),
            issued_by: revoked.issued_by,
            until: Nanos(until.saturating_mul(1_000_000_000)),
        });
        let ended = self.leases.revoke_holder(holder, now.mono);
        self.stop_runs(|run| run.presenter == holder, Why::Token, now, &mut outcome.endings);
        self.await_others(|lease| lease.holder == holder, now, outcome);
        for id in &ended {
            self.wind_up(*id, now, outcome);
        }
        // Taken last: it waits for the pieces of work that began before they were stopped.
        outcome.quiescence = Some(self.leases.quiescence());
        Ok((until, ended.len() as u32))
    }

    pub(super) fn key_list(&mut self, ask: &TimedRequest<'_>) -> Reply {
        self.verify_for_node(ask, Perms::ADMIN)?;
        let KeyListAsked { after, max } = params(ask)?;
        if max == 0 {
            return Err(Status::InvalidParams);
        }
        let known = self.keys.behind(NodeId(after));
        let entries: Vec<_> =
            known.iter().take(MAX_KEYS.min(max.into())).map(|(id, known)| entry(*id, known)).collect();
        let list =
            KeyList { more: entries.len() < known.len(), keys: List::of(&entries).map_err(|_| Status::InternalError)? };
        Ok(Outcome::ok(list.to_vec()))
    }
}

fn entry(id: NodeId, known: &Known) -> KeyEntry {
    let (public_key, standing) = match known {
        Known::Listed(key) => (*key.as_bytes(), KeyStanding::Listed),
        Known::Asked(key) => (*key.as_bytes(), KeyStanding::Enrolled),
        Known::Removed => ([0; 32], KeyStanding::Removed),
    };
    KeyEntry { key_id: id.0, public_key, standing }
}
