//! Requests that a job of the device answers, and what follows from its end.

use std::task::{Context, Poll, Waker};

use berth_port::Nanos;
use berth_wire::hip::{
    Code, Header,
    response::{Long, Pointers},
};

use crate::{
    device::{Copy2d, Device, Done, Job, Loaded},
    rows::Rows,
    session::{Flow, Output, Phase, Session, done, put},
};

/// A copy to the device that is recorded: the stream, the buffer that holds its data, and the copy out of that.
pub(crate) struct Captured {
    pub(crate) stream: u64,
    pub(crate) buffer: u64,
    pub(crate) copy: Copy2d,
}

/// What follows from the end of a job.
pub(crate) enum Then {
    /// It is answered.
    Answer,
    /// What was loaded gets a handle, and so does this function.
    Function(Option<String>),
    /// The address is answered.
    Pointer,
    /// The addresses are.
    Pointers,
    /// Data are received into what was allocated, for a copy that is recorded.
    Receive(Rows, Captured),
    /// The copy whose data were received is recorded.
    Record(Captured),
}

impl<D: Device> Session<D> {
    /// Starts a job whose end is the answer.
    pub(crate) fn start(&mut self, header: Header, job: Job, then: Then, out: &mut Output<'_>, now: Nanos) {
        self.device.start(job);
        match self.device.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => self.job_done(&header, then, ended, out, now),
            Poll::Pending => {
                self.since = now;
                self.phase = Phase::Job(header, then);
            }
        }
    }

    /// Ends the request whose job has ended, or goes on with it.
    pub(crate) fn job_done(&mut self, header: &Header, then: Then, ended: Done, out: &mut Output<'_>, now: Nanos) {
        let room = &mut out.left()[Header::LEN..];
        let result = match (ended, then) {
            (Done::Finished(Ok(())), Then::Record(captured)) => self.recorded_copy(&captured).map(|()| done(room)),
            (Done::Finished(result), _) => result.map(|()| done(room)),
            (Done::Loaded(Ok(loaded)), Then::Function(function)) => self.loaded(loaded, function.as_deref(), room),
            (Done::Allocated(Ok(addresses)), Then::Receive(rows, captured)) => {
                let buffer = addresses.first().copied().unwrap_or(0);
                let rows = Rows { device: buffer, ..rows };
                let copy = Copy2d { src: buffer, ..captured.copy };
                return self.take(*header, rows, Some(Captured { buffer, copy, ..captured }), now);
            }
            (Done::Allocated(Ok(addresses)), then) => Ok(allocated(&addresses, &then, room)),
            (Done::Loaded(Err(code)) | Done::Allocated(Err(code)), _) => Err(code),
            (Done::Loaded(Ok(_)), _) => Err(Code::UNKNOWN),
        };
        self.finish(header, result.map(|flow| if let Flow::Answer(len) = flow { len } else { 0 }), out);
    }

    /// Begins to receive the data of a copy to the device.
    pub(crate) fn take(&mut self, header: Header, rows: Rows, captured: Option<Captured>, now: Nanos) {
        self.rest -= rows.len;
        self.since = now;
        self.phase = Phase::In(header, rows, captured);
    }

    fn loaded(&mut self, loaded: Loaded, function: Option<&str>, room: &mut [u8]) -> Result<Flow, Code> {
        let module = loaded.module;
        let added = self.add_module(loaded, function, room);
        if added.is_err() {
            self.device.unload(module);
        }
        added
    }
}

/// The answer of an allocation.
fn allocated(addresses: &[u64], then: &Then, room: &mut [u8]) -> Flow {
    if let Then::Pointers = then {
        let mut answer = Pointers { count: (addresses.len() as u32).into(), ..Pointers::zeroed() };
        answer.ptrs.iter_mut().zip(addresses).for_each(|(to, at)| *to = (*at).into());
        return put(room, &answer);
    }
    let value = addresses.first().copied().unwrap_or(0).into();
    put(room, &Long { error_code: 0.into(), value })
}
