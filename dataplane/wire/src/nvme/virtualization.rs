//! A controller with virtual functions: which resources they have, and who has which namespace (Base, "Virtualization
//! Enhancements", "Namespace Management").
//!
//! The controller of the physical function is the primary one, those of its virtual functions are its secondary ones. One is
//! online when it has queues and interrupts and was told so.

use zerocopy::{
    IntoBytes,
    little_endian::{U16, U32},
};

use super::{
    command::Sqe,
    identify::{LEN, Namespace},
    macros::layout,
};

layout! {
    /// Primary Controller Capabilities.
    pub struct Primary: 4096 {
        /// CNTLID.
        0 pub controller: U16,
        2 reserved0: [u8; 30],
        /// VQ: queues, the admin queue counted too.
        32 pub queues: Flexible,
        48 reserved1: [u8; 16],
        /// VI: interrupts.
        64 pub interrupts: Flexible,
        80 reserved2: [u8; 4016],
    }

    /// How many resources of a kind there are, and who has them.
    pub struct Flexible: 16 {
        /// VQFRT, VIFRT: to be shared out.
        0 pub total: U32,
        /// VQRFA, VIRFA: of these, what secondary controllers have.
        4 pub assigned: U32,
        /// VQRFAP, VIRFAP: what the primary one has, since its last reset.
        8 pub primary: U16,
        /// VQPRT, VIPRT: what the primary one has beside these.
        10 pub private: U16,
        /// VQFRSM, VIFRSM: the most that a secondary one may have.
        12 pub max: U16,
        /// VQGRAN, VIGRAN: what they are best given in multiples of.
        14 pub granularity: U16,
    }

    /// Secondary Controller Entry.
    pub struct Secondary: 32 {
        /// SCID: its identifier.
        0 pub controller: U16,
        /// PCID: that of its primary one.
        2 pub primary: U16,
        /// SCS: bit 0 it is online.
        4 pub state: u8,
        5 reserved0: [u8; 3],
        /// VFN: the virtual function, counted from 1.
        8 pub function: U16,
        /// NVQ: queues that it has.
        10 pub queues: U16,
        /// NVI: interrupts that it has.
        12 pub interrupts: U16,
        14 reserved1: [u8; 18],
    }
}

impl Secondary {
    /// Whether it serves its function.
    pub fn is_online(&self) -> bool {
        self.state & 1 == 1
    }
}

/// The most entries of a Secondary Controller List: a full one may go on behind its last.
pub const SECONDARIES_MAX: usize = 127;

/// The entries of a Secondary Controller List.
pub fn secondaries(list: &[u8]) -> impl Iterator<Item = &Secondary> {
    let count = list.first().map_or(0, |count| usize::from(*count).min(SECONDARIES_MAX));
    let entries = list.get(Secondary::LEN..).unwrap_or_default().chunks_exact(Secondary::LEN);
    entries.take(count).filter_map(Secondary::parse)
}

/// Secondary Controller List of the first 127 of `secondaries`.
pub fn secondary_list(secondaries: &[Secondary]) -> [u8; LEN] {
    let mut list = [0; LEN];
    list[0] = secondaries.len().min(SECONDARIES_MAX) as u8;
    let entries = list[Secondary::LEN..].chunks_exact_mut(Secondary::LEN);
    entries.zip(secondaries).for_each(|(to, entry)| to.copy_from_slice(entry.as_bytes()));
    list
}

/// The identifiers of a Controller List.
pub fn controllers(list: &[u8]) -> impl Iterator<Item = u16> {
    let mut ids = list.as_chunks().0.iter().map(|&id| u16::from_le_bytes(id));
    let count = ids.next().unwrap_or(0);
    ids.take(count.into())
}

/// Controller List of the first 2047 of `controllers`.
pub fn controller_list(controllers: &[u16]) -> [u8; LEN] {
    let mut list = [0; LEN];
    let (count, ids) = list.split_at_mut(2);
    let listed = ids.as_chunks_mut().0.iter_mut().zip(controllers);
    let listed = listed.map(|(to, id)| *to = id.to_le_bytes()).count();
    count.copy_from_slice(&(listed as u16).to_le_bytes());
    list
}

/// RT: what is shared out.
pub mod resource {
    /// VQ: queues.
    pub const QUEUES: u8 = 0;
    /// VI: interrupts.
    pub const INTERRUPTS: u8 = 1;
}

/// ACT: what Virtualization Management does.
pub mod action {
    /// Primary Controller Flexible Allocation: the primary one has so many from its next reset on.
    pub const ALLOCATE_PRIMARY: u8 = 1;
    /// Secondary Controller Offline: it serves nobody any more, and has no resources.
    pub const OFFLINE: u8 = 7;
    /// Secondary Controller Assign: it has so many resources.
    pub const ASSIGN: u8 = 8;
    /// Secondary Controller Online.
    pub const ONLINE: u8 = 9;
}

/// Virtualization Management. Dword 0 of the completion is how many resources it gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualizationManagement {
    /// ACT: one of [`action`], 4 bits.
    pub action: u8,
    /// RT: one of [`resource`], 3 bits.
    pub resource: u8,
    /// CNTLID: of which controller.
    pub controller: u16,
    /// NR: how many.
    pub count: u16,
}

impl VirtualizationManagement {
    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10[0].get();
        Self {
            action: (cdw10 & 0xF) as u8,
            resource: (cdw10 >> 8 & 7) as u8,
            controller: (cdw10 >> 16) as u16,
            count: sqe.cdw10[1].get() as u16,
        }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        let (action, resource) = (u32::from(self.action & 0xF), u32::from(self.resource & 7));
        sqe.cdw10[0] = (u32::from(self.controller) << 16 | resource << 8 | action).into();
        sqe.cdw10[1] = u32::from(self.count).into();
    }
}

/// SEL of Namespace Attachment, whose data is a Controller List.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// The controllers get the namespace.
    Attach,
    /// They lose it.
    Detach,
}

impl Attachment {
    /// Of a command; `None` where it is neither.
    pub fn of(sqe: &Sqe) -> Option<Self> {
        match sqe.cdw10[0].get() & 0xF {
            0 => Some(Self::Attach),
            1 => Some(Self::Detach),
            _ => None,
        }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = (self as u32).into();
    }
}

/// Format NVM, which erases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// LBAF, MSET, LBAFU: the format of blocks, as FLBAS of [`Namespace`], 7 bits.
    pub flbas: u8,
    /// PI, PIL: protection information, as DPS of [`Namespace`], 4 bits.
    pub dps: u8,
    /// SES, 3 bits: 0 as the controller likes, 1 user data, 2 by the key that it is encrypted with.
    pub erase: u8,
}

impl Format {
    /// SES: all user data is gone.
    pub const USER_DATA: u8 = 1;

    /// Keeps the format that a namespace has, and erases its data.
    pub fn erasing(namespace: &Namespace) -> Self {
        Self { flbas: namespace.flbas & 0x7F, dps: namespace.dps & 0xF, erase: Self::USER_DATA }
    }

    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10[0].get();
        Self {
            flbas: (cdw10 & 0x1F | cdw10 >> 12 << 5 & 0x60) as u8,
            dps: (cdw10 >> 5 & 0xF) as u8,
            erase: (cdw10 >> 9 & 7) as u8,
        }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        let [flbas, dps, erase] = [self.flbas, self.dps & 0xF, self.erase & 7].map(u32::from);
        sqe.cdw10[0] = (flbas & 0x1F | dps << 5 | erase << 9 | (flbas >> 5 & 3) << 12).into();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dwords(put: impl FnOnce(&mut Sqe)) -> [u32; 2] {
        let mut sqe = Sqe::new(0, 0, 0);
        put(&mut sqe);
        [sqe.cdw10[0].get(), sqe.cdw10[1].get()]
    }

    #[test]
    fn commands_are_laid_out_as_documented() {
        let manage = VirtualizationManagement {
            action: action::ASSIGN,
            resource: resource::INTERRUPTS,
            controller: 0x0203,
            count: 0x0405,
        };
        assert_eq!(dwords(|sqe| manage.put(sqe)), [0x0203_0108, 0x0405]);
        assert_eq!(dwords(|sqe| Attachment::Detach.put(sqe)), [1, 0]);
        let format = Format { flbas: 0x72, dps: 0xB, erase: 1 };
        assert_eq!(dwords(|sqe| format.put(sqe)), [2 | 1 << 4 | 3 << 5 | 1 << 8 | 1 << 9 | 3 << 12, 0]);
        let mut namespace = Namespace::zeroed();
        (namespace.flbas, namespace.dps) = (0xF2, 0xFB);
        assert_eq!(Format::erasing(&namespace), format);
    }

    #[test]
    fn structures_are_laid_out_as_documented() {
        let mut bytes = [0; LEN];
        bytes[0] = 7;
        bytes[32..48].copy_from_slice(&[8, 0, 0, 0, 2, 0, 0, 0, 6, 0, 3, 0, 4, 0, 2, 0]);
        bytes[64] = 5;
        let primary = Primary::parse(&bytes).unwrap();
        let Flexible { total, assigned, primary: its, private, max, granularity } = primary.queues;
        assert_eq!((primary.controller.get(), total.get(), assigned.get()), (7, 8, 2));
        assert_eq!([its, private, max, granularity].map(U16::get), [6, 3, 4, 2]);
        assert_eq!(primary.interrupts.total.get(), 5);

        let mut list = [0; LEN];
        list[0] = 2;
        list[32..46].copy_from_slice(&[1, 2, 3, 4, 1, 0, 0, 0, 5, 6, 7, 8, 9, 10]);
        let found: Vec<_> = secondaries(&list).collect();
        assert_eq!(found.len(), 2);
        let Secondary { controller, primary, function, queues, interrupts, .. } = *found[0];
        let numbers = [controller, primary, function, queues, interrupts].map(U16::get);
        assert_eq!((numbers, found[0].is_online()), ([0x0201, 0x0403, 0x0605, 0x0807, 0x0A09], true));
        assert!(!found[1].is_online());
        assert_eq!(secondaries(&list[..63]).count(), 0, "cut short");
        list[0] = 255;
        assert_eq!(secondaries(&list).count(), SECONDARIES_MAX);
        assert_eq!(secondaries(&[]).count(), 0);

        assert_eq!(controller_list(&[0x0102, 3])[..7], [2, 0, 2, 1, 3, 0, 0]);
        assert!(controllers(&[9, 0, 1, 0, 2]).eq([1]), "more than there are");
        assert_eq!(controllers(&[]).count(), 0);
    }

    proptest! {
        #[test]
        fn commands_and_lists_round_trip(
            a in 0..16_u8, r in 0..8_u8, c: u16, n: u16, f in 0..0x80_u8,
            ids in prop::collection::vec(any::<u16>(), 0..2100),
            all in prop::collection::vec(any::<[u8; 32]>(), 0..130),
        ) {
            let mut sqe = Sqe::new(0, 0, 0);
            let manage = VirtualizationManagement { action: a, resource: r, controller: c, count: n };
            manage.put(&mut sqe);
            prop_assert_eq!(VirtualizationManagement::of(&sqe), manage);
            let format = Format { flbas: f, dps: a, erase: r };
            format.put(&mut sqe);
            prop_assert_eq!(Format::of(&sqe), format);
            for attachment in [Attachment::Attach, Attachment::Detach] {
                attachment.put(&mut sqe);
                prop_assert_eq!(Attachment::of(&sqe), Some(attachment));
            }
            prop_assert!(controllers(&controller_list(&ids)).eq(ids.iter().copied().take(2047)));
            let all: Vec<_> = all.iter().map(|entry| *Secondary::parse(entry).unwrap()).collect();
            prop_assert!(secondaries(&secondary_list(&all)).eq(all.iter().take(SECONDARIES_MAX)));
        }
    }
}
