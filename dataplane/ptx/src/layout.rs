//! Where generic addresses lead. What is below 2^56 is the embedding's [`crate::Memory`].

/// The shared memory of the thread's block.
pub(crate) const SHARED: u64 = 1 << 56;
/// The local memory of the thread.
pub(crate) const LOCAL: u64 = 2 << 56;
/// Variables of the modules.
pub(crate) const VARIABLES: u64 = 3 << 56;
/// The parameters of the kernel.
pub(crate) const PARAMS: u64 = 4 << 56;
/// Functions, [`FUNCTION`] bytes apart.
pub(crate) const FUNCTIONS: u64 = 5 << 56;
/// From one function's address to the next.
pub(crate) const FUNCTION: u64 = 16;

/// Which of the windows above an address is in.
#[inline]
pub(crate) fn window(address: u64) -> u64 {
    address & !(SHARED - 1)
}

/// The address of a function.
pub(crate) fn function(index: u32) -> u64 {
    FUNCTIONS + u64::from(index) * FUNCTION
}

/// The function at an address, if it can be one.
pub(crate) fn function_of(address: u64) -> Option<u32> {
    let offset = address.checked_sub(FUNCTIONS)?;
    if offset % FUNCTION == 0 { u32::try_from(offset / FUNCTION).ok() } else { None }
}
