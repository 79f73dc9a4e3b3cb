//! Graphs, by capture.

use berth_hip::Session;
use berth_wire::hip::Code;

use crate::{
    args::{Address, Out},
    library::{Object, answer, make, objects, on},
};

fn is_graph(object: &Object) -> bool {
    matches!(object, Object::Graph)
}

fn is_exec(object: &Object) -> bool {
    matches!(object, Object::GraphExec)
}

fn stream(handle: u64) -> Result<u64, Code> {
    objects(|objects| objects.stream(handle))
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamBeginCapture(of: u64, mode: i32) -> i32 {
    answer(|| {
        let of = stream(of)?;
        on(|session| session.capture_begin(of, mode))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamEndCapture(of: u64, graph: Out<u64>) -> i32 {
    answer(|| {
        let (slot, of) = (graph.slot()?, stream(of)?);
        let end = |session: &Session| session.capture_end(of);
        slot.set(make(end, |objects, handle| objects.add(*handle, Object::Graph))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamIsCapturing(of: u64, status: Out<i32>) -> i32 {
    answer(|| {
        let (slot, of) = (status.slot()?, stream(of)?);
        slot.set(i32::from(on(|session| session.is_capturing(of))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphCreate(graph: Out<u64>, flags: u32) -> i32 {
    answer(|| {
        let slot = graph.slot()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        slot.set(make(Session::graph_create, |objects, handle| objects.add(*handle, Object::Graph))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphDestroy(graph: u64) -> i32 {
    answer(|| {
        objects(|objects| objects.remove(graph, is_graph))?;
        on(|session| session.graph_destroy(graph))
    })
}

fn instantiate(exec: Out<u64>, graph: u64) -> Result<(), Code> {
    let slot = exec.slot()?;
    objects(|objects| objects.check(graph, is_graph))?;
    let instantiate = |session: &Session| session.graph_instantiate(graph);
    slot.set(make(instantiate, |objects, handle| objects.add(*handle, Object::GraphExec))?);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphInstantiate(exec: Out<u64>, graph: u64, _node: Address, _log: Address, _len: usize) -> i32 {
    answer(|| instantiate(exec, graph))
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphInstantiateWithFlags(exec: Out<u64>, graph: u64, _flags: u64) -> i32 {
    answer(|| instantiate(exec, graph))
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphLaunch(exec: u64, on_stream: u64) -> i32 {
    answer(|| {
        objects(|objects| objects.check(exec, is_exec))?;
        let on_stream = stream(on_stream)?;
        on(|session| session.graph_launch(exec, on_stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphExecDestroy(exec: u64) -> i32 {
    answer(|| {
        objects(|objects| objects.remove(exec, is_exec))?;
        on(|session| session.graph_exec_destroy(exec))
    })
}
