//! Where accesses go, each checked.

use crate::{
    error::{Access, FaultKind},
    layout,
    memory::{self, Memory, Order, Width},
    program::Place,
};

/// All that a thread may touch.
pub(super) struct Spaces<'s, M> {
    pub(super) memory: &'s mut M,
    pub(super) image: &'s mut [u8],
    pub(super) constant: usize,
    pub(super) params: &'s mut [u8],
    pub(super) shared: &'s mut [u8],
    pub(super) stack: &'s mut [u8],
    /// Where the thread's frame begins in `stack`.
    pub(super) sp: usize,
}

/// What an address leads to.
enum Target<'t> {
    /// The embedding's memory.
    Memory,
    /// These bytes, from the address on.
    Bytes(&'t mut [u8]),
    Nothing,
}

/// Sums of 32-bit addresses wrap, as when a compiler begins a loop below an array.
#[inline]
fn small(address: u64) -> u64 {
    if address >> 32 == 1 { address & 0xFFFF_FFFF } else { address }
}

impl<M: Memory> Spaces<'_, M> {
    #[inline(always)]
    fn target(&mut self, place: Place, address: u64, access: Access) -> Target<'_> {
        let window = layout::window(address);
        let offset = address & (layout::SHARED - 1);
        let (place, at) = match (place, window) {
            (Place::Generic | Place::Global, 0) => return Target::Memory,
            (Place::Generic | Place::Global | Place::Const, layout::VARIABLES) => (Place::Global, offset),
            (Place::Generic, layout::SHARED) => (Place::Shared, offset),
            (Place::Generic, layout::LOCAL) => (Place::Local, offset),
            (Place::Generic, layout::PARAMS) => (Place::Param, offset),
            (Place::Generic | Place::Global | Place::Const, _) => return Target::Nothing,
            (place, _) => (place, small(address)),
        };
        let Ok(at) = usize::try_from(at) else { return Target::Nothing };
        let writes = access != Access::Read;
        let bytes = match place {
            Place::Shared => self.shared.get_mut(at..),
            Place::Local => self.stack.get_mut(at..),
            Place::Frame => self.stack.get_mut(self.sp + at..),
            Place::Param if !writes => self.params.get_mut(at..),
            Place::Global if writes => self.image[..self.constant].get_mut(at..),
            Place::Global => self.image.get_mut(at..),
            _ => None,
        };
        bytes.map_or(Target::Nothing, Target::Bytes)
    }

    #[cold]
    fn out_of_bounds<T>(place: Place, address: u64, width: Width, access: Access) -> Result<T, FaultKind> {
        Err(FaultKind::OutOfBounds { access, address, bytes: width.bytes(), space: place.space() })
    }

    #[inline(always)]
    pub(super) fn load(&mut self, place: Place, address: u64, width: Width, order: Order) -> Result<u64, FaultKind> {
        let found = match self.target(place, address, Access::Read) {
            Target::Bytes(bytes) => bytes.get(..usize::from(width.bytes())).map(memory::read),
            Target::Memory => self.memory.load(address, width, order).ok(),
            Target::Nothing => None,
        };
        match found {
            Some(value) => Ok(value),
            None => Self::out_of_bounds(place, address, width, Access::Read),
        }
    }

    #[inline(always)]
    pub(super) fn store(
        &mut self,
        place: Place,
        address: u64,
        width: Width,
        value: u64,
        order: Order,
    ) -> Result<(), FaultKind> {
        let found = match self.target(place, address, Access::Write) {
            Target::Bytes(bytes) => {
                bytes.get_mut(..usize::from(width.bytes())).map(|bytes| memory::write(bytes, value))
            }
            Target::Memory => self.memory.store(address, width, value, order).ok(),
            Target::Nothing => None,
        };
        match found {
            Some(()) => Ok(()),
            None => Self::out_of_bounds(place, address, width, Access::Write),
        }
    }

    pub(super) fn update(
        &mut self,
        place: Place,
        address: u64,
        width: Width,
        order: Order,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, FaultKind> {
        let found = match self.target(place, address, Access::Atomic) {
            Target::Bytes(bytes) => bytes.get_mut(..usize::from(width.bytes())).map(|bytes| {
                let old = memory::read(bytes);
                memory::write(bytes, f(old));
                old
            }),
            Target::Memory => self.memory.update(address, width, order, f).ok(),
            Target::Nothing => None,
        };
        match found {
            Some(old) => Ok(old),
            None => Self::out_of_bounds(place, address, width, Access::Atomic),
        }
    }
}

/// Whether an access of so many bytes may be at this address.
#[inline(always)]
pub(super) fn aligned(place: Place, address: u64, bytes: u8, access: Access) -> Result<(), FaultKind> {
    if address & u64::from(bytes - 1) == 0 {
        Ok(())
    } else {
        Err(FaultKind::Misaligned { access, address, bytes, space: place.space() })
    }
}
