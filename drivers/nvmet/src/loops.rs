//! Loop devices: a range of a file or of a device as a block device.

use std::{
    ffi::c_ulong,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Seek as _, SeekFrom},
    os::fd::AsRawFd as _,
    path::Path,
};

/// How often a free device is looked for: others may take it first.
const ATTEMPTS: u32 = 16;

const LOOP_GET_STATUS64: c_ulong = 0x4C05;
const LOOP_CONFIGURE: c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: c_ulong = 0x4C82;

/// The device is gone when nobody has it open any more: also when this process is killed half-way.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// The kernel falls back to the page cache where the file cannot be read and written directly.
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Bytes of a name; the last one is 0.
const NAME: usize = 64;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    /// In bytes.
    offset: u64,
    /// In bytes.
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME],
    crypt_name: [u8; NAME],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; NAME],
        crypt_name: [0; NAME],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct Config {
    fd: u32,
    /// In bytes.
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// Makes the range a block device; returns its path, and what holds it open.
pub(crate) fn attach(backing: &Path, at: u64, len: u64, name: &str) -> io::Result<(String, File)> {
    let backing = open(backing)?;
    let control = open(Path::new("/dev/loop-control"))?;
    let mut file_name = [0; NAME];
    let room = file_name[..NAME - 1].get_mut(..name.len()).ok_or(ErrorKind::InvalidInput)?;
    room.copy_from_slice(name.as_bytes());
    let config = Config {
        fd: backing.as_raw_fd() as u32,
        block_size: 512,
        info: Info {
            offset: at,
            size_limit: len,
            flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
            file_name,
            ..Info::EMPTY
        },
        reserved: [0; 8],
    };
    for _ in 0..ATTEMPTS {
        // SAFETY: this request takes no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let device = format!("/dev/loop{number}");
        let mut file = open(Path::new(&device))?;
        // SAFETY: the argument is a `struct loop_config` that lives through the call, which reads it only; its `fd` is
        // open until then.
        if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) } == 0 {
            if file.seek(SeekFrom::End(0))? != len {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the lease does"));
            }
            return Ok((device, file));
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::ResourceBusy {
            return Err(error);
        }
    }
    Err(ErrorKind::ResourceBusy.into())
}

/// Whether the device is still the one of this name.
pub(crate) fn is_attached(device: &str, name: &str) -> bool {
    // Where it cannot be asked nobody has said that it is gone.
    let file = match open(Path::new(device)) {
        Err(error) => return error.kind() != ErrorKind::NotFound,
        Ok(file) => file,
    };
    let mut info = Info::EMPTY;
    // SAFETY: the argument is a `struct loop_info64` of ours, which the call fills.
    if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) } < 0 {
        return io::Error::last_os_error().raw_os_error() != Some(libc::ENXIO);
    }
    info.file_name.split(|byte| *byte == 0).next() == Some(name.as_bytes())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|error| {
        let kind = error.kind();
        io::Error::new(kind, format!("{}: {error}", path.display()))
    })
}
