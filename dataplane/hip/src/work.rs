//! Launches that go on while requests are served, and the errors that nobody was told.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use berth_port::Nanos;
use berth_wire::hip::Code;

use crate::{
    counters::{Class, Kind},
    device::{Device, Done, Job, Launch},
    objects::{Graph, Node, Recorded},
    session::Session,
};

/// Launches that go on while requests are served.
pub(crate) struct Work {
    graph: Arc<Graph>,
    /// The node that runs.
    at: usize,
    pub(crate) stream: u64,
    class: Class,
    began: Nanos,
}

impl<D: Device> Session<D> {
    /// Keeps the first error that nobody was told.
    pub(crate) fn defer(&mut self, code: Code) {
        let slot = if self.work.is_some() { &mut self.behind } else { &mut self.deferred };
        if slot.is_some() {
            self.counters.events.errors_dropped.add(1);
        } else {
            *slot = Some(code);
            self.counters.events.errors_kept.add(u64::from(self.work.is_none()));
        }
    }

    /// Starts a kernel that nobody waits for. Nothing is under way.
    pub(crate) fn begin_launch(&mut self, launch: Launch, stream: u64, now: Nanos) {
        self.counters.events.launches.add(1);
        self.device.start(Job::Launch(launch));
        match self.device.poll(&mut Context::from_waker(Waker::noop())) {
            // Nothing follows it.
            Poll::Pending => {
                let graph = Arc::default();
                self.work = Some(Work { graph, at: 0, stream, class: Class::Launch, began: now });
            }
            Poll::Ready(done) => {
                self.tally.took(Class::Launch, Kind::DeviceNs, now, now);
                if let Done::Finished(Err(code)) = done {
                    self.defer(code);
                }
            }
        }
    }

    /// Starts a graph that nobody waits for. Nothing is under way.
    pub(crate) fn begin(&mut self, graph: Arc<Graph>, stream: u64, now: Nanos) {
        self.work = Some(Work { graph, at: 0, stream, class: Class::Graph, began: now });
        self.go_on(now);
    }

    /// Starts the next nodes of the work, until one takes time or there is none.
    pub(crate) fn go_on(&mut self, now: Nanos) {
        while let Some(work) = &self.work {
            let job = match work.graph.nodes.get(work.at) {
                Some(Node::Launch(launch)) => {
                    self.counters.events.launches.add(1);
                    Job::Launch(launch.clone())
                }
                Some(Node::Set { dst, len, value }) => match self.device.check(*dst, *len) {
                    Ok(()) => Job::Set { dst: *dst, len: *len, value: *value },
                    Err(code) => return self.end_work(Err(code), now),
                },
                Some(Node::Copy(copy)) => {
                    let copy = *copy;
                    match self.check_copy(&copy) {
                        Ok(()) => Job::Copy(copy),
                        Err(code) => return self.end_work(Err(code), now),
                    }
                }
                Some(Node::Record(event)) => {
                    let event = *event;
                    if let Ok(event) = self.objects.event_mut(event) {
                        event.state = Recorded::At(now);
                    }
                    self.next_node();
                    continue;
                }
                None => return self.end_work(Ok(()), now),
            };
            self.device.start(job);
            match self.device.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Done::Finished(Err(code))) => return self.end_work(Err(code), now),
                Poll::Ready(_) => self.next_node(),
                Poll::Pending => return,
            }
        }
    }

    pub(crate) fn next_node(&mut self) {
        if let Some(work) = &mut self.work {
            work.at += 1;
        }
    }

    pub(crate) fn end_work(&mut self, result: Result<(), Code>, now: Nanos) {
        if let Some(work) = self.work.take() {
            self.tally.took(work.class, Kind::DeviceNs, work.began, now);
        }
        if let Err(code) = result {
            self.defer(code);
        }
        if let Some(code) = self.behind.take() {
            self.defer(code);
        }
        for event in std::mem::take(&mut self.pending) {
            if let Ok(event) = self.objects.event_mut(event)
                && event.state == Recorded::Pending
            {
                event.state = Recorded::At(now);
            }
        }
    }
}
