//! Devices: their limits, ports, GIDs and events.

use std::{
    ffi::CStr,
    fmt, io,
    mem::{MaybeUninit, zeroed},
    os::fd::{BorrowedFd, RawFd},
    ptr::NonNull,
    sync::Arc,
};

use rdma_mummy_sys as sys;

use crate::Error;

/// The names of this host's RDMA devices.
///
/// # Errors
/// [`Error::NoRdma`] if neither libraries nor kernel know any.
pub fn devices() -> Result<Vec<String>, Error> {
    let list = List::new()?;
    Ok(list.iter().map(name_of).collect())
}

/// The library's list of devices, freed on drop. Devices that were opened stay valid.
struct List {
    first: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl List {
    fn new() -> Result<Self, Error> {
        let mut len = 0;
        // SAFETY: the library writes the length and returns a list, or null with an error number.
        let first = unsafe { sys::ibv_get_device_list(&raw mut len) };
        match NonNull::new(first) {
            Some(first) => Ok(Self { first, len: len as usize }),
            None => Err(Error::NoRdma(io::Error::last_os_error())),
        }
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<sys::ibv_device>> {
        // SAFETY: the list has `len` entries and lives as long as `self`.
        (0..self.len).filter_map(|index| NonNull::new(unsafe { *self.first.as_ptr().add(index) }))
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed once.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

fn name_of(device: NonNull<sys::ibv_device>) -> String {
    // SAFETY: the name is a NUL-terminated array within the device.
    let name = unsafe { CStr::from_ptr((&raw const (*device.as_ptr()).name).cast()) };
    name.to_string_lossy().into_owned()
}

/// An open device. Clones share it; it is closed when the last object made from it is dropped.
#[derive(Clone)]
pub struct Context(Arc<Open>);

struct Open {
    raw: NonNull<sys::ibv_context>,
    name: String,
    limits: Limits,
}

// SAFETY: the library's calls on a context may be made from any thread at any time.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: nothing made of the context is left: everything holds a clone. Closing one whose device is gone fails,
        // and there is nothing to be done about it.
        unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
    }
}

/// Limits of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Number of ports; they are numbered from 1.
    pub ports: u8,
    /// Limit on queue pairs.
    pub queue_pairs: u32,
    /// Limit on work requests in one queue.
    pub work_requests: u32,
    /// Limit on the entries of one completion queue.
    pub completions: u32,
    /// Limit on memory regions.
    pub regions: u32,
    /// Limit on memory windows of all types.
    pub windows: u32,
    /// Whether work requests can bind windows (type 2A or 2B) and invalidate their rkeys.
    pub type2_windows: bool,
    /// Limit on the size of a memory region, in bytes.
    pub region_bytes: u64,
    /// Limit on RDMA READs and atomics in flight towards one queue pair.
    pub reads_in: u8,
    /// Limit on RDMA READs and atomics in flight from one queue pair.
    pub reads_out: u8,
}

/// State of one port of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortInfo {
    /// Whether the link is up.
    pub active: bool,
    /// Longest payload of a packet on the link, in bytes.
    pub mtu: u16,
    /// Whether the link is Ethernet, whose addresses are GIDs; otherwise it is InfiniBand.
    pub ethernet: bool,
    /// Number of entries in the GID table.
    pub gids: u32,
}

/// The protocol that a GID is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand's own transport.
    Ib,
    /// RDMA over Ethernet frames.
    RoceV1,
    /// RDMA over UDP.
    RoceV2,
}

/// An address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// All 128 bits; an IPv4 address is mapped into IPv6 (`::ffff:a.b.c.d`).
    pub raw: [u8; 16],
    /// Index in the port's GID table.
    pub index: u8,
    /// The protocol that the address is for.
    pub kind: GidKind,
}

/// An asynchronous event of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The device failed or is being removed: everything made from it must be dropped.
    DeviceFatal,
    /// The link of the port with this number went down.
    PortDown(u8),
    /// The link of the port with this number came up.
    PortUp(u8),
    /// A completion queue overran; its queue pairs failed with it.
    CqError,
    /// The queue pair with this number failed.
    QpError(u32),
    /// The GID table of a port changed.
    GidsChanged,
    /// Another event, by the library's number.
    Other(u32),
}

impl Context {
    /// Opens the device with this name, such as `rxe0`.
    pub fn open(name: &str) -> Result<Self, Error> {
        let list = List::new()?;
        let Some(device) = list.iter().find(|device| name_of(*device) == name) else {
            return Err(Error::NoDevice { name: name.to_string(), have: list.iter().map(name_of).collect() });
        };
        // SAFETY: the device is of a list that has not been freed.
        let raw = unsafe { sys::ibv_open_device(device.as_ptr()) };
        let fail = |step| Error::Failed { device: name.to_string(), step, error: io::Error::last_os_error() };
        let raw = NonNull::new(raw).ok_or_else(|| fail("ibv_open_device"))?;
        let open = |limits| Self(Arc::new(Open { raw, name: name.to_string(), limits }));
        let mut attr = MaybeUninit::zeroed();
        // SAFETY: the context is open and the call fills the whole structure when it returns 0.
        let result = unsafe { sys::ibv_query_device(raw.as_ptr(), attr.as_mut_ptr()) };
        // SAFETY: zeroes are a valid value of this structure of integers, whatever the call wrote.
        let limits = limits(unsafe { attr.assume_init_ref() });
        let context = open(limits);
        context.check("ibv_query_device", result)?;
        // SAFETY: the descriptor is the context's, which is open.
        let events = unsafe { BorrowedFd::borrow_raw(context.event_fd()) };
        set_nonblocking(events).map_err(|error| context.failed("O_NONBLOCK of the event channel", error))?;
        Ok(context)
    }

    /// Name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Limits of the device, read when it was opened.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Asks the device for the state of a port.
    pub fn port(&self, port: u8) -> Result<PortInfo, Error> {
        let most = self.limits().ports;
        if !(1..=most).contains(&port) {
            return Err(Error::Port { device: self.name().to_string(), port, most });
        }
        // SAFETY: zeroes are a valid value of this structure of integers.
        let mut attr = unsafe { zeroed() };
        // SAFETY: the context is open, and the structure is of the size that the call is told.
        let result = unsafe { sys::ibv_query_port(self.raw(), port, &raw mut attr) };
        self.check("ibv_query_port", result)?;
        Ok(PortInfo {
            active: attr.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
            mtu: mtu_bytes(attr.active_mtu),
            ethernet: attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET,
            gids: attr.gid_tbl_len as u32,
        })
    }

    /// The GID at an index of a port's table.
    pub fn gid(&self, port: u8, index: u8) -> Result<Gid, Error> {
        // SAFETY: zeroes are a valid value of this structure of integers.
        let mut entry: sys::ibv_gid_entry = unsafe { zeroed() };
        // SAFETY: the context is open, and the structure is of the size that the call is told.
        let result = unsafe { sys::ibv_query_gid_ex(self.raw(), port.into(), index.into(), &raw mut entry, 0) };
        // SAFETY: every bit pattern is a GID.
        let raw = unsafe { entry.gid.raw };
        if result != 0 || raw == [0; 16] {
            return Err(Error::Gid { device: self.name().to_string(), port, index });
        }
        let kind = match entry.gid_type {
            sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            _ => GidKind::Ib,
        };
        Ok(Gid { raw, index, kind })
    }

    /// All GIDs of a port, empty entries left out.
    pub fn gids(&self, port: u8) -> Result<Vec<Gid>, Error> {
        let entries = self.port(port)?.gids.min(256) as u16;
        Ok((0..entries).filter_map(|index| self.gid(port, index as u8).ok()).collect())
    }

    /// Whether the kernel still has the device. soft-RoCE disappears without an event ([`Event::DeviceFatal`]), and its
    /// removal waits until everything made from it is dropped.
    pub fn is_present(&self) -> bool {
        // SAFETY: the context is open, and its device is valid for as long.
        let path = unsafe { CStr::from_ptr((&raw const (*(*self.raw()).device).dev_path).cast()) };
        let told = std::fs::read_to_string(format!("{}/ibdev", path.to_string_lossy()));
        told.is_ok_and(|name| name.trim_end() == self.name())
    }

    /// The next event; `None` if there is none. Never blocks.
    pub fn event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<RawEvent>::zeroed();
        // SAFETY: the context is open and its channel does not block; the layouts are the same.
        if unsafe { sys::ibv_get_async_event(self.raw(), event.as_mut_ptr().cast()) } != 0 {
            return None;
        }
        // SAFETY: the call succeeded, and every bit pattern is a value of this structure.
        let mut event = unsafe { event.assume_init() };
        let told = match event.event_type {
            DEVICE_FATAL => Event::DeviceFatal,
            // SAFETY: the element of port events is the port's number.
            PORT_ERR => Event::PortDown(unsafe { event.element.port } as u8),
            // SAFETY: as above.
            PORT_ACTIVE => Event::PortUp(unsafe { event.element.port } as u8),
            CQ_ERR => Event::CqError,
            // SAFETY: the element of these events is a queue pair, which is not freed before the event is acknowledged.
            QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR => Event::QpError(unsafe { (*event.element.qp).qp_num }),
            GID_CHANGE => Event::GidsChanged,
            other => Event::Other(other),
        };
        // SAFETY: an event that was got and is acknowledged once.
        unsafe { sys::ibv_ack_async_event((&raw mut event).cast()) };
        Some(told)
    }

    /// A descriptor that becomes readable when [`Context::event`] has an event.
    pub fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw()).async_fd }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.0.raw.as_ptr()
    }

    pub(crate) fn failed(&self, step: &'static str, error: io::Error) -> Error {
        Error::Failed { device: self.0.name.clone(), step, error }
    }

    /// Checks the result of a call that returns 0, or an error number, or -1 with the number in `errno`.
    pub(crate) fn check(&self, step: &'static str, result: i32) -> Result<(), Error> {
        match result {
            0 => Ok(()),
            1.. => Err(self.failed(step, io::Error::from_raw_os_error(result))),
            _ => Err(self.failed(step, io::Error::last_os_error())),
        }
    }

    /// Checks the result of a call that makes an object.
    pub(crate) fn made<T>(&self, step: &'static str, made: *mut T) -> Result<NonNull<T>, Error> {
        NonNull::new(made).ok_or_else(|| self.failed(step, io::Error::last_os_error()))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.0.name)
    }
}

/// `struct ibv_async_event` with the type as a number, because a newer library may have more types than we know.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawEvent {
    element: Element,
    event_type: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Element {
    qp: *mut sys::ibv_qp,
    port: i32,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<sys::ibv_async_event>());

const CQ_ERR: u32 = sys::ibv_event_type::IBV_EVENT_CQ_ERR as u32;
const QP_FATAL: u32 = sys::ibv_event_type::IBV_EVENT_QP_FATAL as u32;
const QP_REQ_ERR: u32 = sys::ibv_event_type::IBV_EVENT_QP_REQ_ERR as u32;
const QP_ACCESS_ERR: u32 = sys::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32;
const DEVICE_FATAL: u32 = sys::ibv_event_type::IBV_EVENT_DEVICE_FATAL as u32;
const PORT_ACTIVE: u32 = sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
const PORT_ERR: u32 = sys::ibv_event_type::IBV_EVENT_PORT_ERR as u32;
const GID_CHANGE: u32 = sys::ibv_event_type::IBV_EVENT_GID_CHANGE as u32;

fn limits(attr: &sys::ibv_device_attr) -> Limits {
    let windows = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0
        | sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    Limits {
        ports: attr.phys_port_cnt,
        queue_pairs: attr.max_qp as u32,
        work_requests: attr.max_qp_wr as u32,
        completions: attr.max_cqe as u32,
        regions: attr.max_mr as u32,
        windows: attr.max_mw as u32,
        type2_windows: attr.device_cap_flags & windows != 0,
        region_bytes: attr.max_mr_size,
        reads_in: attr.max_qp_rd_atom.clamp(0, 255) as u8,
        reads_out: attr.max_qp_init_rd_atom.clamp(0, 255) as u8,
    }
}

/// An MTU in bytes, from the library's number.
fn mtu_bytes(mtu: sys::ibv_mtu::Type) -> u16 {
    128 << mtu.clamp(1, 5)
}

/// The library's number of the largest MTU that is at most `bytes`; at least that of 256 bytes.
pub(crate) fn mtu_number(bytes: u16) -> sys::ibv_mtu::Type {
    (1..=5).rev().find(|number| mtu_bytes(*number) <= bytes).unwrap_or(1)
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: changes the flags of an open descriptor.
    let result = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_round_down() {
        let numbers = [(0, 1), (256, 1), (511, 1), (512, 2), (1024, 3), (1500, 3), (4096, 5), (9000, 5)];
        for (bytes, number) in numbers {
            assert_eq!(mtu_number(bytes), number, "{bytes}");
        }
        assert_eq!((1..=5).map(mtu_bytes).collect::<Vec<_>>(), [256, 512, 1024, 2048, 4096]);
    }

    #[test]
    fn without_a_device_the_error_says_what_to_do() {
        match (devices(), Context::open("no such device")) {
            (Err(Error::NoRdma(_)), Err(e)) => assert!(e.to_string().contains("rdma link add rxe0"), "{e}"),
            (Ok(have), Err(Error::NoDevice { name, have: told })) => {
                assert_eq!((name.as_str(), told), ("no such device", have));
            }
            other => panic!("{:?}", other.1),
        }
    }
}
