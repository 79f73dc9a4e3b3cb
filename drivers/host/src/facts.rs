//! Hardware of the machine, from sysfs. What no file tells is left out, never guessed.

use std::{fs, io, path::Path, str::FromStr};

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number of the node.
    pub id: u32,
    /// Its CPUs; empty for memory only, as with a CXL expander.
    pub cpus: Vec<usize>,
    /// Total memory in bytes.
    pub total: u64,
    /// Available memory in bytes: free memory, and file cache that can be dropped.
    pub available: u64,
    /// Read latency from its nearest CPUs in nanoseconds; `None` if the firmware does not tell (HMAT).
    pub latency_ns: Option<u32>,
    /// Read bandwidth from its nearest CPUs in bytes per second; `None` if the firmware does not tell (HMAT).
    pub bandwidth: Option<u64>,
}

/// A graphics processor or accelerator on PCI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// PCI address, such as `0000:3b:00.0`.
    pub address: String,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// NUMA node that it is attached to; `None` if unknown.
    pub numa: Option<u32>,
    /// Kernel driver that it is bound to; `None` if it is not bound.
    pub driver: Option<String>,
    /// Size of its own memory in bytes; `None` if the driver does not tell.
    pub vram: Option<u64>,
    /// Largest window of its memory that the processor can map, in bytes; 0 if there is none.
    pub window: u64,
}

/// NUMA nodes that are online, in order; `sys` is the mount point of sysfs.
pub fn numa_nodes(sys: &Path) -> Vec<NumaNode> {
    let nodes = sys.join("devices/system/node");
    let node = |id: u32| {
        let dir = nodes.join(format!("node{id}"));
        let initiators = dir.join("access0/initiators");
        let info = fs::read_to_string(dir.join("meminfo")).ok()?;
        let bytes = |field: &str| {
            let line = info.lines().find_map(|line| line.split_once(field))?;
            line.1.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
        };
        Some(NumaNode {
            id,
            cpus: ranges(&read(&dir, "cpulist").unwrap_or_default()),
            total: bytes("MemTotal:")?,
            available: bytes("MemFree:")?
                + bytes("FilePages:").unwrap_or(0).saturating_sub(bytes("Shmem:").unwrap_or(0)),
            latency_ns: number(&initiators, "read_latency").filter(|&ns| ns > 0),
            bandwidth: number(&initiators, "read_bandwidth").filter(|&mb| mb > 0).map(|mb: u64| mb * 1_000_000),
        })
    };
    ranges(&read(&nodes, "online").unwrap_or_default()).into_iter().filter_map(|id| node(id as u32)).collect()
}

/// Graphics processors and accelerators, by address; `sys` is the mount point of sysfs.
///
/// A VGA controller only counts if its vendor makes GPUs, because a server's management controller is one, too.
pub fn gpus(sys: &Path) -> Vec<Gpu> {
    const GPU_VENDORS: [u16; 3] = [0x1002, 0x10de, 0x8086];
    let gpu = |dir: &Path| {
        let (vendor, device) = (hex(dir, "vendor")? as u16, hex(dir, "device")? as u16);
        match hex(dir, "class")? >> 8 {
            0x0302 | 0x1200 => {}
            0x0300 | 0x0380 if GPU_VENDORS.contains(&vendor) => {}
            _ => return None,
        }
        Some(Gpu {
            address: dir.file_name()?.to_str()?.to_owned(),
            vendor,
            device,
            numa: number::<i64>(dir, "numa_node").and_then(|node| u32::try_from(node).ok()),
            driver: fs::read_link(dir.join("driver")).ok().and_then(|to| Some(to.file_name()?.to_str()?.to_owned())),
            vram: number(dir, "mem_info_vram_total"),
            window: read(dir, "resource").map_or(0, |resources| largest_window(&resources)),
        })
    };
    let mut gpus: Vec<_> = entries(&sys.join("bus/pci/devices")).filter_map(|dir| gpu(&dir)).collect();
    gpus.sort_by(|a, b| a.address.cmp(&b.address));
    gpus
}

/// Whether the memory controllers correct errors; `sys` is the mount point of sysfs.
pub fn has_ecc(sys: &Path) -> bool {
    entries(&sys.join("devices/system/edac/mc")).any(|dir| dir.join("size_mb").exists())
}

/// Largest prefetchable memory window in the first six lines `start end flags` of a PCI `resource` file.
fn largest_window(resources: &str) -> u64 {
    const MEMORY: u64 = 0x200;
    const PREFETCH: u64 = 0x2000;
    let window = |line: &str| {
        let mut words = line.split_whitespace().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
        let (Ok(start), Ok(end), Ok(flags)) = (words.next()?, words.next()?, words.next()?) else { return None };
        let whole = flags & (MEMORY | PREFETCH) == MEMORY | PREFETCH;
        end.checked_sub(start)?.checked_add(1).filter(|_| whole && start != 0)
    };
    resources.lines().take(6).filter_map(window).max().unwrap_or(0)
}

/// The numbers in a list such as `0-3,8`.
fn ranges(list: &str) -> Vec<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The directories and links in `dir`; none if it is missing.
pub(crate) fn entries(dir: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    fs::read_dir(dir).into_iter().flatten().filter_map(|entry: io::Result<_>| Some(entry.ok()?.path()))
}

/// Text of a file, without the white space around it; `None` if it cannot be read.
pub(crate) fn read(dir: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(dir.join(file)).ok()?.trim().to_owned())
}

/// Number in a file; `None` if it has none.
pub(crate) fn number<T: FromStr>(dir: &Path, file: &str) -> Option<T> {
    read(dir, file)?.parse().ok()
}

fn hex(dir: &Path, file: &str) -> Option<u32> {
    u32::from_str_radix(read(dir, file)?.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::tree;

    #[test]
    fn nodes_with_and_without_processors() {
        let sys = tree(&[
            ("devices/system/node/online", "0-1"),
            ("devices/system/node/node0/cpulist", "0-2,5"),
            (
                "devices/system/node/node0/meminfo",
                "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:        512 kB\n\
                 Node 0 FilePages:      100 kB\nNode 0 Shmem:          40 kB",
            ),
            ("devices/system/node/node0/access0/initiators/read_latency", "90"),
            ("devices/system/node/node0/access0/initiators/read_bandwidth", "200000"),
            ("devices/system/node/node1/cpulist", ""),
            ("devices/system/node/node1/meminfo", "Node 1 MemTotal: 4 kB\nNode 1 MemFree: 0 kB\n"),
        ]);
        let near = NumaNode {
            id: 0,
            cpus: vec![0, 1, 2, 5],
            total: 1 << 20,
            available: 572 << 10,
            latency_ns: Some(90),
            bandwidth: Some(200_000_000_000),
        };
        let far = NumaNode { id: 1, cpus: vec![], total: 4096, available: 0, latency_ns: None, bandwidth: None };
        assert_eq!(numa_nodes(sys.path()), [near, far]);
        assert_eq!(numa_nodes(Path::new("/nowhere")), []);
    }

    #[test]
    fn this_machine_has_a_node() {
        let nodes = numa_nodes(Path::new("/sys"));
        assert!(nodes.is_empty() || nodes.iter().any(|node| node.total > 0 && !node.cpus.is_empty()), "{nodes:?}");
    }

    #[test]
    fn gpus_are_told_from_other_devices() {
        let sys = tree(&[
            ("bus/pci/devices/0000:41:00.0/class", "0x120000"),
            ("bus/pci/devices/0000:41:00.0/vendor", "0x1002"),
            ("bus/pci/devices/0000:41:00.0/device", "0x74a1"),
            ("bus/pci/devices/0000:41:00.0/numa_node", "-1"),
            ("bus/pci/devices/0000:41:00.0/mem_info_vram_total", "206141652992"),
            ("bus/pci/devices/0000:3b:00.0/class", "0x030200"),
            ("bus/pci/devices/0000:3b:00.0/vendor", "0x10de"),
            ("bus/pci/devices/0000:3b:00.0/device", "0x2330"),
            ("bus/pci/devices/0000:3b:00.0/numa_node", "1"),
            (
                "bus/pci/devices/0000:3b:00.0/resource",
                "0x00000000c0000000 0x00000000c0ffffff 0x0000000000040200\n\
                 0x0000022000000000 0x0000023fffffffff 0x000000000014220c\n\
                 0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
            ),
            // A management controller's screen, and a disk.
            ("bus/pci/devices/0000:02:00.0/class", "0x030000"),
            ("bus/pci/devices/0000:02:00.0/vendor", "0x1a03"),
            ("bus/pci/devices/0000:02:00.0/device", "0x2000"),
            ("bus/pci/devices/0000:03:00.0/class", "0x010802"),
            ("bus/pci/devices/0000:03:00.0/vendor", "0x10de"),
            ("bus/pci/devices/0000:03:00.0/device", "0x0001"),
        ]);
        let link = sys.path().join("bus/pci/devices/0000:3b:00.0/driver");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/nvidia", link).unwrap();
        let found = gpus(sys.path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            found[0],
            Gpu {
                address: "0000:3b:00.0".into(),
                vendor: 0x10de,
                device: 0x2330,
                numa: Some(1),
                driver: Some("nvidia".into()),
                vram: None,
                window: 128 << 30,
            }
        );
        assert_eq!((found[1].numa, found[1].vram, found[1].window), (None, Some(206_141_652_992), 0));
    }

    #[test]
    fn memory_that_corrects_errors() {
        assert!(has_ecc(tree(&[("devices/system/edac/mc/mc0/size_mb", "65536")]).path()));
        assert!(!has_ecc(tree(&[("devices/system/edac/mc/power/control", "auto")]).path()));
    }
}
