//! A lease in the kernel's target, step by step, and away again.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use berth_lease::LeaseId;
use berth_nvme::{lease_of, nqn};
use berth_wire::fabric::NvmeTransport;

use crate::system::{Linux, System};

/// Ours are the ports from here on: the kernel knows a port by its number alone.
const FIRST_PORT: u16 = 0xBE00;

/// How many are ours.
const PORTS: u16 = 256;

/// How long a block device may be open once the target has let go of it: whoever looks at new disks has it for a moment.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The kernel's target, for all bindings of this process.
#[derive(Debug)]
pub struct Nvmet<S = Linux> {
    system: S,
    next_port: AtomicU16,
    /// Held where the entry of a host is made and linked, or removed: leases share it.
    hosts: Mutex<()>,
}

/// What a port listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// RDMA, at this IP address and port.
    Rdma(SocketAddr),
    /// This host alone.
    Loop,
}

impl Address {
    /// The transport, as `addr_trtype` of the port has it.
    pub fn transport(self) -> NvmeTransport {
        match self {
            Self::Rdma(_) => NvmeTransport::Rdma,
            Self::Loop => NvmeTransport::Loop,
        }
    }
}

/// `rdma 10.0.0.1:4420`, or `loop`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(address) => write!(f, "rdma {address}"),
            Self::Loop => f.write_str("loop"),
        }
    }
}

/// A port of the kernel's target, by its number in configfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port(u16);

impl Port {
    fn folder(self) -> String {
        format!("ports/{}", self.0)
    }
}

/// What is served of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The lease. Its id is in the subsystem's NQN, and is the namespace's UUID and NGUID.
    pub lease: LeaseId,
    /// The file or device that backs its region.
    pub backing: PathBuf,
    /// Offset of its first byte there, in bytes: a multiple of 512.
    pub at: u64,
    /// Its length in bytes: whole blocks of 512.
    pub len: u64,
}

/// Why the kernel's target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel has none: nvmet is not loaded, or configfs is not mounted.
    #[error("it is not loaded: `modprobe nvmet`, and mount configfs at /sys/kernel/config")]
    Absent,
    /// Another process has it locked.
    #[error("another appliance of this host has it")]
    InUse,
    /// What an earlier process left cannot be taken away.
    #[error("what an earlier process left there: {0}")]
    Left(io::Error),
    /// The system refused.
    #[error("{0}")]
    System(io::Error),
}

impl Nvmet {
    /// Takes the target of this kernel, and all leases away from it that an earlier process left there.
    ///
    /// # Errors
    /// There is none, another process has it, or it keeps what it has.
    pub fn open() -> Result<Self, OpenError> {
        let linux = Linux::open(Linux::ROOT.into()).map_err(|error| match error.kind() {
            ErrorKind::NotFound => OpenError::Absent,
            ErrorKind::ResourceBusy => OpenError::InUse,
            _ => OpenError::System(error),
        })?;
        Self::over(linux).map_err(OpenError::Left)
    }
}

impl<S: System> Nvmet<S> {
    /// Takes this target, and all leases away from it that an earlier process left there.
    ///
    /// # Errors
    /// It keeps what it has: hosts may still reach leases.
    pub fn over(system: S) -> io::Result<Self> {
        let nvmet = Self { system, next_port: AtomicU16::new(FIRST_PORT), hosts: Mutex::default() };
        nvmet.sweep()?;
        Ok(nvmet)
    }

    fn sweep(&self) -> io::Result<()> {
        let mut leases = BTreeSet::new();
        for port in self.system.list("ports")? {
            leases.extend(self.leases_in(&format!("ports/{port}/subsystems"))?);
        }
        leases.extend(self.leases_in("subsystems")?);
        // None listens any more before the first is gone: a host that connects again is not told that its lease is over.
        for lease in &leases {
            self.unlink_from_ports(*lease)?;
        }
        for lease in leases {
            self.withdraw(lease)?;
        }
        for port in self.system.list("ports")? {
            if port.parse().is_ok_and(|number: u16| (FIRST_PORT..FIRST_PORT + PORTS).contains(&number)) {
                self.system.remove(&format!("ports/{port}"))?;
            }
        }
        Ok(())
    }

    fn leases_in(&self, folder: &str) -> io::Result<Vec<LeaseId>> {
        Ok(self.system.list(folder)?.iter().filter_map(|name| lease_of(name.as_bytes())).collect())
    }

    /// Makes a port. It listens from the first lease on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn port(&self, address: Address) -> io::Result<Port> {
        let port = Port(self.next_port.fetch_add(1, Relaxed));
        let folder = port.folder();
        self.system.make(&folder)?;
        let set = |name: &str, value: &str| self.system.write(&format!("{folder}/{name}"), value);
        set("addr_trtype", address.transport().name())?;
        if let Address::Rdma(address) = address {
            set("addr_adrfam", if address.is_ipv4() { "ipv4" } else { "ipv6" })?;
            set("addr_traddr", &address.ip().to_string())?;
            set("addr_trsvcid", &address.port().to_string())?;
        }
        Ok(port)
    }

    /// Whether the lease's subsystem is there; true also where the target cannot be looked at.
    pub fn has(&self, lease: LeaseId) -> bool {
        self.system.list("subsystems").map_or(true, |names| names.contains(&nqn(lease)))
    }

    /// Makes a lease a subsystem that no host may connect to yet. May take seconds.
    ///
    /// # Errors
    /// What the kernel says; what was done is undone, or [`Nvmet::has`] says that it is not.
    pub fn offer(&self, disk: &Disk, ports: &[Port]) -> io::Result<()> {
        // An attempt before may have left something.
        self.withdraw(disk.lease)?;
        self.make(disk, ports).inspect_err(|_| {
            // Its caller looks whether that worked.
            let _ = self.withdraw(disk.lease);
        })
    }

    fn make(&self, disk: &Disk, ports: &[Port]) -> io::Result<()> {
        let system = &self.system;
        let (name, id) = (nqn(disk.lease), disk.lease.to_string());
        let attached = system.attach(&disk.backing, disk.at, disk.len, &device_name(disk.lease))?;
        let subsystem = format!("subsystems/{name}");
        system.make(&subsystem)?;
        system.write(&format!("{subsystem}/attr_allow_any_host"), "0")?;
        // As Berth's own target says it.
        system.write(&format!("{subsystem}/attr_serial"), &id[12..])?;
        system.write(&format!("{subsystem}/attr_model"), "Berth")?;
        let namespace = format!("{subsystem}/namespaces/1");
        system.make(&namespace)?;
        system.write(&format!("{namespace}/device_path"), &attached.device)?;
        system.write(&format!("{namespace}/device_uuid"), &uuid(&id))?;
        system.write(&format!("{namespace}/device_nguid"), &uuid(&id))?;
        system.write(&format!("{namespace}/enable"), "1")?;
        for port in ports {
            system.link(&subsystem, &format!("{}/subsystems/{name}", port.folder()))?;
        }
        Ok(())
    }

    /// Lets a host connect to what was offered.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn admit(&self, lease: LeaseId, host: &str) -> io::Result<()> {
        let entry = format!("hosts/{host}");
        let _guard = self.lock_hosts();
        match self.system.make(&entry) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.system.link(&entry, &format!("subsystems/{}/allowed_hosts/{host}", nqn(lease)))
    }

    /// Takes a lease away from the target, whatever of it is there; its I/O has ended when this returns. May take seconds.
    ///
    /// # Errors
    /// What the kernel says: a host may still reach it. It can be tried again.
    pub fn withdraw(&self, lease: LeaseId) -> io::Result<()> {
        let system = &self.system;
        self.unlink_from_ports(lease)?;
        if !self.has(lease) {
            return Ok(());
        }
        let subsystem = format!("subsystems/{}", nqn(lease));
        for host in system.list(&format!("{subsystem}/allowed_hosts"))? {
            let _guard = self.lock_hosts();
            system.unlink(&format!("{subsystem}/allowed_hosts/{host}"))?;
            // It stays where other subsystems let it in.
            let _ = system.remove(&format!("hosts/{host}"));
        }
        for namespace in system.list(&format!("{subsystem}/namespaces"))? {
            let namespace = format!("{subsystem}/namespaces/{namespace}");
            let device = system.read(&format!("{namespace}/device_path"))?;
            // It returns when the I/O of the namespace has ended.
            system.write(&format!("{namespace}/enable"), "0")?;
            self.await_detached(lease, &device)?;
            system.remove(&namespace)?;
        }
        system.remove(&subsystem)
    }

    fn unlink_from_ports(&self, lease: LeaseId) -> io::Result<()> {
        let name = nqn(lease);
        for port in self.system.list("ports")? {
            let links = format!("ports/{port}/subsystems");
            if self.system.list(&links)?.contains(&name) {
                self.system.unlink(&format!("{links}/{name}"))?;
            }
        }
        Ok(())
    }

    fn await_detached(&self, lease: LeaseId, device: &str) -> io::Result<()> {
        let name = device_name(lease);
        let until = Instant::now() + PATIENCE;
        // Where the attempt ended before there was a device, the kernel says `(null)`.
        while device.starts_with("/dev/") && self.system.is_attached(device, &name) {
            if Instant::now() >= until {
                return Err(io::Error::new(ErrorKind::ResourceBusy, format!("{device} is still open")));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn lock_hosts(&self) -> MutexGuard<'_, ()> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn device_name(lease: LeaseId) -> String {
    format!("berth:{lease}")
}

/// 32 hex digits as UUIDs are written.
fn uuid(id: &str) -> String {
    [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]].join("-")
}
