//! DH-HMAC-CHAP: against answers of another implementation, host against controller, and with messages that are wrong.

use std::sync::Arc;

use berth_nvme::auth::{Controller, Group, Hash, Host, Next, Parameters, Random, Reason, Secret};
use berth_wire::nvme::auth::{Message, Negotiate, Reply};
use sha2::{Digest as _, Sha256};

const HOST: &[u8] = b"nqn.2014-08.org.nvmexpress:uuid:host";
const SUBSYSTEM: &[u8] = b"nqn.2026-01.example:lease";
const T_ID: u16 = 0x1234;

/// The prime of ffdhe2048 and eight transactions by `auth/known_answers.py`, whose arithmetic and hashes are Python's, and
/// whose primes are OpenSSL's. In each line: hash, group, secrets of host and controller, SHA-256 of the DH values of controller and host, responses
/// of host and controller.
const KNOWN_ANSWERS: &str = include_str!("auth/known_answers.txt");

/// What `random` of the script gives.
fn random(seed: usize) -> Random {
    Random::new(std::array::from_fn(|i| (seed + 7 * i) as u8))
}

fn secret(seed: u8) -> Secret {
    Secret::new(&[seed; 32])
}

fn parameters(hash: Hash, group: Group, controller: Option<Secret>) -> Parameters {
    Parameters {
        hostnqn: HOST.to_vec(),
        subnqn: SUBSYSTEM.to_vec(),
        host: secret(1),
        controller,
        hashes: vec![hash],
        groups: vec![group],
    }
}

/// Host and controller of a transaction, and the messages that went between them.
struct Run {
    host: Host,
    controller: Controller,
    messages: Vec<Vec<u8>>,
}

impl Run {
    fn new(host: Parameters, controller: Parameters) -> Self {
        let host = Host::new(Arc::new(host), random(0), T_ID);
        Self { host, controller: Controller::new(Arc::new(controller), random(100)), messages: Vec::new() }
    }

    /// Both with the same parameters.
    fn equal(hash: Hash, group: Group, mutual: bool) -> Self {
        let parameters = || parameters(hash, group, mutual.then(|| secret(2)));
        Self::new(parameters(), parameters())
    }

    /// Carries messages to and fro, `change`d by their number, until nothing more happens.
    fn go(mut self, change: impl Fn(usize, &mut Vec<u8>)) -> Self {
        let mut room = [0; Message::MAX];
        loop {
            if self.host.next() == Next::Compute {
                let work = self.host.work().unwrap();
                assert!(self.host.work().is_none(), "given out once");
                self.host.computed(work.compute());
            } else if self.controller.next() == Next::Compute {
                let work = self.controller.work().unwrap();
                assert!(self.controller.work().is_none(), "given out once");
                assert_eq!(self.controller.send(&mut room), None, "not before it is computed");
                self.controller.computed(work.compute());
            } else if self.host.next() == Next::Send {
                let len = self.host.send(&mut room).unwrap();
                self.messages.push(room[..len].to_vec());
                change(self.messages.len() - 1, self.messages.last_mut().unwrap());
                self.controller.receive(self.messages.last().unwrap());
            } else if self.host.next() == Next::Receive {
                let Some(len) = self.controller.send(&mut room) else { return self };
                self.messages.push(room[..len].to_vec());
                change(self.messages.len() - 1, self.messages.last_mut().unwrap());
                self.host.receive(self.messages.last().unwrap());
            } else {
                return self;
            }
        }
    }

    fn ends(&self) -> (Next, Next) {
        (self.host.next(), self.controller.next())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

#[test]
fn answers_of_another_implementation() {
    assert_eq!(KNOWN_ANSWERS.lines().count(), 9);
    for (number, line) in KNOWN_ANSWERS.lines().skip(1).enumerate() {
        let [hash, group, host, controller, public, public_of_host, response, response_of_controller] =
            line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let parameters = || {
            Arc::new(Parameters {
                host: Secret::parse(host).unwrap(),
                ..parameters(
                    Hash::of(hash.parse().unwrap()).unwrap(),
                    Group::of(group.parse().unwrap()).unwrap(),
                    Secret::parse(controller),
                )
            })
        };
        let host = Host::new(parameters(), random(number), T_ID);
        let controller = Controller::new(parameters(), random(number + 100));
        let run = Run { host, controller, messages: Vec::new() }.go(|_, _| ());
        assert_eq!(run.ends(), (Next::Done, Next::Done), "{line}");
        let dh = |dh: &[u8]| if dh.is_empty() { "-".to_owned() } else { hex(&Sha256::digest(dh)) };
        let said = run.messages.iter().map(|message| match Message::parse(message).unwrap() {
            (T_ID, Message::Challenge(challenge)) => dh(challenge.dh),
            (T_ID, Message::Reply(reply)) => format!("{} {}", dh(reply.dh), hex(reply.response)),
            (T_ID, Message::Success1 { response, .. }) => hex(response.unwrap()),
            (T_ID, Message::Negotiate(_) | Message::Success2) => String::new(),
            other => panic!("{other:?}"),
        });
        let expected = [
            String::new(),
            public.into(),
            format!("{public_of_host} {response}"),
            response_of_controller.into(),
            String::new(),
        ];
        assert_eq!(said.collect::<Vec<_>>(), expected, "{line}");
    }
}

#[test]
fn every_hash_and_group_one_way_and_both_ways() {
    for hash in Hash::ALL {
        for group in Group::ALL.into_iter().filter(|&group| group < Group::Ffdhe6144) {
            for mutual in [false, true] {
                let run = Run::equal(hash, group, mutual).go(|_, _| ());
                assert_eq!(run.ends(), (Next::Done, Next::Done), "{hash:?} {group:?} {mutual}");
                assert_eq!(run.messages.len(), if mutual { 5 } else { 4 });
            }
        }
    }
}

#[test]
fn other_secrets_and_names_fail() {
    let plain = || parameters(Hash::Sha256, Group::None, Some(secret(2)));
    let failed = (Next::Failed(Reason::Failed), Next::Failed(Reason::Failed));
    for controller in [
        Parameters { host: secret(3), ..plain() },
        Parameters { controller: Some(secret(3)), ..plain() },
        Parameters { controller: None, ..plain() },
        Parameters { hostnqn: SUBSYSTEM.to_vec(), ..plain() },
        Parameters { subnqn: HOST.to_vec(), ..plain() },
        // The key as it is, of the same bytes.
        Parameters { host: Secret::parse(&secret(1).text().replace(":01:", ":00:")).unwrap(), ..plain() },
    ] {
        assert_eq!(Run::new(plain(), controller).go(|_, _| ()).ends(), failed);
    }
    let asks_nothing = Parameters { controller: None, ..plain() };
    assert_eq!(Run::new(asks_nothing, plain()).go(|_, _| ()).ends(), (Next::Done, Next::Done));
}

#[test]
fn the_controller_chooses_what_it_likes_best() {
    let of = |hashes: &[Hash], groups: &[Group]| Parameters {
        hashes: hashes.to_vec(),
        groups: groups.to_vec(),
        ..parameters(Hash::Sha256, Group::None, None)
    };
    let chosen = |host, controller| {
        let run = Run::new(host, controller).go(|_, _| ());
        match Message::parse(&run.messages[1]).unwrap().1 {
            Message::Challenge(challenge) => Ok((challenge.hash, challenge.group)),
            Message::Failure1(reason) => {
                assert_eq!(run.ends(), (Next::Failed(reason), Next::Failed(reason)));
                Err(reason)
            }
            other => panic!("{other:?}"),
        }
    };
    let (sha256, sha384, none, ffdhe) = (Hash::Sha256, Hash::Sha384, Group::None, Group::Ffdhe2048);
    assert_eq!(chosen(of(&[sha256, sha384], &[none, ffdhe]), of(&[sha384, sha256], &[ffdhe, none])), Ok((2, 1)));
    assert_eq!(chosen(of(&[sha256], &[none]), of(&[sha384, sha256], &[ffdhe, none])), Ok((1, 0)));
    assert_eq!(chosen(of(&[sha256], &[none]), of(&[sha384], &[none])), Err(Reason::HashNotUsable));
    assert_eq!(chosen(of(&[sha256], &[none]), of(&[sha256], &[ffdhe])), Err(Reason::GroupNotUsable));
}

#[test]
fn offers_that_are_refused() {
    let answer = |secure_channel, hashes| {
        let mut controller = Controller::new(Arc::new(parameters(Hash::Sha256, Group::None, None)), random(0));
        let mut room = [0; Message::MAX];
        let len =
            Message::Negotiate(Negotiate { secure_channel, hashes, groups: &[0] }).write(T_ID, &mut room).unwrap();
        controller.receive(&room[..len]);
        assert_eq!(controller.next(), Next::Send);
        assert_eq!(controller.send(&mut room[..7]), None, "no room");
        let len = controller.send(&mut room).unwrap();
        match Message::parse(&room[..len]) {
            Ok((T_ID, Message::Failure1(reason))) => {
                assert_eq!((controller.next(), controller.send(&mut room)), (Next::Failed(reason), None));
                Some(reason)
            }
            Ok((T_ID, Message::Challenge(_))) => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(0, Some(&[1])), None);
    assert_eq!(answer(1, Some(&[1])), Some(Reason::ConcatenationMismatch));
    assert_eq!(answer(0, None), Some(Reason::ProtocolNotUsable));
    assert_eq!(answer(0, Some(&[0, 4])), Some(Reason::HashNotUsable));
}

#[test]
fn a_host_is_held_to_what_it_offered() {
    for (at, value, reason) in [
        (8, 3, Reason::HashNotUsable),
        (8, 9, Reason::HashNotUsable),
        (9, 1, Reason::GroupNotUsable),
        (6, 31, Reason::IncorrectPayload),
    ] {
        let run = Run::equal(Hash::Sha256, Group::None, false).go(|number, message| {
            if number == 1 {
                message[at] = value;
            }
        });
        assert_eq!(run.ends(), (Next::Failed(reason), Next::Failed(reason)), "byte {at}");
    }
}

#[test]
fn a_dh_value_is_as_long_as_its_group_says() {
    let failed = Next::Failed(Reason::IncorrectPayload);
    for (group, len) in [(Group::None, 4), (Group::Ffdhe2048, 252), (Group::Ffdhe2048, 260)] {
        for number in [1, 2] {
            let run = Run::equal(Hash::Sha256, group, false).go(|now, message| {
                if now == number {
                    let end = message.len() - group.len();
                    message.truncate(end);
                    message.extend(vec![2; len]);
                    message[10..12].copy_from_slice(&(len as u16).to_le_bytes());
                }
            });
            assert_eq!(run.ends(), (failed, failed), "{group:?} {len} in message {number}");
        }
    }
}

#[test]
fn dh_values_that_give_the_secret_away_are_refused() {
    let group = Group::Ffdhe2048;
    let small = |value| [vec![0; 255], vec![value]].concat();
    let prime = KNOWN_ANSWERS.lines().next().unwrap();
    let prime: Vec<_> = (0..256).map(|at| u8::from_str_radix(&prime[at * 2..][..2], 16).unwrap()).collect();
    let below = |by| [&prime[..255], &[prime[255] - by]].concat();
    let wrong = [small(0), small(1), below(1), below(0), vec![0xFF; 256]].map(|dh| (dh, false));
    for (dh, right) in wrong.into_iter().chain([(small(2), true), (below(2), true)]) {
        // The response is right in no case: what is wrong with the value is said before.
        let reason = if right { Reason::Failed } else { Reason::IncorrectPayload };
        let run = Run::equal(Hash::Sha256, group, false).go(|number, message| {
            if number == 2 {
                let len = message.len() - 256;
                message[len..].copy_from_slice(&dh);
            }
        });
        assert_eq!(run.ends(), (Next::Failed(reason), Next::Failed(reason)), "to the controller: {dh:?}");
        let run = Run::equal(Hash::Sha256, group, false).go(|number, message| {
            if number == 1 {
                let len = message.len() - 256;
                message[len..].copy_from_slice(&dh);
            }
        });
        assert_eq!(run.ends(), (Next::Failed(reason), Next::Failed(reason)), "to the host: {dh:?}");
    }
}

/// The bytes of a message that nobody looks at: reserved, and the challenge and its number where it asks for nothing.
fn is_ignored(message: usize, at: usize, mutual: bool) -> bool {
    match message {
        0 => [2, 3, 9].contains(&at) || (13..42).contains(&at) || (43..72).contains(&at),
        1 => [2, 3, 7].contains(&at),
        2 => [2, 3, 7, 9].contains(&at) || !mutual && ((12..16).contains(&at) || (48..80).contains(&at)),
        3 => [2, 3, 7].contains(&at) || (9..16).contains(&at) || !mutual && (at == 8 || (16..48).contains(&at)),
        _ => [2, 3].contains(&at) || (6..16).contains(&at),
    }
}

#[test]
fn no_message_can_be_changed() {
    for (group, bits, whole_to) in [(Group::None, 0..8, 100), (Group::Ffdhe2048, 0..1, 24)] {
        for mutual in [false, true] {
            let whole = Run::equal(Hash::Sha256, group, mutual).go(|_, _| ()).messages;
            for (number, message) in whole.iter().enumerate() {
                // Of a DH value every 32nd byte is enough.
                for at in (0..message.len()).filter(|&at| at < whole_to || at % 32 == 0) {
                    for bit in bits.clone() {
                        let run = Run::equal(Hash::Sha256, group, mutual).go(|now, message| {
                            if now == number {
                                message[at] ^= 1 << bit;
                            }
                        });
                        // Any number but 0 says that there is a challenge, or a response; and an offer may be longer.
                        let still_true = mutual && bit > 0 && [2, 3].contains(&number) && at == 8;
                        let longer = number == 0 && [10, 11].contains(&at) && (1..5).contains(&bit);
                        let alike = is_ignored(number, at, mutual) || still_true || longer;
                        let done = run.ends() == (Next::Done, Next::Done);
                        assert_eq!(
                            done,
                            alike,
                            "{group:?} {mutual}: message {number}, byte {at}, bit {bit}: {:?}",
                            run.ends()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn no_message_can_be_cut_short_or_sent_twice() {
    for mutual in [false, true] {
        let whole = Run::equal(Hash::Sha384, Group::None, mutual).go(|_, _| ()).messages;
        for number in 0..whole.len() {
            for len in 0..whole[number].len() {
                let run = Run::equal(Hash::Sha384, Group::None, mutual).go(|now, message| {
                    if now == number {
                        message.truncate(len);
                    }
                });
                // A response that says nothing need not be there.
                let alike = !mutual && number == 3 && len >= 16;
                assert_eq!(run.ends() == (Next::Done, Next::Done), alike, "{number} cut to {len}");
            }
            for other in (0..whole.len()).filter(|&other| other != number) {
                let run = Run::equal(Hash::Sha384, Group::None, mutual).go(|now, message| {
                    if now == number {
                        message.clone_from(&whole[other]);
                    }
                });
                assert_ne!(run.ends(), (Next::Done, Next::Done), "{other} in place of {number}");
            }
        }
    }
}

#[test]
fn messages_out_of_turn() {
    let mut room = [0; Message::MAX];
    let fresh = || Controller::new(Arc::new(parameters(Hash::Sha256, Group::Ffdhe2048, None)), random(0));
    let failed = Next::Failed(Reason::IncorrectMessage);
    // A host that wants to receive first.
    let mut controller = fresh();
    assert_eq!(controller.send(&mut room), Some(8));
    assert_eq!((&room[..8], controller.next()), (&[0, 0xF1, 0, 0, 0, 0, 1, 7][..], failed));
    // One that does not wait for the challenge; the work that it caused comes too late.
    let mut host = Host::new(Arc::new(parameters(Hash::Sha256, Group::Ffdhe2048, None)), random(0), T_ID);
    let len = host.send(&mut room).unwrap();
    assert_eq!(host.send(&mut [0; 100]), None);
    let mut controller = fresh();
    controller.receive(&room[..len]);
    controller.receive(&room[..len]);
    assert!(controller.work().is_none(), "nobody waits for it");
    assert_eq!((controller.send(&mut [0; 8]), controller.next()), (Some(8), failed));
    let mut controller = fresh();
    controller.receive(&room[..len]);
    let work = controller.work().unwrap();
    let reply = Reply { response: &[0; 32], challenge: None, sequence: 0, dh: &[9; 256] };
    let len = Message::Reply(reply).write(T_ID, &mut room).unwrap();
    controller.receive(&room[..len]);
    assert!(controller.work().is_none());
    controller.computed(work.compute());
    assert_eq!(controller.send(&mut room), Some(8));
    assert_eq!((room[7], controller.next()), (7, failed));
    controller.receive(&room[..8]);
    assert_eq!(controller.next(), failed, "for good");
    // A host that is not content.
    let run = Run::equal(Hash::Sha256, Group::None, true).go(|number, message| {
        if number == 4 {
            *message = vec![0, 0xF0, 0, 0, 0x34, 0x12, 1, 1];
        }
    });
    assert_eq!(run.ends(), (Next::Done, Next::Failed(Reason::Failed)));
}

#[test]
fn secrets_have_a_text() {
    let text = secret(7).text();
    assert!(text.starts_with("DHHC-1:01:BwcHBwcHBwcH"));
    assert_eq!(Secret::parse(&text).unwrap().text(), text);
    assert!(Secret::parse(&text[1..]).is_none());
}
