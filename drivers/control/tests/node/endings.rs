//! Teardowns that take time: only the one who ends a lease waits for them.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Token};
use berth_fabric::{Binding, BlockingWork, BoundLease, TeardownFailed};
use berth_lease::LeaseId;
use berth_wire::fabric::{BindKind, Perms, Status, Tlvs};

use crate::common::{clients, endpoint, key, memory, start};

/// Operations of another presenter during a teardown.
const OPS: usize = 10_000;

/// RDMA whose queue pairs are destroyed once the gate is open.
#[derive(Debug)]
struct Slow(Arc<(Mutex<bool>, Condvar)>);

impl Binding for Slow {
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
        let gate = self.0.clone();
        Ok(Some(BlockingWork::new(move || {
            let (open, changed) = &*gate;
            drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        })))
    }
}

async fn token(client: &Client) -> Token {
    client.cap_request(Perms::ALL, 300, 0, None).await.unwrap()
}

/// Median and p99 of the time of operations.
async fn ops(client: &Client, lease: u128) -> [Duration; 2] {
    let mut took = Vec::with_capacity(OPS);
    for _ in 0..OPS {
        let begun = Instant::now();
        client.lease_query(lease).await.unwrap();
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    [took[OPS / 2], took[OPS * 99 / 100]]
}

#[test]
fn a_teardown_keeps_its_own_op_waiting_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::<(Mutex<bool>, Condvar)>::default();
    let control = start(folder.path(), memory(1 << 20), vec![Box::new(Slow(gate.clone()))]);
    clients(async {
        let at = endpoint(&control, "control-udp");
        let (slow, tenant) =
            (Client::udp(key(2), at, None).await.unwrap(), Client::udp(key(3), at, None).await.unwrap());
        let (of_slow, of_tenant) = (token(&slow).await, token(&tenant).await);
        let alone = tenant.lease_alloc(&of_tenant, &Alloc::memory(4096, 60)).await.unwrap().lease_id;
        let quiet = ops(&tenant, alone).await;
        let lease = slow.lease_alloc(&of_slow, &Alloc::memory(4096, 60)).await.unwrap().lease_id;
        slow.lease_bind(&of_slow, lease, BindKind::Rdma, &[]).await.unwrap();
        let freeing = tokio::spawn(async move { slow.lease_free(lease).await });
        let beside = ops(&tenant, alone).await;
        println!("LEASE_QUERY, p50 and p99: {quiet:?} alone, {beside:?} beside a teardown");
        assert!(!freeing.is_finished(), "its answer waits for the teardown");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        freeing.await.unwrap().unwrap();
    });
    control.stop(Duration::from_secs(1));
}
