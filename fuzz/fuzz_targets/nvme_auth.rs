//! DH-HMAC-CHAP between a host and a controller whose messages are tampered with: nothing panics, and nobody goes on for
//! ever.
#![no_main]

use std::sync::Arc;

use berth_nvme::auth::{Controller, Group, Hash, Host, Next, Parameters, Random, Secret};
use berth_wire::nvme::auth::Message;
use libfuzzer_sys::fuzz_target;

fn parameters(mutual: bool) -> Parameters {
    Parameters {
        hostnqn: b"nqn.host".to_vec(),
        subnqn: b"nqn.subsystem".to_vec(),
        host: Secret::new(&[1; 32]),
        controller: mutual.then(|| Secret::new(&[2; 32])),
        hashes: vec![Hash::Sha384, Hash::Sha256],
        groups: vec![Group::None, Group::Ffdhe2048],
    }
}

// A byte of options; then for each message how many of its bytes are changed, and places and values of these; or 255, a
// length, and a message in its place.
fuzz_target!(|input: &[u8]| {
    let [options, changes @ ..] = input else { return };
    let mut changes = changes.iter().copied();
    let random = |byte| Random::new([byte; Random::LEN]);
    let mut host = Host::new(Arc::new(parameters(options & 1 != 0)), random(3), 7);
    let mut controller = Controller::new(Arc::new(parameters(options & 2 != 0)), random(4));
    let mut changed = |message: &[u8]| {
        let mut message = message.to_vec();
        match changes.next().unwrap_or(0) {
            255 => {
                let len = usize::from(changes.next().unwrap_or(0));
                message = changes.by_ref().take(len).collect();
            }
            count => {
                for _ in 0..count {
                    let [Some(high), Some(low), Some(value)] = [changes.next(), changes.next(), changes.next()] else {
                        break;
                    };
                    let at = usize::from(u16::from_be_bytes([high, low])) % message.len();
                    message[at] ^= value;
                }
            }
        }
        message
    };
    let mut room = [0; Message::MAX];
    for _ in 0..16 {
        match (host.next(), controller.next()) {
            (Next::Compute, _) => {
                let work = host.work().expect("given out once");
                host.computed(work.compute());
            }
            (_, Next::Compute) => {
                let work = controller.work().expect("given out once");
                controller.computed(work.compute());
            }
            (Next::Send, _) => {
                let len = host.send(&mut room).expect("room for any message");
                controller.receive(&changed(&room[..len]));
            }
            (Next::Receive, Next::Done | Next::Failed(_)) => {
                assert_eq!(controller.send(&mut room), None);
                return;
            }
            (Next::Receive, _) => {
                let len = controller.send(&mut room).expect("room for any message");
                host.receive(&changed(&room[..len]));
            }
            (Next::Done | Next::Failed(_), _) => return,
        }
    }
    panic!("{:?} and {:?} go on and on", host.next(), controller.next());
});
