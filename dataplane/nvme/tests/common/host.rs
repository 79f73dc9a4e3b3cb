//! A host's side of connections.

use std::collections::VecDeque;

use berth_nvme::{Connection, Target};
use berth_port::{Nanos, Next, Progress, Session as _};
use berth_wire::nvme::{
    Cqe, Sgl, Sqe, Status,
    admin::{GetLogPage, Identify},
    fabrics::{Connect, ConnectData, Nqn, Property, property},
    io::Access,
    opcode,
    pdu::{Common, DataPdu, Fatal, Framing, Header, IcReq, IcResp, Kind, R2t, Rules, Side, TermReq, flags},
};
use zerocopy::{FromBytes as _, IntoBytes};

use super::{HOST, NOW};

pub const HOST_ID: [u8; 16] = [7; 16];

/// What the controller sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pdu {
    Initialised { digests: u8, max: u32 },
    Response { cid: u16, status: Status, result: u64, sqhd: u16 },
    R2t { cid: u16, ttag: u16, offset: u32, len: u32 },
    Data { cid: u16, offset: u32, flags: u8, data: Vec<u8> },
    Terminated(Fatal, Vec<u8>),
}

/// How a host cuts what it sends, and how much room it has for answers.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    pub input: usize,
    pub output: usize,
}

pub const WHOLE: Cut = Cut { input: usize::MAX, output: 64 << 10 };

/// One connection of a host.
pub struct Host {
    pub connection: Connection,
    pub now: Nanos,
    pub cut: Cut,
    /// How it frames what it sends.
    pub framing: Framing,
    rules: Rules,
    /// Sent and not consumed.
    input: VecDeque<u8>,
    shown: usize,
    heard: Vec<u8>,
    pub next: Next,
    next_cid: u16,
}

impl Host {
    /// A connection on which nothing was said yet.
    pub fn new(target: &Target) -> Self {
        Self {
            connection: Connection::new(target, "192.0.2.1:4420".parse().unwrap()),
            now: NOW,
            cut: WHOLE,
            framing: Framing::default(),
            rules: Rules {
                sender: Side::Controller,
                initialised: false,
                framing: Framing::default(),
                capsule_data_max: 0,
            },
            input: VecDeque::new(),
            shown: 0,
            heard: Vec::new(),
            next: Next::Input(8),
            next_cid: 0,
        }
    }

    /// One that is initialised with these digests, and whose data is to be aligned so.
    pub fn initialised(target: &Target, digests: u8, hpda: u8) -> Self {
        let mut host = Self::new(target);
        host.initialise(digests, hpda);
        host
    }

    pub fn initialise(&mut self, digests: u8, hpda: u8) {
        self.say(IcReq::new(hpda, digests, 0).as_bytes());
        let Pdu::Initialised { digests: granted, .. } = self.hear() else { panic!("not initialised") };
        assert_eq!(granted, digests);
        let framing = |alignment| Framing::new(digests & 1 != 0, digests & 2 != 0, alignment);
        (self.framing, self.rules.framing) = (framing(0), framing(hpda));
    }

    /// An admin queue whose controller is enabled.
    pub fn admin(target: &Target, nqn: &str, digests: u8) -> (Self, u16) {
        let mut host = Self::initialised(target, digests, 0);
        let id = host.connect_admin(nqn);
        host.enable();
        (host, id)
    }

    pub fn connect_admin(&mut self, nqn: &str) -> u16 {
        let (status, result) = self.connect(admin_connect(), &connect_data(nqn, 0xFFFF));
        assert_eq!(status, Status::SUCCESS, "{result:#x}");
        result as u16
    }

    pub fn enable(&mut self) {
        self.set_property(property::CC, property::cc::ENABLED);
        assert_eq!(self.property(property::CSTS), property::csts::READY);
    }

    /// I/O queue `queue` of a controller.
    pub fn io(target: &Target, nqn: &str, controller: u16, queue: u16, digests: u8) -> Self {
        let mut host = Self::initialised(target, digests, 0);
        let (status, result) = host.connect(io_connect(queue), &connect_data(nqn, controller));
        assert_eq!((status, result), (Status::SUCCESS, controller.into()));
        host
    }

    pub fn connect(&mut self, connect: Connect, data: &ConnectData) -> (Status, u64) {
        let cid = self.cid();
        let mut sqe = connect.command(cid);
        sqe.sgl = Sgl::in_capsule(1024);
        self.command(&sqe, data.as_bytes());
        self.ended(cid)
    }

    pub fn set_property(&mut self, offset: u32, value: u32) {
        let cid = self.cid();
        self.command(&Property { offset, wide: false, value: value.into() }.set(cid), &[]);
        assert_eq!(self.ended(cid), (Status::SUCCESS, 0));
    }

    pub fn property(&mut self, offset: u32) -> u32 {
        let cid = self.cid();
        self.command(&Property { offset, wide: false, value: 0 }.get(cid), &[]);
        let (status, value) = self.ended(cid);
        assert_eq!(status, Status::SUCCESS);
        value as u32
    }

    pub fn cid(&mut self) -> u16 {
        self.next_cid += 1;
        self.next_cid
    }

    /// Sends a command with its data in the capsule.
    pub fn command(&mut self, sqe: &Sqe, data: &[u8]) {
        let pdu = self.capsule(sqe, data);
        self.say(&pdu);
    }

    /// A command capsule.
    pub fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        let mut pdu = vec![0; 256];
        let len = self.framing.command(&mut pdu, sqe, data.len() as u32).unwrap();
        pdu.truncate(len);
        self.with_data(pdu, data)
    }

    /// An `H2CData`.
    pub fn h2c_data(&self, cid: u16, ttag: u16, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let mut pdu = vec![0; 256];
        let len = self.framing.h2c_data(&mut pdu, cid, ttag, offset, data.len() as u32, last).unwrap();
        pdu.truncate(len);
        self.with_data(pdu, data)
    }

    fn with_data(&self, mut pdu: Vec<u8>, data: &[u8]) -> Vec<u8> {
        pdu.extend_from_slice(data);
        if self.framing.data_digest && !data.is_empty() {
            pdu.extend(crc32c::crc32c(data).to_le_bytes());
        }
        pdu
    }

    /// Sends bytes, and takes all that is answered.
    pub fn say(&mut self, bytes: &[u8]) {
        self.input.extend(bytes);
        self.run();
    }

    /// Lets the connection do what it can.
    pub fn run(&mut self) {
        let mut room = self.cut.output;
        loop {
            let input: Vec<u8> = self.input.iter().copied().take(self.shown).collect();
            let mut output = vec![0xEE; room];
            let Progress { consumed, written, next } = self.connection.advance(&input, &mut output, self.now);
            assert!(consumed <= input.len() && written <= room);
            self.input.drain(..consumed);
            self.shown -= consumed;
            self.heard.extend_from_slice(&output[..written]);
            self.next = next;
            match next {
                Next::Output(wanted) => {
                    assert!(written > 0 || wanted > room, "{wanted} bytes of room, and there are {room}");
                    room = room.max(wanted);
                }
                Next::Input(wanted) => {
                    assert!(wanted > self.shown);
                    if self.shown == self.input.len() {
                        return;
                    }
                    self.shown = self.input.len().min(self.shown.saturating_add(self.cut.input));
                }
                Next::Completion | Next::Close => return,
            }
        }
    }

    /// The next PDU, if there is one.
    pub fn try_hear(&mut self) -> Option<Pdu> {
        let common = self.heard.first_chunk::<{ Common::LEN }>()?;
        let header = Header::parse(common, &self.rules).unwrap();
        header.check_digest(&self.heard[..header.len]).unwrap();
        let (at, len) = (header.data_at, header.data_len as usize);
        let whole = at + len + if header.data_digest { 4 } else { 0 };
        assert!(self.heard.len() >= whole, "a PDU is cut short");
        assert!(self.heard[header.len..at].iter().all(|pad| *pad == 0));
        let pdu: Vec<u8> = self.heard.drain(..whole).collect();
        let data = pdu[at..at + len].to_vec();
        if header.data_digest {
            assert_eq!(pdu[at + len..], crc32c::crc32c(&data).to_le_bytes());
        }
        Some(match header.kind {
            Kind::IcResp => {
                let response = IcResp::parse(&pdu).unwrap();
                assert_eq!((response.pfv.get(), response.cpda), (0, 0));
                self.rules.initialised = true;
                Pdu::Initialised { digests: response.digests, max: response.max_h2c_data.get() }
            }
            Kind::CapsuleResp => {
                let cqe = Cqe::ref_from_bytes(&pdu[8..24]).unwrap();
                let (status, result) = (cqe.status(), cqe.result());
                Pdu::Response { cid: cqe.cid.get(), status, result, sqhd: cqe.sqhd.get() }
            }
            Kind::R2t => {
                let r2t = R2t::parse(&pdu).unwrap();
                let (offset, len) = (r2t.offset.get(), r2t.len.get());
                Pdu::R2t { cid: r2t.cccid.get(), ttag: r2t.ttag.get(), offset, len }
            }
            Kind::C2hData => {
                let head = DataPdu::checked(&pdu, &header, u32::MAX).unwrap();
                Pdu::Data {
                    cid: head.cccid.get(),
                    offset: head.offset.get(),
                    flags: header.flags & (flags::LAST | flags::SUCCESS),
                    data,
                }
            }
            Kind::C2hTermReq => Pdu::Terminated(TermReq::parse(&pdu).unwrap().fatal(), data),
            other => panic!("{other:?}"),
        })
    }

    pub fn hear(&mut self) -> Pdu {
        self.try_hear().expect("an answer")
    }

    /// The next PDU, if there is one, which stays.
    pub fn peek(&mut self) -> Option<Pdu> {
        let heard = self.heard.clone();
        let pdu = self.try_hear();
        self.heard = heard;
        pdu
    }

    pub fn hears_nothing(&mut self) {
        assert_eq!(self.try_hear(), None);
    }

    /// How the command ended: what comes next is its response.
    pub fn ended(&mut self, cid: u16) -> (Status, u64) {
        match self.hear() {
            Pdu::Response { cid: other, status, result, .. } if other == cid => (status, result),
            other => panic!("{other:?} in place of the response to {cid}"),
        }
    }

    pub fn status(&mut self, cid: u16) -> Status {
        self.ended(cid).0
    }

    /// All data of a command, and how it ended.
    pub fn data(&mut self, cid: u16) -> (Vec<u8>, Status) {
        let mut all = Vec::new();
        loop {
            match self.hear() {
                Pdu::Data { cid: other, offset, flags, data } => {
                    assert_eq!((other, offset as usize), (cid, all.len()));
                    assert!(!data.is_empty());
                    all.extend(data);
                    if flags == flags::LAST | flags::SUCCESS {
                        return (all, Status::SUCCESS);
                    }
                }
                Pdu::Response { cid: other, status, .. } => {
                    assert_eq!(other, cid);
                    return (all, status);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A read.
    pub fn read(&mut self, slba: u64, blocks: u32) -> (Vec<u8>, Status) {
        let cid = self.cid();
        self.command(&rw(opcode::io::READ, cid, slba, blocks), &[]);
        self.data(cid)
    }

    /// A write, with its data in the capsule.
    pub fn write(&mut self, slba: u64, data: &[u8]) -> Status {
        let cid = self.cid();
        self.command(&in_capsule(opcode::io::WRITE, cid, slba, data.len()), data);
        self.status(cid)
    }

    /// A write by R2T, in PDUs of at most so many bytes of data.
    pub fn write_by_r2t(&mut self, slba: u64, data: &[u8], most: usize) -> Status {
        let cid = self.cid();
        self.command(&rw(opcode::io::WRITE, cid, slba, (data.len() / 512) as u32), &[]);
        self.transfer(cid, data, most)
    }

    /// Sends what R2Ts ask for, until the response.
    pub fn transfer(&mut self, cid: u16, data: &[u8], most: usize) -> Status {
        loop {
            match self.hear() {
                Pdu::R2t { cid: other, ttag, offset, len } => {
                    assert_eq!(other, cid);
                    let wanted = &data[offset as usize..][..len as usize];
                    let mut at = 0;
                    for piece in wanted.chunks(most) {
                        let is_last = at + piece.len() == wanted.len();
                        let pdu = self.h2c_data(cid, ttag, offset + at as u32, piece, is_last);
                        at += piece.len();
                        self.say(&pdu);
                    }
                }
                Pdu::Response { cid: other, status, .. } => {
                    assert_eq!(other, cid);
                    return status;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub fn identify(&mut self, cns: u8, nsid: u32) -> (Vec<u8>, Status) {
        let cid = self.cid();
        let mut sqe = Sqe::new(opcode::admin::IDENTIFY, cid, nsid);
        sqe.sgl = Sgl::transport(4096);
        Identify { cns, controller: 0, command_set: 0 }.put(&mut sqe);
        self.command(&sqe, &[]);
        self.data(cid)
    }

    pub fn log(&mut self, id: u8, offset: u64, len: u32, retain: bool) -> (Vec<u8>, Status) {
        let cid = self.cid();
        let mut sqe = Sqe::new(opcode::admin::GET_LOG_PAGE, cid, 0xFFFF_FFFF);
        sqe.sgl = Sgl::transport(len);
        GetLogPage { id, specific: 0, retain, len: len.into(), offset }.put(&mut sqe);
        self.command(&sqe, &[]);
        self.data(cid)
    }
}

pub fn admin_connect() -> Connect {
    Connect { format: 0, queue: 0, size: 31, attributes: 0, keep_alive: 0 }
}

pub fn io_connect(queue: u16) -> Connect {
    Connect { queue, size: 127, ..admin_connect() }
}

pub fn connect_data(nqn: &str, controller: u16) -> ConnectData {
    let mut data = ConnectData::zeroed();
    (data.host_id, data.controller) = (HOST_ID, controller.into());
    data.subnqn = Nqn::new(nqn.as_bytes()).unwrap();
    data.hostnqn = Nqn::new(HOST.as_bytes()).unwrap();
    data
}

/// A command on a range of blocks, whose data is transferred by data PDUs.
pub fn rw(opcode: u8, cid: u16, slba: u64, blocks: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode, cid, 1);
    Access { slba, blocks, fua: false, deallocate: false }.put(&mut sqe);
    sqe.sgl = Sgl::transport(blocks * 512);
    sqe
}

/// A command on a range of blocks, whose data is in the capsule.
pub fn in_capsule(opcode: u8, cid: u16, slba: u64, len: usize) -> Sqe {
    let mut sqe = rw(opcode, cid, slba, (len / 512) as u32);
    sqe.sgl = Sgl::in_capsule(len as u32);
    sqe
}

/// Data that says where it is from.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_add(at).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 56) as u8).collect()
}
