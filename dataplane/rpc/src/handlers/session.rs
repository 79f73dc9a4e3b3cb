//! A decoder of the decoding server, and the effects of its three RPCs (host API, "QEC decoding server").

use std::sync::Arc;

use berth_qec::{
    Decoder,
    dem::MAX_OBSERVABLES,
    sparse::MeasurementMap,
    window::{Arrival, Experiment, Intake, Pool},
};
use berth_wire::rpc::{
    Bits, bits,
    decoding::{EnqueueSyndromes, GetCorrections, status},
};

use crate::{Outcome, table::kept};

/// Bytes that hold the flips of any decoder.
pub(super) const FLIPS: usize = MAX_OBSERVABLES as usize / 8;

/// A decoder and a map do not fit each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the measurement map makes {map} detectors, the model has {model}")]
pub struct MapMismatch {
    /// Rows of the map, which should be `model`.
    pub map: usize,
    /// Number of detectors in the model.
    pub model: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Fewer measurements than a volume have arrived since the last result.
    Collecting,
    /// A volume was decoded, and no measurements came after it.
    ResultReady,
    /// A failure that only a reset clears.
    Failed,
}

/// How the rounds of an experiment come, and its corrections go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streaming {
    /// The `counter` of `enqueue_syndromes` has the number of the first round, modulo 65536, in its low 16 bits: what came before
    /// is ignored then, and what does not come next is refused.
    pub numbered: bool,
    /// `get_corrections` answers what the decided rounds flip, without waiting for the last one. Always so where there is none.
    pub early: bool,
}

/// What becomes of measurements.
#[derive(Debug)]
enum Input {
    /// They wait for a whole volume.
    Volume {
        map: MeasurementMap,
        /// Measurements of the current volume, least significant bit first; zero behind the last one.
        measurements: Vec<u8>,
        /// Number of measurements in the buffer.
        buffered: usize,
        events: Vec<u8>,
    },
    /// They are decoded as they arrive.
    Rounds { intake: Box<Intake>, streaming: Streaming },
}

/// A decoder with the measurements, corrections and failures that it has accumulated.
#[derive(Debug)]
pub struct Session {
    decoder: Decoder,
    state: State,
    input: Input,
    /// What volumes have flipped before the current one.
    corrections: [u8; FLIPS],
    tally: Tally,
    /// Names of counters, and their values when the decoder was made.
    counters: Option<[(&'static str, u64); Tally::NAMES.len()]>,
}

/// What sessions count beside the steps of their decoders: shots, requests and rounds.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    bad_values: u64,
    repeated: u64,
    out_of_order: u64,
    undecided: u64,
}

impl Tally {
    const NAMES: [&str; 5] = ["exhausted", "bad_values", "repeated", "out_of_order", "undecided"];
}

impl Session {
    /// A session whose clients send detection events: whole volumes or parts.
    pub fn new(decoder: Decoder) -> Self {
        let map = MeasurementMap::identity(decoder.num_detectors());
        Self::make(decoder, map)
    }

    /// A session whose clients send measurements, which `map` turns into detection events.
    pub fn with_map(decoder: Decoder, map: MeasurementMap) -> Result<Self, MapMismatch> {
        let (map_rows, model) = (map.num_detectors(), decoder.num_detectors());
        if map_rows == model { Ok(Self::make(decoder, map)) } else { Err(MapMismatch { map: map_rows, model }) }
    }

    /// A session that decodes windows as measurements arrive, of experiments of the decoder's model. Where windows are parallel, so
    /// many cores decode them, with this one; the others by `helped`.
    pub fn streaming(
        decoder: Decoder,
        experiment: Arc<Experiment>,
        streaming: Streaming,
        helped: Option<(&Pool, usize)>,
    ) -> Self {
        let early = streaming.early || experiment.rounds().is_none();
        let mut intake = Box::new(Intake::new(experiment));
        if let Some((pool, cores)) = helped {
            *intake = intake.helped(pool, cores);
        }
        if let Some(steps) = decoder.steps() {
            intake.set_steps(steps);
        }
        Self::of(decoder, Input::Rounds { intake, streaming: Streaming { early, ..streaming } })
    }

    fn make(decoder: Decoder, map: MeasurementMap) -> Self {
        let input = Input::Volume {
            measurements: vec![0; bits::bytes_for(map.num_measurements())],
            buffered: 0,
            events: vec![0; bits::bytes_for(map.num_detectors())],
            map,
        };
        Self::of(decoder, input)
    }

    fn of(decoder: Decoder, input: Input) -> Self {
        Self {
            decoder,
            state: State::Collecting,
            input,
            corrections: [0; FLIPS],
            tally: Tally::default(),
            counters: None,
        }
    }

    /// Counts what happens to a decoder under its name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { counters: Some(Tally::NAMES.map(|what| (kept(format!("decoder_{name}_{what}")), 0))), ..self }
    }

    /// What was counted of the decoder with this name. Only those that take rounds count rounds.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let windows = match &self.input {
            Input::Volume { .. } => None,
            Input::Rounds { intake, .. } => Some(intake.exhausted()),
        };
        let Tally { bad_values, repeated, out_of_order, undecided } = self.tally;
        let counts = [self.decoder.exhausted() + windows.unwrap_or(0), bad_values, repeated, out_of_order, undecided];
        let shown = if windows.is_some() { counts.len() } else { 2 };
        let named = self.counters.into_iter().flatten().zip(counts);
        named.take(shown).map(|((name, before), count)| (name, before + count))
    }

    /// Goes on counting where the decoder of the same name stopped that this one replaces.
    pub(super) fn count_on(&mut self, old: &[Self]) {
        for (name, before) in self.counters.iter_mut().flatten() {
            let same = old.iter().flat_map(Self::counts).find(|(other, _)| other == name);
            *before = same.map_or(0, |(_, count)| count);
        }
    }

    /// Continues what another session of the same decoder has begun, with the decoder that this one has: its weights, its limit on
    /// steps, and what its functions ask of it.
    pub(super) fn inherit(&mut self, old: &mut Self) {
        std::mem::swap(self, old);
        std::mem::swap(&mut self.decoder, &mut old.decoder);
        let mut before = old.decoder.exhausted();
        if let (Input::Rounds { intake, .. }, Input::Rounds { intake: new, .. }) = (&mut self.input, &mut old.input) {
            new.take_over(intake);
            before += intake.exhausted();
            std::mem::swap(intake, new);
        }
        if let Some([(_, exhausted), ..]) = &mut self.counters {
            *exhausted += before;
        }
    }

    pub(super) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Counts a shot of which an outcome has no meaning.
    #[cold]
    pub(super) fn count_bad_value(&mut self) {
        self.tally.bad_values += 1;
    }

    pub(super) fn num_observables(&self) -> usize {
        self.decoder.num_observables()
    }

    /// Handles `enqueue_syndromes`; `None` is a malformed request.
    pub(super) fn enqueue(&mut self, request: Option<EnqueueSyndromes<'_>>) -> Outcome {
        let Some(EnqueueSyndromes { measurements, counter, .. }) = request else {
            self.state = State::Failed;
            return Err(status::BAD_REQUEST.into());
        };
        if self.state == State::Failed {
            return Ok(0);
        }
        // Failed until proven otherwise: a decoder that panics leaves it so.
        let before = std::mem::replace(&mut self.state, State::Failed);
        let state = match &self.input {
            Input::Volume { .. } => self.ingest(measurements),
            Input::Rounds { streaming, .. } => {
                let round = streaming.numbered.then_some(counter as u16);
                match self.belongs(round, measurements.len()) {
                    Arrival::Next => self.decode_rounds(measurements, before),
                    other => {
                        self.state = before;
                        return self.astray(other);
                    }
                }
            }
        };
        if let Some(state) = state {
            self.state = state;
        }
        Ok(0)
    }

    /// Where measurements belong; what was counted as the first round behind the last one begins another experiment.
    fn belongs(&mut self, round: Option<u16>, count: usize) -> Arrival {
        let Input::Rounds { intake, .. } = &mut self.input else { return Arrival::Next };
        if intake.has_ended() && round.is_none_or(|round| round == 0) {
            if intake.settle().is_err() {
                // The next measurements fail.
                return Arrival::Next;
            }
            flip(&mut self.corrections, intake.flips());
            intake.reset();
        }
        round.map_or(Arrival::Next, |round| intake.arrival(round, count))
    }

    /// Answers measurements that are not the next ones. They change nothing.
    fn astray(&mut self, arrival: Arrival) -> Outcome {
        if arrival == Arrival::Before {
            // The answer to them may have been lost.
            self.tally.repeated += 1;
            return Ok(0);
        }
        self.tally.out_of_order += 1;
        Err(status::BAD_REQUEST.into())
    }

    /// Decodes the windows that measurements complete. `None` is a failure.
    fn decode_rounds(&mut self, new: Bits<'_>, before: State) -> Option<State> {
        let Input::Rounds { intake, streaming } = &mut self.input else { return None };
        let decided = intake.decided();
        intake.take(new.as_bytes(), new.len()).ok()?;
        let is_ready = if streaming.early {
            before == State::ResultReady || intake.decided() > decided
        } else {
            intake.has_ended()
        };
        Some(if is_ready { State::ResultReady } else { State::Collecting })
    }

    /// Buffers measurements, and decodes when a volume is complete. `None` is a failure.
    fn ingest(&mut self, new: Bits<'_>) -> Option<State> {
        let Input::Volume { map, measurements, buffered, events } = &mut self.input else { return None };
        let volume = map.num_measurements();
        if new.len() > volume - *buffered {
            return None;
        }
        append(measurements, *buffered, new);
        *buffered += new.len();
        if *buffered < volume {
            return Some(State::Collecting);
        }
        map.apply(measurements, events).ok()?;
        let mut flips = [0; FLIPS];
        self.decoder.decode(events, &mut flips[..bits::bytes_for(self.decoder.num_observables())]).ok()?;
        for (correction, flip) in self.corrections.iter_mut().zip(flips) {
            *correction ^= flip;
        }
        self.discard();
        Some(State::ResultReady)
    }

    /// Handles `get_corrections`: writes them to the front of `results`. The checks are in the order of the reference.
    pub(super) fn corrections(&mut self, request: GetCorrections, results: &mut [u8]) -> Outcome {
        let observables = self.num_observables();
        if request.return_size as i64 <= 0 {
            return Err(status::BAD_REQUEST.into());
        }
        self.settle();
        if self.state == State::Failed {
            return Err(status::INTERNAL_ERROR.into());
        }
        if request.return_size != observables as u64 {
            return Err(status::BAD_REQUEST.into());
        }
        if self.state != State::ResultReady {
            return Err(status::NOT_READY.into());
        }
        let len = bits::bytes_for(observables);
        let mut current = [0; FLIPS];
        if let Input::Rounds { intake, .. } = &self.input {
            flip(&mut current, intake.flips());
        }
        let results = results.get_mut(..len).ok_or(status::INTERNAL_ERROR)?;
        for (result, (before, current)) in results.iter_mut().zip(self.corrections.iter().zip(current)) {
            *result = before ^ current;
        }
        if request.reset {
            // What the current experiment has flipped is read, and what it will flip is not.
            self.corrections = current;
            self.state = State::Collecting;
        }
        Ok(len)
    }

    /// Waits for windows that other cores decode, and fails if one cannot be decoded.
    fn settle(&mut self) {
        let before = std::mem::replace(&mut self.state, State::Failed);
        let settled = match &mut self.input {
            Input::Rounds { intake, .. } if before != State::Failed => intake.settle().is_ok(),
            _ => true,
        };
        if settled {
            self.state = before;
        }
    }

    /// Handles `reset_decoder`: clears everything.
    pub(super) fn reset(&mut self) {
        self.discard();
        self.corrections = [0; FLIPS];
        self.state = State::Collecting;
    }

    fn discard(&mut self) {
        match &mut self.input {
            Input::Volume { measurements, buffered, .. } => {
                measurements.fill(0);
                *buffered = 0;
            }
            Input::Rounds { intake, .. } => self.tally.undecided += intake.reset(),
        }
    }
}

/// Flips the observables in `words`, of 64 each.
fn flip(bytes: &mut [u8; FLIPS], words: &[u64]) {
    for (byte, flips) in bytes.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
        *byte ^= flips;
    }
}

/// Appends bits to `to`, which holds `at` bits and zeros behind them. Unused bits of `new` are ignored.
fn append(to: &mut [u8], at: usize, new: Bits<'_>) {
    let (first, shift) = (at / 8, at % 8);
    let unused = new.as_bytes().len() * 8 - new.len();
    let last = new.as_bytes().len().wrapping_sub(1);
    for (i, &byte) in new.as_bytes().iter().enumerate() {
        let byte = if i == last { byte << unused >> unused } else { byte };
        to[first + i] |= byte << shift;
        if let Some(next) = to.get_mut(first + i + 1).filter(|_| shift != 0) {
            *next |= byte >> (8 - shift);
        }
    }
}
