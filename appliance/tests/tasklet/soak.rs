//! Runs and messages of all kinds with faults between them, and books that balance afterwards.
//!
//! `BERTH_MIXED=1000000 cargo test --release -p berth --features wasm --test tasklet balance -- --nocapture` does a million.

#[path = "soak/messages.rs"]
mod messages;
#[path = "soak/tenant.rs"]
mod tenant;

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    net::{SocketAddr, UdpSocket},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use berth_identity::Identity;
use fastrand::Rng;

use crate::{
    common::{Berth, Stopped},
    executors,
};
use tenant::Tally;

/// Runs and messages of a test, unless `BERTH_MIXED` says how many.
const SAMPLE: u64 = 4000;

/// One talks through a network that repeats and loses datagrams.
const TENANTS: u8 = 3;

/// How much memory may grow once all is warm. What a run leaves behind would be hundreds of MiB after a million.
const GROWTH_KIB: u64 = 12 << 10;

fn config(folder: &Path, keys: &[Arc<Identity>]) -> String {
    let keys: Vec<_> = keys.iter().map(|key| format!("\"{}\"", key.public_key())).collect();
    format!(
        "[runtime]\nhousekeeping_cpus = [0]\n[node]\nstate_dir = \"{0}/state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
         enrolled = [{1}]\nmax_requests_per_sec = 0\n\
         [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \"exec\", \"revoke\", \"admin\", \"delegate\"]\n\
         [[region]]\nname = \"mem\"\nkind = \"memory\"\nsize = \"1 MiB\"\n\
         [tasklet]\ncpus = [0]\nmemory = \"64 MiB\"\nqueue = 16\nresults = \"1 MiB\"\nsync_wait_ms = 20\nmax_wall_ms = 300\n{2}",
        folder.display(),
        keys.join(", "),
        messages::config(folder),
    )
}

/// What the process holds: KiB of private memory, and descriptors.
fn holds(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let private = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib = private.split_whitespace().next().unwrap().parse().unwrap();
    (kib, fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// Kills an executor now and then, until it is told to stop; returns how many.
fn kill_executors(berth: &Berth, over: &AtomicBool) -> u64 {
    let (mut rng, mut killed) = (Rng::with_seed(5), 0);
    while !over.load(Relaxed) {
        thread::sleep(Duration::from_millis(rng.u64(50..250)));
        let all = executors(berth);
        let Some(one) = rng.choice(&all) else { continue };
        // It may be gone.
        killed += u64::from(Command::new("kill").args(["-KILL", &one.to_string()]).status().unwrap().success());
    }
    killed
}

/// Sends a datagram on that came from there.
type Send = Box<dyn Fn(SocketAddr, &[u8]) + std::marker::Send>;

/// A network to `to` that repeats every datagram, and loses some. Its address.
fn poor_network(to: SocketAddr, over: &Arc<AtomicBool>) -> SocketAddr {
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Arc::new(socket)
    };
    let (near, far) = (socket(), socket());
    far.connect(to).unwrap();
    let address = near.local_addr().unwrap();
    // The port of the one client.
    let client = Arc::new(AtomicU64::new(0));
    let carry = |seed, from: Arc<UdpSocket>, send: Send| {
        let over = over.clone();
        thread::spawn(move || {
            let (mut rng, mut datagram) = (Rng::with_seed(seed), vec![0; 65536]);
            while !over.load(Relaxed) {
                let Ok((len, sender)) = from.recv_from(&mut datagram) else { continue };
                for _ in 0..2 {
                    if rng.u32(..200) > 0 {
                        send(sender, &datagram[..len]);
                    }
                }
            }
        });
    };
    let (out, back, known) = (far.clone(), near.clone(), client.clone());
    carry(
        1,
        near,
        Box::new(move |sender, datagram| {
            known.store(sender.port().into(), Relaxed);
            let _ = out.send(datagram);
        }),
    );
    carry(
        2,
        far,
        Box::new(move |_, datagram| {
            let port = client.load(Relaxed) as u16;
            let _ = back.send_to(datagram, (address.ip(), port));
        }),
    );
    address
}

/// Ends what runs beside the tenants, whether they fail or not.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn books_balance_after_mixed_runs_and_messages_with_faults() {
    let count = std::env::var("BERTH_MIXED").ok().and_then(|count| count.parse().ok()).unwrap_or(SAMPLE);
    let keys: Vec<Arc<Identity>> = (1..=TENANTS).map(|seed| Arc::new(Identity::from_seed(&[seed; 32]))).collect();
    let folder = tempfile::tempdir().unwrap();
    let berth = Berth::start(&config(folder.path(), &keys));
    let at = |name: &str| berth.ready["endpoints"][name].as_str().unwrap().parse::<SocketAddr>().unwrap();
    let (over, done) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let (udp, quic) = (poor_network(at("control-udp"), &over), at("quic"));
    let runs = count / 2 / u64::from(TENANTS);
    let client = berth.client("messages");

    let (tallies, sent, killed, warm) = thread::scope(|scope| {
        let ends = Over(over.clone());
        let killer = scope.spawn(|| kill_executors(&berth, &over));
        let messages = scope.spawn(|| messages::send(&client, count / 2));
        let tenants: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(nth, key)| {
                let (key, done) = (key.clone(), &done);
                let to = if nth == 0 { (udp, true) } else { (quic, false) };
                scope.spawn(move || tenant::live(nth as u64, key, to, runs, done))
            })
            .collect();
        // Who fails is told of below.
        let half = || done.load(Relaxed) * 2 > runs * u64::from(TENANTS);
        while !half() && !tenants.iter().any(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(10));
        }
        let warm = holds(berth.pid());
        let tallies: Vec<Tally> = tenants.into_iter().map(|tenant| tenant.join().unwrap()).collect();
        let sent = messages.join().unwrap();
        drop(ends);
        (tallies, sent, killer.join().unwrap(), warm)
    });
    let then = holds(berth.pid());
    let stopped = berth.stop();
    assert!(stopped.status.success());
    println!("{killed} executors killed; KiB and descriptors: {warm:?}, then {then:?}");
    balance(&stopped, tallies, killed);
    sent.balance(&stopped);
    assert!(then.0 < warm.0 + GROWTH_KIB, "private memory: {} KiB, then {} KiB", warm.0, then.0);
    assert!(then.1 < warm.1 + 40, "descriptors: {}, then {}", warm.1, then.1);
}

/// Compares what tenants were told with what the node counted.
fn balance(stopped: &Stopped, tallies: Vec<Tally>, killed: u64) {
    let counter = |name: &str| stopped.counters["control"][name].as_u64().unwrap_or_else(|| panic!("no {name}"));
    let (mut ids, mut all) = (HashSet::new(), BTreeMap::<&str, u64>::new());
    let (mut faults, mut submitted) = (0, 0);
    for tally in tallies {
        for id in &tally.ids {
            assert!(*id != 0 && ids.insert(*id), "the id {id:#x} twice");
        }
        tally.counts.into_iter().for_each(|(name, count)| *all.entry(name).or_default() += count);
        (faults, submitted) = (faults + tally.faults, submitted + tally.submitted);
    }
    println!("{submitted} submitted, of which {faults} met a fault: {all:?}");
    assert_eq!(submitted, all.values().sum::<u64>(), "each submission has one end");
    let of = |name| all.get(name).copied().unwrap_or(0);
    let mut ended = 0;
    for (status, name) in [
        ("OK", "ok"),
        ("FUEL_EXHAUSTED", "fuel"),
        ("OOM", "oom"),
        ("EXEC_FAILED", "failed"),
        ("HOSTCALL_LIMIT", "hostcalls"),
    ] {
        assert_eq!(counter(&format!("tasklet_runs_{name}")), of(status), "{status}");
        assert!(of(status) > 0, "no run is {status}");
        ended += of(status);
    }
    assert_eq!(ended, ids.len() as u64, "each run has one end");
    for (status, name) in [
        ("INVALID", "invalid"),
        ("UNAUTHORIZED", "unauthorized"),
        ("UNSUPPORTED_PROFILE", "profile"),
        ("MODULE_NOT_FOUND", "no_module"),
        ("UNSUPPORTED", "unsupported"),
        ("RESOURCE_BUSY", "busy"),
    ] {
        assert_eq!(counter(&format!("tasklets_refused_{name}")), of(status), "{status}");
        assert!(of(status) > 0, "nothing is {status}");
    }
    let gauges = ["tasklets_waiting", "tasklets_under_way", "tasklet_cores_leased"];
    assert_eq!(gauges.map(counter), [0; 3]);
    assert_eq!(counter("region_mem_free_bytes"), counter("region_mem_size_bytes"), "every lease is back");
    let lost = counter("tasklet_executors_lost");
    assert!(lost <= killed && faults * 5 < submitted, "{lost} of {killed} executors, {faults} of {submitted} runs");
}
