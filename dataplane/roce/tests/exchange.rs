//! Two endpoints that talk to each other, like a port and its client.

mod common;

use std::net::IpAddr;

use berth_net::Transport as _;
use berth_port::Verdict;
use berth_roce::{Config, Local, Remote, Slots, Window};
use berth_wire::{
    rendezvous::ImmForm,
    roce::{Packet, Psn},
};
use common::{CONFIG, Node, SLOTS, remote, v4, v6};

/// Connects a client to a port; `back` gives the port a window to write answers to.
fn join(port: &mut Node, client: &mut Node, addresses: [IpAddr; 2], unit: usize, back: bool) -> (Local, Local) {
    let [ours, theirs] = addresses;
    let random = &mut client.random;
    let at_client = client.registrar.reserve(Psn::new(0x00ff_fff0), || random.u32(..)).unwrap();
    let window = |local: &Local, unit| Some(Window { rkey: local.rkey, slots: local.slots, unit });
    let there = Remote {
        qpn: at_client.qpn,
        psn: at_client.psn,
        window: if back { window(&at_client, 1) } else { None },
        ..remote(theirs, 0)
    };
    let at_port = port.add(&there, 0x00ff_fffe);
    let here = Remote { qpn: at_port.qpn, psn: at_port.psn, window: window(&at_port, unit), ..remote(ours, 0) };
    client.registrar.connect(&at_client, &here).unwrap();
    client.endpoint.poll();
    (at_port, at_client)
}

/// The transport part of a frame.
fn packet(frame: &[u8], v6: bool) -> Packet {
    Packet::parse(&frame[14 + if v6 { 40 } else { 20 } + 8..]).unwrap()
}

fn round_trips(addresses: [IpAddr; 2], back: bool) {
    let (mut port, mut client) = (Node::new(2, CONFIG), Node::new(1, CONFIG));
    let (_, at_client) = join(&mut port, &mut client, addresses, 1, back);
    for n in 0..5000_usize {
        let message: Vec<u8> = (0..=(n * 37) % 1024).map(|i| (n + i) as u8).collect();
        let request = client.post(addresses[0], &at_client, &message).unwrap();
        let sent = packet(&request, addresses[0].is_ipv6());
        assert_eq!(sent.reth.unwrap().address(), SLOTS.base + (n % SLOTS.count * SLOTS.stride) as u64);
        let (lent, answer) = port.rx(&request, |frame| {
            assert_eq!(frame.data(), message);
            let len = frame.len().min(1020) + 3;
            frame.buf_mut()[..len].rotate_right(3);
            frame.set_len(len.min(1024));
            Verdict::Reply
        });
        assert_eq!(lent, Some(message.len()));
        let answer = answer.unwrap();
        let mut expected = message.clone();
        expected.resize(message.len().min(1020) + 3, 0);
        let mut got = Vec::new();
        client.rx(&answer, |frame| {
            got = frame.data().to_vec();
            Verdict::Drop
        });
        assert_eq!(got.len(), expected.len());
        assert_eq!(got[3..], message[..message.len().min(1020)]);
        assert_eq!(
            packet(&answer, addresses[0].is_ipv6()).immediate.is_some(),
            back,
            "written where there is a window"
        );
    }
    for node in [&port, &client] {
        assert_eq!((node.counters()["roce_messages"], node.counters()["roce_sent"]), (5000, 5000));
        assert!(
            node.counted()
                .iter()
                .all(|(name, _)| { ["roce_messages", "roce_packets", "roce_sent", "peers_joined"].contains(name) })
        );
    }
}

#[test]
fn answers_are_sent() {
    round_trips([v4(2), v4(1)], false);
    round_trips([v6(2), v6(1)], false);
}

#[test]
fn answers_are_written_into_the_slot_of_their_request() {
    round_trips([v4(2), v4(1)], true);
}

#[test]
fn an_fpga_fills_its_windows_up() {
    let (mut port, mut client) = (Node::new(2, CONFIG), Node::new(1, CONFIG));
    let (_, at_client) = join(&mut port, &mut client, [v4(2), v4(1)], 64, false);
    for (len, padded) in [(56, 64), (64, 64), (65, 128), (1, 64)] {
        let request = client.post(v4(2), &at_client, &vec![7; len]).unwrap();
        port.rx(&request, |frame| {
            assert_eq!(frame.len(), padded);
            assert!(frame.data()[..len].iter().all(|&byte| byte == 7));
            assert!(frame.data()[len..].iter().all(|&byte| byte == 0));
            Verdict::Drop
        });
    }
}

#[test]
fn a_peer_gets_no_more_than_it_takes() {
    let (mut port, mut client) = (Node::new(2, CONFIG), Node::new(1, CONFIG));
    let short = Slots { count: 4, stride: 256, base: 0, form: ImmForm::Psn24 };
    let at_client = client.add(&remote(v4(2), 0), 0);
    let sends = port.add(&Remote { path_mtu: 256, qpn: at_client.qpn, ..remote(v4(1), 0) }, 0);
    assert!(port.post(v4(1), &sends, &[0; 257]).is_none());
    assert!(port.post(v4(1), &sends, &[0; 256]).is_some());
    let small = Window { rkey: 1, slots: short, unit: 1 };
    let writes = port.add(&Remote { window: Some(small), ..remote(v4(1), 0) }, 0);
    assert!(port.post(v4(1), &writes, &[0; 257]).is_none());
    let slots: Vec<u32> = (0..5)
        .map(|_| packet(&port.post(v4(1), &writes, &[0; 256]).unwrap(), false).immediate.unwrap() & 0xff)
        .collect();
    assert_eq!(slots, [0, 1, 2, 3, 0]);
    // An answer that is longer than a packet is not sent; nor does the request have to be as short as that.
    let config = Config { slots: Slots { stride: 4096, ..SLOTS }, ..CONFIG };
    let mut port = Node::new(2, config);
    let local = port.add(&remote(v4(1), 0), 0);
    let parts = [(berth_wire::roce::Opcode::WriteFirst, 0), (berth_wire::roce::Opcode::WriteLastImmediate, 1)];
    let mut answers = Vec::new();
    for (opcode, psn) in parts {
        let mut raw = common::Raw::new(opcode, &local, psn, &[1; 1024]);
        if psn == 0 {
            raw = raw.to(SLOTS.base, local.rkey, 2048);
        } else {
            raw = raw.immediate(0);
        }
        let frame = raw.frame(&mut client.host, v4(2));
        answers.push(port.rx(&frame, |_| Verdict::Reply));
    }
    assert_eq!(answers, [(None, None), (Some(2048), Some(Vec::new()))]);
}
