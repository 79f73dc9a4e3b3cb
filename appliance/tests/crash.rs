//! `kill -9` at random moments under load: what was answered is there after the restart, and nothing else.

mod common;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use berth_client::{Alloc, Client, Data, Error, Token, Via};
use berth_identity::Identity;
use berth_tls::key_file;
use berth_wire::fabric::{
    EndpointKind, LeaseEntry, LeaseExport, LeaseStatus, Perms, RelocateMode, Rights, Status, TargetRuntime,
    data::page::{PageRef, State},
};
use common::Berth;
use tokio::{sync::watch, task::JoinSet, time::sleep};

const CLIENTS: usize = 16;

/// How often the node is killed; `BERTH_CRASHES` says otherwise.
const KILLS: u32 = 200;

/// Leases that one client holds at most.
const HELD: usize = 6;

/// Who uses a node. The first of the clients is the scheduler, too.
struct Site {
    clients: Vec<Arc<Identity>>,
    /// Who imports every handle.
    guest: Arc<Identity>,
}

fn config(state: &std::path::Path, site: &Site) -> String {
    let keys = site.clients.iter().chain([&site.guest]);
    let enrolled: Vec<_> = keys.map(|key| format!("\"{}\"", key.public_key())).collect();
    format!(
        "[node]\nstate_dir = \"{0}/state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [{1}]\n\
         max_requests_per_sec = 0\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \
         \"revoke\"]\n[[control.policy]]\npresenter = \"{2}\"\nperms = [\"admin\"]\n[[region]]\nname = \"m\"\nkind = \"memory\"\nsize = \"2 MiB\"\n[[region]]\nname = \"b\"\nkind = \
         \"block\"\nsize = \"2 MiB\"\nbacking = \"{0}/blocks\"\n",
        state.display(),
        enrolled.join(", "),
        site.clients[0].id()
    )
}

fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap().parse().unwrap()
}

/// What one client knows of its leases from the answers that it got.
#[derive(Debug, Default)]
struct Model {
    leases: BTreeMap<u128, Known>,
    shared: Vec<Shared>,
    /// The scheduler's terms of which one must be installed; of the scheduler alone.
    terms: Vec<u64>,
    /// Allocations without an answer: so many leases may be there that are not known.
    unanswered: usize,
}

#[derive(Debug, Clone)]
struct Known {
    block: bool,
    len: u64,
    generation: u64,
    token: u128,
    /// The ends that an answer named, or that an op without an answer may have set.
    ends: Vec<u64>,
    /// What the first block may hold; the last write that was answered, and those after it.
    first_block: Vec<u8>,
    /// It was freed or revoked, or that was asked for.
    over: Over,
}

/// A handle that was answered.
#[derive(Debug)]
struct Shared {
    lease: u128,
    handle: u128,
    expires: u64,
    /// What the guest's import was answered.
    attached: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    No,
    Perhaps,
    Surely,
}

/// Random ops until the node is killed. An op that the kill cuts off is in the model as one that may have happened.
async fn load(mut user: User, mut killed: watch::Receiver<bool>) -> Model {
    tokio::select! {
        biased;
        _ = killed.wait_for(|killed| *killed) => {}
        failed = user.run() => panic!("while the node was up: {failed:?}"),
    }
    user.model
}

/// `None`: the scheduler's term changed meanwhile, and nothing was done.
fn unless_stale<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::Refused { status: Status::StaleEpoch, .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// A client at work.
struct User {
    identity: Arc<Identity>,
    guest: Arc<Identity>,
    udp: SocketAddr,
    quic: SocketAddr,
    model: Model,
    rng: fastrand::Rng,
}

impl User {
    async fn run(&mut self) -> Error {
        let client = match Client::udp(self.identity.clone(), self.udp, None).await {
            Ok(client) => client,
            Err(e) => return e,
        };
        loop {
            if let Err(e) = self.op(&client).await {
                return e;
            }
        }
    }

    async fn op(&mut self, client: &Client) -> Result<(), Error> {
        let fence = client.fence_get().await?;
        let term = fence.installed.then_some(fence.epoch);
        if !self.model.terms.is_empty() && self.rng.u8(..10) == 0 {
            return self.new_term(client, term).await;
        }
        let live = self.model.leases.iter().filter(|(_, known)| known.over == Over::No);
        let live: Vec<u128> = live.map(|(id, _)| *id).collect();
        let id = self.rng.choice(live.iter().copied()).filter(|_| live.len() >= HELD || self.rng.u8(..3) == 0);
        let perms = Perms::READ | Perms::WRITE | Perms::ALLOC | Perms::REVOKE;
        let Some(token) = unless_stale(client.cap_request(perms, 300, 0, term).await)? else { return Ok(()) };
        let Some(id) = id else { return self.alloc(client, &token).await };
        let known = self.model.leases.get_mut(&id).expect("it is live");
        match self.rng.u8(..16) {
            0..=2 => {
                known.over = Over::Perhaps;
                client.lease_free(id).await?;
                known.over = Over::Surely;
            }
            3 => {
                let token_id = known.token;
                known.over = Over::Perhaps;
                let revoked = unless_stale(client.cap_revoke(&token, token_id, 300).await)?;
                known.over = if revoked.is_some() { Over::Surely } else { Over::No };
            }
            4..=5 => self.share(client, id).await?,
            6..=8 => self.relocate(client, id, &live).await?,
            9 => {
                let page = PageRef { lease_id: id, page: 0 };
                client.page_advise(page, 1).await?;
            }
            _ => {
                let secs = self.rng.u32(1000..100_000);
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                // The node's clock goes by its own anchor: the answer is within a second or two of this.
                let asked = now.as_secs() + u64::from(secs);
                known.ends.extend(asked.saturating_sub(2)..=asked + 2);
                if let Some(end) = unless_stale(client.lease_renew(&token, id, secs).await)? {
                    known.ends = vec![end];
                }
            }
        }
        Ok(())
    }

    async fn new_term(&mut self, client: &Client, term: Option<u64>) -> Result<(), Error> {
        let next = term.unwrap_or(0) + self.rng.u64(1..4);
        let token = client.cap_request(Perms::ADMIN, 300, 0, term).await?;
        self.model.terms.push(next);
        client.fence_set(&token, next).await?;
        self.model.terms = vec![next];
        Ok(())
    }

    async fn alloc(&mut self, client: &Client, token: &Token) -> Result<(), Error> {
        let Self { model, rng, .. } = self;
        let block = rng.bool();
        let size = 4096 * rng.u64(1..4);
        let wanted = if block { Alloc::block(size, 3600) } else { Alloc::memory(size, 3600) };
        model.unanswered += 1;
        let granted = client.lease_alloc(token, &wanted).await;
        model.unanswered -= 1;
        let granted = match granted {
            Err(Error::Refused { status: Status::CapacityExceeded, .. }) => return Ok(()),
            granted => unless_stale(granted)?,
        };
        let Some(grant) = granted else { return Ok(()) };
        let known = Known {
            block,
            len: size,
            generation: grant.generation,
            token: token.fields().token_id,
            ends: vec![grant.expires_at],
            first_block: vec![0],
            over: Over::No,
        };
        let known = model.leases.entry(grant.lease_id).or_insert(known);
        if block {
            let byte = rng.u8(1..);
            known.first_block.push(byte);
            let mut data = Data::open(client.identity(), &grant, Via::Quic, None).await?;
            data.write(0, &[byte; 512]).await?;
            known.first_block = vec![byte];
        }
        Ok(())
    }

    /// Exports a lease, and has the guest import it.
    async fn share(&mut self, client: &Client, lease: u128) -> Result<(), Error> {
        let wanted = LeaseExport {
            lease_id: lease as u64,
            target_runtime_kind: TargetRuntime::NativeService,
            target_identity: self.guest.id().0,
            rights: Rights::READ,
            ttl_secs: 900,
        };
        let exported = match client.lease_export(&wanted).await {
            Err(Error::Refused { status: Status::CapacityExceeded, .. }) => return Ok(()),
            exported => exported?,
        };
        let (handle, expires) = (exported.export_handle, exported.expires_at);
        self.model.shared.push(Shared { lease, handle, expires, attached: None });
        let guest = Client::quic(self.guest.clone(), self.quic, None).await?;
        let imported = guest.lease_import(handle).await?;
        self.model.shared.last_mut().expect("it was pushed").attached = Some(imported.local_attach_id);
        Ok(())
    }

    /// Copies or moves a lease to another one.
    async fn relocate(&mut self, client: &Client, src: u128, live: &[u128]) -> Result<(), Error> {
        let Known { block, len, first_block: from, .. } = self.model.leases[&src].clone();
        let fits = |known: &Known| known.block == block && known.len >= len;
        let fitting = live.iter().copied().filter(|id| *id != src && fits(&self.model.leases[id]));
        let Some(dst) = self.rng.choice(fitting.collect::<Vec<_>>()) else { return Ok(()) };
        let mode = self.rng.choice([RelocateMode::Copy, RelocateMode::Move, RelocateMode::CowSeed]).expect("one");
        let over = |model: &mut Model, over| {
            if mode == RelocateMode::Move {
                model.leases.get_mut(&src).expect("it is live").over = over;
            }
        };
        over(&mut self.model, Over::Perhaps);
        self.model.leases.get_mut(&dst).expect("it is live").first_block.extend(&from);
        let relocated = client.lease_relocate(src as u64, dst as u64, mode, None).await?;
        assert_eq!((relocated.bytes, relocated.failed), (len, None));
        over(&mut self.model, Over::Surely);
        self.model.leases.get_mut(&dst).expect("it is live").first_block = from;
        Ok(())
    }
}

/// Compares the node with what each client knows, and forgets what is over.
async fn verify(berth: &Berth, site: &Site, models: &mut [Model], round: u32) {
    let quic = endpoint(berth, "quic");
    let client = Client::quic(site.clients[0].clone(), quic, None).await.unwrap();
    let guest = Client::quic(site.guest.clone(), quic, None).await.unwrap();
    let fence = client.fence_get().await.unwrap();
    let terms = &mut models[0].terms;
    assert!(terms.contains(&fence.epoch), "round {round}: the term is {fence:?}, not one of {terms:?}");
    assert_eq!(fence.installed, fence.epoch > 0);
    *terms = vec![fence.epoch];
    let listed = client.lease_list().await.unwrap();
    for (index, (identity, model)) in site.clients.iter().zip(models).enumerate() {
        let mine: BTreeMap<_, _> = listed
            .iter()
            .filter(|lease| lease.holder == identity.id().0)
            .map(|lease| (lease.lease_id, lease))
            .collect();
        let unknown: Vec<_> = mine.keys().filter(|id| !model.leases.contains_key(id)).copied().collect();
        assert!(unknown.len() <= model.unanswered, "round {round}: leases that nobody asked for: {unknown:x?}");
        for (id, known) in &model.leases {
            match (mine.get(id), known.over) {
                (None, Over::No) => panic!("round {round}: {id:032x} was granted and is gone: {known:?}"),
                (Some(_), Over::Surely) => panic!("round {round}: {id:032x} is over and is back: {known:?}"),
                (None, _) => {
                    let revoked = client.lease_query(*id).await;
                    let gone = matches!(revoked, Err(Error::Refused { status: Status::ResourceNotFound, .. }));
                    assert!(gone || revoked.is_ok_and(|state| state.status == LeaseStatus::Revoked), "round {round}");
                }
                (Some(lease), _) => {
                    // The anchor of each start rounds anew.
                    let near = |end: &u64| end.abs_diff(lease.expires_at) <= 1;
                    assert!(
                        known.ends.iter().any(near),
                        "round {round}: {id:032x} ends at {}: {known:?}",
                        lease.expires_at
                    );
                }
            }
        }
        // The bytes of one lease of blocks, as its holder; they may be at the guest's, too.
        if let Some((id, known)) = model.leases.iter().find(|(id, known)| known.block && mine.contains_key(id)) {
            read(identity, *id, known, quic, round).await;
        }
        let attached =
            model.shared.iter().rfind(|shared| mine.contains_key(&shared.lease) && shared.attached.is_some());
        if let Some((key, lease)) = attached.and_then(|shared| Some((shared.attached?, shared.lease))) {
            read(&site.guest, key.into(), &model.leases[&lease], quic, round).await;
        }
        for shared in &mut model.shared {
            verify_handle(&guest, shared, mine.get(&shared.lease).copied(), round).await;
        }
        if index == round as usize % CLIENTS
            && let Some((id, _)) = mine.first_key_value()
        {
            // The state of pages lasts until the node ends.
            let owner = Client::quic(identity.clone(), quic, None).await.unwrap();
            let page = PageRef { lease_id: *id, page: 0 };
            let state = owner.page_query(page).await.unwrap();
            assert_eq!(state, State { tier: state.tier, ..State::default() }, "round {round}");
        }
        model.leases.retain(|id, known| known.over != Over::Surely && mine.contains_key(id));
        model.shared.retain(|shared| model.leases.contains_key(&shared.lease));
        for known in model.leases.values_mut() {
            known.over = Over::No;
        }
        // Nobody will use those whose answer was lost.
        if !unknown.is_empty() {
            let owner = Client::quic(identity.clone(), quic, None).await.unwrap();
            for id in unknown {
                owner.lease_free(id).await.unwrap();
            }
        }
        model.unanswered = 0;
    }
}

/// The first block of a lease, by its id or by an attachment's.
async fn read(identity: &Identity, id: u128, known: &Known, quic: SocketAddr, round: u32) {
    let kind = if known.block { EndpointKind::QuicBlock } else { EndpointKind::QuicMem };
    let grant = berth_client::Grant {
        lease_id: id,
        expires_at: 0,
        generation: known.generation,
        key: id as u64,
        len: 4096,
        max_io: 4096,
        endpoints: vec![(kind, quic)],
        bindings: Vec::new(),
    };
    let mut data = Data::open(identity, &grant, Via::Quic, None).await.unwrap();
    let bytes = data.read(0, 512).await.unwrap();
    // What was in memory is lost.
    let wanted = if known.block { &known.first_block[..] } else { &[0] };
    let sound = wanted.contains(&bytes[0]) && bytes.iter().all(|byte| *byte == bytes[0]);
    assert!(sound, "round {round}: {id:032x} holds {}: {known:?}", bytes[0]);
}

/// A handle leads to the attachment that it did before, or its lease is over.
async fn verify_handle(guest: &Client, shared: &mut Shared, lease: Option<&LeaseEntry>, round: u32) {
    let imported = guest.lease_import(shared.handle).await;
    let Some(lease) = lease else {
        let gone = matches!(imported, Err(Error::Refused { status: Status::ResourceNotFound, .. }));
        assert!(gone, "round {round}: the lease is over: {shared:x?}, {imported:?}");
        return;
    };
    let imported = imported.unwrap_or_else(|e| panic!("round {round}: {shared:x?}: {e}"));
    assert_eq!(imported.rights, Rights::READ);
    let expires = shared.expires.min(lease.expires_at);
    assert!(imported.expires_at.abs_diff(expires) <= 1, "round {round}: {shared:x?}, {imported:?}");
    let key = *shared.attached.get_or_insert(imported.local_attach_id);
    assert_eq!(imported.local_attach_id, key, "round {round}: {shared:x?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_outlives_kill_9() {
    let kills = std::env::var("BERTH_CRASHES").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let seed = std::env::var("BERTH_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("BERTH_SEED={seed} repeats the kills' times");
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let new = || Arc::new(key_file::generate().unwrap());
    let site = Site { clients: (0..CLIENTS).map(|_| new()).collect(), guest: new() };
    let text = config(folder.path(), &site);
    let mut models: Vec<_> = site.clients.iter().map(|_| Model::default()).collect();
    models[0].terms = vec![0];
    let (mut leases, mut attachments) = (0, 0);
    for round in 0..kills {
        let berth = Berth::start(&text);
        verify(&berth, &site, &mut models, round).await;
        let (kill, killed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (index, model) in models.drain(..).enumerate() {
            let user = User {
                identity: site.clients[index].clone(),
                guest: site.guest.clone(),
                udp: endpoint(&berth, "control-udp"),
                quic: endpoint(&berth, "quic"),
                model,
                rng: rng.fork(),
            };
            let killed = killed.clone();
            tasks.spawn(async move { (index, load(user, killed).await) });
        }
        sleep(Duration::from_millis(rng.u64(10..150))).await;
        berth.signal("-KILL");
        kill.send(true).unwrap();
        let mut ended: Vec<_> = tasks.join_all().await;
        ended.sort_by_key(|(index, _)| *index);
        models.extend(ended.into_iter().map(|(_, model)| model));
        leases += models.iter().map(|model| model.leases.len()).sum::<usize>();
        attachments += models.iter().flat_map(|model| &model.shared).filter(|shared| shared.attached.is_some()).count();
    }
    let berth = Berth::start(&text);
    verify(&berth, &site, &mut models, kills).await;
    let enough = kills as usize;
    assert!(leases > enough && attachments > enough, "{leases} leases, {attachments} attachments: the load was none");
    assert!(models[0].terms[0] > u64::from(kills / 20), "there was no scheduler at work: {:?}", models[0].terms);
    assert_eq!(berth.stop().status.code(), Some(0));
}
