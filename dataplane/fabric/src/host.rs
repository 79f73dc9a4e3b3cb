//! What a node asks of the machine that it runs on.

use berth_lease::LeaseId;
use berth_wire::fabric::Thermal;

use crate::journal::Proxy;

/// The machine, as ops need it. No call may block for longer than a system call that waits for nothing.
pub trait Host: Send {
    /// Fills `into` with bytes that no one can guess.
    fn random(&mut self, into: &mut [u8]);

    /// The newest temperatures; GET_THERMAL.
    fn thermal(&mut self) -> Thermal;

    /// Starts a TCP proxy on 127.0.0.1 that serves until [`Effects::proxies_closed`](crate::Effects) names it.
    /// `proxy.ingress` is the port to listen on, 0 for any; returned is the port, or `None` where it cannot listen.
    fn open_proxy(&mut self, lease: LeaseId, proxy: Proxy) -> Option<u16>;
}

pub(crate) fn random_u128(host: &mut impl Host) -> u128 {
    let mut bytes = [0; 16];
    host.random(&mut bytes);
    u128::from_be_bytes(bytes)
}
