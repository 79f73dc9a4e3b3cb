//! Waiting for an engine, and the pieces of a request.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use berth_lease::{BlockError, BlockOp, BlockRequest, Blocks, wait};
use berth_memory::{Heap, Part};

/// Takes requests, and does with them what it is told.
struct Engine(Box<dyn Fn(BlockRequest) + Send + Sync>);

impl Blocks for Engine {
    fn len(&self) -> u64 {
        4096
    }
    fn submit(&self, request: BlockRequest) {
        (self.0)(request);
    }
}

fn asked(most: Duration, act: impl Fn(BlockRequest) + Send + Sync + 'static) -> Option<Result<(), BlockError>> {
    wait(&Engine(Box::new(act)), BlockOp::Zero(7), 3, Vec::new(), most)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn whoever_waits_is_told_how_it_ended() {
    let later = |request: BlockRequest| {
        assert_eq!((request.op, request.at), (BlockOp::Zero(7), 3));
        thread::spawn(move || request.done.done(request.tag, request.pieces, Ok(())));
    };
    assert_eq!(asked(LONG, later), Some(Ok(())));
    let busy = |request: BlockRequest| request.done.done(request.tag, request.pieces, Err(BlockError::Busy));
    assert_eq!(asked(LONG, busy), Some(Err(BlockError::Busy)));
    assert_eq!(asked(LONG, drop), Some(Err(BlockError::Io(125))), "ECANCELED");
    let kept = Mutex::new(Vec::new());
    assert_eq!(asked(Duration::from_millis(20), move |request| kept.lock().unwrap().push(request)), None);
}

#[test]
fn data_is_the_pieces_in_order() {
    let pieces = [3, 1, 5].map(|len| Part::from(Arc::new(Heap::new(len))));
    let act = move |request: BlockRequest| {
        request.write_at(2, b"abcdef");
        let mut read = [0; 9];
        request.read_at(0, &mut read);
        assert_eq!(&read, b"\0\0abcdef\0");
        let mut visited = Vec::new();
        request.each_piece(2, 6, |piece, here, done, len| visited.push((piece.size(), here, done, len)));
        assert_eq!(visited, [(3, 2, 0, 1), (1, 0, 1, 1), (5, 0, 2, 4)]);
        request.each_piece(9, 0, |_, _, _, _| panic!("no bytes"));
        request.done.done(request.tag, request.pieces, Ok(()));
    };
    let done = wait(&Engine(Box::new(act)), BlockOp::Write, 0, pieces.into(), LONG);
    assert_eq!(done, Some(Ok(())));
}
