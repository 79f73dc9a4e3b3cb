//! SIGHUP: what changes without a restart, what is refused, and what clients notice of it.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    os::unix::net::UnixDatagram,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_client::{Client as Lessee, Error};
use berth_tls::key_file;
use berth_wire::fabric::{Perms, Status};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Berth, INCREMENT, QEC_DECODE, RPC_INCREMENT, admin, get, port, request};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// An appliance, and the service manager that it tells how its reloads end.
struct Reloaded {
    berth: Berth,
    manager: UnixDatagram,
    _folder: TempDir,
}

impl Reloaded {
    fn start(text: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let berth = Berth::start_fully(text, files, |command| {
            command.env("NOTIFY_SOCKET", socket);
        });
        let reloaded = Self { berth, manager, _folder: folder };
        assert_eq!(reloaded.told(), "READY=1\nSTATUS=serving\n");
        reloaded
    }

    /// The next message, but for signs of life, and those about threads that a busy machine does not let poll.
    fn told(&self) -> String {
        loop {
            let mut buf = [0; 4096];
            let len = self.manager.recv(&mut buf).unwrap();
            let told = String::from_utf8(buf[..len].to_vec()).unwrap();
            if !told.starts_with("STATUS=") && told != "WATCHDOG=1\n" {
                return told;
            }
        }
    }

    /// Reloads this configuration, and returns the status that it ends with.
    fn reload(&self, text: &str) -> String {
        self.berth.write("berth.toml", text);
        self.berth.signal("-HUP");
        self.ended()
    }

    fn ended(&self) -> String {
        let begun = self.told();
        let time = begun.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{begun}"));
        assert!(time.trim_end().parse::<u64>().unwrap() > 0);
        let ended = self.told();
        ended.strip_prefix("READY=1\nSTATUS=").unwrap_or_else(|| panic!("{ended}")).trim_end().to_owned()
    }

    fn status(&self) -> Value {
        let addr: SocketAddr = self.berth.ready["endpoints"]["admin"].as_str().unwrap().parse().unwrap();
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

fn function(name: &str) -> String {
    format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:rpc_increment\"\n")
}

fn id(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

/// A client that keeps a window of requests under way, and knows which answer each of them may have.
struct Window {
    socket: UdpSocket,
    next: u32,
    /// When each request that waits was sent.
    sent: std::collections::HashMap<u32, Instant>,
    slowest: Vec<Duration>,
}

impl Window {
    const SIZE: usize = 32;

    fn new(to: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self { socket, next: 0, sent: std::collections::HashMap::new(), slowest: Vec::new() }
    }

    fn fill(&mut self, function: u32) {
        while self.sent.len() < Self::SIZE {
            let id = self.next;
            self.next += 1;
            self.socket.send(&request(function, &id.to_le_bytes(), id, 0)).unwrap();
            self.sent.insert(id, Instant::now());
        }
    }

    /// One answer: which request it answers, its status and its result. Each comes once.
    fn take(&mut self) -> (u32, i32, Vec<u8>) {
        let mut buf = [0; 256];
        let len = self.socket.recv(&mut buf).expect("no request is lost");
        let word = |at: usize| u32::from_le_bytes(buf[at..at + 4].try_into().unwrap());
        let id = word(12);
        let sent = self.sent.remove(&id).expect("an answer to what was asked, once");
        self.slowest.push(sent.elapsed());
        (id, word(4).cast_signed(), buf[24..len].to_vec())
    }

    /// Keeps the window full for this long; answers are increments, or refusals with a status that `may` be.
    fn run(&mut self, function: u32, time: Duration, may: &[i32]) -> usize {
        let (end, mut refused) = (Instant::now() + time, 0);
        while Instant::now() < end {
            self.fill(function);
            refused += usize::from(self.check(may));
        }
        while !self.sent.is_empty() {
            refused += usize::from(self.check(may));
        }
        refused
    }

    fn check(&mut self, may: &[i32]) -> bool {
        let (id, status, result) = self.take();
        if status == 0 {
            assert_eq!(result, id.to_le_bytes().map(|byte| byte.wrapping_add(1)));
        } else {
            assert!(may.contains(&status), "status {status}");
        }
        status != 0
    }

    fn p99(&mut self) -> Duration {
        self.slowest.sort();
        let p99 = self.slowest[self.slowest.len() * 99 / 100];
        self.slowest.clear();
        p99
    }
}

/// One port without a worker and one whose functions run on a worker, on a CPU of their own each.
fn two_ports() -> String {
    let ring = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]";
    format!("{ADMIN}{}{}", port("inline", ""), port("ring", ring))
}

#[test]
fn functions_come_and_go_under_load_and_no_request_is_lost_or_wrong() {
    let base = two_ports();
    let berth = Reloaded::start(&format!("{base}{INCREMENT}{}", function("goes")), &[]);
    let mut lines = ["inline", "ring"].map(|port| Window::new(berth.berth.addr(port)));
    std::thread::scope(|scope| {
        let [inline, ring] = &mut lines;
        let loads = [inline, ring].map(|window| {
            scope.spawn(move || {
                assert_eq!(window.run(RPC_INCREMENT, Duration::from_millis(900), &[]), 0, "it was always there");
                let before = window.p99();
                // While it goes, comes back and changes its place, this is known or unknown, and nothing else.
                let refused = window.run(id("goes"), Duration::from_millis(900), &[-1]);
                (before, window.p99(), refused)
            })
        });
        for round in 0..20 {
            std::thread::sleep(Duration::from_millis(60));
            let more = if round % 2 == 0 { function("comes") } else { function("goes") + &function("comes") };
            assert_eq!(berth.reload(&format!("{base}{more}{INCREMENT}")), "serving");
        }
        for load in loads {
            let (_, _, refused) = load.join().unwrap();
            assert!(refused > 0, "the function was gone for a while");
        }
    });
    assert_eq!(berth.status()["reloads"], serde_json::json!({"done": 20, "refused": 0, "refusal": ""}));
    let (inline, ring) = (berth.berth.client("inline"), berth.berth.client("ring"));
    for client in [inline, ring] {
        assert_eq!(client.call(id("comes"), &[1]).result, [2]);
    }
    let stopped = berth.berth.stop();
    for port in ["inline", "ring"] {
        let sum = |counter| stopped.sum(port, "service", counter);
        assert_eq!(sum("received"), sum("answered") + sum("unknown_function"), "{port}");
    }
}

#[test]
fn a_function_moves_between_rings_under_load_and_its_answers_keep_their_order() {
    let rings = "[port.rpc]\nworker_cpus = [0]\n[[port.rpc.ring]]\nname = \"second\"\nworker_cpus = [0]";
    let base = format!("{ADMIN}{}", port("a", rings));
    let moved = |to: &str| {
        format!("{base}{}{to}{}", function("moves"), function("stays") + "dispatch = \"ring\"\nring = \"second\"\n")
    };
    let places = ["", "dispatch = \"ring\"\n", "dispatch = \"ring\"\nring = \"second\"\n"];
    let berth = Reloaded::start(&moved(places[0]), &[]);
    let mut window = Window::new(berth.berth.addr("a"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut next = 0;
            while !done.load(Relaxed) {
                window.fill(id("moves"));
                let (id, status, result) = window.take();
                assert_eq!((id, status), (next, 0));
                assert_eq!(result, id.to_le_bytes().map(|byte| byte.wrapping_add(1)));
                next += 1;
            }
        });
        for round in 1..=12 {
            assert_eq!(berth.reload(&moved(places[round % 3])), "serving");
            std::thread::sleep(Duration::from_millis(30));
        }
        done.store(true, Relaxed);
        load.join().unwrap();
    });
    // Rings themselves are fixed.
    let refused = berth.reload(&moved(places[0]).replace("name = \"second\"", "name = \"second\"\nslots = 8"));
    assert!(refused.contains("port[0].rpc.ring[0].slots: is new; this needs a restart"), "{refused}");
    let stopped = berth.berth.stop();
    let workers = stopped.counters["workers"].as_array().unwrap();
    let served: Vec<_> = workers.iter().map(|worker| worker["counters"]["calls_moves"].as_u64()).collect();
    assert!(matches!(served[..], [Some(1..), Some(1..)]), "{served:?}");
    assert!(stopped.sum("a", "service", "calls_moves") > 0);
}

/// Prints the latencies of a second with a reload in it beside one without; a figure on a quiet machine only.
#[test]
fn a_reload_under_load_loses_nothing_and_says_what_it_cost() {
    // A CPU of its own, where there are two.
    let cpu = usize::from(std::thread::available_parallelism().unwrap().get() > 1);
    let polling = port("a", "").replace("cpu = 0", &format!("cpu = {cpu}")).replace("\"wait\"", "\"spin\"");
    let text = format!("{polling}{INCREMENT}");
    let berth = Reloaded::start(&text, &[]);
    let mut window = Window::new(berth.berth.addr("a"));
    window.run(RPC_INCREMENT, Duration::from_millis(200), &[]);
    window.p99();
    window.run(RPC_INCREMENT, Duration::from_secs(1), &[]);
    let quiet = window.p99();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| window.run(RPC_INCREMENT, Duration::from_secs(1), &[]));
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(berth.reload(&format!("{text}{}", function("comes"))), "serving");
        assert_eq!(load.join().unwrap(), 0);
    });
    let reload = window.p99();
    let ratio = reload.as_secs_f64() / quiet.as_secs_f64();
    println!("p99 of a second with a reload {reload:?}, without {quiet:?}: {ratio:.2}x");
}

const DECODER: &str = "[[decoder]]\nname = \"d\"\nalgorithm = \"mwpm\"\nmodel = \"d.dem\"\n[[function]]\nname = \
                       \"qec_decode\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"d\"\n";
/// Two detectors between three bits, the observable on the first bit, or on the last.
const FIRST: &str = "error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1\n";
const LAST: &str = "error(0.1) D0\nerror(0.1) D0 D1\nerror(0.1) D1 L0\n";

#[test]
fn a_model_file_is_read_again() {
    let text = format!("{}{DECODER}", port("a", ""));
    let berth = Reloaded::start(&text, &[("d.dem", FIRST)]);
    let client = berth.berth.client("a");
    let decode = |events: u8| client.call(QEC_DECODE, &[events, 2, 0, 0, 0]).result;
    assert_eq!((decode(0b01), decode(0b10)), (vec![1], vec![0]));
    berth.berth.write("d.dem", LAST);
    assert_eq!(berth.reload(&text), "serving");
    assert_eq!((decode(0b01), decode(0b10)), (vec![0], vec![1]));
    // Three detectors, and one that no matching can take.
    berth.berth.write("d.dem", "error(0.1) D0 D1 D2 L0\n");
    let refused = berth.reload(&text);
    assert!(refused.starts_with("serving; reload refused: ") && refused.contains("decoder[0].model: "), "{refused}");
    assert_eq!((decode(0b01), decode(0b10)), (vec![0], vec![1]));
    berth.berth.stop();
}

#[test]
fn a_decoding_session_outlives_a_reload_of_other_things() {
    let server = ["enqueue_syndromes", "get_corrections", "reset_decoder"];
    let server: String =
        server.map(|name| format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:{name}\"\n")).concat();
    let decoder = &DECODER[..DECODER.find("[[function]]").unwrap()];
    let text = format!("{}{decoder}{server}", port("a", ""));
    let berth = Reloaded::start(&text, &[("d.dem", FIRST)]);
    let client = berth.berth.client("a");
    let words = |words: &[u64], last: u8| {
        let mut args: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        args.push(last);
        args
    };
    let enqueue = || client.call(id("enqueue_syndromes"), &words(&[0, 1, 0, 2], 0b01)).status;
    let corrections = || client.call(id("get_corrections"), &words(&[0, 1], 0));
    assert_eq!(enqueue(), 0);
    assert_eq!(berth.reload(&format!("{text}{INCREMENT}")), "serving");
    assert_eq!(corrections().result, [1]);
    // Other probabilities change the weights from now on, and nothing else: that D0 alone is seen is two errors now.
    berth.berth.write("d.dem", "error(0.01) D0 L0\nerror(0.3) D0 D1\nerror(0.3) D1\n");
    assert_eq!(berth.reload(&text), "serving");
    assert_eq!(corrections().result, [1]);
    assert_eq!(enqueue(), 0);
    assert_eq!(corrections().result, [1], "nothing flipped again");
    // With another model it is another session.
    berth.berth.write("d.dem", LAST);
    assert_eq!(berth.reload(&text), "serving");
    assert_eq!(corrections().status, 4, "not ready");
    berth.berth.stop();
}

#[test]
fn what_is_wrong_or_cannot_change_is_refused_whole_with_its_places() {
    let text = format!("{ADMIN}{}{INCREMENT}", port("a", ""));
    let berth = Reloaded::start(&text, &[]);
    let folder = berth.berth.folder();
    let client = berth.berth.client("a");
    let file = format!("{}/berth.toml", folder.display());

    let broken = berth.reload(&format!("{text}{}[[function]]\nname = 3\n", function("comes")));
    assert_eq!(
        broken,
        format!(
            "serving; reload refused: {file}:16:1: function[2].handler: is missing; write handler = \
                                \"builtin:rpc_increment\" or \"plugin:/usr/lib/berth/mine.so#symbol\""
        )
    );
    let fixed = text.replace("idle = \"wait\"", "idle = \"adaptive\"") + "[node]\nsite = 7\n" + &function("comes");
    let refused = berth.reload(&fixed);
    assert_eq!(
        refused,
        format!(
            "serving; reload refused: {file}:8:8: port[0].idle: is \"adaptive\", it was \"wait\"; \
                                 this needs a restart"
        )
    );
    let reloads = &berth.status()["reloads"];
    assert_eq!((&reloads["done"], &reloads["refused"]), (&0.into(), &2.into()));
    let lines = reloads["refusal"].as_str().unwrap().replace(&format!("{file}:"), "");
    let wanted = "8:8: port[0].idle: is \"adaptive\", it was \"wait\"; this needs a restart\n\
                  13:1: node: is new; this needs a restart";
    assert_eq!(lines, wanted);
    assert_eq!(client.call(id("comes"), &[]).status, -1, "nothing of it took effect");
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);

    // A port that goes away is named at the list that it is missing from; one that moves is none.
    let second = port("b", "");
    assert!(berth.reload(&text.replace("[[port]]", &format!("{second}[[port]]"))).contains("port[0]: is new"));
    let without = format!("{ADMIN}{second}{INCREMENT}");
    let refused = berth.reload(&without);
    assert!(refused.contains(":3:1: port[0]: is new; this needs a restart"), "{refused}");
    // What says the same in other words changes nothing.
    assert_eq!(berth.reload(&format!("{text}[runtime]\nhousekeeping_cpus = [0]\n[node]\nsite = 0\n")), "serving");
    let stopped = berth.berth.stop();
    assert!(stopped.stderr.contains("reload refused, all goes on as it was"), "{}", stopped.stderr);
}

#[test]
fn check_says_what_a_reload_would_do() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let running = write("running.toml", format!("{}{INCREMENT}", port("a", "")));
    let check = |file: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let output = command.arg("check").arg(file).arg("--against").arg(&running).output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), out.replace(&format!("{}/", folder.path().display()), ""))
    };
    let live = write("live.toml", format!("{}{}[log]\nlevel = \"debug\"\n", port("a", ""), function("f")));
    let wanted =
        "live.toml:8:1: function[0]: is new\nlive.toml:8:1: function[0]: is gone\nlive.toml:11:1: log: is new\n";
    assert_eq!(check(&live), (Some(0), wanted.into()));
    let fixed = write("fixed.toml", format!("{}{INCREMENT}", port("a", "[port.rpc]\nslots = 8")));
    assert_eq!(check(&fixed), (Some(3), "fixed.toml:7:1: port[0].rpc: is new; this needs a restart\n".into()));
    assert_eq!(check(&running), (Some(0), String::new()));

    // Of a section that a reload takes nothing of, and of one that it takes in part.
    let hip = "[hip]\nlisten = \"127.0.0.1:0\"\n[[gpu]]\nname = \"g\"\ndevice = \"soft\"\nuse = \"hip\"\n\
        [[hip.device]]\ngpu = \"g\"\n";
    for (added, wanted) in [
        (hip, "added.toml:11:1: hip: is new; this needs a restart"),
        ("[log]\nformat = \"json\"\n", "added.toml:11:1: log: means something else than before; this needs a restart"),
    ] {
        let added = write("added.toml", format!("{}{INCREMENT}{added}", port("a", "")));
        let (code, told) = check(&added);
        assert_eq!(code, Some(3), "{told}");
        assert!(told.contains(wanted), "{told}");
    }
}

#[test]
fn policies_and_limits_change() {
    let folder = tempfile::tempdir().unwrap();
    let key = Arc::new(key_file::generate().unwrap());
    let text = |perms: &str, limit: u32| {
        format!(
            "[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = \
             [\"{}\"]\nmax_requests_per_sec = {limit}\n[[control.policy]]\npresenter = \"*\"\nperms = [{perms}]\n\
             [[region]]\nname = \"m\"\nkind = \"memory\"\nsize = \"1 MiB\"\n",
            folder.path().join("state").display(),
            key.public_key(),
        )
    };
    let berth = Reloaded::start(&text("\"read\"", 0), &[]);
    let at = berth.berth.ready["endpoints"]["quic"].as_str().unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Lessee::quic(key.clone(), at, None)).unwrap();
    let ask = |perms| match runtime.block_on(client.cap_request(perms, 60, 0, None)) {
        Ok(_) => Status::Ok,
        Err(Error::Refused { status, .. }) => status,
        Err(e) => panic!("{e}"),
    };
    assert_eq!((ask(Perms::READ), ask(Perms::WRITE)), (Status::Ok, Status::InsufficientPerm));
    assert_eq!(berth.reload(&text("\"write\"", 0)), "serving");
    assert_eq!((ask(Perms::READ), ask(Perms::WRITE)), (Status::InsufficientPerm, Status::Ok));
    assert_eq!(berth.reload(&text("\"write\"", 1)), "serving");
    let asked = Instant::now();
    let refused = (0..20).filter(|_| ask(Perms::WRITE) != Status::Ok).count();
    assert!(refused as u64 >= 18_u64.saturating_sub(asked.elapsed().as_secs()), "{refused} of 20 in one second");
    berth.berth.stop();
}

#[test]
fn limits_of_a_port_change() {
    let text = |limits: &str| format!("{ADMIN}{}{INCREMENT}", port("a", limits));
    let berth = Reloaded::start(&text(""), &[]);
    let client = berth.berth.client("a");
    let refused = || (0..20).filter(|_| client.call(RPC_INCREMENT, &[1]).status != 0).count();
    assert_eq!(refused(), 0);
    assert_eq!(berth.reload(&text("[port.limits]\nper_peer_rps = 1\nper_peer_burst = 5")), "serving");
    assert!((14..=15).contains(&refused()));
    // Buckets whose limits stay are as empty as they were.
    let with_function = text("[port.limits]\nper_peer_rps = 1\nper_peer_burst = 5") + &function("comes");
    assert_eq!(berth.reload(&with_function), "serving");
    assert!((17..=20).contains(&refused()));
    assert_eq!(berth.reload(&text("")), "serving");
    assert_eq!(refused(), 0);
    // What waits before a port is a matter of its driver.
    let wanted = "needs a restart";
    assert!(berth.reload(&text("[port.limits]\nqueue = 64")).contains(wanted));
    assert!(berth.reload(&text("weight = 2")).contains(wanted));
    berth.berth.stop();
}

#[test]
fn log_levels_change() {
    let text = |levels: &str| format!("{}{INCREMENT}[log]\nlevel = \"{levels}\"\n", port("a", ""));
    let berth = Reloaded::start(&text("error"), &[]);
    assert_eq!(berth.reload(&text("info")), "serving");
    assert_eq!(berth.reload(&text("error")), "serving");
    assert_eq!(berth.reload(&(text("error") + &function("comes"))), "serving");
    let stopped = berth.berth.stop();
    let reloads: Vec<_> = stopped.stderr.lines().filter(|line| line.contains("log.level: is")).collect();
    assert_eq!(reloads.len(), 1, "{}", stopped.stderr);
    assert!(reloads[0].contains("is \"info\", it was \"error\""), "{}", reloads[0]);
    assert!(!stopped.stderr.contains("draining"), "{}", stopped.stderr);
}

#[test]
fn signals_during_a_reload_lead_to_one_more() {
    let text = format!("{ADMIN}{}{INCREMENT}", port("a", ""));
    let berth = Reloaded::start(&text, &[]);
    for _ in 0..4 {
        berth.berth.signal("-HUP");
    }
    berth.berth.write("berth.toml", &(text + &function("comes")));
    berth.berth.signal("-HUP");
    let client = berth.berth.client("a");
    let mut reloads = 0;
    while client.call(id("comes"), &[]).status != 0 {
        assert_eq!(berth.ended(), "serving");
        reloads += 1;
    }
    assert!(reloads <= 5, "{reloads}");
    berth.berth.stop();
}

#[test]
fn ring_kernels_come_and_rest_with_what_they_remember_and_a_message_keeps_its_layout() {
    let ports = format!("{ADMIN}{}{INCREMENT}", port("a", ""));
    let kernel = "[[ring_kernel]]\nmessage = \"VectorAddRequest\"\nkernel = \"builtin:vector_add\"\n";
    let add = id("VectorAddRequest");
    let ask = |client: &crate::common::Client, sum: f32| {
        let message = [&[5][..], &[7; 16], &[128], &[0; 17], &sum.to_le_bytes(), &[0; 4]].concat();
        let answer = client.call(add, &message);
        (answer.status, answer.result.last_chunk().map_or(0.0, |sum| f32::from_le_bytes(*sum)))
    };
    let reloaded = Reloaded::start(&ports, &[]);
    let client = reloaded.berth.client("a");
    assert_eq!(ask(&client, 1.5).0, -1);
    let told = reloaded.reload(&format!("{ports}{kernel}"));
    assert!(told.starts_with("serving"), "{told}");
    assert_eq!(ask(&client, 1.5), (0, 1.5));
    reloaded.reload(&format!("{ports}{kernel}active = false\n"));
    assert_eq!(ask(&client, 1.5).0, 2);
    reloaded.reload(&format!("{ports}{kernel}active = true\n"));
    assert_eq!(ask(&client, 1.5), (0, 1.5));
    assert_eq!(ask(&client, 2.5).0, 3, "the first was remembered");
    // The histogram comes with the kernel, outlives its settings, and goes with it.
    let timed = |expected: Option<&str>| {
        let name = "berth_kernel_time_seconds_count{lcore=\"cpu0\",port=\"a\",kernel=\"VectorAddRequest\"} ";
        let deadline = Instant::now() + Duration::from_secs(5);
        while get(admin(&reloaded.berth), "/metrics", "").1.lines().find_map(|line| line.strip_prefix(name)) != expected
        {
            assert!(Instant::now() < deadline, "{expected:?}");
        }
    };
    timed(Some("2"));
    let message = |members: &str| format!("{ports}{kernel}[[message]]\nname = \"Own\"\nmembers = [{members}]\n");
    reloaded.reload(&message("\"A u8\""));
    let told = reloaded.reload(&message("\"A u16\""));
    assert!(told.contains("a message keeps its layout, give the new one a name of its own"), "{told}");
    reloaded.reload(&ports);
    assert_eq!(ask(&client, 1.5).0, -1, "gone");
    timed(None);
    assert!(reloaded.berth.stop().status.success());
}
