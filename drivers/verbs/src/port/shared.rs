//! Receives in memory that another process can read, and stay in while it does.

use std::sync::{
    Arc,
    atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use berth_memory::{Memory as _, Part};
use berth_pages::{Backing, Pages};
use berth_port::{Kept, Place};

use crate::port::peer::{Shape, split_id};

/// Limit on the memory of one queue in bytes, as it is taken before the peers come.
const MOST: usize = 1 << 30;
const PAGE: usize = 4096;

/// Memory for the receives of the peers of one queue, a part for each place.
#[derive(Debug, Clone)]
pub(super) struct Frames {
    pages: Arc<Pages>,
    /// Bytes of a part.
    each: usize,
    /// How many frames are kept in each part. The queue's poll core alone changes it.
    kept: Arc<[AtomicU32]>,
}

impl Frames {
    /// Memory for this many peers, or why there is none.
    fn new(peers: usize, shape: Shape, numa: Option<u32>) -> Result<Self, String> {
        // Where addresses begin at 0 memory begins with a page.
        let each = shape.bytes(false)[0].next_multiple_of(PAGE);
        let size = each.saturating_mul(peers).saturating_add(Place::BEHIND);
        if size > MOST {
            return Err(format!("the slots of {peers} peers take {size} bytes, more than {MOST}"));
        }
        let pages = Pages::new(size as u64, &Backing::Readable(None), numa).map_err(|error| error.to_string())?;
        let kept = std::iter::repeat_with(AtomicU32::default).take(peers).collect();
        Ok(Self { pages: Arc::new(pages), each, kept })
    }

    /// The zeroed memory of a place, whose peer is gone. `None` while frames of that peer are still read.
    pub(super) fn part(&self, place: usize) -> Option<Part> {
        if self.kept[place].load(Acquire) > 0 {
            return None;
        }
        let at = place * self.each;
        self.pages.zero_at(at, self.each);
        Part::new(self.pages.clone(), at, self.each)
    }
}

/// The kept frames of one queue, each by the id of its receive.
#[derive(Debug)]
pub(super) struct Shared {
    frames: Frames,
    kept: Kept<u64>,
    /// Limit on those of a place.
    share: u32,
}

impl Shared {
    /// Room for `most` frames of this many peers, on a NUMA node if one is given, or why there is none.
    pub(super) fn new(peers: usize, shape: Shape, most: u32, numa: Option<u32>) -> Result<Self, String> {
        let frames = Frames::new(peers, shape, numa)?;
        let kept = Kept::new(frames.pages.base().addr().get(), frames.pages.size(), most);
        Ok(Self { frames, kept, share: shape.kept })
    }

    pub(super) fn frames(&self) -> &Frames {
        &self.frames
    }

    pub(super) fn pages(&self) -> Arc<Pages> {
        self.frames.pages.clone()
    }

    /// Where a frame with these bytes lies, of the peer at `place`, if it can be kept there.
    #[inline]
    pub(super) fn place(&self, place: usize, data: &[u8]) -> Option<Place> {
        let vacancy = self.kept.vacancy().filter(|_| self.frames.kept[place].load(Relaxed) < self.share);
        vacancy?.place(data)
    }

    /// Keeps the frame that [`Shared::place`] was last asked about, of the receive with this id.
    #[inline]
    pub(super) fn keep(&mut self, receive: u64) {
        self.kept.keep(receive);
        let count = self.count(receive);
        count.store(count.load(Relaxed) + 1, Relaxed);
    }

    /// Gives a frame back: the id of its receive.
    #[inline]
    pub(super) fn release(&mut self, number: u32) -> Option<u64> {
        let receive = self.kept.release(number)?;
        let count = self.count(receive);
        count.store(count.load(Relaxed) - 1, Release);
        Some(receive)
    }

    fn count(&self, receive: u64) -> &AtomicU32 {
        let (place, ..) = split_id(receive);
        &self.frames.kept[place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::peer::receive_id;

    const SHAPE: Shape = Shape { slots: 16, own: 64, stride: 128, max_frame: 100, kept: 2 };

    #[test]
    fn a_place_is_given_again_once_nobody_reads_there() {
        let mut shared = Shared::new(2, SHAPE, 3, None).unwrap();
        let each = SHAPE.bytes(false)[0].next_multiple_of(PAGE);
        let part = shared.frames().part(1).unwrap();
        assert_eq!((part.size(), part.base().addr().get() - shared.pages().base().addr().get()), (each, each));
        part.write_at(0, &[7; 100]);
        // SAFETY: of the part, and nobody writes it meanwhile.
        let data = unsafe { std::slice::from_raw_parts(part.base().as_ptr(), 100) };
        let place = shared.place(1, data).unwrap();
        assert_eq!(place.at, each);
        for receive in [receive_id(1, 9, 0), receive_id(1, 9, 3)] {
            shared.keep(receive);
        }
        assert_eq!(shared.release(place.number), Some(receive_id(1, 9, 0)));
        assert_eq!(shared.release(place.number), None);
        assert!(shared.frames().part(1).is_none());
        assert!(shared.frames().part(0).is_some());
        assert_eq!(shared.release(place.number + 1), Some(receive_id(1, 9, 3)));
        let mut seen = [1; 100];
        shared.frames().part(1).unwrap().read_at(0, &mut seen);
        assert_eq!(seen, [0; 100]);
    }

    #[test]
    fn no_more_are_kept_than_a_peer_may_and_there_are_numbers_and_none_of_other_memory() {
        let mut shared = Shared::new(2, SHAPE, 3, None).unwrap();
        let parts = [0, 1].map(|place| shared.frames().part(place).unwrap());
        // SAFETY: of the part, and nobody writes it.
        let data = parts.each_ref().map(|part| unsafe { std::slice::from_raw_parts(part.base().as_ptr(), 100) });
        assert!(shared.place(0, &[0; 100]).is_none());
        for slot in 0..2 {
            assert!(shared.place(0, data[0]).is_some());
            shared.keep(receive_id(0, 1, slot));
        }
        assert!(shared.place(0, data[0]).is_none());
        assert!(shared.place(1, data[1]).is_some());
        shared.keep(receive_id(1, 2, 0));
        assert!(shared.place(1, data[1]).is_none());
        shared.release(0).unwrap();
        assert_eq!(shared.place(1, data[1]).map(|place| place.number), Some(0));
    }

    #[test]
    fn memory_beyond_reason_is_not_taken() {
        let shape = Shape { slots: 4096, own: 64, stride: 9088, max_frame: 9000, kept: 0 };
        let error = Shared::new(1024, shape, 64, None).map(|_| ()).unwrap_err();
        assert_eq!(error, "the slots of 1024 peers take 76386729984 bytes, more than 1073741824");
    }
}
