//! The devices of a session of which some are GPUs with a driver: each of those is a part of its own, and the software GPUs
//! are one together. A pointer tells its part, and so does the number of a module.

use std::{
    any::Any,
    sync::Arc,
    task::{Context, Poll},
};

use berth_hip_session::{
    Allocation, Copy2d, Device, Done, Job, Launch, Loaded, Properties,
    soft::{LOWEST, Soft},
};
use berth_wire::hip::Code;

use crate::{
    apart::{Apart, IMAGE_MAX},
    runner::Thread,
};

/// Bits of a module's number that are its part's; those above are the device.
const OWN: u32 = 48;
const OWN_MASK: u64 = (1 << OWN) - 1;

/// Bytes that a copy between parts has in memory of this process.
const BETWEEN: usize = 256 << 10;

/// Pieces that such a copy moves before others get their turn.
const PIECES: usize = 4;

/// The devices of a session, of which some are GPUs with a driver.
pub(crate) struct Parts {
    properties: Arc<[Properties]>,
    /// It knows the software GPUs by the indices of the session's devices.
    soft: Soft<Thread>,
    /// Of each device; `None` where that is a software GPU.
    apart: Vec<Option<Apart>>,
    /// The device that data were last written to or read from.
    data: usize,
    /// The device that does the job.
    job: usize,
    /// A copy between parts.
    crossing: Option<Crossing>,
    /// A job that no part has begun.
    refused: Option<Done>,
}

/// A copy between parts, and how far it is.
struct Crossing {
    copy: Copy2d,
    row: u64,
    /// Bytes of the row that were written.
    at: u64,
    /// What was read, and how much of that was written.
    read: Vec<u8>,
    written: usize,
}

impl Crossing {
    fn new(job: &Job) -> Option<Self> {
        let Job::Copy(mut copy) = *job else { return None };
        let width = copy.width;
        if copy.dpitch == width && copy.spitch == width {
            (copy.width, copy.height) = (width * copy.height, 1);
        }
        Some(Self { copy, row: 0, at: 0, read: Vec::new(), written: 0 })
    }
}

/// The same on the part of a device.
macro_rules! on {
    ($parts:expr, $device:expr, $gpu:ident => $call:expr) => {
        match &mut $parts.apart[$device] {
            Some($gpu) => $call,
            None => {
                let $gpu = &mut $parts.soft;
                $call
            }
        }
    };
}

impl Parts {
    /// `apart` has the GPUs with a driver in the places of their devices, `soft` all others.
    pub(crate) fn new(properties: Arc<[Properties]>, soft: Soft<Thread>, apart: Vec<Option<Apart>>) -> Self {
        Self { properties, soft, apart, data: 0, job: 0, crossing: None, refused: None }
    }

    fn owner(&self, at: u64) -> Result<usize, Code> {
        Ok(self.find(at).ok_or(Code::INVALID_DEVICE_POINTER)?.device)
    }

    fn is_soft(&self, device: usize) -> bool {
        self.apart.get(device).is_some_and(Option::is_none)
    }

    /// The device that is to do a job; `None` for a copy between parts.
    fn doer(&self, job: &Job) -> Result<Option<usize>, Code> {
        Ok(Some(match job {
            Job::Allocate { device, .. } | Job::Load { device, .. } => *device,
            Job::Settle => self.data,
            Job::Set { dst, .. } => self.owner(*dst)?,
            Job::Launch(launch) => (launch.module >> OWN) as usize,
            Job::Copy(Copy2d { dst, src, .. }) => {
                let (to, from) = (self.owner(*dst)?, self.owner(*src)?);
                let is_within = to == from || self.is_soft(to) && self.is_soft(from);
                return Ok(is_within.then_some(to));
            }
        }))
    }

    /// Goes on with a copy between parts, as far as they are ready.
    fn cross(&mut self, crossing: &mut Crossing, cx: &mut Context<'_>) -> Poll<Result<(), Code>> {
        let Copy2d { dst, dpitch, src, spitch, width, height } = crossing.copy;
        let mut pieces = 0;
        while crossing.row < height {
            let (dst, src) = (dst + crossing.row * dpitch, src + crossing.row * spitch);
            let moved = if crossing.written < crossing.read.len() {
                let took = self.write(dst + crossing.at, &crossing.read[crossing.written..])?;
                (crossing.written, crossing.at) = (crossing.written + took, crossing.at + took as u64);
                took
            } else if crossing.at == width {
                (crossing.row, crossing.at) = (crossing.row + 1, 0);
                continue;
            } else if pieces == PIECES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            } else {
                let len = (width - crossing.at).min(BETWEEN as u64);
                crossing.read.resize(len as usize, 0);
                let got = self.read(src + crossing.at, len, &mut crossing.read)?;
                crossing.read.truncate(got);
                crossing.written = 0;
                pieces += usize::from(got > 0);
                got
            };
            if moved == 0 && self.poll_data(cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Device for Parts {
    fn image_max(&self, device: usize) -> usize {
        if self.is_soft(device) { self.soft.image_max(device) } else { IMAGE_MAX }
    }

    fn properties(&self) -> &[Properties] {
        &self.properties
    }

    fn free_bytes(&self, device: usize) -> u64 {
        self.apart[device].as_ref().map_or_else(|| self.soft.free_bytes(device), Apart::free_bytes)
    }

    fn used(&self) -> Option<u64> {
        let apart: u64 = self.apart.iter().flatten().map(Apart::used).sum();
        Some(self.soft.used()? + apart)
    }

    fn lost(&self, device: usize) -> Option<Code> {
        self.apart[device].as_ref()?.lost()
    }

    fn reaches(&self, device: usize, peer: usize) -> bool {
        device != peer && self.is_soft(device) && self.is_soft(peer)
    }

    fn free(&mut self, at: u64) -> Result<(), Code> {
        let device = self.owner(at)?;
        on!(self, device, gpu => gpu.free(at))
    }

    fn find(&self, at: u64) -> Option<Allocation> {
        if at >= LOWEST {
            return self.soft.find(at);
        }
        self.apart.iter().flatten().find_map(|gpu| gpu.find(at))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize, Code> {
        self.data = self.owner(at)?;
        on!(self, self.data, gpu => gpu.write(at, bytes))
    }

    fn reach(&mut self, at: u64, len: u64) -> Poll<Result<(), Code>> {
        self.data = self.owner(at)?;
        on!(self, self.data, gpu => gpu.reach(at, len))
    }

    fn read(&mut self, at: u64, len: u64, into: &mut [u8]) -> Result<usize, Code> {
        self.data = self.owner(at)?;
        on!(self, self.data, gpu => gpu.read(at, len, into))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        on!(self, self.data, gpu => gpu.poll_data(cx))
    }

    fn unload(&mut self, module: u64) {
        let (device, own) = ((module >> OWN) as usize, module & OWN_MASK);
        on!(self, device, gpu => gpu.unload(own));
    }

    fn reset(&mut self) {
        self.soft.reset();
        self.apart.iter_mut().flatten().for_each(Apart::reset);
    }

    fn confine(&mut self, device: usize, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code> {
        match &mut self.apart[device] {
            Some(gpu) => gpu.confine(bytes, held)?,
            None => self.soft.confine(device, bytes, held)?,
        }
        let leased = self.apart[device].take();
        if leased.is_some() {
            self.soft.reset();
        }
        self.properties = Arc::new([Properties { memory: bytes, ..self.properties[device].clone() }]);
        (self.apart, self.data, self.job) = (vec![leased], 0, 0);
        Ok(())
    }

    fn set(&mut self, dst: u64, len: u64, value: u8) -> Result<bool, Code> {
        if dst >= LOWEST {
            return self.soft.set(dst, len, value);
        }
        self.check(dst, len).map(|()| false)
    }

    fn start(&mut self, job: Job) {
        let device = match self.doer(&job) {
            Ok(Some(device)) => device,
            Ok(None) => {
                self.crossing = Crossing::new(&job);
                return;
            }
            // The caller has checked what it names.
            Err(code) => {
                self.refused = Some(job.failed(code));
                return;
            }
        };
        self.job = device;
        let job = match job {
            Job::Launch(launch) => Job::Launch(Launch { module: launch.module & OWN_MASK, ..launch }),
            job => job,
        };
        on!(self, device, gpu => gpu.start(job));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(refused);
        }
        if let Some(mut crossing) = self.crossing.take() {
            match self.cross(&mut crossing, cx) {
                Poll::Ready(Ok(())) => self.start(Job::Settle),
                Poll::Ready(Err(code)) => return Poll::Ready(Done::Finished(Err(code))),
                Poll::Pending => {
                    self.crossing = Some(crossing);
                    return Poll::Pending;
                }
            }
        }
        let device = self.job;
        on!(self, device, gpu => gpu.poll(cx)).map(|done| match done {
            Done::Loaded(Ok(loaded)) if loaded.module >> OWN == 0 => {
                Done::Loaded(Ok(Loaded { module: loaded.module | (device as u64) << OWN, ..loaded }))
            }
            Done::Loaded(Ok(_)) => Done::Loaded(Err(Code::UNKNOWN)),
            done => done,
        })
    }
}
