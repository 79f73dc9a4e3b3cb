//! Modules, functions and launches.

use std::sync::Arc;

use berth_port::Nanos;
use berth_wire::hip::{
    Code, NAME_MAX, Op,
    launch::Arguments,
    name,
    request::{self as q, ModuleLoadAndGet},
    response as r,
};

use super::{int, long, view};
use crate::{
    device::{Device, Kernel, Launch, Loaded, Properties},
    objects::{Function, Module, Node, Object},
    session::{Flow, Session, done, put},
};

impl<D: Device> Session<D> {
    pub(super) fn load(&mut self, size: u64) -> Result<Flow, Code> {
        if size > self.rest {
            return Err(Code::INVALID_VALUE);
        }
        self.objects.room(1)?;
        Ok(Flow::Image(size, None))
    }

    pub(super) fn load_and_get(&mut self, payload: &[u8]) -> Result<Flow, Code> {
        let request = view::<ModuleLoadAndGet>(payload)?;
        let (size, len) = (request.data_size.get(), request.name_length.get() as usize);
        if len > NAME_MAX {
            return Err(Code::INVALID_VALUE);
        }
        let name = payload.get(ModuleLoadAndGet::LEN..ModuleLoadAndGet::LEN + len).ok_or(Code::INVALID_VALUE)?;
        let name = std::str::from_utf8(name).map_err(|_| Code::NOT_FOUND)?;
        if size > self.rest {
            return Err(Code::INVALID_VALUE);
        }
        self.objects.room(2)?;
        Ok(Flow::Image(size, Some(name.to_owned())))
    }

    /// Gives a module, and the function that is wanted with it, handles.
    pub(crate) fn add_module(&mut self, loaded: Loaded, function: Option<&str>, room: &mut [u8]) -> Result<Flow, Code> {
        let kernels: Arc<[Kernel]> = loaded.kernels.into();
        let wanted = function.map(|name| find(&kernels, name)).transpose()?;
        self.objects.room(1 + usize::from(wanted.is_some()))?;
        let module = Module { id: loaded.module, device: self.current, kernels, functions: Vec::new() };
        let module = self.objects.add(Object::Module(module))?;
        let Some(wanted) = wanted else { return Ok(long(room, module)) };
        let (function, kernel, kernels) = self.function(module, wanted)?;
        let kernel = &kernels[kernel];
        let answer = r::ModuleFunction {
            error_code: 0.into(),
            module: module.into(),
            function: function.into(),
            num_args: kernel.argument_bytes.into(),
            num_params: (kernel.parameters.len() as u32).into(),
            params: params(kernel),
        };
        Ok(put(room, &answer))
    }

    /// The handle of a function of a module.
    fn function(&mut self, module: u64, kernel: usize) -> Result<(u64, usize, Arc<[Kernel]>), Code> {
        let found = self.objects.module(module)?;
        let kernels = found.kernels.clone();
        if let Some((_, handle)) = found.functions.iter().find(|(known, _)| *known == kernel) {
            return Ok((*handle, kernel, kernels));
        }
        let function = Function { module: found.id, device: found.device, kernels: kernels.clone(), kernel };
        let handle = self.objects.add(Object::Function(function))?;
        self.objects.module_mut(module)?.functions.push((kernel, handle));
        Ok((handle, kernel, kernels))
    }

    pub(super) fn get_function(&mut self, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        let request = view::<q::ModuleGetFunction>(payload)?;
        let module = request.module.get();
        let kernels = &self.objects.module(module)?.kernels;
        let name = name(&payload[q::ModuleGetFunction::LEN..]).and_then(|name| std::str::from_utf8(name).ok());
        let kernel = find(kernels, name.ok_or(Code::NOT_FOUND)?)?;
        let (function, kernel, kernels) = self.function(module, kernel)?;
        let kernel = &kernels[kernel];
        let answer = r::Function {
            error_code: 0.into(),
            function: function.into(),
            num_args: kernel.argument_bytes.into(),
            num_params: (kernel.parameters.len() as u32).into(),
            params: params(kernel),
        };
        Ok(put(room, &answer))
    }

    pub(super) fn unload(&mut self, handle: u64, room: &mut [u8]) -> Result<Flow, Code> {
        self.objects.module(handle)?;
        if let Some(Object::Module(module)) = self.objects.remove(handle) {
            for (_, function) in module.functions {
                self.objects.remove(function);
            }
            self.device.unload(module.id);
        }
        Ok(done(room))
    }

    pub(super) fn launch(&mut self, payload: &[u8], room: &mut [u8], now: Nanos) -> Result<Flow, Code> {
        let request = view::<q::Launch>(payload)?;
        if self.rest > 0 {
            // Longer than any launch: what it describes may lie beyond what is here.
            return Err(Code::INVALID_VALUE);
        }
        let arguments = Arguments::parse(payload, &mut self.sorted).ok_or(Code::INVALID_VALUE)?;
        let function = self.objects.function(request.function.get())?;
        self.device.lost(function.device).map_or(Ok(()), Err)?;
        let kernel = &function.kernels[function.kernel];
        let buffer = argument_buffer(kernel, request.launch_flags.get(), &arguments)?;
        let (grid, block) = (request.grid.map(u32::from), request.block.map(u32::from));
        let shared = request.shared_mem.get();
        shape(&self.device.properties()[function.device], grid, block, shared)?;
        let launch =
            Launch { module: function.module, kernel: function.kernel, grid, block, shared, arguments: buffer };
        let (start, stop) = (request.start_event.get(), request.stop_event.get());
        for event in [start, stop].into_iter().filter(|event| *event != 0) {
            self.objects.event(event)?;
        }
        let stream = request.stream.get();
        if self.is_captured(stream)? {
            self.record(stream, Node::Launch(launch))?;
            return Ok(done(room));
        }
        if start != 0 {
            self.record_event(start, now)?;
        }
        self.begin_launch(launch, stream, now);
        if stop != 0 {
            self.record_event(stop, now)?;
        }
        Ok(done(room))
    }

    pub(super) fn occupancy(&mut self, op: Op, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        let function = self.objects.function(view::<q::Handle>(payload)?.handle.get())?;
        let properties = &self.device.properties()[function.device];
        let [blocks, threads] = properties.resident;
        if op == Op::OccupancyBlockSize {
            let request = view::<q::PotentialBlockSize>(payload)?;
            let most = properties.block_threads as i32;
            let limit = request.block_size_limit.get();
            let block = if limit > 0 { limit.min(most) } else { most };
            let grid = properties.processors * (threads / block as u32).min(blocks);
            let answer = r::BlockSize {
                error_code: 0.into(),
                min_grid_size: (grid.max(1) as i32).into(),
                block_size: block.into(),
            };
            return Ok(put(room, &answer));
        }
        let request = view::<q::ActiveBlocks>(payload)?;
        let block = u32::try_from(request.block_size.get()).ok().filter(|block| *block > 0);
        let block = block.ok_or(Code::INVALID_VALUE)?;
        let fits =
            block <= properties.block_threads && request.dyn_shared_mem.get() <= u64::from(properties.shared_memory);
        Ok(int(room, if fits { (threads / block).min(blocks) as i32 } else { 0 }))
    }
}

fn find(kernels: &[Kernel], name: &str) -> Result<usize, Code> {
    kernels.iter().position(|kernel| kernel.name == name).ok_or(Code::NOT_FOUND)
}

fn params(kernel: &Kernel) -> [r::Parameter; 64] {
    let mut params = [r::Parameter::zeroed(); 64];
    for (param, (offset, size)) in params.iter_mut().zip(&kernel.parameters) {
        *param = r::Parameter { offset: (*offset).into(), size: (*size).into() };
    }
    params
}

/// The argument buffer of a launch ("Launch").
fn argument_buffer(kernel: &Kernel, flags: u32, arguments: &Arguments<'_>) -> Result<Vec<u8>, Code> {
    let mut buffer = vec![0; kernel.argument_bytes as usize];
    match flags {
        0 if arguments.len() == kernel.parameters.len() => {
            for ((from, given), (to, size)) in arguments.iter().zip(&kernel.parameters) {
                if given < *size {
                    return Err(Code::INVALID_VALUE);
                }
                let (from, to, size) = (from as usize, *to as usize, *size as usize);
                buffer[to..to + size].copy_from_slice(&arguments.bytes()[from..from + size]);
            }
        }
        1 => {
            let len = arguments.end().min(buffer.len());
            buffer[..len].copy_from_slice(&arguments.bytes()[..len]);
        }
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(buffer)
}

/// Whether the device runs such a launch.
fn shape(properties: &Properties, grid: [u32; 3], block: [u32; 3], shared: u32) -> Result<(), Code> {
    let within =
        |values: [u32; 3], limits: [u32; 3]| values.iter().zip(limits).all(|(value, most)| (1..=most).contains(value));
    let product =
        |values: [u32; 3]| values.iter().try_fold(1_u64, |product, value| product.checked_mul(u64::from(*value)));
    let threads = product(block).unwrap_or(u64::MAX);
    let all = product(grid).and_then(|blocks| blocks.checked_mul(threads));
    let fits = within(grid, properties.grid)
        && within(block, properties.block)
        && threads <= u64::from(properties.block_threads)
        && all.is_some()
        && shared <= properties.shared_memory;
    if fits { Ok(()) } else { Err(Code::INVALID_CONFIGURATION) }
}
