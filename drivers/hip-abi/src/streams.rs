//! Streams and events.

use berth_hip::Session;
use berth_wire::hip::Code;

use crate::{
    args::Out,
    library::{Object, answer, make, objects, on},
};

fn is_stream(object: &Object) -> bool {
    matches!(object, Object::Stream)
}

fn is_event(object: &Object) -> bool {
    matches!(object, Object::Event)
}

fn event(handle: u64) -> Result<(), Code> {
    objects(|objects| objects.check(handle, is_event))
}

fn stream(handle: u64) -> Result<u64, Code> {
    objects(|objects| objects.stream(handle))
}

/// What a query returns.
fn done(is_done: bool) -> Result<(), Code> {
    if is_done { Ok(()) } else { Err(Code::NOT_READY) }
}

fn create_stream(to: Out<u64>, flags: u32, priority: i32) -> i32 {
    answer(|| {
        let slot = to.slot()?;
        let create = |session: &Session| session.stream_create(flags, priority);
        slot.set(make(create, |objects, handle| objects.add(*handle, Object::Stream))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreate(to: Out<u64>) -> i32 {
    create_stream(to, 0, 0)
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithFlags(to: Out<u64>, flags: u32) -> i32 {
    create_stream(to, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamCreateWithPriority(to: Out<u64>, flags: u32, priority: i32) -> i32 {
    create_stream(to, flags, priority)
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamDestroy(handle: u64) -> i32 {
    answer(|| {
        objects(|objects| objects.remove(handle, is_stream))?;
        on(|session| session.stream_destroy(handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(handle: u64) -> i32 {
    answer(|| {
        let handle = stream(handle)?;
        on(|session| session.stream_synchronize(handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamQuery(handle: u64) -> i32 {
    answer(|| {
        let handle = stream(handle)?;
        done(on(|session| session.stream_is_done(handle))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamWaitEvent(handle: u64, waits_for: u64, _flags: u32) -> i32 {
    answer(|| {
        let handle = stream(handle)?;
        event(waits_for)?;
        on(|session| session.stream_wait(handle, waits_for))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamGetFlags(handle: u64, flags: Out<u32>) -> i32 {
    answer(|| {
        let (slot, handle) = (flags.slot()?, stream(handle)?);
        slot.set(on(|session| session.stream_flags(handle))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamGetPriority(handle: u64, priority: Out<i32>) -> i32 {
    answer(|| {
        let (slot, handle) = (priority.slot()?, stream(handle)?);
        slot.set(on(|session| session.stream_priority(handle))?);
        Ok(())
    })
}

fn create_event(to: Out<u64>, flags: u32) -> i32 {
    answer(|| {
        let slot = to.slot()?;
        let create = |session: &Session| session.event_create(flags);
        slot.set(make(create, |objects, handle| objects.add(*handle, Object::Event))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventCreate(to: Out<u64>) -> i32 {
    create_event(to, 0)
}

#[unsafe(no_mangle)]
extern "C" fn hipEventCreateWithFlags(to: Out<u64>, flags: u32) -> i32 {
    create_event(to, flags)
}

#[unsafe(no_mangle)]
extern "C" fn hipEventDestroy(handle: u64) -> i32 {
    answer(|| {
        objects(|objects| objects.remove(handle, is_event))?;
        on(|session| session.event_destroy(handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventRecord(handle: u64, of: u64) -> i32 {
    answer(|| {
        event(handle)?;
        let of = stream(of)?;
        on(|session| session.event_record(handle, of))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventSynchronize(handle: u64) -> i32 {
    answer(|| {
        event(handle)?;
        on(|session| session.event_synchronize(handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventQuery(handle: u64) -> i32 {
    answer(|| {
        event(handle)?;
        done(on(|session| session.event_is_done(handle))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventElapsedTime(milliseconds: Out<f32>, start: u64, stop: u64) -> i32 {
    answer(|| {
        let slot = milliseconds.slot()?;
        event(start)?;
        event(stop)?;
        slot.set(on(|session| session.elapsed(start, stop))?);
        Ok(())
    })
}
