//! `[hip]`: a worker with the software GPU, and the commands that use it.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
};

use crate::common::{ADMIN, Berth, admin, fails, get};

const CONFIG: &str = "[hip]\nlisten = \"127.0.0.1:0\"\n[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\nuse = \
                      \"hip\"\n[[hip.device]]\ngpu = \"gpu0\"\nmemory = \"64 MiB\"\n";

const VADD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dataplane/ptx/tests/kernels/vadd.ptx#vadd");

/// `[hip.tls]` with a certificate, which openssl makes in the folder: `hip.crt`, `hip.key`.
fn tls(folder: &Path) -> String {
    let (cert, key) = (folder.join("hip.crt"), folder.join("hip.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
    openssl.args(["-subj", "/CN=berth", "-keyout"]).arg(&key).arg("-out").arg(&cert);
    let made = openssl.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    format!("[hip.tls]\ncert = \"{}\"\nkey = \"{}\"\n", cert.display(), key.display())
}

fn hip(berth: &Berth, args: &[&str]) -> Output {
    let worker: SocketAddr = berth.ready["endpoints"]["hip"].as_str().unwrap().parse().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(["hip", args[0], "--worker", &worker.to_string(), "--json"]).args(&args[1..]);
    command.output().unwrap()
}

#[test]
fn a_worker_alone_is_a_whole_configuration_and_runs_a_kernel() {
    let berth = Berth::start(&format!("{CONFIG}{ADMIN}"));
    let info = hip(&berth, &["info"]);
    assert!(info.status.success(), "{}", String::from_utf8_lossy(&info.stderr));
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!((&info["arch"], &info["memory_total"]), (&"berth-ptx".into(), &(64 << 20).into()));
    let run = ["run", "--block", "4", "--verify", "--print", "2=f32", VADD, "f32:1,2,3,4", "f32:0.5*4", "zero:16", "4"];
    let run = hip(&berth, &run);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(run["buffers"]["2"], serde_json::json!([1.5, 2.5, 3.5, 4.5]));
    assert_eq!(run["verified"], true);
    let out = hip(&berth, &["run", "--block", "8", VADD, "f32:1", "f32:1", "zero:4", "8"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("hipErrorIllegalAddress"));
    let (_, metrics) = get(admin(&berth), "/metrics", "");
    assert!(metrics.contains("berth_hip_launches_total{} 2\n"), "{metrics}");
    assert!(metrics.contains("berth_hip_requests_total{class=\"launch\",outcome=\"done\"} 2\n"), "{metrics}");
    assert!(metrics.contains("berth_hip_device_time_seconds_count{"), "{metrics}");
    // A session that stays is seen.
    let worker: SocketAddr = berth.ready["endpoints"]["hip"].as_str().unwrap().parse().unwrap();
    let memory = berth_hip::Client::connect(worker).unwrap().device(0).unwrap().alloc(1000).unwrap();
    let print = |command: &[&str]| {
        let mut berth_command = Command::new(env!("CARGO_BIN_EXE_berth"));
        let out = berth_command.args(command).args(["--admin", &admin(&berth).to_string()]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let status = print(&["status"]);
    let words: Vec<Vec<_>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
    let has = |row: &[&str]| assert!(words.iter().any(|words| words == row), "no {row:?} in\n{status}");
    has(&["0", "1024", "67108864"]);
    has(&["launch", "0", "0", "2", "0", "216", "0"]);
    has(&["hip", "sessions:", "1", "seconds", "requests", "errors", "bytes", "used", "lease"]);
    let session = words.iter().find(|words| words.first() == Some(&"127.0.0.1")).unwrap();
    assert_eq!((session.len(), &session[2..]), (6, &["3", "0", "1024", "-"][..]), "{status}");
    let top = print(&["top", "--once"]);
    assert!(top.contains("HIP: 1 sessions, 1 KiB of 64 MiB"), "{top}");
    drop(memory);
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.counters["hip"]["connections"], 4);
}

#[test]
fn perf_measures_through_tls() {
    let folder = tempfile::tempdir().unwrap();
    let berth = Berth::start(&format!("{CONFIG}{}", tls(folder.path())));
    let worker = berth.ready["endpoints"]["hip"].as_str().unwrap();
    let (certificate, json) = (folder.path().join("hip.crt"), folder.path().join("report.json"));
    // More than TLS and the sockets hold, so that both sides are in the middle of records when they must wait.
    for op in ["ping", "memset", "h2d", "d2h"] {
        let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
        perf.args(["perf", "hip", "--no-progress", "--to", worker, "--op", op, "--window", "2", "--duration", "0.5"]);
        perf.args(if op.contains('2') { &["--size", "5000001"][..] } else { &[] });
        let out = perf.arg("--tls").arg(&certificate).arg("--json").arg(&json).output().unwrap();
        assert!(out.status.success(), "{op}: {}", String::from_utf8_lossy(&out.stderr));
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let case = &report["cases"][0];
        assert!(case["name"].as_str().unwrap().ends_with(", TLS"), "{case}");
        assert!(case["latency"]["n"].as_u64() > Some(2) && case["counts"]["wrong"] == 0, "{op}: {case}");
    }
}

#[test]
fn mistakes_are_told() {
    let with = |hip: &str| fails(&CONFIG.replace("[hip]\nlisten = \"127.0.0.1:0\"\n", &format!("[hip]\n{hip}\n")));
    for (line, said) in [("listen = \"0.0.0.0:0\"", "insecure = true"), ("lease = \"never\"", "hip.lease")] {
        let (code, text) = with(line);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    let (_, text) = fails(&CONFIG.replace("\"soft\"", "\"hip:0\""));
    assert!(text.contains("gpu[0].device") && text.contains("libamdhip64 are not built"), "{text}");
    let (_, text) = fails(&CONFIG.replace("gpu = \"gpu0\"", "gpu = \"gpu1\""));
    assert!(text.contains("there is no [[gpu]] \"gpu1\""), "{text}");
    let (_, text) = fails("[hip]\n");
    assert!(text.contains("device"), "{text}");
}

#[test]
fn connections_are_encrypted_and_listed_keys_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let keys = ["known", "unknown"].map(|name| {
        let key = berth_tls::key_file::generate().unwrap();
        berth_tls::key_file::create(&folder.path().join(name), &key).unwrap();
        key
    });
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    tls(&other);
    let tls = format!("{}clients = [\"{}\"]\n", tls(folder.path()), keys[0].public_key());
    let berth = Berth::start(&format!("{CONFIG}{tls}{ADMIN}"));
    let (certificate, other) = (at("hip.crt"), at("other/hip.crt"));
    let info = |key: &str, certificate: &str| hip(&berth, &["info", "--tls", certificate, "--key", &at(key)]);
    let known = info("known", &certificate);
    assert!(known.status.success(), "{}", String::from_utf8_lossy(&known.stderr));
    let run = ["run", "--tls", &certificate, "--key", &at("known"), "--block", "4", "--verify", VADD];
    let run = hip(&berth, &[&run[..], &["f32:1,2,3,4", "f32:0.5*4", "zero:16", "4"]].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for (why, out, said) in [
        ("a key that is not listed", info("unknown", &certificate), "alert"),
        ("a worker that has another certificate", info("known", &other), "certificate"),
        ("plain text", hip(&berth, &["info"]), "no worker answers"),
    ] {
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{why}: {text}");
        assert!(text.contains(said), "{why}: {text}");
    }
    let (_, metrics) = get(admin(&berth), "/metrics", "");
    assert!(metrics.contains("berth_hip_sessions_ended_total{reason=\"tls_key\"} 1\n"), "{metrics}");
    berth.stop();
}

#[test]
fn mistakes_with_certificates_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let right = tls(folder.path());
    let with = |tls: &str| fails(&CONFIG.replace("127.0.0.1:0\"\n", &format!("0.0.0.0:0\"\n{tls}")));
    let (key, crt) = (folder.path().join("hip.key"), folder.path().join("hip.crt"));
    let allow = |file: &Path, mode| {
        std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    allow(&crt, 0o600);
    for (wrong, said) in [
        (right.replace("hip.key", "none.key"), "there is no file"),
        (right.replace("hip.key", "hip.crt"), "no private key in PEM"),
        (right.replace("hip.crt", "hip.key"), "no certificate in PEM"),
        (right.clone() + "clients = [\"me\"]\n", "\"me\" is not a public key"),
        (right.replace("cert =", "#"), "hip.tls.cert"),
    ] {
        let (code, text) = with(&wrong);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    allow(&key, 0o644);
    let (_, text) = with(&right);
    assert!(text.contains("is open to everybody on this host"), "{text}");
    std::fs::write(&crt, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    allow(&key, 0o600);
    let (_, text) = with(&right);
    assert!(text.contains("no certificate and key of TLS"), "{text}");
}

/// Leases of devices.
mod leases {
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
        sync::Arc,
        time::{Duration, Instant},
    };

    use berth_client::{Alloc, Client as Node, Data, Grant, Kernel, Token, Via};
    use berth_identity::Identity;
    use berth_tls::key_file;
    use berth_wire::{
        fabric::{EndpointKind, GpuStatus, Perms, ResourceType},
        hip::{Header, Op, flags, request as q},
    };
    use zerocopy::IntoBytes as _;

    use super::*;

    const NOT_INITIALIZED: i32 = 3;
    const INVALID_CONTEXT: i32 = 201;
    const OUT_OF_MEMORY: i32 = 2;

    /// A connection, call by call.
    struct Client(TcpStream);

    impl Client {
        /// The answer behind its error code, or the code; `None` where the worker has closed.
        fn try_call(&mut self, op: Op, payload: &[u8]) -> Option<Result<Vec<u8>, i32>> {
            let flags = if op == Op::Memcpy { flags::HAS_INLINE_DATA } else { 0 };
            let header = Header::request(op, 1, payload.len() as u64, flags);
            self.0.write_all(&[header.as_bytes(), payload].concat()).ok()?;
            let mut header = [0; Header::LEN];
            self.0.read_exact(&mut header).ok()?;
            let mut body = vec![0; Header::parse(&header).unwrap().payload_length.get() as usize];
            self.0.read_exact(&mut body).ok()?;
            let code = i32::from_le_bytes(body[..4].try_into().unwrap());
            Some(if code == 0 { Ok(body.split_off(4)) } else { Err(code) })
        }

        fn call(&mut self, op: Op, payload: &[u8]) -> Result<Vec<u8>, i32> {
            self.try_call(op, payload).unwrap_or_else(|| panic!("{op:?}: closed"))
        }

        fn is_served(&mut self) -> bool {
            self.try_call(Op::GetDeviceCount, &[]).is_some()
        }

        fn count(&mut self) -> Result<Vec<u8>, i32> {
            self.call(Op::GetDeviceCount, &[])
        }

        fn malloc(&mut self, size: u64) -> Result<u64, i32> {
            let answer = self.call(Op::Malloc, q::Malloc { size: size.into(), flags: 0.into() }.as_bytes())?;
            Ok(u64::from_le_bytes(answer.try_into().unwrap()))
        }

        fn copy(&mut self, dst: u64, src: u64, size: usize, data: &[u8]) -> Result<Vec<u8>, i32> {
            let kind = if data.is_empty() { q::kind::DEVICE_TO_HOST } else { q::kind::HOST_TO_DEVICE };
            let size = (size as u64).into();
            let request = q::Memcpy { dst: dst.into(), src: src.into(), size, kind: kind.into(), stream: 0.into() };
            self.call(Op::Memcpy, &[request.as_bytes(), data].concat())
        }

        /// Starts a kernel that never ends; it is answered at once.
        fn launch_forever(&mut self) {
            let text =
                ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry forever()\n{\nAGAIN:\nbra AGAIN;\n}\n";
            let (data_size, name_length) = ((text.len() as u64).into(), 7.into());
            let load = q::ModuleLoadAndGet { data_size, name_length, ..q::ModuleLoadAndGet::zeroed() };
            let answer = self.call(Op::ModuleLoadAndGet, &[load.as_bytes(), b"forever", text.as_bytes()].concat());
            let function = u64::from_le_bytes(answer.unwrap()[8..16].try_into().unwrap());
            let one = [1.into(); 3];
            let launch = q::Launch { function: function.into(), grid: one, block: one, ..q::Launch::zeroed() };
            self.call(Op::LaunchKernel, launch.as_bytes()).unwrap();
        }

        fn bind_with(&mut self, lease: u128, token: &[u8], sign: impl FnOnce(&[u8]) -> [u8; 64]) -> Result<(), i32> {
            let nonce = self.call(Op::BerthChallenge, &[])?;
            let lease_id = lease.to_be_bytes();
            let signature = sign(&[b"berth-hip-bind", &nonce[..], &lease_id].concat());
            let token_length = (token.len() as u32).into();
            let mut request = q::Bind::zeroed();
            (request.lease_id, request.signature, request.token_length) = (lease_id, signature, token_length);
            self.call(Op::BerthBind, &[request.as_bytes(), token].concat()).map(drop)
        }

        fn bind(&mut self, grant: &Grant, token: &Token, by: &Identity) -> Result<(), i32> {
            self.bind_with(grant.lease_id, token.as_bytes(), |bytes| by.sign(bytes))
        }
    }

    struct Site {
        berth: Berth,
        holder: Arc<Identity>,
        other: Arc<Identity>,
        state: tempfile::TempDir,
    }

    fn site(lease: &str) -> Site {
        site_with(lease, |_| String::new())
    }

    /// With more of the configuration, which may have files in the folder.
    fn site_with(lease: &str, more: impl FnOnce(&Path) -> String) -> Site {
        let [holder, other] = [0, 1].map(|_| Arc::new(key_file::generate().unwrap()));
        let state = tempfile::tempdir().unwrap();
        let keys = [&holder, &other].map(|key| format!("\"{}\"", key.public_key())).join(", ");
        let config = CONFIG.replace("[hip]\n", &format!("[hip]\nlease = \"{lease}\"\n"));
        let more = more(state.path());
        let berth = Berth::start(&format!(
            "{config}{more}{ADMIN}[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
             enrolled = [{keys}]\n[[control.policy]]\npresenter = \"*\"\n\
             perms = [\"read\", \"write\", \"alloc\", \"exec\", \"revoke\"]\n",
            state.path().join("state").display()
        ));
        Site { berth, holder, other, state }
    }

    impl Site {
        fn at(&self, name: &str) -> SocketAddr {
            self.berth.ready["endpoints"][name].as_str().unwrap().parse().unwrap()
        }

        async fn node(&self, identity: &Arc<Identity>) -> Node {
            Node::quic(identity.clone(), self.at("quic"), None).await.unwrap()
        }

        fn connect(&self) -> Client {
            let stream = TcpStream::connect(self.at("hip")).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            Client(stream)
        }

        /// Device memory that sessions use.
        fn used(&self) -> u64 {
            let (_, metrics) = get(admin(&self.berth), "/metrics", "");
            let line = metrics.lines().find_map(|line| line.strip_prefix("berth_hip_device_used_bytes{device=\"0\"} "));
            line.unwrap_or_else(|| panic!("{metrics}")).parse::<f64>().unwrap() as u64
        }
    }

    async fn token(node: &Node, perms: &[Perms]) -> Token {
        let perms = perms.iter().fold(Perms::NONE, |all, one| all | *one);
        node.cap_request(perms, 300, 0, None).await.unwrap()
    }

    const MIB: u64 = 1 << 20;
    const ALL: [Perms; 4] = [Perms::READ, Perms::WRITE, Perms::ALLOC, Perms::EXEC];

    async fn lease(node: &Node, token: &Token, secs: u32) -> Grant {
        node.lease_alloc(token, &Alloc::gpu(MIB, secs)).await.unwrap()
    }

    #[tokio::test]
    async fn nothing_is_served_without_a_lease_and_all_of_it_with_one() {
        let site = site("required");
        let node = site.node(&site.holder).await;
        let token = token(&node, &ALL).await;
        let devices = node.inventory().await.unwrap();
        let device = devices.iter().find(|one| one.resource_type == ResourceType::Gpu.code()).unwrap();
        assert_eq!((device.capacity, device.available), (64 * MIB, 64 * MIB));
        let grant = lease(&node, &token, 300).await;
        assert_eq!(grant.endpoints, [(EndpointKind::HipTcp, site.at("hip"))]);
        let mut client = site.connect();
        assert_eq!(client.count(), Err(NOT_INITIALIZED));
        assert_eq!(client.malloc(1), Err(NOT_INITIALIZED));
        assert_eq!(client.call(Op::Ping, &[]), Ok(vec![]));
        client.bind(&grant, &token, &site.holder).unwrap();
        assert_eq!(client.count(), Ok(vec![1, 0, 0, 0]));
        let free = client.call(Op::MemGetInfo, &[]).unwrap();
        assert_eq!(free, [MIB, MIB].map(u64::to_le_bytes).concat(), "the lease's bytes are the session's");
        let at = client.malloc(MIB).unwrap();
        client.copy(at, 0, 100, &[7; 100]).unwrap();
        assert_eq!(client.malloc(1), Err(OUT_OF_MEMORY));
        assert_eq!(client.bind(&grant, &token, &site.holder), Err(INVALID_CONTEXT), "it has one");
        // Kernels of the node's own do not run there, and the bytes of the lease are reached by no other way.
        let kernel = Kernel {
            resource: device.resource_id,
            binary: b".version 6.3".to_vec(),
            name: "x".into(),
            grid: [1; 3],
            block: [1; 3],
            args: Vec::new(),
            output: (0, 0),
        };
        assert_eq!(node.gpu_submit(&token, &kernel).await.unwrap().status, GpuStatus::Unsupported);
        if let Ok(mut data) = Data::open(&site.holder, &grant, Via::Quic, None).await {
            assert!(data.read(0, 16).await.is_err());
        }
        // Whoever binds last has it, and finds nothing of the one before.
        let mut second = site.connect();
        second.bind(&grant, &token, &site.holder).unwrap();
        assert!(!client.is_served());
        let at = second.malloc(MIB).unwrap();
        assert_eq!(second.copy(0, at, 100, &[]).unwrap(), [0; 100]);
        drop(second);
        site.berth.stop();
    }

    #[tokio::test]
    async fn what_proves_nothing_is_refused() {
        let site = site("required");
        let (node, stranger) = (site.node(&site.holder).await, site.node(&site.other).await);
        let all = token(&node, &ALL).await;
        let grant = lease(&node, &all, 300).await;
        let of_stranger = lease(&stranger, &token(&stranger, &ALL).await, 300).await;
        let no_exec = token(&node, &[Perms::READ, Perms::ALLOC]).await;
        let theirs = token(&stranger, &ALL).await;
        let unknown = Grant { lease_id: grant.lease_id ^ 1, ..grant.clone() };
        let holder = &*site.holder;
        for (why, grant, token, by) in [
            ("another's signature", &grant, &all, &*site.other),
            ("another's lease", &of_stranger, &all, holder),
            ("another's token", &grant, &theirs, holder),
            ("another's token and signature", &grant, &theirs, &*site.other),
            ("a token without EXEC", &grant, &no_exec, holder),
            ("no lease", &unknown, &all, holder),
        ] {
            let mut client = site.connect();
            assert_eq!(client.bind(grant, token, by), Err(INVALID_CONTEXT), "{why}");
            assert_eq!(client.malloc(1), Err(NOT_INITIALIZED), "{why}");
        }
        let mut client = site.connect();
        let garbage = |client: &mut Client, token: &[u8]| client.bind_with(grant.lease_id, token, |_| [0; 64]);
        assert_eq!(garbage(&mut client, &[]), Err(INVALID_CONTEXT));
        assert_eq!(garbage(&mut client, &vec![0xFF; 20_000]), Err(INVALID_CONTEXT));
        // A signature of another connection, over its nonce.
        let (mut first, mut seen) = (site.connect(), [0; 64]);
        let bound = first.bind_with(grant.lease_id, all.as_bytes(), |bytes| {
            seen = holder.sign(bytes);
            seen
        });
        assert_eq!(bound, Ok(()));
        assert_eq!(client.bind_with(grant.lease_id, all.as_bytes(), |_| seen), Err(INVALID_CONTEXT));
        assert!(!client.is_served(), "the third refusal closes");
        // The length of the token lies.
        let mut request = q::Bind::zeroed();
        request.token_length = 100.into();
        assert_eq!(site.connect().call(Op::BerthBind, request.as_bytes()), Err(1));
        assert_eq!(first.count(), Ok(vec![1, 0, 0, 0]), "nobody disturbed the holder");
        site.berth.stop();
    }

    #[tokio::test]
    async fn a_session_ends_with_its_lease_whatever_it_runs() {
        let site = site("required");
        let node = site.node(&site.holder).await;
        let revoke = token(&node, &[Perms::REVOKE]).await;
        for end in ["revoke", "free", "expire"] {
            let token = token(&node, &ALL).await;
            let grant = lease(&node, &token, if end == "expire" { 2 } else { 300 }).await;
            let mut client = site.connect();
            client.bind(&grant, &token, &site.holder).unwrap();
            let (_, status) = get(admin(&site.berth), "/status", "");
            assert!(status.contains(&format!("\"lease\":\"{:032x}\"", grant.lease_id)), "{status}");
            let at = client.malloc(4096).unwrap();
            client.copy(at, 0, 4096, &[0xEE; 4096]).unwrap();
            client.launch_forever();
            assert_eq!(site.used(), MIB, "{end}");
            let began = Instant::now();
            match end {
                "revoke" => drop(node.cap_revoke(&revoke, token.fields().token_id, 300).await.unwrap()),
                "free" => node.lease_free(grant.lease_id).await.unwrap(),
                _ => {
                    while client.is_served() || site.used() > 0 {
                        assert!(began.elapsed() < Duration::from_secs(20), "an expired lease is served");
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    continue;
                }
            }
            // Once that was answered, nothing is served, and nothing is left.
            assert!(!client.is_served(), "{end}");
            assert_eq!(site.used(), 0, "{end}");
            assert!(began.elapsed() < Duration::from_secs(9), "{end}: the kernel was not waited for");
            assert_eq!(site.connect().bind(&grant, &token, &site.holder), Err(INVALID_CONTEXT), "{end}");
        }
        site.berth.stop();
    }

    #[tokio::test]
    async fn with_optional_leases_others_use_what_no_session_has_leased() {
        let site = site("optional");
        let node = site.node(&site.holder).await;
        let token = token(&node, &ALL).await;
        let grant = lease(&node, &token, 300).await;
        let (mut anybody, mut client) = (site.connect(), site.connect());
        let at = anybody.malloc(64 * MIB - MIB / 2).unwrap();
        assert_eq!(client.count(), Ok(vec![1, 0, 0, 0]));
        assert_eq!(client.bind(&grant, &token, &site.holder), Err(OUT_OF_MEMORY), "others have it");
        anybody.call(Op::Free, q::Handle { handle: at.into() }.as_bytes()).unwrap();
        client.bind(&grant, &token, &site.holder).unwrap();
        assert_eq!(anybody.malloc(64 * MIB), Err(OUT_OF_MEMORY));
        anybody.malloc(63 * MIB).unwrap();
        client.malloc(MIB).unwrap();
        node.lease_free(grant.lease_id).await.unwrap();
        assert!(!client.is_served());
        anybody.malloc(MIB).unwrap();
        site.berth.stop();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_command_uses_a_lease_whether_under_tls_or_not() {
        for is_secret in [false, true] {
            let site = site_with("required", |folder| if is_secret { tls(folder) } else { String::new() });
            let node = site.node(&site.holder).await;
            let token = token(&node, &ALL).await;
            let grant = lease(&node, &token, 300).await;
            let folder = site.state.path();
            let at = |name: &str| folder.join(name).display().to_string();
            for (name, key) in [("holder", &site.holder), ("other", &site.other)] {
                key_file::create(&folder.join(name), key).unwrap();
            }
            let (id, quic, certificate) = (format!("{:x}", grant.lease_id), site.at("quic").to_string(), at("hip.crt"));
            let run = |command: &[&str], key: &str| {
                let secret = if is_secret { &["--tls", &certificate][..] } else { &[] };
                hip(
                    &site.berth,
                    &[&command[..1], &["--node", &quic, "--key", &at(key)], secret, &command[1..]].concat(),
                )
            };
            let info = run(&["info", "--lease", &id], "holder");
            assert!(info.status.success(), "{}", String::from_utf8_lossy(&info.stderr));
            let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
            assert_eq!((&info["device"], &info["memory_total"]), (&0.into(), &MIB.into()));
            let file = at("token");
            let digits: Vec<_> = token.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            std::fs::write(&file, digits.concat()).unwrap();
            let vadd = ["run", "--lease", &id, "--token", &file, "--block", "4", "--verify", VADD];
            let vadd = run(&[&vadd[..], &["f32:1,2,3,4", "f32:0.5*4", "zero:16", "4"]].concat(), "holder");
            assert!(vadd.status.success(), "{}", String::from_utf8_lossy(&vadd.stderr));
            for (why, out, said) in [
                ("no lease", run(&["info"], "holder"), "without a lease: INIT: hipErrorNotInitialized"),
                ("another's", run(&["info", "--lease", &id, "--token", &file], "other"), "hipErrorInvalidContext"),
            ] {
                let text = String::from_utf8_lossy(&out.stderr);
                assert_eq!(out.status.code(), Some(1), "{why}: {text}");
                assert!(text.contains(said), "{why}: {text}");
            }
            site.berth.stop();
        }
    }

    #[test]
    fn leases_need_a_node_that_grants_them() {
        let (code, text) = fails(&CONFIG.replace("[hip]\n", "[hip]\nlease = \"required\"\n"));
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("hip.lease") && text.contains("needs [control]"), "{text}");
    }
}
