//! The block engine against direct reads and writes in the caller's own thread; one JSON line per case.
//!
//! `cargo run --release -p berth-store --example block_bench -- [DIRECTORY]`

use std::{
    env,
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks};
use berth_memory::{Heap, Memory, Part};
use berth_store::BlockEngine;

const LEN: u64 = 64 << 20;
const ROUNDS: u64 = 20;
const BURST: u64 = 100;

struct Told(Mutex<Sender<Vec<Part>>>);

impl BlockDone for Told {
    fn done(&self, _tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        result.expect("I/O within the file");
        self.0.lock().expect("no panic").send(pieces).expect("a receiver");
    }
}

fn report(case: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let micros = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    println!(r#"{{"case":"{case}","p50_us":{:.1},"p99_us":{:.1}}}"#, micros(50), micros(99));
}

fn direct(path: &PathBuf) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("a file system with direct I/O")
}

fn main() {
    let base = env::args_os().nth(1).map_or_else(env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(base).expect("a directory");
    let path = dir.path().join("blocks");
    let engine = BlockEngine::open(&path, LEN).expect("64 MiB of space");
    let (sender, completions) = channel();
    let done = Arc::new(Told(Mutex::new(sender)));
    let submit = |op, at, pieces| engine.submit(BlockRequest { op, at, pieces, tag: 0, done: done.clone() });
    for at in (0..LEN).step_by(1 << 20) {
        submit(BlockOp::Write, at, vec![Heap::from(&[1; 1 << 20][..]).into()]);
        completions.recv().expect("a completion");
    }
    let file = direct(&path);
    let aligned = Heap::new(64 << 10);
    // SAFETY: the region is that long, initialised, and used by nobody else.
    let aligned = unsafe { std::slice::from_raw_parts_mut(aligned.base().as_ptr(), 64 << 10) };
    let (mut plain, mut through) = (Vec::new(), Vec::new());
    let memory: Arc<dyn Memory> = Arc::new(Heap::new(BURST as usize * 65536));
    engine.register(&memory);
    let piece = |at, len| vec![Part::new(memory.clone(), at, len).expect("within")];
    let mut buffer = piece(0, 4096);
    let (mut plain_long, mut through_long) = (Duration::ZERO, Duration::ZERO);
    for round in 0..ROUNDS {
        for n in 0..BURST {
            let at = (round * BURST + n) * 7919 % (LEN / 4096) * 4096;
            let start = Instant::now();
            file.read_exact_at(&mut aligned[..4096], at).expect("within the file");
            plain.push(start.elapsed());
            let start = Instant::now();
            submit(BlockOp::Read, at, buffer);
            buffer = completions.recv().expect("a completion");
            through.push(start.elapsed());
        }
        let start = Instant::now();
        for n in 0..BURST {
            file.read_exact_at(aligned, n * 65536).expect("within the file");
        }
        plain_long += start.elapsed();
        let buffers: Vec<_> = (0..BURST as usize).map(|n| piece(n * 65536, 65536)).collect();
        let start = Instant::now();
        for (n, buffer) in (0..).zip(buffers) {
            submit(BlockOp::Read, n * 65536, buffer);
        }
        for _ in 0..BURST {
            completions.recv().expect("a completion");
        }
        through_long += start.elapsed();
    }
    report("pread 4 KiB", plain);
    report("engine 4 KiB, one at a time", through);
    let rate = |took: Duration| (ROUNDS * BURST * 65536) as f64 / took.as_secs_f64() / 1e6;
    println!(r#"{{"case":"pread 64 KiB","mb_per_s":{:.0}}}"#, rate(plain_long));
    println!(r#"{{"case":"engine 64 KiB, 100 at a time","mb_per_s":{:.0}}}"#, rate(through_long));
}
