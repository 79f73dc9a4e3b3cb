//! The decoding server with every algorithm.

use std::{fmt::Write as _, fs, path::Path, sync::Arc};

use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::DetectorErrorModel,
    osd::{BpOsd, Statistics},
    relay::{Arithmetic, RelayBp},
    window::{Inner, Layout, Window},
};

use crate::common::{Berth, Client, ENQUEUE_SYNDROMES, GET_CORRECTIONS, port};

/// What a configuration says, and what that is in the library.
fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let float = RelayBp { relays: 1, arithmetic: Arithmetic::Float64, ..RelayBp::default() };
    let localized = BpOsd { statistics: Statistics::Localized, ..BpOsd::default() };
    let window = |layout, inner| Algorithm::Window(Window { window: 3, commit: 1, layout, inner });
    vec![
        ("\"mwpm\"", Algorithm::Mwpm),
        ("\"correlated_mwpm\"", Algorithm::CorrelatedMwpm),
        ("\"belief_mwpm\"", Algorithm::BeliefMwpm),
        ("\"lut\"\ndepth = 2", Algorithm::Lut { depth: 2 }),
        ("\"multi_error_lut\"\ndepth = 2", Algorithm::MultiErrorLut { depth: 2 }),
        ("\"relay_bp\"", Algorithm::RelayBp(RelayBp::default())),
        ("\"relay_bp\"\nrelays = 1\narithmetic = \"float64\"", Algorithm::RelayBp(float)),
        ("\"bp_osd\"", Algorithm::BpOsd(BpOsd::default())),
        ("\"bp_osd\"\nstatistics = \"localized\"", Algorithm::BpOsd(localized)),
        ("\"window\"\nwindow = 3\ncommit = 1", window(Layout::Sliding, Inner::Mwpm)),
        ("\"window\"\nwindow = 3\ncommit = 1\nparallel = 2", window(Layout::Parallel, Inner::Mwpm)),
        (
            "\"window\"\nwindow = 3\ncommit = 1\ninner = \"bp_osd\"",
            window(Layout::Sliding, Inner::BpOsd(BpOsd::default())),
        ),
    ]
}

/// Sends the events of a shot in two parts, and reads what they flip.
fn flips(client: &Client, decoder: u64, events: &[u8]) -> Vec<u8> {
    for (counter, part) in events.chunks(2).enumerate() {
        let words = [decoder, counter as u64, 0, 8 * part.len() as u64];
        let args = words.into_iter().flat_map(u64::to_le_bytes).chain(part.iter().copied()).collect::<Vec<_>>();
        assert_eq!(client.call(ENQUEUE_SYNDROMES, &args).status, 0);
    }
    let mut args: Vec<u8> = [decoder, 1].into_iter().flat_map(u64::to_le_bytes).collect();
    args.push(1);
    let answer = client.call(GET_CORRECTIONS, &args);
    assert_eq!(answer.status, 0);
    answer.result
}

#[test]
fn every_algorithm_predicts_on_cores_and_workers_what_the_library_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("config/decoders/surface_d3_p5e-3.dem")).unwrap();
    let shots = fs::read(root.join("perf/data/surface_d3_p5e-3.dets.b8")).unwrap();
    let model = DetectorErrorModel::parse(&text).unwrap();
    let shots: Vec<&[u8]> = shots
        .chunks(model.num_detectors() / 8)
        .filter(|events| events.iter().any(|byte| *byte != 0))
        .take(60)
        .collect();
    let mut config = port("core", "") + &port("worker", "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0, 1]\n");
    for (at, (keys, _)) in algorithms().iter().enumerate() {
        writeln!(config, "[[decoder]]\nname = \"d{at}\"\nmodel = \"m.dem\"\nalgorithm = {keys}").unwrap();
    }
    for name in ["enqueue_syndromes", "get_corrections", "reset_decoder"] {
        writeln!(config, "[[function]]\nname = \"{name}\"\nhandler = \"builtin:{name}\"").unwrap();
    }
    let berth = Berth::start_with(&config, &[("m.dem", &text)]);
    let clients = ["core", "worker"].map(|name| berth.client(name));
    for (at, (keys, algorithm)) in algorithms().into_iter().enumerate() {
        let mut decoder = Decoder::new(Arc::new(Tables::new(&model, algorithm).unwrap()));
        for events in &shots {
            let mut expected = [0];
            decoder.decode(events, &mut expected).unwrap();
            for client in &clients {
                assert_eq!(flips(client, at as u64, events), expected, "{keys}: {events:?}");
            }
        }
    }
    berth.stop();
}
