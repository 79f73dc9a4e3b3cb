//! A message of fixed size and its three formats.

use berth_wire::memory_pack::{Format, Message};
use sha2::{Digest as _, Sha256};

use crate::{
    Scalar,
    member::{Member, is_identifier},
};

/// The most members of a message: the count is one byte, and the upper ones are reserved.
pub const MAX_MEMBERS: usize = berth_wire::memory_pack::MAX_MEMBERS as usize;

/// Which formats are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// All; a message's length tells which it has.
    #[default]
    Auto,
    /// This one.
    Only(Format),
}

/// Bytes of a `Guid`.
pub(crate) const GUID: usize = Scalar::Guid.size();

/// Why members make no message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The name cannot stand in a C header.
    #[error("{0:?} is not a name of a message; use a letter, then letters, digits and underscores, 64 at most")]
    Name(String),
    /// It has none, or more than the count can say.
    #[error("{0} members; a message has 1 to {MAX_MEMBERS}")]
    Members(usize),
    /// Two members share a name.
    #[error("there are two members {0:?}")]
    Twice(String),
}

/// A part of a message that is treated alike: offsets in the raw format and in MemoryPack, the count not included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) raw: usize,
    memory_pack: usize,
    /// Bytes of the value.
    pub(crate) len: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Bool,
    /// In MemoryPack, `front` bytes of flag and padding are before the value; elsewhere one byte.
    Nullable {
        front: usize,
        is_bool: bool,
    },
}

/// A message type: its members in the order of their declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    name: String,
    members: Vec<Member>,
    /// Offset of each member in the raw format.
    offsets: Vec<usize>,
    pub(crate) steps: Vec<Step>,
    /// Bytes in the raw format, and in MemoryPack without the count.
    raw: usize,
    memory_pack: usize,
    /// Where the value of `CorrelationId` is in the raw format, if it is the one nullable and can be left out.
    pub(crate) short: Option<usize>,
}

impl Schema {
    /// Checks names and numbers, and lays the members out.
    pub fn new(name: &str, members: Vec<Member>) -> Result<Self, SchemaError> {
        if !is_identifier(name) {
            return Err(SchemaError::Name(name.to_owned()));
        }
        if !(1..=MAX_MEMBERS).contains(&members.len()) {
            return Err(SchemaError::Members(members.len()));
        }
        let (mut offsets, mut steps) = (Vec::new(), Vec::<Step>::new());
        let (mut raw, mut memory_pack) = (0, 0);
        for (at, member) in members.iter().enumerate() {
            if members[..at].iter().any(|other| other.name == member.name) {
                return Err(SchemaError::Twice(member.name.clone()));
            }
            let is_bool = member.scalar == Scalar::Bool;
            let kind = match (member.nullable, is_bool) {
                (true, is_bool) => Kind::Nullable { front: member.front(), is_bool },
                (false, true) => Kind::Bool,
                (false, false) => Kind::Plain,
            };
            let len = member.scalar.size();
            match steps.last_mut() {
                Some(last) if kind == Kind::Plain && last.kind == Kind::Plain => last.len += len,
                _ => steps.push(Step { raw, memory_pack, len, kind }),
            }
            offsets.push(raw);
            raw += member.packed();
            memory_pack += member.front() + len;
        }
        let mut schema = Self { name: name.to_owned(), members, offsets, steps, raw, memory_pack, short: None };
        let mut nullables = schema.members.iter().filter(|member| member.nullable);
        if let (Some(only), None) = (nullables.next(), nullables.next())
            && *only == Member::nullable("CorrelationId", Scalar::Guid)
        {
            schema.short = schema.offset("CorrelationId").map(|flag| flag + 1);
        }
        Ok(schema)
    }

    /// The schema of a type, laid out from its name and members as [`Schema::new`] does.
    pub fn of<M: Message>() -> Result<Self, SchemaError> {
        Self::new(M::NAME, M::MEMBERS.iter().map(Member::from).collect())
    }

    /// The name of the type.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The members in order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The members with their offsets in the raw format, in bytes.
    pub fn placed(&self) -> impl Iterator<Item = (usize, &Member)> {
        self.offsets.iter().copied().zip(&self.members)
    }

    fn offset(&self, name: &str) -> Option<usize> {
        self.placed().find(|(_, member)| member.name == name).map(|(at, _)| at)
    }

    /// Offset in the raw format of a member of this name and type that is always there.
    pub fn find(&self, name: &str, scalar: Scalar) -> Option<usize> {
        let (at, member) = self.placed().find(|(_, member)| member.name == name)?;
        (*member == Member::new(name, scalar)).then_some(at)
    }

    /// Bytes of a message in a format, with the count where it has one; see [`Schema::short_len`] for the short form.
    pub fn len(&self, format: Format) -> usize {
        match format {
            Format::DotCompute => 1 + self.raw,
            Format::MemoryPack => 1 + self.memory_pack,
            Format::Raw => self.raw,
        }
    }

    /// Bytes of the dotcompute format without an absent `CorrelationId`; `None` if the message has no such form.
    pub fn short_len(&self) -> Option<usize> {
        self.short.map(|_| self.len(Format::DotCompute) - GUID)
    }

    /// Bytes of the longest format that a choice takes.
    pub fn longest(&self, choice: Choice) -> usize {
        match choice {
            Choice::Auto => self.len(Format::DotCompute).max(self.len(Format::MemoryPack)),
            Choice::Only(format) => self.len(format),
        }
    }

    /// Whether it begins with `MessageId guid`, `Priority u8`, `CorrelationId guid?`, as ring kernel messages do.
    pub fn has_head(&self) -> bool {
        let head = [
            Member::new("MessageId", Scalar::Guid),
            Member::new("Priority", Scalar::U8),
            Member::nullable("CorrelationId", Scalar::Guid),
        ];
        self.members.starts_with(&head)
    }

    /// The declaration that the fingerprint is of: `Name{type name;...}`.
    pub fn declaration(&self) -> String {
        let member = |member: &Member| format!("{} {};", member.type_word(), member.name);
        format!("{}{{{}}}", self.name, self.members.iter().map(member).collect::<Vec<_>>().concat())
    }

    /// SHA-256 of the [declaration](Self::declaration) in hex digits. Types of one fingerprint have one layout.
    pub fn fingerprint(&self) -> String {
        Sha256::digest(self.declaration()).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
    }

    /// Reads a message into `raw`, of [`Format::Raw`]'s length; returns its format. `None` if it has not the length of a
    /// format that is taken, another number of members, or a flag and no value. Padding and absent values are ignored;
    /// they are zeros in `raw`, and flags and booleans are 0 or 1.
    #[inline]
    pub fn read(&self, choice: Choice, message: &[u8], raw: &mut [u8]) -> Option<Format> {
        let taken = |format| choice == Choice::Auto || choice == Choice::Only(format);
        let is = |format| message.len() == self.len(format) && taken(format);
        let format = if is(Format::DotCompute) {
            Format::DotCompute
        } else if is(Format::MemoryPack) {
            Format::MemoryPack
        } else if is(Format::Raw) {
            Format::Raw
        } else if taken(Format::DotCompute) && self.short_len() == Some(message.len()) {
            return self.read_short(message, raw);
        } else {
            return None;
        };
        let members = if format == Format::Raw { message } else { self.counted(message)? };
        if format != Format::MemoryPack {
            raw.copy_from_slice(members);
            self.tidy(raw);
            return Some(format);
        }
        for step in &self.steps {
            let from = &members[step.memory_pack..];
            let to = &mut raw[step.raw..];
            match step.kind {
                Kind::Plain => copy(&mut to[..step.len], &from[..step.len]),
                Kind::Bool => to[0] = (from[0] != 0).into(),
                Kind::Nullable { .. } if from[0] == 0 => to[..=step.len].fill(0),
                Kind::Nullable { front, is_bool } => {
                    to[0] = 1;
                    let value = &mut to[1..][..step.len];
                    copy(value, &from[front..][..step.len]);
                    if is_bool {
                        value[0] = (value[0] != 0).into();
                    }
                }
            }
        }
        Some(format)
    }

    /// Makes flags and booleans of a raw message 0 or 1, and absent values zeros.
    #[inline]
    fn tidy(&self, raw: &mut [u8]) {
        let is = |byte: u8| u8::from(byte != 0);
        for step in &self.steps {
            let part = &mut raw[step.raw..];
            match step.kind {
                Kind::Plain => {}
                Kind::Bool => part[0] = is(part[0]),
                Kind::Nullable { .. } if part[0] == 0 => part[1..=step.len].fill(0),
                Kind::Nullable { is_bool, .. } => {
                    part[0] = 1;
                    if is_bool {
                        part[1] = is(part[1]);
                    }
                }
            }
        }
    }

    /// Writes a raw message in a format to the front of `out`; returns its length, or `None` if it does not fit.
    #[inline]
    pub fn write(&self, format: Format, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        let len = self.len(format);
        let out = out.get_mut(..len)?;
        let members = if format == Format::Raw {
            out
        } else {
            let (count, members) = out.split_first_mut()?;
            *count = self.members.len() as u8;
            members
        };
        if format != Format::MemoryPack {
            members.copy_from_slice(raw);
            self.tidy(members);
            return Some(len);
        }
        for step in &self.steps {
            let from = &raw[step.raw..];
            let to = &mut members[step.memory_pack..];
            match step.kind {
                Kind::Plain => copy(&mut to[..step.len], &from[..step.len]),
                Kind::Bool => to[0] = (from[0] != 0).into(),
                Kind::Nullable { front, .. } if from[0] == 0 => to[..front + step.len].fill(0),
                Kind::Nullable { front, is_bool } => {
                    to[..front].fill(0);
                    to[0] = 1;
                    let value = &mut to[front..][..step.len];
                    copy(value, &from[1..][..step.len]);
                    if is_bool {
                        value[0] = (value[0] != 0).into();
                    }
                }
            }
        }
        Some(len)
    }

    /// The members behind a count, if it is theirs.
    #[inline]
    fn counted<'m>(&self, message: &'m [u8]) -> Option<&'m [u8]> {
        let (count, members) = message.split_first()?;
        (usize::from(*count) == self.members.len()).then_some(members)
    }

    /// Reads the short form: no value behind a flag that is 0.
    fn read_short(&self, message: &[u8], raw: &mut [u8]) -> Option<Format> {
        let (value, members) = (self.short?, self.counted(message)?);
        let (before, after) = members.split_at_checked(value)?;
        if *before.last()? != 0 {
            return None;
        }
        raw[..value].copy_from_slice(before);
        raw[value + GUID..].copy_from_slice(after);
        self.tidy(raw);
        Some(Format::DotCompute)
    }
}

/// Copies bytes of one length. A step is short: two overlapping words cost less than a call.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    match from.len() {
        4..8 => ends::<4>(to, from),
        8..16 => ends::<8>(to, from),
        16..=32 => ends::<16>(to, from),
        _ => to.copy_from_slice(from),
    }
}

/// Copies the first `N` bytes and the last, which together are all.
#[inline]
fn ends<const N: usize>(to: &mut [u8], from: &[u8]) {
    if let (Some(to), Some(from)) = (to.first_chunk_mut::<N>(), from.first_chunk()) {
        *to = *from;
    }
    if let (Some(to), Some(from)) = (to.last_chunk_mut::<N>(), from.last_chunk()) {
        *to = *from;
    }
}

impl Step {
    /// Its offset in a format, the count not included, and the bytes before a nullable's value.
    #[inline]
    pub(crate) fn place(&self, format: Format) -> (usize, usize) {
        match (format, self.kind) {
            (Format::MemoryPack, Kind::Nullable { front, .. }) => (self.memory_pack, front),
            (Format::MemoryPack, _) => (self.memory_pack, 0),
            (_, _) => (self.raw, 1),
        }
    }
}
