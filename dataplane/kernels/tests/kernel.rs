//! What becomes of messages to a kernel, one at a time.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use berth_kernels::{
    Builtin, Choice, DUPLICATE, Format, Kernel, KernelError, Member, NOT_ACTIVE, OUTCOMES, Refusal, Registry, Schema,
    Settings,
};
use berth_port::Peer;
use proptest::prelude::*;

fn settings() -> Settings {
    let registry = Registry::default();
    let schema = |name| registry.find(name).unwrap().schema.clone();
    Settings {
        request: schema("VectorAddRequest"),
        response: schema("VectorAddResponse"),
        builtin: Builtin::VectorAdd,
        format: Choice::Auto,
        dedup: 16,
        active: true,
        queue: None,
    }
}

fn peer(port: u16) -> Peer {
    Peer::Address(SocketAddr::from(([10, 0, 0, 1], port)))
}

fn message(id: u8, a: f32) -> Vec<u8> {
    let mut bytes = vec![0; 43];
    (bytes[0], bytes[17]) = (5, 128);
    bytes[1..17].fill(id);
    bytes[35..39].copy_from_slice(&a.to_le_bytes());
    bytes
}

fn answer(id: u8, a: f32) -> Vec<u8> {
    let mut bytes = vec![0; 39];
    (bytes[0], bytes[17], bytes[18]) = (4, 128, u8::from(id != 0));
    bytes[1..17].fill(id);
    bytes[19..35].fill(id);
    bytes[35..].copy_from_slice(&a.to_le_bytes());
    bytes
}

#[test]
fn a_million_messages_allocate_nothing() {
    let mut kernel = Kernel::new(settings()).unwrap();
    let messages: Vec<_> = (0..100).map(|id| message(id, 1.5)).collect();
    let answers: Vec<_> = (0..100).map(|id| answer(id, 1.5)).collect();
    let mut wrong = 0;
    let measured = allocation_counter::measure(|| {
        for round in 0..1_000_000_usize {
            let at = round % 100;
            wrong += usize::from(kernel.run(peer((round % 7) as u16), &messages[at]) != Ok(&answers[at]));
            wrong += usize::from(kernel.run(peer(9), &messages[at][1..27]).is_ok());
        }
    });
    assert_eq!((measured.count_total, wrong), (0, 0));
    assert_eq!(kernel.counts().iter().sum::<u64>(), 2_000_000);
}

#[test]
fn a_kernel_needs_its_members_and_a_length_for_each_format() {
    let schema = |name, members: &[&str]| {
        let members = members.iter().map(|member| member.parse::<Member>().unwrap()).collect();
        Arc::new(Schema::new(name, members).unwrap())
    };
    let kernel = |request, response, format| Settings { request, response, format, ..settings() }.check();
    let (sound, result) = (schema("Add", &["B f32", "x u8", "A f32"]), schema("Sum", &["y u8", "Result f32"]));
    assert_eq!(kernel(sound.clone(), result.clone(), Choice::Auto), Ok(()));
    for wrong in [&["A f32", "B f64"][..], &["A f32", "B f32?"], &["A f32"]] {
        let refused = kernel(schema("Add", wrong), result.clone(), Choice::Auto);
        assert_eq!(refused, Err(KernelError::NoInput("Add".into(), "B")));
    }
    let refused = kernel(sound.clone(), schema("Sum", &["result f32"]), Choice::Auto);
    assert_eq!(refused, Err(KernelError::NoOutput("Sum".into(), "Result")));
    // No nullable in the request, so its two formats are one; the response has two.
    let padded = schema("Sum", &["Result f32", "Note u32?"]);
    let refused = kernel(sound.clone(), padded.clone(), Choice::Auto);
    assert_eq!(refused, Err(KernelError::Ambiguous("Add".into(), "Sum".into())));
    let settled = Settings { request: sound, response: padded, format: Choice::Only(Format::MemoryPack), ..settings() };
    let mut kernel = Kernel::new(settled).unwrap();
    let request = [&[3][..], &2.0_f32.to_le_bytes(), &[0], &1.0_f32.to_le_bytes()].concat();
    let sum = [&[2][..], &3.0_f32.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(kernel.run(peer(1), &request), Ok(&sum[..]), "no head: nothing is filled in, nothing remembered");
}

#[test]
fn what_a_kernel_counted_and_remembers_outlives_its_settings() {
    let mut kernel = Kernel::new(settings()).unwrap();
    kernel.run(peer(1), &message(1, 1.0)).unwrap();
    let mut resting = Kernel::new(Settings { active: false, ..settings() }).unwrap();
    resting.adopt(&mut kernel);
    assert_eq!(resting.run(peer(1), &message(1, 1.0)), Err(Refusal::Status(NOT_ACTIVE)));
    assert_eq!(resting.run(peer(1), &message(1, 1.0)[..42 - 1]), Err(Refusal::Malformed), "no message of its at all");
    let mut kernel = Kernel::new(settings()).unwrap();
    kernel.adopt(&mut resting);
    assert_eq!(kernel.run(peer(1), &message(1, 2.0)), Err(Refusal::Status(DUPLICATE)));
    assert_eq!(kernel.run(peer(1), &message(1, 1.0)), Ok(&answer(1, 1.0)[..]));
    let mut other = Kernel::new(Settings { format: Choice::Only(Format::DotCompute), ..settings() }).unwrap();
    other.adopt(&mut kernel);
    assert_eq!(other.run(peer(1), &message(1, 2.0)), Ok(&answer(1, 2.0)[..]), "it answers otherwise, and begins anew");
    assert_eq!(OUTCOMES[..5], ["answered", "repeated", "duplicate", "not_active", "malformed"]);
    assert_eq!(other.counts(), &[2, 1, 1, 1, 1, 0, 0, 0]);
}

proptest! {
    /// Against a list that is searched from one end to the other.
    #[test]
    fn the_last_messages_are_remembered_and_no_others(
        sent in prop::collection::vec((0_u16..3, 0_u8..24, 0_u8..2), 0..400),
        window in 16_usize..40,
    ) {
        let mut kernel = Kernel::new(Settings { dedup: window, ..settings() }).unwrap();
        let mut kept: VecDeque<(u16, u8, u8)> = VecDeque::new();
        let mut counts = [0; OUTCOMES.len()];
        for (port, id, a) in sent {
            let got = kernel.run(peer(port), &message(id, a.into())).map(<[u8]>::to_vec);
            let known = kept.iter().find(|known| id != 0 && (known.0, known.1) == (port, id));
            let (outcome, wanted) = match known {
                Some((.., before)) if *before == a => (1, Ok(answer(id, a.into()))),
                Some(_) => (2, Err(Refusal::Status(DUPLICATE))),
                None => {
                    if id != 0 {
                        kept.push_back((port, id, a));
                    }
                    (0, Ok(answer(id, a.into())))
                }
            };
            counts[outcome] += 1;
            prop_assert_eq!(got, wanted);
            while kept.len() > window {
                kept.pop_front();
            }
        }
        prop_assert_eq!(kernel.counts(), &counts);
    }
}
