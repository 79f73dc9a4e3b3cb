//! The devices of a session: software GPUs alone, or GPUs of both kinds.

use std::{
    any::Any,
    task::{Context, Poll},
};

use berth_hip_session::{Allocation, Device, Done, Job, Properties, soft::Soft};
use berth_wire::hip::Code;

use crate::{parts::Parts, runner::Thread};

/// The devices of a session.
pub(crate) enum Gpus {
    Soft(Soft<Thread>),
    Parts(Parts),
}

/// The same on either.
macro_rules! on {
    ($gpus:expr, $gpu:ident => $call:expr) => {
        match $gpus {
            Gpus::Soft($gpu) => $call,
            Gpus::Parts($gpu) => $call,
        }
    };
}

impl Device for Gpus {
    fn image_max(&self, device: usize) -> usize {
        on!(self, gpu => gpu.image_max(device))
    }

    fn properties(&self) -> &[Properties] {
        on!(self, gpu => gpu.properties())
    }

    fn free_bytes(&self, device: usize) -> u64 {
        on!(self, gpu => gpu.free_bytes(device))
    }

    fn used(&self) -> Option<u64> {
        on!(self, gpu => gpu.used())
    }

    fn lost(&self, device: usize) -> Option<Code> {
        on!(self, gpu => gpu.lost(device))
    }

    fn reaches(&self, device: usize, peer: usize) -> bool {
        on!(self, gpu => gpu.reaches(device, peer))
    }

    fn free(&mut self, at: u64) -> Result<(), Code> {
        on!(self, gpu => gpu.free(at))
    }

    fn find(&self, at: u64) -> Option<Allocation> {
        on!(self, gpu => gpu.find(at))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize, Code> {
        on!(self, gpu => gpu.write(at, bytes))
    }

    fn reach(&mut self, at: u64, len: u64) -> Poll<Result<(), Code>> {
        on!(self, gpu => gpu.reach(at, len))
    }

    fn read(&mut self, at: u64, len: u64, into: &mut [u8]) -> Result<usize, Code> {
        on!(self, gpu => gpu.read(at, len, into))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        on!(self, gpu => gpu.poll_data(cx))
    }

    fn unload(&mut self, module: u64) {
        on!(self, gpu => gpu.unload(module));
    }

    fn reset(&mut self) {
        on!(self, gpu => gpu.reset());
    }

    fn confine(&mut self, device: usize, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code> {
        on!(self, gpu => gpu.confine(device, bytes, held))
    }

    fn set(&mut self, dst: u64, len: u64, value: u8) -> Result<bool, Code> {
        on!(self, gpu => gpu.set(dst, len, value))
    }

    fn start(&mut self, job: Job) {
        on!(self, gpu => gpu.start(job));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        on!(self, gpu => gpu.poll(cx))
    }

    fn check(&self, at: u64, len: u64) -> Result<(), Code> {
        on!(self, gpu => gpu.check(at, len))
    }
}
