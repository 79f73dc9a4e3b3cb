//! What an executor process and the node say to each other, over one slot of shared memory (`docs/wasm.md`).
//!
//! The node posts a [`Command`], the executor an [`Asked`], in turns. Each is a head of [`HEAD`] bytes, and what is longer lies in
//! the slot's [`DATA`] bytes. The node trusts nothing of it: a head is copied once, and every field is checked here.

use crate::{
    hostcall::{BLOCK_LEN, Kind, Named},
    log::MESSAGE,
    run::{Limits, Status},
};

/// Bytes of a head: 4 single bytes, 3 u32 and 6 u64, little-endian.
pub const HEAD: usize = 64;

/// Bytes that go with it at most: more than one access may have, more than any input or output. A call with more says so many,
/// and is refused for its length.
pub const DATA: usize = (1 << 20) + (64 << 10);

/// Most bytes of the reason in [`Asked::Refused`] and [`Asked::Ended`].
pub const REASON: usize = 1024;

/// Modules that an executor has loaded at a time.
pub const PLACES: u8 = 8;

/// A head, little-endian: four bytes, of which the first is the kind of message; three u32; six u64. What a message has no use
/// for is 0.
pub type Head = [u8; HEAD];

/// A head that neither [`Asked::head`] nor [`Command::head`] writes, or a length over its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an executor said what is no message")]
pub struct Malformed;

/// Which parts of its sandbox stand beside the filter of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walls {
    /// A network, an IPC and a mount namespace of its own, the latter without a file.
    pub namespaces: bool,
    /// Landlock, without a rule that allows anything.
    pub landlock: bool,
}

/// What an executor says. Lengths are those of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "calls are those of `hostcall::Call`, with lengths in the place of slices")]
pub enum Asked {
    /// Its sandbox is closed; these parts stand beside the filter of system calls.
    Ready(Walls),
    /// The module of [`Command::Load`] is in its place.
    Loaded,
    /// The module cannot be loaded. The data is why: `reason` bytes, at most [`REASON`].
    Refused {
        reason: u32,
    },
    /// [`Hostcalls::turn`](crate::hostcall::Hostcalls::turn): 1 is yes.
    Turn,
    /// The run has ended. The data is the output, and the reason behind it.
    Ended {
        status: Status,
        fuel: u64,
        hostcalls: u64,
        output: u32,
        reason: u32,
    },
    Hello(Kind),
    GetSize(Kind),
    Read {
        kind: Kind,
        lease: Named,
        at: u64,
        len: u32,
    },
    Write {
        kind: Kind,
        lease: Named,
        at: u64,
        len: u32,
    },
    Alloc {
        kind: Kind,
        min: u64,
        secs: u32,
    },
    Query {
        kind: Kind,
        lease: u128,
    },
    Renew {
        kind: Kind,
        lease: u128,
        secs: u32,
    },
    Free {
        kind: Kind,
        lease: u128,
    },
    Log {
        level: u32,
        len: u32,
    },
}

/// What the node tells an executor. Lengths are those of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// A module, whose code comes over the socket. The data is the name of its start function; there is none if it is empty.
    Load {
        /// Below [`PLACES`].
        place: u8,
        /// It exports `tasklet_alloc`.
        alloc: bool,
        /// It exports `_initialize`.
        initialize: bool,
        /// Bytes of the start function's name, at most [`DATA`]; 0 if there is none.
        start: u32,
    },
    /// Run what is there. The data is the input.
    Run {
        /// Below [`PLACES`].
        place: u8,
        /// Fuel, memory, output and hostcalls: in the head the first four u64, in this order.
        limits: Limits,
        /// Bytes of the input, at most [`DATA`].
        input: u32,
    },
    /// What a call returned, or for [`Asked::Turn`] whether the run goes on: 1 is yes.
    Answer(i64),
}

/// A head's integers.
#[derive(Default)]
struct Fields {
    bytes: [u8; 4],
    ints: [u32; 3],
    words: [u64; 6],
}

impl Fields {
    fn of(op: u8) -> Self {
        Self { bytes: [op, 0, 0, 0], ..Self::default() }
    }

    fn call(op: u8, kind: Kind) -> Self {
        Self { bytes: [op, u8::from(kind == Kind::Block), 0, 0], ..Self::default() }
    }

    fn lease(mut self, lease: u128) -> Self {
        (self.words[0], self.words[1]) = (lease as u64, (lease >> 64) as u64);
        self
    }

    fn named(mut self, lease: Named) -> Self {
        self.bytes[2] = u8::from(lease.is_some());
        self.lease(lease.unwrap_or(0))
    }

    fn ints(mut self, ints: [u32; 3]) -> Self {
        self.ints = ints;
        self
    }

    fn at(mut self, at: u64) -> Self {
        self.words[2] = at;
        self
    }

    fn head(&self) -> Head {
        let mut head = [0; HEAD];
        let ints = self.ints.iter().flat_map(|int| int.to_le_bytes());
        let words = self.words.iter().flat_map(|word| word.to_le_bytes());
        for (to, from) in head.iter_mut().zip(self.bytes.into_iter().chain(ints).chain(words)) {
            *to = from;
        }
        head
    }

    fn read(head: &Head) -> Self {
        let (bytes, rest) = head.split_first_chunk::<4>().expect("64 bytes");
        let (ints, words) = rest.split_at(12);
        let int = |at| u32::from_le_bytes(*ints.as_chunks().0.get(at).expect("12 bytes"));
        let word = |at| u64::from_le_bytes(*words.as_chunks().0.get(at).expect("48 bytes"));
        Self { bytes: *bytes, ints: std::array::from_fn(int), words: std::array::from_fn(word) }
    }
}

fn within(len: u32, most: usize) -> Result<u32, Malformed> {
    if len as usize <= most { Ok(len) } else { Err(Malformed) }
}

impl Asked {
    /// The head to post. Where there is data, it is not in it.
    pub fn head(&self) -> Head {
        let fields = match *self {
            Self::Ready(walls) => {
                let mut fields = Fields::of(0);
                (fields.bytes[1], fields.bytes[2]) = (walls.namespaces.into(), walls.landlock.into());
                fields
            }
            Self::Loaded => Fields::of(1),
            Self::Refused { reason } => Fields::of(2).ints([reason, 0, 0]),
            Self::Turn => Fields::of(3),
            Self::Ended { status, fuel, hostcalls, output, reason } => {
                let mut fields = Fields::of(4).ints([output, reason, 0]).at(fuel);
                (fields.bytes[3], fields.words[3]) = (status as u8, hostcalls);
                fields
            }
            Self::Hello(kind) => Fields::call(5, kind),
            Self::GetSize(kind) => Fields::call(6, kind),
            Self::Read { kind, lease, at, len } => Fields::call(7, kind).named(lease).at(at).ints([len, 0, 0]),
            Self::Write { kind, lease, at, len } => Fields::call(8, kind).named(lease).at(at).ints([len, 0, 0]),
            Self::Alloc { kind, min, secs } => Fields::call(9, kind).at(min).ints([0, secs, 0]),
            Self::Query { kind, lease } => Fields::call(10, kind).lease(lease),
            Self::Renew { kind, lease, secs } => Fields::call(11, kind).lease(lease).ints([0, secs, 0]),
            Self::Free { kind, lease } => Fields::call(12, kind).lease(lease),
            Self::Log { level, len } => Fields::of(13).ints([len, level, 0]),
        };
        fields.head()
    }

    /// Reads a head that anybody may have written.
    ///
    /// # Errors
    /// [`Malformed`], if [`Asked::head`] does not write it, or a length is over its limit.
    pub fn parse(head: &Head) -> Result<Self, Malformed> {
        let Fields { bytes, ints: [len, small, _], words } = Fields::read(head);
        let kind = if bytes[1] == 0 { Kind::Memory } else { Kind::Block };
        let lease = u128::from(words[1]) << 64 | u128::from(words[0]);
        let named = (bytes[2] == 1).then_some(lease);
        let at = words[2];
        let access = || match kind {
            Kind::Memory => within(len, DATA),
            Kind::Block if len as usize == BLOCK_LEN => Ok(len),
            Kind::Block => Err(Malformed),
        };
        let asked = match bytes[0] {
            0 => Self::Ready(Walls { namespaces: bytes[1] == 1, landlock: bytes[2] == 1 }),
            1 => Self::Loaded,
            2 => Self::Refused { reason: within(len, REASON)? },
            3 => Self::Turn,
            4 => {
                let status = match bytes[3] {
                    0 => Status::Ok,
                    3 => Status::FuelExhausted,
                    4 => Status::OutOfMemory,
                    5 => Status::ExecFailed,
                    6 => Status::HostcallLimit,
                    _ => return Err(Malformed),
                };
                let (output, reason) = (within(len, DATA - REASON)?, within(small, REASON)?);
                Self::Ended { status, fuel: at, hostcalls: words[3], output, reason }
            }
            5 => Self::Hello(kind),
            6 => Self::GetSize(kind),
            7 => Self::Read { kind, lease: named, at, len: access()? },
            8 => Self::Write { kind, lease: named, at, len: access()? },
            9 => Self::Alloc { kind, min: at, secs: small },
            10 => Self::Query { kind, lease },
            11 => Self::Renew { kind, lease, secs: small },
            12 => Self::Free { kind, lease },
            13 => Self::Log { level: small, len: within(len, MESSAGE)? },
            _ => return Err(Malformed),
        };
        if asked.head() == *head { Ok(asked) } else { Err(Malformed) }
    }
}

impl Command {
    /// The head to post. Where there is data, it is not in it.
    pub fn head(&self) -> Head {
        let fields = match *self {
            Self::Load { place, alloc, initialize, start } => {
                let mut fields = Fields::of(0).ints([start, 0, 0]);
                fields.bytes = [0, place, alloc.into(), initialize.into()];
                fields
            }
            Self::Run { place, limits, input } => {
                let Limits { fuel, memory, output, hostcalls } = limits;
                let bytes = [1, place, 0, 0];
                Fields { bytes, ints: [input, 0, 0], words: [fuel, memory, output, hostcalls, 0, 0] }
            }
            Self::Answer(code) => Fields::of(2).at(code.cast_unsigned()),
        };
        fields.head()
    }

    /// Reads a head.
    ///
    /// # Errors
    /// As [`Asked::parse`].
    pub fn parse(head: &Head) -> Result<Self, Malformed> {
        let Fields { bytes: [op, place, alloc, initialize], ints: [len, ..], words } = Fields::read(head);
        let command = match op {
            0 | 1 if place >= PLACES => return Err(Malformed),
            0 => Self::Load { place, alloc: alloc == 1, initialize: initialize == 1, start: within(len, DATA)? },
            1 => {
                let [fuel, memory, output, hostcalls, ..] = words;
                Self::Run { place, limits: Limits { fuel, memory, output, hostcalls }, input: within(len, DATA)? }
            }
            2 => Self::Answer(words[2].cast_signed()),
            _ => return Err(Malformed),
        };
        if command.head() == *head { Ok(command) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Memory), Just(Kind::Block)]
    }

    fn asked() -> impl Strategy<Value = Asked> {
        let status =
            [Status::Ok, Status::FuelExhausted, Status::OutOfMemory, Status::ExecFailed, Status::HostcallLimit];
        let len = |kind, len| if kind == Kind::Block { BLOCK_LEN as u32 } else { len };
        let data = 0..=DATA as u32;
        prop_oneof![
            any::<(bool, bool)>().prop_map(|(namespaces, landlock)| Asked::Ready(Walls { namespaces, landlock })),
            Just(Asked::Loaded),
            (0..=REASON as u32).prop_map(|reason| Asked::Refused { reason }),
            Just(Asked::Turn),
            (prop::sample::select(status.to_vec()), any::<[u64; 2]>(), 0..=(DATA - REASON) as u32, 0..=REASON as u32)
                .prop_map(|(status, [fuel, hostcalls], output, reason)| Asked::Ended {
                    status,
                    fuel,
                    hostcalls,
                    output,
                    reason
                }),
            kind().prop_map(Asked::Hello),
            kind().prop_map(Asked::GetSize),
            (kind(), any::<Named>(), any::<u64>(), data.clone()).prop_map(move |(kind, lease, at, of)| Asked::Read {
                kind,
                lease,
                at,
                len: len(kind, of)
            }),
            (kind(), any::<Named>(), any::<u64>(), data).prop_map(move |(kind, lease, at, of)| Asked::Write {
                kind,
                lease,
                at,
                len: len(kind, of)
            }),
            (kind(), any::<(u64, u32)>()).prop_map(|(kind, (min, secs))| Asked::Alloc { kind, min, secs }),
            (kind(), any::<u128>()).prop_map(|(kind, lease)| Asked::Query { kind, lease }),
            (kind(), any::<(u128, u32)>()).prop_map(|(kind, (lease, secs))| Asked::Renew { kind, lease, secs }),
            (kind(), any::<u128>()).prop_map(|(kind, lease)| Asked::Free { kind, lease }),
            (any::<u32>(), 0..=MESSAGE as u32).prop_map(|(level, len)| Asked::Log { level, len }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(asked in asked()) {
            prop_assert_eq!(Asked::parse(&asked.head()), Ok(asked));
        }

        #[test]
        fn commands_too(place in 0..PLACES, flags in any::<[bool; 2]>(), len in 0..=DATA as u32, words in any::<[u64; 4]>()) {
            let [fuel, memory, output, hostcalls] = words;
            for command in [
                Command::Load { place, alloc: flags[0], initialize: flags[1], start: len },
                Command::Run { place, limits: Limits { fuel, memory, output, hostcalls }, input: len },
                Command::Answer(fuel.cast_signed()),
            ] {
                prop_assert_eq!(Command::parse(&command.head()), Ok(command));
            }
        }

        /// A message with one byte changed is another message, or none: no byte is without a meaning.
        #[test]
        fn every_byte_counts(asked in asked(), at in 0..HEAD, by in 1_u8..) {
            let mut head = asked.head();
            head[at] ^= by;
            prop_assert_ne!(Asked::parse(&head), Ok(asked));
        }
    }

    #[test]
    fn lengths_are_bounded() {
        let (kind, lease, at) = (Kind::Memory, None, 0);
        for asked in [
            Asked::Read { kind, lease, at, len: DATA as u32 + 1 },
            Asked::Write { kind, lease, at, len: u32::MAX },
            Asked::Read { kind: Kind::Block, lease, at, len: 513 },
            Asked::Write { kind: Kind::Block, lease, at, len: 0 },
            Asked::Log { level: 0, len: MESSAGE as u32 + 1 },
            Asked::Refused { reason: REASON as u32 + 1 },
            Asked::Ended { status: Status::Ok, fuel: 0, hostcalls: 0, output: (DATA - REASON) as u32 + 1, reason: 0 },
            Asked::Ended { status: Status::Ok, fuel: 0, hostcalls: 0, output: 0, reason: REASON as u32 + 1 },
        ] {
            assert_eq!(Asked::parse(&asked.head()), Err(Malformed), "{asked:?}");
        }
        let limits = Limits { fuel: 0, memory: 0, output: 0, hostcalls: 0 };
        for command in [
            Command::Run { place: PLACES, limits, input: 0 },
            Command::Run { place: 0, limits, input: DATA as u32 + 1 },
            Command::Load { place: 0, alloc: true, initialize: true, start: u32::MAX },
        ] {
            assert_eq!(Command::parse(&command.head()), Err(Malformed), "{command:?}");
        }
    }
}
