//! `kill -9` at random moments under load: what was answered is there after the restart, and nothing else.

mod common;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use berth_client::{Alloc, Client, Data, Error, Token, Via};
use berth_identity::Identity;
use berth_tls::key_file;
use berth_wire::fabric::{LeaseStatus, Perms, Status};
use common::Berth;
use tokio::{sync::watch, task::JoinSet, time::sleep};

const CLIENTS: usize = 16;

/// How often the node is killed; `BERTH_CRASHES` says otherwise.
const KILLS: u32 = 200;

/// Leases that one client holds at most.
const HELD: usize = 6;

fn config(state: &std::path::Path, clients: &[Arc<Identity>]) -> String {
    let enrolled: Vec<_> = clients.iter().map(|key| format!("\"{}\"", key.public_key())).collect();
    format!(
        "[node]\nstate_dir = \"{0}/state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [{1}]\n\
         max_requests_per_sec = 0\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \
         \"revoke\"]\n[[region]]\nname = \"m\"\nkind = \"memory\"\nsize = \"2 MiB\"\n[[region]]\nname = \"b\"\nkind = \
         \"block\"\nsize = \"2 MiB\"\nbacking = \"{0}/blocks\"\n",
        state.display(),
        enrolled.join(", ")
    )
}

fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap().parse().unwrap()
}

/// What one client knows of its leases from the answers that it got.
#[derive(Debug, Default)]
struct Model {
    leases: BTreeMap<u128, Known>,
    /// Allocations without an answer: so many leases may be there that are not known.
    unanswered: usize,
}

#[derive(Debug, Clone)]
struct Known {
    block: bool,
    generation: u64,
    token: u128,
    /// The ends that an answer named, or that an op without an answer may have set.
    ends: Vec<u64>,
    /// What the first block may hold; the last write that was answered, and those after it.
    first_block: Vec<u8>,
    /// It was freed or revoked, or that was asked for.
    over: Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    No,
    Perhaps,
    Surely,
}

/// Random ops until the node is killed. An op that the kill cuts off is in the model as one that may have happened.
async fn load(
    (identity, udp): (Arc<Identity>, SocketAddr),
    mut model: Model,
    mut rng: fastrand::Rng,
    mut killed: watch::Receiver<bool>,
) -> Model {
    tokio::select! {
        biased;
        _ = killed.wait_for(|killed| *killed) => {}
        failed = run(identity, udp, &mut model, &mut rng) => panic!("while the node was up: {failed:?}"),
    }
    model
}

async fn run(identity: Arc<Identity>, udp: SocketAddr, model: &mut Model, rng: &mut fastrand::Rng) -> Error {
    let client = match Client::udp(identity, udp, None).await {
        Ok(client) => client,
        Err(e) => return e,
    };
    loop {
        if let Err(e) = op(&client, model, rng).await {
            return e;
        }
    }
}

async fn op(client: &Client, model: &mut Model, rng: &mut fastrand::Rng) -> Result<(), Error> {
    let perms = Perms::READ | Perms::WRITE | Perms::ALLOC | Perms::REVOKE;
    let live: Vec<u128> = model.leases.iter().filter(|(_, known)| known.over == Over::No).map(|(id, _)| *id).collect();
    if live.len() < HELD && rng.u8(..3) > 0 {
        let token = client.cap_request(perms, 300, 0, None).await?;
        return alloc(client, &token, model, rng).await;
    }
    let Some(id) = (!live.is_empty()).then(|| live[rng.usize(..live.len())]) else { return Ok(()) };
    let token = client.cap_request(perms, 300, 0, None).await?;
    let known = model.leases.get_mut(&id).expect("it is live");
    match rng.u8(..8) {
        0..=1 => {
            known.over = Over::Perhaps;
            client.lease_free(id).await?;
            known.over = Over::Surely;
        }
        2 => {
            let token_id = known.token;
            known.over = Over::Perhaps;
            client.cap_revoke(&token, token_id, 300).await?;
            known.over = Over::Surely;
        }
        _ => {
            let secs = rng.u32(1000..100_000);
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
            // The node's clock goes by its own anchor: the answer is within a second or two of this.
            let asked = now + u64::from(secs);
            known.ends.extend(asked.saturating_sub(2)..=asked + 2);
            known.ends = vec![client.lease_renew(&token, id, secs).await?];
        }
    }
    Ok(())
}

async fn alloc(client: &Client, token: &Token, model: &mut Model, rng: &mut fastrand::Rng) -> Result<(), Error> {
    let block = rng.bool();
    let size = 4096 * rng.u64(1..4);
    let wanted = if block { Alloc::block(size, 3600) } else { Alloc::memory(size, 3600) };
    model.unanswered += 1;
    let granted = client.lease_alloc(token, &wanted).await;
    model.unanswered -= 1;
    let grant = match granted {
        Err(Error::Refused { status: Status::CapacityExceeded, .. }) => return Ok(()),
        granted => granted?,
    };
    let known = Known {
        block,
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

/// Compares the node with what each client knows, and forgets what is over.
async fn verify(berth: &Berth, clients: &[Arc<Identity>], models: &mut [Model], round: u32) {
    let quic = endpoint(berth, "quic");
    let client = Client::quic(clients[0].clone(), quic, None).await.unwrap();
    let listed = client.lease_list().await.unwrap();
    for (identity, model) in clients.iter().zip(models) {
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
        // The bytes of one lease of blocks, as its holder.
        if let Some((id, known)) = model.leases.iter().find(|(id, known)| known.block && mine.contains_key(id)) {
            let grant = berth_client::Grant {
                lease_id: *id,
                expires_at: 0,
                generation: known.generation,
                key: *id as u64,
                len: 4096,
                max_io: 4096,
                endpoints: vec![(berth_wire::fabric::EndpointKind::QuicBlock, quic)],
                bindings: Vec::new(),
            };
            let mut data = Data::open(identity, &grant, Via::Quic, None).await.unwrap();
            let bytes = data.read(0, 512).await.unwrap();
            let wanted = known.first_block.contains(&bytes[0]) && bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(wanted, "round {round}: {id:032x} holds {}: {known:?}", bytes[0]);
        }
        model.leases.retain(|id, known| known.over != Over::Surely && mine.contains_key(id));
        for known in model.leases.values_mut() {
            known.over = Over::No;
        }
        // Nobody will use those whose answer was lost.
        let owner = Client::quic(identity.clone(), quic, None);
        if !unknown.is_empty() {
            let owner = owner.await.unwrap();
            for id in unknown {
                owner.lease_free(id).await.unwrap();
            }
        }
        model.unanswered = 0;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_outlives_kill_9() {
    let kills = std::env::var("BERTH_CRASHES").map_or(KILLS, |kills| kills.parse().expect("a number"));
    let seed = std::env::var("BERTH_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("BERTH_SEED={seed} repeats the kills' times");
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = tempfile::tempdir().unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(|_| Arc::new(key_file::generate().unwrap())).collect();
    let text = config(folder.path(), &clients);
    let mut models: Vec<_> = clients.iter().map(|_| Model::default()).collect();
    let mut answered = 0;
    for round in 0..kills {
        let berth = Berth::start(&text);
        verify(&berth, &clients, &mut models, round).await;
        let (kill, killed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (index, model) in models.drain(..).enumerate() {
            let peer = (clients[index].clone(), endpoint(&berth, "control-udp"));
            let (rng, killed) = (rng.fork(), killed.clone());
            tasks.spawn(async move { (index, load(peer, model, rng, killed).await) });
        }
        sleep(Duration::from_millis(rng.u64(10..150))).await;
        berth.signal("-KILL");
        kill.send(true).unwrap();
        let mut ended: Vec<_> = tasks.join_all().await;
        ended.sort_by_key(|(index, _)| *index);
        models.extend(ended.into_iter().map(|(_, model)| model));
        answered += models.iter().map(|model| model.leases.len()).sum::<usize>();
    }
    let berth = Berth::start(&text);
    verify(&berth, &clients, &mut models, kills).await;
    assert!(answered > kills as usize, "{answered} leases in {kills} rounds: the load was none");
    assert_eq!(berth.stop().status.code(), Some(0));
}
