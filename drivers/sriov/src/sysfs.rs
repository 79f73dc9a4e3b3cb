//! PCI functions as the kernel shows them, below a root that tests replace.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::Address;

/// The driver that hands functions to user space.
pub(crate) const VFIO: &str = "vfio-pci";

/// `/sys`, `/dev`, `/proc` and `/etc`, below a root.
#[derive(Debug, Clone)]
pub(crate) struct Sysfs(PathBuf);

impl Sysfs {
    pub(crate) fn new(root: &Path) -> Self {
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

    /// The number in an attribute of a function.
    pub(crate) fn number(&self, address: Address, name: &str) -> Option<u32> {
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

    /// The driver that has a function.
    pub(crate) fn driver(&self, address: Address) -> Option<String> {
        self.link_name(address, "driver")
    }

    /// The address of a virtual function; `None` where it is not there.
    pub(crate) fn virtual_function(&self, pf: Address, index: u16) -> Option<Address> {
        self.link_name(pf, &format!("virtfn{index}"))?.parse().ok()
    }

    /// The IOMMU group of a function, and whether it is alone in it.
    pub(crate) fn group(&self, address: Address) -> Option<(String, bool)> {
        let group = self.link_name(address, "iommu_group")?;
        let members = fs::read_dir(self.path(&format!("/sys/kernel/iommu_groups/{group}/devices"))).ok()?;
        let mut members = members.flatten().map(|member| member.file_name());
        let alone = members.all(|member| *member == *address.to_string());
        Some((group, alone))
    }

    /// The node through which user space has a group.
    pub(crate) fn node(&self, group: &str) -> PathBuf {
        self.path("/dev/vfio").join(group)
    }

    /// The index of a physical function's network interface, whether that is up, and its name.
    pub(crate) fn interface(&self, pf: Address) -> Option<Interface> {
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
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) up: bool,
    pub(crate) name: String,
}

fn write(path: &Path, value: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).truncate(true).open(path);
    let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
}
