//! The common interface of all decoders.

use std::sync::Arc;

use crate::{
    bits::{self, BitsError},
    dem::{DemError, DetectorErrorModel},
    gap::Gap,
    lut::{Lut, LutError, Rule},
    mwpm::{Matcher, MwpmError, Paths},
    osd::{Beliefs, BpOsd, OsdError, OsdTables},
    readout::{Readout, Shot},
    relay::{Arithmetic, Floats, MAX_RELAYS, Relay, RelayBp, RelayError, Relays},
    window::{Stream, Window, WindowError, Windows},
};

/// The way in which a [`Decoder`] finds the flips of a syndrome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Minimum-weight perfect matching on the model's graph.
    Mwpm,
    /// The same in two passes, of which the second knows what errors the first has found: parts of one mechanism make each
    /// other likelier.
    CorrelatedMwpm,
    /// The same in one pass, with the weights that belief propagation gives each shot.
    BeliefMwpm,
    /// Look-up in a table with the syndrome of every set of up to `depth` error mechanisms, and what is likeliest to have
    /// flipped.
    Lut {
        /// Size of the largest error set in the table; at least 1.
        depth: usize,
    },
    /// The same by the rule of CUDA-Q QEC: of several sets with the same syndrome, the first.
    MultiErrorLut {
        /// As of [`Algorithm::Lut`].
        depth: usize,
    },
    /// Relay belief propagation, on errors that flip any number of detectors.
    RelayBp(RelayBp),
    /// Belief propagation and ordered statistics decoding, on errors that flip any number of detectors.
    BpOsd(BpOsd),
    /// Sliding windows, each decoded by another algorithm; see [`window`](crate::window).
    Window(Window),
}

/// Why a model does not make a decoder.
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
    /// The model, or a parameter, does not suit relay belief propagation.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The model, or a parameter, does not suit ordered statistics decoding.
    #[error(transparent)]
    Osd(#[from] OsdError),
    /// The model cannot be cut into windows.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// Why a syndrome was not decoded. The decoder can still be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The detection events are not a bit string of the model's length.
    #[error("detection events: {0}")]
    Events(BitsError),
    /// The room for the flips does not have the length for the model's observables.
    #[error("observable flips: {0}")]
    Flips(BitsError),
    /// No set of the model's errors explains this syndrome, such as an odd number of events where no error reaches a boundary.
    #[error("no set of the model's errors makes this syndrome")]
    Unmatchable,
    /// The number of values is not that of the measurements.
    #[error("{found} values, where {expected} measurements are read out")]
    Measurements {
        /// Number of measurements; 0 without [`Decoder::with_readout`].
        expected: usize,
        /// Number of values.
        found: usize,
    },
    /// The value of this measurement, from 0, is no probability: below 0, above 1, or not a number.
    #[error("the value of measurement {0} is no probability")]
    Value(usize),
    /// Relay belief propagation found no set of errors that makes this syndrome. There may be one, or none.
    #[error("belief propagation found no set of errors that makes this syndrome")]
    NoSolution,
}

/// What an algorithm computes once from a model. It never changes, so decoders on many cores share it.
#[derive(Debug)]
pub struct Tables {
    pub(crate) num_detectors: usize,
    pub(crate) num_observables: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Mwpm(Paths),
    Lut(Lut),
    Relay(Relay),
    Osd(OsdTables),
    Windows(Windows),
}

impl Tables {
    /// Computes the tables of a detector error model, which takes time and memory if the model is large.
    pub fn new(model: &DetectorErrorModel, algorithm: Algorithm) -> Result<Self, ModelError> {
        let kind = match algorithm {
            Algorithm::Mwpm => Kind::Mwpm(Paths::new(model)?),
            Algorithm::CorrelatedMwpm => Kind::Mwpm(Paths::correlated(model)?),
            Algorithm::BeliefMwpm => Kind::Mwpm(Paths::believed(model)?),
            Algorithm::Lut { depth } => Kind::Lut(Lut::from_model(model, depth, Rule::Likeliest)?),
            Algorithm::MultiErrorLut { depth } => Kind::Lut(Lut::from_model(model, depth, Rule::First)?),
            Algorithm::RelayBp(parameters) => Kind::Relay(Relay::new(model, parameters)?),
            Algorithm::BpOsd(parameters) => Kind::Osd(OsdTables::new(model, parameters)?),
            Algorithm::Window(parameters) => Kind::Windows(Windows::new(model, parameters)?),
        };
        Ok(Self { num_detectors: model.num_detectors(), num_observables: model.num_observables(), kind })
    }

    /// Length of a syndrome in bits.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// Length of an answer in bits.
    pub fn num_observables(&self) -> usize {
        self.num_observables
    }

    /// Whether what was begun with the other tables can go on with these: they are of models that are
    /// [alike](DetectorErrorModel::is_alike), by the same algorithm, and windows are cut alike.
    pub fn is_alike(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Windows(windows), Kind::Windows(others)) => windows.is_alike(others),
            _ => (self.num_detectors, self.num_observables) == (other.num_detectors, other.num_observables),
        }
    }

    /// Rounds of the model; `None` if the algorithm knows of none.
    pub fn num_rounds(&self) -> Option<u64> {
        match &self.kind {
            Kind::Windows(windows) => Some(windows.rounds().len() as u64),
            Kind::Mwpm(_) | Kind::Lut(_) | Kind::Relay(_) | Kind::Osd(_) => None,
        }
    }
}

/// A decoder for one model and one core: shared tables, and its own scratch memory.
#[derive(Debug)]
pub struct Decoder {
    tables: Arc<Tables>,
    events: Vec<u64>,
    flips: Vec<u64>,
    scratch: Scratch,
    /// For shots whose outcomes are not certain.
    shot: Option<Shot>,
}

/// What an algorithm writes while it decodes.
#[derive(Debug)]
enum Scratch {
    Mwpm(Box<Matcher>),
    Lut,
    Relay(Relays),
    /// One relay in floating point.
    Float(Floats<1>),
    /// Several.
    Floats(Floats<MAX_RELAYS>),
    Osd(Box<Beliefs>),
    Windows(Box<Stream>),
}

impl Decoder {
    /// Makes a decoder from the text of a Stim detector error model.
    pub fn from_dem(text: &str, algorithm: Algorithm) -> Result<Self, ModelError> {
        Self::from_model(&DetectorErrorModel::parse(text)?, algorithm)
    }

    /// Makes a decoder from a detector error model.
    pub fn from_model(model: &DetectorErrorModel, algorithm: Algorithm) -> Result<Self, ModelError> {
        Ok(Self::new(Arc::new(Tables::new(model, algorithm)?)))
    }

    /// Makes a decoder from a table, such as one built from matrices.
    pub fn from_lut(lut: Lut) -> Self {
        let (num_detectors, num_observables) = (lut.num_detectors(), lut.num_observables());
        Self::new(Arc::new(Tables { num_detectors, num_observables, kind: Kind::Lut(lut) }))
    }

    /// Makes a decoder from tables that others may share.
    pub fn new(tables: Arc<Tables>) -> Self {
        let scratch = match &tables.kind {
            Kind::Mwpm(paths) => Scratch::Mwpm(Box::new(Matcher::new(paths))),
            Kind::Lut(_) => Scratch::Lut,
            Kind::Relay(relay) => match (relay.parameters.arithmetic, relay.parameters.relays) {
                (Arithmetic::Fixed16, _) => Scratch::Relay(Relays::new(relay)),
                (Arithmetic::Float64, 1) => Scratch::Float(Floats::new(relay)),
                (Arithmetic::Float64, _) => Scratch::Floats(Floats::new(relay)),
            },
            Kind::Osd(osd) => Scratch::Osd(Box::new(Beliefs::new(osd))),
            Kind::Windows(_) => {
                let stream = Stream::new(tables.clone()).expect("an experiment may be as long as its model");
                Scratch::Windows(Box::new(stream))
            }
        };
        let events = vec![0; bits::words_for(tables.num_detectors)];
        let flips = vec![0; bits::words_for(tables.num_observables).max(1)];
        Self { tables, events, flips, scratch, shot: None }
    }

    /// Makes room for the readout of shots, by [`Decoder::decode_readout`], whose tables are of this decoder's. The limit on the
    /// steps of a decode by matching is four times the default.
    ///
    /// # Panics
    /// If it is of another decoder's.
    #[must_use]
    pub fn with_readout(mut self, readout: Arc<Readout>) -> Self {
        match (&self.tables.kind, &mut self.scratch) {
            (Kind::Mwpm(paths), Scratch::Mwpm(matcher)) => matcher.weigh_all(paths),
            (Kind::Osd(_), Scratch::Osd(_)) => {}
            _ => panic!("the readout is of another decoder"),
        }
        self.shot = Some(Shot::new(readout));
        self
    }

    /// Makes room for [`Decoder::gap`], whose tables are of this decoder's.
    ///
    /// # Panics
    /// If it is of another decoder's.
    #[must_use]
    pub fn with_gap(mut self, gap: Arc<Gap>) -> Self {
        let Scratch::Mwpm(matcher) = &mut self.scratch else { panic!("the gap is of another decoder") };
        matcher.take_gaps(gap);
        self
    }

    /// Length of a syndrome in bits.
    pub fn num_detectors(&self) -> usize {
        self.tables.num_detectors
    }

    /// Length of an answer in bits.
    pub fn num_observables(&self) -> usize {
        self.tables.num_observables
    }

    /// Number of measurements of a shot that is read out; `None` without [`Decoder::with_readout`].
    pub fn num_measurements(&self) -> Option<usize> {
        Some(self.shot.as_ref()?.readout().num_measurements())
    }

    /// Whether it has the room that [`Decoder::with_gap`] makes.
    pub fn has_gap(&self) -> bool {
        matches!(&self.scratch, Scratch::Mwpm(matcher) if matcher.has_gaps())
    }

    /// Predicts which observables the errors behind a syndrome flipped.
    ///
    /// `events` has `ceil(num_detectors / 8)` bytes, least significant bit first, padded with zeros. `flips` has
    /// `ceil(num_observables / 8)` bytes; it is overwritten unless the call fails.
    ///
    /// Allocates nothing.
    #[inline]
    pub fn decode(&mut self, events: &[u8], flips: &mut [u8]) -> Result<(), DecodeError> {
        bits::check(events, self.tables.num_detectors).map_err(DecodeError::Events)?;
        bits::check_length(flips, self.tables.num_observables).map_err(DecodeError::Flips)?;
        bits::load(events, &mut self.events);
        bits::store(self.decode_words()?, flips);
        Ok(())
    }

    /// Predicts the same from the readout of a shot: for each measurement the probability that its outcome is 1, from 0 to 1;
    /// 0.5 is an erasure. [`readout`](crate::readout) says what they do to the errors of this shot. `flips` is as of
    /// [`Decoder::decode`].
    ///
    /// Allocates nothing.
    pub fn decode_readout(
        &mut self,
        ones: impl ExactSizeIterator<Item = f64>,
        flips: &mut [u8],
    ) -> Result<(), DecodeError> {
        bits::check_length(flips, self.tables.num_observables).map_err(DecodeError::Flips)?;
        let Self { tables, events, flips: predicted, scratch, shot } = self;
        let Some(shot) = shot else { return Err(DecodeError::Measurements { expected: 0, found: ones.len() }) };
        shot.read(ones, events)?;
        match (&tables.kind, scratch) {
            (Kind::Mwpm(paths), Scratch::Mwpm(matcher)) if shot.wrong().len() > 0 => {
                matcher.decode_weighed(paths, events, shot.wrong(), predicted)?;
            }
            (Kind::Osd(osd), Scratch::Osd(beliefs)) => beliefs.decode(osd, events, shot.wrong(), predicted)?,
            _ => _ = self.decode_words()?,
        }
        bits::store(&self.flips, flips);
        Ok(())
    }

    /// How much heavier the lightest set of errors that flips other observables is than that of the last decode, which must not have failed, in units of
    /// ln((1 - p) / p): the complementary gap. Infinite if there is no such set. 0 if it is not known, since either of them
    /// was out of steps. `None` without [`Decoder::with_gap`].
    ///
    /// Decodes once for each observable, in what the shot has left of its steps. Allocates nothing.
    pub fn gap(&mut self) -> Option<f64> {
        let Scratch::Mwpm(matcher) = &mut self.scratch else { return None };
        matcher.gap()
    }

    /// The events that [`Decoder::decode_words`] decodes, 64 in a word.
    pub(crate) fn events_mut(&mut self) -> &mut [u64] {
        &mut self.events
    }

    /// The flips of the last decode that did not fail.
    pub(crate) fn answer(&self) -> &[u64] {
        &self.flips
    }

    /// The flips of the events, 64 observables in a word.
    #[inline]
    pub(crate) fn decode_words(&mut self) -> Result<&[u64], DecodeError> {
        let Self { tables, scratch, events, flips: predicted, shot: _ } = self;
        match (&tables.kind, scratch) {
            (Kind::Mwpm(paths), Scratch::Mwpm(matcher)) => matcher.decode(paths, events, predicted)?,
            (Kind::Lut(lut), Scratch::Lut) => lut.decode(events, predicted),
            (Kind::Relay(relay), Scratch::Relay(relays)) => relays.decode(relay, events, predicted)?,
            (Kind::Relay(relay), Scratch::Float(relays)) => relays.decode(relay, events, predicted)?,
            (Kind::Relay(relay), Scratch::Floats(relays)) => relays.decode(relay, events, predicted)?,
            (Kind::Osd(osd), Scratch::Osd(beliefs)) => beliefs.decode(osd, events, [], predicted)?,
            (Kind::Windows(windows), Scratch::Windows(stream)) => {
                // What an earlier shot has left does not matter.
                let _ = stream.reset();
                for detectors in windows.rounds() {
                    stream.round_of(detectors, events)?;
                }
                predicted.copy_from_slice(stream.flips());
            }
            _ => unreachable!("the scratch memory is that of the tables"),
        }
        Ok(predicted)
    }

    /// Limits the steps of each decode by matching, with windows of each of these: roughly, the detectors, events and paths between them that it looks at,
    /// [`STEPS`](crate::mwpm::STEPS) by default. What a shot has not matched in so many is matched by union-find on the same
    /// graph, which takes bounded time; the answer explains the syndrome, but need not have the least weight. Other
    /// algorithms have no such steps.
    #[must_use]
    pub fn within(mut self, steps: u64) -> Self {
        self.set_steps(steps);
        self
    }

    /// See [`Decoder::within`].
    pub fn set_steps(&mut self, steps: u64) {
        match &mut self.scratch {
            Scratch::Mwpm(matcher) => matcher.steps = steps,
            Scratch::Windows(stream) => stream.set_steps(steps),
            Scratch::Lut | Scratch::Relay(_) | Scratch::Float(_) | Scratch::Floats(_) | Scratch::Osd(_) => {}
        }
    }

    /// The limit on the steps of a decode, where there is one.
    pub fn steps(&self) -> Option<u64> {
        match &self.scratch {
            Scratch::Mwpm(matcher) => Some(matcher.steps),
            Scratch::Windows(stream) => stream.steps(),
            Scratch::Lut | Scratch::Relay(_) | Scratch::Float(_) | Scratch::Floats(_) | Scratch::Osd(_) => None,
        }
    }

    /// Number of decodes that were out of steps, since this decoder was made.
    pub fn exhausted(&self) -> u64 {
        match &self.scratch {
            Scratch::Mwpm(matcher) => matcher.exhausted,
            Scratch::Windows(stream) => stream.exhausted(),
            Scratch::Lut | Scratch::Relay(_) | Scratch::Float(_) | Scratch::Floats(_) | Scratch::Osd(_) => 0,
        }
    }

    /// Weight of the last decode that did not fail: the sum of ln((1 - p) / p) over the errors that it assumes, with the
    /// probabilities of the last pass. `None` for a table and for windows.
    pub fn weight(&self) -> Option<f64> {
        match &self.scratch {
            Scratch::Mwpm(matcher) => Some(matcher.weight()),
            Scratch::Relay(relays) => Some(relays.weight()),
            Scratch::Float(relays) => Some(relays.weight()),
            Scratch::Floats(relays) => Some(relays.weight()),
            Scratch::Osd(beliefs) => Some(beliefs.weight()),
            Scratch::Lut | Scratch::Windows(_) => None,
        }
    }
}
