//! The one function that decides on every access of every dataplane.

use berth_port::Nanos;

use crate::{Entry, Generation, LeaseKey, RegionId, Rights, State};

/// What an access does to the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reads them.
    Read,
    /// Replaces them.
    Write,
}

impl Op {
    /// The right that the token must have had.
    #[inline]
    pub fn right(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
        }
    }
}

/// What a peer asks for, as its message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What to do.
    pub op: Op,
    /// The lease.
    pub key: LeaseKey,
    /// The generation that the message names; `None` where the protocol has none (FBMT, FBBT, pages).
    pub generation: Option<Generation>,
    /// The first byte, from the lease's first.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Whether the message is well formed otherwise: its lengths agree, it carries no data that it should not.
    pub well_formed: bool,
}

/// The bytes of a region that an access may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The region.
    pub region: RegionId,
    /// The first byte in it.
    pub at: u64,
    /// How many bytes.
    pub len: u64,
}

/// Why an access is refused: in the order of the checks (profile, decision 18), the first that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such lease: never granted, freed, or past its grace.
    #[error("no such lease")]
    Unknown,
    /// It was revoked within the last 300 s.
    #[error("the lease was revoked")]
    Revoked,
    /// It has expired and is in its grace.
    #[error("the lease has expired")]
    Expired,
    /// The bytes that the peer knows were lost to a restart.
    #[error("the generation is stale")]
    StaleGeneration,
    /// The message is malformed, or asks for no bytes.
    #[error("malformed request")]
    BadRequest,
    /// More bytes than the lease's `max_io`.
    #[error("more bytes than one access may have")]
    TooLong,
    /// Outside the lease, or outside the RANGE caveat of its token.
    #[error("outside the lease")]
    OutOfRange,
    /// The token lacked READ or WRITE.
    #[error("the token did not allow this")]
    Denied,
}

/// Decides on an access: `entry` is what a probe for `access.key` answered, `now` the monotonic time.
///
/// Every dataplane and every carrier serves through this function, while it holds the guard it probed with.
#[inline]
pub fn check(entry: Option<&Entry>, access: &Access, now: Nanos) -> Result<Span, Refusal> {
    let entry = entry.filter(|entry| entry.key() == access.key).ok_or(Refusal::Unknown)?;
    if entry.state == State::Revoked {
        return Err(Refusal::Revoked);
    }
    if now >= entry.expires {
        return Err(Refusal::Expired);
    }
    if access.generation.is_some_and(|generation| generation != entry.generation) {
        return Err(Refusal::StaleGeneration);
    }
    if !access.well_formed || access.len == 0 {
        return Err(Refusal::BadRequest);
    }
    if access.len > u64::from(entry.max_io) {
        return Err(Refusal::TooLong);
    }
    let end = access.offset.checked_add(access.len);
    if access.offset < entry.first || end.is_none_or(|end| end > entry.len) {
        return Err(Refusal::OutOfRange);
    }
    if !entry.rights.contains(access.op.right()) {
        return Err(Refusal::Denied);
    }
    Ok(Span { region: entry.region, at: entry.base + access.offset, len: access.len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LeaseId;

    fn entry() -> Entry {
        Entry {
            id: LeaseId(7 << 64 | 5),
            generation: Generation(3),
            rights: Rights::ALL,
            region: RegionId(2),
            base: 8192,
            len: 1000,
            first: 100,
            max_io: 256,
            expires: Nanos(50),
            state: State::Active,
        }
    }

    fn access(offset: u64, len: u64) -> Access {
        let generation = Some(Generation(3));
        Access { op: Op::Read, key: LeaseKey(5), generation, offset, len, well_formed: true }
    }

    #[test]
    fn a_sound_access_gets_its_bytes() {
        let span = |at, len| Ok(Span { region: RegionId(2), at, len });
        assert_eq!(check(Some(&entry()), &access(100, 256), Nanos(49)), span(8292, 256));
        assert_eq!(check(Some(&entry()), &access(999, 1), Nanos(0)), span(9191, 1));
        let unnumbered = Access { generation: None, ..access(744, 256) };
        assert_eq!(check(Some(&entry()), &unnumbered, Nanos(0)), span(8936, 256));
    }

    /// An access that is wrong in every way is refused for one reason after the other, as they are mended in order.
    #[test]
    fn checks_come_in_the_order_of_the_profile() {
        let mut entry = Entry { state: State::Revoked, rights: Rights::READ, ..entry() };
        let mut asked =
            Access { op: Op::Write, generation: Some(Generation(2)), well_formed: false, ..access(u64::MAX, 300) };
        let refused = |entry: &Entry, asked: &Access, now| check(Some(entry), asked, Nanos(now)).unwrap_err();
        assert_eq!(check(None, &asked, Nanos(50)), Err(Refusal::Unknown));
        assert_eq!(refused(&entry, &Access { key: LeaseKey(6), ..asked }, 50), Refusal::Unknown);
        assert_eq!(refused(&entry, &asked, 50), Refusal::Revoked);
        entry.state = State::Active;
        assert_eq!(refused(&entry, &asked, 50), Refusal::Expired);
        assert_eq!(refused(&entry, &asked, 49), Refusal::StaleGeneration);
        asked.generation = Some(Generation(3));
        assert_eq!(refused(&entry, &asked, 49), Refusal::BadRequest);
        asked.well_formed = true;
        assert_eq!(refused(&entry, &Access { len: 0, ..asked }, 49), Refusal::BadRequest);
        assert_eq!(refused(&entry, &asked, 49), Refusal::TooLong);
        asked.len = 2;
        assert_eq!(refused(&entry, &asked, 49), Refusal::OutOfRange, "offset + len overflows");
        for (offset, len) in [(999, 2), (1000, 1), (99, 2), (0, 100)] {
            assert_eq!(refused(&entry, &Access { offset, len, ..asked }, 49), Refusal::OutOfRange, "{offset}+{len}");
        }
        asked.offset = 998;
        assert_eq!(refused(&entry, &asked, 49), Refusal::Denied);
        entry.rights = Rights::WRITE;
        assert_eq!(check(Some(&entry), &asked, Nanos(49)), Ok(Span { region: RegionId(2), at: 9190, len: 2 }));
        assert_eq!(refused(&entry, &Access { op: Op::Read, ..asked }, 49), Refusal::Denied);
    }
}
