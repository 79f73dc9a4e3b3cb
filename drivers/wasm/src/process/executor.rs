//! The executor's part: it shuts itself in, and then loads and runs what it is told.

use std::{
    env, io,
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_tasklet::{
    channel::{Asked, Command, DATA, PLACES, REASON, Walls},
    hostcall::{Call, Hostcalls, code},
    run::{Limits, Module as _, Outcome},
};
use wasmtime::{Engine, Linker};

use super::{
    code::{self as code_file, Loaded, OfFile},
    descriptor, keeper, sandbox,
    slot::{Line, Slot},
};
use crate::{
    engine::{self, Pool},
    hostcalls::{self, Guest},
    profile::Role,
    run::{Entry, Program, Tasklet},
};

/// Units of guest code between two looks at the time. Inline it is less, since there nobody stops a guest that takes longer over them
/// than a slice may last; an executor's node does.
const FUEL_SLICE: u64 = 4 * engine::FUEL_SLICE;

/// How long guest code runs before its node is asked.
const SLICE: Duration = Duration::from_millis(5);

/// The program that runs tasklets. Standard input is the socket for code, standard output the slot's file; it is told the bytes of
/// linear memory that a run may have, and its parent's id. Told `serve`, it is the unit that starts such for others, and standard
/// input the socket at which it listens.
pub fn executor() -> ExitCode {
    let serves = env::args().skip(1).eq(["serve"]);
    match if serves { keeper::serve() } else { execute() } {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("{error}; it is started by berth run or its unit, for [tasklet]");
            ExitCode::FAILURE
        }
    }
}

fn execute() -> io::Result<std::convert::Infallible> {
    let wrong =
        || io::Error::new(io::ErrorKind::InvalidInput, "an executor of tasklets is told its memory and its parent");
    let mut args = env::args().skip(1).map(|arg| arg.parse::<u64>().ok());
    let (Some(Some(memory)), Some(Some(parent))) = (args.next(), args.next()) else { return Err(wrong()) };
    alone(parent)?;
    // SAFETY: nothing else of this process uses its standard input and output.
    let (socket, file) = unsafe { (UnixStream::from(OwnedFd::from_raw_fd(0)), OwnedFd::from_raw_fd(1)) };
    let slot = Slot::open(&file)?;
    drop(file);
    let code = Arc::new(OfFile::new());
    let started = engine::runtime(Pool { instances: 1, memory }, code.clone())
        .and_then(|engine| Ok((hostcalls::linker(&engine)?, engine)));
    let (linker, engine) = started.map_err(|error| io::Error::other(format!("{error:#}")))?;
    let walls = sandbox::enter(memory)?;
    let mut executor = Executor { slot, socket, engine, linker, code, places: Default::default() };
    executor.slot.post(Line::Asked, &Asked::Ready(walls).head());
    loop {
        match executor.slot.next()? {
            Command::Load { place, alloc, initialize, start } => {
                let mut name = vec![0; start as usize];
                executor.slot.copy_out(0, &mut name);
                let name = String::from_utf8(name).map_err(io::Error::other)?;
                let entry = Entry { start: (start > 0).then_some(name), alloc, initialize };
                executor.load(place, &entry)?;
            }
            Command::Run { place, limits, input } => executor.run(place, &limits, input)?,
            Command::Answer(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Shuts this process in as an executor is, which its parent started for runs with so much memory: for who tries to get out.
///
/// # Errors
/// What the kernel refused.
pub fn shut_in(parent: u64, memory: u64) -> io::Result<Walls> {
    alone(parent)?;
    sandbox::enter(memory)
}

/// Keeps nothing that was inherited but standard input, output and error, and ends with its parent alone.
fn alone(parent: u64) -> io::Result<()> {
    // SAFETY: nothing of this process has one of these descriptors.
    unsafe { berth_process::sandbox::close_others(&[]) }?;
    berth_process::sandbox::end_with_parent();
    // It may have ended before it was asked for.
    if rustix::process::getppid().is_none_or(|pid| u64::from(pid.as_raw_nonzero().get().cast_unsigned()) != parent) {
        return Err(io::Error::other("its parent is gone"));
    }
    // Of all processes of the node, these are what it can lose. It is no matter if it cannot be said.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

impl Slot {
    /// The next command.
    fn next(&self) -> io::Result<Command> {
        loop {
            if let Some(head) = self.take(Line::Command) {
                return Command::parse(&head).map_err(io::Error::other);
            }
            self.wait(Line::Command, None);
        }
    }
}

struct Executor {
    slot: Slot,
    socket: UnixStream,
    engine: Engine,
    linker: Linker<Guest>,
    code: Arc<OfFile>,
    places: [Option<Loaded<Tasklet>>; PLACES as usize],
}

impl Executor {
    fn load(&mut self, place: u8, entry: &Entry) -> io::Result<()> {
        let file = descriptor::receive(&self.socket)?;
        let place = &mut self.places[usize::from(place)];
        *place = None;
        // SAFETY: the node sends what its compiler wrote, and a program keeps its module.
        let loaded = unsafe {
            code_file::load(&self.engine, &self.code, file, |module| {
                let program = Program::new(&self.linker, &module, Role::Tasklet, entry)?;
                Ok(Tasklet { program, slice: FUEL_SLICE })
            })
        };
        let asked = match loaded {
            Ok(loaded) => {
                *place = Some(loaded);
                Asked::Loaded
            }
            Err(error) => {
                let reason = format!("{error:#}");
                let reason = cut(&reason);
                self.slot.copy_in(reason.as_bytes());
                Asked::Refused { reason: reason.len() as u32 }
            }
        };
        self.slot.post(Line::Asked, &asked.head());
        Ok(())
    }

    fn run(&mut self, place: u8, limits: &Limits, input: u32) -> io::Result<()> {
        let place = self.places[usize::from(place)].as_ref();
        let tasklet = &place.ok_or(io::ErrorKind::InvalidData)?.module;
        let mut bytes = vec![0; input as usize];
        self.slot.copy_out(0, &mut bytes);
        let mut node = Node { slot: &self.slot, asked: Instant::now() };
        let Outcome { status, output, fuel, hostcalls, reason } = tasklet.run(&bytes, limits, &mut node);
        let reason = reason.unwrap_or_default();
        let reason = cut(&reason);
        let (len, reason_len) = (output.len() as u32, reason.len() as u32);
        let asked = Asked::Ended { status, fuel, hostcalls, output: len, reason: reason_len };
        self.slot.copy_in(&[&output, reason.as_bytes()].concat());
        self.slot.post(Line::Asked, &asked.head());
        Ok(())
    }
}

fn cut(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON)]
}

/// The node, as a run asks it.
struct Node<'a> {
    slot: &'a Slot,
    /// When it was last asked for a turn.
    asked: Instant,
}

impl Node<'_> {
    fn ask(&self, asked: &Asked) -> i64 {
        self.slot.post(Line::Asked, &asked.head());
        match self.slot.next() {
            Ok(Command::Answer(code)) => code,
            // A node that does not keep to its part would be another program.
            _ => code::INTERNAL,
        }
    }

    /// What an answer has filled in.
    fn filled(&self, code: i64, out: &mut [u8]) -> i64 {
        if code == 0 {
            self.slot.copy_out(0, out);
        }
        code
    }
}

impl Hostcalls for Node<'_> {
    fn call(&mut self, call: Call<'_>) -> i64 {
        match call {
            Call::Hello(kind) => self.ask(&Asked::Hello(kind)),
            Call::GetSize(kind) => self.ask(&Asked::GetSize(kind)),
            Call::Read { kind, lease, at, out } => {
                let len = out.len().min(DATA);
                let code = self.ask(&Asked::Read { kind, lease, at, len: len as u32 });
                self.filled(code, &mut out[..len])
            }
            Call::Write { kind, lease, at, data } => {
                let len = data.len().min(DATA);
                self.slot.copy_in(&data[..len]);
                self.ask(&Asked::Write { kind, lease, at, len: len as u32 })
            }
            Call::Alloc { kind, min, secs, out } => {
                let code = self.ask(&Asked::Alloc { kind, min, secs });
                self.filled(code, out)
            }
            Call::Query { kind, lease, out } => {
                let code = self.ask(&Asked::Query { kind, lease });
                self.filled(code, out)
            }
            Call::Renew { kind, lease, secs, out } => {
                let code = self.ask(&Asked::Renew { kind, lease, secs });
                self.filled(code, out)
            }
            Call::Free { kind, lease } => self.ask(&Asked::Free { kind, lease }),
            Call::Log { level, message } => {
                self.slot.copy_in(message);
                self.ask(&Asked::Log { level, len: message.len() as u32 })
            }
        }
    }

    fn turn(&mut self) -> bool {
        if self.asked.elapsed() < SLICE {
            return true;
        }
        let on = self.ask(&Asked::Turn) == 1;
        self.asked = Instant::now();
        on
    }
}
