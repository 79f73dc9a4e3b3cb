//! Each instruction, alone in a kernel, against what Rust says of it: random operands and edges.
#![allow(clippy::float_cmp, clippy::precedence, reason = "bits are compared, and formulas stand as in the manual")]

mod common;

use common::run;
use proptest::prelude::*;

/// Where arithmetic goes wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    31,
    32,
    33,
    64,
    0x7F,
    0x80,
    0x7FFF,
    0x8000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
];

fn slot() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => any::<u64>(),
        2 => prop::sample::select(EDGES.to_vec()),
        1 => prop::sample::select(EDGES.to_vec()).prop_map(|x| !x),
        1 => 0_u64..70,
        2 => prop::sample::select(FLOATS.to_vec()).prop_map(|x| u64::from(x.to_bits())),
        2 => any::<f32>().prop_map(|x| u64::from(x.to_bits())),
        1 => prop::sample::select(FLOATS.to_vec()).prop_map(|x| f64::from(x).to_bits()),
    ]
}

const FLOATS: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-40,
    f32::MAX,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    2_147_483_648.0,
];

fn operands() -> impl Strategy<Value = Vec<[u64; 4]>> {
    prop::collection::vec([slot(), slot(), slot(), slot()], 1..64)
}

/// Runs an instruction of `types` and holds it to `expected`, a function of four slots.
macro_rules! same {
    ($operands:expr, $instruction:expr, [$($ty:expr),*] -> $result:expr, $expected:expr) => {{
        let types: &[&str] = &[$($ty),*];
        let registers: Vec<String> = (0..types.len()).map(|index| format!("%a{index}")).collect();
        let body = format!("{} %d, {};", $instruction, registers.join(", "));
        let expected: fn([u64; 4]) -> u64 = $expected;
        let results = run("", &body, types, $result, &$operands);
        for (operands, result) in $operands.iter().zip(results) {
            prop_assert_eq!(result, expected(*operands), "{} of {:x?}: {:x}", body, operands, result);
        }
    }};
}

fn f(slot: u64) -> f32 {
    f32::from_bits(slot as u32)
}

fn d(slot: u64) -> f64 {
    f64::from_bits(slot)
}

/// An atomic, its bits, and what it makes of the old value and its operand.
type Case = (&'static str, u32, fn(u64, u64) -> u64);

/// A result in `.f32`, with the only NaN that there is.
fn of(value: f32) -> u64 {
    u64::from(if value.is_nan() { 0x7FFF_FFFF } else { value.to_bits() })
}

/// The same in `.f64`.
fn of64(value: f64) -> u64 {
    if value.is_nan() { 0xFFF8_0000_0000_0000 } else { value.to_bits() }
}

fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integer_sums_and_products(v in operands()) {
        same!(v, "add.s32", [".s32", ".s32"] -> ".s32", |[a, b, ..]| (a as u32).wrapping_add(b as u32).into());
        same!(v, "add.sat.s32", [".s32", ".s32"] -> ".s32", |[a, b, ..]| (a as i32).saturating_add(b as i32) as u32 as u64);
        same!(v, "sub.sat.s32", [".s32", ".s32"] -> ".s32", |[a, b, ..]| (a as i32).saturating_sub(b as i32) as u32 as u64);
        same!(v, "add.s16", [".s16", ".s16"] -> ".s16", |[a, b, ..]| (a as u16).wrapping_add(b as u16).into());
        same!(v, "sub.u64", [".u64", ".u64"] -> ".u64", |[a, b, ..]| a.wrapping_sub(b));
        same!(v, "mul.lo.s32", [".s32", ".s32"] -> ".s32", |[a, b, ..]| (a as u32).wrapping_mul(b as u32).into());
        same!(v, "mul.hi.u32", [".u32", ".u32"] -> ".u32", |[a, b, ..]| u64::from(a as u32) * u64::from(b as u32) >> 32);
        same!(v, "mul.hi.s64", [".s64", ".s64"] -> ".s64",
            |[a, b, ..]| (i128::from(a as i64) * i128::from(b as i64) >> 64) as u64);
        same!(v, "mul.hi.u64", [".u64", ".u64"] -> ".u64", |[a, b, ..]| (u128::from(a) * u128::from(b) >> 64) as u64);
        same!(v, "mul.wide.s32", [".s32", ".s32"] -> ".s64", |[a, b, ..]| (i64::from(a as i32) * i64::from(b as i32)) as u64);
        same!(v, "mul.wide.u16", [".u16", ".u16"] -> ".u32", |[a, b, ..]| u64::from(a as u16) * u64::from(b as u16));
        same!(v, "mad.lo.s32", [".s32", ".s32", ".s32"] -> ".s32",
            |[a, b, c, _]| (a as u32).wrapping_mul(b as u32).wrapping_add(c as u32).into());
        same!(v, "mad.wide.s16", [".s16", ".s16", ".s32"] -> ".s32",
            |[a, b, c, _]| (i32::from(a as i16) * i32::from(b as i16)).wrapping_add(c as i32) as u32 as u64);
        same!(v, "mad.wide.u32", [".u32", ".u32", ".u64"] -> ".u64",
            |[a, b, c, _]| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c));
        same!(v, "sad.s32", [".s32", ".s32", ".u32"] -> ".s32",
            |[a, b, c, _]| (c as u32).wrapping_add((a as i32).abs_diff(b as i32)).into());
        same!(v, "mul24.lo.s32", [".s32", ".s32"] -> ".s32",
            |[a, b, ..]| (i64::from((a as i32) << 8 >> 8) * i64::from((b as i32) << 8 >> 8)) as u32 as u64);
        same!(v, "dp4a.s32.u32", [".s32", ".u32", ".s32"] -> ".s32", |[a, b, c, _]| {
            let (a, b) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
            (0..4).fold(c as i32, |sum, i| sum.wrapping_add(i32::from(a[i] as i8) * i32::from(b[i]))) as u32 as u64
        });
    }

    #[test]
    fn integer_quotients_and_order(v in operands()) {
        same!(v, "div.u32", [".u32", ".u32"] -> ".u32", |[a, b, ..]| (a as u32).checked_div(b as u32).unwrap_or(!0).into());
        same!(v, "div.s32", [".s32", ".s32"] -> ".s32",
            |[a, b, ..]| if b as i32 == 0 { 0xFFFF_FFFF } else { (a as i32).wrapping_div(b as i32) as u32 as u64 });
        same!(v, "rem.s64", [".s64", ".s64"] -> ".s64",
            |[a, b, ..]| if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 });
        same!(v, "rem.u16", [".u16", ".u16"] -> ".u16", |[a, b, ..]| (a as u16).checked_rem(b as u16).unwrap_or(a as u16).into());
        same!(v, "min.s32", [".s32", ".s32"] -> ".s32", |[a, b, ..]| (a as i32).min(b as i32) as u32 as u64);
        same!(v, "max.u64", [".u64", ".u64"] -> ".u64", |[a, b, ..]| a.max(b));
        same!(v, "abs.s32", [".s32"] -> ".s32", |[a, ..]| (a as i32).wrapping_abs() as u32 as u64);
        same!(v, "neg.s64", [".s64"] -> ".s64", |[a, ..]| a.wrapping_neg());
        same!(v, "setp.lt.s32", [".s32", ".s32"] -> ".pred", |[a, b, ..]| ((a as i32) < b as i32).into());
        same!(v, "setp.ge.u64", [".u64", ".u64"] -> ".pred", |[a, b, ..]| (a >= b).into());
        same!(v, "setp.hi.u32", [".u32", ".u32"] -> ".pred", |[a, b, ..]| (a as u32 > b as u32).into());
        same!(v, "setp.ne.b16", [".b16", ".b16"] -> ".pred", |[a, b, ..]| (a as u16 != b as u16).into());
        same!(v, "setp.eq.and.s32", [".s32", ".s32", ".pred"] -> ".pred",
            |[a, b, c, _]| (a as u32 == b as u32 && c != 0).into());
        same!(v, "set.gt.u32.s32", [".s32", ".s32"] -> ".u32",
            |[a, b, ..]| if a as i32 > b as i32 { 0xFFFF_FFFF } else { 0 });
        same!(v, "set.lt.xor.f32.s32", [".s32", ".s32", ".pred"] -> ".f32",
            |[a, b, c, _]| of(f32::from(u8::from(((a as i32) < b as i32) != (c != 0)))));
        same!(v, "selp.b32", [".b32", ".b32", ".pred"] -> ".b32", |[a, b, c, _]| if c != 0 { a as u32 } else { b as u32 }.into());
        same!(v, "slct.u64.s32", [".u64", ".u64", ".s32"] -> ".u64", |[a, b, c, _]| if c >> 31 & 1 == 0 { a } else { b });
    }

    #[test]
    fn bits(v in operands()) {
        same!(v, "and.b32", [".b32", ".b32"] -> ".b32", |[a, b, ..]| (a & b) as u32 as u64);
        same!(v, "xor.b64", [".b64", ".b64"] -> ".b64", |[a, b, ..]| a ^ b);
        same!(v, "or.pred", [".pred", ".pred"] -> ".pred", |[a, b, ..]| (a != 0 || b != 0).into());
        same!(v, "not.b16", [".b16"] -> ".b16", |[a, ..]| u64::from(!(a as u16)));
        same!(v, "not.pred", [".pred"] -> ".pred", |[a, ..]| (a == 0).into());
        same!(v, "cnot.b32", [".b32"] -> ".b32", |[a, ..]| (a as u32 == 0).into());
        same!(v, "shl.b32", [".b32", ".b32"] -> ".b32", |[a, b, ..]| (a as u32).checked_shl(b as u32).unwrap_or(0).into());
        same!(v, "shl.b64", [".b64", ".b32"] -> ".b64", |[a, b, ..]| a.checked_shl(b as u32).unwrap_or(0));
        same!(v, "shr.u64", [".u64", ".b32"] -> ".u64", |[a, b, ..]| a.checked_shr(b as u32).unwrap_or(0));
        same!(v, "shr.s32", [".s32", ".b32"] -> ".s32", |[a, b, ..]| (a as i32 >> (b as u32).min(31)) as u32 as u64);
        same!(v, "shr.s16", [".s16", ".b32"] -> ".s16", |[a, b, ..]| (a as i16 >> (b as u32).min(15)) as u16 as u64);
        same!(v, "popc.b64", [".b64"] -> ".u32", |[a, ..]| a.count_ones().into());
        same!(v, "clz.b32", [".b32"] -> ".u32", |[a, ..]| (a as u32).leading_zeros().into());
        same!(v, "brev.b32", [".b32"] -> ".b32", |[a, ..]| (a as u32).reverse_bits().into());
        same!(v, "bfind.u32", [".u32"] -> ".u32", |[a, ..]| (31_u32.wrapping_sub((a as u32).leading_zeros())).into());
        same!(v, "bfind.s64", [".s64"] -> ".u32",
            |[a, ..]| 63_u32.wrapping_sub((a ^ (a as i64 >> 63) as u64).leading_zeros()).into());
        same!(v, "shf.l.wrap.b32", [".b32", ".b32", ".b32"] -> ".b32",
            |[a, b, c, _]| ((b as u32 as u64) << 32 | a as u32 as u64) << (c & 31) >> 32);
        same!(v, "shf.r.clamp.b32", [".b32", ".b32", ".b32"] -> ".b32",
            |[a, b, c, _]| ((b << 32 | a as u32 as u64) >> (c as u32).min(32)) & 0xFFFF_FFFF);
        // Bit by bit, as the manual says it.
        same!(v, "bfe.s32", [".s32", ".b32", ".b32"] -> ".s32", |[a, b, c, _]| {
            let (position, len) = (b & 0xFF, c & 0xFF);
            let bit = |at: u64| a >> at & 1;
            let sign = if len == 0 { 0 } else { bit((position + len - 1).min(31)) };
            (0..32).fold(0, |all, i| all | (if i < len && position + i <= 31 { bit(position + i) } else { sign }) << i)
        });
        same!(v, "bfe.u64", [".u64", ".b32", ".b32"] -> ".u64", |[a, b, c, _]| {
            let (position, len) = (b & 0xFF, c & 0xFF);
            (0..64).fold(0, |all, i| all | (if i < len && position + i <= 63 { a >> (position + i) & 1 } else { 0 }) << i)
        });
        same!(v, "bfe.s64", [".s64", ".b32", ".b32"] -> ".s64", |[a, b, c, _]| {
            let (position, len) = (b & 0xFF, c & 0xFF);
            let sign = if len == 0 { 0 } else { a >> (position + len - 1).min(63) & 1 };
            (0..64).fold(0, |all, i| all | (if i < len && position + i <= 63 { a >> (position + i) & 1 } else { sign }) << i)
        });
        same!(v, "bfi.b32", [".b32", ".b32", ".b32", ".b32"] -> ".b32", |[a, b, c, d]| {
            let (position, len) = (c & 0xFF, d & 0xFF);
            (0..32).fold(0, |all, i| {
                let inside = i >= position && i - position < len;
                all | (if inside { a >> (i - position) } else { b >> i } & 1) << i
            })
        });
        same!(v, "prmt.b32", [".b32", ".b32", ".b32"] -> ".b32", |[a, b, c, _]| {
            let bytes = (u64::from(b as u32) << 32 | u64::from(a as u32)).to_le_bytes();
            let byte = |at: u64| {
                let choice = c >> (4 * at) & 0xF;
                let byte = bytes[(choice & 7) as usize];
                if choice & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
            };
            (0..4).fold(0, |all, at| all | u64::from(byte(at)) << (8 * at))
        });
    }

    #[test]
    fn every_table_of_lop3(v in operands(), table in any::<u8>()) {
        let results = run("", &format!("lop3.b32 %d, %a0, %a1, %a2, {table};"), &[".b32"; 3], ".b32", &v);
        for ([a, b, c, _], result) in v.iter().zip(results) {
            let bit = |i: u32| {
                let index = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
                u64::from(table) >> index & 1
            };
            prop_assert_eq!(result, (0..32).fold(0, |all, i| all | bit(i) << i));
        }
    }

    #[test]
    fn floats(v in operands()) {
        same!(v, "add.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| of(f(a) + f(b)));
        same!(v, "sub.ftz.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| of(flush(flush(f(a)) - flush(f(b)))));
        same!(v, "mul.rn.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| of(f(a) * f(b)));
        same!(v, "mul.sat.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| {
            let product = f(a) * f(b);
            of(if product > 0.0 { product.min(1.0) } else { 0.0 })
        });
        same!(v, "fma.rn.f32", [".f32", ".f32", ".f32"] -> ".f32", |[a, b, c, _]| of(f(a).mul_add(f(b), f(c))));
        same!(v, "div.rn.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| of(f(a) / f(b)));
        same!(v, "sqrt.rn.f32", [".f32"] -> ".f32", |[a, ..]| of(f(a).sqrt()));
        same!(v, "rcp.rn.f32", [".f32"] -> ".f32", |[a, ..]| of(1.0 / f(a)));
        same!(v, "abs.f32", [".f32"] -> ".f32", |[a, ..]| a & 0x7FFF_FFFF);
        same!(v, "neg.f64", [".f64"] -> ".f64", |[a, ..]| a ^ 1 << 63);
        same!(v, "add.f64", [".f64", ".f64"] -> ".f64", |[a, b, ..]| of64(d(a) + d(b)));
        same!(v, "fma.rn.f64", [".f64", ".f64", ".f64"] -> ".f64", |[a, b, c, _]| of64(d(a).mul_add(d(b), d(c))));
        same!(v, "div.rn.f64", [".f64", ".f64"] -> ".f64", |[a, b, ..]| of64(d(a) / d(b)));
        same!(v, "min.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| {
            let (a, b) = (f(a), f(b));
            of(if a == b { if a.is_sign_negative() { a } else { b } } else { a.min(b) })
        });
        same!(v, "max.f64", [".f64", ".f64"] -> ".f64", |[a, b, ..]| {
            if d(b).is_nan() || d(a) > d(b) || (d(a) == d(b) && a >> 63 == 0) { of64(d(a)) } else { of64(d(b)) }
        });
        same!(v, "copysign.f32", [".f32", ".f32"] -> ".f32", |[a, b, ..]| f(b).copysign(f(a)).to_bits().into());
        same!(v, "testp.normal.f32", [".f32"] -> ".pred", |[a, ..]| f(a).is_normal().into());
        same!(v, "testp.notanumber.f64", [".f64"] -> ".pred", |[a, ..]| d(a).is_nan().into());
        same!(v, "setp.lt.f32", [".f32", ".f32"] -> ".pred", |[a, b, ..]| (f(a) < f(b)).into());
        same!(v, "setp.neu.f32", [".f32", ".f32"] -> ".pred", |[a, b, ..]| (f(a) != f(b)).into());
        same!(v, "setp.ne.f64", [".f64", ".f64"] -> ".pred",
            |[a, b, ..]| (!d(a).is_nan() && !d(b).is_nan() && d(a) != d(b)).into());
        same!(v, "setp.geu.f64", [".f64", ".f64"] -> ".pred", |[a, b, ..]| (d(a).is_nan() || d(b).is_nan() || d(a) >= d(b)).into());
        same!(v, "slct.ftz.u32.f32", [".u32", ".u32", ".f32"] -> ".u32",
            |[a, b, c, _]| u64::from(if flush(f(c)) >= 0.0 { a as u32 } else { b as u32 }));
        same!(v, "slct.f32.f32", [".f32", ".f32", ".f32"] -> ".f32",
            |[a, b, c, _]| u64::from(if f(c) >= 0.0 { a as u32 } else { b as u32 }));
    }

    /// A result rounded in a direction is the nearest one or its neighbour, on the right side of the exact result.
    #[test]
    fn rounding_in_a_direction(v in operands()) {
        for (instruction, exact) in [
            ("mul", (|[a, b, _, _]| f64::from(f(a)) * f64::from(f(b))) as fn([u64; 4]) -> f64),
            ("cvt.f32.f64", |[a, ..]| d(a)),
        ] {
            for (mode, side) in [("rm", -1), ("rp", 1), ("rz", 0)] {
                let (body, types): (_, &[&str]) = if instruction == "mul" {
                    (format!("mul.{mode}.f32 %d, %a0, %a1;"), &[".f32", ".f32"])
                } else {
                    (format!("cvt.{mode}.f32.f64 %d, %a0;"), &[".f64"])
                };
                for (operands, result) in v.iter().zip(run("", &body, types, ".f32", &v)) {
                    let (exact, result) = (exact(*operands), f(result));
                    if exact.is_nan() {
                        prop_assert!(result.is_nan());
                        continue;
                    }
                    let nearest = exact as f32;
                    let wide = f64::from(result);
                    let right = match side {
                        -1 => wide <= exact && f64::from(result.next_up()) > exact || result == nearest && wide == exact,
                        1 => wide >= exact && f64::from(result.next_down()) < exact || result == nearest && wide == exact,
                        _ => wide.abs() <= exact.abs()
                            && (wide == exact || f64::from(result.abs().next_up()) > exact.abs()),
                    };
                    prop_assert!(right, "{} of {:x?}: {} for {}", body, operands, result, exact);
                }
            }
        }
    }

    #[test]
    fn conversions(v in operands()) {
        same!(v, "cvt.s64.s32", [".s32"] -> ".s64", |[a, ..]| a as i32 as i64 as u64);
        same!(v, "cvt.u64.u32", [".u32"] -> ".u64", |[a, ..]| a & 0xFFFF_FFFF);
        same!(v, "cvt.u32.u64", [".u64"] -> ".u32", |[a, ..]| a & 0xFFFF_FFFF);
        same!(v, "cvt.s32.s8", [".s32"] -> ".s32", |[a, ..]| a as i8 as i32 as u32 as u64);
        same!(v, "cvt.u16.u8", [".u16"] -> ".u16", |[a, ..]| a & 0xFF);
        same!(v, "cvt.sat.u8.s32", [".s32"] -> ".u32", |[a, ..]| (a as i32).clamp(0, 255) as u64);
        same!(v, "cvt.sat.s16.u32", [".u32"] -> ".s32", |[a, ..]| u64::from((a as u32).min(32767)));
        same!(v, "cvt.rn.f32.s32", [".s32"] -> ".f32", |[a, ..]| of(a as i32 as f32));
        same!(v, "cvt.rn.f32.u64", [".u64"] -> ".f32", |[a, ..]| of(a as f32));
        same!(v, "cvt.rn.f64.s64", [".s64"] -> ".f64", |[a, ..]| (a as i64 as f64).to_bits());
        same!(v, "cvt.rz.f32.s64", [".s64"] -> ".f32", |[a, ..]| {
            let exact = a as i64;
            let nearest = exact as f32;
            of(if (nearest as i128).abs() <= i128::from(exact).abs() { nearest }
                else if exact > 0 { nearest.next_down() } else { nearest.next_up() })
        });
        same!(v, "cvt.rn.f32.f64", [".f64"] -> ".f32", |[a, ..]| of(d(a) as f32));
        same!(v, "cvt.f64.f32", [".f32"] -> ".f64", |[a, ..]| of64(f64::from(f(a))));
        same!(v, "cvt.rzi.s32.f32", [".f32"] -> ".s32", |[a, ..]| f(a) as i32 as u32 as u64);
        same!(v, "cvt.rni.s32.f32", [".f32"] -> ".s32", |[a, ..]| f(a).round_ties_even() as i32 as u32 as u64);
        same!(v, "cvt.rmi.u32.f32", [".f32"] -> ".u32", |[a, ..]| u64::from(f(a).floor() as u32));
        same!(v, "cvt.rzi.s32.f64", [".f64"] -> ".s32",
            |[a, ..]| if d(a).is_nan() { 0x8000_0000 } else { d(a) as i32 as u32 as u64 });
        same!(v, "cvt.rpi.u64.f32", [".f32"] -> ".u64", |[a, ..]| if f(a).is_nan() { 1 << 63 } else { f(a).ceil() as u64 });
        same!(v, "cvt.rpi.f32.f32", [".f32"] -> ".f32", |[a, ..]| of(f(a).ceil()));
        same!(v, "cvt.sat.f32.f32", [".f32"] -> ".f32", |[a, ..]| of(if f(a) > 0.0 { f(a).min(1.0) } else { 0.0 }));
    }

    #[test]
    fn approximations_are_within_an_ulp(v in operands()) {
        for (instruction, exact) in [
            ("sin.approx.f32", f64::sin as fn(f64) -> f64),
            ("cos.approx.f32", f64::cos),
            ("ex2.approx.f32", f64::exp2),
            ("rsqrt.approx.f32", |a| 1.0 / a.sqrt()),
            ("rcp.approx.f32", |a| 1.0 / a),
            ("tanh.approx.f32", f64::tanh),
        ] {
            let results = run("", &format!("{instruction} %d, %a0;"), &[".f32"], ".f32", &v);
            for ([a, ..], result) in v.iter().zip(results) {
                let (nearest, result) = (exact(f64::from(f(*a))) as f32, f(result));
                let near = result == nearest || result == nearest.next_up() || result == nearest.next_down();
                prop_assert!(near || nearest.is_nan() && result.is_nan(), "{}: {} {}", instruction, nearest, result);
            }
        }
    }

    /// 128 bits from two halves, as compilers write it.
    #[test]
    fn carries(v in operands()) {
        let body = "add.cc.u64 %low, %a0, %a2;\naddc.u64 %d, %a1, %a3;";
        let sums = run(".reg .b64 %low;", body, &[".u64"; 4], ".u64", &v);
        let body = "sub.cc.u32 %low, %a0, %a2;\nsubc.u32 %d, %a1, %a3;";
        let differences = run(".reg .b32 %low;", body, &[".u32"; 4], ".u32", &v);
        // The high word of a product of 64 bits and one of 32, added to another: as sines reduce their arguments.
        let body = "mad.lo.cc.u32 %low, %a0, %a2, %a3;\nmadc.hi.u32 %high, %a0, %a2, 0;\nmad.lo.cc.u32 %low, %a1, %a2, %high;\n\
                    madc.hi.u32 %d, %a1, %a2, 0;";
        let products = run(".reg .b32 %low, %high;", body, &[".u32"; 4], ".u32", &v);
        for ([a, b, c, d], product) in v.iter().zip(products) {
            let wide = u128::from(u64::from(*b as u32) << 32 | u64::from(*a as u32)) * u128::from(*c as u32);
            prop_assert_eq!(product, (wide + u128::from(*d as u32) >> 64) as u64);
        }
        // Read by an addition, the carry of a difference is that there was no borrow.
        let no_borrow = run(".reg .b32 %low;", "sub.cc.u32 %low, %a0, %a1;\naddc.u32 %d, 0, 0;", &[".u32"; 2], ".u32", &v);
        for ([a, b, ..], no_borrow) in v.iter().zip(no_borrow) {
            prop_assert_eq!(no_borrow, u64::from(*a as u32 >= *b as u32));
        }
        for (([a, b, c, d], sum), difference) in v.iter().zip(sums).zip(differences) {
            let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
            prop_assert_eq!(sum, (wide(*b, *a).wrapping_add(wide(*d, *c)) >> 64) as u64);
            let wide = |high: u64, low: u64| high << 32 | low & 0xFFFF_FFFF;
            prop_assert_eq!(difference, wide(*b, *a).wrapping_sub(wide(*d, *c)) >> 32);
        }
    }

    #[test]
    fn atomics_return_the_old_and_keep_the_new(v in operands()) {
        let types = [".b64", ".b64"];
        let cases: [Case; 9] = [
            ("atom.global.add.u32", 32, |old, a| u64::from((old as u32).wrapping_add(a as u32))),
            ("atom.global.sys.add.u64", 64, u64::wrapping_add),
            ("atom.acquire.gpu.global.min.s32", 32, |old, a| (old as i32).min(a as i32) as u32 as u64),
            ("atom.global.max.u64", 64, u64::max),
            ("atom.global.exch.b32", 32, |_, a| a & 0xFFFF_FFFF),
            ("atom.global.inc.u32", 32, |old, a| if old as u32 >= a as u32 { 0 } else { u64::from(old as u32 + 1) }),
            ("atom.global.dec.u32", 32, |old, a| {
                let (old, a) = (old as u32, a as u32);
                u64::from(if old == 0 || old > a { a } else { old - 1 })
            }),
            ("atom.global.and.b64", 64, |old, a| old & a),
            ("atom.global.add.f64", 64, |old, a| of64(d(old) + d(a))),
        ];
        for (instruction, bits, expected) in cases {
            let register = format!("%x{bits}");
            let narrow = if bits == 32 { "cvt.u32.u64 %x32, %a1;" } else { "mov.b64 %x64, %a1;" };
            let declare = format!(".reg .b{bits} {register}, %old{bits};");
            for after in [false, true] {
                let body = format!("{narrow}\n{instruction} %old{bits}, [%in], {register};\n{}", match (after, bits) {
                    (true, 32) => "ld.global.u32 %d, [%in];",
                    (true, _) => "ld.global.u64 %d, [%in];",
                    (false, 32) => "cvt.u64.u32 %d, %old32;",
                    _ => "mov.b64 %d, %old64;",
                });
                for ([a, b, ..], result) in v.iter().zip(run(&declare, &body, &types, ".b64", &v)) {
                    let old = if bits == 32 { a & 0xFFFF_FFFF } else { *a };
                    let expected = if after { expected(*a, *b) } else { old };
                    let both_nan = instruction.ends_with("f64") && d(result).is_nan() && d(expected).is_nan();
                    prop_assert!(result == expected || both_nan, "{instruction}: {result:x}, not {expected:x}");
                }
            }
        }
    }
}
