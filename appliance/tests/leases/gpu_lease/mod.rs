//! GPU leases on the GPU in software, and on one of NVIDIA's by a driver in software, in memory of the host and in its own:
//! memory, kernels, and what becomes of both when something ends.

mod ends;
mod vram;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Data, Error, Grant, Kernel, KernelRan, Token, Via};
use berth_identity::Identity;
use berth_tls::key_file;
use berth_wire::fabric::{GpuStatus, GpuSubmit, Op, Perms, ResourceType, Status, Wire as _};
use tempfile::TempDir;

use crate::common::Berth;

const LIMIT: Duration = Duration::from_millis(600);

/// Kernels that do what they should, and others that do not.
const PTX: &str = r"
.version 6.3
.target sm_70
.address_size 64
.visible .global .align 4 .u32 before;
.visible .entry add(.param .u64 p, .param .u32 by)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [by];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.s32 %r2, %r3, %r4, %r2;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2;
    ld.global.u32 %r5, [%rd1];
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%rd1], %r5;
    ret;
}
.visible .entry store(.param .u64 p, .param .u32 value)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    ld.param.u32 %r1, [value];
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry count(.param .u64 p)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    mov.u64 %rd2, before;
    ld.global.u32 %r1, [%rd2];
    add.u32 %r1, %r1, 1;
    st.global.u32 [%rd2], %r1;
    st.global.u32 [%rd1], %r1;
    ret;
}
.visible .entry forever(.param .u64 p)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, 1;
AGAIN:
    st.volatile.global.u32 [%rd1], %r1;
    bra AGAIN;
}
.visible .entry traps()
{
    trap;
}
.visible .entry waits()
{
    bar.sync 0, 64;
    ret;
}
";

/// A node's folder, and the keys that it knows.
struct Site {
    /// As the configuration names it.
    device: &'static str,
    /// Where leases lie, and of how many bytes.
    memory: &'static str,
    size: &'static str,
    folder: TempDir,
    holder: Arc<Identity>,
    other: Arc<Identity>,
}

impl Site {
    fn new(device: &'static str, memory: &'static str, size: &'static str) -> Self {
        let key = || Arc::new(key_file::generate().unwrap());
        Self { device, memory, size, folder: tempfile::tempdir().unwrap(), holder: key(), other: key() }
    }

    fn soft() -> Self {
        Self::new("soft", "auto", "1 MiB")
    }

    /// With chunks of 2 MiB in the GPU's own memory.
    fn vram() -> Self {
        Self::new("auto", "vram", "32 MiB")
    }

    /// One with each device and kind of memory.
    fn all() -> [Self; 3] {
        [Self::soft(), Self::new("auto", "pinned", "1 MiB"), Self::vram()]
    }

    fn text(&self) -> String {
        let enrolled = [&self.holder, &self.other].map(|key| format!("\"{}\"", key.public_key()));
        format!(
            "[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [{}]\n\
             [[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \"exec\", \"revoke\"]\n\
             [[gpu]]\nname = \"gpu1\"\ndevice = \"{}\"\nuse = \"lease\"\ntime_limit_ms = {}\n\
             [[region]]\nname = \"vram0\"\nkind = \"vram\"\ngpu = \"gpu1\"\nmemory = \"{}\"\nsize = \"{}\"\n\
             [dataplane]\nfbmt = \"127.0.0.1:0\"\nfbmu = \"127.0.0.1:0\"\n\
             [[port]]\nname = \"io\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\nservice = \
             \"lease-io\"\n",
            self.folder.path().join("state").display(),
            enrolled.join(", "),
            self.device,
            LIMIT.as_millis(),
            self.memory,
            self.size,
        )
    }

    fn start(&self) -> Berth {
        Self::start_with(&self.text())
    }

    fn start_with(text: &str) -> Berth {
        Berth::start_as(text, |command| {
            command.env("LD_LIBRARY_PATH", berth_cuda_soft::folder().unwrap());
        })
    }
}

fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

async fn quic(berth: &Berth, identity: &Arc<Identity>) -> Client {
    Client::quic(identity.clone(), endpoint(berth, "quic"), None).await.unwrap()
}

const PERMS: [Perms; 4] = [Perms::READ, Perms::WRITE, Perms::ALLOC, Perms::EXEC];

async fn token(client: &Client) -> Token {
    let perms = PERMS.into_iter().fold(Perms::NONE, |all, one| all | one);
    client.cap_request(perms, 300, 0, None).await.unwrap()
}

/// A presenter with a lease of 64 KiB.
struct Tenant {
    client: Client,
    token: Token,
    lease: Grant,
    resource: u128,
}

impl Tenant {
    async fn new(berth: &Berth, identity: &Arc<Identity>) -> Self {
        let client = quic(berth, identity).await;
        let token = token(&client).await;
        let lease = client.lease_alloc(&token, &Alloc::gpu(64 << 10, 60)).await.unwrap();
        let resources = client.inventory().await.unwrap();
        let gpu = resources.iter().find(|of| of.resource_type == ResourceType::Gpu.code() && of.available > 0).unwrap();
        Self { client, token, lease, resource: gpu.resource_id }
    }

    fn kernel(&self, name: &str, args: &[&[u8]]) -> Kernel {
        Kernel {
            resource: self.resource,
            binary: PTX.into(),
            name: name.into(),
            grid: [1; 3],
            block: [1; 3],
            args: args.iter().map(|arg| arg.to_vec()).collect(),
            output: (0, 0),
        }
    }

    fn at(&self, offset: u64) -> [u8; 8] {
        (self.lease.vram().unwrap() + offset).to_le_bytes()
    }

    async fn submit(&self, kernel: &Kernel) -> KernelRan {
        self.client.gpu_submit(&self.token, kernel).await.unwrap()
    }

    /// Runs a kernel that stores a number, and returns what is there then.
    async fn store(&self, value: u32) -> Vec<u8> {
        let kernel = Kernel { output: (256, 4), ..self.kernel("store", &[&self.at(256), &value.to_le_bytes()]) };
        let ran = self.submit(&kernel).await;
        assert_eq!((ran.status, ran.exit_code), (GpuStatus::Ok, 0));
        ran.output
    }

    async fn data(&self, identity: &Arc<Identity>, via: Via) -> Data {
        Data::open(identity, &self.lease, via, None).await.unwrap()
    }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    match result {
        Err(Error::Refused { status, .. }) => status,
        other => panic!("not refused: {other:?}"),
    }
}

/// The processes that `berth` has for leases.
fn workers(berth: &Berth) -> BTreeSet<u32> {
    children(berth, b"\0lease\0")
}

/// The processes of `berth` whose command line ends so.
fn children(berth: &Berth, word: &[u8]) -> BTreeSet<u32> {
    let children = fs::read_dir(format!("/proc/{}/task", berth.pid())).unwrap().flatten();
    let children = children.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let ids: Vec<u32> =
        children.flat_map(|ids| ids.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect();
    let is_worker = |id: &u32| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.ends_with(word));
    ids.into_iter().filter(is_worker).collect()
}

/// Whether a process has a filter of system calls, and no capability.
fn is_shut_in(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"]
        .iter()
        .all(|line| status.lines().any(|is| is == *line))
}

fn signal(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

fn counters(berth: Berth) -> [u64; 3] {
    let stopped = berth.stop();
    assert!(stopped.status.success(), "{}", stopped.stderr);
    let counters = &stopped.counters["gpus"][0]["counters"];
    ["gpu_restarts", "gpu_faults", "gpu_timeouts"].map(|name| counters[name].as_u64().unwrap())
}

#[tokio::test]
async fn kernels_and_carriers_see_the_same_bytes() {
    for site in Site::all() {
        let berth = site.start();
        let gpu = &berth.ready["gpus"][0];
        let told = [&gpu["name"], &gpu["device"], &gpu["kind"], &gpu["memory"]].map(|word| word.as_str().unwrap());
        match site.device {
            "soft" => assert_eq!(told, ["gpu1", "soft", "soft", "vram"]),
            _ => assert_eq!(told, ["gpu1", "0000:3b:00.0", "cuda", site.memory]),
        }
        assert!(gpu["worker_pid"].is_null());
        let tenant = Tenant::new(&berth, &site.holder).await;
        assert!(workers(&berth).is_empty(), "none before the first kernel");
        let mut expected: Vec<u32> = vec![0; 256];
        for (round, via) in [Via::Quic, Via::Tcp, Via::Shim, Via::TwoSided].into_iter().enumerate() {
            let mut data = tenant.data(&site.holder, via).await;
            let bytes = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
            assert_eq!(data.read(4096, 1024).await.unwrap(), bytes(&expected), "{via:?}");
            expected = (0..256).map(|at| at * 7 + round as u32).collect();
            data.write(4096, &bytes(&expected)).await.unwrap();
            let by = 1000 + round as u32;
            let kernel = tenant.kernel("add", &[&tenant.at(4096), &by.to_le_bytes()]);
            let kernel = Kernel { grid: [4, 1, 1], block: [64, 1, 1], output: (4096 + 8, 1016), ..kernel };
            let ran = tenant.submit(&kernel).await;
            for value in &mut expected {
                *value += by;
            }
            assert_eq!((ran.status, ran.exit_code, ran.output), (GpuStatus::Ok, 0, bytes(&expected[2..])), "{via:?}");
        }
        let worker = workers(&berth).pop_first().unwrap();
        assert!(workers(&berth).len() == 1 && is_shut_in(worker));
        // Numbers rise, over either carrier; a module's variables are new for each kernel, known as it is.
        let udp = Client::udp(site.holder.clone(), endpoint(&berth, "control-udp"), None).await.unwrap();
        let kernel = Kernel { output: (0, 4), ..tenant.kernel("count", &[&tenant.at(0)]) };
        let first = tenant.submit(&kernel).await;
        let second = udp.gpu_submit(&tenant.token, &kernel).await.unwrap();
        assert_eq!((first.output, second.output), (vec![1, 0, 0, 0], vec![1, 0, 0, 0]));
        assert!(second.submit_id > first.submit_id && first.submit_id > 0);
        assert_eq!(counters(berth), [0; 3]);
    }
}

/// What a request has wrong, and what it is answered.
type Case = (&'static str, fn(&mut Kernel), GpuStatus, i32);

#[tokio::test]
async fn what_is_wrong_is_answered_and_the_next_kernel_runs() {
    for site in Site::all() {
        let berth = site.start();
        let tenant = Tenant::new(&berth, &site.holder).await;
        let cases: [Case; 18] = [
            ("no PTX", |k| k.binary = b"hello".into(), GpuStatus::LoadFailed, 218),
            ("no text", |k| k.binary = vec![0xFF; 100], GpuStatus::LoadFailed, 218),
            ("a newer version", |k| k.binary = PTX.replace("6.3", "99.0").into(), GpuStatus::LoadFailed, 218),
            ("no such kernel", |k| k.name = "nothing".into(), GpuStatus::LoadFailed, 500),
            ("a cubin", |k| k.binary = b"\x7fELF\x02\x01".into(), GpuStatus::Unsupported, 0),
            ("nothing", |k| k.binary.clear(), GpuStatus::Invalid, 1),
            ("no name", |k| k.name.clear(), GpuStatus::Invalid, 1),
            ("an argument too few", |k| drop(k.args.pop()), GpuStatus::Invalid, 1),
            ("a longer argument", |k| k.args[1].push(0), GpuStatus::Invalid, 1),
            ("no blocks", |k| k.grid = [0, 1, 1], GpuStatus::Invalid, 1),
            ("too many threads", |k| k.block = [32, 32, 2], GpuStatus::Invalid, 1),
            ("too high a block", |k| k.grid = [1, 65536, 1], GpuStatus::Invalid, 1),
            ("an output beyond the lease", |k| k.output = (65535, 2), GpuStatus::ReadFailed, 0),
            ("an output beyond everything", |k| k.output = (u64::MAX, 2), GpuStatus::ReadFailed, 0),
            (
                "a stray",
                |k| k.args[0] = (0x3800_u64 << 32).wrapping_sub(4).to_le_bytes().into(),
                GpuStatus::LaunchFailed,
                700,
            ),
            ("misaligned", |k| k.args[0][0] += 2, GpuStatus::LaunchFailed, 716),
            ("a trap", |k| (k.name, k.args) = ("traps".into(), vec![]), GpuStatus::LaunchFailed, 719),
            ("a barrier", |k| (k.name, k.args) = ("waits".into(), vec![]), GpuStatus::LaunchFailed, 719),
        ];
        for (index, (what, change, status, exit_code)) in cases.into_iter().enumerate() {
            let mut kernel = tenant.kernel("store", &[&tenant.at(0), &7_u32.to_le_bytes()]);
            change(&mut kernel);
            let ran = tenant.submit(&kernel).await;
            assert_eq!((ran.status, ran.exit_code), (status, exit_code), "{what}");
            assert_eq!(ran.output.is_empty(), status != GpuStatus::LoadFailed, "{what}");
            assert_eq!(tenant.store(index as u32).await, (index as u32).to_le_bytes(), "after {what}");
        }
        let broken = PTX.replace("bar.sync 0, 64", "wmma.load 0, 64");
        let ran = tenant.submit(&Kernel { binary: broken.into(), ..tenant.kernel("add", &[]) }).await;
        let log = String::from_utf8(ran.output).unwrap();
        assert!(log.starts_with("line 60: ") && log.contains("wmma.load"), "{log}");

        // A lease's end is another's start: neither may reach it.
        let other = Tenant::new(&berth, &site.other).await;
        let theirs = tenant.kernel("store", &[&other.at(0), &7_u32.to_le_bytes()]);
        assert_eq!(tenant.submit(&theirs).await.exit_code, 700);
        // Whose lease, with which token.
        let unknown = Kernel { resource: 7, ..theirs.clone() };
        assert_eq!(refused(tenant.client.gpu_submit(&tenant.token, &unknown).await), Status::ResourceNotFound);
        let weak = tenant.client.cap_request(Perms::READ, 60, 0, None).await.unwrap();
        assert_eq!(refused(tenant.client.gpu_submit(&weak, &theirs).await), Status::InsufficientPerm);
        let second = tenant.client.lease_alloc(&tenant.token, &Alloc::gpu(4096, 60)).await.unwrap();
        assert_eq!(tenant.submit(&theirs).await.status, GpuStatus::Unauthorized, "which of the two?");
        let named = tenant.client.cap_request(Perms::EXEC, 60, second.lease_id, None).await.unwrap();
        let at = second.vram().unwrap().to_le_bytes();
        let in_second = tenant.kernel("store", &[&at, &9_u32.to_le_bytes()]);
        assert_eq!(tenant.client.gpu_submit(&named, &in_second).await.unwrap().status, GpuStatus::Ok);
        let foreign = refused(other.client.cap_request(Perms::EXEC, 60, second.lease_id, None).await);
        assert_eq!(foreign, Status::ResourceNotFound);
        let nobody = quic(&berth, &site.other).await;
        nobody.lease_free(other.lease.lease_id).await.unwrap();
        assert_eq!(nobody.gpu_submit(&other.token, &theirs).await.unwrap().status, GpuStatus::Unauthorized);
        // Sizes that do not add up, and bytes that are no request.
        let mut params = wire(&theirs);
        let sizes = params.len() - 12 - 8;
        params[sizes + 3] += 1;
        assert!(!GpuSubmit::parse(&params).unwrap().adds_up());
        let answer = tenant.client.call(Op::GpuSubmit, 0, Some(&named), &params).await.unwrap();
        assert_eq!(answer, [&[1][..], &[0; 11], &[1], &[0; 4]].concat(), "INVALID, code 1, and nothing else");
        for cut in [0, 16, 40, params.len() - 1] {
            let bad = tenant.client.call(Op::GpuSubmit, 0, Some(&named), &params[..cut]).await;
            assert_eq!(refused(bad), Status::InvalidParams);
        }
        // What a kernel does costs a process its GPU, where that is one of NVIDIA's.
        let restarts = if site.device == "soft" { 0 } else { 5 };
        assert_eq!(counters(berth), [restarts, 5, 0]);
    }
}

/// The params of a request.
fn wire(kernel: &Kernel) -> Vec<u8> {
    let mut params = kernel.resource.to_be_bytes().to_vec();
    let bytes = |params: &mut Vec<u8>, bytes: &[u8]| {
        params.extend((bytes.len() as u32).to_be_bytes());
        params.extend(bytes);
    };
    bytes(&mut params, &kernel.binary);
    params.extend((kernel.name.len() as u16).to_be_bytes());
    params.extend(kernel.name.as_bytes());
    kernel.grid.iter().chain(&kernel.block).for_each(|dim| params.extend(dim.to_be_bytes()));
    bytes(&mut params, &kernel.args.concat());
    params.extend((kernel.args.len() as u16).to_be_bytes());
    kernel.args.iter().for_each(|arg| params.extend((arg.len() as u32).to_be_bytes()));
    params.extend(kernel.output.0.to_be_bytes());
    params.extend(kernel.output.1.to_be_bytes());
    params
}

#[tokio::test]
async fn a_kernel_that_never_ends_is_gone_in_time() {
    for site in Site::all() {
        let berth = site.start();
        let tenant = Tenant::new(&berth, &site.holder).await;
        assert_eq!(tenant.store(77).await, 77_u32.to_le_bytes());
        let forever = tenant.kernel("forever", &[&tenant.at(0)]);
        let began = Instant::now();
        let ran = tenant.submit(&forever).await;
        assert_eq!((ran.status, ran.exit_code), (GpuStatus::LaunchFailed, 702));
        let took = began.elapsed();
        assert!((LIMIT..LIMIT + Duration::from_secs(1)).contains(&took), "{took:?}");
        // The lease has its bytes, and the next kernel runs.
        assert_eq!(tenant.data(&site.holder, Via::Quic).await.read(256, 4).await.unwrap(), 77_u32.to_le_bytes());
        assert_eq!(tenant.store(78).await, 78_u32.to_le_bytes());
        let [restarts, faults, timeouts] = counters(berth);
        assert_eq!((restarts, faults, timeouts), (1, 0, 1));
    }
}

#[tokio::test]
async fn a_worker_that_is_killed_or_stopped_costs_one_kernel() {
    for site in Site::all() {
        let berth = site.start();
        let tenant = Tenant::new(&berth, &site.holder).await;
        for (name, within) in [("-KILL", LIMIT), ("-STOP", LIMIT + Duration::from_secs(1))] {
            assert_eq!(tenant.store(1).await, 1_u32.to_le_bytes());
            let worker = workers(&berth).pop_first().unwrap();
            let began = Instant::now();
            let striker = thread::spawn(move || {
                thread::sleep(LIMIT / 6);
                signal(worker, name);
            });
            let ran = tenant.submit(&tenant.kernel("forever", &[&tenant.at(0)])).await;
            assert_eq!((ran.status, ran.exit_code), (GpuStatus::LaunchFailed, 999), "{name}");
            assert!(began.elapsed() < within, "{name}: {:?}", began.elapsed());
            striker.join().unwrap();
            assert_eq!(tenant.store(2).await, 2_u32.to_le_bytes());
            // Between kernels, too.
            signal(workers(&berth).pop_first().unwrap(), "-KILL");
            let mut ran = tenant.submit(&tenant.kernel("count", &[&tenant.at(0)])).await;
            if ran.exit_code == 999 {
                // It died with the worker, which had it already.
                ran = tenant.submit(&tenant.kernel("count", &[&tenant.at(0)])).await;
            }
            assert_eq!(ran.status, GpuStatus::Ok);
        }
        assert_eq!(counters(berth), [4, 0, 0]);
    }
}

/// Runs the program as somebody whose files are in the site's folder.
fn run(site: &Site, berth: &Berth, args: &[&str]) -> Output {
    let key = site.folder.path().join("holder.key");
    if !key.exists() {
        key_file::create(&key, &site.holder).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.env("XDG_STATE_HOME", site.folder.path()).args(args);
    command.args(["--node", &endpoint(berth, "quic").to_string(), "--key"]).arg(key);
    command.output().unwrap()
}

#[test]
fn the_command_line_leases_and_submits() {
    let site = Site::soft();
    let berth = site.start();
    let file = site.folder.path().join("kernels.ptx");
    fs::write(&file, PTX).unwrap();
    let json = |args: &[&str]| -> serde_json::Value {
        let out = run(&site, &berth, &[args, &["--json"]].concat());
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    };
    let lease = json(&["lease", "alloc", "--type", "gpu", "--size", "64 KiB", "--exclusivity", "device"]);
    let lease = lease["lease_id"].as_str().unwrap().to_owned();
    let again = run(&site, &berth, &["lease", "alloc", "--type", "gpu", "--size", "64 KiB"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("RESOURCE_BUSY"), "one has the whole device");
    json(&["lease", "write", &lease, "abcd", "--offset", "4096"]);
    let kernel = |name: &str| format!("{}#{name}", Path::new(&file).display());
    let ran = json(&["gpu", "submit", &lease, &kernel("add"), "vram:4096", "1", "--block", "1", "--output", "4096:4"]);
    assert_eq!((&ran["status"], &ran["exit_code"], &ran["output"]), (&"OK".into(), &0.into(), &"62626364".into()));
    let failed = run(&site, &berth, &["gpu", "submit", &lease, &kernel("traps")]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stdout).contains("LAUNCH_FAILED"));
    let wrong = run(&site, &berth, &["gpu", "submit", &lease, &kernel("add"), "zero:16", "1"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("vram:OFFSET"));
    json(&["lease", "free", &lease]);
}
