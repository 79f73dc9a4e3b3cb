//! Capability tokens, delegation links and caveats (profile, "Payloads"; section "Capability token caveats").

use std::net::IpAddr;

use super::{
    Perms, SIGNATURE_LEN,
    codec::{FabricError, List, Reader, Wire},
    macros::wire,
    tlv::Tlv8,
};

/// `version` of a token, its first byte; others are malformed.
pub const TOKEN_VERSION: u8 = 0;
/// Prefix of the bytes that the issuer's signature covers.
pub const CAP_DOMAIN: &[u8] = b"fabricBIOS-cap-v0\0";
/// Prefix of the bytes that a link's signature covers.
pub const LINK_DOMAIN: &[u8] = b"fabricBIOS-link-v0\0";
/// Limit on an encoded token, in bytes.
pub const MAX_TOKEN: usize = 16 * 1024;
/// Limit on the delegation links of a token (decision 6).
pub const MAX_LINKS: usize = 8;
/// Limit on the caveats of a token, and on those of each link.
pub const MAX_CAVEATS: usize = 32;
/// Longest lifetime of a token, in seconds.
pub const MAX_TOKEN_TTL: u32 = 300;
/// Tolerance for an `issued_at` in the future, in seconds.
pub const CLOCK_SKEW: u64 = 30;

/// One restriction. Unknown types, wrong lengths, and a RANGE that overflows make the token malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caveat {
    /// Type 1: valid from `start` until before `end`, in seconds since the Unix epoch.
    TimeBound {
        /// First second in which the token is valid.
        start: u64,
        /// First second in which it is not.
        end: u64,
    },
    /// Type 2: the address that requests come from. Compare with [`IpAddr::to_canonical`]: a mapped IPv4 address is
    /// IPv4.
    SourceIp(IpAddr),
    /// Type 3: the bytes that may be accessed, counted from the lease's first.
    Range {
        /// First byte allowed.
        offset: u64,
        /// Number of bytes; `offset + len` does not overflow.
        len: u64,
    },
    /// Type 4: requests under this token per second.
    RateLimit(u32),
    /// Type 5: number of links that may follow.
    Depth(u8),
    /// Type 6: id of the only presenter, in addition to the token's own rule.
    Audience(u128),
}

impl<'a> Wire<'a> for Caveat {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let tlv: Tlv8<'a> = from.get()?;
        let mut value = Reader::new(tlv.value());
        let caveat = match tlv.tag {
            1 => Self::TimeBound { start: value.get()?, end: value.get()? },
            2 if value.remaining() == 4 => Self::SourceIp(value.get::<[u8; 4]>()?.into()),
            2 => Self::SourceIp(value.get::<[u8; 16]>()?.into()),
            3 => {
                let (offset, len): (u64, u64) = (value.get()?, value.get()?);
                offset.checked_add(len).ok_or(FabricError::Value("RANGE caveat"))?;
                Self::Range { offset, len }
            }
            4 => Self::RateLimit(value.get()?),
            5 => Self::Depth(value.get()?),
            6 => Self::Audience(value.get()?),
            _ => return Err(FabricError::Value("caveat type")),
        };
        value.finish()?;
        Ok(caveat)
    }

    fn write(&self, to: &mut Vec<u8>) {
        let head = |to: &mut Vec<u8>, tag: u8, len: u16| {
            tag.write(to);
            len.write(to);
        };
        match *self {
            Self::TimeBound { start, end } => {
                head(to, 1, 16);
                start.write(to);
                end.write(to);
            }
            Self::SourceIp(IpAddr::V4(address)) => {
                head(to, 2, 4);
                address.octets().write(to);
            }
            Self::SourceIp(IpAddr::V6(address)) => {
                head(to, 2, 16);
                address.octets().write(to);
            }
            Self::Range { offset, len } => {
                head(to, 3, 16);
                offset.write(to);
                len.write(to);
            }
            Self::RateLimit(per_second) => {
                head(to, 4, 4);
                per_second.write(to);
            }
            Self::Depth(links) => {
                head(to, 5, 1);
                links.write(to);
            }
            Self::Audience(id) => {
                head(to, 6, 16);
                id.write(to);
            }
        }
    }
}

/// Caveats of a token or of a link; all of them apply.
pub type Caveats<'a> = List<'a, Caveat, MAX_CAVEATS>;

wire! {
    /// One delegation: the previous holder passes the token on, with further caveats.
    pub struct Link<'a> {
        /// Id of the key that holds the token from here on.
        pub delegate: u128,
        /// Apply in addition to all earlier ones.
        pub caveats: Caveats<'a>,
        /// Ed25519 by the previous holder, over [`CapabilityToken::link_signed_bytes`].
        pub signature: [u8; SIGNATURE_LEN],
    }
}

/// A signed permission. Encoding a parsed token gives the same bytes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapabilityToken<'a> {
    /// Names the token in revocations; a refresh keeps it.
    pub token_id: u128,
    /// Id of the node that signed the token.
    pub issuer: u128,
    /// Id of the first holder's key.
    pub audience: u128,
    /// The resource that the token is for; 0 for any.
    pub resource_id: u128,
    /// What its holder may do.
    pub perms: Perms,
    /// Seconds since the Unix epoch; may be up to [`CLOCK_SKEW`] ahead.
    pub issued_at: u64,
    /// Seconds since the Unix epoch; from this second on the token is invalid.
    pub expires_at: u64,
    /// The scheduler fence when the token was issued; 0 if there was none.
    pub epoch: u64,
    /// Restrictions set by the issuer.
    pub caveats: Caveats<'a>,
    /// Ed25519 by the issuer, over [`CapabilityToken::signed_bytes`].
    pub signature: [u8; SIGNATURE_LEN],
    /// Delegations, oldest first; empty if the audience holds the token.
    pub links: List<'a, Link<'a>, MAX_LINKS>,
}

impl CapabilityToken<'_> {
    /// The bytes that the issuer's signature covers: the domain and every field before the signature.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut signed = CAP_DOMAIN.to_vec();
        self.write_unsigned(&mut signed);
        signed
    }

    /// The bytes that the signature of link `index` covers: the domain, the token up to its links, `index + 1` as their
    /// count, the links before, and the link up to its signature. `None` if there is no such link. To delegate, append
    /// the new link with any signature and ask for the last index.
    pub fn link_signed_bytes(&self, index: usize) -> Option<Vec<u8>> {
        if index >= self.links.len() {
            return None;
        }
        let mut signed = LINK_DOMAIN.to_vec();
        self.write_unsigned(&mut signed);
        self.signature.write(&mut signed);
        (index as u16 + 1).write(&mut signed);
        self.links.iter().take(index + 1).for_each(|link| link.write(&mut signed));
        signed.truncate(signed.len() - SIGNATURE_LEN);
        Some(signed)
    }

    /// Id of the key that may use the token now: the last delegate, or the audience.
    pub fn holder(&self) -> u128 {
        self.links.iter().last().map_or(self.audience, |link| link.delegate)
    }

    fn write_unsigned(&self, to: &mut Vec<u8>) {
        TOKEN_VERSION.write(to);
        self.token_id.write(to);
        self.issuer.write(to);
        self.audience.write(to);
        self.resource_id.write(to);
        self.perms.write(to);
        self.issued_at.write(to);
        self.expires_at.write(to);
        self.epoch.write(to);
        self.caveats.write(to);
    }
}

impl<'a> Wire<'a> for CapabilityToken<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        if from.get::<u8>()? != TOKEN_VERSION {
            return Err(FabricError::Version);
        }
        Ok(Self {
            token_id: from.get()?,
            issuer: from.get()?,
            audience: from.get()?,
            resource_id: from.get()?,
            perms: from.get()?,
            issued_at: from.get()?,
            expires_at: from.get()?,
            epoch: from.get()?,
            caveats: from.get()?,
            signature: from.get()?,
            links: from.get()?,
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.write_unsigned(to);
        self.signature.write(to);
        self.links.write(to);
    }
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*};

    use super::{
        super::testing::{canonical, exact, hex},
        *,
    };

    #[test]
    fn caveats_are_laid_out_as_documented() {
        exact(&Caveat::TimeBound { start: 1, end: 2 }, "01 0010 0000000000000001 0000000000000002");
        exact(&Caveat::SourceIp([10, 0, 0, 1].into()), "02 0004 0a000001");
        exact(&Caveat::SourceIp([0x2001, 0xDB8, 0, 0, 0, 0, 0, 1].into()), "02 0010 20010db8000000000000000000000001");
        exact(&Caveat::Range { offset: 16, len: 32 }, "03 0010 0000000000000010 0000000000000020");
        exact(&Caveat::RateLimit(500), "04 0004 000001f4");
        exact(&Caveat::Depth(2), "05 0001 02");
        exact(&Caveat::Audience(9), "06 0010 00000000000000000000000000000009");
        let overflow = hex("03 0010 ffffffffffffffff 0000000000000001");
        assert_eq!(Caveat::parse(&overflow), Err(FabricError::Value("RANGE caveat")));
        assert_eq!(Caveat::parse(&hex("07 0000")), Err(FabricError::Value("caveat type")));
        assert_eq!(Caveat::parse(&hex("05 0002 0101")), Err(FabricError::Surplus));
        assert_eq!(Caveat::parse(&hex("02 0003 010101")), Err(FabricError::Truncated));
    }

    fn token<'a>(caveats: &'a [Caveat], links: &'a [Link<'a>]) -> CapabilityToken<'a> {
        CapabilityToken {
            token_id: 1,
            issuer: 2,
            audience: 3,
            resource_id: 0,
            perms: Perms::READ | Perms::ALLOC,
            issued_at: 0x6000_0000,
            expires_at: 0x6000_012C,
            epoch: 4,
            caveats: List::of(caveats).unwrap(),
            signature: [0x51; 64],
            links: List::of(links).unwrap(),
        }
    }

    const UNSIGNED: &str = "00 00000000000000000000000000000001 00000000000000000000000000000002
        00000000000000000000000000000003 00000000000000000000000000000000 00000005
        0000000060000000 000000006000012c 0000000000000004 0001 05000101";
    const CAP: &str = "66616272696342494f532d6361702d763000";
    const LINK: &str = "66616272696342494f532d6c696e6b2d763000";

    #[test]
    fn tokens_are_laid_out_and_signed_as_documented() {
        let narrower = [Caveat::RateLimit(1)];
        let links = [
            Link { delegate: 8, caveats: List::EMPTY, signature: [0x61; 64] },
            Link { delegate: 9, caveats: List::of(&narrower).unwrap(), signature: [0x62; 64] },
        ];
        let caveats = [Caveat::Depth(1)];
        let token = token(&caveats, &links);
        let (issuer, first, second) = ("51".repeat(64), "61".repeat(64), "62".repeat(64));
        let one = "00000000000000000000000000000008 0000";
        let two = "00000000000000000000000000000009 0001 04000400000001";
        exact(&token, &format!("{UNSIGNED} {issuer} 0002 {one} {first} {two} {second}"));
        assert_eq!(token.signed_bytes(), hex(&format!("{CAP} {UNSIGNED}")));
        assert_eq!(token.link_signed_bytes(0).unwrap(), hex(&format!("{LINK} {UNSIGNED} {issuer} 0001 {one}")));
        assert_eq!(
            token.link_signed_bytes(1).unwrap(),
            hex(&format!("{LINK} {UNSIGNED} {issuer} 0002 {one} {first} {two}"))
        );
        assert_eq!(token.link_signed_bytes(2), None);
        assert_eq!((token.holder(), super::CapabilityToken { links: List::EMPTY, ..token }.holder()), (9, 3));
    }

    #[test]
    fn unknown_versions_and_perms_are_refused() {
        let token = token(&[], &[]).to_vec();
        let with = |at: usize, value: u8| {
            let mut bytes = token.clone();
            bytes[at] = value;
            CapabilityToken::parse(bytes.leak()).err()
        };
        assert_eq!(with(0, 1), Some(FabricError::Version));
        assert_eq!(with(68, 0x80), Some(FabricError::Flags("Perms")));
        assert_eq!(with(94, 33), Some(FabricError::Limit("list")));
        let count = token.len() - 1;
        assert_eq!(with(count, 9), Some(FabricError::Limit("list")));
    }

    fn caveat() -> impl Strategy<Value = Caveat> {
        prop_oneof![
            any::<(u64, u64)>().prop_map(|(start, end)| Caveat::TimeBound { start, end }),
            any::<IpAddr>().prop_map(Caveat::SourceIp),
            any::<(u64, u64)>().prop_map(|(a, b)| Caveat::Range { offset: a >> 1, len: b >> 1 }),
            any::<u32>().prop_map(Caveat::RateLimit),
            any::<u8>().prop_map(Caveat::Depth),
            any::<u128>().prop_map(Caveat::Audience),
        ]
    }

    proptest! {
        #[test]
        fn tokens_round_trip(
            caveats in prop::collection::vec(caveat(), 0..MAX_CAVEATS),
            links in prop::collection::vec((any::<u128>(), prop::collection::vec(caveat(), 0..4)), 0..=MAX_LINKS),
            flip in option::of(any::<(prop::sample::Index, u8)>()),
        ) {
            let links: Vec<_> = links
                .iter()
                .map(|(delegate, caveats)| Link {
                    delegate: *delegate, caveats: List::of(caveats).unwrap(), signature: [7; 64],
                })
                .collect();
            let token = token(&caveats, &links);
            let mut bytes = token.to_vec();
            prop_assert_eq!(CapabilityToken::parse(&bytes), Ok(token));
            if let Some((at, value)) = flip {
                let at = at.index(bytes.len());
                bytes[at] = value;
                canonical::<CapabilityToken<'_>>(bytes);
            }
        }
    }
}
