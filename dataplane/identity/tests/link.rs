//! Server and client end on UDP, and the server end on QUIC.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_identity::{
    Enrolled, Enrolment, Identity,
    link::{Client, Drop, Message, Notices, Received, Replay, Reply, Server, accept_stream},
};
use berth_port::Nanos;
use berth_wire::fabric::{Bytes, Frame, FrameFlags, MAX_MESSAGE, MsgType, Op, Request, Wire as _};

const NOW: Nanos = Nanos(1_000_000_000);

fn who(seed: u8) -> Identity {
    Identity::from_seed(&[seed; 32])
}

fn node() -> Identity {
    who(1)
}

fn keys() -> Enrolled {
    Enrolled::new([*who(2).public_key(), *who(3).public_key()], Enrolment::Closed)
}

fn at(port: u16) -> SocketAddr {
    ([10, 0, 0, 1], port).into()
}

fn client() -> Client {
    Client::new(who(2), 0x3344, 0x1122)
}

fn query(client: &mut Client, signed: bool) -> u64 {
    let key = signed.then(|| *node().public_key());
    client.request(at(5700), key, Op::LeaseQuery.code(), 5, &[], &0xABC_u128.to_be_bytes()).unwrap()
}

fn frames(client: &Client, request: u64) -> Vec<Vec<u8>> {
    client.frames(request).collect()
}

/// Passes every datagram to the server; returns the one message that they make.
fn accept(server: &mut Server, datagrams: &[Vec<u8>], source: SocketAddr) -> Option<(Message<'static>, Reply)> {
    let mut accepted = None;
    for datagram in datagrams {
        match server.receive(datagram, source, &keys(), NOW) {
            Received::Nothing => {}
            Received::Again(_) => panic!("nothing was answered yet"),
            Received::New(message, reply) => {
                let message = Message { payload: message.payload.into_owned().into(), ..message };
                assert!(accepted.replace((message, reply)).is_none(), "one message was sent");
            }
        }
    }
    accepted
}

/// The answer of the node, kept for copies of the request.
fn reply_with(server: &mut Server, reply: Reply, payload: Vec<u8>) -> Arc<Message<'static>> {
    let answer = reply.message(MsgType::Response, payload, &node()).unwrap();
    server.answered(&reply, &answer, NOW);
    answer
}

fn dropped(server: &Server) -> Vec<(&'static str, u64)> {
    let mut counts = Vec::new();
    server.drops().counters(&mut |name, count| {
        if count > 0 {
            counts.push((name, count));
        }
    });
    counts
}

#[test]
fn golden_frames() {
    let mut client = client();
    let request = query(&mut client, true);
    assert_eq!(frames(&client, request), [include_bytes!("golden/request.bin")]);

    let mut client = self::client();
    let payload: Vec<u8> = (0..2500_u32).map(|i| (i % 251) as u8).collect();
    let request = client.page_request(at(5700), None, payload.clone()).unwrap();
    assert_eq!(frames(&client, request).concat(), include_bytes!("golden/page_request.bin"));
    let mut server = Server::default();
    let (message, _) = accept(&mut server, &frames(&client, request), at(9)).unwrap();
    assert_eq!((message.kind, &message.payload[..]), (MsgType::PageRequest, &payload[..]));
    assert!(accept(&mut server, &[include_bytes!("golden/request_plain.bin").to_vec()], at(9)).is_none(), "used nonce");
    let plain = include_bytes!("golden/request_plain.bin").to_vec();
    assert!(accept(&mut Server::default(), &[plain], at(9)).is_some());
}

#[test]
fn every_changed_byte_of_a_frame_is_dropped() {
    for datagram in [&include_bytes!("golden/request.bin")[..], include_bytes!("golden/request_plain.bin")] {
        let mut server = Server::default();
        for place in 0..datagram.len() {
            for flip in [1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0xFF] {
                let mut changed = datagram.to_vec();
                changed[place] ^= flip;
                let received = server.receive(&changed, at(9), &keys(), NOW);
                assert!(matches!(received, Received::Nothing), "byte {place} ^ {flip:#x}");
            }
        }
        for len in 0..datagram.len() {
            assert!(matches!(server.receive(&datagram[..len], at(9), &keys(), NOW), Received::Nothing), "cut to {len}");
        }
        let received = server.receive(datagram, at(9), &keys(), NOW);
        assert!(matches!(received, Received::New(..)), "none of that touched the replay window");
    }
}

#[test]
fn an_answer_reaches_the_one_who_asked() {
    for (signed, len) in [(false, 0), (true, 10), (false, 5000), (true, MAX_MESSAGE)] {
        let (mut client, mut server) = (client(), Server::default());
        let request = query(&mut client, signed);
        let (message, reply) = accept(&mut server, &frames(&client, request), at(9)).unwrap();
        assert_eq!(Request::parse(&message.payload).unwrap().op, Op::LeaseQuery.code());
        assert_eq!(reply.to, at(9));
        let payload = vec![7; len];
        let answer = reply_with(&mut server, reply, payload.clone());
        let mut datagrams: Vec<_> = answer.frames().collect();
        datagrams.reverse();
        let answers: Vec<_> = datagrams.iter().filter_map(|datagram| client.receive(datagram, at(5700), NOW)).collect();
        assert_eq!(answers.len(), 1);
        assert_eq!((answers[0].request_id, answers[0].sender, &answers[0].payload), (request, node().id(), &payload));
        assert_eq!(client.frames(request).count(), 0, "the request is done");
    }
    let (mut client, mut server) = (client(), Server::default());
    let request = query(&mut client, false);
    let (_, reply) = accept(&mut server, &frames(&client, request), at(9)).unwrap();
    assert!(reply.message(MsgType::Response, vec![0; MAX_MESSAGE + 1], &node()).is_err());
}

#[test]
fn a_requester_without_frag_v2_gets_legacy_fragments_in_order() {
    let mut server = Server::default();
    let plain = include_bytes!("golden/request_plain.bin").to_vec();
    let (_, reply) = accept(&mut server, &[plain], at(9)).unwrap();
    let answer = reply_with(&mut server, reply, vec![7; 2500]);
    let frames: Vec<_> = answer.frames().collect();
    let parsed: Vec<_> = frames.iter().map(|frame| Frame::parse(frame, 1200).unwrap()).collect();
    let flags: Vec<_> = parsed.iter().map(|frame| frame.header.flags).collect();
    assert_eq!(flags, [FrameFlags::CONTINUED, FrameFlags::CONTINUED, FrameFlags::FINAL]);
    assert!(parsed.iter().all(|frame| frame.header.fragment.is_none()));

    let mut client = client();
    query(&mut client, false);
    let answers: Vec<_> = frames.iter().filter_map(|frame| client.receive(frame, at(5700), NOW)).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].payload, vec![7; 2500]);
}

#[test]
fn legacy_fragments_of_a_request_are_taken_in_order() {
    let message = Message {
        kind: MsgType::PageRequest,
        sender: who(2).id(),
        request_id: 1,
        nonce: 1,
        payload: vec![5; 3000].into(),
        v2: false,
        signature: None,
    };
    let message = message.signed(&who(2));
    let mut frames: Vec<_> = message.frames().collect();
    let (taken, _) = accept(&mut Server::default(), &frames, at(9)).unwrap();
    assert_eq!(taken, message);
    frames.swap(0, 2);
    let mut server = Server::default();
    assert!(accept(&mut server, &frames, at(9)).is_none(), "a last fragment before its first");
    assert_eq!(dropped(&server), [("frames_malformed", 1)]);
}

#[test]
fn a_copy_gets_the_first_answer_and_only_where_the_first_came_from() {
    let (mut client, mut server) = (client(), Server::default());
    let request = query(&mut client, true);
    let datagram = frames(&client, request).remove(0);
    let (_, reply) = accept(&mut server, std::slice::from_ref(&datagram), at(9)).unwrap();
    assert!(matches!(server.receive(&datagram, at(9), &keys(), NOW), Received::Nothing), "not answered yet");
    assert_eq!(dropped(&server), [("frames_replayed", 1)]);

    let answer = reply_with(&mut server, reply, vec![1]);
    let late = NOW + Duration::from_millis(29_999);
    match server.receive(&datagram, at(9), &keys(), late) {
        Received::Again(again) => assert_eq!(again, answer),
        other => panic!("{other:?}"),
    }
    assert!(matches!(server.receive(&datagram, at(10), &keys(), late), Received::Nothing));
    assert_eq!(server.drops().get(Drop::Elsewhere), 1);
    let mut forged = datagram.clone();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!(matches!(server.receive(&forged, at(9), &keys(), late), Received::Nothing));
    assert_eq!(server.drops().get(Drop::Forged), 1);

    let after = NOW + Duration::from_secs(30);
    assert!(matches!(server.receive(&datagram, at(9), &keys(), after), Received::Nothing), "the answer is gone");
    assert_eq!(server.drops().get(Drop::Replayed), 2);
    assert_eq!(server.bytes(), 0);
}

#[test]
fn kept_answers_are_bounded_and_an_op_still_runs_once() {
    let (mut client, mut server) = (client(), Server::default());
    let mut first = Vec::new();
    for i in 0..70 {
        let request = query(&mut client, false);
        let datagrams = frames(&client, request);
        let (_, reply) = accept(&mut server, &datagrams, at(9)).unwrap();
        reply_with(&mut server, reply, vec![0; MAX_MESSAGE]);
        assert!(server.bytes() <= 64 << 20);
        if i == 0 {
            first = datagrams;
        }
    }
    assert!(matches!(server.receive(&first[0], at(9), &keys(), NOW), Received::Nothing));
    assert_eq!(dropped(&server), [("frames_replayed", 1)]);
}

/// A sender whose clock was years ahead can use its key again once the clock is right.
#[test]
fn nonces_far_ahead_are_dropped_and_use_nothing_up() {
    let (mut replay, ann) = (Replay::default(), who(2).id());
    replay.accept_up_to(1000);
    assert!(!replay.is_fresh(ann, 1001) && !replay.accept(ann, 1001));
    assert!(replay.accept(ann, 10) && !replay.accept(ann, 10));
    // A journal remembers one that was accepted under the node's own wrong clock.
    replay.refuse_up_to(ann, u64::MAX);
    assert!(!replay.is_fresh(ann, 1000) && !replay.is_fresh(ann, 1001));
    replay.accept_up_to(2000);
    assert!(replay.accept(ann, 1001));
}

#[test]
fn nonces_below_the_window_and_after_a_restart_are_dropped() {
    let mut server = Server::default();
    let ask = |server: &mut Server, nonce: u64| {
        let mut client = Client::new(who(2), nonce, nonce);
        let request = query(&mut client, false);
        accept(server, &frames(&client, request), at(9)).is_some()
    };
    assert!(ask(&mut server, 5000));
    assert!(ask(&mut server, 5000 - 1023));
    assert!(!ask(&mut server, 5000 - 1024));
    assert!(!ask(&mut server, 5000));
    assert!(ask(&mut server, 4999));
    assert_eq!(dropped(&server), [("frames_replayed", 2)]);

    let kept = server.replay.risen();
    assert_eq!(kept, [(who(2).id(), 5000)]);
    assert!(ask(&mut server, 4997));
    assert_eq!(server.replay.risen(), [], "only what has risen");
    let mut restarted = Server::default();
    restarted.replay.refuse_up_to(kept[0].0, kept[0].1);
    assert!(!ask(&mut restarted, 4998));
    assert!(!ask(&mut restarted, 5000));
    assert_eq!(restarted.replay.risen(), [], "what was kept is kept");
    assert!(ask(&mut restarted, 5001));
    assert_eq!(restarted.replay.risen(), [(who(2).id(), 5001)]);
    restarted.replay.refuse_up_to(who(2).id(), 10);
    assert!(!ask(&mut restarted, 5001) && ask(&mut restarted, 5002));
}

#[test]
fn who_is_not_enrolled_can_only_enrol_and_solicit() {
    let mut server = Server::default();
    let mut unenrolled = Client::new(who(9), 1, 1);
    let request = query(&mut unenrolled, false);
    assert!(accept(&mut server, &frames(&unenrolled, request), at(9)).is_none());
    let request = unenrolled.page_request(at(1), None, vec![1]).unwrap();
    assert!(accept(&mut server, &frames(&unenrolled, request), at(9)).is_none());
    let request = unenrolled.solicit(at(1), None, vec![0; 3], true).unwrap();
    assert!(accept(&mut server, &frames(&unenrolled, request), at(9)).is_none());
    assert_eq!(dropped(&server), [("frames_unenrolled", 3)]);
    let request = unenrolled.solicit(at(1), None, vec![0; 3], false).unwrap();
    assert!(accept(&mut server, &frames(&unenrolled, request), at(9)).is_some());

    let mut enrol = |identity: &Identity, params: &[u8]| {
        let mut client = Client::new(identity.clone(), 1, 1);
        let request = client.request(at(1), None, Op::EnrollRequest.code(), 0, &[], params).unwrap();
        accept(&mut server, &frames(&client, request), at(9)).is_some()
    };
    let params = |identity: &Identity| [&identity.id().0.to_be_bytes()[..], identity.public_key().as_bytes()].concat();
    assert!(enrol(&who(9), &params(&who(9))));
    assert!(enrol(&who(9), &params(&who(9))), "an unknown key has no replay state");
    assert!(!enrol(&who(9), &params(&who(8))), "signed by another than the key that it brings");
    assert!(!enrol(&who(2), &params(&who(8))), "though that one is enrolled");
    assert!(!enrol(&who(9), &params(&who(9))[..47]));
    assert!(!enrol(&who(9), &[&params(&who(9))[..], &[0]].concat()));
    let another_id = [&who(8).id().0.to_be_bytes()[..], who(9).public_key().as_bytes()].concat();
    assert!(!enrol(&who(9), &another_id));
}

#[test]
fn signatures_are_required_where_the_type_says_so() {
    let mut server = Server::default();
    let kinds = [MsgType::Announce, MsgType::Withdraw, MsgType::RevokeBroadcast, MsgType::PageRequest];
    for (nonce, kind) in (1..).zip(kinds) {
        let unsigned = Message {
            kind,
            sender: who(2).id(),
            request_id: 1,
            nonce,
            payload: vec![1].into(),
            v2: false,
            signature: None,
        };
        let count = |server: &Server| (server.drops().get(Drop::Unsigned), server.drops().get(Drop::Forged));
        let before = count(&server);
        assert!(accept(&mut server, &[unsigned.to_frame()], at(9)).is_none());
        assert!(accept(&mut server, &[unsigned.clone().signed(&who(3)).to_frame()], at(9)).is_none());
        assert_eq!(count(&server), (before.0 + 1, before.1 + 1));
        assert!(accept(&mut server, &[unsigned.signed(&who(2)).to_frame()], at(9)).is_some());
    }
    for kind in [MsgType::Response, MsgType::PageResponse] {
        let answer = Message {
            kind,
            sender: who(2).id(),
            request_id: 1,
            nonce: 99,
            payload: vec![].into(),
            v2: false,
            signature: None,
        };
        assert!(accept(&mut server, &[answer.signed(&who(2)).to_frame()], at(9)).is_none());
    }
    assert_eq!(server.drops().get(Drop::Unexpected), 2);
}

#[test]
fn notices_are_signed_and_taken_once() {
    let notices = Notices::new(500);
    let mut server = Server::default();
    for len in [25, 5000] {
        let notice = notices.sign(&who(3), MsgType::Announce, vec![4; len]).unwrap();
        let frames: Vec<_> = notice.frames().collect();
        let (taken, _) = accept(&mut server, &frames, at(9)).unwrap();
        assert_eq!((taken.sender, &taken.payload[..]), (who(3).id(), &vec![4; len][..]));
        assert!(accept(&mut server, &frames, at(9)).is_none());
    }
    assert!(notices.sign(&who(3), MsgType::Announce, vec![0; MAX_MESSAGE + 1]).is_err());
}

#[test]
fn a_client_takes_only_what_it_waits_for() {
    let answer = |signer: Option<&Identity>, change: &dyn Fn(&mut Message<'static>)| {
        let mut client = client();
        query(&mut client, signer.is_some());
        let mut message = Message {
            kind: MsgType::Response,
            sender: node().id(),
            request_id: 0x1122,
            nonce: 0x3344,
            payload: vec![1].into(),
            v2: false,
            signature: None,
        };
        change(&mut message);
        let message = match signer {
            Some(signer) if message.nonce != 0 => message.signed(signer),
            _ => message,
        };
        client.receive(&message.to_frame(), at(5700), NOW).is_some()
    };
    assert!(answer(None, &|_| {}));
    assert!(answer(Some(&node()), &|_| {}));
    assert!(!answer(Some(&who(3)), &|_| {}), "signed by another node");
    assert!(!answer(Some(&node()), &|message| message.sender = who(3).id()));
    assert!(!answer(None, &|message| message.nonce += 1));
    assert!(!answer(None, &|message| message.request_id += 1));
    assert!(!answer(None, &|message| message.kind = MsgType::PageResponse));

    let (mut client, mut server) = (client(), Server::default());
    let request = query(&mut client, true);
    let (_, reply) = accept(&mut server, &frames(&client, request), at(9)).unwrap();
    let answer = reply_with(&mut server, reply, vec![1; 2000]);
    let unsigned = Message { signature: None, ..(*answer).clone() };
    for frame in unsigned.frames() {
        assert_eq!(client.receive(&frame, at(5700), NOW), None, "the node's key is known, so it must sign");
    }
    for frame in answer.frames() {
        assert_eq!(client.receive(&frame, at(5701), NOW), None, "from another address");
    }
    assert!(answer.frames().filter_map(|frame| client.receive(&frame, at(5700), NOW)).count() == 1);
    client.forget(request);
}

#[test]
fn streams_carry_one_sound_frame_of_the_tls_peer() {
    let peer = *who(2).public_key();
    let request = include_bytes!("golden/request.bin");
    assert!(accept_stream(request, &peer).is_ok());
    assert_eq!(accept_stream(request, who(3).public_key()), Err(Drop::Forged));
    for at in 0..request.len() {
        let mut changed = request.to_vec();
        changed[at] ^= 0x80;
        assert!(accept_stream(&changed, &peer).is_err(), "byte {at}");
    }
    let plain = |payload: Vec<u8>, kind| Message {
        kind,
        sender: who(2).id(),
        request_id: 1,
        nonce: 1,
        payload: payload.into(),
        v2: false,
        signature: None,
    };
    let bare =
        Request { op: Op::Ping.code(), resource_id: 0, token: Bytes::EMPTY, params: Bytes::EMPTY, presenter: None };
    assert!(accept_stream(&plain(bare.to_vec(), MsgType::Request).to_frame(), &peer).is_ok());
    let large = plain(vec![0; MAX_MESSAGE], MsgType::PageRequest);
    assert!(accept_stream(&large.to_frame(), &peer).is_ok());
    assert_eq!(
        accept_stream(&plain(vec![0; MAX_MESSAGE + 1], MsgType::PageRequest).to_frame(), &peer),
        Err(Drop::Malformed)
    );
    let fragment = large.frames().next().unwrap();
    assert_eq!(accept_stream(&fragment, &peer), Err(Drop::Malformed));
    assert_eq!(accept_stream(&plain(vec![0; 25], MsgType::Withdraw).to_frame(), &peer), Err(Drop::Unsigned));
    assert_eq!(accept_stream(&plain(vec![], MsgType::Response).to_frame(), &peer), Err(Drop::Unexpected));
    let surplus = [&plain(bare.to_vec(), MsgType::Request).to_frame()[..], &[0]].concat();
    assert_eq!(accept_stream(&surplus, &peer), Err(Drop::Malformed));
}

#[test]
fn a_message_that_its_caller_drops_before_it_is_taken_is_new_when_it_comes_again() {
    let (mut client, mut server) = (client(), Server::default());
    let request = query(&mut client, false);
    let datagram = frames(&client, request).remove(0);
    assert_eq!(server.whole(&datagram, at(9), NOW).unwrap().sender, client.identity().id());
    server.refuse(Drop::OverShare);
    assert!(matches!(server.receive(&datagram, at(9), &keys(), NOW), Received::New(..)));
    assert!(matches!(server.receive(&datagram, at(9), &keys(), NOW), Received::Nothing));
    assert_eq!([Drop::OverShare, Drop::Replayed].map(|reason| server.drops().get(reason)), [1, 1]);
}

#[test]
fn who_has_many_answers_kept_drops_none_of_another() {
    let (mut careful, mut greedy) = (client(), Client::new(who(3), 1, 1));
    let mut server = Server::default();
    let mut answer = |client: &mut Client, payload| {
        let request = query(client, false);
        let datagrams = frames(client, request);
        let (_, reply) = accept(&mut server, &datagrams, at(9)).unwrap();
        reply_with(&mut server, reply, payload);
        datagrams
    };
    let first = answer(&mut careful, vec![1]);
    let theirs: Vec<_> = (0..70).map(|_| answer(&mut greedy, vec![0; MAX_MESSAGE])).collect();
    let mut again =
        |datagrams: &[Vec<u8>]| matches!(server.receive(&datagrams[0], at(9), &keys(), NOW), Received::Again(_));
    assert!(again(&first), "the oldest of all, of who has least");
    assert_eq!([0, 69].map(|nth: usize| again(&theirs[nth])), [false, true]);
    server.expire(NOW + Duration::from_secs(30));
    assert_eq!(server.bytes(), 0);
}
