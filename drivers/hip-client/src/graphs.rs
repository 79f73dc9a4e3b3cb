//! Graphs, by capture.

use berth_wire::hip::{Op, request as q};
use zerocopy::IntoBytes as _;

use crate::{Result, Session, Stream, session::Owned};

fn handle(handle: u64) -> q::Handle {
    q::Handle { handle: handle.into() }
}

impl Session {
    /// Records the work of a stream from here on. Modes: 0 global, 1 of the thread, 2 relaxed.
    pub fn capture_begin(&self, stream: u64, mode: i32) -> Result<()> {
        let request = q::BeginCapture { stream: stream.into(), mode: mode.into() };
        self.done(Op::StreamBeginCapture, request.as_bytes())
    }

    /// Ends the recording of a stream; returns the handle of a graph of what was recorded.
    pub fn capture_end(&self, stream: u64) -> Result<u64> {
        self.long(Op::StreamEndCapture, handle(stream).as_bytes())
    }

    /// Whether the work of a stream is recorded.
    pub fn is_capturing(&self, stream: u64) -> Result<bool> {
        Ok(self.int(Op::StreamIsCapturing, handle(stream).as_bytes())? != 0)
    }

    /// Creates a graph without work; returns its handle.
    pub fn graph_create(&self) -> Result<u64> {
        self.long(Op::GraphCreate, q::Flags { flags: 0.into() }.as_bytes())
    }

    /// Ends a graph. What was instantiated of it stays.
    pub fn graph_destroy(&self, graph: u64) -> Result<()> {
        self.post(Op::GraphDestroy, &[handle(graph).as_bytes()], 0)
    }

    /// What of a graph can be started. It outlives the graph.
    pub fn graph_instantiate(&self, graph: u64) -> Result<u64> {
        self.long(Op::GraphInstantiate, q::GraphInstantiate { graph: graph.into(), flags: 0.into() }.as_bytes())
    }

    /// Starts what [`Session::graph_instantiate`] returned, on a stream.
    pub fn graph_launch(&self, graph_exec: u64, stream: u64) -> Result<()> {
        let request = q::GraphLaunch { graph_exec: graph_exec.into(), stream: stream.into() };
        self.post(Op::GraphLaunch, &[request.as_bytes()], 0)
    }

    /// The end of [`Session::graph_instantiate`].
    pub fn graph_exec_destroy(&self, graph_exec: u64) -> Result<()> {
        self.post(Op::GraphExecDestroy, &[handle(graph_exec).as_bytes()], 0)
    }
}

/// A stream whose work is recorded. If this is dropped, what was recorded is forgotten.
#[derive(Debug)]
pub struct Capture<'a>(Option<&'a Stream>);

impl<'a> Capture<'a> {
    pub(crate) fn begin(stream: &'a Stream) -> Result<Self> {
        stream.0.session.capture_begin(stream.0.handle, 0)?;
        Ok(Self(Some(stream)))
    }

    /// Ends the recording, and returns what was recorded. Later work of the stream is done, not recorded.
    pub fn end(mut self) -> Result<Graph> {
        let stream = self.0.take().expect("only this and drop end it");
        let graph = stream.0.session.capture_end(stream.0.handle)?;
        Ok(Graph(Owned::new(&stream.0.session, graph, Session::graph_destroy)))
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            let session = &stream.0.session;
            let _ = session.capture_end(stream.0.handle).and_then(|graph| session.graph_destroy(graph));
        }
    }
}

/// Recorded work. Ends when this is dropped.
#[derive(Debug)]
pub struct Graph(Owned);

impl Graph {
    /// What [`Stream::launch_graph`] starts. It outlives this graph.
    pub fn instantiate(&self) -> Result<GraphExec> {
        let exec = self.0.session.graph_instantiate(self.0.handle)?;
        Ok(GraphExec(Owned::new(&self.0.session, exec, Session::graph_exec_destroy)))
    }
}

/// Work that [`Stream::launch_graph`] starts. Ends when this is dropped.
#[derive(Debug)]
pub struct GraphExec(pub(crate) Owned);
