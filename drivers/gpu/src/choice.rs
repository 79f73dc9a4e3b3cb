//! Which device a GPU of the configuration is.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    cuda::Cuda,
    device::{Device, DeviceError},
    soft::Soft,
};

/// Which device a GPU of the configuration is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Choice {
    /// The GPU in software, which needs no driver.
    Soft,
    /// The first that NVIDIA's driver has; an error if Berth's kernels do not run on that one.
    Auto,
    /// NVIDIA's at this PCI address.
    Address(Address),
    /// NVIDIA's with this UUID, `GPU-` and 32 hex digits in groups, in lower case.
    Uuid(String),
    /// One of AMD's, by its number in `libamdhip64`; for sessions of HIP Remote alone.
    Hip(u32),
}

/// A PCI address in hex digits: domain, bus, device and function. The domain may be left out, and is 0 then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address([u32; 4]);

/// The error of a text that names no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("\"auto\", a PCI address such as \"0000:3b:00.0\", a GPU-uuid, \"hip:0\" for one of AMD's, or \"soft\"")]
pub struct NoChoice;

impl Choice {
    /// Opens the device, in this process.
    pub fn open(&self) -> Result<Box<dyn Device>, DeviceError> {
        Ok(match self {
            Self::Soft => Box::new(Soft::default()),
            Self::Hip(_) => return Err(DeviceError::other("GPUs of AMD's serve sessions of HIP Remote alone")),
            _ => Box::new(Cuda::open(self)?),
        })
    }
}

impl FromStr for Address {
    type Err = NoChoice;

    fn from_str(text: &str) -> Result<Self, NoChoice> {
        let number = |text: &str, digits: usize| {
            let is_hex = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            u32::from_str_radix(text, 16).ok().filter(|_| is_hex).ok_or(NoChoice)
        };
        let (rest, function) = text.rsplit_once('.').ok_or(NoChoice)?;
        let mut parts = rest.rsplit(':');
        let (device, bus, domain) = (parts.next(), parts.next(), parts.next());
        let (Some(device), Some(bus), None) = (device, bus, parts.next()) else { return Err(NoChoice) };
        Ok(Self([number(domain.unwrap_or("0"), 8)?, number(bus, 2)?, number(device, 2)?, number(function, 1)?]))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [domain, bus, device, function] = self.0;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Choice {
    type Err = NoChoice;

    fn from_str(text: &str) -> Result<Self, NoChoice> {
        match text {
            "soft" => return Ok(Self::Soft),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        if let Some(number) = text.strip_prefix("hip:") {
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            return number.parse().ok().filter(|_| is_number).map(Self::Hip).ok_or(NoChoice);
        }
        let Some(uuid) = text.strip_prefix("GPU-") else { return text.parse().map(Self::Address) };
        let groups: Vec<_> = uuid.split('-').map(str::len).collect();
        let is_uuid = groups == [8, 4, 4, 4, 12] && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        if is_uuid { Ok(Self::Uuid(format!("GPU-{}", uuid.to_ascii_lowercase()))) } else { Err(NoChoice) }
    }
}

impl TryFrom<String> for Choice {
    type Error = NoChoice;

    fn try_from(text: String) -> Result<Self, NoChoice> {
        text.parse()
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Soft => f.write_str("soft"),
            Self::Auto => f.write_str("auto"),
            Self::Address(address) => address.fmt(f),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Hip(number) => write!(f, "hip:{number}"),
        }
    }
}

impl From<Choice> for String {
    fn from(choice: Choice) -> Self {
        choice.to_string()
    }
}
