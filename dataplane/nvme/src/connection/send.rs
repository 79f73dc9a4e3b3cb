//! What a connection sends: requests for data, data, and responses, each as far as there is room.

use berth_port::{Nanos, Next};
use berth_wire::nvme::{
    Status,
    pdu::{DIGEST_LEN, Kind, flags},
};

use super::{Connection, H2C_DATA_MAX, Role, SHORT};
use crate::{
    counts::Event,
    output::Output,
    queue::{Phase, Slot, Work},
};

/// As little data as a `C2HData` has, unless it is the last.
const DATA_MIN: usize = 4096;

/// As much room for data as is asked for at once.
const DATA_ROOM: usize = 32 << 10;

impl Connection {
    /// Sends what commands have to send; what it takes to go on, where there is more.
    pub(super) fn send(&mut self, output: &mut Output<'_>, now: Nanos) -> Option<Next> {
        while let Some(index) = self.queue.first() {
            match self.queue.slot(index).phase {
                Phase::Asking => {
                    if output.room() < SHORT {
                        return Some(Next::Output(SHORT));
                    }
                    let ttag = self.queue.ttag(index);
                    let slot = self.queue.slot(index);
                    let len = (slot.len - slot.moved).min(H2C_DATA_MAX);
                    (slot.from, slot.until) = (slot.moved, slot.moved + len);
                    (slot.phase, slot.since) = (Phase::Receiving, now);
                    let (cid, offset) = (slot.cid, slot.moved);
                    output.append(|to| self.framing.r2t(to, cid, ttag, offset, len));
                    self.queue.sent();
                }
                Phase::Sending => {
                    if let Some(next) = self.send_data(index, output, now) {
                        return Some(next);
                    }
                }
                Phase::Responding(status) => {
                    if output.room() < SHORT {
                        return Some(Next::Output(SHORT));
                    }
                    self.count(index, status);
                    let cqe = self.queue.completion(index, status);
                    output.append(|to| self.framing.response(to, &cqe));
                    self.queue.sent();
                    self.queue.close(index);
                }
                Phase::Free | Phase::Waiting | Phase::Receiving | Phase::Accessing | Phase::Parked => {
                    self.queue.sent();
                }
            }
        }
        None
    }

    /// Sends one `C2HData`; what it takes to go on, where there is no room for it.
    fn send_data(&mut self, index: usize, output: &mut Output<'_>, now: Nanos) -> Option<Next> {
        let at = self.framing.data_at(Kind::C2hData);
        let around = at + if self.framing.data_digest { DIGEST_LEN } else { 0 };
        let omits = self.queue.omits_responses();
        let slot = self.queue.slot(index);
        let left = (slot.len - slot.moved) as usize;
        if output.room() < around + left.min(DATA_MIN) {
            return Some(Next::Output(around + left.min(DATA_ROOM) + SHORT));
        }
        let mut len = left.min(output.room() - around);
        if len < left {
            len -= len % 512;
        }
        let is_last = len == left;
        let (cid, offset) = (slot.cid, slot.moved);
        let into = &mut output.rest()[at..at + len];
        let copied = match &mut self.role {
            Role::New | Role::Admin(_) => {
                copy_page(slot, into);
                Ok(())
            }
            Role::Io(_) if slot.work == Work::Control => {
                copy_page(slot, into);
                Ok(())
            }
            Role::Io(_) if slot.buffers.size() > 0 => {
                slot.buffers.read_at(offset as usize, into);
                Ok(())
            }
            Role::Io(io) => io.copy(&mut self.queue, index, into, now),
        };
        if let Err(status) = copied {
            self.queue.slot(index).phase = Phase::Responding(status);
            return None;
        }
        let slot = self.queue.slot(index);
        slot.moved += len as u32;
        let omits = omits && slot.result == 0;
        let flags = match (is_last, omits) {
            (true, true) => flags::LAST | flags::SUCCESS,
            (true, false) => flags::LAST,
            (false, _) => 0,
        };
        if self.framing.data_digest {
            let digest = crc32c::crc32c(&output.rest()[at..at + len]);
            output.rest()[at + len..at + len + DIGEST_LEN].copy_from_slice(&digest.to_le_bytes());
        }
        output.append(|to| {
            self.framing.c2h_data(to, cid, offset, len as u32, flags)?;
            Some(around + len)
        });
        if is_last && omits {
            self.count(index, Status::SUCCESS);
            self.queue.sent();
            self.queue.close(index);
        } else if is_last {
            self.queue.slot(index).phase = Phase::Responding(Status::SUCCESS);
        }
        None
    }

    /// Counts how a command ended whose answer is about to be written.
    #[inline]
    fn count(&mut self, index: usize, status: Status) {
        let slot = self.queue.get(index);
        if let (Some(timing), Role::Io(_)) = (&mut self.timing, &self.role) {
            timing.answered(slot);
        }
        if !status.is_success() {
            match &self.role {
                Role::New => {}
                Role::Admin(admin) => admin.controller.record.failed(0, slot.cid, status, 0, 0),
                Role::Io(io) => io.failed(slot, status),
            }
            return self.counts.failed(status);
        }
        let bytes = slot.ask.access.len;
        match slot.work {
            Work::Read => self.counts.bytes(Event::BytesRead, bytes),
            Work::Write { .. } => self.counts.bytes(Event::BytesWritten, bytes),
            _ => {}
        }
    }
}

/// Copies what comes next of a page, of which the rest is zero.
fn copy_page(slot: &Slot, into: &mut [u8]) {
    let page = slot.page.get(slot.moved as usize..).unwrap_or_default();
    let (front, rest) = into.split_at_mut(page.len().min(into.len()));
    front.copy_from_slice(&page[..front.len()]);
    rest.fill(0);
}
