//! What follows the fixed part of a launch: descriptors of arguments, then their bytes.
//!
//! Clients differ. The fixed part has 72 bytes, or 76 with a padding word; a descriptor is offset and size, or size and
//! offset. The reading that fits exactly counts: every argument has a size and lies in the bytes, and the last one ends
//! where they end. Tried in the order 72 and offset first, 72 and size first, 76 likewise; where none fits, the first
//! one counts, and its arguments only have to lie in the bytes.

use zerocopy::{FromBytes as _, little_endian::U32};

use super::request::Launch;

/// Bytes of the fixed part with its padding word.
const PADDED: usize = Launch::LEN + 4;

/// An argument: its offset in the bytes of all, and its size, not 0.
pub type Argument = (u32, u32);

/// The arguments of a launch, whose payload is borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    descriptors: &'a [[U32; 2]],
    size_first: bool,
    bytes: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// The arguments in the payload of a launch; `None` where descriptors or arguments reach beyond it, have no size, or
    /// overlap. `sorted` is room to sort them in.
    pub fn parse(payload: &'a [u8], sorted: &mut Vec<Argument>) -> Option<Self> {
        let count = Launch::parse(payload)?.num_args.get() as usize;
        let readings = [(Launch::LEN, false), (Launch::LEN, true), (PADDED, false), (PADDED, true)];
        let mut exact =
            readings.into_iter().filter_map(|(fixed, size_first)| Self::new(payload, fixed, count, size_first));
        let spec = || Self::new(payload, Launch::LEN, count, false);
        let found = exact.find(Self::is_exact).or_else(spec)?;
        sorted.clear();
        sorted.extend(found.iter());
        sorted.sort_unstable();
        let apart = sorted.windows(2).all(|pair| u64::from(pair[0].0) + u64::from(pair[0].1) <= u64::from(pair[1].0));
        (found.fits() && apart).then_some(found)
    }

    fn new(payload: &'a [u8], fixed: usize, count: usize, size_first: bool) -> Option<Self> {
        let (descriptors, bytes) = <[[U32; 2]]>::ref_from_prefix_with_elems(payload.get(fixed..)?, count).ok()?;
        Some(Self { descriptors, size_first, bytes })
    }

    /// Whether every argument has a size and lies in the bytes.
    fn fits(&self) -> bool {
        let within = |(offset, size)| size > 0 && u64::from(offset) + u64::from(size) <= self.bytes.len() as u64;
        self.iter().all(within)
    }

    fn is_exact(&self) -> bool {
        self.fits() && self.end() == self.bytes.len()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.descriptors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.descriptors.is_empty()
    }

    /// The arguments, in the order of the descriptors.
    pub fn iter(&self) -> impl Iterator<Item = Argument> + '_ {
        self.descriptors.iter().map(|[a, b]| if self.size_first { (b.get(), a.get()) } else { (a.get(), b.get()) })
    }

    /// Where the last argument ends.
    pub fn end(&self) -> usize {
        self.iter().map(|(offset, size)| offset as usize + size as usize).max().unwrap_or(0)
    }

    /// The bytes of all arguments.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes as _;

    use super::*;

    fn payload(fixed: usize, descriptors: &[(u32, u32)], bytes: usize) -> Vec<u8> {
        let launch = Launch { num_args: (descriptors.len() as u32).into(), ..Launch::zeroed() };
        let mut payload = launch.as_bytes().to_vec();
        payload.resize(fixed, 0);
        for (a, b) in descriptors {
            payload.extend([a.to_le_bytes(), b.to_le_bytes()].concat());
        }
        payload.extend((0..bytes).map(|at| at as u8));
        payload
    }

    fn parsed(payload: &[u8]) -> Option<(Vec<Argument>, usize)> {
        let arguments = Arguments::parse(payload, &mut Vec::new())?;
        Some((arguments.iter().collect(), arguments.bytes().len()))
    }

    #[test]
    fn four_forms_are_told_apart() {
        let expected = Some((vec![(0, 8), (8, 4)], 12));
        assert_eq!(parsed(&payload(72, &[(0, 8), (8, 4)], 12)), expected);
        assert_eq!(parsed(&payload(72, &[(8, 0), (4, 8)], 12)), expected);
        assert_eq!(parsed(&payload(76, &[(0, 8), (8, 4)], 12)), expected);
        assert_eq!(parsed(&payload(76, &[(8, 0), (4, 8)], 12)), expected);
        assert_eq!(parsed(&payload(72, &[(0, 8), (8, 4)], 20)), Some((vec![(0, 8), (8, 4)], 20)), "a longer payload");
        assert_eq!(parsed(&payload(72, &[], 0)), Some((vec![], 0)));
        assert_eq!(parsed(&payload(76, &[], 0)), Some((vec![], 0)));
    }

    #[test]
    fn descriptors_that_lie_are_refused() {
        for descriptors in [
            &[(0, 13)][..],
            &[(4, 9)],
            &[(u32::MAX, u32::MAX)],
            &[(0, 0)],
            &[(0, 8), (4, 8)],
            &[(0, 8), (0, 8)],
            &[(0, 12), (12, 0)],
        ] {
            assert_eq!(parsed(&payload(72, descriptors, 12)), None, "{descriptors:?}");
        }
        let mut many = payload(72, &[(0, 8)], 8);
        many[44..48].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(parsed(&many), None);
        assert_eq!(parsed(&many[..71]), None);
    }

    proptest! {
        #[test]
        fn arguments_lie_in_their_bytes(count in 0..6_u32, tail: Vec<u8>) {
            let launch = Launch { num_args: count.into(), ..Launch::zeroed() };
            let payload = [launch.as_bytes(), &tail].concat();
            if let Some(arguments) = Arguments::parse(&payload, &mut Vec::new()) {
                prop_assert_eq!(arguments.len(), count as usize);
                prop_assert!(arguments.end() <= arguments.bytes().len());
                prop_assert!(arguments.iter().all(|(_, size)| size > 0));
            }
        }

        #[test]
        fn the_documented_form_is_read_as_it_was_meant(sizes in prop::collection::vec(1..40_u32, 1..10)) {
            let mut at = 0;
            let all: Vec<_> = sizes.iter().map(|size| { at += size; (at - size, *size) }).collect();
            prop_assert_eq!(parsed(&payload(72, &all, at as usize)), Some((all, at as usize)));
        }
    }
}
