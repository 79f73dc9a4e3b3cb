//! Zeroes the bytes of GPU leases that are over.

use std::{thread::sleep, time::Duration};

use berth_lease::{BlockOp, Blocks, Span, Storage, wait};

/// Bytes zeroed by one operation of an engine: others wait for one of these at most.
const PIECE: u64 = 64 << 20;

/// How often an engine may fail on end before its bytes count as not zeroed, about a minute: one whose process has died starts
/// another.
pub(crate) const PATIENCE: u32 = 1200;

/// How long an engine may say nothing of an operation.
const SILENCE: Duration = Duration::from_mins(1);

/// Time to wait before a failed operation is tried again.
const RETRY: Duration = Duration::from_millis(50);

/// Zeroes these bytes, and waits for it. False if an engine has failed `patience` times on end, or does not
/// answer.
pub(crate) fn zero(storage: &Storage, span: Span, patience: u32) -> bool {
    match storage {
        Storage::Bytes(bytes) => {
            bytes.zero(span.at, span.len);
            true
        }
        Storage::Blocks(blocks) => {
            let mut pieces = (0..span.len).step_by(PIECE as usize);
            pieces.all(|done| zero_piece(&**blocks, span.at + done, PIECE.min(span.len - done), patience))
        }
    }
}

fn zero_piece(blocks: &dyn Blocks, at: u64, len: u64, patience: u32) -> bool {
    for _ in 0..patience {
        match wait(blocks, BlockOp::Zero(len), at, Vec::new(), SILENCE) {
            Some(Ok(())) => return true,
            Some(Err(_)) => sleep(RETRY),
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        sync::{Arc, Mutex},
        thread,
    };

    use berth_lease::{BlockError, BlockRequest, RegionId};

    use super::*;

    /// What becomes of a request.
    #[derive(Debug, Clone, Copy)]
    enum Fate {
        Later,
        Fails(BlockError),
        Dropped,
    }

    /// An engine that has bytes, and a fate for each request; the last one is for all that follow.
    struct Engine {
        bytes: Arc<Mutex<Vec<u8>>>,
        fates: Mutex<VecDeque<Fate>>,
    }

    impl Blocks for Engine {
        fn len(&self) -> u64 {
            self.bytes.lock().unwrap().len() as u64
        }
        fn submit(&self, request: BlockRequest) {
            let BlockRequest { op: BlockOp::Zero(len), at, tag, done, .. } = request else { panic!("{request:?}") };
            let mut fates = self.fates.lock().unwrap();
            let fate = if fates.len() > 1 { fates.pop_front() } else { fates.front().copied() };
            match fate.unwrap() {
                Fate::Later => {
                    let bytes = self.bytes.clone();
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(10));
                        bytes.lock().unwrap()[at as usize..(at + len) as usize].fill(0);
                        done.done(tag, Vec::new(), Ok(()));
                    });
                }
                Fate::Fails(error) => done.done(tag, Vec::new(), Err(error)),
                Fate::Dropped => {}
            }
        }
    }

    /// Whether the bytes from 4096 on, 8192 of them, are said to be zeroed; which ones are.
    fn scrubbed(fates: &[Fate]) -> (bool, Vec<u8>) {
        let bytes = Arc::new(Mutex::new(vec![7; 4 * 4096]));
        let engine = Engine { bytes: bytes.clone(), fates: Mutex::new(fates.iter().copied().collect()) };
        let span = Span { region: RegionId(0), at: 4096, len: 8192 };
        let zeroed = zero(&Storage::Blocks(Arc::new(engine)), span, 4);
        (zeroed, bytes.lock().unwrap().iter().step_by(4096).copied().collect())
    }

    #[test]
    fn an_engine_is_waited_for_and_tried_again() {
        let failed = [Fate::Fails(BlockError::Busy), Fate::Fails(BlockError::Io(5)), Fate::Dropped, Fate::Later];
        assert_eq!(scrubbed(&failed[3..]), (true, vec![7, 0, 0, 7]), "no more than was asked for");
        assert_eq!(scrubbed(&failed), (true, vec![7, 0, 0, 7]));
    }

    #[test]
    fn an_engine_that_fails_for_long_has_failed() {
        for fate in [Fate::Fails(BlockError::Busy), Fate::Fails(BlockError::Io(5)), Fate::Dropped] {
            assert_eq!(scrubbed(&[fate]), (false, vec![7; 4]), "{fate:?}");
        }
    }
}
