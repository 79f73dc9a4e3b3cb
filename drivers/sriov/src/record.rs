//! What was done to a function, on disk before it is done: a small file for each function that is not as it was found.
//!
//! The node's journal says which lease has which function, and that it is bound. What the function was before, and how far
//! a hand-over had come, is of this machine alone and stands here.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
};

use berth_lease::LeaseId;
use serde::{Deserialize, Serialize};

use crate::{Address, Attributes};

/// What is done next to a function. Each is written down before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// It is taken from the driver that has it.
    Unbind,
    /// It is reset before its holder has it.
    Reset,
    /// Its attributes are set, or its controller gets queues, goes online and has its namespace.
    Configure,
    /// It is bound to vfio-pci, and its node given to the user.
    Open,
    /// Nothing: it is its holder's.
    Given,
    /// It is cut off at the physical function.
    Cut,
    /// It is taken from vfio-pci.
    TakeBack,
    /// It is reset after its holder had it.
    Clean,
    /// It gets the attributes and the driver that it had, or its namespace is taken from it and erased.
    Restore,
}

/// A function that is not as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The physical function.
    pub pf: Address,
    /// Its index among the virtual functions, as in `virtfn0`.
    pub index: u16,
    /// The PCI address of the virtual function.
    pub function: Address,
    /// The lease that it was handed over for.
    #[serde(with = "hex")]
    pub lease: LeaseId,
    /// The step that is next, or was under way when the process ended.
    pub step: Step,
    /// What its attributes were; `None` where the card has no switch.
    pub was: Option<Attributes>,
    /// Of an NVMe controller's function: the namespace that it gets.
    #[serde(default)]
    pub namespace: Option<u32>,
    /// The driver that had it; `None` if none had.
    pub driver: Option<String>,
}

/// Where records are kept.
pub trait Records: Debug + Send + Sync {
    /// All there are.
    fn read(&self) -> io::Result<Vec<Record>>;

    /// Puts a record in the place of the function's last; durable when it returns.
    fn write(&self, record: &Record) -> io::Result<()>;

    /// The function is again as it was found; durable when it returns.
    fn remove(&self, record: &Record) -> io::Result<()>;
}

/// Records as JSON files of one folder, named `PF-INDEX`, which their owner alone may read.
#[derive(Debug)]
pub struct Files(PathBuf);

impl Files {
    /// Those in `folder`, which is made where it is not there.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    fn path(&self, record: &Record) -> PathBuf {
        self.0.join(format!("{}-{}", record.pf, record.index))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl Records for Files {
    fn read(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "new") {
                // Of a write that a crash stopped: what was to be done was not begun.
                fs::remove_file(&path)?;
                continue;
            }
            let record = serde_json::from_slice(&fs::read(&path)?);
            let damaged = |e| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display()));
            records.push(record.map_err(damaged)?);
        }
        Ok(records)
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let path = self.path(record);
        let new = self.0.join(format!("{}-{}.new", record.pf, record.index));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        self.sync()
    }

    fn remove(&self, record: &Record) -> io::Result<()> {
        fs::remove_file(self.path(record))?;
        self.sync()
    }
}

/// Lease ids as 32 hex digits.
mod hex {
    use super::LeaseId;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(id: &LeaseId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", id.0))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LeaseId, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map(LeaseId).map_err(D::Error::custom)
    }
}
