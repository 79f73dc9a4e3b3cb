//! The arguments of commands of fabrics (Base, "Fabrics Command Set"), and the properties of a controller ("Controller
//! Properties").

use zerocopy::little_endian::U16;

use super::{
    command::Sqe,
    macros::layout,
    opcode::{self, FABRICS},
};

/// A command of fabrics without data.
pub fn command(fctype: u8, cid: u16) -> Sqe {
    Sqe::new(FABRICS, cid, u32::from(fctype))
}

/// Connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// RECFMT: the format of the command and its data, 0.
    pub format: u16,
    /// QID: 0 is the admin queue.
    pub queue: u16,
    /// SQSIZE: entries of the submission queue, less 1.
    pub size: u16,
    /// CATTR.
    pub attributes: u8,
    /// KATO: the keep alive timeout in milliseconds; 0 is none.
    pub keep_alive: u32,
}

impl Connect {
    /// Bit of CATTR: the host wants no flow control of the submission queue.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;

    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let [first, second, third] = [0, 1, 2].map(|n| sqe.cdw10[n].get());
        Self {
            format: first as u16,
            queue: (first >> 16) as u16,
            size: second as u16,
            attributes: (second >> 16) as u8,
            keep_alive: third,
        }
    }

    /// The command.
    pub fn command(self, cid: u16) -> Sqe {
        let mut sqe = command(opcode::fabrics::CONNECT, cid);
        sqe.cdw10[0] = (u32::from(self.queue) << 16 | u32::from(self.format)).into();
        sqe.cdw10[1] = (u32::from(self.attributes) << 16 | u32::from(self.size)).into();
        sqe.cdw10[2] = self.keep_alive.into();
        sqe
    }
}

layout! {
    /// The data of Connect ("Connect Command - Data").
    pub struct ConnectData: 1024 {
        /// HOSTID.
        0 pub host_id: [u8; 16],
        /// CNTLID: the controller, or [`ConnectData::ANY_CONTROLLER`].
        16 pub controller: U16,
        18 reserved0: [u8; 238],
        /// SUBNQN: the subsystem.
        256 pub subnqn: Nqn,
        /// HOSTNQN: the host.
        512 pub hostnqn: Nqn,
        768 reserved1: [u8; 256],
    }

    /// A field for the name of a subsystem or a host ("NVMe Qualified Names").
    pub struct Nqn: 256 {
        0 bytes: [u8; 256],
    }
}

impl Nqn {
    /// A field that holds `name`, with a NUL behind it; `None` where it has more than 255 bytes.
    pub fn new(name: &[u8]) -> Option<Self> {
        let mut field = Self::zeroed();
        field.bytes[..255].get_mut(..name.len())?.copy_from_slice(name);
        Some(field)
    }

    /// The name: the bytes before the first NUL; `None` where there is none.
    pub fn name(&self) -> Option<&[u8]> {
        self.bytes.split(|&byte| byte == 0).next().filter(|name| name.len() < self.bytes.len())
    }
}

impl ConnectData {
    /// CNTLID on the admin queue: whichever the subsystem has for the host.
    pub const ANY_CONTROLLER: u16 = 0xFFFF;
}

/// What Connect answers in dword 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connected {
    /// CNTLID.
    pub controller: u16,
    /// ATR: the queue has to be authenticated before anything else.
    pub authenticate: bool,
}

impl Connected {
    const ATR: u32 = 1 << 17;

    /// Of dword 0.
    pub fn of(dword: u32) -> Self {
        Self { controller: dword as u16, authenticate: dword & Self::ATR != 0 }
    }

    /// As dword 0.
    pub fn dword(self) -> u32 {
        u32::from(self.controller) | if self.authenticate { Self::ATR } else { 0 }
    }
}

/// Which parameter of Connect is wrong: dword 0 beside [`super::Status::CONNECT_INVALID_PARAMETERS`] (IPO, and IATTR in
/// bit 16: in the data).
pub mod invalid_parameter {
    const DATA: u32 = 1 << 16;

    /// QID.
    pub const QUEUE: u32 = 42;
    /// SQSIZE.
    pub const SIZE: u32 = 44;
    /// CNTLID.
    pub const CONTROLLER: u32 = DATA | 16;
    /// SUBNQN.
    pub const SUBNQN: u32 = DATA | 256;
    /// HOSTNQN.
    pub const HOSTNQN: u32 = DATA | 512;
}

/// Property Get and Property Set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Property {
    /// OFST: one of [`property`].
    pub offset: u32,
    /// ATTRIB: 8 bytes; otherwise 4.
    pub wide: bool,
    /// VALUE, of Property Set.
    pub value: u64,
}

impl Property {
    /// Of a command; `None` where its size is reserved.
    pub fn of(sqe: &Sqe) -> Option<Self> {
        let wide = match sqe.cdw10[0].get() & 7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Self { offset: sqe.cdw10[1].get(), wide, value: sqe.quad(2) })
    }

    /// Property Set.
    pub fn set(self, cid: u16) -> Sqe {
        let mut sqe = self.get(cid);
        sqe.nsid = u32::from(opcode::fabrics::PROPERTY_SET).into();
        sqe.set_quad(2, self.value);
        sqe
    }

    /// Property Get.
    pub fn get(self, cid: u16) -> Sqe {
        let mut sqe = command(opcode::fabrics::PROPERTY_GET, cid);
        sqe.cdw10[0] = u32::from(self.wide).into();
        sqe.cdw10[1] = self.offset.into();
        sqe
    }
}

/// Authentication Send and Authentication Receive of DH-HMAC-CHAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authentication {
    /// TL or AL: bytes of the message, or of room for one.
    pub len: u32,
}

impl Authentication {
    /// SPSP0 1, SPSP1 1 and SECP 0xE9: `NVMe`'s own protocols.
    const PROTOCOL: u32 = 0xE901_0100;

    /// Of a command; `None` where it is of another protocol.
    pub fn of(sqe: &Sqe) -> Option<Self> {
        (sqe.cdw10[0].get() & !0xFF == Self::PROTOCOL).then(|| Self { len: sqe.cdw10[1].get() })
    }

    /// Authentication Send or Receive, as `fctype` of [`opcode::fabrics`] says.
    pub fn command(self, fctype: u8, cid: u16) -> Sqe {
        let mut sqe = command(fctype, cid);
        sqe.cdw10[0] = Self::PROTOCOL.into();
        sqe.cdw10[1] = self.len.into();
        sqe
    }
}

/// The properties of a controller: their offsets, and what their bits say.
pub mod property {
    /// CAP: 8 bytes; [`capabilities`].
    pub const CAP: u32 = 0x00;
    /// VS: 4 bytes; [`VERSION`].
    pub const VS: u32 = 0x08;
    /// CC: 4 bytes; [`cc`].
    pub const CC: u32 = 0x14;
    /// CSTS: 4 bytes; [`csts`].
    pub const CSTS: u32 = 0x1C;

    /// VS of version 1.4, which is what the controllers of Berth say.
    pub const VERSION: u32 = 0x0001_0400;

    /// CAP of a controller with the NVM command set and contiguous queues: `entries_max` of a queue, less 1 (MQES), and the
    /// time to become ready in units of 500 ms (TO).
    pub const fn capabilities(entries_max: u16, ready: u8) -> u64 {
        entries_max as u64 | 1 << 16 | (ready as u64) << 24 | 1 << 37
    }

    /// MQES of CAP: the most entries of a queue, less 1.
    pub const fn entries_max(capabilities: u64) -> u16 {
        capabilities as u16
    }

    /// TO of CAP, in units of 500 ms.
    pub const fn ready_time(capabilities: u64) -> u8 {
        (capabilities >> 24) as u8
    }

    /// The bits of CC.
    pub mod cc {
        /// EN: the controller works.
        pub const ENABLE: u32 = 1;
        /// SHN: a shutdown is asked for, 1 normal or 2 abrupt.
        pub const SHUTDOWN: u32 = 3 << 14;
        /// SHN 1.
        pub const SHUTDOWN_NORMAL: u32 = 1 << 14;
        /// EN with the sizes of entries that fabrics have: IOSQES 6, IOCQES 4.
        pub const ENABLED: u32 = 4 << 20 | 6 << 16 | ENABLE;
    }

    /// The bits of CSTS.
    pub mod csts {
        /// RDY: commands are processed.
        pub const READY: u32 = 1;
        /// CFS: the controller has failed.
        pub const FATAL: u32 = 1 << 1;
        /// SHST 2: the shutdown is complete.
        pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn commands_are_laid_out_as_documented() {
        let connect = Connect { format: 0, queue: 1, size: 127, attributes: 4, keep_alive: 120_000 }.command(0x0102);
        assert_eq!(connect.as_bytes()[..8], [0x7F, 0x40, 2, 1, 1, 0, 0, 0]);
        assert_eq!(connect.as_bytes()[40..52], [0, 0, 1, 0, 127, 0, 4, 0, 0xC0, 0xD4, 1, 0]);
        let set = Property { offset: property::CC, wide: false, value: property::cc::ENABLED.into() }.set(3);
        assert_eq!(set.as_bytes()[..8], [0x7F, 0x40, 3, 0, 0, 0, 0, 0]);
        assert_eq!(set.as_bytes()[40..56], [0, 0, 0, 0, 0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
        let get = Property { offset: property::CAP, wide: true, value: 0 }.get(3);
        assert_eq!(get.as_bytes()[..8], [0x7F, 0x40, 3, 0, 4, 0, 0, 0]);
        assert_eq!(get.as_bytes()[40..56], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let send = Authentication { len: 0x0201 }.command(opcode::fabrics::AUTHENTICATION_SEND, 3);
        assert_eq!(send.as_bytes()[40..48], [0, 1, 1, 0xE9, 1, 2, 0, 0]);
    }

    #[test]
    fn the_data_of_connect_is_laid_out_as_documented() {
        let data = ConnectData {
            host_id: [7; 16],
            controller: ConnectData::ANY_CONTROLLER.into(),
            subnqn: Nqn::new(b"nqn.sub").unwrap(),
            hostnqn: Nqn::new(b"nqn.host").unwrap(),
            ..ConnectData::zeroed()
        };
        let mut expected = [0; 1024];
        expected[..16].fill(7);
        expected[16..18].fill(0xFF);
        expected[256..263].copy_from_slice(b"nqn.sub");
        expected[512..520].copy_from_slice(b"nqn.host");
        assert_eq!(data.as_bytes(), expected);
    }

    #[test]
    fn names_have_an_end() {
        assert_eq!(Nqn::new(&[b'x'; 255]).unwrap().name(), Some(&[b'x'; 255][..]));
        assert_eq!(Nqn::new(&[b'x'; 256]), None);
        assert_eq!(Nqn::parse(&[b'x'; 256]).unwrap().name(), None);
        let mut bytes = [b'x'; 256];
        bytes[3] = 0;
        assert_eq!(Nqn::parse(&bytes).unwrap().name(), Some(&b"xxx"[..]));
        assert_eq!(Nqn::zeroed().name(), Some(&b""[..]));
    }

    #[test]
    fn dwords_and_properties() {
        assert_eq!(Connected { controller: 5, authenticate: true }.dword(), 0x0002_0005);
        assert_eq!(property::cc::ENABLED, 0x0046_0001);
        let capabilities = property::capabilities(127, 30);
        assert_eq!(capabilities, 0x0000_0020_1E01_007F);
        assert_eq!((property::entries_max(capabilities), property::ready_time(capabilities)), (127, 30));
        assert_eq!(invalid_parameter::HOSTNQN, 0x0001_0200);
    }

    proptest! {
        #[test]
        fn arguments_round_trip(a: u16, b: u16, c: u16, d: u8, e: u32, wide: bool, value: u64) {
            let connect = Connect { format: a, queue: b, size: c, attributes: d, keep_alive: e };
            prop_assert_eq!(Connect::of(&connect.command(a)), connect);
            let property = Property { offset: e, wide, value };
            prop_assert_eq!(Property::of(&property.set(a)), Some(property));
            prop_assert_eq!(Property::of(&property.get(a)), Some(Property { value: 0, ..property }));
            let authentication = Authentication { len: e };
            let receive = authentication.command(opcode::fabrics::AUTHENTICATION_RECEIVE, a);
            prop_assert_eq!(Authentication::of(&receive), Some(authentication));
            let connected = Connected { controller: a, authenticate: wide };
            prop_assert_eq!(Connected::of(connected.dword()), connected);
        }

        #[test]
        fn other_sizes_and_protocols_are_refused(bits in 2..8_u32, flip in 8..32_u32) {
            let mut get = Property { offset: 0, wide: false, value: 0 }.get(0);
            get.cdw10[0] = bits.into();
            prop_assert_eq!(Property::of(&get), None);
            let mut send = Authentication { len: 0 }.command(5, 0);
            send.cdw10[0] = (send.cdw10[0].get() ^ 1 << flip).into();
            prop_assert_eq!(Authentication::of(&send), None);
        }
    }
}
