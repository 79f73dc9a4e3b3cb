//! The system calls, with one wrapper each.

use std::{io, os::fd::RawFd, ptr};

use crate::slot::Slot;

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Receives one frame into an armed slot, by the cheapest call that suits it.
#[inline]
pub(crate) fn receive_one(fd: RawFd, slot: &mut Slot, control: bool) -> io::Result<()> {
    let len = if control {
        let header = slot.header();
        // SAFETY: the header of an armed slot describes memory that the slot owns.
        check(unsafe { libc::recvmsg(fd, header, libc::MSG_TRUNC) })?
    } else {
        let buf = slot.buf();
        let (data, len) = (buf.as_mut_ptr(), buf.len());
        let header = slot.header();
        // SAFETY: buffer and name are memory that the slot owns, of the lengths given.
        check(unsafe {
            let name = header.msg_name.cast();
            libc::recvfrom(fd, data.cast(), len, libc::MSG_TRUNC, name, &raw mut header.msg_namelen)
        })?
    };
    slot.set_received(len);
    Ok(())
}

/// Receives what has arrived into armed slots; returns the number of slots filled.
#[inline]
pub(crate) fn receive_many(fd: RawFd, slots: &mut [Slot]) -> io::Result<usize> {
    let (headers, count) = (Slot::headers(slots), slots.len() as u32);
    // SAFETY: each header describes memory that its slot owns; a null timeout is allowed.
    check(unsafe { libc::recvmmsg(fd, headers, count, libc::MSG_TRUNC as _, ptr::null_mut()) } as isize)
}

/// Sends from the first slot on; returns the number of frames that the kernel took, at least one.
#[inline]
pub(crate) fn send(fd: RawFd, slots: &mut [Slot]) -> io::Result<usize> {
    let [slot] = slots else {
        let (headers, count) = (Slot::headers(slots), slots.len() as u32);
        // SAFETY: each header describes memory that its slot owns.
        return check(unsafe { libc::sendmmsg(fd, headers, count, 0) } as isize);
    };
    if slot.header().msg_controllen > 0 {
        // SAFETY: the header describes memory that the slot owns.
        check(unsafe { libc::sendmsg(fd, slot.header(), 0) })?;
    } else {
        let buf = slot.buf();
        let (data, len) = (buf.as_ptr(), buf.len());
        let header = slot.header();
        // SAFETY: buffer and name are memory that the slot owns, of the lengths given.
        check(unsafe { libc::sendto(fd, data.cast(), len, 0, header.msg_name.cast(), header.msg_namelen) })?;
    }
    Ok(1)
}
