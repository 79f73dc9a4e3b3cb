//! Messages other than requests: pages, discovery, revocations.

use berth_identity::link::Message;
use berth_lease_io::{Counts, Gate, PageOp};
use berth_wire::fabric::{
    Announce, MsgType, RevokeBroadcast, Wire as _, Withdraw,
    data::page::{Request, Response},
};

use tokio::task::yield_now;

use crate::{Shared, permits::ANYBODY};

/// The outcome of a message.
pub(crate) enum Handled {
    /// It is answered by a message of this type with this payload.
    Answer(MsgType, Vec<u8>),
    /// It needs no answer.
    Nothing,
    /// Its payload does not fit its type.
    Malformed,
}

/// The receiver of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The node.
    Node,
    /// The discovery relay, which answers for other nodes, too, and does nothing else.
    Relay,
}

impl Role {
    /// Whether messages of this type are served over UDP (decision 33).
    pub(crate) fn serves(self, kind: MsgType) -> bool {
        self == Self::Node || matches!(kind, MsgType::Announce | MsgType::Withdraw | MsgType::Solicit)
    }
}

impl Shared {
    /// Handles a message. `proved` says whether its sender was verified; it is false for an unsigned SOLICIT.
    pub(crate) async fn hear(&self, message: &Message<'_>, proved: bool, role: Role) -> Handled {
        let (sender, payload) = (message.sender.0, &message.payload[..]);
        let now = self.clock.now();
        if message.kind == MsgType::Solicit {
            return self.solicited(payload, proved.then_some(sender), role).await;
        }
        if !self.node().admit(sender, now) {
            return Handled::Nothing;
        }
        match message.kind {
            MsgType::PageRequest => self.page(sender, payload).await,
            MsgType::Announce | MsgType::Withdraw if role == Role::Relay => {
                let mut relay = self.relay();
                let taken = match message.kind {
                    MsgType::Announce => relay.announced(sender, payload, now.mono),
                    _ => relay.withdrawn(sender, payload),
                };
                // The relay counts why it ignores something.
                taken.map_or(Handled::Malformed, |()| Handled::Nothing)
            }
            // For relays; a node has no use for it.
            MsgType::Announce if Announce::parse(payload).is_ok() => Handled::Nothing,
            MsgType::Withdraw if Withdraw::parse(payload).is_ok() => Handled::Nothing,
            MsgType::RevokeBroadcast => {
                let Ok(revoked) = RevokeBroadcast::parse(payload) else { return Handled::Malformed };
                self.obey(sender, &revoked).await;
                Handled::Nothing
            }
            _ => Handled::Malformed,
        }
    }

    /// Searches announcements without holding a lock, one SOLICIT of a sender at a time.
    async fn solicited(&self, payload: &[u8], signed_by: Option<u128>, role: Role) -> Handled {
        let _turn = self.permits.walks.enter(signed_by.unwrap_or(ANYBODY)).await;
        let search = {
            let mut node = self.node();
            let relay = (role == Role::Relay).then(|| self.relay());
            node.solicit(payload, signed_by, relay.as_deref(), self.clock.now())
        };
        let Some(mut search) = search else { return Handled::Malformed };
        while !search.step() {
            yield_now().await;
        }
        let mut node = self.node();
        let mut relay = (role == Role::Relay).then(|| self.relay());
        let answer = node.answer_solicit(search, relay.as_deref_mut());
        answer.map_or(Handled::Malformed, |answer| Handled::Answer(MsgType::Response, answer))
    }

    async fn page(&self, holder: u128, payload: &[u8]) -> Handled {
        let Some(request) = Request::parse(payload) else { return Handled::Malformed };
        let (op, now) = (request.op(), self.clock.now());
        let begun = PageOp::begin(request, self.node().leases(), holder, now.mono);
        let mut answer = Vec::new();
        match begun {
            Err(status) => {
                let mut counts = Counts::default();
                PageOp::refused(status, &mut counts);
                self.pages.take(&mut counts);
                Response::Status(op, status).write(&mut answer);
            }
            Ok(access) => {
                let mut gate = Gate::new(&self.table, &self.regions);
                let done = access.run(&mut gate, || self.clock.mono()).await;
                self.pages.take(gate.counts());
                let at_ms = now.wall.0 / 1_000_000;
                access.end(done.as_deref().map_err(|status| *status), self.node().leases_mut(), at_ms, &mut answer);
            }
        }
        Handled::Answer(MsgType::PageResponse, answer)
    }
}
