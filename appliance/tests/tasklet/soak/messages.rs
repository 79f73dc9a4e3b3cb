//! A client of ring kernels: inline and queued ones, with state and without, that trap, that are slow, and that rest.

use std::{collections::BTreeMap, fs, path::Path};

use fastrand::Rng;

use crate::common::{Client, Stopped, request};

/// Sums into its state; fails at 0.
const SUM: &str = r#"(module (memory (export "memory") 1) (global $sum (mut i64) (i64.const 0))
  (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "ring_kernel_run") (param $at i32) (param i32) (result i64) (local $add i64)
    (local.set $add (i64.load32_s offset=34 (local.get $at)))
    (if (i64.eqz (local.get $add)) (then (unreachable)))
    (global.set $sum (i64.add (global.get $sum) (local.get $add)))
    (i64.store offset=34 (i32.const 0) (global.get $sum))
    (i64.const 42)))"#;

/// Adds two numbers, and takes some tenths of a millisecond for that.
const SLOW: &str = r#"(module (memory (export "memory") 1)
  (func (export "ring_kernel_alloc") (param i32) (result i32) (i32.const 1024))
  (func (export "ring_kernel_run") (param $at i32) (param i32) (result i64) (local $i i32)
    (loop $on (br_if $on (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 150000))))
    (f32.store offset=34 (i32.const 0) (f32.add (f32.load offset=34 (local.get $at)) (f32.load offset=38 (local.get $at))))
    (i64.const 38)))"#;

const HEAD: &str = "\"MessageId guid\", \"Priority u8\", \"CorrelationId guid?\"";

const QUEUED: &str = "kernel = \"wasm:slow.wasm\"\nfuel = 10000000\ndispatch = \"ring\"\nqueue = 16\npriority = true\n";

/// The kernels, by the places of [`Kernel`].
const NAMES: [&str; 6] = ["VectorAddRequest", "SumRequest", "FullRequest", "OldRequest", "LateRequest", "RestRequest"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    Add,
    Sum,
    Full,
    Old,
    Late,
    Rest,
}

/// A port with all of them; their modules are written beside.
pub(super) fn config(folder: &Path) -> String {
    for (name, text) in [("sum.wasm", SUM), ("slow.wasm", SLOW)] {
        fs::write(folder.join(name), wat::parse_str(text).unwrap()).unwrap();
    }
    let message = |name: &str, members: &str, response: &str| {
        format!("[[message]]\nname = \"{name}\"\nmembers = [{HEAD}, {members}]\n{response}")
    };
    let mut config =
        "[[port]]\nname = \"messages\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 1\nidle = \"wait\"\n\
        [port.rpc]\nworker_cpus = [1]\n"
            .to_owned();
    config += &message("SumRequest", "\"Add i32\"", "response = \"SumResponse\"\n");
    config += &message("SumResponse", "\"Sum i64\"", "");
    for name in &NAMES[2..] {
        config += &message(name, "\"A f32\", \"B f32\"", "response = \"VectorAddResponse\"\n");
    }
    for (name, runs) in NAMES.into_iter().zip([
        "kernel = \"builtin:vector_add\"\n".to_owned(),
        "kernel = \"wasm:sum.wasm\"\n".to_owned(),
        format!("{QUEUED}backpressure = \"reject\"\n"),
        format!("{QUEUED}backpressure = \"drop_oldest\"\n"),
        format!("{QUEUED}timeout_ms = 1\n"),
        "kernel = \"builtin:vector_add\"\nactive = false\n".to_owned(),
    ]) {
        let runs = runs.replace("wasm:", &format!("wasm:{}/", folder.display()));
        config += &["[[ring_kernel]]\nmessage = \"", name, "\"\n", &runs].concat();
    }
    config
}

/// What became of the messages to each kernel, by status, and how many were repeated answers of an inline one.
pub(super) struct Sent {
    counts: BTreeMap<(usize, i32), u64>,
    repeated: [u64; 2],
}

/// What the answer to a message must be: one of these statuses; with the first, the end of its result.
struct Wanted {
    kernel: Kernel,
    statuses: &'static [i32],
    end: Vec<u8>,
}

struct Sender {
    rng: Rng,
    /// The state of the kernel that sums.
    sum: i64,
    /// What each inline kernel answered last: the message, and the end of its answer.
    last: [Option<(Vec<u8>, Vec<u8>)>; 2],
    sent: Sent,
}

/// Sends so many messages, some at a time, and checks every answer.
pub(super) fn send(client: &Client, count: u64) -> Sent {
    let sent = Sent { counts: BTreeMap::new(), repeated: [0; 2] };
    let mut sender = Sender { rng: Rng::with_seed(3), sum: 0, last: [None, None], sent };
    let (mut id, mut left, mut batch) = (0_u32, count, 0_u32);
    while left > 0 {
        batch += 1;
        // At times more than a queue and its worker have room for, or what waits too long.
        let flood = [Kernel::Full, Kernel::Old, Kernel::Late].get(batch as usize % 60);
        let mut waiting = BTreeMap::new();
        for _ in 0..flood.map_or(16, |_| 48) {
            let (message, wanted) = sender.message(flood.copied());
            id = id.wrapping_add(1);
            client.send(&request(function(NAMES[wanted.kernel as usize]), &message, id, 0));
            waiting.insert(id, wanted);
            left = left.saturating_sub(1);
        }
        while !waiting.is_empty() {
            let answer = client.response();
            let wanted = waiting.remove(&answer.request_id).expect("one answer to each");
            let Wanted { kernel, statuses, end } = wanted;
            assert!(statuses.contains(&answer.status), "{kernel:?}: {}, not of {statuses:?}", answer.status);
            match answer.status {
                0 => assert!(answer.result.ends_with(&end), "{kernel:?}: {:?}, then not {end:?}", answer.result),
                _ => assert!(answer.result.is_empty()),
            }
            *sender.sent.counts.entry((kernel as usize, answer.status)).or_default() += 1;
        }
    }
    sender.sent
}

fn function(name: &str) -> u32 {
    name.bytes().fold(0x811C_9DC5, |id, byte| (id ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl Sender {
    /// A message, to `to` or to any kernel, and what must come of it.
    fn message(&mut self, to: Option<Kernel>) -> (Vec<u8>, Wanted) {
        let kernel = to.unwrap_or_else(|| match self.rng.u32(..20) {
            0..8 => Kernel::Add,
            8..16 => Kernel::Sum,
            16 => Kernel::Full,
            17 => Kernel::Old,
            18 => Kernel::Late,
            _ => Kernel::Rest,
        });
        let wanted = |statuses, end| Wanted { kernel, statuses, end };
        let how = self.rng.u32(..100);
        if how == 0 {
            return (vec![5; self.rng.usize(..20)], wanted(&[-3], Vec::new()));
        }
        if let (Kernel::Add | Kernel::Sum, 1..10, Some((message, end))) =
            (kernel, how, self.last.get(kernel as usize).cloned().flatten())
        {
            if how < 6 {
                self.sent.repeated[kernel as usize] += 1;
                return (message, wanted(&[0], end));
            }
            // The same id, and other numbers.
            let mut other = message;
            *other.last_mut().unwrap() ^= 1;
            return (other, wanted(&[3], Vec::new()));
        }
        let mut message = vec![0; 35];
        message[0] = if kernel == Kernel::Sum { 4 } else { 5 };
        self.rng.fill(&mut message[1..18]);
        if kernel == Kernel::Sum {
            let add = if how == 10 { 0 } else { self.rng.i32(1..1000) };
            message.extend(add.to_le_bytes());
            if add == 0 {
                self.sum = 0;
                return (message, wanted(&[-6], Vec::new()));
            }
            self.sum += i64::from(add);
            let end = self.sum.to_le_bytes().to_vec();
            self.last[kernel as usize] = Some((message.clone(), end.clone()));
            return (message, wanted(&[0], end));
        }
        let (a, b) = (self.rng.u16(..), self.rng.u16(..));
        message.extend([a, b].into_iter().flat_map(|number| f32::from(number).to_le_bytes()));
        let end = (f32::from(a) + f32::from(b)).to_le_bytes().to_vec();
        let statuses: &[i32] = match kernel {
            Kernel::Full => &[0, -5],
            Kernel::Old => &[0, 1],
            // It rejects, too.
            Kernel::Late => &[0, 1, -5],
            Kernel::Rest => &[2],
            Kernel::Add | Kernel::Sum => {
                self.last[kernel as usize] = Some((message.clone(), end.clone()));
                &[0]
            }
        };
        (message, wanted(statuses, end))
    }
}

impl Sent {
    /// Compares what the client was answered with what the node counted.
    pub(super) fn balance(&self, stopped: &Stopped) {
        println!("messages, by kernel and status: {:?}; repeated: {:?}", self.counts, self.repeated);
        let mut received = 0;
        for (kernel, name) in NAMES.into_iter().enumerate() {
            let counted = |outcome: &str| stopped.sum("messages", "service", &format!("kernel_{name}_{outcome}"));
            let answers = |status| self.counts.get(&(kernel, status)).copied().unwrap_or(0);
            let repeated = counted("repeated");
            assert_eq!(repeated, self.repeated.get(kernel).copied().unwrap_or(0), "{name}");
            for (status, outcome) in [
                (1, "dropped"),
                (2, "not_active"),
                (3, "duplicate"),
                (-3, "malformed"),
                (-5, "rejected"),
                (-6, "failed"),
            ] {
                assert_eq!(counted(outcome), answers(status), "{name} {outcome}");
            }
            assert_eq!(counted("answered") + repeated, answers(0), "{name}");
            received += self.counts.iter().filter(|((of, _), _)| *of == kernel).map(|(_, count)| count).sum::<u64>();
        }
        assert_eq!(stopped.sum("messages", "service", "received"), received);
        for (kernel, status) in [
            (Kernel::Add, 3),
            (Kernel::Sum, -6),
            (Kernel::Sum, -3),
            (Kernel::Full, -5),
            (Kernel::Old, 1),
            (Kernel::Late, 1),
            (Kernel::Rest, 2),
        ] {
            assert!(self.counts.contains_key(&(kernel as usize, status)), "{kernel:?} never answered {status}");
        }
    }
}
