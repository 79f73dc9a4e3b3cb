//! A GPU with a driver (NVIDIA's or AMD's) as a device of a session: in a process of the session's own, with the books kept here.

use std::{
    any::Any,
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use berth_gpu::{Command, KernelFacts, Rows, SLOT, SLOTS, SessionGpu, Standing, Value};
use berth_hip_session::{Allocation, Copy2d, Done, Job, Kernel, Loaded};
use berth_memory::Memory as _;
use berth_wire::hip::Code;
use tokio::runtime::Handle;

use crate::{
    books::{ALIGN, ALLOCATIONS_MAX, Books},
    held::{Held, zero},
    pool::Pool,
};

/// Longest code object, in bytes.
pub(crate) const IMAGE_MAX: usize = 64 << 20;
/// How often addresses are asked for that no other session has.
const TRIES: usize = 8;
/// Errors of a driver that are none of HIP's.
const KERNELS_FAULT: std::ops::RangeInclusive<i32> = 700..=719;

/// The error of HIP's with this number of CUDA's.
fn code_of(number: i32) -> Code {
    match Code(number) {
        code if code.describe().is_some() => code,
        _ if KERNELS_FAULT.contains(&number) => Code::LAUNCH_FAILURE,
        _ => Code::UNKNOWN,
    }
}

/// A job, and how far it is.
struct Working {
    job: Job,
    /// The command whose answer is its end; `None` before.
    number: Option<u64>,
    /// Of a load: bytes of the image that were handed over.
    handed: usize,
    /// Of an allocation: what others have, and is held until there is something else.
    rejected: Vec<u64>,
    tries: usize,
    /// Why it is not begun.
    refused: Option<Code>,
}

/// A read that was asked for ahead.
struct Ahead {
    at: u64,
    len: usize,
    slot: usize,
    number: u64,
    /// Bytes that were taken of it; `None` before they are there.
    taken: Option<usize>,
}

/// A GPU of one session. It is called as a [`Device`](berth_hip_session::Device) is.
pub(crate) struct Apart {
    /// Its index among the session's.
    device: usize,
    pool: Arc<Pool>,
    threads: Handle,
    held: Option<Held>,
    /// The life of the worker that the session works with.
    life: u64,
    job: Option<Working>,
    /// Parts of the staging area that nothing uses.
    free: Vec<usize>,
    writes: VecDeque<(u64, usize)>,
    reads: VecDeque<Ahead>,
    /// Why a write or read failed that nobody was told of.
    failed: Option<Code>,
    results: Vec<(u64, Result<Value, i32>)>,
}

impl Apart {
    pub(crate) fn new(device: usize, pool: Arc<Pool>, books: Books, threads: Handle) -> Self {
        Self {
            device,
            pool,
            threads,
            held: Some(Held { gpu: None, books }),
            life: 0,
            job: None,
            free: (0..SLOTS).collect(),
            writes: VecDeque::new(),
            reads: VecDeque::new(),
            failed: None,
            results: Vec::new(),
        }
    }

    fn held(&mut self) -> &mut Held {
        self.held.as_mut().expect("there until it is dropped")
    }

    fn books(&self) -> &Books {
        &self.held.as_ref().expect("there until it is dropped").books
    }

    fn gpu(&self) -> Option<&SessionGpu> {
        self.held.as_ref()?.gpu.as_ref()
    }

    /// Has its worker do something, if it has one.
    fn tell(&self, command: Command) -> u64 {
        self.gpu().map_or(0, |gpu| gpu.tell(self.life, command))
    }

    fn standing(&self) -> Standing {
        self.gpu().map_or(Standing::Starts, |gpu| gpu.standing(self.life))
    }

    /// Takes in what the worker has answered; otherwise wakes the task later. Returns what became of the command with this
    /// number.
    fn collect(&mut self, cx: &mut Context<'_>, number: Option<u64>) -> Option<Result<Value, i32>> {
        let (mut found, mut results) = (None, std::mem::take(&mut self.results));
        while found.is_none()
            && let Some(gpu) = self.gpu()
            && gpu.results(self.life, cx, &mut results).is_ready()
            && !results.is_empty()
        {
            for (answered, result) in results.drain(..) {
                if number == Some(answered) {
                    found = Some(result);
                    continue;
                }
                if let Some((_, slot)) = self.writes.pop_front_if(|(number, _)| *number == answered) {
                    self.free.push(slot);
                } else if let Some(read) = self.reads.iter_mut().find(|read| read.number == answered) {
                    read.taken = Some(0);
                } else {
                    // Nobody waits for it; what it costs the device is told by how that stands.
                    continue;
                }
                if let Err(e) = result {
                    self.failed.get_or_insert(code_of(e));
                }
            }
        }
        self.results = results;
        found
    }

    /// Asks for reads of what lies before `end` and was not asked for.
    fn read_ahead(&mut self, at: u64, end: u64) {
        let mut next = self.reads.back().map_or(at, |read| read.at + read.len as u64);
        while next < end
            && let Some(slot) = self.free.pop()
        {
            let len = (end - next).min(SLOT as u64) as usize;
            let number = self.tell(Command::Read { at: next, to: slot * SLOT, len });
            self.reads.push_back(Ahead { at: next, len, slot, number, taken: None });
            next += len as u64;
        }
    }

    /// Has nobody take what was asked for ahead.
    fn forget_reads(&mut self) {
        for Ahead { number, slot, taken, .. } in std::mem::take(&mut self.reads) {
            if taken.is_some() {
                self.free.push(slot);
            } else {
                // It is free once this was answered, as one that is written from.
                self.writes.push_back((number, slot));
            }
        }
    }

    /// Hands a job to the worker, as far as it goes now. An error ends it.
    fn hand_over(&mut self, working: &mut Working) -> Result<(), Code> {
        let number = match &working.job {
            Job::Allocate { sizes, .. } => {
                Some(self.tell(Command::Allocate(sizes.iter().copied().filter(|size| *size > 0).collect())))
            }
            Job::Settle => None,
            Job::Set { dst, len, value } => Some(self.tell(Command::Set { at: *dst, len: *len, value: *value })),
            Job::Copy(Copy2d { dst, dpitch, src, spitch, width, height }) => {
                let (dst, src) = ((*dst, *dpitch), (*src, *spitch));
                Some(self.tell(Command::Copy(Rows { dst, src, width: *width, height: *height })))
            }
            Job::Launch(launch) => {
                let slot = *self.free.first().ok_or(Code::UNKNOWN)?;
                let (from, len) = (slot * SLOT, launch.arguments.len());
                let gpu = self.gpu().filter(|_| len <= SLOT).ok_or(Code::INVALID_VALUE)?;
                gpu.staging().write_at(from, &launch.arguments);
                Some(self.tell(Command::Launch {
                    module: launch.module,
                    kernel: launch.kernel,
                    grid: launch.grid,
                    block: launch.block,
                    shared: launch.shared,
                    from,
                    len,
                }))
            }
            Job::Load { image, .. } => {
                while working.handed < image.len()
                    && let Some(slot) = self.free.pop()
                {
                    let part = &image[working.handed..image.len().min(working.handed + SLOT)];
                    let (from, len) = (slot * SLOT, part.len());
                    self.gpu().ok_or(Code::UNKNOWN)?.staging().write_at(from, part);
                    let number = self.tell(Command::Image { from, len });
                    self.writes.push_back((number, slot));
                    working.handed += len;
                }
                let is_whole = working.handed == image.len() && self.writes.is_empty();
                is_whole.then(|| self.tell(Command::Load))
            }
        };
        working.number = number;
        Ok(())
    }

    /// The end of a job whose command has ended; `None` if it goes on.
    fn ended(&mut self, working: &mut Working, value: Result<Value, i32>) -> Option<Done> {
        let value = match value {
            Ok(value) => value,
            Err(e) => return Some(self.broke(working, code_of(e))),
        };
        match (&working.job, value) {
            (Job::Allocate { sizes, .. }, Value::Addresses(made)) => {
                let sizes = sizes.clone();
                self.allocated(working, &sizes, &made)
            }
            (Job::Load { image, .. }, Value::Loaded(module, len)) => {
                let charge = image.len() as u64;
                let mut kernels = vec![0; len.min(SLOTS * SLOT)];
                if let Some(gpu) = self.gpu() {
                    gpu.staging().read_at(0, &mut kernels);
                }
                let Some(kernels) = KernelFacts::list(&kernels) else {
                    return Some(self.broke(working, Code::UNKNOWN));
                };
                let kernels: Option<Vec<_>> = kernels.into_iter().map(kernel).collect();
                let Some(kernels) = kernels else {
                    self.tell(Command::Unload(module));
                    return Some(self.broke(working, Code::INVALID_KERNEL_FILE));
                };
                self.held().books.modules.insert(module, charge);
                Some(Done::Loaded(Ok(Loaded { module, kernels })))
            }
            (Job::Allocate { .. } | Job::Load { .. }, _) => Some(self.broke(working, Code::UNKNOWN)),
            _ => Some(Done::Finished(Ok(()))),
        }
    }

    fn allocated(&mut self, working: &mut Working, sizes: &[u64], made: &[u64]) -> Option<Done> {
        let mut each = made.iter();
        let addresses: Vec<u64> =
            sizes.iter().map(|size| if *size == 0 { 0 } else { each.next().copied().unwrap_or(0) }).collect();
        let places: Vec<_> =
            addresses.iter().copied().zip(sizes.iter().copied()).filter(|(_, size)| *size > 0).collect();
        let is_entered = self.held().books.enter(&places);
        if !is_entered {
            // Each process has its own addresses: now and then two come to the same.
            working.rejected.extend(made);
            working.tries += 1;
            working.number = None;
        }
        if is_entered || working.tries >= TRIES {
            for at in std::mem::take(&mut working.rejected) {
                self.tell(Command::Free(at));
            }
            return Some(if is_entered {
                Done::Allocated(Ok(addresses))
            } else {
                self.broke(working, Code::OUT_OF_MEMORY)
            });
        }
        None
    }

    /// The end of a job that failed: what it was charged for is free again.
    fn broke(&mut self, working: &Working, code: Code) -> Done {
        let charge = charge_of(&working.job);
        self.held().books.refund(charge);
        for at in &working.rejected {
            self.tell(Command::Free(*at));
        }
        working.job.failed(code)
    }
}

/// A kernel as sessions see it; `None` if its arguments are more than a launch can bring.
fn kernel(facts: KernelFacts) -> Option<Kernel> {
    let argument_bytes = facts.argument_bytes()?;
    Some(Kernel { name: facts.name, parameters: facts.parameters, argument_bytes })
}

/// What a job is charged for when it begins.
fn charge_of(job: &Job) -> u64 {
    match job {
        Job::Allocate { sizes, .. } => sizes
            .iter()
            .fold(0, |sum: u64, size| sum.saturating_add(size.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX))),
        Job::Load { image, .. } => image.len() as u64,
        _ => 0,
    }
}

impl Apart {
    pub(crate) fn free_bytes(&self) -> u64 {
        self.books().free_bytes()
    }

    pub(crate) fn used(&self) -> u64 {
        self.books().used
    }

    pub(crate) fn lost(&self) -> Option<Code> {
        match self.standing() {
            Standing::Lost(code) => Some(code_of(code)),
            Standing::Starts | Standing::Serves => None,
        }
    }

    pub(crate) fn free(&mut self, at: u64) -> Result<(), Code> {
        self.lost().map_or(Ok(()), Err)?;
        let books = &mut self.held().books;
        let len = books.memory.remove(&at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        books.all_places().remove(&at);
        books.refund(len.next_multiple_of(ALIGN));
        if books.is_leased() {
            self.tell(zero(at, len));
        }
        self.tell(Command::Free(at));
        Ok(())
    }

    pub(crate) fn find(&self, at: u64) -> Option<Allocation> {
        let (begin, len) = self.books().memory.range(..=at).next_back()?;
        (at - begin < *len).then_some(Allocation { at: *begin, len: *len, device: self.device })
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize, Code> {
        self.lost().map_or(Ok(()), Err)?;
        if self.free.is_empty() {
            self.collect(&mut Context::from_waker(Waker::noop()), None);
        }
        let Some(slot) = self.free.pop() else { return Ok(0) };
        let (from, len) = (slot * SLOT, bytes.len().min(SLOT));
        if let Some(gpu) = self.gpu() {
            gpu.staging().write_at(from, &bytes[..len]);
        }
        let number = self.tell(Command::Write { at, from, len });
        self.writes.push_back((number, slot));
        Ok(len)
    }

    pub(crate) fn reach(&mut self, at: u64, len: u64) -> Poll<Result<(), Code>> {
        if let Some(code) = self.lost() {
            return Poll::Ready(Err(code));
        }
        self.read_ahead(at, at + len);
        self.collect(&mut Context::from_waker(Waker::noop()), None);
        if let Some(code) = self.failed.take() {
            self.forget_reads();
            return Poll::Ready(Err(code));
        }
        if self.reads.front().is_some_and(|read| read.taken.is_some()) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    pub(crate) fn read(&mut self, at: u64, len: u64, into: &mut [u8]) -> Result<usize, Code> {
        self.read_ahead(at, at + len);
        self.collect(&mut Context::from_waker(Waker::noop()), None);
        if let Some(code) = self.failed.take() {
            self.forget_reads();
            return Err(code);
        }
        let lost = self.lost();
        let Some(Ahead { len: whole, slot, taken: Some(taken), .. }) = self.reads.front_mut() else {
            return lost.map_or(Ok(0), Err);
        };
        let (whole, slot, from) = (*whole, *slot, *taken);
        let count = into.len().min(whole - from);
        *taken += count;
        if let Some(gpu) = self.gpu() {
            gpu.staging().read_at(slot * SLOT + from, &mut into[..count]);
        }
        if from + count == whole {
            self.reads.pop_front();
            self.free.push(slot);
            self.read_ahead(at + count as u64, at + len);
        }
        Ok(count)
    }

    pub(crate) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.collect(cx, None);
        let can_read = self.reads.front().is_some_and(|read| read.taken.is_some());
        let can_write = self.reads.is_empty() && !self.free.is_empty();
        if can_read || can_write || self.failed.is_some() || self.lost().is_some() {
            return Poll::Ready(());
        }
        Poll::Pending
    }

    pub(crate) fn unload(&mut self, module: u64) {
        let books = &mut self.held().books;
        if let Some(charge) = books.modules.remove(&module) {
            books.refund(charge);
        }
        self.tell(Command::Unload(module));
    }

    pub(crate) fn reset(&mut self) {
        if self.books().is_leased() {
            for (at, len) in &self.books().memory {
                self.tell(zero(*at, *len));
            }
        }
        self.held().books.clear();
        match self.standing() {
            Standing::Serves => drop(self.tell(Command::Reset)),
            Standing::Lost(_) => {
                // The next process of its worker.
                self.life = self.gpu().map_or(0, SessionGpu::life);
                self.free = (0..SLOTS).collect();
                self.writes.clear();
                self.reads.clear();
            }
            Standing::Starts => {}
        }
        self.failed = None;
    }

    /// Leaves it as the session's only device.
    pub(crate) fn confine(&mut self, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code> {
        self.held().books.confine(bytes, held)?;
        self.reset();
        self.device = 0;
        Ok(())
    }

    pub(crate) fn start(&mut self, job: Job) {
        let charge = charge_of(&job);
        let more = if let Job::Allocate { sizes, .. } = &job { sizes.len() } else { 0 };
        let full = (self.books().memory.len() + more > ALLOCATIONS_MAX).then_some(Code::OUT_OF_MEMORY);
        let mut refused = self.lost().or(full).or_else(|| self.held().books.charge(charge).err());
        if refused.is_none() && self.gpu().is_none() {
            let taken = self.pool.take(&self.threads);
            self.life = taken.as_ref().map_or(0, SessionGpu::life);
            if taken.is_none() {
                self.held().books.refund(charge);
                refused = Some(Code::OUT_OF_MEMORY);
            }
            self.held().gpu = taken;
        }
        self.job = Some(Working { job, number: None, handed: 0, rejected: Vec::new(), tries: 0, refused });
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        let Some(mut working) = self.job.take() else { return Poll::Pending };
        if let Some(code) = working.refused {
            return Poll::Ready(working.job.failed(code));
        }
        loop {
            let found = self.collect(cx, working.number);
            if let Some(value) = found {
                match self.ended(&mut working, value) {
                    Some(done) => return Poll::Ready(done),
                    None => continue,
                }
            }
            if let Some(code) = self.failed.take() {
                return Poll::Ready(self.broke(&working, code));
            }
            match self.standing() {
                Standing::Lost(code) => return Poll::Ready(self.broke(&working, code_of(code))),
                Standing::Serves if working.number.is_none() => {
                    if matches!(working.job, Job::Settle) && self.writes.is_empty() {
                        return Poll::Ready(Done::Finished(Ok(())));
                    }
                    let before = working.handed;
                    if let Err(code) = self.hand_over(&mut working) {
                        return Poll::Ready(self.broke(&working, code));
                    }
                    // Its answer may be there before the task is known.
                    if working.number.is_some() || working.handed > before {
                        continue;
                    }
                }
                Standing::Serves | Standing::Starts => {}
            }
            self.job = Some(working);
            return Poll::Pending;
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // A kernel that runs is not waited for.
        let (life, is_idle) = (self.life, !matches!(&self.job, Some(Working { job: Job::Launch(_), .. })));
        if held.gpu.is_some() {
            // It takes milliseconds, for which no core waits.
            self.threads.spawn_blocking(move || {
                if is_idle {
                    held.scrub(life);
                }
            });
        }
    }
}
