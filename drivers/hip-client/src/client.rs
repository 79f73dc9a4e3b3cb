//! A worker, and its devices.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex, PoisonError},
};

use berth_wire::hip::response as r;

use crate::{Access, Buffer, Error, Event, Module, Result, Session, Stream, link::Link, session::Owned};

/// A worker: one connection, which is made again where it broke.
#[derive(Debug)]
pub struct Client {
    addresses: Vec<SocketAddr>,
    access: Access,
    link: Mutex<Arc<Link>>,
}

impl Client {
    /// Connects in plain text, without a lease, and sends INIT. Each address has 10 s to accept.
    pub fn connect(to: impl ToSocketAddrs) -> Result<Self> {
        Self::connect_with(to, Access::default())
    }

    /// Connects, now and later, by TLS where there is one, binds the session to the lease, and sends INIT.
    pub fn connect_with(to: impl ToSocketAddrs, access: Access) -> Result<Self> {
        let addresses: Vec<_> = to.to_socket_addrs().map_err(Error::Unreachable)?.collect();
        let link = Mutex::new(Link::connect(&addresses, &access)?);
        Ok(Self { addresses, access, link })
    }

    /// A session in which a device is used. All of a client are one, until it breaks; then this connects, and begins
    /// another one.
    pub fn session(&self, device: i32) -> Result<Session> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.is_broken() {
            *link = Link::connect(&self.addresses, &self.access)?;
        }
        Session { link: link.clone(), device: 0 }.of_device(device)
    }

    /// Number of devices, as `GET_DEVICE_COUNT` answered when the connection was made; asks nothing now.
    pub fn devices(&self) -> i32 {
        self.link.lock().unwrap_or_else(PoisonError::into_inner).devices()
    }

    /// A device by its number, from 0; refused with `INVALID_DEVICE` where there is none. A broken connection is made
    /// anew.
    pub fn device(&self, device: i32) -> Result<Device> {
        Ok(Device(self.session(device)?))
    }
}

/// A device of a worker, in one session.
#[derive(Debug, Clone)]
pub struct Device(Session);

impl Device {
    /// The session below it, whose calls take handles and device addresses as plain numbers.
    pub fn session(&self) -> &Session {
        &self.0
    }

    /// `GET_DEVICE_PROPERTIES` of the device: one round trip each time.
    pub fn properties(&self) -> Result<r::DeviceProperties> {
        self.0.properties(self.0.device)
    }

    /// Bytes that are free for this session, and in all.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.0.memory()
    }

    /// Allocates zeroed memory of so many bytes, in one round trip.
    pub fn alloc(&self, bytes: u64) -> Result<Buffer> {
        Ok(Buffer::new(&self.0, self.0.malloc(bytes)?, bytes))
    }

    /// Up to 64 pieces of memory, in one round trip; none if one of them fails.
    pub fn alloc_all(&self, bytes: &[u64]) -> Result<Vec<Buffer>> {
        let pointers = self.0.malloc_batch(bytes)?;
        Ok(pointers.iter().zip(bytes).map(|(at, bytes)| Buffer::new(&self.0, *at, *bytes)).collect())
    }

    /// Memory with a copy of these bytes. Waits for the allocation, not for the copy.
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(bytes.len() as u64)?;
        buffer.write(0, bytes)?;
        Ok(buffer)
    }

    /// Loads a code object: PTX text for the software GPU.
    pub fn load(&self, image: &[u8]) -> Result<Module> {
        Ok(Module(Arc::new(Owned::new(&self.0, self.0.module_load(image)?, Session::module_unload))))
    }

    /// Creates a stream of flags 0 and priority 0.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream(Owned::new(&self.0, self.0.stream_create(0, 0)?, Session::stream_destroy)))
    }

    /// Stream 0, which every session has. Dropping it ends nothing.
    pub fn default_stream(&self) -> Stream {
        Stream(Owned::new(&self.0, 0, |_, _| Ok(())))
    }

    /// An event; see [`events`](crate::events) for its flags.
    pub fn event(&self, flags: u32) -> Result<Event> {
        Ok(Event(Owned::new(&self.0, self.0.event_create(flags)?, Session::event_destroy)))
    }

    /// Waits for all work; fails with what failed in it.
    pub fn synchronize(&self) -> Result<()> {
        self.0.synchronize()
    }

    /// Ends the session, and waits until the worker says so.
    pub fn shutdown(self) -> Result<()> {
        self.0.shutdown()
    }
}
