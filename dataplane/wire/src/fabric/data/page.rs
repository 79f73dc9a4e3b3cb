//! Page operations: payloads of `PAGE_REQUEST` and `PAGE_RESPONSE` frames (section "Page Operations";
//! profile, "Page profile").

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    network_endian::{U32, U128},
};

use super::super::{
    codec::{FabricError, Reader, Wire},
    macros::codes,
};

/// `PROFILE_FBMKV_PAGE_V0`, the first word of both payloads.
pub const PROFILE: u16 = 0x0A01;

/// Bytes before an operation's body: profile (2) and op (1).
pub const HEAD: usize = 3;

codes! {
    /// `op`, the third byte of both payloads.
    pub enum Op: u8 {
        Read = 0x10, "PAGE_READ", "read bytes of a page";
        Write = 0x11, "PAGE_WRITE", "write bytes of a page";
        Copy = 0x12, "PAGE_COPY", "copy one page over another";
        Zero = 0x13, "PAGE_ZERO", "zero a page";
        Advise = 0x14, "PAGE_ADVISE", "replace a page's advice";
        Query = 0x15, "PAGE_QUERY", "ask for a page's state";
    }

    /// `status` of a `PAGE_RESPONSE` ("Page error status codes").
    pub enum Status: u8 {
        Ok = 0x00, "OK", "done";
        LeaseNotFound = 0x01, "LEASE_NOT_FOUND", "no such lease of this holder";
        LeaseNotActive = 0x02, "LEASE_NOT_ACTIVE", "the lease takes no accesses";
        LeaseExpired = 0x03, "LEASE_EXPIRED", "the lease has expired";
        LeaseRevoked = 0x04, "LEASE_REVOKED", "the lease was revoked";
        LeaseFenced = 0x05, "LEASE_FENCED", "the lease is fenced, or its token did not allow this";
        PageOutOfRange = 0x06, "PAGE_OUT_OF_RANGE", "the range leaves the page, or the page the lease";
        InsufficientCapacity = 0x07, "INSUFFICIENT_CAPACITY", "the node has no room for it";
        SrcLeaseNotFound = 0x08, "SRC_LEASE_NOT_FOUND", "no such source lease";
        DstLeaseNotFound = 0x09, "DST_LEASE_NOT_FOUND", "no such destination lease";
        CrossTenantCopyDenied = 0x0A, "CROSS_TENANT_COPY_DENIED", "one of the leases is another holder's";
    }
}

/// One page of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRef {
    /// Full id of the lease.
    pub lease_id: u128,
    /// Index of the page within the lease, from 0.
    pub page: u32,
}

/// A parsed `PAGE_REQUEST`. It borrows its data from the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Reads `length` bytes from `offset` of a page.
    Read {
        /// Page to read.
        page: PageRef,
        /// First byte to read, counted within the page.
        offset: u32,
        /// Bytes to read.
        length: u32,
    },
    /// Writes `data` at `offset` of a page.
    Write {
        /// Page to write.
        page: PageRef,
        /// First byte to write, counted within the page.
        offset: u32,
        /// The bytes to write; the wire puts their u32 count before them.
        data: &'a [u8],
    },
    /// Copies a whole page; both leases must be the caller's.
    Copy {
        /// Page to copy from.
        src: PageRef,
        /// Page to overwrite.
        dst: PageRef,
    },
    /// Fills a page with zeros.
    Zero(PageRef),
    /// Replaces a page's advice flags.
    Advise {
        /// Page to advise.
        page: PageRef,
        /// `PageAdvice` bits; they replace the earlier ones.
        flags: u32,
    },
    /// Asks for a page's [`State`].
    Query(PageRef),
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WirePage {
    lease_id: U128,
    page: U32,
}

impl From<PageRef> for WirePage {
    fn from(page: PageRef) -> Self {
        Self { lease_id: page.lease_id.into(), page: page.page.into() }
    }
}

impl From<WirePage> for PageRef {
    fn from(page: WirePage) -> Self {
        Self { lease_id: page.lease_id.get(), page: page.page.get() }
    }
}

fn take<T: FromBytes>(bytes: &mut &[u8]) -> Option<T> {
    let (value, rest) = T::read_from_prefix(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

fn head(op: Op) -> [u8; HEAD] {
    let [high, low] = PROFILE.to_be_bytes();
    [high, low, op as u8]
}

/// Checks the profile word; returns the op and the body.
fn split(payload: &[u8]) -> Option<(Op, &[u8])> {
    let (&[high, low, op], body) = payload.split_first_chunk()?;
    if u16::from_be_bytes([high, low]) != PROFILE {
        return None;
    }
    Some((Op::from_code(op)?, body))
}

impl<'a> Request<'a> {
    /// Reads a whole payload. `None` if it is malformed: another profile, an unknown op, bytes missing or left over.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (op, mut body) = split(payload)?;
        let page: PageRef = take::<WirePage>(&mut body)?.into();
        let request = match op {
            Op::Read => {
                Self::Read { page, offset: take::<U32>(&mut body)?.get(), length: take::<U32>(&mut body)?.get() }
            }
            Op::Write => {
                let (offset, length) = (take::<U32>(&mut body)?.get(), take::<U32>(&mut body)?.get());
                let data = std::mem::take(&mut body);
                if data.len() != length as usize {
                    return None;
                }
                Self::Write { page, offset, data }
            }
            Op::Copy => Self::Copy { src: page, dst: take::<WirePage>(&mut body)?.into() },
            Op::Zero => Self::Zero(page),
            Op::Advise => Self::Advise { page, flags: take::<U32>(&mut body)?.get() },
            Op::Query => Self::Query(page),
        };
        body.is_empty().then_some(request)
    }

    /// Appends the payload to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend(head(self.op()));
        let (page, words) = match *self {
            Self::Read { page, offset, length } => (page, [Some(offset), Some(length)]),
            Self::Write { page, offset, data } => (page, [Some(offset), Some(data.len() as u32)]),
            Self::Copy { src, .. } => (src, [None; 2]),
            Self::Advise { page, flags } => (page, [Some(flags), None]),
            Self::Zero(page) | Self::Query(page) => (page, [None; 2]),
        };
        out.extend_from_slice(WirePage::from(page).as_bytes());
        words.into_iter().flatten().for_each(|word| out.extend(word.to_be_bytes()));
        match *self {
            Self::Write { data, .. } => out.extend_from_slice(data),
            Self::Copy { dst, .. } => out.extend_from_slice(WirePage::from(dst).as_bytes()),
            _ => {}
        }
    }

    /// The op byte of this request.
    pub fn op(&self) -> Op {
        match self {
            Self::Read { .. } => Op::Read,
            Self::Write { .. } => Op::Write,
            Self::Copy { .. } => Op::Copy,
            Self::Zero(_) => Op::Zero,
            Self::Advise { .. } => Op::Advise,
            Self::Query(_) => Op::Query,
        }
    }
}

/// Tracked state of a page, the body of `PAGE_QUERY`'s answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// Index of the page within the lease, from 0.
    pub page: u32,
    /// Where the page resides: 0 DRAM, 1 HBM, 2 persistent memory, 3 remote.
    pub tier: u8,
    /// Whether the page was written since it was leased.
    pub dirty: bool,
    /// Reads, writes, copies and zeroings of the page so far.
    pub accesses: u32,
    /// Time of the last access, in milliseconds since the Unix epoch; 0 before the first.
    pub last_access_ms: u64,
    /// Flags of the last `PAGE_ADVISE`; 0 before the first.
    pub advice: u32,
}

/// A parsed `PAGE_RESPONSE`. It borrows its data from the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response<'a> {
    /// The status alone: every failure, and the success of operations that return nothing else.
    Status(Op, Status),
    /// Bytes read by a successful `PAGE_READ`.
    Data(&'a [u8]),
    /// State returned by a successful `PAGE_QUERY`.
    State(State),
}

impl<'a> Response<'a> {
    /// Bytes before a read's data: the head and the status.
    pub const DATA_HEAD: usize = HEAD + 1;

    /// Reads a whole payload; `None` if it is malformed.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let (op, body) = split(payload)?;
        let (&status, body) = body.split_first()?;
        match (op, Status::from_code(status)?) {
            (Op::Read, Status::Ok) => Some(Self::Data(body)),
            (Op::Query, Status::Ok) => {
                let body: &[u8; 22] = body.try_into().ok()?;
                let word = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
                Some(Self::State(State {
                    page: word(0),
                    tier: body[4],
                    dirty: body[5] != 0,
                    accesses: word(6),
                    last_access_ms: u64::from(word(10)) << 32 | u64::from(word(14)),
                    advice: word(18),
                }))
            }
            (op, status) => body.is_empty().then_some(Self::Status(op, status)),
        }
    }

    /// Appends the payload to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (op, status) = match *self {
            Self::Status(op, status) => (op, status),
            Self::Data(_) => (Op::Read, Status::Ok),
            Self::State(_) => (Op::Query, Status::Ok),
        };
        out.extend(head(op));
        out.push(status as u8);
        match *self {
            Self::Status(..) => {}
            Self::Data(data) => out.extend_from_slice(data),
            Self::State(state) => {
                out.extend(state.page.to_be_bytes());
                out.extend([state.tier, u8::from(state.dirty)]);
                out.extend(state.accesses.to_be_bytes());
                out.extend(state.last_access_ms.to_be_bytes());
                out.extend(state.advice.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(request: &Request<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        request.write(&mut out);
        out
    }

    const PAGE: PageRef = PageRef { lease_id: 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10, page: 0x11 };

    #[test]
    fn requests_are_laid_out_as_documented() {
        let page: Vec<u8> = (1..=16).chain([0, 0, 0, 0x11]).collect();
        let advise = bytes(&Request::Advise { page: PAGE, flags: 0x20 });
        assert_eq!(advise, [b"\x0A\x01\x14", &page[..], b"\0\0\0\x20"].concat());
        let write = bytes(&Request::Write { page: PAGE, offset: 5, data: b"abc" });
        assert_eq!(write, [b"\x0A\x01\x11", &page[..], b"\0\0\0\x05\0\0\0\x03abc"].concat());
        let copy = bytes(&Request::Copy { src: PAGE, dst: PAGE });
        assert_eq!(copy, [b"\x0A\x01\x12", &page[..], &page].concat());
    }

    #[test]
    fn a_state_is_laid_out_as_documented() {
        let state = State { page: 1, tier: 3, dirty: true, accesses: 2, last_access_ms: 0x0102_0304_0506, advice: 9 };
        let mut out = Vec::new();
        Response::State(state).write(&mut out);
        assert_eq!(out, *b"\x0A\x01\x15\0\0\0\0\x01\x03\x01\0\0\0\x02\0\0\x01\x02\x03\x04\x05\x06\0\0\0\x09");
        assert_eq!(Response::parse(&out), Some(Response::State(state)));
    }

    fn request() -> impl Strategy<Value = (u8, u128, u32, u32, u32, Vec<u8>)> {
        (
            0x10..=0x15_u8,
            any::<u128>(),
            any::<u32>(),
            any::<u32>(),
            any::<u32>(),
            prop::collection::vec(any::<u8>(), 0..64),
        )
    }

    proptest! {
        #[test]
        fn requests_round_trip((op, lease_id, number, offset, length, data) in request()) {
            let page = PageRef { lease_id, page: number };
            let request = match Op::from_code(op).unwrap() {
                Op::Read => Request::Read { page, offset, length },
                Op::Write => Request::Write { page, offset, data: &data },
                Op::Copy => Request::Copy { src: page, dst: PageRef { lease_id: !lease_id, page: offset } },
                Op::Zero => Request::Zero(page),
                Op::Advise => Request::Advise { page, flags: length },
                Op::Query => Request::Query(page),
            };
            let mut bytes = bytes(&request);
            prop_assert_eq!(Request::parse(&bytes), Some(request));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Request::parse(&bytes[..cut]), None);
            }
            bytes.push(0);
            prop_assert_eq!(Request::parse(&bytes), None);
        }

        #[test]
        fn responses_round_trip(op in 0x10..=0x15_u8, status in 0..=10_u8, data in prop::collection::vec(any::<u8>(), 0..64)) {
            let op = Op::from_code(op).unwrap();
            let response = match (op, Status::from_code(status).unwrap()) {
                (Op::Read, Status::Ok) => Response::Data(&data),
                (Op::Query, Status::Ok) => Response::State(State::default()),
                (op, status) => Response::Status(op, status),
            };
            let mut bytes = Vec::new();
            response.write(&mut bytes);
            prop_assert_eq!(Response::parse(&bytes), Some(response));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (Request::parse(&bytes), Response::parse(&bytes));
        }
    }
}
