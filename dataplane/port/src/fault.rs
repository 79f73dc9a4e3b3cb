//! A port that loses, repeats, reorders, damages and delays frames on purpose, and counts exactly what it did.

use std::{net::SocketAddr, os::fd::RawFd, time::Duration};

use fastrand::Rng;

use crate::{BURST, Clock, Counter, DeviceCounters, Family, Frame, Nanos, Peer, Port, PostError, ReplyTo, Verdict};

/// Limit on the frames that each direction holds back.
const POOL: usize = 256;

/// How long a frame waits to be overtaken. After that it goes on in order, and is not counted.
const OVERTAKEN_WITHIN: Duration = Duration::from_millis(1);

/// Probabilities of the faults of one direction, from 0 to 1, each drawn independently.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// The frame is dropped, and no other fault applies to it.
    pub drop: f64,
    /// One bit of the frame's data is flipped. Empty frames are not changed.
    pub corrupt: f64,
    /// A copy follows the frame within the next burst.
    pub duplicate: f64,
    /// The frame waits for a random time within `delay_us`.
    pub delay: f64,
    /// Shortest and longest delay, in microseconds.
    pub delay_us: [u32; 2],
    /// The frame waits until at least one later frame has overtaken it, at most 1 ms. A delayed frame is not reordered
    /// as well.
    pub reorder: f64,
}

impl Faults {
    fn hold(&self) -> bool {
        self.duplicate > 0.0 || self.delay > 0.0 || self.reorder > 0.0
    }
}

/// Faults of both directions, and the seed that they are drawn from.
///
/// The faults of a direction's n-th frame depend only on the seed and on n, not on time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FaultSpec {
    /// The same seed gives the same faults.
    pub seed: u64,
    /// Applied to received frames before the handler sees them.
    pub rx: Faults,
    /// Applied to answers and posted frames.
    pub tx: Faults,
}

/// Injects faults into the frames of `P`. This is middleware for tests, not for the hot path.
///
/// Held frames lie in a pool of 256 per direction. If it is full, the frame passes as if that fault had not been drawn,
/// and `pool_full` is counted. The counts are therefore exact: of n received frames the handler sees
/// n - `fault_rx_dropped` + `fault_rx_duplicated`, less those still held (`fault_rx_held` - `fault_rx_released`).
/// `fault_tx_refused` counts sent frames that the inner port refused after their sender had been told that they were
/// queued.
#[derive(Debug)]
pub struct Fault<P, C> {
    inner: P,
    clock: C,
    rx: Side,
    tx: Side,
    /// Buffer for a posted frame that may be dropped or held.
    scratch: Box<[u8]>,
    tx_refused: u64,
}

/// State of one direction.
#[derive(Debug)]
struct Side {
    faults: Faults,
    rng: Rng,
    free: Vec<Box<[u8]>>,
    held: Vec<Held>,
    /// Number of the frame last drawn for, from 1.
    drawn: u64,
    /// Highest number of a frame that has gone on.
    passed: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Held {
    buf: Box<[u8]>,
    len: usize,
    wire_len: usize,
    peer: ReplyTo,
    number: u64,
    due: Nanos,
    /// Also due as soon as it is overtaken.
    reorder: bool,
}

impl Held {
    fn data(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

const FAULTS: Family = Family::counter("faults", "frames that the fault layer hit, by its direction and fault");

/// Declares the counters of a direction.
macro_rules! counts {
    ($($fault:ident)*) => {
        #[derive(Debug, Default)]
        struct Counts {
            $($fault: u64,)*
        }

        impl Counts {
            const RX: &[&str] = &[$(concat!("fault_rx_", stringify!($fault))),*];
            const TX: &[&str] = &[$(concat!("fault_tx_", stringify!($fault))),*];

            fn report(&self, names: &'static [&'static str], visit: &mut dyn FnMut(&'static str, u64)) {
                names.iter().zip([$(self.$fault),*]).for_each(|(name, value)| visit(name, value));
            }
        }

        /// Declarations of the counters of both directions.
        pub(crate) const COUNTERS: &[Counter] = &[
            $(fault(concat!("fault_rx_", stringify!($fault)), &[("direction", "rx"), ("fault", stringify!($fault))]),)*
            $(fault(concat!("fault_tx_", stringify!($fault)), &[("direction", "tx"), ("fault", stringify!($fault))]),)*
            fault("fault_tx_refused", &[("direction", "tx"), ("fault", "refused")]),
        ];
    };
}

counts! { dropped corrupted duplicated delayed reordered pool_full held released }

const fn fault(name: &'static str, labels: &'static [(&'static str, &'static str)]) -> Counter {
    Counter { name, family: FAULTS, labels }
}

/// Faults drawn for one frame.
#[derive(Debug, Clone, Copy)]
struct Fate {
    drop: bool,
    /// Bit to flip, modulo the number of the frame's bits.
    corrupt: Option<u64>,
    duplicate: bool,
    delay: Option<Duration>,
    reorder: bool,
}

impl Fate {
    /// Whether the frame may not go on at once.
    fn may_stay(&self) -> bool {
        self.drop || self.delay.is_some() || self.reorder
    }
}

impl Side {
    fn new(faults: Faults, rng: Rng, max_frame: usize) -> Self {
        let pool = if faults.hold() { POOL } else { 0 };
        Self {
            faults,
            rng,
            free: std::iter::repeat_with(|| vec![0; max_frame].into()).take(pool).collect(),
            held: Vec::with_capacity(pool),
            drawn: 0,
            passed: 0,
            counts: Counts::default(),
        }
    }

    /// Draws the faults of the next frame. Every number is drawn, needed or not, so that frames do not affect each
    /// other.
    fn draw(&mut self) -> Fate {
        self.drawn += 1;
        let Self { faults, rng, .. } = self;
        let mut happens = |probability| rng.f64() < probability;
        let (drop, corrupt, duplicate) = (happens(faults.drop), happens(faults.corrupt), happens(faults.duplicate));
        let (delay, reorder) = (happens(faults.delay), happens(faults.reorder));
        let bit = rng.u64(..);
        let [shortest, longest] = faults.delay_us;
        let by = Duration::from_micros(rng.u32(shortest..=longest.max(shortest)).into());
        Fate { drop, corrupt: corrupt.then_some(bit), duplicate, delay: delay.then_some(by), reorder }
    }

    /// Applies the drawn faults to a frame; returns whether it goes on now.
    fn strike(&mut self, fate: Fate, data: &mut [u8], wire_len: usize, peer: ReplyTo, now: Nanos) -> bool {
        if fate.drop {
            self.counts.dropped += 1;
            return false;
        }
        if let (Some(bit), false) = (fate.corrupt, data.is_empty()) {
            let bit = bit % (data.len() as u64 * 8);
            data[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.counts.corrupted += 1;
        }
        if fate.duplicate && self.hold(data, wire_len, peer, now, false) {
            self.counts.duplicated += 1;
        }
        if let Some(by) = fate.delay {
            if self.hold(data, wire_len, peer, now + by, false) {
                self.counts.delayed += 1;
                return false;
            }
        } else if fate.reorder && self.hold(data, wire_len, peer, now + OVERTAKEN_WITHIN, true) {
            return false;
        }
        self.passed = self.drawn;
        true
    }

    /// Keeps a copy of the last drawn frame until it is due; false if the pool is full.
    fn hold(&mut self, data: &[u8], wire_len: usize, peer: ReplyTo, due: Nanos, reorder: bool) -> bool {
        let len = data.len();
        let Some(mut buf) = self.free.pop_if(|buf| len <= buf.len()) else {
            self.counts.pool_full += 1;
            return false;
        };
        buf[..len].copy_from_slice(data);
        self.held.push(Held { buf, len, wire_len, peer, number: self.drawn, due, reorder });
        self.counts.held += 1;
        true
    }

    /// Index of the oldest held frame that is due.
    fn due(&self, now: Nanos) -> Option<usize> {
        self.held.iter().position(|held| now >= held.due || self.overtook(held))
    }

    /// Whether a later frame has overtaken a frame that is to be reordered.
    fn overtook(&self, held: &Held) -> bool {
        held.reorder && self.passed > held.number
    }

    /// Frees the buffer of a held frame that has gone on or was refused.
    fn let_go(&mut self, held: Held) {
        self.counts.reordered += u64::from(self.overtook(&held));
        self.counts.released += 1;
        self.passed = self.passed.max(held.number);
        self.free.push(held.buf);
    }
}

impl<P: Port, C: Clock> Fault<P, C> {
    /// Wraps a port. `clock` times the delays.
    pub fn new(inner: P, spec: FaultSpec, clock: C) -> Self {
        let max_frame = inner.max_frame();
        let mut rng = Rng::with_seed(spec.seed);
        Self {
            rx: Side::new(spec.rx, rng.fork(), max_frame),
            tx: Side::new(spec.tx, rng, max_frame),
            scratch: vec![0; max_frame].into(),
            tx_refused: 0,
            inner,
            clock,
        }
    }

    /// Lends the held frames that are due to `handle`; returns their number.
    fn release_rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, now: Nanos, handle: &mut H) -> usize {
        for released in 0..BURST {
            let Some(index) = self.rx.due(now) else { return released };
            let mut held = self.rx.held.remove(index);
            let mut frame =
                Frame::new(&mut held.buf, held.len, held.wire_len, held.peer.peer()).routed(held.peer.route());
            let verdict = handle(&mut frame);
            let (len, peer) = (frame.len(), held.peer);
            if verdict == Verdict::Reply {
                let fate = self.tx.draw();
                if self.tx.strike(fate, &mut held.buf[..len], len, peer, now) {
                    self.forward(&held.buf[..len], peer, now);
                }
            }
            self.rx.let_go(held);
        }
        BURST
    }

    /// Sends a frame whose sender was told that it is queued. If the inner port is full, holds it for the next
    /// [`Port::tx`].
    fn forward(&mut self, data: &[u8], peer: ReplyTo, now: Nanos) {
        let sent = self.inner.reply(peer, |out| copy(data, out));
        let kept = sent == Err(PostError::Full) && self.tx.hold(data, data.len(), peer, now, false);
        self.tx_refused += u64::from(sent.is_err() && !kept);
    }
}

fn copy(data: &[u8], out: &mut [u8]) -> usize {
    out[..data.len()].copy_from_slice(data);
    data.len()
}

impl<P: Port, C: Clock> Port for Fault<P, C> {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        let now = self.clock.now().mono;
        let released = self.release_rx(now, &mut handle);
        if released > 0 {
            // A whole burst may follow from the inner port: that is the next call's.
            return released;
        }
        let Self { inner, rx, tx, .. } = self;
        let mut handled = 0;
        inner.rx(|frame| {
            let (len, wire_len, peer) = (frame.len(), frame.wire_len(), frame.reply_to());
            let fate = rx.draw();
            if !rx.strike(fate, &mut frame.buf_mut()[..len], wire_len, peer, now) {
                return Verdict::Drop;
            }
            handled += 1;
            let verdict = handle(frame);
            if verdict != Verdict::Reply {
                return verdict;
            }
            let (len, fate) = (frame.len(), tx.draw());
            let sent = tx.strike(fate, &mut frame.buf_mut()[..len], len, peer, now);
            if sent { Verdict::Reply } else { Verdict::Drop }
        });
        handled
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        self.reply(peer.into(), fill)
    }

    fn release(&mut self, number: u32) {
        self.inner.release(number);
    }

    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: ReplyTo, fill: F) -> Result<(), PostError> {
        let now = self.clock.now().mono;
        let fate = self.tx.draw();
        if !fate.may_stay() {
            let Self { inner, tx, .. } = self;
            return inner.reply(peer, |out| {
                let len = fill(out);
                tx.strike(fate, &mut out[..len], len, peer, now);
                len
            });
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let len = fill(&mut scratch);
        if self.tx.strike(fate, &mut scratch[..len], len, peer, now) {
            self.forward(&scratch[..len], peer, now);
        }
        self.scratch = scratch;
        Ok(())
    }

    fn tx(&mut self) {
        let now = self.clock.now().mono;
        while let Some(index) = self.tx.due(now) {
            let held = self.tx.held.remove(index);
            match self.inner.reply(held.peer, |out| copy(held.data(), out)) {
                Ok(()) => {}
                Err(PostError::Full) => {
                    self.tx.held.insert(index, held);
                    break;
                }
                Err(PostError::Unreachable) => self.tx_refused += 1,
            }
            self.tx.let_go(held);
        }
        self.inner.tx();
    }

    fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// `None` if frames may be held, because no descriptor tells when they are due.
    fn wait_fd(&self) -> Option<RawFd> {
        let holds = self.rx.faults.hold() || self.tx.faults.hold();
        self.inner.wait_fd().filter(|_| !holds)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(visit);
        self.rx.counts.report(Counts::RX, visit);
        self.tx.counts.report(Counts::TX, visit);
        visit("fault_tx_refused", self.tx_refused);
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        self.inner.device()
    }
}
