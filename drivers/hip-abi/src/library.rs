//! What the library holds: the connection, and what the program made in its session.

use std::{
    cell::Cell,
    collections::BTreeMap,
    env,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use berth_hip::{Access, Client, Error, FunctionInfo, Session};
use berth_wire::hip::Code;

/// Names the worker: `HOST:PORT`.
const WORKER: &str = "BERTH_HIP_WORKER";
const USUAL: &str = "127.0.0.1:18515";

/// `hipStreamPerThread`. `hipStreamLegacy` is 1, and the null stream 0.
const PER_THREAD: u64 = 2;

thread_local! {
    /// The device that the thread uses.
    pub(crate) static DEVICE: Cell<i32> = const { Cell::new(0) };
    /// The last error of the thread.
    pub(crate) static LAST: Cell<Code> = const { Cell::new(Code::SUCCESS) };
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { session: None, complained: false, objects: Objects::new() });

struct Library {
    session: Option<Session>,
    /// Whether the program was told that no worker answers.
    complained: bool,
    objects: Objects,
}

/// Memory of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) device: i32,
}

/// What a handle stands for.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    Stream,
    Event,
    Module,
    /// A kernel, and its module.
    Function(u64, Arc<FunctionInfo>),
    Graph,
    GraphExec,
}

/// What the program made in the session. A worker would refuse a wrong handle later, behind calls that are not waited for;
/// this refuses it at once.
#[derive(Debug)]
pub(crate) struct Objects {
    /// By where it begins.
    pub(crate) memory: BTreeMap<u64, Allocation>,
    handles: BTreeMap<u64, Object>,
    /// Modules that were loaded for kernels' stubs: by device, and by the number of their code object.
    pub(crate) binaries: BTreeMap<(i32, usize), u64>,
    /// Kernels of stubs: by device, and by the address of the stub.
    pub(crate) stubs: BTreeMap<(i32, u64), Arc<FunctionInfo>>,
}

impl Objects {
    const fn new() -> Self {
        Self { memory: BTreeMap::new(), handles: BTreeMap::new(), binaries: BTreeMap::new(), stubs: BTreeMap::new() }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// The allocation that an address is in, and where it begins; `None` outside of all.
    pub(crate) fn allocation(&self, at: u64) -> Option<(u64, Allocation)> {
        let (begin, allocation) = self.memory.range((Bound::Unbounded, Bound::Included(at))).next_back()?;
        (at - begin < allocation.bytes).then_some((*begin, *allocation))
    }

    /// Refuses a range that begins in no allocation (`INVALID_DEVICE_POINTER`) or leaves it (`INVALID_VALUE`).
    pub(crate) fn range(&self, at: u64, bytes: u64) -> Result<(), Code> {
        let (begin, allocation) = self.allocation(at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        if bytes <= allocation.bytes - (at - begin) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    pub(crate) fn add(&mut self, handle: u64, object: Object) {
        self.handles.insert(handle, object);
    }

    /// Forgets a handle of a kind.
    pub(crate) fn remove(&mut self, handle: u64, is_kind: fn(&Object) -> bool) -> Result<(), Code> {
        self.check(handle, is_kind)?;
        self.handles.remove(&handle);
        Ok(())
    }

    /// Forgets a module and its functions.
    pub(crate) fn remove_module(&mut self, module: u64) -> Result<(), Code> {
        self.remove(module, |object| matches!(object, Object::Module))?;
        self.handles.retain(|_, object| !matches!(object, Object::Function(of, _) if *of == module));
        self.binaries.retain(|_, loaded| *loaded != module);
        Ok(())
    }

    /// Forgets what was loaded of a code object of the program.
    pub(crate) fn forget_binary(&mut self, number: usize) {
        let modules: Vec<_> =
            self.binaries.extract_if(.., |(_, of), _| *of == number).map(|(_, module)| module).collect();
        for module in modules {
            let _ = self.remove_module(module);
        }
        let handles = &self.handles;
        self.stubs.retain(|_, info| handles.contains_key(&info.handle));
    }

    /// Refuses a handle that is not known or not of a kind (`INVALID_HANDLE`).
    pub(crate) fn check(&self, handle: u64, is_kind: fn(&Object) -> bool) -> Result<(), Code> {
        let found = self.handles.get(&handle).is_some_and(is_kind);
        if found { Ok(()) } else { Err(Code::INVALID_HANDLE) }
    }

    /// The worker's number of a stream. Those that HIP has without making them are its default stream.
    pub(crate) fn stream(&self, stream: u64) -> Result<u64, Code> {
        if stream <= PER_THREAD {
            return Ok(0);
        }
        self.check(stream, |object| matches!(object, Object::Stream))?;
        Ok(stream)
    }

    /// What the worker said of a function.
    pub(crate) fn function(&self, handle: u64) -> Result<Arc<FunctionInfo>, Code> {
        match self.handles.get(&handle) {
            Some(Object::Function(_, info)) => Ok(info.clone()),
            _ => Err(Code::INVALID_HANDLE),
        }
    }
}

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at what the program made.
pub(crate) fn objects<T>(f: impl FnOnce(&mut Objects) -> T) -> T {
    f(&mut library().objects)
}

/// Calls `f` with the session, connected to where there is none, and the thread's device.
pub(crate) fn on<T>(f: impl FnOnce(&Session) -> Result<T, Error>) -> Result<T, Code> {
    on_device(DEVICE.get(), f)
}

/// The same with a device.
pub(crate) fn on_device<T>(device: i32, f: impl FnOnce(&Session) -> Result<T, Error>) -> Result<T, Code> {
    let session = session()?;
    let result = session.of_device(device).and_then(|session| f(&session));
    result.map_err(|error| {
        if error.ends_session() {
            ended(&session, &error);
        }
        error.code()
    })
}

/// Makes an object of the session, and keeps it.
pub(crate) fn make<T>(
    f: impl FnOnce(&Session) -> Result<T, Error>,
    keep: impl FnOnce(&mut Objects, &T),
) -> Result<T, Code> {
    on(|session| {
        let made = f(session)?;
        let mut library = library();
        // Another thread may have found the session ended, and what was in it is forgotten.
        if library.session.as_ref().is_some_and(|present| present.is_same(session)) {
            keep(&mut library.objects, &made);
            Ok(made)
        } else {
            Err(Error::Gone)
        }
    })
}

fn session() -> Result<Session, Code> {
    let mut library = library();
    if let Some(session) = &library.session {
        return Ok(session.clone());
    }
    let worker = env::var(WORKER).unwrap_or_else(|_| USUAL.to_owned());
    let why = match Access::from_env() {
        Ok(access) => match Client::connect_with(worker.as_str(), access).and_then(|client| client.session(0)) {
            Ok(session) => {
                library.complained = false;
                return Ok(library.session.insert(session).clone());
            }
            Err(error) => format!("{worker} ({WORKER}): {error}"),
        },
        Err(error) => error.to_string(),
    };
    if !library.complained {
        eprintln!("libberth_hip: {why}");
        library.complained = true;
    }
    Err(Code::NO_DEVICE)
}

/// Forgets a session and what was in it. The next call connects again.
fn ended(session: &Session, error: &Error) {
    let mut library = library();
    if library.session.as_ref().is_some_and(|present| present.is_same(session)) {
        eprintln!("libberth_hip: {error}");
        library.session = None;
        library.objects.clear();
    }
}

/// What a call returns; an error stays the thread's last one, unless it only says that something is not there, not done or
/// not supported.
pub(crate) fn answer(call: impl FnOnce() -> Result<(), Code>) -> i32 {
    let code = call().err().unwrap_or(Code::SUCCESS);
    if ![Code::SUCCESS, Code::NOT_FOUND, Code::NOT_READY, Code::NOT_SUPPORTED].contains(&code) {
        LAST.set(code);
    }
    code.0
}
