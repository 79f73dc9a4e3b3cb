//! Modules, their functions, launches.

use std::{fs, sync::Arc};

use berth_hip::{FunctionInfo, Session, Shape};
use berth_wire::hip::Code;

use crate::{
    args::{Address, Addresses, Out, Text},
    image::image,
    library::{Object, answer, make, objects, on},
};

/// `hipErrorFileNotFound`.
const FILE_NOT_FOUND: Code = Code(301);

/// `HIP_LAUNCH_PARAM_BUFFER_POINTER`, `_BUFFER_SIZE`, `_END`.
const EXTRA_BUFFER: u64 = 1;
const EXTRA_SIZE: u64 = 2;
const EXTRA_END: u64 = 3;

fn load(to: Out<u64>, image: &[u8]) -> Result<(), Code> {
    let slot = to.slot()?;
    slot.set(make(|session| session.module_load(image), |objects, handle| objects.add(*handle, Object::Module))?);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleLoad(to: Out<u64>, path: Text) -> i32 {
    answer(|| {
        let path = path.get().and_then(|path| path.to_str().ok()).ok_or(Code::INVALID_VALUE)?;
        load(to, &fs::read(path).map_err(|_| FILE_NOT_FOUND)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleLoadData(to: Out<u64>, at: Address) -> i32 {
    answer(|| load(to, image(at)?))
}

/// The options are those of a compiler, of which there is none here.
#[unsafe(no_mangle)]
extern "C" fn hipModuleLoadDataEx(to: Out<u64>, at: Address, _count: u32, _options: Address, _values: Address) -> i32 {
    answer(|| load(to, image(at)?))
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleUnload(module: u64) -> i32 {
    answer(|| {
        objects(|objects| objects.remove_module(module))?;
        on(|session| session.module_unload(module))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleGetFunction(to: Out<u64>, module: u64, name: Text) -> i32 {
    answer(|| {
        let (slot, name) = (to.slot()?, name.get().ok_or(Code::INVALID_VALUE)?);
        objects(|objects| objects.check(module, |object| matches!(object, Object::Module)))?;
        let get = |session: &Session| session.module_function(module, name.to_bytes()).map(Arc::new);
        let info = make(get, |objects, info| objects.add(info.handle, Object::Function(module, info.clone())))?;
        slot.set(info.handle);
        Ok(())
    })
}

/// The argument buffer of a kernel, from a pointer for each parameter.
fn each(function: &FunctionInfo, arguments: Addresses) -> Result<Vec<u8>, Code> {
    let mut buffer = vec![0; function.bytes as usize];
    for (index, (offset, size)) in function.parameters.iter().enumerate() {
        let (offset, size) = (*offset as usize, *size as usize);
        let argument = if arguments.is_null() { None } else { Some(arguments.get(index)) };
        let argument = argument.filter(|argument| !argument.is_null()).ok_or(Code::INVALID_VALUE)?;
        buffer[offset..offset + size].copy_from_slice(argument.bytes(size));
    }
    Ok(buffer)
}

/// The argument buffer that `extra` says.
fn whole(extra: Addresses) -> Result<Vec<u8>, Code> {
    let (mut buffer, mut size, mut at) = (None, None, 0);
    loop {
        match extra.get(at).number() {
            EXTRA_END => break,
            EXTRA_BUFFER => buffer = Some(extra.get(at + 1)),
            EXTRA_SIZE => size = Some(extra.get(at + 1)),
            _ => return Err(Code::INVALID_VALUE),
        }
        at += 2;
        if at > 4 {
            return Err(Code::INVALID_VALUE);
        }
    }
    let (Some(buffer), Some(size)) = (buffer, size) else { return Err(Code::INVALID_VALUE) };
    if buffer.is_null() || size.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut len = [0; size_of::<usize>()];
    len.copy_from_slice(size.bytes(size_of::<usize>()));
    Ok(buffer.bytes(usize::from_ne_bytes(len)).to_vec())
}

/// Starts a kernel with a pointer for each of its parameters.
pub(crate) fn launch(function: &FunctionInfo, shape: Shape, stream: u64, arguments: Addresses) -> Result<(), Code> {
    let stream = objects(|objects| objects.stream(stream))?;
    let buffer = each(function, arguments)?;
    on(|session| session.launch(function.handle, shape, stream, &buffer))
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleLaunchKernel(
    function: u64,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: u64,
    arguments: Addresses,
    extra: Addresses,
) -> i32 {
    answer(|| {
        let info = objects(|objects| objects.function(function))?;
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        if extra.is_null() {
            return launch(&info, shape, stream, arguments);
        }
        if !arguments.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let stream = objects(|objects| objects.stream(stream))?;
        let buffer = whole(extra)?;
        on(|session| session.launch(function, shape, stream, &buffer))
    })
}

/// Blocks and threads that fill the device.
pub(crate) fn block_size(to: (Out<i32>, Out<i32>), function: u64, shared: usize, limit: i32) -> Result<(), Code> {
    let (blocks, threads) = (to.0.slot()?, to.1.slot()?);
    let found = on(|session| session.occupancy_block_size(function, shared as u64, limit))?;
    blocks.set(found.0);
    threads.set(found.1);
    Ok(())
}

/// Blocks that a multiprocessor runs at once.
pub(crate) fn blocks(to: Out<i32>, function: u64, threads: i32, shared: usize) -> Result<(), Code> {
    let slot = to.slot()?;
    slot.set(on(|session| session.occupancy_blocks(function, threads, shared as u64))?);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleOccupancyMaxPotentialBlockSize(
    grid: Out<i32>,
    block: Out<i32>,
    function: u64,
    shared: usize,
    limit: i32,
) -> i32 {
    answer(|| {
        objects(|objects| objects.function(function))?;
        block_size((grid, block), function, shared, limit)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
    to: Out<i32>,
    function: u64,
    threads: i32,
    shared: usize,
) -> i32 {
    answer(|| {
        objects(|objects| objects.function(function))?;
        blocks(to, function, threads, shared)
    })
}
