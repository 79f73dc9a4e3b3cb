//! Graphs, by capture of a stream.

use std::sync::Arc;

use berth_port::Nanos;
use berth_wire::hip::{Code, Op, request as q};

use super::{handle, int, long, view};
use crate::{
    device::Device,
    jobs::Captured,
    objects::{Graph, Node, Object},
    session::{Flow, Session, done},
};

/// Nodes of all graphs of a session, and their bytes.
const RECORDED_MAX: (usize, usize) = (65536, 16 << 20);

/// `hipStreamCaptureModeRelaxed`, the last mode.
const MODE_MAX: i32 = 2;

impl<D: Device> Session<D> {
    pub(super) fn graph_op(&mut self, op: Op, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        match op {
            Op::GraphCreate => {
                let graph = self.objects.add(Object::Graph(Arc::default()))?;
                Ok(long(room, graph))
            }
            Op::GraphInstantiate => {
                let graph = self.objects.graph(view::<q::GraphInstantiate>(payload)?.graph.get())?.clone();
                let exec = self.objects.add(Object::Exec(graph))?;
                Ok(long(room, exec))
            }
            Op::GraphDestroy => {
                self.objects.graph(handle(payload)?)?;
                self.remove_graph(handle(payload)?);
                Ok(done(room))
            }
            Op::GraphExecDestroy => {
                self.objects.exec(handle(payload)?)?;
                self.remove_graph(handle(payload)?);
                Ok(done(room))
            }
            Op::StreamBeginCapture => {
                let request = view::<q::BeginCapture>(payload)?;
                if request.stream == 0 {
                    return Err(Code::CAPTURE_UNSUPPORTED);
                }
                let stream = self.objects.stream_mut(request.stream.get())?;
                if !(0..=MODE_MAX).contains(&request.mode.get()) {
                    return Err(Code::INVALID_VALUE);
                }
                if stream.capture.is_some() {
                    return Err(Code::ILLEGAL_STATE);
                }
                stream.capture = Some(Graph::default());
                Ok(done(room))
            }
            Op::StreamEndCapture => {
                let stream = handle(payload)?;
                if stream == 0 {
                    return Err(Code::CAPTURE_UNMATCHED);
                }
                self.objects.stream(stream)?;
                self.objects.room(1)?;
                let captured = self.objects.stream_mut(stream)?.capture.take();
                let graph = captured.ok_or(Code::CAPTURE_UNMATCHED)?;
                let graph = self.objects.add(Object::Graph(Arc::new(graph)))?;
                Ok(long(room, graph))
            }
            _ => {
                let is_captured = self.is_captured(handle(payload)?)?;
                Ok(int(room, is_captured.into()))
            }
        }
    }

    pub(super) fn graph_launch(&mut self, request: &q::GraphLaunch, room: &mut [u8], now: Nanos) -> Result<Flow, Code> {
        let graph = self.objects.exec(request.graph_exec.get())?.clone();
        let stream = request.stream.get();
        self.uncaptured(stream)?;
        self.begin(graph, stream, now);
        Ok(done(room))
    }

    /// Records a node of a stream that is captured.
    pub(super) fn record(&mut self, stream: u64, node: Node) -> Result<(), Code> {
        let bytes = node.bytes();
        if self.recorded.0 >= RECORDED_MAX.0 || self.recorded.1 + bytes > RECORDED_MAX.1 {
            return Err(Code::OUT_OF_MEMORY);
        }
        let graph = self.objects.stream_mut(stream)?.capture.as_mut().ok_or(Code::ILLEGAL_STATE)?;
        graph.nodes.push(node);
        graph.bytes += bytes;
        self.recorded = (self.recorded.0 + 1, self.recorded.1 + bytes);
        Ok(())
    }

    /// Records a copy to the device, whose data lie in a buffer now.
    pub(crate) fn recorded_copy(&mut self, captured: &Captured) -> Result<(), Code> {
        let Captured { stream, buffer, copy } = *captured;
        let recorded = self.record(stream, Node::Copy(copy));
        match self.objects.stream_mut(stream) {
            Ok(stream) if recorded.is_ok() => {
                if let Some(graph) = &mut stream.capture {
                    graph.buffers.push(buffer);
                }
                Ok(())
            }
            _ => {
                self.device.free(buffer)?;
                recorded
            }
        }
    }

    fn remove_graph(&mut self, handle: u64) {
        if let Some(Object::Graph(graph) | Object::Exec(graph)) = self.objects.remove(handle)
            && let Ok(graph) = Arc::try_unwrap(graph)
        {
            self.drop_graph(graph);
        }
    }

    /// Frees what a graph holds, when nobody else has it.
    pub(super) fn drop_graph(&mut self, graph: Graph) {
        self.recorded = (self.recorded.0 - graph.nodes.len(), self.recorded.1 - graph.bytes);
        for buffer in graph.buffers {
            // It is the session's own: nobody else knows its address.
            let _ = self.device.free(buffer);
        }
    }
}
