//! The arguments of commands on I/O queues (NVM, "NVM Command Set Commands").

use zerocopy::{
    FromBytes,
    little_endian::{U16, U32, U64},
};

use super::{command::Sqe, macros::layout};

/// A range of blocks: of Read, Write, Compare, Write Zeroes and Verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// SLBA: the first block.
    pub slba: u64,
    /// NLB: how many blocks, from 1 to 65,536.
    pub blocks: u32,
    /// FUA: the data is on the medium when the command completes.
    pub fua: bool,
    /// DEAC, of Write Zeroes: the blocks may be deallocated.
    pub deallocate: bool,
}

/// Bits of dword 12.
const FUA: u32 = 1 << 30;
const DEAC: u32 = 1 << 25;

impl Access {
    /// The range of a command.
    #[inline]
    pub fn of(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw10[2].get();
        Self { slba: sqe.quad(0), blocks: (cdw12 & 0xFFFF) + 1, fua: cdw12 & FUA != 0, deallocate: cdw12 & DEAC != 0 }
    }

    /// Makes it the range of a command. Of [`Access::blocks`] less one the low 16 bits count.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.set_quad(0, self.slba);
        let flags = if self.fua { FUA } else { 0 } | if self.deallocate { DEAC } else { 0 };
        sqe.cdw10[2] = (self.blocks.wrapping_sub(1) & 0xFFFF | flags).into();
    }

    /// Whether the range lies within a namespace of `size` blocks.
    #[inline]
    pub fn is_within(&self, size: u64) -> bool {
        within(self.slba, self.blocks, size)
    }
}

#[inline]
fn within(slba: u64, blocks: u32, size: u64) -> bool {
    slba.checked_add(u64::from(blocks)).is_some_and(|end| end <= size)
}

/// What Dataset Management says of its ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetManagement {
    /// NR: how many ranges follow as data, from 1 to 256.
    pub ranges: usize,
    /// AD: they may be deallocated.
    pub deallocate: bool,
}

impl DatasetManagement {
    const AD: u32 = 1 << 2;

    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        Self { ranges: (sqe.cdw10[0].get() & 0xFF) as usize + 1, deallocate: sqe.cdw10[1].get() & Self::AD != 0 }
    }

    /// Makes it a command's. Of [`DatasetManagement::ranges`] less one the low 8 bits count.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = (self.ranges.wrapping_sub(1) as u32 & 0xFF).into();
        sqe.cdw10[1] = if self.deallocate { Self::AD } else { 0 }.into();
    }
}

layout! {
    /// A range of Dataset Management ("Range Definition").
    pub struct DsmRange: 16 {
        /// Context Attributes.
        0 pub attributes: U32,
        /// How many blocks; 0 is none.
        4 pub blocks: U32,
        /// The first.
        8 pub slba: U64,
    }

    /// A source range of Copy, format 0 ("Copy - Source Range Entries Copy Descriptor Format 0h").
    pub struct CopyRange: 32 {
        0 reserved0: [u8; 8],
        /// The first block.
        8 pub slba: U64,
        /// How many blocks, less 1.
        16 nlb: U16,
        18 reserved1: [u8; 14],
    }
}

impl DsmRange {
    /// `count` blocks from `slba`.
    pub fn new(slba: u64, count: u32) -> Self {
        Self { attributes: 0.into(), blocks: count.into(), slba: slba.into() }
    }

    /// The first `count` ranges of a command's data; `None` where there are fewer.
    pub fn parse_all(data: &[u8], count: usize) -> Option<&[Self]> {
        Some(<[Self]>::ref_from_prefix_with_elems(data, count).ok()?.0)
    }

    /// Whether the range lies within a namespace of `size` blocks.
    #[inline]
    pub fn is_within(&self, size: u64) -> bool {
        within(self.slba.get(), self.blocks.get(), size)
    }
}

/// What Copy says of its ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyCommand {
    /// SDLBA: the first block that is written.
    pub destination: u64,
    /// NR: how many source ranges follow as data, from 1 to 256.
    pub ranges: usize,
    /// DESFMT: their format, 0 to 15; [`CopyRange`] is that of 0.
    pub format: u8,
    /// FUA: the data is on the medium when the command completes.
    pub fua: bool,
}

impl CopyCommand {
    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw10[2].get();
        Self {
            destination: sqe.quad(0),
            ranges: (cdw12 & 0xFF) as usize + 1,
            format: (cdw12 >> 8 & 0xF) as u8,
            fua: cdw12 & FUA != 0,
        }
    }

    /// Makes it a command's. Of [`CopyCommand::ranges`] less one the low 8 bits count.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.set_quad(0, self.destination);
        let counts = self.ranges.wrapping_sub(1) as u32 & 0xFF | u32::from(self.format & 0xF) << 8;
        sqe.cdw10[2] = (counts | if self.fua { FUA } else { 0 }).into();
    }
}

impl CopyRange {
    /// `count` blocks, from 1 to 65,536, from `slba`.
    pub fn new(slba: u64, count: u32) -> Self {
        Self { slba: slba.into(), nlb: (count.wrapping_sub(1) as u16).into(), ..Self::zeroed() }
    }

    /// The first `count` ranges of a command's data; `None` where there are fewer.
    pub fn parse_all(data: &[u8], count: usize) -> Option<&[Self]> {
        Some(<[Self]>::ref_from_prefix_with_elems(data, count).ok()?.0)
    }

    /// How many blocks, from 1 to 65,536.
    pub fn blocks(&self) -> u32 {
        u32::from(self.nlb.get()) + 1
    }

    /// Whether the range lies within a namespace of `size` blocks.
    pub fn is_within(&self, size: u64) -> bool {
        within(self.slba.get(), self.blocks(), size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    /// Dwords 10 to 12 as bytes.
    fn dwords(put: impl FnOnce(&mut Sqe)) -> Vec<u8> {
        let mut sqe = Sqe::new(0, 0, 1);
        put(&mut sqe);
        sqe.as_bytes()[40..52].to_vec()
    }

    #[test]
    fn arguments_are_laid_out_as_documented() {
        let access = Access { slba: 0x0102_0304_0506_0708, blocks: 0x201, fua: true, deallocate: false };
        assert_eq!(dwords(|sqe| access.put(sqe)), [8, 7, 6, 5, 4, 3, 2, 1, 0, 2, 0, 0x40]);
        let zeroes = Access { slba: 0, blocks: 65_536, fua: false, deallocate: true };
        assert_eq!(dwords(|sqe| zeroes.put(sqe)), [0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0x02]);
        let ranges = DatasetManagement { ranges: 256, deallocate: true };
        assert_eq!(dwords(|sqe| ranges.put(sqe)), [0xFF, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        let copy = CopyCommand { destination: 9, ranges: 3, format: 1, fua: true };
        assert_eq!(dwords(|sqe| copy.put(sqe)), [9, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0x40]);
        assert_eq!(DsmRange::new(5, 0x100).as_bytes(), [0, 0, 0, 0, 0, 1, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            CopyRange::new(5, 0x101).as_bytes()[..20],
            [0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
        );
    }

    #[test]
    fn ranges_end_within_the_namespace() {
        let access = |slba, blocks| Access { slba, blocks, fua: false, deallocate: false };
        assert!(
            access(90, 10).is_within(100) && !access(90, 11).is_within(100) && !access(u64::MAX, 1).is_within(u64::MAX)
        );
        assert!(DsmRange::new(100, 0).is_within(100) && !DsmRange::new(101, 0).is_within(100));
        assert!(!DsmRange::new(u64::MAX, u32::MAX).is_within(u64::MAX));
        assert!(CopyRange::new(0, 65_536).is_within(65_536) && !CopyRange::new(1, 65_536).is_within(65_536));
    }

    #[test]
    fn data_holds_all_its_ranges_or_none() {
        let data = [DsmRange::new(1, 2), DsmRange::new(3, 4)];
        assert_eq!(DsmRange::parse_all(data.as_bytes(), 2), Some(&data[..]));
        assert_eq!(DsmRange::parse_all(data.as_bytes(), 3), None);
        let data = [CopyRange::new(1, 2), CopyRange::new(3, 4)];
        assert_eq!(CopyRange::parse_all(data.as_bytes(), 2), Some(&data[..]));
        assert_eq!(CopyRange::parse_all(&data.as_bytes()[1..], 2), None);
    }

    proptest! {
        #[test]
        fn arguments_round_trip(slba: u64, blocks in 1..=65_536_u32, ranges in 1..=256_usize, format in 0..16_u8, a: bool, b: bool) {
            let mut sqe = Sqe::new(0, 0, 1);
            let access = Access { slba, blocks, fua: a, deallocate: b };
            access.put(&mut sqe);
            prop_assert_eq!(Access::of(&sqe), access);
            let dsm = DatasetManagement { ranges, deallocate: a };
            dsm.put(&mut sqe);
            prop_assert_eq!(DatasetManagement::of(&sqe), dsm);
            let copy = CopyCommand { destination: slba, ranges, format, fua: b };
            copy.put(&mut sqe);
            prop_assert_eq!(CopyCommand::of(&sqe), copy);
            prop_assert_eq!(CopyRange::new(slba, blocks).blocks(), blocks);
        }
    }
}
