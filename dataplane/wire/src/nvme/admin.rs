//! The arguments of admin commands (Base, "Admin Command Set").

use super::command::Sqe;

/// Get Log Page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetLogPage {
    /// LID: which log page, one of `log::id`.
    pub id: u8,
    /// LSP: what the page itself defines, 7 bits.
    pub specific: u8,
    /// RAE: the events that the page clears stay.
    pub retain: bool,
    /// How many bytes, from 4 to 2^34, a multiple of 4 (NUMD).
    pub len: u64,
    /// LPO: from which byte on.
    pub offset: u64,
}

impl GetLogPage {
    const RAE: u32 = 1 << 15;

    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let (cdw10, cdw11) = (sqe.cdw10[0].get(), sqe.cdw10[1].get());
        Self {
            id: cdw10 as u8,
            specific: (cdw10 >> 8 & 0x7F) as u8,
            retain: cdw10 & Self::RAE != 0,
            len: (u64::from((cdw11 & 0xFFFF) << 16 | cdw10 >> 16) + 1) * 4,
            offset: sqe.quad(2),
        }
    }

    /// Makes it a command's. [`GetLogPage::len`] is rounded up.
    pub fn put(self, sqe: &mut Sqe) {
        let numd = self.len.div_ceil(4).wrapping_sub(1) as u32;
        let rae = if self.retain { Self::RAE } else { 0 };
        sqe.cdw10[0] = (numd << 16 | rae | u32::from(self.specific & 0x7F) << 8 | u32::from(self.id)).into();
        sqe.cdw10[1] = (numd >> 16).into();
        sqe.set_quad(2, self.offset);
    }
}

/// Identify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identify {
    /// CNS: which structure, one of `identify::cns`.
    pub cns: u8,
    /// CNTID: of which controller, where the structure asks.
    pub controller: u16,
    /// CSI: of which command set, where the structure asks; 0 is NVM.
    pub command_set: u8,
}

impl Identify {
    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10[0].get();
        Self { cns: cdw10 as u8, controller: (cdw10 >> 16) as u16, command_set: (sqe.cdw10[1].get() >> 24) as u8 }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = (u32::from(self.controller) << 16 | u32::from(self.cns)).into();
        sqe.cdw10[1] = (u32::from(self.command_set) << 24).into();
    }
}

/// FID of features ("Feature Identifiers").
pub mod feature {
    /// Volatile Write Cache.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of Queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Asynchronous Event Configuration.
    pub const ASYNC_EVENT_CONFIGURATION: u8 = 0x0B;
    /// Keep Alive Timer.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0F;
    /// Host Identifier.
    pub const HOST_IDENTIFIER: u8 = 0x81;
}

/// Set Features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetFeatures {
    /// FID: one of [`feature`].
    pub feature: u8,
    /// SV: the value outlives a reset.
    pub save: bool,
    /// Dword 11: the value.
    pub value: u32,
}

impl SetFeatures {
    const SV: u32 = 1 << 31;

    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10[0].get();
        Self { feature: cdw10 as u8, save: cdw10 & Self::SV != 0, value: sqe.cdw10[1].get() }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = (if self.save { Self::SV } else { 0 } | u32::from(self.feature)).into();
        sqe.cdw10[1] = self.value.into();
    }
}

/// Get Features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetFeatures {
    /// FID: one of [`feature`].
    pub feature: u8,
    /// SEL, 3 bits: 0 the current value, 1 the default, 2 the saved one, 3 what the feature can do.
    pub select: u8,
}

impl GetFeatures {
    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10[0].get();
        Self { feature: cdw10 as u8, select: (cdw10 >> 8 & 7) as u8 }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = (u32::from(self.select & 7) << 8 | u32::from(self.feature)).into();
    }
}

/// The value of [`feature::NUMBER_OF_QUEUES`], asked for and granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueCounts {
    /// How many I/O submission queues, from 1 to 65,536; to ask for 65,536 is invalid.
    pub submission: u32,
    /// How many I/O completion queues; likewise.
    pub completion: u32,
}

impl QueueCounts {
    /// Of dword 11, or of a completion's dword 0.
    pub fn of(value: u32) -> Self {
        Self { submission: (value & 0xFFFF) + 1, completion: (value >> 16) + 1 }
    }

    /// As such a dword. Of each count less one the low 16 bits count.
    pub fn dword(self) -> u32 {
        self.submission.wrapping_sub(1) & 0xFFFF | self.completion.wrapping_sub(1) << 16
    }
}

/// Abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abort {
    /// SQID: the queue of the command.
    pub queue: u16,
    /// CID: the command.
    pub cid: u16,
}

impl Abort {
    /// Bit 0 of the completion's dword 0: the command was not aborted.
    pub const NOT_ABORTED: u32 = 1;

    /// Of a command.
    pub fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10[0].get();
        Self { queue: cdw10 as u16, cid: (cdw10 >> 16) as u16 }
    }

    /// Makes it a command's.
    pub fn put(self, sqe: &mut Sqe) {
        sqe.cdw10[0] = (u32::from(self.cid) << 16 | u32::from(self.queue)).into();
    }
}

/// What a controller tells of itself ("Asynchronous Event Request command").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Namespace Attribute Changed.
    Namespace,
    /// Asymmetric Namespace Access Change.
    Ana,
    /// Discovery Log Page Change.
    Discovery,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Namespace, Self::Ana, Self::Discovery];

    /// Dword 0 of the completion: type, information in bits 15:8, the log page that clears it in 23:16.
    pub const fn dword(self) -> u32 {
        match self {
            Self::Namespace => 0x0004_0002,
            Self::Ana => 0x000C_0302,
            Self::Discovery => 0x0070_F002,
        }
    }

    /// The event of a completion's dword 0.
    pub fn of(dword: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.dword() == dword)
    }

    /// Its bit in OAES and in [`feature::ASYNC_EVENT_CONFIGURATION`].
    pub const fn bit(self) -> u32 {
        match self {
            Self::Namespace => 1 << 8,
            Self::Ana => 1 << 11,
            Self::Discovery => 1 << 31,
        }
    }

    /// The log page whose reading without RAE clears it.
    pub const fn log(self) -> u8 {
        (self.dword() >> 16) as u8
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    /// Dwords 10 to 13 as bytes.
    fn dwords(put: impl FnOnce(&mut Sqe)) -> Vec<u8> {
        let mut sqe = Sqe::new(0, 0, 0);
        put(&mut sqe);
        sqe.as_bytes()[40..56].to_vec()
    }

    #[test]
    fn arguments_are_laid_out_as_documented() {
        let log = GetLogPage { id: 0x0C, specific: 1, retain: true, len: 0x4_0014, offset: 0x1_0000_0004 };
        assert_eq!(dwords(|sqe| log.put(sqe)), [0x0C, 0x81, 4, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]);
        let identify = Identify { cns: 6, controller: 0x102, command_set: 3 };
        assert_eq!(dwords(|sqe| identify.put(sqe))[..8], [6, 0, 2, 1, 0, 0, 0, 3]);
        let set = SetFeatures { feature: 7, save: true, value: 0x0003_0004 };
        assert_eq!(dwords(|sqe| set.put(sqe))[..8], [7, 0, 0, 0x80, 4, 0, 3, 0]);
        assert_eq!(dwords(|sqe| GetFeatures { feature: 0x0F, select: 3 }.put(sqe))[..4], [0x0F, 3, 0, 0]);
        assert_eq!(dwords(|sqe| Abort { queue: 1, cid: 0x0203 }.put(sqe))[..4], [1, 0, 3, 2]);
        assert_eq!(QueueCounts { submission: 4, completion: 65_536 }.dword(), 0xFFFF_0003);
    }

    #[test]
    fn events() {
        for event in Event::ALL {
            assert_eq!(Event::of(event.dword()), Some(event));
        }
        assert_eq!(Event::of(2), None);
        assert_eq!(Event::ALL.map(Event::log), [0x04, 0x0C, 0x70]);
        assert_eq!(Event::ALL.map(Event::bit), [0x100, 0x800, 0x8000_0000]);
    }

    proptest! {
        #[test]
        fn arguments_round_trip(a: u8, b: bool, c: u16, d: u32, e: u64, f in 0..8_u8, g: u16, numd: u32) {
            let mut sqe = Sqe::new(0, 0, 0);
            let log = GetLogPage { id: a, specific: f, retain: b, len: (u64::from(numd) + 1) * 4, offset: e };
            log.put(&mut sqe);
            prop_assert_eq!(GetLogPage::of(&sqe), log);
            let identify = Identify { cns: a, controller: c, command_set: f };
            identify.put(&mut sqe);
            prop_assert_eq!(Identify::of(&sqe), identify);
            let set = SetFeatures { feature: a, save: b, value: d };
            set.put(&mut sqe);
            prop_assert_eq!(SetFeatures::of(&sqe), set);
            let get = GetFeatures { feature: a, select: f };
            get.put(&mut sqe);
            prop_assert_eq!(GetFeatures::of(&sqe), get);
            let abort = Abort { queue: c, cid: g };
            abort.put(&mut sqe);
            prop_assert_eq!(Abort::of(&sqe), abort);
            prop_assert_eq!(QueueCounts::of(d).dword(), d);
        }
    }
}
