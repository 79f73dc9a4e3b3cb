//! Real surface-code shots, against `PyMatching`'s predictions and the truth (see `perf/data/README.md`).

use std::{fs, path::Path};

use berth_qec::{Algorithm, DecodeError, Decoder};

struct Shots {
    model: String,
    events: Vec<u8>,
    flips: Vec<u8>,
    pymatching: Vec<u8>,
}

fn shots(distance: u32, noise: &str) -> Shots {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = |kind| fs::read(root.join(format!("perf/data/surface_d{distance}_{noise}.{kind}.b8"))).unwrap();
    let suffix = if noise == "p1e-3" { "" } else { "_p5e-3" };
    let model = root.join(format!("config/decoders/surface_d{distance}{suffix}.dem"));
    Shots {
        model: fs::read_to_string(model).unwrap(),
        events: file("dets"),
        flips: file("obs"),
        pymatching: file("pymatching"),
    }
}

/// Decodes a set; returns the number of shots, of those that differ from `PyMatching`'s, and the logical errors of
/// both.
fn compare(distance: u32, noise: &str) -> (usize, usize, usize, usize) {
    let set = shots(distance, noise);
    let mut decoder = Decoder::from_dem(&set.model, Algorithm::Mwpm).unwrap();
    assert_eq!(decoder.num_detectors() as u32, (distance * distance - 1) * distance);
    assert_eq!(decoder.num_observables(), 1);
    let (mut different, mut wrong) = (0, 0);
    for ((events, flips), pymatching) in
        set.events.chunks_exact(decoder.num_detectors().div_ceil(8)).zip(&set.flips).zip(&set.pymatching)
    {
        let mut predicted = [0xFF];
        decoder.decode(events, &mut predicted).unwrap();
        different += usize::from(predicted[0] != *pymatching);
        wrong += usize::from(predicted[0] != *flips);
    }
    let pymatching_wrong =
        set.flips.iter().zip(&set.pymatching).filter(|(flips, predicted)| flips != predicted).count();
    (set.flips.len(), different, wrong, pymatching_wrong)
}

#[test]
fn matching_agrees_with_pymatching() {
    for distance in [3, 5, 7] {
        for noise in ["p1e-3", "p5e-3"] {
            let (shots, different, wrong, pymatching_wrong) = compare(distance, noise);
            println!("d={distance} {noise}: {shots} shots, {different} differ, {wrong} and {pymatching_wrong} wrong");
            assert!(shots >= 5_000);
            assert!(different * 1000 <= shots, "d={distance} {noise}: {different} of {shots} differ");
            assert!(wrong.abs_diff(pymatching_wrong) <= different);
        }
    }
}

#[test]
fn decoding_allocates_nothing() {
    let set = shots(7, "p5e-3");
    let random = random_events(60);
    let wide = format!("{}\nlogical_observable L999\n", set.model);
    let all = [&set.model, &wide]
        .into_iter()
        .flat_map(|model| [Algorithm::Mwpm, Algorithm::CorrelatedMwpm, Algorithm::BeliefMwpm].map(|a| (model, a)));
    for ((model, algorithm), steps) in all.flat_map(|one| [0, 300, u64::MAX].map(|steps| (one, steps))) {
        let mut decoder = Decoder::from_dem(model, algorithm).unwrap().within(steps);
        let mut flips = vec![0; decoder.num_observables().div_ceil(8)];
        let allocated = allocation_counter::measure(|| {
            for events in set.events.chunks_exact(42).chain(random.chunks_exact(42)) {
                decoder.decode(events, &mut flips).unwrap();
            }
        });
        assert_eq!(allocated.count_total, 0);
        assert_eq!(decoder.exhausted() > 0, steps < u64::MAX, "there is room for every syndrome");
    }
}

/// A second pass that knows which parts belong together errs less, and belief propagation less than that.
#[test]
fn two_passes_are_better_than_one_and_beliefs_better_than_both() {
    let set = shots(7, "p5e-3");
    let wrong = |algorithm| {
        let mut decoder = Decoder::from_dem(&set.model, algorithm).unwrap();
        let shots = set.events.chunks_exact(42).zip(&set.flips);
        let wrong = shots.filter(|(events, flips)| {
            let mut predicted = [0];
            decoder.decode(events, &mut predicted).unwrap();
            predicted[0] != **flips
        });
        (wrong.count(), decoder.exhausted())
    };
    let [one, two, believed] = [Algorithm::Mwpm, Algorithm::CorrelatedMwpm, Algorithm::BeliefMwpm].map(wrong);
    println!("of {} shots one pass gets {} wrong, two {}, beliefs {}", set.flips.len(), one.0, two.0, believed.0);
    assert!(4 * two.0 < 3 * one.0 && two.1 == 0, "{one:?} {two:?}");
    assert!(believed.0 < two.0 && believed.1 == 0, "{two:?} {believed:?}");
}

#[test]
fn a_tail_that_is_cut_costs_little() {
    let set = shots(7, "p5e-3");
    let mut cut = Decoder::from_dem(&set.model, Algorithm::Mwpm).unwrap().within(600);
    let mut whole = Decoder::from_dem(&set.model, Algorithm::Mwpm).unwrap();
    let (mut weight, mut least, mut wrong, mut exact_wrong) = (0.0, 0.0, 0, 0);
    for (events, flips) in set.events.chunks_exact(42).zip(&set.flips) {
        let (mut one, mut other) = ([0], [0]);
        cut.decode(events, &mut one).unwrap();
        whole.decode(events, &mut other).unwrap();
        assert!(cut.weight().unwrap() > whole.weight().unwrap() - 1e-9);
        weight += cut.weight().unwrap();
        least += whole.weight().unwrap();
        wrong += usize::from(one[0] != *flips);
        exact_wrong += usize::from(other[0] != *flips);
    }
    println!("{} cut: weight {:.4}, wrong {wrong} for {exact_wrong}", cut.exhausted(), weight / least);
    assert_eq!(whole.exhausted(), 0);
    assert!((250..2500).contains(&cut.exhausted()), "{}", cut.exhausted());
    assert!(weight < 1.02 * least);
    assert!(wrong < 2 * exact_wrong);
}

/// Weights of dense shots, each with events at a fifth of the detectors, as `PyMatching` has them.
#[test]
fn weights_are_those_of_pymatching() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../perf/data");
    let events = fs::read(root.join("surface_d7_dense.dets.b8")).unwrap();
    let weights = fs::read(root.join("surface_d7_dense.weights.f64")).unwrap();
    let (weights, _) = weights.as_chunks::<8>();
    assert_eq!((events.len(), weights.len()), (400 * 42, 400));
    let mut decoder = Decoder::from_dem(&shots(7, "p5e-3").model, Algorithm::Mwpm).unwrap().within(u64::MAX);
    for (events, expected) in events.chunks_exact(42).zip(weights) {
        decoder.decode(events, &mut [0]).unwrap();
        let (found, expected) = (decoder.weight().unwrap(), f64::from_le_bytes(*expected));
        assert!((found - expected).abs() < 1e-3, "{found} is not {expected}");
    }
}

#[test]
fn wrong_lengths_and_padding_are_refused() {
    let set = shots(3, "p1e-3");
    let mut decoder = Decoder::from_dem(&set.model, Algorithm::Mwpm).unwrap();
    assert!(matches!(decoder.decode(&[0; 2], &mut [0]), Err(DecodeError::Events(_))));
    assert!(matches!(decoder.decode(&[0; 4], &mut [0]), Err(DecodeError::Events(_))));
    assert!(matches!(decoder.decode(&[0; 3], &mut []), Err(DecodeError::Flips(_))));
    let mut decoder = Decoder::from_dem("error(0.1) D0 D1 L0\nerror(0.1) D1", Algorithm::Mwpm).unwrap();
    assert!(matches!(decoder.decode(&[0b100], &mut [0]), Err(DecodeError::Events(_))));
    assert_eq!(decoder.decode(&[0b11], &mut [0]), Ok(()));
}

#[test]
fn every_density_of_events_is_decoded() {
    let set = shots(7, "p5e-3");
    let mut decoder = Decoder::from_dem(&set.model, Algorithm::Mwpm).unwrap();
    for events in random_events(60).chunks_exact(42) {
        let (mut once, mut again) = ([0xFF], [0xFF]);
        decoder.decode(events, &mut once).unwrap();
        let weight = decoder.weight();
        decoder.decode(events, &mut again).unwrap();
        assert!(once[0] <= 1);
        assert_eq!((once, weight), (again, decoder.weight()), "a decoder keeps nothing of the syndrome before");
    }
}

/// Syndromes of 336 detectors, from one event in sixteen to all of them.
fn random_events(shots: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 33) as u8
    };
    let mut density = |round| match round {
        0 => random() & random() & random() & random(),
        1 => random() & random() & random(),
        2 => random() & random(),
        3 => random(),
        4 => random() | random(),
        _ => 0xFF,
    };
    (0..shots * 42).map(|at| density(at / 42 % 6)).collect()
}
