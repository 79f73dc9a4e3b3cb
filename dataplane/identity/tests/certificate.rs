//! Certificates, enrolment, rates, and the limits on what a node remembers.

use berth_identity::{
    CertificateError, EnrolError, Enrolled, Enrolment, HolderRevoked, Identity, Known, MAX_ENROLLED, MAX_RATED,
    MAX_REVOCATIONS, NodeId, PublicKey, Rates, Revocations, RevocationsFull, certify, verify_certificate,
};
use berth_wire::fabric::Tlv8;

const NOW: u64 = 1_800_000_000;

fn who(seed: u8) -> Identity {
    Identity::from_seed(&[seed; 32])
}

fn certificate() -> Vec<u8> {
    let extension = Tlv8::of(0xEE, &[1]).unwrap();
    certify(&who(1), who(2).public_key(), NOW, NOW + 60, &[extension]).unwrap()
}

fn verify(bytes: &[u8], now_secs: u64) -> Result<PublicKey, CertificateError> {
    verify_certificate(bytes, who(1).public_key(), now_secs)
}

#[test]
fn golden_certificate() {
    assert_eq!(certificate(), include_bytes!("golden/certificate.bin"));
}

#[test]
fn a_certificate_names_the_key_of_its_subject_while_it_is_valid() {
    assert_eq!(verify(&certificate(), NOW).unwrap(), *who(2).public_key());
    assert!(verify(&certificate(), NOW - 30).is_ok());
    for (now_secs, error) in [(NOW - 31, CertificateError::Time), (NOW + 60, CertificateError::Time)] {
        assert_eq!(verify(&certificate(), now_secs), Err(error));
    }
    let by_another = certify(&who(3), who(2).public_key(), NOW, NOW + 60, &[]).unwrap();
    assert_eq!(verify(&by_another, NOW), Err(CertificateError::Signature));
}

#[test]
fn every_changed_byte_of_a_certificate_is_refused() {
    let certificate = certificate();
    for at in 0..certificate.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut changed = certificate.clone();
            changed[at] ^= flip;
            assert!(verify(&changed, NOW).is_err(), "byte {at} ^ {flip:#x}");
        }
    }
    for len in 0..certificate.len() {
        assert!(matches!(verify(&certificate[..len], NOW), Err(CertificateError::Malformed(_))), "cut to {len}");
    }
}

#[test]
fn a_closed_node_enrols_nobody() {
    let keys = Enrolled::new([*who(2).public_key()], Enrolment::Closed);
    assert_eq!(keys.enrol(*who(3).public_key()), Err(EnrolError::Closed));
    assert_eq!(keys.enrol(*who(2).public_key()), Err(EnrolError::Closed));
    assert_eq!(keys.get(who(2).id()), Some(*who(2).public_key()));
    assert_eq!(keys.get(who(3).id()), None);
}

#[test]
fn an_open_node_enrols_up_to_its_bound() {
    let many = (0..MAX_ENROLLED as u32 - 1).map(|i| {
        let mut seed = [9; 32];
        seed[..4].copy_from_slice(&i.to_be_bytes());
        *Identity::from_seed(&seed).public_key()
    });
    let keys = Enrolled::new(many, Enrolment::Open);
    assert_eq!(keys.clone().enrol(*who(2).public_key()), Ok(true), "clones are the same set");
    assert_eq!(keys.enrol(*who(2).public_key()), Ok(false), "a known key is enrolled already");
    assert_eq!(keys.enrol(*who(3).public_key()), Err(EnrolError::Full));
    assert_eq!(keys.len(), MAX_ENROLLED);
}

#[test]
fn a_closed_node_knows_what_is_listed_alone_and_a_removed_key_never_comes_back() {
    let [listed, asked, removed] = [2, 3, 4].map(|n| *who(n).public_key());
    let keys = Enrolled::new([listed, removed], Enrolment::Open);
    assert_eq!(keys.enrol(asked), Ok(true));
    assert_eq!(keys.remove(removed.id()), Ok(()));
    let known = |keys: &Enrolled| [listed, asked, removed].map(|key| keys.get(key.id()).is_some());
    assert_eq!(known(&keys), [true, true, false]);
    assert_eq!(keys.enrol(removed), Err(EnrolError::Removed));
    let behind = keys.behind(NodeId(0));
    assert_eq!(behind[&removed.id()], Known::Removed);
    assert_eq!((behind[&listed.id()], behind[&asked.id()]), (Known::Listed(listed), Known::Asked(asked)));
    let last = *behind.keys().next_back().unwrap();
    assert!(keys.behind(last).is_empty());
    keys.list([listed, removed], Enrolment::Closed);
    assert_eq!(known(&keys), [true, false, false], "closed, whoever enrolled himself before");
    assert_eq!(keys.behind(NodeId(0)).len(), 2);
    keys.list([], Enrolment::Open);
    assert_eq!(known(&keys), [false, true, false]);
}

#[test]
fn rates_are_by_key_and_second_and_bounded() {
    let mut rates = Rates::default();
    assert_eq!([rates.admit(0, 2, 7), rates.admit(0, 2, 7), rates.admit(0, 2, 7)], [true, true, false]);
    assert!(rates.admit(1, 2, 7), "another key");
    assert!(rates.admit(0, 2, 8), "another second");
    assert!(rates.admit(0, 2, 7), "and one before, when the clock is set back");
    for key in 2..MAX_RATED as u64 {
        assert!(rates.admit(key, 1, 9));
    }
    assert!(rates.admit(u64::MAX, 1, 9), "what is of another second gives way");
    assert!(rates.admit(u64::MAX - 1, 1, 9));
    assert!(!rates.admit(u64::MAX - 2, 1, 9), "and where nothing does, nothing more is admitted");
}

#[test]
fn revocations_are_bounded_and_none_is_forgotten() {
    let mut revoked = Revocations::default();
    for id in 0..MAX_REVOCATIONS as u128 {
        revoked.revoke(id, 10, 0).unwrap();
    }
    assert_eq!(revoked.revoke(u128::MAX, 10, 9), Err(RevocationsFull));
    assert!(revoked.contains(0, 9));
    assert_eq!(revoked.revoke(0, 20, 9), Ok(()), "a known one may last longer");
    assert_eq!(revoked.revoke(u128::MAX, 20, 10), Ok(()), "what has run out gives way");
    assert_eq!(revoked.iter(10).count(), 2);
}

#[test]
fn a_holders_tokens_are_revoked_up_to_their_issue_and_until_none_lives() {
    let mut revoked = Revocations::default();
    revoked.revoke_holder(1, HolderRevoked { issued_by: 5, until: 10 }, 5).unwrap();
    let contains = |revoked: &Revocations, holder, issued_at, now| revoked.contains_holder(holder, issued_at, now);
    assert!(contains(&revoked, 1, 5, 9) && contains(&revoked, 1, 0, 9));
    assert!(!contains(&revoked, 1, 6, 9) && !contains(&revoked, 1, 5, 10) && !contains(&revoked, 2, 5, 9));
    revoked.revoke_holder(1, HolderRevoked { issued_by: 4, until: 12 }, 9).unwrap();
    assert!(contains(&revoked, 1, 5, 11), "neither becomes less");
    for holder in 2..=MAX_REVOCATIONS as u128 {
        revoked.revoke_holder(holder, HolderRevoked { issued_by: 5, until: 20 }, 9).unwrap();
    }
    let one_more = HolderRevoked { issued_by: 5, until: 30 };
    assert_eq!(revoked.revoke_holder(u128::MAX, one_more, 11), Err(RevocationsFull));
    assert_eq!(revoked.revoke_holder(u128::MAX, one_more, 12), Ok(()), "what has run out gives way");
}
