//! The RPC services of a running appliance, as a peer on a socket sees them.

use std::{fs, net::UdpSocket};

use serde_json::Value;

use crate::common::{
    Berth, ENQUEUE_SYNDROMES, GET_CORRECTIONS, INCREMENT, MOCK_DECODE, QEC_DECODE, RESET_DECODER, RPC_INCREMENT,
    Response, c_plugin, port, request, request_v16,
};

/// A repetition code of distance 3: D0 and D1 between three bits, L0 on the first.
const REPETITION: &str = "error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0.1) D1\n";

const DECODING: &str = r#"
[[decoder]]
name = "repetition"
algorithm = "mwpm"
model = "repetition.dem"
[[decoder]]
name = "table"
algorithm = "lut"
depth = 2
model = "repetition.dem"
measurements = "d_sparse.txt"
[[function]]
name = "qec_decode"
handler = "builtin:qec_decode"
decoder = "repetition"
[[function]]
name = "enqueue_syndromes"
handler = "builtin:enqueue_syndromes"
[[function]]
name = "get_corrections"
handler = "builtin:get_corrections"
[[function]]
name = "reset_decoder"
handler = "builtin:reset_decoder"
"#;

/// Detector 0 is the parity of measurements 0 and 1, detector 1 that of 1 and 2.
const D_SPARSE: &str = "0 1 -1\n1, 2, -1\n";

const FILES: [(&str, &str); 2] = [("repetition.dem", REPETITION), ("d_sparse.txt", D_SPARSE)];

fn decoding(port: &str) -> Berth {
    Berth::start_with(&format!("{port}{DECODING}"), &FILES)
}

#[test]
fn increments_bytes_of_any_number() {
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    assert!(client.call(RPC_INCREMENT, &[]).result.is_empty());
    assert_eq!(client.call(RPC_INCREMENT, &[0, 127, 255]).result, [1, 128, 0]);
    assert_eq!(client.call(RPC_INCREMENT, &[9; 2048 - 24]).result, [10; 2048 - 24]);
}

#[test]
fn an_answer_is_these_bytes() {
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    client.send(b"RQUC\x22\x63\x1b\x19\x02\0\0\0\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18\x05\x06padding");
    let answer = b"SQUC\0\0\0\0\x02\0\0\0\x01\x02\x03\x04\x11\x12\x13\x14\x15\x16\x17\x18\x06\x07";
    assert_eq!(client.receive(), answer);
}

#[test]
fn sixteen_byte_headers_on_a_port_of_their_own() {
    let berth = Berth::start(&format!("{}{}{INCREMENT}", port("new", ""), port("old", "[port.rpc]\nheader = \"v16\"")));
    let old = berth.client("old");
    old.send(&request_v16(RPC_INCREMENT, &[1, 2], 0x0403_0201));
    assert_eq!(old.receive(), b"SQUC\0\0\0\0\x02\0\0\0\x01\x02\x03\x04\x02\x03");
    assert_eq!(berth.client("new").call(RPC_INCREMENT, &[1]).result, [2]);
}

#[test]
fn what_is_no_request_gets_no_answer_and_is_counted() {
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    let mut wrong_magic = request(RPC_INCREMENT, &[1], 1, 0);
    wrong_magic[0] ^= 1;
    client.send(&wrong_magic);
    client.send(&request(RPC_INCREMENT, &[], 1, 0)[..23]);
    client.send(&[]);
    client.expect_silence();
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2], "service goes on");
    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "bad_magic"), 1);
    assert_eq!(stopped.sum("a", "service", "truncated"), 2);
    assert_eq!(stopped.sum("a", "service", "received"), 4);
    assert_eq!(stopped.sum("a", "service", "answered"), 1);
}

fn refusal(status: i32) -> Response {
    Response { status, request_id: 5, ptp: 6, result: Vec::new() }
}

#[test]
fn undispatchable_requests_are_answered_with_a_status_and_the_echo() {
    let berth = decoding(&port("a", ""));
    let client = berth.client("a");
    client.send(&request(0xDEAD_BEEF, &[1, 2, 3], 5, 6));
    assert_eq!(client.response(), refusal(-1));

    let mut beyond = request(QEC_DECODE, &[0; 5], 5, 6);
    beyond[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    client.send(&beyond);
    let bad_length = client.response();
    assert_eq!(bad_length, refusal(bad_length.status));
    client.send(&request(QEC_DECODE, &[0; 2048 - 24 + 1], 5, 6));
    assert_eq!(client.response(), bad_length, "longer than a slot");

    // 2 detectors are 1 byte, and the number of detectors is 4 bytes.
    client.send(&request(QEC_DECODE, &[0, 3, 0, 0, 0], 5, 6));
    let mismatch = client.response();
    assert_eq!(mismatch, refusal(mismatch.status));
    client.send(&request(QEC_DECODE, &[0], 5, 6));
    assert_eq!(client.response(), mismatch, "too short");
    assert!(bad_length.status < -1 && mismatch.status < -1 && bad_length.status != mismatch.status);

    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "unknown_function"), 1);
    assert_eq!(stopped.sum("a", "service", "bad_length"), 2);
    assert_eq!(stopped.sum("a", "service", "schema_mismatch"), 2);
    assert_eq!(stopped.sum("a", "service", "answered"), 0);
}

#[test]
fn undispatchable_requests_are_dropped_where_configured() {
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "[port.rpc]\non_undispatchable = \"drop\"")));
    let client = berth.client("a");
    client.send(&request(0xDEAD_BEEF, &[], 5, 6));
    client.expect_silence();
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "dropped_undispatchable"), 1);
}

/// Arguments of `qec_decode` for the two detectors of the repetition code.
fn events(events: u8) -> [u8; 5] {
    [events, 2, 0, 0, 0]
}

#[test]
fn decodes_the_repetition_code() {
    let berth = decoding(&port("a", ""));
    let client = berth.client("a");
    for (detection, flips) in [(0b00, 0), (0b01, 1), (0b10, 0), (0b11, 0)] {
        let answer = client.call(QEC_DECODE, &events(detection));
        assert_eq!((answer.status, answer.result), (0, vec![flips]), "{detection:02b}");
    }
}

#[test]
fn decodes_on_a_worker() {
    let rpc = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]";
    let berth = decoding(&port("a", rpc));
    let client = berth.client("a");
    for (detection, flips) in [(0b01, 1), (0b10, 0)].repeat(20) {
        assert_eq!(client.call(QEC_DECODE, &events(detection)).result, [flips]);
    }
    let stopped = berth.stop();
    assert_eq!(stopped.sum("a", "service", "calls_qec_decode"), 0, "none ran on the poll core");
    let workers = stopped.counters["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 1);
    assert_eq!((&workers[0]["name"], &workers[0]["port"]), (&"worker0".into(), &"a".into()));
    assert_eq!(workers[0]["counters"]["calls_qec_decode"], 40);
}

/// A function on a ring of its own that takes its time holds up the functions of the other ring, and the answers of its
/// own client alone.
#[test]
fn a_slow_function_has_a_ring_and_a_worker_of_its_own() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let source = format!(
        "#include <stdint.h>\n#include <unistd.h>\n\
         int linger(const void *in, void *out, uint32_t arg_len, uint32_t max, uint32_t *result_len) {{\n\
         (void)in, (void)out, (void)arg_len, (void)max;\n\
         while (access(\"{}\", F_OK)) usleep(1000);\n\
         *result_len = 0;\nreturn 0;\n}}\n",
        done.display()
    );
    let (handler, linger) = c_plugin(folder.path(), "linger", &source);
    let rpc = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]\n\
               [[port.rpc.ring]]\nname = \"slow\"\nslots = 4\nworker_cpus = [1]";
    let function = format!(
        "[[function]]\nname = \"linger\"\nhandler = \"{handler}\"\nabi = \"device_call\"\ndispatch = \"ring\"\nring = \
         \"slow\"\nbudget_us = 10000000\n"
    );
    let berth = Berth::start(&format!("{}{INCREMENT}{function}", port("a", rpc)));
    let (patient, other) = (berth.client("a"), berth.client("a"));
    patient.send(&request(linger, &[], 1, 0));
    patient.send(&request(RPC_INCREMENT, &[1], 2, 0));
    for n in 0..50 {
        assert_eq!(other.call(RPC_INCREMENT, &[n]).result, [n + 1]);
    }
    patient.expect_silence();
    // Its ring has three slots more.
    for id in 0..4 {
        other.send(&request(linger, &[], id, 0));
    }
    other.expect_silence();
    fs::write(done, "").unwrap();
    let answers = [patient.response(), patient.response()].map(|answer| (answer.request_id, answer.status));
    assert_eq!(answers, [(1, 0), (2, 0)], "in the order of the requests");
    let answers = [(); 4].map(|()| other.response()).map(|answer| (answer.request_id, answer.status));
    assert_eq!(answers, [(0, 0), (1, 0), (2, 0), (3, -5)]);
    let stopped = berth.stop();
    let workers = stopped.counters["workers"].as_array().unwrap();
    let calls = |worker: &Value| {
        let calls = ["calls_rpc_increment", "calls_linger"].map(|name| worker["counters"][name].as_u64().unwrap());
        (worker["name"].as_str().unwrap().to_owned(), calls)
    };
    let wanted = [("worker0".to_owned(), [51, 0]), ("worker1.slow".to_owned(), [0, 4])];
    assert_eq!(workers.iter().map(calls).collect::<Vec<_>>(), wanted);
    assert_eq!(["ring_pushed", "ring_full"].map(|name| stopped.sum("a", "service", name)), [55, 1]);
}

fn enqueue(decoder: u64, n: u64, bits: u8) -> Vec<u8> {
    let mut args: Vec<u8> = [decoder, 7, 0, n].into_iter().flat_map(u64::to_le_bytes).collect();
    args.push(bits);
    args
}

fn get(decoder: u64, size: u64, reset: bool) -> Vec<u8> {
    let mut args: Vec<u8> = [decoder, size].into_iter().flat_map(u64::to_le_bytes).collect();
    args.push(u8::from(reset));
    args
}

#[test]
fn a_decoding_session_from_measurements_to_corrections() {
    let berth = decoding(&port("a", ""));
    let client = berth.client("a");
    let ok = |answer: Response, result: &[u8]| assert_eq!((answer.status, &*answer.result), (0, result));
    let status = |answer: Response| (answer.status, answer.result.len());

    assert_eq!(status(client.call(GET_CORRECTIONS, &get(1, 1, false))), (4, 0), "NOT_READY");
    // Decoder 1 maps three measurements to two detectors: 1, 0, 0 is the event D0, which flips L0.
    ok(client.call(ENQUEUE_SYNDROMES, &enqueue(1, 2, 0b01)), &[]);
    assert_eq!(status(client.call(GET_CORRECTIONS, &get(1, 1, false))), (4, 0), "half a volume");
    ok(client.call(ENQUEUE_SYNDROMES, &enqueue(1, 1, 0)), &[]);
    ok(client.call(GET_CORRECTIONS, &get(1, 1, false)), &[1]);
    ok(client.call(GET_CORRECTIONS, &get(1, 1, true)), &[1]);
    assert_eq!(status(client.call(GET_CORRECTIONS, &get(1, 1, false))), (4, 0), "reset");

    // Decoder 0 takes detection events themselves.
    ok(client.call(ENQUEUE_SYNDROMES, &enqueue(0, 2, 0b01)), &[]);
    ok(client.call(GET_CORRECTIONS, &get(0, 1, false)), &[1]);

    assert_eq!(status(client.call(GET_CORRECTIONS, &get(2, 1, false))), (1, 0), "INVALID_DECODER");
    assert_eq!(status(client.call(GET_CORRECTIONS, &get(0, 2, false))), (2, 0), "BAD_REQUEST");
    ok(client.call(ENQUEUE_SYNDROMES, &enqueue(0, 3, 0)), &[]);
    assert_eq!(status(client.call(GET_CORRECTIONS, &get(0, 1, false))), (3, 0), "overfilled: INTERNAL_ERROR");
    ok(client.call(RESET_DECODER, &0u64.to_le_bytes()), &[]);
    assert_eq!(status(client.call(GET_CORRECTIONS, &get(0, 1, false))), (4, 0), "fresh");
}

/// A check that is read twice: D0 is the first reading, D1 both.
const READ_TWICE: &str = "error(0.01) D0 L0\nerror(0.05) D0 D1\nerror(0.02) D1\n";

#[test]
fn outcomes_that_are_not_certain_and_confidence() {
    let decoder =
        "[[decoder]]\nname = \"read\"\nalgorithm = \"mwpm\"\nmodel = \"read.dem\"\nmeasurements = \"both.txt\"\n";
    let function = |name: &str, shots: &str| {
        format!(
            "[[function]]\nname = \"{name}\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"read\"\nshots = \"{shots}\"\n\
             confidence = true\n"
        )
    };
    let functions = [function("soft", "soft8"), function("lost", "leakage8"), function("real", "float32")].concat();
    let files = [("read.dem", READ_TWICE), ("both.txt", "0 -1 0 1 -1\n")];
    let odds = |p: f64| ((1.0 - p) / p).ln();
    for rpc in ["", "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]"] {
        let berth = Berth::start_with(&format!("{}{decoder}{functions}", port("a", rpc)), &files);
        let client = berth.client("a");
        let call = |name: &str, shot: &[u8]| client.call(fnv1a(name), &[shot, &[2, 0, 0, 0]].concat());
        let near = |answer: Response, flips: u8, confidence: f64| {
            assert_eq!((answer.status, answer.result.len(), answer.result[0]), (0, 5, flips));
            let found = f64::from(f32::from_le_bytes(answer.result[1..].try_into().unwrap()));
            assert!((found - confidence).abs() < 1e-5, "{found} is not {confidence}");
        };
        // Both readings are 1: an event of D0, by L0 or by the other two errors.
        near(call("soft", &[255, 255]), 1, odds(0.05) + odds(0.02) - odds(0.01));
        // The second may be wrong, or is lost.
        let q = 63.0 / 255.0;
        near(call("soft", &[255, 192]), 0, odds(0.01) - odds(0.05) - odds(0.02 + q - 0.04 * q));
        near(call("lost", &[1, 2]), 0, odds(0.01) - odds(0.05));
        assert_eq!((call("lost", &[1, 3]).status, call("soft", &[255]).status), (2, -3));
        let nan = [1.0_f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
        assert_eq!((call("real", &nan).status, call("real", &[0; 8]).status), (2, 0));
        let stopped = berth.stop();
        let counted = if rpc.is_empty() {
            stopped.sum("a", "service", "decoder_read_bad_values")
        } else {
            stopped.counters["workers"][0]["counters"]["decoder_read_bad_values"].as_u64().unwrap()
        };
        assert_eq!(counted, 2, "{rpc}");
    }
}

/// A check that is read once a round and may be read wrongly; without an end, in windows of four rounds of which two are decided.
const ENDLESS: &str = "[[decoder]]\nname = \"memory\"\nalgorithm = \"window\"\nmodel = \"memory.dem\"\nmeasurements = \
                       \"readings.txt\"\nwindow = 4\ncommit = 2\nrounds = 0\ncounter = \"round\"\n";

#[test]
fn an_experiment_without_an_end_is_decoded_as_its_rounds_arrive() {
    let round = "detector(0) D0\nerror(0.1) D0 L0\n";
    let memory = format!("repeat 8 {{\n{round}error(0.05) D0 D1\nshift_detectors(1) 1\n}}\n{round}");
    let readings: String =
        (0..9).map(|at| if at == 0 { "0 -1\n".into() } else { format!("{} {at} -1\n", at - 1) }).collect();
    let functions = &DECODING[DECODING.find("[[function]]\nname = \"enqueue").unwrap()..];
    for (rpc, place) in [("", "service"), ("[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]\n", "worker")] {
        let files = [("memory.dem", &*memory), ("readings.txt", &*readings)];
        let berth = Berth::start_with(&format!("{}{ENDLESS}{functions}", port("a", rpc)), &files);
        let client = berth.client("a");
        let enqueue = |first: u64, readings: &[bool]| {
            let mut args: Vec<u8> =
                [0, first, 0, readings.len() as u64].into_iter().flat_map(u64::to_le_bytes).collect();
            let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
            args.extend(readings.chunks(8).map(byte));
            client.call(ENQUEUE_SYNDROMES, &args).status
        };
        let corrections = |reset| client.call(GET_CORRECTIONS, &get(0, 1, reset));
        // The qubit flips in every tenth round, and the reading of every tenth round is wrong.
        let reading = |round: u64| (round / 10 % 2 == 1) != (round % 10 == 5);
        assert_eq!(corrections(false).status, 4, "NOT_READY");
        let mut arrived = 0;
        for request in 0..700_u64 {
            let rounds: Vec<u64> = (arrived..arrived + 1 + request % 13).collect();
            let readings: Vec<bool> = rounds.iter().map(|round| reading(*round)).collect();
            assert_eq!(enqueue(arrived + 1, &readings), 2, "out of order");
            assert_eq!(enqueue(arrived, &readings), 0);
            assert_eq!(enqueue(arrived, &readings), 0, "twice");
            arrived += rounds.len() as u64;
            if arrived < 4 {
                continue;
            }
            let decided = (arrived - 4) / 2 * 2 + 2;
            let answer = corrections(false);
            assert_eq!((answer.status, answer.result), (0, vec![((decided - 1) / 10 % 2) as u8]), "{arrived}");
        }
        assert_eq!(client.call(RESET_DECODER, &0_u64.to_le_bytes()).status, 0);
        assert_eq!(corrections(false).status, 4, "fresh");
        assert_eq!(enqueue(0, &[false; 4]), 0);
        assert_eq!(corrections(false).result, [0]);
        let stopped = berth.stop();
        let count = |what: &str| match place {
            "service" => stopped.sum("a", "service", &format!("decoder_memory_{what}")),
            _ => stopped.counters["workers"][0]["counters"][format!("decoder_memory_{what}")].as_u64().unwrap(),
        };
        let undecided = arrived - ((arrived - 4) / 2 * 2 + 2);
        assert_eq!(["repeated", "out_of_order", "undecided"].map(count), [700, 700, undecided], "{place}");
    }
}

#[test]
fn mock_decode_answers_from_a_syndrome_file() {
    let file = "NUM_DATA 4\nNUM_LOGICAL 1\nSHOT_START 0\n1\n0\n1\nSHOT_START 1\n0\n1\n1\nCORRECTIONS_START\n1\n0\nCORRECTIONS_END\n";
    let function = "[[function]]\nname = \"mock_decode\"\nhandler = \"builtin:mock_decode\"\ntable = \"shots.txt\"\n";
    let berth = Berth::start_with(&format!("{}{function}", port("a", "")), &[("shots.txt", file)]);
    let client = berth.client("a");
    assert_eq!(client.call(MOCK_DECODE, &[1, 0, 1]).result, [1]);
    assert_eq!(client.call(MOCK_DECODE, &[0, 1, 1]).result, [0]);
    assert_eq!(client.call(MOCK_DECODE, &[1, 1, 1]).result, [0], "not in the file");
}

#[test]
fn one_peers_garbage_does_not_harm_another() {
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let (good, bad) = (berth.client("a"), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut state = 1u64;
    for _ in 0..2000 {
        let mut datagram = vec![0; (state >> 33) as usize % 3000];
        for byte in &mut datagram {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        if state & 1 << 40 != 0 && datagram.len() >= 8 {
            datagram[..8].copy_from_slice(b"RQUC\x22\x63\x1b\x19");
        }
        bad.send_to(&datagram, berth.addr("a")).unwrap();
        if state & 0xF00 == 0 {
            assert_eq!(good.call(RPC_INCREMENT, &[3]).result, [4]);
        }
    }
    // The bad peer goes away while answers to it are under way.
    drop(bad);
    assert_eq!(good.call(RPC_INCREMENT, &[3]).result, [4]);
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0));
    assert_eq!(stopped.sum("a", "service", "panicked"), 0);
    let service = |counter| stopped.sum("a", "service", counter);
    let fates = ["answered", "bad_magic", "truncated", "bad_length"].map(service);
    assert_eq!(fates.iter().sum::<u64>(), service("received"), "each request has one fate");
}

#[test]
fn times_are_recorded() {
    let berth = Berth::start(&format!("{}{INCREMENT}", port("a", "")));
    let client = berth.client("a");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    client.send(&request(RPC_INCREMENT, &[], 1, now));
    assert_eq!(client.response().ptp, now);
    let stopped = berth.stop();
    let lane = &stopped.counters["lcores"][0]["lanes"][0];
    assert_eq!(lane["histograms"]["service_time"]["count"], 1);
    assert_eq!(lane["histograms"]["wire_time"]["count"], 1);
}

#[test]
fn calls_plug_ins_of_either_kind() {
    const SOURCE: &str = r"
#include <stdint.h>
#include <string.h>
int sum(const void *in, void *out, uint32_t arg_len, uint32_t max, uint32_t *result_len) {
    if (arg_len == 0 || max < 1) return 3;
    uint8_t total = 0;
    for (uint32_t i = 0; i < arg_len; i++) total += ((const uint8_t *)in)[i];
    *(uint8_t *)out = total;
    *result_len = 1;
    return 0;
}
void echo(const void *rx, void *tx, uint64_t size) {
    uint32_t words[4];
    memcpy(words, rx, 16);
    memcpy(tx, rx, 24 + words[2] <= size ? 24 + words[2] : 24);
    words[0] += 1; words[1] = 0;
    memcpy(tx, words, 16);
}
";
    let library = tempfile::tempdir().unwrap();
    let (source, path) = (library.path().join("p.c"), library.path().join("p.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let cc =
        std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&path).arg(&source).status().unwrap();
    assert!(cc.success());
    let path = path.display();
    let functions = format!(
        "[[function]]\nname = \"sum\"\nhandler = \"plugin:{path}#sum\"\nabi = \"device_call\"\nresults = [\"uint8\"]\n\
         [[function]]\nname = \"echo\"\nhandler = \"plugin:{path}#echo\"\nabi = \"host_call\"\n"
    );
    let berth = Berth::start(&format!("{}{functions}", port("a", "")));
    let client = berth.client("a");
    assert_eq!(client.call(fnv1a("sum"), &[1, 2, 250]).result, [253]);
    let refused = client.call(fnv1a("sum"), &[]);
    assert_eq!((refused.status, refused.result.len()), (3, 0), "the handler's own status");
    assert_eq!(client.call(fnv1a("echo"), b"abc").result, b"abc");
}

fn fnv1a(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}
