//! The functions the emulator can call, by name.

use std::str::FromStr;

use berth_wire::rpc::{
    Bits,
    bits::bytes_for,
    decoding::{EnqueueSyndromes, GetCorrections, ResetDecoder},
    fnv1a,
};

use crate::{
    mix::Script,
    shots::Shots,
    verify::{Expect, Step, Table},
};

/// A function, or a session of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Answers each byte of the payload plus one, wrapping.
    RpcIncrement,
    /// Detection events of a shot in, its predicted observable flips out.
    QecDecode,
    /// The decoding server's session: enqueue the events of a shot, get its corrections, reset the decoder.
    DecodingServer,
}

/// A function with its share of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weighted {
    /// What to call.
    pub function: Function,
    /// How many of the mix's calls.
    pub weight: u32,
}

impl FromStr for Weighted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, weight) = text.split_once(':').unwrap_or((text, "1"));
        let function = match name {
            "rpc_increment" => Function::RpcIncrement,
            "qec_decode" => Function::QecDecode,
            "decoding_server" => Function::DecodingServer,
            _ => return Err(format!("{name} is none of rpc_increment, qec_decode, decoding_server")),
        };
        let weight = weight.parse().ok().filter(|weight| (1..=1000).contains(weight));
        let weight = weight.ok_or("a weight is a whole number from 1 to 1000, as in rpc_increment:3")?;
        Ok(Self { function, weight })
    }
}

/// Different payloads of a step without data of its own.
const VARIANTS: usize = 1024;

impl Function {
    /// Whether the payload's length can be chosen.
    pub fn is_sized(self) -> bool {
        self == Self::RpcIncrement
    }

    /// Whether it needs [`Shots`].
    pub fn needs_shots(self) -> bool {
        matches!(self, Self::QecDecode | Self::DecodingServer)
    }

    /// The calls of this function: payloads of `payload` bytes where that can be chosen, the events of `shots` where
    /// it needs them; `decoder` is the id that the decoding server knows its decoder by.
    ///
    /// # Panics
    /// Without `shots` where [`Function::needs_shots`].
    pub fn steps(self, payload: usize, shots: Option<&Shots>, decoder: u64) -> Vec<Step> {
        let shots = || shots.expect("the command line was checked for shots");
        match self {
            Self::RpcIncrement => vec![increment(payload)],
            Self::QecDecode => vec![qec_decode(shots())],
            Self::DecodingServer => decoding_server(shots(), decoder),
        }
    }
}

/// The scripts of a mix.
pub fn scripts(mix: &[Weighted], payload: usize, shots: Option<&Shots>, decoder: u64) -> Vec<Script> {
    let script = |weighted: &Weighted| Script {
        steps: weighted.function.steps(payload, shots, decoder),
        weight: weighted.weight,
    };
    mix.iter().map(script).collect()
}

fn step(name: &'static str, payloads: Table, expect: Expect) -> Step {
    Step { name, function_id: fnv1a(name), payloads, expect }
}

fn increment(payload: usize) -> Step {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let payloads = Table::build(payload, VARIANTS, |_, bytes| {
        for byte in bytes {
            // xorshift64: any bytes will do, as long as they differ from row to row and are the same in every run.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
    });
    let answers = Table::build(payload, VARIANTS, |row, bytes| {
        for (answer, asked) in bytes.iter_mut().zip(payloads.row(row)) {
            *answer = asked.wrapping_add(1);
        }
    });
    step("rpc_increment", payloads, Expect::Bytes(answers))
}

fn qec_decode(shots: &Shots) -> Step {
    let width = bytes_for(shots.detectors);
    let mut events = shots.events();
    let payloads = Table::build(width + 4, shots.len(), |_, bytes| {
        let (bits, count) = bytes.split_at_mut(width);
        bits.copy_from_slice(events.next().expect("a row per shot"));
        count.copy_from_slice(&(shots.detectors as u32).to_le_bytes());
    });
    step("qec_decode", payloads, Expect::prediction(shots))
}

fn decoding_server(shots: &Shots, decoder_id: u64) -> Vec<Step> {
    let mut events = shots.events();
    let enqueue = Table::build(32 + bytes_for(shots.detectors), shots.len(), |row, bytes| {
        let bits = Bits::new(events.next().expect("a row per shot"), shots.detectors).expect("rows hold all detectors");
        EnqueueSyndromes { decoder_id, counter: row as u64, measurements: bits }.write(bytes).expect("sized to fit");
    });
    let get = Table::build(GetCorrections::LEN, shots.len(), |_, bytes| {
        let return_size = shots.observables as u64;
        GetCorrections { decoder_id, return_size, reset: false }.write(bytes).expect("sized to fit");
    });
    let reset = Table::build(ResetDecoder::LEN, shots.len(), |_, bytes| {
        ResetDecoder { decoder_id }.write(bytes).expect("sized to fit");
    });
    let nothing = || Expect::Bytes(Table::new(Vec::new(), 0, shots.len()));
    vec![
        step("enqueue_syndromes", enqueue, nothing()),
        step("get_corrections", get, Expect::prediction(shots)),
        step("reset_decoder", reset, nothing()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shots() -> Shots {
        Shots {
            detectors: 24,
            observables: 1,
            events: vec![1, 2, 3, 4, 5, 6],
            truth: vec![0, 1],
            reference: vec![0, 1],
        }
    }

    #[test]
    fn increment_expects_each_byte_plus_one() {
        let step = increment(33);
        let Expect::Bytes(answers) = &step.expect else { panic!("exact bytes") };
        assert_eq!((step.payloads.rows(), step.payloads.width()), (VARIANTS, 33));
        assert_ne!(step.payloads.row(0), step.payloads.row(1));
        for row in 0..VARIANTS {
            for (asked, answer) in step.payloads.row(row).iter().zip(answers.row(row)) {
                assert_eq!(asked.wrapping_add(1), *answer);
            }
        }
    }

    #[test]
    fn a_shot_is_its_events_and_their_number() {
        let step = qec_decode(&shots());
        assert_eq!(step.payloads.row(1), [4, 5, 6, 24, 0, 0, 0]);
        assert_eq!(step.function_id, 0xC4B0_E4BF);
    }

    #[test]
    fn a_session_enqueues_gets_and_resets() {
        let steps = decoding_server(&shots(), 3);
        let enqueue = EnqueueSyndromes::parse(steps[0].payloads.row(1)).unwrap();
        assert_eq!((enqueue.decoder_id, enqueue.counter, enqueue.measurements.as_bytes()), (3, 1, &[4, 5, 6][..]));
        let get = GetCorrections::parse(steps[1].payloads.row(0)).unwrap();
        assert_eq!(get, GetCorrections { decoder_id: 3, return_size: 1, reset: false });
        assert_eq!(steps.iter().map(|step| step.expect.width()).collect::<Vec<_>>(), [0, 1, 0]);
    }

    #[test]
    fn names_and_weights_are_read() {
        assert_eq!("qec_decode:7".parse(), Ok(Weighted { function: Function::QecDecode, weight: 7 }));
        assert_eq!("rpc_increment".parse(), Ok(Weighted { function: Function::RpcIncrement, weight: 1 }));
        for bad in ["frobnicate", "qec_decode:0", "qec_decode:x", "qec_decode:1001", ""] {
            assert!(bad.parse::<Weighted>().is_err(), "{bad}");
        }
    }
}
