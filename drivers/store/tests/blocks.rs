//! The block engine on files, memory file systems and loop devices, against a plain vector.

mod common;

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, Barrier},
    thread,
};

use berth_lease::{BlockError, BlockOp, BlockRequest, Blocks};
use berth_memory::{Heap, Memory, Part};
use berth_store::{BlockEngine, BlockOpenError};
use common::{Loop, Waiter, count, private_tmpfs, read, run, write};
use tempfile::TempDir;

const LEN: u64 = 1 << 20;

/// Random reads, writes and zeroes of any range, one after the other.
fn check_against_model(engine: &BlockEngine, unit: u64, rounds: u64, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    run(engine, BlockOp::Zero(LEN), 0, &[]).unwrap();
    let mut model = vec![0; LEN as usize];
    for round in 0..rounds {
        let longest = if rng.bool() { 4096 } else { 300_000 };
        let len = rng.u64(0..longest) / unit * unit;
        let at = rng.u64(0..=LEN - len) / unit * unit;
        let range = at as usize..(at + len) as usize;
        match rng.u8(0..3) {
            0 => assert_eq!(read(engine, at, range.len()).unwrap(), model[range], "round {round}: {len} at {at}"),
            1 => {
                let data: Vec<_> = range.clone().map(|_| rng.u8(..)).collect();
                model[range].copy_from_slice(&data);
                write(engine, at, &data).unwrap();
            }
            _ => {
                model[range].fill(0);
                run(engine, BlockOp::Zero(len), at, &[]).unwrap();
            }
        }
    }
    run(engine, BlockOp::Flush, 0, &[]).unwrap();
    assert_eq!(read(engine, 0, LEN as usize).unwrap(), model);
}

/// Eight writers in the same 4096 bytes do not undo each other's work, nor that of one who zeroes.
fn check_neighbours(engine: &BlockEngine) {
    for round in 0..20 {
        let start = Barrier::new(9);
        thread::scope(|scope| {
            for sector in 0..8u8 {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    write(engine, 8192 + u64::from(sector) * 512, &vec![round * 8 + sector + 1; 512]).unwrap();
                });
            }
            start.wait();
            run(engine, BlockOp::Zero(1024), 8192 + 4096, &[]).unwrap();
        });
        let found = read(engine, 8192, 4096 + 1024).unwrap();
        for sector in 0..8 {
            let expected = round * 8 + sector + 1;
            let at = usize::from(sector) * 512;
            assert!(found[at..at + 512].iter().all(|&byte| byte == expected), "round {round}, sector {sector}");
        }
        assert_eq!(found[4096..], [0; 1024]);
    }
}

#[test]
fn a_file_with_direct_io() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    assert_eq!(Blocks::len(&engine), LEN);
    check_against_model(&engine, 512, 150, 1);
    check_against_model(&engine, 1, 150, 2);
    check_neighbours(&engine);
    if engine.info().block_size > 1 {
        assert!(count(&engine, "block_merged") > 0);
    }
    assert_eq!((count(&engine, "block_failed"), count(&engine, "block_flushes")), (0, 2));
}

#[test]
fn a_file_in_a_memory_file_system() {
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    check_against_model(&engine, 512, 150, 3);
    check_against_model(&engine, 1, 150, 4);
    check_neighbours(&engine);
}

#[test]
fn devices_with_small_and_large_sectors() {
    for sectors in [512, 4096] {
        let dir = TempDir::new().unwrap();
        // Not everyone may set loop devices up.
        let Some(device) = Loop::new(&dir.path().join("disk"), LEN, sectors) else { return };
        let error = BlockEngine::open(device.path(), 2 * LEN).unwrap_err();
        assert!(matches!(error, BlockOpenError::TooSmall { has: LEN, need, .. } if need == 2 * LEN), "{error}");
        let engine = BlockEngine::open(device.path(), LEN).unwrap();
        assert_eq!(engine.info().block_size, sectors);
        let error = BlockEngine::open(device.path(), LEN).unwrap_err();
        assert!(matches!(&error, BlockOpenError::InUse(path) if path == device.path()), "{error}");
        check_against_model(&engine, 512, 100, 5);
        assert_eq!(count(&engine, "block_merged") > 0, sectors == 4096);
        check_against_model(&engine, 1, 100, 6);
        check_neighbours(&engine);
        drop(engine);
        // The device is free again.
        BlockEngine::open(device.path(), LEN).unwrap();
    }
}

#[test]
fn many_requests_at_a_time_from_many_threads() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), 4 * LEN).unwrap();
    thread::scope(|scope| {
        for client in 0..4u64 {
            let engine = &engine;
            scope.spawn(move || {
                let base = client * LEN;
                let waiter = Waiter::new();
                let content = |tag: u64| (client * 60 + tag % 60) as u8 + 1;
                for tag in 0..200 {
                    waiter.submit(engine, BlockOp::Write, base + tag * 4096, &vec![content(tag); 4096], tag);
                }
                for _ in 0..200 {
                    waiter.next().result.unwrap();
                }
                for tag in 0..200 {
                    waiter.submit(engine, BlockOp::Read, base + tag * 4096, &vec![0; 4096], tag);
                }
                for _ in 0..200 {
                    let done = waiter.next();
                    assert_eq!((done.result, done.buffer), (Ok(()), vec![content(done.tag); 4096].into()));
                }
            });
        }
    });
    assert_eq!((count(&engine, "block_reads"), count(&engine, "block_writes")), (800, 800));
    assert_eq!(count(&engine, "block_bytes_read"), 800 * 4096);
}

#[test]
fn a_queue_that_is_full_says_so() {
    let dir = TempDir::new().unwrap();
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    let waiter = Waiter::new();
    // Long ones, far more than fit.
    let total = 3000;
    for tag in 0..total {
        waiter.submit(&engine, BlockOp::Read, 0, &vec![0; LEN as usize / 8], tag);
    }
    let busy = (0..total).filter(|_| waiter.next().result == Err(BlockError::Busy)).count() as u64;
    assert!(busy > 0);
    assert_eq!((count(&engine, "block_busy"), count(&engine, "block_reads")), (busy, total - busy));
}

#[test]
fn ranges_beyond_the_region_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("blocks");
    fs::write(&path, vec![7; 2 * LEN as usize]).unwrap();
    let engine = BlockEngine::open(&path, LEN).unwrap();
    for (at, len) in [(LEN, 1), (LEN - 512, 1024), (u64::MAX, 2)] {
        let refused = Err(BlockError::Io(libc::EINVAL));
        assert_eq!(read(&engine, at, len as usize).map(drop), refused);
        assert_eq!(run(&engine, BlockOp::Zero(len), at, &[]), refused);
    }
    assert_eq!(count(&engine, "block_refused"), 6);
    run(&engine, BlockOp::Zero(LEN), 0, &[]).unwrap();
    assert_eq!(read(&engine, LEN, 0).unwrap(), []);
    drop(engine);
    // A longer file keeps what lies behind the region.
    let bytes = fs::read(&path).unwrap();
    assert_eq!(
        (&bytes[..LEN as usize], &bytes[LEN as usize..]),
        (&vec![0; LEN as usize][..], &vec![7; LEN as usize][..])
    );
}

#[test]
fn what_was_written_is_there_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("blocks");
    let engine = BlockEngine::open(&path, LEN).unwrap();
    let waiter = Waiter::new();
    waiter.submit(&engine, BlockOp::Write, 512, &vec![9; 1536], 0);
    // Dropping the engine ends what was submitted.
    drop(engine);
    waiter.next().result.unwrap();
    let engine = BlockEngine::open(&path, LEN).unwrap();
    assert_eq!(read(&engine, 0, 2560).unwrap(), [vec![0; 512], vec![9; 1536], vec![0; 512]].concat());
}

/// The last owner of an engine may be one of its own completions.
/// What the answer to a write says: the file has the bytes, whatever becomes of this process. It has not been flushed.
#[test]
fn a_write_that_is_done_has_left_the_process() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("blocks");
    let engine = BlockEngine::open(&path, LEN).unwrap();
    for (at, len) in [(0, 512), (4096, 4096), (8192 + 512, 65536)] {
        write(&engine, at, &vec![7; len]).unwrap();
        assert_eq!(fs::read(&path).unwrap()[at as usize..][..len], vec![7; len], "{len} at {at}");
    }
    assert_eq!(count(&engine, "block_flushes"), 0);
    run(&engine, BlockOp::Flush, 0, &[]).unwrap();
    assert_eq!(count(&engine, "block_flushes"), 1);
}

#[test]
fn a_comparison_tells_whether_the_blocks_hold_the_same() {
    for base in [TempDir::new().unwrap(), TempDir::new_in("/dev/shm").unwrap()] {
        let engine = BlockEngine::open(&base.path().join("blocks"), LEN).unwrap();
        assert!(engine.info().compare);
        let mut data: Vec<u8> = (0..200_000).map(|n| (n % 251) as u8).collect();
        write(&engine, 1000, &data).unwrap();
        for at in [0, 511, 70_000, 199_999] {
            assert_eq!(run(&engine, BlockOp::Compare, 1000, &data), Ok(()));
            data[at] ^= 1;
            assert_eq!(run(&engine, BlockOp::Compare, 1000, &data), Err(BlockError::Miscompare), "{at}");
            data[at] ^= 1;
        }
        assert_eq!((read(&engine, 1000, 200_000).unwrap(), count(&engine, "block_failed")), (data, 0));
    }
}

#[test]
fn a_discard_gives_whole_units_back() {
    for base in [TempDir::new().unwrap(), TempDir::new_in("/dev/shm").unwrap()] {
        let path = base.path().join("blocks");
        let engine = BlockEngine::open(&path, LEN).unwrap();
        write(&engine, 0, &vec![7; LEN as usize]).unwrap();
        run(&engine, BlockOp::Flush, 0, &[]).unwrap();
        let Some(unit) = engine.info().discard else { return };
        let (unit, kept) = (u64::from(unit), fs::metadata(&path).unwrap().blocks());
        run(&engine, BlockOp::Discard(2 * unit), unit / 2, &[]).unwrap();
        run(&engine, BlockOp::Discard(unit / 2), 0, &[]).unwrap();
        let (unit, found) = (unit as usize, read(&engine, 0, LEN as usize).unwrap());
        assert!(found[..unit].iter().chain(&found[2 * unit..]).all(|&byte| byte == 7));
        assert!(found[unit..2 * unit].iter().all(|&byte| byte == 0));
        assert_eq!(kept - fs::metadata(&path).unwrap().blocks(), unit as u64 / 512);
    }
}

/// Pieces of registered memory and of other memory, aligned or not, in one request.
#[test]
fn pieces_of_any_memory_make_one_request() {
    for base in [TempDir::new().unwrap(), TempDir::new_in("/dev/shm").unwrap()] {
        let engine = BlockEngine::open(&base.path().join("blocks"), LEN).unwrap();
        let waiter = Waiter::new();
        let registered: Arc<dyn Memory> = Arc::new(Heap::new(64 << 10));
        engine.register(&registered);
        let part = |at, len| Part::new(registered.clone(), at, len).unwrap();
        let mut rng = fastrand::Rng::with_seed(9);
        for at in [0, 4096, 512] {
            let pieces =
                vec![part(0, 8192), Heap::new(12288).into(), part(8192, 512), part(9000, 100), part(16384, 7580)];
            let total: usize = pieces.iter().map(Part::size).sum();
            let data: Vec<u8> = (0..total).map(|_| rng.u8(..)).collect();
            let mut rest = &data[..];
            for piece in &pieces {
                let (front, behind) = rest.split_at(piece.size());
                piece.write_at(0, front);
                rest = behind;
            }
            waiter.submit_pieces(&engine, BlockOp::Write, at, pieces.clone(), 1);
            waiter.next().result.unwrap();
            assert!(read(&engine, at, total).unwrap() == data, "written at {at}");
            for piece in &pieces {
                piece.write_at(0, &vec![0; piece.size()]);
            }
            waiter.submit_pieces(&engine, BlockOp::Read, at, pieces, 2);
            assert!(*waiter.next().buffer == *data, "read at {at}");
        }
    }
}

#[test]
fn an_engine_may_be_dropped_by_a_completion() {
    struct Last(std::sync::Mutex<Option<Arc<BlockEngine>>>, std::sync::mpsc::Sender<()>);
    impl berth_lease::BlockDone for Last {
        fn done(&self, _: u64, _: Vec<Part>, result: Result<(), BlockError>) {
            result.unwrap();
            drop(self.0.lock().unwrap().take());
            self.1.send(()).unwrap();
        }
    }
    let dir = TempDir::new().unwrap();
    let engine = Arc::new(BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap());
    let (sender, dropped) = std::sync::mpsc::channel();
    let done = Arc::new(Last(std::sync::Mutex::new(None), sender));
    let waiting = done.0.lock().unwrap();
    engine.submit(BlockRequest {
        op: BlockOp::Read,
        at: 0,
        pieces: common::pieces(&[0; 512]),
        tag: 0,
        done: done.clone(),
    });
    let mut waiting = waiting;
    *waiting = Some(engine);
    drop(waiting);
    dropped.recv().unwrap();
}

#[test]
fn what_cannot_be_opened_is_said() {
    let dir = TempDir::new().unwrap();
    let open = |path: &Path, len| BlockEngine::open(path, len).unwrap_err();
    let path = dir.path().join("blocks");
    for len in [0, 512, 4097, u64::MAX - 4095] {
        assert!(matches!(open(&path, len), BlockOpenError::Size(found) if found == len), "{len}");
    }
    assert!(!path.exists());
    assert!(matches!(open(dir.path(), LEN), BlockOpenError::NotBlocks(_)));
    assert!(matches!(open(Path::new("/dev/null"), LEN), BlockOpenError::NotBlocks(_)));
    assert!(matches!(open(&dir.path().join("no/blocks"), LEN), BlockOpenError::Io { what: "cannot open", .. }));
    let engine = BlockEngine::open(&path, LEN).unwrap();
    assert!(matches!(open(&path, LEN), BlockOpenError::InUse(_)));
    drop(engine);
    let error = open(&path, 1 << 50);
    let errno = |error: &BlockOpenError| match error {
        BlockOpenError::Io { what: "cannot reserve the region's space in", source, .. } => source.raw_os_error(),
        _ => panic!("{error}"),
    };
    assert!(matches!(errno(&error), Some(libc::ENOSPC | libc::EFBIG)), "{error}");
}

#[test]
fn a_file_that_someone_cut_off_fails_and_goes_on() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("blocks");
    let engine = BlockEngine::open(&path, LEN).unwrap();
    write(&engine, 0, &vec![1; 4096]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(8192).unwrap();
    assert_eq!(read(&engine, 8192, 4096), Err(BlockError::Io(libc::EIO)));
    // The part that is there does not make up for the part that is not.
    assert_eq!(read(&engine, 0, 16384), Err(BlockError::Io(libc::EIO)));
    assert_eq!(read(&engine, 0, 4096).unwrap(), vec![1; 4096]);
    assert_eq!(count(&engine, "block_failed"), 2);
}

#[test]
fn a_full_file_system_fails_with_its_error() {
    // Not everyone may mount.
    let Some(dir) = private_tmpfs("8m") else { return };
    let engine = BlockEngine::open(&dir.path().join("blocks"), LEN).unwrap();
    write(&engine, 0, &vec![1; LEN as usize]).unwrap();
    // A memory file system can zero only by giving space back, which others take.
    run(&engine, BlockOp::Zero(LEN / 2), 0, &[]).unwrap();
    let full = fs::write(dir.path().join("other"), vec![1; 8 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(write(&engine, 0, &vec![2; 65536]), Err(BlockError::Io(libc::ENOSPC)));
    assert_eq!(count(&engine, "block_no_space"), 1);
    assert_eq!(read(&engine, LEN / 2, 4096).unwrap(), vec![1; 4096]);
    fs::remove_file(dir.path().join("other")).unwrap();
    write(&engine, 0, &vec![2; 65536]).unwrap();
}

#[test]
fn a_device_that_fails_reports_it() {
    let Some(dir) = private_tmpfs("4m") else { return };
    // A device of 16 MiB on a file system of 4: what lies beyond cannot be written.
    let Some(device) = Loop::new(&dir.path().join("disk"), 16 * LEN, 512) else { return };
    let engine = BlockEngine::open(device.path(), 16 * LEN).unwrap();
    let mut failed = None;
    for at in 0..16 {
        if let Err(error) = write(&engine, at * LEN, &vec![1; LEN as usize]) {
            failed = failed.or(Some(error));
        }
    }
    assert!(matches!(failed, Some(BlockError::Io(libc::EIO | libc::ENOSPC))), "{failed:?}");
    assert!(count(&engine, "block_failed") + count(&engine, "block_no_space") > 0);
    assert_eq!(read(&engine, 0, 4096).unwrap(), vec![1; 4096]);
}
