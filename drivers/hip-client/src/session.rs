//! A session: what handles are, and the calls about devices.

use std::sync::Arc;

use berth_wire::hip::{Code, Op, request as q, response as r};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Error, Result, link::Link};

/// A session of a worker and a device that is used in it: every call, with pointers and handles as the worker's numbers.
/// Any thread may call.
#[derive(Debug, Clone)]
pub struct Session {
    pub(crate) link: Arc<Link>,
    pub(crate) device: i32,
}

/// Refuses as the worker would, without asking it.
pub(crate) fn refused<T>(op: Op, code: Code) -> Result<T> {
    Err(Error::Refused { call: op.name(), code })
}

impl Session {
    pub(crate) fn post(&self, op: Op, parts: &[&[u8]], flags: u32) -> Result<()> {
        self.link.with(|wire| wire.post(self.device, op, parts, flags))
    }

    pub(crate) fn ask<T>(&self, op: Op, parts: &[&[u8]], flags: u32) -> Result<T>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned,
    {
        self.link.with(|wire| wire.ask(self.device, op, parts, flags))
    }

    pub(crate) fn done(&self, op: Op, request: &[u8]) -> Result<()> {
        self.ask::<r::Status>(op, &[request], 0).map(drop)
    }

    pub(crate) fn int(&self, op: Op, request: &[u8]) -> Result<i32> {
        Ok(self.ask::<r::Int>(op, &[request], 0)?.value.get())
    }

    pub(crate) fn long(&self, op: Op, request: &[u8]) -> Result<u64> {
        Ok(self.ask::<r::Long>(op, &[request], 0)?.value.get())
    }

    /// Sends what is collected, without waiting for anything.
    pub fn flush(&self) -> Result<()> {
        self.link.with(super::link::Wire::flush)
    }

    /// Number of devices, as the worker said when the connection was made.
    pub fn devices(&self) -> i32 {
        self.link.devices()
    }

    /// The same session with another device, from 0; refused with `INVALID_DEVICE` where the worker has none of that
    /// number.
    pub fn of_device(&self, device: i32) -> Result<Self> {
        if (0..self.link.devices()).contains(&device) {
            Ok(Self { link: self.link.clone(), device })
        } else {
            refused(Op::SetDevice, Code::INVALID_DEVICE)
        }
    }

    /// Whether both use one connection, and so one session of the worker.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link)
    }

    /// Sends PING and waits for the answer, without a time limit.
    pub fn ping(&self) -> Result<()> {
        self.done(Op::Ping, &[])
    }

    /// Ends the session. The connection is of no use then.
    pub fn shutdown(&self) -> Result<()> {
        self.done(Op::Shutdown, &[])
    }

    /// `GET_DEVICE_PROPERTIES` of any device of the session: one round trip each time.
    pub fn properties(&self, device: i32) -> Result<r::DeviceProperties> {
        self.ask(Op::GetDeviceProperties, &[q::Device { device_id: device.into() }.as_bytes()], 0)
    }

    /// An attribute of a device, by its number in `hipDeviceAttribute_t`.
    pub fn attribute(&self, device: i32, attribute: i32) -> Result<i32> {
        let request = q::Attribute { device_id: device.into(), attribute: attribute.into() };
        self.int(Op::DeviceGetAttribute, request.as_bytes())
    }

    /// A limit: 0 stack, 1 printf, 2 heap.
    pub fn limit(&self, limit: i32) -> Result<u64> {
        self.long(Op::DeviceGetLimit, q::Limit { limit: limit.into(), value: 0.into() }.as_bytes())
    }

    /// Sets a limit, numbered as in [`Session::limit`]. Not waited for.
    pub fn set_limit(&self, limit: i32, value: u64) -> Result<()> {
        self.post(Op::DeviceSetLimit, &[q::Limit { limit: limit.into(), value: value.into() }.as_bytes()], 0)
    }

    /// Whether a device can reach another one's memory.
    pub fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool> {
        let request = q::Peers { device_id: device.into(), peer_device_id: peer.into() };
        Ok(self.int(Op::DeviceCanAccessPeer, request.as_bytes())? != 0)
    }

    /// Lets the device reach another one's memory.
    pub fn enable_peer_access(&self, peer: i32) -> Result<()> {
        let request = q::PeerAccess { peer_device_id: peer.into(), flags: 0.into() };
        self.done(Op::DeviceEnablePeerAccess, request.as_bytes())
    }

    /// The end of [`Session::enable_peer_access`].
    pub fn disable_peer_access(&self, peer: i32) -> Result<()> {
        let request = q::PeerAccess { peer_device_id: peer.into(), flags: 0.into() };
        self.done(Op::DeviceDisablePeerAccess, request.as_bytes())
    }

    /// Waits for all work; fails with what failed in it.
    pub fn synchronize(&self) -> Result<()> {
        self.done(Op::DeviceSynchronize, &[])
    }

    /// Frees all that the session has, and waits until that is done.
    pub fn reset(&self) -> Result<()> {
        self.link.with(|wire| wire.reset(self.device))
    }

    /// The version of the worker's runtime, and of its driver.
    pub fn versions(&self) -> Result<(i32, i32)> {
        Ok((self.int(Op::RuntimeGetVersion, &[])?, self.int(Op::DriverGetVersion, &[])?))
    }
}

/// A handle that ends with this value.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) session: Session,
    pub(crate) handle: u64,
    end: fn(&Session, u64) -> Result<()>,
}

impl Owned {
    pub(crate) fn new(session: &Session, handle: u64, end: fn(&Session, u64) -> Result<()>) -> Self {
        Self { session: session.clone(), handle, end }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Where the session is over, so is the handle.
        let _ = (self.end)(&self.session, self.handle);
    }
}
