//! What a node needs from the machine that it runs on.

use berth_wire::fabric::Thermal;

/// Services of the machine. No call may block for longer than a system call that does not wait.
pub trait Host: Send {
    /// Fills `into` from a cryptographically secure source.
    fn random(&mut self, into: &mut [u8]);

    /// The latest temperatures, for GET_THERMAL.
    fn thermal(&mut self) -> Thermal;
}

pub(crate) fn random_u128(host: &mut impl Host) -> u128 {
    let mut bytes = [0; 16];
    host.random(&mut bytes);
    u128::from_be_bytes(bytes)
}
