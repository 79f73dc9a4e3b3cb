//! Leases of the devices of `[hip]`: software GPUs, and NVIDIA's by their driver in software.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
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

use crate::{
    common::{ADMIN, Berth, admin, fails, get},
    hip::{CONFIG, VADD, hip, tls},
};

/// What the device is.
const DEVICES: [&str; 2] = ["soft", "auto"];

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

fn site(device: &str, lease: &str) -> Site {
    site_with(device, lease, |_| String::new())
}

/// With more of the configuration, which may have files in the folder.
fn site_with(device: &str, lease: &str, more: impl FnOnce(&Path) -> String) -> Site {
    let [holder, other] = [0, 1].map(|_| Arc::new(key_file::generate().unwrap()));
    let state = tempfile::tempdir().unwrap();
    let keys = [&holder, &other].map(|key| format!("\"{}\"", key.public_key())).join(", ");
    let config = CONFIG.replace("[hip]\n", &format!("[hip]\nlease = \"{lease}\"\n")).replace("soft", device);
    let more = more(state.path());
    let driver = berth_cuda_soft::folder().unwrap();
    let config = format!(
        "{config}{more}{ADMIN}[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
         enrolled = [{keys}]\n[[control.policy]]\npresenter = \"*\"\n\
         perms = [\"read\", \"write\", \"alloc\", \"exec\", \"revoke\"]\n",
        state.path().join("state").display()
    );
    let berth = Berth::start_as(&config, |command| {
        command.env("LD_LIBRARY_PATH", driver).env("CUDA_SOFT_TELLS", "1");
    });
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
    for device in DEVICES {
        let site = site(device, "required");
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
}

#[tokio::test]
async fn what_proves_nothing_is_refused() {
    for device in DEVICES {
        let site = site(device, "required");
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
}

#[tokio::test]
async fn a_session_ends_with_its_lease_whatever_it_runs() {
    for device in DEVICES {
        let site = site(device, "required");
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
}

#[tokio::test]
async fn with_optional_leases_others_use_what_no_session_has_leased() {
    for device in DEVICES {
        let site = site(device, "optional");
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
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_uses_a_lease_whether_under_tls_or_not() {
    for (device, is_secret) in [("soft", false), ("soft", true), ("auto", false)] {
        let site = site_with(device, "required", |folder| if is_secret { tls(folder) } else { String::new() });
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
            hip(&site.berth, &[&command[..1], &["--node", &quic, "--key", &at(key)], secret, &command[1..]].concat())
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

#[tokio::test]
async fn a_session_of_several_devices_keeps_the_leased_one_whose_memory_is_zeroed_before_it_ends() {
    let second = "[[gpu]]\nname = \"gpu1\"\ndevice = \"soft\"\nuse = \"hip\"\n[[hip.device]]\ngpu = \"gpu1\"\n";
    let site = site_with("auto", "optional", |_| second.to_owned());
    let node = site.node(&site.holder).await;
    let token = token(&node, &ALL).await;
    let mut client = site.connect();
    assert_eq!(client.count(), Ok(vec![2, 0, 0, 0]));
    let devices = node.inventory().await.unwrap();
    let device = devices.iter().find(|one| one.capacity == 64 * MIB).unwrap();
    let mut request = Alloc::gpu(MIB, 300);
    request.resource = device.resource_id;
    let grant = node.lease_alloc(&token, &request).await.unwrap();
    let (before, elsewhere) = (client.malloc(5000).unwrap(), {
        client.call(Op::SetDevice, q::Device { device_id: 1.into() }.as_bytes()).unwrap();
        client.malloc(6000).unwrap()
    });
    client.copy(elsewhere, 0, 100, &[3; 100]).unwrap();
    client.bind(&grant, &token, &site.holder).unwrap();
    assert_eq!(client.count(), Ok(vec![1, 0, 0, 0]));
    for at in [before, elsewhere] {
        assert_eq!(client.copy(0, at, 10, &[]), Err(17), "what it had is freed");
    }
    let reset = client.malloc(60_000).unwrap();
    client.call(Op::DeviceReset, &[]).unwrap();
    let at = client.malloc(700_000).unwrap();
    client.copy(at, 0, 100, &[0xEE; 100]).unwrap();
    let freed = client.malloc(70_000).unwrap();
    client.call(Op::Free, q::Handle { handle: freed.into() }.as_bytes()).unwrap();
    client.malloc(1).unwrap();
    node.lease_free(grant.lease_id).await.unwrap();
    assert!(!client.is_served());
    let told = site.berth.stop().stderr;
    for (at, bytes) in [(reset, 60_000), (at, 700_000), (freed, 70_000)] {
        let line = format!("{bytes} bytes from {at:#x} set to 0\n");
        assert_eq!(told.matches(&line).count(), 2, "at first and in the end: {told}");
    }
}

#[test]
fn leases_need_a_node_that_grants_them() {
    let (code, text) = fails(&CONFIG.replace("[hip]\n", "[hip]\nlease = \"required\"\n"));
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("hip.lease") && text.contains("needs [control]"), "{text}");
}
