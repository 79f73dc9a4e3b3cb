//! Descriptors over a socket: how code reaches an executor.

use std::{
    io, mem,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    ptr,
};

/// Room for one descriptor, aligned as its header wants.
#[repr(align(8))]
struct Control([u8; 64]);

/// Hands `with` a message of one byte with room for a descriptor.
fn message<T>(with: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let (mut byte, mut control) = ([0_u8; 1], Control([0; 64]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // SAFETY: all zeroes is a message without anything.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: a computation.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<i32>() as u32) } as usize;
    with(&mut message)
}

/// Sends a descriptor with one byte. Does not block.
pub(super) fn send(socket: &UnixStream, file: BorrowedFd<'_>) -> io::Result<()> {
    message(|message| {
        // SAFETY: the message has room for a header and one descriptor.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(file.as_raw_fd());
            libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
    })
}

/// Receives a descriptor, close-on-exec; `InvalidData` if the message brings none.
pub(super) fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    message(|message| {
        // SAFETY: the message's parts outlive the call.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), ptr::from_mut(message), libc::MSG_CMSG_CLOEXEC) };
        if received != 1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled it in; it says how much of it.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            let is_file = !header.is_null()
                && (*header).cmsg_type == libc::SCM_RIGHTS
                && (*header).cmsg_len >= libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
            if !is_file {
                return Err(io::ErrorKind::InvalidData.into());
            }
            // SAFETY: the descriptor is new, and nobody else has it.
            Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
        }
    })
}
