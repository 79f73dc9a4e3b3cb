//! The unified shape: the dispatcher has the loop, and gets requests and sends answers by calls.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ffi::c_int,
    net::SocketAddr,
    slice,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    thread::{self, ThreadId},
};

use anyhow::{Result, bail};
use berth_port::{Port, Task, Verdict};
use berth_ports::{OpenQueue as _, Queue, QueueUser};
use berth_ring::{Ring, abi::Ringbuffer};

use crate::{
    abi,
    exchange::{Caller, Counts, Rules, Stash, Taken},
    failure::tell,
};

/// What `rx_poll` and `tx_publish` work on. The caller has one thread for both; where it has more after all, a call
/// that meets another one finds nothing, and does nothing.
pub(crate) struct Dataplane {
    busy: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached under `busy` alone. What is in it moves between threads: a queue is `Send`, and so is a
// port of UDP; any other port is used by the thread that opened it and by no other, which `Inner::link` sees to, and
// dropped when no call is left. To drop a port anywhere is sound: one whose thread the kernel knows leaves its buffers to it.
unsafe impl Send for Dataplane {}
// SAFETY: as above.
unsafe impl Sync for Dataplane {}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Queue>();
    is_send::<Link<berth_udp::UdpPort>>();
};

struct Inner {
    /// Opened by the first poll, unless that was done before.
    queue: Option<Queue>,
    plan: Plan,
    link: Option<Box<dyn Publish>>,
    /// The only thread that may use the link; `None` for any.
    thread: Option<ThreadId>,
}

/// What a link is made of.
#[derive(Clone, Copy)]
struct Plan {
    rules: Rules,
    slots: Slots,
}

impl Dataplane {
    /// On the slots of `ring`, which its owner keeps.
    ///
    /// With `at_once` the port is opened here, and its address returned; otherwise by the thread that polls first.
    pub(crate) fn new(
        queue: Queue,
        rules: Rules,
        (ring, slots): (&Ring, u32),
        at_once: bool,
    ) -> Result<(Self, Option<SocketAddr>)> {
        let plan = Plan { rules, slots: Slots { ring: ring.as_abi(), count: slots, size: rules.slot_size } };
        let mut inner = Inner { queue: Some(queue), plan, link: None, thread: None };
        let addr = if at_once { Some(inner.open()?) } else { None };
        Ok((Self { busy: AtomicBool::new(false), inner: UnsafeCell::new(inner) }, addr))
    }

    /// Calls `f`, unless another call goes on.
    #[inline]
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        if self.busy.swap(true, Acquire) {
            return None;
        }
        let _free = Free(&self.busy);
        // SAFETY: whoever found `busy` false has it alone, until `_free` is dropped.
        Some(f(unsafe { &mut *self.inner.get() }))
    }

    /// Slot of the next request; `None` without one, and while another call goes on.
    #[inline]
    pub(crate) fn poll(&self) -> Option<u32> {
        self.with(|inner| inner.link()?.poll()).flatten()
    }

    /// Sends the answer in a slot; `INTERNAL` if no request is in it, or another call goes on.
    #[inline]
    pub(crate) fn publish(&self, slot: u32) -> c_int {
        let published = self.with(|inner| inner.link().is_some_and(|link| link.publish(slot)));
        if published == Some(true) { abi::OK } else { abi::INTERNAL }
    }
}

/// Lets the next call in.
struct Free<'a>(&'a AtomicBool);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Inner {
    /// The port, if this thread may use it.
    #[inline]
    fn link(&mut self) -> Option<&mut dyn Publish> {
        if self.queue.is_some() {
            self.thread = Some(thread::current().id());
            if let Err(why) = self.open() {
                tell(format_args!("{why:#}"));
            }
        }
        if self.thread.is_some_and(|owner| owner != thread::current().id()) {
            return None;
        }
        self.link.as_deref_mut().map(|link| link as &mut dyn Publish)
    }

    #[cold]
    fn open(&mut self) -> Result<SocketAddr> {
        let Some(queue) = self.queue.take() else { bail!("the port was opened before") };
        let (link, addr) = queue.open(self.plan)?;
        self.link = Some(link);
        Ok(addr)
    }
}

impl QueueUser for Plan {
    type Output = (Box<dyn Publish>, SocketAddr);

    fn port<P: Port + 'static>(self, port: P) -> Result<Self::Output> {
        let Self { rules, slots } = self;
        let addr = port.local_addr();
        let link = Link {
            port,
            rules,
            slots,
            callers: vec![None; slots.count as usize].into(),
            free: (0..slots.count).collect(),
            ready: VecDeque::with_capacity(slots.count as usize),
            unsent: VecDeque::with_capacity(slots.count as usize),
            stash: Stash::new(rules.slot_size),
            counts: Counts::default(),
        };
        Ok((Box::new(link), addr))
    }

    fn streams<T: Task + 'static>(self, _: T, _: SocketAddr) -> Result<Self::Output> {
        bail!("the port has no frames")
    }
}

/// Where slots are.
#[derive(Clone, Copy)]
struct Slots {
    ring: Ringbuffer,
    count: u32,
    size: usize,
}

impl Slots {
    /// Fills a request's slot, which is free.
    #[inline]
    fn put(&self, slot: u32, message: &[u8]) {
        assert!(slot < self.count && message.len() <= self.size, "a slot of the ring");
        // SAFETY: the ring lives as long as the bridge, whose slots are that many and that long; the dispatcher has no
        // request in this one.
        unsafe {
            let to = self.ring.rx_data_host.add(slot as usize * self.ring.rx_stride);
            to.copy_from_nonoverlapping(message.as_ptr(), message.len());
        }
    }

    /// The answer in a slot that the dispatcher published.
    #[inline]
    fn answer(&self, slot: u32) -> &[u8] {
        assert!(slot < self.count, "a slot of the ring");
        // SAFETY: as above; the dispatcher has written what it publishes, and leaves the slot until it has a new request.
        unsafe { slice::from_raw_parts(self.ring.tx_data_host.add(slot as usize * self.ring.tx_stride), self.size) }
    }
}

/// A port whose requests and answers are in slots, whatever its type.
trait Publish {
    /// Slot of the next request, which is with the dispatcher from then on; `None` without one.
    fn poll(&mut self) -> Option<u32>;

    /// Sends the answer in a slot; false if no request was told to be there.
    fn publish(&mut self, slot: u32) -> bool;
}

struct Link<P> {
    port: P,
    rules: Rules,
    slots: Slots,
    /// By slot, who asked; `None` where no request is with the dispatcher.
    callers: Box<[Option<Caller>]>,
    free: VecDeque<u32>,
    /// Slots whose requests were not told yet.
    ready: VecDeque<(u32, Caller)>,
    /// Published slots whose answers the port had no room for.
    unsent: VecDeque<(u32, Caller)>,
    stash: Stash,
    counts: Counts,
}

impl<P: Port> Publish for Link<P> {
    #[inline]
    fn poll(&mut self) -> Option<u32> {
        self.send();
        if self.ready.is_empty() && !self.free.is_empty() {
            self.receive();
        }
        let (slot, caller) = self.ready.pop_front()?;
        self.callers[slot as usize] = Some(caller);
        Some(slot)
    }

    #[inline]
    fn publish(&mut self, slot: u32) -> bool {
        let Some(caller) = self.callers.get_mut(slot as usize).and_then(Option::take) else { return false };
        self.unsent.push_back((slot, caller));
        self.send();
        true
    }
}

impl<P: Port> Link<P> {
    /// Sends what was published, and frees its slots.
    #[inline]
    fn send(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        while let Some(&(slot, caller)) = self.unsent.front()
            && self.rules.answer(&mut self.port, &caller, Some(self.slots.answer(slot)), &mut self.counts)
        {
            self.unsent.pop_front();
            self.free.push_back(slot);
        }
        self.port.tx();
    }

    /// Takes requests in while slots are free; else they wait in the port.
    #[inline]
    fn receive(&mut self) {
        let Self { port, rules, slots, free, ready, stash, counts, .. } = self;
        let mut put = |caller, message: &[u8]| match free.pop_front() {
            Some(slot) => {
                slots.put(slot, message);
                ready.push_back((slot, caller));
                true
            }
            None => false,
        };
        while let Some((caller, message)) = stash.front() {
            if !put(caller, message) {
                return;
            }
            stash.pop();
        }
        port.rx(|frame| match rules.take(frame, counts) {
            Taken::Done(verdict) => verdict,
            Taken::Request(caller, len) => {
                let message = &frame.data()[..len];
                if !stash.is_empty() || !put(caller, message) {
                    stash.keep(caller, message);
                }
                Verdict::Drop
            }
        });
        port.tx();
    }
}

impl<P> Drop for Link<P> {
    fn drop(&mut self) {
        if self.counts.are_odd() {
            tell(self.counts);
        }
    }
}
