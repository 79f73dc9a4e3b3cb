//! The text of a secret: `DHHC-1:hh:BASE64:` (Base, "DH-HMAC-CHAP Security Requirements", secret representation).

use super::Hash;

const PREFIX: &str = "DHHC-1:";
const CRC_LEN: usize = 4;
/// Bytes of the longest key.
const KEY_MAX: usize = 64;
/// Bytes of the text of the longest: prefix, hash and colon, Base64 of key and CRC, colon.
pub const SECRET_TEXT_MAX: usize = PREFIX.len() + 3 + (KEY_MAX + CRC_LEN).div_ceil(3) * 4 + 1;

/// A secret, as its text says it. Who owns the bytes wipes them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'b> {
    /// What the key is transformed with before it is used; `None` is not at all.
    pub transform: Option<Hash>,
    /// 32, 48 or 64 bytes.
    pub key: &'b [u8],
}

impl<'b> Secret<'b> {
    /// Reads the text of a secret, whose key is put into `room`; `None` where it is none, or its CRC is wrong.
    pub fn parse(text: &str, room: &'b mut [u8; KEY_MAX + CRC_LEN]) -> Option<Self> {
        let (transform, encoded) = text.strip_prefix(PREFIX)?.strip_suffix(':')?.split_once(':')?;
        let transform = match transform {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return None,
        };
        let (key, crc) = decode(encoded.as_bytes(), room)?.split_last_chunk::<CRC_LEN>()?;
        let sound = is_key_len(key.len()) && crc32fast::hash(key) == u32::from_le_bytes(*crc);
        sound.then_some(Self { transform, key })
    }

    /// Writes the secret's text into `room`; `None` where the key has another length than keys may have.
    pub fn write<'t>(&self, room: &'t mut [u8; SECRET_TEXT_MAX]) -> Option<&'t str> {
        if !is_key_len(self.key.len()) {
            return None;
        }
        let (prefix, rest) = room.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX.as_bytes());
        let (transform, rest) = rest.split_at_mut(3);
        transform.copy_from_slice(&[b'0', b'0' + self.transform.map_or(0, |hash| hash as u8), b':']);
        let crc = crc32fast::hash(self.key).to_le_bytes();
        let len = (self.key.len() + CRC_LEN).div_ceil(3) * 4;
        encode(self.key.iter().chain(&crc).copied(), &mut rest[..len]);
        rest[len] = b':';
        str::from_utf8(&room[..=PREFIX.len() + 3 + len]).ok()
    }
}

/// Tells no key.
impl std::fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").field("transform", &self.transform).field("key_len", &self.key.len()).finish()
    }
}

fn is_key_len(len: usize) -> bool {
    matches!(len, 32 | 48 | 64)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648, 4), into `to`, which is as long as that is.
fn encode(mut bytes: impl Iterator<Item = u8>, to: &mut [u8]) {
    for four in to.chunks_exact_mut(4) {
        let three = [bytes.next(), bytes.next(), bytes.next()];
        let word = three.iter().fold(0, |word, byte| word << 8 | usize::from(byte.unwrap_or(0)));
        let letters = [0, 1, 2, 3].map(|i| ALPHABET[word >> (18 - 6 * i) & 63]);
        four.copy_from_slice(&letters);
        three.iter().zip(&mut four[1..]).filter(|(byte, _)| byte.is_none()).for_each(|(_, letter)| *letter = b'=');
    }
}

/// What canonical Base64 with padding says; `None` where `text` is none, or too long for `room`.
fn decode<'b>(text: &[u8], room: &'b mut [u8]) -> Option<&'b [u8]> {
    let (groups, []) = text.as_chunks::<4>() else { return None };
    let padding = text.iter().rev().take_while(|&&letter| letter == b'=').count();
    let len = (groups.len() * 3).checked_sub(padding).filter(|_| padding <= 2)?;
    let room = room.get_mut(..len)?;
    for (i, (four, three)) in groups.iter().zip(room.chunks_mut(3)).enumerate() {
        let padding = if i + 1 == groups.len() { padding } else { 0 };
        let mut word = 0;
        for letter in &four[..4 - padding] {
            word = word << 6 | ALPHABET.iter().position(|known| known == letter)?;
        }
        word <<= 6 * padding;
        let bytes = [word >> 16, word >> 8, word].map(|byte| byte as u8);
        if bytes[3 - padding..].iter().any(|&byte| byte != 0) {
            return None;
        }
        three.copy_from_slice(&bytes[..three.len()]);
    }
    Some(room)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes 0 to 31, by Python: `base64.b64encode(key + zlib.crc32(key).to_bytes(4, "little"))`.
    const COUNTING: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn a_secret_by_another_program() {
        let key: Vec<u8> = (0..32).collect();
        let secret = Secret { transform: Some(Hash::Sha256), key: &key };
        assert_eq!(Secret::parse(COUNTING, &mut [0; 68]), Some(secret));
        assert_eq!(secret.write(&mut [0; SECRET_TEXT_MAX]), Some(COUNTING));
        assert_eq!(format!("{secret:?}"), "Secret { transform: Some(Sha256), key_len: 32 }");
    }

    #[test]
    fn what_is_no_secret() {
        let changed = [
            COUNTING.replace(":01:", ":04:"),
            COUNTING.replace(":01:", ":1:"),
            COUNTING.replace("DHHC-1", "DHHC-2"),
            COUNTING.replace("AAEC", "AAED"),
            COUNTING.replacen('A', "=", 1),
            COUNTING.trim_end_matches(':').to_owned(),
            format!("{COUNTING}:"),
            String::new(),
            "DHHC-1:00::".to_owned(),
            "DHHC-1:00:AAAAAA==:".to_owned(),
        ];
        for text in changed {
            assert_eq!(Secret::parse(&text, &mut [0; 68]), None, "{text}");
        }
        let odd = Secret { transform: None, key: &[0; 40] };
        assert_eq!(odd.write(&mut [0; SECRET_TEXT_MAX]), None);
    }

    #[test]
    fn base64_is_canonical() {
        let decoded = |text: &str| decode(text.as_bytes(), &mut [0; 3]).map(<[u8]>::to_vec);
        for (text, bytes) in [("", Some(&b""[..])), ("Zg==", Some(b"f")), ("Zm8=", Some(b"fo")), ("Zm9v", Some(b"foo"))]
        {
            assert_eq!(decoded(text).as_deref(), bytes, "{text}");
        }
        for text in ["Zh==", "Zm9=", "Z===", "====", "Zg", "Zg=v", "Zm9vZg==", "Zm-v", "Zm\u{e9}"] {
            assert_eq!(decoded(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn secrets_round_trip(transform in 0..4_u8, key: [u8; 64], len in prop::sample::select(vec![32_usize, 48, 64])) {
            let secret = Secret { transform: Hash::of(transform), key: &key[..len] };
            let mut room = [0; SECRET_TEXT_MAX];
            let text = secret.write(&mut room).unwrap();
            let mut key = [0; 68];
            prop_assert_eq!(Secret::parse(text, &mut key), Some(secret));
        }

        #[test]
        fn one_changed_letter_is_noticed(key: [u8; 32], at in 10..58_usize, letter: u8) {
            let mut room = [0; SECRET_TEXT_MAX];
            let mut text = Secret { transform: None, key: &key }.write(&mut room).unwrap().as_bytes().to_vec();
            let same = text[at] == letter;
            text[at] = letter;
            let parsed = str::from_utf8(&text).ok().and_then(|text| Secret::parse(text, &mut [0; 68]).map(|_| ()));
            prop_assert_eq!(parsed.is_some(), same);
        }
    }
}
