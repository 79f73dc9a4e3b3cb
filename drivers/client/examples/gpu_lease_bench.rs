//! What a tenant of a GPU waits for, as a JSON line:
//! `cargo run --release -p berth-client --example gpu_lease_bench -- CONTROL IDENTITY WHAT COUNT`.
//!
//! CONTROL is the QUIC address of a node with a leased GPU of 1 MiB that serves FBMT, IDENTITY the key file of an enrolled client with `exec`,
//! `alloc`, `read` and `write`. WHAT is `submit`: a kernel that does nothing, of a module that the node knows, from the request over QUIC to
//! its answer; `write` or `read`: 1 MiB of the lease over TCP, every byte compared. Percentiles are in microseconds.
#![allow(clippy::doc_markdown)] // the documents' names of ops

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Data, Grant, Kernel, Token, Via};
use berth_identity::Identity;
use berth_wire::fabric::{GpuStatus, Perms, ResourceType};

const LEN: u64 = 1 << 20;
/// Of each kind, before any is measured.
const WARMUP: usize = 3;
/// A module of one kernel that does nothing.
const PTX: &str = ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry empty()\n{\nret;\n}\n";

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let [_, control, identity, what, count] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY WHAT COUNT".into());
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let count = count.parse::<usize>()?.max(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut times = runtime.block_on(async {
        let client = Client::quic(identity.clone(), control.parse()?, None).await?;
        let perms = Perms::READ | Perms::WRITE | Perms::ALLOC | Perms::EXEC;
        let token = client.cap_request(perms, 300, 0, None).await?;
        let lease = client.lease_alloc(&token, &Alloc::gpu(LEN, 300)).await?;
        let times = match &**what {
            "submit" => submits(&client, &token, WARMUP + count).await?,
            "write" | "read" => accesses(&identity, &lease, what == "read", WARMUP + count).await?,
            other => return Err(format!("{other} is none of submit, write, read").into()),
        };
        client.lease_free(lease.lease_id).await?;
        client.close().await;
        Ok::<_, Failure>(times[WARMUP..].to_vec())
    })?;
    times.sort_unstable();
    let at = |share: f64| times[(count as f64 * share) as usize].as_nanos() as f64 / 1e3;
    let [p50, p99, p99_9] = [0.5, 0.99, 0.999].map(at);
    println!(
        "{{\"what\": \"{what}\", \"count\": {count}, \"p50\": {p50:.3}, \"p99\": {p99:.3}, \"p99_9\": {p99_9:.3}}}"
    );
    Ok(())
}

async fn submits(client: &Client, token: &Token, count: usize) -> Result<Vec<Duration>, Failure> {
    let resources = client.inventory().await?;
    let gpu =
        resources.iter().find(|one| one.resource_type == ResourceType::Gpu.code()).ok_or("the node has no GPU")?;
    let kernel = Kernel {
        resource: gpu.resource_id,
        binary: PTX.into(),
        name: "empty".into(),
        grid: [1; 3],
        block: [1; 3],
        args: Vec::new(),
        output: (0, 0),
    };
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        let ran = client.gpu_submit(token, &kernel).await?;
        times.push(began.elapsed());
        if ran.status != GpuStatus::Ok {
            return Err(format!("the kernel ended as {ran:?}").into());
        }
    }
    Ok(times)
}

async fn accesses(identity: &Identity, lease: &Grant, reads: bool, count: usize) -> Result<Vec<Duration>, Failure> {
    let mut data = Data::open(identity, lease, Via::Tcp, None).await?;
    let pattern = |round: usize| (0..LEN as usize).map(|at| (at * 7 + at / 256 + round) as u8).collect::<Vec<_>>();
    let mut times = Vec::new();
    data.write(0, &pattern(0)).await?;
    for round in 0..count {
        let bytes = pattern(if reads { 0 } else { round });
        let began = Instant::now();
        if reads {
            let read = data.read(0, LEN).await?;
            times.push(began.elapsed());
            if read != bytes {
                return Err("other bytes were read".into());
            }
        } else {
            data.write(0, &bytes).await?;
            times.push(began.elapsed());
        }
    }
    if !reads && data.read(0, LEN).await? != pattern(count - 1) {
        return Err("other bytes were read than written".into());
    }
    Ok(times)
}
