//! The node behind its listeners: one lock, and answers that wait for the journal.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use berth_fabric::{
    Answer, Effects, Ending, LeaseCall, Listing, Node, Outcome, Request, Step, Teardown, Work, WorkFailed,
    discovery::Relay, journal::Record,
};
use berth_identity::{
    Identity, PublicKey,
    link::{Notices, Server},
};
use berth_journal::{Journal, Ticket};
use berth_lease::{Quiescence, Regions, Storage, Table};
use berth_lease_io::Totals;
use berth_tasklet::schedule::RunId;
use berth_wire::fabric::{Bytes, Response, RevokeBroadcast, Status, Wire as _};
use tokio::{
    sync::{mpsc, watch},
    task::{spawn_blocking, yield_now},
    time::timeout,
};

use crate::{
    clock::{Clock, highest_nonce},
    counters::Counters,
    machine::Machine,
    permits::Permits,
    tasklet::Pool,
    work::{Worker, ended, quiet},
};

/// State that all listeners share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) clock: Clock,
    pub(crate) table: Table,
    pub(crate) regions: Regions,
    /// Totals of accesses over FBMx and QUIC.
    pub(crate) data: Arc<Totals>,
    /// Totals of page operations.
    pub(crate) pages: Totals,
    pub(crate) counters: Arc<Counters>,
    pub(crate) permits: Permits,
    worker: Worker,
    /// Runs tasklets.
    pub(crate) pool: Pool,
    /// Counts the ticks given to the node.
    pub(crate) beats: Arc<AtomicU64>,
    pub(crate) journal: Journal,
    /// Whether the node was told that the journal's disk is full.
    full: AtomicBool,
    /// Notifies connections that keys may have been removed.
    keys: watch::Sender<()>,
    /// Payloads of REVOKE_BROADCAST frames to send.
    broadcasts: mpsc::UnboundedSender<Vec<u8>>,
    /// Teardowns to run: at most as many as there are connections and units.
    teardowns: mpsc::UnboundedSender<Teardown>,
    /// Signs the messages that the node sends on its own.
    pub(crate) notices: Notices,
    /// First in the order of locking.
    link: Mutex<Server>,
    /// Second in the order of locking.
    node: Mutex<Node<Machine>>,
    /// Third in the order of locking.
    relay: Mutex<Relay>,
}

/// What is left to do before an answer leaves.
struct Pending {
    answer: Answer,
    durable: Option<Ticket>,
    quiescence: Option<Quiescence>,
    endings: Vec<Ending>,
}

/// The continuation of an operation, after its immediate part.
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
        journal: Journal,
        broadcasts: mpsc::UnboundedSender<Vec<u8>>,
        teardowns: mpsc::UnboundedSender<Teardown>,
        link: Server,
        node: Node<Machine>,
        pool: Pool,
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
            permits: Permits::new(),
            worker,
            pool,
            beats: Arc::default(),
            journal,
            full: AtomicBool::new(false),
            keys: watch::Sender::default(),
            broadcasts,
            teardowns,
            notices: Notices::new(first_nonce),
            link: Mutex::new(link),
            node: Mutex::new(node),
            relay: Mutex::default(),
        }
    }

    /// The locked node. Hold it while an operation is computed, never while waiting.
    pub(crate) fn node(&self) -> MutexGuard<'_, Node<Machine>> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locked link of control over UDP.
    pub(crate) fn link(&self) -> MutexGuard<'_, Server> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locked relay.
    pub(crate) fn relay(&self) -> MutexGuard<'_, Relay> {
        self.relay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every connection check whether its key is still served.
    pub(crate) fn look_at_keys(&self) {
        self.keys.send_replace(());
    }

    /// Waits until a peer's key is no longer served.
    pub(crate) async fn unenrolled(&self, peer: &PublicKey) {
        let mut changes = self.keys.subscribe();
        let keys = self.node().keys().clone();
        while keys.get(peer.id()) == Some(*peer) {
            // The sender is ours.
            let _ = changes.changed().await;
        }
    }

    /// Executes one operation to its end; returns the payload of its RESPONSE, or `None` if it must not be answered.
    /// Must not be cancelled, because the node waits for the work that it asked for.
    pub(crate) async fn execute(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let begun = {
            let mut node = self.node();
            let step = node.request(request, self.clock.now());
            self.hand_on(&mut node);
            self.begin(step)?
        };
        let pending = match begun {
            Begun::List(listing) => return self.list(listing, request).await,
            Begun::Done(pending) => pending,
            Begun::Work(work, durable) => self.work(work, durable, request.presenter).await,
        };
        let answer = self.finish(pending).await?;
        self.counters.requests_answered.add(1);
        Some(response(request.op, &answer))
    }

    /// Executes a call of a tasklet that goes to the node, to its end. `None` if it is not durable.
    pub(crate) async fn lease_call(&self, run: RunId, call: LeaseCall) -> Option<Answer> {
        let begun = {
            let mut node = self.node();
            let step = node.lease_call(run, call, self.clock.now());
            self.begin(step)?
        };
        let pending = match begun {
            Begun::Done(pending) => pending,
            Begun::Work(work, durable) => self.work(work, durable, self.identity.id().0).await,
            Begun::List(_) => return None,
        };
        self.finish(pending).await
    }

    /// Hands on what comes next for tasklets. Call it under the node's lock, after whatever may have changed that.
    pub(crate) fn hand_on(&self, node: &mut Node<Machine>) {
        for turn in node.take_turns(self.clock.now()) {
            self.pool.take(turn);
        }
    }

    /// Passes on what a step contains. Call it under the node's lock, so that the journal has the node's order.
    fn begin(&self, step: Step) -> Option<Begun> {
        Some(match step {
            Step::Drop => return None,
            Step::List(listing) => Begun::List(listing),
            Step::Done(outcome) => Begun::Done(self.settle(outcome)),
            Step::Work(mut work) => {
                // A commit of nothing is durable when all before it is.
                let durable = work.journal.as_ref().map(|records| self.journal.commit(records));
                self.apply(std::mem::take(&mut work.effects));
                Begun::Work(work, durable)
            }
        })
    }

    /// Does work, and the work that follows from it, to the end.
    async fn work(&self, mut work: Work, mut durable: Option<Ticket>, presenter: u128) -> Pending {
        loop {
            if let Some(quiescence) = work.quiescence.take() {
                quiet(quiescence).await;
            }
            let done = self.work_off(&mut work, durable, presenter).await;
            let begun = {
                let mut node = self.node();
                let step = node.resume(work.ticket, done, self.clock.now());
                self.hand_on(&mut node);
                self.begin(step)
            };
            match begun {
                Some(Begun::Work(more, until)) => (work, durable) = (more, until),
                Some(Begun::Done(pending)) => return pending,
                Some(Begun::List(_)) | None => unreachable!("work leads to work, or to an answer"),
            }
        }
    }

    /// Does the jobs, then what may block.
    async fn work_off(&self, work: &mut Work, durable: Option<Ticket>, presenter: u128) -> Result<(), WorkFailed> {
        if let Some(ending) = &work.ending {
            match work.patience {
                Some(patience) => drop(timeout(patience, ended(ending)).await),
                None => ended(ending).await,
            }
            if ending.has_failed() {
                return Err(WorkFailed);
            }
        }
        if let Some(durable) = durable {
            durable.await.map_err(|_| WorkFailed)?;
        }
        self.worker.work(&work.jobs, &work.deadline, presenter).await?;
        if let Some(prepare) = work.prepare.take() {
            let _turn = self.permits.blocking.enter(presenter).await;
            // Where it panics, the node finds nothing prepared.
            let _ = spawn_blocking(|| prepare.run()).await;
        }
        Ok(())
    }

    /// Does work that the node began on its own, for which nobody waits.
    pub(crate) async fn work_alone(&self, work: Work) {
        let begun = {
            let _node = self.node();
            self.begin(Step::Work(work))
        };
        if let Some(Begun::Work(work, durable)) = begun {
            let pending = self.work(work, durable, self.identity.id().0).await;
            self.finish(pending).await;
        }
    }

    /// Runs one teardown to its end.
    pub(crate) async fn tear_down(&self, teardown: Teardown) {
        let Teardown { ticket, holder, work } = teardown;
        let turn = self.permits.teardowns.enter(holder).await;
        // Where it panics, the node finds it still there.
        let _ = spawn_blocking(|| work.run()).await;
        drop(turn);
        let mut node = self.node();
        let effects = node.torn_down(ticket, self.clock.now());
        self.apply(effects);
    }

    /// Lists all leases, a part at a time; returns the payload of the RESPONSE.
    async fn list(&self, mut listing: Listing, request: &Request<'_>) -> Option<Vec<u8>> {
        let _turn = self.permits.walks.enter(request.presenter).await;
        while !listing.is_whole() {
            self.node().list(&mut listing, self.clock.now());
            yield_now().await;
        }
        let op = request.op;
        let answer = spawn_blocking(move || response(op, &listing.answer())).await.ok()?;
        self.counters.requests_answered.add(1);
        Some(answer)
    }

    /// Passes on what an outcome contains. Call it under the node's lock, so that the journal has the node's order.
    fn settle(&self, outcome: Outcome) -> Pending {
        let Outcome { answer, journal, quiescence, endings, effects } = outcome;
        let durable = (!journal.is_empty()).then(|| self.journal.commit(&journal));
        self.apply(effects);
        Pending { answer, durable, quiescence, endings }
    }

    /// Journals the nonces that are used up, so that a restart does not accept recorded messages again. Operations that
    /// change something do so at once; this is for the others, page writes included.
    ///
    /// It does nothing while the journal's disk is full, as the room left is for operations that end leases.
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

    /// Compacts the journal if that is worth it.
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
            self.hand_on(&mut node);
            outcome.map(|outcome| self.settle(outcome))
        };
        if let Some(pending) = pending {
            self.finish(pending).await;
        }
    }

    /// All counters with their names.
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
        self.relay().counters(&mut |name, value| visit(name, value));
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

    /// Does what the node asks for besides answers. Call it under the node's lock.
    pub(crate) fn apply(&self, effects: Effects) {
        // Connections of leases that ended see that for themselves.
        let Effects { ended: _, teardowns, unenrolled, broadcasts, journal } = effects;
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
        for teardown in teardowns {
            // Likewise.
            let _ = self.teardowns.send(teardown);
        }
    }

    /// Waits until the answer may leave; `None` if it never may.
    async fn finish(&self, pending: Pending) -> Option<Answer> {
        let Pending { mut answer, mut durable, quiescence, endings } = pending;
        if let Some(quiescence) = quiescence {
            quiet(quiescence).await;
        }
        for ending in &endings {
            ended(ending).await;
        }
        if endings.iter().any(Ending::has_failed) {
            answer = Answer { status: Status::ResourceFenced, result: Vec::new() };
        }
        if !endings.is_empty() {
            // What was journaled at their end, too.
            let _node = self.node();
            durable = Some(self.journal.commit(&[]));
        }
        if let Some(durable) = durable
            && let Err(e) = durable.await
        {
            self.counters.requests_not_durable.add(1);
            self.degrade(&e.to_string());
            return None;
        }
        Some(answer)
    }

    /// Tells the node whether the journal's disk is full, and logs changes.
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

    /// Tells the node that the journal has failed, and logs that once.
    pub(crate) fn degrade(&self, why: &str) {
        let mut node = self.node();
        if !node.is_degraded() {
            tracing::error!("the node is degraded, and grants nothing any more: {why}");
            node.journal_failed();
        }
    }
}

/// Encodes the payload of a RESPONSE.
pub(crate) fn response(op: u16, answer: &Answer) -> Vec<u8> {
    match Bytes::of(&answer.result) {
        Ok(result) => Response { status: answer.status.code(), op, result }.to_vec(),
        Err(_) => Response { status: Status::InternalError.code(), op, result: Bytes::default() }.to_vec(),
    }
}
