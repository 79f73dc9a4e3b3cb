//! The parser of detector error models.

use berth_qec::dem::{DetectorErrorModel, MAX_NESTING};
use proptest::prelude::*;

/// Probability, line, and for each part its detectors and observables.
type Mechanism = (f64, u32, Vec<(Vec<u32>, u64)>);

fn mechanisms(text: &str) -> Vec<Mechanism> {
    let model = DetectorErrorModel::parse(text).unwrap();
    let parts = |mechanism: berth_qec::dem::MechanismRef<'_>| {
        mechanism.parts().map(|part| (part.detectors.to_vec(), part.observables)).collect()
    };
    model.mechanisms().map(|mechanism| (mechanism.probability(), mechanism.line(), parts(mechanism))).collect()
}

#[test]
fn every_form_is_read() {
    let text = "# a comment\n\
        ERROR[a tag](0.125) d1 L0 ^ D3 D1 ^ L5 # another\r\n\
        \tdetector(1, 2.5, -3e1) D7\n\
        detector D4 D5\n\
        logical_observable L9\n\
        error(1)\n\
        error(0.5) D2 D2 D3 L1 L1\n\
        repeat[loop] 2 {   error(0.25) D0\n\
        \x20 Repeat 2 { # inner\n\
            shift_detectors(0, 0, 1) 10\n\
          }\n\
        }\n\
        error(0) D1";
    assert_eq!(
        mechanisms(text),
        [
            (0.125, 2, vec![(vec![1], 1), (vec![1, 3], 0), (vec![], 0b10_0000)]),
            (1.0, 6, vec![(vec![], 0)]),
            (0.5, 7, vec![(vec![3], 0)]),
            (0.25, 8, vec![(vec![0], 0)]),
            (0.25, 8, vec![(vec![20], 0)]),
            (0.0, 13, vec![(vec![41], 0)]),
        ]
    );
    let model = DetectorErrorModel::parse(text).unwrap();
    assert_eq!((model.num_detectors(), model.num_observables()), (42, 10));
}

#[test]
fn mistakes_are_placed_and_explained() {
    let deep = "repeat 2 {\n".repeat(MAX_NESTING + 1);
    let cases = [
        ("\n  errors(0.1) D0", 2, 3, "unknown instruction 'errors'"),
        ("error D0", 1, 1, "one argument"),
        ("error(0.1, 0.2) D0", 1, 1, "one argument"),
        ("error(1.5) D0", 1, 1, "between 0 and 1"),
        ("error(nan) D0", 1, 7, "expected a number"),
        ("error(0.1 D0", 1, 11, "expected ',' or ')'"),
        ("error(0.1)D0", 1, 11, "expected a blank"),
        ("error(0.1) X0", 1, 12, "expected a target"),
        ("error(0.1) D", 1, 12, "expected a target"),
        ("error(0.1) D99999999999999999999", 1, 12, "expected a target"),
        ("error(0.1) 5", 1, 1, "the targets of 'error'"),
        ("error(0.1) ^ D0", 1, 1, "'^' stands between"),
        ("error(0.1) D0 ^", 1, 1, "'^' stands between"),
        ("error(0.1) D0 ^ ^ D1", 1, 1, "'^' stands between"),
        ("error(0.1) D0 {", 1, 15, "only 'repeat'"),
        ("error[tag(0.1) D0", 1, 18, "a tag ends with ']'"),
        ("detector L0", 1, 1, "the targets of 'detector'"),
        ("detector", 1, 1, "expected a target"),
        ("logical_observable(1) L0", 1, 1, "takes no argument"),
        ("logical_observable D0", 1, 1, "the targets of 'logical_observable'"),
        ("shift_detectors D1", 1, 1, "takes one number"),
        ("shift_detectors", 1, 1, "takes one number"),
        ("repeat 5", 1, 1, "a count and a block"),
        ("repeat {", 1, 1, "a count and a block"),
        ("repeat 0 {\n}", 1, 1, "at least once"),
        ("error(0.1) D0\nrepeat 5 {\n", 2, 1, "without its '}'"),
        ("error(0.1) D0\n}", 2, 1, "without a 'repeat"),
        ("error(0.1) D1048576", 1, 1, "beyond the limit"),
        ("shift_detectors 18446744073709551615\nerror(0.1) D1", 2, 1, "beyond the limit"),
        ("error(0.1) L1024", 1, 1, "beyond the limit"),
        ("repeat 1000000000000 {\nerror(0.1) D0\n}", 2, 1, "expands to more"),
        ("repeat 18446744073709551615 {\n}", 2, 1, "expands to more"),
        (&deep, MAX_NESTING as u32 + 1, 1, "nest at most"),
    ];
    for (text, line, column, message) in cases {
        let error = DetectorErrorModel::parse(text).unwrap_err();
        assert!(error.message.contains(message), "{text:?}: {error}");
        assert_eq!((error.line, error.column), (line, column), "{text:?}: {error}");
    }
}

/// An item of a model: its text, and the detectors of its errors in order, computed without the parser.
#[derive(Debug, Clone)]
enum Item {
    Error(u32),
    Shift(u32),
    Repeat(u32, Vec<Item>),
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    let leaf = prop_oneof![(0..50u32).prop_map(Item::Error), (0..5u32).prop_map(Item::Shift)];
    let item = leaf.prop_recursive(3, 24, 4, |inner| {
        (1..4u32, prop::collection::vec(inner, 0..4)).prop_map(|(count, items)| Item::Repeat(count, items))
    });
    prop::collection::vec(item, 0..8)
}

fn write(items: &[Item], text: &mut Vec<String>) {
    for item in items {
        match item {
            Item::Error(detector) => text.push(format!("error(0.25) D{detector} L3")),
            Item::Shift(by) => text.push(format!("shift_detectors(1, 0) {by}")),
            Item::Repeat(count, items) => {
                text.push(format!("repeat {count} {{"));
                write(items, text);
                text.push("}".into());
            }
        }
    }
}

fn run(items: &[Item], shift: &mut u32, detectors: &mut Vec<u32>) {
    for item in items {
        match item {
            Item::Error(detector) => detectors.push(detector + *shift),
            Item::Shift(by) => *shift += by,
            Item::Repeat(count, items) => (0..*count).for_each(|_| run(items, shift, detectors)),
        }
    }
}

proptest! {
    #[test]
    fn loops_and_shifts_expand_in_order(items in items()) {
        let (mut text, mut expected) = (Vec::new(), Vec::new());
        write(&items, &mut text);
        run(&items, &mut 0, &mut expected);
        let found: Vec<u32> = mechanisms(&text.join("\n")).iter().map(|(_, _, parts)| parts[0].0[0]).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn no_text_panics(text in "([a-z_]{0,8}|error|repeat|detector|shift_detectors|[\\[\\](){}^#\n ]|[DL]?[0-9.]{1,4}|\\PC){0,40}") {
        let _ = DetectorErrorModel::parse(&text);
    }
}
