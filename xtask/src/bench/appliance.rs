//! Rows of the whole program: how soon it is ready, and how much memory it takes.

use std::{
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{Pair, Reach, Row};
use crate::{
    build,
    sh::{self, Process, cmd, run},
};

/// Where configurations and states go.
const OUT: &str = "target/bench/appliance";

/// Starts of each kind.
const STARTS: usize = 7;

/// After a start that found much in its journal, a compaction takes a second.
const REST: Duration = Duration::from_secs(4);

/// Leases of the row that has many.
const LEASES: u64 = 1_000_000;

const PORT: &str = "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 1\nidle = \"wait\"\n\
                    [[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\n";

pub(super) fn rows() -> Result<Vec<Row>> {
    // A state of another run would be added to.
    let _ = fs::remove_dir_all(OUT);
    fs::create_dir_all(OUT)?;
    let socket = Path::new(OUT).canonicalize()?.join("memif.sock");
    let dpdk = format!(
        "[runtime.dpdk]\nmemory_mb = 128\n[[port]]\nname = \"m\"\ndriver = \"dpdk\"\ndevice = \
         \"net_memif0,role=server,socket={},socket-abstract=no\"\naddress = \"10.0.0.2/24\"\nudp_port = 4700\ncpu = 1\nidle = \
         \"wait\"\n{PORT}",
        socket.display()
    );
    let started = |name: &str, text: &str, most: f64| {
        let config = format!("{OUT}/{name}.toml");
        fs::write(&config, text)?;
        let pairs = (0..STARTS).map(|_| {
            let began = Instant::now();
            let (server, _) = sh::berth(&config)?;
            let took = began.elapsed().as_secs_f64();
            server.terminate()?.counters()?;
            Ok(pair(took * 1e3))
        });
        Ok::<_, anyhow::Error>(Row {
            case: format!("start to ready, {name}"),
            baseline: "none".into(),
            unit: "ms",
            reach: Reach::Printed,
            pairs: pairs.collect::<Result<_>>()?,
        })
        .map(|row| judged(row, most))
    };
    let mut rows = vec![started("one udp port", PORT, 300.0)?, started("memif and udp", &dpdk, 2000.0)?];
    rows.extend(memory("resident memory, one idle udp port", PORT, 40.0)?);
    rows.extend(many_leases()?);
    rows.push(worst_journal()?);
    Ok(rows)
}

fn pair(ours: f64) -> Pair {
    Pair { state: String::new(), ours, theirs: f64::NAN }
}

/// The row with its median judged.
fn judged(mut row: Row, most: f64) -> Row {
    let mut all: Vec<f64> = row.pairs.iter().map(|pair| pair.ours).collect();
    all.sort_by(f64::total_cmp);
    row.reach = Reach::Other(format!("<= {most} {}", row.unit), all[all.len() / 2] <= most);
    row
}

/// Resident memory once the server is at rest, and the most that it had until then.
fn memory(case: &str, text: &str, most: f64) -> Result<[Row; 2]> {
    let config = format!("{OUT}/memory.toml");
    fs::write(&config, text)?;
    let samples = (0..3).map(|_| {
        let (server, _) = sh::berth(&config)?;
        sleep(REST);
        let sample = [memory_mib(&server, "VmRSS:")?, memory_mib(&server, "VmHWM:")?];
        server.terminate()?.counters()?;
        Ok(sample)
    });
    let samples = samples.collect::<Result<Vec<_>>>()?;
    let row = |case: String, of: usize| Row {
        case,
        baseline: "none".into(),
        unit: "MiB",
        reach: Reach::Printed,
        pairs: samples.iter().map(|sample| pair(sample[of])).collect(),
    };
    Ok([judged(row(case.into(), 0), most), row(format!("{case}, peak"), 1)])
}

/// Memory by a field of `proc_pid_status(5)`, such as `VmRSS:`, in MiB.
fn memory_mib(server: &Process, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// A node that recovers a million leases of a block region from its journal.
fn many_leases() -> Result<[Row; 2]> {
    let example = build::example("berth-control", "many_leases")?;
    let state = Path::new(OUT).canonicalize().context("the folder of this bench")?.join("state");
    run(&mut cmd(&example, [&*state.to_string_lossy(), "disk", &LEASES.to_string()]))?;
    let text = format!(
        "[node]\nstate_dir = \"{state}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nmax_leases = {room}\n\
         [[region]]\nname = \"disk\"\nkind = \"block\"\nsize = \"8 GiB\"\nbacking = \"{state}/disk\"\n{PORT}",
        state = state.display(),
        room = LEASES + 1000,
    );
    memory("resident memory, 1,000,000 leases of blocks", &text, 200.0)
}

/// How soon a node is ready after the worst that a tenant within its quota can do to its journal.
fn worst_journal() -> Result<Row> {
    let example = build::example("berth-control", "worst_journal")?;
    let config = |kind: &str| {
        let state = Path::new(OUT).canonicalize().context("the folder of this bench")?.join(kind);
        run(&mut cmd(&example, [&*state.to_string_lossy(), "disk", kind]))?;
        let config = format!("{OUT}/{kind}.toml");
        let text = format!(
            "[node]\nstate_dir = \"{state}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n[[region]]\nname = \
             \"disk\"\nkind = \"block\"\nsize = \"16 MiB\"\nbacking = \"{state}/disk\"\n{PORT}",
            state = state.display(),
        );
        fs::write(&config, text)?;
        Ok::<_, anyhow::Error>((config, state.join("journal")))
    };
    let (worst, plain) = (config("handles")?, config("none")?);
    // Each start finds the journal as it was written, and not what a compaction made of it.
    let start = |(config, journal): &(String, PathBuf)| {
        let written = journal.with_extension("written");
        if !written.exists() {
            fs::copy(journal, &written)?;
        }
        fs::copy(&written, journal)?;
        let began = Instant::now();
        let (server, _) = sh::berth(config)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        server.terminate()?.counters()?;
        Ok::<_, anyhow::Error>(took)
    };
    let pairs = (0..STARTS).map(|turn| {
        let (ours, theirs) = super::in_turn(turn, || start(&worst), || start(&plain))?;
        Ok(Pair { state: String::new(), ours, theirs })
    });
    Ok(Row {
        case: "start after the worst journal that a tenant within its quota can cause".into(),
        baseline: "the same bytes without handles".into(),
        unit: "ms",
        reach: Reach::AtMost(1.5),
        pairs: pairs.collect::<Result<_>>()?,
    })
}
