//! Both widths of TLV, and the sequences of TLVs that end a message (section "Conventions").

use super::codec::{FabricError, ListIter, Reader, Wire};

macro_rules! tlv {
    ($(#[$meta:meta])* $name:ident, $tag:ty) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name<'a> {
            /// Says what `value` holds.
            pub tag: $tag,
            /// At most 65535 bytes.
            value: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// Makes a TLV to send; [`FabricError::Limit`] if `value` is longer than 65535 bytes.
            pub fn of(tag: $tag, value: &'a [u8]) -> Result<Self, FabricError> {
                if u16::try_from(value.len()).is_ok() {
                    Ok(Self { tag, value })
                } else {
                    Err(FabricError::Limit("TLV"))
                }
            }

            /// The bytes behind the length word.
            pub fn value(&self) -> &'a [u8] {
                self.value
            }

            /// Reads the value as one `T` that fills it.
            pub fn parse_value<T: Wire<'a>>(&self) -> Result<T, FabricError> {
                T::parse(self.value)
            }
        }

        impl<'a> Wire<'a> for $name<'a> {
            fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
                let tag = from.get()?;
                let len = from.get::<u16>()?;
                Ok(Self { tag, value: from.take(usize::from(len))? })
            }

            fn write(&self, to: &mut Vec<u8>) {
                self.tag.write(to);
                (self.value.len() as u16).write(to);
                to.extend_from_slice(self.value);
            }
        }
    };
}

tlv! {
    /// `tlv8`, with a tag of one byte: caveats and certificate extensions.
    Tlv8, u8
}

tlv! {
    /// `tlv16`, with a tag of two bytes: all others.
    Tlv, u16
}

impl Tlv<'_> {
    /// Appends a TLV whose value `value` appends.
    ///
    /// # Panics
    /// If the value is longer than 65535 bytes; every typed TLV has a lower limit.
    pub fn append(to: &mut Vec<u8>, tag: u16, value: impl FnOnce(&mut Vec<u8>)) {
        tag.write(to);
        let len_at = to.len();
        0_u16.write(to);
        value(to);
        let len = u16::try_from(to.len() - len_at - 2).expect("a TLV's value has at most 65535 bytes");
        to[len_at..len_at + 2].copy_from_slice(&len.to_be_bytes());
    }
}

/// TLVs that fill the rest of a message, without a count. Each is checked to be whole; the reader skips unknown tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tlvs<'a>(&'a [u8]);

impl<'a> Tlvs<'a> {
    /// Encodes as no bytes.
    pub const EMPTY: Self = Self(&[]);

    /// Limit on the TLVs of one message.
    pub const MAX: usize = 256;

    /// The TLVs as they are on the wire.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there are no TLVs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Iterates over the TLVs in wire order.
    pub fn iter(&self) -> ListIter<'a, Tlv<'a>> {
        ListIter::Received(Reader::new(self.0))
    }

    /// The first TLV with `tag`.
    pub fn find(&self, tag: u16) -> Option<Tlv<'a>> {
        self.iter().find(|tlv| tlv.tag == tag)
    }
}

impl<'a> IntoIterator for Tlvs<'a> {
    type Item = Tlv<'a>;
    type IntoIter = ListIter<'a, Tlv<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> IntoIterator for &Tlvs<'a> {
    type Item = Tlv<'a>;
    type IntoIter = ListIter<'a, Tlv<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a> Wire<'a> for Tlvs<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let mut check = *from;
        let mut count = 0;
        while check.remaining() > 0 {
            check.get::<Tlv<'a>>()?;
            count += 1;
            if count > Self::MAX {
                return Err(FabricError::Limit("TLVs"));
            }
        }
        Ok(Self(from.rest()))
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    #[test]
    fn both_widths_are_laid_out_as_documented() {
        exact(&Tlv8::of(5, &[9]).unwrap(), "05 0001 09");
        exact(&Tlv::of(0x0102, &[9, 8]).unwrap(), "0102 0002 0908");
        assert_eq!(Tlv::of(1, &vec![0; 65536]), Err(FabricError::Limit("TLV")));
        assert_eq!(Tlvs::parse(&[0; 4 * 257]), Err(FabricError::Limit("TLVs")));
    }

    #[test]
    fn tlvs_are_whole_and_found_by_tag() {
        let bytes = hex("0101 0001 aa  7fff 0000  0101 0001 bb");
        let tlvs = Tlvs::parse(&bytes).unwrap();
        assert_eq!(tlvs.iter().map(|tlv| tlv.tag).collect::<Vec<_>>(), [0x0101, 0x7FFF, 0x0101]);
        assert_eq!(tlvs.find(0x0101).unwrap().value(), [0xAA]);
        assert_eq!(tlvs.find(0x0102), None);
        for len in 0..bytes.len() {
            assert_eq!(Tlvs::parse(&bytes[..len]).is_ok(), [0, 5, 9].contains(&len), "{len}");
        }
    }
}
