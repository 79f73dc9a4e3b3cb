//! Our own initiator against our target, however the bytes are cut.

mod common;

use std::time::Duration;

use berth_nvme::host::{Controller, Error};
use berth_port::Session as _;
use berth_wire::nvme::Status;
use common::{line::*, *};
use fastrand::Rng;

/// How many runs the simulation has.
const SEEDS: u64 = 60;

#[test]
fn a_host_learns_what_there_is_and_uses_it_however_bytes_are_cut() {
    for (digests, piece) in (0..4).flat_map(|digests| [1, 7, 73, 4096, 1 << 20].map(|piece| (digests, piece))) {
        let node = node();
        let mut admin = Line::admin(&node, &node.memory, digests, piece);
        let facts = *admin.controller().facts().unwrap_or_else(|| panic!("{digests} {piece}"));
        assert_eq!((facts.depth, facts.queues, facts.in_capsule), (127, 2, 8192));
        assert_eq!((facts.blocks, facts.block), (LEN / 512, 512));
        assert_eq!((facts.longest, facts.write_protected), (Some(u64::from(MAX_IO)), false));
        let mut io = Line::io(&node, &mut admin, 1, 4, piece);
        for len in [512, 8192, 8704, MAX_IO as usize] {
            let data = pattern(len as u64, len);
            let number = io.write(40, data.clone()).unwrap();
            io.run();
            assert_eq!(io.ended(), (number, Status::SUCCESS), "{digests} {piece} {len}");
            let number = io.read(40, len as u32 / 512).unwrap();
            io.run();
            assert_eq!(io.ended(), (number, Status::SUCCESS), "{digests} {piece} {len}");
            assert!(io.queue().1.data[number] == data, "{digests} {piece} {len}");
        }
        let number = io.read(LEN / 512, 1).unwrap();
        io.run();
        assert_eq!(io.ended(), (number, Status::LBA_OUT_OF_RANGE));
        assert!(node.canaries_live());
    }
}

#[test]
fn a_queue_has_room_for_its_depth() {
    let node = node();
    let mut admin = Line::admin(&node, &node.memory, 0, 4096);
    let mut io = Line::io(&node, &mut admin, 2, 3, 4096);
    let taken: Vec<_> = (0..4).map(|slba| io.read(slba, 1)).collect();
    assert!(taken[..3].iter().all(Option::is_some) && taken[3].is_none());
    assert_eq!(io.queue().0.outstanding(), 3);
    io.run();
    assert_eq!((io.queue().0.outstanding(), io.queue().1.ended.len()), (0, 3));
}

#[test]
fn who_is_refused_is_told_why() {
    let node = node();
    for (nqn, host, dword) in [("nqn.nobody", HOST, 0x1_0100), (&node.memory, "nqn.other", 0)] {
        let controller = Controller::new(settings(0), names(nqn, host), 1, NOW);
        let mut line = Line::new(&node, End::Admin(Box::new(controller)), 4096);
        line.run();
        let status = if dword == 0 { Status::CONNECT_INVALID_HOST } else { Status::CONNECT_INVALID_PARAMETERS };
        assert_eq!(line.controller().error(), Some(Error::Refused(status, dword)));
    }
}

#[test]
fn a_controller_hears_of_its_host_in_time() {
    let node = node();
    let mut admin = Line::admin(&node, &node.memory, 0, 4096);
    let before = node.counter("nvme_admin_commands");
    for ms in (0..20_000).step_by(250) {
        admin.now = NOW + Duration::from_millis(ms);
        admin.run();
        assert!(!admin.target.is_over(admin.now), "given up after {ms} ms");
        assert_eq!(admin.controller().error(), None);
    }
    // One each second, and none more often.
    let said = node.counter("nvme_admin_commands") - before;
    assert!((18..=20).contains(&said), "{said}");
}

/// Many commands at once, in memory and on blocks whose operations end in any order, bytes cut anywhere.
#[test]
fn seeds() {
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let node = node();
        let digests = rng.u8(0..4);
        let (nqn, heap) = if rng.bool() { (&node.memory, &node.heap) } else { (&node.blocks, &node.disk.heap) };
        let piece = rng.usize(1..9000);
        let mut admin = Line::admin(&node, nqn, digests, piece);
        let mut io = Line::io(&node, &mut admin, 1, rng.u16(1..20), piece);
        // Each place of 32 blocks has one command at a time.
        let mut model: Vec<Vec<u8>> = (0..16).map(|place| original(place * 32 * 512, 32 * 512)).collect();
        let mut under_way: Vec<(usize, usize, Option<Vec<u8>>)> = Vec::new();
        let mut done = 0;
        for step in 0.. {
            let place = rng.usize(0..16);
            if step < 400 && under_way.iter().all(|(_, other, _)| *other != place) {
                let blocks = rng.u32(1..=32);
                if rng.bool() {
                    let number = io.read(place as u64 * 32, blocks);
                    under_way.extend(number.map(|number| (number, place, None)));
                } else {
                    let data = pattern(rng.u64(..), blocks as usize * 512);
                    let number = io.write(place as u64 * 32, data.clone());
                    under_way.extend(number.map(|number| (number, place, Some(data))));
                }
            }
            io.piece = rng.usize(1..9000);
            let moved = io.step();
            let ops = node.disk.ops().len();
            if ops > 0 && (rng.bool() || !moved) {
                node.disk.land(rng.usize(0..ops), Ok(()));
            }
            let (queue, mine) = io.queue();
            assert_eq!(queue.error(), None, "seed {seed}");
            for (number, status) in mine.ended.drain(..) {
                assert_eq!(status, Status::SUCCESS, "seed {seed}");
                let at =
                    under_way.iter().position(|(other, ..)| *other == number).expect("a command that is under way");
                let (_, place, written) = under_way.remove(at);
                done += 1;
                match written {
                    Some(data) => model[place][..data.len()].copy_from_slice(&data),
                    None => assert!(model[place].starts_with(&mine.data[number]), "seed {seed}: other bytes"),
                }
            }
            if step >= 400 && under_way.is_empty() {
                break;
            }
            assert!(step < 100_000, "seed {seed}: {} commands never end", under_way.len());
        }
        assert!(done > 50, "seed {seed}: {done}");
        let bytes = heap.bytes();
        for (place, known) in model.iter().enumerate() {
            assert!(bytes[BASE as usize + place * 32 * 512..].starts_with(known), "seed {seed}");
        }
        assert!(node.canaries_live());
    }
}
