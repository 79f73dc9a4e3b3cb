//! Arithmetic in the groups of RFC 7919.

use berth_wire::nvme::auth::Group;
use crypto_bigint::{
    BoxedUint, Odd,
    modular::{BoxedMontyForm, BoxedMontyParams},
};
use zeroize::Zeroizing;

/// Bytes of a secret exponent: more than RFC 7919, 5.2 asks of any group.
pub(super) const EXPONENT_LEN: usize = 64;

/// A power in a group, up to tens of milliseconds of work; for a thread that may take them.
pub struct Exponentiation {
    pub(super) group: Group,
    /// What is raised: the peer's DH value, or the generator.
    pub(super) base: Option<Vec<u8>>,
    pub(super) exponent: Zeroizing<[u8; EXPONENT_LEN]>,
}

/// A DH value, or a shared secret; the most significant byte first. Wiped when it is dropped.
pub struct DhValue(Zeroizing<Vec<u8>>);

impl DhValue {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Exponentiation {
    /// Does the work, in a time that does not depend on the exponent. `None` where the peer's value is not between 1 and
    /// p - 1, both excluded (RFC 7919, 5.1).
    pub fn compute(&self) -> Option<DhValue> {
        let bits = self.group.len() as u32 * 8;
        let prime = BoxedUint::from_be_slice(&prime(self.group)?, bits).ok()?;
        let one = BoxedUint::one_with_precision(bits);
        let base = match &self.base {
            Some(value) => BoxedUint::from_be_slice(value, bits).ok()?,
            None => BoxedUint::from_be_slice(&[2], bits).ok()?,
        };
        if base <= one || base >= prime.wrapping_sub(&one) {
            return None;
        }
        let parameters = BoxedMontyParams::new_vartime(Odd::new(prime).into_option()?);
        let exponent_bits = EXPONENT_LEN as u32 * 8;
        let exponent = Zeroizing::new(BoxedUint::from_be_slice(&*self.exponent, exponent_bits).ok()?);
        let base = BoxedMontyForm::new(base, &parameters);
        let power = Zeroizing::new(base.pow_bounded_exp(&exponent, exponent_bits));
        let power = Zeroizing::new(power.retrieve());
        Some(DhValue(Zeroizing::new(power.to_be_bytes().into_vec())))
    }
}

/// The prime of a group of `b` bits, the most significant byte first; `None` where there is no group:
/// 2^b - 2^(b-64) + (floor(2^(b-130) * e) + x) * 2^64 - 1 (RFC 7919, appendix A).
fn prime(group: Group) -> Option<Vec<u8>> {
    let x = match group {
        Group::None => return None,
        Group::Ffdhe2048 => 560_316,
        Group::Ffdhe3072 => 2_625_351,
        Group::Ffdhe4096 => 5_736_041,
        Group::Ffdhe6144 => 15_705_020,
        Group::Ffdhe8192 => 10_965_728,
    };
    let (last, before) = E[..group.len() / 8 - 2].split_last()?;
    // The last summand, -1, makes the lowest word all ones and borrows one from the word above.
    let words = [u64::MAX].into_iter().chain(before.iter().copied()).chain([last.wrapping_add(x - 1), u64::MAX]);
    Some(words.flat_map(u64::to_be_bytes).collect())
}

/// floor(2^8062 * e), the most significant word first. Shorter ones are its beginning.
#[allow(clippy::unreadable_literal)] // the digits are compared, not read
#[rustfmt::skip]
const E: [u64; 126] = [
    0xADF85458A2BB4A9A, 0xAFDC5620273D3CF1, 0xD8B9C583CE2D3695, 0xA9E13641146433FB, 0xCC939DCE249B3EF9,
    0x7D2FE363630C75D8, 0xF681B202AEC4617A, 0xD3DF1ED5D5FD6561, 0x2433F51F5F066ED0, 0x856365553DED1AF3,
    0xB557135E7F57C935, 0x984F0C70E0E68B77, 0xE2A689DAF3EFE872, 0x1DF158A136ADE735, 0x30ACCA4F483A797A,
    0xBC0AB182B324FB61, 0xD108A94BB2C8E3FB, 0xB96ADAB760D7F468, 0x1D4F42A3DE394DF4, 0xAE56EDE76372BB19,
    0x0B07A7C8EE0A6D70, 0x9E02FCE1CDF7E2EC, 0xC03404CD28342F61, 0x9172FE9CE98583FF, 0x8E4F1232EEF28183,
    0xC3FE3B1B4C6FAD73, 0x3BB5FCBC2EC22005, 0xC58EF1837D1683B2, 0xC6F34A26C1B2EFFA, 0x886B4238611FCFDC,
    0xDE355B3B6519035B, 0xBC34F4DEF99C0238, 0x61B46FC9D6E6C907, 0x7AD91D2691F7F7EE, 0x598CB0FAC186D91C,
    0xAEFE130985139270, 0xB4130C93BC437944, 0xF4FD4452E2D74DD3, 0x64F2E21E71F54BFF, 0x5CAE82AB9C9DF69E,
    0xE86D2BC522363A0D, 0xABC521979B0DEADA, 0x1DBF9A42D5C4484E, 0x0ABCD06BFA53DDEF, 0x3C1B20EE3FD59D7C,
    0x25E41D2B669E1EF1, 0x6E6F52C3164DF4FB, 0x7930E9E4E58857B6, 0xAC7D5F42D69F6D18, 0x7763CF1D55034004,
    0x87F55BA57E31CC7A, 0x7135C886EFB4318A, 0xED6A1E012D9E6832, 0xA907600A918130C4, 0x6DC778F971AD0038,
    0x092999A333CB8B7A, 0x1A1DB93D7140003C, 0x2A4ECEA9F98D0ACC, 0x0A8291CDCEC97DCF, 0x8EC9B55A7F88A46B,
    0x4DB5A851F44182E1, 0xC68A007E5E0DD902, 0x0BFD64B645036C7A, 0x4E677D2C38532A3A, 0x23BA4442CAF53EA6,
    0x3BB454329B7624C8, 0x917BDD64B1C0FD4C, 0xB38E8C334C701C3A, 0xCDAD0657FCCFEC71, 0x9B1F5C3E4E46041F,
    0x388147FB4CFDB477, 0xA52471F7A9A96910, 0xB855322EDB6340D8, 0xA00EF092350511E3, 0x0ABEC1FFF9E3A26E,
    0x7FB29F8C183023C3, 0x587E38DA0077D9B4, 0x763E4E4B94B2BBC1, 0x94C6651E77CAF992, 0xEEAAC0232A281BF6,
    0xB3A739C122611682, 0x0AE8DB5847A67CBE, 0xF9C9091B462D538C, 0xD72B03746AE77F5E, 0x62292C311562A846,
    0x505DC82DB854338A, 0xE49F5235C95B9117, 0x8CCF2DD5CACEF403, 0xEC9D1810C6272B04, 0x5B3B71F9DC6B80D6,
    0x3FDD4A8E9ADB1E69, 0x62A69526D43161C1, 0xA41D570D7938DAD4, 0xA40E329CCFF46AAA, 0x36AD004CF600C838,
    0x1E425A31D951AE64, 0xFDB23FCEC9509D43, 0x687FEB69EDD1CC5E, 0x0B8CC3BDF64B10EF, 0x86B63142A3AB8829,
    0x555B2F747C932665, 0xCB2C0F1CC01BD702, 0x29388839D2AF05E4, 0x54504AC78B758282, 0x2846C0BA35C35F5C,
    0x59160CC046FD8251, 0x541FC68C9C86B022, 0xBB7099876A460E74, 0x51A8A93109703FEE, 0x1C217E6C3826E52C,
    0x51AA691E0E423CFC, 0x99E9E31650C1217B, 0x624816CDAD9A95F9, 0xD5B8019488D9C0A0, 0xA1FE3075A577E231,
    0x83F81D4A3F2FA457, 0x1EFC8CE0BA8A4FE8, 0xB6855DFE72B0A66E, 0xDED2FBABFBE58A30, 0xFAFABE1C5D71A87E,
    0x2F741EF8C1FE86FE, 0xA6BBFDE530677F0D, 0x97D11D49F7A8443D, 0x0822E506A9F4614E, 0x011E2A94838FF88C,
    0xD68C8BB7C51EEF6D,
];
