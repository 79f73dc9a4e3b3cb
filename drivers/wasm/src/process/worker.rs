//! One executor process, as the node has it: started, told what to run, served, stopped, killed.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::Instant,
};

use berth_tasklet::{
    channel::{Asked, Command, PLACES, Walls},
    hostcall::{Call, Hostcalls},
    run::{Limits, Outcome, SLICE, Status},
};

use super::{
    descriptor,
    isolated::Code,
    slot::{Line, Slot},
    start::{Parent, Process, START, Share, Starter},
};

/// Why a run has no outcome. Its executor is of no use any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Gone {
    /// The run was to stop, and did not by itself.
    #[error("stopped")]
    Stopped,
    /// The executor has ended.
    #[error("its executor ended: {0}")]
    Ended(String),
    /// It said what it must not.
    #[error("its executor was killed: {0}")]
    Broke(&'static str),
}

/// An executor process. It is killed on drop.
#[derive(Debug)]
pub(super) struct Worker {
    process: Process,
    socket: UnixStream,
    slot: Slot,
    /// Whose code it ran; `None` if it has run none.
    pub(super) presenter: Option<u128>,
    pub(super) walls: Walls,
    /// Modules by place, and the place that is the next to be replaced.
    places: [Option<u64>; PLACES as usize],
    next: u8,
    /// When its run was last given a turn.
    turn: Instant,
    /// It was told to stop.
    stopping: bool,
}

impl Worker {
    /// Starts one, and waits until it has shut itself in. A child ends with the thread that calls.
    pub(super) fn start(by: &Starter, share: &Share) -> io::Result<Self> {
        let (slot, file) = Slot::create()?;
        let (socket, theirs) = UnixStream::pair()?;
        let process = Process::start(by, share, OwnedFd::from(theirs), file)?;
        let (places, turn, walls) = (Default::default(), Instant::now(), Walls::default());
        let mut worker = Self { process, socket, slot, presenter: None, walls, places, next: 0, turn, stopping: false };
        while worker.turn.elapsed() < START {
            if let Some(head) = worker.slot.take(Line::Asked) {
                let Ok(Asked::Ready(walls)) = Asked::parse(&head) else { break };
                worker.walls = walls;
                return Ok(worker);
            }
            if let Some(status) = worker.ended() {
                return Err(io::Error::other(format!("it ended: {status}")));
            }
            worker.slot.wait(Line::Asked, Some(SLICE));
        }
        Err(io::Error::other("it does not say that it is ready"))
    }

    pub(super) fn parent(&self) -> Parent {
        self.process.parent()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.process.ended()
    }

    /// Gives the run its next turn, or says that it is to stop, for good. Until then the process stands still, wherever it is.
    fn turn(&mut self, host: &mut dyn Hostcalls) -> bool {
        if self.stopping {
            return false;
        }
        self.process.stands(true);
        let on = host.turn();
        self.process.stands(false);
        (self.turn, self.stopping) = (Instant::now(), !on);
        on
    }

    /// What it says next. A run that asks for no turn in time, as in one long operation on memory, is given one, or stopped.
    fn next(&mut self, host: &mut dyn Hostcalls) -> Result<Asked, Gone> {
        loop {
            if let Some(head) = self.slot.take(Line::Asked) {
                return Asked::parse(&head).map_err(|_| Gone::Broke("what it said is no message"));
            }
            let left = SLICE.saturating_sub(self.turn.elapsed());
            if !left.is_zero() {
                self.slot.wait(Line::Asked, Some(left));
            } else if let Some(status) = self.ended() {
                return Err(Gone::Ended(status));
            } else if !self.turn(host) {
                return Err(Gone::Stopped);
            }
        }
    }

    fn tell(&self, command: Command) {
        self.slot.post(Line::Command, &command.head());
    }

    /// The place of a module, which is loaded where it was not.
    fn place(&mut self, code: &Code, host: &mut dyn Hostcalls) -> Result<Result<u8, String>, Gone> {
        if let Some(place) = self.places.iter().position(|place| *place == Some(code.id)) {
            return Ok(Ok(place as u8));
        }
        let place = self.next;
        self.next = (place + 1) % PLACES;
        self.places[usize::from(place)] = None;
        let start = code.entry.start.as_deref().unwrap_or_default();
        self.slot.copy_in(start.as_bytes());
        descriptor::send(&self.socket, code.file()).map_err(|error| Gone::Ended(error.to_string()))?;
        let (alloc, initialize) = (code.entry.alloc, code.entry.initialize);
        self.tell(Command::Load { place, alloc, initialize, start: start.len() as u32 });
        match self.next(host)? {
            Asked::Loaded => {
                self.places[usize::from(place)] = Some(code.id);
                Ok(Ok(place))
            }
            Asked::Refused { reason } => Ok(Err(self.text(0, reason))),
            _ => Err(Gone::Broke("it was to load a module")),
        }
    }

    fn text(&self, at: usize, len: u32) -> String {
        let mut text = vec![0; len as usize];
        self.slot.copy_out(at, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Runs a module to its end.
    pub(super) fn run(
        &mut self,
        code: &Code,
        input: &[u8],
        limits: &Limits,
        host: &mut dyn Hostcalls,
    ) -> Result<Outcome, Gone> {
        (self.turn, self.stopping) = (Instant::now(), false);
        let failed = |reason: String| Outcome {
            status: Status::ExecFailed,
            output: Vec::new(),
            fuel: 0,
            hostcalls: 0,
            reason: Some(reason),
        };
        let place = match self.place(code, host)? {
            Ok(place) => place,
            Err(reason) => return Ok(failed(format!("it cannot be loaded: {reason}"))),
        };
        self.slot.copy_in(input);
        self.tell(Command::Run { place, limits: *limits, input: input.len() as u32 });
        let mut hostcalls = 0;
        loop {
            let asked = self.next(host)?;
            let answer = match asked {
                Asked::Turn => i64::from(self.turn(host)),
                Asked::Ended { status, fuel, hostcalls: said, output, reason } => {
                    let mut bytes = vec![0; output as usize];
                    self.slot.copy_out(0, &mut bytes);
                    let within = match status {
                        Status::Ok => u64::from(output) <= limits.output,
                        Status::ExecFailed => output == 0 || output == 4,
                        _ => output == 0,
                    };
                    if !within {
                        return Err(Gone::Broke("an output that the run may not have"));
                    }
                    let reason = (reason > 0).then(|| self.text(output as usize, reason));
                    let fuel = fuel.min(limits.fuel);
                    // Calls with bytes outside memory do not come here.
                    let hostcalls = said.clamp(hostcalls, limits.hostcalls);
                    return Ok(Outcome { status, output: bytes, fuel, hostcalls, reason });
                }
                call => {
                    // What a guest may do its executor counts. One that does not is none of ours.
                    if hostcalls == limits.hostcalls {
                        return Err(Gone::Broke("a hostcall too many"));
                    }
                    hostcalls += 1;
                    if self.turn.elapsed() >= SLICE && !self.turn(host) {
                        return Err(Gone::Stopped);
                    }
                    self.call(call, host)?
                }
            };
            self.tell(Command::Answer(answer));
        }
    }

    /// Does one call, on behalf of the run that this worker has.
    fn call(&mut self, asked: Asked, host: &mut dyn Hostcalls) -> Result<i64, Gone> {
        let slot = &mut self.slot;
        Ok(match asked {
            Asked::Hello(kind) => host.call(Call::Hello(kind)),
            Asked::GetSize(kind) => host.call(Call::GetSize(kind)),
            Asked::Read { kind, lease, at, len } => {
                // SAFETY: leased bytes are copied there.
                let out = unsafe { slot.lend(len as usize) };
                host.call(Call::Read { kind, lease, at, out })
            }
            Asked::Write { kind, lease, at, len } => {
                // SAFETY: it is copied to leased bytes.
                let data = unsafe { slot.lend(len as usize) };
                host.call(Call::Write { kind, lease, at, data })
            }
            Asked::Alloc { kind, min, secs } => {
                let mut out = [0; 40];
                let out = &mut out[..kind.alloc_len()];
                let code = host.call(Call::Alloc { kind, min, secs, out });
                slot.copy_in(out);
                code
            }
            Asked::Query { kind, lease } => {
                let mut out = [0; 24];
                let code = host.call(Call::Query { kind, lease, out: &mut out });
                slot.copy_in(&out);
                code
            }
            Asked::Renew { kind, lease, secs } => {
                let mut out = [0; 8];
                let code = host.call(Call::Renew { kind, lease, secs, out: &mut out });
                slot.copy_in(&out);
                code
            }
            Asked::Free { kind, lease } => host.call(Call::Free { kind, lease }),
            Asked::Log { level, len } => {
                let mut message = vec![0; len as usize];
                slot.copy_out(0, &mut message);
                host.call(Call::Log { level, message: &message })
            }
            Asked::Ready(_) | Asked::Loaded | Asked::Refused { .. } | Asked::Turn | Asked::Ended { .. } => {
                return Err(Gone::Broke("that is no hostcall"));
            }
        })
    }
}
