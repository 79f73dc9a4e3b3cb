//! `dispatch = "gpu"` on the GPU in software: what it answers, and what becomes of requests when its kernel or its worker
//! ends.

mod cuda;
mod deaths;
mod decoders;
mod in_place;
mod vram;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use decoders::decoder;

use crate::common::{self, ADMIN, Berth, INCREMENT, RPC_INCREMENT, admin, fails, get, port, request, request_v16};

const GPU: &str = "[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\ntime_limit_ms = 1000\n";
const RPC: &str = "[port.rpc]\ndispatch = \"gpu\"\ngpu = \"gpu0\"\n";
const HANDLER_FAILED: i32 = -6;

/// Functions of `drivers/gpu/kernels/example.ptx`.
fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../drivers/gpu/kernels/example.ptx")
}

fn device(symbol: &str, more: &str) -> String {
    format!("[[function]]\nname = \"{symbol}\"\nhandler = \"gpu:{}#{symbol}\"\n{more}\n", example().display())
}

fn fnv1a(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

fn config(rpc: &str, functions: &str) -> String {
    format!("{GPU}{}{functions}", port("a", rpc))
}

fn worker(berth: &Berth) -> u32 {
    berth.ready["gpus"][0]["worker_pid"].as_u64().unwrap() as u32
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// The state of a process, in the letter of proc(5); `None` once it is gone.
fn state(pid: u32) -> Option<char> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

fn until(done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(1));
    }
}

fn counters(stopped: &common::Stopped) -> [u64; 3] {
    let counters = &stopped.counters["gpus"][0]["counters"];
    ["gpu_restarts", "gpu_faults", "gpu_timeouts"].map(|name| counters[name].as_u64().unwrap())
}

/// Calls until a call is answered again; how long that took.
fn recover(client: &common::Client) -> Duration {
    let began = Instant::now();
    while client.call(RPC_INCREMENT, &[1]).status != 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "it stays away");
        thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

/// So many calls, 32 at a time: every answer is right.
fn increments(client: &common::Client, count: u32) {
    let args = |id: u32| (0..id % 100).map(|at| (at * 7 + id) as u8).collect::<Vec<_>>();
    let (mut sent, mut taken) = (0, 0);
    while taken < count {
        while sent < count && sent < taken + 32 {
            client.send(&request(RPC_INCREMENT, &args(sent), sent, sent.into()));
            sent += 1;
        }
        let answer = client.response();
        let wanted: Vec<_> = args(taken).iter().map(|byte| byte.wrapping_add(1)).collect();
        assert_eq!((answer.request_id, answer.status, answer.result), (taken, 0, wanted));
        taken += 1;
    }
}

#[test]
fn ten_thousand_answers_are_right() {
    let berth = Berth::start(&config(RPC, INCREMENT));
    let gpu = &berth.ready["gpus"][0];
    assert_eq!(
        (&gpu["name"], &gpu["device"], &gpu["kind"], &gpu["memory"]),
        (&"gpu0".into(), &"soft".into(), &"soft".into(), &"pinned".into())
    );
    assert_ne!(worker(&berth), berth.pid());
    increments(&berth.client("a"), 10_000);
    let stopped = berth.stop();
    assert!(stopped.status.success(), "{}", stopped.stderr);
    assert_eq!(stopped.sum("a", "service", "answered"), 10_000);
    assert_eq!(counters(&stopped), [0; 3]);
}

#[test]
fn functions_of_users_beside_those_on_cpus() {
    let mock = "NUM_DATA: 2\nNUM_LOGICAL: 1\nSHOT_START 0\n1\n0\nSHOT_START 1\n0\n1\nCORRECTIONS_START\n1\n0\nCORRECTIONS_END\n";
    let functions = [
        device("reverse", "args = [\"array_int32[]\"]"),
        device("sum_by_block", "parallel = \"block\"\nmode = \"call\""),
        device("answer", ""),
        "[[function]]\nname = \"mock_decode\"\nhandler = \"builtin:mock_decode\"\ntable = \"mock.txt\"\n".into(),
        format!("{INCREMENT}dispatch = \"inline\"\n"),
    ];
    let rpc = format!("{RPC}memory = \"pinned\"\nslots = 16\nslot_size = 512\nheader = \"v24\"");
    let berth = Berth::start_with(&config(&rpc, &functions.concat()), &[("mock.txt", mock)]);
    let client = berth.client("a");
    assert_eq!(client.call(fnv1a("reverse"), &[1, 2, 3, 4]).result, [4, 3, 2, 1]);
    assert_eq!(client.call(fnv1a("reverse"), &[1, 2, 3]).status, -3, "not of the schema");
    assert_eq!(client.call(fnv1a("sum_by_block"), &[200; 300]).result, 60_000_u32.to_le_bytes());
    assert_eq!(client.call(fnv1a("mock_decode"), &[1, 0]).result, [1]);
    assert_eq!(client.call(fnv1a("mock_decode"), &[1, 1]).result, [0]);
    assert_eq!(client.call(fnv1a("mock_decode"), &[1]).status, -3);
    assert_eq!(client.call(fnv1a("answer"), &[9, 4]).status, 9);
    assert_eq!(client.call(fnv1a("answer"), &[255, 4]).status, HANDLER_FAILED);
    assert_eq!(client.call(fnv1a("answer"), &[0, 4]).result, [7; 4]);
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
    assert_eq!(client.call(1, &[1]).status, -1);
    assert!(berth.stop().status.success());
}

/// One kernel serves the rings of two queues and of another port, whose messages have the shorter header.
#[test]
fn one_gpu_serves_several_rings() {
    let gpu = GPU.replace("limit_ms", "limit_ms = 1000\nblocks = 4\n#");
    let two = port("a", &format!("{RPC}slots = 8")).replace("cpu = 0", "cpus = [0, 1]");
    let short = port("b", &format!("{RPC}header = \"v16\""));
    let berth = Berth::start(&format!("{gpu}{two}{short}{INCREMENT}"));
    let clients: Vec<_> = (0..16).map(|_| berth.client("a")).collect();
    for n in 0..30 {
        for client in &clients {
            assert_eq!(client.call(RPC_INCREMENT, &[n, 255]).result, [n + 1, 0]);
        }
    }
    let client = berth.client("b");
    for id in 0..200_u32 {
        client.send(&request_v16(RPC_INCREMENT, &id.to_le_bytes(), id));
        let wanted = [0x4355_5153, 0, 4, id].map(u32::to_le_bytes).concat();
        let plus = id.to_le_bytes().map(|byte| byte.wrapping_add(1));
        assert_eq!(client.receive(), [&wanted[..], &plus].concat());
    }
    let stopped = berth.stop();
    let lanes =
        stopped.counters["lcores"].as_array().unwrap().iter().flat_map(|lcore| lcore["lanes"].as_array().unwrap());
    let served = lanes.filter(|lane| lane["name"] == "a" && lane["service"]["answered"] != 0).count();
    assert_eq!((served, counters(&stopped)), (2, [0; 3]), "both queues");
}

/// A kernel that traps or strays costs what it had, and nothing else.
#[test]
fn a_kernel_that_faults_is_replaced() {
    let functions = [INCREMENT.into(), device("traps", ""), device("strays", "")].concat();
    let beside = port("b", "[port.rpc]\ndispatch = \"inline\"\ngpu = \"gpu0\"").replace("cpu = 0", "cpu = 1");
    let functions = functions.replace("name = \"rpc_increment\"\n", "name = \"rpc_increment\"\nbudget_us = 3000000\n");
    let functions = functions
        .replace("#traps\"", "#traps\"\ndispatch = \"gpu\"")
        .replace("#strays\"", "#strays\"\ndispatch = \"gpu\"");
    let berth = Berth::start(&format!("{}{beside}{ADMIN}", config(RPC, &functions)));
    let (client, other) = (berth.client("a"), berth.client("b"));
    let first = worker(&berth);
    for (nth, faulty) in ["traps", "strays"].into_iter().enumerate() {
        assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
        let began = Instant::now();
        assert_eq!(client.call(fnv1a(faulty), &[1]).status, HANDLER_FAILED);
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "at once, not at the end of its budget: {:?}",
            began.elapsed()
        );
        assert_eq!(other.call(RPC_INCREMENT, &[3]).result, [4]);
        assert!(recover(&client) < Duration::from_secs(2));
        let (_, metrics) = get(admin(&berth), "/metrics", "");
        let wanted = format!("berth_gpu_faults_total{{gpu=\"gpu0\"}} {}", nth + 1);
        assert!(metrics.contains(&wanted), "{wanted}: {metrics}");
    }
    assert!(!Path::new(&format!("/proc/{first}")).exists());
    let printed = |args: &[&str]| {
        let mut berth_of = Command::new(env!("CARGO_BIN_EXE_berth"));
        let out = berth_of.args(args).args(["--admin", &admin(&berth).to_string()]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let pid = {
        let status: serde_json::Value = serde_json::from_str(&get(admin(&berth), "/status", "").1).unwrap();
        status["gpus"][0]["worker_pid"].as_u64().unwrap().to_string()
    };
    let words =
        |line: &str| line.split(['│', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    for args in [&["status"][..], &["top", "--once"]] {
        let text = printed(args);
        let row = text.lines().map(words).find(|words| words.first().is_some_and(|word| word == "gpu0"));
        // Restarts, faults, timeouts, and what was refused when the workers ended.
        assert_eq!(row.unwrap_or_default(), ["gpu0", "soft", "runs", &*pid, "2", "2", "0", "2"], "{text}");
    }
    let (_, metrics) = get(admin(&berth), "/metrics", "");
    let beats = metrics.lines().find_map(|line| line.strip_prefix("berth_gpu_beats_total{gpu=\"gpu0\"} "));
    assert!(
        beats.unwrap().parse::<u64>().unwrap() > 0 && metrics.contains("berth_gpu_up{gpu=\"gpu0\"} 1"),
        "{metrics}"
    );
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(counters(&stopped), [2, 2, 0]);
    assert!(stopped.stderr.contains("thread (0, 0, 0), traps, line 237: the kernel trapped"), "{}", stopped.stderr);
    assert!(stopped.stderr.contains("strays, line") && stopped.stderr.contains("a write of 8 bytes at 0x1230"));
}

/// A kernel that never returns, and workers that are stopped or killed.
#[test]
fn a_worker_that_hangs_or_dies_is_replaced() {
    let functions = [INCREMENT, &device("hangs", "budget_us = 200000")].concat();
    let berth = Berth::start(&config(RPC, &functions));
    let client = berth.client("a");
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
    let began = Instant::now();
    assert_eq!(client.call(fnv1a("hangs"), &[1]).status, HANDLER_FAILED);
    let took = began.elapsed();
    assert!((Duration::from_millis(200)..Duration::from_millis(900)).contains(&took), "within its budget: {took:?}");
    assert!(recover(&client) < Duration::from_secs(5));

    let pid = || {
        let children = Command::new("pgrep").args(["-P", &berth.pid().to_string()]).output().unwrap();
        String::from_utf8(children.stdout).unwrap().trim().parse::<u32>().unwrap()
    };
    let killed = pid();
    let began = Instant::now();
    signal(killed, "-KILL");
    // Until then it may answer.
    until(|| state(killed).is_none_or(|state| state == 'Z'));
    recover(&client);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "killed to the first answer: {took:?}");
    let stopped = pid();
    assert_ne!(stopped, killed);
    signal(stopped, "-STOP");
    until(|| state(stopped) == Some('T'));
    assert!(recover(&client) < Duration::from_secs(6));
    assert_ne!(pid(), stopped);
    let last = pid();
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(counters(&stopped), [3, 0, 2]);
    assert!(!Path::new(&format!("/proc/{last}")).exists(), "it ends with berth");
}

/// Kernels that are launched for each request, and not called by one that never stops.
#[test]
fn graphs_answer_and_their_faults_cost_their_own_request() {
    let graph = |name: &str, more: &str| device(name, &format!("mode = \"graph\"\n{more}"));
    let functions = graph("reverse_graph", "parallel = \"block\"")
        + &graph("trapping_graph", "")
        + &graph("hanging_graph", "budget_us = 200000");
    let berth = Berth::start(&config(RPC, &functions));
    let client = berth.client("a");
    for n in 0..300_usize {
        let args: Vec<u8> = (0..n % 90).map(|at| if at == 0 { 0 } else { (at + n) as u8 }).collect();
        let answer = client.call(fnv1a("reverse_graph"), &args);
        assert_eq!((answer.status, answer.result), (0, args.into_iter().rev().collect()));
    }
    assert_eq!(client.call(fnv1a("reverse_graph"), &[7]).status, 7);
    assert_eq!(client.call(fnv1a("reverse_graph"), &[255]).status, HANDLER_FAILED, "no answer");
    assert_eq!(client.call(fnv1a("reverse_graph"), &[254]).status, HANDLER_FAILED);
    assert_eq!(client.call(fnv1a("trapping_graph"), &[1]).status, HANDLER_FAILED);
    let recovers = || {
        let began = Instant::now();
        while client.call(fnv1a("reverse_graph"), &[0, 2]).result != [2, 0] {
            assert!(began.elapsed() < Duration::from_secs(5));
        }
    };
    recovers();
    let began = Instant::now();
    assert_eq!(client.call(fnv1a("hanging_graph"), &[1]).status, HANDLER_FAILED);
    assert!(began.elapsed() < Duration::from_millis(900), "within its budget: {:?}", began.elapsed());
    recovers();
    let stopped = berth.stop();
    assert_eq!(counters(&stopped), [2, 1, 1]);
    assert!(stopped.stderr.contains("trapping_graph, line"), "{}", stopped.stderr);
    let (status, stderr) = fails(&config(RPC, &(functions + INCREMENT)));
    assert!(status == Some(2) && stderr.contains("is not beside other functions on one GPU"), "{stderr}");
}

#[test]
fn no_worker_outlives_a_berth_that_is_killed() {
    let berth = Berth::start(&config(RPC, INCREMENT));
    let worker = worker(&berth);
    berth.signal("-KILL");
    berth.wait(Duration::from_secs(10));
    let deadline = Instant::now() + Duration::from_secs(10);
    // A process that nobody waited for yet has no files any more.
    let lives = || fs::read_link(format!("/proc/{worker}/exe")).is_ok();
    while lives() {
        assert!(Instant::now() < deadline, "the worker lives on");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_reload_changes_runs_on_the_gpu_too() {
    let berth = Berth::start(&format!("{}{ADMIN}", config(RPC, INCREMENT)));
    let client = berth.client("a");
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
    let before = worker(&berth);
    berth.write("berth.toml", &format!("{}{ADMIN}", config(RPC, &device("reverse", ""))));
    berth.signal("-HUP");
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.call(fnv1a("reverse"), &[1, 2]).result != [2, 1] {
        assert!(Instant::now() < deadline, "it never takes the new functions");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.call(RPC_INCREMENT, &[1]).status, -1);
    assert!(Path::new(&format!("/proc/{before}")).exists(), "the same worker");
    assert_eq!(counters(&berth.stop()), [0; 3]);
}

#[test]
fn what_cannot_run_is_refused_with_its_place() {
    let text = fs::read_to_string(example()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let function =
        |file: &str, symbol: &str| format!("[[function]]\nname = \"f\"\nhandler = \"gpu:{file}#{symbol}\"\n");
    let plain = write("plain.ptx", &text);
    let lacking = write("lacking.ptx", &text.replace("trap;", "tensormap.replace;"));
    let prototype = write(
        "prototype.ptx",
        ".version 6.3\n.target sm_70\n.address_size 64\n.visible .func (.param .b32 r) f(.param .b64 a)\n{\nret;\n}\n",
    );
    let none = write("none.ptx", "hello");
    for (functions, wanted) in [
        (function(&plain, "gone"), format!("{plain}: no function \"gone\" is defined")),
        (function(&lacking, "traps"), format!("{lacking}:237: ")),
        (function(&prototype, "f"), format!("{prototype}:4: \"f\" takes [8] bytes and returns [4]; a handler is int(")),
        (function(&none, "f"), format!("{none}:1: ")),
        (function(&plain, "reverse") + "dispatch = \"inline\"\n", "runs it on no GPU; write dispatch = \"gpu\"".into()),
        (
            decoder("m", "surface_d3.dem", "\"mwpm\"")
                + "[[function]]\nname = \"f\"\nhandler = \"builtin:reset_decoder\"\n",
            "decoder \"m\" runs on CPUs alone: lut and relay_bp in fixed point run on GPUs, with up to 64 observables"
                .into(),
        ),
        (
            decoder("l", "surface_d3.dem", "\"lut\"")
                + &decoder("m", "surface_d3.dem", "\"mwpm\"")
                + "[[function]]\nname = \"f\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"m\"\n",
            "port \"a\" runs it on a GPU, and decoder \"m\" runs on CPUs alone".into(),
        ),
        (
            decoder("m", "surface_d3.dem", "\"mwpm\"")
                + "[[function]]\nname = \"f\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"m\"\nconfidence = true\n",
            "port \"a\" runs it on a GPU, where shots are events and answers have no confidence".into(),
        ),
    ] {
        let (status, stderr) = fails(&config(RPC, &functions));
        assert!(status == Some(2) && stderr.contains(&wanted), "{wanted}: {stderr}");
    }
    let on = |name: &str| config(RPC, INCREMENT).replace("\"soft\"", &format!("\"{name}\""));
    for (text, wanted) in [
        (on("gpu7"), "gpu[0].device: \"gpu7\" is no device; write \"auto\", a PCI address such as"),
        (on("GPU-1"), "gpu[0].device: \"GPU-1\" is no device"),
        (
            config("[port.rpc]\ndispatch = \"gpu\"", INCREMENT),
            "port[0].rpc.gpu: is missing; write gpu = the name of a [[gpu]]",
        ),
        (config(&RPC.replace("gpu0", "gpu1"), INCREMENT), "there is no [[gpu]] \"gpu1\""),
        (config(&format!("{RPC}memory = \"heap\""), INCREMENT), "port[0].rpc.memory: is not for a GPU"),
        (config(&format!("{RPC}worker_cpus = [0]"), INCREMENT), "the GPU serves the port's own ring"),
        (
            config(&format!("{RPC}slots = 7"), INCREMENT).replace("limit_ms", "limit_ms = 1000\nblocks = 2\n#"),
            "7 slots cannot be shared by 2 blocks of \"gpu0\"; take a multiple",
        ),
        (
            config(RPC, "[[function]]\nname = \"f\"\nhandler = \"builtin:reset_decoder\"\n")
                .replace("limit_ms", "limit_ms = 1000\nblocks = 2\n#"),
            "have no sessions in common; write blocks = 1",
        ),
        (
            config("[port.rpc]\nmemory = \"pinned\"", INCREMENT),
            "is for a ring that a GPU serves; name it: gpu = \"gpu0\"",
        ),
    ] {
        let (status, stderr) = fails(&text);
        assert!(status == Some(2) && stderr.contains(wanted), "{wanted}: {stderr}");
    }
}
