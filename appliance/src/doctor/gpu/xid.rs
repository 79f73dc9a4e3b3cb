//! Xids, the errors that NVIDIA's module writes to the kernel's log: the last one of each GPU.

use std::{
    fs::OpenOptions,
    io::{BufRead as _, BufReader, ErrorKind, Read as _},
    os::unix::fs::OpenOptionsExt as _,
};

use super::{Findings, Root};

const LOG: &str = "/dev/kmsg";

/// A read gives one record, and fails where there is no room for it: 8 KiB are the kernel's own limit.
const RECORD: usize = 8 << 10;

/// The largest log of a kernel is 32 MiB; what it says of each record comes on top.
const MOST: u64 = 128 << 20;

/// `O_NONBLOCK`, which the standard names do not include: who has read all would wait for more.
const NONBLOCK: i32 = 0o4000;

/// What the numbers mean, and what mends it (NVIDIA, "XID Errors").
const MEANINGS: [(u32, &str, &str); 11] = [
    (13, "a kernel's exception", "a mistake of the kernel; on several kernels: dcgmi diag -r 3"),
    (31, "a kernel's access to memory that is not mapped", "a mistake of the kernel"),
    (48, "a memory error that could not be corrected", "nvidia-smi --gpu-reset; again: replace the card"),
    (63, "a bad row of memory is to be replaced", "nvidia-smi --gpu-reset, which replaces it"),
    (64, "a bad row of memory could not be replaced", "nvidia-smi --gpu-reset; again: replace the card"),
    (74, "an error of NVLink", "nvidia-smi nvlink -e; see to the bridge or the switch, or replace the card"),
    (79, "the card is gone from the bus", "restart the host; see to slot, power and cooling"),
    (94, "a memory error that one process had", "nvidia-smi --gpu-reset when the GPU is idle"),
    (95, "a memory error that all processes had", "nvidia-smi --gpu-reset"),
    (119, "its system processor does not answer", "nvidia-smi --gpu-reset, else a restart; update the driver"),
    (120, "an error of its system processor", "nvidia-smi --gpu-reset, else a restart; update the driver"),
];

/// The Xids of a GPU: how many, the last one, and the seconds from the kernel's start to that.
#[derive(Clone, Copy, Default)]
struct Xids {
    count: u64,
    last: u32,
    seconds: u64,
}

pub(super) fn examine(root: &Root, gpus: &[String], f: &mut Findings) {
    let all = match read(root, gpus) {
        Ok(all) => all,
        Err(e) => return f.warn("gpu xids", format!("{LOG}: {e}"), "run berth doctor as root"),
    };
    for (gpu, Xids { count, last, seconds }) in gpus.iter().zip(all) {
        let what = format!("gpu {gpu} xids");
        if count == 0 {
            f.ok(what, "none in the kernel's log");
            continue;
        }
        let known = MEANINGS.iter().find(|(number, ..)| *number == last);
        let (_, meaning, mend) =
            known.unwrap_or(&(0, "NVIDIA's list of Xids has it", "nvidia-smi -q; dcgmi diag -r 3"));
        f.warn(what, format!("{last}: {meaning}; {seconds} s after the start, the last of {count}"), *mend);
    }
}

/// The Xids of these GPUs in the kernel's log.
fn read(root: &Root, gpus: &[String]) -> std::io::Result<Vec<Xids>> {
    let log = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(root.path(LOG))?;
    let mut log = BufReader::with_capacity(RECORD, log.take(MOST));
    let (mut all, mut line) = (vec![Xids::default(); gpus.len()], Vec::new());
    loop {
        line.clear();
        match log.by_ref().take(RECORD as u64).read_until(b'\n', &mut line) {
            Ok(0) => return Ok(all),
            Ok(_) => {
                let Some((address, last, seconds)) = xid(&String::from_utf8_lossy(&line)) else { continue };
                if let Some(at) = gpus.iter().position(|gpu| gpu.starts_with(&address)) {
                    all[at] = Xids { count: all[at].count + 1, last, seconds };
                }
            }
            // All is read.
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(all),
            // Records were overwritten meanwhile; the next read goes on behind them.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
            Err(e) => return Err(e),
        }
    }
}

/// The GPU of a record such as `3,1042,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=...`, without its function, the number,
/// and the seconds since the kernel's start.
fn xid(record: &str) -> Option<(String, u32, u64)> {
    let (head, text) = record.split_once(';')?;
    let mut head = head.split(',');
    // Facility 0, in the bits above the level's three, is the kernel's: programs write to the log, too.
    let facility = head.next()?.parse::<u32>().ok()? >> 3;
    let seconds = head.nth(1)?.parse::<u64>().ok()? / 1_000_000;
    let (address, rest) = text.strip_prefix("NVRM: Xid (PCI:")?.split_once("): ")?;
    // Of an instance, " GPU-I:" and more follow.
    let address = address.split_whitespace().next()?;
    let number = rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    (facility == 0).then(|| (address.to_ascii_lowercase(), number, seconds))
}
