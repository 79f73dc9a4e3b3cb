//! Kernels that the compiler put into the program: it registers its code objects and a stub for each kernel before `main`,
//! and a launch names the stub.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::CString,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_hip::{FunctionInfo, Shape};
use berth_wire::hip::Code;

use crate::{
    args::{Address, Addresses, Dim3, Out, Text},
    image::image,
    library::{DEVICE, Object, Objects, answer, make, objects},
    modules::{block_size, blocks, launch},
};

/// The magic number of [`Wrapper`], and its version.
const WRAPPER: (u32, u32) = (0x4849_5046, 1);

/// `hipErrorInvalidDeviceFunction`.
const INVALID_DEVICE_FUNCTION: Code = Code(98);

/// What a program registers of its code objects.
#[repr(C)]
struct Wrapper {
    magic: u32,
    version: u32,
    binary: Address,
    unused: Address,
}

/// What the program registered.
#[derive(Debug)]
struct Program {
    /// Code objects by their number; 0 is none.
    binaries: BTreeMap<usize, Address>,
    next: usize,
    /// By the address of the stub: the number of the code object, and the name in it.
    stubs: BTreeMap<u64, (usize, CString)>,
}

fn program() -> MutexGuard<'static, Program> {
    static PROGRAM: Mutex<Program> = Mutex::new(Program { binaries: BTreeMap::new(), next: 1, stubs: BTreeMap::new() });
    PROGRAM.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
extern "C" fn __hipRegisterFatBinary(wrapper: Address) -> usize {
    if wrapper.is_null() {
        return 0;
    }
    // SAFETY: the compiler passes a wrapper.
    let wrapper = unsafe { wrapper.pointer().cast::<Wrapper>().read_unaligned() };
    if (wrapper.magic, wrapper.version) != WRAPPER {
        eprintln!("libberth_hip: the program registers code objects of an unknown form");
        return 0;
    }
    let mut program = program();
    let number = program.next;
    program.next += 1;
    program.binaries.insert(number, wrapper.binary);
    number
}

#[unsafe(no_mangle)]
extern "C" fn __hipUnregisterFatBinary(number: usize) {
    let mut program = program();
    program.binaries.remove(&number);
    program.stubs.retain(|_, (of, _)| *of != number);
    // What was loaded of it ends with the session.
    objects(|objects| objects.forget_binary(number));
}

#[unsafe(no_mangle)]
extern "C" fn __hipRegisterFunction(
    number: usize,
    stub: Address,
    _device_function: Address,
    name: Text,
    _thread_limit: u32,
    _tid: Address,
    _bid: Address,
    _block: Address,
    _grid: Address,
    _warp: Address,
) {
    if let Some(name) = name.get() {
        program().stubs.insert(stub.number(), (number, name.to_owned()));
    }
}

/// Variables of devices are not reached from here; what asks for them is told so.
#[unsafe(no_mangle)]
extern "C" fn __hipRegisterVar(
    _number: usize,
    _variable: Address,
    _host: Address,
    _name: Text,
    _is_extern: i32,
    _bytes: usize,
    _is_constant: i32,
    _is_global: i32,
) {
}

#[unsafe(no_mangle)]
extern "C" fn __hipRegisterManagedVar(
    _number: usize,
    _pointer: Address,
    _initial: Address,
    _name: Text,
    _bytes: usize,
    _align: u32,
) {
}

#[unsafe(no_mangle)]
extern "C" fn __hipRegisterSurface(
    _number: usize,
    _variable: Address,
    _host: Address,
    _name: Text,
    _kind: i32,
    _ext: i32,
) {
}

#[unsafe(no_mangle)]
extern "C" fn __hipRegisterTexture(
    _number: usize,
    _variable: Address,
    _host: Address,
    _name: Text,
    _kind: i32,
    _normalized: i32,
    _ext: i32,
) {
}

/// Where a launch between `<<<` and `>>>` goes.
#[derive(Debug, Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: u64,
}

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

#[unsafe(no_mangle)]
extern "C" fn __hipPushCallConfiguration(grid: Dim3, block: Dim3, shared: usize, stream: u64) -> i32 {
    CONFIGURATIONS.with_borrow_mut(|all| all.push(Configuration { grid, block, shared, stream }));
    0
}

#[unsafe(no_mangle)]
extern "C" fn __hipPopCallConfiguration(
    grid: Out<Dim3>,
    block: Out<Dim3>,
    shared: Out<usize>,
    stream: Out<u64>,
) -> i32 {
    answer(|| {
        let (grid, block, shared, stream) = (grid.slot()?, block.slot()?, shared.slot()?, stream.slot()?);
        let last = CONFIGURATIONS.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONFIGURATION)?;
        grid.set(last.grid);
        block.set(last.block);
        shared.set(last.shared);
        stream.set(last.stream);
        Ok(())
    })
}

/// The kernel of a stub, loaded to the thread's device where it is not yet.
fn kernel(stub: Address) -> Result<Arc<FunctionInfo>, Code> {
    let device = DEVICE.get();
    let key = (device, stub.number());
    if let Some(info) = objects(|objects| objects.stubs.get(&key).cloned()) {
        return Ok(info);
    }
    let (number, name, binary) = {
        let program = program();
        let (number, name) = program.stubs.get(&stub.number()).ok_or(INVALID_DEVICE_FUNCTION)?;
        let binary = program.binaries.get(number).ok_or(INVALID_DEVICE_FUNCTION)?;
        (*number, name.clone(), *binary)
    };
    let loaded = objects(|objects| objects.binaries.get(&(device, number)).copied());
    let module = if let Some(module) = loaded {
        module
    } else {
        let image = image(binary)?;
        let keep = |objects: &mut Objects, module: &u64| {
            objects.add(*module, Object::Module);
            objects.binaries.insert((device, number), *module);
        };
        make(|session| session.module_load(image), keep)?
    };
    let get = |session: &berth_hip::Session| session.module_function(module, name.to_bytes()).map(Arc::new);
    let info = make(get, |objects, info| {
        objects.add(info.handle, Object::Function(module, info.clone()));
        objects.stubs.insert(key, info.clone());
    });
    info.map_err(|code| if code == Code::NOT_FOUND { INVALID_DEVICE_FUNCTION } else { code })
}

fn launch_stub(
    stub: Address,
    grid: Dim3,
    block: Dim3,
    arguments: Addresses,
    shared: usize,
    stream: u64,
) -> Result<(), Code> {
    let info = kernel(stub)?;
    let shared = u32::try_from(shared).map_err(|_| Code::INVALID_VALUE)?;
    launch(&info, Shape { grid: grid.into(), block: block.into(), shared }, stream, arguments)
}

#[unsafe(no_mangle)]
extern "C" fn hipLaunchKernel(
    stub: Address,
    grid: Dim3,
    block: Dim3,
    arguments: Addresses,
    shared: usize,
    stream: u64,
) -> i32 {
    answer(|| launch_stub(stub, grid, block, arguments, shared, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipGetFuncBySymbol(to: Out<u64>, stub: Address) -> i32 {
    answer(|| {
        let slot = to.slot()?;
        slot.set(kernel(stub)?.handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipOccupancyMaxPotentialBlockSize(
    grid: Out<i32>,
    block: Out<i32>,
    stub: Address,
    shared: usize,
    limit: i32,
) -> i32 {
    answer(|| block_size((grid, block), kernel(stub)?.handle, shared, limit))
}

#[unsafe(no_mangle)]
extern "C" fn hipOccupancyMaxActiveBlocksPerMultiprocessor(
    to: Out<i32>,
    stub: Address,
    threads: i32,
    shared: usize,
) -> i32 {
    answer(|| blocks(to, kernel(stub)?.handle, threads, shared))
}
