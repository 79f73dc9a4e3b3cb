//! Logic, shifts, and the bits of integers (PTX ISA 9.7.1, 9.7.8).

use super::{Binary, Quaternary, Ternary, Unary};
use crate::types::Type;

fn mask(bits: u8) -> u64 {
    u64::MAX >> (64 - bits)
}

/// `not`, `cnot`, `popc`, `clz`, `brev`, `bfind`, `bfind.shiftamt`
pub(crate) fn unary(opcode: &str, ty: Type) -> Option<Unary> {
    Some(match (opcode, ty.bits) {
        ("not", 1) => |a| a ^ 1,
        ("not", 16) => |a| !a & 0xFFFF,
        ("not", 32) => |a| !a & 0xFFFF_FFFF,
        ("not", 64) => |a| !a,
        ("cnot", _) => |a| u64::from(a == 0),
        ("popc", 32 | 64) => |a| u64::from(a.count_ones()),
        ("clz", 32) => |a| u64::from((a as u32).leading_zeros()),
        ("clz", 64) => |a| u64::from(a.leading_zeros()),
        ("brev", 32) => |a| u64::from((a as u32).reverse_bits()),
        ("brev", 64) => u64::reverse_bits,
        ("bfind", 32) if ty.is_signed() => |a| highest(a as i32 as i64 as u64, true),
        ("bfind", 64) if ty.is_signed() => |a| highest(a, true),
        ("bfind", 32 | 64) => |a| highest(a, false),
        ("bfind.shiftamt", 32) if ty.is_signed() => |a| shift_amount(highest(a as i32 as i64 as u64, true), 31),
        ("bfind.shiftamt", 64) if ty.is_signed() => |a| shift_amount(highest(a, true), 63),
        ("bfind.shiftamt", 32) => |a| shift_amount(highest(a, false), 31),
        ("bfind.shiftamt", 64) => |a| shift_amount(highest(a, false), 63),
        _ => return None,
    })
}

const NOT_FOUND: u64 = 0xFFFF_FFFF;

/// The index of the highest bit that is set, or of a negative number, clear.
fn highest(a: u64, signed: bool) -> u64 {
    let a = if signed && (a as i64) < 0 { !a } else { a };
    a.checked_ilog2().map_or(NOT_FOUND, u64::from)
}

fn shift_amount(index: u64, top: u64) -> u64 {
    if index == NOT_FOUND { index } else { top - index }
}

/// `and`, `or`, `xor`, `shl`; `shr` is arithmetic's.
pub(crate) fn binary(opcode: &str, ty: Type) -> Option<Binary> {
    Some(match (opcode, ty.bits) {
        ("and", _) => |a, b| a & b,
        ("or", _) => |a, b| a | b,
        ("xor", _) => |a, b| a ^ b,
        ("shl", 16) => |a, b| if b > 15 { 0 } else { a << b & 0xFFFF },
        ("shl", 32) => |a, b| if b > 31 { 0 } else { a << b & 0xFFFF_FFFF },
        ("shl", 64) => |a, b| if b > 63 { 0 } else { a << b },
        _ => return None,
    })
}

fn extract(a: u64, position: u64, len: u64, ty: Type) -> u64 {
    let (position, len, top) = (position & 0xFF, len & 0xFF, u64::from(ty.bits) - 1);
    let field =
        if position > 63 || len == 0 { 0 } else { a >> position & u64::MAX >> 64_u64.saturating_sub(len).min(63) };
    if !ty.is_signed() || len == 0 {
        return field;
    }
    // Above the field stands its sign, or the number's where the field goes beyond it.
    let sign = a >> top.min(position + len - 1) & 1;
    let below = if position > top { 0 } else { len.min(top + 1 - position) };
    let ones = if below > 63 { 0 } else { u64::MAX << below };
    (field | if sign == 1 { ones } else { 0 }) & mask(ty.bits)
}

/// `bfe`, of 32 or 64 bits.
pub(crate) fn bfe(ty: Type) -> Ternary {
    match (ty.is_signed(), ty.bits) {
        (false, 32) => |a, b, c| extract(a, b, c, Type::U32),
        (true, 32) => |a, b, c| extract(a, b, c, Type::S32),
        (false, _) => |a, b, c| extract(a, b, c, Type::B64),
        (true, _) => |a, b, c| extract(a, b, c, Type { bits: 64, ..Type::S32 }),
    }
}

fn insert(a: u64, b: u64, position: u64, len: u64, bits: u8) -> u64 {
    let (position, len) = (position & 0xFF, len & 0xFF);
    if position > 63 || len == 0 {
        return b;
    }
    let field = (u64::MAX >> 64_u64.saturating_sub(len).min(63)) << position & mask(bits);
    b & !field | a << position & field
}

/// `bfi`, of 32 or 64 bits.
pub(crate) fn bfi(bits: u8) -> Quaternary {
    if bits == 32 { |a, b, c, d| insert(a, b, c, d, 32) } else { |a, b, c, d| insert(a, b, c, d, 64) }
}

/// `lop3.b32`: the table's bit for each of the three operands' bits.
pub(crate) fn lop3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let one = |index: u64| {
        let of = |operand: u64, bit: u64| if index & bit == 0 { !operand } else { operand };
        if table >> index & 1 == 0 { 0 } else { of(a, 4) & of(b, 2) & of(c, 1) }
    };
    (0..8).fold(0, |all, index| all | one(index)) & 0xFFFF_FFFF
}

/// `prmt.b32` without a mode: each nibble of `c` chooses a byte of `b:a`, or its sign.
fn permute(a: u64, b: u64, c: u64) -> u64 {
    (0..4).fold(0, |all, at| {
        let choice = c >> (4 * at);
        let byte = (b << 32 | a) >> (8 * (choice & 7)) & 0xFF;
        let byte = if choice & 8 == 0 { byte } else { (byte >> 7) * 0xFF };
        all | byte << (8 * at)
    })
}

/// What [`prmt`] takes besides none.
pub(crate) const PRMT_MODES: [&str; 6] = [".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"];

/// `prmt.b32` with this mode.
pub(crate) fn prmt(mode: &str) -> Option<Ternary> {
    // The selectors of each mode by the low bits of `c` (PTX ISA, table of prmt).
    Some(match mode {
        "" => permute,
        ".f4e" => |a, b, c| permute(a, b, [0x3210, 0x4321, 0x5432, 0x6543][c as usize & 3]),
        ".b4e" => |a, b, c| permute(a, b, [0x5670, 0x6701, 0x7012, 0x0123][c as usize & 3]),
        ".rc8" => |a, b, c| permute(a, b, [0x0000, 0x1111, 0x2222, 0x3333][c as usize & 3]),
        ".ecl" => |a, b, c| permute(a, b, [0x3210, 0x3211, 0x3222, 0x3333][c as usize & 3]),
        ".ecr" => |a, b, c| permute(a, b, [0x0000, 0x1110, 0x2210, 0x3210][c as usize & 3]),
        ".rc16" => |a, b, c| permute(a, b, [0x1010, 0x3232, 0x1010, 0x3232][c as usize & 3]),
        _ => return None,
    })
}

fn funnel<const LEFT: bool, const WRAP: bool>(a: u64, b: u64, c: u64) -> u64 {
    let by = if WRAP { c & 31 } else { c.min(32) };
    let both = b << 32 | a;
    (if LEFT { both << by >> 32 } else { both >> by }) & 0xFFFF_FFFF
}

/// `shf`
pub(crate) fn shf(left: bool, wrap: bool) -> Ternary {
    match (left, wrap) {
        (false, false) => funnel::<false, false>,
        (false, true) => funnel::<false, true>,
        (true, false) => funnel::<true, false>,
        (true, true) => funnel::<true, true>,
    }
}
