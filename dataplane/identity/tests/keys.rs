//! Keys, ids, and their texts.

use berth_identity::{Identity, KeyError, NodeId, PublicKey};

/// RFC 8032, section 7.1, test 1.
const SEED: &str = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
const PUBLIC: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

/// The same key as `openssl pkcs8` of version 3 writes it.
const PEM: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
";

#[test]
fn both_forms_of_a_key_file_hold_the_same_key() {
    for text in [SEED.to_string(), format!("{}\n", SEED.to_uppercase()), PEM.to_string()] {
        let identity = Identity::from_text(&text).unwrap();
        assert_eq!(identity.public_key().to_string(), PUBLIC);
    }
    let identity = Identity::from_text(SEED).unwrap();
    let again = Identity::from_text(&identity.to_pem()).unwrap();
    assert_eq!(again.public_key(), identity.public_key());
}

#[test]
fn an_id_is_the_front_of_the_keys_digest() {
    // printf PUBLIC | xxd -r -p | sha256sum
    let id = "21fe31dfa154a261626bf854046fd227";
    let key: PublicKey = PUBLIC.parse().unwrap();
    assert_eq!(key.id().to_string(), id);
    assert_eq!(id.parse::<NodeId>().unwrap(), key.id());
    assert_eq!(NodeId::of(key.as_bytes()), key.id());
}

#[test]
fn no_text_of_a_secret_leaves_by_debug() {
    let identity = Identity::from_text(SEED).unwrap();
    assert_eq!(format!("{identity:?}"), format!("Identity({})", identity.id()));
}

#[test]
fn what_is_no_key_is_refused() {
    for text in
        ["", "x", &SEED[1..], &SEED.replace('9', "g"), &format!("{SEED} {SEED}"), "ß", &PEM.replace("MC4", "MC5")]
    {
        assert_eq!(Identity::from_text(text).unwrap_err(), KeyError::NoKey, "{text}");
    }
    assert_eq!("12".parse::<PublicKey>(), Err(KeyError::NoPublicKey));
    assert_eq!(format!("02{}", "0".repeat(62)).parse::<PublicKey>(), Err(KeyError::NoPublicKey), "not on the curve");
    assert_eq!(format!("01{}", "0".repeat(62)).parse::<PublicKey>(), Err(KeyError::NoPublicKey), "of small order");
    assert_eq!("21fe".parse::<NodeId>(), Err(KeyError::NoId));
}

#[test]
fn a_generated_key_is_the_seed_that_was_drawn() {
    let drawn = Identity::generate(|seed| -> Result<(), ()> {
        seed.fill(7);
        Ok(())
    });
    assert_eq!(drawn.unwrap().id(), Identity::from_seed(&[7; 32]).id());
    assert_eq!(Identity::generate(|_| Err("no randomness")).unwrap_err(), "no randomness");
}
