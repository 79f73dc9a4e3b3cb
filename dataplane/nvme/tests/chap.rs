//! Queues whose host has to prove who it is by DH-HMAC-CHAP, PDU by PDU.

mod common;

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use berth_lease::Generation;
use berth_nvme::{
    Client, Limits,
    auth::{Group, Hash, Host as Prover, Job, Machine, Next, Parameters, Random, Secret},
};
use berth_port::{Next as Wants, Session as _};
use berth_wire::nvme::{
    Sgl, Sqe, Status,
    auth::{Message, Negotiate, Reason},
    fabrics::{Authentication, Connected, property},
    opcode::{self, fabrics},
};
use common::*;

/// What Linux gives an Authentication Receive.
const ROOM: u32 = 4096;

/// A machine whose thread is the test, and whose random bytes differ from one transaction to the next.
#[derive(Default)]
struct Bench {
    jobs: Mutex<VecDeque<(IpAddr, Job)>>,
    drawn: Mutex<u8>,
}

impl Machine for Bench {
    fn random(&self) -> Random {
        let mut drawn = self.drawn.lock().unwrap();
        *drawn += 1;
        Random::new(std::array::from_fn(|at| drawn.wrapping_mul(31) ^ at as u8))
    }

    fn compute(&self, peer: IpAddr, job: Job) {
        self.jobs.lock().unwrap().push_back((peer, job));
    }
}

impl Bench {
    fn work(&self) -> usize {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
        let count = jobs.len();
        for (_, job) in jobs {
            job.run();
        }
        count
    }
}

fn secret(seed: u8) -> Secret {
    Secret::new(&[seed; 32])
}

/// A node whose lease in memory is for a host with secret 1.
fn node() -> (Node, Arc<Bench>) {
    let (node, bench) = (Node::new(), Arc::<Bench>::default());
    rebind(&node, &bench, 1);
    (node, bench)
}

fn rebind(node: &Node, bench: &Arc<Bench>, seed: u8) {
    node.target.unbind(MEMORY);
    let client = Client { nqn: HOST, secret: Some((secret(seed), bench.clone())) };
    assert_eq!(node.target.bind(MEMORY, Generation(7), client, NOW).unwrap(), node.memory);
}

/// A host's side, which takes this hash and group, and asks for the controller's proof where there is a secret for it.
fn prover(node: &Node, (hash, group): (Hash, Group), own: Secret, controller: Option<Secret>, t_id: u16) -> Prover {
    let parameters = Parameters {
        hostnqn: HOST.into(),
        subnqn: node.memory.clone().into(),
        host: own,
        controller,
        hashes: vec![hash],
        groups: vec![group],
    };
    Prover::new(Arc::new(parameters), Random::new([0xA5; Random::LEN]), t_id)
}

const PLAIN: (Hash, Group) = (Hash::Sha256, Group::None);

impl Host {
    /// Connects; the controller's id.
    fn connect_unproven(&mut self, node: &Node, queue: u16, controller: u16) -> u16 {
        let connect = if queue == 0 { admin_connect() } else { io_connect(queue) };
        let (status, dword) = self.connect(connect, &connect_data(&node.memory, controller));
        let connected = Connected::of(dword as u32);
        assert_eq!((status, connected.authenticate), (Status::SUCCESS, true));
        assert!(!self.connection.is_identified());
        connected.controller
    }

    fn send_message(&mut self, message: &[u8]) -> Status {
        let cid = self.cid();
        let mut sqe = Authentication { len: message.len() as u32 }.command(fabrics::AUTHENTICATION_SEND, cid);
        sqe.sgl = Sgl::in_capsule(message.len() as u32);
        self.command(&sqe, message);
        self.status(cid)
    }

    /// Asks for a message, which may come later.
    fn ask(&mut self, room: u32) -> u16 {
        let cid = self.cid();
        let mut sqe = Authentication { len: room }.command(fabrics::AUTHENTICATION_RECEIVE, cid);
        sqe.sgl = Sgl::transport(room);
        self.command(&sqe, &[]);
        cid
    }

    /// What an Authentication Receive brings, once arithmetic is done and a failure has waited.
    fn receive_message(&mut self, bench: &Bench) -> Vec<u8> {
        let cid = self.ask(ROOM);
        self.come(bench);
        let (data, status) = self.data(cid);
        assert_eq!((status, data.len()), (Status::SUCCESS, ROOM as usize));
        data
    }

    /// Lets arithmetic and delays end.
    fn come(&mut self, bench: &Bench) {
        bench.work();
        self.run();
        if self.peek().is_none() {
            self.now = self.now + Duration::from_millis(100);
            self.wake();
        }
    }

    /// What a pump does when nothing was received.
    fn wake(&mut self) -> bool {
        let over = self.connection.is_over(self.now);
        if self.connection.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.run();
        }
        over
    }

    /// Carries messages to and fro until the prover needs no more; they come back.
    fn prove(&mut self, bench: &Bench, prover: &mut Prover) -> Vec<Vec<u8>> {
        let (mut room, mut messages) = ([0; Message::MAX], Vec::new());
        loop {
            match prover.next() {
                Next::Compute => {
                    let work = prover.work().unwrap();
                    prover.computed(work.compute());
                }
                Next::Send => {
                    let len = prover.send(&mut room).unwrap();
                    messages.push(room[..len].to_vec());
                    assert_eq!(self.send_message(&room[..len]), Status::SUCCESS);
                }
                Next::Receive => {
                    messages.push(self.receive_message(bench));
                    prover.receive(messages.last().unwrap());
                }
                Next::Done | Next::Failed(_) => return messages,
            }
        }
    }
}

/// An admin queue that has proved who it is and is enabled, with the controller's id.
fn admin(node: &Node, bench: &Bench, seed: u8) -> (Host, u16) {
    let mut host = Host::initialised(&node.target, 0, 0);
    let id = host.connect_unproven(node, 0, 0xFFFF);
    let mut prover = prover(node, PLAIN, secret(seed), None, 1);
    host.prove(bench, &mut prover);
    assert_eq!(prover.next(), Next::Done);
    host.enable();
    (host, id)
}

fn io(node: &Node, bench: &Bench, controller: u16, queue: u16) -> Host {
    let mut host = Host::initialised(&node.target, 0, 0);
    assert_eq!(host.connect_unproven(node, queue, controller), controller);
    host.prove(bench, &mut prover(node, PLAIN, secret(1), None, 2));
    host
}

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
