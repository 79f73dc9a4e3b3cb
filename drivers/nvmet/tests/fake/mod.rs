//! A kernel's target as far as its configfs tree shows it: what may be made and removed when, and which operation fails.
#![allow(dead_code)]

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, Weak},
};

use berth_lease::LeaseId;
use berth_nvmet::{Attached, System};

#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) folders: BTreeSet<String>,
    pub(crate) links: BTreeMap<String, String>,
    pub(crate) attributes: BTreeMap<String, String>,
    /// Devices with their names, and who holds them open beside enabled namespaces.
    devices: BTreeMap<String, (String, Weak<()>)>,
    /// A device that somebody else has open.
    pub(crate) busy: Option<String>,
    /// What was changed, in order.
    pub(crate) log: Vec<String>,
    /// Operations so far.
    pub(crate) done: usize,
    /// The operation that fails, and whether all after it do.
    pub(crate) fails: Option<(usize, bool)>,
}

/// One process's view of the tree, which outlives it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<Tree>>);

pub(crate) fn lease(n: u128) -> LeaseId {
    LeaseId(0xaaaa_0000_0000_0000_1111_2222_3333_0000 + n)
}

impl Fake {
    pub(crate) fn new() -> Self {
        let fake = Self::default();
        fake.tree().folders.extend(["ports", "subsystems", "hosts"].map(str::to_owned));
        fake
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap()
    }

    /// From now on the `nth` operation fails, and where `dead` all after it: the process was killed there.
    pub(crate) fn fail(&self, nth: usize, dead: bool) {
        let mut tree = self.tree();
        tree.fails = Some((tree.done + nth, dead));
    }

    /// Whether the operation that was to fail came.
    pub(crate) fn has_failed(&self) -> bool {
        let tree = self.tree();
        tree.fails.is_some_and(|(nth, _)| nth < tree.done)
    }

    /// Everything works again.
    pub(crate) fn mend(&self) {
        self.tree().fails = None;
    }

    /// What there is beside the three folders of the root.
    pub(crate) fn left(&self) -> Vec<String> {
        let mut tree = self.tree();
        let held: Vec<_> = tree.devices.keys().filter(|device| tree.is_held(device)).cloned().collect();
        tree.devices.retain(|device, _| held.contains(device));
        let own = ["ports", "subsystems", "hosts"];
        let folders = tree.folders.iter().filter(|folder| !own.contains(&folder.as_str()));
        folders.chain(tree.links.keys()).chain(&held).cloned().collect()
    }

    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.tree().log)
    }

    fn begin(&self) -> io::Result<MutexGuard<'_, Tree>> {
        let mut tree = self.tree();
        let nth = tree.done;
        tree.done += 1;
        match tree.fails {
            Some((at, dead)) if nth == at || dead && nth > at => Err(io::Error::other("made to fail")),
            _ => Ok(tree),
        }
    }
}

impl Tree {
    fn is_held(&self, device: &str) -> bool {
        let served = self.attributes.iter().any(|(name, value)| {
            let namespace = name.strip_suffix("/device_path").filter(|_| value == device);
            namespace.is_some_and(|of| self.attributes.get(&format!("{of}/enable")).is_some_and(|on| on == "1"))
        });
        served
            || self.busy.as_deref() == Some(device)
            || self.devices.get(device).is_some_and(|(_, hold)| hold.strong_count() > 0)
    }

    fn needs(&self, folder: &str) -> io::Result<()> {
        if self.folders.contains(folder) { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').unwrap().0
}

impl System for Fake {
    fn make(&self, folder: &str) -> io::Result<()> {
        let mut tree = self.begin()?;
        tree.needs(parent(folder))?;
        if !tree.folders.insert(folder.to_owned()) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let own: &[&str] = match parent(folder) {
            "subsystems" => &["namespaces", "allowed_hosts"],
            "ports" => &["subsystems"],
            _ => &[],
        };
        tree.folders.extend(own.iter().map(|name| format!("{folder}/{name}")));
        tree.log.push(format!("mkdir {folder}"));
        Ok(())
    }

    fn remove(&self, folder: &str) -> io::Result<()> {
        let mut tree = self.begin()?;
        tree.needs(folder)?;
        if tree.links.values().any(|target| target == folder) {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let below = format!("{folder}/");
        let own = |name: &str| ["namespaces", "allowed_hosts", "subsystems"].contains(&&name[below.len()..]);
        let is_full = tree.links.keys().any(|link| link.starts_with(&below))
            || tree.folders.iter().any(|other| other.starts_with(&below) && !own(other));
        if is_full {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        assert_ne!(tree.attributes.get(&format!("{folder}/enable")).map(String::as_str), Some("1"), "its I/O goes on");
        tree.folders.retain(|other| other != folder && !other.starts_with(&below));
        tree.attributes.retain(|name, _| !name.starts_with(&below));
        tree.log.push(format!("rmdir {folder}"));
        Ok(())
    }

    fn link(&self, folder: &str, link: &str) -> io::Result<()> {
        let mut tree = self.begin()?;
        tree.needs(folder)?;
        tree.needs(parent(link))?;
        if tree.links.contains_key(link) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        tree.links.insert(link.to_owned(), folder.to_owned());
        tree.log.push(format!("link {link}"));
        Ok(())
    }

    fn unlink(&self, link: &str) -> io::Result<()> {
        let mut tree = self.begin()?;
        tree.links.remove(link).ok_or(ErrorKind::NotFound)?;
        tree.log.push(format!("unlink {link}"));
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let tree = self.begin()?;
        let below = format!("{folder}/");
        let names = tree.folders.iter().chain(tree.links.keys()).filter_map(|path| path.strip_prefix(&below));
        Ok(names.filter(|name| !name.contains('/')).map(str::to_owned).collect())
    }

    fn write(&self, attribute: &str, value: &str) -> io::Result<()> {
        let mut tree = self.begin()?;
        tree.needs(parent(attribute))?;
        if attribute.ends_with("/enable") && value == "1" {
            let device = tree.attributes.get(&format!("{}/device_path", parent(attribute))).cloned();
            if !device.is_some_and(|device| tree.is_held(&device)) {
                return Err(ErrorKind::NotFound.into());
            }
        }
        tree.attributes.insert(attribute.to_owned(), value.to_owned());
        tree.log.push(format!("{attribute} = {value}"));
        Ok(())
    }

    fn read(&self, attribute: &str) -> io::Result<String> {
        let tree = self.begin()?;
        Ok(tree.attributes.get(attribute).cloned().unwrap_or_else(|| "(null)".to_owned()))
    }

    fn attach(&self, backing: &Path, at: u64, len: u64, name: &str) -> io::Result<Attached> {
        let mut tree = self.begin()?;
        let device = format!("/dev/loop{}", tree.devices.len());
        let hold = Arc::new(());
        tree.devices.insert(device.clone(), (name.to_owned(), Arc::downgrade(&hold)));
        tree.log.push(format!("attach {} {at}+{len} as {name}", backing.display()));
        Ok(Attached { device, hold: Box::new(hold) })
    }

    fn is_attached(&self, device: &str, name: &str) -> bool {
        let tree = self.tree();
        tree.devices.get(device).is_some_and(|(known, _)| known == name) && tree.is_held(device)
    }
}
