//! PCI functions as the kernel shows them, below a root that tests replace.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::Address;

/// The class of NVMe controllers.
const NVME: &str = "0x010802";

/// The driver that hands functions to user space.
pub(crate) const VFIO: &str = "vfio-pci";

/// `/sys`, `/dev`, `/proc` and `/etc`, below a root.
#[derive(Debug, Clone)]
pub struct Sysfs(PathBuf);

impl Sysfs {
    /// The trees below this root; `/` on a real machine.
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// The place of an absolute path.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn device(&self, address: Address, name: &str) -> PathBuf {
        self.path(&format!("/sys/bus/pci/devices/{address}/{name}"))
    }

    /// An attribute of a function, without white space around it.
    pub(crate) fn read(&self, address: Address, name: &str) -> Option<String> {
        fs::read_to_string(self.device(address, name)).ok().map(|text| text.trim().to_owned())
    }

    /// The decimal number in an attribute of a function; `None` where there is none.
    pub fn number(&self, address: Address, name: &str) -> Option<u32> {
        self.read(address, name)?.parse().ok()
    }

    /// Writes an attribute of a function.
    pub(crate) fn write(&self, address: Address, name: &str, value: &str) -> io::Result<()> {
        write(&self.device(address, name), value)
    }

    /// Writes a file of the whole bus.
    pub(crate) fn write_bus(&self, name: &str, value: &str) -> io::Result<()> {
        write(&self.path("/sys/bus/pci").join(name), value)
    }

    fn link_name(&self, address: Address, name: &str) -> Option<String> {
        let target = fs::read_link(self.device(address, name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The driver that has a function; `None` if none has.
    pub fn driver(&self, address: Address) -> Option<String> {
        self.link_name(address, "driver")
    }

    /// The address of a virtual function; `None` where it is not there.
    pub fn virtual_function(&self, pf: Address, index: u16) -> Option<Address> {
        self.link_name(pf, &format!("virtfn{index}"))?.parse().ok()
    }

    /// The physical function of a virtual one; `None` of any other.
    pub fn physical_function(&self, address: Address) -> Option<Address> {
        self.link_name(address, "physfn")?.parse().ok()
    }

    /// The IOMMU group of a function, and whether it is alone in it; `None` where it is in none.
    pub fn group(&self, address: Address) -> Option<(String, bool)> {
        let group = self.link_name(address, "iommu_group")?;
        let members = fs::read_dir(self.path(&format!("/sys/kernel/iommu_groups/{group}/devices"))).ok()?;
        let mut members = members.flatten().map(|member| member.file_name());
        let alone = members.all(|member| *member == *address.to_string());
        Some((group, alone))
    }

    /// Whether a function can be reset alone, and whole: `flr` is among its `reset_method`.
    pub fn has_flr(&self, address: Address) -> bool {
        self.read(address, "reset_method").unwrap_or_default().split_whitespace().any(|method| method == "flr")
    }

    /// Whether a function is that of an NVMe controller: its class is 0x010802.
    pub fn is_nvme(&self, address: Address) -> bool {
        self.read(address, "class").is_some_and(|class| class.starts_with(NVME))
    }

    /// The name of the NVMe controller of a physical function, where a driver has it and it works.
    pub fn live_controller(&self, pf: Address) -> Option<String> {
        let name = fs::read_dir(self.device(pf, "nvme")).ok()?.flatten().next()?.file_name();
        let name = name.to_string_lossy().into_owned();
        (self.read(pf, &format!("nvme/{name}/state"))? == "live").then_some(name)
    }

    /// The node through which user space has a group.
    pub(crate) fn node(&self, group: &str) -> PathBuf {
        self.path("/dev/vfio").join(group)
    }

    /// The first network interface of a physical function; `None` where it has none.
    pub fn interface(&self, pf: Address) -> Option<Interface> {
        let name = fs::read_dir(self.device(pf, "net")).ok()?.flatten().next()?.file_name();
        let name = name.to_string_lossy().into_owned();
        let of = |file: &str| fs::read_to_string(self.path(&format!("/sys/class/net/{name}/{file}"))).ok();
        let flags = u32::from_str_radix(of("flags")?.trim().trim_start_matches("0x"), 16).ok()?;
        Some(Interface { index: of("ifindex")?.trim().parse().ok()?, up: flags & 1 == 1, name })
    }

    /// Begins to take a function from its driver, in a process of its own: vfio-pci keeps the writer in the kernel until the
    /// holder closes the function. A thread of this process could not be ended then, nor could this process: its sockets
    /// and locks would stay.
    pub(crate) fn begin_unbind(&self, address: Address) -> io::Result<Child> {
        Command::new("/bin/sh")
            .args(["-c", "exec printf %s \"$1\" >\"$2\"", "unbind", &address.to_string()])
            .arg(self.device(address, "driver/unbind"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .spawn()
    }

    /// The ids of a user, by name or number, and of its group.
    pub(crate) fn user(&self, name: &str) -> Option<(u32, u32)> {
        let users = fs::read_to_string(self.path("/etc/passwd")).ok()?;
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let (user, _, uid, gid) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
            (user == name || uid == name).then_some(())?;
            Some((uid.parse().ok()?, gid.parse().ok()?))
        })
    }
}

/// The network interface of a physical function.
#[derive(Debug)]
pub struct Interface {
    /// Its `ifindex`, by which netlink knows it.
    pub index: u32,
    /// Whether somebody has set it up (`IFF_UP`), with a link or without.
    pub up: bool,
    /// As `ip link` prints it.
    pub name: String,
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}
