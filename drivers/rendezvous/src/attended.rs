//! A port with its rendezvous.

use std::{net::SocketAddr, os::fd::RawFd};

use berth_port::{DeviceCounters, Frame, Peer, Port, PostError, ReplyTo, Verdict};

use crate::Rendezvous;

/// A port with a rendezvous, if it has one. The rendezvous lives as long as the port, and its counters are reported
/// with the port's.
#[derive(Debug)]
pub struct Attended<P> {
    port: P,
    rendezvous: Option<Rendezvous>,
}

impl<P> Attended<P> {
    /// Without a rendezvous it behaves like the bare port.
    pub fn new(port: P, rendezvous: Option<Rendezvous>) -> Self {
        Self { port, rendezvous }
    }
}

impl<P: Port> Port for Attended<P> {
    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, handle: H) -> usize {
        self.port.rx(handle)
    }

    #[inline]
    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        self.port.post(peer, fill)
    }

    #[inline]
    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, to: ReplyTo, fill: F) -> Result<(), PostError> {
        self.port.reply(to, fill)
    }

    #[inline]
    fn release(&mut self, number: u32) {
        self.port.release(number);
    }

    #[inline]
    fn tx(&mut self) {
        self.port.tx();
    }

    fn max_frame(&self) -> usize {
        self.port.max_frame()
    }

    fn local_addr(&self) -> SocketAddr {
        self.port.local_addr()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.port.wait_fd()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.port.counters(visit);
        if let Some(rendezvous) = &self.rendezvous {
            rendezvous.counters(visit);
        }
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        self.port.device()
    }
}
