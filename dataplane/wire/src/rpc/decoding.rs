//! Payloads of the decoding server's three RPCs (host API, "QEC decoding server"). A longer payload is accepted.

use super::bits::{Bits, bytes_for};

/// Status codes of the three RPCs.
pub mod status {
    /// The request was carried out.
    pub const OK: i32 = 0;
    /// No decoder is configured under this id.
    pub const INVALID_DECODER: i32 = 1;
    /// The request contradicts itself, or does not suit the decoder.
    pub const BAD_REQUEST: i32 = 2;
    /// The decoder failed since its last reset, or the answer does not fit the slot.
    pub const INTERNAL_ERROR: i32 = 3;
    /// Fewer measurements have arrived than the decoder's volume.
    pub const NOT_READY: i32 = 4;
    /// Reserved; not sent.
    pub const BUSY: i32 = 5;
    /// Reserved; not sent.
    pub const SYNDROMES_DROPPED: i32 = 6;
}

/// Limit on the measurements of one enqueue.
pub const MAX_SYNDROMES: u64 = 1 << 20;

/// The decoder id of any of the three requests; `None` if the payload is too short.
#[inline]
pub fn decoder_id(payload: &[u8]) -> Option<u64> {
    u64_at(payload, 0)
}

/// Payload of `enqueue_syndromes`: the measurements of one or more rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnqueueSyndromes<'a> {
    /// Index of the decoder in the configuration, from 0.
    pub decoder_id: u64,
    /// The caller's round counter.
    pub counter: u64,
    /// The measurements, 1 to [`MAX_SYNDROMES`].
    pub measurements: Bits<'a>,
}

impl<'a> EnqueueSyndromes<'a> {
    const BITS: usize = 32;

    /// Reads a request. `None` is a bad request: too short, a mapping id other than 0, no measurements or too many.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let num = u64_at(payload, 24).filter(|num| (1..=MAX_SYNDROMES).contains(num))?;
        if u64_at(payload, 16)? != 0 {
            return None;
        }
        let measurements = Bits::new(payload.get(Self::BITS..)?, num as usize)?;
        Some(Self { decoder_id: u64_at(payload, 0)?, counter: u64_at(payload, 8)?, measurements })
    }

    /// Writes the request to the front of `payload` and returns its length; `None` if it does not fit.
    pub fn write(&self, payload: &mut [u8]) -> Option<usize> {
        let len = Self::BITS + bytes_for(self.measurements.len());
        let payload = payload.get_mut(..len)?;
        put_u64s(payload, [self.decoder_id, self.counter, 0, self.measurements.len() as u64]);
        payload[Self::BITS..].copy_from_slice(self.measurements.as_bytes());
        Some(len)
    }
}

/// Payload of `get_corrections`, which asks for the accumulated corrections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetCorrections {
    /// Index of the decoder in the configuration, from 0.
    pub decoder_id: u64,
    /// Number of correction bits wanted; must be the decoder's number of observables.
    pub return_size: u64,
    /// Whether to clear the corrections after they are read.
    pub reset: bool,
}

impl GetCorrections {
    /// Size of the request in bytes.
    pub const LEN: usize = 17;

    /// Reads a request; `None` if it is too short. Every non-zero `reset` byte means true.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let reset = *payload.get(16)? != 0;
        Some(Self { decoder_id: u64_at(payload, 0)?, return_size: u64_at(payload, 8)?, reset })
    }

    /// Writes the request to the front of `payload` and returns its length; `None` if it does not fit.
    pub fn write(&self, payload: &mut [u8]) -> Option<usize> {
        let payload = payload.get_mut(..Self::LEN)?;
        put_u64s(payload, [self.decoder_id, self.return_size]);
        payload[16] = self.reset.into();
        Some(Self::LEN)
    }
}

/// Payload of `reset_decoder`, which clears a decoder's buffered data, corrections and latched failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResetDecoder {
    /// Index of the decoder in the configuration, from 0.
    pub decoder_id: u64,
}

impl ResetDecoder {
    /// Size of the request in bytes.
    pub const LEN: usize = 8;

    /// Reads a request; `None` if it is too short.
    pub fn parse(payload: &[u8]) -> Option<Self> {
        Some(Self { decoder_id: decoder_id(payload)? })
    }

    /// Writes the request to the front of `payload` and returns its length; `None` if it does not fit.
    pub fn write(&self, payload: &mut [u8]) -> Option<usize> {
        put_u64s(payload.get_mut(..Self::LEN)?, [self.decoder_id]);
        Some(Self::LEN)
    }
}

#[inline]
fn u64_at(payload: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?))
}

fn put_u64s<const N: usize>(to: &mut [u8], values: [u64; N]) {
    for (to, value) in to.chunks_exact_mut(8).zip(values) {
        to.copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offsets_are_the_documented_ones() {
        let mut bytes = [0xFF; 40];
        let enqueue = EnqueueSyndromes { decoder_id: 1, counter: 2, measurements: Bits::new(&[0xAB, 1], 9).unwrap() };
        assert_eq!(enqueue.write(&mut bytes), Some(34));
        for (at, value) in [(0, 1), (8, 2), (16, 0), (24, 9)] {
            assert_eq!(u64_at(&bytes, at), Some(value));
        }
        assert_eq!(bytes[32..35], [0xAB, 1, 0xFF]);
        assert_eq!(EnqueueSyndromes::parse(&bytes), Some(enqueue), "a longer payload is accepted");
        assert_eq!(EnqueueSyndromes::parse(&bytes[..33]), None);

        let get = GetCorrections { decoder_id: 3, return_size: 4, reset: true };
        assert_eq!(get.write(&mut bytes), Some(17));
        assert_eq!((bytes[0], bytes[8], bytes[16]), (3, 4, 1));
        assert_eq!(GetCorrections::parse(&bytes), Some(get));
        assert_eq!(GetCorrections::parse(&bytes[..16]), None);

        let reset = ResetDecoder { decoder_id: 5 };
        assert_eq!(reset.write(&mut bytes), Some(8));
        assert_eq!(ResetDecoder::parse(&bytes), Some(reset));
        assert_eq!(ResetDecoder::parse(&bytes[..7]), None);
    }

    #[test]
    fn a_bad_enqueue_still_names_its_decoder() {
        let mut bytes = [0; 40];
        let measurements = Bits::new(&[1], 1).unwrap();
        EnqueueSyndromes { decoder_id: 6, counter: 0, measurements }.write(&mut bytes).unwrap();
        for (at, value) in [(16, 1), (24, 0), (24, MAX_SYNDROMES + 1), (24, u64::MAX), (24, 65)] {
            let mut bad = bytes;
            bad[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert_eq!(EnqueueSyndromes::parse(&bad), None, "{value} at {at}");
            assert_eq!(decoder_id(&bad), Some(6));
        }
    }

    proptest! {
        #[test]
        fn enqueues_round_trip(decoder_id: u64, counter: u64, bits in prop::collection::vec(any::<bool>(), 1..100)) {
            let mut packed = [0; 13];
            super::super::bits::pack(bits.iter().copied(), &mut packed).unwrap();
            let measurements = Bits::new(&packed, bits.len()).unwrap();
            let enqueue = EnqueueSyndromes { decoder_id, counter, measurements };
            let mut payload = [0; 45];
            let len = enqueue.write(&mut payload).unwrap();
            prop_assert_eq!(EnqueueSyndromes::parse(&payload[..len]), Some(enqueue));
        }

        #[test]
        fn random_payloads_never_panic(payload in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = EnqueueSyndromes::parse(&payload);
            let _ = GetCorrections::parse(&payload);
            let _ = ResetDecoder::parse(&payload);
        }
    }
}
