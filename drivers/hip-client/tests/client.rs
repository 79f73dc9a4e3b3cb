//! The client, and a peer that records what it is sent and answers as a test says.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use berth_hip::{Arguments, Client, Error, Shape};
use berth_wire::hip::{
    Code, Header, Op, flags,
    request::{self as q, kind},
    response as r,
};
use zerocopy::{FromBytes as _, IntoBytes as _, little_endian::U32};

/// What a peer received: op, flags, payload.
type Request = (Op, u32, Vec<u8>);

/// What a peer does with a request that wants an answer.
enum Answer {
    /// An error code and what follows it.
    Code(i32, Vec<u8>),
    /// Nothing yet: it is answered with success and so many bytes when one more has come, before that one.
    After(usize),
    /// These bytes, whatever they are.
    Raw(Vec<u8>),
    Close,
}

use Answer::{After, Close, Raw};

fn ok(bytes: &[u8]) -> Answer {
    Answer::Code(0, bytes.to_vec())
}

struct Peer {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Request>>>,
}

impl Peer {
    /// Listens until the test program ends. INIT and the number of devices, two, are answered already.
    fn new(mut answer: impl FnMut(Op, &Header, &[u8]) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<Request>>>::default();
        let records = received.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                serve(&mut stream.unwrap(), &records, &mut answer);
            }
        });
        Self { address, received }
    }

    /// What came behind the greeting, once `wanted` requests did.
    fn received(&self, wanted: usize) -> Vec<Request> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let received = self.received.lock().unwrap().clone();
            if received.len() >= wanted {
                return received;
            }
            assert!(Instant::now() < deadline, "{} requests of {wanted}", received.len());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn write(stream: &mut TcpStream, header: &Header, code: i32, bytes: &[u8]) {
    let answer = header.response(4 + bytes.len() as u64, if code == 0 { 0 } else { flags::ERROR });
    let _ = stream.write_all(&[answer.as_bytes(), &code.to_le_bytes(), bytes].concat());
}

fn serve(
    stream: &mut TcpStream,
    records: &Mutex<Vec<Request>>,
    answer: &mut impl FnMut(Op, &Header, &[u8]) -> Answer,
) -> Option<()> {
    let mut owed = Vec::new();
    loop {
        let mut header = Header::zeroed();
        stream.read_exact(header.as_mut_bytes()).ok()?;
        let mut payload = vec![0; header.payload_length.get() as usize];
        stream.read_exact(&mut payload).ok()?;
        let op = Op::of(header.op_code.get()).unwrap();
        match op {
            Op::Init => write(stream, &header, 0, &[]),
            Op::GetDeviceCount => write(stream, &header, 0, &2_i32.to_le_bytes()),
            _ => {
                records.lock().unwrap().push((op, header.flags.get(), payload.clone()));
                if header.has(flags::NO_REPLY) {
                    continue;
                }
                let now = answer(op, &header, &payload);
                for (header, bytes) in owed.drain(..) {
                    write(stream, &header, 0, &vec![7; bytes]);
                }
                match now {
                    Answer::Code(code, bytes) => write(stream, &header, code, &bytes),
                    After(bytes) => owed.push((header, bytes)),
                    Raw(bytes) => stream.write_all(&bytes).unwrap(),
                    Close => return None,
                }
            }
        }
    }
}

fn ops(requests: &[Request]) -> Vec<Op> {
    requests.iter().map(|(op, ..)| *op).collect()
}

/// Answers allocations with 4096, and the rest with success alone.
fn obliging(op: Op, _: &Header, _: &[u8]) -> Answer {
    if op == Op::Malloc { ok(&4096_u64.to_le_bytes()) } else { ok(&[]) }
}

#[test]
fn calls_that_return_nothing_are_not_waited_for_and_keep_their_order() {
    let peer = Peer::new(obliging);
    let device = Client::connect(peer.address).unwrap().device(0).unwrap();
    let buffer = device.alloc(64).unwrap();
    for _ in 0..3000 {
        buffer.fill(5).unwrap();
    }
    buffer.write(8, &[1; 8]).unwrap();
    device.synchronize().unwrap();
    let received = peer.received(3003);
    assert_eq!(received.len(), 3003);
    assert_eq!((received[0].0, received[0].1), (Op::Malloc, 0));
    let fill = q::Memset { dst: 4096.into(), value: 5.into(), size: 64.into(), stream: 0.into() };
    assert!(received[1..=3000].iter().all(|one| *one == (Op::Memset, flags::NO_REPLY, fill.as_bytes().to_vec())));
    let (op, sent, payload) = &received[3001];
    let copy = q::Memcpy {
        dst: 4104.into(),
        src: 0.into(),
        size: 8.into(),
        kind: kind::HOST_TO_DEVICE.into(),
        stream: 0.into(),
    };
    assert_eq!((*op, *sent), (Op::Memcpy, flags::NO_REPLY | flags::HAS_INLINE_DATA));
    assert_eq!(*payload, [copy.as_bytes(), &[1; 8]].concat());
    assert_eq!((received[3002].0, received[3002].1), (Op::DeviceSynchronize, 0));
    drop(buffer);
    assert_eq!(peer.received(3004)[3003].0, Op::Free, "it is freed when it is dropped, though nobody waits");
}

#[test]
fn what_is_collected_is_sent_when_nobody_waits() {
    let peer = Peer::new(obliging);
    let device = Client::connect(peer.address).unwrap().device(0).unwrap();
    for sent in 1..=3 {
        // Long enough for its timer to fall asleep.
        thread::sleep(Duration::from_millis(150));
        device.session().fill(4096, 1, 1, 0).unwrap();
        peer.received(sent);
    }
}

#[test]
fn more_than_the_buffer_holds_is_sent_behind_what_it_holds() {
    let peer = Peer::new(obliging);
    let session = Client::connect(peer.address).unwrap().session(0).unwrap();
    session.fill(4096, 1, 1, 0).unwrap();
    session.copy_in(4096, &vec![3; 1 << 20], 9).unwrap();
    session.fill(4096, 2, 1, 0).unwrap();
    let received = peer.received(3);
    assert_eq!(ops(&received), [Op::Memset, Op::MemcpyAsync, Op::Memset]);
    assert_eq!(received[1].2.len(), q::Memcpy::LEN + (1 << 20));
    assert!(received[1].2[q::Memcpy::LEN..].iter().all(|byte| *byte == 3));
}

#[test]
fn a_device_is_chosen_where_it_changes() {
    let peer = Peer::new(obliging);
    let client = Client::connect(peer.address).unwrap();
    assert_eq!(client.devices(), 2);
    let (zero, one) = (client.session(0).unwrap(), client.session(1).unwrap());
    for session in [&zero, &one, &one, &zero] {
        session.fill(4096, 1, 1, 0).unwrap();
    }
    zero.reset().unwrap();
    zero.ping().unwrap();
    let received = peer.received(9);
    let (set, fill) = (Op::SetDevice, Op::Memset);
    assert_eq!(ops(&received), [fill, set, fill, fill, set, fill, Op::DeviceReset, set, Op::Ping]);
    assert_eq!((&received[1].2[..], &received[4].2[..]), (&[1, 0, 0, 0][..], &[0; 4][..]));
    for wrong in [2, -1] {
        let refused = client.device(wrong).unwrap_err();
        assert_eq!(refused.code(), Code::INVALID_DEVICE);
    }
}

#[test]
fn copies_to_the_host_are_asked_for_ahead() {
    // The first answer is sent when the second request has come.
    let mut first = true;
    let peer = Peer::new(move |_, _, payload| {
        let size = q::Memcpy::parse(payload).unwrap().size.get() as usize;
        if std::mem::take(&mut first) { After(size) } else { ok(&vec![7; size]) }
    });
    let session = Client::connect(peer.address).unwrap().session(0).unwrap();
    let mut bytes = vec![0; 9 << 20];
    session.copy_out(&mut bytes, 1 << 32, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
    let sources: Vec<_> =
        peer.received(3).iter().map(|one| q::Memcpy::parse(&one.2).unwrap().src.get() - (1 << 32)).collect();
    assert_eq!(sources, [0, 4 << 20, 8 << 20]);
}

#[test]
fn a_copy_that_is_refused_leaves_the_rest_in_step() {
    let peer = Peer::new(|op, _, payload| match q::Memcpy::parse(payload) {
        Some(copy) if op == Op::Memcpy && copy.src == 2 => Answer::Code(700, vec![]),
        Some(copy) if op == Op::Memcpy => ok(&vec![7; copy.size.get() as usize]),
        _ => ok(&[]),
    });
    let session = Client::connect(peer.address).unwrap().session(0).unwrap();
    let mut rooms = vec![[0; 10]; 50];
    let mut copies: Vec<_> = rooms.iter_mut().enumerate().map(|(at, room)| (at as u64, &mut room[..])).collect();
    let error = session.copy_out_all(&mut copies, 0).unwrap_err();
    assert_eq!(error.to_string(), "MEMCPY: hipErrorIllegalAddress (a kernel touched memory that it may not)");
    assert_eq!((rooms[1], rooms[2]), ([7; 10], [0; 10]));
    session.ping().unwrap();
    assert!(peer.received(4).len() < 51, "no more are asked for behind it");
}

#[test]
fn a_broken_connection_is_told_once_and_made_again() {
    let peer = Peer::new(|op, header, payload| match op {
        Op::DeviceSynchronize => Close,
        _ => obliging(op, header, payload),
    });
    let client = Client::connect(peer.address).unwrap();
    let device = client.device(0).unwrap();
    let buffer = device.alloc(16).unwrap();
    let lost = device.synchronize().unwrap_err();
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
    let said = lost.to_string();
    assert!(said.ends_with("memory, streams, events and modules are gone: the worker closed it"), "{said}");
    assert!(matches!(buffer.fill(1), Err(Error::Gone)));
    assert!(matches!(device.alloc(16), Err(Error::Gone)));
    assert_eq!(Error::Gone.code(), Code::CONTEXT_DESTROYED);
    let again = client.device(0).unwrap();
    again.alloc(16).unwrap();
    assert!(!again.session().is_same(device.session()));
    let before = peer.received(3).len();
    drop(buffer);
    again.session().ping().unwrap();
    assert!(!ops(&peer.received(before)).contains(&Op::Memset), "nothing of the old session is sent in the new one");
}

#[test]
fn answers_that_break_the_protocol_end_the_session() {
    fn header(op: Op, id: u32, len: u64) -> Vec<u8> {
        Header::request(op, id, len, flags::RESPONSE).as_bytes().to_vec()
    }
    // What PING, the third request, is answered with.
    let wrong = [
        header(Op::Ping, 4, 4),
        header(Op::Init, 3, 4),
        header(Op::Ping, 3, 3),
        Header::request(Op::Ping, 3, 4, 0).as_bytes().to_vec(),
        [&[0; 20][..], &header(Op::Ping, 3, 4)].concat(),
        [header(Op::Ping, 3, u64::MAX), vec![0; 4]].concat(),
        [header(Op::Ping, 3, 1 << 30), vec![1, 0, 0, 0]].concat(),
    ];
    for bytes in wrong {
        let mut raw = Some(bytes);
        let peer = Peer::new(move |_, _, _| raw.take().map_or(Close, Raw));
        let session = Client::connect(peer.address).unwrap().session(0).unwrap();
        let error = session.ping().unwrap_err();
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        assert!(matches!(session.ping(), Err(Error::Gone)));
    }
    let peer = Peer::new(|_, _, _| ok(&[0; 3]));
    let session = Client::connect(peer.address).unwrap().session(0).unwrap();
    assert!(matches!(session.malloc(1), Err(Error::Protocol("an answer that is too short"))));
    // A few bytes more than the structure are those of a newer worker.
    let peer = Peer::new(|_, _, _| ok(&[1; 100]));
    let session = Client::connect(peer.address).unwrap().session(0).unwrap();
    assert_eq!(session.malloc(1).unwrap(), u64::from_le_bytes([1; 8]));
    session.ping().unwrap();
}

#[test]
fn there_is_no_worker() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Client::connect(nobody).unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert_eq!(error.code(), Code::NO_DEVICE);
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closing.local_addr().unwrap();
    thread::spawn(move || drop(closing.accept()));
    assert!(matches!(Client::connect(address), Err(Error::Unreachable(_))));
}

#[test]
fn arguments_are_laid_out_as_the_worker_says() {
    let peer = Peer::new(|op, _, _| match op {
        Op::ModuleLoadData => ok(&11_u64.to_le_bytes()),
        Op::ModuleGetFunction => {
            let mut answer = r::Function { function: 12.into(), ..r::Function::zeroed() };
            (answer.num_args, answer.num_params) = (24.into(), 3.into());
            for (at, (offset, size)) in [(0, 4), (8, 8), (16, 8)].into_iter().enumerate() {
                answer.params[at] = r::Parameter { offset: offset.into(), size: size.into() };
            }
            ok(&answer.as_bytes()[4..])
        }
        _ => ok(&[]),
    });
    let device = Client::connect(peer.address).unwrap().device(1).unwrap();
    let function = device.load(b"code").unwrap().function("f").unwrap();
    let shape = Shape { grid: [1, 2, 3], block: [4, 5, 6], shared: 7 };
    let stream = device.default_stream();
    let arguments = Arguments::new().value(&1_u32).value(&2_u64).bytes(&[3; 9]);
    stream.launch(&function, shape, &arguments).unwrap();
    for wrong in
        [Arguments::new(), arguments.clone().value(&4_u32), Arguments::new().value(&1_u64).value(&1_u8).value(&1_u64)]
    {
        assert_eq!(stream.launch(&function, shape, &wrong).unwrap_err().code(), Code::INVALID_VALUE);
    }
    drop(function);
    device.synchronize().unwrap();
    let received = peer.received(6);
    let expected = [
        Op::SetDevice,
        Op::ModuleLoadData,
        Op::ModuleGetFunction,
        Op::LaunchKernel,
        Op::ModuleUnload,
        Op::DeviceSynchronize,
    ];
    assert_eq!(ops(&received), expected);
    let (launch, rest) = q::Launch::read_from_prefix(&received[3].2).unwrap();
    assert_eq!((launch.function.get(), launch.num_args.get(), launch.launch_flags.get()), (12, 1, 1));
    assert_eq!((launch.grid.map(U32::get), launch.block.map(U32::get)), ([1, 2, 3], [4, 5, 6]));
    let buffer = [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 3, 3, 3];
    assert_eq!(rest, [&[0, 0, 0, 0, 24, 0, 0, 0], &buffer[..]].concat());
}
