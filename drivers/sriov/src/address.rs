//! Addresses of PCI functions, as sysfs writes them: `0000:03:10.1`.

use std::{fmt, str::FromStr};

use berth_wire::fabric::PciAddress;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The address of a PCI function: a domain, a bus, a device below 32 and a function below 8, in hex digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    domain: u16,
    bus: u8,
    device: u8,
    function: u8,
}

/// Not the address of a PCI function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no PCI address; write one such as 0000:03:00.0")]
pub struct BadAddress;

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let number = |digits: &str, len: usize| {
            let plain = digits.len() == len && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
            u16::from_str_radix(digits, 16).ok().filter(|_| plain).ok_or(BadAddress)
        };
        let [domain, bus, rest] = text.split(':').collect::<Vec<_>>()[..] else { return Err(BadAddress) };
        let (device, function) = rest.split_once('.').ok_or(BadAddress)?;
        let (device, function) = (number(device, 2)? as u8, number(function, 1)? as u8);
        if device >= 32 || function >= 8 {
            return Err(BadAddress);
        }
        Ok(Self { domain: number(domain, 4)?, bus: number(bus, 2)? as u8, device, function })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

impl From<Address> for PciAddress {
    fn from(Address { domain, bus, device, function }: Address) -> Self {
        Self { domain, bus, devfn: device << 3 | function }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_it_was_read() {
        for text in ["0000:03:00.0", "0001:af:1f.7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!(
            PciAddress::from("0102:03:04.1".parse::<Address>().unwrap()),
            PciAddress { domain: 0x0102, bus: 3, devfn: 0x21 }
        );
        for text in ["", "03:00.0", "0000:03:00", "0000:03:20.0", "0000:03:00.8", "0000:03:+0.0", "00000:3:00.0"] {
            assert_eq!(text.parse::<Address>(), Err(BadAddress), "{text:?}");
        }
    }
}
