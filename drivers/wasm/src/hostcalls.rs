//! What modules import (T7, T8): each call is counted, paid and its pointers checked, in this order, and then the host's.

use std::ptr::NonNull;

use berth_tasklet::{
    hostcall::{BLOCK_LEN, Call, Hostcalls, Kind},
    run::Limits,
};
use wasmtime::{Caller, Engine, Linker, Memory, ResourceLimiter, Result};

use crate::{
    engine::{FUEL_SLICE, TABLE_ELEMENTS},
    fuel,
    profile::LOG,
};

/// Why a guest was stopped by its host, unlike by a trap of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stopped {
    #[error("out of fuel")]
    Fuel,
    #[error("a hostcall too many")]
    Hostcalls,
    #[error("it grows to {0} bytes of memory")]
    Memory(u64),
    #[error("a hostcall with bytes outside memory")]
    Pointer,
    #[error("the host ended it")]
    Host,
}

/// The host of one run, without its lifetime: a store's data has none.
///
/// Made by [`Host::two`] only, whose caller keeps the borrow for as long.
pub(crate) struct Host(NonNull<dyn Hostcalls>);

// SAFETY: it is there only while a function of this crate runs the guest, on one thread; wasmtime asks for `Send` where a store is used
// across an await, and the future is polled by the same function.
unsafe impl Send for Host {}

impl Host {
    /// One for the guest's calls, and one for between them.
    ///
    /// # Safety
    /// The host is used through these alone until both are dropped, on this thread, and through one of them at a time.
    pub(crate) unsafe fn two(host: &mut dyn Hostcalls) -> (Self, Self) {
        let host: NonNull<dyn Hostcalls + '_> = NonNull::from(host);
        // SAFETY: only the lifetime changes, which the caller answers for.
        let host =
            unsafe { std::mem::transmute::<NonNull<dyn Hostcalls + '_>, NonNull<dyn Hostcalls + 'static>>(host) };
        (Self(host), Self(host))
    }

    pub(crate) fn get(&mut self) -> &mut dyn Hostcalls {
        // SAFETY: by the contract of `two` it is alive, and nothing else refers to it now.
        unsafe { self.0.as_mut() }
    }
}

/// What a store knows of its guest.
pub(crate) struct Guest {
    /// While it runs.
    pub(crate) host: Option<Host>,
    pub(crate) limits: Limits,
    /// Calls that were made.
    pub(crate) hostcalls: u64,
    pub(crate) memory: Option<Memory>,
    /// Whether its memory has a maximum of the module's own.
    pub(crate) bounded: bool,
    /// The fuel that was left when the host was last asked for a turn.
    pub(crate) asked: u64,
    /// The fuel from one turn to the next.
    pub(crate) slice: u64,
}

impl Guest {
    pub(crate) fn new(host: Option<Host>, limits: Limits) -> Self {
        Self { host, limits, hostcalls: 0, memory: None, bounded: false, asked: 0, slice: FUEL_SLICE }
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        // Without one of its own, wasmtime names what 32 bits address.
        if self.bounded && maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let desired = desired as u64;
        if desired > self.limits.memory { Err(Stopped::Memory(desired).into()) } else { Ok(true) }
    }

    fn table_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> Result<bool> {
        Ok(desired <= TABLE_ELEMENTS as usize && maximum.is_none_or(|maximum| desired <= maximum))
    }
}

/// Counts and pays for a call, and asks the host for a turn where it is due.
fn enter(caller: &mut Caller<'_, Guest>, moved: u64) -> Result<()> {
    let guest = caller.data_mut();
    if guest.hostcalls == guest.limits.hostcalls {
        return Err(Stopped::Hostcalls.into());
    }
    guest.hostcalls += 1;
    let cost = fuel::HOSTCALL + moved / fuel::BYTES_PER_UNIT;
    let left = caller.get_fuel()?;
    // The store has one unit more than the run: see `run`.
    if left <= cost {
        return Err(Stopped::Fuel.into());
    }
    let left = left - cost;
    caller.set_fuel(left)?;
    let guest = caller.data_mut();
    if guest.asked.saturating_sub(left) >= guest.slice {
        guest.asked = left;
        if !guest.host.as_mut().is_some_and(|host| host.get().turn()) {
            return Err(Stopped::Host.into());
        }
    }
    Ok(())
}

/// One call: `moved` bytes, of the guest's memory what `call` takes from it.
fn call(
    mut caller: Caller<'_, Guest>,
    moved: u64,
    call: impl for<'a> FnOnce(&'a mut [u8]) -> Option<Call<'a>>,
) -> Result<i64> {
    enter(&mut caller, moved)?;
    let memory = caller.data().memory.ok_or(Stopped::Pointer)?;
    let (bytes, guest) = memory.data_and_store_mut(&mut caller);
    let call = call(bytes).ok_or(Stopped::Pointer)?;
    let host = guest.host.as_mut().ok_or(Stopped::Host)?;
    if call.waits() && !host.get().turn() {
        return Err(Stopped::Host.into());
    }
    Ok(host.get().call(call))
}

/// `len` bytes at `start`; `None` where they are not all in memory.
fn slice(memory: &mut [u8], start: i32, len: u64) -> Option<&mut [u8]> {
    let start = u64::from(start.cast_unsigned());
    memory.get_mut(start as usize..(start + len) as usize)
}

/// `N` bytes at `start`; `None` where they are not all in memory.
fn array<const N: usize>(memory: &mut [u8], start: i32) -> Option<&mut [u8; N]> {
    slice(memory, start, N as u64)?.try_into().ok()
}

fn id(high: i64, low: i64) -> u128 {
    u128::from(high.cast_unsigned()) << 64 | u128::from(low.cast_unsigned())
}

/// Every function that a module may import.
pub(crate) fn linker(engine: &Engine) -> Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    same_for_both(&mut linker, "fabricbios_fbmu_v0", "fbmu", Kind::Memory)?;
    same_for_both(&mut linker, "fabricbios_fbbu_v0", "fbbu", Kind::Block)?;
    memory(&mut linker, "fabricbios_fbmu_v0")?;
    blocks(&mut linker, "fabricbios_fbbu_v0")?;
    log(&mut linker)?;
    Ok(linker)
}

/// A log record, cut to what is kept of it, so that no more is paid for.
pub(crate) fn log(linker: &mut Linker<Guest>) -> Result<()> {
    linker.func_wrap(LOG, "fb_log", |caller: Caller<'_, Guest>, level: i32, start: i32, len: i32| -> Result<()> {
        let len = u64::from(len.cast_unsigned());
        call(caller, len.min(MAX_MESSAGE as u64), |memory| {
            let message = slice(memory, start, len)?;
            let message = &message[..message.len().min(MAX_MESSAGE)];
            Some(Call::Log { level: level.cast_unsigned(), message })
        })?;
        Ok(())
    })?;
    Ok(())
}

/// Bytes of a log record.
const MAX_MESSAGE: usize = 1024;

type Called<'a> = Caller<'a, Guest>;

fn same_for_both(linker: &mut Linker<Guest>, module: &str, prefix: &str, kind: Kind) -> Result<()> {
    let name = |function: &str| format!("{prefix}_{function}");
    linker.func_wrap(module, &name("hello"), move |caller: Called<'_>| -> Result<i32> {
        Ok(call(caller, 0, |_| Some(Call::Hello(kind)))? as i32)
    })?;
    linker.func_wrap(module, &name("get_size"), move |caller: Called<'_>| -> Result<i64> {
        call(caller, 0, |_| Some(Call::GetSize(kind)))
    })?;
    linker.func_wrap(
        module,
        &name("alloc"),
        move |caller: Called<'_>, min: i64, secs: i32, out: i32| -> Result<i32> {
            let (min, secs, len) = (min.cast_unsigned(), secs.cast_unsigned(), kind.alloc_len() as u64);
            Ok(call(caller, len, |memory| Some(Call::Alloc { kind, min, secs, out: slice(memory, out, len)? }))? as i32)
        },
    )?;
    linker.func_wrap(
        module,
        &name("query"),
        move |caller: Called<'_>, high: i64, low: i64, out: i32| -> Result<i32> {
            let lease = id(high, low);
            Ok(call(caller, 24, |memory| Some(Call::Query { kind, lease, out: array(memory, out)? }))? as i32)
        },
    )?;
    linker.func_wrap(
        module,
        &name("renew"),
        move |caller: Called<'_>, high: i64, low: i64, secs: i32, out: i32| -> Result<i32> {
            let (lease, secs) = (id(high, low), secs.cast_unsigned());
            Ok(call(caller, 8, |memory| Some(Call::Renew { kind, lease, secs, out: array(memory, out)? }))? as i32)
        },
    )?;
    linker.func_wrap(module, &name("free"), move |caller: Called<'_>, high: i64, low: i64| -> Result<i32> {
        Ok(call(caller, 0, |_| Some(Call::Free { kind, lease: id(high, low) }))? as i32)
    })?;
    Ok(())
}

fn memory(linker: &mut Linker<Guest>, module: &str) -> Result<()> {
    let kind = Kind::Memory;
    let read = move |caller: Called<'_>, lease, at: i64, len: i32, out: i32| -> Result<i32> {
        let (at, len) = (at.cast_unsigned(), u64::from(len.cast_unsigned()));
        Ok(call(caller, len, |memory| Some(Call::Read { kind, lease, at, out: slice(memory, out, len)? }))? as i32)
    };
    let write = move |caller: Called<'_>, lease, at: i64, start: i32, len: i32| -> Result<i32> {
        let (at, len) = (at.cast_unsigned(), u64::from(len.cast_unsigned()));
        Ok(call(caller, len, |memory| Some(Call::Write { kind, lease, at, data: slice(memory, start, len)? }))? as i32)
    };
    linker.func_wrap(module, "fbmu_read", move |caller: Called<'_>, at, len, out| read(caller, None, at, len, out))?;
    linker.func_wrap(module, "fbmu_write", move |caller: Called<'_>, at, start, len| {
        write(caller, None, at, start, len)
    })?;
    linker.func_wrap(module, "fbmu_read_lease", move |caller: Called<'_>, high, low, at, len, out| {
        read(caller, Some(id(high, low)), at, len, out)
    })?;
    linker.func_wrap(module, "fbmu_write_lease", move |caller: Called<'_>, high, low, at, start, len| {
        write(caller, Some(id(high, low)), at, start, len)
    })?;
    Ok(())
}

fn blocks(linker: &mut Linker<Guest>, module: &str) -> Result<()> {
    const LEN: u64 = BLOCK_LEN as u64;
    let kind = Kind::Block;
    let read = move |caller: Called<'_>, lease, at: i64, out: i32| -> Result<i32> {
        let at = at.cast_unsigned();
        Ok(call(caller, LEN, |memory| Some(Call::Read { kind, lease, at, out: slice(memory, out, LEN)? }))? as i32)
    };
    let write = move |caller: Called<'_>, lease, at: i64, start: i32| -> Result<i32> {
        let at = at.cast_unsigned();
        Ok(call(caller, LEN, |memory| Some(Call::Write { kind, lease, at, data: slice(memory, start, LEN)? }))? as i32)
    };
    linker.func_wrap(module, "fbbu_read_block", move |caller: Called<'_>, at, out| read(caller, None, at, out))?;
    linker
        .func_wrap(module, "fbbu_write_block", move |caller: Called<'_>, at, start| write(caller, None, at, start))?;
    linker.func_wrap(module, "fbbu_read_block_lease", move |caller: Called<'_>, high, low, at, out| {
        read(caller, Some(id(high, low)), at, out)
    })?;
    linker.func_wrap(module, "fbbu_write_block_lease", move |caller: Called<'_>, high, low, at, start| {
        write(caller, Some(id(high, low)), at, start)
    })?;
    Ok(())
}
