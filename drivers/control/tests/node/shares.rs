//! What one presenter may hold of the control plane, and the service of others meanwhile.

use std::{
    sync::{Arc, Condvar, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use berth_client::{Alloc, Client, Token};
use berth_fabric::{Binding, BlockingWork, BoundLease, TeardownFailed};
use berth_lease::LeaseId;
use berth_port::Nanos;
use berth_wire::fabric::{Announce, BindKind, LeaseBind, List, MsgType, Op, Perms, Status, Tlvs, Wire as _};
use quinn::VarInt;
use tokio::time::timeout;

use crate::common::{ask, clients, connect, count, endpoint, frame, key, memory, request, start, who};

const MIB: usize = 1 << 20;

/// Longer than a client within its share may wait, and shorter than any delay that a greedy peer could cause.
const SOON: Duration = Duration::from_secs(5);

async fn token(client: &Client) -> Token {
    client.cap_request(Perms::ALL, 300, 0, None).await.unwrap()
}

/// A tenant runs the operations that must not wait, on both carriers.
async fn is_served(udp: &Client, quic: &Client, token: &Token, lease: u128) {
    for client in [udp, quic] {
        timeout(SOON, client.lease_renew(token, lease, 60)).await.expect("LEASE_RENEW is answered").unwrap();
        timeout(SOON, client.cap_revoke(token, 7, 60)).await.expect("CAP_REVOKE is answered").unwrap();
        timeout(SOON, client.lease_alloc(token, &Alloc::memory(4096, 60))).await.expect("LEASE_ALLOC is").unwrap();
    }
}

#[test]
fn clients_that_never_take_their_answers_keep_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), memory(MIB), Vec::new());
    clients(async {
        let at = endpoint(&control, "quic");
        let tenant = Client::quic(key(3), at, None).await.unwrap();
        let over_udp = Client::udp(key(3), endpoint(&control, "control-udp"), None).await.unwrap();
        let token = token(&tenant).await;
        let lease = tenant.lease_alloc(&token, &Alloc::memory(4096, 15)).await.unwrap().lease_id;
        // More streams than there are permits, each with an answer that finds no window.
        let ping = request(2, Op::Ping, &[], &[]);
        let mut greedy = Vec::new();
        for _ in 0..40 {
            let connection = connect(2, at, 0).await;
            for _ in 0..32 {
                greedy.push((ask(&connection, &ping).await, connection.clone()));
            }
        }
        is_served(&over_udp, &tenant, &token, lease).await;
        drop(greedy);
    });
    let counters = control.stop(Duration::from_secs(1));
    assert_eq!(count(&counters, "op_lease_renew"), 2);
}

/// RDMA whose clients are found only when they are let in.
#[derive(Debug)]
struct Slow(Arc<(Mutex<bool>, Condvar)>);

impl Binding for Slow {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }
    fn name(&self) -> &'static str {
        "mlx5_0"
    }
    fn prepare(&mut self, _: &BoundLease, _: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let gate = self.0.clone();
        Ok(Some(BlockingWork::new(move || {
            let (open, changed) = &*gate;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        })))
    }
    fn bind(&mut self, _: &BoundLease, _: Tlvs<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Ok(())
    }
    fn teardown(&mut self, _: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        Ok(None)
    }
}

/// LEASE_BIND of this many new leases, as messages: more than one presenter's share of running operations.
async fn binds(client: &Client, seed: u8, leases: usize) -> Vec<Vec<u8>> {
    let token = token(client).await;
    let mut binds = Vec::new();
    for _ in 0..leases {
        let lease_id = client.lease_alloc(&token, &Alloc::memory(64, 60)).await.unwrap().lease_id;
        let bind = LeaseBind { lease_id, kind: BindKind::Rdma.code(), client: Tlvs::EMPTY }.to_vec();
        binds.push(request(seed, Op::LeaseBind, token.as_bytes(), &bind));
    }
    binds
}

#[test]
fn slow_ops_of_one_presenter_end_with_its_connections_and_leave_threads_to_others() {
    const LEASES: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::<(Mutex<bool>, Condvar)>::default();
    let control = start(folder.path(), memory(4 * MIB), vec![Box::new(Slow(gate.clone()))]);
    clients(async {
        let at = endpoint(&control, "quic");
        let (greedy, tenant) =
            (Client::quic(key(2), at, None).await.unwrap(), Client::quic(key(3), at, None).await.unwrap());
        let over_udp = Client::udp(key(3), endpoint(&control, "control-udp"), None).await.unwrap();
        let binds_of_2 = binds(&greedy, 2, LEASES).await;
        let mut asked = Vec::new();
        for binds in binds_of_2.chunks(30) {
            let connection = connect(2, at, 1024).await;
            for bind in binds {
                asked.push((ask(&connection, bind).await, connection.clone()));
            }
        }
        let token = token(&tenant).await;
        let lease = tenant.lease_alloc(&token, &Alloc::memory(4096, 60)).await.unwrap().lease_id;
        is_served(&over_udp, &tenant, &token, lease).await;
        // Its own work that blocks has threads, too.
        let bind = binds(&tenant, 3, 1).await.remove(0);
        let connection = connect(3, at, 1024).await;
        let (_, mut answer) = ask(&connection, &bind).await;
        let reading = tokio::spawn(async move { answer.read_to_end(1024).await.unwrap() });
        // What waits and has not begun ends with its connections.
        for (_, connection) in &asked {
            connection.close(VarInt::from_u32(0), b"");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert!(!timeout(SOON, reading).await.expect("LEASE_BIND is answered").unwrap().is_empty());
    });
    let counters = control.stop(Duration::from_secs(5));
    assert_eq!(count(&counters, "op_lease_bind"), 256 + 1, "as many as may run, and the other's");
}

#[test]
fn a_relay_serves_discovery_alone_and_a_node_hears_announcements() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), memory(MIB), Vec::new());
    clients(async {
        let relay = Client::udp(key(2), endpoint(&control, "relay"), None).await.unwrap();
        assert_eq!(relay.nodes(&[]).await.unwrap().len(), 1);
        let asked = async { tokio::join!(relay.ping(), relay.enroll()) };
        assert!(timeout(Duration::from_secs(1), asked).await.is_err(), "it answers no op");
        let quic = connect(2, endpoint(&control, "quic"), 1024).await;
        let announce = Announce {
            node_id: who(2).id().0,
            sequence: 1,
            ttl_secs: 60,
            site: 1,
            row: 1,
            rack: 1,
            locality_custom: [0; 32],
            endpoints: List::EMPTY,
            resources: List::EMPTY,
            tlvs: List::EMPTY,
        };
        for (payload, expected) in [(announce.to_vec(), true), (vec![0; 5], false)] {
            let (_, mut answer) = ask(&quic, &frame(2, MsgType::Announce, payload)).await;
            let ended = answer.read_to_end(1024).await;
            assert_eq!(ended.as_deref().ok(), expected.then_some(&[][..]), "no bytes, or a reset");
        }
    });
    let counters = control.stop(Duration::from_secs(1));
    assert_eq!(count(&counters, "messages_accepted"), 1);
    assert!(count(&counters, "frames_unexpected") >= 2);
}

/// RDMA whose device is stuck, and the node with it, while the gate is closed.
#[derive(Debug)]
struct Stuck(Arc<Mutex<()>>);

impl Binding for Stuck {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }
    fn name(&self) -> &'static str {
        "mlx5_0"
    }
    fn bind(&mut self, _: &BoundLease, _: Tlvs<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        Ok(())
    }
    fn teardown(&mut self, _: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        Ok(None)
    }
    fn tick(&mut self, _: Nanos, _: &mut Vec<LeaseId>) {
        drop(self.0.lock().unwrap());
    }
}

#[test]
fn a_node_that_is_stuck_does_not_beat() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::<Mutex<()>>::default();
    let control = start(folder.path(), memory(MIB), vec![Box::new(Stuck(gate.clone()))]);
    let beats = control.beats();
    let rises = || {
        let before = beats.load(Relaxed);
        std::thread::sleep(Duration::from_millis(300));
        beats.load(Relaxed) > before
    };
    assert!((0..20).any(|_| rises()));
    let stuck = gate.lock().unwrap();
    assert!((0..20).any(|_| !rises()) && !rises());
    drop(stuck);
    assert!((0..20).any(|_| rises()));
    control.stop(Duration::from_secs(1));
}

#[test]
fn long_answers_over_udp_are_charged_to_who_asks_and_no_other() {
    const LEASES: usize = 1000;
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), memory(4 * MIB), Vec::new());
    clients(async {
        let quic = Client::quic(key(2), endpoint(&control, "quic"), None).await.unwrap();
        let token = token(&quic).await;
        let alloc = Alloc::memory(64, 300);
        for _ in 0..LEASES {
            quic.lease_alloc(&token, &alloc).await.unwrap();
        }
        let at = endpoint(&control, "control-udp");
        let (greedy, other) =
            (Client::udp(key(2), at, None).await.unwrap(), Client::udp(key(3), at, None).await.unwrap());
        assert_eq!(greedy.lease_list().await.unwrap().len(), LEASES);
        // Of 62 KiB each: 4 MiB and one more at once, then a MiB in a second.
        let mut asking = tokio::task::JoinSet::new();
        let greedy = Arc::new(greedy);
        for _ in 0..8 {
            let greedy = greedy.clone();
            asking.spawn(async move { while greedy.lease_list().await.is_ok() {} });
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        asking.abort_all();
        assert_eq!(timeout(SOON, other.lease_list()).await.expect("it has its own").unwrap().len(), LEASES);
        assert_eq!(quic.lease_list().await.unwrap().len(), LEASES, "QUIC is not charged");
        greedy.ping().await.unwrap();
    });
    assert!(count(&control.stop(Duration::from_secs(1)), "frames_over_share") > 0);
}
