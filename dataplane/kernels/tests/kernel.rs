//! What becomes of messages to a kernel, one at a time.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, time::Duration};

use berth_kernels::{
    Backpressure, Builtin, Choice, Code, DUPLICATE, Failed, Format, Instance, Kernel, KernelError, Member, NOT_ACTIVE,
    OUTCOMES, QueueSettings, Refusal, Registry, Runs, Schema, Settings,
};
use berth_port::{Nanos, Peer, SAMPLE_EVERY};
use proptest::prelude::*;

fn settings() -> Settings {
    let registry = Registry::default();
    let schema = |name| registry.find(name).unwrap().schema.clone();
    Settings {
        request: schema("VectorAddRequest"),
        response: schema("VectorAddResponse"),
        runs: Runs::Builtin(Builtin::VectorAdd),
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

/// Sums the single-precision number at byte 34 of each raw request into its state; fails at a NaN. Sets what is not its own, too.
#[derive(Debug)]
struct Summing(f32);

impl Instance for Summing {
    fn answer(&mut self, request: &[u8], response: &mut [u8]) -> Result<(), Failed> {
        let number = f32::from_le_bytes(request[34..38].try_into().unwrap());
        assert!(response.iter().all(|byte| *byte == 0));
        response[..34].fill(0xEE);
        if number.is_nan() {
            return Err(Failed);
        }
        self.0 += number;
        response[34..].copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }
}

#[derive(Debug)]
struct Sum;

impl Code for Sum {
    fn name(&self) -> &'static str {
        "wasm:sum"
    }

    fn instance(&self) -> Result<Box<dyn Instance>, String> {
        Ok(Box::new(Summing(0.0)))
    }

    fn take_log(&self, _: &mut dyn FnMut(u32, &[u8])) -> u64 {
        0
    }
}

#[test]
fn code_sees_the_raw_format_and_its_state_lives_on() {
    let code: Arc<dyn Code> = Arc::new(Sum);
    let settings = Settings { runs: Runs::Code(code), ..settings() };
    let mut kernel = Kernel::new(settings.clone()).unwrap();
    assert_eq!(kernel.run(peer(1), &message(1, 1.5)), Ok(&answer(1, 1.5)[..]), "the head is the host's");
    assert_eq!(kernel.run(peer(1), &message(2, 2.0)), Ok(&answer(2, 3.5)[..]));
    assert_eq!(kernel.run(peer(1), &message(1, 1.5)), Ok(&answer(1, 1.5)[..]), "remembered");
    assert_eq!(kernel.run(peer(1), &message(3, f32::NAN)), Err(Refusal::Failed));
    assert_eq!(kernel.run(peer(1), &message(3, 4.0)), Ok(&answer(3, 7.5)[..]), "what failed is not remembered");
    let counts =
        |kernel: &Kernel| OUTCOMES.into_iter().zip(*kernel.counts()).filter(|(_, n)| *n > 0).collect::<Vec<_>>();
    assert_eq!(counts(&kernel), [("answered", 3), ("repeated", 1), ("failed", 1)]);
    // The same code with other settings goes on where it was, other code does not.
    let mut forgetful = Kernel::new(Settings { dedup: 0, ..settings.clone() }).unwrap();
    forgetful.adopt(&mut kernel);
    assert_eq!(forgetful.run(peer(1), &message(1, 1.0)), Ok(&answer(1, 8.5)[..]));
    let mut other = Kernel::new(Settings { runs: Runs::Code(Arc::new(Sum)), ..settings.clone() }).unwrap();
    other.adopt(&mut forgetful);
    assert_eq!(other.run(peer(1), &message(1, 1.0)), Ok(&answer(1, 1.0)[..]));
    // A worker has the instance of a queued kernel, and keeps it through a reload.
    let mut worker = Kernel::for_worker(settings.clone()).unwrap();
    assert_eq!(worker.execute(&message(1, 1.0)), Ok(&answer(1, 1.0)[..]));
    let mut next = Kernel::for_worker(settings.clone()).unwrap();
    next.adopt(&mut worker);
    assert_eq!(next.execute(&message(1, 1.0)), Ok(&answer(1, 2.0)[..]));
    assert_eq!(next.execute(&message(1, f32::NAN)), Err(Refusal::Failed));
    let queue = QueueSettings {
        waiting: 16,
        priority: false,
        backpressure: Backpressure::Reject,
        timeout: Duration::from_secs(1),
    };
    let mut queued = Kernel::new(Settings { queue: Some(queue), ..settings }).unwrap();
    queued.adopt(&mut next);
    assert_eq!(queued.execute(&message(1, 1.0)), Err(Refusal::Failed), "it runs elsewhere");
}

#[test]
fn one_message_in_so_many_is_timed_and_the_times_outlive_the_settings() {
    let mut kernel = Kernel::new(settings()).unwrap();
    let mut readings = 0;
    for number in 0..=u64::from(SAMPLE_EVERY) {
        let now = Nanos(100 + number);
        kernel.ran(now, || {
            readings += 1;
            now + Duration::from_nanos(150)
        });
    }
    let times = |kernel: &Kernel| kernel.times().map(|times| (times.snapshot().len(), times.snapshot().max()));
    assert_eq!((readings, times(&kernel)), (2, Some((2, 150))));
    let mut next = Kernel::new(Settings { active: false, ..settings() }).unwrap();
    next.adopt(&mut kernel);
    assert_eq!(times(&next), Some((2, 150)));
    assert_eq!(times(&Kernel::for_worker(settings()).unwrap()), None);
}
