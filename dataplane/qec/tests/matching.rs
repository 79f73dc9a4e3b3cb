//! Matching on models made here, against exact answers.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use berth_qec::{Algorithm, DecodeError, Decoder, ModelError, Tables, dem::DetectorErrorModel, mwpm::MwpmError};
use proptest::prelude::*;

fn mwpm(model: &str) -> Decoder {
    Decoder::from_dem(model, Algorithm::Mwpm).unwrap()
}

fn decode(decoder: &mut Decoder, events: u64) -> Result<u64, DecodeError> {
    decode_from(decoder, events, 0)
}

/// The flips of 64 observables, of which the first is L`first`, a multiple of 8; nothing else may be flipped.
fn decode_from(decoder: &mut Decoder, events: u64, first: usize) -> Result<u64, DecodeError> {
    let mut flips = [0; 128];
    let width = decoder.num_observables().div_ceil(8);
    let events = &events.to_le_bytes()[..decoder.num_detectors().div_ceil(8)];
    decoder.decode(events, &mut flips[..width])?;
    let found = flips[first / 8..].first_chunk_mut().unwrap();
    let found = u64::from_le_bytes(std::mem::take(found));
    assert_eq!(flips, [0; 128], "nothing else");
    Ok(found)
}

#[test]
fn repetition_code() {
    // Five data qubits, four checks; the observable is the first qubit.
    let mut decoder = mwpm("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1 D2\nerror(0.1) D2 D3\nerror(0.1) D3");
    for errors in 0..32u32 {
        let events = u64::from((errors ^ errors >> 1) & 0xF);
        let minority = if errors.count_ones() <= 2 { errors } else { !errors };
        assert_eq!(decode(&mut decoder, events), Ok(u64::from(minority & 1)), "errors {errors:05b}");
    }
}

#[test]
fn parallel_errors_are_one_edge() {
    // Two errors of 4 % make one of 7.7 %, which is likelier than one of 6 %; alone they would not be.
    let mut decoder = mwpm("error(0.04) D0 L0\nerror(0.06) D0 D1\nerror(0.04) D0 L0\nerror(0.5) D1");
    assert_eq!(decode(&mut decoder, 0b01), Ok(1));
    let mut decoder = mwpm("error(0.04) D0 L0\nerror(0.06) D0 D1\nerror(0.5) D1");
    assert_eq!(decode(&mut decoder, 0b01), Ok(0));
}

#[test]
fn decomposed_errors_are_their_parts() {
    let mut decoder = mwpm("error(0.1) D0 L0 ^ D1 D2 L1\nerror(0.001) D1\nerror(0.001) D2");
    assert_eq!(decode(&mut decoder, 0b001), Ok(0b01));
    assert_eq!(decode(&mut decoder, 0b110), Ok(0b10));
    assert_eq!(decode(&mut decoder, 0b111), Ok(0b11));
}

#[test]
fn likely_errors_are_expected() {
    let mut decoder = mwpm("error(0.9) D0 L0\nerror(0.1) D0 L1\nerror(1) D1 L2");
    // Parallel: 0.9 and 0.1 make 0.82, with the first one's observable.
    assert_eq!(decode(&mut decoder, 0b00), Ok(0b000));
    assert_eq!(decode(&mut decoder, 0b10), Ok(0b100));
    assert_eq!(decode(&mut decoder, 0b11), Ok(0b101));
}

#[test]
fn odd_events_without_a_boundary_fail_and_harm_nothing() {
    let ring: Vec<_> = (0..20).map(|i| format!("error(0.1) D{i} D{} L{}\n", (i + 1) % 20, i % 3)).collect();
    let mut decoder = mwpm(&format!("{}error(0.1) D20 L5\ndetector D21", ring.concat()));
    let good = decode(&mut decoder, 0b11);
    assert_eq!(good, Ok(1));
    for odd in [1, 0b111, 0x7_FFFF, 1 << 21] {
        assert_eq!(decode(&mut decoder, odd), Err(DecodeError::Unmatchable), "{odd:#x}");
        assert_eq!(decode(&mut decoder, 0b11), good);
    }
    assert_eq!(decode(&mut decoder, 1 << 20), Ok(1 << 5));
    assert!(decode(&mut decoder, 0xF_FFFF).is_ok());
}

#[test]
fn hyperedges_are_refused() {
    let error = Decoder::from_dem("error(0.1) D0\n\nerror(0.1) D0 ^ D1 D2 D3", Algorithm::Mwpm).unwrap_err();
    assert_eq!(error, ModelError::Mwpm(MwpmError::NotGraphlike { line: 3, detectors: 3 }));
    assert!(error.to_string().starts_with("line 3: "));
}

#[test]
fn rare_errors_keep_their_weight() {
    // The chain of two errors of 1e-5 is a thousand times likelier than the one of 1e-13.
    let mut decoder = mwpm("error(1e-13) D0 L0\nerror(1e-5) D0 D1\nerror(1e-5) D1");
    assert_eq!(decode(&mut decoder, 0b01), Ok(0));
    assert!((decoder.weight().unwrap() - 2.0 * (99_999f64).ln()).abs() < 1e-8);
    let mut decoder = mwpm("error(1e-9) D0 L0\nerror(1e-5) D0 D1\nerror(1e-5) D1");
    assert_eq!(decode(&mut decoder, 0b01), Ok(1));
    // The least positive probability, and one that 1 - p cannot tell from it.
    let mut decoder = mwpm("error(5e-324) D0 L0\nerror(1e-161) D0 D1\nerror(1e-161) D1\nerror(1) D2");
    assert_eq!(decode(&mut decoder, 0b101), Ok(0));
    assert!((decoder.weight().unwrap() - 2.0 * (1e161f64).ln()).abs() < 1e-8);
}

#[test]
fn a_model_without_errors_decodes_nothing() {
    let mut decoder = mwpm("");
    assert_eq!(decode(&mut decoder, 0), Ok(0));
}

/// Detectors of an edge (a single one means the boundary) and its probability.
type Edge = (Vec<u32>, f64);

/// Two detectors, or one and the boundary.
fn ends(detectors: usize) -> impl Strategy<Value = Vec<u32>> {
    let end = 0..detectors as u32;
    (end.clone(), end).prop_map(|(one, other)| {
        let mut ends = vec![one.min(other), one.max(other)];
        ends.dedup();
        ends
    })
}

/// A graph of up to 14 detectors and 60 edges, none of them parallel. Each edge flips its own observable, from L`first` on, so
/// that the decoder's answer names the edges it chose.
fn graphs() -> impl Strategy<Value = (usize, Vec<Edge>)> {
    (1..15usize).prop_flat_map(|detectors| {
        let ends = ends(detectors);
        let probability = prop_oneof![4 => 0.001..0.5, 1 => 0.5..0.999];
        let edges = prop::collection::btree_map(ends, probability, 0..60);
        (Just(detectors), edges.prop_map(|edges| edges.into_iter().collect()))
    })
}

fn model(detectors: usize, edges: &[Edge], first: usize) -> String {
    let mut model = vec![format!("detector D{}\nlogical_observable L{}", detectors - 1, first + 63)];
    for (index, (ends, p)) in edges.iter().enumerate() {
        let ends: Vec<_> = ends.iter().map(|end| format!("D{end}")).collect();
        model.push(format!("error({p}) {} L{}", ends.join(" "), first + index));
    }
    model.join("\n")
}

/// Few observables, of which each path has the flips, and many, for which its errors are looked up.
fn firsts() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(40), Just(960)]
}

/// Least weight of edges that explain each syndrome, by trying each edge with and without.
fn least_weights(detectors: usize, edges: &[Edge]) -> Vec<f64> {
    let mut least = vec![f64::INFINITY; 1 << detectors];
    least[0] = 0.0;
    for edge in edges {
        let before = least.clone();
        for (syndrome, least) in least.iter_mut().enumerate() {
            *least = least.min(before[syndrome ^ syndrome_of(edge)] + weight(edge));
        }
    }
    least
}

fn syndrome_of((ends, _): &Edge) -> usize {
    ends.iter().fold(0, |syndrome, end| syndrome ^ 1 << end)
}

fn weight((_, p): &Edge) -> f64 {
    ((1.0 - p) / p).ln()
}

proptest! {
    /// A ring has two sets of edges for each syndrome, and no boundary.
    #[test]
    fn large_groups_are_matched(
        edges in prop::collection::vec((0.001..0.5f64, any::<bool>()), 100..200),
        more in any::<prop::sample::Index>(),
    ) {
        let ring = edges.len();
        let model: Vec<_> = edges
            .iter()
            .enumerate()
            .map(|(at, (p, _))| format!("error({p}) D{at} D{} L{}\n", (at + 1) % ring, at % 61))
            .collect();
        let mut decoder = mwpm(&model.concat()).within(u64::MAX);
        let mut events = vec![0u8; ring.div_ceil(8)];
        let (mut weights, mut flips) = ([0f64; 2], [0u64; 2]);
        for (at, edge) in edges.iter().enumerate() {
            let (taken, before) = (edge.1, edges[(at + ring - 1) % ring].1);
            events[at / 8] |= u8::from(taken != before) << (at % 8);
            weights[usize::from(taken)] += ((1.0 - edge.0) / edge.0).ln();
            flips[usize::from(taken)] ^= 1 << (at % 61);
        }
        prop_assume!((weights[0] - weights[1]).abs() > 1e-6);
        let mut found = [0; 8];
        decoder.decode(&events, &mut found).unwrap();
        prop_assert_eq!(decoder.exhausted(), 0);
        prop_assert_eq!(u64::from_le_bytes(found), flips[usize::from(weights[1] < weights[0])]);
        prop_assert!((decoder.weight().unwrap() - weights[0].min(weights[1])).abs() < 1e-6);
        // One event more or less has no matching.
        let flipped = more.index(ring);
        events[flipped / 8] ^= 1 << (flipped % 8);
        prop_assert_eq!(decoder.decode(&events, &mut found), Err(DecodeError::Unmatchable));
    }

    /// However few the steps: every syndrome is explained, or refused if nothing explains it; with fewer steps than the least
    /// matching takes, by a heavier set of errors at most.
    #[test]
    fn what_is_out_of_steps_is_explained(
        (detectors, edges) in graphs(),
        first in firsts(),
        picks in prop::collection::vec((any::<u16>(), 0..200u64), 16),
    ) {
        let model = DetectorErrorModel::parse(&model(detectors, &edges, first)).unwrap();
        let tables = Arc::new(Tables::new(&model, Algorithm::Mwpm).unwrap());
        let least = least_weights(detectors, &edges);
        for (syndrome, steps) in picks.iter().map(|(pick, steps)| (*pick as usize % least.len(), *steps)).chain([(least.len() - 1, 0)]) {
            let mut decoder = Decoder::new(tables.clone()).within(steps);
            match decode_from(&mut decoder, syndrome as u64, first) {
                Err(error) => {
                    prop_assert_eq!(error, DecodeError::Unmatchable);
                    prop_assert!(least[syndrome].is_infinite());
                }
                Ok(flips) => {
                    let chosen = || edges.iter().enumerate().filter(|(index, _)| flips >> index & 1 == 1);
                    prop_assert_eq!(chosen().fold(0, |syndrome, (_, edge)| syndrome ^ syndrome_of(edge)), syndrome);
                    let found: f64 = chosen().map(|(_, edge)| weight(edge)).sum();
                    prop_assert!(found > least[syndrome] - 1e-6);
                    prop_assert!(decoder.exhausted() > 0 || found < least[syndrome] + 1e-6);
                }
            }
        }
    }

    #[test]
    fn matchings_are_least(
        (detectors, edges) in graphs(),
        first in firsts(),
        picks in prop::collection::vec(any::<u16>(), 16),
    ) {
        let mut decoder = mwpm(&model(detectors, &edges, first));
        let least = least_weights(detectors, &edges);
        // Every event at once is the largest group that the graph can make.
        for syndrome in picks.iter().map(|&pick| pick as usize % least.len()).chain([least.len() - 1]) {
            match decode_from(&mut decoder, syndrome as u64, first) {
                Err(error) => {
                    prop_assert_eq!(error, DecodeError::Unmatchable);
                    prop_assert!(least[syndrome].is_infinite());
                }
                Ok(flips) => {
                    let chosen = || edges.iter().enumerate().filter(|(index, _)| flips >> index & 1 == 1);
                    prop_assert_eq!(chosen().fold(0, |syndrome, (_, edge)| syndrome ^ syndrome_of(edge)), syndrome);
                    let found: f64 = chosen().map(|(_, edge)| weight(edge)).sum();
                    prop_assert!((found - least[syndrome]).abs() < 1e-6, "{} is not {}", found, least[syndrome]);
                }
            }
        }
    }
}

/// Errors by edge, and errors of two edges.
#[derive(Debug, Clone)]
struct Correlated {
    detectors: usize,
    edges: Vec<Edge>,
    pairs: Vec<(usize, usize, f64)>,
}

fn correlated() -> impl Strategy<Value = Correlated> {
    (2..9usize).prop_flat_map(|detectors| {
        let edges = prop::collection::btree_map(ends(detectors), 0.001..0.1, 2..12);
        let pair = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0.001..0.1);
        (Just(detectors), edges, prop::collection::vec(pair, 0..10)).prop_map(|(detectors, edges, pairs)| {
            let of = edges.len();
            let pairs = pairs.into_iter().map(|(one, other, p)| (one.index(of), other.index(of), p));
            let pairs = pairs.filter(|(one, other, _)| one != other).collect();
            Correlated { detectors, edges: edges.into_iter().collect(), pairs }
        })
    })
}

fn either(p: f64, q: f64) -> f64 {
    p + q - 2.0 * p * q
}

impl Correlated {
    fn model(&self, first: usize) -> String {
        let mut model = model(self.detectors, &self.edges, first);
        let part = |edge: usize| {
            let ends: Vec<_> = self.edges[edge].0.iter().map(|end| format!("D{end}")).collect();
            format!("{} L{}", ends.join(" "), first + edge)
        };
        for (one, other, p) in &self.pairs {
            write!(model, "\nerror({p}) {} ^ {}", part(*one), part(*other)).unwrap();
        }
        model
    }

    /// The edges with the probabilities that they have, whether another is an error or not.
    fn marginals(&self) -> Vec<Edge> {
        let mut edges = self.edges.clone();
        for (one, other, p) in &self.pairs {
            for edge in [*one, *other] {
                edges[edge].1 = either(edges[edge].1, *p);
            }
        }
        edges
    }

    /// The same if these edges, a bit each, are errors.
    fn implied(&self, errors: u64) -> Vec<Edge> {
        let marginals = self.marginals();
        let mut implied = marginals.clone();
        for cause in (0..marginals.len()).filter(|at| errors >> at & 1 == 1) {
            let mut both = vec![0.0; marginals.len()];
            for (one, other, p) in &self.pairs {
                for (one, other) in [(one, other), (other, one)] {
                    if *one == cause {
                        both[*other] = either(both[*other], *p);
                    }
                }
            }
            for (edge, both) in implied.iter_mut().zip(both) {
                edge.1 = edge.1.max((both / marginals[cause].1).min(0.5));
            }
        }
        implied
    }
}

/// Belief propagation in logarithms of p / (1 - p), on the errors of [`Correlated`].
impl Correlated {
    /// The edges, with probabilities for which [`weight`] is -ln of those that they have given a syndrome. `None` where rounding
    /// decides whether an iteration is the last.
    fn believed(&self, syndrome: usize) -> Option<Vec<Edge>> {
        let singles = self.edges.iter().enumerate().map(|(at, (_, p))| (vec![at], *p));
        let pairs = self.pairs.iter().map(|(one, other, p)| (vec![*one, *other], *p));
        // By the detectors that they flip: that it happens, and the parts of the first of them.
        let mut errors = BTreeMap::<usize, (f64, Vec<usize>)>::new();
        for (parts, p) in singles.chain(pairs) {
            let flipped = parts.iter().fold(0, |flipped, at| flipped ^ syndrome_of(&self.edges[*at]));
            let error = errors.entry(flipped).or_insert((0.0, parts));
            error.0 = either(error.0, p);
        }
        let (flipped, errors): (Vec<usize>, Vec<_>) = errors.into_iter().unzip();
        let mut beliefs: Vec<f64> = errors.iter().map(|(p, _)| (p / (1.0 - p)).ln()).collect();
        let mut messages = vec![vec![0.0_f64; errors.len()]; self.detectors];
        for _ in 0..5 {
            for (detector, messages) in messages.iter_mut().enumerate() {
                let event = if syndrome >> detector & 1 == 1 { -1.0 } else { 1.0 };
                let of: Vec<usize> = (0..errors.len()).filter(|at| flipped[*at] >> detector & 1 == 1).collect();
                let biases: Vec<f64> = of.iter().map(|at| ((messages[*at] - beliefs[*at]) / 2.0).tanh()).collect();
                for (place, at) in of.iter().enumerate() {
                    let others = biases.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, bias)| bias);
                    let sent = -2.0 * (event * others.product::<f64>()).atanh();
                    let sent = sent.clamp(-1e6_f64.ln(), 1e6_f64.ln());
                    beliefs[*at] += sent - messages[*at];
                    messages[*at] = sent;
                }
            }
            if beliefs.iter().any(|belief| belief.abs() < 1e-3) {
                return None;
            }
            let made = beliefs.iter().zip(&flipped).filter(|(belief, _)| **belief > 0.0);
            if made.fold(0, |made, (_, flipped)| made ^ flipped) == syndrome {
                break;
            }
        }
        let mut edges = self.edges.clone();
        for (at, edge) in edges.iter_mut().enumerate() {
            let of = errors.iter().zip(&beliefs).filter(|((_, parts), _)| parts.contains(&at));
            let p = of.map(|(_, belief)| 1.0 / (1.0 + (-belief).exp())).sum::<f64>().min(1.0);
            edge.1 = p / (1.0 + p);
        }
        Some(edges)
    }
}

/// The lightest set of edges that explains a syndrome, its weight, and how much heavier the next is.
fn lightest(edges: &[Edge], syndrome: usize) -> Option<(u64, f64, f64)> {
    let explains = |set: &u64| {
        let chosen = edges.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
        chosen.fold(0, |syndrome, (_, edge)| syndrome ^ syndrome_of(edge)) == syndrome
    };
    let total = |set: u64| edges.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|(_, e)| weight(e)).sum();
    let mut sets: Vec<(f64, u64)> = (0..1 << edges.len()).filter(explains).map(|set| (total(set), set)).collect();
    sets.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let &(least, set) = sets.first()?;
    Some((set, least, sets.get(1).map_or(f64::INFINITY, |next| next.0 - least)))
}

proptest! {
    /// Both passes, by trying all sets of edges.
    #[test]
    fn correlated_matchings_are_least_given_what_the_first_pass_has_found(
        model in correlated(),
        first in firsts(),
        picks in prop::collection::vec(any::<u16>(), 8),
    ) {
        let mut decoder = Decoder::from_dem(&model.model(first), Algorithm::CorrelatedMwpm).unwrap();
        for syndrome in picks.iter().map(|pick| *pick as usize % (1 << model.detectors)) {
            let Some((errors, _, gap)) = lightest(&model.marginals(), syndrome) else {
                let unmatchable = decode_from(&mut decoder, syndrome as u64, first);
                prop_assert_eq!(unmatchable, Err(DecodeError::Unmatchable));
                continue;
            };
            prop_assume!(gap > 1e-6);
            let implied = model.implied(errors);
            let (_, least, _) = lightest(&implied, syndrome).unwrap();
            let flips = decode_from(&mut decoder, syndrome as u64, first).unwrap();
            let chosen = || implied.iter().enumerate().filter(|(index, _)| flips >> index & 1 == 1);
            prop_assert_eq!(chosen().fold(0, |syndrome, (_, edge)| syndrome ^ syndrome_of(edge)), syndrome);
            let found: f64 = chosen().map(|(_, edge)| weight(edge)).sum();
            prop_assert!((found - least).abs() < 1e-6, "{} is not {}", found, least);
            prop_assert!((decoder.weight().unwrap() - least).abs() < 1e-6);
        }
    }
}

proptest! {
    /// The weights that belief propagation gives, and the matching, by trying all sets of edges.
    #[test]
    fn believed_matchings_are_least_given_the_beliefs(
        model in correlated(),
        first in firsts(),
        picks in prop::collection::vec(any::<u16>(), 8),
    ) {
        let mut decoder = Decoder::from_dem(&model.model(first), Algorithm::BeliefMwpm).unwrap();
        for syndrome in picks.iter().map(|pick| *pick as usize % (1 << model.detectors)) {
            if lightest(&model.edges, syndrome).is_none() {
                let unmatchable = decode_from(&mut decoder, syndrome as u64, first);
                prop_assert_eq!(unmatchable, Err(DecodeError::Unmatchable));
                continue;
            }
            let Some(believed) = model.believed(syndrome) else { continue };
            let (_, least, _) = lightest(&believed, syndrome).unwrap();
            let flips = decode_from(&mut decoder, syndrome as u64, first).unwrap();
            let chosen = || believed.iter().enumerate().filter(|(index, _)| flips >> index & 1 == 1);
            prop_assert_eq!(chosen().fold(0, |syndrome, (_, edge)| syndrome ^ syndrome_of(edge)), syndrome);
            let found: f64 = chosen().map(|(_, edge)| weight(edge)).sum();
            let near = |weight: f64| (weight - least).abs() < 1e-2 * (1.0 + least);
            prop_assert!(near(found), "{} is not {}", found, least);
            prop_assert!(near(decoder.weight().unwrap()), "{:?} is not {}", decoder.weight(), least);
        }
    }

    /// Errors that happen more often than not have no beliefs: their edges weigh what the graph says.
    #[test]
    fn edges_of_frequent_errors_keep_their_weights(
        (detectors, edges) in graphs(),
        picks in prop::collection::vec(any::<u16>(), 8),
    ) {
        let edges: Vec<Edge> = edges.into_iter().map(|(ends, p)| (ends, 1.0 - p.min(0.49))).collect();
        let text = model(detectors, &edges, 0);
        let [mut own, mut believed] = [Algorithm::Mwpm, Algorithm::BeliefMwpm].map(|a| Decoder::from_dem(&text, a).unwrap());
        for syndrome in picks.iter().map(|pick| u64::from(*pick) % (1 << detectors)) {
            let answers = [&mut own, &mut believed].map(|decoder| (decode(decoder, syndrome).is_ok(), decoder.weight()));
            prop_assert_eq!(answers[0].0, answers[1].0);
            if answers[0].0 {
                prop_assert_eq!(answers[0].1, answers[1].1);
            }
        }
    }
}

#[test]
fn what_one_part_tells_of_another_decides() {
    // Alone, the events of D1 and D2 are of the error that flips both; beside that of D0, the one of D1 is of the error of D0.
    let text = "error(0.02) D0 ^ D1 L0\nerror(0.001) D0 L2\nerror(0.03) D1 D2 L1\nerror(0.3) D2 L3\n";
    let [mut one, mut two] = [Algorithm::Mwpm, Algorithm::CorrelatedMwpm].map(|a| Decoder::from_dem(text, a).unwrap());
    assert_eq!((decode(&mut one, 0b10), decode(&mut two, 0b10)), (Ok(0b1), Ok(0b1)));
    assert_eq!((decode(&mut one, 0b110), decode(&mut two, 0b110)), (Ok(0b10), Ok(0b10)));
    assert_eq!((decode(&mut one, 0b111), decode(&mut two, 0b111)), (Ok(0b10), Ok(0b1001)));
}
/// Where many distances are alike, events find each other from both ends.
#[test]
fn there_is_room_for_pairs_that_are_found_twice() {
    let often = [[0, 2], [0, 5], [1, 2], [1, 8], [3, 4], [3, 7], [5, 8], [6, 7]].map(|ends| (ends.to_vec(), 0.49));
    let seldom =
        [[0, 4], [0, 6], [0, 7], [1, 3], [1, 4], [1, 5], [1, 6], [1, 7], [2, 3], [2, 4], [2, 5], [2, 6], [3, 6]];
    let more = [[3, 8], [4, 5], [4, 6], [4, 7], [4, 8], [5, 6], [7, 8]];
    let seldom = seldom.into_iter().chain(more).map(|ends| (ends.to_vec(), 0.001));
    let boundary = [1, 2, 5, 6, 7].map(|end| (vec![end], 0.001));
    let edges: Vec<Edge> = often.into_iter().chain([(vec![3, 5], 0.463)]).chain(seldom).chain(boundary).collect();
    let least = least_weights(9, &edges);
    let mut decoder = mwpm(&model(9, &edges, 0));
    for (syndrome, least) in (0..).zip(least) {
        decode(&mut decoder, syndrome).unwrap();
        assert!((decoder.weight().unwrap() - least).abs() < 1e-6, "{syndrome:b}");
    }
    assert_eq!(decoder.exhausted(), 0);
}
