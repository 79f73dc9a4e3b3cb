//! RPC handlers from shared libraries (host API, "Structs": handler ABIs).
//!
//! A [`Plugin`] is one symbol of a library. It is called with an aligned copy of the request slot and an answer slot of
//! its own. What it returns is checked before anything is sent. What it *does* cannot be checked, because a plug-in
//! runs in this process and on the poll core. If it crashes, or lets a panic or exception out, the process ends; if it
//! writes beyond its slot, it corrupts the process; if it does not return, its core stops (its budget is only checked
//! afterwards). Handlers that are not trusted that far belong in another process, at the other end of a ring.

use std::path::{Path, PathBuf};

use berth_rpc::{Call, Failure, Outcome, handlers::Custom};
use berth_wire::rpc::{HandlerSchema, ResponseHeader};
use libloading::Library;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Size of a [`Line`] in bytes.
const LINE: usize = 64;

/// `berth_host_call` of `berth_ring.h`: reads the request slot and writes the whole response.
///
/// "C-unwind" makes unwinding out of a plug-in a defined abort.
type HostCall = unsafe extern "C-unwind" fn(*const u8, *mut u8, usize);

/// `berth_device_call` of `berth_ring.h`: takes arguments, room for results and their lengths; returns the status.
type DeviceCall = unsafe extern "C-unwind" fn(*const u8, *mut u8, u32, u32, *mut u32) -> i32;

/// The signature of a plug-in's symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// `HOST_CALL`: whole slots, headers included.
    HostCall,
    /// `DEVICE_CALL`: arguments and results only; Berth handles the headers.
    DeviceCall,
}

/// Why a plug-in was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file does not exist, or cannot be reached.
    #[error("plug-in {path}: {error}; give the path of a shared library")]
    File {
        /// As configured.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The dynamic linker refused the file.
    #[error("plug-in {path} is not a shared library that can be loaded: {error}")]
    Library {
        /// As configured.
        path: PathBuf,
        /// The dynamic linker's error.
        error: libloading::Error,
    },
    /// The library does not export the symbol.
    #[error("plug-in {path} exports no symbol {symbol:?}; C++ needs extern \"C\", Rust #[unsafe(no_mangle)]")]
    Symbol {
        /// As configured.
        path: PathBuf,
        /// As configured.
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
    /// Loads a library and finds a symbol whose arguments and results are those of `schema`.
    ///
    /// The library's initialisers run. That `symbol` has the signature `abi` cannot be checked: its name comes from the
    /// operator's configuration, never from a peer. The handler is told that both slots have `slot_size` bytes.
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

/// Memory with the alignment of ring slots, because handlers read headers and arguments as structs.
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
