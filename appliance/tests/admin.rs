//! The admin address of `berth run`, as monitoring and people use it.

mod common;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::{Duration, Instant},
};

use common::{Berth, INCREMENT, RPC_INCREMENT, c_plugin, fails, port, request};
use serde_json::Value;

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

fn admin(berth: &Berth) -> SocketAddr {
    berth.ready["endpoints"]["admin"].as_str().unwrap().parse().unwrap()
}

/// The status code and the body of an answer.
fn get(addr: SocketAddr, path: &str, header: &str) -> (u16, String) {
    ask(addr, &format!("GET {path} HTTP/1.1\r\nHost: berth\r\n{header}\r\n"))
}

fn ask(addr: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_string())
}

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
fn wrong_requests_and_slow_peers_keep_nobody_else_waiting() {
    let berth = Berth::start(&format!("{ADMIN}{}{INCREMENT}", port("a", "")));
    let addr = admin(&berth);
    assert_eq!(get(addr, "/nothing", "").0, 404);
    assert_eq!(ask(addr, "POST /status HTTP/1.1\r\nHost: berth\r\nContent-Length: 0\r\n\r\n").0, 405);
    assert_eq!(ask(addr, "nonsense\r\n\r\n").0, 400);
    assert_eq!(ask(addr, &format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(20_000))).0, 431);
    // All places but for none are taken by peers that say nothing; they are cut off.
    let slow: Vec<_> = (0..40).map(|_| TcpStream::connect(addr).unwrap()).collect();
    let start = Instant::now();
    assert_eq!(get(addr, "/healthz", "").0, 200);
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    drop(slow);
    berth.stop();
}
