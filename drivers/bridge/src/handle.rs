//! Bridges, and the numbers that callers know them by.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_engine::Idle;
use berth_memory::Heap;
use berth_ports::{Driver, Facts, Hugepages, Opening, Runtime, Udp};
use berth_ring::{Geometry, Producer, Ring, abi::Ringbuffer};
use berth_wire::rpc::HeaderForm;

use crate::{
    abi::Handle,
    config::{self, Port},
    exchange::Rules,
    failure::Failure,
    options::{Options, Source},
    pinned,
    pump::{self, Thread},
    unified::Dataplane,
};

/// A bridge: a ring, and what moves requests and answers between it and a port.
pub(crate) struct Bridge {
    /// Dropped before the ring, whose slots it uses.
    pub(crate) shape: Shape,
    /// Where the ring is.
    pub(crate) abi: Ringbuffer,
    /// Keeps its memory.
    _ring: Mutex<Ring>,
    pub(crate) slots: u32,
    pub(crate) slot_size: u32,
    /// The line that tells peers where to send.
    pub(crate) endpoint: String,
}

/// Who has the loop.
pub(crate) enum Shape {
    /// A thread of ours; the dispatcher looks at flags.
    Ring(Thread),
    /// The dispatcher.
    Unified(Box<Dataplane>),
}

impl Bridge {
    pub(crate) fn open(options: Options) -> Result<Self, Failure> {
        let Options { unified, pinned, patience, source } = options;
        let Port { driver, cpu, idle, form, slots, slot_size, runtime } = match source {
            Source::File { file, name } => config::read(&file, &name)?,
            Source::Stock { port, slots, slot_size } => stock(port, slots, slot_size),
        };
        // What is told is what the driver says of its address, so far as there is no port that knows better.
        let planned = driver.to_string().split(' ').find_map(|word| word.parse::<SocketAddr>().ok());
        let is_udp = matches!(driver, Driver::Udp(_));
        if unified && !is_udp && planned.is_some_and(|addr| addr.port() == 0) {
            let message =
                "such a port is opened by the dispatcher's thread, too late to say which port it has; give it one";
            return Err(Failure::option(message));
        }
        let size = slot_size as usize;
        let geometry = Geometry::new(slots, size).map_err(Failure::option)?;
        let (ring, producer) = ring(geometry, pinned)?;
        let producer = producer.patient(patience);
        let rules = Rules { form, slot_size: size, pads: driver.traits().speaks_udp };
        let opening = Opening { queues: 1, max_frame: size, waiting: None, kept: 0, runtime: &runtime };
        let (queues, facts) = driver.queues(&opening).map_err(|why| Failure::internal(&why))?;
        let Some(queue) = queues.into_iter().next() else {
            return Err(Failure::internal(&anyhow::anyhow!("the port has no queue")));
        };
        let internal = |why| Failure::internal(&why);
        let (shape, addr) = if unified {
            drop(producer);
            let (dataplane, addr) = Dataplane::new(queue, rules, (&ring, slots), is_udp).map_err(internal)?;
            (Shape::Unified(Box::new(dataplane)), addr.or(planned))
        } else {
            let plan = pump::Plan { queue, rules, ring: producer, cpu, idle };
            let (thread, addr) = Thread::start(plan).map_err(internal)?;
            (Shape::Ring(thread), Some(addr))
        };
        let endpoint = endpoint(driver.word(), addr, &facts, slots, slot_size);
        Ok(Self { shape, abi: ring.as_abi(), _ring: Mutex::new(ring), slots, slot_size, endpoint })
    }

    /// Ends the thread. Calls that go on find that out.
    fn end(&self) {
        if let Shape::Ring(thread) = &self.shape {
            thread.end();
        }
    }
}

/// What the stock provider of UDP is.
fn stock(port: u16, slots: u32, slot_size: u32) -> Port {
    Port {
        driver: Driver::Udp(Udp { bind: (Ipv4Addr::UNSPECIFIED, port).into() }),
        cpu: None,
        idle: Idle::Adaptive,
        form: HeaderForm::V24,
        slots,
        slot_size,
        runtime: Runtime { housekeeping_cpus: Vec::new(), hugepages: Hugepages::Never, memory_mb: 0 },
    }
}

/// A ring, and the end of it that is ours.
fn ring(geometry: Geometry, pinned: bool) -> Result<(Ring, Producer), Failure> {
    let ring = if pinned {
        Ring::new(pinned::allocate(geometry.size())?, geometry)
    } else {
        Ring::new(Heap::new(geometry.size()), geometry)
    };
    let mut ring = ring.map_err(Failure::option)?;
    let producer = ring.producer().ok_or(Failure::silent(crate::abi::INTERNAL))?;
    Ok((ring, producer))
}

/// `transport=udp port=4700 address=0.0.0.0:4700 slots=8 slot_size=256`
fn endpoint(word: &str, addr: Option<SocketAddr>, facts: &Facts, slots: u32, slot_size: u32) -> String {
    let mut line = format!("transport={word}");
    if let Some(addr) = addr {
        let _ = write!(line, " port={} address={addr}", addr.port());
    }
    for (name, value) in facts {
        if let Some(value) = value.as_str() {
            let _ = write!(line, " {name}={value}");
        }
    }
    let _ = write!(line, " slots={slots} slot_size={slot_size}");
    line
}

/// Every bridge there is, by its number.
struct Bridges {
    all: BTreeMap<usize, Arc<Bridge>>,
    /// The last number that was given out; none is given out twice.
    last: usize,
}

static BRIDGES: Mutex<Bridges> = Mutex::new(Bridges { all: BTreeMap::new(), last: 0 });

fn bridges() -> MutexGuard<'static, Bridges> {
    // Nothing under the lock can fail halfway.
    BRIDGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a bridge a number.
pub(crate) fn add(bridge: Bridge) -> Handle {
    let mut bridges = bridges();
    bridges.last += 1;
    let number = bridges.last;
    bridges.all.insert(number, Arc::new(bridge));
    ptr::without_provenance_mut(number)
}

/// The bridge of a number; `None` if it was destroyed, or never was.
pub(crate) fn find(handle: Handle) -> Option<Arc<Bridge>> {
    bridges().all.get(&handle.addr()).cloned()
}

/// Ends a bridge; false if there is none.
pub(crate) fn remove(handle: Handle) -> bool {
    let found = bridges().all.remove(&handle.addr());
    found.as_ref().inspect(|bridge| bridge.end()).is_some()
}
