//! Requests over a limit are answered or dropped; each is counted by its reason, and everything is accounted for.

mod common;

use std::{net::SocketAddr, time::Duration};

use berth_admission::{Admission, Limits, Rate};
use berth_port::{Clock, Frame, Service, Verdict};
use berth_rpc::{Dispatch, Program, RpcService, Stage, Undispatchable, updates};
use berth_wire::rpc::{HeaderForm, status};
use common::*;

const FORM: HeaderForm = HeaderForm::V24;

fn service(
    on_undispatchable: Undispatchable,
    limits: Limits,
    clock: &VirtualClock,
) -> RpcService<TestHandlers, VirtualClock, fn(Stage, u64)> {
    let (config, handlers) = (config(FORM, on_undispatchable), TestHandlers(clock.clone()));
    let service = RpcService::new(config, table(Dispatch::Inline), handlers, None, clock.clone(), QUIET).unwrap();
    service.limited(alone(limits))
}

/// Admission for a port with one queue.
fn alone(limits: Limits) -> Option<Admission> {
    Admission::of_port(limits, 1).pop()
}

/// Sends an increment from `host`; returns the status of its answer.
fn ask(service: &mut impl Service, host: u8, clock: &VirtualClock) -> Option<i32> {
    let message = request(FORM, "increment", 7, &[1]);
    let mut buf = vec![0; SLOT];
    buf[..message.len()].copy_from_slice(&message);
    let mut frame = Frame::new(&mut buf, message.len(), message.len(), SocketAddr::from(([10, 0, 0, host], 4000)));
    let verdict = service.handle(&mut frame, clock.now());
    (verdict == Verdict::Reply).then(|| parse(FORM, frame.data()).0)
}

#[test]
fn requests_over_a_limit_are_answered_overloaded_and_never_run() {
    let (clock, limits) =
        (VirtualClock::default(), Limits { per_peer: Some(Rate::new(1000, 2)), all: Some(Rate::new(1000, 3)) });
    let mut service = service(Undispatchable::Reply, limits, &clock);
    let statuses = [1, 1, 1, 2, 2].map(|host| ask(&mut service, host, &clock).unwrap());
    assert_eq!(statuses, [0, 0, status::OVERLOADED, 0, status::OVERLOADED]);
    clock.advance(Duration::from_millis(1));
    assert_eq!(ask(&mut service, 1, &clock), Some(0));
    let calls = counters(|visit| service.counters(visit))["calls_increment"];
    assert_eq!(calls, 4);
    let expected = [("answered", 4), ("overloaded", 2), ("limited_peer", 1), ("limited_port", 1)];
    assert_eq!(events(&service), expected.into());
}

#[test]
fn a_port_that_stays_silent_drops_them() {
    let (clock, limits) = (VirtualClock::default(), Limits { per_peer: Some(Rate::new(1, 1)), all: None });
    let mut service = service(Undispatchable::Drop, limits, &clock);
    assert_eq!([1, 1].map(|host| ask(&mut service, host, &clock)), [Some(0), None]);
    let expected = [("answered", 1), ("overloaded", 1), ("limited_peer", 1), ("dropped_undispatchable", 1)];
    assert_eq!(events(&service), expected.into());
}

#[test]
fn what_is_no_request_takes_no_token() {
    let (clock, limits) = (VirtualClock::default(), Limits { per_peer: None, all: Some(Rate::new(1, 1)) });
    let mut service = service(Undispatchable::Reply, limits, &clock);
    for garbage in [&[0xFF; 64][..], &[], &[1, 2, 3]] {
        assert_eq!(handle(&mut service, FORM, garbage, SLOT, clock.now()), None);
    }
    assert_eq!(ask(&mut service, 1, &clock), Some(0));
    assert_eq!(events(&service), [("answered", 1), ("bad_magic", 1), ("truncated", 2)].into());
}

#[test]
fn a_new_program_brings_new_limits_and_leaves_buckets_whose_limits_stay() {
    let clock = VirtualClock::default();
    let strict = Limits { per_peer: Some(Rate::new(1, 2)), all: None };
    let (mut sender, updates) = updates();
    let mut service = service(Undispatchable::Reply, strict, &clock).updated_by(updates);
    assert_eq!(ask(&mut service, 1, &clock), Some(0));
    let program = |limits| Program::new(table(Dispatch::Inline), TestHandlers(clock.clone())).limited(limits);
    let mut reload = |service: &mut _, limits| {
        sender.send(program(limits)).ok().unwrap();
        Service::poll(service, &mut Outbox::new(1), clock.now());
        assert_eq!(sender.returned().count(), 1);
    };
    reload(&mut service, alone(strict));
    assert_eq!([1, 1].map(|host| ask(&mut service, host, &clock)), [Some(0), Some(status::OVERLOADED)]);
    reload(&mut service, None);
    assert_eq!([1, 1].map(|host| ask(&mut service, host, &clock)), [Some(0), Some(0)]);
    reload(&mut service, alone(strict));
    assert_eq!([1, 1, 1].map(|host| ask(&mut service, host, &clock)), [Some(0), Some(0), Some(status::OVERLOADED)]);
}
