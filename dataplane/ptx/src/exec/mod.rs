//! Runs kernels: blocks, a few of them at a time, whose threads take turns.
//!
//! A turn is up to [`TURN_MAX`] instructions of one thread. Who is next and how long a turn is comes from the seed, so
//! a launch repeats. Every thread that can go on gets its turn, whatever the others of its warp do.

mod barrier;
mod spaces;
mod thread;
mod warp;

use crate::{
    error::{Fault, FaultKind, LaunchError},
    memory::Memory,
    program::{Function, Program},
};
use spaces::Spaces;
use thread::{State, Thread};

/// Longest turn of a thread, in instructions.
const TURN_MAX: u64 = 512;
/// How often the threads of a block get their turns before another block's do: what they use is in the caches then.
const ROUNDS: usize = 16;
/// Most blocks that run at a time.
const RESIDENT_MAX: usize = 32;
/// Most threads of a block.
const THREADS_MAX: u64 = 1024;
/// Most shared memory of a block that a launch adds, in bytes.
const SHARED_MAX: usize = 227 << 10;
/// What a scratch keeps from one launch to the next, in bytes.
const KEPT_MAX: usize = 64 << 10;
/// What registers and stacks of all threads may take, in bytes.
const STATE_MAX: usize = 512 << 20;

/// A kernel, and how it is run.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Name of a kernel of the program.
    pub kernel: &'a str,
    /// Blocks: x, y, z; at least 1 each, at most 2^31 - 1, 65535 and 65535.
    pub grid: [u32; 3],
    /// Threads of a block: x, y, z; at most 1024 of them, and 64 in z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block, at most 227 KiB.
    pub shared: usize,
    /// The parameters, each where [`crate::Parameter::offset`] says; no byte behind the last one.
    pub params: &'a [u8],
    /// Chooses the order of threads: with the same seed a launch repeats.
    pub seed: u64,
    /// How many instructions all threads together may run.
    pub fuel: u64,
}

/// What a launch needs of its host. A closure that tells the time is one.
pub trait Host {
    /// Nanoseconds after the epoch, for `%globaltimer`.
    fn now(&mut self) -> u64;

    /// All threads that could go on sleep (`nanosleep`), none of them for less than this. Others of the host may have the
    /// core meanwhile; to return early is allowed.
    fn idle(&mut self, _nanoseconds: u32) {}

    /// Whether the launch is to stop, which is asked before each turn of a block's threads.
    fn stops(&mut self) -> bool {
        false
    }
}

impl<F: FnMut() -> u64> Host for F {
    fn now(&mut self) -> u64 {
        self()
    }
}

/// What the threads of a block did when each had its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turns {
    /// All wait for others, or have ended.
    Nothing,
    /// All that could run went to sleep, none for less than this.
    Slept(u32),
    Ran,
}

/// What a launch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Instructions that were run, of all threads; one that its predicate keeps from running counts.
    pub instructions: u64,
    /// Threads of the grid, all of which have ended.
    pub threads: u64,
}

/// A loaded program with its variables, which live from one launch to the next.
#[derive(Debug)]
pub struct Device {
    program: Program,
    image: Vec<u8>,
    /// What registers and stacks of all threads may take, in bytes.
    state: usize,
}

/// Blocks that have ended, whose memory serves the next launch.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Block>);

#[derive(Debug, Default)]
struct Block {
    index: [u32; 3],
    threads: Vec<Thread>,
    shared: Vec<u8>,
    barriers: [barrier::State; 16],
    /// Threads that have not ended.
    live: usize,
    /// One of them has come to a barrier, or to an instruction of its warp.
    has_met: bool,
}

impl Block {
    /// Bytes of what its threads have.
    fn bytes(&self) -> usize {
        self.shared.len() + self.threads.iter().map(Thread::bytes).sum::<usize>()
    }
}

/// What all threads of a launch have in common.
struct Grid<'a, M> {
    program: &'a Program,
    entry: &'a Function,
    launch: &'a Launch<'a>,
    image: &'a mut [u8],
    memory: &'a mut M,
    host: &'a mut dyn Host,
    params: Vec<u8>,
    executed: u64,
    /// For how long the thread whose turn it is went to sleep.
    slept: Option<u32>,
    /// Bytes that registers and stacks may still take.
    state_left: usize,
}

impl Device {
    /// A device with this program, its variables as the text has them.
    pub fn new(program: Program) -> Self {
        let image = program.image.clone();
        Self { program, image, state: STATE_MAX }
    }

    /// Registers and stacks of all threads of a launch may take so many bytes from now on, of at most 512 MiB.
    pub fn limit_state(&mut self, bytes: usize) {
        self.state = bytes.min(STATE_MAX);
    }

    /// The variables are again as the text has them.
    pub fn reset(&mut self) {
        self.image.clone_from(&self.program.image);
    }

    /// The program that it was made with.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// How many blocks of a launch run at the same time, at least 1: others begin as these end. More than the launch has, if
    /// there is room.
    ///
    /// # Errors
    /// There is no such kernel, or no block of this shape can be run.
    pub fn resident_blocks(&self, launch: &Launch<'_>) -> Result<usize, LaunchError> {
        let entry = entry(&self.program, launch)?;
        shape(launch)?;
        let threads = threads(launch);
        let of_block =
            threads * (usize::from(entry.slots) * 8 + entry.frame as usize) + self.program.shared + launch.shared;
        let resident = RESIDENT_MAX.min(self.state / 2 / of_block.max(1));
        if resident == 0 {
            let what =
                format!("a block of {threads} threads with {} registers each takes too much memory", entry.slots);
            return Err(LaunchError::Shape(what));
        }
        Ok(resident)
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// A launch that does not fit, or the first fault, [`FaultKind::Stopped`] if its host stopped it; memory is as the fault left
    /// it.
    pub fn launch<M: Memory>(
        &mut self,
        memory: &mut M,
        launch: &Launch<'_>,
        host: &mut dyn Host,
    ) -> Result<Statistics, LaunchError> {
        self.launch_in(&mut Scratch::default(), memory, launch, host)
    }

    /// The same in memory of launches before, of this program or others: small ones allocate little then. A scratch keeps
    /// 64 KiB at most.
    ///
    /// # Errors
    /// As above.
    pub fn launch_in<M: Memory>(
        &mut self,
        scratch: &mut Scratch,
        memory: &mut M,
        launch: &Launch<'_>,
        host: &mut dyn Host,
    ) -> Result<Statistics, LaunchError> {
        let program = &self.program;
        let entry = entry(program, launch)?;
        let (blocks, resident) = (shape(launch)?, self.resident_blocks(launch)?);
        let expected = entry.parameters.last().map_or(0, |last| last.offset + last.bytes);
        if launch.params.len() != expected {
            return Err(LaunchError::Arguments { expected, given: launch.params.len() });
        }
        let (threads, shared) = (threads(launch), program.shared + launch.shared);
        let mut grid = Grid {
            program,
            entry,
            launch,
            image: &mut self.image,
            memory,
            host,
            params: launch.params.to_vec(),
            executed: 0,
            slept: None,
            state_left: self.state,
        };
        grid.run(&mut scratch.0, blocks, resident, (threads, shared))?;
        Ok(Statistics { instructions: grid.executed, threads: blocks * threads as u64 })
    }
}

/// The kernel that is launched.
fn entry<'p>(program: &'p Program, launch: &Launch<'_>) -> Result<&'p Function, LaunchError> {
    let entry = program.kernels.get(launch.kernel);
    let entry = entry.ok_or_else(|| LaunchError::NoKernel(launch.kernel.to_owned()))?;
    Ok(&program.functions[*entry as usize])
}

/// How many threads a block of a launch has.
fn threads(launch: &Launch<'_>) -> usize {
    launch.block.iter().map(|one| *one as usize).product()
}

/// How many blocks a launch has, if it can be run.
fn shape(launch: &Launch<'_>) -> Result<u64, LaunchError> {
    let [x, y, z] = launch.block.map(u64::from);
    let threads = x.saturating_mul(y).saturating_mul(z);
    let wrong = |what: String| Err(LaunchError::Shape(what));
    if threads == 0 || threads > THREADS_MAX || z > 64 {
        return wrong(format!("a block of {x} x {y} x {z} threads; 1 to {THREADS_MAX} are run, 64 in z"));
    }
    let [x, y, z] = launch.grid.map(u64::from);
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u64 || y > 65535 || z > 65535 {
        return wrong(format!("a grid of {x} x {y} x {z} blocks; 1 to 2147483647 x 65535 x 65535 are run"));
    }
    if launch.shared > SHARED_MAX {
        return wrong(format!("{} bytes of dynamic shared memory; at most {SHARED_MAX}", launch.shared));
    }
    Ok(x * y * z)
}

impl Turns {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Slept(a), Self::Slept(b)) => Self::Slept(a.min(b)),
            _ => Self::Ran,
        }
    }
}

/// Xorshift64*: the order of threads, not a secret.
struct Order(u64);

impl Order {
    #[inline]
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }
}

impl<M: Memory> Grid<'_, M> {
    /// `kept` is empty, or has one block that has ended.
    fn run(
        &mut self,
        kept: &mut Vec<Block>,
        blocks: u64,
        resident: usize,
        (threads, shared): (usize, usize),
    ) -> Result<(), Fault> {
        // Mixed, since xorshift never leaves zero, and seeds that are close begin alike.
        let mut order = Order((self.launch.seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9) | 1);
        let mut running = std::mem::take(kept);
        for block in &mut running {
            block.threads.resize_with(threads, Thread::default);
            block.shared.resize(shared, 0);
        }
        let mut next = 0;
        loop {
            // An ended block's memory serves the next one.
            for block in running.iter_mut().filter(|block| block.live == 0) {
                if next < blocks {
                    self.begin(block, next)?;
                    next += 1;
                }
            }
            if running.iter().all(|block| block.live == 0) && next == blocks {
                running.truncate(1);
                running.retain(|block| block.bytes() <= KEPT_MAX);
                *kept = running;
                return Ok(());
            }
            running.retain(|block| block.live > 0);
            while running.len() < resident && next < blocks {
                let threads = (0..threads).map(|_| Thread::default()).collect();
                running.push(Block { threads, shared: vec![0; shared], ..Block::default() });
                self.begin(running.last_mut().expect("a block"), next)?;
                next += 1;
            }
            let mut all = Turns::Nothing;
            let first = order.below(running.len() as u64) as usize;
            for at in 0..running.len() {
                let at = (first + at) % running.len();
                for _ in 0..ROUNDS {
                    let turns = self.turns(&mut running[at], &mut order)?;
                    all = all.and(turns);
                    if turns != Turns::Ran {
                        break;
                    }
                }
            }
            match all {
                Turns::Nothing => return Err(self.stuck(&running)),
                Turns::Slept(nanoseconds) => self.host.idle(nanoseconds),
                Turns::Ran => {}
            }
        }
    }

    /// Sets a block to the beginning of the kernel.
    fn begin(&mut self, block: &mut Block, number: u64) -> Result<(), Fault> {
        let [x, y, _] = self.launch.grid.map(u64::from);
        block.index = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        block.shared.fill(0);
        if std::mem::take(&mut block.has_met) {
            block.barriers = Default::default();
        }
        block.live = block.threads.len();
        let shape = self.launch.block;
        let mut tid = [0; 3];
        for at in 0..block.threads.len() {
            if let Err(kind) = block.threads[at].begin(self.entry, tid, at as u32, &mut self.state_left) {
                return Err(self.fault(block, at, kind));
            }
            tid[0] += 1;
            for of in 0..2 {
                if tid[of] == shape[of] {
                    (tid[of], tid[of + 1]) = (0, tid[of + 1] + 1);
                }
            }
        }
        Ok(())
    }

    /// Gives each thread of a block that can run a turn.
    fn turns(&mut self, block: &mut Block, order: &mut Order) -> Result<Turns, Fault> {
        let count = block.threads.len();
        if self.host.stops() {
            return Err(self.fault(block, 0, FaultKind::Stopped));
        }
        let first = order.below(count as u64) as usize;
        let mut all = Turns::Nothing;
        for at in 0..count {
            let at = if first + at >= count { first + at - count } else { first + at };
            if block.threads[at].state != State::Ready {
                continue;
            }
            let turn = order.below(TURN_MAX) + 1;
            self.slept = None;
            self.turn(block, at, turn).map_err(|(at, kind)| self.fault(block, at, kind))?;
            all = all.and(self.slept.map_or(Turns::Ran, Turns::Slept));
        }
        Ok(all)
    }

    fn turn(&mut self, block: &mut Block, at: usize, turn: u64) -> Result<(), (usize, FaultKind)> {
        let mine = |kind| (at, kind);
        let left = self.launch.fuel - self.executed;
        if left == 0 {
            return Err(mine(FaultKind::OutOfFuel));
        }
        self.run_thread(block, at, turn.min(left)).map_err(mine)?;
        match block.threads[at].state {
            State::Ready => Ok(()),
            State::Barrier => {
                block.has_met = true;
                self.arrive(block, at)
            }
            State::Warp => {
                block.has_met = true;
                self.meet(block, at).map_err(mine)
            }
            State::Done => {
                block.live -= 1;
                if block.has_met { self.left(block, at) } else { Ok(()) }
            }
        }
    }

    fn fault(&self, block: &Block, at: usize, kind: FaultKind) -> Fault {
        let thread = &block.threads[at];
        let function = self.program.function_at(thread.pc);
        Fault {
            block: block.index,
            thread: thread.tid,
            module: function.map_or(0, |function| function.module),
            function: function.map_or_else(String::new, |function| function.name.clone()),
            line: self.program.lines.get(thread.pc as usize).copied().unwrap_or(0),
            kind,
        }
    }

    /// The first thread that waits, when all wait.
    fn stuck(&self, running: &[Block]) -> Fault {
        let waits = |thread: &Thread| matches!(thread.state, State::Barrier | State::Warp);
        let found = running.iter().find_map(|block| Some((block, block.threads.iter().position(waits)?)));
        let (block, at) = found.unwrap_or((&running[0], 0));
        self.fault(block, at, FaultKind::Divergent)
    }

    fn spaces<'s>(&'s mut self, shared: &'s mut [u8], stack: &'s mut [u8], sp: usize) -> Spaces<'s, M> {
        Spaces {
            memory: self.memory,
            image: self.image,
            constant: self.program.constant,
            params: &mut self.params,
            shared,
            stack,
            sp,
        }
    }
}
