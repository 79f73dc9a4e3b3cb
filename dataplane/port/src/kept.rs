//! Frames that stay where they were received until they are released.

use crate::Place;

/// The kept frames of one queue, each under a number. `T` is what the port calls a frame.
#[derive(Debug)]
pub struct Kept<T> {
    /// The memory that frames lie in: its address, and its length in bytes.
    base: usize,
    size: usize,
    frames: Box<[Option<T>]>,
    /// Numbers without a frame.
    free: Vec<u32>,
}

/// A number for the next frame that is kept.
#[derive(Debug, Clone, Copy)]
pub struct Vacancy {
    number: u32,
    base: usize,
    size: usize,
}

impl Vacancy {
    /// The place of a frame with these bytes; `None` if they lie elsewhere.
    #[inline]
    pub fn place(&self, data: &[u8]) -> Option<Place> {
        let at = (data.as_ptr() as usize).wrapping_sub(self.base);
        (at < self.size && data.len() <= self.size - at).then_some(Place { at, number: self.number })
    }
}

impl<T> Kept<T> {
    /// Room for `most` frames that lie in `size` bytes of memory at address `base`.
    pub fn new(base: usize, size: usize, most: u32) -> Self {
        Self { base, size, frames: (0..most).map(|_| None).collect(), free: (0..most).rev().collect() }
    }

    /// A number, if there is one for another frame.
    #[inline]
    pub fn vacancy(&self) -> Option<Vacancy> {
        let &number = self.free.last()?;
        Some(Vacancy { number, base: self.base, size: self.size })
    }

    /// Keeps a frame under the number of the last [`vacancy`](Self::vacancy).
    ///
    /// # Panics
    /// If there was none.
    #[inline]
    pub fn keep(&mut self, frame: T) {
        let number = self.free.pop().expect("a vacancy");
        self.frames[number as usize] = Some(frame);
    }

    /// Gives a frame back, and its number; `None` if there is none under this one.
    #[inline]
    pub fn release(&mut self, number: u32) -> Option<T> {
        let frame = self.frames.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_frame_until_it_is_released() {
        let mut kept = Kept::new(0x1000, 64, 2);
        let number = |kept: &Kept<char>| kept.vacancy().map(|vacancy| vacancy.number);
        for (at, frame) in [(0, 'a'), (1, 'b')] {
            assert_eq!(number(&kept), Some(at));
            kept.keep(frame);
        }
        assert_eq!(number(&kept), None);
        assert_eq!((kept.release(0), kept.release(0), kept.release(2)), (Some('a'), None, None));
        assert_eq!(number(&kept), Some(0));
        kept.keep('c');
        assert_eq!((kept.release(1), kept.release(0)), (Some('b'), Some('c')));
    }

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
