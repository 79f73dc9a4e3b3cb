//! A HIP Remote session of a hostile client: it asks for what can be given, answers all that it should in order, and
//! leaves nothing allocated.
#![no_main]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use berth_hip_session::{
    Counters, Done, Random, Session, Settings,
    soft::{Budget, Gpu, Host, Runner, Soft, Task, Windows, properties},
};
use berth_port::{Nanos, Next, Progress, Session as _};
use berth_wire::hip::{Header, Op, flags, launch::Arguments};
use libfuzzer_sys::fuzz_target;
use zerocopy::IntoBytes as _;

const TOTAL: u64 = 1 << 20;

/// A kernel may run for some turns.
struct Short(u32);

impl Host for Short {
    fn now(&mut self) -> u64 {
        0
    }

    fn stops(&mut self) -> bool {
        self.0 += 1;
        self.0 > 20
    }
}

/// Does each task at once.
struct AtOnce(Option<Task>);

impl Runner for AtOnce {
    fn start(&mut self, task: Task) {
        assert!(self.0.replace(task).is_none());
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<(Box<Gpu>, Done)> {
        let Some(mut task) = self.0.take() else { return Poll::Pending };
        let done = task.run(&mut Short(0));
        Poll::Ready((task.into_gpu(), done))
    }
}

/// Frames of operations that there are, with payloads that are mostly small numbers, from any bytes.
fn frames(mut bytes: &[u8]) -> (Vec<u8>, Vec<u16>) {
    let (mut wire, mut asked) = (Vec::new(), Vec::new());
    while let [op, flag, len, rest @ ..] = bytes {
        let op = Op::ALL[usize::from(*op) % Op::ALL.len()];
        let len = usize::from(*len).min(rest.len());
        let flag = u32::from(*flag) & (flags::HAS_INLINE_DATA | flags::NO_REPLY);
        wire.extend_from_slice(Header::request(op, 1, len as u64, flag).as_bytes());
        wire.extend_from_slice(&rest[..len]);
        if flag & flags::NO_REPLY == 0 {
            asked.push(op as u16);
        }
        bytes = &rest[len..];
        if op == Op::Shutdown {
            break;
        }
    }
    (wire, asked)
}

fuzz_target!(|input: &[u8]| {
    let [how, step, bytes @ ..] = input else { return };
    if let Some(arguments) = Arguments::parse(bytes, &mut Vec::new()) {
        assert!(arguments.end() <= arguments.bytes().len());
    }
    let (wire, asked) = if how & 1 == 0 { frames(bytes) } else { (bytes.to_vec(), Vec::new()) };
    let next = AtomicU64::new(1);
    // Small, so that the input can name them.
    let random: Random = Arc::new(move || next.fetch_add(1, Relaxed));
    let budget = Budget::new(TOTAL);
    let all = Arc::new([properties(TOTAL, TOTAL)]);
    let device =
        Soft::new(all, &Arc::<Windows>::default(), vec![budget.clone()], Budget::new(TOTAL), &random, AtOnce(None));
    let settings = Arc::new(Settings { max_payload: 1 << 16, handles: 50, idle: None });
    let counters = Arc::<Counters>::default();
    let mut session = Session::new(device.unwrap(), settings, counters, random, Nanos(1));
    let (mut at, mut given, mut output, mut answers) = (0, 0, vec![0; 700], Vec::new());
    for _ in 0..100_000 {
        let Progress { consumed, written, next } = session.advance(&wire[at..given], &mut output, Nanos(2));
        assert!(consumed <= given - at && written <= output.len());
        answers.extend_from_slice(&output[..written]);
        at += consumed;
        match next {
            Next::Close => break,
            Next::Output(wanted) => {
                assert!(wanted <= 64 << 10, "room that no pump gives without a place");
                output.resize(wanted.max(output.len()), 0);
            }
            Next::Input(wanted) => {
                assert!(wanted > given - at, "it asks for what it has");
                if given == wire.len() {
                    break;
                }
                given = (given + usize::from(*step) + 1).min(wire.len());
            }
            Next::Completion => unreachable!("nothing takes time"),
        }
    }
    let (mut rest, mut count) = (&answers[..], 0);
    while let Some(header) = Header::parse(rest) {
        header.check(u64::MAX).unwrap();
        if let Some(op) = asked.get(count) {
            assert_eq!(header.op_code.get(), *op);
        }
        let end = Header::LEN + header.payload_length.get() as usize;
        let code = i32::from_le_bytes(rest[Header::LEN..Header::LEN + 4].try_into().unwrap());
        assert_eq!(header.has(flags::ERROR), code != 0);
        rest = &rest[end..];
        count += 1;
    }
    assert!(rest.is_empty());
    if how & 1 == 0 {
        assert_eq!(count, asked.len());
    }
    drop(session);
    assert_eq!(budget.used(), 0);
});
