//! Operations of an enrolled presenter with bad intentions: any operation, any params, any token.

use crate::common::*;
use berth_fabric::{Carrier, Request};
use berth_wire::fabric::{Op, ResourceType};
use fastrand::Rng;

/// Bytes that begin like well-formed params and then go wrong, or are entirely random.
fn damaged(sound: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    match random.u8(0..4) {
        0 => bytes.truncate(random.usize(0..=sound.len())),
        1 => bytes.extend((0..random.usize(1..40)).map(|_| random.u8(..))),
        2 if !bytes.is_empty() => {
            for _ in 0..random.usize(1..4) {
                let at = random.usize(0..bytes.len());
                bytes[at] = [0, 0xFF, random.u8(..)][random.usize(0..3)];
            }
        }
        _ => bytes = (0..random.usize(0..60)).map(|_| random.u8(..)).collect(),
    }
    bytes
}

#[test]
fn nothing_that_a_presenter_sends_harms_another() {
    for seed in 0..40 {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new();
        let theirs = world.alloc(1, ResourceType::Mem, 4096);
        let own = world.alloc(2, ResourceType::Block, 4096);
        let before = world.node.leases().get(theirs).unwrap();
        let token = world.token(2, ALL);
        let mut params = vec![theirs.0.to_be_bytes().to_vec(), own.0.to_be_bytes().to_vec(), vec![0xFF; 40]];
        params.push([&60_u32.to_be_bytes()[..], &0_u32.to_be_bytes(), &[0, 2], &4096_u64.to_be_bytes()].concat());
        params.push([&theirs.0.to_be_bytes()[..], &9_u32.to_be_bytes()].concat());
        params.push([&(theirs.0 as u64).to_be_bytes()[..], &(own.0 as u64).to_be_bytes(), &[1, 0]].concat());
        for nonce in 0..400 {
            let chosen = random.usize(0..params.len());
            let params = if random.bool() { params[chosen].clone() } else { damaged(&params[chosen], &mut random) };
            let token = if random.bool() { token.clone() } else { damaged(&token, &mut random) };
            let op = Op::ALL[random.usize(0..Op::ALL.len())].code();
            // An administrator may revoke what it likes; that is not what this is about.
            if op == Op::CapRevoke.code() || op == Op::KeyRevoke.code() {
                continue;
            }
            let request = Request {
                carrier: if random.bool() { Carrier::Quic } else { Carrier::Udp { nonce } },
                presenter: identity(2).id().0,
                source: ([10, 0, 0, 2], 5000).into(),
                op,
                resource: if random.bool() { 0 } else { random.u128(..) },
                token: &token,
                params: &params,
            };
            world.ask_request(&request);
        }
        assert_eq!(world.node.leases().get(theirs), Some(before), "seed {seed}");
        assert!(world.node.leases().query(theirs, world.now.mono).is_some(), "seed {seed}");
    }
}
