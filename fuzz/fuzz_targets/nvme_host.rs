//! Bytes of a hostile NVMe/TCP controller: the initiator takes them or ends the connection, tells of each command once, and
//! never more data than was asked for.
#![no_main]

use std::time::Duration;

use berth_nvme::host::{Command, Controller, Data, Names, Queue, Settings, User};
use berth_port::{Nanos, Next, Progress};
use berth_wire::nvme::{
    Cqe, Sqe, Status,
    fabrics::Nqn,
    io::Access,
    opcode,
    pdu::{DATA_DIGEST, Framing, HEADER_DIGEST, IcResp},
};
use libfuzzer_sys::fuzz_target;
use zerocopy::IntoBytes as _;

const NOW: Nanos = Nanos(1);
const READS: u32 = 1024;
const WRITES: u32 = 20_000;

/// What is under way: how much of each command's data came, or `None` once it has ended.
struct Commands(Vec<Option<usize>>);

impl User for Commands {
    fn data(&mut self, command: usize, offset: usize, to: &mut [u8]) {
        assert!(self.0[command].is_some() && offset + to.len() <= WRITES as usize);
        to.fill(7);
    }

    fn received(&mut self, command: usize, offset: usize, bytes: &[u8]) {
        assert_eq!(self.0[command], Some(offset));
        assert!(offset + bytes.len() <= READS as usize);
        self.0[command] = Some(offset + bytes.len());
    }

    fn ended(&mut self, command: usize, _: Status, _: u64) {
        assert!(self.0[command].take().is_some());
    }
}

fuzz_target!(|input: &[u8]| {
    let [what, size, message @ ..] = input else { return };
    let (header_digest, data_digest) = (what & 1 != 0, what & 2 != 0);
    let (timeout, piece) = (Duration::from_secs(1), 1 + 16 * usize::from(*size));
    let settings = Settings { header_digest, data_digest, keep_alive: Duration::from_secs(1), timeout };
    let name = |name: &[u8]| Nqn::new(name).expect("a short name");
    let names = Names { subsystem: name(b"nqn.subsystem"), host: name(b"nqn.host"), host_id: [1; 16] };
    let mut controller = Controller::new(settings, names, 2, NOW);
    let digests = (if header_digest { HEADER_DIGEST } else { 0 }) | if data_digest { DATA_DIGEST } else { 0 };
    if what & 4 == 0 {
        drive(message, piece, |input, output| controller.advance(input, output, NOW));
        return;
    }
    let mut queue = controller.queue(1, 1, NOW);
    let mut commands = Commands(vec![Some(0)]);
    for greeting in [IcResp::new(0, digests, 8192).as_bytes(), &joined(header_digest)] {
        drive(greeting, usize::MAX, |input, output| queue.advance(input, output, &mut commands));
    }
    assert_eq!(queue.joined(), Some(1));
    let (code, data) = [
        (opcode::io::READ, Data::In(READS)),
        (opcode::io::WRITE, Data::Out(512)),
        (opcode::io::WRITE, Data::Out(WRITES)),
    ][usize::from(what >> 3) % 3];
    let mut sqe = Sqe::new(code, 0, 1);
    Access { slba: 0, blocks: 1, fua: false, deallocate: false }.put(&mut sqe);
    queue.submit(Command { sqe, data }, NOW).expect("room for a command");
    drive(message, piece, |input, output| queue.advance(input, output, &mut commands));
    assert_eq!(queue.outstanding(), commands.0.iter().flatten().count());
});

/// The response to Connect.
fn joined(header_digest: bool) -> Vec<u8> {
    // The first identifier of the first slot.
    let cqe = Cqe::new(1 << 10, 0xFFFF, 1, Status::SUCCESS);
    let mut pdu = vec![0; 64];
    let len = Framing::new(header_digest, false, 0).response(&mut pdu, &cqe).expect("room for a response");
    pdu.truncate(len);
    pdu
}

/// Gives a connection `message` in pieces, until it ends.
fn drive(message: &[u8], piece: usize, mut advance: impl FnMut(&[u8], &mut [u8]) -> Progress) {
    let (mut at, mut have, mut output) = (0, 0, vec![0; 64]);
    loop {
        let progress = advance(&message[at..have], &mut output);
        assert!(progress.consumed <= have - at && progress.written <= output.len());
        at += progress.consumed;
        match progress.next {
            Next::Output(room) => {
                assert!(progress.written > 0 || room > output.len());
                assert!(room <= Queue::OUTPUT);
                output.resize(room.max(output.len()), 0);
                continue;
            }
            Next::Input(wanted) => assert!(wanted > have - at && wanted <= Queue::INPUT),
            Next::Completion => panic!("a host has nothing to complete"),
            Next::Close => return,
        }
        if have == message.len() {
            return;
        }
        have = message.len().min(have.saturating_add(piece));
    }
}
