//! Wrapping sequence numbers: detection of loss, duplicates and reordering.

/// Tracks the wrapping N-bit sequence numbers of one sender: a 20- or 24-bit PSN, or a 32-bit `request_id`.
///
/// The last [`Sequence::WINDOW`] numbers are remembered individually, so within the window every count is exact. A
/// missing number counts as lost until it arrives late.
#[derive(Debug, Clone)]
pub struct Sequence {
    bits: u32,
    /// Next number expected, unwrapped.
    next: u64,
    /// The sender's first number, unwrapped; `None` before it arrives. Earlier numbers never count as lost.
    first: Option<u64>,
    /// Which of the numbers `next - WINDOW .. next` arrived. The bit of a number is its unwrapped value modulo the
    /// window.
    seen: [u64; Self::WORDS],
    counts: SequenceCounts,
}

/// Classification of a number, given those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrival {
    /// The expected number.
    InOrder,
    /// This many numbers ahead of the expected one; they now count as lost.
    Gap(u32),
    /// Behind the expected one and new: reordered, and no longer lost.
    Late,
    /// It arrived before.
    Duplicate,
    /// Too far behind to tell whether it arrived before.
    Stale,
}

/// Counts of each kind of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SequenceCounts {
    /// All arrivals, whatever their kind.
    pub received: u64,
    /// Numbers that have not arrived so far.
    pub lost: u64,
    /// Arrivals ahead of the expected number, however far.
    pub gaps: u64,
    /// Count of [`Arrival::Late`].
    pub reordered: u64,
    /// Count of [`Arrival::Duplicate`].
    pub duplicates: u64,
    /// Count of [`Arrival::Stale`].
    pub stale: u64,
}

impl Sequence {
    /// How many numbers back a late one can be told from a duplicate.
    pub const WINDOW: u32 = 4096;
    const WORDS: usize = Self::WINDOW as usize / 64;

    /// Tracks `bits`-bit numbers, and starts with whichever number arrives first.
    ///
    /// # Panics
    /// Unless `bits` is 13 to 32: half the number space must hold the window.
    pub fn new(bits: u32) -> Self {
        assert!((13..=32).contains(&bits), "sequence numbers must have 13 to 32 bits, not {bits}");
        Self { bits, next: 0, first: None, seen: [0; Self::WORDS], counts: SequenceCounts::default() }
    }

    /// Tracks numbers from `first` on, so that those lost before the first arrival count too.
    ///
    /// # Panics
    /// As [`Sequence::new`].
    pub fn starting_at(bits: u32, first: u32) -> Self {
        let mut sequence = Self::new(bits);
        sequence.start(first);
        sequence
    }

    /// Unwrapped numbers start one lap up, so that numbers before the first one do not underflow.
    fn start(&mut self, first: u32) {
        self.next = (1 << 32) + (first as u64 & self.mask());
        self.first = Some(self.next);
    }

    fn mask(&self) -> u64 {
        (1 << self.bits) - 1
    }

    /// Classifies and counts the number of the next message; bits above the width are ignored.
    #[inline]
    pub fn arrive(&mut self, number: u32) -> Arrival {
        self.counts.received += 1;
        if self.first.is_none() {
            self.start(number);
        }
        let ahead = (number as u64).wrapping_sub(self.next) & self.mask();
        if ahead == 0 {
            self.set(self.next, true);
            self.next += 1;
            return Arrival::InOrder;
        }
        self.out_of_order(ahead)
    }

    /// `ahead` is below 2^bits; its upper half means behind.
    #[cold]
    fn out_of_order(&mut self, ahead: u64) -> Arrival {
        if ahead <= self.mask() / 2 {
            let number = self.next + ahead;
            for missing in self.next.max(number.saturating_sub(Self::WINDOW as u64))..number {
                self.set(missing, false);
            }
            self.set(number, true);
            self.next = number + 1;
            self.counts.lost += ahead;
            self.counts.gaps += 1;
            return Arrival::Gap(ahead as u32);
        }
        let behind = self.mask() + 1 - ahead;
        if behind > Self::WINDOW as u64 {
            self.counts.stale += 1;
            return Arrival::Stale;
        }
        let number = self.next - behind;
        if self.is_set(number) {
            self.counts.duplicates += 1;
            return Arrival::Duplicate;
        }
        self.set(number, true);
        self.counts.reordered += 1;
        if self.first.is_some_and(|first| number >= first) {
            self.counts.lost -= 1;
        }
        Arrival::Late
    }

    #[inline]
    fn set(&mut self, number: u64, seen: bool) {
        let (word, bit) = Self::place(number);
        self.seen[word] = self.seen[word] & !(1 << bit) | (seen as u64) << bit;
    }

    fn is_set(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.seen[word] >> bit & 1 == 1
    }

    fn place(number: u64) -> (usize, u64) {
        (number as usize / 64 % Self::WORDS, number % 64)
    }

    /// The counts so far.
    pub fn counts(&self) -> SequenceCounts {
        self.counts
    }
}
