//! The TCP rendezvous of RDMA, software-RoCE and libfabric ports. Over it, a peer and a port exchange what they must
//! know before the fabric can carry anything (`docs/rdma.md`, "The rendezvous").
//!
//! A port speaks one of two forms: 12 bytes each way as in the CUDA-Q host API ([`HostApi`]), or TLVs ([`Offer`],
//! [`Answer`]). Everything is big-endian.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::fabric::{BindingTlv, ClientTlv, FabricError, Reader, Status, Tlv, Tlvs, Wire, macros::codes};

/// Limit on a message in bytes, without its length word.
pub const MAX_MESSAGE: usize = 4096;

/// Mask of a packet sequence number, which is 24 bits wide.
pub const PSN_MASK: u32 = 0x00FF_FFFF;

const KIND: u16 = 0x0412;
const SLOTS: u16 = 0x0413;
const PATH_MTU: u16 = 0x0414;

codes! {
    /// TLV 0x0412: the queue pair's type, and how requests arrive.
    pub enum PeerKind: u8 {
        UcWriteImm = 1, "uc-write-imm", "unreliable connection; requests are RDMA WRITEs with immediate into slots";
        RcSend = 2, "rc-send", "reliable connection; requests are SENDs";
        RcWriteImm = 3, "rc-write-imm", "reliable connection; requests are RDMA WRITEs with immediate into slots";
        Ofi = 4, "ofi", "a libfabric endpoint; requests are tagged or untagged messages";
        UcSend = 5, "uc-send", "unreliable connection; requests are SENDs";
    }

    /// How an immediate names a slot (byte 8 of TLV 0x0413).
    pub enum ImmForm: u8 {
        Psn20 = 1, "psn20", "20 bits of packet sequence number above 12 bits of slot";
        Psn24 = 2, "psn24", "24 bits of packet sequence number, 6 bits of zero, 2 bits of slot";
    }
}

impl PeerKind {
    /// Whether the queue pair is a reliable connection.
    pub fn is_reliable(self) -> bool {
        matches!(self, Self::RcSend | Self::RcWriteImm)
    }

    /// Whether the peer writes its requests into slots, rather than sending them.
    pub fn writes_slots(self) -> bool {
        matches!(self, Self::UcWriteImm | Self::RcWriteImm)
    }
}

impl ImmForm {
    /// Number of slots that the form can name.
    pub fn max_slots(self) -> u32 {
        match self {
            Self::Psn20 => 1 << 12,
            Self::Psn24 => 1 << 2,
        }
    }

    /// Bits of the packet sequence number that an immediate carries.
    pub fn psn_mask(self) -> u32 {
        match self {
            Self::Psn20 => 0x000F_FFFF,
            Self::Psn24 => PSN_MASK,
        }
    }

    /// Splits an immediate into packet sequence number and slot; `None` if bits that must be zero are not.
    #[inline]
    pub fn split(self, immediate: u32) -> Option<(u32, u32)> {
        match self {
            Self::Psn20 => Some((immediate >> 12, immediate & 0xFFF)),
            Self::Psn24 => (immediate & 0xFC == 0).then_some((immediate >> 8, immediate & 0x3)),
        }
    }

    /// Builds the immediate of a packet. Bits of `psn` and `slot` that the form cannot carry are dropped.
    #[inline]
    pub fn join(self, psn: u32, slot: u32) -> u32 {
        let slot = slot & (self.max_slots() - 1);
        match self {
            Self::Psn20 => psn << 12 | slot,
            Self::Psn24 => psn << 8 | slot,
        }
    }
}

/// The IPv4 address that a GID stands for, as `RoCEv2` maps it (`::ffff:a.b.c.d`).
pub fn gid_to_ipv4(gid: [u8; 16]) -> Option<Ipv4Addr> {
    Ipv6Addr::from(gid).to_ipv4_mapped()
}

/// The GID that `RoCEv2` gives an IPv4 address (`::ffff:a.b.c.d`).
pub fn ipv4_to_gid(addr: Ipv4Addr) -> [u8; 16] {
    addr.to_ipv6_mapped().octets()
}

/// The 12 bytes of the host API, the same in both directions. The rest is fixed: unreliable connection, RDMA WRITE with
/// immediate, MTU 4096, packet sequence numbers from 0, virtual addresses from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostApi {
    /// Number of the sender's queue pair.
    pub qp_num: u32,
    /// Remote key of the sender's memory; 0 if the sender has none to be written.
    pub rkey: u32,
    /// The sender's `RoCEv2` address.
    pub addr: Ipv4Addr,
}

impl HostApi {
    /// Message size in bytes.
    pub const LEN: usize = 12;
    /// Path MTU of both queue pairs in bytes.
    pub const MTU: u16 = 4096;

    /// Reads a message; every value is allowed.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        Self {
            qp_num: u32::from_be_bytes(word(0)),
            rkey: u32::from_be_bytes(word(4)),
            addr: Ipv4Addr::from_octets(word(8)),
        }
    }

    /// The message as it is sent.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.qp_num.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[8..].copy_from_slice(&self.addr.octets());
        bytes
    }

    /// Reads a peer's message as an offer. Its rkey comes without an address and a size, so answers cannot be written
    /// with it.
    pub fn offer(self) -> Offer<'static> {
        let gid = ipv4_to_gid(self.addr);
        let peer = Peer::Rdma { qp_num: self.qp_num, gid, psn: 0, mtu: Self::MTU };
        Offer { kind: PeerKind::UcWriteImm, peer, window: None }
    }

    /// Reads a port's message as an answer.
    pub fn answer(self) -> Answer {
        let mut answer = Answer::default();
        answer.push(&BindingTlv::RdmaRkey(self.rkey));
        answer.push(&BindingTlv::RdmaRemoteAddr(0));
        answer.push(&BindingTlv::RdmaQpNum(self.qp_num));
        answer.push(&BindingTlv::RdmaGid(ipv4_to_gid(self.addr)));
        answer.push(&BindingTlv::RdmaPsn(0));
        answer.push_path_mtu(Self::MTU);
        answer
    }

    /// Builds the message from an answer; `None` if its GID is not an IPv4 address or one of the three fields is
    /// missing.
    pub fn of_answer(answer: &Answer) -> Option<Self> {
        let rdma = answer.rdma()?;
        Some(Self { qp_num: rdma.qp_num, rkey: rdma.rkey, addr: gid_to_ipv4(rdma.gid)? })
    }

    /// Builds the message from an offer, with `rkey` 0; `None` if the peer is not an RDMA one with an IPv4 address.
    pub fn of_offer(offer: &Offer<'_>) -> Option<Self> {
        let Peer::Rdma { qp_num, gid, .. } = offer.peer else { return None };
        Some(Self { qp_num, rkey: offer.window.map_or(0, |window| window.rkey), addr: gid_to_ipv4(gid)? })
    }
}

/// The endpoint that wants to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer<'a> {
    /// TLV 0x0410: a queue pair.
    Rdma {
        /// Number of the queue pair.
        qp_num: u32,
        /// GID of the peer's port.
        gid: [u8; 16],
        /// First packet sequence number that the peer sends.
        psn: u32,
        /// Path MTU in bytes: the longest payload of a packet.
        mtu: u16,
    },
    /// TLV 0x0604: a libfabric endpoint.
    Ofi {
        /// The peer's address from `fi_getname`, opaque.
        addr: &'a [u8],
    },
}

/// An array of slots in registered memory: TLV 0x0413.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Number of slots.
    pub count: u32,
    /// Bytes from the start of one slot to the next.
    pub stride: u32,
    /// How an immediate names a slot.
    pub form: ImmForm,
}

/// Memory of the peer into which answers are written: TLVs 0x0201, 0x0202 and 0x0413 of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Remote key of the memory.
    pub rkey: u32,
    /// Virtual address of slot 0.
    pub addr: u64,
    /// Layout of the slots. An answer goes to the slot number that its request came to.
    pub slots: Slots,
}

/// A peer's message: u32 length, then TLVs. Unknown TLVs are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The queue pair's type, and how requests arrive.
    pub kind: PeerKind,
    /// The endpoint that sends them.
    pub peer: Peer<'a>,
    /// Where answers are written; if `None`, they are sent.
    pub window: Option<Window>,
}

impl<'a> Offer<'a> {
    /// Reads the bytes behind the length word.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FabricError> {
        let tlvs = tlvs(bytes)?;
        let kind: PeerKind = tlvs.find(KIND).ok_or(FabricError::Value("BIND_KIND"))?.parse_value()?;
        let mut rdma = None;
        let mut ofi = None;
        let mut rkey = None;
        let mut addr = None;
        for tlv in tlvs {
            if let Some(ClientTlv::RdmaPeer { qp_num, gid, psn, mtu }) = ClientTlv::read(tlv)? {
                rdma.get_or_insert(Peer::Rdma { qp_num, gid, psn, mtu });
            }
            match BindingTlv::read(tlv)? {
                Some(BindingTlv::OfiAddr(addr)) => _ = ofi.get_or_insert(Peer::Ofi { addr }),
                Some(BindingTlv::RdmaRkey(key)) => _ = rkey.get_or_insert(key),
                Some(BindingTlv::RdmaRemoteAddr(at)) => _ = addr.get_or_insert(at),
                _ => {}
            }
        }
        let (peer, missing) = if kind == PeerKind::Ofi { (ofi, "OFI_ADDR") } else { (rdma, "RDMA_PEER") };
        let peer = peer.ok_or(FabricError::Value(missing))?;
        if let Peer::Rdma { qp_num, psn, .. } = peer
            && (qp_num | psn) & !PSN_MASK != 0
        {
            return Err(FabricError::Value("RDMA_PEER"));
        }
        let window = match (rkey, addr, tlvs.find(SLOTS)) {
            (None, None, None) => None,
            (Some(rkey), Some(addr), Some(slots)) => Some(Window { rkey, addr, slots: slots.parse_value()? }),
            _ => return Err(FabricError::Value("RKEY, REMOTE_ADDR and SLOTS come together")),
        };
        Ok(Self { kind, peer, window })
    }

    /// Appends the length word and the TLVs.
    ///
    /// # Panics
    /// If an endpoint's address is longer than the 65535 bytes that a TLV can hold.
    pub fn write(&self, to: &mut Vec<u8>) {
        with_length(to, |to| {
            match self.peer {
                Peer::Rdma { qp_num, gid, psn, mtu } => ClientTlv::RdmaPeer { qp_num, gid, psn, mtu }.write(to),
                Peer::Ofi { addr } => BindingTlv::OfiAddr(addr).write(to),
            }
            Tlv::append(to, KIND, |to| self.kind.write(to));
            if let Some(window) = self.window {
                BindingTlv::RdmaRkey(window.rkey).write(to);
                BindingTlv::RdmaRemoteAddr(window.addr).write(to);
                Tlv::append(to, SLOTS, |to| window.slots.write(to));
            }
        });
    }
}

impl<'a> Wire<'a> for Slots {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let slots = Self { count: from.get()?, stride: from.get()?, form: from.get()? };
        if slots.count > slots.form.max_slots() {
            return Err(FabricError::Limit("SLOTS"));
        }
        Ok(slots)
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.count.write(to);
        self.stride.write(to);
        self.form.write(to);
    }
}

/// A port's side of an RDMA connection, read from an [`Answer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RdmaSide {
    /// Number of the port's queue pair.
    pub qp_num: u32,
    /// GID of the port.
    pub gid: [u8; 16],
    /// First packet sequence number that the port sends.
    pub psn: u32,
    /// Remote key of the port's slots; 0 if it has none.
    pub rkey: u32,
    /// Virtual address of slot 0.
    pub addr: u64,
    /// Layout of the port's slots. `None` in the host-API form, where both sides know it, and if requests are sent.
    pub slots: Option<Slots>,
    /// Path MTU of both queue pairs in bytes: the longest payload of a packet.
    pub mtu: u16,
}

/// A port's message: a status, a length and TLVs 0x02xx, 0x0413, 0x0414 or 0x06xx. Unknown ones are skipped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    tlvs: Vec<u8>,
}

impl Answer {
    /// Appends one TLV.
    pub fn push(&mut self, tlv: &BindingTlv<'_>) {
        tlv.write(&mut self.tlvs);
    }

    /// Appends TLV 0x0413, the layout of the port's slots.
    pub fn push_slots(&mut self, slots: Slots) {
        Tlv::append(&mut self.tlvs, SLOTS, |to| slots.write(to));
    }

    /// Appends TLV 0x0414, the path MTU in bytes.
    pub fn push_path_mtu(&mut self, mtu: u16) {
        Tlv::append(&mut self.tlvs, PATH_MTU, |to| mtu.write(to));
    }

    /// Appends the TLVs of one side of an RDMA connection.
    pub fn push_rdma(&mut self, side: &RdmaSide) {
        self.push(&BindingTlv::RdmaQpNum(side.qp_num));
        self.push(&BindingTlv::RdmaGid(side.gid));
        self.push(&BindingTlv::RdmaPsn(side.psn));
        if let Some(slots) = side.slots {
            self.push(&BindingTlv::RdmaRkey(side.rkey));
            self.push(&BindingTlv::RdmaRemoteAddr(side.addr));
            self.push_slots(slots);
        }
        self.push_path_mtu(side.mtu);
    }

    /// The TLVs as encoded, checked to be whole.
    pub fn tlvs(&self) -> Tlvs<'_> {
        Tlvs::parse(&self.tlvs).unwrap_or(Tlvs::EMPTY)
    }

    /// The TLVs about libfabric endpoints and memory that this build knows.
    pub fn facts(&self) -> impl Iterator<Item = BindingTlv<'_>> {
        self.tlvs().iter().filter_map(|tlv| BindingTlv::read(tlv).ok().flatten())
    }

    /// The RDMA side; `None` if one of its TLVs is missing.
    pub fn rdma(&self) -> Option<RdmaSide> {
        let (mut qp_num, mut gid, mut psn) = (None, None, None);
        let (mut rkey, mut addr) = (0, 0);
        for fact in self.facts() {
            match fact {
                BindingTlv::RdmaQpNum(number) => qp_num = Some(number),
                BindingTlv::RdmaGid(of) => gid = Some(of),
                BindingTlv::RdmaPsn(first) => psn = Some(first),
                BindingTlv::RdmaRkey(key) => rkey = key,
                BindingTlv::RdmaRemoteAddr(at) => addr = at,
                _ => {}
            }
        }
        let slots = self.tlvs().find(SLOTS).and_then(|tlv| tlv.parse_value().ok());
        let mtu = self.tlvs().find(PATH_MTU)?.parse_value().ok()?;
        Some(RdmaSide { qp_num: qp_num?, gid: gid?, psn: psn?, rkey, addr, slots, mtu })
    }

    /// Reads the TLVs behind the status and the length word.
    pub fn parse(bytes: &[u8]) -> Result<Self, FabricError> {
        for tlv in tlvs(bytes)? {
            BindingTlv::read(tlv)?;
            match tlv.tag {
                SLOTS => _ = tlv.parse_value::<Slots>()?,
                PATH_MTU => _ = tlv.parse_value::<u16>()?,
                _ => {}
            }
        }
        Ok(Self { tlvs: bytes.to_vec() })
    }

    /// Appends the status OK, the length word and the TLVs.
    pub fn write(&self, to: &mut Vec<u8>) {
        Status::Ok.write(to);
        with_length(to, |to| to.extend_from_slice(&self.tlvs));
    }

    /// Builds a refusal: a status and no TLV.
    pub fn refusal(status: Status) -> [u8; 6] {
        let [high, low] = status.code().to_be_bytes();
        [high, low, 0, 0, 0, 0]
    }
}

fn tlvs(bytes: &[u8]) -> Result<Tlvs<'_>, FabricError> {
    if bytes.len() > MAX_MESSAGE {
        return Err(FabricError::Limit("rendezvous message"));
    }
    Tlvs::parse(bytes)
}

/// Appends a u32 length and then what `write` appends.
fn with_length(to: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = to.len();
    0_u32.write(to);
    write(to);
    let len = (to.len() - at - 4) as u32;
    to[at..at + 4].copy_from_slice(&len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn the_host_api_form_is_twelve_bytes_in_network_order() {
        let message = HostApi { qp_num: 0x11, rkey: 0x0102_0304, addr: Ipv4Addr::new(10, 0, 0, 1) };
        assert_eq!(message.to_bytes().to_vec(), hex("00000011 01020304 0a000001"));
        assert_eq!(HostApi::parse(&message.to_bytes()), message);
        assert_eq!(HostApi::of_answer(&message.answer()), Some(message));
        let side = message.answer().rdma().unwrap();
        assert_eq!((side.psn, side.addr, side.mtu, side.slots), (0, 0, 4096, None));
        let offer = message.offer();
        assert_eq!(HostApi::of_offer(&offer), Some(HostApi { rkey: 0, ..message }));
        let Peer::Rdma { gid, psn, mtu, .. } = offer.peer else { panic!("{offer:?}") };
        assert_eq!(gid.to_vec(), hex("00000000 00000000 0000ffff 0a000001"));
        assert_eq!((offer.kind, psn, mtu), (PeerKind::UcWriteImm, 0, 4096));
    }

    #[test]
    fn an_offer_is_laid_out_as_documented() {
        let slots = Slots { count: 64, stride: 256, form: ImmForm::Psn20 };
        let offer = Offer {
            kind: PeerKind::RcWriteImm,
            peer: Peer::Rdma { qp_num: 0x12, gid: [0xAA; 16], psn: 0x34, mtu: 1024 },
            window: Some(Window { rkey: 7, addr: 0x1000, slots }),
        };
        let bytes = hex("00000044 0410 001a 00000012 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 00000034 0400 0412 0001 03 \
             0201 0004 00000007 0202 0008 0000000000001000 0413 0009 00000040 00000100 01");
        let mut written = Vec::new();
        offer.write(&mut written);
        assert_eq!(written, bytes);
        assert_eq!(Offer::parse(&bytes[4..]), Ok(offer));
    }

    #[test]
    fn an_answer_is_laid_out_as_documented() {
        let slots = Slots { count: 4, stride: 128, form: ImmForm::Psn24 };
        let side = RdmaSide { qp_num: 5, gid: [1; 16], psn: 6, rkey: 7, addr: 8, slots: Some(slots), mtu: 1024 };
        let mut answer = Answer::default();
        answer.push_rdma(&side);
        let mut written = Vec::new();
        answer.write(&mut written);
        let bytes = hex("0000 0000004b 0203 0004 00000005 0204 0010 01010101010101010101010101010101 \
             0206 0004 00000006 0201 0004 00000007 0202 0008 0000000000000008 0413 0009 00000004 00000080 02 \
             0414 0002 0400");
        assert_eq!(written, bytes);
        assert_eq!(Answer::parse(&bytes[6..]), Ok(answer.clone()));
        assert_eq!(answer.rdma(), Some(side));
        assert_eq!(Answer::refusal(Status::CapacityExceeded).to_vec(), hex("0005 00000000"));
    }

    #[test]
    fn an_offer_that_lacks_or_contradicts_itself_is_refused() {
        let peer = "0410 001a 00000012 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 00000034 0400";
        let refused = |text: &str| Offer::parse(&hex(text)).unwrap_err();
        assert_eq!(refused(peer), FabricError::Value("BIND_KIND"));
        assert_eq!(refused("0412 0001 01"), FabricError::Value("RDMA_PEER"));
        assert_eq!(refused(&format!("{peer} 0412 0001 04")), FabricError::Value("OFI_ADDR"));
        assert_eq!(refused(&format!("{peer} 0412 0001 09")), FabricError::Value("PeerKind"));
        let together = FabricError::Value("RKEY, REMOTE_ADDR and SLOTS come together");
        assert_eq!(refused(&format!("{peer} 0412 0001 01 0201 0004 00000001")), together);
        let wide = peer.replace("00000012", "01000000");
        assert_eq!(refused(&format!("{wide} 0412 0001 01")), FabricError::Value("RDMA_PEER"));
        assert_eq!(Offer::parse(&[0; MAX_MESSAGE + 1]), Err(FabricError::Limit("rendezvous message")));
        let slots = "0201 0004 00000001 0202 0008 0000000000000000 0413 0009 00000005 00000080 02";
        assert_eq!(refused(&format!("{peer} 0412 0001 01 {slots}")), FabricError::Limit("SLOTS"));
    }

    #[test]
    fn immediates_carry_what_their_form_says() {
        assert_eq!(ImmForm::Psn20.split(0x1234_5678), Some((0x12345, 0x678)));
        assert_eq!(ImmForm::Psn24.split(0x1234_5603), Some((0x12_3456, 3)));
        assert_eq!(ImmForm::Psn24.split(0x1234_5604), None);
        assert_eq!(ImmForm::Psn20.join(0xFFF_FFFF, 0x1001), 0xFFFF_F001);
    }

    fn peers() -> impl Strategy<Value = (PeerKind, Option<Vec<u8>>, u32, [u8; 16], u32, u16)> {
        let kind = prop::sample::select(PeerKind::ALL);
        let number = 0..=PSN_MASK;
        let addr = prop::collection::vec(any::<u8>(), 0..64);
        (kind, addr, number.clone(), any::<[u8; 16]>(), number, any::<u16>()).prop_map(
            |(kind, addr, qp, gid, psn, mtu)| (kind, (kind == PeerKind::Ofi).then_some(addr), qp, gid, psn, mtu),
        )
    }

    proptest! {
        #[test]
        fn offers_come_back_as_they_were(
            (kind, addr, qp_num, gid, psn, mtu) in peers(),
            window in prop::option::of((any::<u32>(), any::<u64>(), 0..=4_u32, any::<u32>())),
        ) {
            let peer = addr.as_ref().map_or(Peer::Rdma { qp_num, gid, psn, mtu }, |addr| Peer::Ofi { addr });
            let window = window.map(|(rkey, addr, count, stride)| {
                Window { rkey, addr, slots: Slots { count, stride, form: ImmForm::Psn24 } }
            });
            let offer = Offer { kind, peer, window };
            let mut bytes = Vec::new();
            offer.write(&mut bytes);
            prop_assert_eq!(u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize, bytes.len() - 4);
            prop_assert_eq!(Offer::parse(&bytes[4..]), Ok(offer));
        }

        #[test]
        fn any_bytes_are_an_offer_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(offer) = Offer::parse(&bytes) {
                let mut again = Vec::new();
                offer.write(&mut again);
                prop_assert_eq!(Offer::parse(&again[4..]), Ok(offer));
            }
            if let Ok(answer) = Answer::parse(&bytes) {
                let _ = answer.rdma();
                prop_assert_eq!(answer.tlvs().as_bytes(), &bytes[..]);
            }
        }

        #[test]
        fn immediates_come_back(psn: u32, slot: u32) {
            for form in ImmForm::ALL {
                let (psn, slot) = (psn & form.psn_mask(), slot & (form.max_slots() - 1));
                prop_assert_eq!(form.split(form.join(psn, slot)), Some((psn, slot)));
            }
        }

        #[test]
        fn host_api_messages_come_back(bytes: [u8; 12]) {
            prop_assert_eq!(HostApi::parse(&bytes).to_bytes(), bytes);
        }
    }
}
