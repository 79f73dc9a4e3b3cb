//! What a physical function lets its virtual ones do: their attributes over rtnetlink.
//!
//! A function's attributes are nested in those of the physical one's interface: `IFLA_VFINFO_LIST`, in it an `IFLA_VF_INFO`
//! for each, in it an `IFLA_VF_*` for each attribute, which begins with the function's index.

use std::{
    fmt::Debug,
    io::{self, Read as _},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

/// What the switch of a network card does for one of its functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Attributes {
    /// The MAC address that it receives for.
    pub mac: [u8; 6],
    /// Its VLAN; 0 is none.
    pub vlan: u16,
    /// The priority of its frames within the VLAN.
    pub qos: u8,
    /// What it is let send at least, in Mbit/s; 0 is nothing that is kept for it.
    pub min_rate: u32,
    /// What it is let send, in Mbit/s; 0 is without limit.
    pub max_rate: u32,
    /// Whether only frames of its own address leave; `None` where the driver does not know.
    pub spoofchk: Option<bool>,
    /// Whether it may change its address or listen to everything; `None` where the driver does not know.
    pub trust: Option<bool>,
    /// 0: as the card's link, 1: always up, 2: down.
    pub link_state: u32,
}

/// What is set in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "as the fields of `Attributes`")]
pub enum Setting {
    Mac([u8; 6]),
    Vlan { vlan: u16, qos: u8 },
    Rate { min: u32, max: u32 },
    SpoofChk(bool),
    Trust(bool),
    LinkState(u32),
}

/// Reads and sets attributes of functions, by the index of the physical one's interface.
pub trait Switch: Debug + Send + Sync {
    /// Reads those of one function; `NotFound` where the interface has none of this index.
    fn get(&self, interface: u32, function: u16) -> io::Result<Attributes>;

    /// Sets one; returns when the kernel has acknowledged it.
    fn set(&self, interface: u32, function: u16, setting: Setting) -> io::Result<()>;
}

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const IFLA_VFINFO_LIST: u16 = 22;
const IFLA_EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS`: 256 functions with their counts do not fit an attribute.
const WITH_FUNCTIONS: u32 = 1 | 8;
const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_VLAN: u16 = 2;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;
/// `NLA_TYPE_MASK`.
const TYPE: u16 = 0x3fff;
/// `struct nlmsghdr` and `struct ifinfomsg`.
const HEADERS: usize = 16 + 16;
/// More than the kernel sends at once: attributes have 64 KiB at most.
const LONGEST: usize = 256 << 10;
/// The kernel answers at once, or the card's driver hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The kernel's rtnetlink: a socket for each request, and 5 s for the answer.
#[derive(Debug)]
pub struct Rtnetlink;

impl Switch for Rtnetlink {
    fn get(&self, interface: u32, function: u16) -> io::Result<Attributes> {
        let mut request = request(RTM_GETLINK, NLM_F_REQUEST, interface);
        attribute(&mut request, IFLA_EXT_MASK, |to| to.extend(WITH_FUNCTIONS.to_ne_bytes()));
        let answer = exchange(request)?;
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("interface {interface}: no function {function}"));
        find(&answer, function).ok_or_else(missing)
    }

    fn set(&self, interface: u32, function: u16, setting: Setting) -> io::Result<()> {
        let mut request = request(RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK, interface);
        attribute(&mut request, IFLA_VFINFO_LIST, |list| {
            attribute(list, IFLA_VF_INFO, |info| write_setting(info, function, setting));
        });
        exchange(request).map(drop)
    }
}

fn request(kind: u16, flags: u16, interface: u32) -> Vec<u8> {
    let mut message = vec![0; HEADERS];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    // AF_UNSPEC, then the interface at byte 4 of `ifinfomsg`.
    message[20..24].copy_from_slice(&interface.to_ne_bytes());
    message
}

/// Appends an attribute: length, type, value, padding to 4 bytes.
fn attribute(to: &mut Vec<u8>, kind: u16, value: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend([0; 4]);
    value(to);
    let len = (to.len() - start) as u16;
    to[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    to[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
    to.resize(to.len().next_multiple_of(4), 0);
}

fn write_setting(to: &mut Vec<u8>, function: u16, setting: Setting) {
    let function = u32::from(function);
    let mut words = |kind, values: &[u32]| {
        attribute(to, kind, |to| [&[function], values].concat().iter().for_each(|word| to.extend(word.to_ne_bytes())));
    };
    match setting {
        Setting::Vlan { vlan, qos } => words(IFLA_VF_VLAN, &[vlan.into(), qos.into()]),
        Setting::Rate { min, max } => words(IFLA_VF_RATE, &[min, max]),
        Setting::SpoofChk(on) => words(IFLA_VF_SPOOFCHK, &[on.into()]),
        Setting::Trust(on) => words(IFLA_VF_TRUST, &[on.into()]),
        Setting::LinkState(state) => words(IFLA_VF_LINK_STATE, &[state]),
        Setting::Mac(mac) => attribute(to, IFLA_VF_MAC, |to| {
            to.extend(function.to_ne_bytes());
            to.extend(mac);
            // The field has room for 32 bytes.
            to.extend([0; 26]);
        }),
    }
}

/// Sends a request, and returns the kernel's message that answers it.
fn exchange(mut request: Vec<u8>) -> io::Result<Vec<u8>> {
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    let (domain, kind) = (Domain::from(libc::AF_NETLINK), Type::RAW);
    let mut socket = Socket::new(domain, kind, Some(Protocol::from(libc::NETLINK_ROUTE)))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // A netlink socket that is connected to nobody sends to the kernel.
    socket.send(&request)?;
    let mut answer = vec![0; LONGEST];
    let len = socket.read(&mut answer)?;
    answer.truncate(len);
    match status(&answer) {
        Some(0) | None => Ok(answer),
        Some(error) => Err(io::Error::from_raw_os_error(error)),
    }
}

/// What an acknowledgement says: 0, or an error number; `None` where the message is another.
fn status(message: &[u8]) -> Option<i32> {
    if half(message, 4)? != NLMSG_ERROR {
        return None;
    }
    Some(-i32::from_ne_bytes(message.get(16..20)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The attributes in `bytes`, as far as they are sound.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(half(bytes, 0)?), half(bytes, 2)? & TYPE);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attributes of one function in a message about its physical one.
fn find(message: &[u8], function: u16) -> Option<Attributes> {
    if half(message, 4)? != RTM_NEWLINK {
        return None;
    }
    let lists = attributes(message.get(HEADERS..)?).filter(|(kind, _)| *kind == IFLA_VFINFO_LIST);
    let mut functions = lists.flat_map(|(_, list)| attributes(list)).map(|(_, info)| info);
    let info = functions.find(|info| {
        attributes(info).any(|(kind, value)| kind == IFLA_VF_MAC && word(value, 0) == Some(function.into()))
    })?;
    let mut found = Attributes::default();
    // All ones where the driver does not know.
    let flag = |value| word(value, 4).filter(|flag| *flag <= 1).map(|flag| flag == 1);
    for (kind, value) in attributes(info) {
        match kind {
            IFLA_VF_MAC => found.mac = value.get(4..10)?.try_into().ok()?,
            IFLA_VF_VLAN => (found.vlan, found.qos) = (word(value, 4)? as u16, word(value, 8)? as u8),
            IFLA_VF_RATE => (found.min_rate, found.max_rate) = (word(value, 4)?, word(value, 8)?),
            IFLA_VF_SPOOFCHK => found.spoofchk = flag(value),
            IFLA_VF_TRUST => found.trust = flag(value),
            IFLA_VF_LINK_STATE => found.link_state = word(value, 4)?,
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(functions: &[(u16, &[Setting])]) -> Vec<u8> {
        let mut message = request(RTM_NEWLINK, 0, 3);
        attribute(&mut message, 3, |to| to.extend(b"enp3s0\0"));
        attribute(&mut message, IFLA_VFINFO_LIST | 0x8000, |list| {
            for (function, settings) in functions {
                attribute(list, IFLA_VF_INFO, |info| {
                    settings.iter().for_each(|setting| write_setting(info, *function, *setting));
                });
            }
        });
        message
    }

    #[test]
    fn a_function_is_found_among_others() {
        let settings = |mac, vlan| {
            let (vlan, rate) = (Setting::Vlan { vlan, qos: 3 }, Setting::Rate { min: 1, max: 100 });
            [Setting::Mac([mac; 6]), vlan, rate, Setting::SpoofChk(true), Setting::Trust(false), Setting::LinkState(2)]
        };
        let message = message(&[(0, &settings(1, 5)), (6, &settings(2, 7))]);
        let found = find(&message, 6).unwrap();
        let (spoofchk, trust) = (Some(true), Some(false));
        let expected =
            Attributes { mac: [2; 6], vlan: 7, qos: 3, min_rate: 1, max_rate: 100, spoofchk, trust, link_state: 2 };
        assert_eq!(found, expected);
        assert_eq!(find(&message, 1), None);
        for len in 0..message.len() {
            let _ = find(&message[..len], 6);
        }
    }

    #[test]
    fn a_setting_is_laid_out_as_the_kernel_reads_it() {
        let mut bytes = Vec::new();
        write_setting(&mut bytes, 2, Setting::Mac([1, 2, 3, 4, 5, 6]));
        assert_eq!(bytes.len(), 4 + 36, "struct ifla_vf_mac");
        assert_eq!(bytes[..14], [40, 0, 1, 0, 2, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
        bytes.clear();
        write_setting(&mut bytes, 2, Setting::Vlan { vlan: 0x123, qos: 4 });
        assert_eq!(bytes, [16, 0, 2, 0, 2, 0, 0, 0, 0x23, 1, 0, 0, 4, 0, 0, 0]);
    }

    /// The real kernel: loopback is an interface without functions, and interface 0 is none.
    #[test]
    fn the_kernel_answers() {
        assert_eq!(Rtnetlink.get(1, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(Rtnetlink.get(u32::MAX >> 1, 0).unwrap_err().raw_os_error().is_some());
    }
}
