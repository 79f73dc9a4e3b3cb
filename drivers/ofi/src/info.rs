//! Offers of providers, from `fi_getinfo`.

use std::{
    ffi::{CStr, CString, c_char},
    fmt::{self, Display, Formatter},
    net::SocketAddr,
    ptr::{self, NonNull},
};

use berth_libfabric_sys as sys;

use crate::{Error, Reason};

/// Interface version that this code is written for: 1.17.
const VERSION: u32 = 0x0001_0011;

/// Capabilities required of an endpoint: two-sided messages whose sender is told.
const CAPS: u64 = sys::FI_MSG as u64 | sys::FI_SOURCE;

/// Capabilities required instead if senders are not told: receives from a single peer.
const DIRECTED: u64 = CAPS | sys::FI_DIRECTED_RECV;

/// Modes that every endpoint here supports: each operation has its own context structure.
const MODES: u64 = sys::FI_CONTEXT | sys::FI_CONTEXT2;

/// Memory-registration modes that every endpoint here supports. One concerns messages: buffers are registered if
/// `FI_MR_LOCAL` is required. The other three concern memory that peers access by themselves, of which there is none.
/// The rest is refused with its name: `FI_MR_ENDPOINT`, `FI_MR_HMEM`, `FI_MR_RAW`, `FI_MR_MMU_NOTIFY`,
/// `FI_MR_RMA_EVENT` and `FI_MR_COLLECTIVE`.
const MR_MODES: u32 = sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;

const MODE_NAMES: [(u64, &str); 6] = [
    (sys::FI_MSG_PREFIX, "FI_MSG_PREFIX"),
    (sys::FI_ASYNC_IOV, "FI_ASYNC_IOV"),
    (sys::FI_RX_CQ_DATA, "FI_RX_CQ_DATA"),
    (sys::FI_NOTIFY_FLAGS_ONLY, "FI_NOTIFY_FLAGS_ONLY"),
    (sys::FI_RESTRICTED_COMP, "FI_RESTRICTED_COMP"),
    (sys::FI_BUFFERED_RECV, "FI_BUFFERED_RECV"),
];

const MR_MODE_NAMES: [(u32, &str); 6] = [
    (sys::FI_MR_RAW, "FI_MR_RAW"),
    (sys::FI_MR_MMU_NOTIFY, "FI_MR_MMU_NOTIFY"),
    (sys::FI_MR_RMA_EVENT, "FI_MR_RMA_EVENT"),
    (sys::FI_MR_ENDPOINT, "FI_MR_ENDPOINT"),
    (sys::FI_MR_HMEM, "FI_MR_HMEM"),
    (sys::FI_MR_COLLECTIVE, "FI_MR_COLLECTIVE"),
];

/// Where to open an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// Provider name, such as `tcp`, `shm`, `udp;ofi_rxd` or `verbs;ofi_rxm`. If a core provider needs a layer for
    /// reliable datagram endpoints, libfabric adds it.
    pub provider: String,
    /// Fabric name, if the provider has several fabrics.
    pub fabric: Option<String>,
    /// Domain name, if the fabric has several domains.
    pub domain: Option<String>,
    /// Local address, for providers of IP addresses; port 0 takes a free one.
    pub bind: Option<SocketAddr>,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { provider, fabric, domain, bind } = self;
        write!(f, "provider = {provider:?}")?;
        for (key, name) in [("fabric", fabric), ("domain", domain)] {
            if let Some(name) = name {
                write!(f, ", {key} = {name:?}")?;
            }
        }
        bind.map_or(Ok(()), |bind| write!(f, ", bind = \"{bind}\""))
    }
}

/// A provider, as `berth doctor` lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Provider {
    /// Name with its layers.
    pub name: String,
    /// Endpoint types that it has, such as `FI_EP_RDM`.
    pub endpoints: Vec<String>,
}

/// Every provider that can be used on this host now, by name.
///
/// # Errors
/// libfabric's error if there is none.
pub fn providers() -> Result<Vec<Provider>, Reason> {
    let mut providers = Vec::<Provider>::new();
    for info in List::get(None, None)?.iter() {
        let endpoint = match info.endpoint_type() {
            sys::FI_EP_MSG => "FI_EP_MSG",
            sys::FI_EP_DGRAM => "FI_EP_DGRAM",
            sys::FI_EP_RDM => "FI_EP_RDM",
            _ => continue,
        };
        let name = info.provider();
        let at = providers.iter().position(|known| known.name == name).unwrap_or_else(|| {
            providers.push(Provider { name, endpoints: Vec::new() });
            providers.len() - 1
        });
        let known = &mut providers[at].endpoints;
        if !known.iter().any(|known| known == endpoint) {
            known.push(endpoint.to_owned());
        }
    }
    providers.sort();
    Ok(providers)
}

/// A provider's offer of one endpoint; freed on drop.
#[derive(Debug)]
pub(crate) struct Info(NonNull<sys::fi_info>);

// SAFETY: plain memory that nobody else holds, allocated by libfabric and tied to no thread.
unsafe impl Send for Info {}

impl Info {
    /// The first offer of a reliable datagram endpoint at this place whose modes are supported here.
    pub(crate) fn find(place: &Place) -> Result<Self, Error> {
        let node = place.bind.map(|bind| c_string(&bind.ip().to_string())).transpose()?;
        let port = place.bind.filter(|bind| bind.port() != 0);
        let service = port.map(|bind| c_string(&bind.port().to_string())).transpose()?;
        let at = node.as_deref().map(|node| (node, service.as_deref()));
        let get = |caps, modes, mr_modes| {
            let hints = Hints::new(place, caps, modes, mr_modes)?;
            Ok::<_, Error>(List::get(at, Some(&hints)))
        };
        match get(CAPS, MODES, MR_MODES)? {
            Ok(list) => {
                let info = list.first();
                if !info.is_directed() {
                    return Ok(info);
                }
                let directed = get(DIRECTED, MODES, MR_MODES)?;
                directed.map(List::first).map_err(|reason| Error::NoProvider { place: place.to_string(), reason })
            }
            Err(reason) => {
                // Would there be one with other modes? Then those are what is wrong.
                let modes = MODE_NAMES.iter().fold(MODES, |all, (mode, _)| all | mode);
                let mr_modes = MR_MODE_NAMES.iter().fold(MR_MODES, |all, (mode, _)| all | mode);
                match get(CAPS, modes, mr_modes)? {
                    Ok(list) => {
                        let info = list.first();
                        Err(Error::Modes { provider: info.provider(), modes: info.unmet_modes() })
                    }
                    Err(_) => Err(Error::NoProvider { place: place.to_string(), reason }),
                }
            }
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fi_info {
        self.0.as_ptr()
    }

    /// Provider name with its layers.
    pub(crate) fn provider(&self) -> String {
        // SAFETY: infos from libfabric have all attributes; the name is null or NUL-terminated.
        unsafe { text((*(*self.as_ptr()).fabric_attr).prov_name) }
    }

    /// Fabric name.
    pub(crate) fn fabric(&self) -> String {
        // SAFETY: as above.
        unsafe { text((*(*self.as_ptr()).fabric_attr).name) }
    }

    /// Whether receives are posted for one peer each, because the provider does not tell the sender of a message:
    /// `ofi_rxd` promises to (`FI_SOURCE`) and does not, in any version up to 2.0.
    pub(crate) fn is_directed(&self) -> bool {
        self.provider().ends_with("ofi_rxd")
    }

    pub(crate) fn fabric_attr(&self) -> *mut sys::fi_fabric_attr {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).fabric_attr }
    }

    fn endpoint_type(&self) -> sys::fi_ep_type {
        // SAFETY: as above.
        unsafe { (*(*self.as_ptr()).ep_attr).type_ }
    }

    /// Capability bits, `fi_info->caps`.
    pub(crate) fn caps(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).caps }
    }

    /// Address format code, such as `FI_SOCKADDR_IN`.
    pub(crate) fn addr_format(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).addr_format }
    }

    /// Whether buffers must be registered.
    pub(crate) fn registers_buffers(&self) -> bool {
        // SAFETY: as above.
        let modes = unsafe { (*(*self.as_ptr()).domain_attr).mr_mode };
        modes as u32 & sys::FI_MR_LOCAL != 0
    }

    /// Longest message that [`Endpoint::inject`](crate::endpoint::Endpoint::inject) takes, in bytes.
    pub(crate) fn inject_size(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*(*self.as_ptr()).tx_attr).inject_size }
    }

    /// Longest message in bytes.
    pub(crate) fn max_message(&self) -> usize {
        // SAFETY: as above.
        unsafe { (*(*self.as_ptr()).ep_attr).max_msg_size }
    }

    /// Limits on posted receives and on sends under way.
    pub(crate) fn depths(&self) -> [usize; 2] {
        // SAFETY: as above.
        unsafe { [(*(*self.as_ptr()).rx_attr).size, (*(*self.as_ptr()).tx_attr).size] }
    }

    /// Names of the modes that the provider requires and that are not supported here.
    fn unmet_modes(&self) -> String {
        // SAFETY: as above.
        let (modes, mr_modes) = unsafe { ((*self.as_ptr()).mode, (*(*self.as_ptr()).domain_attr).mr_mode as u32) };
        let modes = MODE_NAMES.iter().filter(|(bit, _)| modes & bit != 0).map(|(_, name)| *name);
        let mr_modes = MR_MODE_NAMES.iter().filter(|(bit, _)| mr_modes & bit != 0).map(|(_, name)| *name);
        let names: Vec<_> = modes.chain(mr_modes).collect();
        if names.is_empty() { "a mode without a name".into() } else { names.join(", ") }
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: allocated by libfabric, and nobody else frees it.
        unsafe { sys::fi_freeinfo(self.as_ptr()) };
    }
}

/// Requirements on an endpoint.
struct Hints(Info);

impl Hints {
    fn new(place: &Place, caps: u64, modes: u64, mr_modes: u32) -> Result<Self, Error> {
        let names = [Some(&place.provider), place.fabric.as_ref(), place.domain.as_ref()];
        let [provider, fabric, domain] = names.map(|name| name.map(|name| c_string(name)));
        let (provider, fabric, domain) = (provider.transpose()?, fabric.transpose()?, domain.transpose()?);
        // SAFETY: allocates an info with all its attributes, or returns null.
        let hints = NonNull::new(unsafe { sys::fi_allocinfo() }).ok_or(Error::Call {
            call: "fi_allocinfo",
            place: place.to_string(),
            reason: Reason(libc::ENOMEM),
        })?;
        let hints = Info(hints);
        // SAFETY: the info and its attributes were just allocated; it frees names with `free`.
        unsafe {
            let info = &mut *hints.as_ptr();
            info.caps = caps;
            info.mode = modes;
            (*info.ep_attr).type_ = sys::FI_EP_RDM;
            let copy = |name: Option<CString>| name.map_or(ptr::null_mut(), |name| libc::strdup(name.as_ptr()));
            (*info.fabric_attr).prov_name = copy(provider);
            (*info.fabric_attr).name = copy(fabric);
            let domain_attr = &mut *info.domain_attr;
            domain_attr.name = copy(domain);
            domain_attr.mr_mode = mr_modes as i32;
            domain_attr.av_type = sys::FI_AV_TABLE;
            domain_attr.resource_mgmt = sys::FI_RM_ENABLED;
            // One core owns the domain and all in it, and drives it: no locks, and no threads of the provider.
            domain_attr.threading = sys::FI_THREAD_DOMAIN;
            domain_attr.data_progress = sys::FI_PROGRESS_MANUAL;
            domain_attr.control_progress = sys::FI_PROGRESS_MANUAL;
        }
        Ok(Self(hints))
    }
}

/// A list of offers; freed on drop.
struct List(Info);

impl List {
    /// Asks for offers at a node and service, which name our own address.
    fn get(at: Option<(&CStr, Option<&CStr>)>, hints: Option<&Hints>) -> Result<Self, Reason> {
        let node = at.map_or(ptr::null(), |(node, _)| node.as_ptr());
        let service = at.and_then(|(_, service)| service).map_or(ptr::null(), CStr::as_ptr);
        let flags = if at.is_some() { sys::FI_SOURCE } else { 0 };
        let hints = hints.map_or(ptr::null(), |hints| hints.0.as_ptr().cast_const());
        let mut list = ptr::null_mut();
        // SAFETY: strings and hints live for the call; the list is ours afterwards.
        Reason::check(unsafe { sys::fi_getinfo(VERSION, node, service, flags, hints, &raw mut list) })?;
        NonNull::new(list).map(|list| Self(Info(list))).ok_or(Reason(libc::ENODATA))
    }

    /// The first offer, without the rest of the list.
    fn first(self) -> Info {
        // SAFETY: unlinks the rest, which becomes a list of its own and is freed.
        unsafe {
            let rest = std::mem::replace(&mut (*self.0.as_ptr()).next, ptr::null_mut());
            if let Some(rest) = NonNull::new(rest) {
                drop(Info(rest));
            }
        }
        self.0
    }

    fn iter(&self) -> impl Iterator<Item = std::mem::ManuallyDrop<Info>> + '_ {
        let mut next = NonNull::new(self.0.as_ptr());
        std::iter::from_fn(move || {
            let info = next?;
            // SAFETY: an element of a list that lives as long as the iterator.
            next = NonNull::new(unsafe { (*info.as_ptr()).next });
            Some(std::mem::ManuallyDrop::new(Info(info)))
        })
    }
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Nul(text.to_owned()))
}

/// # Safety
/// `text` is null or NUL-terminated.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
