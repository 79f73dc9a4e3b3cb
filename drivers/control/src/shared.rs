//! The node behind its listeners: one lock, and answers that wait for the journal.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use berth_fabric::{
    Answer, Effects, Listing, Node, Outcome, Request, Step, Work, WorkFailed, discovery::Relay, journal::Record,
};
use berth_identity::{
    Identity, PublicKey,
    link::{Notices, Server},
};
use berth_journal::{Journal, Ticket};
use berth_lease::{Quiescence, Regions, Storage, Table};
use berth_lease_io::Totals;
use berth_wire::fabric::{Bytes, Response, RevokeBroadcast, Status, Wire as _};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, spawn_blocking, yield_now},
};

use crate::{
    clock::{Clock, highest_nonce},
    counters::Counters,
    machine::Machine,
    permits::Permits,
    proxy::Proxies,
    work::{Worker, quiet},
};

/// What all listeners share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) clock: Clock,
    pub(crate) table: Table,
    pub(crate) regions: Regions,
    /// Accesses over FBMx and QUIC.
    pub(crate) data: Arc<Totals>,
    /// Accesses of page operations.
    pub(crate) pages: Totals,
    pub(crate) counters: Arc<Counters>,
    pub(crate) proxies: Arc<Proxies>,
    pub(crate) permits: Permits,
    worker: Worker,
    /// How often time was passed on to the node.
    pub(crate) beats: Arc<AtomicU64>,
    pub(crate) journal: Journal,
    /// Whether the node was told that the journal's disk is full.
    full: AtomicBool,
    /// Tells connections that keys may not be served any more.
    keys: watch::Sender<()>,
    /// Payloads of REVOKE_BROADCAST frames to send.
    broadcasts: mpsc::UnboundedSender<Vec<u8>>,
    /// Makes the messages that the node sends on its own.
    pub(crate) notices: Notices,
    /// Locked first, where several are.
    link: Mutex<Server>,
    /// Locked second.
    node: Mutex<Node<Machine>>,
    /// Locked third.
    relay: Mutex<Relay>,
}

/// What is left to do before an answer leaves.
struct Pending {
    answer: Answer,
    durable: Option<Ticket>,
    quiescence: Option<Quiescence>,
    /// Proxies that are being closed.
    closing: Vec<JoinHandle<()>>,
}

/// An op of which the node has done what it does at once.
enum Begun {
    List(Listing),
    Done(Pending),
    /// With the commit that must be durable before the work begins.
    Work(Work, Option<Ticket>),
}

impl Shared {
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub(crate) fn new(
        identity: Identity,
        clock: Clock,
        regions: Regions,
        counters: Arc<Counters>,
        proxies: Arc<Proxies>,
        journal: Journal,
        broadcasts: mpsc::UnboundedSender<Vec<u8>>,
        link: Server,
        node: Node<Machine>,
    ) -> Self {
        let first_nonce = clock.now().wall.0 / 1000;
        let worker = Worker::new(regions.clone(), node.table().clone(), clock.clone());
        Self {
            identity,
            clock,
            table: node.table().clone(),
            regions,
            data: Arc::default(),
            pages: Totals::default(),
            counters,
            proxies,
            permits: Permits::new(),
            worker,
            beats: Arc::default(),
            journal,
            full: AtomicBool::new(false),
            keys: watch::Sender::default(),
            broadcasts,
            notices: Notices::new(first_nonce),
            link: Mutex::new(link),
            node: Mutex::new(node),
            relay: Mutex::default(),
        }
    }

    /// The node. Hold it for as long as an op takes to compute, and never while waiting.
    pub(crate) fn node(&self) -> MutexGuard<'_, Node<Machine>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link of control over UDP.
    pub(crate) fn link(&self) -> MutexGuard<'_, Server> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the relay knows of other nodes.
    pub(crate) fn relay(&self) -> MutexGuard<'_, Relay> {
        self.relay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has every connection look whether its key is still served.
    pub(crate) fn look_at_keys(&self) {
        self.keys.send_replace(());
    }

    /// Waits until the key of a peer is not served any more.
    pub(crate) async fn unenrolled(&self, peer: &PublicKey) {
        let mut changes = self.keys.subscribe();
        let keys = self.node().keys().clone();
        while keys.get(peer.id()) == Some(*peer) {
            // The sender is ours.
            let _ = changes.changed().await;
        }
    }

    /// Executes one op to its end and returns the payload of its RESPONSE; `None` where nothing may be answered. Must
    /// not be cancelled: the node waits for what it asked for.
    pub(crate) async fn execute(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let begun = {
            let mut node = self.node();
            match node.request(request, self.clock.now()) {
                Step::Drop => return None,
                Step::List(listing) => Begun::List(listing),
                Step::Done(outcome) => Begun::Done(self.settle(outcome)),
                // A commit of nothing is durable when all before it is.
                Step::Work(work) => {
                    let durable = work.journal.as_ref().map(|records| self.journal.commit(records));
                    Begun::Work(work, durable)
                }
            }
        };
        let pending = match begun {
            Begun::List(listing) => return self.list(listing, request).await,
            Begun::Done(pending) => pending,
            Begun::Work(mut asked, durable) => {
                if let Some(quiescence) = asked.quiescence.take() {
                    quiet(quiescence).await;
                }
                let durable = match durable {
                    Some(durable) => durable.await.map_err(|_| WorkFailed),
                    None => Ok(()),
                };
                let done = match durable {
                    Ok(()) => self.worker.work(&asked.jobs, &asked.deadline, request.presenter).await,
                    failed => failed,
                };
                if let Some(prepare) = asked.prepare {
                    let _turn = self.permits.blocking.enter(request.presenter).await;
                    // Where it panics, the node finds nothing prepared.
                    let _ = spawn_blocking(|| prepare.run()).await;
                }
                let mut node = self.node();
                let outcome = node.resume(asked.ticket, done, self.clock.now());
                self.settle(outcome)
            }
        };
        let answer = self.finish(pending).await?;
        self.counters.requests_answered.add();
        Some(response(request.op, &answer))
    }

    /// Looks at all leases, a part at a time, and returns the payload of the RESPONSE.
    async fn list(&self, mut listing: Listing, request: &Request<'_>) -> Option<Vec<u8>> {
        let _turn = self.permits.walks.enter(request.presenter).await;
        while !listing.is_whole() {
            self.node().list(&mut listing, self.clock.now());
            yield_now().await;
        }
        let op = request.op;
        let answer = spawn_blocking(move || response(op, &listing.answer())).await.ok()?;
        self.counters.requests_answered.add();
        Some(answer)
    }

    /// Hands on what an outcome brings. Under the node's lock: the journal's order is the node's.
    fn settle(&self, outcome: Outcome) -> Pending {
        let Outcome { answer, journal, quiescence, effects } = outcome;
        let durable = (!journal.is_empty()).then(|| self.journal.commit(&journal));
        let closing = self.apply(effects);
        Pending { answer, durable, quiescence, closing }
    }

    /// Journals which nonces are used up, so that a restart does not let recorded messages in again. Ops that change
    /// something do it at once; this is for the rest, page writes among them.
    ///
    /// Not while the journal's disk is full: what room is left is for what ends leases.
    pub(crate) fn keep_nonces(&self) {
        self.link().replay.accept_up_to(highest_nonce(self.clock.now().wall));
        if self.journal.is_full() {
            return;
        }
        let risen = self.link().replay.risen();
        let seen = risen.into_iter().map(|(sender, nonce)| Record::Seen { sender: sender.0, nonce });
        let _node = self.node();
        self.apply(Effects { journal: seen.collect(), ..Effects::default() });
    }

    /// Shortens the journal to what it adds up to, where that is worth it.
    pub(crate) fn compact(&self) {
        if !self.journal.wants_compaction() {
            return;
        }
        // Nothing waits for it; a failure is counted.
        drop(self.journal.compact());
    }

    /// Obeys a REVOKE_BROADCAST to its end, if its sender may send it.
    pub(crate) async fn obey(&self, sender: u128, revoked: &RevokeBroadcast<'_>) {
        let pending = {
            let mut node = self.node();
            let outcome = node.revoke_broadcast(sender, revoked, self.clock.now());
            outcome.map(|outcome| self.settle(outcome))
        };
        if let Some(pending) = pending {
            self.finish(pending).await;
        }
    }

    /// Every counter by its name.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let mut all = Vec::new();
        let mut visit = |name: &str, value| all.push((name.to_owned(), value));
        self.counters.report(&mut |name, value| visit(name, value));
        self.link().counters(&mut |name, value| visit(name, value));
        {
            let node = self.node();
            node.counters(&mut visit);
            for (id, region) in self.regions.iter() {
                visit(&format!("region_{}_size_bytes", region.name), node.leases().capacity(id));
                visit(&format!("region_{}_free_bytes", region.name), node.leases().available(id));
            }
        }
        self.relay().counters(&mut |name, value| visit(&format!("relay_{name}"), value));
        self.journal.counters(&mut |name, value| visit(name, value));
        for (_, region) in self.regions.iter() {
            if let Storage::Blocks(blocks) = &region.storage {
                blocks.counters(&mut |name, value| visit(&format!("region_{}_{name}", region.name), value));
            }
        }
        self.data.report(&mut |name, value| visit(&format!("data_{name}"), value));
        self.pages.report(&mut |name, value| visit(&format!("pages_{name}"), value));
        all
    }

    /// Does what the node asks for beside answers. Under the node's lock. Returns the proxies that are being closed.
    pub(crate) fn apply(&self, effects: Effects) -> Vec<JoinHandle<()>> {
        // Connections of leases that ended see that for themselves.
        let Effects { ended: _, proxies_closed, unenrolled, broadcasts, journal } = effects;
        if !journal.is_empty() {
            // Nothing waits for it; a failure is seen by the next tick.
            drop(self.journal.commit(&journal));
        }
        if unenrolled {
            self.look_at_keys();
        }
        for broadcast in broadcasts {
            // Without a receiver the node is stopping.
            let _ = self.broadcasts.send(broadcast);
        }
        proxies_closed.into_iter().filter_map(|(lease, _)| self.proxies.close(lease)).collect()
    }

    /// Waits until the answer may leave; `None` where it never may.
    async fn finish(&self, pending: Pending) -> Option<Answer> {
        if let Some(quiescence) = pending.quiescence {
            quiet(quiescence).await;
        }
        for closing in pending.closing {
            // One that panicked has ended, too.
            let _ = closing.await;
        }
        if let Some(durable) = pending.durable
            && let Err(e) = durable.await
        {
            self.counters.requests_not_durable.add();
            self.degrade(&e.to_string());
            return None;
        }
        Some(pending.answer)
    }

    /// Tells the node, and the log when it changes, whether the journal's disk is full.
    pub(crate) fn watch_room(&self) {
        let full = self.journal.is_full();
        if full {
            self.journal.look_for_room();
        }
        if self.full.swap(full, Relaxed) != full {
            if full {
                tracing::error!("the disk of the state directory is full: nothing is granted until there is room");
            } else {
                tracing::info!("the disk of the state directory has room again");
            }
            self.node().set_journal_full(full);
        }
    }

    /// Tells the node, and once the log, that the journal has failed.
    pub(crate) fn degrade(&self, why: &str) {
        let mut node = self.node();
        if !node.is_degraded() {
            tracing::error!("the node is degraded, and grants nothing any more: {why}");
            node.journal_failed();
        }
    }
}

/// The payload of a RESPONSE.
pub(crate) fn response(op: u16, answer: &Answer) -> Vec<u8> {
    match Bytes::of(&answer.result) {
        Ok(result) => Response { status: answer.status.code(), op, result }.to_vec(),
        Err(_) => Response { status: Status::InternalError.code(), op, result: Bytes::default() }.to_vec(),
    }
}
