//! What handles stand for.

use std::{collections::HashMap, sync::Arc};

use berth_port::Nanos;
use berth_wire::hip::Code;

use crate::{
    Random,
    device::{Copy2d, Kernel, Launch},
};

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// What was recorded, while it is captured.
    pub(crate) capture: Option<Graph>,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) has_time: bool,
    pub(crate) state: Recorded,
}

/// When an event was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    Never,
    /// The work before it goes on.
    Pending,
    At(Nanos),
}

#[derive(Debug)]
pub(crate) struct Module {
    /// What the device calls it.
    pub(crate) id: u64,
    /// On which its kernels run.
    pub(crate) device: usize,
    pub(crate) kernels: Arc<[Kernel]>,
    /// Functions that were asked for: which kernel, and the handle.
    pub(crate) functions: Vec<(usize, u64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) device: usize,
    pub(crate) kernels: Arc<[Kernel]>,
    pub(crate) kernel: usize,
}

/// Work that is done in order.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Allocations with the data of copies to the device.
    pub(crate) buffers: Vec<u64>,
    /// Bytes of the nodes.
    pub(crate) bytes: usize,
}

/// One piece of work.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    Launch(Launch),
    Set {
        dst: u64,
        len: u64,
        value: u8,
    },
    Copy(Copy2d),
    /// Records an event, if it still exists.
    Record(u64),
}

impl Node {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + if let Self::Launch(launch) = self { launch.arguments.len() } else { 0 }
    }
}

/// Anything with a handle.
#[derive(Debug)]
pub(crate) enum Object {
    Stream(Stream),
    Event(Event),
    Module(Module),
    Function(Function),
    Graph(Arc<Graph>),
    Exec(Arc<Graph>),
}

/// All objects of a session, by their handles.
pub(crate) struct Objects {
    all: HashMap<u64, Object>,
    most: usize,
    random: Random,
}

/// One accessor for each kind of object: only a handle of that kind is found.
macro_rules! accessors {
    ($($get:ident $get_mut:ident $kind:ident: $ty:ty;)*) => {$(
        pub(crate) fn $get(&self, handle: u64) -> Result<&$ty, Code> {
            match self.all.get(&handle) {
                Some(Object::$kind(object)) => Ok(object),
                _ => Err(Code::INVALID_HANDLE),
            }
        }

        #[allow(dead_code, reason = "not every kind is changed")]
        pub(crate) fn $get_mut(&mut self, handle: u64) -> Result<&mut $ty, Code> {
            match self.all.get_mut(&handle) {
                Some(Object::$kind(object)) => Ok(object),
                _ => Err(Code::INVALID_HANDLE),
            }
        }
    )*};
}

impl Objects {
    pub(crate) fn new(most: usize, random: Random) -> Self {
        Self { all: HashMap::new(), most, random }
    }

    accessors! {
        stream stream_mut Stream: Stream;
        event event_mut Event: Event;
        module module_mut Module: Module;
        function function_mut Function: Function;
        graph graph_mut Graph: Arc<Graph>;
        exec exec_mut Exec: Arc<Graph>;
    }

    /// Whether there is room for so many more.
    pub(crate) fn room(&self, more: usize) -> Result<(), Code> {
        if self.all.len() + more <= self.most { Ok(()) } else { Err(Code::OUT_OF_MEMORY) }
    }

    /// Gives an object a handle.
    pub(crate) fn add(&mut self, object: Object) -> Result<u64, Code> {
        self.room(1)?;
        loop {
            let handle = (self.random)();
            if handle != 0 && !self.all.contains_key(&handle) {
                self.all.insert(handle, object);
                return Ok(handle);
            }
        }
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Option<Object> {
        self.all.remove(&handle)
    }

    pub(crate) fn clear(&mut self) {
        self.all = HashMap::new();
    }
}
