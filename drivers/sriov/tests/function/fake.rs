//! A tree like that of a card with virtual functions, and a thread that does what the kernel does to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{OpenOptionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_sriov::{Address, Attributes, Setting, Switch};

use crate::controller::FakeController;

pub(crate) const PF: &str = "0000:03:00.0";
pub(crate) const TOTAL: u16 = 7;

pub(crate) fn pf() -> Address {
    PF.parse().unwrap()
}

/// The n-th function, as igb has them.
pub(crate) fn vf(index: u16) -> Address {
    format!("0000:03:10.{index}").parse().unwrap()
}

/// The machine.
pub(crate) struct Machine {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) switch: FakeSwitch,
    pub(crate) controller: FakeController,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the kernel was asked for, and knows.
#[derive(Default)]
pub(crate) struct Kernel {
    /// In the order in which it came.
    pub(crate) log: Mutex<Vec<String>>,
    /// Functions that somebody has open.
    pub(crate) held: Mutex<BTreeSet<String>>,
    /// Processes that have functions open as their standard input, until they end.
    pub(crate) openers: Mutex<Vec<u32>>,
    /// Does not let a function be bound to vfio-pci.
    pub(crate) refuses: AtomicBool,
    /// How often it has looked at everything.
    rounds: AtomicUsize,
}

impl Machine {
    /// One with a network card.
    pub(crate) fn new() -> Self {
        let (folder, device) = folder();
        fs::create_dir_all(device.join("net/enp3s0")).unwrap();
        let net = folder.path().join("sys/class/net/enp3s0");
        fs::create_dir_all(&net).unwrap();
        fs::write(net.join("ifindex"), "3\n").unwrap();
        fs::write(net.join("flags"), "0x1003\n").unwrap();
        Self::start(folder)
    }

    /// One with an NVMe controller, which the kernel's driver has.
    pub(crate) fn with_controller() -> Self {
        let (folder, device) = folder();
        fs::create_dir_all(device.join("nvme/nvme0")).unwrap();
        for (name, text) in [("class", "0x010802\n"), ("nvme/nvme0/state", "live\n"), ("reset", "")] {
            fs::write(device.join(name), text).unwrap();
        }
        Self::start(folder)
    }

    fn start(folder: tempfile::TempDir) -> Self {
        let (kernel, stop) = (Arc::<Kernel>::default(), Arc::<AtomicBool>::default());
        let controller = FakeController::new(&folder.path().join("dev/nvme0"));
        let thread = thread::spawn({
            let (root, kernel, controller, stop) =
                (folder.path().to_owned(), kernel.clone(), controller.clone(), stop.clone());
            move || serve(&root, &kernel, &controller, &stop)
        });
        Self { folder, kernel, switch: FakeSwitch::default(), controller, stop, thread: Some(thread) }
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn device(&self, index: u16, name: &str) -> PathBuf {
        self.root().join("sys/bus/pci/devices").join(vf(index).to_string()).join(name)
    }

    pub(crate) fn driver(&self, index: u16) -> Option<String> {
        let target = fs::read_link(self.device(index, "driver")).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    pub(crate) fn node(&self, index: u16) -> PathBuf {
        self.root().join("dev/vfio").join(group(index))
    }

    /// How often a function was reset.
    pub(crate) fn resets(&self, index: u16) -> usize {
        // One that was written just now is read within the next whole round.
        let round = self.kernel.rounds.load(Ordering::Relaxed);
        wait(|| self.kernel.rounds.load(Ordering::Relaxed) > round + 1);
        let reset = format!("reset {}", vf(index));
        self.kernel.log.lock().unwrap().iter().filter(|line| **line == reset).count()
    }

    /// Somebody has a function open, or nobody has any more.
    pub(crate) fn hold(&self, index: u16, held: bool) {
        let mut all = self.kernel.held.lock().unwrap();
        if held {
            all.insert(vf(index).to_string())
        } else {
            all.remove(&vf(index).to_string())
        };
    }

    /// The kernel's own driver takes a function.
    pub(crate) fn bind_igbvf(&self, index: u16) {
        bind(self.root(), &vf(index).to_string(), "igbvf");
    }

    pub(crate) fn numvfs(&self, count: u16) {
        let file = self.root().join("sys/bus/pci/devices").join(PF).join("sriov_numvfs");
        fs::write(file, count.to_string()).unwrap();
        let there = |index| fs::symlink_metadata(self.device(index, "reset")).is_ok();
        wait(|| (0..TOTAL).all(|index| there(index) == (index < count)));
    }
}

/// The tree, and the folder of the physical function in it.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let device = root.join("sys/bus/pci/devices").join(PF);
    fs::create_dir_all(&device).unwrap();
    for (name, text) in [("sriov_totalvfs", "7"), ("sriov_numvfs", "0"), ("sriov_drivers_autoprobe", "1")] {
        fs::write(device.join(name), text).unwrap();
    }
    for dir in ["sys/class/vfio", "dev/vfio", "etc", "sys/kernel/iommu_groups", "sys/bus/pci/drivers/igbvf"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["sys/bus/pci/drivers_probe", "sys/bus/pci/drivers/igbvf/bind"] {
        fs::write(root.join(file), "").unwrap();
    }
    symlink("/proc", root.join("proc")).unwrap();
    fs::write(root.join("etc/passwd"), "root:x:0:0::/:/bin/sh\ntenant:x:1234:1235::/:/bin/sh\n").unwrap();
    (folder, device)
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let end = self.thread.take().unwrap().join();
        // A test that fails leaves the log poisoned: the thread's panic is not another fault.
        assert!(end.is_ok() || thread::panicking(), "the kernel's thread has panicked");
    }
}

pub(crate) fn wait(mut is_so: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("it does not happen");
}

fn group(index: u16) -> String {
    (20 + index).to_string()
}

fn index_of(address: &str) -> u16 {
    address.rsplit_once('.').unwrap().1.parse().unwrap()
}

/// Empties a file that something was written to.
fn take(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok().filter(|text| !text.is_empty())?;
    fs::write(file, "").unwrap();
    Some(text.trim().to_owned())
}

fn serve(root: &Path, kernel: &Kernel, controller: &FakeController, stop: &AtomicBool) {
    let (mut count, mut unbinds) = (0, BTreeMap::<String, File>::new());
    let devices = root.join("sys/bus/pci/devices");
    while !stop.load(Ordering::Relaxed) {
        let numvfs = fs::read_to_string(devices.join(PF).join("sriov_numvfs")).unwrap_or_default();
        // Behind the look at the number: what was asked for before it is done before it.
        if take(&devices.join(PF).join("reset")).is_some() {
            kernel.log.lock().unwrap().push(format!("reset {PF}"));
            controller.reset();
        }
        if let Ok(wanted) = numvfs.trim().parse::<u16>()
            && wanted != count
        {
            // Noted before it is done: who sees the functions finds it in the log.
            let autoprobe = fs::read_to_string(devices.join(PF).join("sriov_drivers_autoprobe")).unwrap();
            kernel.log.lock().unwrap().push(format!("numvfs {wanted} autoprobe {}", autoprobe.trim()));
            (count..wanted).for_each(|index| make(root, index));
            (wanted..count).for_each(|index| unmake(root, index));
            count = wanted;
        }
        if let Some(address) = take(&root.join("sys/bus/pci/drivers_probe")) {
            let driver = fs::read_to_string(devices.join(&address).join("driver_override")).unwrap_or_default();
            if driver == "vfio-pci" && !kernel.refuses.load(Ordering::Relaxed) {
                bind(root, &address, "vfio-pci");
            }
        }
        if let Some(address) = take(&root.join("sys/bus/pci/drivers/igbvf/bind")) {
            bind(root, &address, "igbvf");
        }
        for index in 0..count {
            let address = vf(index).to_string();
            if take(&devices.join(&address).join("reset")).is_some() {
                kernel.log.lock().unwrap().push(format!("reset {address}"));
            }
            serve_unbind(root, kernel, &address, &mut unbinds);
        }
        kernel.rounds.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_micros(500));
    }
    // Who waits to be let in gets on.
    let fifos = (0..count).map(|index| root.join("drivers").join(vf(index).to_string()).join("vfio-pci/unbind"));
    for fifo in fifos.filter(|fifo| fifo.exists()) {
        drop(File::options().read(true).custom_flags(libc::O_NONBLOCK).open(fifo));
    }
}

/// A function is let go when nobody has it open; who asks for it waits so long.
fn serve_unbind(root: &Path, kernel: &Kernel, address: &str, unbinds: &mut BTreeMap<String, File>) {
    let folder = root.join("drivers").join(address);
    if take(&folder.join("igbvf/unbind")).is_some() {
        fs::remove_file(root.join("sys/bus/pci/devices").join(address).join("driver")).unwrap();
    }
    let fifo = folder.join("vfio-pci/unbind");
    if !fifo.exists() || kernel.held.lock().unwrap().contains(address) || is_open(root, kernel, address) {
        unbinds.remove(address);
        return;
    }
    let reader = unbinds
        .entry(address.to_owned())
        .or_insert_with(|| File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap());
    let mut asked = [0; 64];
    match reader.read(&mut asked) {
        Ok(0) => {}
        Ok(_) => {
            let _ = fs::remove_file(root.join("sys/bus/pci/devices").join(address).join("driver"));
            let group = group(index_of(address));
            let _ = fs::remove_file(root.join("dev/vfio").join(&group));
            let _ = fs::remove_dir(root.join("sys/class/vfio").join(&group));
            kernel.log.lock().unwrap().push(format!("unbind {address}"));
        }
        Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
    }
}

/// Whether one of the processes has the function open.
fn is_open(root: &Path, kernel: &Kernel, address: &str) -> bool {
    let node = root.join("dev/vfio").join(group(index_of(address)));
    let input = |pid: &u32| fs::read_link(format!("/proc/{pid}/fd/0")).is_ok_and(|target| target == node);
    kernel.openers.lock().unwrap().iter().any(input)
}

fn make(root: &Path, index: u16) {
    let (address, group) = (vf(index).to_string(), group(index));
    let device = root.join("sys/bus/pci/devices").join(&address);
    fs::create_dir_all(&device).unwrap();
    let members = root.join("sys/kernel/iommu_groups").join(&group).join("devices");
    fs::create_dir_all(&members).unwrap();
    fs::write(members.join(&address), "").unwrap();
    symlink(format!("../../../kernel/iommu_groups/{group}"), device.join("iommu_group")).unwrap();
    fs::write(device.join("reset_method"), "flr bus\n").unwrap();
    fs::write(device.join("driver_override"), "(null)\n").unwrap();
    let igbvf = root.join("drivers").join(&address).join("igbvf");
    fs::create_dir_all(&igbvf).unwrap();
    fs::write(igbvf.join("unbind"), "").unwrap();
    let vfio = root.join("drivers").join(&address).join("vfio-pci");
    fs::create_dir_all(&vfio).unwrap();
    assert!(Command::new("mkfifo").arg(vfio.join("unbind")).status().unwrap().success());
    let pf = root.join("sys/bus/pci/devices").join(PF);
    symlink(format!("../{address}"), pf.join(format!("virtfn{index}"))).unwrap();
    // Last: who waits for a function looks for this.
    fs::write(device.join("reset"), "").unwrap();
}

fn unmake(root: &Path, index: u16) {
    let address = vf(index).to_string();
    fs::remove_file(root.join("sys/bus/pci/devices").join(PF).join(format!("virtfn{index}"))).unwrap();
    fs::remove_dir_all(root.join("drivers").join(&address)).unwrap();
    fs::remove_dir_all(root.join("sys/bus/pci/devices").join(&address)).unwrap();
    let _ = fs::remove_file(root.join("dev/vfio").join(group(index)));
    let _ = fs::remove_dir(root.join("sys/class/vfio").join(group(index)));
}

fn bind(root: &Path, address: &str, driver: &str) {
    let device = root.join("sys/bus/pci/devices").join(address);
    if driver == "vfio-pci" {
        let group = group(index_of(address));
        fs::create_dir(root.join("sys/class/vfio").join(&group)).unwrap();
        fs::write(root.join("dev/vfio").join(&group), "").unwrap();
    }
    symlink(root.join("drivers").join(address).join(driver), device.join("driver")).unwrap();
}

/// The switch of the card: what no machine without one has.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeSwitch(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
pub(crate) struct Inside {
    pub(crate) functions: BTreeMap<u16, Attributes>,
    /// What was set, in order.
    pub(crate) log: Vec<(u16, Setting)>,
    /// Refuses what this refuses.
    pub(crate) refuses: Option<fn(&Setting) -> bool>,
    /// Says that all was done, and does nothing.
    pub(crate) lies: bool,
}

impl FakeSwitch {
    pub(crate) fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    pub(crate) fn of(&self, index: u16) -> Attributes {
        self.inside().functions.get(&index).copied().unwrap_or_else(fresh)
    }
}

/// As igb has them.
pub(crate) fn fresh() -> Attributes {
    Attributes { spoofchk: Some(true), trust: Some(false), ..Attributes::default() }
}

impl Switch for FakeSwitch {
    fn get(&self, interface: u32, function: u16) -> io::Result<Attributes> {
        assert_eq!(interface, 3);
        Ok(self.of(function))
    }

    fn set(&self, interface: u32, function: u16, setting: Setting) -> io::Result<()> {
        assert_eq!(interface, 3);
        let mut inside = self.inside();
        if inside.refuses.is_some_and(|refuses| refuses(&setting)) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        inside.log.push((function, setting));
        if inside.lies {
            return Ok(());
        }
        let of = inside.functions.entry(function).or_insert_with(fresh);
        match setting {
            Setting::Mac(mac) => of.mac = mac,
            Setting::Vlan { vlan, qos } => (of.vlan, of.qos) = (vlan, qos),
            Setting::Rate { min, max } => (of.min_rate, of.max_rate) = (min, max),
            Setting::SpoofChk(on) => of.spoofchk = Some(on),
            Setting::Trust(on) => of.trust = Some(on),
            Setting::LinkState(state) => of.link_state = state,
        }
        Ok(())
    }
}
