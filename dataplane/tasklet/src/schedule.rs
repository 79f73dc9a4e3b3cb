//! Which runs wait, which are under way, and which of those are on a core (T11, T12).
//!
//! A composite lease has cores and an arena of its own. All other runs share what is not leased. In each such group runs
//! start as cores and arena allow, and presenters take turns, a slice each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Limit on the runs under way of those that share what is not leased: each has a thread and an instance.
pub const SHARING: u32 = 64;

/// `tasklet_id`: never 0 and never used again (T3).
pub type RunId = u64;

/// A composite lease, or `None` for the runs that share what is not leased.
pub type GroupId = Option<u128>;

/// Cores and linear memory: of the pool, of a composite lease, or what is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Cores.
    pub cores: u32,
    /// Bytes of linear memory.
    pub memory: u64,
}

/// What the schedule shares out, and how much may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The whole pool; composite leases take their part of it.
    pub room: Room,
    /// Limit on runs that wait; a presenter has a quarter of it at most.
    pub queue: usize,
    /// Limit on the bytes of their inputs, a quarter of it for a presenter; where no byte waits, any input fits.
    pub inputs: u64,
}

/// A run to be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Its id, not used before.
    pub run: RunId,
    /// The composite lease that it runs in; `None`: it shares what is not leased.
    pub group: GroupId,
    /// Who submitted it: in a group presenters take turns.
    pub presenter: u128,
    /// Its linear memory at most, in bytes.
    pub memory: u64,
    /// Length of its input in bytes, counted while the run waits.
    pub input: u64,
}

/// What comes next on a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// The run begins.
    Start(RunId),
    /// The run has another turn.
    Resume(RunId),
}

/// There is no room in the queue, or no such group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many runs wait")]
pub struct Full;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    OnCore,
}

#[derive(Debug)]
struct Slot {
    of: Queued,
    state: State,
}

/// The runs of one presenter in a group.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<RunId>,
    /// Under way, and waiting for a turn.
    ready: VecDeque<RunId>,
    under_way: u32,
}

impl Line {
    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.under_way == 0
    }
}

#[derive(Debug, Default)]
struct Group {
    room: Room,
    /// Runs under way, and their memory.
    under_way: u32,
    used: u64,
    /// Cores in use: for a slice more than there are, where some were just leased.
    busy: u32,
    /// The lease is over: nothing begins.
    closed: bool,
    lines: BTreeMap<u128, Line>,
    /// Presenters with a line, in the order of their turns.
    turns: VecDeque<u128>,
}

/// All runs that have not ended, and the groups that they run in.
#[derive(Debug)]
pub struct Schedule {
    config: Config,
    groups: BTreeMap<GroupId, Group>,
    /// Groups in which something may go on.
    changed: BTreeSet<GroupId>,
    runs: BTreeMap<RunId, Slot>,
    /// Waiting runs and the bytes of their inputs: of all, and of each presenter.
    waiting: (usize, u64),
    waiting_of: BTreeMap<u128, (usize, u64)>,
}

impl Schedule {
    /// Nothing is leased, and nothing runs.
    pub fn new(config: Config) -> Self {
        let shared = Group { room: config.room, ..Group::default() };
        Self {
            config,
            groups: BTreeMap::from([(None, shared)]),
            changed: BTreeSet::new(),
            runs: BTreeMap::new(),
            waiting: (0, 0),
            waiting_of: BTreeMap::new(),
        }
    }

    /// Cores that are not leased, and memory that is neither leased nor in use by runs that share it.
    pub fn free(&self) -> Room {
        let shared = &self.groups[&None];
        Room { cores: shared.room.cores, memory: shared.room.memory.saturating_sub(shared.used) }
    }

    /// What a group has; `None` if it is not there, or closed.
    pub fn room(&self, group: GroupId) -> Option<Room> {
        self.groups.get(&group).filter(|group| !group.closed).map(|group| group.room)
    }

    /// Gives a composite lease its cores and its arena. False if so much is not free, or it has some already.
    pub fn open(&mut self, lease: u128, room: Room) -> bool {
        let free = self.free();
        if room.cores > free.cores || room.memory > free.memory || self.groups.contains_key(&Some(lease)) {
            return false;
        }
        if let Some(shared) = self.groups.get_mut(&None) {
            shared.room.cores -= room.cores;
            shared.room.memory -= room.memory;
        }
        self.groups.insert(Some(lease), Group { room, ..Group::default() });
        true
    }

    /// Ends a composite lease. What it had is free when its last run has ended: these are to be stopped.
    pub fn close(&mut self, lease: u128) -> Vec<RunId> {
        let Some(group) = self.groups.get_mut(&Some(lease)) else { return Vec::new() };
        group.closed = true;
        let runs: Vec<RunId> =
            self.runs.iter().filter(|(_, slot)| slot.of.group == Some(lease)).map(|(run, _)| *run).collect();
        self.give_back(lease);
        runs
    }

    /// Queues a run. Errs where the group is not there or closed, or no room is left for all or this presenter.
    pub fn submit(&mut self, queued: Queued) -> Result<(), Full> {
        let Queued { run, group: id, presenter, input, .. } = queued;
        let group = self.groups.get_mut(&id).filter(|group| !group.closed).ok_or(Full)?;
        let own = self.waiting_of.get(&presenter).copied().unwrap_or_default();
        let share = |limit: usize| (limit / 4).max(1);
        let runs_fit = self.waiting.0 < self.config.queue && own.0 < share(self.config.queue);
        let bytes_fit = |held: u64, limit: u64| held == 0 || held + input <= limit;
        if !runs_fit || !bytes_fit(self.waiting.1, self.config.inputs) || !bytes_fit(own.1, self.config.inputs / 4) {
            return Err(Full);
        }
        let line = group.lines.entry(presenter).or_insert_with(|| {
            group.turns.push_back(presenter);
            Line::default()
        });
        line.waiting.push_back(run);
        self.runs.insert(run, Slot { of: queued, state: State::Waiting });
        self.waiting = (self.waiting.0 + 1, self.waiting.1 + input);
        self.waiting_of.insert(presenter, (own.0 + 1, own.1 + input));
        self.changed.insert(id);
        Ok(())
    }

    /// Whether a run is queued and has not begun; false for ids that are not known.
    pub fn is_waiting(&self, run: RunId) -> bool {
        self.runs.get(&run).is_some_and(|slot| slot.state == State::Waiting)
    }

    /// A run's slice is over. It may be the next again.
    pub fn slice_over(&mut self, run: RunId) {
        let Some(slot) = self.runs.get_mut(&run).filter(|slot| slot.state == State::OnCore) else { return };
        slot.state = State::Ready;
        let Queued { group: id, presenter, .. } = slot.of;
        if let Some(group) = self.groups.get_mut(&id) {
            group.busy -= 1;
            group.lines.entry(presenter).or_default().ready.push_back(run);
            // Whoever came meanwhile is before it.
            group.turns.retain(|other| *other != presenter);
            group.turns.push_back(presenter);
        }
        self.changed.insert(id);
    }

    /// A run has ended, or is to be forgotten before it began.
    pub fn ended(&mut self, run: RunId) {
        let Some(Slot { of, state }) = self.runs.remove(&run) else { return };
        let Some(group) = self.groups.get_mut(&of.group) else { return };
        let line = group.lines.entry(of.presenter).or_default();
        match state {
            State::Waiting => line.waiting.retain(|other| *other != run),
            State::Ready => line.ready.retain(|other| *other != run),
            State::OnCore => group.busy -= 1,
        }
        if state == State::Waiting {
            self.begun(&of);
        } else {
            line.under_way -= 1;
            group.under_way -= 1;
            group.used -= of.memory;
        }
        let Some(group) = self.groups.get_mut(&of.group) else { return };
        if group.lines.get(&of.presenter).is_some_and(Line::is_over) {
            group.lines.remove(&of.presenter);
            group.turns.retain(|other| *other != of.presenter);
        }
        self.changed.insert(of.group);
        if let Some(lease) = of.group {
            self.give_back(lease);
        }
    }

    /// What to put on a core now; to be called until it returns `None`.
    pub fn next_go(&mut self) -> Option<Go> {
        while let Some(id) = self.changed.first().copied() {
            if let Some(go) = self.next_of(id) {
                return Some(go);
            }
            self.changed.remove(&id);
        }
        None
    }

    fn next_of(&mut self, id: GroupId) -> Option<Go> {
        let group = self.groups.get_mut(&id)?;
        if group.busy >= group.room.cores {
            return None;
        }
        for _ in 0..group.turns.len() {
            let presenter = group.turns.pop_front()?;
            group.turns.push_back(presenter);
            let line = group.lines.get_mut(&presenter)?;
            if let Some(run) = line.ready.pop_front() {
                group.busy += 1;
                self.runs.get_mut(&run)?.state = State::OnCore;
                return Some(Go::Resume(run));
            }
            let Some(run) = line.waiting.front().copied().filter(|_| !group.closed) else { continue };
            let slot = self.runs.get_mut(&run)?;
            let (under_way, spare) = match (id, line.under_way) {
                (Some(_), _) => (group.under_way, 0),
                (None, 0) => (0, 0),
                // Of those that share, who has a run under way leaves room for others.
                (None, own) => (own, group.room.memory / 4),
            };
            let crowded = id.is_none() && group.under_way >= SHARING;
            if !crowded && under_way < group.room.cores && group.used + slot.of.memory + spare <= group.room.memory {
                line.waiting.pop_front();
                line.under_way += 1;
                group.under_way += 1;
                group.used += slot.of.memory;
                group.busy += 1;
                slot.state = State::OnCore;
                let of = slot.of;
                self.begun(&of);
                return Some(Go::Start(run));
            }
        }
        None
    }

    /// A run waits no more.
    fn begun(&mut self, of: &Queued) {
        self.waiting = (self.waiting.0 - 1, self.waiting.1 - of.input);
        if let Some(own) = self.waiting_of.get_mut(&of.presenter) {
            *own = (own.0 - 1, own.1 - of.input);
            if own.0 == 0 {
                self.waiting_of.remove(&of.presenter);
            }
        }
    }

    /// Frees what a closed group had, if none of its runs is left.
    fn give_back(&mut self, lease: u128) {
        let over = |group: &Group| group.closed && group.lines.is_empty();
        if !self.groups.get(&Some(lease)).is_some_and(over) {
            return;
        }
        if let (Some(Group { room, .. }), Some(shared)) = (self.groups.remove(&Some(lease)), self.groups.get_mut(&None))
        {
            shared.room.cores += room.cores;
            shared.room.memory += room.memory;
        }
        self.changed.remove(&Some(lease));
        self.changed.insert(None);
    }

    /// Number of runs that wait, and of those that are under way.
    pub fn counts(&self) -> (usize, usize) {
        (self.waiting.0, self.runs.len() - self.waiting.0)
    }
}
