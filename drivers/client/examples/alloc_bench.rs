//! The cost of a LEASE_ALLOC over QUIC, journal included, as JSON lines:
//! `cargo run --release -p berth-client --example alloc_bench -- CONTROL IDENTITY DIRECTORY`.
//!
//! CONTROL is the QUIC address of a node with 8 MiB of free memory, IDENTITY the key file of an enrolled client,
//! DIRECTORY a directory on the file system of the node's journal. Each line is a round: one client leases, and in turn
//! with it as many bytes as a grant has are written and synced in DIRECTORY; then 32 clients lease at once.
#![allow(clippy::doc_markdown)] // the documents' names of ops

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Error, Token};
use berth_identity::Identity;
use berth_wire::fabric::Perms;
use tokio::task::JoinSet;

const ROUNDS: usize = 9;
/// Leases of the single client per round.
const SINGLE: u64 = 100;
const CLIENTS: usize = 32;
/// Leases of each of them per round.
const EACH: usize = 60;
/// About the size of a grant in the journal, its frame included.
const RECORD: [u8; 200] = [1; 200];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let [_, control, identity, directory] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY DIRECTORY".into());
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let bare = Path::new(directory).join("alloc_bench.bare");
    let file = File::create(&bare)?;
    // The journal too is written over zeros that are there.
    file.write_all_at(&vec![0; 1 << 20], 0)?;
    file.sync_all()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(rounds(&identity, control, &file));
    std::fs::remove_file(bare)?;
    done
}

async fn rounds(identity: &Arc<Identity>, control: &str, file: &File) -> Result<(), Failure> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Arc::new(Client::quic(identity.clone(), control.parse()?, None).await?));
    }
    for round in 0..ROUNDS {
        let token = clients[0].cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 300, 0, None).await?;
        let token = Arc::new(token);
        let (mut syncs, mut single) = (Vec::new(), Vec::new());
        for n in 0..SINGLE {
            let start = Instant::now();
            file.write_all_at(&RECORD, n * RECORD.len() as u64)?;
            file.sync_data()?;
            syncs.push(start.elapsed());
            let start = Instant::now();
            let lease = clients[0].lease_alloc(&token, &Alloc::memory(4096, 60)).await?;
            single.push(start.elapsed());
            clients[0].lease_free(lease.lease_id).await?;
        }
        let (start, mut many) = (Instant::now(), JoinSet::new());
        for client in &clients {
            many.spawn(lease(client.clone(), token.clone()));
        }
        let many: Vec<(Vec<Duration>, Vec<u128>)> = many.join_all().await.into_iter().collect::<Result<_, Error>>()?;
        let rate = (CLIENTS * EACH) as f64 / start.elapsed().as_secs_f64();
        for (client, (_, leases)) in clients.iter().zip(&many) {
            for lease in leases {
                client.lease_free(*lease).await?;
            }
        }
        let many = many.into_iter().flat_map(|(times, _)| times).collect();
        println!(
            "{{\"round\": {round}, \"fdatasync_p50_us\": {:.1}, \"alloc_p50_us\": {:.1}, \"allocs_per_s\": {rate:.0}, \
             \"alloc_of_32_p50_us\": {:.1}}}",
            p50_us(syncs),
            p50_us(single),
            p50_us(many),
        );
    }
    Ok(())
}

/// One client's leases, one after the other, with the time that each took.
async fn lease(client: Arc<Client>, token: Arc<Token>) -> Result<(Vec<Duration>, Vec<u128>), Error> {
    let (mut times, mut leases) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        let start = Instant::now();
        leases.push(client.lease_alloc(&token, &Alloc::memory(4096, 60)).await?.lease_id);
        times.push(start.elapsed());
    }
    Ok((times, leases))
}

fn p50_us(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}
