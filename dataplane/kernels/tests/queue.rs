//! What becomes of messages that wait for a kernel, against a list that is searched from one end to the other.

use std::{net::SocketAddr, time::Duration};

use berth_kernels::{
    Backpressure, Builtin, Choice, DROPPED, DUPLICATE, Kernel, Next, OUTCOMES, QueueSettings, Refusal, Registry, Runs,
    Sent, Settings, Ticket, UNDER_WAY,
};
use berth_port::{Nanos, Peer};
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_millis(10);
const WAITING: usize = 16;

fn settings(queue: QueueSettings) -> Settings {
    let registry = Registry::default();
    let schema = |name| registry.find(name).unwrap().schema.clone();
    Settings {
        request: schema("VectorAddRequest"),
        response: schema("VectorAddResponse"),
        runs: Runs::Builtin(Builtin::VectorAdd),
        format: Choice::Auto,
        dedup: 1024,
        active: true,
        queue: Some(queue),
    }
}

fn queue(priority: bool, backpressure: Backpressure) -> QueueSettings {
    QueueSettings { waiting: WAITING, priority, backpressure, timeout: TIMEOUT }
}

fn message(id: u8, priority: u8, a: u8) -> Vec<u8> {
    let mut bytes = vec![0; 43];
    (bytes[0], bytes[17]) = (5, priority);
    bytes[1..17].fill(id);
    bytes[35..39].copy_from_slice(&f32::from(a).to_le_bytes());
    bytes
}

fn ticket(peer: u16, request_id: u32) -> Ticket {
    let peer = Peer::Address(SocketAddr::from(([10, 0, 0, 1], peer)));
    Ticket { to: peer.into(), request_id, ptp_timestamp: 0 }
}

#[derive(Debug, Clone)]
enum Step {
    Arrive {
        peer: u16,
        id: u8,
        priority: u8,
        a: u8,
    },
    /// Does what is next.
    Next,
    /// The worker ends the message with this number among those it has.
    End {
        nth: usize,
        answers: bool,
    },
    Advance {
        ms: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u16..2, 0_u8..12, 0_u8..4, 0_u8..2)
            .prop_map(|(peer, id, priority, a)| Step::Arrive { peer, id, priority: priority * 80, a }),
        4 => Just(Step::Next),
        3 => (0..UNDER_WAY, any::<bool>()).prop_map(|(nth, answers)| Step::End { nth, answers }),
        1 => (0_u64..8).prop_map(|ms| Step::Advance { ms }),
    ];
    prop::collection::vec(step, 0..300)
}

/// A message, by the number of its arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    number: u32,
    peer: u16,
    bytes: Vec<u8>,
    priority: u8,
    arrived: Nanos,
}

impl Known {
    fn key(&self) -> Option<(u16, u8)> {
        (self.bytes[1] != 0).then_some((self.peer, self.bytes[1]))
    }
}

/// What the model keeps: lists in the order of arrival.
#[derive(Default)]
struct Model {
    waiting: Vec<Known>,
    under_way: Vec<(Known, Option<Sent>)>,
    dropped: Vec<Known>,
    answered: Vec<Known>,
    counts: [u64; OUTCOMES.len()],
}

impl Model {
    fn count(&mut self, outcome: &str) {
        self.counts[OUTCOMES.iter().position(|known| *known == outcome).unwrap()] += 1;
    }

    /// What was answered with the key of this message: the same bytes, or others.
    fn before(&self, known: &Known) -> Option<bool> {
        let same = |before: &&Known| before.key().is_some() && before.key() == known.key();
        Some(self.answered.iter().find(same)?.bytes == known.bytes)
    }
}

proptest! {
    #[test]
    fn each_message_has_the_end_that_a_plain_list_gives_it(
        steps in steps(),
        priority: bool,
        backpressure in prop::sample::select(vec![Backpressure::Reject, Backpressure::DropNew, Backpressure::DropOldest]),
    ) {
        let mut kernel = Kernel::new(settings(queue(priority, backpressure))).unwrap();
        let (mut model, mut now, mut number) = (Model::default(), Nanos(0), 0);
        for step in steps {
            match step {
                Step::Advance { ms } => now = now + Duration::from_millis(ms),
                Step::Arrive { peer, id, priority, a } => {
                    number += 1;
                    let known = Known { number, peer, bytes: message(id, priority, a), priority, arrived: now };
                    let got = kernel.arrive(ticket(peer, number), &known.bytes, now).map(|answer| answer.is_some());
                    let is_full = model.waiting.len() == WAITING;
                    let wanted = match (model.before(&known), backpressure) {
                        (Some(true), _) => { model.count("repeated"); Ok(true) }
                        (Some(false), _) => { model.count("duplicate"); Err(Refusal::Status(DUPLICATE)) }
                        (None, Backpressure::Reject) if is_full => { model.count("rejected"); Err(Refusal::Overloaded) }
                        (None, Backpressure::DropNew) if is_full => { model.count("dropped"); Err(Refusal::Status(DROPPED)) }
                        (None, _) => {
                            if is_full {
                                let oldest = model.waiting.remove(0);
                                model.dropped.push(oldest);
                            }
                            model.waiting.push(known);
                            Ok(false)
                        }
                    };
                    prop_assert_eq!(got, wanted);
                }
                Step::Next => {
                    let next = kernel.next(now).map(|next| match next {
                        Next::Tell(ticket, answer) => (ticket.request_id, Some(answer.map(<[u8]>::to_vec))),
                        Next::Run(ticket, _) => (ticket.request_id, None),
                    });
                    let is_over = |known: &Known| now > known.arrived + TIMEOUT;
                    if model.dropped.is_empty() && model.waiting.first().is_some_and(is_over) {
                        let oldest = model.waiting.remove(0);
                        model.dropped.push(oldest);
                    }
                    if !model.dropped.is_empty() {
                        let told = model.dropped.remove(0);
                        prop_assert_eq!(next, Some((told.number, Some(Err(DROPPED)))));
                        kernel.told();
                        model.count("dropped");
                        continue;
                    }
                    // The last of the highest is not the one that arrived first: turn the list round.
                    let turn = model.waiting.iter().rev().max_by_key(|known| if priority { known.priority } else { 0 });
                    let Some(turn) = turn.filter(|turn| !is_over(turn)).cloned() else {
                        prop_assert_eq!(next, None);
                        continue;
                    };
                    let at = model.waiting.iter().position(|known| *known == turn).unwrap();
                    if let Some(is_same) = model.before(&turn) {
                        let (told, answer) = next.unwrap();
                        prop_assert_eq!((told, answer.unwrap().is_ok()), (turn.number, is_same));
                        kernel.told();
                        model.count(if is_same { "repeated" } else { "duplicate" });
                        model.waiting.remove(at);
                        continue;
                    }
                    let has_key = |(other, _): &(Known, _)| other.key().is_some() && other.key() == turn.key();
                    if model.under_way.len() == UNDER_WAY || model.under_way.iter().any(has_key) {
                        prop_assert_eq!(next, None);
                        continue;
                    }
                    prop_assert_eq!(next, Some((turn.number, None)));
                    let sent = kernel.sent();
                    let known = model.waiting.remove(at);
                    model.under_way.push((known, sent));
                }
                Step::End { nth, answers } if nth < model.under_way.len() => {
                    let (known, sent) = model.under_way.remove(nth);
                    kernel.answered(sent.unwrap(), answers.then_some(&known.bytes[..39]), now);
                    model.count(if answers { "answered" } else { "failed" });
                    if answers {
                        model.answered.push(known);
                    }
                }
                Step::End { .. } => {}
            }
            prop_assert_eq!(kernel.counts(), &model.counts);
            prop_assert_eq!(kernel.waiting(), model.waiting.len() + model.dropped.len());
        }
        let ended: u64 = model.counts.iter().sum();
        prop_assert_eq!(ended + (kernel.waiting() + model.under_way.len()) as u64, u64::from(number));
    }
}

#[test]
fn a_queue_of_the_most_messages_allocates_nothing_once_it_is_made() {
    let waiting = 1 << 20;
    let queue = QueueSettings { waiting, ..queue(true, Backpressure::DropOldest) };
    let mut kernel = Kernel::new(settings(queue)).unwrap();
    let message = message(0, 7, 1);
    // There is room for those that a worker has, and for some that gave way and were not told so yet.
    let room = waiting + UNDER_WAY + 64;
    let measured = allocation_counter::measure(|| {
        for number in 0..room as u32 {
            assert_eq!(kernel.arrive(ticket(1, number), &message, Nanos(0)), Ok(None));
        }
        assert_eq!(kernel.arrive(ticket(1, 0), &message, Nanos(0)), Err(Refusal::Overloaded));
        for _ in 0..room {
            assert!(matches!(kernel.next(Nanos(u64::MAX)), Some(Next::Tell(_, Err(DROPPED)))));
            kernel.told();
        }
    });
    assert_eq!(measured.count_total, 0);
    assert_eq!(kernel.waiting(), 0);
}
