//! Typed values: views over the payload's own bytes (section "Type System", encoding rules).

use zerocopy::{
    FromBytes, IntoBytes,
    little_endian::{F32, F64, I32},
};

use super::{Bits, TypeId};

/// One argument or result. Arrays are views of unaligned little-endian elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// One unsigned byte.
    UInt8(u8),
    /// Four bytes; holds the bits of an unsigned argument too.
    Int32(i32),
    /// Eight bytes; holds the bits of an unsigned argument too.
    Int64(i64),
    /// IEEE 754 binary32.
    Float32(f32),
    /// IEEE 754 binary64.
    Float64(f64),
    /// The bytes of the payload.
    ArrayUInt8(&'a [u8]),
    /// Little-endian, at any alignment.
    ArrayInt32(&'a [I32]),
    /// Little-endian, at any alignment.
    ArrayFloat32(&'a [F32]),
    /// Little-endian, at any alignment.
    ArrayFloat64(&'a [F64]),
    /// Least significant bit first in each byte.
    BitPacked(Bits<'a>),
}

impl<'a> Value<'a> {
    /// Reads a value that fills `bytes`: as many elements as fit, or every bit. `None` if the length does not suit the
    /// type.
    pub fn read(type_id: TypeId, bytes: &'a [u8]) -> Option<Self> {
        Some(match type_id {
            TypeId::UInt8 => Self::UInt8(u8::from_le_bytes(bytes.try_into().ok()?)),
            TypeId::Int32 => Self::Int32(i32::from_le_bytes(bytes.try_into().ok()?)),
            TypeId::Int64 => Self::Int64(i64::from_le_bytes(bytes.try_into().ok()?)),
            TypeId::Float32 => Self::Float32(f32::from_le_bytes(bytes.try_into().ok()?)),
            TypeId::Float64 => Self::Float64(f64::from_le_bytes(bytes.try_into().ok()?)),
            TypeId::ArrayUInt8 => Self::ArrayUInt8(bytes),
            TypeId::ArrayInt32 => Self::ArrayInt32(<[I32]>::ref_from_bytes(bytes).ok()?),
            TypeId::ArrayFloat32 => Self::ArrayFloat32(<[F32]>::ref_from_bytes(bytes).ok()?),
            TypeId::ArrayFloat64 => Self::ArrayFloat64(<[F64]>::ref_from_bytes(bytes).ok()?),
            TypeId::BitPacked => Self::BitPacked(Bits::new(bytes, bytes.len() * 8)?),
        })
    }

    /// Writes the value to the front of `bytes` and returns its length; `None` if it does not fit.
    pub fn write(&self, bytes: &mut [u8]) -> Option<usize> {
        let mut put = |value: &[u8]| {
            bytes.get_mut(..value.len())?.copy_from_slice(value);
            Some(value.len())
        };
        match self {
            Self::UInt8(value) => put(&[*value]),
            Self::Int32(value) => put(&value.to_le_bytes()),
            Self::Int64(value) => put(&value.to_le_bytes()),
            Self::Float32(value) => put(&value.to_le_bytes()),
            Self::Float64(value) => put(&value.to_le_bytes()),
            Self::ArrayUInt8(values) => put(values),
            Self::ArrayInt32(values) => put(values.as_bytes()),
            Self::ArrayFloat32(values) => put(values.as_bytes()),
            Self::ArrayFloat64(values) => put(values.as_bytes()),
            Self::BitPacked(bits) => put(bits.as_bytes()),
        }
    }

    /// The type that the value is encoded as.
    pub fn type_id(&self) -> TypeId {
        match self {
            Self::UInt8(_) => TypeId::UInt8,
            Self::Int32(_) => TypeId::Int32,
            Self::Int64(_) => TypeId::Int64,
            Self::Float32(_) => TypeId::Float32,
            Self::Float64(_) => TypeId::Float64,
            Self::ArrayUInt8(_) => TypeId::ArrayUInt8,
            Self::ArrayInt32(_) => TypeId::ArrayInt32,
            Self::ArrayFloat32(_) => TypeId::ArrayFloat32,
            Self::ArrayFloat64(_) => TypeId::ArrayFloat64,
            Self::BitPacked(_) => TypeId::BitPacked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ten_types_have_their_encoding() {
        let cases: [(Value<'_>, &[u8]); 10] = [
            (Value::UInt8(3), &[3]),
            (Value::Int32(-2), &[0xFE, 0xFF, 0xFF, 0xFF]),
            (Value::Int64(-2), &[0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
            (Value::Float32(1.0), &[0, 0, 0x80, 0x3F]),
            (Value::Float64(1.0), &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F]),
            (Value::ArrayUInt8(&[1, 2]), &[1, 2]),
            (Value::ArrayInt32(&[I32::new(1), I32::new(-1)]), &[1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]),
            (Value::ArrayFloat32(&[F32::new(-2.0)]), &[0, 0, 0, 0xC0]),
            (Value::ArrayFloat64(&[F64::new(-2.0)]), &[0, 0, 0, 0, 0, 0, 0, 0xC0]),
            (Value::BitPacked(Bits::new(&[0x81], 8).unwrap()), &[0x81]),
        ];
        for ((value, bytes), type_id) in cases.into_iter().zip(TypeId::ALL) {
            let mut written = [0; 8];
            let len = value.write(&mut written).unwrap();
            assert_eq!(&written[..len], bytes, "{type_id:?}");
            assert_eq!(value.type_id(), type_id);
            assert_eq!(Value::read(type_id, bytes), Some(value));
            assert_eq!(value.write(&mut written[..len - 1]), None);
        }
    }

    #[test]
    fn a_value_fills_its_bytes() {
        let bytes = [0; 9];
        for type_id in TypeId::ALL {
            let any_length = matches!(type_id, TypeId::ArrayUInt8 | TypeId::BitPacked);
            assert_eq!(Value::read(type_id, &bytes).is_some(), any_length, "{type_id:?}");
        }
    }
}
