//! The memory that a kernel may touch.

/// How many bytes an access has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// One.
    B1,
    /// Two.
    B2,
    /// Four.
    B4,
    /// Eight.
    B8,
}

impl Width {
    /// Bytes of the access: 1, 2, 4 or 8.
    #[inline]
    pub fn bytes(self) -> u8 {
        1 << self as u8
    }

    /// The width of so many bits; `None` if there is none.
    pub(crate) fn of_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            8 => Self::B1,
            16 => Self::B2,
            32 => Self::B4,
            64 => Self::B8,
            _ => return None,
        })
    }
}

/// What an access orders (PTX ISA 8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Semantics {
    /// Nothing.
    Weak,
    /// A strong access that orders nothing; `.volatile` too.
    Relaxed,
    /// `.acquire`
    Acquire,
    /// `.release`
    Release,
    /// `.acq_rel`
    AcquireRelease,
    /// `.sc`
    Sequential,
}

/// Among whom (PTX ISA 8.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Threads of the block, or of its cluster.
    Block,
    /// Threads of the device.
    Device,
    /// The host and other devices, too.
    System,
}

/// What an access orders, and among whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// How it orders the thread's other accesses.
    pub semantics: Semantics,
    /// For which threads it does.
    pub scope: Scope,
}

impl Order {
    /// An access that orders nothing.
    pub const WEAK: Self = Self { semantics: Semantics::Weak, scope: Scope::Block };
}

/// The address is not one that the kernel may touch so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// Global memory, as a kernel sees it. Addresses are below 2^56, and multiples of the width.
///
/// One thread calls it. An implementation over memory that others touch as well makes the accesses of [`Scope::System`]
/// atomic, in the order that [`Order`] says.
pub trait Memory {
    /// Reads an integer, of the lowest byte first.
    fn load(&mut self, at: u64, width: Width, order: Order) -> Result<u64, Refused>;

    /// Writes the low bytes of `value`.
    fn store(&mut self, at: u64, width: Width, value: u64, order: Order) -> Result<(), Refused>;

    /// Replaces what is there by what `f` makes of it, at once; returns what was there. `f` may be called again.
    fn update(&mut self, at: u64, width: Width, order: Order, f: impl Fn(u64) -> u64) -> Result<u64, Refused>;

    /// A fence.
    fn fence(&mut self, order: Order);
}

/// What allocations begin at multiples of: no 32-bit index leads from one into the next.
const APART: u64 = 1 << 32;

/// Memory that nobody else touches: allocations, 4 GiB or more apart.
#[derive(Debug, Default)]
pub struct Allocations {
    /// By address.
    all: Vec<(u64, Vec<u8>)>,
    /// Which was used last.
    last: usize,
}

impl Allocations {
    /// Takes these bytes in; returns their address, a multiple of 4 GiB, never 0.
    pub fn allocate(&mut self, bytes: Vec<u8>) -> u64 {
        let end = self.all.last().map_or(1, |(at, bytes)| at + bytes.len() as u64 + 1);
        let at = end.next_multiple_of(APART);
        self.all.push((at, bytes));
        at
    }

    /// The bytes of the allocation that begins at `at`; `None` if none begins there.
    pub fn bytes(&self, at: u64) -> Option<&[u8]> {
        let index = self.all.binary_search_by_key(&at, |(start, _)| *start).ok()?;
        Some(&self.all[index].1)
    }

    #[inline]
    fn find(&mut self, at: u64, width: Width) -> Result<&mut [u8], Refused> {
        let holds =
            |(start, bytes): &(u64, Vec<u8>)| at.checked_sub(*start).is_some_and(|offset| offset < bytes.len() as u64);
        if !self.all.get(self.last).is_some_and(holds) {
            self.last = self.all.partition_point(|(start, _)| *start <= at).checked_sub(1).ok_or(Refused)?;
        }
        let (start, bytes) = &mut self.all[self.last];
        let offset = (at - *start) as usize;
        bytes.get_mut(offset..offset + usize::from(width.bytes())).ok_or(Refused)
    }
}

/// The integer in these bytes, of which there are 1, 2, 4 or 8.
#[inline]
pub(crate) fn read(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

/// Writes the low bytes of `value`.
#[inline]
pub(crate) fn write(bytes: &mut [u8], value: u64) {
    let len = bytes.len();
    bytes.copy_from_slice(&value.to_le_bytes()[..len]);
}

impl Memory for Allocations {
    #[inline]
    fn load(&mut self, at: u64, width: Width, _: Order) -> Result<u64, Refused> {
        self.find(at, width).map(|bytes| read(bytes))
    }

    #[inline]
    fn store(&mut self, at: u64, width: Width, value: u64, _: Order) -> Result<(), Refused> {
        self.find(at, width).map(|bytes| write(bytes, value))
    }

    fn update(&mut self, at: u64, width: Width, _: Order, f: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        let bytes = self.find(at, width)?;
        let old = read(bytes);
        write(bytes, f(old));
        Ok(old)
    }

    fn fence(&mut self, _: Order) {}
}
