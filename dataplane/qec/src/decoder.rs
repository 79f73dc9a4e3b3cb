//! The one face of every decoder.

use crate::{
    bits::{self, BitsError},
    dem::{DemError, DetectorErrorModel},
    lut::{Lut, LutError},
    mwpm::{Mwpm, MwpmError},
};

/// How a [`Decoder`] finds the flips of a syndrome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Minimum-weight perfect matching on the model's graph.
    Mwpm,
    /// A table of the syndromes of every set of up to `depth` error mechanisms.
    Lut {
        /// The largest set of error mechanisms in the table.
        depth: usize,
    },
}

/// Why a model makes no decoder.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The text is not a detector error model.
    #[error(transparent)]
    Dem(#[from] DemError),
    /// The model does not suit matching.
    #[error(transparent)]
    Mwpm(#[from] MwpmError),
    /// The model does not suit a table.
    #[error(transparent)]
    Lut(#[from] LutError),
}

/// Why a syndrome was not decoded. The decoder is as good as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The detection events are not a bit string of the model's length.
    #[error("detection events: {0}")]
    Events(BitsError),
    /// The room for the flips is not that of the model's observables.
    #[error("observable flips: {0}")]
    Flips(BitsError),
    /// No set of the model's errors makes this syndrome: an odd number of events where no error reaches a boundary.
    #[error("no set of the model's errors makes this syndrome")]
    Unmatchable,
}

/// A decoder of one model, for one core. Not shared: it decodes in its own scratch memory.
#[derive(Debug)]
pub struct Decoder {
    num_detectors: usize,
    num_observables: usize,
    events: Vec<u64>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Mwpm(Box<Mwpm>),
    Lut(Lut),
}

impl Decoder {
    /// Makes a decoder from the text of a Stim detector error model.
    pub fn from_dem(text: &str, algorithm: Algorithm) -> Result<Self, ModelError> {
        Self::from_model(&DetectorErrorModel::parse(text)?, algorithm)
    }

    /// Makes a decoder from a detector error model.
    pub fn from_model(model: &DetectorErrorModel, algorithm: Algorithm) -> Result<Self, ModelError> {
        let kind = match algorithm {
            Algorithm::Mwpm => Kind::Mwpm(Box::new(Mwpm::new(model)?)),
            Algorithm::Lut { depth } => Kind::Lut(Lut::from_model(model, depth)?),
        };
        Ok(Self::new(model.num_detectors(), model.num_observables(), kind))
    }

    /// Makes a decoder from a table, for one that was built from matrices.
    pub fn from_lut(lut: Lut) -> Self {
        Self::new(lut.num_detectors(), lut.num_observables(), Kind::Lut(lut))
    }

    fn new(num_detectors: usize, num_observables: usize, kind: Kind) -> Self {
        Self { num_detectors, num_observables, events: vec![0; bits::words_for(num_detectors)], kind }
    }

    /// The bits of a syndrome.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// The bits of an answer.
    pub fn num_observables(&self) -> usize {
        self.num_observables
    }

    /// Predicts which observables the errors behind a syndrome flipped.
    ///
    /// `events` is `ceil(num_detectors / 8)` bytes, LSB-first, padded with zeros; `flips` is
    /// `ceil(num_observables / 8)` bytes and is overwritten, unless this fails.
    ///
    /// Allocates nothing, but for matching where the exact search gives up (see [`crate::mwpm`]): fusion-blossom then
    /// allocates its nodes and the matching.
    #[inline]
    pub fn decode(&mut self, events: &[u8], flips: &mut [u8]) -> Result<(), DecodeError> {
        bits::check(events, self.num_detectors).map_err(DecodeError::Events)?;
        bits::check_length(flips, self.num_observables).map_err(DecodeError::Flips)?;
        bits::load(events, &mut self.events);
        let predicted = match &mut self.kind {
            Kind::Mwpm(mwpm) => mwpm.decode(&self.events)?,
            Kind::Lut(lut) => lut.decode(&self.events),
        };
        flips.copy_from_slice(&predicted.to_le_bytes()[..flips.len()]);
        Ok(())
    }
}
