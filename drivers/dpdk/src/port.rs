//! The hot path of one queue pair.

use std::{
    mem::MaybeUninit,
    net::SocketAddr,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use arrayvec::ArrayVec;
use berth_dpdk_sys as sys;
use berth_net::{Answer, Drop as Reason, Host, NoRoute, Outcome, Transport, Udp};
use berth_pages::Pages;
use berth_port::{
    BURST, DeviceCounters, Frame, Kept, Nanos, Peer, Port, PostError, ReplyTo, Tables, Vacancy, Verdict,
    families::{RX_DROPPED, RX_FRAMES, RX_HELD, RX_KEPT, TX_DROPPED, TX_FRAMES},
};

use crate::{
    device::{Device, Queue},
    eal::register_thread,
    error::Error,
    mbuf::Mbuf,
    unmap::Registered,
};

/// Limit on frames that wait for the device: a burst of posted frames, and one of answers.
const TX_QUEUE: usize = 2 * BURST;
/// How often `tx` offers the device what it did not take at once.
const TX_TRIES: usize = 8;
/// Number of polls per reading of the clock. Neighbours age in seconds, and are solicited again after 100 ms.
const CLOCK_POLLS: u32 = 64;

/// One queue pair of a DPDK device, which speaks UDP or a protocol over it.
#[derive(Debug)]
pub struct DpdkPort<T = Udp> {
    device: Arc<Device>,
    queue: u16,
    /// `Some` if the peer's memory can be unmapped at any time.
    bursts: Option<Registered>,
    pool: *mut sys::rte_mempool,
    host: Host,
    transport: T,
    max_frame: usize,
    tx: ArrayVec<*mut sys::rte_mbuf, TX_QUEUE>,
    /// `Some` if others can read the buffers.
    kept: Option<Kept<*mut sys::rte_mbuf>>,
    epoch: Instant,
    now: Nanos,
    polls: u32,
    counters: Counters,
    rx_dropped: [u64; Reason::TABLE.len()],
}

berth_port::counters! {
    struct Counters {
        rx_frames: RX_FRAMES,
        rx_bytes: "bytes received, with all headers",
        rx_multi_segment: RX_DROPPED { reason: "multi_segment" },
        rx_shared: RX_DROPPED { reason: "shared_buffer" },
        rx_answered: "frames that the port answers by itself: ARP, NDP, ping",
        rx_kept: RX_KEPT,
        rx_held: RX_HELD,
        tx_frames: TX_FRAMES,
        tx_bytes: "bytes that the device took, with all headers",
        tx_dropped_no_buffer: TX_DROPPED { reason: "no_buffer" },
        tx_too_long: TX_DROPPED { reason: "too_long" },
        tx_unresolved: TX_DROPPED { reason: "unresolved" },
        tx_off_link: TX_DROPPED { reason: "off_link" },
        tx_solicited: "questions for a neighbour's address",
    }
}

berth_port::counters! {
    /// Counters that the device keeps by itself.
    struct Statistics {
        rx_missed = device_rx_missed: RX_DROPPED { reason: "device_missed" },
        rx_errors = device_rx_errors: RX_DROPPED { reason: "device_error" },
        rx_no_buffer = device_rx_no_buffer: RX_DROPPED { reason: "no_buffer" },
        tx_errors = device_tx_errors: TX_DROPPED { reason: "device_error" },
    }
}

/// Declarations of a port's counters, those of its host and its protocol aside.
pub const COUNTERS: Tables = &[Counters::TABLE, Statistics::TABLE];

// SAFETY: queue, pool and buffers may be used from any thread, by one at a time, which owning the port ensures.
unsafe impl<T: Send> Send for DpdkPort<T> {}

impl<T: Transport> DpdkPort<T> {
    pub(crate) fn new(queue: Queue, host: Host, transport: T) -> Self {
        let Queue { device, number, bursts, pool, kept } = queue;
        Self {
            device,
            queue: number,
            bursts,
            pool,
            max_frame: transport.max_frame(&host),
            host,
            transport,
            tx: ArrayVec::new(),
            kept,
            epoch: Instant::now(),
            now: Nanos(0),
            polls: 0,
            counters: Counters::default(),
            rx_dropped: [0; Reason::TABLE.len()],
        }
    }

    /// The memory that frames are received into, which another process can map to read ([`Pages::file`]): those with a
    /// [`Place`](berth_port::Place) lie there. At least 64 KiB follow the last one. It lives as long as whoever has it.
    ///
    /// # Errors
    /// Why frames cannot be kept, in words.
    pub fn frames(&self) -> Result<Arc<Pages>, &str> {
        self.device.pools[usize::from(self.queue)].frames()
    }

    /// Whether the link is up; a memif's is while its peer is connected.
    pub fn link_is_up(&self) -> bool {
        self.device.link_is_up()
    }

    /// Waits for the link, for at most `limit`.
    pub fn wait_link(&self, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        while !self.link_is_up() {
            if start.elapsed() >= limit {
                return Err(Error::LinkDown(self.device.name.clone()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Work that is done now and then rather than at each poll.
    #[cold]
    fn tick(&mut self) {
        register_thread();
        self.now = Nanos(self.epoch.elapsed().as_nanos() as u64);
    }

    /// Offers the queue to the device.
    #[inline]
    fn flush(&mut self) {
        let mut sent = 0;
        for _ in 0..TX_TRIES {
            let rest = &mut self.tx[sent..];
            if rest.is_empty() {
                break;
            }
            let (port, queue) = (self.device.port, self.queue);
            // SAFETY: the queue is started and this thread's alone; the array holds that many buffers we own, and those
            // the device takes are the device's from then on.
            let burst = || unsafe { sys::rte_eth_tx_burst(port, queue, rest.as_mut_ptr(), rest.len() as u16) };
            sent += usize::from(during(self.bursts.as_ref(), burst));
        }
        self.counters.tx_frames += sent as u64;
        self.tx.drain(..sent);
    }

    #[inline]
    fn queue(&mut self, mbuf: Mbuf) {
        self.counters.tx_bytes += mbuf.len() as u64;
        // `rx` takes no more frames than there is room for answers, and `post` asks first.
        self.tx.push(mbuf.into_raw());
    }

    /// Queues an ARP request or neighbour solicitation.
    #[cold]
    fn solicit(&mut self, peer: SocketAddr) {
        // SAFETY: the pool lives as long as the device.
        let Some(mut mbuf) = (unsafe { Mbuf::alloc(self.pool) }) else {
            self.counters.tx_dropped_no_buffer += 1;
            return;
        };
        let len = self.host.solicit(mbuf.bytes(), peer.ip());
        mbuf.set_len(len);
        if len == 0 || self.tx.is_full() {
            free(&mut ArrayVec::from_iter([mbuf.into_raw()]));
        } else {
            self.queue(mbuf);
            self.counters.tx_solicited += 1;
        }
    }

    /// Handles one received frame; returns the buffer unless it was queued as an answer.
    #[inline]
    fn handle<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut mbuf: Mbuf, handle: H) -> Option<Mbuf> {
        if !mbuf.is_single() {
            self.counters.rx_multi_segment += 1;
            return Some(mbuf);
        }
        if !mbuf.is_exclusive() {
            self.counters.rx_shared += 1;
            return Some(mbuf);
        }
        let (len, verified) = (mbuf.len(), mbuf.verified());
        let bytes = mbuf.bytes();
        let outcome = self.host.rx(bytes, len, verified, self.now);
        match &outcome {
            Outcome::Udp(datagram) => {
                let offload = self.device.completes_checksums;
                let taken = self.transport.rx(&self.host, bytes, datagram, offload, handle);
                self.counters.rx_frames += u64::from(taken.lent.is_some());
                self.counters.rx_bytes += taken.lent.unwrap_or(0) as u64;
                match taken.answer {
                    Answer::Sealed(sealed) => mbuf.seal(sealed, offload),
                    Answer::None => return Some(mbuf),
                    Answer::TooLong => {
                        self.counters.tx_too_long += 1;
                        return Some(mbuf);
                    }
                }
            }
            Outcome::Answer(len) => {
                self.counters.rx_answered += 1;
                mbuf.set_len(*len);
            }
            Outcome::Drop(reason) => {
                self.rx_dropped[*reason as usize] += 1;
                return Some(mbuf);
            }
        }
        self.queue(mbuf);
        None
    }
}

/// Runs a burst. If `bursts` is given, no memory is unmapped meanwhile.
#[inline]
fn during(bursts: Option<&Registered>, burst: impl FnOnce() -> u16) -> u16 {
    match bursts {
        Some(bursts) => bursts.during(burst),
        None => burst(),
    }
}

/// Frees buffers that we own.
fn free(mbufs: &mut ArrayVec<*mut sys::rte_mbuf, TX_QUEUE>) {
    // SAFETY: the array holds that many buffers we own, and is emptied.
    unsafe { sys::rte_pktmbuf_free_bulk(mbufs.as_mut_ptr(), mbufs.len() as u32) };
    mbufs.clear();
}

impl<T: Transport> Port for DpdkPort<T> {
    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        if self.polls.is_multiple_of(CLOCK_POLLS) {
            self.tick();
        }
        self.polls = self.polls.wrapping_add(1);
        self.transport.poll();
        if self.tx.remaining_capacity() < BURST {
            self.flush();
            if self.tx.remaining_capacity() < BURST {
                // What cannot be answered is left to the device, which drops it for less than an answer costs.
                self.counters.rx_held += 1;
                return 0;
            }
        }
        let mut burst = [const { MaybeUninit::<*mut sys::rte_mbuf>::uninit() }; BURST];
        let (port, queue) = (self.device.port, self.queue);
        // SAFETY: the queue is started and this thread's alone; the array has room for BURST buffers, which are ours
        // from then on.
        let receive = || unsafe { sys::rte_eth_rx_burst(port, queue, burst.as_mut_ptr().cast(), BURST as u16) };
        let count = usize::from(during(self.bursts.as_ref(), receive));
        // SAFETY: the driver wrote that many pointers.
        let burst = burst[..count].iter().map(|mbuf| unsafe { mbuf.assume_init() });
        let mut lent = self.counters.rx_frames;
        let mut done = ArrayVec::<*mut sys::rte_mbuf, TX_QUEUE>::new();
        for mbuf in burst.clone() {
            Mbuf::prefetch(mbuf);
        }
        for mbuf in burst {
            // SAFETY: the driver handed over that many live buffers.
            let mbuf = unsafe { Mbuf::from_raw(NonNull::new_unchecked(mbuf)) };
            let vacancy = self.kept.as_ref().and_then(Kept::vacancy);
            let (mut urgent, mut kept) = (false, false);
            let noted = |frame: &mut Frame<'_>| {
                let place = vacancy.and_then(|vacancy: Vacancy| vacancy.place(frame.data()));
                if let Some(place) = place {
                    frame.set_place(place);
                }
                let verdict = handle(frame);
                urgent = frame.is_urgent();
                kept |= place.is_some() && verdict == Verdict::Keep;
                verdict
            };
            match (self.handle(mbuf, noted), &mut self.kept) {
                (Some(mbuf), Some(frames)) if kept => {
                    frames.keep(mbuf.into_raw());
                    self.counters.rx_kept += 1;
                }
                (Some(mbuf), _) => done.push(mbuf.into_raw()),
                (None, _) => {}
            }
            if urgent {
                self.flush();
            }
        }
        if !done.is_empty() {
            free(&mut done);
        }
        lent = self.counters.rx_frames - lent;
        lent as usize
    }

    #[inline]
    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        self.reply(peer.into(), fill)
    }

    #[inline]
    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, to: ReplyTo, fill: F) -> Result<(), PostError> {
        let peer = to.peer();
        // `rx` needs a burst of room. If posted frames took it, two ends that wait for the device would wait for each other.
        if self.tx.remaining_capacity() <= BURST {
            self.flush();
            if self.tx.remaining_capacity() <= BURST {
                return Err(PostError::Full);
            }
        }
        let address = self.transport.address_of(peer).ok_or(PostError::Unreachable)?;
        let route = match self.host.way_back(address, to.route()).map_or_else(|| self.host.route(address, self.now), Ok)
        {
            Ok(route) => route,
            Err(NoRoute::OffLink) => {
                self.counters.tx_off_link += 1;
                return Err(PostError::Unreachable);
            }
            Err(NoRoute::Unresolved { solicit }) => {
                self.counters.tx_unresolved += 1;
                if solicit {
                    self.solicit(address);
                }
                return Err(PostError::Unreachable);
            }
        };
        // SAFETY: the pool lives as long as the device.
        let Some(mut mbuf) = (unsafe { Mbuf::alloc(self.pool) }) else {
            self.counters.tx_dropped_no_buffer += 1;
            return Err(PostError::Full);
        };
        let bytes = mbuf.bytes();
        let offload = self.device.completes_checksums;
        if let Some(sealed) = self.transport.post(&self.host, bytes, &route, peer, offload, fill) {
            mbuf.seal(sealed, offload);
            self.queue(mbuf);
        } else {
            self.counters.tx_too_long += 1;
            free(&mut ArrayVec::from_iter([mbuf.into_raw()]));
        }
        if route.solicit {
            self.solicit(address);
        }
        Ok(())
    }

    #[inline]
    fn release(&mut self, number: u32) {
        if let Some(mbuf) = self.kept.as_mut().and_then(|kept| kept.release(number)) {
            free(&mut ArrayVec::from_iter([mbuf]));
        }
    }

    #[inline]
    fn tx(&mut self) {
        if !self.tx.is_empty() {
            self.flush();
        }
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn local_addr(&self) -> SocketAddr {
        self.host.local_addr()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
        Reason::report(self.rx_dropped, visit);
        self.transport.counters(visit);
    }

    /// The device counts for all its queues together, so only the first port reports it.
    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        (self.queue == 0).then(|| Box::new(OfDevice(self.device.clone())) as Box<dyn DeviceCounters>)
    }
}

/// Counters that a device keeps by itself.
struct OfDevice(Arc<Device>);

impl DeviceCounters for OfDevice {
    fn read(&mut self, visit: &mut dyn FnMut(&'static str, u64)) {
        let stats = self.0.stats();
        let statistics = Statistics {
            rx_missed: stats.imissed,
            rx_errors: stats.ierrors,
            rx_no_buffer: stats.rx_nombuf,
            tx_errors: stats.oerrors,
        };
        statistics.report(visit);
    }
}

impl<T> Drop for DpdkPort<T> {
    fn drop(&mut self) {
        free(&mut self.tx);
    }
}
