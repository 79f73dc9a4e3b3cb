//! Hosts that do not prove who they are: what they are refused, and when they are cut off.

mod common;

use std::{sync::Arc, time::Duration};

use berth_nvme::{Limits, auth::Next};
use berth_port::{Next as Wants, Session as _};
use berth_wire::nvme::{
    Sgl, Sqe, Status,
    auth::{Message, Negotiate, Reason},
    fabrics::{Authentication, property},
    opcode::{self, fabrics},
};
use common::{chap::*, *};

#[test]
fn nothing_is_served_before_the_proof() {
    let (node, bench) = node();
    let (mut admin, id) = admin(&node, &bench, 1);
    for queue in [0, 1] {
        let mut host = Host::initialised(&node.target, 0, 0);
        let early = |host: &mut Host| {
            let fabrics_commands = [fabrics::PROPERTY_GET, fabrics::PROPERTY_SET, fabrics::DISCONNECT, 0x0F];
            for fctype in fabrics_commands {
                let cid = host.cid();
                host.command(&berth_wire::nvme::fabrics::command(fctype, cid), &[]);
                assert_eq!(host.status(cid), Status::AUTHENTICATION_REQUIRED, "{fctype:#x}");
            }
            for opcode in
                [opcode::io::READ, opcode::io::FLUSH, opcode::admin::IDENTIFY, opcode::admin::KEEP_ALIVE, 0xC1]
            {
                let cid = host.cid();
                host.command(&rw(opcode, cid, 0, 1), &[]);
                assert_eq!(host.status(cid), Status::AUTHENTICATION_REQUIRED, "{opcode:#x}");
            }
            let cid = host.cid();
            host.command(&in_capsule(opcode::io::WRITE, cid, 0, 512), &[7; 512]);
            assert_eq!(host.status(cid), Status::AUTHENTICATION_REQUIRED);
            let connect = if queue == 0 { admin_connect() } else { io_connect(1) };
            let again = host.connect(connect, &connect_data(&node.memory, if queue == 0 { 0xFFFF } else { id }));
            assert_eq!(again.0, Status::AUTHENTICATION_REQUIRED);
        };
        host.connect_unproven(&node, queue, if queue == 0 { 0xFFFF } else { id });
        early(&mut host);
        // Nor amid it.
        let mut room = [0; Message::MAX];
        let mut prover = prover(&node, PLAIN, secret(1), None, 3);
        let len = prover.send(&mut room).unwrap();
        assert_eq!(host.send_message(&room[..len]), Status::SUCCESS);
        early(&mut host);
        prover.receive(&host.receive_message(&bench));
        early(&mut host);
        host.prove(&bench, &mut prover);
        assert_eq!(prover.next(), Next::Done);
        assert!(host.connection.is_identified());
    }
    assert_eq!(node.heap.accesses(), 0);
    assert_eq!(admin.property(property::CSTS), property::csts::READY);
}

#[test]
fn a_wrong_secret_is_told_late_and_ends_the_connection() {
    let (node, bench) = node();
    for (own, controller, reason) in [(secret(2), None, "host"), (secret(1), Some(secret(2)), "controller")] {
        let mut host = Host::initialised(&node.target, 0, 0);
        host.connect_unproven(&node, 0, 0xFFFF);
        let mut prover = prover(&node, PLAIN, own, controller, 4);
        let mut room = [0; Message::MAX];
        for _ in 0..2 {
            let len = prover.send(&mut room).unwrap();
            assert_eq!(host.send_message(&room[..len]), Status::SUCCESS);
            if prover.next() == Next::Receive && matches!(Message::parse(&room), Ok((_, Message::Negotiate(_)))) {
                prover.receive(&host.receive_message(&bench));
            }
        }
        if reason == "host" {
            let asked = host.now;
            let cid = host.ask(ROOM);
            host.hears_nothing();
            host.now = asked + Duration::from_millis(99);
            assert!(!host.wake());
            host.hears_nothing();
            host.now = asked + Duration::from_millis(100);
            assert!(!host.wake());
            let (message, status) = host.data(cid);
            assert_eq!(status, Status::SUCCESS);
            assert_eq!(Message::parse(&message), Ok((4, Message::Failure1(Reason::Failed))));
        } else {
            let message = host.receive_message(&bench);
            prover.receive(&message);
            let len = prover.send(&mut room).unwrap();
            assert_eq!(Message::parse(&room[..len]), Ok((4, Message::Failure2(Reason::Failed))));
            assert_eq!(host.send_message(&room[..len]), Status::SUCCESS);
        }
        assert_eq!((host.next, host.connection.is_identified()), (Wants::Close, false), "{reason}");
    }
    assert_eq!((node.counter("nvme_authenticated"), node.counter("nvme_authentications_failed")), (0, 2));
    assert_eq!(node.counter("nvme_controllers"), 0);
}

#[test]
fn what_was_recorded_proves_nothing() {
    let (node, bench) = node();
    let mut host = Host::initialised(&node.target, 0, 0);
    host.connect_unproven(&node, 0, 0xFFFF);
    let recorded = host.prove(&bench, &mut prover(&node, PLAIN, secret(1), None, 5));
    let mut replay = Host::initialised(&node.target, 0, 0);
    replay.connect_unproven(&node, 0, 0xFFFF);
    assert_eq!(replay.send_message(&recorded[0]), Status::SUCCESS);
    assert_ne!(replay.receive_message(&bench), recorded[1], "another challenge, another SEQNUM");
    assert_eq!(replay.send_message(&recorded[2]), Status::SUCCESS);
    let verdict = replay.receive_message(&bench);
    assert_eq!(Message::parse(&verdict), Ok((5, Message::Failure1(Reason::Failed))));
    assert_eq!(replay.next, Wants::Close);
}

#[test]
fn messages_out_of_order_end_the_connection() {
    let (node, bench) = node();
    let mut room = [0; Message::MAX];
    let len = prover(&node, PLAIN, secret(1), None, 6).send(&mut room).unwrap();
    let negotiate = room[..len].to_vec();
    let len = Message::Success2.write(6, &mut room).unwrap();
    let success2 = room[..len].to_vec();
    let other_t_id = [&negotiate[..4], &[7, 0], &negotiate[6..]].concat();
    for (sent, reason, t_id) in [
        (vec![], Reason::IncorrectMessage, 0),
        (vec![&success2], Reason::IncorrectMessage, 0),
        (vec![&negotiate, &negotiate], Reason::IncorrectMessage, 6),
        (vec![&negotiate, &success2], Reason::IncorrectMessage, 6),
        (vec![&negotiate, &other_t_id], Reason::IncorrectPayload, 6),
    ] {
        let mut host = Host::initialised(&node.target, 0, 0);
        host.connect_unproven(&node, 0, 0xFFFF);
        for message in &sent {
            assert_eq!(host.send_message(message), Status::SUCCESS);
        }
        let message = host.receive_message(&bench);
        assert_eq!(Message::parse(&message), Ok((t_id, Message::Failure1(reason))), "{}", sent.len());
        assert_eq!(host.next, Wants::Close);
    }
    assert_eq!(node.counter("nvme_authentications_malformed"), 5);
    // Nothing that both know.
    let mut host = Host::initialised(&node.target, 0, 0);
    host.connect_unproven(&node, 0, 0xFFFF);
    let offer = Negotiate { secure_channel: 0, hashes: Some(&[9]), groups: &[0] };
    let len = Message::Negotiate(offer).write(6, &mut room).unwrap();
    assert_eq!(host.send_message(&room[..len]), Status::SUCCESS);
    let message = host.receive_message(&bench);
    assert_eq!(Message::parse(&message), Ok((6, Message::Failure1(Reason::HashNotUsable))));
    assert_eq!(node.counter("nvme_authentications_not_usable"), 1);
}

#[test]
fn lengths_and_protocols_that_are_refused() {
    let (node, bench) = node();
    let mut host = Host::initialised(&node.target, 0, 0);
    host.connect_unproven(&node, 0, 0xFFFF);
    let mut refused = |fctype, len, sgl: Sgl, data: &[u8], change: &dyn Fn(&mut Sqe)| {
        let cid = host.cid();
        let mut sqe = Authentication { len }.command(fctype, cid);
        sqe.sgl = sgl;
        change(&mut sqe);
        host.command(&sqe, data);
        host.status(cid)
    };
    let (send, receive) = (fabrics::AUTHENTICATION_SEND, fabrics::AUTHENTICATION_RECEIVE);
    let same = |_: &mut Sqe| ();
    assert_eq!(refused(send, 0, Sgl::in_capsule(0), &[], &same), Status::INVALID_FIELD);
    assert_eq!(refused(send, 79, Sgl::in_capsule(80), &[0; 80], &same), Status::SGL_LENGTH_INVALID);
    assert_eq!(refused(send, u32::MAX, Sgl::in_capsule(8192), &[0; 8192], &same), Status::SGL_LENGTH_INVALID);
    assert_eq!(refused(send, 80, Sgl::transport(80), &[], &same), Status::SGL_TYPE_INVALID);
    assert_eq!(refused(receive, 0, Sgl::transport(0), &[], &same), Status::INVALID_FIELD);
    assert_eq!(refused(receive, 8193, Sgl::transport(8193), &[], &same), Status::INVALID_FIELD);
    assert_eq!(refused(receive, u32::MAX, Sgl::transport(u32::MAX), &[], &same), Status::INVALID_FIELD);
    assert_eq!(refused(receive, 4096, Sgl::transport(4095), &[], &same), Status::SGL_LENGTH_INVALID);
    for dword in [0, 0xEA01_0100, 0xE902_0100, 0xE901_0200] {
        let other = |sqe: &mut Sqe| sqe.cdw10[0] = dword.into();
        assert_eq!(refused(send, 80, Sgl::in_capsule(80), &[0; 80], &other), Status::INVALID_FIELD);
        assert_eq!(refused(receive, 4096, Sgl::transport(4096), &[], &other), Status::INVALID_FIELD);
    }
    // A message longer than it need be is read as far as it goes.
    let mut room = [0; Message::MAX];
    let mut prover = prover(&node, PLAIN, secret(1), None, 6);
    let len = prover.send(&mut room).unwrap();
    assert!(len < 8192);
    let mut long = room[..len].to_vec();
    long.resize(8192, 0xFF);
    assert_eq!(host.send_message(&long), Status::SUCCESS);
    // One that has no room is still there.
    let cid = host.ask(47);
    assert_eq!(host.status(cid), Status::INVALID_FIELD);
    prover.receive(&host.receive_message(&bench));
    host.prove(&bench, &mut prover);
    assert_eq!(prover.next(), Next::Done);
}

#[test]
fn who_does_not_go_on_is_late() {
    let (node, bench) = node();
    for sent in 0..2 {
        let mut host = Host::initialised(&node.target, 0, 0);
        host.connect_unproven(&node, 0, 0xFFFF);
        if sent > 0 {
            let mut room = [0; Message::MAX];
            let len = prover(&node, PLAIN, secret(1), None, 1).send(&mut room).unwrap();
            host.send_message(&room[..len]);
            host.receive_message(&bench);
        }
        host.now = host.now + Duration::from_secs(10);
        assert!(!host.wake());
        host.now = host.now + Duration::from_nanos(1);
        assert!(host.wake());
    }
    assert_eq!(node.counter("nvme_authentications_late"), 2);
    // Who has proved who it is may say nothing for as long as it likes.
    let (mut host, _) = admin(&node, &bench, 1);
    host.now = host.now + Duration::from_mins(5);
    assert!(!host.wake());
}

#[test]
fn who_proves_nothing_keeps_nobody_out() {
    let limits = Limits { controllers: 1, all_controllers: 1, ..Limits::default() };
    let (node, bench) = (Node::with(limits, CHUNKS, memory(), blocks()), Arc::<Bench>::default());
    rebind(&node, &bench, 1);
    let mut strangers: Vec<_> = (0..100)
        .map(|_| {
            let mut host = Host::initialised(&node.target, 0, 0);
            host.connect_unproven(&node, 0, 0xFFFF);
            host
        })
        .collect();
    assert_eq!(node.counter("nvme_controllers"), 0);
    let (_admin, id) = admin(&node, &bench, 1);
    let mut at_queue = Host::initialised(&node.target, 0, 0);
    at_queue.connect_unproven(&node, 1, id);
    let mut good = io(&node, &bench, id, 1);
    assert_eq!(good.write(0, &pattern(1, 512)), Status::SUCCESS);
    // The queue is taken now, whoever proves what.
    at_queue.prove(&bench, &mut prover(&node, PLAIN, secret(1), None, 2));
    assert_eq!((at_queue.next, at_queue.connection.is_identified()), (Wants::Close, false));
    let mut late = Host::initialised(&node.target, 0, 0);
    let (status, _) = late.connect(io_connect(1), &connect_data(&node.memory, id));
    assert_eq!(status, Status::INVALID_QUEUE_ID);
    // So is the one controller that there may be.
    let mut second = strangers.pop().unwrap();
    second.prove(&bench, &mut prover(&node, PLAIN, secret(1), None, 2));
    assert_eq!((second.next, second.connection.is_identified()), (Wants::Close, false));
    assert_eq!(good.read(0, 1), (pattern(1, 512), Status::SUCCESS));
}
