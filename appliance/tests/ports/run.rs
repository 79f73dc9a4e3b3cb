//! `berth run`: the contract's lines, signals and exit statuses, and how it uses the host.

use std::{fs, net::UdpSocket, process::Command, time::Duration};

use crate::common::{Berth, INCREMENT, RPC_INCREMENT, Response, c_plugin, fails, port, request, write_config};

#[test]
fn the_ready_line_lists_the_ports_in_order() {
    let second = "[[port]]\nname = \"b\"\ndriver = \"uring\"\nbind = \"[::1]:0\"\ncpu = 0\nidle = \"wait\"\n";
    let berth = Berth::start(&format!("{}{second}{INCREMENT}", port("a", "")));
    let ports = berth.ready["ports"].as_array().unwrap();
    assert_eq!(berth.ready.as_object().unwrap().len(), 2);
    assert_eq!(berth.ready["endpoints"], serde_json::json!({}));
    let names: Vec<_> = ports.iter().map(|port| (&port["name"], &port["driver"])).collect();
    assert_eq!(names, [(&"a".into(), &"udp".into()), (&"b".into(), &"uring".into())]);
    for port in ports {
        assert_eq!(port.as_object().unwrap().len(), 3);
        assert_ne!(port["addr"].as_str().unwrap().rsplit(':').next(), Some("0"), "the real port: {port}");
    }
}

#[test]
fn terminates_on_sigterm_and_sigint_with_its_counters() {
    for signal in ["-TERM", "-INT"] {
        let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
        let client = berth.client("a");
        for _ in 0..3 {
            assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
        }
        let stopped = berth.stop_with(signal);
        assert_eq!(stopped.status.code(), Some(0));
        assert_eq!(stopped.sum("a", "port", "rx_frames"), 3);
        assert_eq!(stopped.sum("a", "port", "tx_frames"), 3);
        assert_eq!(stopped.sum("a", "service", "answered"), 3);
        assert_eq!(stopped.sum("a", "service", "calls_rpc_increment"), 3);
    }
}

#[test]
fn what_arrived_before_the_signal_is_answered() {
    // The loop sleeps; the burst and the signal reach it together.
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    client.call(RPC_INCREMENT, &[0]);
    berth.signal("-STOP");
    for id in 0..100 {
        client.send(&request(RPC_INCREMENT, &[7], id, 0));
    }
    let stopped = {
        berth.signal("-TERM");
        berth.signal("-CONT");
        berth.stop_with("-CONT")
    };
    assert_eq!(stopped.status.code(), Some(0));
    for id in 0..100 {
        assert_eq!(client.response(), Response { status: 0, request_id: id, ptp: 0, result: vec![8] });
    }
    assert_eq!(stopped.sum("a", "service", "answered"), 101);
}

#[test]
fn a_worker_on_any_cpu_answers_what_arrived_before_the_signal() {
    let cpus = std::thread::available_parallelism().unwrap().get().min(2);
    for (cpu, idle) in [(0, "wait"), (0, "spin"), (1, "wait"), (1, "spin")].into_iter().filter(|(cpu, _)| *cpu < cpus) {
        let ring = format!("[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [{cpu}]");
        let berth = Berth::start(&format!("{}{INCREMENT}", port("a", &ring).replace("wait", idle)));
        let threads = fs::read_dir(format!("/proc/{}/task", berth.pid())).unwrap();
        let names = threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).unwrap());
        let mut polling: Vec<_> = names.filter(|name| name.starts_with("berth-cpu")).collect();
        polling.sort();
        let expected = ["berth-cpu0\n", "berth-cpu1\n"];
        assert_eq!(polling, expected[..=cpu], "a worker and a port of one CPU are one thread");
        let client = berth.client("a");
        client.call(RPC_INCREMENT, &[0]);
        berth.signal("-STOP");
        for id in 0..50 {
            client.send(&request(RPC_INCREMENT, &[7], id, 0));
        }
        let stopped = {
            berth.signal("-TERM");
            berth.signal("-CONT");
            berth.stop_with("-CONT")
        };
        assert_eq!(stopped.status.code(), Some(0));
        for id in 0..50 {
            assert_eq!(client.response(), Response { status: 0, request_id: id, ptp: 0, result: vec![8] });
        }
        assert_eq!(stopped.sum("a", "service", "calls_rpc_increment"), 0, "none ran inline");
        let [worker] = &stopped.counters["workers"].as_array().unwrap()[..] else { panic!("one worker") };
        assert_eq!(worker["name"], format!("worker{cpu}"));
        assert_eq!(worker["counters"]["calls_rpc_increment"], 51);
        for lcore in stopped.counters["lcores"].as_array().unwrap() {
            assert_eq!(lcore["counters"]["drain_abandoned"], 0);
        }
    }
}

#[test]
fn one_port_on_several_cpus_has_one_address() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let text = format!("{}{INCREMENT}", port("a", "").replace("cpu = 0", "cpus = [0, 1]"));
    let berth = Berth::start(&text);
    let clients: Vec<_> = (0..32).map(|_| berth.client("a")).collect();
    for client in &clients {
        assert_eq!(client.call(RPC_INCREMENT, &[41]).result, [42]);
    }
    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "answered"), 32);
    let lcores = stopped.counters["lcores"].as_array().unwrap();
    assert_eq!(lcores.iter().map(|lcore| &lcore["name"]).collect::<Vec<_>>(), ["cpu0", "cpu1"]);
    // 32 flows all hash to one of two queues once in 2^31 runs.
    for lcore in lcores {
        assert_ne!(lcore["lanes"][0]["service"]["answered"], 0, "{lcore}");
    }
}

#[test]
fn ports_of_one_cpu_take_turns() {
    let berth = Berth::start(&format!("{}{}{INCREMENT}", port("a", ""), port("b", "")));
    let (a, b) = (berth.client("a"), berth.client("b"));
    for i in 0..10 {
        assert_eq!(a.call(RPC_INCREMENT, &[i]).result, [i + 1]);
        assert_eq!(b.call(RPC_INCREMENT, &[i, 255]).result, [i + 1, 0]);
    }
    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "answered"), 10);
    assert_eq!(stopped.sum("b", "service", "answered"), 10);
    assert_eq!(stopped.counters["lcores"].as_array().unwrap().len(), 1);
}

/// CPU time of a process, user and system, in clock ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn waiting_ports_leave_the_cpu_alone_and_wake() {
    for (driver, idle) in [("udp", "wait"), ("udp", "adaptive"), ("uring", "wait"), ("uring", "adaptive")] {
        let text = port("a", "").replace("\"wait\"", &format!("{idle:?}")).replace("\"udp\"", &format!("{driver:?}"));
        let berth = Berth::start(&format!("{text}{INCREMENT}"));
        let client = berth.client("a");
        client.call(RPC_INCREMENT, &[0]);
        std::thread::sleep(Duration::from_millis(50));
        let before = cpu_ticks(berth.pid());
        std::thread::sleep(Duration::from_secs(1));
        let ticks = cpu_ticks(berth.pid()) - before;
        assert!(ticks <= 2, "{driver}, {idle}: {ticks} of 100 ticks");
        assert_eq!(client.call(RPC_INCREMENT, &[9]).result, [10], "{driver}, {idle}");
    }
}

/// KiB of memory that a process holds for itself. Pages of its program are not counted: the kernel maps sixteen of them at
/// once when a function is first called.
fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_does_not_grow() {
    const BURST: u32 = 32;
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    let rounds = |count: u32| {
        for round in 0..count {
            for i in 0..BURST {
                client.send(&request(RPC_INCREMENT, &round.to_le_bytes(), i, 0));
            }
            for _ in 0..BURST {
                assert_eq!(client.receive().len(), 28);
            }
        }
    };
    rounds(1000);
    let before = anonymous_kib(berth.pid());
    rounds(1_000_000 / BURST);
    let after = anonymous_kib(berth.pid());
    assert!(after <= before + 64, "{before} KiB became {after}");
    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "answered"), 32_000 + 1_000_000);
}

#[test]
fn a_port_in_use_is_named() {
    let holder = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = holder.local_addr().unwrap();
    for cpus in ["cpu = 0", "cpus = [0, 1]"] {
        let text = port("a", "").replace("127.0.0.1:0", &addr.to_string()).replace("cpu = 0", cpus);
        let (code, stderr) = fails(&format!("{text}{INCREMENT}"));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(&format!("port a: {addr} is in use: stop the program that holds it")), "{stderr}");
    }
}

#[test]
fn configuration_errors_exit_with_2() {
    let text = port("a", "").replace("cpu = 0", "cpu = 4000");
    let (code, stderr) = fails(&format!("{text}{INCREMENT}"));
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with("berth.toml:5:7: port[0].cpu: CPU 4000 does not exist or is not allowed;"), "{stderr}");
}

#[test]
fn without_permission_it_says_what_to_grant() {
    // Port 1 needs CAP_NET_BIND_SERVICE.
    let text = port("a", "").replace("127.0.0.1:0", "127.0.0.1:1");
    let (folder, config) = write_config(&format!("{text}{INCREMENT}"), &[]);
    Command::new("chmod").args(["-R", "a+rX"]).arg(folder.path()).status().unwrap();
    let mut command = Command::new("setpriv");
    // The binary may lie where others cannot go, so capabilities are dropped and the user is kept.
    command
        .args(["--bounding-set=-all", "--inh-caps=-all", env!("CARGO_BIN_EXE_berth"), "run", "--config"])
        .arg(&config);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no permission to bind 127.0.0.1:1"), "{stderr}");
}

#[test]
fn without_privileges_it_serves_and_warns_of_small_buffers() {
    let (_folder, config) = write_config(&format!("{}{INCREMENT}", port("a", "")), &[]);
    let mut command = Command::new("timeout");
    command.args(["-s", "TERM", "1", "setpriv", "--bounding-set=-all", "--inh-caps=-all"]);
    let output = command.args([env!("CARGO_BIN_EXE_berth"), "run", "--config"]).arg(&config).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.starts_with("berth ready ") && out.contains("\nberth stopped "), "{out}{err}");
    let limit: u64 = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
    // The kernel counts twice what is asked for.
    let warned = err.contains("bursts may be lost: rcvbuf = 4194304: the kernel grants");
    assert_eq!(warned, 2 * limit < 4_194_304, "{err}");
}

#[test]
fn a_capture_is_written_and_faults_are_counted() {
    let more = "[port.pcap]\nfile = \"a.pcap\"\n[port.fault]\nseed = 7\nduplicate = 1.0";
    let (folder, config) = write_config(&format!("{}{INCREMENT}", port("a", more)), &[]);
    let berth = Berth::start_file(&config, |_| ());
    let client = berth.client("a");
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
    // The request is duplicated, and both answers are.
    for _ in 0..3 {
        assert_eq!(client.response().result, [2]);
    }
    assert!(berth.stop().status.success());
    let capture = fs::read(folder.path().join("a.pcap")).unwrap();
    assert_eq!(capture[..4], 0xA1B2_3C4D_u32.to_le_bytes());
    assert!(capture.len() > 24, "frames behind the file's header");
}

#[test]
fn a_handler_that_never_returns_does_not_keep_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let source = "void hang(const void *rx, void *tx, unsigned long n) { for (;;) __asm__ volatile(\"\"); }";
    let (handler, id) = c_plugin(folder.path(), "hang", source);
    let function = format!("[[function]]\nname = \"hang\"\nhandler = \"{handler}\"\nabi = \"host_call\"\n");
    let berth = Berth::start(&format!("{}{function}", port("a", "")));
    let client = berth.client("a");
    client.send(&request(id, &[], 1, 0));
    std::thread::sleep(Duration::from_millis(100));
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(1));
    assert!(stopped.stderr.contains("1 lcores do not stop"), "{}", stopped.stderr);
}
