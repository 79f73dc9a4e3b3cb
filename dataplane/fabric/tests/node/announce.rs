//! This node's announcements, and its answers to solicitations.

use std::time::Duration;

use crate::common::*;
use berth_fabric::discovery::Relay;
use berth_wire::fabric::{
    Announce, EndpointKind, Filter, FilterField, FilterOp, InventoryTlv, List, Relayed, ResourceFlags, ResourceType,
    Solicit, Wire as _, Withdraw, WithdrawReason,
};

fn question(filters: &[Filter]) -> Vec<u8> {
    Solicit { filters: List::of(filters).unwrap(), padding: 0 }.to_vec()
}

/// The id of a key that the node knows.
fn known(n: u8) -> u128 {
    identity(n).id().0
}

fn placed() -> berth_fabric::Config {
    berth_fabric::Config {
        site: 1,
        row: 2,
        rack: 3,
        trust_domain: "lab".into(),
        endpoints: vec![
            (EndpointKind::ControlUdp, "10.0.0.1:5700".parse().unwrap()),
            (EndpointKind::Quic, "[fd00::1]:5701".parse().unwrap()),
        ],
        ..config()
    }
}

#[test]
fn an_announcement_tells_place_endpoints_and_what_is_left() {
    let mut world = World::with(placed());
    let first = world.node.announcement(world.now);
    let first = Announce::parse(&first).unwrap();
    assert_eq!((first.node_id, first.site, first.row, first.rack), (world.node.id(), 1, 2, 3));
    assert_eq!(first.endpoint(EndpointKind::ControlUdp), Some("10.0.0.1:5700"));
    assert_eq!(first.endpoint(EndpointKind::Quic), Some("[fd00::1]:5701"));
    assert_eq!(first.ttl_secs, 30);
    assert_eq!(first.resources.iter().collect::<Vec<_>>(), world.node.resources());
    let domains: Vec<_> = first
        .tlvs
        .iter()
        .filter_map(|tlv| match InventoryTlv::read(tlv).unwrap() {
            Some(InventoryTlv::NodeAffinity(meta)) => Some((meta.rack_id, meta.trust_domain.get().to_owned())),
            _ => None,
        })
        .collect();
    assert_eq!(domains, [(3, "lab".to_owned())]);

    let available = |announce: &Announce<'_>| {
        let memory = announce.resources.iter().find(|resource| resource.resource_type == ResourceType::Mem.code());
        memory.unwrap().available
    };
    assert_eq!(available(&first), 1 << 20);
    world.alloc(1, ResourceType::Mem, 64 << 10);
    let second = world.node.announcement(world.now);
    let second = Announce::parse(&second).unwrap();
    assert_eq!(available(&second), (1 << 20) - (64 << 10));
    assert!(second.sequence > first.sequence);
    let withdrawal = world.node.withdrawal(WithdrawReason::GracefulShutdown, world.now);
    let withdrawal = Withdraw::parse(&withdrawal).unwrap();
    assert_eq!(withdrawal.node_id, world.node.id());
    assert!(withdrawal.detail.unwrap().sequence > second.sequence);
}

#[test]
fn a_degraded_node_says_so_to_those_who_look_for_it() {
    let mut world = World::with(placed());
    let degraded = question(&[Filter::new(FilterField::ResourceFlags, FilterOp::Contains, &[0, 2])]);
    let answer = |world: &mut World| world.node.solicited(&degraded, Some(known(1)), None, world.now).unwrap();
    assert_eq!(answer(&mut world), [0, 0]);
    world.node.journal_failed();
    let answer = answer(&mut world);
    let nodes = Relayed::parse(&answer).unwrap();
    let own = nodes.iter().next().unwrap();
    let own = Announce::parse(own.get()).unwrap();
    assert!(own.resources.iter().any(|resource| resource.flags.contains(ResourceFlags::DEGRADED)));
}

#[test]
fn signed_questions_are_within_their_senders_rate() {
    let mut world = World::with(berth_fabric::Config { max_requests_per_sec: 3, ..placed() });
    let mut answered = |sender, after| {
        let now = world.now.after(Duration::from_secs(after));
        world.node.solicited(&question(&[]), sender, None, now).is_some()
    };
    assert_eq!([0; 4].map(|_| answered(Some(known(1)), 0)), [true, true, true, false]);
    assert!(answered(Some(known(2)), 0) && answered(Some(known(1)), 1));
    assert!(!answered(None, 0), "an unsigned one must be padded");
}

#[test]
fn a_question_to_a_full_relay_is_looked_through_in_pieces_and_counts_as_many() {
    let mut world = World::with(berth_fabric::Config { max_requests_per_sec: 1000, ..placed() });
    let announcement = world.node.announcement(world.now);
    let announcement = Announce::parse(&announcement).unwrap();
    let mut relay = Relay::default();
    for node_id in 1..4000 {
        relay.announced(node_id, &Announce { node_id, ..announcement }.to_vec(), world.now.mono).unwrap();
    }
    let filters = [Filter::new(FilterField::ResourceFlags, FilterOp::Contains, &[0, 2]); 32];
    let mut search = world.node.solicit(&question(&filters), Some(known(1)), Some(&relay), world.now).unwrap();
    let pieces = 1 + (0..1000).take_while(|_| !search.step()).count();
    assert!(pieces >= 10, "{pieces}");
    assert_eq!(world.node.answer_solicit(search, Some(&mut relay)), Some(vec![0, 0]));
    let more = (0..100)
        .take_while(|_| world.node.solicit(&question(&filters), Some(known(1)), Some(&relay), world.now).is_some());
    let more = more.count();
    assert!((1..10).contains(&more), "{more}");
    assert!(world.node.solicit(&question(&filters), Some(known(2)), Some(&relay), world.now).is_some());
}

#[test]
fn a_relay_answers_with_itself_and_those_that_announced() {
    let mut world = World::with(placed());
    let mut other = World::start(placed(), regions(), berth_fabric::Recovered::default(), START, 8);
    let announcement = other.node.announcement(other.now);
    let mut relay = Relay::default();
    // Both worlds have the same key, so the other one gets an id of its own here.
    let announcement = Announce { node_id: 5, ..Announce::parse(&announcement).unwrap() }.to_vec();
    relay.announced(5, &announcement, other.now.mono).unwrap();
    let ids = |world: &mut World, relay: Option<&mut Relay>| {
        let answer = world.node.solicited(&question(&[]), Some(known(1)), relay, world.now).unwrap();
        let nodes = Relayed::parse(&answer).unwrap();
        nodes.iter().map(|node| Announce::parse(node.get()).unwrap().node_id).collect::<Vec<_>>()
    };
    let own = world.node.id();
    assert_eq!(ids(&mut world, Some(&mut relay)), [own, 5]);
    assert_eq!(ids(&mut world, None), [own]);
}
