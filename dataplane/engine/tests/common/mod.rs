//! A scripted port, a service with late answers, a worker, and virtual time.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr},
    os::fd::RawFd,
    rc::{Rc, Weak},
    time::Duration,
};

use berth_port::{BURST, Frame, Nanos, Now, Part, Peer, Port, PostError, Service, Task, Verdict, Work};

/// Events of a port in order: (lane, event, frames).
pub(crate) type Log = Rc<RefCell<Vec<(usize, &'static str, usize)>>>;

pub(crate) struct Scripted {
    pub(crate) lane: usize,
    /// Number of frames in the receive queue.
    pub(crate) queue: Rc<RefCell<usize>>,
    pub(crate) fd: Option<RawFd>,
    pub(crate) log: Log,
    pub(crate) received: u64,
    pub(crate) queued: usize,
    /// Polls that find nothing before the queue is looked at.
    pub(crate) blind: Rc<Cell<usize>>,
}

pub(crate) fn port(lane: usize, queued: usize, log: &Log) -> Scripted {
    Scripted {
        lane,
        queue: Rc::new(RefCell::new(queued)),
        fd: None,
        log: log.clone(),
        received: 0,
        queued: 0,
        blind: Rc::default(),
    }
}

impl Port for Scripted {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        if let Some(left) = self.blind.get().checked_sub(1) {
            self.blind.set(left);
            self.log.borrow_mut().push((self.lane, "rx", 0));
            return 0;
        }
        let burst = BURST.min(*self.queue.borrow());
        *self.queue.borrow_mut() -= burst;
        let mut buf = [0; 64];
        for _ in 0..burst {
            let mut frame = Frame::new(&mut buf, 8, 8, self.local_addr());
            let verdict = handle(&mut frame);
            self.queued += usize::from(verdict == Verdict::Reply);
            if frame.is_urgent() {
                self.tx();
            }
        }
        self.received += burst as u64;
        self.log.borrow_mut().push((self.lane, "rx", burst));
        burst
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, fill: F) -> Result<(), PostError> {
        fill(&mut [0; 64]);
        self.queued += 1;
        Ok(())
    }

    fn tx(&mut self) {
        self.log.borrow_mut().push((self.lane, "tx", std::mem::take(&mut self.queued)));
    }

    fn max_frame(&self) -> usize {
        64
    }

    fn local_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 1).into()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.fd
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("received", self.received);
    }
}

/// Answers every frame at once, or `after` nanoseconds later; `None` for never.
#[derive(Default)]
pub(crate) struct Late {
    pub(crate) after: Option<Duration>,
    pub(crate) never: bool,
    pub(crate) due: VecDeque<(Nanos, Peer)>,
    pub(crate) handled: u64,
}

impl Service for Late {
    fn handle(&mut self, frame: &mut Frame<'_>, now: Now) -> Verdict {
        self.handled += 1;
        match self.after {
            _ if self.never => self.due.push_back((Nanos(u64::MAX), frame.peer())),
            None => return Verdict::Reply,
            Some(after) => self.due.push_back((now.mono + after, frame.peer())),
        }
        Verdict::Drop
    }

    fn poll<P: Port>(&mut self, port: &mut P, now: Now) -> usize {
        let mut posted = 0;
        while let Some((_, peer)) = self.due.pop_front_if(|(due, _)| *due <= now.mono) {
            port.post(peer, |_| 8).unwrap();
            posted += 1;
        }
        posted
    }

    fn outstanding(&self) -> usize {
        self.due.len()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("handled", self.handled);
        visit("owed", self.due.len() as u64);
    }
}

/// A worker that takes `each` nanoseconds per request, and is fed as long as its feeder exists.
#[derive(Default)]
pub(crate) struct Worker {
    pub(crate) queue: Rc<RefCell<usize>>,
    pub(crate) feeder: Weak<()>,
    pub(crate) each: u64,
    pub(crate) clock: Rc<Cell<u64>>,
    pub(crate) served: u64,
}

impl Task for Worker {
    fn turn(&mut self, now: Now, receive: bool, _: bool) -> Work {
        let burst = if receive { BURST.min(*self.queue.borrow()) as u64 } else { 0 };
        *self.queue.borrow_mut() -= burst as usize;
        self.clock.set(self.clock.get() + burst * self.each);
        self.served += burst;
        Work { received: burst, replied: burst, polls: 1, began: now.mono }
    }

    fn is_fed(&self) -> bool {
        self.feeder.strong_count() > 0
    }

    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        if part == Part::Service {
            visit("served", self.served);
        }
    }
}

pub(crate) fn at(nanos: u64) -> Now {
    Now { mono: Nanos(nanos), wall: Nanos(nanos) }
}
