//! LEASE_LIST_ACTIVE in parts.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{net::SocketAddr, time::Duration};

use crate::common::*;
use berth_fabric::{Carrier, Config, Request, Step};
use berth_lease::LeaseId;
use berth_wire::fabric::{LeaseList, LeaseRef, Op, ResourceType, Status, Wire as _};

/// As many leases as the regions have room for, which is more than one part looks at.
fn leases(world: &mut World) -> Vec<LeaseId> {
    let token = world.token(1, ALL);
    let kinds = [(ResourceType::Mem, 256), (ResourceType::Block, 64)];
    let each = kinds.into_iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, count));
    each.map(|kind| world.alloc_under(1, kind, 4096, &token)).collect()
}

#[test]
fn others_are_served_between_the_parts_of_a_list_that_has_what_was_active_all_the_while() {
    let mut world = World::new();
    let mut leases = leases(&mut world);
    let request = Request {
        carrier: Carrier::Quic,
        presenter: identity(1).id().0,
        source: SocketAddr::from(([10, 0, 0, 1], 5000)),
        op: Op::LeaseListActive.code(),
        resource: 0,
        token: &[],
        params: &[],
    };
    let Step::List(mut listing) = world.node.request(&request, world.now) else { panic!("it is made at once") };
    world.node.list(&mut listing, world.now);
    assert!(!listing.is_whole(), "a part does not look at all");
    let ended = leases.remove(300);
    world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: ended.0 }.to_vec());
    world.node.list(&mut listing, world.now);
    assert!(listing.is_whole());
    let answer = listing.answer();
    assert_eq!(answer.status, Status::Ok);
    let listed: Vec<_> =
        LeaseList::parse(&answer.result).unwrap().iter().map(|entry| LeaseId(entry.lease_id)).collect();
    leases.sort_unstable_by_key(|id| id.key());
    assert_eq!(listed, leases);
}

#[test]
fn a_list_counts_as_one_more_request_for_each_kibibyte() {
    let mut world = World::with(Config { max_requests_per_sec: 400, ..config() });
    assert_eq!(leases(&mut world).len(), 320);
    world.pass(Duration::from_secs(1));
    // Each counts as 1 and 320 / 16.
    let mut list = || world.ask(1, Op::LeaseListActive, 0, &[], &[]).status;
    assert_eq!((0..20).map(|_| list()).collect::<Vec<_>>(), [Status::Ok; 20]);
    assert_eq!(list(), Status::RateLimited);
    assert_eq!(world.ask(2, Op::LeaseListActive, 0, &[], &[]).status, Status::Ok, "others have their rate");
}
