//! Queues whose host has to prove who it is by DH-HMAC-CHAP, PDU by PDU.

mod common;

use std::time::Duration;

use berth_nvme::auth::{Group, Hash, Next};
use berth_port::{Next as Wants, Session as _};
use berth_wire::nvme::{
    Sgl, Status,
    auth::{Message, Negotiate, Reason},
    fabrics::{Authentication, property},
    opcode::fabrics,
};
use common::{chap::*, *};

#[test]
fn every_hash_and_group_one_way_and_both_ways_on_every_queue() {
    let (node, bench) = node();
    for hash in Hash::ALL {
        for group in Group::ALL {
            // The longest of them take tenths of a second each.
            for mutual in if group > Group::Ffdhe4096 { &[true][..] } else { &[false, true] } {
                let fresh = |t_id| prover(&node, (hash, group), secret(1), mutual.then(|| secret(1)), t_id);
                let mut admin = Host::initialised(&node.target, 3, 0);
                let id = admin.connect_unproven(&node, 0, 0xFFFF);
                let mut first = fresh(7);
                let messages = admin.prove(&bench, &mut first);
                assert_eq!(first.next(), Next::Done, "{hash:?} {group:?} {mutual}");
                assert_eq!(messages.len(), if *mutual { 5 } else { 4 });
                let Ok((7, Message::Challenge(challenge))) = Message::parse(&messages[1]) else { panic!() };
                assert_eq!((challenge.hash, challenge.group), (hash as u8, group as u8));
                assert!(admin.connection.is_identified());
                admin.enable();
                let mut io = Host::initialised(&node.target, 3, 0);
                io.connect_unproven(&node, 1, id);
                let mut second = fresh(8);
                io.prove(&bench, &mut second);
                assert_eq!((second.next(), io.connection.is_identified()), (Next::Done, true));
                assert_eq!(io.write(3, &pattern(3, 512)), Status::SUCCESS);
                assert_eq!(io.read(3, 1), (pattern(3, 512), Status::SUCCESS));
            }
        }
    }
    let transactions = node.counter("nvme_authenticated");
    assert_eq!((transactions, node.counter("nvme_authentications_failed")), (3 * (4 * 2 + 2) * 2, 0));
}

#[test]
fn it_chooses_the_cheapest_group_that_is_one() {
    let (node, bench) = node();
    let mut host = Host::initialised(&node.target, 0, 0);
    host.connect_unproven(&node, 0, 0xFFFF);
    let mut room = [0; Message::MAX];
    let offer = Negotiate { secure_channel: 0, hashes: Some(&[3, 2, 1]), groups: &[0, 5, 3, 1, 2] };
    let len = Message::Negotiate(offer).write(9, &mut room).unwrap();
    assert_eq!(host.send_message(&room[..len]), Status::SUCCESS);
    let message = host.receive_message(&bench);
    let Ok((9, Message::Challenge(challenge))) = Message::parse(&message) else { panic!() };
    assert_eq!((challenge.hash, challenge.group, challenge.dh.len()), (1, 1, 256));
}

#[test]
fn a_message_waits_for_its_arithmetic_and_others_are_served_meanwhile() {
    let (node, bench) = node();
    let (mut other, _) = admin(&node, &bench, 1);
    let peer = "192.0.2.9".parse().unwrap();
    let mut host = Host::new(&node.target);
    host.connection = berth_nvme::Connection::new(&node.target, "192.0.2.1:4420".parse().unwrap()).with_peer(peer);
    host.initialise(0, 0);
    host.connect_unproven(&node, 0, 0xFFFF);
    let mut prover = prover(&node, (Hash::Sha256, Group::Ffdhe2048), secret(1), None, 1);
    let mut room = [0; Message::MAX];
    let len = prover.send(&mut room).unwrap();
    assert_eq!(host.send_message(&room[..len]), Status::SUCCESS);
    assert_eq!(host.connection.outstanding(), 1);
    let cid = host.ask(ROOM);
    host.hears_nothing();
    // A second one has no message to wait for.
    let second = host.ask(ROOM);
    assert_eq!(host.status(second), Status::SEQUENCE_ERROR);
    host.now = host.now + Duration::from_mins(1);
    assert!(!host.wake(), "the host is not late: this side is");
    assert_eq!(other.property(property::CSTS), property::csts::READY);
    assert_eq!(bench.jobs.lock().unwrap().front().map(|(peer, job)| (*peer, job.is_wanted())), Some((peer, true)));
    assert_eq!(bench.work(), 1);
    host.wake();
    let (message, _) = host.data(cid);
    assert!(matches!(Message::parse(&message), Ok((1, Message::Challenge(_)))));
    prover.receive(&message);
    host.prove(&bench, &mut prover);
    assert_eq!(prover.next(), Next::Done);
    // Nobody computes for a connection that is gone.
    let mut gone = Host::initialised(&node.target, 0, 0);
    gone.connect_unproven(&node, 0, 0xFFFF);
    gone.send_message(&room[..len]);
    assert_eq!(gone.send_message(&room[..len]), Status::SUCCESS);
    assert_eq!(bench.jobs.lock().unwrap().iter().filter(|(_, job)| job.is_wanted()).count(), 0, "it has failed");
}

#[test]
fn a_queue_may_prove_itself_again_amid_its_commands() {
    let (node, bench) = node();
    let (mut admin, id) = admin(&node, &bench, 1);
    let mut queue = io(&node, &bench, id, 1);
    for host in [&mut admin, &mut queue] {
        let cid = host.ask(ROOM);
        assert_eq!(host.status(cid), Status::SEQUENCE_ERROR, "there is nothing to receive");
    }
    let prover_of = |seed| prover(&node, (Hash::Sha512, Group::Ffdhe2048), secret(seed), Some(secret(1)), 9);
    let mut again = prover_of(1);
    let mut room = [0; Message::MAX];
    let len = again.send(&mut room).unwrap();
    assert_eq!(queue.send_message(&room[..len]), Status::SUCCESS);
    let cid = queue.ask(ROOM);
    assert_eq!(queue.write(1, &pattern(1, 512)), Status::SUCCESS);
    assert_eq!(queue.read(1, 1).1, Status::SUCCESS);
    bench.work();
    queue.wake();
    let (message, status) = queue.data(cid);
    assert_eq!(status, Status::SUCCESS);
    again.receive(&message);
    queue.prove(&bench, &mut again);
    assert_eq!(again.next(), Next::Done);
    admin.prove(&bench, &mut prover_of(1));
    assert_eq!(admin.property(property::CSTS), property::csts::READY);
    // Who fails then loses the queue.
    let mut wrong = prover_of(2);
    queue.prove(&bench, &mut wrong);
    assert_eq!((wrong.next(), queue.next), (Next::Failed(Reason::Failed), Wants::Close));
    let mut wrong = prover_of(2);
    admin.prove(&bench, &mut wrong);
    assert_eq!((wrong.next(), admin.next), (Next::Failed(Reason::Failed), Wants::Close));
}

#[test]
fn each_binding_has_its_secret() {
    let (node, bench) = node();
    let (mut old, _) = admin(&node, &bench, 1);
    let mut amid = Host::initialised(&node.target, 0, 0);
    amid.connect_unproven(&node, 0, 0xFFFF);
    rebind(&node, &bench, 2);
    assert!(amid.wake(), "what it would have joined has ended");
    old.now = old.now + Duration::from_secs(1);
    old.wake();
    let mut host = Host::initialised(&node.target, 0, 0);
    host.connect_unproven(&node, 0, 0xFFFF);
    let mut stale = prover(&node, PLAIN, secret(1), None, 1);
    host.prove(&bench, &mut stale);
    assert_eq!(stale.next(), Next::Failed(Reason::Failed));
    admin(&node, &bench, 2);
}

#[test]
fn without_a_secret_there_is_nothing_to_prove() {
    let node = Node::new();
    let (mut admin, _) = Host::admin(&node.target, &node.memory, 0);
    for fctype in [fabrics::AUTHENTICATION_SEND, fabrics::AUTHENTICATION_RECEIVE] {
        let cid = admin.cid();
        let mut sqe = Authentication { len: 80 }.command(fctype, cid);
        sqe.sgl = if fctype == fabrics::AUTHENTICATION_SEND { Sgl::in_capsule(80) } else { Sgl::transport(80) };
        admin.command(&sqe, if fctype == fabrics::AUTHENTICATION_SEND { &[0; 80] } else { &[] });
        assert_eq!(admin.status(cid), Status::INVALID_FIELD);
    }
}
