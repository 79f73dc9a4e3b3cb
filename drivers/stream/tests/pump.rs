//! A pump, and a session whose answers come when the test says so.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use berth_port::{Nanos, Next, Progress, Session};
use berth_stream::{End, Pump, Shares};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split},
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Bytes per answer: one fits in the output of a connection without a place among the long ones.
const ANSWER: usize = 40 << 10;

/// Each byte is a request, which is answered by copies of that byte.
#[derive(Default)]
struct Requests {
    pending: usize,
    ended: VecDeque<u8>,
    waker: Option<Waker>,
    over: bool,
    ends_with_input: bool,
}

#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Requests>>);

impl Slow {
    fn end(&self, request: u8) {
        let mut requests = self.0.lock().unwrap();
        requests.ended.push_back(request);
        if let Some(waker) = requests.waker.take() {
            waker.wake();
        }
    }

    /// Waits until this many requests are under way.
    async fn has(&self, pending: usize) {
        let reached = timeout(Duration::from_secs(5), async {
            while self.0.lock().unwrap().pending != pending {
                sleep(Duration::from_millis(1)).await;
            }
        });
        let now = || self.0.lock().unwrap().pending;
        assert!(reached.await.is_ok(), "{} under way and not {pending}", now());
    }
}

impl Session for Slow {
    fn advance(&mut self, input: &[u8], output: &mut [u8], _: Nanos) -> Progress {
        let mut requests = self.0.lock().unwrap();
        let (mut consumed, mut written) = (0, 0);
        let next = loop {
            if !requests.ended.is_empty() {
                let Some(room) = output.get_mut(written..written + ANSWER) else { break Next::Output(ANSWER) };
                room.fill(requests.ended.pop_front().unwrap());
                written += ANSWER;
                requests.pending -= 1;
                continue;
            }
            if consumed == input.len() {
                break Next::Input(1);
            }
            let room = (requests.pending + 1) * ANSWER;
            if room > output.len() {
                break Next::Output(room);
            }
            consumed += 1;
            requests.pending += 1;
        };
        Progress { consumed, written, next }
    }

    fn is_identified(&self) -> bool {
        self.0.lock().unwrap().pending > 0
    }

    fn is_over(&mut self, _: Nanos) -> bool {
        self.0.lock().unwrap().over
    }

    fn outstanding(&self) -> usize {
        self.0.lock().unwrap().pending
    }

    fn ends_with_input(&mut self, _: Nanos) -> bool {
        self.0.lock().unwrap().ends_with_input
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut requests = self.0.lock().unwrap();
        if requests.ended.is_empty() {
            requests.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

/// A connection of this peer, and the task that serves it.
fn connect(peer: &'static str, shares: &Arc<Shares<&'static str>>) -> (DuplexStream, Slow, JoinHandle<End>) {
    let (client, server) = duplex(4096);
    let (session, mut pump) = (Slow::default(), Pump::new(peer, shares.clone()));
    let mut served = session.clone();
    let task = tokio::spawn(async move {
        let (mut reader, mut writer) = split(server);
        pump.serve(&mut served, (&mut reader, &mut writer), &Nanos::default, None).await.unwrap()
    });
    (client, session, task)
}

async fn answer(client: &mut DuplexStream) -> u8 {
    let mut bytes = vec![0; ANSWER];
    timeout(Duration::from_secs(5), client.read_exact(&mut bytes)).await.expect("it is answered").unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[tokio::test]
async fn answers_come_as_requests_end_and_before_the_connection_does() {
    let (mut client, session, task) = connect("a", &Shares::new(4, 2));
    client.write_all(b"xyz").await.unwrap();
    session.has(3).await;
    session.end(b'y');
    assert_eq!(answer(&mut client).await, b'y');
    // The peer says nothing more, and its lease ends: what is under way is answered.
    client.shutdown().await.unwrap();
    session.0.lock().unwrap().over = true;
    sleep(Duration::from_millis(600)).await;
    assert!(!task.is_finished());
    session.end(b'z');
    assert_eq!(answer(&mut client).await, b'z');
    session.end(b'x');
    assert_eq!(answer(&mut client).await, b'x');
    assert_eq!(task.await.unwrap(), End::Closed);
}

#[tokio::test]
async fn a_session_that_ends_with_its_input_does_so_whatever_is_under_way() {
    let (mut client, session, task) = connect("a", &Shares::new(4, 2));
    session.0.lock().unwrap().ends_with_input = true;
    client.write_all(b"x").await.unwrap();
    session.has(1).await;
    client.shutdown().await.unwrap();
    assert_eq!(timeout(Duration::from_secs(5), task).await.unwrap().unwrap(), End::Closed);
}

#[tokio::test]
async fn a_session_that_is_over_closes_and_a_peer_that_says_nothing_does_at_the_deadline() {
    let (_client, session, task) = connect("a", &Shares::new(4, 2));
    session.0.lock().unwrap().over = true;
    assert_eq!(timeout(Duration::from_secs(5), task).await.unwrap().unwrap(), End::Closed);

    let (_client, server) = duplex(4096);
    let (mut reader, mut writer) = split(server);
    let mut pump = Pump::new("a", Shares::new(4, 2));
    let deadline = Some(tokio::time::Instant::now());
    let ended = pump.serve(&mut Slow::default(), (&mut reader, &mut writer), &Nanos::default, deadline).await;
    assert_eq!(ended.unwrap(), End::TimedOut);
}

#[tokio::test]
async fn a_peer_is_identified_as_soon_as_its_session_says_so() {
    let (mut client, server) = duplex(4096);
    let (mut reader, mut writer) = split(server);
    let mut pump = Pump::new("a", Shares::new(4, 2));
    client.write_all(b"x").await.unwrap();
    let ended = pump.identify(&mut Slow::default(), (&mut reader, &mut writer), &Nanos::default, None).await;
    assert_eq!(ended.unwrap(), End::Identified);
}

/// Two requests need a place, and there is one: its owner begins nothing more while another connection waits for it.
#[tokio::test]
async fn a_connection_with_much_under_way_gives_its_place_to_who_waits() {
    let shares = Shares::new(1, 1);
    let (mut first, busy, _task) = connect("a", &shares);
    first.write_all(b"xxx").await.unwrap();
    busy.has(3).await;
    let (mut second, waits, _other) = connect("b", &shares);
    second.write_all(b"yy").await.unwrap();
    waits.has(1).await;
    // One ends, and more are asked for: none begins.
    first.write_all(b"xxx").await.unwrap();
    busy.end(b'x');
    assert_eq!(answer(&mut first).await, b'x');
    sleep(Duration::from_millis(50)).await;
    busy.has(2).await;
    for _ in 0..2 {
        busy.end(b'x');
        assert_eq!(answer(&mut first).await, b'x');
    }
    waits.has(2).await;
}
