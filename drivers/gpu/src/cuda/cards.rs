//! NVIDIA's GPUs of this machine, and which of them is meant.

use std::{
    ffi::{CStr, c_char, c_int},
    fmt::Write as _,
};

use serde::{Deserialize, Serialize};

use super::{
    driver::{Driver, call},
    health::Health,
};
use crate::{choice::Choice, device::DeviceError};

/// Attributes of devices, as cuda.h numbers them.
pub(super) const PROCESSORS: c_int = 16;
pub(super) const WATCHED: c_int = 17;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const HOST_ADDRESSES: c_int = 91;
const RDMA: c_int = 116;
const WRITES_ORDERING: c_int = 118;
const DMA_BUF: c_int = 124;

/// What Berth's kernels are made for: loads and stores of system scope, and threads that progress on their own.
const CAPABILITY: [i32; 2] = [7, 0];

/// NVIDIA's driver, and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cards {
    /// The version of CUDA that it is of: major and minor number.
    pub version: (u32, u32),
    /// The version of the kernel's driver, by the management library; else why that tells nothing.
    pub management: Result<String, String>,
    /// In the driver's order.
    pub all: Vec<Card>,
}

/// An NVIDIA GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// PCI address, such as `0000:3b:00.0`.
    pub address: String,
    /// `GPU-` and 32 hex digits in groups.
    pub uuid: String,
    /// The model, as the driver calls it.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Compute capability, major and minor number; Berth's kernels need 7.0 or later.
    pub capability: [i32; 2],
    /// Multiprocessors.
    pub processors: i32,
    /// It reads memory of the host at the host's own addresses.
    pub host_addresses: bool,
    /// Whether network cards can reach its memory (`GPUDirect` RDMA); `None` where the driver does not tell.
    pub rdma: Option<bool>,
    /// Who sees what such a card wrote without a flush: 0 nobody, 100 the GPU itself, 200 all GPUs
    /// (`CUGPUDirectRDMAWritesOrdering`); `None` where the driver does not tell.
    pub writes_ordering: Option<i32>,
    /// Whether its memory can be exported as a dma-buf; `None` where the driver does not tell.
    pub dma_buf: Option<bool>,
    /// How it does, where the management library tells.
    pub health: Option<Health>,
}

impl Card {
    /// What keeps it from running Berth's kernels; `None` if nothing does.
    pub fn unusable(&self) -> Option<String> {
        let Self { address, name, capability: [major, minor], .. } = self;
        if self.capability < CAPABILITY {
            let [wanted, least] = CAPABILITY;
            return Some(format!(
                "{name} at {address} is of compute capability {major}.{minor}; {wanted}.{least} or later is needed"
            ));
        }
        (!self.host_addresses).then(|| format!("{name} at {address} does not read the host's memory at its addresses"))
    }
}

impl Driver {
    pub(super) fn attribute(&self, device: c_int, attribute: c_int) -> Result<c_int, DeviceError> {
        let mut value = 0;
        // SAFETY: the place outlives the call.
        unsafe { call!(self.device_attribute(&raw mut value, attribute, device)) }?;
        Ok(value)
    }

    /// All GPUs, each with the driver's handle of it.
    pub(super) fn cards(&self) -> Result<Vec<(c_int, Card)>, DeviceError> {
        let mut count = 0;
        // SAFETY: the place outlives the call.
        unsafe { call!(self.device_count(&raw mut count)) }?;
        (0..count).map(|ordinal| self.card(ordinal)).collect()
    }

    fn card(&self, ordinal: c_int) -> Result<(c_int, Card), DeviceError> {
        let (mut device, mut memory, mut uuid) = (0, 0, [0; 16]);
        let (mut name, mut address): ([c_char; 256], [c_char; 32]) = ([0; 256], [0; 32]);
        // SAFETY: the places outlive the calls, which are told how long texts may be.
        unsafe {
            call!(self.device_get(&raw mut device, ordinal))?;
            call!(self.device_name(name.as_mut_ptr(), name.len() as c_int, device))?;
            call!(self.device_address(address.as_mut_ptr(), address.len() as c_int, device))?;
            call!(self.device_uuid(&raw mut uuid, device))?;
            call!(self.device_memory(&raw mut memory, device))?;
        }
        let address = text(&address);
        // Older drivers do not know them.
        let told = |attribute| self.attribute(device, attribute).ok();
        let card = Card {
            address: address.parse::<crate::choice::Address>().map_or(address, |address| address.to_string()),
            uuid: hyphenated(uuid),
            name: text(&name),
            memory: memory as u64,
            capability: [self.attribute(device, CAPABILITY_MAJOR)?, self.attribute(device, CAPABILITY_MINOR)?],
            processors: self.attribute(device, PROCESSORS)?,
            host_addresses: self.attribute(device, HOST_ADDRESSES)? != 0,
            rdma: told(RDMA).map(|can| can != 0),
            writes_ordering: told(WRITES_ORDERING),
            dma_buf: told(DMA_BUF).map(|can| can != 0),
            health: None,
        };
        Ok((device, card))
    }

    /// The GPU that is meant, if Berth's kernels run on it.
    pub(super) fn choose(&self, choice: &Choice) -> Result<(c_int, Card), DeviceError> {
        let (devices, all): (Vec<_>, Vec<_>) = self.cards()?.into_iter().unzip();
        let found = meant(choice, &all)?;
        Ok((devices[found], all[found].clone()))
    }
}

/// Index of the GPU that is meant; an error where it is not there, or Berth's kernels do not run on it.
fn meant(choice: &Choice, all: &[Card]) -> Result<usize, DeviceError> {
    let is_meant = |card: &Card| match choice {
        Choice::Address(address) => card.address == address.to_string(),
        Choice::Uuid(uuid) => card.uuid == *uuid,
        Choice::Auto => true,
        Choice::Soft | Choice::Hip(_) => false,
    };
    let Some(found) = all.iter().position(is_meant) else {
        let all: Vec<_> = all.iter().map(|card| format!("{} ({})", card.address, card.uuid)).collect();
        let all = if all.is_empty() { "the driver has none".into() } else { format!("there are {}", all.join(", ")) };
        return Err(DeviceError::other(format!("no GPU {choice}; {all}")));
    };
    match all[found].unusable() {
        Some(why) => Err(DeviceError::other(why)),
        None => Ok(found),
    }
}

impl Cards {
    /// The GPU that is meant, if Berth's kernels run on it; else why not.
    pub fn choose(&self, choice: &Choice) -> Result<&Card, DeviceError> {
        meant(choice, &self.all).map(|found| &self.all[found])
    }
}

/// A text that the driver ended with a zero.
pub(super) fn text(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}

fn hyphenated(uuid: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (at, byte) in uuid.iter().enumerate() {
        let hyphen = if [0, 4, 6, 8, 10].contains(&at) { "-" } else { "" };
        write!(text, "{hyphen}{byte:02x}").expect("a string takes all");
    }
    text
}
