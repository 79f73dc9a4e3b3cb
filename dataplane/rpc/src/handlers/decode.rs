//! `qec_decode`: a shot in, its flips out, and their confidence where that is asked for.

use berth_qec::{DecodeError, Decoder};
use berth_wire::rpc::{HandlerSchema, SchemaError, TypeDesc, TypeId, bits};

use super::{Session, session};
use crate::{Call, Failure, Outcome};

/// Positive status of `qec_decode`: no combination of the model's errors explains the syndrome, or none was found.
pub const UNMATCHABLE: i32 = 1;
/// Positive status of `qec_decode`: an outcome of the readout has no meaning, such as a probability above 1.
pub const BAD_VALUE: i32 = 2;

/// What a shot is to `qec_decode` (section "Multi-Bit Measurement Encoding"). All but events are outcomes of measurements, in
/// the order of the decoder's map.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Shot {
    /// Detection events, a bit each.
    #[default]
    Events,
    /// 4-bit soft readout, two in a byte, the first in the low half: v is 1 with the probability v / 15.
    Soft4,
    /// 8-bit soft readout: v is 1 with the probability v / 255.
    Soft8,
    /// The probability that the outcome is 1, as binary32.
    Float32,
    /// 0, 1, or 2 for a leaked state, of which nothing is known; a byte each.
    Leakage8,
    /// The same as 32-bit integers.
    Leakage32,
}

/// A `qec_decode` function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QecDecode {
    /// Index of the session that has the decoder.
    pub decoder: usize,
    /// What its shots are. All but events need a decoder with a readout.
    pub shot: Shot,
    /// Whether the answer ends with the gap of the flips, which needs a decoder that knows it.
    pub confidence: bool,
}

impl QecDecode {
    /// Takes events and answers flips.
    pub const fn events(decoder: usize) -> Self {
        Self { decoder, shot: Shot::Events, confidence: false }
    }

    /// The arguments: the shot, and the number of its events or outcomes. The results: flips, and the gap. `None` if the decoder
    /// cannot do this.
    pub(super) fn schema(self, decoder: &Decoder) -> Option<Result<HandlerSchema, SchemaError>> {
        let shot = match self.shot {
            Shot::Events => Ok(TypeDesc::variable(TypeId::BitPacked)),
            _ => self.shot.desc(decoder.num_measurements()?),
        };
        if self.confidence && !decoder.has_gap() {
            return None;
        }
        let results = [TypeDesc::bits(decoder.num_observables() as u32), TypeDesc::one(TypeId::Float32)];
        let results = &results[..if self.confidence { 2 } else { 1 }];
        Some(shot.and_then(|shot| HandlerSchema::new(&[shot, TypeDesc::one(TypeId::Int32)], results)))
    }
}

impl Shot {
    /// Bytes of so many outcomes.
    const fn len(self, outcomes: usize) -> usize {
        match self {
            Self::Events => bits::bytes_for(outcomes),
            Self::Soft4 => outcomes.div_ceil(2),
            Self::Soft8 | Self::Leakage8 => outcomes,
            Self::Float32 | Self::Leakage32 => 4 * outcomes,
        }
    }

    /// The type of so many outcomes.
    fn desc(self, outcomes: usize) -> Result<TypeDesc, SchemaError> {
        let type_id = match self {
            Self::Events => TypeId::BitPacked,
            Self::Soft4 | Self::Soft8 | Self::Leakage8 => TypeId::ArrayUInt8,
            Self::Float32 => TypeId::ArrayFloat32,
            Self::Leakage32 => TypeId::ArrayInt32,
        };
        TypeDesc::new(type_id, self.len(outcomes) as u32, outcomes as u32)
    }

    /// Decodes the bytes of so many events or outcomes.
    #[inline]
    fn decode(self, bytes: &[u8], n: usize, decoder: &mut Decoder, flips: &mut [u8]) -> Result<(), DecodeError> {
        // An outcome of a leaked state is lost; no other one has a probability.
        let leakage = |outcome: i32| match outcome {
            0 | 1 => f64::from(outcome),
            2 => 0.5,
            _ => f64::NAN,
        };
        let words = bytes.as_chunks().0.iter();
        match self {
            Self::Events => decoder.decode(bytes, flips),
            Self::Soft4 => {
                let half = |at: usize| f64::from(bytes[at / 2] >> (at % 2 * 4) & 15) / 15.0;
                decoder.decode_readout((0..n).map(half), flips)
            }
            Self::Soft8 => decoder.decode_readout(bytes.iter().map(|byte| f64::from(*byte) / 255.0), flips),
            Self::Float32 => decoder.decode_readout(words.map(|word| f32::from_le_bytes(*word).into()), flips),
            Self::Leakage8 => decoder.decode_readout(bytes.iter().map(|byte| leakage((*byte).into())), flips),
            Self::Leakage32 => decoder.decode_readout(words.map(|word| leakage(i32::from_le_bytes(*word))), flips),
        }
    }
}

/// Runs the function: [`UNMATCHABLE`], [`BAD_VALUE`], or a mismatch of another model's request.
#[inline]
pub(super) fn run(function: QecDecode, session: &mut Session, call: &mut Call<'_>) -> Outcome {
    let decoder = session.decoder();
    let (shot, n) = call.args().split_last_chunk().ok_or(Failure::Mismatch)?;
    let n = u32::from_le_bytes(*n) as usize;
    let expected = match function.shot {
        Shot::Events => Some(decoder.num_detectors()),
        _ => decoder.num_measurements(),
    };
    if Some(n) != expected || shot.len() != function.shot.len(n) {
        return Err(Failure::Mismatch);
    }
    let is_padded = function.shot == Shot::Soft4 && n % 2 == 1;
    if is_padded && shot.last().is_some_and(|last| last >> 4 != 0) {
        return Err(Failure::Mismatch);
    }
    let mut flips = [0; session::FLIPS];
    let flips = &mut flips[..bits::bytes_for(decoder.num_observables())];
    function.shot.decode(shot, n, decoder, flips).map_err(|error| match error {
        DecodeError::Unmatchable | DecodeError::NoSolution => Failure::Status(UNMATCHABLE),
        DecodeError::Value(_) => {
            session.count_bad_value();
            Failure::Status(BAD_VALUE)
        }
        DecodeError::Events(_) | DecodeError::Flips(_) | DecodeError::Measurements { .. } => Failure::Mismatch,
    })?;
    let gap = if function.confidence { session.decoder().gap() } else { None };
    let gap = gap.map(|gap| (gap as f32).to_le_bytes());
    let gap = gap.as_ref().map_or(&[][..], |gap| gap);
    let results = call.results().get_mut(..flips.len() + gap.len()).ok_or(Failure::TooLarge)?;
    let (first, second) = results.split_at_mut(flips.len());
    first.copy_from_slice(flips);
    second.copy_from_slice(gap);
    Ok(first.len() + second.len())
}
