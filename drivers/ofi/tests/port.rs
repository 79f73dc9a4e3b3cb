//! Two ports of one host, over every provider that needs no card.

use std::{
    ops::{Deref, DerefMut},
    thread,
    time::{Duration, Instant},
};

use berth_ofi::{Error, OfiAcceptor, OfiPort, Peers, Place, providers};
use berth_port::{Peer, Port as _, PostError, Verdict};
use berth_port_tests::{counter, eventually};
use berth_rendezvous::{Form, Limits, Rendezvous};
use berth_wire::fabric::Status;

const PROVIDERS: [&str; 3] = ["tcp", "shm", "udp;ofi_rxd"];
const MAX_FRAME: usize = 9000;

fn place(provider: &str) -> Place {
    let bind = (provider != "shm").then(|| "127.0.0.1:0".parse().unwrap());
    Place { provider: provider.into(), bind, ..Place::default() }
}

fn open(provider: &str, max_frame: usize, limit: usize) -> OfiPort {
    let peers = Peers::new(limit);
    let acceptor = OfiAcceptor::new(peers.clone());
    let loopback = "127.0.0.1:0".parse().unwrap();
    let rendezvous = Rendezvous::listen(loopback, Form::Berth, Limits::default(), acceptor).unwrap();
    OfiPort::open(&place(provider), max_frame, rendezvous, peers).unwrap()
}

/// A port whose only peer is its server.
#[derive(Debug)]
struct Client {
    port: OfiPort,
    server: Peer,
}

impl From<(OfiPort, Peer)> for Client {
    fn from((port, server): (OfiPort, Peer)) -> Self {
        Self { port, server }
    }
}

impl Deref for Client {
    type Target = OfiPort;

    fn deref(&self) -> &OfiPort {
        &self.port
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut OfiPort {
        &mut self.port
    }
}

/// A client admitted by the server, which is polled meanwhile.
fn connect(server: &mut OfiPort, provider: &str, max_frame: usize) -> Result<Client, Error> {
    let (addr, provider) = (server.local_addr(), provider.to_string());
    let client = thread::spawn(move || OfiPort::connect(&place(&provider), max_frame, addr));
    while !client.is_finished() {
        server.rx(|_| Verdict::Drop);
    }
    client.join().unwrap().map(Client::from)
}

fn pair(provider: &str) -> (OfiPort, Client) {
    let mut server = open(provider, MAX_FRAME, 4);
    let client = connect(&mut server, provider, MAX_FRAME).unwrap();
    (server, client)
}

/// Posts a frame as soon as there is room for it.
fn post(client: &mut Client, bytes: &[u8]) {
    let to = client.server;
    eventually(&mut client.port, |port| {
        let posted = port.post(to, |buf| {
            buf[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
        port.tx();
        if posted.is_err() {
            port.rx(|_| panic!("unexpected frame"));
        }
        posted.is_ok()
    });
}

/// Polls a server that answers each frame with its bytes plus one, and its client until it has `count` answers.
fn answers(server: &mut OfiPort, client: &mut Client, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let until = Instant::now() + Duration::from_secs(10);
    while got.len() < count {
        server.rx(|frame| {
            frame.buf_mut().iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            Verdict::Reply
        });
        server.tx();
        client.rx(|frame| {
            got.push(frame.data().to_vec());
            Verdict::Drop
        });
        client.tx();
        assert!(Instant::now() < until, "{} of {count} answers", got.len());
    }
    got
}

#[test]
fn frames_of_every_length_are_answered_in_place() {
    for provider in PROVIDERS {
        let (mut server, mut client) = pair(provider);
        let lengths = [1, 16, 56, 64, 65, 1000, 1256, 1257, 4096, 4097, MAX_FRAME - 1, MAX_FRAME];
        for (n, len) in lengths.into_iter().cycle().take(600).enumerate() {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
            post(&mut client, &bytes);
            let wanted: Vec<_> = bytes.iter().map(|byte| byte.wrapping_add(1)).collect();
            assert!(answers(&mut server, &mut client, 1) == [wanted], "{provider}: {len} bytes");
        }
        assert_eq!(counter(&server, "rx_frames"), 600, "{provider}");
        assert_eq!(counter(&server, "tx_frames"), 600, "{provider}");
        assert_eq!(counter(&client.port, "rx_frames"), 600, "{provider}");
        for name in ["rx_unknown", "rx_too_long", "rx_errors", "tx_dropped", "tx_errors", "provider_errors"] {
            assert_eq!(counter(&server, name) + counter(&client.port, name), 0, "{provider} {name}");
        }
    }
}

#[test]
fn answers_of_slow_handlers_leave_before_the_burst_ends() {
    for provider in PROVIDERS {
        let (mut server, mut client) = pair(provider);
        let until = Instant::now() + Duration::from_secs(10);
        let mut early = 0;
        while early == 0 {
            assert!(Instant::now() < until, "{provider}: no two frames came in one burst");
            for n in 0..20_u8 {
                post(&mut client, &[n; 700]);
            }
            let (mut handled, mut answered) = (0, 0);
            while answered < 20 {
                let first = handled == 0;
                server.rx(|frame| {
                    handled += 1;
                    frame.send_now();
                    // The second of a burst is handled while the first one's answer is on its way.
                    if first && handled == 2 {
                        eventually(&mut client.port, |client| {
                            early += client.rx(|_| Verdict::Drop);
                            early > 0
                        });
                        answered += early;
                    }
                    Verdict::Reply
                });
                server.tx();
                answered += client.rx(|_| Verdict::Drop);
                client.tx();
                assert!(Instant::now() < until, "{provider}: {answered} answers of 20");
            }
        }
    }
}

#[test]
fn many_are_under_way() {
    for provider in PROVIDERS {
        let (mut server, mut client) = pair(provider);
        for round in 0..20 {
            for n in 0..50_u8 {
                post(&mut client, &[n; 700]);
            }
            let mut got = answers(&mut server, &mut client, 50);
            got.sort_unstable();
            assert_eq!(got, (1..=50).map(|n| vec![n; 700]).collect::<Vec<_>>(), "{provider} {round}");
        }
    }
}

#[test]
fn an_answer_that_finds_no_buffer_costs_none() {
    const MESSAGES: usize = 100;
    let (mut server, mut client) = pair("tcp");
    // Connects them: later posts need the client alone.
    post(&mut client, &[1; 64]);
    answers(&mut server, &mut client, 1);
    let until = Instant::now() + Duration::from_secs(10);
    for round in 1..5 {
        // No answer leaves meanwhile, so the last ones find that the peer has its share of buffers already.
        let mut asked = 0;
        for _ in 0..MESSAGES {
            post(&mut client, &[1; 64]);
            asked += server.rx(|_| Verdict::Reply);
        }
        while asked < MESSAGES {
            asked += server.rx(|_| Verdict::Reply);
            assert!(Instant::now() < until, "{round}: {asked} frames");
        }
        // A share is half of what a mebibyte holds.
        let share = (1 << 20) / MAX_FRAME / 2;
        assert_eq!(counter(&server, "tx_dropped"), (round * (MESSAGES - share)) as u64, "{round}");
        answers(&mut server, &mut client, share);
    }
}

#[test]
fn a_message_that_is_too_long_is_counted_and_harms_nobody() {
    for provider in PROVIDERS {
        let mut server = open(provider, 2048, 4);
        let mut client = connect(&mut server, provider, MAX_FRAME).unwrap();
        let mut other = connect(&mut server, provider, 2048).unwrap();
        post(&mut other, b"1");
        assert_eq!(answers(&mut server, &mut other, 1), [b"2"], "{provider}");
        post(&mut client, &[7; 2049]);
        eventually(&mut server, |server| {
            server.rx(|frame| panic!("{provider}: {} bytes", frame.len()));
            server.tx();
            client.rx(|_| Verdict::Drop);
            client.tx();
            counter(server, "rx_too_long") == 1
        });
        post(&mut other, &[7; 2048]);
        assert_eq!(answers(&mut server, &mut other, 1), [vec![8; 2048]], "{provider}");
        // Over tcp it has cost the sender its connection, which is made anew by one of its next messages.
        eventually(&mut server, |server| {
            let to = client.server;
            let _ = client.post(to, |buf| {
                buf[..2].copy_from_slice(b"ab");
                2
            });
            client.tx();
            let mut answered = false;
            for _ in 0..1000 {
                server.rx(|_| Verdict::Reply);
                server.tx();
                client.rx(|frame| {
                    answered |= frame.data() == b"ab";
                    Verdict::Drop
                });
            }
            answered
        });
    }
}

#[test]
fn who_was_not_let_in_is_not_heard() {
    // Not over shm: version 1.17 names some other peer as the source of a message whose sender is not in the table.
    for provider in ["tcp", "udp;ofi_rxd"] {
        let (mut server, mut client) = pair(provider);
        // It knows where the server is, and has not asked.
        let theirs = server.facts().address.clone();
        let to = server.local_addr();
        let joined = OfiPort::join(&place(provider), MAX_FRAME, to, |_| Ok::<_, Error>(theirs));
        let mut uninvited = Client::from(joined.unwrap());
        post(&mut uninvited, b"let me in");
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            server.rx(|_| panic!("{provider}: an endpoint that was not let in was heard"));
            server.tx();
            uninvited.rx(|_| panic!("{provider}: an endpoint that was not let in was answered"));
            uninvited.tx();
        }
        // Over udp;ofi_rxd the message stays with the provider.
        assert_eq!(counter(&server, "rx_unknown"), u64::from(provider == "tcp"));
        post(&mut client, b"1");
        assert_eq!(answers(&mut server, &mut client, 1), [b"2"], "{provider}");
    }
}

#[test]
fn who_leaves_is_not_heard_any_more_and_makes_room() {
    for provider in PROVIDERS {
        let mut server = open(provider, MAX_FRAME, 2);
        let mut first = connect(&mut server, provider, MAX_FRAME).unwrap();
        for n in 1..=5 {
            let mut second = connect(&mut server, provider, MAX_FRAME).unwrap();
            let refused = connect(&mut server, provider, MAX_FRAME).unwrap_err();
            assert!(refused.to_string().contains("CAPACITY_EXCEEDED"), "{provider}: {refused}");
            post(&mut second, b"1");
            assert_eq!(answers(&mut server, &mut second, 1), [b"2"], "{provider}");
            drop(second);
            eventually(&mut server, |server| {
                server.rx(|_| panic!("nothing was sent"));
                server.tx();
                counter(server, "peers_left") == n
            });
        }
        post(&mut first, b"1");
        assert_eq!(answers(&mut server, &mut first, 1), [b"2"], "{provider}");
        assert_eq!(counter(&server, "peers_joined"), 6);
    }
}

#[test]
fn frames_go_to_known_peers_only() {
    let (_server, mut client) = pair("tcp");
    let Peer::Connection { number, host } = client.server else { panic!("{:?}", client.server) };
    let [address, other] =
        [std::net::SocketAddr::from(([127, 0, 0, 1], 9)).into(), Peer::Connection { number: number + 1, host }];
    for unknown in [address, other] {
        assert_eq!(client.post(unknown, |_| panic!("filled")), Err(PostError::Unreachable));
    }
}

#[test]
fn a_full_queue_says_so() {
    let (_server, mut client) = pair("tcp");
    let to = client.server;
    let mut queued = 0;
    while client.post(to, |_| 1).is_ok() {
        queued += 1;
        assert!(queued < 1 << 16, "a queue without end");
    }
    assert!(queued >= 32, "{queued}");
    assert_eq!(client.post(to, |_| panic!("filled without room")), Err(PostError::Full));
}

#[test]
fn a_port_that_is_not_polled_lets_nobody_in_and_does_not_pile_up_what_it_is_told() {
    let peers = Peers::new(1);
    let open = |peers: Peers| {
        let acceptor = OfiAcceptor::new(peers.clone());
        let rendezvous =
            Rendezvous::listen("127.0.0.1:0".parse().unwrap(), Form::Berth, Limits::default(), acceptor).unwrap();
        OfiPort::open(&place("tcp"), MAX_FRAME, rendezvous, peers).unwrap()
    };
    let mut port = open(peers.clone());
    let address = open(Peers::new(1)).facts().address.clone();
    let admit = || {
        let asked = Instant::now();
        (peers.admit(&address, None), asked.elapsed())
    };
    for waits in [true, true, false] {
        let (admitted, took) = admit();
        assert_eq!(admitted.err(), Some(Status::ResourceBusy));
        assert_eq!(took > Duration::from_millis(900), waits, "{took:?}");
    }
    let admitted = thread::scope(|scope| {
        port.rx(|_| Verdict::Drop);
        assert_eq!(["peers_joined", "peers_left"].map(|name| counter(&port, name)), [2, 2]);
        let coming = scope.spawn(admit);
        while !coming.is_finished() {
            port.rx(|_| Verdict::Drop);
        }
        coming.join().unwrap().0.unwrap()
    });
    drop(admitted);
    // Who waits for a port that goes learns so at once.
    thread::scope(|scope| {
        let coming = scope.spawn(admit);
        thread::sleep(Duration::from_millis(100));
        drop(port);
        let (admitted, took) = coming.join().unwrap();
        assert_eq!(admitted.err(), Some(Status::ResourceBusy));
        assert!(took < Duration::from_millis(900), "{took:?}");
    });
}

#[test]
fn providers_are_listed_with_their_endpoints() {
    let providers = providers().unwrap();
    for (wanted, endpoint) in [("shm", "FI_EP_RDM"), ("tcp;ofi_rxm", "FI_EP_RDM"), ("udp", "FI_EP_DGRAM")] {
        let found = providers.iter().find(|provider| provider.name == wanted);
        assert!(found.is_some_and(|found| found.endpoints.iter().any(|has| has == endpoint)), "{providers:?}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let error = |place: &Place| {
        let peers = Peers::new(1);
        let rendezvous = Rendezvous::listen(
            "127.0.0.1:0".parse().unwrap(),
            Form::Berth,
            Limits::default(),
            OfiAcceptor::new(peers.clone()),
        );
        OfiPort::open(place, MAX_FRAME, rendezvous.unwrap(), peers).unwrap_err().to_string()
    };
    let unknown = error(&place("carrier-pigeon"));
    assert!(unknown.starts_with("no libfabric provider matches provider = \"carrier-pigeon\""), "{unknown}");
    let elsewhere = error(&Place { bind: Some("192.0.2.77:0".parse().unwrap()), ..place("tcp") });
    assert!(elsewhere.contains("provider = \"tcp\", bind = \"192.0.2.77:0\""), "{elsewhere}");
    assert!(error(&place("t\0p")).contains("NUL"));
    let shm = error(&Place { bind: Some("127.0.0.1:0".parse().unwrap()), ..place("shm") });
    assert_eq!(shm, "the libfabric provider shm has no IP addresses; leave `bind` out");
}
