//! Admin commands to a controller that the kernel's driver has.

use std::{fmt::Debug, fs::File, io, os::fd::AsRawFd as _, path::Path, time::Duration};

use berth_wire::nvme::{Sqe, Status};

/// Submits NVMe admin commands, and waits for each.
pub trait Admin: Debug + Send + Sync {
    /// Submits a command to the controller whose node is `node`, and returns how it completed. `data` is read or written, as the
    /// opcode says.
    fn submit(&self, node: &Path, command: &Sqe, data: &mut [u8], patience: Duration) -> io::Result<Status>;
}

/// `NVME_IOCTL_ADMIN_CMD` of linux/nvme_ioctl.h.
const ADMIN_CMD: libc::c_ulong = 0xC048_4E41;

/// `struct nvme_admin_cmd`.
#[repr(C)]
#[derive(Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

/// The kernel's NVMe driver, by `NVME_IOCTL_ADMIN_CMD`.
#[derive(Debug)]
pub struct Driver;

impl Admin for Driver {
    #[expect(unsafe_code, reason = "the ioctl")]
    fn submit(&self, node: &Path, command: &Sqe, data: &mut [u8], patience: Duration) -> io::Result<Status> {
        let file = File::open(node)?;
        let mut command = Command {
            opcode: command.opcode,
            nsid: command.nsid.get(),
            cdw2: command.cdw2.map(u32::from),
            data: if data.is_empty() { 0 } else { data.as_mut_ptr() as u64 },
            data_len: data.len() as u32,
            cdw10: command.cdw10.map(u32::from),
            timeout_ms: patience.as_millis() as u32,
            ..Command::default()
        };
        // SAFETY: the argument is a `struct nvme_admin_cmd` of ours that lives through the call. What it says of data is a
        // slice that is borrowed mutably until the call, which waits for the command, has returned; there is no metadata.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_CMD as _, &raw mut command) };
        match u16::try_from(done) {
            Ok(status) => Ok(Status::from_word(status << 1)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_controller_says_so() {
        let submit = |node| Driver.submit(Path::new(node), &Sqe::new(6, 0, 0), &mut [], Duration::ZERO);
        assert_eq!(submit("/dev/null").unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(submit("/dev/no-such").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
