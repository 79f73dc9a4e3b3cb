//! `cargo xtask bench lease`: what checking a lease costs, carrier by carrier.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    capacity::{self, Target},
    network::{self, CLIENT_CPU, Contest, OUT, PAGES, Peer, SERVER_CPU, TURNS, port_lines, round_trip},
    programs::{example, lines, number},
};
use crate::{
    build,
    hugepages::Hugepages,
    sh::{self, Process, cmd, output},
};

/// Seconds of each stream.
const SECONDS: &str = "1.5";

pub(super) fn rows() -> Result<Vec<Row>> {
    fs::create_dir_all(OUT)?;
    let mut rows = probes()?;
    rows.push(revocations()?);
    rows.push(revocations_over_udp()?);
    rows.extend(commits()?);
    rows.extend(allocs()?);
    rows.push(renewals()?);
    rows.push(fbmt()?);
    let _pages = Hugepages::reserve(2 * PAGES);
    for contest in [
        two_sided("udp", "two-sided READ 64 B, udp, RTT p50", "read"),
        two_sided("udp", "two-sided WRITE 64 B, udp, RTT p50", "write"),
        two_sided("memif", "two-sided READ 64 B, memif, RTT p50", "read"),
        two_sided("memif", "two-sided WRITE 64 B, memif, RTT p50", "write"),
    ] {
        rows.extend(network::contest(&contest)?);
    }
    rows.push(capacity().row()?);
    Ok(rows)
}

/// Round trips of 64 bytes against our own RPC on the same kind of port.
fn two_sided(port: &'static str, case: &'static str, op: &'static str) -> Contest {
    Contest {
        name: if op == "read" { "lease-read" } else { "lease-write" },
        baseline: "rpc_increment 64 B",
        ours: Box::new(move || leased(port, op, 64)),
        theirs: Box::new(move || network::berth(port, 64)),
        figures: vec![round_trip(case, 1.10)],
        turns: TURNS,
    }
}

/// Reads of a page, as many as the node can serve, against DPDK's own forwarder with frames of that size.
fn capacity() -> capacity::Contest {
    const LEN: usize = 4096;
    capacity::Contest {
        case: "two-sided READ 4 KiB, memif, server's capacity".into(),
        baseline: "testpmd 5tswap",
        ours: Box::new(|| {
            let (server, _, quic, _) = node("memif", LEN)?;
            let messages = capacity::read_of_lease(&quic, LEN)?;
            Ok(Target { server, messages, frame_ns: capacity::of_berth })
        }),
        theirs: Box::new(|| network::busy_testpmd(LEN)),
        least: Some(0.6),
        turns: TURNS,
    }
}

/// A node with this port and FBMT, and a client's key that may lease from it.
fn node(port: &str, payload: usize) -> Result<(Process, Value, String, Vec<String>)> {
    let (lines, client) = port_lines(port, payload);
    let (server, ready, quic) = node_with(port, &format!("{lines}service = \"lease-io\"\n"))?;
    Ok((server, ready, quic, client))
}

/// The same with any ports; returns the node's QUIC address, too.
fn node_with(name: &str, ports: &str) -> Result<(Process, Value, String)> {
    let [client, other] = ["client", "other"].map(network::client_key);
    let (client, other) = (client?, other?);
    let config = format!(
        "[node]\nstate_dir = \"lease-node\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
         enrolled = [\"{client}\", \"{other}\"]\n[[control.policy]]\npresenter = \"*\"\n\
         perms = [\"read\", \"write\", \"alloc\", \"revoke\"]\n\
         [dataplane]\nfbmt = \"127.0.0.1:0\"\n[[region]]\nname = \"bench\"\nkind = \"memory\"\nsize = \"16 MiB\"\n\
         {ports}"
    );
    let path = format!("{OUT}/lease-{name}.toml");
    fs::write(&path, config)?;
    let (server, ready) = sh::berth(&path)?;
    let quic = ready["endpoints"]["quic"].as_str().context("a node without QUIC")?.to_owned();
    Ok((server, ready, quic))
}

/// A node whose leases are read or written over a port.
fn leased(port: &str, op: &str, len: usize) -> Result<(Process, Peer)> {
    let (server, ready, quic, client) = node(port, len)?;
    let address = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    let args = ["lease", "--control", &quic, "--identity", &format!("{OUT}/client.key"), "--peer", address];
    let asked = ["--op", op, "--size", &len.to_string()];
    Ok((server, Peer(args.into_iter().chain(asked).map(String::from).chain(client).collect())))
}

/// Reads of 64 KiB on one connection against one stream of iperf3.
fn fbmt() -> Result<Row> {
    let bench = build::example("berth-client", "fbmt_bench")?;
    let (_server, _, quic, _) = node("udp", 64)?;
    let iperf = &mut cmd("taskset", ["-c", SERVER_CPU, "iperf3", "-s", "-B", "127.0.0.1", "-p", IPERF, "--forceflush"]);
    let (_iperf, _) = sh::server(iperf, "Server listening")?;
    let mut pairs = Vec::new();
    for turn in 0..TURNS {
        let ours = || {
            let key = format!("{OUT}/client.key");
            let ours = output(&mut cmd("taskset", ["-c", CLIENT_CPU, &bench, &quic, &key, SECONDS]))?;
            number(lines(&ours)?.first().context("no figure")?, "bytes_per_s")
        };
        let theirs = || {
            let stream = ["iperf3", "-c", "127.0.0.1", "-p", IPERF, "-t", "2", "-l", "64K", "-R", "-J"];
            let report = output(cmd("taskset", ["-c", CLIENT_CPU]).args(stream))?;
            let report: Value = serde_json::from_str(&report)?;
            let bits = report.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
            Ok(bits.context("iperf3 reports no bandwidth")? / 8.0)
        };
        let (ours, theirs) = super::in_turn(turn, ours, theirs)?;
        pairs.push(Pair { state: String::new(), ours: ours / 1e9, theirs: theirs / 1e9 });
    }
    Ok(Row {
        case: "FBMT READ 64 KiB, TCP loopback, bandwidth".into(),
        baseline: "iperf3, one stream".into(),
        unit: "GB/s",
        reach: Reach::AtLeast(0.8),
        pairs,
    })
}

/// Where iperf3 listens.
const IPERF: &str = "5290";

fn probes() -> Result<Vec<Row>> {
    let all = example("berth-lease", "probe_bench", true)?;
    let cases = all.iter().filter(|line| line["probe_ns"].is_f64());
    let rows = cases.map(|line| {
        let case = line["case"].as_str().unwrap_or_default();
        let (ours, theirs) = (number(line, "probe_ns")?, number(line, "load_ns")?);
        let reach = if case == "warm" { Reach::Other("<= 20 ns".into(), ours <= 20.0) } else { Reach::AtMost(1.5) };
        Ok(Row {
            case: format!("lease probe, {} leases, {case}", line["leases"]),
            baseline: "one random cache-missing load".into(),
            unit: "ns",
            reach,
            pairs: vec![Pair { state: String::new(), ours, theirs }],
        })
    });
    rows.collect()
}

/// Publication to first refusal, and to the moment after which nothing more is served.
fn revocations() -> Result<Row> {
    let all = example("berth-lease-io", "revoke_bench", false)?;
    let mut late = 0.0;
    let pairs = all.iter().map(|line| {
        late += number(line, "served_after_quiet")?;
        let (ours, theirs) = (number(line, "refused_ns")? / 1e3, number(line, "quiet_ns")? / 1e3);
        Ok(Pair { state: String::new(), ours, theirs })
    });
    let pairs: Vec<Pair> = pairs.collect::<Result<_>>()?;
    let median = super::median(pairs.iter().map(|pair| pair.ours));
    Ok(Row {
        case: "revocation to first refusal, busy port".into(),
        baseline: "until it may be answered".into(),
        unit: "us",
        reach: Reach::Other(format!("< 1 ms, none served after ({late} were)"), median < 1000.0 && late == 0.0),
        pairs,
    })
}

/// From asking for a revocation to the first refusal that a client of a port sees, and to the answer.
fn revocations_over_udp() -> Result<Row> {
    let bench = build::example("berth-client", "revoke_port_bench")?;
    let (_server, ready, quic, _) = node("udp", 64)?;
    let port = ready["ports"][0]["addr"].as_str().context("a port without an address")?;
    let all = lines(&output(&mut cmd(&bench, [&quic, &format!("{OUT}/client.key"), port]))?)?;
    let mut late = 0.0;
    let pairs = all.iter().map(|line| {
        late += number(line, "served_after_answer")?;
        let (ours, theirs) = (number(line, "refused_us")?, number(line, "answered_us")?);
        Ok(Pair { state: String::new(), ours, theirs })
    });
    let pairs: Vec<Pair> = pairs.collect::<Result<_>>()?;
    let median = super::median(pairs.iter().map(|pair| pair.ours));
    Ok(Row {
        case: "CAP_REVOKE over QUIC to first refusal, udp port".into(),
        baseline: "until it is answered".into(),
        unit: "us",
        reach: Reach::Other(format!("< 1 ms, none served after ({late} were)"), median < 1000.0 && late == 0.0),
        pairs,
    })
}

/// Grants over QUIC, each in the journal before it is answered.
fn allocs() -> Result<Vec<Row>> {
    let bench = build::example("berth-client", "alloc_bench")?;
    let (_server, _, quic) = node_with("alloc", "")?;
    let all = lines(&output(&mut cmd(&bench, [&quic, &format!("{OUT}/client.key"), OUT]))?)?;
    let row = |case: &str, key: &str, reach: Reach| -> Result<Row> {
        let pairs = all.iter().map(|line| {
            let (ours, theirs) = (number(line, key)?, number(line, "fdatasync_p50_us")?);
            Ok(Pair { state: String::new(), ours, theirs })
        });
        let pairs = pairs.collect::<Result<_>>()?;
        Ok(Row { case: case.into(), baseline: "write and fdatasync".into(), unit: "us", reach, pairs })
    };
    let rates = all.iter().map(|line| number(line, "allocs_per_s")).collect::<Result<Vec<_>>>()?;
    let rate = super::median(rates.into_iter());
    let group = Reach::Other(format!(">= 5,000/s ({rate:.0})"), rate >= 5000.0);
    Ok(vec![
        row("LEASE_ALLOC over QUIC, 1 client, p50", "alloc_p50_us", Reach::Added(300.0))?,
        row("LEASE_ALLOC over QUIC, 32 clients, p50", "alloc_of_32_p50_us", group)?,
    ])
}

/// Renewals of a tenant while another holds all that it may.
fn renewals() -> Result<Row> {
    let bench = build::example("berth-client", "renew_bench")?;
    let (_server, _, quic) = node_with("renew", "")?;
    let keys = ["client", "other"].map(|name| format!("{OUT}/{name}.key"));
    let pairs = lines(&output(&mut cmd(&bench, [&quic, &keys[0], &keys[1]]))?)?;
    let pairs = pairs.iter().map(|line| {
        let (ours, theirs) = (number(line, "beside_us")?, number(line, "alone_us")?);
        Ok(Pair { state: String::new(), ours, theirs })
    });
    Ok(Row {
        case: "LEASE_RENEW of a tenant, p99, while another holds every share it has".into(),
        baseline: "alone".into(),
        unit: "us",
        reach: Reach::AtMost(2.0),
        pairs: pairs.collect::<Result<_>>()?,
    })
}

/// The journal against a bare write and sync of the same disk.
fn commits() -> Result<Vec<Row>> {
    let bench = build::example("berth-journal", "journal_bench")?;
    let all = lines(&output(&mut cmd(&bench, [OUT]))?)?;
    let case = |name: &str| all.iter().find(|line| line["case"] == name).context("journal_bench lacks a case");
    let sync = number(case("fdatasync")?, "p50_us")?;
    let row = |name: &str, reach: Reach| -> Result<Row> {
        let pair = Pair { state: String::new(), ours: number(case(name)?, "p50_us")?, theirs: sync };
        let case = format!("journal {name}, p50");
        Ok(Row { case, baseline: "write and fdatasync".into(), unit: "us", reach, pairs: vec![pair] })
    };
    let rate = number(case("commit, 32 clients")?, "per_second")?;
    let group = Reach::Other(format!(">= 5,000/s ({rate:.0})"), rate >= 5000.0);
    Ok(vec![row("commit, 1 client", Reach::Added(300.0))?, row("commit, 32 clients", group)?])
}
