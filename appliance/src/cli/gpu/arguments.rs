//! Arguments of kernels on a command line.

use std::{fmt::Debug, fs, str::FromStr};

use anyhow::{Context as _, bail, ensure};
use berth_ptx::{Class, Parameter, Type};
use serde_json::{Value, json};

use super::super::output;
use crate::config::parse_bytes;

/// Most bytes of a buffer.
const BUFFER_MAX: u64 = 1 << 30;

/// X, or X,Y or X,Y,Z; what is left out is 1.
pub(in crate::cli) fn shape(text: &str) -> Result<[u32; 3], String> {
    let parts: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    match parts.as_deref() {
        Ok([x]) => Ok([*x, 1, 1]),
        Ok([x, y]) => Ok([*x, *y, 1]),
        Ok([x, y, z]) => Ok([*x, *y, *z]),
        _ => Err(format!("{text:?} is not a shape; write one such as 64 or 16,16 or 8,8,4")),
    }
}

/// Something about the argument of a number, counted from 0: `2=f32`.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Numbered<T> {
    pub(in crate::cli) index: usize,
    pub(in crate::cli) value: T,
}

impl<T: FromStr<Err: ToString>> FromStr for Numbered<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} does not begin with the number of an argument and \"=\"");
        let (index, value) = text.split_once('=').ok_or_else(wrong)?;
        let index = index.parse().map_err(|_| wrong())?;
        Ok(Self { index, value: value.parse().map_err(|e: T::Err| e.to_string())? })
    }
}

/// The type of a buffer's elements: `u8` to `u64`, `s8` to `s64`, `f32` or `f64`.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Elements(Type);

impl FromStr for Elements {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ty = Type::parse(&format!(".{text}")).filter(|ty| !matches!(ty.class, Class::Bits | Class::Pred));
        ty.map(Self).ok_or_else(|| format!("{text:?} is not a type; there are u8 to u64, s8 to s64, f32 and f64"))
    }
}

impl Elements {
    /// The values in a buffer; what is left over at its end is not shown.
    pub(in crate::cli) fn values(self, bytes: &[u8]) -> Value {
        let value = |bytes: &[u8]| {
            let mut slot = [0; 8];
            slot[..bytes.len()].copy_from_slice(bytes);
            let (bits, unused) = (u64::from_le_bytes(slot), 64 - 8 * bytes.len());
            match (self.0.class, self.0.bits) {
                (Class::Float, 32) => float(f32::from_bits(bits as u32)),
                (Class::Float, _) => float(f64::from_bits(bits)),
                (Class::Signed, _) => json!((bits << unused) as i64 >> unused),
                _ => json!(bits),
            }
        };
        bytes.chunks_exact(self.0.bytes() as usize).map(value).collect()
    }
}

/// A number as its own type prints it; JSON has no infinities and no NaN, which are texts.
fn float(number: impl Debug + Into<f64> + Copy) -> Value {
    let text = format!("{number:?}");
    if number.into().is_finite() { text.parse().map_or(Value::Null, Value::Number) } else { text.into() }
}

/// What a kernel gets.
pub(in crate::cli) enum Argument {
    /// The bytes of the parameter itself.
    Value(Vec<u8>),
    /// What the pointer leads to.
    Buffer(Vec<u8>),
}

impl Argument {
    /// Reads an argument for a parameter.
    pub(in crate::cli) fn read(text: &str, parameter: &Parameter) -> anyhow::Result<Self> {
        if !parameter.array && !text.starts_with('@') && !text.contains(':') {
            return Ok(Self::Value(number(text, parameter.ty)?));
        }
        let bytes = buffer(text)?;
        if parameter.array {
            let (wanted, given) = (parameter.bytes, bytes.len());
            ensure!(wanted == given, "{} takes {wanted} bytes, {given} are given", parameter.name);
            return Ok(Self::Value(bytes));
        }
        ensure!(parameter.bytes == 8, "{} is of {}, which no buffer's address fits", parameter.name, parameter.ty);
        Ok(Self::Buffer(bytes))
    }
}

/// The bytes of `@FILE`, `zero:SIZE`, `hex:BYTES` or `TYPE:VALUES`.
fn buffer(text: &str) -> anyhow::Result<Vec<u8>> {
    if let Some(path) = text.strip_prefix('@') {
        let len = fs::metadata(path).with_context(|| path.to_owned())?.len();
        ensure!(len <= BUFFER_MAX, "{path} has {len} bytes; a buffer has at most {BUFFER_MAX}");
        return fs::read(path).with_context(|| path.to_owned());
    }
    let Some((kind, values)) = text.split_once(':') else {
        bail!("{text:?} is no buffer; write @FILE, zero:SIZE, hex:BYTES or TYPE:VALUES");
    };
    match kind {
        "zero" => {
            let len = parse_bytes(values).map_err(anyhow::Error::msg)?;
            ensure!(len <= BUFFER_MAX, "{len} bytes; a buffer has at most {BUFFER_MAX}");
            Ok(vec![0; usize::try_from(len)?])
        }
        "hex" => output::unhex(values).map_err(anyhow::Error::msg),
        _ => {
            let Elements(ty) = kind.parse().map_err(anyhow::Error::msg)?;
            let mut bytes = Vec::new();
            values.split(',').try_for_each(|value| elements(value, ty, &mut bytes))?;
            Ok(bytes)
        }
    }
}

/// `5`, `5*100` or `0..100`
fn elements(text: &str, ty: Type, into: &mut Vec<u8>) -> anyhow::Result<()> {
    let room = |into: &[u8], count: u64| -> anyhow::Result<()> {
        let len = count.saturating_mul(ty.bytes()).saturating_add(into.len() as u64);
        ensure!(len <= BUFFER_MAX, "{text:?}: a buffer has at most {BUFFER_MAX} bytes");
        Ok(())
    };
    if let Some((first, end)) = text.split_once("..") {
        let bound = |bound: &str| bound.parse::<i64>().with_context(|| format!("{text:?} is no range of integers"));
        let (first, end) = (bound(first)?, bound(end)?);
        room(into, end.abs_diff(first))?;
        return (first..end).try_for_each(|value| number(&value.to_string(), ty).map(|bytes| into.extend(bytes)));
    }
    let (value, count) = match text.split_once('*') {
        Some((value, count)) => (value, count.parse().with_context(|| format!("{count:?} is no number of elements"))?),
        None => (text, 1),
    };
    room(into, count)?;
    into.extend(number(value, ty)?.repeat(usize::try_from(count)?));
    Ok(())
}

/// The bytes of a number of this type; of `.b` types, of an integer.
fn number(text: &str, ty: Type) -> anyhow::Result<Vec<u8>> {
    let wrong = || format!("{text:?} is no number of {}", &ty.to_string()[1..]);
    if ty.class == Class::Float {
        return Ok(if ty.bits == 32 {
            text.parse::<f32>().with_context(wrong)?.to_le_bytes().to_vec()
        } else {
            text.parse::<f64>().with_context(wrong)?.to_le_bytes().to_vec()
        });
    }
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => i128::from(u64::from_str_radix(digits, 16).with_context(wrong)?),
        None => i128::from(digits.parse::<u64>().with_context(wrong)?),
    };
    let value = if negative { -value } else { value };
    // PTX says .u32 for int, too: either sign fits.
    ensure!(value >= -(1 << (ty.bits - 1)) && value < 1 << ty.bits, "{}", wrong());
    Ok(value.to_le_bytes()[..ty.bytes() as usize].to_vec())
}
