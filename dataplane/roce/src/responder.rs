//! The receiving half of an unreliable connection: the meaning of a packet, given those before it.

use berth_wire::roce::{Opcode, Packet, Psn, Reth};

use crate::{Refusal, Slots, counters::Gaps};

/// This many packets from the past in a row, in sequence, mean that the sender has restarted.
pub const RESTART: u32 = 16;

/// What to do with a packet that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Where to write its payload, in bytes from the start of the region.
    pub(crate) land: Option<usize>,
    pub(crate) then: Then,
}

/// What to do once the payload is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// Nothing yet; the message continues.
    Wait,
    /// Nothing; the message ended without an immediate.
    End,
    /// Lend the first `len` bytes of a slot as a frame.
    Slot { slot: usize, len: usize },
    /// Lend the packet's payload as a frame.
    Payload,
    /// Nothing; the message ended with an invalid immediate.
    Refuse(Refusal),
}

/// State between packets.
#[derive(Debug)]
pub(crate) struct Responder {
    expected: Psn,
    message: Option<Message>,
    filled: Option<Filled>,
    /// Sequence number after that of the latest packet from the past.
    past_next: Psn,
    /// Number of packets from the past in a row.
    past_run: u32,
}

/// A write under way.
#[derive(Debug, Clone, Copy)]
struct Message {
    /// Its first byte, counted from the start of the region.
    start: usize,
    /// Where the next packet continues.
    at: usize,
    /// One past its last byte, counted from the start of the region.
    end: usize,
    /// Payload of every packet except the last, in bytes.
    mtu: usize,
}

/// A slot that writes have filled from its start without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Filled {
    slot: usize,
    /// Bytes of the slot filled so far.
    len: usize,
}

impl Responder {
    /// Makes a responder that expects `psn` first.
    pub(crate) fn new(psn: Psn) -> Self {
        Self { expected: psn, message: None, filled: None, past_next: psn, past_run: 0 }
    }

    /// Checks a packet. Returns what to do with it, or why it is refused.
    #[inline]
    pub(crate) fn step(&mut self, packet: &Packet, slots: &Slots, rkey: u32, gaps: &mut Gaps) -> Result<Step, Refusal> {
        self.sequence(packet, gaps)?;
        let len = packet.payload.len();
        let message = if packet.opcode == Opcode::SendOnly {
            self.abandon(gaps);
            return Ok(Step { land: None, then: Then::Payload });
        } else if let Some(reth) = &packet.reth {
            self.break_message(gaps);
            let started = start(reth, packet.opcode, len, slots, rkey);
            self.filled = self.filled.filter(|_| started.is_ok());
            started?
        } else {
            let message = self.message.take().ok_or(Refusal::Orphan)?;
            let left = message.end - message.at;
            let fits =
                if packet.opcode.ends() { len == left && len <= message.mtu } else { len == message.mtu && len < left };
            if !fits {
                self.filled = None;
                gaps.broken += 1;
                return Err(Refusal::BadLength);
            }
            message
        };
        let land = (len > 0).then_some(message.at);
        if !packet.opcode.ends() {
            self.message = Some(Message { at: message.at + len, ..message });
            return Ok(Step { land, then: Then::Wait });
        }
        let filled = self.fill(&message, slots);
        let Some(immediate) = packet.immediate else {
            self.filled = filled;
            return Ok(Step { land, then: Then::End });
        };
        self.filled = None;
        let then = match (slots.form.split(immediate), filled) {
            (Some((_, slot)), Some(filled)) if slot as usize == filled.slot => {
                Then::Slot { slot: filled.slot, len: filled.len }
            }
            (Some((_, slot)), _) if (slot as usize) < slots.count => Then::Refuse(Refusal::SlotMismatch),
            _ => Then::Refuse(Refusal::SlotOverrun),
        };
        Ok(Step { land, then })
    }

    /// Checks the sequence number (IBTA 9.8.2.2).
    #[inline]
    fn sequence(&mut self, packet: &Packet, gaps: &mut Gaps) -> Result<(), Refusal> {
        let ahead = packet.psn.ahead_of(self.expected);
        if ahead != 0 {
            if ahead > 0 {
                gaps.events += 1;
                gaps.lost += u64::from(ahead.unsigned_abs());
            } else {
                self.past(packet)?;
                gaps.restarts += 1;
            }
            self.abandon(gaps);
        }
        self.past_run = 0;
        self.expected = packet.psn.plus(1);
        Ok(())
    }

    /// Refuses a packet from the past, unless it shows that the sender has restarted.
    #[cold]
    fn past(&mut self, packet: &Packet) -> Result<(), Refusal> {
        self.past_run = if packet.psn == self.past_next { self.past_run } else { 0 };
        self.past_run = if packet.opcode.starts() { self.past_run + 1 } else { 0 };
        self.past_next = packet.psn.plus(1);
        if self.past_run < RESTART { Err(Refusal::StalePsn) } else { Ok(()) }
    }

    /// Drops the message under way, and the record of the slot that it was filling.
    fn abandon(&mut self, gaps: &mut Gaps) {
        self.break_message(gaps);
        self.filled = None;
    }

    #[inline]
    fn break_message(&mut self, gaps: &mut Gaps) {
        if self.message.take().is_some() {
            gaps.broken += 1;
            self.filled = None;
        }
    }

    /// The slot that a whole message has filled from its start; `None` if it has not.
    #[inline]
    fn fill(&self, message: &Message, slots: &Slots) -> Option<Filled> {
        let len = message.end - message.start;
        if len == 0 {
            // It writes nothing and names what was written.
            return self.filled;
        }
        let (slot, within) = (message.start / slots.stride, message.start % slots.stride);
        let goes_on = within == 0 || self.filled == Some(Filled { slot, len: within });
        (goes_on && within + len <= slots.stride).then_some(Filled { slot, len: within + len })
    }
}

/// The message that a packet starts, if it passes the checks of length, key and range (IBTA 9.6.1.4).
#[inline]
fn start(reth: &Reth, opcode: Opcode, len: usize, slots: &Slots, rkey: u32) -> Result<Message, Refusal> {
    let total = reth.len() as usize;
    if if opcode.ends() { len != total } else { len == 0 || len >= total } {
        return Err(Refusal::BadLength);
    }
    if total == 0 {
        return Ok(Message { start: 0, at: 0, end: 0, mtu: 0 });
    }
    if reth.rkey() != rkey {
        return Err(Refusal::WrongRkey);
    }
    let start = reth.address().checked_sub(slots.base).filter(|start| *start < slots.bytes() as u64);
    let start = start.ok_or(Refusal::OutOfRange)? as usize;
    if total > slots.bytes() - start {
        return Err(Refusal::OutOfRange);
    }
    Ok(Message { start, at: start, end: start + total, mtu: len })
}
