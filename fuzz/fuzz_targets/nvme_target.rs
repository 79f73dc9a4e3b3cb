//! An NVMe/TCP connection of a hostile host: no byte outside of its lease changes, and what is asked for can be given.
#![no_main]

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use berth_lease::{
    Bytes, Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table,
};
use berth_lease_io::{CHUNK, Pool};
use berth_memory::Heap as Allocated;
use berth_nvme::{
    Client, Connection, Limits, Target,
    auth::{Group, Hash, Host as Prover, Job, Machine, Parameters, Random, Secret},
};
use berth_port::{Nanos, Next, Session as _};
use berth_wire::nvme::{
    Sgl, Sqe,
    auth::Message,
    fabrics::{Authentication, Connect, ConnectData, Nqn, Property, property},
    opcode::fabrics,
    pdu::{Framing, IcReq},
};
use libfuzzer_sys::fuzz_target;
use zerocopy::IntoBytes as _;

const LEASE: LeaseId = LeaseId(1);
const REGION: usize = 48 * 1024;
const BASE: usize = 16 * 1024;
const LEN: usize = 16 * 1024;
const NOW: Nanos = Nanos(1);
const HOST: &str = "nqn.host";

struct Heap(Vec<AtomicU8>);

impl Bytes for Heap {
    fn len(&self) -> u64 {
        REGION as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let from = &self.0[at as usize..][..into.len()];
        into.iter_mut().zip(from).for_each(|(to, byte)| *to = byte.load(Relaxed));
    }

    fn write(&self, at: u64, from: &[u8]) {
        let to = &self.0[at as usize..][..from.len()];
        to.iter().zip(from).for_each(|(to, byte)| to.store(*byte, Relaxed));
    }

    fn zero(&self, at: u64, len: u64) {
        self.write(at, &vec![0; len as usize]);
    }
}

/// Does arithmetic at once, and draws what everybody knows.
struct AtOnce;

impl Machine for AtOnce {
    fn random(&self) -> Random {
        Random::new([3; Random::LEN])
    }

    fn compute(&self, _: IpAddr, job: Job) {
        job.run();
    }
}

fuzz_target!(|input: &[u8]| {
    let [what, size, message @ ..] = input else { return };
    let heap = Arc::new(Heap((0..REGION).map(|_| AtomicU8::new(0xEE)).collect()));
    let storage = Storage::Bytes(heap.clone());
    let regions = Regions::new(vec![Region { name: String::new(), kind: RegionKind::Memory, numa: None, storage }]);
    let (table, mut writer) = Table::new(1);
    let entry = Entry {
        id: LEASE,
        generation: Generation(1),
        rights: Rights::ALL,
        region: RegionId(0),
        base: BASE as u64,
        len: LEN as u64,
        first: 0,
        max_io: 8192,
        expires: Nanos(2),
        state: State::Active,
    };
    writer.insert(&entry).expect("the table has room for one");
    let target = Target::new(&table, &regions, Pool::new(Arc::new(Allocated::new(4 * CHUNK))), Limits::default());
    let proves = what >> 2 & 3 == 3;
    let secret = proves.then(|| (secret(), Arc::new(AtOnce) as Arc<dyn Machine>));
    let client = Client { nqn: HOST, secret };
    let nqn = target.bind(LEASE, Generation(1), client, NOW).expect("the lease can be bound");
    let (digests, piece) = (what & 3, 1 + 16 * usize::from(*size));
    let mut admin = Connection::new(&target, ([127, 0, 0, 1], 4420).into());
    let queue = |connection: &mut Connection, queue, controller| {
        drive(connection, IcReq::new(0, digests, 0).as_bytes(), usize::MAX);
        drive(connection, &connect(&nqn, digests, queue, controller), usize::MAX);
    };
    match what >> 2 & 3 {
        0 => {}
        1 => queue(&mut admin, 0, 0xFFFF),
        // A host that has to prove who it is, and has said so many messages already.
        3 => {
            queue(&mut admin, 0, 0xFFFF);
            prove(&mut admin, &nqn, digests, what >> 4 & 3);
        }
        _ => {
            queue(&mut admin, 0, 0xFFFF);
            let enable = Property { offset: property::CC, wide: false, value: property::cc::ENABLED.into() };
            drive(&mut admin, &capsule(digests, &enable.set(2), &[]), usize::MAX);
            let mut io = Connection::new(&target, ([127, 0, 0, 1], 4420).into());
            queue(&mut io, 1, 1);
            assert!(io.is_identified());
            drive(&mut io, message, piece);
        }
    }
    drive(&mut admin, message, piece);
    let outside = heap.0[..BASE].iter().chain(&heap.0[BASE + LEN..]);
    assert!(outside.into_iter().all(|byte| byte.load(Relaxed) == 0xEE));
});

fn connect(nqn: &str, digests: u8, queue: u16, controller: u16) -> Vec<u8> {
    let mut sqe = Connect { format: 0, queue, size: 7, attributes: 0, keep_alive: 0 }.command(1);
    sqe.sgl = Sgl::in_capsule(ConnectData::LEN as u32);
    let mut data = ConnectData::zeroed();
    data.controller = controller.into();
    data.subnqn = Nqn::new(nqn.as_bytes()).expect("a short name");
    data.hostnqn = Nqn::new(HOST.as_bytes()).expect("a short name");
    capsule(digests, &sqe, data.as_bytes())
}

fn secret() -> Secret {
    Secret::new(&[5; 32])
}

/// Authenticates, as far as so many messages of the host's go.
fn prove(connection: &mut Connection, nqn: &str, digests: u8, messages: u8) {
    let parameters = Parameters {
        hostnqn: HOST.into(),
        subnqn: nqn.into(),
        host: secret(),
        controller: Some(secret()),
        hashes: vec![Hash::Sha256],
        groups: vec![Group::None],
    };
    let mut prover = Prover::new(Arc::new(parameters), Random::new([4; Random::LEN]), 1);
    let mut room = [0; Message::MAX];
    for _ in 0..messages {
        let len = prover.send(&mut room).expect("its message is due");
        let mut sqe = Authentication { len: len as u32 }.command(fabrics::AUTHENTICATION_SEND, 2);
        sqe.sgl = Sgl::in_capsule(len as u32);
        drive(connection, &capsule(digests, &sqe, &room[..len]), usize::MAX);
        let mut sqe = Authentication { len: 2048 }.command(fabrics::AUTHENTICATION_RECEIVE, 2);
        sqe.sgl = Sgl::transport(2048);
        let heard = drive(connection, &capsule(digests, &sqe, &[]), usize::MAX);
        // The message is the data of the first PDU; there is none after success2.
        if prover.next() == berth_nvme::auth::Next::Receive {
            prover.receive(&heard[usize::from(heard[3])..]);
        }
    }
    assert_eq!(connection.is_identified(), messages == 3);
}

fn capsule(digests: u8, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; 256];
    let framing = Framing::new(digests & 1 != 0, digests & 2 != 0, 0);
    let len = framing.command(&mut pdu, sqe, data.len() as u32).expect("room for a header");
    pdu.truncate(len);
    pdu.extend(data);
    if framing.data_digest && !data.is_empty() {
        pdu.extend(crc32c::crc32c(data).to_le_bytes());
    }
    pdu
}

/// Gives a connection `message` in pieces, until it closes; what it says.
fn drive(connection: &mut Connection, message: &[u8], piece: usize) -> Vec<u8> {
    let (mut at, mut have, mut output, mut heard) = (0, 0, vec![0; 64], Vec::new());
    loop {
        let progress = connection.advance(&message[at..have], &mut output, NOW);
        assert!(progress.consumed <= have - at && progress.written <= output.len());
        at += progress.consumed;
        heard.extend_from_slice(&output[..progress.written]);
        match progress.next {
            Next::Input(wanted) => {
                assert!(wanted > have - at && wanted <= Connection::room(Limits::default().in_capsule));
                if have == message.len() {
                    return heard;
                }
                have = message.len().min(have.saturating_add(piece));
            }
            Next::Output(room) => {
                assert!(progress.written > 0 || room > output.len());
                output.resize(room.max(output.len()), 0);
            }
            Next::Completion => panic!("the lease is memory"),
            Next::Close => return heard,
        }
    }
}
