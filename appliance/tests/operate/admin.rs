//! The admin address of `berth run`, as monitoring and people use it.

use std::{
    fs,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::common::{self, ADMIN, Berth, INCREMENT, RPC_INCREMENT, admin, ask, c_plugin, fails, get, port, request};

/// The value of a sample in an exposition.
fn sample(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

#[test]
fn counts_of_a_port_are_exposed_with_its_latencies() {
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    for _ in 0..7 {
        client.call(RPC_INCREMENT, &[1]);
    }
    let labels = "{lcore=\"cpu0\",port=\"a\"}";
    let deadline = Instant::now() + Duration::from_secs(5);
    // A sleeping loop publishes with its next wake-up.
    let text = loop {
        let (status, text) = get(admin(&berth), "/metrics", "");
        assert_eq!(status, 200);
        if sample(&text, &format!("berth_service_answered_total{labels}")) > 6.5 {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
    };
    for (name, value) in [
        ("berth_ready", 1.0),
        ("berth_alive", 1.0),
        (&*format!("berth_port_rx_frames_total{labels}"), 7.0),
        (&*format!("berth_service_answered_total{labels}"), 7.0),
        (&*format!("berth_service_time_seconds_count{labels}"), 7.0),
        ("berth_service_time_seconds_bucket{le=\"+Inf\",lcore=\"cpu0\",port=\"a\"}", 7.0),
    ] {
        assert!((sample(&text, name) - value).abs() < 0.5, "{name} in\n{text}");
    }
    assert!(text.contains("# TYPE berth_service_time_seconds histogram\n# UNIT berth_service_time_seconds seconds\n"));
    assert_eq!(text.matches("# TYPE berth_port_rx_frames counter\n").count(), 1);
    assert!(text.ends_with("# EOF\n"));
    berth.stop();
}

#[test]
fn status_is_printed_and_says_whether_it_serves() {
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", "")));
    berth.client("a").call(RPC_INCREMENT, &[1]);
    let command = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.args(["status", "--admin", &admin(&berth).to_string()]).args(args).output().unwrap()
    };
    let out = command(&[]);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(said.starts_with("berth 0.1.0: serving, up ") && said.contains("cpu0         a "), "{said}");
    let status: Value = serde_json::from_slice(&command(&["--json"]).stdout).unwrap();
    assert_eq!(status["ready"], true);
    assert_eq!(status["snapshot"]["lcores"][0]["lanes"][0]["name"], "a");
    let addr = admin(&berth).to_string();
    berth.stop();
    let out = Command::new(env!("CARGO_BIN_EXE_berth")).args(["status", "--admin", &addr]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("does not tell; is [admin] configured?"), "{said}");
}

#[test]
fn health_follows_the_poll_loops() {
    let folder = tempfile::tempdir().unwrap();
    let (handler, id) = c_plugin(folder.path(), "hang", "#include <unistd.h>\nvoid hang(void) { sleep(5); }");
    let function = format!("[[function]]\nname = \"hang\"\nhandler = \"{handler}\"\nabi = \"host_call\"\n");
    let berth = Berth::start(&format!("{ADMIN}{}{function}", port("a", "")));
    assert_eq!(get(admin(&berth), "/healthz", ""), (200, "ok\n".into()));
    assert_eq!(get(admin(&berth), "/readyz", ""), (200, "ok\n".into()));
    berth.client("a").send(&request(id, &[], 1, 0));
    let wait = |wanted: (u16, &str)| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while get(admin(&berth), "/healthz", "") != (wanted.0, wanted.1.into()) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait((503, "cpu0 does not poll\n"));
    wait((200, "ok\n"));
    berth.stop();
}

#[test]
fn a_token_that_everybody_may_read_is_refused() {
    let config = format!("[admin]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"token\"\n{}{INCREMENT}", port("a", ""));
    let (folder, config) = common::write_config(&config, &[("token", "correct-horse-battery\n")]);
    let token = folder.path().join("token");
    for (mode, fine) in [(0o644, false), (0o602, false), (0o640, true), (0o600, true)] {
        fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_berth")).arg("check").arg(&config).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), fine, "{mode:o}: {said}");
        let advice = format!("is open to everybody on this host: run `chmod o= {}`", token.display());
        assert_eq!(said.contains(&advice), !fine, "{said}");
    }
}

#[test]
fn beyond_loopback_a_token_is_wanted() {
    let config = format!("[admin]\nlisten = \"0.0.0.0:0\"\n{}{INCREMENT}", port("a", ""));
    let (_, said) = fails(&config);
    assert!(said.contains("2:10: admin.listen: 0.0.0.0:0 is reached from other hosts; add token_file"), "{said}");
    let config = config.replace("\"0.0.0.0:0\"", "\"0.0.0.0:0\"\ntoken_file = \"token\"");
    let berth = Berth::start_with(&config, &[("token", "correct-horse-battery\n")]);
    let addr = SocketAddr::from(([127, 0, 0, 1], admin(&berth).port()));
    for header in ["", "Authorization: Bearer correct-horse-batter\r\n", "Authorization: correct-horse-battery\r\n"] {
        assert_eq!(get(addr, "/metrics", header).0, 401);
        assert_eq!(get(addr, "/status", header).0, 401);
    }
    let right = "Authorization: Bearer correct-horse-battery\r\n";
    assert_eq!(get(addr, "/metrics", right).0, 200);
    assert_eq!(get(addr, "/readyz", "").0, 200, "probes need none");
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "correct-horse-battery").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(["status", "--admin", &addr.to_string(), "--token-file"]).arg(token);
    assert_eq!(command.output().unwrap().status.code(), Some(0));
    berth.stop();
}

#[test]
fn workers_are_counted_while_they_work() {
    let rpc = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]";
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", rpc)));
    let client = berth.client("a");
    for _ in 0..3 {
        client.call(RPC_INCREMENT, &[1]);
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    let text = loop {
        let text = get(admin(&berth), "/metrics", "").1;
        if sample(&text, "berth_worker_answered_total{worker=\"worker0\",port=\"a\"}") > 2.5 {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
    };
    let calls = "berth_worker_calls_total{worker=\"worker0\",port=\"a\",function=\"rpc_increment\"}";
    assert!((sample(&text, calls) - 3.0).abs() < 0.5);
    for histogram in [
        "berth_worker_time_seconds_count{worker=\"worker0\",port=\"a\"}",
        "berth_ring_wait_seconds_count{lcore=\"cpu0\",port=\"a\"}",
        "berth_ring_time_seconds_count{lcore=\"cpu0\",port=\"a\"}",
        "berth_handler_time_seconds_count{lcore=\"cpu0\",port=\"a\"}",
    ] {
        assert!(sample(&text, histogram) > 0.5, "{histogram} in\n{text}");
    }
    berth.stop();
}

/// Every part that counts without special hardware, in one appliance.
fn everything() -> String {
    let parts = "[[region]]\nname = \"scratch-1\"\nkind = \"memory\"\nsize = \"1 MiB\"\n\
                 [node]\nstate_dir = \"state\"\n\
                 [control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nrelay = \"127.0.0.1:0\"\n";
    let layers = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]\n[port.fault]\ndrop = 0.0\n\
                  [port.pcap]\nfile = \"frames.pcap\"";
    let uring = port("b", "").replace("\"udp\"", "\"uring\"");
    let leases = port("c", "service = \"lease-io\"");
    let kernel = "[[ring_kernel]]\nmessage = \"VectorAddRequest\"\nkernel = \"builtin:vector_add\"\n";
    format!("{ADMIN}{parts}{}{uring}{leases}{INCREMENT}{kernel}", port("a", layers))
}

#[test]
fn every_metric_is_described_and_of_the_openmetrics_form() {
    let berth = Berth::start(&everything());
    let (_, text) = get(admin(&berth), "/metrics", "");
    for part in ["lcore", "lane", "port", "service", "worker", "control", "data", "admin"] {
        assert!(text.contains(&format!("# HELP berth_{part}_")), "{part}");
    }
    assert!(!text.contains("a counter without a description"), "declare it by `counters!`: {text}");
    assert!(!text.contains(" a latency\n"), "add it to HISTOGRAMS: {text}");
    let sizes = ["size", "free"]
        .map(|kind| sample(&text, &format!("berth_control_region_{kind}_bytes{{region=\"scratch-1\"}}")));
    assert_eq!(sizes.map(|bytes| bytes as u64), [1 << 20; 2]);
    // An independent and strict reader takes it whole, and a checker of names finds nothing.
    let check = "import re, sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse\n\
        families = list(parse(sys.stdin.read()))\n\
        for family in families:\n\
        \x20   assert re.fullmatch('berth_[a-z0-9_]+', family.name), family.name\n\
        \x20   assert len(family.documentation) > 10, family\n\
        \x20   assert not re.search('_(ns|us|ms|micros|millis|nanos|kb|count)$', family.name), family.name\n\
        \x20   seconds = re.search('(time|uptime|busy|elapsed|slept|wait|hiccup)$', family.name)\n\
        \x20   assert not seconds, family.name + ' lacks its unit'\n\
        \x20   series = [(s.name, tuple(sorted(s.labels.items()))) for s in family.samples]\n\
        \x20   assert len(series) == len(set(series)), family.name\n\
        print(len(families))";
    let mut python = Command::new("/usr/bin/python3");
    let mut python = python
        .args(["-c", check])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let out = python.wait_with_output().unwrap();
    assert!(out.status.success(), "{text}");
    assert!(String::from_utf8(out.stdout).unwrap().trim().parse::<u32>().unwrap() > 60);
    berth.stop();
}

#[test]
fn what_the_dashboard_asks_for_is_there() {
    let dashboard = include_str!("../../../config/grafana/berth.json");
    let json: Value = serde_json::from_str(dashboard).unwrap();
    let mut asked = Vec::new();
    for panel in json["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let words = target["expr"].as_str().unwrap().split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            asked.extend(words.filter(|word| word.starts_with("berth_")).map(str::to_owned));
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    let berth = Berth::start(&everything());
    let (_, text) = get(admin(&berth), "/metrics", "");
    for metric in asked {
        let there =
            text.lines().any(|line| line.strip_prefix(&metric).is_some_and(|rest| rest.starts_with(['{', ' '])));
        assert!(there, "no {metric} in\n{text}");
    }
    berth.stop();
}

#[test]
fn losses_are_told_by_reason_and_latencies_of_late_forget() {
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    client.call(RPC_INCREMENT, &[1]);
    client.send(&request(1, &[], 1, 0));
    client.receive();
    client.send(b"nonsense");
    let status = || serde_json::from_str::<Value>(&get(admin(&berth), "/status", "").1).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let lost = loop {
        let lost = status()["losses"].clone();
        if lost.as_array().unwrap().len() == 2 {
            break lost;
        }
        assert!(Instant::now() < deadline, "{lost}");
    };
    let of = |what: &str, reason: &str| serde_json::json!({ "place": "a", "what": what, "reason": reason, "count": 1 });
    assert_eq!(lost, serde_json::json!([of("dropped", "bad_magic"), of("refused", "unknown_function")]));
    // The window that holds the three frames may be this or the next; after it nothing came.
    let counted = || {
        thread::sleep(Duration::from_millis(950));
        let status = status();
        let recent =
            status["recent"].as_array().unwrap().iter().find(|one| one["stage"] == "service_time").unwrap().clone();
        assert!(status["window_s"].as_f64().unwrap() > 0.9, "{status}");
        recent["summary"]["count"].as_u64().unwrap()
    };
    let windows = [counted(), counted(), counted()];
    assert_eq!(windows[2], 0, "{windows:?}");
    berth.stop();
}

#[test]
fn wrong_requests_are_refused_and_counted() {
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", "")));
    let addr = admin(&berth);
    assert_eq!(get(addr, "/nothing", "").0, 404);
    assert_eq!(ask(addr, "POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").0, 405);
    assert_eq!(ask(addr, "nonsense\r\n\r\n").0, 400);
    assert_eq!(ask(addr, &format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000))).0, 431);
    // A page of another site, whose name leads here.
    for (host, code) in
        [("evil.example", 421), ("evil.example:80", 421), ("LOCALHOST:1", 200), ("[::1]:5780", 200), ("127.0.0.1", 200)]
    {
        assert_eq!(ask(addr, &format!("GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n")).0, code, "{host}");
    }
    assert_eq!(ask(addr, "GET /healthz HTTP/1.0\r\n\r\n").0, 200, "probes may name no host");
    let (_, text) = get(addr, "/metrics", "");
    for (reason, count) in [("not_found", 1.0), ("not_allowed", 1.0), ("failed", 2.0), ("foreign_host", 2.0)] {
        let counted = sample(&text, &format!("berth_admin_refused_total{{reason=\"{reason}\"}}"));
        assert!((counted - count).abs() < 0.5, "{reason}: {counted}");
    }
    berth.stop();
}

#[test]
fn slow_and_silent_peers_keep_nobody_waiting() {
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", "")));
    let addr = admin(&berth);
    // Half as many again as there are places: half say nothing, half send a header without an end.
    let mut slow: Vec<_> = (0..96).map(|_| TcpStream::connect(addr).unwrap()).collect();
    for round in 0..10 {
        for stream in slow.iter_mut().step_by(2) {
            // Those that made room are gone.
            let _ = stream.write_all(if round == 0 { b"GET /status HTTP/1.1\r\nX-A: b\r\n" } else { b"X-A: b\r\n" });
        }
        let start = Instant::now();
        assert_eq!(get(addr, "/healthz", "").0, 200);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        thread::sleep(Duration::from_millis(50));
    }
    let evicted = sample(&get(addr, "/metrics", "").1, "berth_admin_refused_total{reason=\"evicted\"}");
    assert!(evicted >= 32.0, "{evicted}");
    // What is left is cut off by its time.
    thread::sleep(Duration::from_secs(6));
    let files = fs::read_dir(format!("/proc/{}/fd", berth.pid())).unwrap();
    let sockets = files.filter(|file| {
        fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    });
    assert!(sockets.count() < 10);
    drop(slow);
    berth.stop();
}
