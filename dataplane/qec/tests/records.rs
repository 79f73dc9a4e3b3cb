//! Sparse matrices, measurement maps, syndrome files and the mock table.

use berth_qec::{
    BitsError,
    mock::{MockTable, SyndromeFile},
    sparse::{MAX_SPARSE, MeasurementMap, SparseError, SparseMatrix},
};
use proptest::prelude::*;

#[test]
fn flat_matrices() {
    let matrix = SparseMatrix::from_flat(&[4, 0, -1, -1, 2, 2, 1, -1], None).unwrap();
    assert_eq!((matrix.num_rows(), matrix.num_columns()), (3, 5));
    assert_eq!(matrix.rows().collect::<Vec<_>>(), [&[0, 4][..], &[], &[1]]);
    assert_eq!(SparseMatrix::from_flat(&[0, -1, 1], None), Err(SparseError::Unterminated));
    let entry = |at, value| Err(SparseError::Entry { at, value, columns: 3 });
    assert_eq!(SparseMatrix::from_flat(&[0, 3, -1], Some(3)), entry(1, 3));
    assert_eq!(SparseMatrix::from_flat(&[-2, -1], Some(3)), entry(0, -2));
    assert_eq!(SparseMatrix::from_flat(&[0, -1], Some(usize::MAX)), Err(SparseError::TooLarge));
    let rows = |flat: &[i64]| SparseMatrix::from_flat(flat, None).map(|matrix| matrix.num_rows());
    let most_rows = vec![-1; MAX_SPARSE];
    assert_eq!(rows(&most_rows), Ok(MAX_SPARSE));
    assert_eq!(rows(&[&most_rows[..], &[-1]].concat()), Err(SparseError::TooLarge));
    let most_entries = vec![0; MAX_SPARSE];
    assert_eq!(rows(&[&most_entries[..], &[-1]].concat()), Ok(1));
    assert_eq!(rows(&[&most_entries[..], &[0, -1]].concat()), Err(SparseError::TooLarge));
    assert!(SparseMatrix::from_flat(&[0, -1], Some(0)).unwrap_err().to_string().contains("below 0"));
    assert_eq!(SparseMatrix::from_flat(&[], None).unwrap().num_rows(), 0);
}

#[test]
fn measurements_become_events() {
    let map = MeasurementMap::new(SparseMatrix::from_flat(&[0, -1, 0, 8, -1, 1, 2, 3, -1], None).unwrap());
    assert_eq!((map.num_measurements(), map.num_detectors()), (9, 3));
    for (measurements, expected) in [([0, 0], 0), ([1, 0], 0b011), ([1, 1], 0b001), ([0b1010, 1], 0b010)] {
        let mut events = [0xFF];
        map.apply(&measurements, &mut events).unwrap();
        assert_eq!(events, [expected], "{measurements:?}");
    }
    assert_eq!(map.apply(&[0], &mut [0]), Err(BitsError::Length { expected: 2, found: 1 }));
    assert_eq!(map.apply(&[0, 2], &mut [0]), Err(BitsError::Padding));
    assert_eq!(map.apply(&[0, 0], &mut [0; 2]), Err(BitsError::Length { expected: 1, found: 2 }));

    let identity = MeasurementMap::identity(12);
    let mut events = [0; 2];
    identity.apply(&[0xA5, 0x0F], &mut events).unwrap();
    assert_eq!((identity.num_measurements(), events), (12, [0xA5, 0x0F]));
}

const FILE: &str = "NUM_DATA: 9\nNUM_LOGICAL 1\n\nSHOT_START 0\nROUND_START 0\n0\n1\nROUND_START\n1\nSHOT_START 1\r\n\
    1\n 0 \n0\nSHOT_START 2\n0\n1\n1\nCORRECTIONS_START\n1\n0\n0\nCORRECTIONS_END\nanything\n";

#[test]
fn a_syndrome_file_fills_the_table() {
    let file = SyndromeFile::parse(FILE).unwrap();
    assert_eq!((file.num_data(), file.num_logical(), file.num_measurements()), (9, 1, 3));
    assert_eq!(file.shots().collect::<Vec<_>>(), [(&[0, 1, 1][..], 1), (&[1, 0, 0][..], 0), (&[0, 1, 1][..], 0)]);
    let table = MockTable::from_file(&file);
    assert_eq!((table.num_measurements(), table.num_observables()), (3, 1));
    // The third shot repeats the first: the first answer stays.
    for (measurements, hit, correction) in
        [(&[0, 1, 1][..], true, 1), (&[1, 0, 0], true, 0), (&[1, 1, 1], false, 0), (&[0, 1], false, 0), (&[], false, 0)]
    {
        let mut answer = [0xFF];
        assert_eq!(table.answer(measurements, &mut answer), hit, "{measurements:?}");
        assert_eq!(answer, [correction], "{measurements:?}");
    }
}

#[test]
fn entries_must_fit() {
    let mut table = MockTable::new(2, 3);
    table.insert(&[1, 0], &[1, 0, 1]).unwrap();
    let mut answer = [9; 3];
    assert!(table.answer(&[1, 0], &mut answer));
    assert_eq!(answer, [1, 0, 1]);
    assert_eq!(
        table.insert(&[1], &[0; 3]).unwrap_err().to_string(),
        "the entry has 1 bytes of measurements, the table takes 2"
    );
    assert_eq!(
        table.insert(&[1; 2], &[0]).unwrap_err().to_string(),
        "the entry has 1 bytes of corrections, the table takes 3"
    );
}

#[test]
fn mistakes_in_syndrome_files_are_placed() {
    let head = "NUM_DATA 9\nNUM_LOGICAL 1\n";
    let cases = [
        ("", 1, "ends before"),
        ("NUM_DATA\n", 1, "expected a number"),
        ("NUM_DATA x\n", 1, "expected a number"),
        ("NUM_DATA 1 2\n", 1, "at most one number"),
        ("SHOT_START 0\n", 1, "before the first shot"),
        ("NUM_DATA 9\nSHOT_START 0\n", 2, "before the first shot"),
        ("{}0\n", 3, "expected NUM_DATA, NUM_LOGICAL or SHOT_START"),
        ("{}SHOT_START\n", 3, "expected a number"),
        ("{}SHOT_START 0\n2\n", 4, "expected 0, 1"),
        ("{}SHOT_START 0\n1 0\n", 4, "expected nothing after 1"),
        ("{}SHOT_START 0\nSHOT_START 1\n", 4, "has no measurement"),
        ("{}SHOT_START 0\n1\nSHOT_START 1\n1\n0\nSHOT_START 2\n", 8, "has 2 measurements, the first one 1"),
        ("{}SHOT_START 0\n1\nCORRECTIONS_START\n0\n1\n", 7, "more corrections"),
        ("{}SHOT_START 0\n1\nCORRECTIONS_START\nCORRECTIONS_END\n", 6, "0 corrections for 1 shots"),
        ("{}SHOT_START 0\n1\nCORRECTIONS_START\nSHOT_START 1\n", 6, "expected 0, 1 or CORRECTIONS_END"),
        ("{}CORRECTIONS_START\n", 3, "expected NUM_DATA"),
        ("{}SHOT_START 0\n1\nCORRECTIONS_START\n0\n", 7, "ends before"),
    ];
    for (text, line, message) in cases {
        let error = SyndromeFile::parse(&text.replace("{}", head)).unwrap_err();
        assert!(error.message.contains(message), "{text:?}: {error}");
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn no_syndrome_file_panics(lines in prop::collection::vec("(NUM_DATA|NUM_LOGICAL|SHOT_START|ROUND_START|CORRECTIONS_START|CORRECTIONS_END|0|1|\\PC)( [0-9]{1,21})?", 0..30)) {
        let _ = SyndromeFile::parse(&lines.join("\n"));
    }
}
