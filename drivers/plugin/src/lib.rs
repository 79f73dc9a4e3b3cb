//! RPC handlers from shared libraries (host API, "Structs": handler ABIs).
//!
//! A [`Plugin`] is one symbol of a library, called with aligned copies of the request slot, and an answer slot of its
//! own. What it returns is checked before anything is sent. What it *does* cannot be: a plug-in runs in this process
//! and on the poll core. One that crashes, or lets a panic or exception out, ends the process; one that writes beyond
//! its slot corrupts it; one that does not return stops its core (its budget is noticed only afterwards). Handlers
//! that are not trusted so far belong in another process, at the other end of a ring.

use std::path::{Path, PathBuf};

use berth_rpc::{Call, Failure, Outcome, handlers::Custom};
use berth_wire::rpc::{HandlerSchema, ResponseHeader};
use libloading::Library;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of one [`Line`].
const LINE: usize = 64;

/// `berth_host_call` of `berth_ring.h`: reads the request slot, writes the whole response.
///
/// "C-unwind": unwinding out of a plug-in is a defined abort.
type HostCall = unsafe extern "C-unwind" fn(*const u8, *mut u8, usize);

/// `berth_device_call` of `berth_ring.h`: arguments, room for results, their lengths; returns the status.
type DeviceCall = unsafe extern "C-unwind" fn(*const u8, *mut u8, u32, u32, *mut u32) -> i32;

/// Which signature a plug-in's symbol has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// `HOST_CALL`: whole slots, headers included.
    HostCall,
    /// `DEVICE_CALL`: arguments and results; the headers are Berth's.
    DeviceCall,
}

/// Why a plug-in was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file cannot be reached.
    #[error("plug-in {path}: {error}; give the path of a shared library")]
    File {
        /// As configured.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The dynamic linker refuses the file.
    #[error("plug-in {path} is not a shared library that can be loaded: {error}")]
    Library {
        /// As configured.
        path: PathBuf,
        /// What the dynamic linker says.
        error: libloading::Error,
    },
    /// The library exports no such symbol.
    #[error("plug-in {path} exports no symbol {symbol:?}; C++ needs extern \"C\", Rust #[unsafe(no_mangle)]")]
    Symbol {
        /// As configured.
        path: PathBuf,
        /// The symbol.
        symbol: String,
    },
}

/// One function of a shared library, for one core.
#[derive(Debug)]
pub struct Plugin {
    entry: Entry,
    schema: HandlerSchema,
    rx: Slot,
    tx: Slot,
    /// Keeps `entry` valid.
    _library: Library,
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Host(HostCall),
    Device(DeviceCall),
}

impl Plugin {
    /// Loads a library and finds a symbol that takes and returns what `schema` says.
    ///
    /// The library's initialisers run, and `symbol` is believed to have the signature of `abi`: the name comes from
    /// the operator's configuration, never from a peer. `slot_size` is what the handler is told of both slots.
    pub fn load(
        path: &Path,
        symbol: &str,
        abi: Abi,
        schema: HandlerSchema,
        slot_size: usize,
    ) -> Result<Self, PluginError> {
        // A canonical path keeps the dynamic linker from searching for the name elsewhere.
        let file = path.canonicalize().map_err(|error| PluginError::File { path: path.into(), error })?;
        // SAFETY: the operator vouches for the library's initialisers by configuring it.
        let library =
            unsafe { Library::new(file) }.map_err(|error| PluginError::Library { path: path.into(), error })?;
        // SAFETY: the operator vouches for the symbol's signature; a null symbol is None.
        let entry = unsafe {
            match abi {
                Abi::HostCall => library.get::<Option<HostCall>>(symbol).ok().and_then(|s| *s).map(Entry::Host),
                Abi::DeviceCall => library.get::<Option<DeviceCall>>(symbol).ok().and_then(|s| *s).map(Entry::Device),
            }
        };
        let missing = || PluginError::Symbol { path: path.into(), symbol: symbol.into() };
        let entry = entry.ok_or_else(missing)?;
        Ok(Self { entry, schema, rx: Slot::new(slot_size), tx: Slot::new(slot_size), _library: library })
    }
}

impl Custom for Plugin {
    fn schema(&self) -> HandlerSchema {
        self.schema
    }

    fn call(&mut self, call: &mut Call<'_>) -> Outcome {
        let (header, arg_len) = (call.form().len(), call.args().len());
        let (rx, tx) = (self.rx.bytes(), self.tx.bytes());
        // Both slots are of the service's slot size, but a worker's ring may have longer ones.
        rx.get_mut(..header + arg_len).ok_or(Failure::Mismatch)?.copy_from_slice(call.message());
        let room = tx.len() - header;
        let len = match self.entry {
            Entry::Host(entry) => {
                tx[..header].fill(0);
                // SAFETY: both slots are `rx.len() == tx.len()` bytes, aligned to 64, and distinct.
                unsafe { entry(rx.as_ptr(), tx.as_mut_ptr(), tx.len()) };
                let sent = u32::from_le_bytes([rx[12], rx[13], rx[14], rx[15]]);
                let response = ResponseHeader::parse(call.form(), tx).ok().filter(|r| r.request_id == sent);
                let response = response.ok_or(Failure::FAILED)?;
                if response.status != 0 {
                    return Err(response.status.into());
                }
                response.result_len
            }
            Entry::Device(entry) => {
                let mut result_len = 0;
                // SAFETY: the arguments are `arg_len` bytes of `rx`, the results `room` bytes of `tx`.
                let status = unsafe {
                    let (input, output) = (rx[header..].as_ptr(), tx[header..].as_mut_ptr());
                    entry(input, output, arg_len as u32, room as u32, &raw mut result_len)
                };
                if status != 0 {
                    return Err(status.into());
                }
                result_len
            }
        } as usize;
        let results = tx[header..].get(..len).ok_or(Failure::TooLarge)?;
        call.results().get_mut(..len).ok_or(Failure::TooLarge)?.copy_from_slice(results);
        Ok(len)
    }
}

/// A cache line.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Memory aligned as ring slots are: handlers read headers and arguments as structs.
#[derive(Debug)]
struct Slot {
    lines: Vec<Line>,
    len: usize,
}

impl Slot {
    fn new(len: usize) -> Self {
        Self { lines: vec![Line([0; LINE]); len.div_ceil(LINE)], len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.lines.as_mut_bytes()[..self.len]
    }
}
