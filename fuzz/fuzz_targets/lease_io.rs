//! FBMT, FBMU, two-sided messages and page payloads from hostile peers of one lease: no byte outside of it changes, and
//! every answer fits.
#![no_main]

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering::Relaxed},
};

use berth_lease::{
    Bytes, Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table,
};
use berth_lease_io::{Answer, Gate, Protocol, Shim, Stream, TwoSided, answer};
use berth_port::{Nanos, Next, Session as _};
use berth_wire::fabric::data::{page, shim, stream::Kind};
use libfuzzer_sys::fuzz_target;
use zerocopy::IntoBytes as _;

const LEASE: LeaseId = LeaseId(1);
const REGION: usize = 12 * 1024;
const BASE: usize = 4096;
const LEN: usize = 4096;
const NOW: Nanos = Nanos(1);

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

fuzz_target!(|input: &[u8]| {
    let [what, size, message @ ..] = input else { return };
    let heap = Arc::new(Heap((0..REGION).map(|_| AtomicU8::new(0xEE)).collect()));
    let storage = Storage::Bytes(heap.clone());
    let region = Region { name: String::new(), kind: RegionKind::Memory, numa: None, storage };
    let regions = Regions::new(vec![region]);
    let (table, mut writer) = Table::new(1);
    let entry = Entry {
        id: LEASE,
        generation: Generation(1),
        rights: Rights::ALL,
        region: RegionId(0),
        base: BASE as u64,
        len: LEN as u64,
        first: 0,
        max_io: 1024,
        expires: Nanos(2),
        state: State::Active,
    };
    writer.insert(&entry).expect("the table has room for one");
    match what % 4 {
        0 => stream(Stream::new(Kind::Memory, &table, &regions, Arc::default()), message, 1 + usize::from(*size)),
        1 => datagram::<TwoSided>(&mut Gate::new(&table, &regions), message, usize::from(*size)),
        2 => datagram::<Shim>(&mut Gate::new(&table, &regions), &summed(message), 2048),
        _ => pages(message),
    }
    let outside = heap.0[..BASE].iter().chain(&heap.0[BASE + LEN..]);
    assert!(outside.into_iter().all(|byte| byte.load(Relaxed) == 0xEE));
});

/// Gives a stream `message` in pieces, until it closes.
fn stream(mut stream: Stream, message: &[u8], piece: usize) {
    let (mut at, mut have, mut output) = (0, 0, vec![0; 64]);
    loop {
        let progress = stream.advance(&message[at..have], &mut output, NOW);
        assert!(progress.consumed <= have - at && progress.written <= output.len());
        at += progress.consumed;
        match progress.next {
            Next::Input(wanted) if have == message.len() => return assert!(wanted > have - at),
            Next::Input(_) => have = message.len().min(have + piece),
            Next::Output(room) => {
                assert!(progress.written > 0 || room > output.len());
                output.resize(room.max(output.len()), 0);
            }
            Next::Completion => panic!("the lease is memory"),
            Next::Close => return,
        }
    }
}

/// Hands one datagram over, in a buffer with some room behind it.
fn datagram<P: Protocol>(gate: &mut Gate, message: &[u8], room: usize) {
    let mut buf = message.to_vec();
    buf.resize(message.len() + room, 0);
    match answer::<P>(gate, &mut buf, message.len(), true, NOW) {
        Answer::Now(len) => assert!((1..=buf.len()).contains(&len)),
        Answer::Later(_) => panic!("the lease is memory"),
        Answer::Never => {}
    }
}

/// The message with the checksum that a fuzzer would hardly find.
fn summed(message: &[u8]) -> Vec<u8> {
    let Some(header) = shim::Header::parse(message) else { return message.to_vec() };
    let data = &message[shim::Header::LEN..];
    let sum = crc32c::crc32c_append(crc32c::crc32c(header.with_crc(0).as_bytes()), data);
    [header.with_crc(sum).as_bytes(), data].concat()
}

/// Whatever parses is written back as it was.
fn pages(message: &[u8]) {
    let mut again = Vec::new();
    if let Some(request) = page::Request::parse(message) {
        request.write(&mut again);
        assert_eq!(again, message);
    } else if let Some(response) = page::Response::parse(message) {
        response.write(&mut again);
        assert_eq!(page::Response::parse(&again), Some(response));
    }
}
