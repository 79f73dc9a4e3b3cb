//! The structures of Identify (Base, "Identify Data Structures"; NVM, "Identify Namespace Data Structure"). All but
//! descriptors have 4096 bytes.

use zerocopy::{
    IntoBytes,
    little_endian::{U16, U32, U64},
};

use super::{fabrics::Nqn, macros::layout};

/// Bytes of what Identify answers.
pub const LEN: usize = 4096;

/// CNS: which structure is asked for.
pub mod cns {
    /// [`super::Namespace`] of an active namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// [`super::Controller`].
    pub const CONTROLLER: u8 = 0x01;
    /// Active Namespace ID List: [`super::active_namespaces`].
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptor list: [`super::Descriptor`].
    pub const DESCRIPTORS: u8 = 0x03;
    /// I/O Command Set specific controller: [`super::NvmController`] where CSI is 0.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Allocated Namespace ID list: of the subsystem's namespaces, whoever has them, [`super::active_namespaces`].
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Controller List of those that a namespace is attached to: [`super::super::virtualization::controllers`].
    pub const ATTACHED_CONTROLLERS: u8 = 0x12;
    /// [`super::super::virtualization::Primary`].
    pub const PRIMARY_CAPABILITIES: u8 = 0x14;
    /// [`super::super::virtualization::secondaries`].
    pub const SECONDARY_CONTROLLERS: u8 = 0x15;
}

layout! {
    /// Identify Controller.
    pub struct Controller: 4096 {
        0 reserved0: [u8; 4],
        /// SN: ASCII, filled up with spaces; [`padded`].
        4 pub serial: [u8; 20],
        /// MN, likewise.
        24 pub model: [u8; 40],
        /// FR, likewise.
        64 pub firmware: [u8; 8],
        72 reserved1: [u8; 4],
        /// CMIC: bit 1 the subsystem may have several controllers, bit 3 it reports asymmetric namespace access.
        76 pub cmic: u8,
        /// MDTS: no command transfers more than 2^MDTS * 4 KiB; 0 is no limit.
        77 pub mdts: u8,
        /// CNTLID.
        78 pub controller: U16,
        /// VER, as property VS.
        80 pub version: U32,
        84 reserved2: [u8; 8],
        /// OAES: the events it tells, [`super::admin::Event::bit`].
        92 pub oaes: U32,
        /// CTRATT: bit 0 host identifiers of 128 bits, bit 6 any command keeps the association alive (TBKAS).
        96 pub ctratt: U32,
        100 reserved3: [u8; 11],
        /// CNTRLTYPE: 1 I/O, 2 discovery.
        111 pub controller_type: u8,
        112 reserved4: [u8; 144],
        /// OACS: optional admin commands.
        256 pub oacs: U16,
        /// ACL: Aborts at a time, less 1.
        258 pub acl: u8,
        /// AERL: Asynchronous Event Requests at a time, less 1.
        259 pub aerl: u8,
        /// FRMW: firmware slots.
        260 pub frmw: u8,
        /// LPA: bit 1 the log page of effects, bit 2 lengths over 12 bits and offsets.
        261 pub lpa: u8,
        /// ELPE: entries of the error log, less 1.
        262 pub elpe: u8,
        263 reserved5: [u8; 57],
        /// KAS: the granularity of KATO, in units of 100 ms.
        320 pub kas: U16,
        322 reserved6: [u8; 20],
        /// ANATT: how long the ANA state "change" lasts at most, in seconds.
        342 pub anatt: u8,
        /// ANACAP: which ANA states there are.
        343 pub anacap: u8,
        /// ANAGRPMAX: the highest identifier of an ANA group.
        344 pub anagrpmax: U32,
        /// NANAGRPID: how many ANA groups.
        348 pub nanagrpid: U32,
        352 reserved7: [u8; 160],
        /// SQES: the sizes of submission queue entries, 0x66.
        512 pub sqes: u8,
        /// CQES: the sizes of completion queue entries, 0x44.
        513 pub cqes: u8,
        /// MAXCMD: how many commands a queue takes at a time.
        514 pub maxcmd: U16,
        /// NN: the highest namespace identifier.
        516 pub nn: U32,
        /// ONCS: bit 0 Compare, 2 Dataset Management, 3 Write Zeroes, 5 reservations, 7 Verify, 8 Copy.
        520 pub oncs: U16,
        /// FUSES: bit 0 fused Compare and Write.
        522 pub fuses: U16,
        /// FNA: bit 0 Format NVM formats all namespaces, bit 1 it erases all, bit 2 by their keys too.
        524 pub fna: u8,
        /// VWC: bit 0 there is a volatile write cache, bits 2:1 11b Flush takes NSID 0xFFFFFFFF.
        525 pub vwc: u8,
        /// AWUN: blocks that are written at once or not at all, less 1.
        526 pub awun: U16,
        /// AWUPF: likewise when power fails.
        528 pub awupf: U16,
        530 reserved8: [u8; 2],
        /// ACWU: blocks of a fused Compare and Write, less 1.
        532 pub acwu: U16,
        /// OCFS: bit 0 Copy takes descriptors of format 0.
        534 pub ocfs: U16,
        /// SGLS: bits 1:0 01b SGLs without alignment, bit 20 offsets of data in the capsule.
        536 pub sgls: U32,
        /// MNAN: how many namespaces at a time.
        540 pub mnan: U32,
        544 reserved9: [u8; 224],
        /// SUBNQN: the subsystem.
        768 pub subnqn: Nqn,
        1024 reserved10: [u8; 768],
        /// IOCCSZ: the size of an I/O command capsule, in units of 16 bytes.
        1792 pub ioccsz: U32,
        /// IORCSZ: the size of an I/O response capsule, in units of 16 bytes: 1.
        1796 pub iorcsz: U32,
        /// ICDOFF: where data in a capsule begins, in units of 16 bytes behind the command: 0.
        1800 pub icdoff: U16,
        /// FCATT: bit 0 the association is of static controllers.
        1802 pub fcatt: u8,
        /// MSDBD: descriptors of a command, 1.
        1803 pub msdbd: u8,
        /// OFCS: bit 0 Disconnect.
        1804 pub ofcs: U16,
        1806 reserved11: [u8; 2290],
    }

    /// Identify Namespace of the NVM command set.
    pub struct Namespace: 4096 {
        /// NSZE: its size in blocks.
        0 pub nsze: U64,
        /// NCAP: how many blocks may be allocated.
        8 pub ncap: U64,
        /// NUSE: how many are.
        16 pub nuse: U64,
        /// NSFEAT: bit 4 NPWG, NPWA and NOWS are valid.
        24 pub nsfeat: u8,
        /// NLBAF: formats of blocks, less 1.
        25 pub nlbaf: u8,
        /// FLBAS: bits 3:0 the format it has, bit 4 its metadata follows the data, 6:5 further bits of the format.
        26 pub flbas: u8,
        27 reserved0: [u8; 2],
        /// DPS: bits 2:0 the type of its protection information, bit 3 that comes first in the metadata.
        29 pub dps: u8,
        /// NMIC: bit 0 several controllers may have it.
        30 pub nmic: u8,
        /// RESCAP: which reservations there are.
        31 pub rescap: u8,
        32 reserved1: [u8; 1],
        /// DLFEAT: bits 2:0 what deallocated blocks read, 1 is zero.
        33 pub dlfeat: u8,
        34 reserved2: [u8; 30],
        /// NPWG: the granularity of writes, in blocks, less 1.
        64 pub npwg: U16,
        /// NPWA: their alignment, likewise.
        66 pub npwa: U16,
        /// NPDG: the granularity of deallocation, likewise.
        68 pub npdg: U16,
        /// NPDA: its alignment, likewise.
        70 pub npda: U16,
        /// NOWS: the size of writes, likewise.
        72 pub nows: U16,
        /// MSSRL: the most blocks of a source range of Copy.
        74 pub mssrl: U16,
        /// MCL: the most blocks of a Copy.
        76 pub mcl: U32,
        /// MSRC: source ranges of a Copy, less 1.
        80 pub msrc: u8,
        81 reserved3: [u8; 11],
        /// ANAGRPID: its ANA group.
        92 pub anagrpid: U32,
        96 reserved4: [u8; 3],
        /// NSATTR: bit 0 it is write protected.
        99 pub nsattr: u8,
        100 reserved5: [u8; 4],
        /// NGUID, the most significant byte first.
        104 pub nguid: [u8; 16],
        /// EUI64, the most significant byte first.
        120 pub eui64: [u8; 8],
        /// LBAF: the formats of blocks.
        128 pub lbaf: [BlockFormat; 64],
        384 reserved6: [u8; 3712],
    }

    /// LBA Format.
    pub struct BlockFormat: 4 {
        /// MS: bytes of metadata.
        0 pub metadata: U16,
        /// LBADS: blocks have 2^LBADS bytes.
        2 pub shift: u8,
        /// RP: bits 1:0 how fast it is beside the others, 0 the best.
        3 pub performance: u8,
    }

    /// I/O Command Set specific Identify Controller of the NVM command set. The limits are of commands without data: MDTS
    /// does not bound them.
    pub struct NvmController: 4096 {
        /// VSL: of Verify, 2^VSL * 4 KiB; 0 is no limit.
        0 pub vsl: u8,
        /// WZSL: of Write Zeroes, likewise.
        1 pub wzsl: u8,
        /// WUSL: of Write Uncorrectable, likewise.
        2 pub wusl: u8,
        /// DMRL: ranges of Dataset Management; 0 is no limit.
        3 pub dmrl: u8,
        /// DMRSL: blocks of such a range; 0 is no limit.
        4 pub dmrsl: U32,
        /// DMSL: blocks of all its ranges; 0 is no limit.
        8 pub dmsl: U64,
        16 reserved: [u8; 4080],
    }
}

impl Controller {
    /// The most bytes of data that the capsule of an I/O command may bring (IOCCSZ).
    pub fn in_capsule_max(&self) -> u32 {
        self.ioccsz.get().saturating_mul(16).saturating_sub(64)
    }
}

impl Namespace {
    /// The format it has; `None` where it says a number over 15.
    pub fn format(&self) -> BlockFormat {
        self.lbaf[usize::from(self.flbas & 0xF)]
    }
}

/// ASCII in a field of `N` bytes, filled up with spaces; what does not fit is cut off, and what is not printable is `?`.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let printable = text.bytes().map(|byte| if (b' '..=b'~').contains(&byte) { byte } else { b'?' });
    field.iter_mut().zip(printable).for_each(|(to, byte)| *to = byte);
    field
}

/// Active Namespace ID List: of `namespaces`, which ascend, the first 1024 above `above`.
pub fn active_namespaces(above: u32, namespaces: &[u32]) -> [u8; LEN] {
    let mut list = [0; LEN];
    let listed = namespaces.iter().filter(|&&namespace| namespace > above);
    for (to, namespace) in list.chunks_exact_mut(4).zip(listed) {
        to.copy_from_slice(&namespace.to_le_bytes());
    }
    list
}

/// The identifiers of an Active or Allocated Namespace ID List, or of a Changed Namespace List: up to the first 0.
pub fn namespaces(list: &[u8]) -> impl Iterator<Item = u32> {
    list.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id)).take_while(|&id| id != 0)
}

/// A name of a namespace ("Namespace Identification Descriptor").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descriptor {
    /// EUI64, the most significant byte first.
    Eui64([u8; 8]),
    /// NGUID, likewise.
    Nguid([u8; 16]),
    /// UUID, likewise.
    Uuid([u8; 16]),
}

impl Descriptor {
    /// A list of at most 170 descriptors, as Identify answers it.
    pub fn list(descriptors: &[Self]) -> [u8; LEN] {
        let mut list = [0; LEN];
        let mut rest = &mut list[..];
        for descriptor in descriptors {
            let (kind, name) = match descriptor {
                Self::Eui64(name) => (1, name.as_bytes()),
                Self::Nguid(name) => (2, &name[..]),
                Self::Uuid(name) => (3, &name[..]),
            };
            let Some((entry, behind)) = std::mem::take(&mut rest).split_at_mut_checked(4 + name.len()) else { break };
            entry[..2].copy_from_slice(&[kind, name.len() as u8]);
            entry[4..].copy_from_slice(name);
            rest = behind;
        }
        list
    }

    /// The descriptors of a list that are known here, up to the first that is cut short or has no length.
    pub fn parse_all(list: &[u8]) -> impl Iterator<Item = Self> {
        let mut rest = list;
        std::iter::from_fn(move || {
            let (&[kind, len, _, _], behind) = rest.split_first_chunk()?;
            let (name, behind) = behind.split_at_checked(usize::from(len)).filter(|_| len > 0)?;
            rest = behind;
            Some((kind, name))
        })
        .filter_map(|(kind, name)| match kind {
            1 => name.try_into().ok().map(Self::Eui64),
            2 => name.try_into().ok().map(Self::Nguid),
            3 => name.try_into().ok().map(Self::Uuid),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Where `bytes` are not zero.
    fn nonzero(bytes: &[u8]) -> Vec<(usize, u8)> {
        bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
    }

    #[test]
    fn a_controller_is_laid_out_as_documented() {
        let controller = Controller {
            serial: padded("ab"),
            cmic: 0x0A,
            mdts: 8,
            controller: 0x0102.into(),
            oaes: (1 << 31).into(),
            kas: 10.into(),
            sqes: 0x66,
            ioccsz: (4 + 512).into(),
            ofcs: 1.into(),
            subnqn: Nqn::new(b"nqn").unwrap(),
            ..Controller::zeroed()
        };
        let spaces = (6..24).map(|at| (at, b' '));
        let expected = [(4, b'a'), (5, b'b')].into_iter().chain(spaces).chain([
            (76, 0x0A),
            (77, 8),
            (78, 2),
            (79, 1),
            (95, 0x80),
            (320, 10),
            (512, 0x66),
            (768, b'n'),
            (769, b'q'),
            (770, b'n'),
            (1792, 4),
            (1793, 2),
            (1804, 1),
        ]);
        assert_eq!(nonzero(controller.as_bytes()), expected.collect::<Vec<_>>());
        assert_eq!(controller.in_capsule_max(), 8192);
        assert_eq!(Controller::zeroed().in_capsule_max(), 0);
    }

    #[test]
    fn a_namespace_is_laid_out_as_documented() {
        let mut namespace = Namespace {
            nsze: 0x0100.into(),
            flbas: 1,
            dlfeat: 1,
            npwg: 7.into(),
            anagrpid: 1.into(),
            nsattr: 1,
            nguid: [9; 16],
            ..Namespace::zeroed()
        };
        namespace.lbaf[1].shift = 9;
        let nguid = (104..120).map(|at| (at, 9));
        let expected = [(1, 1), (26, 1), (33, 1), (64, 7), (92, 1), (99, 1)].into_iter().chain(nguid).chain([(134, 9)]);
        assert_eq!(nonzero(namespace.as_bytes()), expected.collect::<Vec<_>>());
        assert_eq!(namespace.format().shift, 9);
        let limits = NvmController { wzsl: 3, dmrl: 1, dmrsl: 0x0100.into(), ..NvmController::zeroed() };
        assert_eq!(nonzero(limits.as_bytes()), [(1, 3), (3, 1), (5, 1)]);
    }

    #[test]
    fn text_is_printable_and_ends_in_spaces() {
        assert_eq!(padded("a\0\n~"), *b"a??~    ");
        assert_eq!(padded("longer"), *b"long");
    }

    #[test]
    fn lists_of_namespaces() {
        assert_eq!(nonzero(&active_namespaces(0, &[1, 0x0200])), [(0, 1), (5, 2)]);
        assert_eq!(nonzero(&active_namespaces(1, &[1])), []);
        let all: Vec<_> = (1..2000).collect();
        assert!(namespaces(&active_namespaces(5, &all)).eq(6..1030));
    }

    #[test]
    fn a_list_of_descriptors_is_laid_out_as_documented() {
        let list = Descriptor::list(&[Descriptor::Nguid([7; 16]), Descriptor::Uuid([8; 16])]);
        let mut expected = [0; 44];
        expected[..4].copy_from_slice(&[2, 16, 0, 0]);
        expected[4..20].fill(7);
        expected[20..24].copy_from_slice(&[3, 16, 0, 0]);
        expected[24..40].fill(8);
        assert_eq!((&list[..44], nonzero(&list[44..])), (&expected[..], vec![]));
        // A kind nobody knows, one of a wrong length, a known one, one cut short.
        let foreign = [9, 1, 0, 0, 5, 2, 1, 0, 0, 5, 1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 16, 0, 0, 1];
        let known: Vec<_> = Descriptor::parse_all(&foreign).collect();
        assert_eq!(known, [Descriptor::Eui64([1, 2, 3, 4, 5, 6, 7, 8])]);
        let ended = [0, 0, 0, 0, 1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(Descriptor::parse_all(&ended).count(), 0);
    }

    fn descriptor() -> impl Strategy<Value = Descriptor> {
        prop_oneof![
            any::<[u8; 8]>().prop_map(Descriptor::Eui64),
            any::<[u8; 16]>().prop_map(Descriptor::Nguid),
            any::<[u8; 16]>().prop_map(Descriptor::Uuid),
        ]
    }

    proptest! {
        #[test]
        fn descriptors_round_trip(descriptors in prop::collection::vec(descriptor(), 0..170)) {
            let list = Descriptor::list(&descriptors);
            prop_assert_eq!(Descriptor::parse_all(&list).collect::<Vec<_>>(), descriptors);
        }
    }
}
