//! Outcomes that are not certain, and the gaps of answers, beside a trial of all sets of errors.

mod common;

use std::{collections::HashMap, fmt::Write as _, fs, path::Path, sync::Arc};

use berth_qec::{
    Algorithm, DecodeError, Decoder, Tables,
    dem::DetectorErrorModel,
    gap::{Gap, GapError},
    osd::{BpOsd, Schedule, Statistics},
    readout::{Readout, ReadoutError},
    relay::RelayBp,
    sparse::{MeasurementMap, SparseMatrix},
};
use common::{Random, shot};
use proptest::prelude::*;

const OSD: Algorithm = Algorithm::BpOsd(osd(Statistics::Ordered));
const LSD: Algorithm = Algorithm::BpOsd(osd(Statistics::Localized));

const fn osd(statistics: Statistics) -> BpOsd {
    BpOsd { schedule: Schedule::Serial, iterations: 60, statistics, order: 10 }
}

/// The measurements of each detector.
fn map(detectors: &[Vec<usize>], measurements: usize) -> MeasurementMap {
    let flat: Vec<i64> = detectors.iter().flat_map(|row| row.iter().map(|at| *at as i64).chain([-1])).collect();
    MeasurementMap::new(SparseMatrix::from_flat(&flat, Some(measurements)).unwrap())
}

/// A decoder that is read out, and knows gaps where it can.
fn decoder(text: &str, algorithm: Algorithm, map: &MeasurementMap) -> Decoder {
    let model = DetectorErrorModel::parse(text).unwrap();
    let tables = Arc::new(Tables::new(&model, algorithm).unwrap());
    let readout = Arc::new(Readout::new(&tables, map).unwrap());
    let decoder = Decoder::new(tables.clone()).with_readout(readout);
    match algorithm {
        Algorithm::Mwpm => decoder.with_gap(Arc::new(Gap::new(&tables).unwrap())),
        _ => decoder,
    }
}

fn read(decoder: &mut Decoder, ones: &[f64]) -> Result<u64, DecodeError> {
    let mut flips = [0; 8];
    decoder.decode_readout(ones.iter().copied(), &mut flips[..decoder.num_observables().div_ceil(8)])?;
    Ok(u64::from_le_bytes(flips))
}

fn decode(decoder: &mut Decoder, events: u64) -> Result<u64, DecodeError> {
    let mut flips = [0; 8];
    let bytes = events.to_le_bytes();
    decoder
        .decode(&bytes[..decoder.num_detectors().div_ceil(8)], &mut flips[..decoder.num_observables().div_ceil(8)])?;
    Ok(u64::from_le_bytes(flips))
}

fn ln_odds(p: f64) -> f64 {
    ((1.0 - p) / p).ln()
}

/// Two rounds of a check: D0 is the first, D1 both.
const CHECK: &str = "error(0.01) D0 L0\nerror(0.05) D0 D1\nerror(0.02) D1\n";

fn check() -> MeasurementMap {
    map(&[vec![0], vec![0, 1]], 2)
}

#[test]
fn a_doubtful_outcome_is_the_likelier_error() {
    for algorithm in [Algorithm::Mwpm, OSD, LSD] {
        let mut decoder = decoder(CHECK, algorithm, &check());
        assert_eq!(decoder.num_measurements(), Some(2));
        // The first outcome is 1, the second 1: an event of D0 alone, that is L0 or both others.
        assert_eq!(read(&mut decoder, &[1.0, 1.0]), Ok(1), "0.01, and not 0.05 and 0.02");
        assert!((decoder.weight().unwrap() - ln_odds(0.01)).abs() < 1e-5);
        // The first may be wrong: D0 and D1 flip together at 0.1 + 0.05 - 2 * 0.1 * 0.05.
        assert_eq!(read(&mut decoder, &[0.9, 1.0]), Ok(1), "0.14 and 0.02 are less likely than 0.01");
        // The second may be: D1 flips at 0.3 + 0.02 - 2 * 0.3 * 0.02.
        assert_eq!(read(&mut decoder, &[1.0, 0.7]), Ok(0), "0.05 and 0.308 are likelier than 0.01");
        let both = ln_odds(0.05) + ln_odds(0.308);
        assert!((decoder.weight().unwrap() - both).abs() < 1e-5);
        assert_eq!(read(&mut decoder, &[0.6, 0.7]), Ok(0));
        // What a shot brought is gone with it.
        assert_eq!(decode(&mut decoder, 0b01), Ok(1));
        assert!((decoder.weight().unwrap() - ln_odds(0.01)).abs() < 1e-5);
        assert_eq!(read(&mut decoder, &[1.0, 1.0]), Ok(1));
    }
}

#[test]
fn an_erasure_costs_nothing() {
    for algorithm in [Algorithm::Mwpm, OSD, LSD] {
        let mut decoder = decoder(CHECK, algorithm, &check());
        // The second outcome is lost: whatever it was, D1 is explained.
        assert_eq!(read(&mut decoder, &[0.0, 0.5]), Ok(0));
        assert!(decoder.weight().unwrap() < 2e-6, "{:?}", decoder.weight());
        assert_eq!(read(&mut decoder, &[1.0, 0.5]), Ok(0));
        assert!((decoder.weight().unwrap() - ln_odds(0.05)).abs() < 1e-5, "D0 and D1, the rest is free");
        // Both: every event is.
        assert_eq!(read(&mut decoder, &[0.5, 0.5]), Ok(0));
        assert!(decoder.weight().unwrap() < 2e-6);
    }
}

#[test]
fn values_that_are_no_probabilities_are_refused() {
    for algorithm in [Algorithm::Mwpm, OSD, LSD] {
        let mut decoder = decoder(CHECK, algorithm, &check());
        for value in [f64::NAN, -1e-9, 1.0 + 1e-9, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(read(&mut decoder, &[0.9, value]), Err(DecodeError::Value(1)), "{value}");
            assert_eq!(read(&mut decoder, &[value, 0.9]), Err(DecodeError::Value(0)), "{value}");
            assert_eq!(read(&mut decoder, &[1.0, 1.0]), Ok(1), "nothing is left of it");
        }
        for ones in [&[0.0][..], &[0.0; 3]] {
            let found = ones.len();
            assert_eq!(read(&mut decoder, ones), Err(DecodeError::Measurements { expected: 2, found }));
        }
        assert_eq!(read(&mut decoder, &[-0.0, 0.0]), Ok(0));
        let mut none = Decoder::from_dem(CHECK, algorithm).unwrap();
        assert_eq!(read(&mut none, &[0.0; 2]), Err(DecodeError::Measurements { expected: 0, found: 2 }));
        assert_eq!((none.num_measurements(), none.gap()), (None, None));
    }
}

#[test]
fn what_cannot_be_read_out_says_why() {
    let tables = |text: &str, algorithm| Tables::new(&DetectorErrorModel::parse(text).unwrap(), algorithm).unwrap();
    for algorithm in [
        Algorithm::Lut { depth: 1 },
        Algorithm::MultiErrorLut { depth: 1 },
        Algorithm::RelayBp(RelayBp::default()),
        Algorithm::CorrelatedMwpm,
        Algorithm::BeliefMwpm,
    ] {
        let tables = tables(CHECK, algorithm);
        assert_eq!(Readout::new(&tables, &check()).unwrap_err(), ReadoutError::Algorithm);
        assert_eq!(Gap::new(&tables).unwrap_err(), GapError::Algorithm);
    }
    let mwpm = tables(CHECK, Algorithm::Mwpm);
    let error = Readout::new(&mwpm, &MeasurementMap::identity(3)).unwrap_err();
    assert_eq!(error, ReadoutError::Map { map: 3, model: 2 });
    // A measurement of no detector says nothing. One of D0 and D1 alone is known here, and in the other model is not.
    let some = map(&[vec![1], vec![1, 2]], 4);
    assert_eq!(Readout::new(&mwpm, &some).map(|readout| readout.num_measurements()), Ok(4));
    for algorithm in [Algorithm::Mwpm, OSD, LSD] {
        let error = Readout::new(&tables("error(0.1) D0\nerror(0.1) D1", algorithm), &some).unwrap_err();
        assert_eq!(error, ReadoutError::NoError { measurement: 1, detectors: vec![0, 1] });
        assert!(
            error.to_string().starts_with("measurement 1 makes up D0 D1, and no error of the model flips just these; ")
        );
    }
    assert_eq!(
        Gap::new(&tables("error(0.1) D0\nlogical_observable L64", Algorithm::Mwpm)).unwrap_err(),
        GapError::Observables(65)
    );
    let ring = tables("error(0.1) D0 D1\nerror(0.1) D1 D2\nerror(0.1) D0 D2 L1", Algorithm::Mwpm);
    let error = Gap::new(&ring).unwrap_err();
    assert!(matches!(error, GapError::Circle { observable: 1, .. }), "{error}");
}

#[test]
fn gaps_of_a_chain() {
    // The answer of each syndrome, and how much heavier the other is.
    let chain = "error(0.1) D0 L0\nerror(0.2) D0 D1\nerror(0.05) D1 D2 L0\nerror(0.3) D2 L0\n";
    let model = DetectorErrorModel::parse(chain).unwrap();
    let tables = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
    let mut decoder = Decoder::new(tables.clone()).with_gap(Arc::new(Gap::new(&tables).unwrap()));
    let [a, b, c, d] = [0.1, 0.2, 0.05, 0.3].map(ln_odds);
    // All four errors together flip L0 and make no event.
    for (events, flips, least, other) in [
        (0b000, 0, 0.0, a + b + c + d),
        (0b001, 1, a, b + c + d),
        (0b010, 1, a + b, c + d),
        (0b100, 1, d, a + b + c),
        (0b011, 0, b, a + c + d),
        (0b110, 1, c, a + b + d),
        (0b101, 0, a + d, b + c),
        (0b111, 1, b + d, a + c),
    ] {
        assert_eq!(decode(&mut decoder, events), Ok(flips), "{events:b}");
        assert!((decoder.weight().unwrap() - least).abs() < 1e-8);
        assert!((decoder.gap().unwrap() - (other - least)).abs() < 1e-8, "{events:b}: {:?}", decoder.gap());
        assert!((decoder.gap().unwrap() - (other - least)).abs() < 1e-8, "asked twice");
    }
    // An observable that nothing flips, and none.
    for text in ["error(0.1) D0\nlogical_observable L0", "error(0.1) D0"] {
        let mut decoder = with_gap(text);
        assert_eq!(decode(&mut decoder, 1), Ok(0));
        assert_eq!(decoder.gap(), Some(f64::INFINITY));
    }
}

fn with_gap(text: &str) -> Decoder {
    let tables = Arc::new(Tables::new(&DetectorErrorModel::parse(text).unwrap(), Algorithm::Mwpm).unwrap());
    Decoder::new(tables.clone()).with_gap(Arc::new(Gap::new(&tables).unwrap()))
}

/// Ends of an edge, its probability, and the observables that it flips.
#[derive(Debug, Clone)]
struct Edge {
    ends: Vec<usize>,
    probability: f64,
    flips: u64,
}

/// A graph in which observables are strings between boundaries, and measurements, each the edge that it flips if it is wrong
/// and the probability that it is 1.
#[derive(Debug, Clone)]
struct Read {
    detectors: usize,
    edges: Vec<Edge>,
    measurements: Vec<(usize, f64)>,
}

/// Values of outcomes, certain and lost ones among them.
fn ones() -> impl Strategy<Value = f64> {
    prop_oneof![2 => Just(0.0), 2 => Just(1.0), 1 => Just(0.5), 5 => 0.0..1.0f64]
}

fn reads() -> impl Strategy<Value = Read> {
    (1..8usize).prop_flat_map(|detectors| {
        let ends = (0..detectors, 0..detectors).prop_map(|(one, other)| {
            let mut ends = vec![one.min(other), one.max(other)];
            ends.dedup();
            ends
        });
        let probability = prop_oneof![6 => 0.001..0.5, 1 => 0.5..0.999];
        let edges = prop::collection::btree_map(ends, (probability, 0..4u64), 1..11);
        let sides = prop::collection::vec(0..4u64, detectors);
        let measurements = prop::collection::vec((any::<prop::sample::Index>(), ones()), 0..12);
        (edges, sides, measurements).prop_map(move |(edges, sides, measurements)| {
            let edge = |(ends, (probability, at_boundary)): (Vec<usize>, (f64, u64))| {
                let moved = ends.iter().fold(0, |flips, end| flips ^ sides[*end]);
                let flips = moved ^ if ends.len() == 1 { at_boundary } else { 0 };
                Edge { ends, probability, flips }
            };
            let edges: Vec<_> = edges.into_iter().map(edge).collect();
            let measurements = measurements.into_iter().map(|(at, one)| (at.index(edges.len()), one)).collect();
            Read { detectors, edges, measurements }
        })
    })
}

/// Whether two gaps are the same, which may be infinite.
fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() < 1e-6 || one.min(other) > f64::MAX
}

fn either(p: f64, q: f64) -> f64 {
    p + q - 2.0 * p * q
}

impl Read {
    fn text(&self) -> String {
        let mut text = format!("detector D{}\nlogical_observable L1\n", self.detectors - 1);
        for Edge { ends, probability, flips } in &self.edges {
            let ends = ends.iter().map(|end| format!(" D{end}"));
            let flips = (0..2).filter(|at| flips >> at & 1 == 1).map(|at| format!(" L{at}"));
            writeln!(text, "error({probability}){}", ends.chain(flips).collect::<String>()).unwrap();
        }
        text
    }

    fn map(&self) -> MeasurementMap {
        let mut rows = vec![Vec::new(); self.detectors];
        for (measurement, (edge, _)) in self.measurements.iter().enumerate() {
            self.edges[*edge].ends.iter().for_each(|end| rows[*end].push(measurement));
        }
        map(&rows, self.measurements.len())
    }

    /// The events of the likelier outcomes.
    fn events(&self) -> u64 {
        let ones = self.measurements.iter().filter(|(_, one)| *one > 0.5);
        ones.flat_map(|(edge, _)| &self.edges[*edge].ends).fold(0, |events, end| events ^ 1 << end)
    }

    /// The probabilities of the edges in this shot.
    fn probabilities(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.edges.iter().map(|edge| edge.probability).collect();
        for (edge, one) in &self.measurements {
            all[*edge] = either(all[*edge], one.min(1.0 - one));
        }
        all
    }

    /// Weight of the lightest set of edges with each flips that makes these events, over that of all that are likelier than not.
    fn least(&self, probabilities: &[f64], events: u64) -> [f64; 4] {
        let mut least = [f64::INFINITY; 4];
        let certain: f64 = probabilities.iter().map(|p| ln_odds(*p).min(0.0)).sum();
        for set in 0..1u64 << self.edges.len() {
            let (mut made, mut flips, mut weight) = (0, 0, -certain);
            for (at, edge) in self.edges.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1) {
                edge.ends.iter().for_each(|end| made ^= 1 << end);
                flips ^= edge.flips;
                weight += ln_odds(probabilities[at]);
            }
            if made == events {
                least[flips as usize] = least[flips as usize].min(weight);
            }
        }
        least
    }

    /// Whether a decoder's last answer, its weight and its gap are those of a trial of all sets.
    fn check(&self, decoder: &mut Decoder, found: Result<u64, DecodeError>, probabilities: &[f64], events: u64) {
        let least = self.least(probabilities, events);
        let Ok(flips) = found else {
            assert_eq!((found, least), (Err(DecodeError::Unmatchable), [f64::INFINITY; 4]));
            return;
        };
        let other =
            (0..4).filter(|other| *other != flips as usize).map(|other| least[other]).fold(f64::INFINITY, f64::min);
        let gap = other - least[flips as usize];
        assert!(gap > -1e-6, "{flips} of {least:?}");
        assert!(
            (decoder.weight().unwrap() - least[flips as usize]).abs() < 1e-6,
            "{:?} of {least:?}",
            decoder.weight()
        );
        let found = decoder.gap().unwrap();
        assert!(is_near(found, gap), "{found} is not {gap}: {least:?}");
    }
}

proptest! {
    /// Shots that are read out and shots of events take turns, so that weights of one are not those of the next.
    #[test]
    fn answers_and_gaps_are_those_of_all_sets(read_out in reads(), picks in prop::collection::vec(any::<u64>(), 4)) {
        let mut decoder = decoder(&read_out.text(), Algorithm::Mwpm, &read_out.map());
        let ones: Vec<f64> = read_out.measurements.iter().map(|(_, one)| *one).collect();
        let certain: Vec<f64> = read_out.edges.iter().map(|edge| edge.probability).collect();
        for pick in picks {
            let found = read(&mut decoder, &ones);
            read_out.check(&mut decoder, found, &read_out.probabilities(), read_out.events());
            let events = pick % (1 << read_out.detectors);
            let found = decode(&mut decoder, events);
            read_out.check(&mut decoder, found, &certain, events);
        }
        prop_assert_eq!(decoder.exhausted(), 0);
    }

    /// Outcomes that are certain are measurements, and say nothing else.
    #[test]
    fn certain_outcomes_are_those_of_the_model(read_out in reads(), picks in prop::collection::vec(any::<u16>(), 8)) {
        for algorithm in [Algorithm::Mwpm, OSD, LSD] {
            let mut one = decoder(&read_out.text(), algorithm, &read_out.map());
            let mut other = Decoder::from_dem(&read_out.text(), algorithm).unwrap();
            for pick in &picks {
                let mut certain = read_out.clone();
                for (at, (_, one)) in certain.measurements.iter_mut().enumerate() {
                    *one = f64::from(pick >> at & 1);
                }
                let ones: Vec<f64> = certain.measurements.iter().map(|(_, one)| *one).collect();
                prop_assert_eq!(read(&mut one, &ones), decode(&mut other, certain.events()));
                prop_assert_eq!(one.weight(), other.weight());
            }
        }
    }

    /// The priors of the shot are those of a model with the doubts in it, whose answers are then the same.
    #[test]
    fn belief_propagation_takes_the_priors_of_the_shot(read_out in reads()) {
        let ones: Vec<f64> = read_out.measurements.iter().map(|(_, one)| *one).collect();
        let mut shot = decoder(&read_out.text(), OSD, &read_out.map());
        let mut doubtful = read_out.clone();
        for (edge, p) in doubtful.edges.iter_mut().zip(read_out.probabilities()) {
            edge.probability = p;
        }
        // An error of one half is taken for one of less, whichever side rounding leaves it on.
        prop_assume!(doubtful.edges.iter().all(|edge| (edge.probability - 0.5).abs() > 1e-9));
        let mut model = Decoder::from_dem(&doubtful.text(), OSD).unwrap();
        for _ in 0..2 {
            prop_assert_eq!(read(&mut shot, &ones), decode(&mut model, read_out.events()));
            prop_assert!((shot.weight().unwrap() - model.weight().unwrap()).abs() < 1e-4);
        }
    }

    /// Out of steps, an answer explains the events, and its gap is not known.
    #[test]
    fn what_is_out_of_steps_has_no_gap(read_out in reads(), steps in 0..60u64) {
        let mut decoder = decoder(&read_out.text(), Algorithm::Mwpm, &read_out.map()).within(steps);
        let ones: Vec<f64> = read_out.measurements.iter().map(|(_, one)| one.clamp(0.01, 0.99)).collect();
        let probabilities = Read {
            measurements: read_out.measurements.iter().map(|(edge, one)| (*edge, one.clamp(0.01, 0.99))).collect(),
            ..read_out.clone()
        }.probabilities();
        let flips = read(&mut decoder, &ones).unwrap();
        let least = read_out.least(&probabilities, read_out.events());
        prop_assert!(least[flips as usize].is_finite(), "a set of errors flips {}", flips);
        let other = (0..4).filter(|other| *other != flips as usize).map(|other| least[other]).fold(f64::INFINITY, f64::min);
        let gap = decoder.gap().unwrap();
        if decoder.exhausted() > 0 {
            prop_assert!(gap < f64::MIN_POSITIVE, "{}", gap);
        } else {
            let exact = other - least[flips as usize];
            prop_assert!(gap < f64::MIN_POSITIVE || is_near(gap, exact), "{} is not {}", gap, exact);
        }
    }
}

/// The model of a surface code of distance 5, and for each pair of its detectors that follow each other in time a measurement.
fn surface() -> (String, MeasurementMap) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/decoders/surface_d5_p5e-3.dem");
    let text = fs::read_to_string(path).unwrap();
    let (mut time, mut last, mut rows) = (0, HashMap::new(), Vec::<Vec<usize>>::new());
    let mut measurements = 0;
    for line in text.lines() {
        if line.starts_with("shift_detectors") {
            time += 1;
        } else if let Some((place, detector)) = line.strip_prefix("detector").and_then(|rest| rest.split_once(") D")) {
            let (place, detector): (_, usize) = (place.rsplit_once(',').unwrap().0, detector.parse().unwrap());
            rows.resize(rows.len().max(detector + 1), Vec::new());
            if let Some((before, one)) = last.insert(place, (time, detector)).filter(|(before, _)| before + 1 == time) {
                assert_eq!(before + 1, time);
                rows[one].push(measurements);
                rows[detector].push(measurements);
                measurements += 1;
            }
        }
    }
    let map = map(&rows, measurements);
    (text, map)
}

/// Weights and gaps of a real code are those of a model with the doubts of the shot in it; nothing is allocated.
#[test]
fn shots_of_a_surface_code_are_those_of_models_of_their_own() {
    let (text, map) = surface();
    let model = DetectorErrorModel::parse(&text).unwrap();
    let mut decoder = decoder(&text, Algorithm::Mwpm, &map);
    let measurements = decoder.num_measurements().unwrap();
    assert!(measurements > 50, "{measurements}");
    let mut random = Random(5);
    for round in 0..20 {
        let ones: Vec<f64> = (0..measurements)
            .map(|_| {
                if random.happens(0.8) {
                    0.02 * random.happens(0.5) as u8 as f64
                } else {
                    (random.next() % 1001) as f64 / 1000.0
                }
            })
            .collect();
        let mut flips = [0];
        decoder.decode_readout(ones.iter().copied(), &mut flips).unwrap();
        // The same as a model, and the events of the likelier outcomes.
        let (mut doubtful, mut events) = (text.clone(), vec![0; model.num_detectors().div_ceil(8)]);
        let made = surface_rows(&map, measurements);
        for (one, detectors) in ones.iter().zip(made) {
            let [a, b] = detectors;
            writeln!(doubtful, "error({}) D{a} D{b}", one.min(1.0 - one)).unwrap();
            if *one > 0.5 {
                for at in [a, b] {
                    events[at / 8] ^= 1 << (at % 8);
                }
            }
        }
        let mut other = with_gap(&doubtful);
        let mut expected = [0];
        other.decode(&events, &mut expected).unwrap();
        assert!((decoder.weight().unwrap() - other.weight().unwrap()).abs() < 1e-6, "shot {round}");
        let gaps = [decoder.gap().unwrap(), other.gap().unwrap()];
        assert!((gaps[0] - gaps[1]).abs() < 1e-6, "{gaps:?}");
        assert!(gaps[0] > 0.0 && (flips == expected || gaps[0] < 1e-6), "{gaps:?}");
    }
    assert_eq!(decoder.exhausted(), 0);
    let shots: Vec<_> = (0..200).map(|_| shot(&model, &mut random, 1.0)).collect();
    let ones: Vec<f64> = (0..measurements).map(|_| (random.next() % 256) as f64 / 255.0).collect();
    for steps in [u64::MAX, 2000, 0] {
        decoder.set_steps(steps);
        let allocated = allocation_counter::measure(|| {
            let mut flips = [0];
            for (events, _) in &shots {
                decoder.decode(events, &mut flips).unwrap();
                decoder.gap().unwrap();
                decoder.decode_readout(ones.iter().copied(), &mut flips).unwrap();
                decoder.gap().unwrap();
            }
        });
        assert_eq!(allocated.count_total, 0);
    }
}

/// The detectors of each measurement.
fn surface_rows(map: &MeasurementMap, measurements: usize) -> Vec<[usize; 2]> {
    let detectors = |measurement: usize| {
        let (mut bits, mut events) = (vec![0; measurements.div_ceil(8)], vec![0; map.num_detectors().div_ceil(8)]);
        bits[measurement / 8] |= 1 << (measurement % 8);
        map.apply(&bits, &mut events).unwrap();
        let mut set = (0..map.num_detectors()).filter(|at| events[at / 8] >> (at % 8) & 1 == 1);
        [set.next().unwrap(), set.next().unwrap()]
    };
    (0..measurements).map(detectors).collect()
}

/// Shots whose gap is small are those that are wrong.
#[test]
fn a_small_gap_tells_of_errors() {
    let model = common::model("surface_d5_p5e-3.dem");
    let tables = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
    let mut decoder = Decoder::new(tables.clone()).with_gap(Arc::new(Gap::new(&tables).unwrap()));
    let mut random = Random(7);
    let (mut wrong, mut expected) = (0, 0.0);
    let (mut small, mut wrong_small) = (0, 0);
    for _ in 0..20_000 {
        let (events, flips) = shot(&model, &mut random, 1.0);
        let mut predicted = [0];
        decoder.decode(&events, &mut predicted).unwrap();
        let gap = decoder.gap().unwrap();
        let is_wrong = u64::from(predicted[0]) != flips;
        wrong += u32::from(is_wrong);
        expected += 1.0 / (1.0 + gap.exp());
        small += u32::from(gap < 4.0);
        wrong_small += u32::from(is_wrong && gap < 4.0);
    }
    println!(
        "{wrong} of 20000 wrong, {expected:.0} expected by their gaps; {wrong_small} of these among {small} with a gap below 4"
    );
    assert!(f64::from(wrong) < 2.0 * expected && expected < 2.0 * f64::from(wrong));
    assert!(10 * wrong_small > 8 * wrong && small < 2000);
}
