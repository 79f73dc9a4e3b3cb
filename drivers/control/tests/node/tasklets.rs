//! Tasklets on the threads of a node, over UDP and QUIC. What they do is written in Rust: the executor is another crate's.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Data, Error, Ran, Tasklet, Via};
use berth_fabric::{Config, TaskletConfig};
use berth_tasklet::{
    hostcall::{Call, Hostcalls, Kind, code},
    run::{Executor, Limits, Module, Outcome, Rejected, Status as RunStatus},
};
use berth_wire::fabric::{
    Op, Perms, Status, TaskletAffinity, TaskletLeaseAlloc, TaskletLimits, TaskletRights, TaskletStatus,
};

use crate::common::{clients, config, count, endpoint, key, memory, start_with};

/// Modules are the names of what they do.
#[derive(Debug)]
struct Native;

#[derive(Debug)]
struct Program(Vec<u8>);

impl Executor for Native {
    fn compile(&self, wasm: &[u8]) -> Result<Arc<dyn Module>, Rejected> {
        Ok(Arc::new(Program(wasm.to_vec())))
    }
}

impl Module for Program {
    fn size(&self) -> u64 {
        100
    }

    fn takes_input(&self) -> bool {
        true
    }

    fn run(&self, input: &[u8], _: &Limits, host: &mut dyn Hostcalls) -> Outcome {
        let (status, output) = match &self.0[..] {
            b"sum" => sum(host),
            b"alloc" => alloc(host),
            b"spin" => (spin(host, u64::MAX), Vec::new()),
            b"turns" => (spin(host, 60), input.to_vec()),
            b"panic" => panic!("a bug"),
            _ => (RunStatus::Ok, input.to_vec()),
        };
        Outcome { status, output, fuel: 1, hostcalls: 1, reason: None }
    }
}

/// Sums the bytes of its lease.
fn sum(host: &mut dyn Hostcalls) -> (RunStatus, Vec<u8>) {
    let len = host.call(Call::GetSize(Kind::Memory));
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    let lease = None;
    assert_eq!(host.call(Call::Read { kind: Kind::Memory, lease, at: 0, out: &mut bytes }), 0);
    host.call(Call::Log { level: 2, message: b"summed" });
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    (RunStatus::Ok, sum.to_le_bytes().to_vec())
}

/// Makes a lease, writes to it, and returns its id.
fn alloc(host: &mut dyn Hostcalls) -> (RunStatus, Vec<u8>) {
    let (kind, mut out) = (Kind::Memory, [0; 32]);
    assert_eq!(host.call(Call::Alloc { kind: Kind::Block, min: 1, secs: 9, out: &mut [0; 40] }), code::DENIED);
    assert_eq!(host.call(Call::Alloc { kind, min: 5000, secs: 60, out: &mut out }), 0);
    let word = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap());
    let id = u128::from(word(0)) << 64 | u128::from(word(8));
    let lease = Some(id);
    assert_eq!(host.call(Call::Write { kind, lease, at: 4, data: b"made here" }), 0);
    assert_eq!(host.call(Call::Query { kind, lease: id, out: &mut [0; 24] }), 0);
    assert_eq!(host.call(Call::Renew { kind, lease: id, secs: 90, out: &mut [0; 8] }), 0);
    assert_eq!(host.call(Call::Query { kind, lease: 7, out: &mut [0; 24] }), code::INVALID_LEASE);
    (RunStatus::Ok, id.to_be_bytes().to_vec())
}

/// So many milliseconds of work.
fn spin(host: &mut dyn Hostcalls, millis: u64) -> RunStatus {
    let mut worked = Duration::ZERO;
    while worked < Duration::from_millis(millis) {
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(200) {}
        worked += began.elapsed();
        if !host.turn() {
            return RunStatus::ExecFailed;
        }
    }
    RunStatus::Ok
}

/// What does not end is asked for again so soon.
const SHORT: Duration = Duration::from_millis(100);

pub(super) fn node(sync_wait: Duration) -> Config {
    Config { tasklets: Some(TaskletConfig { sync_wait, ..TaskletConfig::new(Arc::new(Native), 1) }), ..config() }
}

pub(super) fn tasklet(what: &str) -> Tasklet {
    let limits =
        TaskletLimits { max_fuel: 1000, max_linear_memory: 1 << 16, max_output_bytes: 1000, max_hostcalls: 10 };
    let sha256 = sha256_of(what);
    Tasklet {
        mem_resource_id: 0,
        cpu_resource_id: 0,
        sha256,
        wasm: what.into(),
        caps: Vec::new(),
        input: b"in".to_vec(),
        limits,
    }
}

fn sha256_of(what: &str) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(what).into()
}

const PERMS: Perms = Perms::ALL;

async fn ended(client: &Client, ran: &Ran) -> TaskletStatus {
    for _ in 0..2000 {
        match client.tasklet_status(ran.tasklet_id).await.unwrap() {
            TaskletStatus::Unknown => tokio::time::sleep(Duration::from_millis(5)).await,
            status => return status,
        }
    }
    panic!("it does not end");
}

#[test]
fn tasklets_run_on_leases_over_both_carriers() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_with(folder.path(), memory(1 << 20), Vec::new(), node(Duration::from_secs(20)));
    clients(async {
        for carrier in ["quic", "control-udp"] {
            let client = match carrier {
                "quic" => Client::quic(key(2), endpoint(&control, "quic"), None).await.unwrap(),
                _ => Client::udp(key(2), endpoint(&control, "control-udp"), None).await.unwrap(),
            };
            let token = client.cap_request(PERMS, 60, 0, None).await.unwrap();
            let lease = client.lease_alloc(&token, &Alloc::memory(4096, 60)).await.unwrap();
            let mut data = Data::open(client.identity(), &lease, Via::Quic, None).await.unwrap();
            data.write(100, &[1; 1000]).await.unwrap();
            let caps = vec![(lease.lease_id, TaskletRights::FBMU_LEASE_IO)];
            let ran = client.tasklet_submit(&token, &Tasklet { caps, ..tasklet("sum") }).await.unwrap();
            assert_eq!((ran.status, ran.output), (TaskletStatus::Ok, 1000_u64.to_le_bytes().to_vec()));
            assert_eq!(ran.logs, [(2, b"summed".to_vec())]);
            let token_id = token.fields().token_id;
            let caps = vec![(token_id, TaskletRights::FBMU_ALLOC)];
            let made = client.tasklet_submit(&token, &Tasklet { caps, ..tasklet("alloc") }).await.unwrap();
            assert_eq!(made.status, TaskletStatus::Ok, "{made:?}");
            let id = u128::from_be_bytes(made.output.try_into().unwrap());
            client.lease_free(id).await.unwrap();
            let by_hash = Tasklet { wasm: Vec::new(), ..tasklet("echo") };
            assert_eq!(
                client.tasklet_submit(&token, &by_hash).await.unwrap().status,
                match carrier {
                    "quic" => TaskletStatus::ModuleNotFound,
                    _ => TaskletStatus::Ok,
                }
            );
            let echo = client.tasklet_submit(&token, &tasklet("echo")).await.unwrap();
            assert_eq!(echo.output, b"in");
            assert_eq!(
                client.tasklet_submit(&token, &tasklet("panic")).await.unwrap().status,
                TaskletStatus::ExecFailed
            );
        }
    });
    control.stop(Duration::from_secs(5));
}

#[test]
fn an_endless_tasklet_shares_its_core_and_is_cancelled_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_with(folder.path(), memory(1 << 20), Vec::new(), node(SHORT));
    clients(async {
        let connect = |seed| Client::quic(key(seed), endpoint(&control, "quic"), None);
        let (greedy, other) = (connect(2).await.unwrap(), connect(3).await.unwrap());
        let token = greedy.cap_request(PERMS, 60, 0, None).await.unwrap();
        let spinning = greedy.tasklet_submit(&token, &tasklet("spin")).await.unwrap();
        assert_eq!((spinning.status, spinning.output), (TaskletStatus::Unknown, vec![]));
        let queued = greedy.tasklet_submit(&token, &Tasklet { wasm: Vec::new(), ..tasklet("spin") }).await.unwrap();
        let own = other.cap_request(PERMS, 60, 0, None).await.unwrap();
        let ran = other.tasklet_submit(&own, &tasklet("turns")).await.unwrap();
        assert_eq!(ended(&other, &ran).await, TaskletStatus::Ok, "it had its turns");
        assert_eq!(other.tasklet_result(ran.tasklet_id).await.unwrap(), (TaskletStatus::Ok, b"in".to_vec()));
        assert_eq!(other.tasklet_status(spinning.tasklet_id).await.unwrap(), TaskletStatus::NotFound);
        let began = Instant::now();
        assert_eq!(greedy.tasklet_cancel(spinning.tasklet_id).await.unwrap(), TaskletStatus::Ok);
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
        let logs = greedy.tasklet_logs(spinning.tasklet_id).await.unwrap();
        assert_eq!(logs, (TaskletStatus::ExecFailed, vec![(255, b"cancelled".to_vec())]));
        // The end of the token ends the other one before it is answered.
        greedy.cap_revoke(&another(&other).await, token.fields().token_id, 1).await.unwrap_err();
        other.cap_revoke(&own, token.fields().token_id, 1).await.unwrap();
        assert_eq!(greedy.tasklet_status(queued.tasklet_id).await.unwrap(), TaskletStatus::ExecFailed);
    });
    let counters = control.stop(Duration::from_secs(5));
    assert_eq!((count(&counters, "tasklet_runs_ok"), count(&counters, "tasklet_runs_failed")), (1, 2));
    assert_eq!((count(&counters, "tasklets_under_way"), count(&counters, "tasklets_waiting")), (0, 0));
}

/// A token that is somebody else's.
async fn another(client: &Client) -> berth_client::Token {
    client.cap_request(PERMS, 60, 0, None).await.unwrap()
}

#[test]
fn a_composite_lease_takes_the_core_and_gives_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_with(folder.path(), memory(1 << 20), Vec::new(), node(SHORT));
    clients(async {
        let client = Client::quic(key(2), endpoint(&control, "quic"), None).await.unwrap();
        let token = client.cap_request(PERMS, 60, 0, None).await.unwrap();
        let wanted = TaskletLeaseAlloc {
            duration_secs: 60,
            grace_secs: 0,
            num_cores: 1,
            mem_bytes: 1 << 20,
            affinity: TaskletAffinity::SameNode,
            max_threads: 1,
        };
        let lease = client.tasklet_lease_alloc(&token, &wanted).await.unwrap();
        let refused = client.tasklet_lease_alloc(&token, &wanted).await;
        assert!(matches!(refused, Err(Error::Refused { op: Op::TaskletLeaseAlloc, status: Status::CapacityExceeded })));
        let within = Tasklet {
            mem_resource_id: lease.mem_resource_id,
            cpu_resource_id: lease.cpu_resource_id,
            ..tasklet("spin")
        };
        let spinning = client.tasklet_submit(&token, &within).await.unwrap();
        let waits = client.tasklet_submit(&token, &tasklet("echo")).await.unwrap();
        assert_eq!(waits.status, TaskletStatus::Unknown, "no core is left to it");
        client.tasklet_lease_free(lease.lease_id).await.unwrap();
        assert_eq!(client.tasklet_status(spinning.tasklet_id).await.unwrap(), TaskletStatus::ExecFailed);
        assert_eq!(ended(&client, &waits).await, TaskletStatus::Ok);
    });
    control.stop(Duration::from_secs(5));
}

#[test]
fn a_node_that_stops_ends_what_runs() {
    let folder = tempfile::tempdir().unwrap();
    let control = start_with(folder.path(), memory(1 << 20), Vec::new(), node(SHORT));
    clients(async {
        let client = Client::quic(key(2), endpoint(&control, "quic"), None).await.unwrap();
        let token = client.cap_request(PERMS, 60, 0, None).await.unwrap();
        client.tasklet_submit(&token, &tasklet("spin")).await.unwrap();
    });
    let began = Instant::now();
    control.stop(Duration::from_secs(5));
    assert!(began.elapsed() < Duration::from_secs(4));
}
