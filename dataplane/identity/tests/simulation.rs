//! Clients and a node on a network that loses, copies, delays and replays datagrams, in virtual time.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    time::Duration,
};

use berth_identity::{
    Enrolled, Enrolment, Identity,
    link::{Client, Received, Reply, Server},
};
use berth_port::Nanos;
use berth_wire::fabric::{MsgType, Op, Request, Wire as _};
use fastrand::Rng;

fn who(seed: u8) -> Identity {
    Identity::from_seed(&[seed; 32])
}

fn address(host: u8) -> SocketAddr {
    ([10, 0, 0, host], 5700).into()
}

struct Network {
    random: Rng,
    now: u64,
    /// By time of arrival: source, destination, datagram.
    flying: BTreeMap<(u64, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    sent: u64,
    /// Datagrams that an eavesdropper may send again, from anywhere.
    tapped: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
}

impl Network {
    fn send(&mut self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        if self.random.u8(..) < 20 {
            self.tapped.push((from, to, datagram.to_vec()));
        }
        let copies = match self.random.u8(..) {
            0..40 => 0,
            40..70 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = self.random.u64(50_000..40_000_000);
            self.sent += 1;
            self.flying.insert((self.now + delay, self.sent), (from, to, datagram.to_vec()));
        }
    }
}

/// Runs one seed: three clients send requests to a node that is sometimes slow and sometimes gives long answers.
fn simulate(seed: u64) {
    let mut net =
        Network { random: Rng::with_seed(seed), now: 0, flying: BTreeMap::new(), sent: 0, tapped: Vec::new() };
    let (node, node_at) = (who(1), address(1));
    let keys = Enrolled::new((2..5).map(|i| *who(i).public_key()), Enrolment::Closed);
    let mut server = Server::default();
    let mut clients: Vec<_> = (2..5).map(|i| (Client::new(who(i), 1_000, net.random.u64(..)), address(i))).collect();
    let mut asked: Vec<HashMap<u64, Vec<u8>>> = vec![HashMap::new(); 3];
    let mut executed = HashSet::new();
    let mut answered = 0;
    let mut working: Vec<(u64, Reply, Vec<u8>)> = Vec::new();
    let mut retransmit: BTreeMap<(u64, u64), (usize, u64)> = BTreeMap::new();
    let mut timers = 0;
    let total = 60;
    for i in 0..total {
        timers += 1;
        retransmit.insert((i * 3_000_000, timers), (net.random.usize(0..3), u64::MAX));
    }

    let end = Duration::from_secs(20).as_nanos() as u64;
    while net.now < end {
        let next_timer = retransmit.first_key_value().map_or(end, |((at, _), _)| *at);
        let next_arrival = net.flying.first_key_value().map_or(end, |((at, _), _)| *at);
        let next_work = working.iter().map(|(at, ..)| *at).min().unwrap_or(end);
        net.now = next_timer.min(next_arrival).min(next_work).min(end).max(net.now);
        let now = Nanos(net.now);
        if net.now == end {
            break;
        }
        if next_work <= net.now {
            let at = working.iter().position(|(at, ..)| *at <= net.now).unwrap();
            let (_, reply, params) = working.swap_remove(at);
            let answer = reply.message(MsgType::Response, params, &node).unwrap();
            server.answered(&reply, &answer, now);
            answer.frames().for_each(|frame| net.send(node_at, reply.to, &frame));
        } else if next_timer <= net.now {
            let ((..), (who, request)) = retransmit.pop_first().unwrap();
            let (client, from) = &mut clients[who];
            let request = if request == u64::MAX {
                let len = if net.random.u8(..) < 60 { net.random.usize(1200..6000) } else { net.random.usize(0..64) };
                let params: Vec<u8> = (0..len).map(|_| net.random.u8(..)).collect();
                let key = net.random.bool().then(|| *node.public_key());
                let request = client.request(node_at, key, Op::Ping.code(), 0, &[], &params).unwrap();
                asked[who].insert(request, params);
                request
            } else {
                request
            };
            let frames: Vec<_> = client.frames(request).collect();
            if !frames.is_empty() {
                for frame in &frames {
                    net.send(*from, node_at, frame);
                }
                timers += 1;
                retransmit.insert((net.now + 90_000_000, timers), (who, request));
            }
        } else {
            let (_, (from, to, datagram)) = net.flying.pop_first().unwrap();
            if !net.tapped.is_empty() && net.random.u8(..) < 30 {
                let (from, to, datagram) = net.tapped[net.random.usize(0..net.tapped.len())].clone();
                let from = if net.random.bool() { from } else { address(9) };
                net.sent += 1;
                net.flying.insert((net.now + 1_000, net.sent), (from, to, datagram));
            }
            if to == node_at {
                match server.receive(&datagram, from, &keys, now) {
                    Received::Nothing => {}
                    Received::Again(answer) => answer.frames().for_each(|frame| net.send(node_at, from, &frame)),
                    Received::New(message, reply) => {
                        let params = Request::parse(&message.payload).unwrap().params.get().to_vec();
                        assert!(
                            executed.insert((message.sender, message.request_id)),
                            "seed {seed}: an op was executed twice"
                        );
                        let who = clients.iter().position(|(client, _)| client.identity().id() == message.sender);
                        assert_eq!(asked[who.unwrap()][&message.request_id], params, "seed {seed}");
                        working.push((net.now + net.random.u64(0..120_000_000), reply, params));
                    }
                }
            } else if let Some(who) = clients.iter().position(|(_, at)| *at == to)
                && let Some(answer) = clients[who].0.receive(&datagram, from, now)
            {
                assert_eq!(asked[who][&answer.request_id], answer.payload, "seed {seed}");
                assert_eq!(answer.sender, node.id(), "seed {seed}");
                assert!(executed.contains(&(clients[who].0.identity().id(), answer.request_id)));
                answered += 1;
            }
        }
    }
    // A wiretapper that sends from another address first can have the answer go there, and then a request ends without
    // one; with copies from its own address only, none does.
    assert!(executed.len() as u64 == total && answered <= total, "seed {seed}: {} {answered}", executed.len());
    assert!(answered + 12 >= total, "seed {seed}: {answered} of {total} answered");
}

#[test]
fn ops_run_once_and_answers_are_their_own() {
    let seeds = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).map_or(0..150, |seed| seed..seed + 1);
    seeds.for_each(simulate);
}
