//! Inline dispatch: every status, both header forms, both policies.

mod common;

use std::{collections::BTreeMap, time::Duration};

use berth_port::{Clock, Frame, Now, Service, Verdict};
use berth_rpc::{COOL_OFF, Config, Dispatch, RpcService, SetupError, Stage, Undispatchable};
use berth_wire::rpc::{HeaderForm, PtpEncoding, status};
use common::*;
use proptest::prelude::*;

const FORMS: [HeaderForm; 2] = [HeaderForm::V24, HeaderForm::V16];

fn service(config: Config, clock: &VirtualClock) -> RpcService<TestHandlers, VirtualClock, impl FnMut(Stage, u64)> {
    let table = table(Dispatch::Inline);
    RpcService::new(config, table, TestHandlers(clock.clone()), None, clock.clone(), |_, _| {}).unwrap()
}

/// Sends one message through a fresh service; returns the answer and the counters.
fn once(config: Config, message: &[u8]) -> (Option<Answer>, BTreeMap<&'static str, u64>) {
    let clock = VirtualClock::default();
    let mut service = service(config, &clock);
    let answer = handle(&mut service, config.header, message, SLOT, clock.now());
    (answer, events(&service))
}

#[test]
fn a_request_is_answered_with_exactly_header_and_result() {
    for form in FORMS {
        let config = config(form, Undispatchable::Reply);
        for padding in [0, 1, 100, SLOT - form.len() - 3] {
            let mut message = request(form, "increment", 7, &[1, 2, 255]);
            message.resize(message.len() + padding, 0xAA);
            let (answer, events) = once(config, &message);
            assert_eq!(answer, Some((0, 7, vec![2, 3, 0])), "{form:?} {padding}");
            assert_eq!(events, [("answered", 1)].into());
        }
    }
}

#[test]
fn what_cannot_be_dispatched_is_answered_or_dropped() {
    for form in FORMS {
        let mut beyond = request(form, "increment", 9, &[0; 8]);
        beyond.pop();
        let mut endless = request(form, "increment", 9, &[0; 8]);
        endless[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut long = request(form, "increment", 9, &[0; 8]);
        long.resize(SLOT + 1, 0);
        let cases = [
            ("unknown_function", status::UNKNOWN_FUNCTION, request(form, "nobody", 9, &[])),
            ("bad_length", status::BAD_LENGTH, beyond),
            ("bad_length", status::BAD_LENGTH, endless),
            ("bad_length", status::BAD_LENGTH, long),
            ("schema_mismatch", status::SCHEMA_MISMATCH, request(form, "status", 9, &[0; 5])),
            ("schema_mismatch", status::SCHEMA_MISMATCH, request(form, "status", 9, &[0; 3])),
        ];
        for (name, status, message) in cases {
            let (answer, events) = once(config(form, Undispatchable::Reply), &message);
            assert_eq!(answer, Some((status, 9, vec![])), "{name}");
            assert_eq!(events, [(name, 1)].into());
            let (answer, events) = once(config(form, Undispatchable::Drop), &message);
            assert_eq!(answer, None, "{name}");
            assert_eq!(events, [(name, 1), ("dropped_undispatchable", 1)].into());
        }
    }
}

#[test]
fn a_frame_longer_than_a_slot_is_refused_even_where_the_port_cut_it() {
    let clock = VirtualClock::default();
    let mut service = service(config(HeaderForm::V24, Undispatchable::Reply), &clock);
    let mut buf = [0; SLOT];
    let message = request(HeaderForm::V24, "increment", 1, &[5]);
    buf[..message.len()].copy_from_slice(&message);
    let mut frame = Frame::new(&mut buf, SLOT, SLOT + 1, peer(1));
    assert_eq!(service.handle(&mut frame, clock.now()), Verdict::Reply);
    assert_eq!(parse(HeaderForm::V24, frame.data()), (status::BAD_LENGTH, 1, vec![]));
}

#[test]
fn what_is_no_request_is_never_answered() {
    for form in FORMS {
        let config = config(form, Undispatchable::Reply);
        let good = request(form, "increment", 1, &[]);
        let mut response = good.clone();
        response[0] += 1;
        let mut noise = good.clone();
        noise[3] = 0;
        for message in [response, noise, vec![0; 4], vec![0xFF; 200]] {
            assert_eq!(once(config, &message), (None, [("bad_magic", 1)].into()));
        }
        for len in 0..form.len() {
            assert_eq!(once(config, &good[..len]), (None, [("truncated", 1)].into()), "{len}");
        }
    }
}

#[test]
fn a_handlers_own_status_is_answered_under_either_policy() {
    for policy in [Undispatchable::Reply, Undispatchable::Drop] {
        let config = config(HeaderForm::V24, policy);
        for (given, sent, name) in [
            (1, 1, "handler_error"),
            (i32::MAX, i32::MAX, "handler_error"),
            // Negative ones are the protocol's: a client must not take a call that ran for one that did not.
            (-1, -6, "handler_failed"),
            (-2, -6, "handler_failed"),
            (-3, -6, "handler_failed"),
            (-4, -6, "handler_failed"),
            (-5, -6, "handler_failed"),
            (-6, -6, "handler_failed"),
            (0, -6, "handler_failed"),
            (-7, -6, "handler_failed"),
            (i32::MIN, -6, "handler_failed"),
        ] {
            let (answer, events) = once(config, &request(HeaderForm::V24, "status", 2, &i32::to_le_bytes(given)));
            assert_eq!(answer, Some((sent, 2, vec![])), "{given}");
            assert_eq!(events, [(name, 1)].into());
        }
    }
}

#[test]
fn a_claimed_result_must_fit_the_slot_and_the_schema() {
    for form in FORMS {
        let config = config(form, Undispatchable::Reply);
        let room = (SLOT - form.len()) as u32;
        let claim = |len: u32| once(config, &request(form, "claim", 3, &len.to_le_bytes()));
        assert_eq!(claim(room).0.unwrap().2.len(), room as usize);
        assert_eq!(claim(room + 4), (Some((-4, 3, vec![])), [("result_too_large", 1)].into()));
        assert_eq!(claim(u32::MAX), (Some((-4, 3, vec![])), [("result_too_large", 1)].into()));
        assert_eq!(claim(7), (Some((-6, 3, vec![])), [("bad_result", 1), ("handler_failed", 1)].into()));
    }
}

#[test]
fn a_frame_with_less_room_than_a_slot_limits_the_result() {
    let clock = VirtualClock::default();
    let mut service = service(config(HeaderForm::V24, Undispatchable::Reply), &clock);
    let message = request(HeaderForm::V24, "claim", 3, &[8, 0, 0, 0]);
    let answer = handle(&mut service, HeaderForm::V24, &message, message.len(), clock.now());
    assert_eq!(answer, Some((status::RESULT_TOO_LARGE, 3, vec![])));
}

#[test]
fn a_handler_may_judge_the_claimed_length_itself() {
    for form in FORMS {
        let mut message = request(form, "lenient", 4, &[0; 10]);
        message[8..12].copy_from_slice(&1000_u32.to_le_bytes());
        let (answer, _) = once(config(form, Undispatchable::Reply), &message);
        assert_eq!(answer, Some((0, 4, 1000_u32.to_le_bytes().to_vec())));
    }
}

#[test]
fn a_panicking_function_rests_while_others_are_served() {
    let clock = VirtualClock::default();
    let mut service = service(config(HeaderForm::V24, Undispatchable::Reply), &clock);
    let mut status = |name| {
        let message = request(HeaderForm::V24, name, 5, &[0; 4]);
        let (status, id, _) = handle(&mut service, HeaderForm::V24, &message, SLOT, clock.now()).unwrap();
        assert_eq!(id, 5);
        status
    };
    for _ in 0..3 {
        assert_eq!(status("panic"), status::HANDLER_FAILED);
    }
    assert_eq!(status("panic"), status::OVERLOADED);
    assert_eq!(status("increment"), 0);
    clock.advance(COOL_OFF);
    assert_eq!(status("panic"), status::HANDLER_FAILED, "it is tried again");
    assert_eq!(status("panic"), status::OVERLOADED, "and rests again");
    let expected = [("answered", 1), ("handler_failed", 4), ("overloaded", 2), ("panicked", 4), ("resting", 2)];
    assert_eq!(events(&service), expected.into());
    assert_eq!(counters(|visit| service.counters(visit))["calls_panic"], 4);
}

#[test]
fn a_function_that_overruns_its_budget_rests_and_recovers() {
    let clock = VirtualClock::default();
    let mut service = service(config(HeaderForm::V24, Undispatchable::Reply), &clock);
    let mut take = |micros: u32| {
        let message = request(HeaderForm::V24, "take", 6, &micros.to_le_bytes());
        handle(&mut service, HeaderForm::V24, &message, SLOT, clock.now()).unwrap().0
    };
    // Late answers are sent, and one in time forgives those before it.
    assert_eq!([11, 11, 10, 11, 11].map(&mut take), [0; 5]);
    assert_eq!([11, 1].map(&mut take), [0, status::OVERLOADED]);
    clock.advance(COOL_OFF);
    assert_eq!([1, 11, 11].map(&mut take), [0; 3]);
    assert_eq!(events(&service), [("answered", 9), ("over_budget", 7), ("overloaded", 1), ("resting", 1)].into());
}

#[test]
fn wire_time_is_measured_in_both_encodings() {
    let second = 1_000_000_000_u64;
    for (ptp, stamp, expected, counted) in [
        (PtpEncoding::Ns, 0, None, None),
        (PtpEncoding::Ns, 2 * second - 40, Some(40), None),
        (PtpEncoding::Ns, 2 * second + 1, Some(0), Some("future_stamps")),
        (PtpEncoding::SecNsec, (1 << 32) + second - 40, Some(40), None),
        (PtpEncoding::SecNsec, 3 << 32, Some(0), Some("future_stamps")),
        (PtpEncoding::SecNsec, (1 << 32) + second, None, Some("bad_stamps")),
    ] {
        let clock = VirtualClock::default();
        let mut recorded = None;
        let config = Config { ptp, ..config(HeaderForm::V24, Undispatchable::Reply) };
        let record = |stage, nanos| {
            assert_eq!(stage, Stage::Wire);
            assert_eq!(recorded.replace(nanos), None);
        };
        let handlers = TestHandlers(clock.clone());
        let mut service =
            RpcService::new(config, table(Dispatch::Inline), handlers, None, clock.clone(), record).unwrap();
        let mut message = request(HeaderForm::V24, "increment", 1, &[]);
        message[16..24].copy_from_slice(&stamp.to_le_bytes());
        let mut frame = Frame::new(&mut message, 24, 24, peer(1));
        let now = Now::default().after(Duration::from_secs(2));
        assert_eq!(service.handle(&mut frame, now), Verdict::Reply);
        assert_eq!(frame.data()[16..24], stamp.to_le_bytes(), "echoed verbatim");
        assert_eq!(events(&service).keys().find(|name| name.ends_with("stamps")).copied(), counted);
        drop(service);
        assert_eq!(recorded, expected, "{ptp:?} {stamp:#x}");
    }
}

#[test]
fn a_service_that_cannot_work_is_refused() {
    let clock = VirtualClock::default();
    let make = |config, mode| {
        RpcService::new(config, table(mode), TestHandlers(clock.clone()), None, clock.clone(), |_, _| {}).err()
    };
    let good = config(HeaderForm::V24, Undispatchable::Reply);
    assert_eq!(make(Config { slot_size: 28, ..good }, Dispatch::Inline), None);
    assert_eq!(
        make(Config { slot_size: 27, ..good }, Dispatch::Inline),
        Some(SetupError::TooLarge { name: "status".into(), needed: 28, slot_size: 27 })
    );
    assert_eq!(
        make(Config { slot_size: 23, ..good }, Dispatch::Inline),
        Some(SetupError::ShortSlots { slot_size: 23, header: 24 })
    );
    assert_eq!(make(good, RING), Some(SetupError::NoRing("increment".into())));
}

proptest! {
    /// Whatever arrives, the service neither panics nor writes beyond its slot, and accounts for it.
    #[test]
    fn random_messages_have_one_outcome(
        form in prop::sample::select(&FORMS[..]),
        name in prop::sample::select(&["increment", "status", "claim", "lenient", "nobody"][..]),
        messages in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..300), any::<bool>(), any::<Option<u8>>()), 1..20),
    ) {
        let clock = VirtualClock::default();
        let mut service = service(config(form, Undispatchable::Reply), &clock);
        for (mut bytes, valid_header, arg_len) in messages {
            if valid_header && bytes.len() >= form.len() {
                let args = bytes[form.len()..].to_vec();
                bytes = request(form, name, 1, &args);
                if let Some(arg_len) = arg_len {
                    bytes[8..12].copy_from_slice(&u32::from(arg_len).to_le_bytes());
                }
            }
            let answer = handle(&mut service, form, &bytes, SLOT, clock.now());
            prop_assert!(answer.is_none_or(|(_, _, result)| form.len() + result.len() <= SLOT));
        }
        events(&service);
    }
}
