//! Waiting for completions.
#![allow(dead_code, unused_imports, reason = "each test crate uses its part")]

mod mount;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
    mpsc::{Receiver, Sender, channel},
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks};
use berth_memory::{Heap, Part};
use berth_store::BlockEngine;
pub(crate) use mount::{Loop, private_tmpfs};

pub(crate) struct Done {
    pub(crate) tag: u64,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) result: Result<(), BlockError>,
}

/// Gathers completions.
pub(crate) struct Waiter {
    sender: Arc<Told>,
    receiver: Receiver<Done>,
}

struct Told(Mutex<Sender<Done>>);

impl BlockDone for Told {
    fn done(&self, tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        let buffer = pieces.iter().flat_map(bytes).collect();
        // A test that failed does not listen any more.
        let _ = self.0.lock().unwrap().send(Done { tag, buffer, result });
    }
}

impl Waiter {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender: Arc::new(Told(Mutex::new(sender))), receiver }
    }

    pub(crate) fn submit(&self, engine: &BlockEngine, op: BlockOp, at: u64, buffer: &[u8], tag: u64) {
        self.submit_pieces(engine, op, at, pieces(buffer), tag);
    }

    pub(crate) fn submit_pieces(&self, engine: &BlockEngine, op: BlockOp, at: u64, pieces: Vec<Part>, tag: u64) {
        engine.submit(BlockRequest { op, at, pieces, tag, done: self.sender.clone() });
    }

    pub(crate) fn next(&self) -> Done {
        self.receiver.recv().unwrap()
    }
}

/// The bytes in one piece, which every other time does not begin where an engine would like it to.
pub(crate) fn pieces(bytes: &[u8]) -> Vec<Part> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let at = CALLS.fetch_add(1, Relaxed) % 2;
    let piece = Part::new(Arc::new(Heap::new(bytes.len() + at)), at, bytes.len()).unwrap();
    piece.write_at(0, bytes);
    if bytes.is_empty() { vec![] } else { vec![piece] }
}

pub(crate) fn bytes(piece: &Part) -> Vec<u8> {
    let mut bytes = vec![0; piece.size()];
    piece.read_at(0, &mut bytes);
    bytes
}

/// One operation, to its end.
pub(crate) fn run(engine: &BlockEngine, op: BlockOp, at: u64, buffer: &[u8]) -> Result<(), BlockError> {
    let waiter = Waiter::new();
    waiter.submit(engine, op, at, buffer, 77);
    let done = waiter.next();
    assert_eq!(done.tag, 77);
    done.result
}

pub(crate) fn write(engine: &BlockEngine, at: u64, data: &[u8]) -> Result<(), BlockError> {
    run(engine, BlockOp::Write, at, data)
}

pub(crate) fn read(engine: &BlockEngine, at: u64, len: usize) -> Result<Vec<u8>, BlockError> {
    let waiter = Waiter::new();
    waiter.submit(engine, BlockOp::Read, at, &vec![0xee; len], 78);
    let done = waiter.next();
    done.result.map(|()| done.buffer.into())
}

pub(crate) fn count(engine: &BlockEngine, wanted: &str) -> u64 {
    let mut found = None;
    engine.counters(&mut |name, value| found = found.or((name == wanted).then_some(value)));
    found.expect(wanted)
}
