//! Functions of a network card: what its switch does for them.

use berth_wire::net::MacAddr;

use crate::{
    Address, Attributes, Setting,
    function::{Failure, Host, io_error},
};

/// A VLAN that no network has: it is reserved. Where the driver refuses it, the last one is taken.
const DEAD_VLAN: u16 = 4095;

/// `IFLA_VF_LINK_STATE_AUTO` and `_DISABLE`.
const LINK_AUTO: u32 = 0;
const LINK_DOWN: u32 = 2;

/// What a holder gets.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) mac: MacAddr,
    pub(crate) vlan: u16,
    pub(crate) rate: u32,
    pub(crate) trust: bool,
    pub(crate) spoofchk: bool,
}

/// What must hold before a function is anybody's; its attributes, where the card has a switch.
pub(crate) fn check(host: &Host, pf: Address, index: u16) -> Result<Option<Attributes>, Failure> {
    match host.sysfs.interface(pf) {
        Some(interface) if !interface.up => Err(Failure::Down(interface.name)),
        Some(interface) => get(host, interface.index, index).map(Some),
        None => Ok(None),
    }
}

pub(crate) fn configure(host: &Host, pf: Address, index: u16, wanted: &Wanted) -> Result<(), Failure> {
    let Some(interface) = host.sysfs.interface(pf) else { return Ok(()) };
    let Wanted { mac, vlan, rate, trust, spoofchk } = *wanted;
    let (spoofchk, trust) = (Some(spoofchk), Some(trust));
    let mac = mac.0;
    let wanted = Attributes { mac, vlan, qos: 0, min_rate: 0, max_rate: rate, spoofchk, trust, link_state: LINK_AUTO };
    adjust(host, interface.index, index, &wanted)
}

/// From now on no frame of it passes.
pub(crate) fn cut(host: &Host, pf: Address, index: u16) -> Result<(), Failure> {
    let Some(interface) = host.sysfs.interface(pf) else { return Ok(()) };
    let set = |setting| host.switch.set(interface.index, index, setting);
    let down = set(Setting::LinkState(LINK_DOWN));
    // Not every driver can take the link down, and on some a function that is deaf still sends.
    let vlan = |vlan| set(Setting::Vlan { vlan, qos: 0 });
    let dead = vlan(DEAD_VLAN).or_else(|_| vlan(DEAD_VLAN - 1));
    down.or(dead).map_err(io_error("link state and VLAN"))
}

/// Its attributes become what they were, but that it is not trusted, and its address is checked.
pub(crate) fn restore(host: &Host, pf: Address, index: u16, was: &Attributes) -> Result<(), Failure> {
    let Some(interface) = host.sysfs.interface(pf) else { return Ok(()) };
    let is = get(host, interface.index, index)?;
    // An address that is zero would leave it unchecked.
    let mac = if was.mac == [0; 6] { is.mac } else { was.mac };
    let spoofchk = is.spoofchk.map(|_| true);
    adjust(host, interface.index, index, &Attributes { mac, spoofchk, trust: Some(false), ..*was })
}

fn get(host: &Host, interface: u32, index: u16) -> Result<Attributes, Failure> {
    host.switch.get(interface, index).map_err(io_error("reading its attributes"))
}

/// Sets attributes where they differ, and the address and VLAN always, and looks whether they are what was set.
fn adjust(host: &Host, interface: u32, index: u16, wanted: &Attributes) -> Result<(), Failure> {
    let Attributes { mac, vlan, qos, min_rate: min, max_rate: max, spoofchk, trust, link_state } = *wanted;
    let has = get(host, interface, index)?;
    let mut settings = vec![Setting::Mac(mac), Setting::Vlan { vlan, qos }];
    // A driver that does not know of spoofed addresses lets them pass, and one that knows no trust trusts nobody.
    settings.extend(spoofchk.filter(|on| has.spoofchk.unwrap_or(false) != *on).map(Setting::SpoofChk));
    settings.extend(trust.filter(|on| has.trust.unwrap_or(false) != *on).map(Setting::Trust));
    if (has.min_rate, has.max_rate) != (min, max) {
        settings.push(Setting::Rate { min, max });
    }
    if has.link_state != link_state {
        settings.push(Setting::LinkState(link_state));
    }
    for setting in &settings {
        host.switch.set(interface, index, *setting).map_err(io_error("setting its attributes"))?;
    }
    let is = get(host, interface, index)?;
    let wrong = settings.into_iter().find(|set| match *set {
        Setting::Mac(mac) => is.mac != mac,
        Setting::Vlan { vlan, qos } => (is.vlan, is.qos) != (vlan, qos),
        Setting::Rate { min, max } => (is.min_rate, is.max_rate) != (min, max),
        Setting::SpoofChk(on) => is.spoofchk.unwrap_or(false) != on,
        Setting::Trust(on) => is.trust.unwrap_or(false) != on,
        Setting::LinkState(state) => is.link_state != state,
    });
    wrong.map_or(Ok(()), |set| Err(Failure::NotSet { set, is }))
}
