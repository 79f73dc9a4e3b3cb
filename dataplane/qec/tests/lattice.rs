//! Matching on lattices, against the least matching by all distances. A quarter of `PROPTEST_CASES` (256) cases are
//! run.

use std::fmt::Write as _;

use berth_qec::{Algorithm, DecodeError, Decoder, dem::DetectorErrorModel};
use proptest::prelude::*;

/// A box of detectors with an edge to each neighbour and along some diagonals. The boundary is at one corner, at one
/// face, or nowhere.
#[derive(Debug, Clone)]
struct Lattice {
    size: [usize; 3],
    boundary: Boundary,
    seed: u64,
    /// Weights are 1 to this many units, so that many paths weigh the same, or few do.
    weights: u64,
}

#[derive(Debug, Clone, Copy)]
enum Boundary {
    Nowhere,
    Corner,
    Face,
}

/// One end, the other end (`None` for the boundary), and the weight in units of [`UNIT`].
type Edge = (usize, Option<usize>, u64);

/// A unit of weight, as ln((1 - p) / p).
const UNIT: f64 = 0.25;

impl Lattice {
    fn detectors(&self) -> usize {
        self.size.iter().product()
    }

    fn edges(&self) -> Vec<Edge> {
        let mut state = self.seed;
        let mut weight = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            1 + (state >> 33) % self.weights
        };
        let [x_end, y_end, z_end] = self.size;
        let at = |x: usize, y: usize, z: usize| (x * y_end + y) * z_end + z;
        let mut edges = Vec::new();
        for (x, y, z) in (0..x_end).flat_map(|x| (0..y_end).flat_map(move |y| (0..z_end).map(move |z| (x, y, z)))) {
            for (dx, dy, dz) in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 1, 1)] {
                let (nx, ny, nz) = (x + dx, y + dy, z + dz);
                if nx < x_end && ny < y_end && nz < z_end {
                    edges.push((at(x, y, z), Some(at(nx, ny, nz)), weight()));
                }
            }
            let bounded = match self.boundary {
                Boundary::Nowhere => false,
                Boundary::Corner => (x, y, z) == (0, 0, 0),
                Boundary::Face => x == 0,
            };
            if bounded {
                edges.push((at(x, y, z), None, weight()));
            }
        }
        edges
    }

    /// Without observables, or with one for each detector, which every error of it flips, too.
    fn model(&self, observed: bool) -> String {
        let mut text = format!("detector D{}\n", self.detectors() - 1);
        for (one, other, weight) in self.edges() {
            let p = 1.0 / (1.0 + (weight as f64 * UNIT).exp());
            write!(text, "error({p:e})").unwrap();
            for end in [Some(one), other].into_iter().flatten() {
                write!(text, " D{end}").unwrap();
                if observed {
                    write!(text, " L{end}").unwrap();
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Weights of the lightest paths from a detector to all others and, last, to the boundary, by relaxation until nothing
/// changes.
fn distances(lattice: &Lattice, edges: &[Edge], from: usize) -> Vec<u64> {
    let mut distances = vec![u64::MAX / 4; lattice.detectors() + 1];
    distances[from] = 0;
    let mut at = vec![Vec::new(); lattice.detectors()];
    for &(one, other, weight) in edges {
        at[one].push((other.unwrap_or(lattice.detectors()), weight));
        if let Some(other) = other {
            at[other].push((one, weight));
        }
    }
    let mut changed = std::collections::VecDeque::from([from]);
    while let Some(detector) = changed.pop_front() {
        for &(to, weight) in &at[detector] {
            let weight = distances[detector] + weight;
            if weight < distances[to] {
                distances[to] = weight;
                if to < at.len() {
                    changed.push_back(to);
                }
            }
        }
    }
    distances
}

/// Least weight of a matching, over all subsets of the events.
fn least(lattice: &Lattice, events: &[usize]) -> u64 {
    let edges = lattice.edges();
    let rows: Vec<_> = events.iter().map(|&event| distances(lattice, &edges, event)).collect();
    let mut least = vec![u64::MAX / 4; 1 << events.len()];
    least[0] = 0;
    for set in 1..least.len() {
        let first = set.trailing_zeros() as usize;
        let without = set & !(1 << first);
        let alone = least[without] + rows[first][lattice.detectors()];
        let pairs = (first + 1..events.len()).filter(|other| set >> other & 1 == 1);
        let paired = pairs.map(|other| least[without & !(1 << other)] + rows[first][events[other]]).min();
        least[set] = alone.min(paired.unwrap_or(u64::MAX / 4)).min(u64::MAX / 4);
    }
    least[least.len() - 1]
}

fn lattices() -> impl Strategy<Value = Lattice> {
    let sizes = prop_oneof![
        Just([4, 4, 4]),
        Just([1, 9, 9]),
        // Larger than the list of nearest detectors.
        Just([9, 9, 9]),
        Just([1, 30, 30]),
        Just([1, 1, 500]),
    ];
    let boundaries = prop_oneof![Just(Boundary::Nowhere), Just(Boundary::Corner), Just(Boundary::Face)];
    let weights = prop_oneof![Just(1), Just(3), Just(100)];
    (sizes, boundaries, any::<u64>(), weights).prop_map(|(size, boundary, seed, weights)| Lattice {
        size,
        boundary,
        seed,
        weights,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn matchings_are_least(
        lattice in lattices(),
        shots in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..12), 1..4),
        spread in prop_oneof![Just(30), Just(usize::MAX)],
    ) {
        let mut decoder = Decoder::from_dem(&lattice.model(false), Algorithm::Mwpm).unwrap().within(u64::MAX);
        let mut observed = Decoder::from_dem(&lattice.model(true), Algorithm::Mwpm).unwrap().within(u64::MAX);
        for shot in shots {
            // Close together, or anywhere.
            let mut events: Vec<_> = shot.iter().map(|at| at.index(lattice.detectors().min(spread))).collect();
            events.sort_unstable();
            events.dedup();
            let mut syndrome = vec![0u8; lattice.detectors().div_ceil(8)];
            for event in &events {
                syndrome[event / 8] |= 1 << (event % 8);
            }
            let mut flips = vec![0u8; syndrome.len()];
            let least = least(&lattice, &events);
            if let Err(error) = decoder.decode(&syndrome, &mut []) {
                prop_assert_eq!(error, DecodeError::Unmatchable);
                prop_assert_eq!(least, u64::MAX / 4);
                prop_assert_eq!(observed.decode(&syndrome, &mut flips), Err(error));
            } else {
                observed.decode(&syndrome, &mut flips).unwrap();
                prop_assert_eq!(&flips, &syndrome, "the errors that were chosen explain what happened");
                prop_assert_eq!(observed.weight(), decoder.weight());
                let found = decoder.weight().unwrap() / UNIT;
                prop_assert!((found - least as f64).abs() < 1e-4, "{} is not {}", found, least);
            }
        }
    }
}

#[test]
fn memory_is_linear_in_the_graph() {
    // As many detectors as a surface code of distance 31 has in as many rounds.
    let lattice = Lattice { size: [31, 30, 32], boundary: Boundary::Face, seed: 1, weights: 100 };
    let model = DetectorErrorModel::parse(&lattice.model(false)).unwrap();
    let mut decoder = None;
    let taken = allocation_counter::measure(|| decoder = Some(Decoder::from_model(&model, Algorithm::Mwpm).unwrap()));
    println!("{} bytes", taken.bytes_current);
    assert!(taken.bytes_current < 64 << 20, "{} bytes", taken.bytes_current);
    let mut syndrome = vec![0u8; lattice.detectors().div_ceil(8)];
    syndrome[1000] = 0b1001;
    decoder.unwrap().decode(&syndrome, &mut []).unwrap();
}
