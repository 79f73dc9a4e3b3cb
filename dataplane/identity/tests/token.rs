//! Tokens: what each rule refuses with which status, and what delegation and refresh keep.

use std::{net::IpAddr, time::Instant};

use berth_identity::{
    Enrolled, Enrolment, Identity,
    token::{Asked, DelegateError, Granted, Terms, TokenError, Verifier, delegate, issue, refresh},
};
use berth_wire::fabric::{CapabilityToken, Caveat, Link, List, Perms, Status, Wire as _};
use proptest::prelude::*;

const NOW: u64 = 1_800_000_000;

fn who(seed: u8) -> Identity {
    Identity::from_seed(&[seed; 32])
}

fn node() -> Identity {
    who(1)
}

fn holder() -> Identity {
    who(2)
}

fn keys() -> Enrolled {
    Enrolled::new((1..12).map(|seed| *who(seed).public_key()), Enrolment::Closed)
}

fn terms(caveats: &[Caveat]) -> Terms<'_> {
    Terms {
        token_id: 77,
        audience: holder().id(),
        resource_id: 5,
        perms: Perms::READ | Perms::ALLOC | Perms::DELEGATE,
        issued_at: NOW,
        expires_at: NOW + 300,
        epoch: 3,
        caveats,
    }
}

fn asked() -> Asked {
    Asked {
        presenter: holder().id(),
        source: [10, 0, 0, 1].into(),
        now_secs: NOW,
        fence: None,
        resource_id: 5,
        perms: Perms::ALLOC,
        requested_bytes: Some(4096),
    }
}

fn verify<'a>(token: &'a [u8], asked: &Asked) -> Result<Granted<'a>, TokenError> {
    Verifier::new(*node().public_key()).verify(token, asked, &keys())
}

fn with(caveats: &[Caveat]) -> Vec<u8> {
    issue(&node(), &terms(caveats)).unwrap()
}

#[test]
fn a_token_grants_what_its_terms_say() {
    let token = with(&[]);
    let granted = verify(&token, &asked()).unwrap();
    assert_eq!((granted.token.token_id, granted.token.expires_at, granted.span), (77, NOW + 300, (0, u64::MAX)));
    assert!(granted.covers(5) && !granted.covers(6));
    let any = issue(&node(), &Terms { resource_id: 0, ..terms(&[]) }).unwrap();
    assert!(verify(&any, &Asked { resource_id: 9, ..asked() }).unwrap().covers(9));
}

#[test]
fn golden_token() {
    // The signature was recomputed from docs/fabricbios-profile.md with Python's cryptography.
    let token = delegate(&with(&[Caveat::Depth(2)]), &holder(), who(3).id(), &[Caveat::RateLimit(9)]).unwrap();
    assert_eq!(token, include_bytes!("golden/token.bin"));
}

#[test]
fn every_changed_byte_of_a_token_is_refused() {
    let token = delegate(&with(&[Caveat::Depth(2)]), &holder(), who(3).id(), &[Caveat::RateLimit(9)]).unwrap();
    let asked = Asked { presenter: who(3).id(), perms: Perms::NONE, ..asked() };
    assert!(verify(&token, &asked).is_ok());
    for at in 0..token.len() {
        for flip in [1, 0x80, 0xFF] {
            let mut changed = token.clone();
            changed[at] ^= flip;
            let status = verify(&changed, &asked).unwrap_err().status();
            assert_eq!(status, Status::InvalidToken, "byte {at} ^ {flip:#x}");
        }
    }
    for len in 0..token.len() {
        assert_eq!(verify(&token[..len], &asked).unwrap_err().status(), Status::InvalidToken, "cut to {len}");
    }
    let surplus = [&token[..], &[0]].concat();
    assert_eq!(verify(&surplus, &asked).unwrap_err().status(), Status::InvalidToken);
}

/// A factor of ten is far below what is saved, and far above noise.
#[test]
fn a_token_is_verified_once_and_still_judged_each_time() {
    let mut verifier = Verifier::new(*node().public_key());
    let token = delegate(&with(&[]), &holder(), who(3).id(), &[]).unwrap();
    let asked = Asked { presenter: who(3).id(), ..asked() };
    let enrolled = keys();
    let timed = |verifier: &mut Verifier| {
        let start = Instant::now();
        assert!(verifier.verify(&token, &asked, &enrolled).is_ok());
        start.elapsed()
    };
    let first = (0..20).map(|_| timed(&mut Verifier::new(*node().public_key()))).min();
    timed(&mut verifier);
    let again = (0..20).map(|_| timed(&mut verifier)).min();
    assert!(again < first.map(|first| first / 10), "{first:?}, then {again:?}");
    for at in 0..token.len() {
        let mut changed = token.clone();
        changed[at] ^= 1;
        assert!(verifier.verify(&changed, &asked, &enrolled).is_err(), "byte {at}");
    }
    // The links hold, and whoever made one may be gone.
    let without = Enrolled::new([*who(3).public_key()], Enrolment::Closed);
    assert_eq!(verifier.verify(&token, &asked, &without).unwrap_err(), TokenError::Link);
    verifier.revoked.revoke(77, NOW + 300, NOW).unwrap();
    assert_eq!(verifier.verify(&token, &asked, &enrolled).unwrap_err(), TokenError::Revoked);
}

#[test]
fn each_way_to_fail_has_its_status() {
    let token = with(&[]);
    let refused = |asked: Asked| verify(&token, &asked).unwrap_err();
    assert_eq!(refused(Asked { presenter: who(3).id(), ..asked() }), TokenError::Presenter(holder().id()));
    assert_eq!(refused(Asked { perms: Perms::WRITE, ..asked() }), TokenError::InsufficientPerm);
    assert_eq!(refused(Asked { resource_id: 6, ..asked() }), TokenError::InsufficientPerm);
    assert_eq!(refused(Asked { fence: Some(4), ..asked() }), TokenError::StaleEpoch(3));
    assert!(verify(&token, &Asked { fence: Some(3), ..asked() }).is_ok());
    assert!(verify(&token, &Asked { fence: Some(2), ..asked() }).is_ok());
    assert!(verify(&token, &Asked { resource_id: 0, ..asked() }).is_ok(), "the caller keeps to what is covered");
    let forged = issue(&who(2), &terms(&[])).unwrap();
    assert_eq!(verify(&forged, &asked()).unwrap_err(), TokenError::Issuer);
    let statuses = [
        (TokenError::Issuer, Status::InvalidToken),
        (TokenError::InsufficientPerm, Status::InsufficientPerm),
        (TokenError::StaleEpoch(3), Status::StaleEpoch),
        (TokenError::RateLimited, Status::RateLimited),
    ];
    for (error, status) in statuses {
        assert_eq!(error.status(), status);
    }
}

#[test]
fn times_are_exact_and_only_issued_at_has_skew() {
    let at = |issued_at, expires_at, now_secs| {
        let token = issue(&node(), &Terms { issued_at, expires_at, ..terms(&[]) }).unwrap();
        verify(&token, &Asked { now_secs, ..asked() }).map(|_| ())
    };
    assert_eq!(at(NOW, NOW + 300, NOW + 299), Ok(()));
    assert_eq!(at(NOW, NOW + 300, NOW + 300), Err(TokenError::Time));
    assert_eq!(at(NOW, NOW + 300, NOW - 30), Ok(()));
    assert_eq!(at(NOW, NOW + 300, NOW - 31), Err(TokenError::Time));
    assert_eq!(at(NOW, NOW + 301, NOW), Err(TokenError::Time), "no token lives longer than 300 s");
    assert_eq!(at(NOW + 1, NOW, NOW - 1), Err(TokenError::Time));
}

#[test]
fn caveats_hold_exactly() {
    let try_at = |caveat, asked: Asked| verify(&with(&[caveat]), &asked).map(|granted| granted.span);
    let all = Ok((0, u64::MAX));

    let bound = Caveat::TimeBound { start: NOW + 10, end: NOW + 20 };
    for (now_secs, holds) in [(NOW + 9, false), (NOW + 10, true), (NOW + 19, true), (NOW + 20, false)] {
        let expected = if holds { all } else { Err(TokenError::Caveat("TIME_BOUND")) };
        assert_eq!(try_at(bound, Asked { now_secs, ..asked() }), expected);
    }

    let v4: IpAddr = [10, 0, 0, 1].into();
    let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    for (caveat, source, holds) in
        [(v4, v4, true), (v4, mapped, true), (mapped, v4, true), (v6, v6, true), (v4, v6, false), (v6, v4, false)]
    {
        let expected = if holds { all } else { Err(TokenError::Caveat("SOURCE_IP")) };
        assert_eq!(try_at(Caveat::SourceIp(caveat), Asked { source, ..asked() }), expected);
    }

    assert_eq!(try_at(Caveat::Audience(holder().id().0), asked()), all);
    assert_eq!(try_at(Caveat::Audience(1), asked()), Err(TokenError::Caveat("AUDIENCE")));

    let range = Caveat::Range { offset: 1024, len: 3072 };
    assert_eq!(try_at(range, asked()), Ok((1024, 4096)));
    assert_eq!(try_at(range, Asked { requested_bytes: Some(4097), ..asked() }), Err(TokenError::Caveat("RANGE")));
    assert_eq!(try_at(range, Asked { requested_bytes: None, ..asked() }), Ok((1024, 4096)));
    assert_eq!(try_at(Caveat::Range { offset: 0, len: 0 }, asked()), Err(TokenError::Caveat("RANGE")));
}

#[test]
fn ranges_meet_in_what_they_share() {
    let two = |a, b| {
        let token = with(&[a, b]);
        verify(&token, &Asked { requested_bytes: None, ..asked() }).unwrap().span
    };
    let range = |offset, len| Caveat::Range { offset, len };
    assert_eq!(two(range(0, 4096), range(1024, 8192)), (1024, 4096));
    let (from, to) = two(range(0, 16), range(32, 16));
    assert_eq!(from, to, "no byte is in both");
}

#[test]
fn malformed_caveats_are_refused_though_the_issuer_signed_them() {
    // The codec cannot write these, so a well-formed caveat of the same length is changed and signed over.
    let signed = |tag: u8, value: &[u8]| {
        let mut token = issue(&node(), &terms(&[])).unwrap();
        let links = token.split_off(token.len() - 2);
        token.truncate(token.len() - 64 - 2);
        token.extend_from_slice(&[0, 1, tag]);
        token.extend_from_slice(&(value.len() as u16).to_be_bytes());
        token.extend_from_slice(value);
        let signature =
            ed25519_dalek::Signer::sign(node().signing_key(), &[b"fabricBIOS-cap-v0\0", &token[..]].concat());
        [&token[..], &signature.to_bytes(), &links].concat()
    };
    assert!(verify(&signed(5, &[2]), &asked()).is_ok(), "the construction itself is sound");
    let overflow = [&u64::MAX.to_be_bytes()[..], &1_u64.to_be_bytes()].concat();
    for (tag, value) in [(3, &overflow[..]), (7, &[]), (0, &[]), (5, &[1, 1]), (2, &[1, 2, 3]), (4, &[0; 8]), (6, &[])]
    {
        let token = signed(tag, value);
        assert!(matches!(verify(&token, &asked()), Err(TokenError::Malformed(_))), "type {tag}");
    }
}

#[test]
fn rate_limit_counts_by_token_id_and_second() {
    let mut verifier = Verifier::new(*node().public_key());
    let token = with(&[Caveat::RateLimit(2)]);
    let sibling = delegate(&token, &holder(), who(3).id(), &[Caveat::RateLimit(5)]).unwrap();
    let keys = keys();
    let mut try_now = |token: &[u8], asked: Asked| verifier.verify(token, &asked, &keys).map(|_| ());
    let wrong = Asked { perms: Perms::WRITE, ..asked() };
    assert_eq!(try_now(&token, wrong), Err(TokenError::InsufficientPerm), "and does not count");
    assert_eq!(try_now(&token, asked()), Ok(()));
    assert_eq!(try_now(&sibling, Asked { presenter: who(3).id(), ..asked() }), Ok(()), "same id, same bucket");
    assert_eq!(try_now(&token, asked()), Err(TokenError::RateLimited));
    assert_eq!(try_now(&token, Asked { now_secs: NOW + 1, ..asked() }), Ok(()));
    let never = with(&[Caveat::RateLimit(0)]);
    assert_eq!(verify(&never, &asked()).unwrap_err(), TokenError::RateLimited);
}

#[test]
fn revoked_tokens_grant_nothing_until_none_can_be_alive() {
    let mut verifier = Verifier::new(*node().public_key());
    let token = with(&[]);
    let until = berth_identity::Revocations::until(NOW, 10);
    assert_eq!(until, NOW + 300);
    assert_eq!(berth_identity::Revocations::until(NOW, 1000), NOW + 1000);
    verifier.revoked.revoke(77, until, NOW).unwrap();
    verifier.revoked.revoke(77, NOW + 1, NOW).unwrap();
    assert_eq!(verifier.verify(&token, &asked(), &keys()).unwrap_err(), TokenError::Revoked);
    assert!(verifier.revoked.contains(77, NOW + 299) && !verifier.revoked.contains(77, NOW + 300));
    assert_eq!(verifier.revoked.iter(NOW).collect::<Vec<_>>(), [(77, NOW + 300)]);
}

#[test]
fn links_are_the_holders_alone() {
    let root = with(&[]);
    assert_eq!(delegate(&root, &who(3), who(4).id(), &[]), Err(DelegateError::NotHolder(holder().id())));
    let plain = issue(&node(), &Terms { perms: Perms::ALLOC, ..terms(&[]) }).unwrap();
    assert_eq!(delegate(&plain, &holder(), who(3).id(), &[]), Err(DelegateError::NoDelegate));
    let unenrolled = issue(&node(), &Terms { audience: who(50).id(), ..terms(&[]) }).unwrap();
    let passed = delegate(&unenrolled, &who(50), holder().id(), &[]).unwrap();
    assert_eq!(verify(&passed, &asked()).unwrap_err(), TokenError::Link);
    let selfish = delegate(&root, &holder(), holder().id(), &[]).unwrap();
    assert!(verify(&selfish, &asked()).is_ok(), "self-links are allowed");
}

#[test]
fn a_link_counts_only_with_delegate_however_well_it_is_signed() {
    let signed = |perms| {
        let token = issue(&node(), &Terms { perms, ..terms(&[]) }).unwrap();
        let token = CapabilityToken::parse(&token).unwrap();
        let link = |signature| [Link { delegate: who(3).id().0, caveats: List::EMPTY, signature }];
        let blank = link([0; 64]);
        let bytes = CapabilityToken { links: List::of(&blank).unwrap(), ..token }.link_signed_bytes(0).unwrap();
        let links = link(ed25519_dalek::Signer::sign(holder().signing_key(), &bytes).to_bytes());
        CapabilityToken { links: List::of(&links).unwrap(), ..token }.to_vec()
    };
    let asked = Asked { presenter: who(3).id(), ..asked() };
    assert!(verify(&signed(Perms::ALLOC | Perms::DELEGATE), &asked).is_ok(), "the construction itself is sound");
    assert_eq!(verify(&signed(Perms::ALLOC), &asked).unwrap_err(), TokenError::NoDelegate);
}

#[test]
fn depth_bounds_the_links_after_where_it_stands() {
    let chain = |root: &[Caveat], depth_at_first: Option<u8>| {
        let mut token = with(root);
        for i in 0.. {
            let caveats: Vec<_> = depth_at_first.filter(|_| i == 0).map(Caveat::Depth).into_iter().collect();
            match delegate(&token, &holder(), holder().id(), &caveats) {
                Ok(longer) => token = longer,
                Err(error) => return (i, error),
            }
            assert!(verify(&token, &asked()).is_ok());
        }
        unreachable!()
    };
    assert_eq!(chain(&[], None), (8, DelegateError::Depth));
    assert_eq!(chain(&[Caveat::Depth(0)], None), (0, DelegateError::Depth));
    assert_eq!(chain(&[Caveat::Depth(3)], None), (3, DelegateError::Depth));
    assert_eq!(chain(&[Caveat::Depth(3)], Some(1)), (2, DelegateError::Depth));
    assert_eq!(chain(&[Caveat::Depth(3)], Some(9)), (3, DelegateError::Depth), "a link cannot widen");

    // A holder who ignores DEPTH gets a token that nobody takes: the link is made under a root without it.
    let free = with(&[]);
    let bound = with(&[Caveat::Depth(0)]);
    let link = delegate(&free, &holder(), holder().id(), &[]).unwrap();
    let link = CapabilityToken::parse(&link).unwrap().links;
    let bound = CapabilityToken::parse(&bound).unwrap();
    let both = CapabilityToken { links: link, ..bound }.to_vec();
    assert_eq!(verify(&both, &asked()).unwrap_err(), TokenError::Caveat("DEPTH"));
}

#[test]
fn refresh_keeps_everything_but_the_links() {
    let token = with(&[Caveat::Depth(4), Caveat::RateLimit(9)]);
    let token = delegate(&token, &holder(), who(3).id(), &[Caveat::Depth(2)]).unwrap();
    let token = delegate(&token, &who(3), who(4).id(), &[Caveat::TimeBound { start: NOW, end: NOW + 100 }]).unwrap();
    let asked = Asked { presenter: who(4).id(), ..asked() };
    let granted = verify(&token, &asked).unwrap();
    let again = refresh(&node(), &granted, Perms::ALL, NOW + 5, NOW + 95, 6).unwrap();
    let fresh = verify(&again, &asked).unwrap().token;
    assert_eq!((fresh.token_id, fresh.resource_id, fresh.perms), (77, 5, granted.token.perms));
    assert_eq!((fresh.audience, fresh.issued_at, fresh.expires_at, fresh.epoch), (who(4).id().0, NOW + 5, NOW + 95, 6));
    assert!(fresh.links.is_empty());
    let time = Caveat::TimeBound { start: NOW, end: NOW + 100 };
    let kept: Vec<_> = fresh.caveats.iter().collect();
    assert_eq!(kept, [Caveat::Depth(2), Caveat::RateLimit(9), Caveat::Depth(1), time]);
}

#[test]
fn refresh_does_not_give_links_back() {
    let mut token = with(&[]);
    for _ in 0..3 {
        token = delegate(&token, &holder(), holder().id(), &[]).unwrap();
    }
    let fresh = refresh(&node(), &verify(&token, &asked()).unwrap(), Perms::ALL, NOW, NOW + 1, 0).unwrap();
    let caveats = |token: &[u8]| CapabilityToken::parse(token).unwrap().caveats.iter().collect::<Vec<_>>();
    assert_eq!(caveats(&fresh), [Caveat::Depth(5)]);
    let unlinked = refresh(&node(), &verify(&with(&[]), &asked()).unwrap(), Perms::ALL, NOW, NOW + 1, 0).unwrap();
    assert_eq!(caveats(&unlinked), []);
    let wide = delegate(&with(&[Caveat::Depth(200)]), &holder(), holder().id(), &[]).unwrap();
    let fresh = refresh(&node(), &verify(&wide, &asked()).unwrap(), Perms::ALL, NOW, NOW + 1, 0).unwrap();
    assert_eq!(caveats(&fresh), [Caveat::Depth(199), Caveat::Depth(7)], "eight links in all, whatever DEPTH says");
    let full = [Caveat::RateLimit(1_000_000); 32];
    let full = delegate(&with(&full), &holder(), holder().id(), &[Caveat::RateLimit(1)]).unwrap();
    assert!(
        refresh(&node(), &verify(&full, &asked()).unwrap(), Perms::ALL, NOW, NOW + 1, 0).is_err(),
        "no caveat is dropped"
    );
}

fn caveat() -> impl Strategy<Value = Caveat> {
    prop_oneof![
        (0..40_u64, 0..400_u64).prop_map(|(a, b)| Caveat::TimeBound { start: NOW + a - 10, end: NOW + b }),
        (0..3_u8).prop_map(|last| Caveat::SourceIp([10, 0, 0, last].into())),
        (0..5000_u64, 0..9000_u64).prop_map(|(offset, len)| Caveat::Range { offset, len }),
        (0..9_u8).prop_map(Caveat::Depth),
        (2..5_u8).prop_map(|seed| Caveat::Audience(who(seed).id().0)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a chain grants, each shorter chain grants too, with no less.
    #[test]
    fn no_chain_grants_more_than_what_it_came_from(
        root in prop::collection::vec(caveat(), 0..3),
        links in prop::collection::vec((2..5_u8, prop::collection::vec(caveat(), 0..3)), 0..5),
        now_secs in NOW - 5..NOW + 310,
        last in 0..3_u8,
        bytes in prop::option::of(0..9000_u64),
        refresh_after in 0..5_usize,
    ) {
        let mut chain = vec![(with(&root), 2)];
        for (to, caveats) in links {
            let (token, from) = chain.last().unwrap();
            match delegate(token, &who(*from), who(to).id(), &caveats) {
                Ok(token) => chain.push((token, to)),
                Err(error) => prop_assert_eq!(error, DelegateError::Depth),
            }
        }
        let asked = |seed: u8| Asked {
            presenter: who(seed).id(), source: [10, 0, 0, last].into(), now_secs, requested_bytes: bytes, ..asked()
        };
        // An AUDIENCE caveat names one presenter, so a shorter chain is asked about as if that one held it.
        let ignores_audience = |error: &TokenError| matches!(error, TokenError::Caveat("AUDIENCE"));
        let mut granted: Option<Granted<'_>> = None;
        for (token, seed) in chain.iter().rev() {
            match verify(token, &asked(*seed)) {
                Ok(shorter) => {
                    if let Some(longer) = &granted {
                        let (from, to) = longer.span;
                        prop_assert!(from == to || shorter.span.0 <= from && to <= shorter.span.1);
                        prop_assert_eq!(longer.token.perms, shorter.token.perms);
                        prop_assert_eq!(longer.token.expires_at, shorter.token.expires_at);
                    }
                    granted = Some(shorter);
                }
                Err(error) => prop_assert!(granted.is_none() || ignores_audience(&error), "{error}"),
            }
        }
        // A refreshed token grants exactly what its forerunner did.
        let (token, seed) = &chain[refresh_after.min(chain.len() - 1)];
        if let Ok(before) = verify(token, &asked(*seed)) {
            let fresh = refresh(&node(), &before, Perms::ALL, now_secs, now_secs + 1, 3).unwrap();
            let after = verify(&fresh, &asked(*seed)).unwrap();
            prop_assert_eq!(after.span, before.span);
            let room = |mut token: Vec<u8>| {
                let mut links = 0;
                while let Ok(longer) = delegate(&token, &who(*seed), who(*seed).id(), &[]) {
                    token = longer;
                    links += 1;
                }
                links
            };
            prop_assert_eq!(room(fresh), room(token.clone()));
        }
    }
}
