//! Workers of sessions with one of AMD's GPUs, by a library in C that has the runtime's functions. No GPU of AMD's is needed.

mod refusals;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command as Program,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use berth_gpu::{
    Command, Facts, GpuError, KernelFacts, Rows, SLOT, SessionCounts, SessionGpu, SessionSettings, Standing, Value,
};
use berth_memory::Memory as _;
use tempfile::TempDir;

/// The variable that makes a process of this test program a worker.
const WORKER: &str = "BERTH_GPU_TEST_WORKER";

const BUNDLE: &[u8] = include_bytes!("../../../../dataplane/amdgpu/tests/kernels/session.bundle");
const MANY: &[u8] = include_bytes!("../../../../dataplane/amdgpu/tests/kernels/many.co");

/// What other tests start as a worker: it is found by its first argument.
#[test]
fn session() {
    if std::env::var_os(WORKER).is_some() {
        berth_gpu::worker::main();
    }
}

/// Builds the library into a folder, with these options of the compiler.
fn library(folder: &Path, options: &[&str]) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hip/amdhip64.c");
    let mut cc = Program::new("cc");
    cc.args(["-O1", "-shared", "-fPIC"]).args(options).arg("-o").arg(folder.join("libamdhip64.so.6")).arg(source);
    assert!(cc.status().unwrap().success());
}

/// A folder with the library, and a script that starts a worker which finds it.
struct Place {
    folder: TempDir,
    settings: Arc<SessionSettings>,
}

impl Place {
    fn new(device: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (worker, program) = (folder.path().join("worker"), std::env::current_exe().unwrap());
        let variables = variables.iter().map(|(name, value)| [*name, value].join("=")).collect::<Vec<_>>().join(" ");
        let (here, program) = (folder.path().display(), program.display());
        let start = format!("exec {program} \"$@\" --exact --test-threads=1");
        fs::write(&worker, format!("#!/bin/sh\n{WORKER}=1 LD_LIBRARY_PATH={here} {variables} {start}\n")).unwrap();
        fs::set_permissions(&worker, fs::Permissions::from_mode(0o755)).unwrap();
        let settings = SessionSettings {
            name: "gpu0".into(),
            worker,
            device: device.parse().unwrap(),
            limit: Duration::from_millis(500),
            counts: SessionCounts::default(),
        };
        Self { folder, settings: Arc::new(settings) }
    }

    fn with(options: &[&str], variables: &[(&str, &str)]) -> Self {
        let place = Self::new("hip:1", variables);
        library(place.folder.path(), options);
        place
    }

    fn start(&self) -> Gpu {
        let gpu = SessionGpu::start(&self.settings).unwrap();
        let facts = gpu.facts().unwrap();
        Gpu { worker: gpu, facts, life: 0 }
    }

    fn refused(&self) -> String {
        match SessionGpu::start(&self.settings).unwrap().facts() {
            Err(GpuError::Refused(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

struct Gpu {
    worker: SessionGpu,
    facts: Facts,
    life: u64,
}

impl Gpu {
    /// Has it do something, to its end.
    fn perform(&self, command: Command) -> Result<Value, i32> {
        let (number, until) = (self.worker.tell(self.life, command), Instant::now() + Duration::from_secs(10));
        let mut results = Vec::new();
        loop {
            let _ = self.worker.results(self.life, &mut Context::from_waker(Waker::noop()), &mut results);
            if let Some((_, result)) = results.iter().find(|(one, _)| *one == number) {
                return result.clone();
            }
            if let Standing::Lost(code) = self.worker.standing(self.life) {
                return Err(code);
            }
            assert!(Instant::now() < until, "no answer");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until its process has ended with this code, and another one has the device.
    fn next(&mut self, code: i32) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.worker.standing(self.life) != Standing::Lost(code) || self.worker.life() == self.life {
            assert!(Instant::now() < until, "{code}: {:?}", self.worker.standing(self.life));
            thread::sleep(Duration::from_millis(1));
        }
        self.life = self.worker.life();
        while self.worker.standing(self.life) != Standing::Serves {
            assert!(Instant::now() < until, "{code}: no other worker");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn allocate(&self, sizes: &[u64]) -> Result<Vec<u64>, i32> {
        self.perform(Command::Allocate(sizes.to_vec())).map(|value| match value {
            Value::Addresses(made) => made,
            other => panic!("{other:?}"),
        })
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.worker.staging().write_at(SLOT, bytes);
        assert_eq!(self.perform(Command::Write { at, from: SLOT, len: bytes.len() }), Ok(Value::None));
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.perform(Command::Read { at, to: 2 * SLOT, len }), Ok(Value::None));
        let mut bytes = vec![0; len];
        self.worker.staging().read_at(2 * SLOT, &mut bytes);
        bytes
    }

    fn load(&self, image: &[u8]) -> Result<(u64, Vec<KernelFacts>), i32> {
        for part in image.chunks(SLOT) {
            self.worker.staging().write_at(0, part);
            assert_eq!(self.perform(Command::Image { from: 0, len: part.len() }), Ok(Value::None));
        }
        self.perform(Command::Load).map(|value| match value {
            Value::Loaded(module, len) => {
                let mut kernels = vec![0; len];
                self.worker.staging().read_at(0, &mut kernels);
                (module, serde_json::from_slice(&kernels).unwrap())
            }
            other => panic!("{other:?}"),
        })
    }

    /// Loads the bundle, and runs a kernel of it.
    fn run(&self, name: &str, [grid, block]: [u32; 2], arguments: &[u8]) -> Result<Value, i32> {
        let (module, kernels) = self.load(BUNDLE).unwrap();
        let kernel = kernels.iter().position(|kernel| kernel.name == name).unwrap();
        self.worker.staging().write_at(3 * SLOT, arguments);
        self.perform(Command::Launch {
            module,
            kernel,
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            shared: 0,
            from: 3 * SLOT,
            len: arguments.len(),
        })
    }
}

#[test]
fn both_layouts_of_properties_tell_the_same() {
    for (options, blocks) in [(&[][..], 16), (&["-DROCM5"][..], 32)] {
        let gpu = Place::with(options, &[]).start();
        let wanted = Facts {
            address: "0000:04:00.0".into(),
            name: "AMD Instinct Test 1".into(),
            memory: 256 << 20,
            shared: 65536,
            block_threads: 1024,
            block: [1024, 1024, 64],
            grid: [0x7fff_ffff, 65535, 65535],
            warp: 64,
            resident: [blocks, 2048],
            processors: 104,
            version: [9, 0],
            arch: "gfx90a:sramecc+:xnack-".into(),
        };
        assert_eq!(gpu.facts, wanted);
    }
}

#[test]
fn memory_is_zeroed_copied_and_freed() {
    let place = Place::with(&[], &[("HIP_TEST_MEMORY", "4")]);
    let gpu = place.start();
    let made = gpu.allocate(&[1000, 5000]).unwrap();
    let (a, b) = (made[0], made[1]);
    assert_eq!(gpu.read(b, 5000), [0; 5000]);
    let bytes: Vec<u8> = (0..1000_u32).map(|at| (at % 251) as u8).collect();
    gpu.write(a, &bytes);
    assert_eq!(gpu.perform(Command::Set { at: b, len: 5000, value: 9 }), Ok(Value::None));
    let rows = Rows { dst: (b, 100), src: (a, 50), width: 20, height: 10 };
    assert_eq!(gpu.perform(Command::Copy(rows)), Ok(Value::None));
    let mut wanted = vec![9; 5000];
    for row in 0..10 {
        wanted[100 * row..][..20].copy_from_slice(&bytes[50 * row..][..20]);
    }
    assert_eq!(gpu.read(b, 5000), wanted);
    // What overlaps is as if all had been read before.
    let rows = Rows { dst: (a + 1, 999), src: (a, 999), width: 999, height: 1 };
    assert_eq!(gpu.perform(Command::Copy(rows)), Ok(Value::None));
    assert_eq!(gpu.read(a, 1000), [&bytes[..1], &bytes[..999]].concat());
    // All or nothing, and what is freed is there again.
    assert_eq!(gpu.allocate(&[1 << 20, 3 << 20]), Err(2));
    let large = gpu.allocate(&[3 << 20]).unwrap()[0];
    assert_eq!(gpu.allocate(&[1 << 20]), Err(2));
    assert_eq!(gpu.perform(Command::Free(large)), Ok(Value::None));
    assert!(gpu.allocate(&[1 << 20]).is_ok());
    assert_eq!(gpu.perform(Command::Read { at: a + 900, to: 0, len: 101 }), Err(1));
    assert_eq!(gpu.perform(Command::Reset), Ok(Value::None));
    assert!(gpu.allocate(&[4 << 20]).is_ok());
}

#[test]
fn kernels_of_the_gpus_own_entry_run() {
    for arch in ["gfx90a:sramecc+:xnack-", "gfx906:sramecc-:xnack-", "gfx1030"] {
        let gpu = Place::with(&[], &[("HIP_TEST_ARCH", arch)]).start();
        assert_eq!(gpu.facts.arch, arch);
        let made = gpu.allocate(&[4000, 4000, 4000]).unwrap();
        let floats = |of: fn(u16) -> f32| (0..1000).flat_map(|at| of(at).to_le_bytes()).collect::<Vec<_>>();
        gpu.write(made[0], &floats(|at| f32::from(at) / 4.0));
        gpu.write(made[1], &floats(|at| f32::from(2 * at)));
        let pointers: Vec<u8> = made.iter().flat_map(|at| at.to_le_bytes()).collect();
        let arguments = [&pointers[..], &1000_u32.to_le_bytes()].concat();
        assert_eq!(gpu.run("vadd", [8, 128], &arguments), Ok(Value::None), "{arch}");
        assert_eq!(gpu.read(made[2], 4000), floats(|at| f32::from(at) / 4.0 + f32::from(2 * at)));
        let mut arguments = [0; 48];
        arguments[0] = 1;
        arguments[8] = 2;
        arguments[16..24].copy_from_slice(&100_f64.to_le_bytes());
        arguments[24..26].copy_from_slice(&1000_i16.to_le_bytes());
        arguments[32..34].copy_from_slice(&(-3_i16).to_le_bytes());
        arguments[40..].copy_from_slice(&made[0].to_le_bytes());
        assert_eq!(gpu.run("mixed", [1, 1], &arguments), Ok(Value::None), "{arch}");
        assert_eq!(gpu.read(made[0], 8), 1100_u64.to_le_bytes());
    }
}

#[test]
fn code_for_others_and_what_is_none_is_refused() {
    let gpu = Place::with(&[], &[("HIP_TEST_ARCH", "gfx906")]).start();
    assert_eq!(gpu.load(MANY).unwrap_err(), 218);
    assert_eq!(gpu.load(b"").unwrap_err(), 200);
    assert_eq!(gpu.load(b"nonsense").unwrap_err(), 200);
    assert_eq!(gpu.load(b"CCOB").unwrap_err(), 218);
    assert_eq!(gpu.load(&BUNDLE[..BUNDLE.len() / 4]).unwrap_err(), 200);
    let (module, kernels) = gpu.load(BUNDLE).unwrap();
    assert_eq!(kernels.len(), 9);
    assert_eq!(gpu.perform(Command::Unload(module)), Ok(Value::None));
    // Metadata that name a kernel which is not there.
    let mut lies = BUNDLE.to_vec();
    let names: Vec<_> = (0..lies.len() - 5).filter(|at| &lies[*at..*at + 5] == b"\xA4vadd").collect();
    assert!(!names.is_empty());
    for at in names {
        lies[at + 1] = b'w';
    }
    assert_eq!(gpu.load(&lies).unwrap_err(), 500);
    let other = Place::with(&[], &[("HIP_TEST_ARCH", "gfx942:sramecc+:xnack-")]).start();
    assert_eq!(other.load(BUNDLE).unwrap_err(), 209);
}

#[test]
fn what_a_kernel_does_wrong_costs_the_device() {
    let place = Place::with(&[], &[]);
    let mut gpu = place.start();
    let count = |of: fn(&SessionCounts) -> u64| of(&place.settings.counts);
    for (name, codes, faults, timeouts) in [("store", 700, 1, 0), ("trap", 719, 2, 0), ("forever", 702, 2, 1)] {
        assert_eq!(gpu.allocate(&[100]).map(|made| made.len()), Ok(1));
        assert_eq!(gpu.run(name, [1, 1], &8_u64.to_le_bytes()), Err(codes), "{name}");
        gpu.next(codes);
        assert_eq!(count(|counts| counts.faults.load(Relaxed)), faults, "{name}");
        assert_eq!(count(|counts| counts.timeouts.load(Relaxed)), timeouts, "{name}");
    }
    // What somebody else does to it is no fault of a kernel's.
    let pid = gpu.worker.pid().unwrap().to_string();
    assert!(Program::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    gpu.next(709);
    assert_eq!(count(|counts| counts.ended.load(Relaxed)), 1);
    let at = gpu.allocate(&[100]).unwrap()[0];
    assert_eq!(gpu.run("store", [1, 1], &at.to_le_bytes()), Ok(Value::None));
    assert_eq!(gpu.read(at, 4), [7, 0, 0, 0]);
}
