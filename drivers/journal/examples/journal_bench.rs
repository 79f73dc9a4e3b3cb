//! Group commit, compared with a bare write and fdatasync in the same directory. Prints one JSON line per case.
//!
//! `cargo run --release -p berth-journal --example journal_bench -- [DIRECTORY]`
//!
//! The bare file is written like the journal: behind its last bytes, over zeros that were written before. The cases
//! take turns within every round, so that all see the same disk.

use std::{
    env,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use berth_fabric::journal::Record;
use berth_journal::Journal;
use berth_port::Nanos;

const ROUNDS: usize = 10;
const SYNCS_PER_ROUND: usize = 100;
const CLIENTS: u64 = 32;
const BUSY_PER_ROUND: Duration = Duration::from_millis(300);

/// Records with as many bytes as a grant's.
fn records(lease: u128) -> [Record; 4] {
    [lease; 4].map(|lease| Record::Renewed { lease, at: Nanos(1), expires: Nanos(2) })
}

fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

fn report(case: &str, mut times: Vec<Duration>, per_second: Option<f64>) {
    times.sort_unstable();
    let micros = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    let line = serde_json::json!({
        "case": case,
        "n": times.len(),
        "p50_us": micros(50),
        "p90_us": micros(90),
        "p99_us": micros(99),
        "per_second": per_second,
    });
    println!("{line}");
}

/// A file of zeros to be overwritten, and the offset reached.
struct Bare {
    file: File,
    at: u64,
}

impl Bare {
    fn new(dir: &Path) -> Self {
        let file = File::create(dir.join("bare")).expect("a new file");
        file.write_all_at(&vec![0; 8 << 20], 0).and_then(|()| file.sync_all()).expect("8 MiB of zeros");
        Self { file, at: 0 }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.file.write_all_at(bytes, self.at).and_then(|()| self.file.sync_data()).expect("a write over zeros");
        self.at = (self.at + bytes.len() as u64) % (8 << 20);
    }
}

fn main() {
    let base = env::args_os().nth(1).map_or_else(env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(base).expect("a directory");
    let journal = Journal::open(dir.path(), drop).expect("a new journal").journal;
    let mut bare = Bare::new(dir.path());
    let (mut syncs, mut single, mut many) = (Vec::new(), Vec::new(), Vec::new());
    let mut busy = Duration::ZERO;
    // What a frame of one commit takes.
    let frame = [1; 20 + 4 * 33];
    for round in 0..ROUNDS {
        for n in 0..SYNCS_PER_ROUND {
            syncs.push(timed(|| bare.append(&frame)));
            single.push(timed(|| journal.commit(&records(n as u128)).wait().expect("a commit")));
        }
        let start = Instant::now();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let journal = &journal;
                    scope.spawn(move || {
                        let mut times = Vec::new();
                        while start.elapsed() < BUSY_PER_ROUND {
                            let lease = u128::from(client) << 64 | (round << 32 | times.len()) as u128;
                            times.push(timed(|| journal.commit(&records(lease)).wait().expect("a commit")));
                        }
                        times
                    })
                })
                .collect();
            many.extend(clients.into_iter().flat_map(|client| client.join().expect("no panic")));
        });
        busy += start.elapsed();
    }
    report("fdatasync", syncs, None);
    report("commit, 1 client", single, None);
    let per_second = many.len() as f64 / busy.as_secs_f64();
    report("commit, 32 clients", many, Some(per_second));
}
