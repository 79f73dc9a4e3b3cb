//! Data behind requests and answers: they go between the stream and device memory, and are never put together here.

use std::task::Poll;

use berth_port::Nanos;
use berth_wire::hip::{Header, flags, response::Status};
use zerocopy::IntoBytes as _;

use crate::{
    counters::{Class, Kind},
    device::{Device, Job},
    jobs::Then,
    rows::Rows,
    session::{Output, Phase, Session, class_of},
};

impl<D: Device> Session<D> {
    /// Answers a copy to the host once its first bytes are there: from then on no error can be told.
    pub(crate) fn fetch(&mut self, header: Header, rows: Rows, out: &mut Output<'_>, now: Nanos) {
        let first = match rows.next(usize::MAX) {
            (Some(at), _) if rows.len > 0 => self.device.reach(at, rows.contiguous()),
            _ => Poll::Ready(Ok(())),
        };
        match first {
            Poll::Ready(Ok(())) => self.send(&header, rows, out, now),
            Poll::Ready(Err(code)) => self.finish(&header, Err(code), out),
            Poll::Pending => {
                self.stalled = true;
                self.phase = Phase::Fetch(header, rows);
            }
        }
    }

    /// Begins the answer of a copy to the host.
    pub(crate) fn send(&mut self, header: &Header, rows: Rows, out: &mut Output<'_>, now: Nanos) {
        self.identified = true;
        self.since = now;
        self.tally.add(Class::Copy, Kind::Answered, 1);
        self.tally.add(Class::Copy, Kind::BytesOut, Status::LEN as u64 + rows.len);
        let flags = if rows.len > 0 { flags::HAS_INLINE_DATA } else { 0 };
        let answer = header.response(Status::LEN as u64 + rows.len, flags);
        out.left()[..Header::LEN].copy_from_slice(answer.as_bytes());
        out.left()[Header::LEN..][..Status::LEN].fill(0);
        out.written += Header::LEN + Status::LEN;
        self.phase = Phase::Out(rows);
    }

    /// Writes data of a copy to the host, as far as there is room; whether that was all.
    pub(crate) fn write_data(&mut self, out: &mut Output<'_>, now: Nanos) -> bool {
        let Phase::Out(rows) = &mut self.phase else { return true };
        while rows.at < rows.len && out.written < out.room.len() {
            let room = &mut out.room[out.written..];
            let (at, len) = rows.next(room.len());
            let got = if let Some(at) = at {
                self.device.read(at, rows.contiguous(), &mut room[..len])
            } else {
                room[..len].fill(0);
                Ok(len)
            };
            match got {
                Ok(0) => {
                    self.stalled = true;
                    return false;
                }
                Ok(got) => {
                    out.written += got;
                    rows.at += got as u64;
                }
                Err(_) => {
                    // Success was told, and the data are gone.
                    self.counters.events.broken_off.add(1);
                    self.phase = Phase::Closed;
                    return true;
                }
            }
        }
        if rows.at < rows.len {
            return false;
        }
        self.phase = Phase::Head;
        self.tally.took(Class::Copy, Kind::SendNs, self.since, now);
        true
    }

    /// Writes data of a copy to the device as they come; returns how many bytes were taken.
    pub(crate) fn receive(&mut self, input: &[u8], out: &mut Output<'_>, now: Nanos) -> usize {
        let Phase::In(header, mut rows, captured) = std::mem::replace(&mut self.phase, Phase::Head) else { return 0 };
        let mut taken = 0;
        while rows.at < rows.len && taken < input.len() {
            let (at, len) = rows.next(input.len() - taken);
            let took = match at {
                Some(at) => self.device.write(at, &input[taken..taken + len]),
                None => Ok(len),
            };
            match took {
                Ok(0) => {
                    self.stalled = true;
                    break;
                }
                Ok(took) => {
                    taken += took;
                    rows.at += took as u64;
                }
                Err(code) => {
                    self.rest += rows.len - rows.at;
                    self.finish(&header, Err(code), out);
                    return taken;
                }
            }
        }
        if rows.at < rows.len {
            self.phase = Phase::In(header, rows, captured);
            return taken;
        }
        self.tally.took(class_of(&header), Kind::ReceiveNs, self.since, now);
        self.start(header, Job::Settle, captured.map_or(Then::Answer, Then::Record), out, now);
        taken
    }

    /// Takes the next bytes of a code object; those that the device does not look at are thrown away.
    pub(crate) fn take_image(&mut self, input: &[u8], out: &mut Output<'_>, now: Nanos) -> usize {
        let Phase::Image { header, function, mut image, left } = std::mem::replace(&mut self.phase, Phase::Head) else {
            return 0;
        };
        let taken = left.min(input.len() as u64) as usize;
        let most = self.device.image_max(self.current);
        image.extend_from_slice(&input[..taken.min(most - image.len())]);
        let left = left - taken as u64;
        if left > 0 {
            self.phase = Phase::Image { header, function, image, left };
        } else {
            self.tally.took(class_of(&header), Kind::ReceiveNs, self.since, now);
            self.start(header, Job::Load { device: self.current, image }, Then::Function(function), out, now);
        }
        taken
    }
}
