//! A network in virtual time that loses, repeats, reorders and corrupts packets. No frame ever holds a byte that was
//! not written to it, none comes twice or partially, and every packet is counted as a model predicts.

mod common;

use std::collections::{BTreeMap, BinaryHeap, HashSet};

use berth_port::Verdict;
use berth_roce::{Local, RESTART};
use berth_wire::{rendezvous::ImmForm, roce::Opcode};
use common::{CONFIG, Node, Raw, SLOTS, remote, v4};
use fastrand::Rng;

/// Probabilities of the network's faults.
#[derive(Debug, Clone, Copy)]
struct Weather {
    loss: f64,
    duplicate: f64,
    corrupt: f64,
    /// A packet is late by up to this many packet times.
    late: u64,
}

/// A packet with what the model needs to know of it.
#[derive(Debug, Clone)]
struct Sent {
    raw: Raw,
    psn: u32,
    /// The frame that it belongs to, and its place in it.
    frame: usize,
    nth: usize,
    /// Its place in its message.
    nth_of_message: usize,
    ends_message: bool,
    ends_frame: bool,
    /// Where its payload is written.
    at: Option<usize>,
}

/// What a frame must hold, and where.
struct Frame {
    slot: Option<usize>,
    data: Vec<u8>,
}

/// The sender's script: `count` frames of each kind.
fn script(random: &mut Rng, local: &Local, first: u32, count: usize) -> (Vec<Frame>, Vec<Sent>) {
    let (mut frames, mut packets) = (Vec::new(), Vec::new());
    let mut psn = first;
    for frame in 0..count {
        let len = random.usize(1..=SLOTS.stride);
        let mut data: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let slot = random.usize(0..SLOTS.count);
        let kind = random.u8(0..4);
        let mut parts: Vec<(Opcode, std::ops::Range<usize>, usize)> = Vec::new();
        match kind {
            // One packet.
            0 => parts.push((Opcode::WriteOnlyImmediate, 0..len, len)),
            // One message of several packets, of the path MTU that its first shows.
            1 => {
                let mtu = (random.usize(1..=len.div_ceil(2)) + 3) & !3;
                let pieces = len.div_ceil(mtu);
                for piece in 0..pieces {
                    let opcode = match piece {
                        _ if pieces == 1 => Opcode::WriteOnlyImmediate,
                        0 => Opcode::WriteFirst,
                        _ if piece + 1 == pieces => Opcode::WriteLastImmediate,
                        _ => Opcode::WriteMiddle,
                    };
                    parts.push((opcode, piece * mtu..len.min((piece + 1) * mtu), len));
                }
            }
            // Several messages of one packet, as the FPGA does.
            2 => {
                let mut at = 0;
                while at < len {
                    let end = len.min(at + random.usize(1..=len));
                    let opcode = if end == len { Opcode::WriteOnlyImmediate } else { Opcode::WriteOnly };
                    parts.push((opcode, at..end, end - at));
                    at = end;
                }
            }
            _ => {
                data.truncate(512);
                parts.push((Opcode::SendOnly, 0..data.len(), 0));
            }
        }
        let last = parts.len() - 1;
        let mut nth_of_message = 0;
        for (nth, (opcode, range, total)) in parts.into_iter().enumerate() {
            nth_of_message = if opcode.starts() { 0 } else { nth_of_message + 1 };
            let mut raw = Raw::new(opcode, local, psn, &data[range.clone()]);
            let at = slot * SLOTS.stride + range.start;
            if opcode.has_reth() {
                raw = raw.to(SLOTS.base + at as u64, local.rkey, total);
            }
            if opcode.has_immediate() {
                raw = raw.immediate(ImmForm::Psn20.join(psn, slot as u32));
            }
            packets.push(Sent {
                raw,
                psn,
                frame,
                nth,
                nth_of_message,
                ends_message: opcode.ends(),
                ends_frame: nth == last,
                at: (opcode != Opcode::SendOnly).then_some(at),
            });
            psn = (psn + 1) & 0x00ff_ffff;
        }
        frames.push(Frame { slot: (kind != 3).then_some(slot), data });
    }
    (frames, packets)
}

/// Whether `seen` ends with the `count` packets before `sent` in the script, without a gap.
fn follows(seen: &[Sent], sent: &Sent, count: usize) -> bool {
    let before = seen.iter().rev().take(count);
    let numbers = (1..=count).map(|back| (sent.psn.wrapping_sub(back as u32)) & 0x00ff_ffff);
    seen.len() >= count && before.map(|seen| seen.psn).eq(numbers)
}

/// The receiver as the specification describes it. It looks back at what it took, rather than keep a state.
#[derive(Default)]
struct Model {
    /// Packets in sequence or after a gap, oldest first.
    seen: Vec<Sent>,
    counters: BTreeMap<&'static str, u64>,
    memory: Vec<u8>,
}

impl Model {
    fn count(&mut self, name: &'static str, by: u64) {
        if by > 0 {
            *self.counters.entry(name).or_default() += by;
        }
    }

    /// Whether a message was under way after the last packet seen.
    fn under_way(&self) -> bool {
        let Some((last, before)) = self.seen.split_last() else { return false };
        !last.ends_message && follows(before, last, last.nth_of_message)
    }

    /// Takes a packet; returns the frame that it completes.
    fn rx(&mut self, sent: &Sent, corrupt: bool, expected: &mut u32) -> Option<usize> {
        if corrupt {
            self.count("roce_bad_icrc", 1);
            return None;
        }
        let ahead = (sent.psn.wrapping_sub(*expected) << 8).cast_signed() >> 8;
        if ahead < 0 {
            self.count("roce_stale_psn", 1);
            return None;
        }
        self.count("psn_gaps", u64::from(ahead > 0));
        self.count("psn_lost", u64::from(ahead.unsigned_abs()));
        let broken = self.under_way() && (ahead > 0 || sent.nth_of_message == 0);
        self.count("roce_broken_messages", u64::from(broken));
        *expected = (sent.psn + 1) & 0x00ff_ffff;
        let whole_message = follows(&self.seen, sent, sent.nth_of_message);
        let whole_frame = follows(&self.seen, sent, sent.nth);
        self.seen.push(sent.clone());
        if !whole_message {
            self.count("roce_orphans", 1);
            return None;
        }
        if let Some(at) = sent.at {
            self.memory[at..at + sent.raw.payload.len()].copy_from_slice(&sent.raw.payload);
        }
        if sent.ends_frame && !whole_frame {
            self.count("slot_mismatches", 1);
            return None;
        }
        self.count("roce_packets", 1);
        self.count("roce_messages", u64::from(sent.ends_message));
        sent.ends_frame.then_some(sent.frame)
    }
}

fn run(seed: u64, weather: Weather, count: usize) -> BTreeMap<&'static str, u64> {
    assert!(weather.late < u64::from(RESTART), "so late that the sender would seem to have begun anew");
    let mut random = Rng::with_seed(seed);
    let (mut port, mut peer) = (Node::new(2, CONFIG), Node::new(1, CONFIG));
    // Close to where the numbers wrap.
    let first = 0x00ff_ff00;
    let local = port.add(&remote(v4(1), first), 0);
    let (frames, packets) = script(&mut random, &local, first, count);

    let mut network = BinaryHeap::new();
    for (now, _) in packets.iter().enumerate() {
        let now = now as u64 * 16;
        let copies = if random.f64() < weather.loss { 0 } else { 1 + usize::from(random.f64() < weather.duplicate) };
        for _ in 0..copies {
            let late = if weather.late > 0 && random.f64() < 0.1 { random.u64(0..weather.late * 16) } else { 0 };
            let corrupt = random.f64() < weather.corrupt;
            network.push((std::cmp::Reverse(now + late), (now / 16) as usize, corrupt));
        }
    }

    let mut model = Model { memory: vec![0; SLOTS.bytes()], ..Model::default() };
    let (mut expected, mut seen) = (first, HashSet::new());
    while let Some((_, index, corrupt)) = network.pop() {
        let sent = &packets[index];
        let mut bytes = sent.raw.frame(&mut peer.host, v4(2));
        if corrupt {
            // Behind the destination's byte of congestion bits, which may change.
            let bit = random.usize((14 + 20 + 8 + 5) * 8..bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let complete = model.rx(sent, corrupt, &mut expected);
        let mut lent = None;
        port.rx(&bytes, |frame| {
            let index = complete.unwrap_or_else(|| panic!("seed {seed}: lent {frame:?} after {sent:?}"));
            assert_eq!(frame.data(), frames[index].data, "seed {seed}, frame {index}");
            if let Some(slot) = frames[index].slot {
                // All that can be seen of the slot, behind the frame too.
                let seen = frame.buf_mut();
                assert_eq!(seen, &model.memory[slot * SLOTS.stride..][..seen.len()], "seed {seed}, slot {slot}");
            }
            lent = Some(index);
            Verdict::Drop
        });
        assert_eq!(lent, complete, "seed {seed}");
        assert!(lent.is_none_or(|index| seen.insert(index)), "seed {seed}: frame {lent:?} twice");
    }
    model.count("peers_joined", 1);
    let counted: BTreeMap<_, _> = port.counted().into_iter().collect();
    assert_eq!(counted, model.counters, "seed {seed}");
    counted
}

const FINE: Weather = Weather { loss: 0.0, duplicate: 0.0, corrupt: 0.0, late: 0 };

#[test]
fn nothing_is_lost_on_a_fine_day() {
    let counted = run(1, FINE, 2000);
    assert!(!counted.keys().any(|name| name.starts_with("psn") || name.contains("stale")), "{counted:?}");
}

#[test]
fn every_weather_is_counted_exactly() {
    for seed in 0..40 {
        let some = |share| if seed & share != 0 { 0.05 } else { 0.0 };
        let late = if seed & 8 != 0 { 6 } else { 0 };
        run(seed, Weather { loss: some(1), duplicate: some(2), corrupt: some(4), late }, 400);
    }
}

#[test]
fn a_storm_breaks_no_byte() {
    let storm = Weather { loss: 0.3, duplicate: 0.2, corrupt: 0.2, late: 12 };
    let mut total = BTreeMap::new();
    for seed in 100..110 {
        for (name, value) in run(seed, storm, 1000) {
            *total.entry(name).or_insert(0) += value;
        }
    }
    // The weather was what it says, and some frames came through.
    for name in ["roce_bad_icrc", "roce_stale_psn", "psn_gaps", "roce_orphans", "slot_mismatches", "roce_messages"] {
        assert!(total[name] > 100, "{total:?}");
    }
}
