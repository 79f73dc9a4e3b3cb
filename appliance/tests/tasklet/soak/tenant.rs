//! A tenant: it submits tasklets of all kinds, knows how each must end, and that none runs twice.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Error, Ran, Tasklet, Token};
use berth_identity::Identity;
use berth_wire::fabric::{
    Perms, Status, TaskletAffinity, TaskletLeaseAlloc, TaskletLimits, TaskletRights, TaskletStatus,
};
use fastrand::Rng;
use sha2::{Digest as _, Sha256};

/// Adds 1 to the first word of its lease, and returns the sum.
const ADD: &str = r#"(module
  (import "fabricbios_fbmu_v0" "fbmu_read" (func $read (param i64 i32 i32) (result i32)))
  (import "fabricbios_fbmu_v0" "fbmu_write" (func $write (param i64 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "tasklet_run") (param i32 i32) (result i64)
    (if (call $read (i64.const 0) (i32.const 8) (i32.const 0)) (then unreachable))
    (i64.store (i32.const 0) (i64.add (i64.load (i32.const 0)) (i64.const 1)))
    (if (call $write (i64.const 0) (i32.const 0) (i32.const 8)) (then unreachable))
    (i64.const 8)))"#;

/// Reads its lease until that fails, and returns the code.
const WATCH: &str = r#"(module
  (import "fabricbios_fbmu_v0" "fbmu_read" (func $read (param i64 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "tasklet_run") (param i32 i32) (result i64)
    (loop $on
      (i32.store (i32.const 0) (call $read (i64.const 0) (i32.const 8) (i32.const 8)))
      (br_if $on (i32.eqz (i32.load (i32.const 0)))))
    (i64.const 4)))"#;

/// Of a later profile.
const LATER: &str = r#"(module (import "fabricbios_fbmu_v1" "fbmu_hello" (func (result i32))) (memory (export "memory") 1)
  (func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0)))"#;

fn plain(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (memory (export "memory") 1) (func (export "tasklet_run") (param i32 i32) (result i64) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

const LIMITS: TaskletLimits = TaskletLimits {
    max_fuel: 10_000_000_000,
    max_linear_memory: 1 << 16,
    max_output_bytes: 100,
    max_hostcalls: 1_000_000,
};

/// What became of a tenant's submissions.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) ids: Vec<u64>,
    /// Submissions, and their ends by status.
    pub(super) submitted: u64,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// Runs that ended otherwise than they would have: their executor was killed, or their time was over.
    pub(super) faults: u64,
}

struct Tenant {
    client: Client,
    rng: Rng,
    token: Token,
    /// The lease that is added to, and what stands there: at least, and perhaps more.
    lease: u128,
    sum: (u64, u64),
    modules: Modules,
    tally: Tally,
}

struct Modules {
    add: Vec<u8>,
    watch: Vec<u8>,
    later: Vec<u8>,
    spin: Vec<u8>,
    trap: Vec<u8>,
    grow: Vec<u8>,
    fail: Vec<u8>,
}

/// So many submissions of a tenant, over UDP or QUIC.
pub(super) fn live(seed: u64, key: Arc<Identity>, (to, udp): (SocketAddr, bool), runs: u64, done: &AtomicU64) -> Tally {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = if udp { Client::udp(key, to, None).await } else { Client::quic(key, to, None).await }.unwrap();
        let token = client.cap_request(PERMS, 300, 0, None).await.unwrap();
        let lease = client.lease_alloc(&token, &Alloc::memory(4096, 20_000)).await.unwrap().lease_id;
        let parse = |text| wat::parse_str(text).unwrap();
        let modules = Modules {
            add: parse(ADD),
            watch: parse(WATCH),
            later: parse(LATER),
            spin: plain("(loop $on (br $on)) (i64.const 0)"),
            trap: plain("unreachable"),
            grow: plain("(drop (memory.grow (i32.const 100))) (i64.const 0)"),
            fail: plain("(i64.const 0xFFFFFFFF_00000009)"),
        };
        let (rng, tally) = (Rng::with_seed(seed), Tally::default());
        let mut tenant = Tenant { client, rng, token, lease, sum: (0, 0), modules, tally };
        // Each kind once, then as they come.
        for kind in 0..KINDS.len() {
            tenant.step(kind).await;
        }
        for nth in 0..runs.saturating_sub(tenant.tally.submitted) {
            if nth % 1000 == 999 {
                tenant.token = tenant.client.cap_request(PERMS, 300, 0, None).await.unwrap();
            }
            let kind = tenant.rng.u32(..1000);
            let kind = KINDS.iter().position(|below| kind < *below).unwrap_or(0);
            tenant.step(kind).await;
            done.fetch_add(1, Relaxed);
        }
        tenant.client.lease_free(tenant.lease).await.unwrap();
        tenant.client.close().await;
        tenant.tally
    })
}

const PERMS: Perms = Perms::ALL;

/// Of 1000 submissions, how many are of each kind or of one before it: see [`Tenant::step`].
const KINDS: [u32; 17] = [700, 740, 780, 810, 850, 880, 900, 910, 930, 960, 970, 980, 985, 990, 991, 995, 1000];

impl Tenant {
    async fn step(&mut self, kind: usize) {
        let limits = LIMITS;
        match kind {
            0 => self.add(0, 0).await,
            1 => self.ends("trap", LIMITS, TaskletStatus::ExecFailed).await,
            2 => self.ends("spin", TaskletLimits { max_fuel: 1000, ..limits }, TaskletStatus::FuelExhausted).await,
            3 => self.ends("grow", LIMITS, TaskletStatus::Oom).await,
            4 => self.ends("add", TaskletLimits { max_hostcalls: 1, ..limits }, TaskletStatus::HostcallLimit).await,
            5 => self.ends("fail", LIMITS, TaskletStatus::ExecFailed).await,
            6 => {
                let garbage = Tasklet { wasm: b"garbage".to_vec(), ..self.tasklet(b"garbage", LIMITS) };
                self.refused(&garbage, TaskletStatus::Invalid).await;
            }
            7 => {
                let later = Tasklet { wasm: self.modules.later.clone(), ..self.tasklet(&self.modules.later, LIMITS) };
                self.refused(&later, TaskletStatus::UnsupportedProfile).await;
            }
            8 => self.refused(&self.tasklet(b"nobody has it", LIMITS), TaskletStatus::ModuleNotFound).await,
            9 => {
                let caps = vec![(99, TaskletRights::FBMU_LEASE_IO)];
                let none = Tasklet { caps, ..self.tasklet(&self.modules.add, LIMITS) };
                self.refused(&none, TaskletStatus::Unauthorized).await;
            }
            10 => {
                let caps = vec![(self.lease, TaskletRights::SVC_LISTEN)];
                let listens = Tasklet { caps, ..self.tasklet(&self.modules.add, LIMITS) };
                self.refused(&listens, TaskletStatus::Unsupported).await;
            }
            11 => {
                let much = TaskletLimits { max_fuel: u64::MAX, ..limits };
                self.tally.submitted += 1;
                let refused = self.client.tasklet_submit(&self.token, &self.tasklet(b"", much)).await;
                assert_eq!(control(&refused.unwrap_err()), Status::CapacityExceeded);
                self.count("CAPACITY_EXCEEDED");
            }
            12 => self.cancel().await,
            13 => self.lease_ends().await,
            14 => self.ends("spin", LIMITS, TaskletStatus::ExecFailed).await,
            15 => self.crowd().await,
            _ => self.composite().await,
        }
    }

    fn module(&self, name: &str) -> &[u8] {
        let Modules { add, watch, later: _, spin, trap, grow, fail } = &self.modules;
        match name {
            "add" => add,
            "watch" => watch,
            "spin" => spin,
            "trap" => trap,
            "grow" => grow,
            _ => fail,
        }
    }

    fn tasklet(&self, module: &[u8], limits: TaskletLimits) -> Tasklet {
        Tasklet {
            mem_resource_id: 0,
            cpu_resource_id: 0,
            sha256: Sha256::digest(module).into(),
            wasm: Vec::new(),
            caps: vec![(self.lease, TaskletRights::FBMU_LEASE_IO)],
            input: Vec::new(),
            limits,
        }
    }

    fn count(&mut self, end: &'static str) {
        *self.tally.counts.entry(end).or_default() += 1;
    }

    /// Submits by hash, and with the module's bytes where the node does not know it.
    async fn submit(&mut self, module: &str, tasklet: Tasklet) -> Result<Ran, Error> {
        self.tally.submitted += 1;
        let ran = self.client.tasklet_submit(&self.token, &tasklet).await?;
        if ran.status != TaskletStatus::ModuleNotFound {
            return Ok(ran);
        }
        self.count("MODULE_NOT_FOUND");
        self.tally.submitted += 1;
        let with_bytes = Tasklet { wasm: self.module(module).to_vec(), ..tasklet };
        self.client.tasklet_submit(&self.token, &with_bytes).await
    }

    /// Submits what is admitted.
    async fn admitted(&mut self, module: &str, tasklet: Tasklet) -> Ran {
        let ran = self.submit(module, tasklet).await.unwrap();
        self.tally.ids.push(ran.tasklet_id);
        ran
    }

    /// Waits for the end of a run, and counts it.
    async fn ended(&mut self, ran: Ran) -> Ran {
        let (begun, mut ran) = (Instant::now(), ran);
        while ran.status == TaskletStatus::Unknown {
            assert!(begun.elapsed() < Duration::from_mins(1), "{:#x} does not end", ran.tasklet_id);
            tokio::time::sleep(Duration::from_millis(1)).await;
            (ran.status, ran.output) = self.client.tasklet_result(ran.tasklet_id).await.unwrap();
            if ran.status != TaskletStatus::Unknown {
                ran.logs = self.client.tasklet_logs(ran.tasklet_id).await.unwrap().1;
            }
        }
        self.count(name(ran.status));
        ran
    }

    /// Whether the run met one of the faults: then it says so.
    fn met_a_fault(&mut self, ran: &Ran) -> bool {
        let Some((255, reason)) = ran.logs.last() else { return false };
        let reason = String::from_utf8_lossy(reason);
        let killed = reason == "its executor ended: signal: 9 (SIGKILL)" || reason.starts_with("wall time: ");
        let fault = ran.status == TaskletStatus::ExecFailed && killed;
        self.tally.faults += u64::from(fault);
        fault
    }

    /// A run of `module` that ends so.
    async fn ends(&mut self, module: &str, limits: TaskletLimits, status: TaskletStatus) {
        let tasklet = self.tasklet(self.module(module), limits);
        let ran = self.admitted(module, tasklet).await;
        let ran = self.ended(ran).await;
        let output: &[u8] = if module == "fail" { &[0, 0, 0, 9] } else { &[] };
        assert!(self.met_a_fault(&ran) || (ran.status, &ran.output[..]) == (status, output), "{module}: {ran:?}");
    }

    async fn refused(&mut self, tasklet: &Tasklet, status: TaskletStatus) {
        self.tally.submitted += 1;
        let ran = self.client.tasklet_submit(&self.token, tasklet).await.unwrap();
        assert_eq!((ran.status, ran.tasklet_id, ran.output, ran.logs), (status, 0, vec![], vec![]));
        self.count(name(status));
    }

    /// Adds once, on the cores of a composite lease where there is one.
    async fn add(&mut self, mem_resource_id: u128, cpu_resource_id: u128) {
        let tasklet = Tasklet { mem_resource_id, cpu_resource_id, ..self.tasklet(&self.modules.add, LIMITS) };
        let ran = self.admitted("add", tasklet).await;
        let ran = self.ended(ran).await;
        if self.met_a_fault(&ran) {
            // Before it wrote, or after.
            self.sum.1 += 1;
            return;
        }
        assert_eq!(ran.status, TaskletStatus::Ok, "{ran:?}");
        let sum = u64::from_le_bytes(ran.output.try_into().unwrap());
        let (least, most) = (self.sum.0 + 1, self.sum.1 + 1);
        assert!((least..=most).contains(&sum), "{sum} is not {least} to {most}: it ran twice, or not at all");
        self.sum = (sum, sum);
    }

    async fn cancel(&mut self) {
        let tasklet = self.tasklet(&self.modules.spin, LIMITS);
        let ran = self.admitted("spin", tasklet).await;
        let said = self.client.tasklet_cancel(ran.tasklet_id).await.unwrap();
        let ran = self.ended(ran).await;
        if !self.met_a_fault(&ran) {
            let cancelled = vec![(255, b"cancelled".to_vec())];
            assert_eq!((said, ran.status, &ran.logs), (TaskletStatus::Ok, TaskletStatus::ExecFailed, &cancelled));
        }
    }

    /// A run reads a lease that ends meanwhile.
    async fn lease_ends(&mut self) {
        let lease = self.client.lease_alloc(&self.token, &Alloc::memory(4096, 60)).await.unwrap().lease_id;
        let caps = vec![(lease, TaskletRights::FBMU_LEASE_IO)];
        let tasklet = Tasklet { caps, ..self.tasklet(&self.modules.watch, LIMITS) };
        let ran = self.admitted("watch", tasklet).await;
        self.client.lease_free(lease).await.unwrap();
        let ran = self.ended(ran).await;
        if !self.met_a_fault(&ran) {
            assert_eq!((ran.status, &ran.output[..]), (TaskletStatus::Ok, &(-1_i32).to_le_bytes()[..]), "{ran:?}");
        }
    }

    /// More at a time than there is room for: some are refused, the others end.
    async fn crowd(&mut self) {
        let limits = TaskletLimits { max_fuel: 3_000_000, ..LIMITS };
        self.ends("spin", limits, TaskletStatus::FuelExhausted).await;
        let tasklet = self.tasklet(&self.modules.spin, limits);
        let submit = || self.client.tasklet_submit(&self.token, &tasklet);
        let all = tokio::join!(submit(), submit(), submit(), submit(), submit(), submit(), submit(), submit());
        for ran in <[_; 8]>::from(all) {
            self.tally.submitted += 1;
            match ran {
                Ok(ran) => {
                    self.tally.ids.push(ran.tasklet_id);
                    let ran = self.ended(ran).await;
                    assert!(self.met_a_fault(&ran) || ran.status == TaskletStatus::FuelExhausted, "{ran:?}");
                }
                Err(error) => {
                    assert_eq!(control(&error), Status::ResourceBusy);
                    self.count("RESOURCE_BUSY");
                }
            }
        }
    }

    /// A lease of the core, if it is free: runs within it, of which one is under way at its end.
    async fn composite(&mut self) {
        let wanted = TaskletLeaseAlloc {
            duration_secs: 60,
            grace_secs: 0,
            num_cores: 1,
            mem_bytes: 1 << 20,
            affinity: TaskletAffinity::SameNode,
            max_threads: 1,
        };
        let lease = match self.client.tasklet_lease_alloc(&self.token, &wanted).await {
            Ok(lease) => lease,
            Err(error) => {
                assert_eq!(control(&error), Status::CapacityExceeded);
                return;
            }
        };
        let (mem, cpu) = (lease.mem_resource_id, lease.cpu_resource_id);
        for _ in 0..3 {
            self.add(mem, cpu).await;
        }
        let within = Tasklet { mem_resource_id: mem, cpu_resource_id: cpu, ..self.tasklet(&self.modules.spin, LIMITS) };
        let ran = self.admitted("spin", within).await;
        self.client.tasklet_lease_free(lease.lease_id).await.unwrap();
        let ran = self.ended(ran).await;
        if !self.met_a_fault(&ran) {
            let ended = vec![(255, b"its composite lease ended".to_vec())];
            assert_eq!((ran.status, &ran.logs), (TaskletStatus::ExecFailed, &ended));
        }
    }
}

fn control(error: &Error) -> Status {
    match error {
        Error::Refused { status, .. } => *status,
        error => panic!("{error}"),
    }
}

fn name(status: TaskletStatus) -> &'static str {
    match status {
        TaskletStatus::Ok => "OK",
        TaskletStatus::FuelExhausted => "FUEL_EXHAUSTED",
        TaskletStatus::Oom => "OOM",
        TaskletStatus::ExecFailed => "EXEC_FAILED",
        TaskletStatus::HostcallLimit => "HOSTCALL_LIMIT",
        TaskletStatus::Invalid => "INVALID",
        TaskletStatus::Unauthorized => "UNAUTHORIZED",
        TaskletStatus::UnsupportedProfile => "UNSUPPORTED_PROFILE",
        TaskletStatus::ModuleNotFound => "MODULE_NOT_FOUND",
        TaskletStatus::Unsupported => "UNSUPPORTED",
        other => panic!("{other:?}"),
    }
}
