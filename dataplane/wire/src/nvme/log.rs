//! The log pages (Base, "Log Page Identifiers"; NVMe over fabrics, "Discovery Log Page").

use zerocopy::{
    FromBytes, IntoBytes,
    little_endian::{U16, U32, U64, U128},
};

use super::{fabrics::Nqn, macros::layout, status::Status};

/// LID: which page.
pub mod id {
    /// Error Information: [`super::ErrorEntry`], the newest first.
    pub const ERRORS: u8 = 0x01;
    /// SMART / Health Information: [`super::Health`].
    pub const HEALTH: u8 = 0x02;
    /// Firmware Slot Information: [`super::FirmwareSlots`].
    pub const FIRMWARE: u8 = 0x03;
    /// Changed Namespace List: 1024 identifiers; [`super::super::identify::namespaces`].
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands Supported and Effects: [`super::Effects`].
    pub const EFFECTS: u8 = 0x05;
    /// Asymmetric Namespace Access: [`super::AnaHeader`] and groups.
    pub const ANA: u8 = 0x0C;
    /// Discovery: [`super::DiscoveryHeader`] and records.
    pub const DISCOVERY: u8 = 0x70;
}

layout! {
    /// An entry of the error log ("Error Information Log Entry").
    pub struct ErrorEntry: 64 {
        /// How many errors there were up to this one, itself included; 0 in an entry that is none.
        0 pub count: U64,
        /// SQID: the queue of the command.
        8 pub queue: U16,
        /// CID: the command.
        10 pub cid: U16,
        12 status: U16,
        /// Parameter Error Location: the byte of the command in bits 7:0, the bit in 10:8; 0xFFFF where it is no field's.
        14 pub location: U16,
        /// The first block.
        16 pub lba: U64,
        /// NSID: the namespace.
        24 pub nsid: U32,
        28 reserved0: [u8; 1],
        /// TRTYPE: 3 is TCP.
        29 pub transport: u8,
        30 reserved1: [u8; 34],
    }

    /// SMART / Health Information.
    pub struct Health: 512 {
        /// Critical Warning.
        0 pub warning: u8,
        /// Composite Temperature in kelvins; 0 where it is not known.
        1 pub temperature: U16,
        /// Available Spare in percent.
        3 pub spare: u8,
        /// Available Spare Threshold in percent.
        4 pub spare_threshold: u8,
        /// Percentage Used.
        5 pub used: u8,
        6 reserved0: [u8; 26],
        /// Data Units Read, of 1000 * 512 bytes each, rounded up.
        32 pub units_read: U128,
        /// Data Units Written, likewise.
        48 pub units_written: U128,
        /// Host Read Commands: Read and Compare.
        64 pub reads: U128,
        /// Host Write Commands.
        80 pub writes: U128,
        96 reserved1: [u8; 16],
        /// Power Cycles.
        112 pub power_cycles: U128,
        /// Power On Hours.
        128 pub power_on_hours: U128,
        /// Unsafe Shutdowns.
        144 pub unsafe_shutdowns: U128,
        /// Media and Data Integrity Errors.
        160 pub media_errors: U128,
        /// Number of Error Information Log Entries, over the whole life.
        176 pub error_entries: U128,
        192 reserved2: [u8; 320],
    }

    /// Firmware Slot Information.
    pub struct FirmwareSlots: 512 {
        /// AFI: bits 2:0 the slot that runs.
        0 pub active: u8,
        1 reserved0: [u8; 7],
        /// FRS1 to FRS7: the revision in each slot, ASCII filled up with spaces; zero where the slot is empty.
        8 pub revisions: [[u8; 8]; 7],
        64 reserved1: [u8; 448],
    }

    /// Commands Supported and Effects.
    pub struct Effects: 4096 {
        /// Of the admin commands, by opcode: [`Effects::SUPPORTED`] and what else the command does.
        0 pub admin: [U32; 256],
        /// Of the I/O commands, by opcode.
        1024 pub io: [U32; 256],
        2048 reserved: [u8; 2048],
    }

    /// The header of the ANA log page ("Asymmetric Namespace Access").
    pub struct AnaHeader: 16 {
        /// CHGCNT: how often the page has changed.
        0 pub changes: U64,
        /// How many groups follow.
        8 pub groups: U16,
        10 reserved: [u8; 6],
    }

    /// An ANA group, before the identifiers of its namespaces.
    pub struct AnaGroup: 32 {
        /// ANAGRPID.
        0 pub id: U32,
        /// How many namespace identifiers follow; none where the log is asked for groups alone.
        4 pub namespaces: U32,
        /// CHGCNT: the page's when the group changed last.
        8 pub changes: U64,
        /// [`AnaState`].
        16 pub state: u8,
        17 reserved: [u8; 15],
    }

    /// The header of the discovery log page.
    pub struct DiscoveryHeader: 1024 {
        /// GENCTR: how often the page has changed.
        0 pub generation: U64,
        /// NUMREC: how many records follow.
        8 pub records: U64,
        /// RECFMT: their format, 0.
        16 pub format: U16,
        18 reserved: [u8; 1006],
    }

    /// A record of the discovery log page: how a host reaches a subsystem.
    pub struct DiscoveryRecord: 1024 {
        /// TRTYPE: 3 is TCP.
        0 pub transport: u8,
        /// ADRFAM: 1 IPv4, 2 IPv6.
        1 pub family: u8,
        /// SUBTYPE: 2 a subsystem of I/O controllers, 3 the discovery subsystem that answers.
        2 pub subsystem_type: u8,
        /// TREQ: what the transport is required to have.
        3 pub requirements: u8,
        /// PORTID.
        4 pub port: U16,
        /// CNTLID: 0xFFFF where each host gets a controller of its own.
        6 pub controller: U16,
        /// ASQSZ: the most entries of an admin queue, at least 32.
        8 pub admin_size: U16,
        10 reserved0: [u8; 22],
        /// TRSVCID: the TCP port in decimal, filled up with spaces; [`super::identify::padded`].
        32 pub service: [u8; 32],
        64 reserved1: [u8; 192],
        /// SUBNQN: the subsystem.
        256 pub subnqn: Nqn,
        /// TRADDR: the address as text, filled up with spaces.
        512 pub address: [u8; 256],
        /// TSAS: byte 0 the security of TCP, 0 none.
        768 pub specific: [u8; 256],
    }
}

impl ErrorEntry {
    /// How the command ended.
    pub fn status(&self) -> Status {
        Status::from_word(self.status.get())
    }

    /// Sets what [`ErrorEntry::status`] reads.
    pub fn set_status(&mut self, status: Status) {
        self.status = status.word().into();
    }
}

impl Effects {
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1;
    /// LBCC: it may change the data of blocks.
    pub const CHANGES_BLOCKS: u32 = 1 << 1;
}

/// The ANA state of a group of namespaces over one controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AnaState {
    /// The namespaces are reached best this way.
    Optimized = 1,
    /// They are reached.
    NonOptimized = 2,
    /// They are not reached now.
    Inaccessible = 3,
    /// They never will be again.
    PersistentLoss = 4,
    /// The state is changing.
    Change = 15,
}

impl AnaState {
    /// The state with this number.
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number & 0xF {
            1 => Self::Optimized,
            2 => Self::NonOptimized,
            3 => Self::Inaccessible,
            4 => Self::PersistentLoss,
            15 => Self::Change,
            _ => return None,
        })
    }
}

impl AnaHeader {
    /// The page of one group, whole: `namespaces` is empty where the log is asked for groups alone. Returns its length;
    /// `None` where `to` has no room for it.
    pub fn write(to: &mut [u8], changes: u64, group: u32, state: AnaState, namespaces: &[u32]) -> Option<usize> {
        let len = Self::LEN + AnaGroup::LEN + namespaces.len() * 4;
        let (header, rest) = to.get_mut(..len)?.split_at_mut(Self::LEN);
        let (descriptor, list) = rest.split_at_mut(AnaGroup::LEN);
        header.copy_from_slice(Self { changes: changes.into(), groups: 1.into(), ..Self::zeroed() }.as_bytes());
        let group = AnaGroup {
            id: group.into(),
            namespaces: (namespaces.len() as u32).into(),
            changes: changes.into(),
            state: state as u8,
            ..AnaGroup::zeroed()
        };
        descriptor.copy_from_slice(group.as_bytes());
        for (to, namespace) in list.chunks_exact_mut(4).zip(namespaces) {
            to.copy_from_slice(&namespace.to_le_bytes());
        }
        Some(len)
    }
}

impl AnaGroup {
    /// The group at the front of `groups` with its namespaces, and what is behind them; `None` where it is cut short.
    pub fn split(groups: &[u8]) -> Option<(&Self, &[U32], &[u8])> {
        let (group, rest) = Self::ref_from_prefix(groups).ok()?;
        let (namespaces, rest) = <[U32]>::ref_from_prefix_with_elems(rest, group.namespaces.get() as usize).ok()?;
        Some((group, namespaces, rest))
    }
}

impl DiscoveryRecord {
    /// The first `count` records behind a page's header; `None` where there are fewer.
    pub fn parse_all(records: &[u8], count: usize) -> Option<&[Self]> {
        Some(<[Self]>::ref_from_prefix_with_elems(records, count).ok()?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where `bytes` are not zero.
    fn nonzero(bytes: &[u8]) -> Vec<(usize, u8)> {
        bytes.iter().copied().enumerate().filter(|(_, byte)| *byte != 0).collect()
    }

    #[test]
    fn pages_are_laid_out_as_documented() {
        let mut entry = ErrorEntry { count: 2.into(), cid: 7.into(), nsid: 1.into(), ..ErrorEntry::zeroed() };
        entry.set_status(Status::LBA_OUT_OF_RANGE);
        assert_eq!(nonzero(entry.as_bytes()), [(0, 2), (10, 7), (13, 0x81), (24, 1)]);
        assert_eq!(entry.status(), Status::LBA_OUT_OF_RANGE);
        let health =
            Health { spare: 100, units_read: 1.into(), reads: 2.into(), error_entries: 3.into(), ..Health::zeroed() };
        assert_eq!(nonzero(health.as_bytes()), [(3, 100), (32, 1), (64, 2), (176, 3)]);
        let mut slots = FirmwareSlots { active: 1, ..FirmwareSlots::zeroed() };
        slots.revisions[1][0] = b'x';
        assert_eq!(nonzero(slots.as_bytes()), [(0, 1), (16, b'x')]);
        let mut effects = Effects::zeroed();
        effects.admin[2] = Effects::SUPPORTED.into();
        effects.io[1] = (Effects::SUPPORTED | Effects::CHANGES_BLOCKS).into();
        assert_eq!(nonzero(effects.as_bytes()), [(8, 1), (1028, 3)]);
        let header = DiscoveryHeader { generation: 5.into(), records: 1.into(), ..DiscoveryHeader::zeroed() };
        assert_eq!(nonzero(header.as_bytes()), [(0, 5), (8, 1)]);
        let record = DiscoveryRecord {
            transport: 3,
            family: 1,
            subsystem_type: 2,
            controller: 0xFFFF.into(),
            admin_size: 32.into(),
            subnqn: Nqn::new(b"n").unwrap(),
            ..DiscoveryRecord::zeroed()
        };
        let expected = [(0, 3), (1, 1), (2, 2), (6, 0xFF), (7, 0xFF), (8, 32), (256, b'n')];
        assert_eq!(nonzero(record.as_bytes()), expected);
        let records = [record, record];
        assert_eq!(DiscoveryRecord::parse_all(records.as_bytes(), 2), Some(&records[..]));
        assert_eq!(DiscoveryRecord::parse_all(records.as_bytes(), 3), None);
    }

    #[test]
    fn an_ana_page_is_written_and_read() {
        let mut page = [0xEE; 60];
        assert_eq!(AnaHeader::write(&mut page, 9, 1, AnaState::Inaccessible, &[1, 0x0200]), Some(56));
        let expected = [(0, 9), (8, 1), (16, 1), (20, 2), (24, 9), (32, 3), (48, 1), (53, 2)];
        assert_eq!((nonzero(&page[..56]), &page[56..]), (expected.to_vec(), &[0xEE; 4][..]));
        let (group, namespaces, rest) = AnaGroup::split(&page[16..]).unwrap();
        assert_eq!((AnaState::of(group.state), rest), (Some(AnaState::Inaccessible), &[0xEE; 4][..]));
        assert_eq!(namespaces.iter().map(|id| id.get()).collect::<Vec<_>>(), [1, 0x0200]);
        for len in 0..40 {
            assert_eq!(AnaGroup::split(&page[16..16 + len]), None, "{len}");
        }
        page[20..24].fill(0xFF);
        assert_eq!(AnaGroup::split(&page[16..]), None, "more namespaces than there are bytes");
        assert_eq!(AnaHeader::write(&mut page[..55], 9, 1, AnaState::Change, &[1, 2]), None);
        let states = [(1, true), (2, true), (3, true), (4, true), (15, true), (0, false), (5, false), (14, false)];
        for (number, known) in states {
            assert_eq!(AnaState::of(number).map(|state| state as u8), known.then_some(number));
        }
    }
}
