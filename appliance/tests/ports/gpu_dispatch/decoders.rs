//! Decoders and the decoding server on the GPU in software, compared with those of a port on CPUs.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use berth_qec::dem::DetectorErrorModel;

use super::{RPC, config, counters, fnv1a, signal, worker};
use crate::common::{Berth, ENQUEUE_SYNDROMES, GET_CORRECTIONS, RESET_DECODER, port, request};

/// A model that comes with Berth.
fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/decoders").join(name)
}

pub(crate) fn decoder(name: &str, file: &str, algorithm: &str) -> String {
    format!("[[decoder]]\nname = \"{name}\"\nmodel = \"{}\"\nalgorithm = {algorithm}\n", model(file).display())
}

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The events of some errors of a model.
fn events(model: &DetectorErrorModel, random: &mut Random) -> Vec<u8> {
    let mut events = vec![0; model.num_detectors().div_ceil(8)];
    let all: Vec<_> = model.mechanisms().collect();
    for _ in 0..random.below(4) {
        let mechanism = &all[random.below(all.len() as u64) as usize];
        for part in mechanism.parts() {
            part.detectors.iter().for_each(|at| events[*at as usize / 8] ^= 1 << (at % 8));
        }
    }
    events
}

/// Port a on the GPU, and port b on CPUs, with the same functions.
fn both(more: &str) -> String {
    let beside = port("b", "[port.rpc]\ndispatch = \"inline\"").replace("cpu = 0", "cpu = 1");
    format!("{}{beside}{more}", config(RPC, ""))
}

#[test]
fn decoders_answer_as_on_cpus() {
    let decoders = [
        ("table", "surface_d3.dem", "\"lut\"\ndepth = 2", 1500),
        ("relay", "surface_d3_p5e-3.dem", "\"relay_bp\"\nrelays = 4\nlegs = 2\niterations = 20", 150),
        ("bicycle", "bicycle_72.dem", "\"relay_bp\"\nrelays = 2\nlegs = 2\niterations = 10", 30),
    ];
    let one = |(name, file, algorithm, _): &(&str, &str, &str, u32)| {
        let function =
            format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"{name}\"\n");
        decoder(name, file, algorithm) + &function
    };
    let budget = "budget_us = 10000000\n";
    let text: String = decoders.iter().map(|decoder| one(decoder) + budget).collect();
    let berth = Berth::start(&both(&text).replace("limit_ms = 1000", "limit_ms = 10000"));
    let (gpu, cpu) = (berth.client("a"), berth.client("b"));
    let mut random = Random(11);
    let mut statuses = [0; 2];
    for (name, file, _, count) in decoders {
        let model = DetectorErrorModel::parse(&fs::read_to_string(model(file)).unwrap()).unwrap();
        let detectors = (model.num_detectors() as u32).to_le_bytes();
        let ask = |args: &[u8]| {
            let answers = [&gpu, &cpu].map(|client| client.call(fnv1a(name), args));
            assert_eq!(answers[0], answers[1], "{name} of {args:?}");
            answers[0].status
        };
        for _ in 0..count {
            statuses[ask(&[&events(&model, &mut random)[..], &detectors].concat()) as usize] += 1;
        }
        // Any bits, which mostly no few errors make.
        for _ in 0..5 {
            let bytes: Vec<u8> = (0..model.num_detectors() / 8).map(|_| random.next() as u8).collect();
            let rest = vec![0; model.num_detectors().div_ceil(8) - bytes.len()];
            statuses[ask(&[&bytes[..], &rest, &detectors].concat()) as usize] += 1;
        }
        let right = events(&model, &mut random);
        assert_eq!(ask(&[&right[..], &9_u32.to_le_bytes()].concat()), -3, "another number");
        assert_eq!(ask(&[&right[..], &[0], &detectors].concat()), -3, "too long");
        assert_eq!(ask(&[1, 2, 3]), -3, "too short");
        assert_eq!(ask(&[]), -3);
    }
    assert!(statuses.iter().all(|count| *count > 0), "without a solution, too: {statuses:?}");
    let stopped = berth.stop();
    assert_eq!(counters(&stopped), [0; 3]);
    assert_eq!(stopped.sum("a", "service", "answered"), stopped.sum("b", "service", "answered"));
}

const SERVER: [(&str, u32); 3] =
    [("enqueue_syndromes", ENQUEUE_SYNDROMES), ("get_corrections", GET_CORRECTIONS), ("reset_decoder", RESET_DECODER)];

/// The decoding server's functions on both ports, with a table and `relay_bp`.
fn server() -> String {
    let functions = SERVER.map(|(name, _)| format!("[[function]]\nname = \"{name}\"\nhandler = \"builtin:{name}\"\n"));
    let relay = decoder("relay", "surface_d3.dem", "\"relay_bp\"\nrelays = 2\nlegs = 1\niterations = 8");
    both(
        &[decoder("table", "surface_d3.dem", "\"lut\"\nmeasurements = \"map.txt\""), relay, functions.concat()]
            .concat(),
    )
}

/// Each detector is the parity of two or three measurements, but for the last one.
fn map() -> String {
    (0..24).map(|d| if d < 23 { format!("{d} {} {} -1\n", d + 1, d / 2 + 3) } else { "30, -1".into() }).collect()
}

fn enqueue(decoder: u64, bits: u64, count: u64) -> Vec<u8> {
    let words = [decoder, 5, 0, count].map(u64::to_le_bytes).concat();
    [&words[..], &bits.to_le_bytes()[..count.div_ceil(8).min(8) as usize]].concat()
}

fn corrections(decoder: u64, size: u64, reset: u8) -> Vec<u8> {
    [&[decoder, size].map(u64::to_le_bytes).concat()[..], &[reset]].concat()
}

#[test]
fn nvidias_linker_takes_what_is_made_of_decoders() {
    let bicycle = decoder("bicycle", "bicycle_72.dem", "\"relay_bp\"");
    let function = "[[function]]\nname = \"qec_decode\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"bicycle\"\n";
    let text = (server() + &bicycle + function).replace("device = \"soft\"", "device = \"auto\"");
    // What `cargo xtask setup` fetches.
    let python = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/nvidia-venv/lib")).unwrap().flatten();
    let linker = python.map(|version| version.path().join("site-packages/nvidia/nvjitlink/lib")).next().unwrap();
    let folders = std::env::join_paths([berth_cuda_soft::folder().unwrap(), linker]).unwrap();
    let berth = Berth::start_fully(&text, &[("map.txt", &map())], |command| {
        command.env("LD_LIBRARY_PATH", folders).env("CUDA_SOFT_NVJITLINK", "1");
    });
    let client = berth.client("a");
    assert_eq!(client.call(RESET_DECODER, &0_u64.to_le_bytes()).status, 0);
}

#[test]
fn sessions_of_the_decoding_server_are_those_of_cpus() {
    let berth = Berth::start_with(&server(), &[("map.txt", &map())]);
    let (gpu, cpu) = (berth.client("a"), berth.client("b"));
    let model = DetectorErrorModel::parse(&fs::read_to_string(model("surface_d3.dem")).unwrap()).unwrap();
    let mut random = Random(3);
    let (mut seen, mut cut) = ([[0; 5]; 3], 0);
    // Measurements that a session has, as far as nothing failed, and the shot that they are of.
    let mut buffered = [(0, 0_u64); 3];
    let mut said: Vec<_> = Vec::new();
    for step in 0..2500 {
        let decoder = if step % 50 == 0 { 2 } else { random.below(2) };
        let kind = [0, 0, 0, 0, 0, 0, 1, 1, 1, 2][random.below(10) as usize];
        let mut args = match kind {
            // The rest of a volume, of 31 measurements or 24, or a part of it. Unused bits are set.
            0 => {
                let (volume, at) = ([31, 24, 24][decoder as usize], &mut buffered[decoder as usize]);
                if at.0 == 0 {
                    let bytes = events(&model, &mut random);
                    at.1 = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
                }
                let rest = volume - at.0;
                let count = if random.below(3) == 0 { 1 + random.below(rest) } else { rest };
                let args = enqueue(decoder, at.1 >> at.0 | u64::MAX << count, count + random.below(60) / 59);
                at.0 = (at.0 + count) % volume;
                args
            }
            1 => corrections(decoder, [1, 1, 1, 1, 0, 2, u64::MAX][random.below(7) as usize], random.next() as u8 & 1),
            _ => {
                buffered[decoder as usize] = (0, 0);
                decoder.to_le_bytes().to_vec()
            }
        };
        match random.below(60) {
            0 => args.truncate(random.below(args.len() as u64 + 1) as usize),
            1 => args.extend([7; 3]),
            2 if kind == 0 => args[16] = 1,
            3 if kind == 0 => args[24..32].copy_from_slice(&[0, (1 << 20) + 1, u64::MAX][step % 3].to_le_bytes()),
            _ => {}
        }
        let mut datagram = request(SERVER[kind].1, &args, step as u32, 0);
        // More than there is: within the slot, where an earlier request's bytes lie, and beyond it.
        let missing = if random.below(30) == 0 { 1 + [random.below(40), random.below(5000)][step % 2] } else { 0 };
        datagram[8..12].copy_from_slice(&(args.len() as u32 + missing as u32).to_le_bytes());
        let answers = [&gpu, &cpu].map(|client| {
            client.send(&datagram);
            client.response()
        });
        cut += u32::from(missing > 0 && answers[1].status == 2);
        said.push(format!("{} {args:?}, {missing} bytes missing", SERVER[kind].0));
        assert_eq!(answers[0], answers[1], "{:#?}", &said[said.len().saturating_sub(20)..]);
        seen[kind][answers[0].status as usize] += 1;
        assert!(answers[0].status != 0 || kind != 1 || answers[0].result.len() == 1);
    }
    let never = |kind: usize, status: usize| seen[kind][status] == 0;
    let missing: Vec<_> = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (2, 1), (2, 2)]
        .into_iter()
        .filter(|(kind, status)| never(*kind, *status))
        .collect();
    assert!(missing.is_empty() && cut > 40, "{missing:?} of {seen:?}, {cut} cut");
    assert_eq!(counters(&berth.stop()), [0; 3]);
}

/// What a session had gathered is gone with its worker: it fails until it is reset, and never decodes half a volume.
#[test]
fn sessions_that_are_lost_are_failed() {
    let berth = Berth::start_with(&server(), &[("map.txt", &map())]);
    let client = berth.client("a");
    let call = |function: u32, args: &[u8]| client.call(function, args).status;
    let volume = |bits: u64| call(ENQUEUE_SYNDROMES, &enqueue(1, bits, 24));
    assert_eq!((volume(0), call(GET_CORRECTIONS, &corrections(1, 1, 0))), (0, 0));
    let pid = worker(&berth);
    signal(pid, "-KILL");
    let began = Instant::now();
    while client.call(ENQUEUE_SYNDROMES, &enqueue(1, 0, 4)).status == -6 {
        assert!(began.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(call(GET_CORRECTIONS, &corrections(1, 1, 0)), 3);
    assert_eq!((volume(0), call(GET_CORRECTIONS, &corrections(1, 1, 0))), (0, 3));
    assert_eq!(call(RESET_DECODER, &1_u64.to_le_bytes()), 0);
    assert_eq!((volume(0), call(GET_CORRECTIONS, &corrections(1, 1, 0))), (0, 0));
    // Functions that a reload changes are another program's.
    berth.write("berth.toml", &server().replace("legs = 1", "legs = 2"));
    berth.signal("-HUP");
    let began = Instant::now();
    while call(GET_CORRECTIONS, &corrections(1, 1, 0)) == 0 {
        assert!(began.elapsed() < Duration::from_secs(20));
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(call(GET_CORRECTIONS, &corrections(1, 1, 0)), 3);
    assert_eq!(call(RESET_DECODER, &1_u64.to_le_bytes()), 0);
    assert_eq!((volume(0), call(GET_CORRECTIONS, &corrections(1, 1, 0))), (0, 0));
    assert!(berth.stop().status.success());
}
