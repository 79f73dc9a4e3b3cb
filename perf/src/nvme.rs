//! `berth perf nvme`: commands of an NVMe/TCP host.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use berth_client::{Alloc, Client, Grant};
use berth_nvme::host::{Facts, Names, Settings};
use berth_tls::key_file;
use berth_wire::{
    fabric::{NvmeTransport, Perms},
    nvme::{
        fabrics::Nqn,
        pdu::{DATA_DIGEST, HEADER_DIGEST},
    },
    rpc::HeaderForm,
};

use crate::{
    args::nvme::NvmeArgs,
    disk::{ASK, Disk, Kind},
    job::{Chore, Job, Plan, Spoken},
    load::Pacing,
    measure::measure,
    mix::Script,
    ports::Way,
    verify::{Expect, Protocol, Step, Table},
};

/// Places that commands go to in turn, at most, where nothing is compared.
const PLACES: u64 = 1 << 16;

/// Bytes of all places together, at most, where every byte is compared: they are laid out before the run.
const COMPARED: u64 = 64 << 20;

/// Bytes of a lease of the run's own.
const LEASE_LEN: u64 = 64 << 20;

/// How long the token is good for, in seconds: it is used at once.
const TOKEN_SECS: u32 = 60;

/// How long blocks are leased at most, in seconds: they are freed after the run, unless the run is killed.
const LEASE_SECS: u32 = 24 * 3600;

/// KATO.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Runs the command line on the disk that it names, or on one that it gets for itself and frees afterwards.
pub(crate) fn run(args: &NvmeArgs) -> anyhow::Result<ExitCode> {
    if let Some(to) = args.to {
        return measure(&job(args, to, args.nqn.as_deref().unwrap_or_default())?);
    }
    let (Some(control), Some(identity)) = (args.control, &args.identity) else { bail!("--to or --control is missing") };
    let identity = Arc::new(key_file::read(identity)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, Grant { lease_id, .. }, bound) = runtime.block_on(async {
        let client = Client::quic(identity, control, None).await?;
        let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, TOKEN_SECS, 0, None).await?;
        let grant = client.lease_alloc(&token, &Alloc::block(args.len.unwrap_or(LEASE_LEN), LEASE_SECS)).await?;
        let bound = client.bind_nvme(&token, grant.lease_id, &args.host_nqn, Some(NvmeTransport::Tcp)).await;
        Ok::<_, berth_client::Error>((client, grant, bound))
    })?;
    let result = bound.map_err(anyhow::Error::from).and_then(|bound| {
        let to = SocketAddr::new(bound.address.parse().context("the node's answer has no IP address")?, bound.port);
        measure(&job(args, to, &bound.nqn)?)
    });
    runtime.block_on(async {
        client.lease_free(lease_id).await?;
        client.close().await;
        Ok::<_, berth_client::Error>(())
    })?;
    result
}

/// The cases of the command line, on this disk.
fn job(args: &NvmeArgs, address: SocketAddr, nqn: &str) -> anyhow::Result<Job> {
    let field = |name: &str| Nqn::new(name.as_bytes()).with_context(|| format!("{name} is longer than an NQN"));
    let names = Names { subsystem: field(nqn)?, host: field(&args.host_nqn)?, host_id: host_id(&args.host_nqn) };
    let digests = args.digests();
    let settings = Settings {
        header_digest: digests & HEADER_DIGEST != 0,
        data_digest: digests & DATA_DIGEST != 0,
        keep_alive: KEEP_ALIVE,
        timeout: Duration::from_millis(args.pace.timeout).max(Duration::from_secs(10)),
    };
    let NvmeArgs { queues, depth, verify, echo, .. } = *args;
    let longest = args.sizes.iter().copied().max().unwrap_or(0);
    let disk = Disk { address, names: (!echo).then_some(names), settings, queues, depth, longest, verify };
    let area = match &disk.names {
        Some(names) => area(args, &disk.facts(names)?)?,
        None => Area { len: args.len.unwrap_or(LEASE_LEN), block: 512 },
    };
    let pacing = args.pace.pacing(usize::from(queues) * usize::from(depth));
    let mut plans = Vec::new();
    for &size in &args.sizes {
        plans.extend(area.plans(args, size, pacing)?);
    }
    let spoken = ["nvme", "nvme, header digest", "nvme, data digest", "nvme, both digests"][usize::from(digests)];
    let spoken = Spoken { header: spoken.into(), ptp: "off", echo, shots: None };
    let protocol = Protocol::Rpc { header: HeaderForm::V16, ptp: None, echo: false };
    Ok(Job { pace: args.pace.clone(), pacing, way: Way::Nvme(Box::new(disk)), protocol, spoken, plans })
}

/// HOSTID: the same for the same name, as a host's is.
fn host_id(name: &str) -> [u8; 16] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    name.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)).to_be_bytes()
}

/// What the command line asks of the disk, checked against what the disk is.
fn area(args: &NvmeArgs, facts: &Facts) -> anyhow::Result<Area> {
    let Facts { depth, queues, longest, blocks, block, write_protected, .. } = *facts;
    ensure!(queues >= args.queues, "the controller grants {queues} I/O queues, fewer than --queues");
    ensure!(depth >= args.depth, "queues of the controller have room for {depth} commands, fewer than --depth");
    ensure!(args.mix.write == 0 && !args.verify || !write_protected, "the disk takes no writes");
    for size in &args.sizes {
        ensure!(size.is_multiple_of(block), "--size {size} is not in whole blocks of {block} bytes");
        let longest = longest.unwrap_or(u64::MAX);
        ensure!(u64::from(*size) <= longest, "--size {size} is more than a command transfers here, {longest} bytes");
    }
    let all = blocks.saturating_mul(block.into());
    Ok(Area { len: args.len.unwrap_or(all).min(all), block })
}

/// The bytes that are used.
#[derive(Debug, Clone, Copy)]
struct Area {
    len: u64,
    block: u32,
}

impl Area {
    /// The cases of one size: what is measured, and what is done before and after it.
    fn plans(&self, args: &NvmeArgs, size: u32, pacing: Pacing) -> anyhow::Result<Vec<Plan>> {
        let most = if args.verify { (COMPARED / u64::from(size)).max(1) } else { PLACES };
        let mut places: Vec<u64> = (0..(self.len / u64::from(size)).min(most)).collect();
        ensure!(!places.is_empty(), "--size {size} does not fit into the disk's {} bytes", self.len);
        if !args.sequential {
            let mut rng = fastrand::Rng::with_seed(size.into());
            if !args.verify {
                // Any place of the disk, and not those at its beginning alone.
                let all = self.len / u64::from(size);
                places.fill_with(|| rng.u64(0..all));
            }
            rng.shuffle(&mut places);
        }
        let (mut reads, mut writes) = (&places[..], &places[..]);
        let mixed = args.mix.read > 0 && args.mix.write > 0;
        if args.verify && mixed {
            // What is read stays as it was, and what is written was not there before.
            ensure!(places.len() > 1, "the disk has no room for reads beside writes that are compared");
            (reads, writes) = places.split_at(places.len() / 2);
        }
        let read =
            |places| Script { steps: vec![self.step(Kind::Read, size, places, args.verify)], weight: args.mix.read };
        let write =
            |places| Script { steps: vec![self.step(Kind::Write, size, places, args.verify)], weight: args.mix.write };
        let scripts = [(args.mix.read, read(reads)), (args.mix.write, write(writes))];
        let scripts: Vec<Script> =
            scripts.into_iter().filter(|(share, _)| *share > 0).map(|(_, script)| script).collect();
        let payload = Some(size as usize);
        let chore = |name: &str, script: Script, chore| {
            let scripts = vec![Script { weight: 1, ..script }];
            Plan { name: name.into(), payload, scripts, chore: Some(chore) }
        };
        let mut plans = Vec::new();
        if args.verify && args.mix.read > 0 {
            plans.push(chore("filling the disk", write(reads), Chore::Before(reads.len() as u64)));
        }
        plans.push(Plan { name: name(args, size, pacing), payload, scripts, chore: None });
        if args.verify && args.mix.write > 0 {
            let after = Chore::After(Kind::Write.name(), writes.len() as u64);
            plans.push(chore("reading back the disk", read(writes), after));
        }
        Ok(plans)
    }

    /// Commands of `size` bytes, place after place; what is at a place depends on the place and on the size.
    fn step(&self, kind: Kind, size: u32, places: &[u64], verify: bool) -> Step {
        let data = |place: u64, bytes: &mut [u8]| fastrand::Rng::with_seed(place << 25 | u64::from(size)).fill(bytes);
        let blocks = size / self.block;
        let ask = |row: usize, bytes: &mut [u8]| {
            let (slba, count) = bytes.split_at_mut(8);
            slba.copy_from_slice(&(places[row] * u64::from(blocks)).to_le_bytes());
            count[..4].copy_from_slice(&blocks.to_le_bytes());
            if count.len() > 4 {
                data(places[row], &mut count[4..]);
            }
        };
        let (len, rows) = (size as usize, places.len());
        let with = |is: bool| if verify && is { len } else { 0 };
        let payloads = Table::build(ASK + with(kind == Kind::Write), rows, ask);
        let expect = Table::build(with(kind == Kind::Read), rows, |row, bytes| data(places[row], bytes));
        Step { name: kind.name(), function_id: kind as u32, payloads, expect: Expect::Bytes(expect) }
    }
}

fn name(args: &NvmeArgs, size: u32, pacing: Pacing) -> String {
    let what = match (args.mix.read, args.mix.write) {
        (_, 0) => "read".into(),
        (0, _) => "write".into(),
        (read, write) => format!("read {read} : write {write}"),
    };
    let order = if args.sequential { "sequential" } else { "random" };
    let pace = match pacing {
        Pacing::Closed { .. } => String::new(),
        Pacing::Open { rate, .. } => format!(", {rate}/s"),
    };
    let (queues, depth) = (args.queues, args.depth);
    let queues = if queues == 1 { String::new() } else { format!("{queues} queues, ") };
    format!("{what} {size} B {order}, {queues}depth {depth}{pace}")
}
