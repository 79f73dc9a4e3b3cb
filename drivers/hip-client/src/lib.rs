//! A client of HIP Remote workers.
//!
//! Each call is sent and answered before it returns. A [`Client`] is one session: what it allocated and loaded is freed
//! when it is dropped.
#![forbid(unsafe_code)]

use std::{
    io::{self, IoSlice, Read as _, Write as _},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use berth_wire::hip::{
    Code, Header, NAME_MAX, Op, flags,
    request::{self as q, kind},
    response as r,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke.
    #[error("the connection to the worker: {0}")]
    Io(#[from] io::Error),
    /// What came is no answer to what was asked.
    #[error("the worker broke the protocol: {0}")]
    Protocol(&'static str),
    /// The worker refused, or work before it failed.
    #[error("{call}: {}", said(*code))]
    Refused {
        /// The operation, in the words of the specification.
        call: &'static str,
        /// Why.
        code: Code,
    },
}

fn said(code: Code) -> String {
    code.describe().map_or_else(|| format!("error {}", code.0), |(name, meaning)| format!("{name} ({meaning})"))
}

type Result<T> = std::result::Result<T, Error>;

/// Memory on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer(pub u64);

/// A loaded code object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module(u64);

/// A kernel of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    handle: u64,
    /// Where each parameter lies in the argument buffer: offset and size.
    pub parameters: Vec<(u32, u32)>,
}

/// A session.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    next: u32,
}

impl Client {
    /// Connects, and sends INIT.
    pub fn connect(to: impl ToSocketAddrs) -> Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self { stream, next: 1 };
        client.call::<r::Status>(Op::Init, &[], &[])?;
        Ok(client)
    }

    /// Sends a request of a structure and what follows it; returns the header of its answer.
    fn send(&mut self, op: Op, request: &[u8], data: &[u8]) -> Result<Header> {
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        let flags = if data.is_empty() { 0 } else { flags::HAS_INLINE_DATA };
        let header = Header::request(op, id, (request.len() + data.len()) as u64, flags);
        let mut parts = [IoSlice::new(header.as_bytes()), IoSlice::new(request), IoSlice::new(data)];
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, 0);
        while !parts.is_empty() {
            let sent = self.stream.write_vectored(parts)?;
            if sent == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
            IoSlice::advance_slices(&mut parts, sent);
        }
        let mut answer = Header::zeroed();
        self.stream.read_exact(answer.as_mut_bytes())?;
        if answer.check(u64::MAX).is_err() || answer.op_code != header.op_code || answer.request_id.get() != id {
            return Err(Error::Protocol("an answer to nothing that was asked"));
        }
        Ok(answer)
    }

    fn code(&mut self) -> Result<Code> {
        let mut status = r::Status::zeroed();
        self.stream.read_exact(status.as_mut_bytes())?;
        Ok(Code(status.error_code.get()))
    }

    /// Reads and forgets so many bytes.
    fn skip(&mut self, bytes: u64) -> Result<()> {
        let skipped = io::copy(&mut (&mut self.stream).take(bytes), &mut io::sink())?;
        if skipped == bytes { Ok(()) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
    }

    fn call<T>(&mut self, op: Op, request: &[u8], data: &[u8]) -> Result<T>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned,
    {
        let len = self.send(op, request, data)?.payload_length.get();
        if len < r::Status::LEN as u64 {
            return Err(Error::Protocol("an answer without an error code"));
        }
        let code = self.code()?;
        let rest = len - r::Status::LEN as u64;
        if code != Code::SUCCESS {
            self.skip(rest)?;
            return Err(Error::Refused { call: op.name(), code });
        }
        let mut answer = T::new_zeroed();
        if len < size_of::<T>() as u64 {
            return Err(Error::Protocol("an answer that is too short"));
        }
        self.stream.read_exact(&mut answer.as_mut_bytes()[r::Status::LEN..])?;
        self.skip(len - size_of::<T>() as u64)?;
        Ok(answer)
    }

    /// How many devices there are.
    pub fn device_count(&mut self) -> Result<i32> {
        Ok(self.call::<r::Int>(Op::GetDeviceCount, &[], &[])?.value.get())
    }

    /// What a device says of itself.
    pub fn device_properties(&mut self, device: i32) -> Result<r::DeviceProperties> {
        self.call(Op::GetDeviceProperties, q::Device { device_id: device.into() }.as_bytes(), &[])
    }

    /// Makes a device the one that is used.
    pub fn set_device(&mut self, device: i32) -> Result<()> {
        self.call::<r::Status>(Op::SetDevice, q::Device { device_id: device.into() }.as_bytes(), &[]).map(drop)
    }

    /// Bytes of the device that are free for this session, and in all.
    pub fn memory(&mut self) -> Result<(u64, u64)> {
        let answer: r::MemInfo = self.call(Op::MemGetInfo, &[], &[])?;
        Ok((answer.free_bytes.get(), answer.total_bytes.get()))
    }

    /// Allocates zeroed memory.
    pub fn malloc(&mut self, bytes: u64) -> Result<Pointer> {
        let request = q::Malloc { size: bytes.into(), flags: 0.into() };
        Ok(Pointer(self.call::<r::Long>(Op::Malloc, request.as_bytes(), &[])?.value.get()))
    }

    /// Frees what [`Client::malloc`] returned.
    pub fn free(&mut self, at: Pointer) -> Result<()> {
        self.call::<r::Status>(Op::Free, q::Handle { handle: at.0.into() }.as_bytes(), &[]).map(drop)
    }

    /// Copies to the device.
    pub fn write(&mut self, at: Pointer, bytes: &[u8]) -> Result<()> {
        let request = memcpy(at.0, 0, bytes.len(), kind::HOST_TO_DEVICE);
        self.call::<r::Status>(Op::Memcpy, request.as_bytes(), bytes).map(drop)
    }

    /// Copies from the device, behind all work before.
    pub fn read(&mut self, at: Pointer, into: &mut [u8]) -> Result<()> {
        let request = memcpy(0, at.0, into.len(), kind::DEVICE_TO_HOST);
        let len = self.send(Op::Memcpy, request.as_bytes(), &[])?.payload_length.get();
        let code = self.code()?;
        if code != Code::SUCCESS {
            return Err(Error::Refused { call: Op::Memcpy.name(), code });
        }
        if len != (r::Status::LEN + into.len()) as u64 {
            return Err(Error::Protocol("another number of bytes than was asked for"));
        }
        self.stream.read_exact(into)?;
        Ok(())
    }

    /// Loads a code object: PTX text for the software GPU.
    pub fn load(&mut self, image: &[u8]) -> Result<Module> {
        let request = q::ModuleLoad { data_size: (image.len() as u64).into() };
        Ok(Module(self.call::<r::Long>(Op::ModuleLoadData, request.as_bytes(), image)?.value.get()))
    }

    /// A kernel of a module.
    pub fn function(&mut self, module: Module, name: &str) -> Result<Function> {
        let mut field = vec![0; 256];
        if name.len() >= NAME_MAX || name.is_empty() {
            return Err(Error::Refused { call: Op::ModuleGetFunction.name(), code: Code::NOT_FOUND });
        }
        if name.len() >= field.len() {
            field.resize(NAME_MAX, 0);
        }
        field[..name.len()].copy_from_slice(name.as_bytes());
        let request = q::ModuleGetFunction { module: module.0.into() };
        let answer: r::Function = self.call(Op::ModuleGetFunction, &[request.as_bytes(), &field].concat(), &[])?;
        let params = answer.params.get(..answer.num_params.get() as usize);
        let params = params.ok_or(Error::Protocol("more parameters than there is room for"))?;
        let parameters = params.iter().map(|one| (one.offset.get(), one.size.get())).collect();
        Ok(Function { handle: answer.function.get(), parameters })
    }

    /// Starts a kernel, with the bytes of each of its arguments.
    pub fn launch(
        &mut self,
        function: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        arguments: &[Vec<u8>],
    ) -> Result<()> {
        let request = q::Launch {
            function: function.handle.into(),
            grid: grid.map(Into::into),
            block: block.map(Into::into),
            shared_mem: shared.into(),
            num_args: (arguments.len() as u32).into(),
            ..q::Launch::zeroed()
        };
        let (mut payload, mut at) = (request.as_bytes().to_vec(), 0);
        for argument in arguments {
            let descriptor = r::Parameter { offset: at.into(), size: (argument.len() as u32).into() };
            payload.extend_from_slice(descriptor.as_bytes());
            at += argument.len() as u32;
        }
        for argument in arguments {
            payload.extend_from_slice(argument);
        }
        self.call::<r::Status>(Op::LaunchKernel, &payload, &[]).map(drop)
    }

    /// Waits for all work; fails with what failed in it.
    pub fn synchronize(&mut self) -> Result<()> {
        self.call::<r::Status>(Op::DeviceSynchronize, &[], &[]).map(drop)
    }

    /// Ends the session.
    pub fn shutdown(mut self) -> Result<()> {
        self.call::<r::Status>(Op::Shutdown, &[], &[]).map(drop)
    }
}

fn memcpy(dst: u64, src: u64, size: usize, kind: i32) -> q::Memcpy {
    q::Memcpy { dst: dst.into(), src: src.into(), size: (size as u64).into(), kind: kind.into(), stream: 0.into() }
}

/// The text in a field of fixed length.
pub fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}
