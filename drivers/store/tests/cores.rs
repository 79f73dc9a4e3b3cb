//! Requests of a poll core, in the core's own ring, beside those that other threads leave to the engine.

mod common;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread::{self, ThreadId},
    time::Duration,
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks};
use berth_memory::{Heap, Memory, Part};
use berth_port::{Nanos, Now, Progress, Session, Task as _};
use berth_store::BlockEngine;
use berth_uring::{LOCAL_MOST, UringStreams, handover};
use common::{count, read, write};
use tempfile::TempDir;

const LEN: u64 = 1 << 20;

/// A protocol that nobody speaks: the ring alone is wanted.
struct Silent;

impl Session for Silent {
    fn advance(&mut self, _: &[u8], _: &mut [u8], _: Nanos) -> Progress {
        unreachable!("nobody connects")
    }

    fn is_identified(&self) -> bool {
        false
    }

    fn is_over(&mut self, _: Nanos) -> bool {
        false
    }
}

/// A thread's own ring.
struct Core(UringStreams<Silent>);

impl Core {
    fn new() -> Self {
        Self(UringStreams::new(handover(1).unwrap().1, 1).unwrap())
    }

    fn turn(&mut self) {
        self.0.turn(Now { mono: Nanos(0), wall: Nanos(0) }, true, false);
    }
}

type Done = (u64, Vec<Part>, Result<(), BlockError>, ThreadId);

/// What became of requests: the tag of each, its pieces, and the thread that told of it.
#[derive(Default)]
struct Told(Mutex<Vec<Done>>);

impl BlockDone for Told {
    fn done(&self, tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        self.0.lock().unwrap().push((tag, pieces, result, thread::current().id()));
    }
}

impl Told {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Aligned memory, of which pieces are taken.
fn memory(len: usize) -> Arc<dyn Memory> {
    Arc::new(Heap::new(len))
}

fn piece(memory: &Arc<dyn Memory>, at: usize, len: usize, content: u8) -> Part {
    let piece = Part::new(memory.clone(), at, len).unwrap();
    piece.write_at(0, &vec![content; len]);
    piece
}

/// Reads as another thread does: on one with a ring nothing ends unless the ring is entered.
fn read_elsewhere(engine: &BlockEngine, at: u64, len: usize) -> Vec<u8> {
    thread::scope(|scope| scope.spawn(|| read(engine, at, len)).join().unwrap().unwrap())
}

#[test]
fn whole_sectors_are_moved_in_the_cores_own_ring() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    let (mut core, told, memory) = (Core::new(), Arc::<Told>::default(), memory(64 << 10));
    let mut run = |op, at, pieces: Vec<Part>| {
        engine.submit(BlockRequest { op, at, pieces, tag: at, done: told.clone() });
        while told.len() == 0 {
            core.turn();
        }
        let (tag, pieces, result, by) = told.0.lock().unwrap().pop().unwrap();
        assert_eq!(tag, at);
        (pieces, result, by == thread::current().id())
    };
    let (_, result, here) = run(BlockOp::Write, 8192, vec![piece(&memory, 0, 4096, 1), piece(&memory, 8192, 8192, 2)]);
    assert_eq!((result, here), (Ok(()), true));
    let (_, result, here) = run(BlockOp::Flush, 0, vec![]);
    assert_eq!((result, here), (Ok(()), true));
    let (pieces, result, here) = run(BlockOp::Read, 4096, vec![piece(&memory, 32 << 10, 16 << 10, 0xee)]);
    assert_eq!((result, here), (Ok(()), true));
    let mut found = vec![0; 16 << 10];
    pieces[0].read_at(0, &mut found);
    assert_eq!(found, [vec![0; 4096], vec![1; 4096], vec![2; 8192]].concat());
    assert_eq!(read_elsewhere(&engine, 8192, 4096), [1; 4096]);
    if engine.info().block_size > 1 {
        for (at, piece) in [(4096 + 8, piece(&memory, 0, 4096, 3)), (4096, piece(&memory, 0, 8, 3))] {
            let (_, result, here) = run(BlockOp::Write, at, vec![piece]);
            assert_eq!((result, here), (Ok(()), false), "parts of sectors are the engine's");
        }
    }
    let (_, result, _) = run(BlockOp::Read, LEN, vec![piece(&memory, 0, 4096, 0)]);
    assert_eq!(result, Err(BlockError::Io(22)));
}

#[test]
fn a_full_ring_leaves_the_rest_to_the_engine() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    let (mut core, told, memory) = (Core::new(), Arc::<Told>::default(), memory(LEN as usize));
    let most = LOCAL_MOST as u64 + 10;
    for tag in 0..most {
        let pieces = vec![piece(&memory, tag as usize * 4096, 4096, tag as u8)];
        engine.submit(BlockRequest { op: BlockOp::Write, at: tag * 4096, pieces, tag, done: told.clone() });
    }
    while told.len() < most as usize {
        core.turn();
    }
    let here = thread::current().id();
    let done = std::mem::take(&mut *told.0.lock().unwrap());
    assert!(done.iter().all(|(_, _, result, _)| result.is_ok()));
    assert_eq!(done.iter().filter(|(.., by)| *by == here).count(), LOCAL_MOST);
    for tag in 0..most {
        assert_eq!(read_elsewhere(&engine, tag * 4096, 4096), vec![tag as u8; 4096]);
    }
    assert_eq!(count(&engine, "block_writes"), most);
}

/// The kernel has let go of all memory when the ring is gone, and of the file when the engine is too.
#[test]
fn closing_the_ring_ends_what_is_under_way() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("blocks");
    for entered in [false, true] {
        let engine = BlockEngine::open(&path, LEN).unwrap();
        let (mut core, told, memory) = (Core::new(), Arc::<Told>::default(), memory(LEN as usize));
        for tag in 0..100 {
            let pieces = vec![piece(&memory, tag as usize * 4096, 4096, 7)];
            engine.submit(BlockRequest { op: BlockOp::Write, at: tag * 4096, pieces, tag, done: told.clone() });
        }
        if entered {
            core.turn();
        }
        drop(core);
        assert_eq!(told.len(), 100);
        told.0.lock().unwrap().clear();
        assert_eq!((Arc::strong_count(&memory), Arc::strong_count(&told)), (1, 1));
        // This thread has no ring any more.
        write(&engine, 0, &[1; 4096]).unwrap();
        drop(engine);
        BlockEngine::open(&path, LEN).unwrap();
    }
}

#[test]
fn a_write_of_a_part_of_a_sector_waits_for_cores_that_write() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    let align = engine.info().block_size as usize;
    if align < 8 {
        return; // no direct I/O here, and so no sectors
    }
    let (mut core, told, memory) = (Core::new(), Arc::<Told>::default(), memory(64 << 10));
    let submit = |tag, piece| {
        let at = 0;
        engine.submit(BlockRequest { op: BlockOp::Write, at, pieces: vec![piece], tag, done: told.clone() });
    };
    submit(1, piece(&memory, 0, align, 1));
    submit(2, piece(&memory, align, 8, 2));
    // Its ring is not entered yet, so the first is under way.
    thread::sleep(Duration::from_millis(50));
    assert_eq!(told.len(), 0);
    // While the engine has the second, it has the third as well, after it.
    submit(3, piece(&memory, 2 * align, align, 3));
    while told.len() < 3 {
        core.turn();
    }
    let order: Vec<_> =
        told.0.lock().unwrap().iter().map(|(tag, _, _, by)| (*tag, *by == thread::current().id())).collect();
    assert_eq!(order, [(1, true), (2, false), (3, false)]);
    assert_eq!(read_elsewhere(&engine, 0, align), vec![3; align]);
}

#[test]
fn a_write_that_waits_for_a_core_is_told_that_the_engine_ends() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    let align = engine.info().block_size as usize;
    if align < 8 {
        return; // no direct I/O here, and so no sectors
    }
    let (core, told, memory) = (Core::new(), Arc::<Told>::default(), memory(64 << 10));
    for (tag, piece) in [(1, piece(&memory, 0, align, 1)), (2, piece(&memory, align, 8, 2))] {
        engine.submit(BlockRequest { op: BlockOp::Write, at: 0, pieces: vec![piece], tag, done: told.clone() });
    }
    // The ring of the first is not entered, and the second waits for it.
    drop(engine);
    let told_of = || told.0.lock().unwrap().iter().map(|(tag, _, result, _)| (*tag, *result)).collect::<Vec<_>>();
    assert_eq!(told_of(), [(2, Err(BlockError::Io(libc::ECANCELED)))]);
    drop(core);
    assert_eq!(told_of()[1], (1, Ok(())));
    assert_eq!((Arc::strong_count(&memory), Arc::strong_count(&told)), (3, 1));
}

/// When writes of one part of a sector were started and answered, by one clock, and what each wrote.
#[derive(Default)]
struct History(Mutex<Vec<(u64, u64, u64)>>);

impl History {
    /// Whether a part may hold `stamp`: no write of it that was answered was begun after that one was.
    fn allows(&self, stamp: u64) -> bool {
        let writes = self.0.lock().unwrap();
        let Some(&(_, answered, _)) = writes.iter().find(|(.., written)| *written == stamp) else { return false };
        !writes.iter().any(|(begun, ..)| *begun > answered)
    }
}

const SECTORS: usize = 2;
const PARTS: usize = 8;

/// Writes that the core has under way.
const MOST: usize = 6;

/// Who writes: what it writes is counted, and told to the histories of all parts that it covers.
struct Writes<'w> {
    clock: &'w AtomicU64,
    histories: &'w [[History; PARTS]; SECTORS],
    part: usize,
}

impl Writes<'_> {
    /// A write's content and when it began.
    fn begin(&self, parts: usize) -> (u64, Vec<u8>) {
        let begun = self.clock.fetch_add(1, SeqCst);
        let mut content = vec![0; parts * self.part];
        content.chunks_mut(self.part).for_each(|part| part[..8].copy_from_slice(&begun.to_le_bytes()));
        (begun, content)
    }

    fn answered(&self, sector: usize, parts: std::ops::Range<usize>, begun: u64) {
        let now = self.clock.fetch_add(1, SeqCst);
        parts.for_each(|part| self.histories[sector][part].0.lock().unwrap().push((begun, now, begun)));
    }
}

/// A poll core writes sectors, other threads write parts of the same sectors, which the engine reads and writes back: no
/// write that was answered is undone by another one's reading of before.
#[test]
fn no_answered_write_is_lost_to_one_of_a_part_of_its_sector() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    let align = engine.info().block_size as usize;
    if align < 8 * PARTS {
        return; // no direct I/O here, and so no sectors
    }
    let (clock, sectors_written) = (AtomicU64::new(1), AtomicUsize::new(0));
    let histories: [[History; PARTS]; SECTORS] = Default::default();
    let writes = || Writes { clock: &clock, histories: &histories, part: align / PARTS };
    for round in 0..300 {
        histories.iter().flatten().for_each(|history| history.0.lock().unwrap().clear());
        // Every part has been written once.
        for sector in 0..SECTORS {
            let (begun, content) = writes().begin(PARTS);
            write(&engine, (sector * align) as u64, &content).unwrap();
            writes().answered(sector, 0..PARTS, begun);
        }
        thread::scope(|scope| {
            for client in 0..2 {
                let (engine, writes) = (&engine, writes());
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(round * 10 + client);
                    for _ in 0..3 {
                        let (sector, part) = (rng.usize(0..SECTORS), rng.usize(0..PARTS));
                        let (begun, content) = writes.begin(1);
                        write(engine, (sector * align + part * writes.part) as u64, &content).unwrap();
                        writes.answered(sector, part..part + 1, begun);
                    }
                });
            }
            let (engine, writes, sectors_written) = (&engine, writes(), &sectors_written);
            scope.spawn(move || {
                let (mut core, told, memory) = (Core::new(), Arc::<Told>::default(), memory(1 << 20));
                let mut rng = fastrand::Rng::with_seed(1000 + round);
                let here = thread::current().id();
                let (mut under_way, mut next, wanted) = (HashMap::new(), 0_u64, rng.u64(1..16));
                loop {
                    let ends = next == wanted;
                    if ends && under_way.is_empty() {
                        break;
                    }
                    if !ends && under_way.len() < MOST {
                        let sector = rng.usize(0..SECTORS);
                        let (begun, content) = writes.begin(PARTS);
                        let piece = Part::new(memory.clone(), next as usize % (2 * MOST) * align, align).unwrap();
                        piece.write_at(0, &content);
                        under_way.insert(next, (sector, begun));
                        let (op, at) = (BlockOp::Write, (sector * align) as u64);
                        engine.submit(BlockRequest { op, at, pieces: vec![piece], tag: next, done: told.clone() });
                        next += 1;
                    }
                    core.turn();
                    for (tag, _, result, by) in told.0.lock().unwrap().drain(..) {
                        result.unwrap();
                        let (sector, begun) = under_way.remove(&tag).unwrap();
                        writes.answered(sector, 0..PARTS, begun);
                        sectors_written.fetch_add(usize::from(by == here), Relaxed);
                    }
                }
            });
        });
        let found = read(&engine, 0, SECTORS * align).unwrap();
        for (nth, part) in found.chunks(align / PARTS).enumerate() {
            let stamp = u64::from_le_bytes(part[..8].try_into().unwrap());
            let history = &histories[nth / PARTS][nth % PARTS];
            assert!(history.allows(stamp), "round {round}, part {nth}: {stamp} of {:?}", history.0.lock().unwrap());
        }
    }
    assert!(sectors_written.load(Relaxed) > 0, "some sectors were written by the core itself");
    assert!(count(&engine, "block_merged") > 0);
}
