//! What the sessions of a worker count together, and how long the stages of their requests take.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use berth_port::{Count, Counter, Family, Nanos, Recorder, Tables};
use berth_wire::hip::Op;

const REQUESTS: Family = Family::counter("requests", "HIP requests, by class of operation and by what became of them");
const BYTES: Family =
    Family::counter("bytes", "bytes of the payloads of HIP requests and answers, by class of operation");
const TIME: Family =
    Family::counter("time_ns", "time of HIP requests that took any, by class of operation and by stage");
const CLOSED: Family = Family::counter(
    "closed",
    "HIP connections that were closed for a header, by what was wrong, or since the device was lost in the middle of an answer",
);
const DEFERRED: Family =
    Family::counter("deferred_errors", "errors of HIP kernels and of requests without reply, by what became of them");

/// One list of the classes.
macro_rules! classes {
    ($($class:ident $name:literal,)*) => {
        /// Kinds of operations that are counted together.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Class {
            $($class,)*
        }

        /// Their names, in order.
        const CLASSES: [&str; [$($name),*].len()] = [$($name),*];
    };
}

classes! {
    Connection "connection",
    Device "device",
    Memory "memory",
    Copy "copy",
    Set "set",
    Stream "stream",
    Event "event",
    Module "module",
    Launch "launch",
    Error "error",
    Query "query",
    Graph "graph",
    Unserved "unserved",
}

/// The class of each code below 0x0800.
static OF_CODE: [Class; 0x0800] = {
    let mut of_code = [Class::Unserved; 0x0800];
    let mut at = 0;
    while at < Op::ALL.len() {
        let code = Op::ALL[at] as usize;
        if code < of_code.len() {
            of_code[code] = match code {
                0x0000..=0x00FF => Class::Connection,
                0x0100..=0x01FF => Class::Device,
                0x0210..=0x021F => Class::Copy,
                0x0220..=0x022F => Class::Set,
                0x0200..=0x02FF | 0x0745 | 0x0751 => Class::Memory,
                0x0300..=0x03FF | 0x0746 => Class::Stream,
                0x0400..=0x04FF | 0x0747 => Class::Event,
                0x0510..=0x051F => Class::Launch,
                0x0500..=0x05FF | 0x0744 => Class::Module,
                0x0600..=0x06FF => Class::Error,
                0x0720..=0x072F => Class::Graph,
                _ => Class::Query,
            };
        }
        at += 1;
    }
    of_code
};

impl Class {
    /// Of an operation by its code, served or not.
    #[inline]
    pub(crate) fn of(code: u16) -> Self {
        match OF_CODE.get(usize::from(code)) {
            Some(class) => *class,
            None => Op::of(code).map_or(Self::Unserved, |_| Self::Query),
        }
    }
}

/// What is counted of each class.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Answered,
    Failed,
    Done,
    Deferred,
    BytesIn,
    BytesOut,
    ReceiveNs,
    WaitNs,
    DeviceNs,
    SendNs,
}

/// The kinds as they are reported: what stands before and after the name of the class.
const KINDS: [(&str, &str); 10] = [
    ("requests", "answered"),
    ("requests", "failed"),
    ("requests", "done"),
    ("requests", "deferred"),
    ("bytes", "in"),
    ("bytes", "out"),
    ("time_ns", "receive"),
    ("time_ns", "wait"),
    ("time_ns", "device"),
    ("time_ns", "send"),
];

berth_port::counters! {
    const OF_CLASS {
        "requests_*_answered": REQUESTS { class: *, outcome: "answered" },
        "requests_*_failed": REQUESTS { class: *, outcome: "failed" },
        "requests_*_done": REQUESTS { class: *, outcome: "done" },
        "requests_*_deferred": REQUESTS { class: *, outcome: "deferred" },
        "bytes_*_in": BYTES { class: *, direction: "in" },
        "bytes_*_out": BYTES { class: *, direction: "out" },
        "time_ns_*_receive": TIME { class: *, stage: "receive" },
        "time_ns_*_wait": TIME { class: *, stage: "wait" },
        "time_ns_*_device": TIME { class: *, stage: "device" },
        "time_ns_*_send": TIME { class: *, stage: "send" },
    }
}

berth_port::counters! {
    /// What is counted whatever the operation.
    pub(crate) struct Events of Count {
        errors_kept: DEFERRED { fate: "kept" },
        errors_dropped: DEFERRED { fate: "dropped" },
        bad_magic: CLOSED { reason: "magic" },
        bad_version: CLOSED { reason: "version" },
        bad_length: CLOSED { reason: "length" },
        broken_off: CLOSED { reason: "device" },
        launches: "kernels that HIP sessions have started",
    }
}

/// Counted by all sessions of a worker. Every request is one of answered, failed, done and deferred.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) events: Events,
    classes: [[Count; KINDS.len()]; CLASSES.len()],
}

impl Counters {
    /// Declarations of those that are counted whatever the operation.
    pub const TABLE: &[Counter] = Events::TABLE;
    /// Declarations of those of each class of operations; `*` stands for the class.
    pub const OF_CLASS: &[Counter] = OF_CLASS;

    /// Calls `visit` with the name and value of each counter; of the classes, those with a request.
    pub fn report(&self, visit: &mut dyn FnMut(&str, u64)) {
        self.events.report(&mut |name, value| visit(name, value));
        for (class, counts) in CLASSES.iter().zip(&self.classes) {
            if counts.iter().all(|count| count.get() == 0) {
                continue;
            }
            for ((before, after), count) in KINDS.iter().zip(counts) {
                visit(&format!("{before}_{class}_{after}"), count.get());
            }
        }
    }

    /// Requests of each class that had any, by outcome (answered, failed, done, deferred), and bytes in and out.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, [u64; 6])> {
        let of_class = CLASSES.into_iter().zip(&self.classes);
        of_class
            .map(|(class, counts)| (class, std::array::from_fn(|kind| counts[kind].get())))
            .filter(|(_, counts)| counts.iter().any(|count| *count > 0))
    }
}

/// All counters of this crate.
pub const COUNTERS: Tables = &[Counters::TABLE, Counters::OF_CLASS];

/// Histograms of the stages of requests, in nanoseconds by the time of turns. Clones are the same histograms, of one poll
/// core.
///
/// ```text
/// receive   from the request of a copy or a load to the last byte that it brings
/// wait      for a launch before it
/// device    of a launch or another job that was not done at once
/// send      from the answer of a copy to the host to its last byte
/// ```
#[derive(Debug, Clone, Default)]
pub struct Latencies([Recorder; 4]);

impl Latencies {
    /// The histograms with their names.
    pub fn histograms(&self) -> [(&'static str, &Recorder); 4] {
        let [receive, wait, device, send] = &self.0;
        [("hip_receive_time", receive), ("hip_wait_time", wait), ("hip_device_time", device), ("hip_send_time", send)]
    }
}

/// What a session does, for who watches it from another thread.
#[derive(Debug, Default)]
pub struct Activity {
    requests: Count,
    errors: Count,
    memory: AtomicU64,
    pub(crate) lease: OnceLock<u128>,
}

impl Activity {
    /// Requests that were answered, failed, done without a reply or deferred.
    pub fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Those that failed, with or without a reply.
    pub fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// Bytes of device memory that it has, as they were when it was last served.
    pub fn memory(&self) -> u64 {
        self.memory.load(Relaxed)
    }

    /// Id of the lease that it is bound to; `None` before.
    pub fn lease(&self) -> Option<u128> {
        self.lease.get().copied()
    }
}

/// What one session has counted and not told yet: plain numbers, for requests come by the million.
pub(crate) struct Tally {
    /// The classes with something to tell, by bit.
    touched: u16,
    counts: [[u64; KINDS.len()]; CLASSES.len()],
    pub(crate) latencies: Option<Latencies>,
    pub(crate) activity: Option<Arc<Activity>>,
}

const _: () = assert!(CLASSES.len() <= 16);

impl Tally {
    pub(crate) fn new() -> Self {
        Self { touched: 0, counts: Default::default(), latencies: None, activity: None }
    }

    #[inline]
    pub(crate) fn add(&mut self, class: Class, kind: Kind, count: u64) {
        self.touched |= 1 << class as u16;
        self.counts[class as usize][kind as usize] += count;
    }

    /// A stage of a request took from `from` until `until`.
    pub(crate) fn took(&mut self, class: Class, stage: Kind, from: Nanos, until: Nanos) {
        let nanos = until.0.saturating_sub(from.0);
        self.add(class, stage, nanos);
        if let Some(Latencies(stages)) = &self.latencies {
            stages[stage as usize - Kind::ReceiveNs as usize].record(nanos);
        }
    }

    /// Tells all that was counted.
    #[inline]
    pub(crate) fn tell(&mut self, counters: &Counters, memory: Option<u64>) {
        if self.touched == 0 {
            return;
        }
        let (mut requests, mut errors) = (0, 0);
        while self.touched != 0 {
            let class = self.touched.trailing_zeros() as usize;
            self.touched &= self.touched - 1;
            let counts = std::mem::take(&mut self.counts[class]);
            requests += counts[..4].iter().sum::<u64>();
            errors += counts[Kind::Failed as usize] + counts[Kind::Deferred as usize];
            for (count, to) in counts.into_iter().zip(&counters.classes[class]) {
                if count > 0 {
                    to.add(count);
                }
            }
        }
        if let Some(activity) = &self.activity {
            activity.requests.add(requests);
            activity.errors.add(errors);
            if let Some(memory) = memory {
                activity.memory.store(memory, Relaxed);
            }
        }
    }
}
