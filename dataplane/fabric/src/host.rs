//! What a node asks of the machine that it runs on.

use berth_wire::fabric::Thermal;

/// The machine, as ops need it. No call may block for longer than a system call that waits for nothing.
pub trait Host: Send {
    /// Fills `into` with bytes that no one can guess.
    fn random(&mut self, into: &mut [u8]);

    /// The newest temperatures; GET_THERMAL.
    fn thermal(&mut self) -> Thermal;
}

pub(crate) fn random_u128(host: &mut impl Host) -> u128 {
    let mut bytes = [0; 16];
    host.random(&mut bytes);
    u128::from_be_bytes(bytes)
}
