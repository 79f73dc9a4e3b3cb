//! Requests that poll cores do in rings of their own.
//!
//! A request of whole sectors needs neither the engine's buffers nor its care, if it comes from a thread that polls a ring:
//! it is done there. All others are the engine's. Writes of poll cores and the engine's writes of less than sectors, which
//! read them and write them back, exclude one another: see [`Cores`].

use std::{
    cell::RefCell,
    rc::{Rc, Weak},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use berth_lease::{BlockError, BlockOp, BlockRequest};
use berth_uring::{LOCAL_MOST, RingUser, UserId};

use crate::{
    blocks::Shared,
    task::{After, Plain, Task},
};

/// What the engine and poll cores know of each other.
///
/// Each side counts itself in and then looks at the other. So one of them sees the other: a core that sees the engine
/// leaves its write to it, and the engine waits for cores that it sees.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    /// Writes of poll cores that are under way.
    writing: AtomicUsize,
    /// Writes of less than sectors that the engine has.
    ragged: AtomicUsize,
}

impl Cores {
    /// The engine has taken a write of less than sectors: no core starts any write until [`Cores::let_go`].
    pub(crate) fn hold_up(&self) {
        self.ragged.fetch_add(1, SeqCst);
    }

    /// One of those is over.
    pub(crate) fn let_go(&self) {
        self.ragged.fetch_sub(1, SeqCst);
    }

    /// Whether cores have writes under way.
    pub(crate) fn are_writing(&self) -> bool {
        self.writing.load(SeqCst) > 0
    }

    /// Whether a core may start a write; it is then under way.
    fn begin(&self, shared: &Shared) -> bool {
        self.writing.fetch_add(1, SeqCst);
        let begun = self.ragged.load(SeqCst) == 0;
        if !begun {
            self.end(shared);
        }
        begun
    }

    /// A write of a core is over.
    fn end(&self, shared: &Shared) {
        if self.writing.fetch_sub(1, SeqCst) == 1 && self.ragged.load(SeqCst) > 0 {
            shared.nudge();
        }
    }
}

thread_local! {
    /// Of this thread, one for each engine that it has used.
    static LANES: RefCell<Vec<Weak<Lane>>> = const { RefCell::new(Vec::new()) };
}

/// The requests that one poll core does for one engine. It goes with the last ring of its thread.
struct Lane {
    shared: Arc<Shared>,
    state: RefCell<State>,
}

struct State {
    user: Option<UserId>,
    tasks: Vec<Option<(Task, Plain)>>,
    free: Vec<u32>,
}

/// Does a request in a ring of this thread, or gives it back.
pub(crate) fn submit(shared: &Arc<Shared>, request: BlockRequest) -> Result<(), BlockRequest> {
    if !is_whole(shared, &request) {
        return Err(request);
    }
    match lane(shared) {
        Some(lane) => lane.submit(request),
        None => Err(request),
    }
}

/// Whether all steps of a request are plain ones.
fn is_whole(shared: &Shared, request: &BlockRequest) -> bool {
    let target = &shared.target;
    match request.op {
        BlockOp::Flush => true,
        BlockOp::Read | BlockOp::Write => {
            !request.pieces.is_empty()
                && request.at.is_multiple_of(target.align)
                && request.pieces.iter().all(|piece| {
                    (piece.base().addr().get() as u64).is_multiple_of(target.memory_align)
                        && (piece.size() as u64).is_multiple_of(target.align)
                })
        }
        BlockOp::Compare | BlockOp::Zero(_) | BlockOp::Discard(_) => false,
    }
}

/// This thread's lane of an engine, if the thread polls a ring.
fn lane(shared: &Arc<Shared>) -> Option<Rc<Lane>> {
    LANES.with_borrow_mut(|lanes| {
        let found = lanes.iter().filter_map(Weak::upgrade).find(|lane| Arc::ptr_eq(&lane.shared, shared));
        found.or_else(|| {
            let state = State {
                user: None,
                tasks: std::iter::repeat_with(|| None).take(LOCAL_MOST).collect(),
                free: (0..LOCAL_MOST as u32).rev().collect(),
            };
            let lane = Rc::new(Lane { shared: shared.clone(), state: state.into() });
            lane.state.borrow_mut().user = Some(berth_uring::join(lane.clone())?);
            lanes.retain(|lane| lane.strong_count() > 0);
            lanes.push(Rc::downgrade(&lane));
            Some(lane)
        })
    })
}

impl Lane {
    fn submit(&self, request: BlockRequest) -> Result<(), BlockRequest> {
        let writes = request.op == BlockOp::Write;
        if writes && !self.shared.cores.begin(&self.shared) {
            return Err(request);
        }
        self.start(Task::new(request)).map_err(|task| {
            if writes {
                self.shared.cores.end(&self.shared);
            }
            task.request
        })
    }

    /// Starts the next step of a task, if it is a plain one and there is room for it.
    fn start(&self, task: Task) -> Result<(), Task> {
        let mut state = self.state.borrow_mut();
        let (Some(user), Some(&tag), Some(step)) = (state.user, state.free.last(), task.plain(&self.shared.target))
        else {
            return Err(task);
        };
        let entry = task.entry(step, &self.shared.target, |_| None);
        // SAFETY: what is moved lies within a piece of the request, which the task keeps until it is over, as the lane
        // keeps the file. Nobody else writes the piece until then.
        if !unsafe { berth_uring::start(user, tag, entry) } {
            return Err(task);
        }
        state.free.pop();
        state.tasks[tag as usize] = Some((task, step));
        Ok(())
    }
}

impl RingUser for Lane {
    fn completed(&self, tag: u32, result: i32) {
        let mut state = self.state.borrow_mut();
        let (mut task, step) = state.tasks[tag as usize].take().expect("a completion is of a task in progress");
        state.free.push(tag);
        drop(state);
        let (task, result) = match task.stepped(step, result) {
            After::End(result) => (task, result),
            After::GoOn => match self.start(task) {
                Ok(()) => return,
                // The ring is being closed, or a part of a sector was moved.
                Err(task) => (task, Err(BlockError::Io(libc::EIO))),
            },
        };
        if task.request.op == BlockOp::Write {
            self.shared.cores.end(&self.shared);
        }
        self.shared.end(task.request, result);
    }
}
