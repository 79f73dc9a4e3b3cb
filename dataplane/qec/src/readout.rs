//! Readout of single shots: for each measurement the probability that its outcome is 1.
//!
//! A measurement whose outcome is doubtful may be wrong: its outcome is the likelier one, q is the probability of the other, and
//! being wrong is an error of probability q that flips the detectors which the measurement makes up. It joins the error of the
//! model that flips just these, of probability p, for this shot: one of both, p + q - 2pq. So an outcome that is certain leaves
//! the model as it is, and one of which nothing is known, an erasure of q = 1/2, costs nothing to explain. What else a wrong
//! outcome flips, such as an observable, is what that error flips: there has to be one.

use std::{collections::HashMap, sync::Arc};

use crate::{
    decoder::{DecodeError, Kind, Tables},
    graph::BOUNDARY,
    hyper::{either, starts},
    mwpm::Weights,
    sparse::MeasurementMap,
};

/// Why the measurements of a model cannot be read out in this way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadoutError {
    /// The algorithm cannot change the weights of a shot.
    #[error("only mwpm and bp_osd weigh the errors of each shot anew")]
    Algorithm,
    /// The map is that of another model.
    #[error("the measurement map makes {map} detectors, the model has {model}")]
    Map {
        /// Detectors of the map.
        map: usize,
        /// Detectors of the model.
        model: usize,
    },
    /// It is not known what a wrong outcome does.
    #[error(
        "measurement {measurement} makes up {}, and no error of the model flips just {}; name the measurements of each \
         detector, and make the model with noise on them", list(.detectors), if .detectors.len() == 1 { "this" } else { "these" }
    )]
    NoError {
        /// The measurement, from 0.
        measurement: usize,
        /// The detectors that it makes up.
        detectors: Vec<u32>,
    },
}

fn list(detectors: &[u32]) -> String {
    detectors.iter().map(|detector| format!("D{detector}")).collect::<Vec<_>>().join(" ")
}

/// The end of an error that no measurement has.
const NONE: u32 = u32::MAX;

/// What a wrong outcome of each measurement flips, computed once from the tables of a decoder. It never changes, so decoders on
/// many cores share it.
#[derive(Debug)]
pub struct Readout {
    /// The first of each measurement's detectors, and the end of the last one's.
    starts: Vec<u32>,
    detectors: Vec<u32>,
    /// The error of each measurement; [`NONE`] where it makes up no detector.
    errors: Vec<u32>,
    /// Errors of the tables.
    num_errors: usize,
}

impl Readout {
    /// Finds the errors of the measurements of a map.
    pub fn new(tables: &Tables, map: &MeasurementMap) -> Result<Self, ReadoutError> {
        let errors: HashMap<Vec<u32>, u32> = match &tables.kind {
            Kind::Mwpm(paths) if matches!(paths.weights, Weights::Own) => {
                let ends = paths.graph.edges().into_iter().map(|(ends, _)| ends);
                let detectors = ends.map(|ends| ends.into_iter().filter(|end| *end != BOUNDARY).collect());
                detectors.zip(0..).collect()
            }
            Kind::Osd(osd) => osd.all_detectors().map(<[u32]>::to_vec).zip(0..).collect(),
            _ => return Err(ReadoutError::Algorithm),
        };
        if map.num_detectors() != tables.num_detectors {
            return Err(ReadoutError::Map { map: map.num_detectors(), model: tables.num_detectors });
        }
        let mut made = vec![Vec::new(); map.num_measurements()];
        match map.matrix() {
            None => made.iter_mut().zip(0..).for_each(|(made, detector)| made.push(detector)),
            Some(matrix) => {
                for (row, detector) in matrix.rows().zip(0..) {
                    for measurement in row {
                        made[*measurement as usize].push(detector);
                    }
                }
            }
        }
        let error = |(measurement, detectors): (usize, &Vec<u32>)| {
            if detectors.is_empty() {
                return Ok(NONE);
            }
            let error = errors.get(detectors).copied();
            error.ok_or_else(|| ReadoutError::NoError { measurement, detectors: detectors.clone() })
        };
        let of_measurements = made.iter().enumerate().map(error).collect::<Result<_, _>>()?;
        Ok(Self { starts: starts(&made), detectors: made.concat(), errors: of_measurements, num_errors: errors.len() })
    }

    /// Number of measurements of a shot.
    pub fn num_measurements(&self) -> usize {
        self.errors.len()
    }
}

/// What the readout of one shot says.
#[derive(Debug)]
pub(crate) struct Shot {
    readout: Arc<Readout>,
    /// By error, that an odd number of its measurements is wrong.
    wrong: Vec<f64>,
    /// Errors for which this is above 0.
    touched: Vec<u32>,
}

impl Shot {
    pub(crate) fn new(readout: Arc<Readout>) -> Self {
        let errors = readout.num_errors;
        Self { readout, wrong: vec![0.0; errors], touched: Vec::with_capacity(errors) }
    }

    pub(crate) fn readout(&self) -> &Readout {
        &self.readout
    }

    /// Takes the probability that each outcome is 1, and makes the events of the likelier outcomes, 0 if both are as likely.
    pub(crate) fn read(
        &mut self,
        ones: impl ExactSizeIterator<Item = f64>,
        events: &mut [u64],
    ) -> Result<(), DecodeError> {
        let Self { readout, wrong, touched } = self;
        touched.drain(..).for_each(|error| wrong[error as usize] = 0.0);
        events.fill(0);
        if ones.len() != readout.num_measurements() {
            return Err(DecodeError::Measurements { expected: readout.num_measurements(), found: ones.len() });
        }
        for (measurement, one) in ones.enumerate() {
            if !(0.0..=1.0).contains(&one) {
                return Err(DecodeError::Value(measurement));
            }
            if one > 0.5 {
                let made = readout.starts[measurement] as usize..readout.starts[measurement + 1] as usize;
                for detector in &readout.detectors[made] {
                    events[*detector as usize / 64] ^= 1 << (detector % 64);
                }
            }
            let (error, q) = (readout.errors[measurement], one.min(1.0 - one));
            if q > 0.0 && error != NONE {
                let wrong = &mut wrong[error as usize];
                if *wrong == 0.0 {
                    touched.push(error);
                }
                *wrong = either(*wrong, q);
            }
        }
        Ok(())
    }

    /// Errors that wrong outcomes join, and the probability that an odd number of these is.
    pub(crate) fn wrong(&self) -> impl ExactSizeIterator<Item = (u32, f64)> {
        self.touched.iter().map(|error| (*error, self.wrong[*error as usize]))
    }
}
