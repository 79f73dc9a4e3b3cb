//! Received frames that stay in their buffers until they are released.

use std::ptr::NonNull;

use berth_dpdk_sys as sys;
use berth_memory::Memory as _;
use berth_pages::Pages;
use berth_port::Place;

use crate::mbuf::Mbuf;

/// The kept frames of one queue, each under a number. Those that nobody releases go with their pool.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The memory that frames lie in: its address, and its length in bytes.
    base: usize,
    size: usize,
    frames: Box<[Option<NonNull<sys::rte_mbuf>>]>,
    /// Numbers without a frame.
    free: Vec<u32>,
}

/// A number for the next frame that is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Vacancy {
    pub(crate) number: u32,
    base: usize,
    size: usize,
}

impl Vacancy {
    /// The place of a frame with these bytes; `None` if they lie elsewhere.
    #[inline]
    pub(crate) fn place(&self, data: &[u8]) -> Option<Place> {
        let at = (data.as_ptr() as usize).wrapping_sub(self.base);
        (at < self.size && data.len() <= self.size - at).then_some(Place { at, number: self.number })
    }
}

impl Kept {
    /// Room for `most` frames that lie in `pages`.
    pub(crate) fn new(pages: &Pages, most: u32) -> Self {
        let (base, size) = (pages.base().as_ptr() as usize, pages.size());
        Self { base, size, frames: (0..most).map(|_| None).collect(), free: (0..most).rev().collect() }
    }

    /// A number, if there is one for another frame.
    #[inline]
    pub(crate) fn vacancy(&self) -> Option<Vacancy> {
        let &number = self.free.last()?;
        Some(Vacancy { number, base: self.base, size: self.size })
    }

    /// Keeps a frame under the number of the last [`vacancy`](Self::vacancy).
    #[inline]
    pub(crate) fn keep(&mut self, mbuf: Mbuf) {
        let number = self.free.pop().expect("a vacancy");
        self.frames[number as usize] = NonNull::new(mbuf.into_raw());
    }

    /// Gives a frame back, and its number; `None` if there is none under this one.
    #[inline]
    pub(crate) fn release(&mut self, number: u32) -> Option<NonNull<sys::rte_mbuf>> {
        let mbuf = self.frames.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(mbuf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_the_memory_has_a_place() {
        let bytes = [0; 64];
        let vacancy = Vacancy { number: 7, base: bytes[16..].as_ptr() as usize, size: 32 };
        assert_eq!(vacancy.place(&bytes[16..48]), Some(Place { at: 0, number: 7 }));
        assert_eq!(vacancy.place(&bytes[40..48]), Some(Place { at: 24, number: 7 }));
        for outside in [15..20, 40..49, 48..50, 0..8] {
            assert_eq!(vacancy.place(&bytes[outside.clone()]), None, "{outside:?}");
        }
    }
}
