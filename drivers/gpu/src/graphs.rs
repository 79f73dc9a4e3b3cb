//! Functions as graphs: this process looks at the rings, and launches a kernel for each request (upstream's host path).

use std::{
    thread,
    time::{Duration, Instant},
};

use berth_memory::Memory;
use berth_ring::ErrorCode;

use crate::{
    control::{Code, Function, Functions},
    device::{Buffer, Device, DeviceError, GraphId, Launch, ProgramId},
    dispatch::{DRAIN, LINE, Mapped, THREADS},
    functions::own_texts,
    mapping::Mapping,
};

const REQUEST: u32 = 0x4355_5152;
const RESPONSE: u32 = 0x4355_5153;

const UNKNOWN_FUNCTION: i32 = -1;
const BAD_LENGTH: i32 = -2;
const SCHEMA_MISMATCH: i32 = -3;
const RESULT_TOO_LARGE: i32 = -4;
const HANDLER_FAILED: i32 = -6;

/// What a tx flag is while a graph runs.
const IN_FLIGHT: u64 = 0xEEEE_EEEE_EEEE_EEEE;

/// Bytes of upstream's `GraphIOContext`: `rx_slot`, `tx_slot`, `tx_flag`, `tx_flag_value`, `tx_stride`.
const CONTEXT: usize = 40;

/// Without requests for so long it sleeps between two looks, and for how long.
const IDLE_AFTER: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_micros(50);

/// A ring, and its next slot.
type Ring = (Mapped, u32);

/// Rings whose functions are graphs, with the device that runs them.
pub(crate) struct Graphs {
    device: Box<dyn Device>,
    rings: Vec<Ring>,
    program: ProgramId,
    /// Each with what is started for its requests.
    functions: Vec<(Function, GraphId)>,
    /// The words that a dispatcher's kernel would have: stop, then beats.
    words: Buffer,
    /// The context, and the flag that graphs set: only a whole answer reaches the ring's.
    context: Buffer,
    /// A request, which its sender may write to in its slot.
    request: Buffer,
}

impl Graphs {
    /// Loads what the functions run.
    pub(crate) fn new(
        mut device: Box<dyn Device>,
        rings: Vec<Mapped>,
        functions: &Functions,
        words: Buffer,
    ) -> Result<Self, DeviceError> {
        let texts = own_texts(functions);
        let stride = rings.iter().map(|one| one.ring.front().stride).max().unwrap_or(0);
        let (context, request) = (device.allocate(CONTEXT + 8)?, device.allocate(stride as usize)?);
        let program = device.load(&texts)?;
        let mut prepared = Vec::new();
        for function in &functions.all {
            let Code::Symbol { symbol, .. } = &function.code else { return Err(DeviceError::other("no kernel")) };
            let launch = Launch {
                kernel: symbol.clone(),
                grid: [1; 3],
                block: [if function.parallel { THREADS[1] } else { 1 }, 1, 1],
                shared: 0,
                params: context.address.to_le_bytes().to_vec(),
                endless: false,
            };
            prepared.push((function.clone(), device.prepare(program, &launch)?));
        }
        let rings = rings.into_iter().map(|ring| (ring, 0)).collect();
        Ok(Self { device, rings, program, functions: prepared, words, context, request })
    }

    /// What it loaded.
    pub(crate) fn program(&self) -> ProgramId {
        self.program
    }

    /// Serves until it is to drain and nothing waits, or a kernel fails.
    pub(crate) fn run(mut self) -> (Box<dyn Device>, Result<(), DeviceError>) {
        let (mut beats, mut busy) = (0, Instant::now());
        loop {
            beats += 1;
            self.words.store_u64(LINE, beats);
            let drains = self.words.load_u32(0) == DRAIN;
            let mut served = false;
            for ring in 0..self.rings.len() {
                match self.turn(ring) {
                    Ok(any) => served |= any,
                    Err(e) => return (self.device, Err(e)),
                }
            }
            if served {
                busy = Instant::now();
            } else if drains {
                return (self.device, Ok(()));
            } else if busy.elapsed() > IDLE_AFTER {
                thread::sleep(IDLE);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Serves the next request of a ring, if there is one.
    fn turn(&mut self, ring: usize) -> Result<bool, DeviceError> {
        let (Mapped { ring: mapping, header, frames }, slot) = self.rings[ring].clone();
        let front = *mapping.front();
        // Filled in order; a dispatcher before this one left off anywhere.
        let Some(slot) = (0..front.slots).map(|n| (slot + n) % front.slots).find(|slot| mapping.request(*slot) != 0)
        else {
            return Ok(false);
        };
        self.rings[ring].1 = (slot + 1) % front.slots;
        let [rx, tx] = [front.rx_data, front.tx_data].map(|data| (data + u64::from(slot) * front.stride) as usize);
        let (base, flag) = (mapping.base().addr().get() as u64, mapping.request(slot));
        let in_place = || {
            let frames = frames.as_deref()?;
            let at = (flag as usize).checked_sub(frames.base().addr().get())?;
            (at.checked_add(front.stride as usize)? <= frames.size()).then_some((frames as &dyn Memory, at))
        };
        let request = if flag == base + rx as u64 { Some((&*mapping as &dyn Memory, rx)) } else { in_place() };
        let published = match request {
            Some(request) => self.answer(&mapping, header as usize, request, tx)?,
            None => Err(ErrorCode::BAD_FLAG),
        };
        mapping.publish(slot, published.map_or_else(ErrorCode::to_flag, |()| base + tx as u64));
        Ok(true)
    }

    /// Writes the answer to the request that lies so far into some memory to `tx`, within the mapping.
    fn answer(
        &mut self,
        mapping: &Mapping,
        header: usize,
        (memory, rx): (&dyn Memory, usize),
        tx: usize,
    ) -> Result<Result<(), ErrorCode>, DeviceError> {
        let room = mapping.front().slot_size as usize - header;
        let mut head = [0; 24];
        memory.read_at(rx, &mut head[..header]);
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if word(0) != REQUEST {
            return Ok(Err(ErrorCode::SLOT_REUSED));
        }
        let arg_len = word(8) as usize;
        let found = if arg_len > room { Err(BAD_LENGTH) } else { self.find(word(4), word(8)) };
        let outcome = match found {
            Ok(found) => {
                let mut bytes = vec![0; header + arg_len];
                memory.read_at(rx, &mut bytes);
                bytes[..header].copy_from_slice(&head[..header]);
                self.request.memory.write_at(0, &bytes);
                self.launch(found, mapping, tx)?;
                if self.context.load_u64(CONTEXT) == IN_FLIGHT {
                    return Ok(Err(ErrorCode::UNWOUND));
                }
                let mut said = [0; 12];
                mapping.read_at(tx, &mut said);
                let said: [u32; 3] =
                    std::array::from_fn(|n| u32::from_le_bytes([0, 1, 2, 3].map(|at| said[4 * n + at])));
                match (said[0], said[1] as i32) {
                    (RESPONSE, 0) if said[2] as usize > room => Err(RESULT_TOO_LARGE),
                    (RESPONSE, 0) => Ok(said[2]),
                    (RESPONSE, own) if own > 0 => Err(own),
                    _ => Err(HANDLER_FAILED),
                }
            }
            Err(status) => Err(status),
        };
        // Id and time are the request's, whatever the graph wrote.
        let (status, len) = outcome.map_or_else(|status| (status, 0), |len| (0, len));
        let words = [RESPONSE, status as u32, len].map(u32::to_le_bytes).concat();
        mapping.write_at(tx, &[&words[..], &head[12..header]].concat());
        Ok(Ok(()))
    }

    fn find(&self, id: u32, arg_len: u32) -> Result<usize, i32> {
        let found = self.functions.iter().position(|(function, _)| function.id == id).ok_or(UNKNOWN_FUNCTION)?;
        let Function { fixed, unit, .. } = self.functions[found].0;
        let fits = arg_len.checked_sub(fixed).is_some_and(|more| if unit == 0 { more == 0 } else { more % unit == 0 });
        if fits { Ok(found) } else { Err(SCHEMA_MISMATCH) }
    }

    /// Runs a function's graph to its end.
    fn launch(&mut self, found: usize, mapping: &Mapping, tx: usize) -> Result<(), DeviceError> {
        let tx = mapping.base().addr().get() as u64 + tx as u64;
        let at = self.context.address;
        let words = [self.request.address, tx, at + CONTEXT as u64, tx, mapping.front().stride, IN_FLIGHT];
        self.context.memory.write_at(0, &words.map(u64::to_le_bytes).concat());
        self.device.start(self.functions[found].1)?;
        loop {
            if let Some(ended) = self.device.ended() {
                return ended;
            }
            thread::yield_now();
        }
    }
}
