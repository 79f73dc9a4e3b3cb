//! Handler schemas (sections "Schema and Payload Interpretation" and "Type System"; host API, "Structs").
//!
//! A variable-size argument (the first of `qec_decode`) has `size_bytes` = `num_elements` = 0, which no fixed type can
//! have. It takes the bytes that the other arguments leave. A schema has at most one among its arguments and one among
//! its results.

use std::fmt;

use super::{Bits, Value};

/// Limit on the arguments of a schema.
pub const MAX_ARGS: usize = 8;
/// Limit on the results of a schema.
pub const MAX_RESULTS: usize = 4;
/// Bytes of one type descriptor in the host API.
const DESC_LEN: usize = 12;
/// Bytes of a schema in the host API: two counts, two reserved bytes, then every descriptor, used or not.
pub const SCHEMA_LEN: usize = 4 + DESC_LEN * (MAX_ARGS + MAX_RESULTS);

/// Payload types of the host API. Unsigned 32-bit values are [`TypeId::Int32`], unsigned 64-bit ones [`TypeId::Int64`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TypeId {
    /// One byte, unsigned.
    UInt8 = 0x10,
    /// Four bytes, signed or unsigned.
    Int32 = 0x11,
    /// Eight bytes, signed or unsigned.
    Int64 = 0x12,
    /// IEEE 754 binary32.
    Float32 = 0x13,
    /// IEEE 754 binary64.
    Float64 = 0x14,
    /// Bytes; two elements per byte if the descriptor's size says so (4-bit soft readout).
    ArrayUInt8 = 0x20,
    /// Four-byte integers.
    ArrayInt32 = 0x21,
    /// binary32 numbers.
    ArrayFloat32 = 0x22,
    /// binary64 numbers.
    ArrayFloat64 = 0x23,
    /// Bits, least significant first in each byte.
    BitPacked = 0x30,
}

impl TypeId {
    /// Every type, by rising id.
    pub const ALL: [Self; 10] = [
        Self::UInt8,
        Self::Int32,
        Self::Int64,
        Self::Float32,
        Self::Float64,
        Self::ArrayUInt8,
        Self::ArrayInt32,
        Self::ArrayFloat32,
        Self::ArrayFloat64,
        Self::BitPacked,
    ];

    /// Decodes a type id; `None` if it is not defined.
    pub fn from_u8(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&known| known as u8 == id)
    }

    /// Whether a value is exactly one element.
    pub const fn is_scalar(self) -> bool {
        (self as u8) < Self::ArrayUInt8 as u8
    }

    /// Bytes of one element; of eight elements for [`TypeId::BitPacked`].
    pub const fn element_size(self) -> usize {
        match self {
            Self::UInt8 | Self::ArrayUInt8 | Self::BitPacked => 1,
            Self::Int32 | Self::Float32 | Self::ArrayInt32 | Self::ArrayFloat32 => 4,
            Self::Int64 | Self::Float64 | Self::ArrayFloat64 => 8,
        }
    }
}

/// Type and size of one argument or result; its fields always agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeDesc {
    type_id: TypeId,
    size_bytes: u32,
    num_elements: u32,
}

impl TypeDesc {
    /// Checks a descriptor as the host API writes it. `num_elements` is 1 for scalars, elements for arrays, bits for
    /// [`TypeId::BitPacked`]; `size_bytes` must follow from it. Both zero means variable size.
    pub fn new(type_id: TypeId, size_bytes: u32, num_elements: u32) -> Result<Self, SchemaError> {
        let (size, n) = (u64::from(size_bytes), u64::from(num_elements));
        let consistent = if type_id.is_scalar() {
            n == 1 && size == type_id.element_size() as u64
        } else {
            match type_id {
                TypeId::BitPacked => size == n.div_ceil(8),
                TypeId::ArrayUInt8 => size == n || size == n.div_ceil(2),
                _ => size == n * type_id.element_size() as u64,
            }
        };
        let desc = Self { type_id, size_bytes, num_elements };
        if consistent { Ok(desc) } else { Err(SchemaError::Size(desc)) }
    }

    /// One element of a scalar type, or an array (or bit string) of one.
    pub const fn one(type_id: TypeId) -> Self {
        Self { type_id, size_bytes: type_id.element_size() as u32, num_elements: 1 }
    }

    /// A [`TypeId::BitPacked`] value of `n` bits.
    pub const fn bits(n: u32) -> Self {
        Self { type_id: TypeId::BitPacked, size_bytes: n.div_ceil(8), num_elements: n }
    }

    /// An array or bit string of any length, none included.
    ///
    /// # Panics
    /// If the type is a scalar.
    pub const fn variable(type_id: TypeId) -> Self {
        assert!(!type_id.is_scalar(), "a scalar has a fixed size");
        Self { type_id, size_bytes: 0, num_elements: 0 }
    }

    /// The payload type.
    pub const fn type_id(&self) -> TypeId {
        self.type_id
    }

    /// Size of the value in bytes; 0 if it varies.
    pub const fn size_bytes(&self) -> u32 {
        self.size_bytes
    }

    /// Elements of the value, bits for [`TypeId::BitPacked`]; 0 if it varies.
    pub const fn num_elements(&self) -> u32 {
        self.num_elements
    }

    /// Whether the value takes the bytes that the others leave.
    pub const fn is_variable(&self) -> bool {
        self.size_bytes == 0
    }
}

/// Why a schema is invalid, or a payload does not match it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaError {
    /// Not a defined type id.
    UnknownType(u8),
    /// `size_bytes` and `num_elements` contradict each other, or the type.
    Size(TypeDesc),
    /// More than [`MAX_ARGS`] arguments.
    TooManyArgs(usize),
    /// More than [`MAX_RESULTS`] results.
    TooManyResults(usize),
    /// More than one variable-size argument, or result.
    SeveralVariable,
    /// The sizes add up to more than the 32 bits of a length.
    TooLarge,
    /// The payload's length, which the schema does not allow.
    Length(usize),
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownType(id) => write!(f, "no payload type has the id {id:#04x}"),
            Self::Size(TypeDesc { type_id, size_bytes, num_elements }) => {
                write!(f, "{type_id:?} of {num_elements} elements does not have {size_bytes} bytes")
            }
            Self::TooManyArgs(n) => write!(f, "{n} arguments; a schema holds {MAX_ARGS}"),
            Self::TooManyResults(n) => write!(f, "{n} results; a schema holds {MAX_RESULTS}"),
            Self::SeveralVariable => f.write_str("several values of variable size; at most one can take what is left"),
            Self::TooLarge => f.write_str("the sizes add up to 4 GiB or more"),
            Self::Length(len) => write!(f, "{len} bytes are not of the schema's length"),
        }
    }
}

impl std::error::Error for SchemaError {}

/// Arguments and results of a function. Checked when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerSchema {
    args: Values<MAX_ARGS>,
    results: Values<MAX_RESULTS>,
}

/// Up to `N` values in a row, with what a length check needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Values<const N: usize> {
    descs: [TypeDesc; N],
    count: usize,
    lengths: Lengths,
}

/// The payload lengths that a schema allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Total of the fixed-size values in bytes.
    fixed: u32,
    /// Element size of the variable value in bytes; 0 if there is none.
    variable: u32,
}

impl Lengths {
    /// Total of the fixed-size values, and element size of the variable one, 0 if there is none; in bytes.
    pub const fn parts(self) -> (u32, u32) {
        (self.fixed, self.variable)
    }

    /// Whether a payload of `len` bytes fits the schema.
    #[inline]
    pub fn accept(self, len: usize) -> bool {
        let fixed = self.fixed as usize;
        match self.variable {
            0 => len == fixed,
            1 => len >= fixed,
            size => len >= fixed && (len - fixed).is_multiple_of(size as usize),
        }
    }
}

impl<const N: usize> Values<N> {
    fn new(list: &[TypeDesc]) -> Result<Self, SchemaError> {
        let mut descs = [TypeDesc::one(TypeId::UInt8); N];
        descs[..list.len()].copy_from_slice(list);
        let fixed: u64 = list.iter().map(|desc| u64::from(desc.size_bytes)).sum();
        let mut variable = list.iter().filter(|desc| desc.is_variable());
        let values = Self {
            descs,
            count: list.len(),
            lengths: Lengths {
                fixed: u32::try_from(fixed).map_err(|_| SchemaError::TooLarge)?,
                variable: variable.next().map_or(0, |desc| desc.type_id.element_size() as u32),
            },
        };
        if variable.next().is_some() { Err(SchemaError::SeveralVariable) } else { Ok(values) }
    }

    fn list(&self) -> &[TypeDesc] {
        &self.descs[..self.count]
    }

    fn read<'a>(&'a self, payload: &'a [u8]) -> Result<impl Iterator<Item = Value<'a>>, SchemaError> {
        if !self.lengths.accept(payload.len()) {
            return Err(SchemaError::Length(payload.len()));
        }
        let (left, mut rest) = (payload.len() - self.lengths.fixed as usize, payload);
        Ok(self.list().iter().map_while(move |desc| {
            let size = if desc.is_variable() { left } else { desc.size_bytes as usize };
            let (bytes, behind) = rest.split_at_checked(size)?;
            rest = behind;
            match desc.type_id {
                TypeId::BitPacked if !desc.is_variable() => {
                    Bits::new(bytes, desc.num_elements as usize).map(Value::BitPacked)
                }
                type_id => Value::read(type_id, bytes),
            }
        }))
    }
}

impl HandlerSchema {
    /// Checks the counts, sizes and the rule of one variable value on each side.
    pub fn new(args: &[TypeDesc], results: &[TypeDesc]) -> Result<Self, SchemaError> {
        if args.len() > MAX_ARGS {
            return Err(SchemaError::TooManyArgs(args.len()));
        }
        if results.len() > MAX_RESULTS {
            return Err(SchemaError::TooManyResults(results.len()));
        }
        Ok(Self { args: Values::new(args)?, results: Values::new(results)? })
    }

    /// Descriptors of the arguments, in order.
    pub fn args(&self) -> &[TypeDesc] {
        self.args.list()
    }

    /// Descriptors of the results, in order.
    pub fn results(&self) -> &[TypeDesc] {
        self.results.list()
    }

    /// Lengths that the arguments may have. The check is one comparison and reads no values.
    #[inline]
    pub fn arg_lengths(&self) -> Lengths {
        self.args.lengths
    }

    /// Lengths that the results may have.
    #[inline]
    pub fn result_lengths(&self) -> Lengths {
        self.results.lengths
    }

    /// Iterates over the arguments in `payload`, whose length must fit the schema.
    pub fn read_args<'a>(&'a self, payload: &'a [u8]) -> Result<impl Iterator<Item = Value<'a>>, SchemaError> {
        self.args.read(payload)
    }

    /// Iterates over the results in `payload`, whose length must fit the schema.
    pub fn read_results<'a>(&'a self, payload: &'a [u8]) -> Result<impl Iterator<Item = Value<'a>>, SchemaError> {
        self.results.read(payload)
    }

    /// The schema laid out as the host API's `handler_schema`; unused descriptors are zero.
    pub fn to_bytes(&self) -> [u8; SCHEMA_LEN] {
        let mut bytes = [0; SCHEMA_LEN];
        (bytes[0], bytes[1]) = (self.args.count as u8, self.results.count as u8);
        let (args, results) = bytes[4..].split_at_mut(DESC_LEN * MAX_ARGS);
        for (to, list) in [(args, self.args()), (results, self.results())] {
            for (to, desc) in to.chunks_exact_mut(DESC_LEN).zip(list) {
                to[0] = desc.type_id as u8;
                to[4..8].copy_from_slice(&desc.size_bytes.to_le_bytes());
                to[8..].copy_from_slice(&desc.num_elements.to_le_bytes());
            }
        }
        bytes
    }

    /// Reads and checks a `handler_schema` of the host API. Reserved bytes and unused descriptors are ignored.
    pub fn from_bytes(bytes: &[u8; SCHEMA_LEN]) -> Result<Self, SchemaError> {
        let (args, results) = bytes[4..].split_at(DESC_LEN * MAX_ARGS);
        let read = |from: &[u8], count: u8| -> Result<Vec<TypeDesc>, SchemaError> {
            let word =
                |desc: &[u8], at: usize| u32::from_le_bytes([desc[at], desc[at + 1], desc[at + 2], desc[at + 3]]);
            from.chunks_exact(DESC_LEN)
                .take(count.into())
                .map(|desc| {
                    let type_id = TypeId::from_u8(desc[0]).ok_or(SchemaError::UnknownType(desc[0]))?;
                    TypeDesc::new(type_id, word(desc, 4), word(desc, 8))
                })
                .collect()
        };
        match (usize::from(bytes[0]), usize::from(bytes[1])) {
            (n, _) if n > MAX_ARGS => Err(SchemaError::TooManyArgs(n)),
            (_, n) if n > MAX_RESULTS => Err(SchemaError::TooManyResults(n)),
            _ => Self::new(&read(args, bytes[0])?, &read(results, bytes[1])?),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn qec_decode() -> HandlerSchema {
        HandlerSchema::new(&[TypeDesc::variable(TypeId::BitPacked), TypeDesc::one(TypeId::Int32)], &[TypeDesc::bits(1)])
            .unwrap()
    }

    #[test]
    fn sizes_must_follow_from_the_elements() {
        for (type_id, size, n) in [
            (TypeId::UInt8, 1, 1),
            (TypeId::Float64, 8, 1),
            (TypeId::ArrayInt32, 12, 3),
            (TypeId::ArrayUInt8, 7, 7),
            (TypeId::ArrayUInt8, 4, 7), // 4-bit soft readout
            (TypeId::BitPacked, 16, 128),
            (TypeId::BitPacked, 2, 10),
            (TypeId::BitPacked, 0, 0),
        ] {
            assert!(TypeDesc::new(type_id, size, n).is_ok(), "{type_id:?} {size} {n}");
        }
        for (type_id, size, n) in [
            (TypeId::UInt8, 0, 0),
            (TypeId::Int32, 4, 0),
            (TypeId::Int64, 4, 1),
            (TypeId::ArrayFloat32, 0, 1),
            (TypeId::ArrayFloat64, 0x1_0000_0000_u64.wrapping_sub(8) as u32, u32::MAX),
            (TypeId::BitPacked, 1, 9),
            (TypeId::BitPacked, 2, 8),
        ] {
            assert!(TypeDesc::new(type_id, size, n).is_err(), "{type_id:?} {size} {n}");
        }
    }

    #[test]
    fn counts_variables_and_sums_are_bounded() {
        let byte = TypeDesc::one(TypeId::UInt8);
        let any = TypeDesc::variable(TypeId::ArrayUInt8);
        let huge = TypeDesc::new(TypeId::ArrayUInt8, u32::MAX, u32::MAX).unwrap();
        assert_eq!(HandlerSchema::new(&[byte; 9], &[]), Err(SchemaError::TooManyArgs(9)));
        assert_eq!(HandlerSchema::new(&[], &[byte; 5]), Err(SchemaError::TooManyResults(5)));
        assert_eq!(HandlerSchema::new(&[any, byte, any], &[]), Err(SchemaError::SeveralVariable));
        assert_eq!(HandlerSchema::new(&[huge, byte], &[]), Err(SchemaError::TooLarge));
        assert!(HandlerSchema::new(&[byte; 8], &[byte; 4]).is_ok());
    }

    #[test]
    fn the_documents_examples_are_read() {
        let process = HandlerSchema::new(&[TypeDesc::one(TypeId::Int32), TypeDesc::one(TypeId::Float32)], &[]).unwrap();
        let payload = [5, 0, 0, 0, 0, 0, 0x20, 0x40];
        let values: Vec<_> = process.read_args(&payload).unwrap().collect();
        assert_eq!(values, [Value::Int32(5), Value::Float32(2.5)]);
        assert!(!process.arg_lengths().accept(7) && !process.arg_lengths().accept(9));

        let payload = [0b1000_0001, 0b10, 10, 0, 0, 0];
        let schema = qec_decode();
        let values: Vec<_> = schema.read_args(&payload).unwrap().collect();
        assert_eq!(values, [Value::BitPacked(Bits::new(&payload, 16).unwrap()), Value::Int32(10)]);
        assert!(schema.read_args(&payload[..3]).is_err());
        assert!(schema.arg_lengths().accept(4), "no bits, then their number");
    }

    #[test]
    fn a_variable_array_is_a_whole_number_of_elements() {
        let schema =
            HandlerSchema::new(&[TypeDesc::one(TypeId::UInt8), TypeDesc::variable(TypeId::ArrayFloat64)], &[]).unwrap();
        let accepted: Vec<_> = (0..20).filter(|&len| schema.arg_lengths().accept(len)).collect();
        assert_eq!(accepted, [1, 9, 17]);
    }

    #[test]
    fn the_host_apis_layout() {
        let bytes = qec_decode().to_bytes();
        assert_eq!(bytes.len(), 148);
        assert_eq!(
            bytes[..28],
            [2, 1, 0, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0]
        );
        assert_eq!(bytes[100..112], [0x30, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        let mut nine = bytes;
        nine[0] = 9;
        assert_eq!(HandlerSchema::from_bytes(&nine), Err(SchemaError::TooManyArgs(9)));
        let mut uint32 = bytes;
        uint32[16] = 0x15;
        assert_eq!(HandlerSchema::from_bytes(&uint32), Err(SchemaError::UnknownType(0x15)));
    }

    fn desc() -> impl Strategy<Value = TypeDesc> {
        (0..10_usize, 1..40_u32).prop_map(|(type_id, n)| match TypeId::ALL[type_id] {
            TypeId::BitPacked => TypeDesc::bits(n),
            id if id.is_scalar() => TypeDesc::one(id),
            id => TypeDesc::new(id, n * id.element_size() as u32, n).unwrap(),
        })
    }

    proptest! {
        #[test]
        fn schemas_round_trip_and_values_partition_the_payload(
            mut args in prop::collection::vec(desc(), 0..=8),
            results in prop::collection::vec(desc(), 0..=4),
            variable: Option<prop::sample::Index>,
            extra in 0..50_usize,
        ) {
            if let (Some(at), false) = (variable, args.is_empty()) {
                let at = at.index(args.len());
                args[at] = TypeDesc::variable(TypeId::ArrayUInt8);
            }
            let schema = HandlerSchema::new(&args, &results).unwrap();
            prop_assert_eq!(HandlerSchema::from_bytes(&schema.to_bytes()), Ok(schema));
            let fixed: usize = args.iter().map(|desc| desc.size_bytes() as usize).sum();
            let is_variable = args.iter().any(TypeDesc::is_variable);
            let payload: Vec<u8> = (0..fixed + extra).map(|i| i as u8).collect();
            prop_assert_eq!(schema.arg_lengths().accept(payload.len()), extra == 0 || is_variable);
            let values = schema.read_args(&payload);
            if let Ok(values) = values {
                let mut again = vec![0; payload.len()];
                let mut at = 0;
                for value in values {
                    at += value.write(&mut again[at..]).unwrap();
                }
                prop_assert_eq!(at, payload.len());
                prop_assert_eq!(&again, &payload);
            }
        }

        #[test]
        fn random_schemas_and_payloads_never_panic(
            bytes in prop::array::uniform32(any::<u8>()),
            payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let mut schema = [0; SCHEMA_LEN];
            for (to, from) in schema.iter_mut().zip(bytes.iter().cycle()) {
                *to = *from;
            }
            if let Ok(schema) = HandlerSchema::from_bytes(&schema) {
                let _ = schema.read_args(&payload).map(Iterator::count);
            }
        }
    }
}
