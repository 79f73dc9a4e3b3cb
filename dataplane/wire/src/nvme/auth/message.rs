//! The messages.

use zerocopy::{
    FromBytes, IntoBytes,
    little_endian::{U16, U32},
};

use super::{super::macros::layout, Reason};

/// Bytes of a protocol descriptor in a negotiate message.
pub const DESCRIPTOR_LEN: usize = Descriptor::LEN;

/// The most hashes, and the most groups, of a descriptor.
const LIST_MAX: usize = 30;

layout! {
    /// What every message begins with.
    struct Head: 6 {
        /// `AUTH_TYPE`: 0 common, 1 DH-HMAC-CHAP.
        0 kind: u8,
        /// `AUTH_ID`.
        1 id: u8,
        2 reserved: [u8; 2],
        4 t_id: U16,
    }

    struct NegotiateHead: 8 {
        0 head: Head,
        6 sc_c: u8,
        /// NAPD: descriptors that follow.
        7 count: u8,
    }

    /// The protocol descriptor of DH-HMAC-CHAP.
    struct Descriptor: 64 {
        /// `AuthID`: 1.
        0 protocol: u8,
        1 reserved: [u8; 1],
        /// HALEN.
        2 hashes_len: u8,
        /// DHLEN.
        3 groups_len: u8,
        4 hashes: [u8; LIST_MAX],
        34 groups: [u8; LIST_MAX],
    }

    struct ChallengeHead: 16 {
        0 head: Head,
        /// HL.
        6 len: u8,
        7 reserved: [u8; 1],
        8 hash: u8,
        9 group: u8,
        /// DHVLEN.
        10 dh_len: U16,
        12 sequence: U32,
    }

    struct ReplyHead: 16 {
        0 head: Head,
        /// HL.
        6 len: u8,
        7 reserved0: [u8; 1],
        /// CVALID.
        8 challenges: u8,
        9 reserved1: [u8; 1],
        /// DHVLEN.
        10 dh_len: U16,
        12 sequence: U32,
    }

    struct Success1Head: 16 {
        0 head: Head,
        /// HL.
        6 len: u8,
        7 reserved0: [u8; 1],
        /// RVALID.
        8 responds: u8,
        9 reserved1: [u8; 7],
    }

    struct Success2Body: 16 {
        0 head: Head,
        6 reserved: [u8; 10],
    }

    struct FailureBody: 8 {
        0 head: Head,
        /// Reason Code: 1.
        6 code: u8,
        /// Reason Code Explanation.
        7 explanation: u8,
    }
}

/// DH-HMAC-CHAP among the protocols (`AuthID`).
const DH_HMAC_CHAP: u8 = 1;

/// `AUTH_Negotiate`: what a host offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiate<'b> {
    /// `SC_C`: the secure channel that shall follow; 0 is none.
    pub secure_channel: u8,
    /// Its hashes, the one that it likes best first; `None` where it does not offer DH-HMAC-CHAP. At most 30.
    pub hashes: Option<&'b [u8]>,
    /// Its groups, likewise.
    pub groups: &'b [u8],
}

/// `DH-HMAC-CHAP_Challenge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Challenge<'b> {
    /// [`super::Hash`].
    pub hash: u8,
    /// [`super::Group`].
    pub group: u8,
    /// SEQNUM.
    pub sequence: u32,
    /// C: at most 255 bytes.
    pub challenge: &'b [u8],
    /// The controller's DH value, most significant byte first; empty of group 0.
    pub dh: &'b [u8],
}

/// `DH-HMAC-CHAP_Reply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'b> {
    /// The response to the controller's challenge: at most 255 bytes.
    pub response: &'b [u8],
    /// The host's own challenge, as long as the response, where the controller has to answer one.
    pub challenge: Option<&'b [u8]>,
    /// SEQNUM of that challenge.
    pub sequence: u32,
    /// The host's DH value, most significant byte first; empty of group 0.
    pub dh: &'b [u8],
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'b> {
    /// What the host offers.
    Negotiate(Negotiate<'b>),
    /// The controller's challenge.
    Challenge(Challenge<'b>),
    /// The host's response to it.
    Reply(Reply<'b>),
    /// The controller is content. It answers the host's challenge, if the host had one.
    Success1 {
        /// HL: bytes of a response.
        len: u8,
        /// The response, of that length.
        response: Option<&'b [u8]>,
    },
    /// The host is content as well.
    Success2,
    /// The controller is not.
    Failure1(Reason),
    /// The host is not.
    Failure2(Reason),
}

impl<'b> Message<'b> {
    /// The longest message in bytes: a reply with SHA-512 and ffdhe8192.
    pub const MAX: usize = ReplyHead::LEN + 2 * super::Hash::LEN_MAX + super::Group::LEN_MAX;

    /// Reads the message at the front of `bytes`, and its `T_ID`. The reason is what a failure tells the sender.
    pub fn parse(bytes: &'b [u8]) -> Result<(u16, Self), Reason> {
        const SHORT: Reason = Reason::IncorrectPayload;
        let (head, _) = Head::ref_from_prefix(bytes).map_err(|_| SHORT)?;
        let message = match (head.kind, head.id) {
            (0, 0x00) => Self::Negotiate(Negotiate::parse(bytes).ok_or(SHORT)?),
            (1, 0x01) => Self::Challenge(Challenge::parse(bytes).ok_or(SHORT)?),
            (1, 0x02) => Self::Reply(Reply::parse(bytes).ok_or(SHORT)?),
            (1, 0x03) => {
                let (success, rest) = Success1Head::ref_from_prefix(bytes).map_err(|_| SHORT)?;
                let response = match success.responds {
                    0 => None,
                    _ => Some(rest.get(..usize::from(success.len)).ok_or(SHORT)?),
                };
                Self::Success1 { len: success.len, response }
            }
            (1, 0x04) => Success2Body::parse(bytes).map(|_| Self::Success2).ok_or(SHORT)?,
            (0, 0xF0) => Self::Failure2(failure(bytes).ok_or(SHORT)?),
            (0, 0xF1) => Self::Failure1(failure(bytes).ok_or(SHORT)?),
            _ => return Err(Reason::IncorrectMessage),
        };
        Ok((head.t_id.get(), message))
    }

    /// Writes the message to the front of `to` and returns its length; `None` where `to` has no room for it, or a part is
    /// longer than the message can say.
    pub fn write(&self, t_id: u16, to: &mut [u8]) -> Option<usize> {
        let (kind, id) = match self {
            Self::Negotiate(_) => (0, 0x00),
            Self::Challenge(_) => (1, 0x01),
            Self::Reply(_) => (1, 0x02),
            Self::Success1 { .. } => (1, 0x03),
            Self::Success2 => (1, 0x04),
            Self::Failure2(_) => (0, 0xF0),
            Self::Failure1(_) => (0, 0xF1),
        };
        let head = Head { kind, id, t_id: t_id.into(), ..Head::zeroed() };
        match self {
            Self::Negotiate(negotiate) => negotiate.write(head, to),
            Self::Challenge(challenge) => challenge.write(head, to),
            Self::Reply(reply) => reply.write(head, to),
            Self::Success1 { len, response } => {
                let responds = u8::from(response.is_some());
                let none = [0; 255];
                let response = response.unwrap_or(&none[..usize::from(*len)]);
                let success = Success1Head { head, len: *len, responds, ..Success1Head::zeroed() };
                (response.len() == usize::from(*len)).then(|| join(to, [success.as_bytes(), response]))?
            }
            Self::Success2 => join(to, [Success2Body { head, ..Success2Body::zeroed() }.as_bytes()]),
            Self::Failure1(reason) | Self::Failure2(reason) => {
                join(to, [FailureBody { head, code: 1, explanation: *reason as u8 }.as_bytes()])
            }
        }
    }
}

fn failure(bytes: &[u8]) -> Option<Reason> {
    Some(Reason::of(FailureBody::parse(bytes)?.explanation))
}

impl<'b> Negotiate<'b> {
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        let (head, rest) = NegotiateHead::ref_from_prefix(bytes).ok()?;
        let (descriptors, _) = <[Descriptor]>::ref_from_prefix_with_elems(rest, usize::from(head.count)).ok()?;
        let (mut hashes, mut groups) = (None, &[][..]);
        if let Some(chap) = descriptors.iter().find(|descriptor| descriptor.protocol == DH_HMAC_CHAP) {
            hashes = Some(chap.hashes.get(..usize::from(chap.hashes_len))?);
            groups = chap.groups.get(..usize::from(chap.groups_len))?;
        }
        Some(Self { secure_channel: head.sc_c, hashes, groups })
    }

    fn write(&self, head: Head, to: &mut [u8]) -> Option<usize> {
        let count = u8::from(self.hashes.is_some());
        let negotiate = NegotiateHead { head, sc_c: self.secure_channel, count };
        let Some(hashes) = self.hashes else { return join(to, [negotiate.as_bytes()]) };
        let mut descriptor = Descriptor {
            protocol: DH_HMAC_CHAP,
            hashes_len: hashes.len() as u8,
            groups_len: self.groups.len() as u8,
            ..Descriptor::zeroed()
        };
        descriptor.hashes.get_mut(..hashes.len())?.copy_from_slice(hashes);
        descriptor.groups.get_mut(..self.groups.len())?.copy_from_slice(self.groups);
        join(to, [negotiate.as_bytes(), descriptor.as_bytes()])
    }
}

impl<'b> Challenge<'b> {
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        let (head, rest) = ChallengeHead::ref_from_prefix(bytes).ok()?;
        let (challenge, rest) = rest.split_at_checked(usize::from(head.len))?;
        let dh = rest.get(..usize::from(head.dh_len.get()))?;
        Some(Self { hash: head.hash, group: head.group, sequence: head.sequence.get(), challenge, dh })
    }

    fn write(&self, head: Head, to: &mut [u8]) -> Option<usize> {
        let head = ChallengeHead {
            head,
            len: self.challenge.len().try_into().ok()?,
            hash: self.hash,
            group: self.group,
            dh_len: u16::try_from(self.dh.len()).ok()?.into(),
            sequence: self.sequence.into(),
            ..ChallengeHead::zeroed()
        };
        join(to, [head.as_bytes(), self.challenge, self.dh])
    }
}

impl<'b> Reply<'b> {
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        let (head, rest) = ReplyHead::ref_from_prefix(bytes).ok()?;
        let (response, rest) = rest.split_at_checked(usize::from(head.len))?;
        let (challenge, rest) = rest.split_at_checked(usize::from(head.len))?;
        let dh = rest.get(..usize::from(head.dh_len.get()))?;
        let challenge = (head.challenges != 0).then_some(challenge);
        Some(Self { response, challenge, sequence: head.sequence.get(), dh })
    }

    fn write(&self, head: Head, to: &mut [u8]) -> Option<usize> {
        let len: u8 = self.response.len().try_into().ok()?;
        let head = ReplyHead {
            head,
            len,
            challenges: u8::from(self.challenge.is_some()),
            dh_len: u16::try_from(self.dh.len()).ok()?.into(),
            sequence: self.sequence.into(),
            ..ReplyHead::zeroed()
        };
        let none = [0; 255];
        let challenge = self.challenge.unwrap_or(&none[..usize::from(len)]);
        (challenge.len() == self.response.len())
            .then(|| join(to, [head.as_bytes(), self.response, challenge, self.dh]))?
    }
}

/// Writes `parts` one after another to the front of `to` and returns their length; `None` where they do not fit.
fn join<const N: usize>(to: &mut [u8], parts: [&[u8]; N]) -> Option<usize> {
    let len = parts.iter().map(|part| part.len()).sum();
    let mut rest = to.get_mut(..len)?;
    for part in parts {
        let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(message: &Message, t_id: u16) -> Vec<u8> {
        let mut to = [0xEE; 2048];
        let len = message.write(t_id, &mut to).unwrap();
        assert!(to[len..].iter().all(|&byte| byte == 0xEE));
        assert_eq!(message.write(t_id, &mut to[..len - 1]), None);
        to[..len].to_vec()
    }

    #[test]
    fn messages_are_laid_out_as_documented() {
        let negotiate = Negotiate { secure_channel: 0, hashes: Some(&[1, 2, 3]), groups: &[0, 1] };
        let mut expected = vec![0, 0, 0, 0, 2, 1, 0, 1, 1, 0, 3, 2, 1, 2, 3];
        expected.resize(8 + 34, 0);
        expected.extend([0, 1]);
        expected.resize(8 + 64, 0);
        assert_eq!(written(&Message::Negotiate(negotiate), 0x0102), expected);
        let challenge = Challenge { hash: 2, group: 1, sequence: 0x0A0B_0C0D, challenge: &[7, 8], dh: &[9; 3] };
        assert_eq!(
            written(&Message::Challenge(challenge), 0x0102),
            [1, 1, 0, 0, 2, 1, 2, 0, 2, 1, 3, 0, 0x0D, 0x0C, 0x0B, 0x0A, 7, 8, 9, 9, 9]
        );
        let reply = Reply { response: &[7, 8], challenge: Some(&[5, 6]), sequence: 1, dh: &[9] };
        assert_eq!(written(&Message::Reply(reply), 3), [1, 2, 0, 0, 3, 0, 2, 0, 1, 0, 1, 0, 1, 0, 0, 0, 7, 8, 5, 6, 9]);
        let reply = Reply { challenge: None, sequence: 0, ..reply };
        assert_eq!(written(&Message::Reply(reply), 3), [1, 2, 0, 0, 3, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 7, 8, 0, 0, 9]);
        let success = Message::Success1 { len: 2, response: Some(&[4, 5]) };
        assert_eq!(written(&success, 3), [1, 3, 0, 0, 3, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 4, 5]);
        let success = Message::Success1 { len: 2, response: None };
        assert_eq!(written(&success, 3), [1, 3, 0, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(written(&Message::Success2, 3), [1, 4, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(written(&Message::Failure1(Reason::GroupNotUsable), 3), [0, 0xF1, 0, 0, 3, 0, 1, 5]);
        assert_eq!(written(&Message::Failure2(Reason::Failed), 3), [0, 0xF0, 0, 0, 3, 0, 1, 1]);
    }

    #[test]
    fn what_is_no_message() {
        for (bytes, reason) in [
            (&[0, 0xF1, 0, 0, 3][..], Reason::IncorrectPayload),
            (&[0, 0xF1, 0, 0, 3, 0, 1], Reason::IncorrectPayload),
            (&[1, 0, 0, 0, 3, 0, 0, 0], Reason::IncorrectMessage),
            (&[0, 1, 0, 0, 3, 0, 0, 0], Reason::IncorrectMessage),
            (&[1, 5, 0, 0, 3, 0, 0, 0], Reason::IncorrectMessage),
            // A descriptor that is not there.
            (&[0, 0, 0, 0, 3, 0, 0, 1], Reason::IncorrectPayload),
        ] {
            assert_eq!(Message::parse(bytes), Err(reason), "{bytes:?}");
        }
        let offer = Negotiate { secure_channel: 0, hashes: Some(&[1; 30]), groups: &[1; 30] };
        let mut bytes = written(&Message::Negotiate(offer), 0);
        for at in [10, 11] {
            bytes[at] = 31;
            assert_eq!(Message::parse(&bytes), Err(Reason::IncorrectPayload), "more than a descriptor holds");
            bytes[at] = 30;
        }
        bytes[8] = 2;
        let other = Negotiate { secure_channel: 0, hashes: None, groups: &[] };
        assert_eq!(Message::parse(&bytes), Ok((0, Message::Negotiate(other))), "another protocol");
        let long = Negotiate { hashes: Some(&[1; 31]), ..offer };
        assert_eq!(Message::Negotiate(long).write(0, &mut [0; 100]), None);
        let uneven = Reply { response: &[1], challenge: Some(&[]), sequence: 0, dh: &[] };
        assert_eq!(Message::Reply(uneven).write(0, &mut [0; 100]), None);
        assert_eq!(Message::Success1 { len: 2, response: Some(&[1]) }.write(0, &mut [0; 100]), None);
        assert_eq!(Reason::of(200), Reason::Failed);
    }

    proptest! {
        #[test]
        fn messages_round_trip(
            t_id: u16, a: u8, b: u8, sequence: u32, value in prop::collection::vec(any::<u8>(), 0..65), more: bool,
            dh in prop::collection::vec(any::<u8>(), 0..1025), list in prop::collection::vec(any::<u8>(), 0..30),
            reason in 0..7_usize,
        ) {
            let reason = Reason::ALL[reason];
            let len = value.len() as u8;
            for message in [
                Message::Negotiate(Negotiate { secure_channel: a, hashes: Some(&list), groups: &list }),
                Message::Negotiate(Negotiate { secure_channel: a, hashes: None, groups: &[] }),
                Message::Challenge(Challenge { hash: a, group: b, sequence, challenge: &value, dh: &dh }),
                Message::Reply(Reply { response: &value, challenge: more.then_some(&value), sequence, dh: &dh }),
                Message::Success1 { len, response: more.then_some(&value) },
                Message::Success2,
                Message::Failure1(reason),
                Message::Failure2(reason),
            ] {
                let bytes = written(&message, t_id);
                prop_assert!(bytes.len() <= Message::MAX);
                prop_assert_eq!(Message::parse(&bytes), Ok((t_id, message)));
                for cut in 0..bytes.len() {
                    let whole = matches!(message, Message::Success1 { response: None, .. }) && cut >= 16;
                    prop_assert_eq!(Message::parse(&bytes[..cut]).is_ok(), whole, "{} of {:?}", cut, message);
                }
            }
        }
    }
}
