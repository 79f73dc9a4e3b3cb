//! The table decoder, against a plain enumeration.

use std::{collections::HashMap, fs, path::Path};

use berth_qec::{
    Algorithm, Decoder, ModelError,
    dem::DetectorErrorModel,
    lut::{Lut, LutError, Rule},
    sparse::SparseMatrix,
};
use proptest::prelude::*;

/// The table by its definition, as (syndrome, flips): sets by size and in lexicographic order, where the first of each
/// syndrome stays.
fn table(errors: &[(u64, u64)], depth: usize) -> HashMap<u64, u64> {
    fn sets(errors: &[(u64, u64)], size: usize, sum: (u64, u64), table: &mut HashMap<u64, u64>) {
        if size == 0 {
            table.entry(sum.0).or_insert(sum.1);
            return;
        }
        for (at, error) in errors.iter().enumerate() {
            sets(&errors[at + 1..], size - 1, (sum.0 ^ error.0, sum.1 ^ error.1), table);
        }
    }
    let mut table = HashMap::from([(0, 0)]);
    (1..=depth).for_each(|size| sets(errors, size, (0, 0), &mut table));
    table
}

fn errors_of(model: &DetectorErrorModel) -> Vec<(u64, u64)> {
    let sum = |parts: (u64, u64), part: berth_qec::dem::Symptoms<'_>| {
        (part.detectors.iter().fold(parts.0, |all, at| all ^ 1 << at), parts.1 ^ part.observables)
    };
    model.mechanisms().map(|mechanism| mechanism.parts().fold((0, 0), sum)).collect()
}

#[test]
fn surface_code_tables_are_exact() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("config/decoders/surface_d3.dem")).unwrap();
    let shots = fs::read(root.join("perf/data/surface_d3_p5e-3.dets.b8")).unwrap();
    for depth in [1, 2] {
        let model = DetectorErrorModel::parse(&text).unwrap();
        let expected = table(&errors_of(&model), depth);
        // The syndrome of no error is in the expected table only.
        assert_eq!(Lut::from_model(&model, depth, Rule::First).unwrap().len(), expected.len() - 1);
        let mut decoder = Decoder::from_dem(&text, Algorithm::MultiErrorLut { depth }).unwrap();
        let mut decode = |syndrome: u64| {
            let mut flips = [0xFF];
            decoder.decode(&syndrome.to_le_bytes()[..3], &mut flips).unwrap();
            u64::from(flips[0])
        };
        for (&syndrome, &flips) in &expected {
            assert_eq!(decode(syndrome), flips, "{syndrome:#x}");
        }
        for shot in shots.chunks_exact(3) {
            let syndrome = u64::from_le_bytes([shot[0], shot[1], shot[2], 0, 0, 0, 0, 0]);
            assert_eq!(decode(syndrome), expected.get(&syndrome).copied().unwrap_or(0), "{syndrome:#x}");
        }
    }
}

#[test]
fn the_first_of_equal_syndromes_stays() {
    let mut decoder = Decoder::from_dem(
        "error(0.1) D0 L0\nerror(0.4) D0 L1\nerror(0.1) D1\nerror(0.1) D0 D1 L2",
        Algorithm::MultiErrorLut { depth: 2 },
    )
    .unwrap();
    for (events, flips) in [(0, 0), (0b01, 0b001), (0b10, 0), (0b11, 0b100)] {
        let mut found = [0xFF];
        decoder.decode(&[events], &mut found).unwrap();
        assert_eq!(found, [flips], "{events:#b}");
    }
}

#[test]
fn tables_that_are_too_large_are_refused() {
    let model = (0..3000).map(|i| format!("error(0.1) D{i}\n")).collect::<Vec<_>>().concat();
    let error = Decoder::from_dem(&model, Algorithm::Lut { depth: 2 }).unwrap_err();
    assert_eq!(
        error,
        ModelError::Lut(LutError::TooLarge { depth: 2, errors: 3000, sets: 3000 + 3000 * 2999 / 2, words: 48 })
    );
    assert!(error.to_string().contains("use a smaller depth"));
    let huge = Decoder::from_dem(&model, Algorithm::Lut { depth: usize::MAX }).unwrap_err();
    assert!(matches!(huge, ModelError::Lut(LutError::TooLarge { .. })));
    let none = Decoder::from_dem(&model, Algorithm::Lut { depth: 0 }).unwrap_err();
    assert_eq!(none, ModelError::Lut(LutError::NoDepth));
    // As deep as a small model allows, whatever the depth.
    let model = DetectorErrorModel::parse("error(0.1) D0\nerror(0.1) D1\nerror(0.1) D2").unwrap();
    assert_eq!(Lut::from_model(&model, usize::MAX, Rule::Likeliest).unwrap().len(), 7);
}

#[test]
fn matrices_must_agree() {
    let syndrome = SparseMatrix::from_flat(&[0, 1, -1, 1, 2, -1], None).unwrap();
    let observable = SparseMatrix::from_flat(&[2, -1], Some(4)).unwrap();
    assert_eq!(
        Lut::from_matrices(&syndrome, &observable, 1).unwrap_err(),
        LutError::Columns { syndrome: 3, observable: 4 }
    );
    let observable = SparseMatrix::from_flat(&[-1; 1025], Some(3)).unwrap();
    assert_eq!(Lut::from_matrices(&syndrome, &observable, 1).unwrap_err(), LutError::Observables(1025));
}

proptest! {
    #[test]
    fn matrices_make_the_table_of_their_columns(
        rows in prop::collection::vec(prop::collection::btree_set(0..10i64, 0..6), 1..8),
        observables in prop::collection::vec(prop::collection::btree_set(0..10i64, 0..6), 1..4),
        depth in 1..4usize,
    ) {
        let flat = |rows: &[std::collections::BTreeSet<i64>]| -> Vec<i64> {
            rows.iter().flat_map(|row| row.iter().copied().chain([-1])).collect()
        };
        let column = |rows: &[std::collections::BTreeSet<i64>], at| {
            rows.iter().enumerate().fold(0, |column, (row, columns)| column | u64::from(columns.contains(&at)) << row)
        };
        let errors: Vec<_> = (0..10).map(|at| (column(&rows, at), column(&observables, at))).collect();
        let expected = table(&errors, depth);
        let syndrome = SparseMatrix::from_flat(&flat(&rows), Some(10)).unwrap();
        let observable = SparseMatrix::from_flat(&flat(&observables), Some(10)).unwrap();
        let mut decoder = Decoder::from_lut(Lut::from_matrices(&syndrome, &observable, depth).unwrap());
        for events in 0..1u64 << rows.len() {
            let mut flips = [0];
            decoder.decode(&[events as u8], &mut flips).unwrap();
            prop_assert_eq!(u64::from(flips[0]), expected.get(&events).copied().unwrap_or(0));
        }
    }
}

/// Of each syndrome how likely each of four answers is, over all sets of up to `depth` errors.
fn cosets(errors: &[(u64, u64)], probabilities: &[f64], depth: usize) -> HashMap<u64, [f64; 4]> {
    let mut cosets = HashMap::<u64, [f64; 4]>::new();
    for set in (0..1_u64 << errors.len()).filter(|set| set.count_ones() as usize <= depth) {
        let (mut sum, mut probability) = ((0, 0), 1.0);
        for (at, (error, p)) in errors.iter().zip(probabilities).enumerate() {
            let happens = set >> at & 1 != 0;
            probability *= if happens { *p } else { 1.0 - p };
            if happens {
                sum = (sum.0 ^ error.0, sum.1 ^ error.1);
            }
        }
        cosets.entry(sum.0).or_default()[sum.1 as usize] += probability;
    }
    cosets
}

proptest! {
    #[test]
    fn answers_are_the_likeliest_of_all_sets(
        errors in prop::collection::vec((0..16_u64, 0..4_u64, 0.001..0.5_f64), 1..10),
        depth in 1..11_usize,
    ) {
        let targets = |word: u64, letter: char| (0..4).filter(move |at| word >> at & 1 != 0).map(move |at| format!(" {letter}{at}"));
        let line = |(detectors, flips, p): &(u64, u64, f64)| {
            format!("error({p}){}\n", targets(*detectors, 'D').chain(targets(*flips, 'L')).collect::<String>())
        };
        let text = errors.iter().map(line).collect::<String>() + "detector D3\nlogical_observable L1\n";
        let mut decoder = Decoder::from_dem(&text, Algorithm::Lut { depth }).unwrap();
        let (sums, probabilities): (Vec<_>, Vec<_>) = errors.iter().map(|(d, l, p)| ((*d, *l), *p)).unzip();
        let cosets = cosets(&sums, &probabilities, depth);
        for syndrome in 1..16_u64 {
            let mut flips = [0xFF];
            decoder.decode(&[syndrome as u8], &mut flips).unwrap();
            let Some(likely) = cosets.get(&syndrome) else {
                prop_assert_eq!(flips, [0]);
                continue;
            };
            let most = likely.iter().copied().fold(0.0, f64::max);
            let answered = likely[usize::from(flips[0])];
            prop_assert!(answered >= most * (1.0 - 1e-6), "{syndrome:#b}: {flips:?} of {likely:?}");
        }
    }
}

#[test]
fn several_sets_outweigh_the_first_and_certain_errors_are_no_trouble() {
    let several = "error(0.1) D0 L0\nerror(0.08) D0 L1\nerror(0.08) D0 L1\nerror(1) D1\nerror(0) D2 L0\n";
    let answers = |algorithm| {
        let mut decoder = Decoder::from_dem(several, algorithm).unwrap();
        let mut flips = [0];
        [0b001, 0b011, 0b100].map(|events| {
            decoder.decode(&[events], &mut flips).unwrap();
            flips[0]
        })
    };
    assert_eq!(answers(Algorithm::Lut { depth: 2 }), [0b10, 0b10, 0b01]);
    assert_eq!(answers(Algorithm::MultiErrorLut { depth: 2 }), [0b01, 0b01, 0b01]);
}
