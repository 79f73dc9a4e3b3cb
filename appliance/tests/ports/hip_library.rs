//! Clients of a HIP Remote worker: C programs with `libberth_hip.so`, and the typed client.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::LazyLock,
};

use berth_hip::{Arguments, Client, Shape, events};

use crate::common::Berth;

const VADD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dataplane/ptx/tests/kernels/vadd.ptx");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hip_library");

/// A worker with two devices.
fn worker(listen: &str) -> (Berth, String) {
    let gpu = |name: &str| format!("[[gpu]]\nname = \"{name}\"\ndevice = \"soft\"\nuse = \"hip\"\n");
    let device = |name: &str| format!("[[hip.device]]\ngpu = \"{name}\"\nmemory = \"64 MiB\"\n");
    let devices = [gpu("gpu0"), gpu("gpu1"), device("gpu0"), device("gpu1")].concat();
    let berth = Berth::start(&format!("[hip]\nlisten = \"{listen}\"\n{devices}"));
    let address = berth.ready["endpoints"]["hip"].as_str().unwrap().to_owned();
    (berth, address)
}

/// Where cargo puts the library: beside this program.
fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libberth_hip.so")
}

/// Builds the C programs, once; returns where they are.
fn built() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let (library, programs) = (library(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("hip-library"));
        let folder = library.parent().unwrap().display();
        fs::create_dir_all(&programs).unwrap();
        for program in ["vadd", "hostile", "unsupported"] {
            let cc = Command::new("cc")
                .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
                .arg(programs.join(program))
                .arg(format!("{SOURCES}/{program}.c"))
                .args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}")])
                .args(["-lberth_hip", "-ldl"])
                .status();
            assert!(cc.unwrap().success());
        }
        programs
    });
    &BUILT
}

/// A C program, which finds its worker by the environment.
fn program(name: &str, worker: &str, argument: &str) -> Command {
    let mut command = Command::new(built().join(name));
    // Cargo names a folder there that may have an older library.
    command.env_remove("LD_LIBRARY_PATH");
    command.arg(argument).env("BERTH_HIP_WORKER", worker).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Runs a program to its end; returns the last line that it prints, and what it says on standard error.
fn run(command: &mut Command) -> (String, String) {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{:?}\n{out}{said}", output.status);
    (out.lines().last().unwrap_or_default().to_owned(), said)
}

#[test]
fn a_c_program_adds_vectors_by_module_graph_and_stub() {
    let (_berth, worker) = worker("127.0.0.1:0");
    assert_eq!(run(&mut program("vadd", &worker, VADD)), ("verified".into(), String::new()));
}

#[test]
fn a_c_program_uses_a_lease_under_tls() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let done = |command: &mut Command| {
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let (cert, key, holder) = (at("hip.crt"), at("hip.key"), at("holder"));
    done(
        Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "30", "-subj", "/CN=berth"])
            .args(["-keyout", &key, "-out", &cert]),
    );
    let identity = berth_tls::key_file::generate().unwrap();
    berth_tls::key_file::create(holder.as_ref(), &identity).unwrap();
    let public = identity.public_key();
    let berth = Berth::start(&format!(
        "[hip]\nlisten = \"127.0.0.1:0\"\nlease = \"required\"\n[hip.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n\
         clients = [\"{public}\"]\n[[gpu]]\nname = \"gpu0\"\ndevice = \"soft\"\nuse = \"hip\"\n[[hip.device]]\n\
         gpu = \"gpu0\"\nmemory = \"64 MiB\"\n[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\n\
         quic = \"127.0.0.1:0\"\nenrolled = [\"{public}\"]\n[[control.policy]]\npresenter = \"*\"\n\
         perms = [\"read\", \"write\", \"alloc\", \"exec\"]\n",
        at("state")
    ));
    let [quic, worker] = ["quic", "hip"].map(|name| berth.ready["endpoints"][name].as_str().unwrap().to_owned());
    let client = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        done(command.args(words).args(["--node", &quic, "--key", &holder]).env("XDG_STATE_HOME", folder.path()))
    };
    let lease = client(&["lease", "alloc", "--type", "gpu", "--size", "1 MiB", "--json"]);
    let lease: serde_json::Value = serde_json::from_str(&lease).unwrap();
    let lease = lease["lease_id"].as_str().unwrap().to_owned();
    fs::write(at("token"), client(&["token", "request", "--perms", "exec"])).unwrap();
    let said = [
        ("BERTH_KEY", &holder),
        ("BERTH_HIP_TLS", &cert),
        ("BERTH_HIP_LEASE", &lease),
        ("BERTH_HIP_TOKEN", &at("token")),
    ];
    assert_eq!(run(program("vadd", &worker, VADD).envs(said)), ("verified".into(), String::new()));
    // What is missing is told.
    for (missing, complaint) in [
        ("BERTH_KEY", "BERTH_HIP_LEASE: needs BERTH_KEY, the file with its holder's key"),
        ("BERTH_HIP_TOKEN", "BERTH_HIP_LEASE: needs BERTH_HIP_TOKEN, a file with a token for it"),
        ("BERTH_HIP_LEASE", "INIT: hipErrorNotInitialized"),
    ] {
        let (line, text) = run(program("hostile", &worker, "none").envs(said).env_remove(missing));
        assert_eq!((line.as_str(), text.lines().count()), ("verified", 1), "{missing}: {text}");
        assert!(text.contains(complaint), "{missing}: {text}");
    }
}

#[test]
fn a_c_program_is_told_what_it_does_wrong() {
    let (_berth, worker) = worker("127.0.0.1:0");
    assert_eq!(run(&mut program("hostile", &worker, VADD)), ("verified".into(), String::new()));
}

#[test]
fn a_c_program_is_told_once_that_there_is_no_worker() {
    let (line, said) = run(&mut program("hostile", "127.0.0.1:1", "none"));
    assert_eq!(line, "verified");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("127.0.0.1:1 (BERTH_HIP_WORKER): no worker answers: Connection refused"), "{said}");
}

/// A child that does not outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_c_program_survives_the_death_of_its_worker() {
    let (berth, address) = worker("127.0.0.1:0");
    let mut child = Killed(program("hostile", &address, "killed").spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut input = child.0.stdin.take().unwrap();
    let mut next = || lines.next().map(|line| line.unwrap());
    assert_eq!(next().as_deref(), Some("kill it"));
    berth.signal("-KILL");
    drop(berth);
    input.write_all(b"killed\n").unwrap();
    assert_eq!(next().as_deref(), Some("gone"));
    let (_again, _) = worker(&address);
    input.write_all(b"back\n").unwrap();
    assert_eq!(next().as_deref(), Some("verified"));
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn every_other_function_says_once_that_it_does_nothing() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../drivers/hip-abi/src/unsupported.rs");
    let source = fs::read_to_string(source).unwrap();
    let list = source.rsplit("functions! {").next().unwrap().trim_end_matches(['}', '\n']);
    let names: Vec<_> = list.split_whitespace().collect();
    assert!(names.len() > 400 && names.contains(&"hipMemcpy3D"), "{} names", names.len());
    let mut command = program("unsupported", "127.0.0.1:1", library().to_str().unwrap());
    let mut child = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    child.0.stdin.take().unwrap().write_all(list.as_bytes()).unwrap();
    let said = BufReader::new(child.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said: Vec<_> = said.collect();
    let verified = BufReader::new(child.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert_eq!(verified, format!("{} verified", names.len()));
    said.sort_unstable();
    let expected =
        names.iter().map(|name| format!("libberth_hip: {name} is not supported, and returns hipErrorNotSupported"));
    let mut expected: Vec<_> = expected.collect();
    expected.sort_unstable();
    assert_eq!(said, expected);
}

#[test]
fn the_typed_client_frees_what_it_makes_and_runs_graphs() {
    let (_berth, address) = worker("127.0.0.1:0");
    let client = Client::connect(address.as_str()).unwrap();
    let device = client.device(1).unwrap();
    let before = device.memory().unwrap();
    assert_eq!(before, (64 << 20, 64 << 20));
    {
        let [a, b, c] = &device.alloc_all(&[4000; 3]).unwrap()[..] else { panic!("three") };
        a.write(0, &1.5_f32.to_le_bytes().repeat(1000)).unwrap();
        b.write(0, &2_f32.to_le_bytes().repeat(1000)).unwrap();
        let vadd = device.load(&fs::read(VADD).unwrap()).unwrap().function("vadd").unwrap();
        let shape = Shape { grid: [4, 1, 1], block: [256, 1, 1], shared: 0 };
        let arguments = Arguments::new().buffer_at(a).buffer_at(b).buffer_at(c).value(&1000_u32);
        let (stream, start, stop) =
            (device.stream().unwrap(), device.event(0).unwrap(), device.event(events::WITHOUT_TIME).unwrap());
        let capture = stream.capture().unwrap();
        stream.launch(&vadd, shape, &arguments).unwrap();
        let graph = capture.end().unwrap().instantiate().unwrap();
        let mut sums = vec![0; 4000];
        stream.read(c, 0, &mut sums).unwrap();
        assert_eq!(sums, vec![0; 4000], "it was recorded and not run");
        stream.record(&start).unwrap();
        stream.launch_graph(&graph).unwrap();
        stream.record(&stop).unwrap();
        stop.synchronize().unwrap();
        assert!(stop.is_done().unwrap() && stream.is_done().unwrap());
        assert_eq!(
            stop.since(&start).unwrap_err().to_string(),
            "EVENT_ELAPSED_TIME: hipErrorInvalidHandle (no such handle)"
        );
        stream.read(c, 0, &mut sums).unwrap();
        assert_eq!(sums, 3.5_f32.to_le_bytes().repeat(1000));
        assert!(c.read(3999, &mut [0; 2]).is_err());
        let big = device.upload(&(0..9 << 20).map(|at| (at >> 12) as u8).collect::<Vec<_>>()).unwrap();
        let mut back = vec![0; 9 << 20];
        big.read(0, &mut back).unwrap();
        assert!(back.iter().enumerate().all(|(at, byte)| *byte == (at >> 12) as u8));
        assert!(device.memory().unwrap().0 < before.0);
        stream
            .launch(&vadd, shape, &Arguments::new().bytes(&[1; 8]).bytes(&[1; 8]).bytes(&[1; 8]).value(&9_u32))
            .unwrap();
        let fault = device.synchronize().unwrap_err();
        assert!(fault.to_string().starts_with("DEVICE_SYNCHRONIZE: hipError"), "{fault}");
    }
    device.synchronize().unwrap();
    assert_eq!(device.memory().unwrap(), before);
    device.shutdown().unwrap();
}
