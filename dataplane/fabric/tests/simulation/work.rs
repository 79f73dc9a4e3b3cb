//! Work on bytes, piece by piece: as a node's host does it, but slower.

use berth_fabric::{Ending, Job, Work, WorkFailed};
use berth_lease::{Held, Quiescence, Span};
use berth_wire::fabric::{LeaseRelocate, Op, Wire as _};

use super::world::{Event, Executing, MILLI, SLOT, World};

/// Work under way, for a request or for the node itself.
pub(super) struct Working {
    work: Work,
    pub(super) asked: Option<Executing>,
    /// Batch of the journal that the work waits for.
    durable: u64,
    started: bool,
    job: usize,
    /// Bytes of the job that are done.
    done: u64,
    /// While a piece of a copy is under way.
    held: Option<Held>,
}

impl Working {
    fn new(work: Work, asked: Option<Executing>, durable: u64) -> Self {
        Self { work, asked, durable, started: false, job: 0, done: 0, held: None }
    }
}

/// The next piece of a job: an eighth of it, or a page.
fn piece(span: Span, done: u64) -> Span {
    let len = (span.len / 8).next_multiple_of(8 * SLOT).min(span.len - done);
    Span { region: span.region, at: span.at + done, len }
}

impl World {
    /// Accepts work from the node.
    pub(super) fn takes(&mut self, mut work: Work, asked: Option<Executing>) {
        self.say(|| format!("works on {:?}", work.jobs));
        self.apply(std::mem::take(&mut work.effects));
        let durable = match &work.journal {
            Some(records) if records.is_empty() => self.journal.staged_to,
            Some(records) => {
                let batch = self.journal.stage(records);
                if let Some(asked) = asked.as_ref().filter(|asked| asked.op == Op::LeaseRelocate) {
                    self.oracle.journaled(asked.sender, asked.nonce, batch);
                }
                batch
            }
            None => 0,
        };
        self.process.working.insert(work.ticket, Working::new(work, asked, durable));
    }

    /// Begins the works that no longer need to wait.
    pub(super) fn begin_works(&mut self) {
        let durable_to = self.journal.durable_to;
        let begins = |working: &mut Working| {
            let quiet = working.work.quiescence.as_mut().is_none_or(Quiescence::is_over);
            let ended = working.work.ending.as_ref().is_none_or(Ending::is_over);
            let begins = quiet && ended && working.durable <= durable_to && !working.started;
            working.started |= begins;
            begins
        };
        let all = self.process.working.iter_mut();
        let ready: Vec<u64> = all.filter_map(|(ticket, working)| begins(working).then_some(*ticket)).collect();
        for ticket in ready {
            self.begin_piece(ticket);
        }
    }

    /// Begins the next piece of a work, or ends the work.
    fn begin_piece(&mut self, ticket: u64) {
        let now = self.time().mono;
        let working = self.process.working.get_mut(&ticket).expect("it is under way");
        if working.work.ending.as_ref().is_some_and(Ending::has_failed) {
            return self.end_work(ticket, Err(WorkFailed));
        }
        let Some(job) = working.work.jobs.get(working.job) else {
            if working.work.prepare.is_none() {
                return self.end_work(ticket, Ok(()));
            }
            let (delay, run) = (self.slow(MILLI), self.run);
            return self.after(delay, Event::Worked(run, ticket));
        };
        if matches!(job, Job::Copy(..)) {
            working.held = Some(self.process.node.table().reader().hold());
        }
        if working.work.deadline.is_over(now) {
            self.summary.stopped += 1;
            return self.end_work(ticket, Err(WorkFailed));
        }
        let (delay, run) = (self.slow(MILLI), self.run);
        self.after(delay, Event::Worked(run, ticket));
    }

    /// Ends a piece of a work.
    pub(super) fn worked(&mut self, ticket: u64) {
        let fails = self.random.u8(..) < 8;
        let working = self.process.working.get_mut(&ticket).expect("it is under way");
        if let Some(prepare) = working.work.prepare.take_if(|_| working.job == working.work.jobs.len()) {
            prepare.run();
            return self.end_work(ticket, Ok(()));
        }
        if fails {
            return self.end_work(ticket, Err(WorkFailed));
        }
        let (whole, moved) = match working.work.jobs[working.job] {
            Job::Zero(span) => {
                let piece = piece(span, working.done);
                self.stores.heap(piece.region.0).clear(piece.at, piece.len);
                (span.len, piece.len)
            }
            Job::Copy(from, to) => {
                let whole = from.len;
                let (from, to) = (piece(from, working.done), piece(to, working.done));
                let params = LeaseRelocate::parse(&working.asked.as_ref().expect("it was asked for").params)
                    .expect("it was served");
                let [src, dst] = [params.src_lease_id, params.dst_lease_id].map(|key| self.oracle.keys[&key]);
                self.oracle.copied(src, dst, working.done / SLOT, from.len / SLOT);
                let (source, target) = (self.stores.heap(from.region.0), self.stores.heap(to.region.0));
                source.copy(from.at, target, to.at, from.len);
                (whole, from.len)
            }
            Job::Flush(_) => {
                self.stores.flush();
                (0, 0)
            }
        };
        working.done += moved;
        working.held = None;
        if working.done == whole {
            (working.job, working.done) = (working.job + 1, 0);
        }
        self.begin_piece(ticket);
    }

    fn end_work(&mut self, ticket: u64, result: Result<(), WorkFailed>) {
        let working = self.process.working.remove(&ticket).expect("it is under way");
        self.go_on(ticket, working, result);
    }
}
