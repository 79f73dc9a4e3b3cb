//! Handles, attachments and relocation.

mod common;

use std::time::Duration;

use berth_lease::{
    Attachment, GRANULE, Item, LeaseError, LeaseId, LeaseKey, Mode, Op, Quota, Quotas, Refusal, RelocateError, Request,
    Rights, Span, Status,
};
use common::{
    bytes,
    node::{ANN, BOB, MEMORY, Node, TOKEN, at, request, secs},
};

#[test]
fn handles_attach_with_their_own_rights_until_they_expire() {
    let mut node = Node::new();
    let id = node.alloc(&request(GRANULE), at(0));
    let mut export = |holder, target, rights, ttl, now| {
        let leases = &mut node.leases;
        leases.export(id.key(), holder, target, 2, rights, secs(ttl), now, &mut || 0x99)
    };
    assert_eq!(export(BOB, 0, 1, 5, at(0)), Err(LeaseError::NotHolder));
    for (rights, ttl) in [(0, 5), (8, 5), (1, 0)] {
        assert!(matches!(export(ANN, 0, rights, ttl, at(0)), Err(LeaseError::Invalid(_))), "{rights} {ttl}");
    }
    assert_eq!(export(ANN, 0, 1, 5, at(10)), Err(LeaseError::Expired));
    let handle = export(ANN, BOB, 1, 500, at(1)).unwrap();
    assert_eq!((handle.id, handle.lease, handle.target, handle.kind, handle.rights), (0x99, id, BOB, 2, 1));
    assert_eq!(handle.expires, at(10), "not after its lease");
    let import = |node: &mut Node, handle, presenter, now| {
        node.leases.import(handle, presenter, now, &mut || 0xABCD << 64 | 0x77)
    };
    assert_eq!(import(&mut node, 0x98, BOB, at(2)), Err(LeaseError::NotFound));
    assert_eq!(import(&mut node, 0x99, ANN, at(2)), Err(LeaseError::NotHolder));
    let attachment = Attachment { key: LeaseKey(0x77), rights: 1, expires: at(10) };
    assert_eq!(import(&mut node, 0x99, BOB, at(2)), Ok(attachment));
    assert_eq!(import(&mut node, 0x99, BOB, at(3)), Ok(attachment), "it is reusable");
    let attached = LeaseId(0x77);
    assert_eq!([BOB, ANN].map(|who| node.leases.is_of(attached, who)), [true, false]);
    assert_eq!([BOB, ANN].map(|who| node.leases.is_of(id, who)), [false, true], "an importer has what it imported");
    assert!(!node.leases.is_of(LeaseId(1 << 64 | 0x77), BOB), "only the key is the attachment's");
    assert_eq!(node.read(attached, at(3)), node.read(id, at(3)));
    assert_eq!(node.access(Op::Write, attached, 0, 1, at(3)), Err(Refusal::Denied));
    node.leases.renew(id, ANN, secs(100), at(5)).unwrap();
    assert_eq!(node.read(attached, at(10)), Err(Refusal::Expired), "the handle is not renewed");
    assert_eq!(import(&mut node, 0x99, BOB, at(10)), Err(LeaseError::NotFound));
    assert_eq!(node.leases.tick(at(10)), []);
    assert_eq!(node.read(attached, at(10)), Err(Refusal::Unknown));
    assert!(!node.leases.is_of(attached, BOB));
    assert_eq!(node.leases.handles().count(), 0);
}

#[test]
fn handles_end_with_their_lease() {
    let mut node = Node::new();
    let [freed, revoked] = [(); 2].map(|()| node.alloc(&request(GRANULE), at(0)));
    for (id, handle) in [(freed, 1), (revoked, 2)] {
        node.leases.export(id.key(), ANN, 0, 0, 2 | 4, secs(9), at(0), &mut || handle).unwrap();
        let key = node.leases.import(handle, BOB, at(0), &mut || 100 + handle).unwrap().key;
        assert!(node.access(Op::Write, LeaseId(key.0.into()), 0, 1, at(1)).is_ok());
    }
    node.leases.free(freed, ANN, at(1)).unwrap();
    node.leases.revoke(revoked, at(1)).unwrap();
    assert_eq!(node.read(LeaseId(101), at(1)), Err(Refusal::Unknown));
    assert_eq!(node.read(LeaseId(102), at(1)), Err(Refusal::Revoked));
    assert_eq!(node.leases.import(1, BOB, at(1), &mut || 5), Err(LeaseError::NotFound));
    assert_eq!(node.leases.import(2, BOB, at(1), &mut || 5), Err(LeaseError::Revoked));
    let reader = Request { rights: Rights::READ, ..request(1) };
    let id = node.alloc(&reader, at(1));
    for rights in [2, 4, 7] {
        let refused = node.leases.export(id.key(), ANN, 0, 0, rights, secs(9), at(1), &mut || 3);
        assert_eq!(refused, Err(LeaseError::Rights));
    }
}

#[test]
fn contents_are_copied_and_moved() {
    let mut node = Node::new();
    let memory = bytes(node.leases.regions(), 0);
    let [src, dst] = [node.alloc(&request(5000), at(0)), node.alloc(&request(6000), at(0))];
    let base = |node: &Node, id| node.leases.get(id).unwrap().base;
    let contents: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8).collect();
    memory.write(base(&node, src), &contents);
    let seen = |node: &Node| {
        let mut seen = vec![0; 5001];
        memory.read(base(node, dst), &mut seen);
        seen
    };
    let copy = |node: &mut Node, mode| {
        let relocation = node.leases.relocate(src.key(), dst.key(), mode, ANN, at(1)).unwrap();
        assert_eq!((relocation.src, relocation.dst, relocation.from.len), (src, dst, 5000));
        let mut bytes = vec![0; 5000];
        memory.read(relocation.from.at, &mut bytes);
        memory.write(relocation.to.at, &bytes);
        relocation
    };
    copy(&mut node, Mode::Copy);
    assert_eq!(seen(&node), [&contents[..], &[0]].concat());
    assert!(node.access(Op::Write, src, 0, 1, at(1)).is_ok());
    let failed = copy(&mut node, Mode::Move);
    assert_eq!(node.read(src, at(1)), Err(Refusal::Revoked));
    node.leases.relocate_failed(&failed);
    assert!(node.read(src, at(1)).is_ok());
    assert_eq!(node.leases.usage(ANN)[Item::Leases], 2);
    assert_eq!(node.leases.tick(at(9)), []);
    copy(&mut node, Mode::Move);
    assert_eq!(node.leases.query(src, at(1)), Some((Status::Revoked, at(10))));
    node.leases.preserve(src, at(4), at(1));
    let available = node.leases.available(MEMORY);
    assert!(node.leases.release(src, at(1)));
    assert_eq!(node.leases.available(MEMORY), available, "kept for now");
    let bytes = node.leases.usage(ANN)[Item::Bytes];
    node.leases.tick(at(4));
    assert_eq!(node.leases.usage(ANN)[Item::Bytes], bytes - 2 * GRANULE);
    assert_eq!(node.leases.available(MEMORY), available + 2 * GRANULE);
}

#[test]
fn a_lease_that_is_revoked_while_it_is_moved_does_not_come_back() {
    for by_token in [false, true] {
        let mut node = Node::new();
        let [src, dst] = [request(1), Request { token: 1, ..request(1) }].map(|request| node.alloc(&request, at(0)));
        let moved = node.leases.relocate(src.key(), dst.key(), Mode::Move, ANN, at(1)).unwrap();
        if by_token {
            assert_eq!(node.leases.revoke_token(TOKEN, at(2)), [src]);
            assert_eq!(node.leases.revoke_token(TOKEN, at(2)), []);
        } else {
            assert_eq!(node.leases.revoke(src, at(2)), Ok(()));
        }
        assert_eq!(node.leases.revoke(src, at(2)), Err(LeaseError::Revoked));
        node.leases.relocate_failed(&moved);
        assert_eq!(node.read(src, at(2)), Err(Refusal::Revoked));
        assert_eq!(node.leases.usage(ANN)[Item::Leases], 2, "remembered");
    }
}

#[test]
fn what_cannot_be_relocated_stays_as_it_is() {
    let mut node = Node::new();
    let [small, large] = [node.alloc(&request(1), at(0)), node.alloc(&request(2), at(0))];
    let bobs = node.alloc(&Request { holder: BOB, ..request(2) }, at(0));
    let read_only = node.alloc(&Request { rights: Rights::READ, ..request(2) }, at(0));
    let write_only = node.alloc(&Request { rights: Rights::WRITE, ..request(2) }, at(0));
    let ranged = node.alloc(&Request { range: Some((1, 2)), ..request(2) }, at(0));
    let mut relocate = |src: LeaseId, dst: LeaseId| node.leases.relocate(src.key(), dst.key(), Mode::Move, ANN, at(1));
    let refused = |error| Err(RelocateError::Refused(error));
    assert_eq!(relocate(LeaseId(99), small), refused(LeaseError::NotFound));
    assert_eq!(relocate(small, bobs), refused(LeaseError::NotHolder));
    assert_eq!(relocate(write_only, large), refused(LeaseError::Rights));
    assert_eq!(relocate(large, read_only), refused(LeaseError::Rights));
    for (src, dst) in [(large, small), (small, small), (small, ranged)] {
        assert!(matches!(relocate(src, dst), Err(RelocateError::Failed(_))));
    }
    assert_eq!(node.leases.active(at(1)).count(), 6);
    // The bytes outside the source's RANGE stay unseen.
    let relocation = node.leases.relocate(ranged.key(), large.key(), Mode::Copy, ANN, at(1)).unwrap();
    let base = |id| node.leases.get(id).unwrap().base;
    assert_eq!(relocation.from, Span { region: MEMORY, at: base(ranged) + 1, len: 1 });
    assert_eq!(relocation.to, Span { region: MEMORY, at: base(large) + 1, len: 1 });
}

#[test]
fn handles_and_attachments_count_until_they_end() {
    let mut node = Node::new();
    let mut quota = Quota::default();
    (quota[Item::Handles], quota[Item::Attachments]) = (2, 1);
    node.leases.set_quotas(Quotas { others: quota, ..Quotas::default() });
    let lease = node.alloc(&request(1), at(0));
    let mut ids = 1..;
    let mut random = || ids.next().unwrap();
    let mut export = |node: &mut Node, ttl, now| {
        node.leases.export(lease.key(), ANN, 0, 1, 1, secs(ttl), now, &mut random).map(|handle| handle.id)
    };
    let (one, two) = (export(&mut node, 2, at(0)).unwrap(), export(&mut node, 5, at(0)).unwrap());
    assert_eq!(export(&mut node, 5, at(0)), Err(LeaseError::Quota));
    let import = |node: &mut Node, handle, now| {
        let mut draws = 1000..;
        node.leases.import(handle, BOB, now, &mut || draws.next().unwrap()).map(|attachment| attachment.key)
    };
    let key = import(&mut node, one, at(0)).unwrap();
    assert_eq!(import(&mut node, one, at(0)), Ok(key), "importing again adds nothing");
    assert_eq!(import(&mut node, two, at(0)), Err(LeaseError::Quota));
    node.leases.tick(at(2));
    import(&mut node, two, at(2)).unwrap();
    export(&mut node, 5, at(2)).unwrap();
    let usage = |node: &Node| (node.leases.usage(ANN)[Item::Handles], node.leases.usage(BOB)[Item::Attachments]);
    assert_eq!(usage(&node), (2, 1));
    node.leases.free(lease, ANN, at(3)).unwrap();
    assert_eq!(usage(&node), (0, 0));
}

#[test]
fn what_a_move_leaves_is_kept_no_longer_than_the_lease_is_remembered() {
    let mut node = Node::new();
    let forever = Request { grace: Duration::from_hours(1 << 20), ..request(1) };
    let [src, dst] = [forever, request(1)].map(|request| node.alloc(&request, at(0)));
    node.leases.relocate(src.key(), dst.key(), Mode::Move, ANN, at(1)).unwrap();
    node.leases.preserve(src, at(1 << 30), at(1));
    assert!(node.leases.release(src, at(1)));
    node.leases.free(dst, ANN, at(1)).unwrap();
    node.leases.release(dst, at(1));
    let taken = |node: &Node| (node.leases.usage(ANN)[Item::Leases], node.leases.usage(ANN)[Item::Bytes]);
    node.leases.tick(at(300));
    assert_eq!(taken(&node), (1, GRANULE));
    node.leases.tick(at(301));
    assert_eq!(taken(&node), (0, 0));
    assert_eq!(node.leases.available(MEMORY), 64 * GRANULE);
}
