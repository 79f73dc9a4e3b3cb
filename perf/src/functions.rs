//! The functions the emulator can call, by name.

use std::str::FromStr;

use berth_qec::mock::{MockTable, SyndromeFile};
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
    /// Recorded measurements in, their recorded correction out.
    MockDecode,
    /// Detection events of a shot in, its predicted observable flips out.
    QecDecode,
    /// The decoding server's session: enqueue the events of a shot, get its corrections, reset the decoder.
    DecodingServer,
    /// A `VectorAddRequest` in its dotcompute format: 43 bytes, answered with 39.
    VectorAdd,
}

/// A function with its share of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weighted {
    /// What to call.
    pub function: Function,
    /// How many of the mix's calls, in parts of the sum of all weights: 1 to 1000.
    pub weight: u32,
}

impl FromStr for Weighted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, weight) = text.split_once(':').unwrap_or((text, "1"));
        let function = match name {
            "rpc_increment" => Function::RpcIncrement,
            "mock_decode" => Function::MockDecode,
            "qec_decode" => Function::QecDecode,
            "decoding_server" => Function::DecodingServer,
            "vector_add" => Function::VectorAdd,
            _ => {
                let all = "rpc_increment, mock_decode, qec_decode, decoding_server, vector_add";
                return Err(format!("{name} is none of {all}"));
            }
        };
        let weight = weight.parse().ok().filter(|weight| (1..=1000).contains(weight));
        let weight = weight.ok_or("a weight is a whole number from 1 to 1000, as in rpc_increment:3")?;
        Ok(Self { function, weight })
    }
}

/// Different payloads of a step without data of its own.
const VARIANTS: usize = 1024;

impl Function {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::RpcIncrement => "rpc_increment",
            Self::MockDecode => "mock_decode",
            Self::QecDecode => "qec_decode",
            Self::DecodingServer => "decoding_server",
            Self::VectorAdd => "vector_add",
        }
    }

    /// Whether the payload's length can be chosen.
    pub fn is_sized(self) -> bool {
        self == Self::RpcIncrement
    }

    /// The option of the command line that gives the data it needs, if any.
    pub fn needs(self) -> Option<&'static str> {
        match self {
            Self::RpcIncrement | Self::VectorAdd => None,
            Self::MockDecode => Some("--syndromes FILE"),
            Self::QecDecode | Self::DecodingServer => Some("--shots PREFIX"),
        }
    }

    /// Its calls, with payloads of `payload` bytes where that can be chosen.
    ///
    /// # Panics
    /// Without the data that [`Function::needs`].
    pub fn steps(self, payload: usize, data: &Data) -> Vec<Step> {
        let shots = || data.shots.as_ref().expect("the caller checked what the function needs");
        match self {
            Self::RpcIncrement => vec![increment(payload)],
            Self::MockDecode => vec![mock_decode(data.syndromes.as_ref().expect("as above"))],
            Self::QecDecode => vec![qec_decode(shots())],
            Self::DecodingServer => decoding_server(shots(), data.decoder_id),
            Self::VectorAdd => vec![vector_add()],
        }
    }
}

/// What functions are called with.
#[derive(Debug, Clone, Default)]
pub struct Data {
    /// Shots, for `qec_decode` and `decoding_server`.
    pub shots: Option<Shots>,
    /// Recorded measurements and corrections, for `mock_decode`.
    pub syndromes: Option<SyndromeFile>,
    /// The decoder that `decoding_server` addresses.
    pub decoder_id: u64,
}

impl Data {
    /// Whether it has what `function` needs.
    pub fn serves(&self, function: Function) -> bool {
        match function {
            Function::RpcIncrement | Function::VectorAdd => true,
            Function::MockDecode => self.syndromes.is_some(),
            Function::QecDecode | Function::DecodingServer => self.shots.is_some(),
        }
    }
}

/// The scripts of a mix; as [`Function::steps`].
pub fn scripts(mix: &[Weighted], payload: usize, data: &Data) -> Vec<Script> {
    mix.iter().map(|call| Script { steps: call.function.steps(payload, data), weight: call.weight }).collect()
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

/// The message of each row has another sum. An id of zero is nobody's, so none is a duplicate; without a correlation the answer has
/// none, either.
fn vector_add() -> Step {
    const OPERANDS: usize = 35;
    let operands = |row: usize| [row as f32, 0.5];
    let head = |members: u8, bytes: &mut [u8]| (bytes[0], bytes[17]) = (members, 128);
    let payloads = Table::build(OPERANDS + 8, VARIANTS, |row, bytes| {
        head(5, bytes);
        for (word, at) in operands(row).iter().zip((OPERANDS..).step_by(4)) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    });
    let answers = Table::build(OPERANDS + 4, VARIANTS, |row, bytes| {
        head(4, bytes);
        bytes[OPERANDS..].copy_from_slice(&operands(row).iter().sum::<f32>().to_le_bytes());
    });
    step("VectorAddRequest", payloads, Expect::Bytes(answers))
}

fn mock_decode(syndromes: &SyndromeFile) -> Step {
    // The server's own table says which correction stays where the same measurements were recorded twice.
    let table = MockTable::from_file(syndromes);
    let mut shots = syndromes.shots();
    let payloads = Table::build(table.num_measurements(), syndromes.shots().len(), |_, bytes| {
        bytes.copy_from_slice(shots.next().expect("a row per shot").0);
    });
    let answers = Table::build(table.num_observables(), payloads.rows(), |row, bytes| {
        table.answer(payloads.row(row), bytes);
    });
    step("mock_decode", payloads, Expect::Bytes(answers))
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
            reference: Some(vec![0, 1]),
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
    fn messages_are_told_apart_by_their_sums() {
        let step = vector_add();
        let Expect::Bytes(answers) = &step.expect else { panic!("exact bytes") };
        assert_eq!((step.payloads.width(), answers.width()), (43, 39));
        let (message, answer) = (step.payloads.row(3), answers.row(3));
        assert_eq!((message[0], message[17], &message[35..]), (5, 128, &[0, 0, 0x40, 0x40, 0, 0, 0, 0x3F][..]));
        assert_eq!((answer[0], answer[17], &answer[35..]), (4, 128, &[0, 0, 0x60, 0x40][..]));
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
    fn recorded_measurements_expect_their_first_correction() {
        let text = "NUM_DATA 2\nNUM_LOGICAL 1\nSHOT_START 0\n1\n0\nSHOT_START 1\n0\n0\nSHOT_START 2\n1\n0\n\
                    CORRECTIONS_START\n1\n0\n0\nCORRECTIONS_END\n";
        let step = mock_decode(&SyndromeFile::parse(text).unwrap());
        let Expect::Bytes(answers) = &step.expect else { panic!("exact bytes") };
        assert_eq!(
            [0, 1, 2].map(|row| (step.payloads.row(row), answers.row(row)[0])),
            [(&[1, 0][..], 1), (&[0, 0], 0), (&[1, 0], 1)]
        );
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
