//! A node and a relay over real sockets: announcements, solicitations, withdrawals, and unsigned datagrams.

use std::{
    net::{SocketAddr, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use berth_control::{Control, Listen, Settings};
use berth_fabric::{Config, Policy, Rule};
use berth_host::TscClock;
use berth_identity::link::{Client, Notices};
use berth_port::Nanos;
use berth_wire::fabric::{
    Announce, EndpointKind, Filter, FilterField, FilterOp, Frame, List, MAX_DATAGRAM_PAYLOAD, MsgType, Op, Perms,
    Relayed, Response, Solicit, Status, Wire as _, Withdraw,
};
use tempfile::TempDir;

use crate::common::{LOCAL, memory, who};

/// Starts a node with this key, which knows keys 1 to 3 and announces itself to `announce`.
fn start(seed: u8, site: u32, announce: Vec<SocketAddr>) -> (Control, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (start_in(folder.path(), seed, site, announce), folder)
}

fn start_in(folder: &Path, seed: u8, site: u32, announce: Vec<SocketAddr>) -> Control {
    let rule = Rule { presenter: Some(who(3).id().0), perms: Perms::ALL, resources: None };
    let listen = Listen { udp: LOCAL, quic: LOCAL, relay: Some(LOCAL), fbmu: None, fbmt: None, fbbt: None };
    let mut control = Control::open(Settings {
        identity: who(seed),
        listen,
        announce,
        state_dir: folder.into(),
        cpus: vec![0],
        clock: TscClock::calibrate(Duration::from_millis(20)),
        regions: memory(1 << 20),
        resources: Vec::new(),
        bindings: Vec::new(),
        tasklet_cpus: Vec::new(),
        node: Config {
            site,
            policy: Policy::new(vec![rule]),
            enrolled: [1, 2, 3].map(|seed| *who(seed).public_key()).into(),
            ..Config::default()
        },
    })
    .unwrap();
    control.serve(&[], Vec::new());
    control
}

fn endpoint(control: &Control, name: &str) -> SocketAddr {
    control.endpoints().iter().find(|(known, _)| *known == name).unwrap().1
}

fn now_micros() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as u64
}

/// A client with one socket, which repeats requests every 400 ms: the socket of a busy node may overflow.
struct Asker {
    socket: UdpSocket,
    client: Client,
}

impl Asker {
    fn new(seed: u8) -> Self {
        let socket = UdpSocket::bind(LOCAL).unwrap();
        Self { socket, client: Client::new(who(seed), now_micros(), 1) }
    }

    fn answer(&mut self, request: u64, to: SocketAddr, patience: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + patience;
        let mut buf = [0; 2048];
        self.socket.set_read_timeout(Some(patience.min(Duration::from_millis(400)))).unwrap();
        while Instant::now() < end {
            for frame in self.client.frames(request) {
                self.socket.send_to(&frame, to).unwrap();
            }
            while let Ok((len, from)) = self.socket.recv_from(&mut buf) {
                if let Some(answer) = self.client.receive(&buf[..len], from, Nanos(0)) {
                    return Some(answer.payload);
                }
            }
        }
        None
    }

    /// Ids of the nodes that match.
    fn nodes(&mut self, to: SocketAddr, filters: &[Filter]) -> Vec<u128> {
        let question = Solicit { filters: List::of(filters).unwrap(), padding: 0 }.to_vec();
        let request = self.client.solicit(to, None, question, true).unwrap();
        let answer = self.answer(request, to, Duration::from_secs(5)).unwrap();
        let nodes = Relayed::parse(&answer).unwrap();
        let mut ids: Vec<_> = nodes.iter().map(|node| Announce::parse(node.get()).unwrap().node_id).collect();
        ids.sort_unstable();
        ids
    }
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "it did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sorted(mut ids: Vec<u128>) -> Vec<u128> {
    ids.sort_unstable();
    ids
}

#[test]
fn a_node_is_found_through_its_relay_until_it_leaves() {
    let (relay, _relay_folder) = start(1, 10, Vec::new());
    let relay_at = endpoint(&relay, "relay");
    let (node, _node_folder) = start(2, 20, vec![relay_at]);
    let (relay_id, node_id) = (who(1).id().0, who(2).id().0);
    let both = sorted(vec![relay_id, node_id]);

    let mut asker = Asker::new(3);
    eventually(|| asker.nodes(relay_at, &[]) == both);
    let site = |site: u32, op| [Filter::new(FilterField::SiteId, op, &site.to_be_bytes())];
    assert_eq!(asker.nodes(relay_at, &site(20, FilterOp::Eq)), [node_id]);
    assert_eq!(asker.nodes(relay_at, &site(20, FilterOp::Lt)), [relay_id]);
    assert_eq!(asker.nodes(relay_at, &site(20, FilterOp::Gt)), []);
    let plain = endpoint(&relay, "control-udp");
    assert_eq!(asker.nodes(plain, &[]), [relay_id], "where it is no relay, it speaks for itself");

    // Unsigned questions: answered only where they are as long as the answer.
    let mut unsigned = Asker::new(77);
    let mut ask = |padding, patience| {
        let question = Solicit { filters: List::EMPTY, padding }.to_vec();
        let request = unsigned.client.solicit(relay_at, None, question, false).unwrap();
        unsigned.answer(request, relay_at, Duration::from_millis(patience))
    };
    assert_eq!(ask(0, 200), None);
    let padded = ask(1197, 5000).unwrap();
    let nodes = Relayed::parse(&padded).unwrap();
    assert_eq!(nodes.len(), 2);
    let announced = nodes.iter().map(|node| Announce::parse(node.get()).unwrap());
    let announced = announced.into_iter().find(|announce| announce.node_id == node_id).unwrap();
    let control = endpoint(&node, "control-udp").to_string();
    assert_eq!(announced.endpoint(EndpointKind::ControlUdp), Some(control.as_str()));

    node.stop(Duration::from_secs(1));
    eventually(|| asker.nodes(relay_at, &[]) == [relay_id]);
    let counters = relay.stop(Duration::from_secs(1));
    let count = |name: &str| counters.iter().find(|(known, _)| known == name).unwrap().1;
    assert!(count("relay_announcements_taken") >= 1);
    assert_eq!((count("relay_withdrawals_taken"), count("solicits_unpadded")), (1, 1));
}

#[test]
fn forged_replayed_and_foreign_notices_change_nothing() {
    let (relay, _folder) = start(1, 10, Vec::new());
    let relay_at = endpoint(&relay, "relay");
    let (relay_id, node_id) = (who(1).id().0, who(2).id().0);
    let announce = |sequence| Announce {
        node_id,
        sequence,
        ttl_secs: 60,
        site: 1,
        row: 1,
        rack: 1,
        locality_custom: [0; 32],
        endpoints: List::EMPTY,
        resources: List::EMPTY,
        tlvs: List::EMPTY,
    };
    let socket = UdpSocket::bind(LOCAL).unwrap();
    let send = |frame: &[u8]| socket.send_to(frame, relay_at).unwrap();
    let notices = Notices::new(now_micros());
    let sign = |seed, kind, payload| notices.sign(&who(seed), kind, payload).unwrap().to_frame();
    let mut asker = Asker::new(3);

    send(&sign(3, MsgType::Announce, announce(9).to_vec())); // about another than its signer
    let sound = sign(2, MsgType::Announce, announce(5).to_vec());
    for at in 0..sound.len() {
        let mut changed = sound.clone();
        changed[at] ^= 0x80;
        send(&changed);
    }
    assert_eq!(asker.nodes(relay_at, &[]), [relay_id]);
    send(&sound);
    eventually(|| asker.nodes(relay_at, &[]) == sorted(vec![relay_id, node_id]));
    send(&sign(3, MsgType::Withdraw, Withdraw { node_id, detail: None }.to_vec()));
    send(&sign(2, MsgType::Announce, Announce { site: 7, ..announce(5) }.to_vec())); // not newer
    let site = [Filter::new(FilterField::SiteId, FilterOp::Eq, &1_u32.to_be_bytes())];
    assert_eq!(asker.nodes(relay_at, &site), [node_id]);
    send(&sign(2, MsgType::Withdraw, Withdraw { node_id, detail: None }.to_vec()));
    eventually(|| asker.nodes(relay_at, &[]) == [relay_id]);
    send(&sound); // a recording of before
    assert_eq!(asker.nodes(relay_at, &[]), [relay_id]);
    let counters = relay.stop(Duration::from_secs(1));
    let count = |name: &str| counters.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!((count("relay_announcements_taken"), count("relay_withdrawals_taken")), (1, 1));
    assert_eq!((count("relay_announcements_foreign"), count("relay_announcements_old")), (2, 1));
    assert!(count("frames_replayed") >= 1);
}

#[test]
fn a_retransmission_gets_the_same_answer_and_floods_of_half_messages_do_not_matter() {
    let (node, _folder) = start(1, 10, Vec::new());
    let at = endpoint(&node, "control-udp");
    let junk = Solicit { filters: List::EMPTY, padding: 100_000 }.to_vec();
    let mut flooder = Asker::new(9);
    let mut asker = Asker::new(3);
    for round in 0..200 {
        // All fragments but the first few, of many messages.
        let request = flooder.client.solicit(at, None, junk.clone(), false).unwrap();
        for frame in flooder.client.frames(request).skip(3).take(5) {
            flooder.socket.send_to(&frame, at).unwrap();
        }
        if round % 20 == 0 {
            let params = vec![0; 4000]; // in fragments: it is too long for PING, which says so
            let request = asker.client.request(at, None, Op::Ping.code(), 0, &[], &params).unwrap();
            let frames: Vec<_> = asker.client.frames(request).collect();
            let answer = asker.answer(request, at, Duration::from_secs(5)).unwrap();
            assert_eq!(Response::parse(&answer).unwrap().status, Status::InvalidParams.code());
            let mut buf = [0; 2048];
            let again = (0..20).find_map(|_| {
                for frame in &frames {
                    asker.socket.send_to(frame, at).unwrap();
                }
                asker.socket.recv(&mut buf).ok()
            });
            assert_eq!(Frame::parse(&buf[..again.unwrap()], MAX_DATAGRAM_PAYLOAD).unwrap().payload, answer);
        }
    }
    let counters = node.stop(Duration::from_secs(1));
    let count = |name: &str| counters.iter().find(|(known, _)| known == name).unwrap().1;
    assert_eq!(count("op_ping_refused"), 10, "each was executed once");
    assert!(count("answers_repeated") >= 10, "{}", count("answers_repeated"));
}

#[test]
fn a_restart_does_not_let_recordings_in_again() {
    let folder = tempfile::tempdir().unwrap();
    let count = |node: Control, name: &str| {
        let counters = node.stop(Duration::from_secs(1));
        counters.iter().find(|(known, _)| known == name).unwrap().1
    };
    let node = start_in(folder.path(), 1, 10, Vec::new());
    let mut asker = Asker::new(3);
    let at = endpoint(&node, "control-udp");
    let request = asker.client.request(at, None, Op::Ping.code(), 0, &[], &[]).unwrap();
    let recorded: Vec<_> = asker.client.frames(request).collect();
    assert!(asker.answer(request, at, Duration::from_secs(5)).is_some());
    assert_eq!(count(node, "messages_accepted"), 1);

    let node = start_in(folder.path(), 1, 10, Vec::new());
    let at = endpoint(&node, "control-udp");
    asker.socket.send_to(&recorded[0], at).unwrap();
    let request = asker.client.request(at, None, Op::Ping.code(), 0, &[], &[]).unwrap();
    assert!(asker.answer(request, at, Duration::from_secs(5)).is_some());
    assert_eq!(count(node, "op_ping"), 1, "the new one alone");
}
