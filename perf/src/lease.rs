//! `berth perf lease`: two-sided messages that read or write a lease.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use berth_lease::{
    Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table as Leases,
};
use berth_lease_io::{LeaseService, TwoSided};
use berth_port::Nanos;
use berth_store::{Backing, Memory};
use berth_wire::fabric::data::two_sided::{Opcode, Request};
use clap::{Args, ValueEnum};
use zerocopy::IntoBytes;

use crate::{
    args::LoadArgs,
    mix::Script,
    report::json::Spoken,
    server::{Serve, Server},
    suite::{Job, Plan, case_name},
    verify::{Expect, Protocol, Step, Table},
};

/// `berth perf lease`.
#[derive(Debug, Clone, Args)]
pub struct LeaseArgs {
    /// Whom to ask, how fast, how long.
    #[command(flatten)]
    pub load: LoadArgs,

    /// What is measured
    #[arg(long, value_enum, default_value = "read")]
    pub op: OpArg,
    /// Bytes of each read or write; each is a case of its own
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', default_value = "64", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pub sizes: Vec<u32>,
    /// The lease's key: the low 16 of the 32 hex digits of its id, or all of them
    #[arg(long, value_name = "HEX", value_parser = key)]
    pub key: Option<u64>,
    /// The lease's generation
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub generation: u64,
    /// Bytes of the lease that are used, from its first; they are overwritten
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub len: u64,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// Reads of what was written before
    Read,
    /// Writes, whose bytes are read back afterwards
    Write,
}

fn key(text: &str) -> Result<u64, String> {
    let id = u128::from_str_radix(text, 16).ok().filter(|_| text.len() <= 32);
    id.map(|id| LeaseId(id).key().0).ok_or_else(|| "up to 32 hex digits, as `berth lease alloc` prints them".into())
}

/// Where two-sided messages are served unless somebody chose otherwise.
const PORT: u16 = 5702;

/// Places in the lease that are read and written in turn, at most.
const PLACES: u64 = 1024;

/// What the command line comes to.
pub(crate) fn job(args: &LeaseArgs) -> anyhow::Result<Job> {
    let mut load = args.load.clone();
    load.peer.get_or_insert(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
    let lease = Lease { key: args.key.context("--key is missing")?, generation: args.generation, len: args.len };
    let mut plans = Vec::new();
    for &size in &args.sizes {
        if u64::from(size) > lease.len {
            bail!("--size {size} does not fit into --len {}", lease.len);
        }
        let (writes, reads) = (lease.step(Opcode::Write, size), lease.step(Opcode::Read, size));
        let places = writes.payloads.rows() as u64;
        let plan = |step: &Step, chore: Option<(&str, u64)>| {
            let scripts = vec![Script { steps: vec![step.clone()], weight: 1 }];
            let payload = Some(size as usize);
            let name = match chore {
                Some((what, _)) => format!("{what} the lease"),
                None => case_name(&scripts, payload, load.pacing()),
            };
            Plan { name, payload, scripts, chore: chore.map(|(_, count)| count) }
        };
        match args.op {
            OpArg::Read => plans.extend([plan(&writes, Some(("filling", places))), plan(&reads, None)]),
            OpArg::Write => plans.extend([plan(&writes, None), plan(&reads, Some(("reading back", places)))]),
        }
    }
    let spoken = Spoken { header: "two-sided".into(), ptp: "off", echo: false, shots: None };
    Ok(Job { load, protocol: Protocol::TwoSided, spoken, plans, serve: serve(lease) })
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    key: u64,
    generation: u64,
    len: u64,
}

impl Lease {
    /// Accesses of `size` bytes, place after place; what is at a place depends on the place and on the size.
    fn step(&self, opcode: Opcode, size: u32) -> Step {
        let (len, places) = (size as usize, (self.len / u64::from(size)).min(PLACES) as usize);
        let mut rng = fastrand::Rng::with_seed(size.into());
        let data = Table::build(len, places, |_, bytes| rng.fill(bytes));
        let header = |place: usize, bytes: &mut [u8]| {
            let offset = (place * len) as u64;
            let request = Request::new(opcode, self.key, self.generation, offset, len as u64);
            bytes[..Request::LEN].copy_from_slice(request.as_bytes());
        };
        let (name, payloads, expect) = match opcode {
            Opcode::Read => ("read", Table::build(Request::LEN, places, header), data),
            Opcode::Write => {
                let whole = Table::build(Request::LEN + len, places, |place, bytes| {
                    header(place, bytes);
                    bytes[Request::LEN..].copy_from_slice(data.row(place));
                });
                ("write", whole, Table::new(Vec::new(), 0, places))
            }
        };
        Step { name, function_id: 0, payloads, expect: Expect::Bytes(expect) }
    }
}

/// Serves such a lease on a second core of this process, for a loopback.
fn serve(lease: Lease) -> Arc<Serve> {
    Arc::new(move |port, cpu, clock| {
        Server::start(port, cpu, clock, move |_, _| {
            let bytes = Memory::new(lease.len, Backing::Ordinary, None)?;
            let storage = Storage::Bytes(Arc::new(bytes));
            let region = Region { name: "loopback".into(), kind: RegionKind::Memory, numa: None, storage };
            let entry = Entry {
                id: LeaseId(lease.key.into()),
                generation: Generation(lease.generation),
                rights: Rights::ALL,
                region: RegionId(0),
                base: 0,
                len: lease.len,
                first: 0,
                max_io: u32::MAX,
                expires: Nanos(u64::MAX),
                state: State::Active,
            };
            let (table, mut writer) = Leases::new(1);
            writer.insert(&entry).context("--key 0 is no lease")?;
            Ok(LeaseService::<TwoSided>::new(&table, &Regions::new(vec![region]), 0))
        })
    })
}
