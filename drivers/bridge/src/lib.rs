//! The bridge: `libcudaq-realtime-bridge-berth.so`, by which the servers of CUDA-Q Realtime get requests from our ports.
//!
//! A server loads it by its path and asks `cudaq_realtime_get_bridge_interface` for a table of functions. A bridge has one
//! of two shapes:
//!
//! ```text
//! ring      port <-> thread of ours <-> slots and flags <-> the server's dispatcher (a CPU's, or a kernel on a GPU)
//! unified   port <-> rx_poll, tx_publish                <-> the server's dispatcher, on its own thread
//! ```
//!
//! No call panics, blocks for long, installs a handler of signals or writes to standard output. Handles are numbers that lead
//! to no memory, so a stale one is an error.

pub mod abi;
mod config;
mod exchange;
mod failure;
mod handle;
mod options;
mod pinned;
mod pump;
mod unified;

use std::{
    env,
    ffi::{CStr, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{Arc, OnceLock},
};

use abi::{CpuDataplane, Handle, Interface};
use berth_ring::abi::Ringbuffer;
use failure::Failure;
use handle::{Bridge, Shape};
use options::Options;
use unified::Dataplane;

/// The variable that makes the table an older one, for servers that refuse the present version.
const VERSION: &str = "BERTH_BRIDGE_VERSION";

/// The table of the bridge's functions. It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn cudaq_realtime_get_bridge_interface() -> *const Interface {
    static TABLE: OnceLock<Interface> = OnceLock::new();
    TABLE.get_or_init(|| {
        let wanted = env::var(VERSION).ok().and_then(|text| text.parse().ok());
        Interface {
            version: wanted.filter(|version| (1..abi::VERSION).contains(version)).unwrap_or(abi::VERSION),
            create: Some(create),
            destroy: Some(destroy),
            get_transport_context: Some(get_transport_context),
            connect: Some(connect),
            launch: Some(launch),
            disconnect: Some(disconnect),
            get_cpu_dataplane: Some(get_cpu_dataplane),
            get_endpoint_info: Some(get_endpoint_info),
            get_ring_geometry: Some(get_ring_geometry),
            set_function_table: None,
        }
    })
}

/// Runs a call: a failure is told and a panic caught, which Rust tells itself.
fn guard(call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => abi::OK,
        Ok(Err(failure)) => {
            failure.tell();
            failure.status
        }
        Err(_) => abi::INTERNAL,
    }
}

const INVALID: Failure = Failure::silent(abi::INVALID_ARG);
const UNSUPPORTED: Failure = Failure::silent(abi::UNSUPPORTED);

fn find(handle: Handle) -> Result<Arc<Bridge>, Failure> {
    handle::find(handle).ok_or(INVALID)
}

/// The thread of a bridge that has one and whose thread has not ended.
fn with_thread(handle: Handle, call: impl FnOnce(&pump::Thread)) -> Result<(), Failure> {
    if let Shape::Ring(thread) = &find(handle)?.shape {
        call(thread);
        if thread.has_ended() {
            return Err(Failure::silent(abi::INTERNAL));
        }
    }
    Ok(())
}

unsafe extern "C" fn create(out: *mut Handle, argc: c_int, argv: *const *const c_char) -> c_int {
    guard(|| {
        if out.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, so the caller's own.
        unsafe { out.write(ptr::null_mut()) };
        let count = usize::try_from(argc).map_err(|_| INVALID)?;
        if argv.is_null() && count > 0 {
            return Err(INVALID);
        }
        let arguments = (0..count).filter_map(|nth| {
            // SAFETY: the caller passes `argc` pointers, each null or to a string that ends.
            unsafe {
                let argument = *argv.add(nth);
                (!argument.is_null()).then(|| CStr::from_ptr(argument))
            }
        });
        let bridge = Bridge::open(Options::read(arguments)?)?;
        // SAFETY: as above.
        unsafe { out.write(handle::add(bridge)) };
        Ok(())
    })
}

unsafe extern "C" fn destroy(handle: Handle) -> c_int {
    guard(|| if handle::remove(handle) { Ok(()) } else { Err(INVALID) })
}

unsafe extern "C" fn get_transport_context(handle: Handle, kind: c_int, out: *mut c_void) -> c_int {
    guard(|| {
        let bridge = find(handle)?;
        if out.is_null() {
            return Err(INVALID);
        }
        match (&bridge.shape, kind) {
            // SAFETY: the caller's memory for a context of this type, as C aligns it.
            (Shape::Ring(_), abi::RING_BUFFER) => unsafe { out.cast::<Ringbuffer>().write(bridge.abi) },
            (Shape::Unified(_), abi::UNIFIED) => {
                let yours = abi::Unified { launch: ptr::null_mut(), context: ptr::null_mut() };
                // SAFETY: as above.
                unsafe { out.cast::<abi::Unified>().write(yours) };
            }
            _ => return Err(UNSUPPORTED),
        }
        Ok(())
    })
}

/// Ports let peers in by themselves, so there is nothing to wait for.
unsafe extern "C" fn connect(handle: Handle) -> c_int {
    guard(|| with_thread(handle, |_| {}))
}

unsafe extern "C" fn launch(handle: Handle) -> c_int {
    guard(|| with_thread(handle, pump::Thread::launch))
}

unsafe extern "C" fn disconnect(handle: Handle) -> c_int {
    guard(|| {
        if let Shape::Ring(thread) = &find(handle)?.shape {
            thread.park();
        }
        Ok(())
    })
}

unsafe extern "C" fn get_cpu_dataplane(handle: Handle, out: *mut CpuDataplane) -> c_int {
    guard(|| {
        let bridge = find(handle)?;
        if out.is_null() {
            return Err(INVALID);
        }
        let Shape::Unified(dataplane) = &bridge.shape else { return Err(UNSUPPORTED) };
        let context = ptr::from_ref::<Dataplane>(dataplane).cast_mut().cast();
        let filled = CpuDataplane { context, ring: bridge.abi, rx_poll: Some(rx_poll), tx_publish: Some(tx_publish) };
        // SAFETY: not null, so the caller's own.
        unsafe { out.write(filled) };
        Ok(())
    })
}

unsafe extern "C" fn get_endpoint_info(handle: Handle, text: *mut c_char, room: usize) -> c_int {
    guard(|| {
        let bridge = find(handle)?;
        let line = bridge.endpoint.as_bytes();
        if text.is_null() || room <= line.len() {
            return Err(INVALID);
        }
        // SAFETY: the caller's buffer has room for the line and its end.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(line.as_ptr(), line.len());
            text.add(line.len()).write(0);
        }
        Ok(())
    })
}

unsafe extern "C" fn get_ring_geometry(handle: Handle, slots: *mut u32, slot_size: *mut u32) -> c_int {
    guard(|| {
        let bridge = find(handle)?;
        if slots.is_null() || slot_size.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, so the caller's own.
        unsafe {
            slots.write(bridge.slots);
            slot_size.write(bridge.slot_size);
        }
        Ok(())
    })
}

unsafe extern "C" fn rx_poll(context: *mut c_void, slot: *mut u32) -> c_int {
    if context.is_null() || slot.is_null() {
        return abi::EMPTY;
    }
    // SAFETY: the context is that of `get_cpu_dataplane`, which is valid until the bridge is destroyed.
    let dataplane = unsafe { &*context.cast::<Dataplane>() };
    match catch_unwind(AssertUnwindSafe(|| dataplane.poll())) {
        Ok(Some(found)) => {
            // SAFETY: not null, so the caller's own.
            unsafe { slot.write(found) };
            abi::READY
        }
        _ => abi::EMPTY,
    }
}

unsafe extern "C" fn tx_publish(context: *mut c_void, slot: u32) -> c_int {
    if context.is_null() {
        return abi::INVALID_ARG;
    }
    // SAFETY: as in `rx_poll`.
    let dataplane = unsafe { &*context.cast::<Dataplane>() };
    catch_unwind(AssertUnwindSafe(|| dataplane.publish(slot))).unwrap_or(abi::INTERNAL)
}
