//! Dataset Management: ranges that may be deallocated.

use berth_lease::{BlockOp, Op};
use berth_port::Nanos;
use berth_wire::nvme::{
    Status,
    command::{Pointer, Refused},
    io::{DatasetManagement, DsmRange},
};

use super::Io;
use crate::{
    namespace::BLOCK,
    queue::{Queue, Work},
};

/// Ranges of Dataset Management.
const RANGES_MAX: usize = 256;

impl Io {
    /// Settles how many ranges Dataset Management has. Their list may have room for more: hosts send all of it.
    pub(super) fn manage(
        &self,
        queue: &mut Queue,
        index: usize,
        command: DatasetManagement,
        pointer: Pointer,
    ) -> Result<(), Refused> {
        if !(command.ranges * DsmRange::LEN..=RANGES_MAX * DsmRange::LEN).contains(&(pointer.len() as usize)) {
            return Err(Refused::Status(Status::SGL_LENGTH_INVALID));
        }
        let (deallocate, namespace) = (command.deallocate, &self.subsystem.namespace);
        let slot = queue.slot(index);
        slot.work = Work::Ranges { count: command.ranges as u16, done: 0, deallocate };
        // The host may do so with the last block, if with any.
        let op = if deallocate { Op::Write } else { Op::Read };
        slot.ask = namespace.ask(op, namespace.blocks - 1, 1).map_err(Refused::Status)?;
        slot.len = pointer.len();
        Ok(())
    }

    /// Goes on with the ranges of Dataset Management, which is advice: but for ranges that there are not.
    pub(super) fn ranges(&mut self, queue: &mut Queue, index: usize, now: Nanos) {
        let namespace = &self.subsystem.namespace;
        let slot = queue.slot(index);
        let Work::Ranges { count, done, deallocate } = slot.work else { return };
        let ranges = DsmRange::parse_all(&slot.page, count.into()).unwrap_or_default();
        if done == 0 && !ranges.iter().all(|range| range.is_within(namespace.blocks)) {
            return queue.respond(index, Status::LBA_OUT_OF_RANGE);
        }
        let discards = deallocate && namespace.engine.is_some_and(|engine| engine.discard.is_some());
        let most = namespace.longest / BLOCK as u32;
        let is_next = |range: &&DsmRange| discards && (1..=most).contains(&range.blocks.get());
        let next = ranges.iter().enumerate().skip(done.into()).find(|(_, range)| is_next(range));
        let asked =
            next.map(|(nth, range)| (nth, namespace.ask(Op::Write, range.slba.get(), range.blocks.get().into())));
        let Some((nth, Ok(ask))) = asked else { return queue.respond(index, Status::SUCCESS) };
        slot.work = Work::Ranges { count, done: nth as u16 + 1, deallocate };
        slot.ask = ask;
        self.start(queue, index, BlockOp::Discard(ask.access.len), now);
    }
}
