//! How soon a revocation is answered while a tasklet reads the lease without pause, as JSON lines:
//! `cargo run --release -p berth-client --example revoke_tasklet_bench -- CONTROL IDENTITY ROUNDS`.
//!
//! CONTROL is the QUIC address of a node with `[tasklet]`, a region of memory and a `sync_wait_ms` of a few milliseconds; IDENTITY the key
//! file of an enrolled client with `exec`, `alloc`, `read`, `write` and `revoke`. A round revokes a token with one lease: beside a
//! tasklet that reads it, and alone. Once that is answered, the client says so in another lease. The tasklet looks there before each read, and
//! counts those that were served although it had seen that.
#![allow(clippy::doc_markdown)] // the documents' names of ops

use std::{path::Path, sync::Arc, time::Instant};

use berth_client::{Alloc, Client, Tasklet, Token};
use berth_wire::fabric::{Perms, TaskletLimits, TaskletRights, TaskletStatus, data::page::PageRef};
use sha2::{Digest as _, Sha256};
use tokio::time::{Duration, sleep};

const LIMITS: TaskletLimits = TaskletLimits {
    max_fuel: 10_000_000_000,
    max_linear_memory: 64 << 10,
    max_output_bytes: 8,
    max_hostcalls: 1_000_000,
};

/// How long the tasklet reads before the revocation.
const BEFORE: Duration = Duration::from_millis(3);

type Failure = Box<dyn std::error::Error>;

/// The module that reads `lease` until it is refused and `flag` is set: how many reads were served, and how many after the flag.
fn module(lease: u128, flag: u128) -> Result<Vec<u8>, wat::Error> {
    let id = |id: u128| format!("(i64.const {}) (i64.const {})", (id >> 64) as u64, id as u64);
    let add =
        |at: u32, more: &str| format!("(i32.store (i32.const {at}) (i32.add (i32.load (i32.const {at})) {more}))");
    wat::parse_str(format!(
        r#"(module
        (import "fabricbios_fbmu_v0" "fbmu_read_lease" (func $read (param i64 i64 i64 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "tasklet_run") (param i32 i32) (result i64) (local $told i32) (local $served i32)
            (loop $next
                (if (call $read {flag} (i64.const 0) (i32.const 4) (i32.const 0)) (then unreachable))
                (local.set $told (i32.load (i32.const 0)))
                (local.set $served (i32.eqz (call $read {lease} (i64.const 0) (i32.const 64) (i32.const 64))))
                {count}
                {late}
                (br_if $next (i32.or (i32.eqz (local.get $told)) (local.get $served))))
            (i64.const 0x2000000008)))"#,
        flag = id(flag),
        lease = id(lease),
        count = add(32, "(local.get $served)"),
        late = add(36, "(i32.and (local.get $told) (local.get $served))"),
    ))
}

fn main() -> Result<(), Failure> {
    let [_, control, identity, rounds] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY ROUNDS".into());
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let rounds: usize = rounds.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::quic(identity, control.parse()?, None).await?;
        let exec = client.cap_request(Perms::EXEC | Perms::READ | Perms::WRITE | Perms::ALLOC, 300, 0, None).await?;
        for round in 0..rounds {
            let (beside, alone) = if round % 2 == 0 {
                let beside = revocation(&client, &exec, true).await?;
                (beside, revocation(&client, &exec, false).await?)
            } else {
                let alone = revocation(&client, &exec, false).await?;
                (revocation(&client, &exec, true).await?, alone)
            };
            let ((ours, reads, late), (theirs, ..)) = (beside, alone);
            println!(
                "{{\"ours\": {ours:.1}, \"theirs\": {theirs:.1}, \"reads\": {reads}, \"served_after_answer\": {late}}}"
            );
        }
        Ok(())
    })
}

/// Microseconds from the request to its answer; what a tasklet counted that read meanwhile, if one did.
async fn revocation(client: &Client, exec: &Token, read: bool) -> Result<(f64, u32, u32), Failure> {
    let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 60, 0, None).await?;
    let power = client.cap_request(Perms::REVOKE, 60, 0, None).await?;
    let lease = client.lease_alloc(&token, &Alloc::memory(4096, 60)).await?.lease_id;
    let flag = client.lease_alloc(exec, &Alloc::memory(4096, 60)).await?.lease_id;
    let mut tasklet = None;
    if read {
        let wasm = module(lease, flag)?;
        let caps = [lease, flag].map(|lease| (lease, TaskletRights::FBMU_LEASE_IO)).to_vec();
        let sha256 = Sha256::digest(&wasm).into();
        let of =
            Tasklet { mem_resource_id: 0, cpu_resource_id: 0, sha256, wasm, caps, input: Vec::new(), limits: LIMITS };
        let said = client.tasklet_submit(exec, &of).await?;
        if said.status != TaskletStatus::Unknown {
            return Err(format!("it does not read: {}", said.status).into());
        }
        tasklet = Some(said.tasklet_id);
    }
    sleep(BEFORE).await;
    let asked = Instant::now();
    client.cap_revoke(&power, token.fields().token_id, 60).await?;
    let took = asked.elapsed().as_secs_f64() * 1e6;
    client.page_write(PageRef { lease_id: flag, page: 0 }, 0, &1_u32.to_le_bytes()).await?;
    let Some(id) = tasklet else {
        client.lease_free(flag).await?;
        return Ok((took, 0, 0));
    };
    loop {
        let (status, output) = client.tasklet_result(id).await?;
        match (status, &output[..]) {
            (TaskletStatus::Unknown, _) => sleep(Duration::from_millis(1)).await,
            (TaskletStatus::Ok, [a, b, c, d, late @ ..]) => {
                client.lease_free(flag).await?;
                let reads = u32::from_le_bytes([*a, *b, *c, *d]);
                return Ok((took, reads, u32::from_le_bytes(late.try_into()?)));
            }
            _ => return Err(format!("it does not read: {status}").into()),
        }
    }
}
