//! The dispatcher on a device: rings and functions in, a kernel that runs.

use std::{
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, JoinHandle},
};

use berth_memory::Memory as _;

use crate::{
    control::{Code, Functions, VramFd},
    device::{Buffer, Device, DeviceError, Launch, ProgramId},
    functions::{MIXED, OWN, are_graphs, glue, mixed, texts},
    graphs::Graphs,
    mapping::{FileMap, Mapping},
};

/// What is said of graphs whose requests lie in memory of the device.
pub(crate) const POSTED: &str = "mode = \"graph\" needs requests in memory of the host: write memory = \"pinned\"";

/// Values of the word `stop`, by which a kernel is told to run on or to leave.
const RUN: u32 = 0;
pub(crate) const DRAIN: u32 = 1;

/// Bytes from the word `stop` to the first block's beats, and from each block's to the next one's.
pub(crate) const LINE: usize = 64;

/// Bytes of `struct ring`.
const RING: usize = 72;

/// Threads of a block where functions are called by one of them; where all call one.
pub(crate) const THREADS: [u32; 2] = [32, 128];

/// A device that a thread for graphs had, and how that ended.
type Ended = (Box<dyn Device>, Result<(), DeviceError>);

/// A ring that is to be served.
pub(crate) struct ServedRing {
    pub(crate) mapping: Arc<Mapping>,
    /// Bytes of its messages' header.
    pub(crate) header: u32,
    /// Memory of the device that has its requests.
    pub(crate) posted: Option<(OwnedFd, VramFd)>,
    /// Memory in which they may lie besides.
    pub(crate) frames: Option<Arc<FileMap>>,
}

/// A ring, as a thread for graphs reads it.
#[derive(Clone)]
pub(crate) struct Mapped {
    pub(crate) ring: Arc<Mapping>,
    /// Bytes of its messages' header.
    pub(crate) header: u32,
    pub(crate) frames: Option<Arc<FileMap>>,
}

/// Rings that a device serves.
pub(crate) struct Dispatcher {
    /// `None` while a thread for graphs has it.
    device: Option<Box<dyn Device>>,
    graphs: Option<JoinHandle<Ended>>,
    /// What it runs, or ran.
    program: Option<ProgramId>,
    mappings: Vec<Mapped>,
    /// Why it does not read requests where they were received.
    unread: Option<String>,
    /// Requests of some ring are in memory of the device, which this process does not read.
    has_posted: bool,
    /// Descriptions of all rings, as kernels read them.
    rings: Buffer,
    blocks: u32,
    all_blocks: u32,
    /// Of each block: the request, then the answer.
    shared: usize,
    /// The word `stop`, and a counter of each block.
    words: Buffer,
    beats: Vec<u64>,
    is_running: bool,
}

impl Dispatcher {
    /// Makes these rings known to the device; `blocks` serve each.
    pub(crate) fn open(mut device: Box<dyn Device>, rings: Vec<ServedRing>, blocks: u32) -> Result<Self, DeviceError> {
        let all_blocks = blocks * rings.len() as u32;
        let described = device.allocate(RING * rings.len())?;
        let words = device.allocate(LINE * (1 + all_blocks as usize))?;
        let (mut shared, mut has_posted, mut unread) = (0, false, None);
        let mut mappings = Vec::new();
        for (index, ServedRing { mapping, header, posted, frames }) in rings.into_iter().enumerate() {
            let (front, base) = (*mapping.front(), mapping.base().addr().get() as u64);
            if front.slots % blocks != 0 {
                let message = format!("{} slots cannot be shared among {blocks} blocks", front.slots);
                return Err(DeviceError::other(message));
            }
            shared = shared.max(2 * front.stride as usize);
            let mut long = [front.rx_flags, front.tx_flags, front.rx_data, front.tx_data].map(|offset| base + offset);
            let is_posted = u32::from(posted.is_some());
            if let Some((exported, VramFd { bytes, at, slots, .. })) = posted {
                device.attach(&[exported], bytes, at)?;
                (long[0], long[2], has_posted) = (at, at + slots as u64, true);
            }
            let mut bytes: Vec<u8> = long.into_iter().chain([front.stride]).flat_map(u64::to_le_bytes).collect();
            let words = [front.slots, front.slot_size as u32, header, is_posted];
            bytes.extend(words.into_iter().flat_map(u32::to_le_bytes));
            let mut elsewhere = [0; 2];
            if let Some(frames) = &frames {
                // A stride's bytes are read from wherever a request begins.
                let begins = (frames.size() + 1).saturating_sub(front.stride as usize);
                elsewhere = [frames.base().addr().get() as u64, begins as u64];
                if let Err(why) = device.register_to_read(frames.clone()) {
                    (unread, elsewhere) = (Some(why.message), [0; 2]);
                }
            }
            bytes.extend(elsewhere.into_iter().flat_map(u64::to_le_bytes));
            described.memory.write_at(RING * index, &bytes);
            mappings.push(Mapped { ring: mapping.clone(), header, frames });
            device.register(mapping)?;
        }
        Ok(Self {
            device: Some(device),
            graphs: None,
            program: None,
            mappings,
            unread,
            has_posted,
            rings: described,
            blocks,
            all_blocks,
            shared,
            words,
            beats: Vec::new(),
            is_running: false,
        })
    }

    /// Loads these functions and starts the kernel, or the thread that launches graphs. None may be running.
    pub(crate) fn start(&mut self, functions: &Functions) -> Result<(), DeviceError> {
        let mut device = self.device.take().ok_or_else(|| DeviceError::other("the device is lost"))?;
        self.words.store_u32(0, RUN);
        self.program.take().into_iter().for_each(|program| device.unload(program));
        if are_graphs(functions) {
            if mixed(functions).is_some() {
                return Err(DeviceError::other(MIXED));
            }
            if self.has_posted {
                return Err(DeviceError::other(POSTED));
            }
            let graphs = Graphs::new(device, self.mappings.clone(), functions, self.words.clone());
            let graphs = graphs.map_err(|e| named(&e, functions, 0))?;
            self.program = Some(graphs.program());
            let thread = thread::Builder::new().name("graphs".into()).spawn(move || graphs.run());
            self.graphs = Some(thread.map_err(|e| DeviceError::other(format!("cannot start a thread: {e}")))?);
            self.beats = vec![0];
        } else {
            self.program = Some(self.launch(&mut *device, functions)?);
            self.device = Some(device);
            self.beats = vec![0; self.all_blocks as usize];
        }
        self.is_running = true;
        Ok(())
    }

    fn launch(&self, device: &mut dyn Device, functions: &Functions) -> Result<ProgramId, DeviceError> {
        let mut tables = Vec::new();
        for function in &functions.all {
            if let Code::MockDecode { measurements, observables, rows } = &function.code {
                tables.push(table(device, *measurements, *observables, rows)?);
            }
        }
        let glue = glue(functions, &tables);
        let program = device.load(&texts(functions, &glue)).map_err(|e| named(&e, functions, OWN))?;
        let (idle_after, idle) = device.idling();
        let beats = self.words.address + LINE as u64;
        let mut params = self.rings.address.to_le_bytes().to_vec();
        params.extend(u64::from(self.blocks).to_le_bytes());
        params.extend([self.words.address, beats, idle_after].into_iter().flat_map(u64::to_le_bytes));
        params.extend(idle.to_le_bytes());
        let is_parallel = functions.all.iter().any(|function| function.parallel);
        let launch = Launch {
            kernel: "berth_dispatch".into(),
            grid: [self.all_blocks, 1, 1],
            block: [THREADS[usize::from(is_parallel)], 1, 1],
            shared: self.shared,
            params,
            endless: true,
        };
        device.launch(program, &launch)?;
        Ok(program)
    }

    /// Which device it is: kind and name.
    pub(crate) fn identity(&self) -> Option<(&'static str, &str)> {
        self.device.as_ref().map(|device| (device.kind(), device.place()))
    }

    /// Why requests are to be copied into their slots, if they are.
    pub(crate) fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// Whether the kernel runs; not if it was not started, or its end was told.
    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    /// Asks the kernel to answer what it has, and to leave.
    pub(crate) fn drain(&self) {
        self.words.store_u32(0, DRAIN);
    }

    /// How the kernel ended, told once.
    pub(crate) fn ended(&mut self) -> Option<Result<(), DeviceError>> {
        let ended = match self.graphs.take_if(|thread| thread.is_finished()) {
            Some(thread) => {
                let (device, ended) = thread.join().ok()?;
                self.device = Some(device);
                ended
            }
            None => self.device.as_mut()?.ended()?,
        };
        self.is_running = false;
        Some(ended)
    }

    /// Whether every block has gone round its loop since this was last true.
    pub(crate) fn has_beaten(&mut self) -> bool {
        let now: Vec<_> = (1..=self.beats.len()).map(|line| self.words.load_u64(LINE * line)).collect();
        let all = now.iter().zip(&self.beats).all(|(now, before)| now != before);
        if all {
            self.beats = now;
        }
        all
    }
}

/// An error with the name of the text that it is about, of which `own` come before those of the functions.
fn named(e: &DeviceError, functions: &Functions, own: usize) -> DeviceError {
    let module = e.module.and_then(|module| functions.modules.get(module.checked_sub(own)?));
    let message = module.map_or_else(|| e.message.clone(), |module| format!("{}: {}", module.name, e.message));
    DeviceError { message, ..*e }
}

/// The table of a `mock_decode`, as its kernel reads it.
fn table(device: &mut dyn Device, measurements: u32, observables: u32, rows: &str) -> Result<u64, DeviceError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    let rows: Option<Vec<u8>> = rows.as_bytes().chunks(2).map(byte).collect();
    let row = (measurements as usize + observables as usize).max(1);
    let rows = rows.filter(|rows| rows.len().is_multiple_of(row));
    let rows = rows.ok_or_else(|| DeviceError::other("a table that does not add up"))?;
    let front = [(rows.len() / row) as u32, measurements, observables, 0];
    let table = device.allocate(16 + rows.len())?;
    table.memory.write_at(0, &front.map(u32::to_le_bytes).concat());
    table.memory.write_at(16, &rows);
    Ok(table.address)
}
