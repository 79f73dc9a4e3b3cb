//! Ring kernels as ports run them: compiled once, an instance for each core, and a log that poll cores never wait for.

use std::{
    fmt,
    io::{Cursor, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use berth_kernels::{Code, Failed, Instance};
use berth_tasklet::{
    hostcall::{Call, Hostcalls, code},
    run::Rejected,
};

use crate::{
    compile::Compiler,
    engine::Pool,
    kernel::{KernelLimits, RingKernel},
    profile::Role,
    run::{Program, Wasm},
};

/// Records that are kept until somebody looks; others are counted.
const RECORDS: usize = 64;

/// Bytes of a record, as of a tasklet's.
const TEXT: usize = 1024;

/// Level of an error.
const ERROR: u32 = 0;

/// A ring kernel's code, ready to run.
pub struct KernelCode {
    name: String,
    program: Arc<Program>,
    limits: KernelLimits,
    log: Log,
    records: Mutex<Receiver<Record>>,
}

impl fmt::Debug for KernelCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelCode").field("name", &self.name).finish_non_exhaustive()
    }
}

impl KernelCode {
    /// Checks and compiles a kernel that is to have so many instances at a time, and makes one to see that it can.
    ///
    /// # Errors
    /// Why it cannot run here.
    pub fn new(
        name: String,
        wasm: &[u8],
        limits: KernelLimits,
        instances: u32,
        compiler: Compiler,
    ) -> Result<Self, String> {
        let pool = Pool { instances, memory: limits.memory };
        let node = Wasm::new(pool, compiler).map_err(|error| format!("{error:#}"))?;
        let program = node.program(wasm, Role::RingKernel).map_err(|rejected| match rejected {
            Rejected::Invalid(why) | Rejected::UnsupportedProfile(why) => why,
        })?;
        let (sender, records) = sync_channel(RECORDS);
        let log = Log { sender, lost: Arc::default() };
        let code = Self { name, program: Arc::new(program), limits, log, records: Mutex::new(records) };
        code.instance()?;
        Ok(code)
    }
}

impl Code for KernelCode {
    fn name(&self) -> &str {
        &self.name
    }

    fn instance(&self) -> Result<Box<dyn Instance>, String> {
        let mut log = self.log.clone();
        let kernel = RingKernel::started(self.program.clone(), self.limits, &mut log);
        let kernel = kernel.map_err(|error| format!("it cannot be started: {error}"))?;
        Ok(Box::new(OnCore { kernel, log }))
    }

    fn take_log(&self, visit: &mut dyn FnMut(u32, &[u8])) -> u64 {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.try_iter().for_each(|record| visit(record.level, &record.text[..record.len]));
        self.log.lost.swap(0, Relaxed)
    }
}

/// An instance with its way to the log.
#[derive(Debug)]
struct OnCore {
    kernel: RingKernel,
    log: Log,
}

impl Instance for OnCore {
    fn answer(&mut self, request: &[u8], response: &mut [u8]) -> Result<(), Failed> {
        match self.kernel.answer(request, &mut self.log, response) {
            Ok(len) if len == response.len() => return Ok(()),
            Ok(len) => self.log.error(format_args!("it answered {len} bytes, its response has {}", response.len())),
            Err(error) => self.log.error(format_args!("{error}")),
        }
        Err(Failed)
    }
}

/// Where records go: never waited for, and nothing is allocated.
#[derive(Debug, Clone)]
struct Log {
    sender: SyncSender<Record>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Record {
    level: u32,
    len: usize,
    text: [u8; TEXT],
}

impl Log {
    fn write(&self, level: u32, fill: impl FnOnce(&mut Cursor<&mut [u8]>)) {
        let mut record = Record { level, len: 0, text: [0; TEXT] };
        let mut text = Cursor::new(&mut record.text[..]);
        fill(&mut text);
        record.len = text.position() as usize;
        if self.sender.try_send(record).is_err() {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    fn error(&self, why: fmt::Arguments<'_>) {
        // What does not fit is cut.
        self.write(ERROR, |text| drop(text.write_fmt(why)));
    }
}

impl Hostcalls for Log {
    fn call(&mut self, call: Call<'_>) -> i64 {
        // The profile of ring kernels lets in no other.
        let Call::Log { level, message } = call else { return code::INTERNAL };
        self.write(level & 0xFF, |text| drop(text.write(message)));
        0
    }

    /// Fuel bounds a message.
    fn turn(&mut self) -> bool {
        true
    }
}
