//! A decoder of the decoding server, and the effects of its three RPCs (host API, "QEC decoding server").

use berth_qec::{Decoder, sparse::MeasurementMap};
use berth_wire::rpc::{
    Bits, bits,
    decoding::{EnqueueSyndromes, GetCorrections, status},
};

use crate::{Outcome, table::kept};

/// Bytes that hold the flips of any decoder, which has at most 64 observables.
pub(super) const FLIPS: usize = 8;

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

/// A decoder with the measurements, corrections and failures that it has accumulated.
#[derive(Debug)]
pub struct Session {
    decoder: Decoder,
    map: MeasurementMap,
    state: State,
    /// Measurements of the current volume, least significant bit first; zero behind the last one.
    measurements: Vec<u8>,
    /// Number of measurements in the buffer.
    buffered: usize,
    events: Vec<u8>,
    corrections: [u8; FLIPS],
    /// Name of the counter of decodes that were out of steps, and its value when the decoder was made.
    counter: Option<(&'static str, u64)>,
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

    fn make(decoder: Decoder, map: MeasurementMap) -> Self {
        Self {
            state: State::Collecting,
            measurements: vec![0; bits::bytes_for(map.num_measurements())],
            buffered: 0,
            events: vec![0; bits::bytes_for(map.num_detectors())],
            corrections: [0; FLIPS],
            counter: None,
            decoder,
            map,
        }
    }

    /// Counts what happens to a decoder under its name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { counter: Some((kept(format!("decoder_{name}_exhausted")), 0)), ..self }
    }

    /// Number of decodes that were out of steps, of the decoder with this name.
    pub(super) fn exhausted(&self) -> Option<(&'static str, u64)> {
        self.counter.map(|(name, before)| (name, before + self.decoder.exhausted()))
    }

    /// Goes on counting where the decoder of the same name stopped that this one replaces.
    pub(super) fn count_on(&mut self, old: &[Self]) {
        if let Some((name, before)) = &mut self.counter {
            let same = old.iter().filter_map(Self::exhausted).find(|(other, _)| other == name);
            *before = same.map_or(0, |(_, count)| count);
        }
    }

    /// Continues what another session of the same decoder has begun, with the limit on steps that this one has.
    pub(super) fn inherit(&mut self, old: &mut Self) {
        let steps = self.decoder.steps();
        std::mem::swap(self, old);
        if let Some(steps) = steps {
            self.decoder.set_steps(steps);
        }
    }

    pub(super) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    pub(super) fn num_observables(&self) -> usize {
        self.decoder.num_observables()
    }

    /// Handles `enqueue_syndromes`; `None` is a malformed request.
    pub(super) fn enqueue(&mut self, request: Option<EnqueueSyndromes<'_>>) -> Outcome {
        let Some(EnqueueSyndromes { measurements, .. }) = request else {
            self.state = State::Failed;
            return Err(status::BAD_REQUEST.into());
        };
        if self.state != State::Failed {
            // Failed until proven otherwise: a decoder that panics leaves it so.
            self.state = State::Failed;
            if let Some(state) = self.ingest(measurements) {
                self.state = state;
            }
        }
        Ok(0)
    }

    /// Buffers measurements, and decodes when a volume is complete. `None` is a failure.
    fn ingest(&mut self, new: Bits<'_>) -> Option<State> {
        let volume = self.map.num_measurements();
        if new.len() > volume - self.buffered {
            return None;
        }
        append(&mut self.measurements, self.buffered, new);
        self.buffered += new.len();
        if self.buffered < volume {
            return Some(State::Collecting);
        }
        self.map.apply(&self.measurements, &mut self.events).ok()?;
        let mut flips = [0; FLIPS];
        self.decoder.decode(&self.events, &mut flips[..bits::bytes_for(self.decoder.num_observables())]).ok()?;
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
        results.get_mut(..len).ok_or(status::INTERNAL_ERROR)?.copy_from_slice(&self.corrections[..len]);
        if request.reset {
            self.corrections = [0; FLIPS];
            self.state = State::Collecting;
        }
        Ok(len)
    }

    /// Handles `reset_decoder`: clears everything.
    pub(super) fn reset(&mut self) {
        self.discard();
        self.corrections = [0; FLIPS];
        self.state = State::Collecting;
    }

    fn discard(&mut self) {
        self.measurements.fill(0);
        self.buffered = 0;
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
