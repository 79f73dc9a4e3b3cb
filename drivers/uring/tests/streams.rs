//! Byte streams on a poll core, with a session that says everything again.

use std::{
    cell::Cell,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use berth_host::Sleeper;
use berth_port::{Nanos, Next, Now, Part, Progress, Session, Task as _};
use berth_uring::{Connection, ToCore, UringStreams, handover};

/// Bytes of a connection's buffers: fewer than a peer says at once.
const BUFFER: usize = 1000;

struct Echo(Arc<AtomicBool>);

impl Session for Echo {
    fn advance(&mut self, input: &[u8], output: &mut [u8], _: Nanos) -> Progress {
        let len = input.len().min(output.len());
        output[..len].copy_from_slice(&input[..len]);
        let next = if len < input.len() { Next::Output(1) } else { Next::Input(1) };
        Progress { consumed: len, written: len, next }
    }

    fn is_identified(&self) -> bool {
        true
    }

    fn is_over(&mut self, _: Nanos) -> bool {
        self.0.load(Relaxed)
    }
}

/// Hands a connection over that has said `received` already; the peer's end, and what ends the session. The latter is
/// nobody else's once the connection is dropped.
fn connect<S>(
    core: &mut ToCore<S>,
    session: fn(Arc<AtomicBool>) -> S,
    received: &[u8],
) -> (TcpStream, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let over = Arc::<AtomicBool>::default();
    let socket = listener.accept().unwrap().0;
    let connection = Connection::new(socket, session(over.clone()), received, BUFFER, over.clone());
    assert!(core.send(Box::new(connection)).is_ok());
    (client, over)
}

/// Polls until `done` holds.
fn poll<S: Session>(streams: &mut UringStreams<S>, core: &mut ToCore<S>, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it takes too long");
        let mono = Nanos(begun.elapsed().as_nanos() as u64);
        streams.turn(Now { mono, wall: mono }, true, false);
        core.returned().for_each(drop);
    }
}

#[test]
fn every_byte_comes_back_on_its_own_connection_until_its_peer_has_said_all() {
    let (mut core, from) = handover(8).unwrap();
    let mut streams = UringStreams::new(from, 8).unwrap();
    let (mut peers, mut over) = (Vec::new(), Vec::new());
    for seed in 0..3u8 {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed).collect();
        let (client, session) = connect(&mut core, Echo, &bytes[..500]);
        over.push(session);
        peers.push(thread::spawn(move || {
            let mut writer = client.try_clone().unwrap();
            let mut back = Vec::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    writer.write_all(&bytes[500..]).unwrap();
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                (&client).read_to_end(&mut back).unwrap();
            });
            assert!(back == bytes);
        }));
    }
    poll(&mut streams, &mut core, || over.iter().all(|session| Arc::strong_count(session) == 1));
    for peer in peers {
        peer.join().unwrap();
    }
    let mut counted = Vec::new();
    streams.counters(Part::Port, &mut |name, value| counted.push((name, value)));
    assert_eq!(counted, [("connections", 3), ("connections_timed_out", 0), ("ring_errors", 0)]);
}

#[test]
fn each_session_is_seen_once_before_it_is_served() {
    let (mut core, from) = handover(2).unwrap();
    let seen = Rc::<Cell<u32>>::default();
    let count = seen.clone();
    let mut streams = UringStreams::new(from, 2).unwrap().on_arrival(move |Echo(_)| count.set(count.get() + 1));
    for nth in 1..=2 {
        let (mut client, _session) = connect(&mut core, Echo, b"a");
        client.set_nonblocking(true).unwrap();
        poll(&mut streams, &mut core, || client.read(&mut [0]).is_ok());
        assert_eq!(seen.get(), nth);
    }
}

#[test]
fn a_session_that_is_over_closes_and_makes_room_for_the_next() {
    let (mut core, from) = handover(2).unwrap();
    let mut streams = UringStreams::new(from, 1).unwrap();
    let (mut first, session) = connect(&mut core, Echo, b"");
    let (mut second, _other) = connect(&mut core, Echo, b"waits");
    let waiting = Instant::now();
    poll(&mut streams, &mut core, || waiting.elapsed() > Duration::from_millis(50));
    session.store(true, Relaxed);
    poll(&mut streams, &mut core, || Arc::strong_count(&session) == 1);
    assert_eq!(first.read(&mut [0]).unwrap(), 0);
    second.set_nonblocking(true).unwrap();
    let mut heard = [0; 5];
    poll(&mut streams, &mut core, || second.read(&mut heard).is_ok_and(|len| len == 5));
    assert_eq!(&heard, b"waits");
}

/// A core that sleeps takes few turns, and there may be many connections: each is looked at in time all the same.
#[test]
fn a_core_that_wakes_seldom_looks_at_all() {
    const MOST: usize = 4000;
    let (mut core, from) = handover(MOST).unwrap();
    let mut streams = UringStreams::new(from, MOST).unwrap();
    let (_client, session) = connect(&mut core, Echo, b"");
    let mut turn = |millis: u64| {
        let mono = Nanos(1_000_000 * millis);
        streams.turn(Now { mono, wall: mono }, true, false);
        core.returned().for_each(drop);
    };
    (0..500).for_each(|nth| turn(2 * nth));
    session.store(true, Relaxed);
    // A round takes 250 ms.
    (500..630).for_each(|nth| turn(2 * nth));
    // The kernel lets go in its own time.
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(1));
        turn(2 * 630);
    }
    assert_eq!(Arc::strong_count(&session), 1, "it was looked at");
}

#[test]
fn dropping_the_task_closes_its_connections() {
    let (mut core, from) = handover(1).unwrap();
    let mut streams = UringStreams::new(from, 1).unwrap();
    let (mut client, session) = connect(&mut core, Echo, b"");
    client.write_all(b"a").unwrap();
    client.set_nonblocking(true).unwrap();
    poll(&mut streams, &mut core, || client.read(&mut [0]).is_ok());
    drop(streams);
    client.set_nonblocking(false).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(Arc::strong_count(&session), 1);
}

/// Says a last word as soon as it hears anything, and leaves the rest.
struct Curt(Arc<AtomicBool>);

impl Session for Curt {
    fn advance(&mut self, input: &[u8], output: &mut [u8], _: Nanos) -> Progress {
        if input.is_empty() {
            return Progress { consumed: 0, written: 0, next: Next::Input(1) };
        }
        output[..3].copy_from_slice(b"bye");
        Progress { consumed: 0, written: 3, next: Next::Close }
    }

    fn is_identified(&self) -> bool {
        true
    }

    fn is_over(&mut self, _: Nanos) -> bool {
        self.0.load(Relaxed)
    }
}

/// A socket that is closed with input in it is reset, and what was sent last may be lost with it.
#[test]
fn a_peer_that_goes_on_sending_hears_the_last_word() {
    let (mut core, from) = handover(1).unwrap();
    let mut streams = UringStreams::new(from, 1).unwrap();
    let (mut client, _over) = connect(&mut core, Curt, b"");
    client.write_all(&vec![b'.'; 100 * BUFFER]).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut heard = [0; 3];
    poll(&mut streams, &mut core, || client.read(&mut heard).is_ok_and(|len| len == 3));
    assert_eq!(&heard, b"bye");
    client.write_all(&[b'.'; BUFFER]).unwrap();
    poll(&mut streams, &mut core, || matches!(client.read(&mut heard), Ok(0)));
}

#[test]
fn a_peer_that_does_not_close_is_cut_off() {
    let (mut core, from) = handover(1).unwrap();
    let mut streams = UringStreams::new(from, 1).unwrap();
    let (mut client, session) = connect(&mut core, Curt, b"");
    client.write_all(b"a").unwrap();
    let begun = Instant::now();
    poll(&mut streams, &mut core, || Arc::strong_count(&session) == 1);
    let took = begun.elapsed();
    assert!((Duration::from_millis(900)..Duration::from_secs(3)).contains(&took), "{took:?}");
}

/// Says something when there is news, though it was not asked.
struct Herald(Arc<AtomicBool>);

impl Session for Herald {
    fn advance(&mut self, input: &[u8], output: &mut [u8], _: Nanos) -> Progress {
        let written = usize::from(self.0.swap(false, Relaxed));
        output[..written].fill(b'!');
        Progress { consumed: input.len(), written, next: Next::Input(1) }
    }

    fn is_identified(&self) -> bool {
        true
    }

    fn is_over(&mut self, _: Nanos) -> bool {
        false
    }

    fn poll_completion(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.0.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn an_event_is_told_on_a_connection_that_has_nothing_under_way() {
    let (mut core, from) = handover(8).unwrap();
    let mut streams = UringStreams::new(from, 8).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nonblocking(true).unwrap();
    let news = Arc::<AtomicBool>::default();
    let connection = Connection::new(listener.accept().unwrap().0, Herald(news.clone()), &[], BUFFER, ());
    assert!(core.send(Box::new(connection)).is_ok());
    let (begun, mut turns, mut heard) = (Instant::now(), 0_u32, [0]);
    while !matches!(client.read(&mut heard), Ok(1)) {
        assert!(begun.elapsed() < Duration::from_secs(10), "it takes too long");
        let mono = Nanos(begun.elapsed().as_nanos() as u64);
        streams.turn(Now { mono, wall: mono }, true, false);
        turns += 1;
        if turns == 100 {
            news.store(true, Relaxed);
        }
    }
    assert_eq!(heard, *b"!");
}

/// Who sleeps until the task's descriptor is readable hears of bytes, and of connections, as soon as they are there.
#[test]
fn a_core_that_sleeps_is_woken() {
    let (mut core, from) = handover(2).unwrap();
    let over = Arc::<AtomicBool>::default();
    let (ended, begun) = (over.clone(), Instant::now());
    let sleeper = thread::spawn(move || {
        let mut streams = UringStreams::new(from, 2).unwrap();
        let mut sleeper = Sleeper::new(streams.wait_fd()).unwrap();
        let mut turns = 0;
        while !ended.load(Relaxed) {
            let mono = Nanos(begun.elapsed().as_nanos() as u64);
            turns += 1;
            if streams.turn(Now { mono, wall: mono }, true, false).is_none() && streams.rest() {
                sleeper.sleep(Some(Duration::from_secs(5)));
            }
        }
        turns
    });
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(20));
        let (mut client, _session) = connect(&mut core, Echo, b"");
        for round in 0..50_u8 {
            thread::sleep(Duration::from_micros(u64::from(round) * 50));
            let mut heard = [0];
            client.write_all(&[round]).unwrap();
            client.read_exact(&mut heard).unwrap();
            assert_eq!(heard, [round]);
        }
    }
    over.store(true, Relaxed);
    let (mut last, _session) = connect(&mut core, Echo, b"");
    let _ = last.write_all(b".");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert!(sleeper.join().unwrap() < 5000, "it slept");
}
