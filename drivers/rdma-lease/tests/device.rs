//! The device by a library of verbs that only notes what it is told (`device/soft.c`): how leases are registered.

use std::{
    env, fs,
    io::{self, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use berth_fabric::{BoundLease, Reach};
use berth_lease::{Generation, LeaseId, RegionId, Rights, Span};
use berth_memory::Heap;
use berth_pages::{DmaBufs, DmaMemory};
use berth_rdma_lease::{Config, Hca as _, HcaError, Key, Link, Peer, Unconnected, Verbs, Windows};

const FOLDER: &str = "SOFT_VERBS";
const MAPPED: RegionId = RegionId(0);
const GPU: RegionId = RegionId(1);

/// Runs the check of the test `name` with the library, which is loaded at the start of a process: in one of its own.
fn with_library(name: &str, check: impl FnOnce(&Path)) {
    if let Some(folder) = env::var_os(FOLDER) {
        return check(folder.as_ref());
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/soft.c");
    let library = folder.path().join("libibverbs.so.1");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).args([library, source]).status();
    assert!(made.unwrap().success());
    // What tells that the device is there.
    fs::write(folder.path().join("ibdev"), "soft0\n").unwrap();
    let mut own = Command::new(env::current_exe().unwrap());
    own.args(["--exact", name, "--nocapture"]).env(FOLDER, folder.path()).env("LD_LIBRARY_PATH", folder.path());
    assert!(own.status().unwrap().success());
}

/// Another device's memory: an allocation for each 64 KiB.
#[derive(Debug, Default)]
struct Gpu {
    exported: Mutex<Vec<(u64, u64)>>,
    /// Its dma-bufs are refused with this error.
    refused: Mutex<i32>,
    /// It has none.
    fails: Mutex<Option<io::ErrorKind>>,
}

impl DmaBufs for Gpu {
    fn export(&self, at: u64, len: u64) -> io::Result<(OwnedFd, u64)> {
        if let Some(kind) = *self.fails.lock().unwrap() {
            return Err(io::Error::new(kind, "what the GPU said"));
        }
        self.exported.lock().unwrap().push((at, len));
        let mut buffer = tempfile::tempfile()?;
        buffer.write_all(&self.refused.lock().unwrap().to_ne_bytes())?;
        Ok((buffer.into(), at % 0x1_0000))
    }
}

struct Device {
    verbs: Verbs,
    gpu: Arc<Gpu>,
    log: PathBuf,
}

impl Device {
    fn new(folder: &Path, windows: Windows) -> Self {
        let gpu = Arc::new(Gpu::default());
        let memory = vec![Some(DmaMemory::Mapped(Arc::new(Heap::new(1 << 20)))), Some(DmaMemory::DmaBufs(gpu.clone()))];
        let config = Config { device: "soft0".into(), port: 1, gid_index: 0, max_leases: 4, windows };
        let verbs = Verbs::open(config, memory).unwrap();
        assert_eq!(verbs.uses_windows(), windows == Windows::Always);
        Self { verbs, gpu, log: folder.join("log") }
    }

    fn connect(&mut self, region: RegionId, rights: Rights) -> Result<(Link, Key), Unconnected<Link>> {
        self.reach(Span { region, at: 0x2_3010, len: 0xFF0 }, rights)
    }

    fn reach(&mut self, span: Span, rights: Rights) -> Result<(Link, Key), Unconnected<Link>> {
        let reach = Reach::Bytes { span, first: 0 };
        let lease = BoundLease { id: LeaseId(1), generation: Generation(1), rights, reach, secret: None };
        let _ = self.told();
        self.verbs.begin(Peer { qp_num: 17, gid: [7; 16], psn: 1, mtu: 1024 }, &lease)()
    }

    /// What the library was told since the last call.
    fn told(&self) -> Vec<String> {
        let told = fs::read_to_string(&self.log).unwrap_or_default();
        fs::write(&self.log, "").unwrap();
        told.lines().map(str::to_owned).collect()
    }
}

/// The numbers of what a line tells of: the first is the object's, the second that of its domain.
fn numbers(line: &str) -> Vec<u32> {
    line.split([' ', ':']).filter_map(|word| word.parse().ok()).collect()
}

/// The last of the queue pairs that were made: those before it were decoys.
fn queue_pair(told: &[String]) -> Vec<u32> {
    numbers(told.iter().rfind(|line| line.starts_with("queue pair")).unwrap())
}

#[test]
fn a_lease_of_another_devices_memory_is_a_region_in_a_domain_of_its_own() {
    with_library("a_lease_of_another_devices_memory_is_a_region_in_a_domain_of_its_own", |folder| {
        for windows in [Windows::Always, Windows::Never] {
            let mut device = Device::new(folder, windows);
            for (rights, access) in [(Rights::ALL, 7), (Rights::READ, 4), (Rights::WRITE, 3)] {
                let (link, key) = device.connect(GPU, rights).unwrap();
                let told = device.told();
                let (qp, region) = (queue_pair(&told), numbers(told.last().unwrap()));
                let domain = numbers(&told[0])[0];
                assert_eq!(told[0], format!("domain {domain}"));
                assert_eq!([qp[1], region[1]], [domain; 2], "{told:?}");
                // Where the dma-buf has them, so far into its pages.
                let expected = format!(
                    "dma-buf {} in {domain}: {} bytes at 3010 as 20000003010, access {access}",
                    region[0], 0xFF0
                );
                assert_eq!(told.last(), Some(&expected));
                assert_eq!(device.gpu.exported.lock().unwrap().drain(..).collect::<Vec<_>>(), [(0x2_3010, 0xFF0)]);
                assert_eq!(key, Key { rkey: region[0] << 8, region_addr: (2 << 40) + 0x3010 - 0x2_3010 });
                // Nothing accesses the bytes any more when the end is done.
                device.verbs.end(link)().unwrap();
                let ends = [("queue pair", qp[0]), ("region", region[0]), ("domain", domain)];
                assert_eq!(device.told(), ends.map(|(what, number)| format!("end {what} {number}")));
            }
        }
    });
}

#[test]
fn mapped_memory_is_reached_by_windows_where_there_are_some() {
    with_library("mapped_memory_is_reached_by_windows_where_there_are_some", |folder| {
        let mut device = Device::new(folder, Windows::Always);
        let domain = numbers(&device.told()[0])[0];
        let (_link, key) = device.connect(MAPPED, Rights::ALL).unwrap();
        let told = device.told();
        assert!(told.last().unwrap().starts_with("window"), "{told:?}");
        assert_eq!([queue_pair(&told)[1], numbers(told.last().unwrap())[1]], [domain; 2]);
        assert_eq!(key.region_addr, 1 << 40);

        let mut device = Device::new(folder, Windows::Never);
        let (_link, key) = device.connect(MAPPED, Rights::ALL).unwrap();
        let told = device.told();
        let (region, domain) = (numbers(told.last().unwrap()), numbers(&told[0])[0]);
        assert_eq!(told.last(), Some(&format!("region {} in {domain}: {} bytes, access 7", region[0], 0xFF0)));
        assert_eq!(queue_pair(&told)[1], domain);
        assert_eq!(key, Key { rkey: region[0] << 8, region_addr: 1 << 40 });
    });
}

#[test]
fn a_lease_of_which_nothing_can_be_reached_makes_nothing() {
    with_library("a_lease_of_which_nothing_can_be_reached_makes_nothing", |folder| {
        for (windows, region) in [(Windows::Always, GPU), (Windows::Always, MAPPED), (Windows::Never, MAPPED)] {
            let mut device = Device::new(folder, windows);
            let refused = device.reach(Span { region, at: 0x1000, len: 0 }, Rights::ALL).unwrap_err();
            assert!(matches!(refused.error, HcaError::NotMemory) && refused.left.is_none());
            assert_eq!(device.told(), Vec::<String>::new());
        }
    });
}

#[test]
fn refused_dma_bufs_are_told_and_leave_nothing() {
    with_library("refused_dma_bufs_are_told_and_leave_nothing", |folder| {
        let mut device = Device::new(folder, Windows::Always);
        let mut refused = |errno: i32, fails: Option<io::ErrorKind>| {
            *device.gpu.refused.lock().unwrap() = errno;
            *device.gpu.fails.lock().unwrap() = fails;
            let Unconnected { error, left } = device.connect(GPU, Rights::ALL).unwrap_err();
            let made = device.told();
            device.verbs.end(*left.expect("a queue pair is to be ended"))().unwrap();
            let ends = [("queue pair", queue_pair(&made)[0]), ("domain", numbers(&made[0])[0])];
            assert_eq!(device.told(), ends.map(|(what, number)| format!("end {what} {number}")));
            (matches!(error, HcaError::NoDmaBufs(_)), error.to_string())
        };
        // Of soft-RoCE's library, of its kernel driver, and of cards that cannot reach the memory.
        for (errno, why) in [
            (38, "Function not implemented"),
            (95, "Operation not supported"),
            (22, "Invalid argument"),
            (14, "Bad address"),
        ] {
            let text =
                format!("soft0 or its driver in the kernel takes no dma-bufs of that memory: {why} (os error {errno})");
            assert_eq!(refused(errno, None), (true, text));
        }
        let text = "soft0: ibv_reg_dmabuf_mr failed: Cannot allocate memory (os error 12)";
        assert_eq!(refused(12, None), (false, text.to_owned()), "it may do so later");
        for (kind, stays) in [(io::ErrorKind::Unsupported, true), (io::ErrorKind::Other, false)] {
            assert_eq!(refused(0, Some(kind)), (stays, "what the GPU said".to_owned()));
        }
    });
}

#[test]
fn a_region_that_cannot_be_ended_is_kept() {
    with_library("a_region_that_cannot_be_ended_is_kept", |folder| {
        let mut device = Device::new(folder, Windows::Never);
        let (link, key) = device.connect(GPU, Rights::ALL).unwrap();
        fs::write(folder.join("stuck"), "").unwrap();
        let unended = device.verbs.end(link)().unwrap_err();
        assert_eq!(unended.error.to_string(), "soft0: ibv_dereg_mr failed: Device or resource busy (os error 16)");
        fs::remove_file(folder.join("stuck")).unwrap();
        let _ = device.told();
        device.verbs.end(*unended.link)().unwrap();
        assert_eq!(device.told()[0], format!("end region {}", key.rkey >> 8));
    });
}
