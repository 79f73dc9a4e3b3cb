//! A service under test: virtual time, a port in memory, handlers that do what their arguments say.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_port::{Clock, Frame, Nanos, Now, Peer, Port, PostError, Service, Verdict};
use berth_rpc::{
    Call, Config, Dispatch, Function, FunctionIndex, FunctionTable, Handlers, Order, Outcome, RingIndex, Stage,
    Undispatchable,
};
use berth_wire::rpc::{HandlerSchema, HeaderForm, PtpEncoding, RequestHeader, ResponseHeader, TypeDesc, TypeId, fnv1a};

pub const SLOT: usize = 256;
pub const STAMP: u64 = 900;
pub const WALL: u64 = 1_000;

/// Through the first ring of the service.
pub const RING: Dispatch = Dispatch::Ring(RingIndex(0));

/// Records nothing.
pub const QUIET: fn(Stage, u64) = |_, _| {};

/// A clock that moves when told to. Its wall time is [`WALL`] ahead.
#[derive(Clone, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Relaxed);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Now {
        let mono = self.0.load(Relaxed);
        Now { mono: Nanos(mono), wall: Nanos(mono + WALL) }
    }
}

/// `increment`: every byte plus one. `status`: ends with its argument as status. `take`: takes this many microseconds.
/// `claim`: claims a result of this many bytes. `panic`: panics. `lenient`: returns the length that its header claimed.
pub struct TestHandlers(pub VirtualClock);

const NAMES: [&str; 6] = ["increment", "status", "take", "claim", "panic", "lenient"];
pub const BUDGET: Duration = Duration::from_micros(10);

impl Handlers for TestHandlers {
    fn call(&mut self, FunctionIndex(index): FunctionIndex, call: &mut Call<'_>) -> Outcome {
        let len = call.args().len();
        let word = call.args().first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
        match NAMES[index] {
            "increment" => {
                call.results()[..len].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                Ok(len)
            }
            "status" => Err(word.into()),
            "take" => {
                self.0.advance(Duration::from_micros(word as u64));
                Ok(4)
            }
            "claim" => Ok(word as usize),
            "panic" => panic!("as asked"),
            _ => {
                let claimed = call.claimed_len() as u32;
                call.results()[..4].copy_from_slice(&claimed.to_le_bytes());
                Ok(4)
            }
        }
    }
}

pub fn table(mode: Dispatch) -> Arc<FunctionTable> {
    let (any, word) = (TypeDesc::variable(TypeId::ArrayUInt8), TypeDesc::one(TypeId::Int32));
    let functions = NAMES.iter().map(|&name| {
        let (args, results) = match name {
            "increment" => (any, any),
            "claim" => (word, TypeDesc::variable(TypeId::ArrayInt32)),
            "lenient" => (any, word),
            _ => (word, word),
        };
        let mut function = Function::new(name, HandlerSchema::new(&[args], &[results]).unwrap());
        function.mode = mode;
        function.budget = (name == "take").then_some(BUDGET);
        function.checks_length = name == "lenient";
        function
    });
    Arc::new(FunctionTable::new(functions.collect()).unwrap())
}

pub fn config(header: HeaderForm, on_undispatchable: Undispatchable) -> Config {
    Config { header, slot_size: SLOT, on_undispatchable, ptp: PtpEncoding::Ns, order: Order::Arrival }
}

pub fn peer(number: u16) -> Peer {
    Peer::Connection { number: number.into(), host: Some([10, 0, 0, 1].into()) }
}

/// A request with nothing behind its arguments.
pub fn request(form: HeaderForm, name: &str, request_id: u32, args: &[u8]) -> Vec<u8> {
    let header =
        RequestHeader { function_id: fnv1a(name), arg_len: args.len() as u32, request_id, ptp_timestamp: STAMP };
    let mut bytes = vec![0; form.len() + args.len()];
    header.write(form, &mut bytes).unwrap();
    bytes[form.len()..].copy_from_slice(args);
    bytes
}

/// Status, request id and results of an answer, once its length and the echoed stamp were checked.
pub type Answer = (i32, u32, Vec<u8>);

pub fn parse(form: HeaderForm, bytes: &[u8]) -> Answer {
    let header = ResponseHeader::parse(form, bytes).unwrap();
    assert_eq!(bytes.len(), form.len() + header.result_len as usize, "exactly header and result");
    assert_eq!(header.ptp_timestamp, if form == HeaderForm::V24 { STAMP } else { 0 }, "the stamp is echoed");
    (header.status, header.request_id, bytes[form.len()..].to_vec())
}

/// Passes one frame to a service, in a buffer with room for `capacity` bytes.
pub fn handle(
    service: &mut impl Service,
    form: HeaderForm,
    message: &[u8],
    capacity: usize,
    now: Now,
) -> Option<Answer> {
    let mut buf = vec![0xEE; capacity.max(message.len())];
    buf[..message.len()].copy_from_slice(message);
    let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer(1));
    match service.handle(&mut frame, now) {
        Verdict::Reply => Some(parse(form, frame.data())),
        Verdict::Drop | Verdict::Keep => None,
    }
}

pub fn counters(report: impl Fn(&mut dyn FnMut(&'static str, u64))) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    report(&mut |name, value| assert_eq!(counters.insert(name, value), None, "{name} is reported twice"));
    counters
}

/// The counters that are not zero, without the ring's, checked to account for every request received.
pub fn events(service: &impl Service) -> BTreeMap<&'static str, u64> {
    let mut counters = counters(|visit| service.counters(visit));
    let outcomes = [
        "answered",
        "handler_error",
        "bad_magic",
        "truncated",
        "unknown_function",
        "bad_length",
        "schema_mismatch",
        "result_too_large",
        "overloaded",
        "handler_failed",
    ];
    let sum: u64 = outcomes.iter().map(|name| counters[name]).sum();
    assert_eq!(counters.remove("received").unwrap(), sum + service.outstanding() as u64, "{counters:?}");
    counters.retain(|name, value| *value != 0 && !name.starts_with("ring_") && !name.starts_with("calls_"));
    counters
}

/// A port whose transmit queue holds `room` frames until [`Outbox::take`].
pub struct Outbox {
    pub room: usize,
    pub sent: Vec<(Peer, Vec<u8>)>,
    pub unreachable: Option<Peer>,
    /// Numbers of kept frames that were given back.
    pub released: Vec<u32>,
}

impl Outbox {
    pub fn new(room: usize) -> Self {
        Self { room, sent: Vec::new(), unreachable: None, released: Vec::new() }
    }

    pub fn take(&mut self, form: HeaderForm) -> Vec<(u16, Answer)> {
        self.sent.drain(..).map(|(peer, bytes)| (peer.number().unwrap() as u16, parse(form, &bytes))).collect()
    }
}

impl Port for Outbox {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, _: H) -> usize {
        0
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        if self.unreachable == Some(peer) {
            return Err(PostError::Unreachable);
        }
        if self.sent.len() == self.room {
            return Err(PostError::Full);
        }
        let mut buf = vec![0; SLOT];
        let len = fill(&mut buf);
        buf.truncate(len);
        self.sent.push((peer, buf));
        Ok(())
    }

    fn release(&mut self, number: u32) {
        self.released.push(number);
    }

    fn tx(&mut self) {}

    fn max_frame(&self) -> usize {
        SLOT
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], 0))
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}
