//! Sixteen keys hold all that they may of everything at once, and another one is served as if they were not there.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use berth_client::{Alloc, Client, Error, Token};
use berth_control::Control;
use berth_fabric::{Binding, BlockingWork, BoundLease, Config, TeardownFailed};
use berth_lease::{BlockOp, BlockRequest, Blocks, Item, LeaseId, Quotas, Region, RegionKind, Regions, Storage};
use berth_wire::fabric::{
    BindKind, LeaseAlloc, LeaseBind, LeaseExport, Op, Perms, ResourceType, Rights, Status, TargetRuntime, Tlvs,
    Wire as _,
    data::page::{PageRef, Status as PageStatus},
};
use quinn::{Connection, RecvStream, SendStream};
use tokio::{
    task::{JoinSet, LocalSet, spawn_local},
    time::{sleep, timeout},
};

use crate::common::{ask, clients, config, connect, endpoint, key, memory, request, start_with, who};

/// The greedy keys, and the other one.
const GREEDY: std::ops::RangeInclusive<u8> = 2..=17;
const TENANT: u8 = 18;
const KEYS: u64 = 16;

/// Size of a lease in bytes.
const PAGE: u64 = 4096;

/// What each of them may have, and has: leases of memory, and of blocks whose zeroing never ends.
const MEMORY: u64 = 59;
const BLOCKS: u64 = 58;
const PROXIES: u64 = 2;
const HANDLES: u64 = 128;
const ATTACHMENTS: u64 = 8;
/// Half of them connected, and half being connected.
const BINDINGS: u64 = 4;
const PAGES: u64 = 3;

/// Leases and attachments of all, and a few more; and as many handles.
const CAPACITY: usize = 2048;

/// Longer than a client within its share may wait, and shorter than any delay that greedy keys could cause.
const SOON: Duration = Duration::from_secs(5);

/// Keeps things stuck until a test opens it.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

/// Blocks whose work does not end before the gate opens.
struct Stuck(Arc<Gate>, Mutex<Vec<BlockRequest>>);

impl Blocks for Stuck {
    fn len(&self) -> u64 {
        KEYS * BLOCKS * PAGE
    }
    fn submit(&self, request: BlockRequest) {
        let mut waiting = self.1.lock().unwrap();
        if matches!(request.op, BlockOp::Zero(_)) && !*self.0.open.lock().unwrap() {
            return waiting.push(request);
        }
        drop(waiting);
        request.done.done(request.tag, request.pieces, Ok(()));
    }
}

/// RDMA whose clients must be looked for if a TLV says so, and are not found before the gate opens.
#[derive(Debug)]
struct Rdma(Arc<Gate>);

impl Binding for Rdma {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }
    fn name(&self) -> &'static str {
        "mlx5_0"
    }
    fn prepare(&mut self, _: &BoundLease, client: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let gate = self.0.clone();
        let far = client.iter().next().is_some();
        Ok(far.then(|| {
            BlockingWork::new(move || {
                let open = gate.open.lock().unwrap();
                drop(gate.changed.wait_while(open, |open| !*open).unwrap());
            })
        }))
    }
    fn bind(&mut self, _: &BoundLease, _: Tlvs<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Ok(())
    }
    fn teardown(&mut self, _: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        Ok(None)
    }
}

/// Opens the gate, even if a test fails: the node ends when its work has.
struct Opens(Arc<Gate>, Arc<Stuck>);

impl Drop for Opens {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap() = true;
        self.0.changed.notify_all();
        let waiting = std::mem::take(&mut *self.1.1.lock().unwrap());
        for request in waiting {
            request.done.done(request.tag, request.pieces, Ok(()));
        }
    }
}

fn node(folder: &Path, gate: &Arc<Gate>) -> (Control, Arc<Stuck>) {
    let disk = Arc::new(Stuck(gate.clone(), Mutex::default()));
    let storage = Storage::Blocks(disk.clone());
    let disk_region = Region { name: "disk".into(), kind: RegionKind::Block, numa: None, storage };
    let bytes = ((KEYS * MEMORY + 4) * PAGE) as usize;
    let mut regions: Vec<Region> = memory(bytes).iter().map(|(_, region)| region.clone()).collect();
    regions.push(disk_region);
    let each = vec![
        (Item::Leases, MEMORY + BLOCKS + PROXIES),
        (Item::Bytes, (MEMORY + BLOCKS) * PAGE),
        (Item::Handles, HANDLES),
        (Item::Attachments, ATTACHMENTS),
        (Item::Proxies, PROXIES),
        (Item::Bindings, BINDINGS),
        (Item::PageState, PAGES),
    ];
    // Named, so that the counters tell of each.
    let named = GREEDY.map(|seed| (Some(who(seed).id().0), each.clone()));
    let node = Config {
        leases: berth_lease::Config { capacity: CAPACITY, ..berth_lease::Config::default() },
        quotas: Quotas::new(&named.collect::<Vec<_>>()),
        ..config()
    };
    (start_with(folder, Regions::new(regions), vec![Box::new(Rdma(gate.clone()))], node), disk)
}

/// What each greedy key uses of an item.
fn used(control: &Control, item: &str) -> Vec<u64> {
    let counters: BTreeMap<String, u64> = control.monitor().counters().into_iter().collect();
    GREEDY.map(|seed| counters[&format!("holder_{:032x}_{item}_used", who(seed).id().0)]).collect()
}

/// Waits until every greedy key uses `most` of an item.
async fn full(control: &Control, item: &str, most: u64) {
    let filled = async {
        while used(control, item).iter().any(|used| *used != most) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let done = timeout(SOON, filled).await;
    assert!(done.is_ok(), "{item}: {:?} of {most}", used(control, item));
}

/// Does something as often as the quota allows, and once more, which is refused.
async fn take<T>(most: u64, mut one: impl AsyncFnMut() -> Result<T, Error>) -> Vec<T> {
    let mut taken = Vec::new();
    for _ in 0..most {
        taken.push(one().await.unwrap());
    }
    match one().await {
        Err(
            Error::Refused { status: Status::CapacityExceeded, .. }
            | Error::Page { status: PageStatus::InsufficientCapacity, .. },
        ) => taken,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("more than {most}"),
    }
}

fn export(lease: u128) -> LeaseExport {
    LeaseExport {
        lease_id: LeaseId(lease).key().0,
        target_runtime_kind: TargetRuntime::Tasklet,
        target_identity: 0,
        rights: Rights::READ,
        ttl_secs: 250,
    }
}

/// A greedy client and everything that it holds.
struct Greedy {
    seed: u8,
    client: Client,
    token: Token,
    leases: Vec<u128>,
    handles: Vec<u128>,
    /// Requests whose answers it does not take.
    asked: Vec<(Connection, SendStream, RecvStream)>,
}

impl Greedy {
    async fn new(seed: u8, at: SocketAddr) -> Self {
        let client = Client::quic(key(seed), at, None).await.unwrap();
        let token = client.cap_request(Perms::ALL, 300, 0, None).await.unwrap();
        Self { seed, client, token, leases: Vec::new(), handles: Vec::new(), asked: Vec::new() }
    }

    /// Takes everything that can be had at once.
    async fn fill(mut self) -> Self {
        let (client, token) = (&self.client, &self.token);
        take(PROXIES, async || client.svc_tcp_bind(token, 9, 300).await).await;
        for _ in 0..MEMORY {
            self.leases.push(client.lease_alloc(token, &Alloc::memory(PAGE, 300)).await.unwrap().lease_id);
        }
        let (leases, mut next) = (&self.leases, 0);
        let mut lease = || {
            next += 1;
            leases[next % leases.len()]
        };
        let exported = take(HANDLES, async || client.lease_export(&export(lease())).await).await;
        self.handles = exported.iter().map(|exported| exported.export_handle).collect();
        let mut page = async || client.page_advise(PageRef { lease_id: lease(), page: 0 }, 1).await;
        take(PAGES, async || page().await).await;
        for lease in &leases[..BINDINGS as usize / 2] {
            client.lease_bind(token, *lease, BindKind::Rdma, &[]).await.unwrap();
        }
        self
    }

    /// Imports handles that another has exported.
    async fn import(&self, handles: Vec<u128>) {
        let mut handles = handles.iter();
        take(ATTACHMENTS, async || self.client.lease_import(*handles.next().unwrap()).await).await;
    }

    async fn ask(&mut self, connection: &Connection, op: Op, params: &[u8]) {
        let message = request(self.seed, op, self.token.as_bytes(), params);
        let (send, receive) = ask(connection, &message).await;
        self.asked.push((connection.clone(), send, receive));
    }

    /// Begins all the work that it may, which does not end.
    async fn begin(&mut self, at: SocketAddr) {
        let alloc = LeaseAlloc {
            duration_secs: 300,
            grace_secs: 0,
            resource_type: Some(ResourceType::Block),
            requested_bytes: Some(PAGE),
            intents: Tlvs::EMPTY,
        };
        let far = Tlvs::parse(&[0x0F, 0xFF, 0, 0]).unwrap();
        let bind = |lease_id| LeaseBind { lease_id, kind: BindKind::Rdma.code(), client: far }.to_vec();
        let half = BINDINGS as usize / 2;
        let binds = self.leases[half..2 * half].iter().map(|lease| (Op::LeaseBind, bind(*lease)));
        let allocs = (0..BLOCKS).map(|_| (Op::LeaseAlloc, alloc.to_vec()));
        let work: Vec<_> = binds.chain(allocs).collect();
        for work in work.chunks(32) {
            let connection = connect(self.seed, at, 1024).await;
            for (op, params) in work {
                self.ask(&connection, *op, params).await;
            }
        }
    }

    /// Sends PINGs whose answers it does not take, more than it may have in hand.
    async fn ping(&mut self, at: SocketAddr) {
        for _ in 0..15 {
            let connection = connect(self.seed, at, 0).await;
            for _ in 0..32 {
                self.ask(&connection, Op::Ping, &[]).await;
            }
        }
    }
}

/// Runs the operations that must not wait for anybody, and leases a little.
async fn is_served(client: &Client, epoch: u64) {
    async fn soon<T>(op: Op, asked: impl Future<Output = Result<T, Error>>) -> T {
        timeout(SOON, asked).await.unwrap_or_else(|_| panic!("{op} is answered")).unwrap()
    }
    let token = soon(Op::CapRequest, client.cap_request(Perms::ALL, 300, 0, epoch.checked_sub(1))).await;
    let small = Alloc::memory(PAGE, 15);
    let alloc = || client.lease_alloc(&token, &small);
    let [freed, revoked] = [soon(Op::LeaseAlloc, alloc()).await, soon(Op::LeaseAlloc, alloc()).await];
    soon(Op::LeaseRenew, client.lease_renew(&token, freed.lease_id, 60)).await;
    soon(Op::LeaseFree, client.lease_free(freed.lease_id)).await;
    soon(Op::SchedulerFenceSet, client.fence_set(&token, epoch)).await;
    let fresh = soon(Op::CapRequest, client.cap_request(Perms::ALL, 300, 0, Some(epoch))).await;
    soon(Op::CapRevoke, client.cap_revoke(&fresh, token.fields().token_id, 60)).await;
    let state = soon(Op::LeaseQuery, client.lease_query(revoked.lease_id)).await;
    assert_eq!(state.status, berth_wire::fabric::LeaseStatus::Revoked);
}

#[test]
fn sixteen_keys_that_have_all_they_may_leave_another_his_ops_and_his_lease() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::<Gate>::default();
    let (control, disk) = node(folder.path(), &gate);
    let opens = Opens(gate, disk);
    let (quic, udp) = (endpoint(&control, "quic"), endpoint(&control, "control-udp"));
    let keys = async {
        let filling: Vec<_> =
            GREEDY.map(|seed| spawn_local(async move { Greedy::new(seed, quic).await.fill().await })).collect();
        let mut greedy = Vec::new();
        for filled in filling {
            greedy.push(filled.await.unwrap());
        }
        for (at, own) in greedy.iter().enumerate() {
            own.import(greedy[(at + 1) % greedy.len()].handles[..=ATTACHMENTS as usize].to_vec()).await;
        }
        for own in &mut greedy {
            own.begin(quic).await;
        }
        // Everything that is counted is at its quota at once, and so is the node's table of handles.
        full(&control, "leases", MEMORY + BLOCKS + PROXIES).await;
        for (item, most) in [
            ("bytes", (MEMORY + BLOCKS) * PAGE),
            ("handles", HANDLES),
            ("attachments", ATTACHMENTS),
            ("proxies", PROXIES),
            ("page_state", PAGES),
        ] {
            full(&control, item, most).await;
        }
        for own in &greedy {
            take(0, async || own.client.lease_alloc(&own.token, &Alloc::memory(1, 60)).await).await;
            take(0, async || own.client.lease_bind(&own.token, own.leases[9], BindKind::Rdma, &[]).await).await;
        }
        let mut pinging = JoinSet::new();
        for mut own in greedy {
            pinging.spawn_local(async move {
                own.ping(quic).await;
                own
            });
        }
        let greedy = pinging.join_all().await;
        for own in greedy.iter().take(2) {
            let asked = timeout(Duration::from_millis(300), own.client.ping()).await;
            assert!(asked.is_err(), "it has as much in hand as it may");
        }

        let over_quic = timeout(SOON, Client::quic(key(TENANT), quic, None)).await.expect("a connection").unwrap();
        let token = over_quic.cap_request(Perms::ALL, 300, 0, None).await.unwrap();
        let lease = over_quic.lease_alloc(&token, &Alloc::memory(PAGE, 60)).await.unwrap().lease_id;
        take(0, async || over_quic.lease_export(&export(lease)).await).await;
        is_served(&over_quic, 1).await;
        is_served(&Client::udp(key(TENANT), udp, None).await.unwrap(), 2).await;
        drop(greedy);
    };
    clients(LocalSet::new().run_until(keys));
    drop(opens);
    control.stop(SOON);
}
