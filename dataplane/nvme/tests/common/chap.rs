//! Hosts that have to prove who they are by DH-HMAC-CHAP.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use berth_lease::Generation;
use berth_nvme::{
    Client,
    auth::{Group, Hash, Host as Prover, Job, Machine, Next, Parameters, Random, Secret},
};
use berth_port::Session as _;
use berth_wire::nvme::{
    Sgl, Status,
    auth::Message,
    fabrics::{Authentication, Connected},
    opcode::fabrics,
};

use super::*;

/// What Linux gives an Authentication Receive.
pub const ROOM: u32 = 4096;

/// A machine whose thread is the test, and whose random bytes differ from one transaction to the next.
#[derive(Default)]
pub struct Bench {
    pub jobs: Mutex<VecDeque<(IpAddr, Job)>>,
    pub drawn: Mutex<u8>,
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
    pub fn work(&self) -> usize {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
        let count = jobs.len();
        for (_, job) in jobs {
            job.run();
        }
        count
    }
}

pub fn secret(seed: u8) -> Secret {
    Secret::new(&[seed; 32])
}

/// A node whose lease in memory is for a host with secret 1.
pub fn node() -> (Node, Arc<Bench>) {
    let (node, bench) = (Node::new(), Arc::<Bench>::default());
    rebind(&node, &bench, 1);
    (node, bench)
}

pub fn rebind(node: &Node, bench: &Arc<Bench>, seed: u8) {
    node.target.unbind(MEMORY);
    let client = Client { nqn: HOST, secret: Some((secret(seed), bench.clone())) };
    assert_eq!(node.target.bind(MEMORY, Generation(7), client, NOW).unwrap(), node.memory);
}

/// A host's side, which takes this hash and group, and asks for the controller's proof where there is a secret for it.
pub fn prover(node: &Node, (hash, group): (Hash, Group), own: Secret, controller: Option<Secret>, t_id: u16) -> Prover {
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

pub const PLAIN: (Hash, Group) = (Hash::Sha256, Group::None);

impl Host {
    /// Connects; the controller's id.
    pub fn connect_unproven(&mut self, node: &Node, queue: u16, controller: u16) -> u16 {
        let connect = if queue == 0 { admin_connect() } else { io_connect(queue) };
        let (status, dword) = self.connect(connect, &connect_data(&node.memory, controller));
        let connected = Connected::of(dword as u32);
        assert_eq!((status, connected.authenticate), (Status::SUCCESS, true));
        assert!(!self.connection.is_identified());
        connected.controller
    }

    pub fn send_message(&mut self, message: &[u8]) -> Status {
        let cid = self.cid();
        let mut sqe = Authentication { len: message.len() as u32 }.command(fabrics::AUTHENTICATION_SEND, cid);
        sqe.sgl = Sgl::in_capsule(message.len() as u32);
        self.command(&sqe, message);
        self.status(cid)
    }

    /// Asks for a message, which may come later.
    pub fn ask(&mut self, room: u32) -> u16 {
        let cid = self.cid();
        let mut sqe = Authentication { len: room }.command(fabrics::AUTHENTICATION_RECEIVE, cid);
        sqe.sgl = Sgl::transport(room);
        self.command(&sqe, &[]);
        cid
    }

    /// What an Authentication Receive brings, once arithmetic is done and a failure has waited.
    pub fn receive_message(&mut self, bench: &Bench) -> Vec<u8> {
        let cid = self.ask(ROOM);
        self.come(bench);
        let (data, status) = self.data(cid);
        assert_eq!((status, data.len()), (Status::SUCCESS, ROOM as usize));
        data
    }

    /// Lets arithmetic and delays end.
    pub fn come(&mut self, bench: &Bench) {
        bench.work();
        self.run();
        if self.peek().is_none() {
            self.now = self.now + Duration::from_millis(100);
            self.wake();
        }
    }

    /// What a pump does when nothing was received.
    pub fn wake(&mut self) -> bool {
        let over = self.connection.is_over(self.now);
        if self.connection.poll_completion(&mut Context::from_waker(Waker::noop())).is_ready() {
            self.run();
        }
        over
    }

    /// Carries messages to and fro until the prover needs no more; they come back.
    pub fn prove(&mut self, bench: &Bench, prover: &mut Prover) -> Vec<Vec<u8>> {
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
pub fn admin(node: &Node, bench: &Bench, seed: u8) -> (Host, u16) {
    let mut host = Host::initialised(&node.target, 0, 0);
    let id = host.connect_unproven(node, 0, 0xFFFF);
    let mut prover = prover(node, PLAIN, secret(seed), None, 1);
    host.prove(bench, &mut prover);
    assert_eq!(prover.next(), Next::Done);
    host.enable();
    (host, id)
}

pub fn io(node: &Node, bench: &Bench, controller: u16, queue: u16) -> Host {
    let mut host = Host::initialised(&node.target, 0, 0);
    assert_eq!(host.connect_unproven(node, queue, controller), controller);
    host.prove(bench, &mut prover(node, PLAIN, secret(1), None, 2));
    host
}
