//! The whole command over kernel sockets, against a server thread that speaks the protocol.

use std::{
    net::UdpSocket,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_wire::rpc::{HeaderForm, RequestHeader, ResponseHeader};

use crate::common::run;

/// A server that answers every datagram with what `answer` makes of it.
struct Server {
    addr: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(mut answer: impl FnMut(&mut Vec<u8>) + Send + 'static) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let addr = socket.local_addr().unwrap().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut buf = [0; 4096];
            while !stopped.load(Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buf) else { continue };
                let mut frame = buf[..len].to_vec();
                answer(&mut frame);
                socket.send_to(&frame, from).unwrap();
            }
        });
        Self { addr, stop, thread: Some(thread) }
    }
}

impl Server {
    /// The command line of a client of this server.
    fn args(&self, args: &str) -> String {
        format!("--peer {} {args}", self.addr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn increment(form: HeaderForm) -> impl FnMut(&mut Vec<u8>) + Send {
    move |frame| {
        let request = RequestHeader::parse(form, frame).unwrap();
        let RequestHeader { arg_len, request_id, ptp_timestamp, .. } = request;
        ResponseHeader { status: 0, result_len: arg_len, request_id, ptp_timestamp }.write(form, frame).unwrap();
        for byte in &mut frame[form.len()..] {
            *byte = byte.wrapping_add(1);
        }
    }
}

#[test]
fn ten_thousand_answers_are_verified() {
    let server = Server::start(increment(HeaderForm::V24));
    let (code, report) = run(&server.args("--count 10000 --window 4"));
    assert_eq!(code, ExitCode::SUCCESS);
    let [case] = &report.cases[..] else { panic!("one case") };
    assert_eq!((case.counts.sent, case.counts.answered, case.latency.n), (10_000, 10_000, 10_000));
    assert_eq!((case.counts.lost, case.counts.wrong, case.counts.duplicates, case.counts.malformed), (0, 0, 0, 0));
    assert!(case.latency.min > 500 && case.latency.p50 <= case.latency.max, "{:?}", case.latency);
    assert_eq!(case.port_counters["tx_frames"], 10_000);
}

#[test]
fn one_corrupted_answer_fails_the_run() {
    let mut n = 0;
    let mut increment = increment(HeaderForm::V16);
    let server = Server::start(move |frame| {
        increment(frame);
        n += 1;
        if n == 500 {
            *frame.last_mut().unwrap() ^= 0x10;
        }
    });
    let (code, report) = run(&server.args("--count 1000 --header v16 --ptp off --payload 1,100"));
    assert_eq!(code, ExitCode::FAILURE);
    let wrong: Vec<_> = report.cases.iter().map(|case| (case.counts.wrong, case.counts.answered)).collect();
    assert_eq!(wrong, [(1, 999), (0, 1000)]);
    assert_eq!(
        report.cases[0].first_mistake.as_deref(),
        Some("the result has other bytes than it must (frame of 17 bytes, request 499, rpc_increment)")
    );
}

#[test]
fn an_echo_server_is_verified_too() {
    let server = Server::start(|_| {});
    let (code, report) = run(&server.args("--echo --rate 2000 --burst 4 --duration 0.2 --ptp sec_nsec --payload 0"));
    assert_eq!(code, ExitCode::SUCCESS);
    assert_eq!((report.cases[0].counts.sent, report.cases[0].counts.answered), (400, 400));
    let (code, report) = run(&server.args("--count 10 --timeout 50"));
    assert_eq!((code, report.cases[0].counts.malformed), (ExitCode::FAILURE, 10), "an echo is no answer");
}
