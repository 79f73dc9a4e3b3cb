//! Commands and completions (Base, "Common Command Format" and "Common Completion Queue Entry").

use zerocopy::little_endian::{U16, U32, U64};

use super::{
    macros::layout,
    opcode,
    pdu::{Common, Fatal},
    status::Status,
};

layout! {
    /// A submission queue entry.
    pub struct Sqe: 64 {
        /// OPC.
        0 pub opcode: u8,
        /// FUSE in bits 1:0, PSDT in 7:6.
        1 pub flags: u8,
        /// CID: what the host knows the command by.
        2 pub cid: U16,
        /// NSID: the namespace. Of fabrics commands, byte 4 is the command's type.
        4 pub nsid: U32,
        /// Dwords 2 and 3.
        8 pub cdw2: [U32; 2],
        16 mptr: U64,
        /// DPTR: where the data is.
        24 pub sgl: Sgl,
        /// Dwords 10 to 15.
        40 pub cdw10: [U32; 6],
    }

    /// An SGL descriptor ("SGL Descriptor").
    pub struct Sgl: 16 {
        /// Address; of data in the capsule its offset.
        0 pub address: U64,
        /// Length in bytes.
        8 pub len: U32,
        12 reserved: [u8; 3],
        /// SGL Identifier: type in bits 7:4, sub type in 3:0.
        15 pub kind: u8,
    }

    /// A completion queue entry, its phase bit 0.
    pub struct Cqe: 16 {
        /// Dwords 0 and 1: what the command answers.
        0 pub dw: [U32; 2],
        /// SQHD: the head of the submission queue; 0xFFFF where flow control is off.
        8 pub sqhd: U16,
        /// SQID; 0 over fabrics.
        10 pub sqid: U16,
        /// CID.
        12 pub cid: U16,
        14 status: U16,
    }
}

/// FUSE: whether a command is one of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fuse {
    /// It stands alone.
    None,
    /// The first of the pair.
    First,
    /// The second.
    Second,
    /// 11b, which is reserved.
    Reserved,
}

/// Which way a command's data goes ("Opcode", Data Transfer).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// There is none.
    None,
    /// The command writes.
    HostToController,
    /// The command reads.
    ControllerToHost,
    /// Both ways.
    Both,
}

/// Where a command's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointer {
    /// In the capsule, behind the command, this many bytes.
    Capsule(u32),
    /// It is transferred by data PDUs, this many bytes.
    Transport(u32),
}

impl Pointer {
    /// Bytes of data.
    pub const fn len(self) -> u32 {
        match self {
            Self::Capsule(len) | Self::Transport(len) => len,
        }
    }

    /// Whether there is no data.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Why a command's data pointer is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The connection ends.
    Fatal(Fatal),
    /// The command completes with this. Data in its capsule is passed over.
    Status(Status),
}

impl Sqe {
    /// Bits 7:6 of the flags, of which 01b says that the pointer is an SGL.
    const PSDT: u8 = 0xC0;
    const PSDT_SGL: u8 = 0x40;

    /// A command without data.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        let sgl = Sgl::transport(0);
        Self { opcode, flags: Self::PSDT_SGL, cid: cid.into(), nsid: nsid.into(), sgl, ..Self::zeroed() }
    }

    /// Whether the command is one of a pair.
    #[inline]
    pub fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::None,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// FCTYPE: which command of fabrics it is; of those alone.
    #[inline]
    pub fn fctype(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// Which way the data goes, by bits 1:0 of the opcode or of the fabrics command's type.
    #[inline]
    pub fn transfer(&self) -> Transfer {
        let code = if self.opcode == opcode::FABRICS { self.fctype() } else { self.opcode };
        match code & 3 {
            0 => Transfer::None,
            1 => Transfer::HostToController,
            2 => Transfer::ControllerToHost,
            _ => Transfer::Both,
        }
    }

    /// Where the data is, of a command whose capsule brought `in_capsule` bytes and may bring `max` (TCP, "Data Transfer";
    /// Base, "SGL Descriptor").
    #[inline]
    pub fn pointer(&self, in_capsule: u32, max: u32) -> Result<Pointer, Refused> {
        /// The descriptor's and its length's offsets in the PDU.
        const SGL: u32 = (Common::LEN + 24) as u32;
        if self.flags & Self::PSDT != Self::PSDT_SGL {
            return Err(Refused::Status(Status::INVALID_FIELD));
        }
        if in_capsule > max {
            return Err(Refused::Fatal(Fatal::LIMIT_EXCEEDED));
        }
        let len = self.sgl.len.get();
        let in_capsule_allowed = self.sgl.address.get() == 0 && self.transfer() != Transfer::ControllerToHost;
        match self.sgl.kind {
            Sgl::IN_CAPSULE if in_capsule_allowed && len == in_capsule => Ok(Pointer::Capsule(len)),
            // PLEN is not what the SGL says.
            Sgl::IN_CAPSULE if in_capsule_allowed => Err(Refused::Fatal(Fatal::field(4))),
            Sgl::TRANSPORT if in_capsule == 0 => Ok(Pointer::Transport(len)),
            _ if in_capsule > 0 => Err(Refused::Fatal(Fatal::unsupported(SGL))),
            _ => Err(Refused::Status(Status::SGL_TYPE_INVALID)),
        }
    }

    /// Dword 10 + `n` and the next as one number; `n` at most 4.
    #[inline]
    pub(super) fn quad(&self, n: usize) -> u64 {
        u64::from(self.cdw10[n + 1].get()) << 32 | u64::from(self.cdw10[n].get())
    }

    /// Sets what [`Sqe::quad`] reads.
    #[inline]
    pub(super) fn set_quad(&mut self, n: usize, value: u64) {
        self.cdw10[n] = (value as u32).into();
        self.cdw10[n + 1] = ((value >> 32) as u32).into();
    }
}

impl Sgl {
    /// SGL Data Block with an offset: data in the capsule.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Transport SGL Data Block.
    pub const TRANSPORT: u8 = 0x5A;

    /// `len` bytes that follow the command.
    pub fn in_capsule(len: u32) -> Self {
        Self { len: len.into(), kind: Self::IN_CAPSULE, ..Self::zeroed() }
    }

    /// `len` bytes that data PDUs transfer.
    pub fn transport(len: u32) -> Self {
        Self { len: len.into(), kind: Self::TRANSPORT, ..Self::zeroed() }
    }
}

impl Cqe {
    /// A completion over fabrics; `result` is dwords 0 and 1, the low one first.
    #[inline]
    pub fn new(cid: u16, sqhd: u16, result: u64, status: Status) -> Self {
        Self {
            dw: [(result as u32).into(), ((result >> 32) as u32).into()],
            sqhd: sqhd.into(),
            sqid: 0.into(),
            cid: cid.into(),
            status: status.word().into(),
        }
    }

    /// How the command ended.
    #[inline]
    pub fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }

    /// Dwords 0 and 1 as one number.
    pub fn result(&self) -> u64 {
        u64::from(self.dw[1].get()) << 32 | u64::from(self.dw[0].get())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn a_write_is_laid_out_as_documented() {
        let mut sqe = Sqe::new(0x01, 0x1234, 1);
        sqe.sgl = Sgl::in_capsule(0x1000);
        sqe.cdw10[0] = 0x0807_0605.into();
        sqe.cdw10[2] = (1 << 30 | 7).into();
        let mut expected = [0; 64];
        expected[..8].copy_from_slice(&[0x01, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        expected[24..40].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0x01]);
        expected[40..52].copy_from_slice(&[5, 6, 7, 8, 0, 0, 0, 0, 7, 0, 0, 0x40]);
        assert_eq!(sqe.as_bytes(), expected);
        assert_eq!(Sqe::parse(&expected), Some(&sqe));
        assert_eq!(Sqe::parse(&expected[..63]), None);
        assert_eq!(Sqe::new(2, 0, 1).sgl.as_bytes(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x5A]);
    }

    #[test]
    fn a_completion_is_laid_out_as_documented() {
        let cqe = Cqe::new(0x1234, 5, 0x0001_0010, Status::CONNECT_INVALID_PARAMETERS);
        assert_eq!(cqe.as_bytes(), [0x10, 0, 1, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0x34, 0x12, 0x04, 0x83]);
    }

    #[test]
    fn where_data_may_be() {
        use Refused::{Fatal as Ends, Status as Completes};
        let sqe = |opcode, kind, address: u64, len: u32| {
            let sgl = Sgl { address: address.into(), len: len.into(), kind, ..Sgl::zeroed() };
            Sqe { sgl, ..Sqe::new(opcode, 0, 1) }
        };
        let cases = [
            (sqe(1, 0x01, 0, 512), 512, Ok(Pointer::Capsule(512))),
            (sqe(1, 0x5A, 9, 512), 0, Ok(Pointer::Transport(512))),
            (sqe(2, 0x5A, 9, 512), 0, Ok(Pointer::Transport(512))),
            (sqe(0, 0x01, 0, 0), 0, Ok(Pointer::Capsule(0))),
            (sqe(1, 0x01, 0, 8192), 8193, Err(Ends(Fatal::LIMIT_EXCEEDED))),
            (sqe(1, 0x01, 1, 512), 512, Err(Ends(Fatal { status: 6, information: 32 }))),
            (sqe(1, 0x5A, 0, 512), 512, Err(Ends(Fatal { status: 6, information: 32 }))),
            (sqe(2, 0x01, 0, 512), 512, Err(Ends(Fatal { status: 6, information: 32 }))),
            (sqe(1, 0x00, 0, 512), 512, Err(Ends(Fatal { status: 6, information: 32 }))),
            (sqe(1, 0x01, 0, 512), 511, Err(Ends(Fatal { status: 1, information: 4 }))),
            (sqe(1, 0x01, 0, 512), 0, Err(Ends(Fatal { status: 1, information: 4 }))),
            (sqe(1, 0x01, 1, 512), 0, Err(Completes(Status::SGL_TYPE_INVALID))),
            (sqe(1, 0x00, 0, 512), 0, Err(Completes(Status::SGL_TYPE_INVALID))),
            (sqe(2, 0x01, 0, 512), 0, Err(Completes(Status::SGL_TYPE_INVALID))),
        ];
        for (sqe, in_capsule, expected) in cases {
            assert_eq!(sqe.pointer(in_capsule, 8192), expected, "{sqe:?} with {in_capsule}");
        }
        for flags in [0x00, 0x80, 0xC0] {
            let sqe = Sqe { flags, ..sqe(1, 0x01, 0, 512) };
            assert_eq!(sqe.pointer(512, 8192), Err(Completes(Status::INVALID_FIELD)), "{flags:#x}");
        }
        // Of fabrics commands the type says which way: Authentication Receive takes no data along.
        let receive = Sqe { nsid: 6.into(), ..sqe(opcode::FABRICS, 0x01, 0, 64) };
        assert_eq!(receive.pointer(64, 8192), Err(Ends(Fatal { status: 6, information: 32 })));
        let connect = Sqe { nsid: 1.into(), ..sqe(opcode::FABRICS, 0x01, 0, 1024) };
        assert_eq!(connect.pointer(1024, 8192), Ok(Pointer::Capsule(1024)));
    }

    proptest! {
        #[test]
        fn completions_round_trip(cid: u16, sqhd: u16, result: u64, word: u16) {
            let status = Status::from_word(word);
            let cqe = Cqe::new(cid, sqhd, result, status);
            let cqe = Cqe::parse(cqe.as_bytes()).unwrap();
            prop_assert_eq!((cqe.cid.get(), cqe.sqhd.get(), cqe.result(), cqe.status()), (cid, sqhd, result, status));
        }

        #[test]
        fn data_is_as_long_as_the_descriptor_says(bytes: [u8; 64], in_capsule: u32, max: u32) {
            let sqe = Sqe::parse(&bytes).unwrap();
            if let Ok(pointer) = sqe.pointer(in_capsule, max) {
                prop_assert_eq!(pointer.len(), sqe.sgl.len.get());
                prop_assert!(matches!(pointer, Pointer::Transport(_)) && in_capsule == 0 || pointer.len() == in_capsule);
            }
        }
    }
}
