//! Announcements, withdrawals and solicitations, as a node and as a relay.

use std::{collections::BTreeSet, time::Duration};

use berth_fabric::discovery::{Discovery, Ignored, MAX_NODES, MAX_RELAY_BYTES, MAX_TTL, Relay};
use berth_port::Nanos;
use berth_wire::fabric::{
    Announce, Filter, FilterField, FilterOp, List, MAX_RELAYED, Relayed, ResourceFlags, ResourceSummary, Solicit, Tlv,
    Wire as _, Withdraw, WithdrawDetail, WithdrawReason,
};
use proptest::prelude::*;

const NOW: Nanos = Nanos(7_000_000_000);
const MEM: u16 = 2;
const BLOCK: u16 = 3;

fn resource(resource_type: u16, flags: ResourceFlags) -> ResourceSummary {
    ResourceSummary { resource_id: 1, resource_type, flags, capacity: 10, available: 5 }
}

fn locality(bytes: &[u8]) -> [u8; 32] {
    let mut all = [0; 32];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}

fn announce(node_id: u128, sequence: u64) -> Announce<'static> {
    const RESOURCES: &[ResourceSummary] = &[
        ResourceSummary { resource_id: 1, resource_type: MEM, flags: ResourceFlags::NONE, capacity: 10, available: 5 },
        ResourceSummary {
            resource_id: 2,
            resource_type: BLOCK,
            flags: ResourceFlags::DEGRADED,
            capacity: 10,
            available: 5,
        },
    ];
    Announce {
        node_id,
        sequence,
        ttl_secs: 30,
        site: 1,
        row: 20,
        rack: 300,
        locality_custom: locality(&[1, 2, 3]),
        endpoints: List::EMPTY,
        resources: List::of(RESOURCES).unwrap(),
        tlvs: List::EMPTY,
    }
}

fn question(filters: &[Filter], padding: usize) -> Vec<u8> {
    Solicit { filters: List::of(filters).unwrap(), padding }.to_vec()
}

fn ids(answer: &[u8]) -> Vec<u128> {
    let nodes = Relayed::parse(answer).unwrap();
    nodes.iter().map(|node| Announce::parse(node.get()).unwrap().node_id).collect()
}

/// Node ids in the relay's answer to a signed SOLICIT.
fn ask(relay: &mut Relay, filters: &[Filter], now: Nanos) -> Vec<u128> {
    let own = announce(1, 1).to_vec();
    let answer = Discovery::default().solicited(&question(filters, 0), true, &own, Some(relay), now);
    ids(&answer.unwrap())
}

#[test]
fn every_field_and_operator_filters() {
    use FilterField::{LocalityCustom, NodeId, RackId, ResourceFlags as Flags, ResourceType, RowId, SiteId};
    use FilterOp::{Contains, Eq, Gt, Lt};
    let own = announce(77, 1).to_vec();
    let matches = |filters: &[Filter]| {
        let answer = Discovery::default().solicited(&question(filters, 0), true, &own, None, NOW).unwrap();
        match ids(&answer).as_slice() {
            [] => false,
            [77] => true,
            other => panic!("{other:?}"),
        }
    };
    let one = |field, op, value: &[u8]| matches(&[Filter::new(field, op, value)]);
    assert!(matches(&[]));

    let u32s = [(SiteId, 1_u32), (RowId, 20), (RackId, 300)];
    for (field, is) in u32s {
        for (op, value, expected) in [
            (Eq, is, true),
            (Eq, is + 1, false),
            (Gt, is - 1, true),
            (Gt, is, false),
            (Lt, is + 1, true),
            (Lt, is, false),
            (Contains, is, false),
        ] {
            assert_eq!(one(field, op, &value.to_be_bytes()), expected, "{field} {op} {value}");
        }
    }
    assert!(one(NodeId, Eq, &77_u128.to_be_bytes()));
    assert!(!one(NodeId, Eq, &78_u128.to_be_bytes()));
    assert!(!one(NodeId, Gt, &1_u128.to_be_bytes()));
    assert!(one(LocalityCustom, Eq, &[1, 2, 3]));
    assert!(!one(LocalityCustom, Eq, &[1, 2]));
    assert!(one(LocalityCustom, Contains, &[0, 2]));
    assert!(one(LocalityCustom, Contains, &[]));
    assert!(!one(LocalityCustom, Contains, &[0, 3]));
    assert!(!one(LocalityCustom, Gt, &[1]));
    assert!(one(ResourceType, Eq, &MEM.to_be_bytes()));
    assert!(!one(ResourceType, Eq, &5_u16.to_be_bytes()));
    assert!(!one(ResourceType, Contains, &MEM.to_be_bytes()));
    assert!(one(Flags, Eq, &[0, 2]));
    assert!(!one(Flags, Eq, &[0, 3]));
    assert!(one(Flags, Contains, &[0, 2]));
    assert!(one(Flags, Contains, &[0, 0]));
    assert!(!one(Flags, Contains, &[0, 3]));
    assert!(!one(Flags, Lt, &[0, 3]));

    let mut with_rest = Filter::new(SiteId, Eq, &1_u32.to_be_bytes());
    with_rest.value[4..].fill(0xEE);
    assert!(matches(&[with_rest]), "bytes that the field does not use are ignored");
    for (field, op) in [(0, 0), (8, 0), (0x40, 0), (0x80, 0), (1, 4), (3, 9)] {
        assert!(!matches(&[Filter { field, op, value: locality(&[0, 2]) }]), "{field} {op}");
    }

    let type_is = |value: u16| Filter::new(ResourceType, Eq, &value.to_be_bytes());
    let degraded = Filter::new(Flags, Contains, &[0, 2]);
    let site = |value: u32| Filter::new(SiteId, Eq, &value.to_be_bytes());
    assert!(matches(&[type_is(BLOCK), degraded, site(1)]));
    assert!(!matches(&[type_is(MEM), degraded]), "both are of one resource");
    assert!(!matches(&[type_is(BLOCK), degraded, site(2)]));
}

#[test]
fn no_match_is_an_empty_list() {
    let own = announce(77, 1).to_vec();
    let nowhere = [Filter::new(FilterField::SiteId, FilterOp::Eq, &9_u32.to_be_bytes())];
    let answer = Discovery::default().solicited(&question(&nowhere, 0), false, &own, None, NOW);
    assert_eq!(answer.unwrap(), [0, 0]);
}

#[test]
fn an_unsigned_question_is_as_long_as_its_answer() {
    let own = announce(77, 1).to_vec();
    let mut discovery = Discovery::default();
    let mut answer = |padding, signed| discovery.solicited(&question(&[], padding), signed, &own, None, NOW);
    let needed = 2 + 4 + own.len() - 3;
    assert_eq!(answer(needed - 1, false), None);
    let full = answer(needed, false).unwrap();
    assert_eq!(full.len(), question(&[], needed).len());
    assert_eq!(answer(0, true).unwrap(), full);
    let mut counts = Vec::new();
    discovery.counters(&mut |name, count| counts.push((name, count)));
    assert_eq!(
        counts,
        [("solicits_answered", 2), ("solicits_malformed", 0), ("solicits_unpadded", 1), ("solicits_over_budget", 0)]
    );
    let padded_with_ones = [question(&[], 0), vec![1; needed]].concat();
    assert_eq!(discovery.solicited(&padded_with_ones, true, &own, None, NOW), None);
    assert_eq!(discovery.solicited(&[1, 0, 0], true, &own, None, NOW), None, "an unknown query");
}

#[test]
fn announcements_of_a_node_rise_across_restarts() {
    let mut discovery = Discovery::default();
    let unix = Nanos(1_800_000_000_000_000_000);
    let sequence = |payload: &[u8]| Announce::parse(payload).unwrap().sequence;
    let first = sequence(&discovery.announcement(announce(77, 0), unix));
    let second = sequence(&discovery.announcement(announce(77, 0), unix));
    let withdrawn = Withdraw::parse(&discovery.withdrawal(77, WithdrawReason::Maintenance, unix)).unwrap();
    let detail = withdrawn.detail.unwrap();
    assert!(first < second && second < detail.sequence);
    assert_eq!((withdrawn.node_id, detail.reason), (77, 1));
    let restarted = Discovery::default().announcement(announce(77, 0), unix + Duration::from_millis(1));
    assert!(detail.sequence < sequence(&restarted));
}

#[test]
fn a_relay_holds_the_newest_of_each_node_while_it_counts() {
    let mut relay = Relay::default();
    let at = |seconds| NOW + Duration::from_secs(seconds);
    assert_eq!(relay.announced(2, &announce(2, 5).to_vec(), NOW), Ok(()));
    assert_eq!(relay.announced(3, &announce(3, 9).to_vec(), at(10)), Ok(()));
    let moved = Announce { site: 4, ..announce(2, 6) };
    assert_eq!(relay.announced(2, &moved.to_vec(), at(1)), Ok(()));
    assert_eq!(relay.announced(2, &announce(2, 6).to_vec(), at(2)), Err(Ignored::Old));
    assert_eq!(relay.announced(2, &announce(2, 5).to_vec(), at(2)), Err(Ignored::Old));
    assert_eq!(relay.announced(2, &announce(3, 99).to_vec(), at(2)), Err(Ignored::Foreign));
    assert!(matches!(relay.announced(2, &[0; 16], at(2)), Err(Ignored::Malformed(_))));

    let own_and = |ids: &[u128]| [&[1], ids].concat();
    assert_eq!(ask(&mut relay, &[], at(2)), own_and(&[2, 3]));
    let site = Filter::new(FilterField::SiteId, FilterOp::Eq, &4_u32.to_be_bytes());
    assert_eq!(ask(&mut relay, &[site], at(2)), [2], "the newest one is looked at");
    assert_eq!(ask(&mut relay, &[], at(30)), own_and(&[2, 3]));
    assert_eq!(ask(&mut relay, &[], at(31)), own_and(&[3]));
    assert_eq!(relay.len(), 2);
    relay.expire(at(31));
    assert_eq!(relay.len(), 1);
    assert_eq!(relay.announced(2, &announce(2, 6).to_vec(), at(31)), Err(Ignored::Old), "the sequence stays");
    assert_eq!(relay.announced(2, &announce(2, 7).to_vec(), at(31)), Ok(()));
    assert_eq!(ask(&mut relay, &[], at(32)), own_and(&[2, 3]));
}

#[test]
fn withdrawals_rise_too_but_for_the_older_form() {
    let mut relay = Relay::default();
    let withdraw =
        |node_id, sequence| Withdraw { node_id, detail: Some(WithdrawDetail { sequence, reason: 0 }) }.to_vec();
    let older = |node_id| Withdraw { node_id, detail: None }.to_vec();
    relay.announced(2, &announce(2, 5).to_vec(), NOW).unwrap();
    assert_eq!(relay.withdrawn(2, &withdraw(2, 5)), Err(Ignored::Old));
    assert_eq!(relay.withdrawn(3, &withdraw(2, 6)), Err(Ignored::Foreign));
    assert_eq!(relay.withdrawn(3, &older(2)), Err(Ignored::Foreign));
    assert!(matches!(relay.withdrawn(2, &[0; 24]), Err(Ignored::Malformed(_))));
    assert_eq!(ask(&mut relay, &[], NOW), [1, 2]);
    assert_eq!(relay.withdrawn(2, &withdraw(2, 6)), Ok(()));
    assert_eq!(ask(&mut relay, &[], NOW), [1]);
    assert_eq!(relay.announced(2, &announce(2, 6).to_vec(), NOW), Err(Ignored::Old));
    assert_eq!(relay.announced(2, &announce(2, 7).to_vec(), NOW), Ok(()));
    assert_eq!(relay.withdrawn(2, &older(2)), Ok(()));
    assert!(relay.is_empty());
    assert_eq!(relay.announced(2, &announce(2, 8).to_vec(), NOW), Ok(()));
    assert_eq!(relay.withdrawn(4, &withdraw(4, 100)), Ok(()), "before its first announcement, for what is under way");
    assert_eq!(relay.announced(4, &announce(4, 99).to_vec(), NOW), Err(Ignored::Old));
}

#[test]
fn the_relay_itself_is_in_the_answer_once() {
    let mut relay = Relay::default();
    relay.announced(1, &announce(1, 50).to_vec(), NOW).unwrap();
    assert_eq!(ask(&mut relay, &[], NOW), [1]);
}

#[test]
fn at_a_relays_caps_who_was_heard_longest_ago_or_says_most_gives_way() {
    let mut relay = Relay::default();
    let (first, late) = (10, 10 + MAX_NODES as u128);
    for id in first..late {
        relay.announced(id, &announce(id, 1).to_vec(), NOW + Duration::from_nanos(id as u64)).unwrap();
    }
    let soon = NOW + Duration::from_secs(1);
    let is_known = |relay: &mut Relay, id: u128| {
        ask(relay, &[Filter::new(FilterField::NodeId, FilterOp::Eq, &id.to_be_bytes())], soon) == [id]
    };
    assert_eq!(relay.announced(first, &announce(first, 2).to_vec(), soon), Ok(()), "it takes no other's place");
    assert_eq!(relay.announced(late, &announce(late, 1).to_vec(), soon), Ok(()));
    assert_eq!([first, first + 1, first + 2, late].map(|id| is_known(&mut relay, id)), [true, false, true, true]);
    assert_eq!(relay.len(), MAX_NODES);
    let after = NOW + Duration::from_secs(40);
    assert_eq!(relay.announced(late + 1, &announce(late + 1, 1).to_vec(), after), Ok(()), "what is over goes first");
    assert_eq!(relay.len(), 1);

    let mut displaced = 0;
    relay.counters(&mut |name, count| displaced += if name == "relay_announcements_displaced" { count } else { 0 });
    assert_eq!(displaced, 1);

    let mut relay = Relay::default();
    relay.announced(7, &announce(7, 1).to_vec(), NOW).unwrap();
    let resources = vec![resource(MEM, ResourceFlags::NONE); 1000];
    let large = |id, more: usize| {
        Announce { resources: List::of(&resources[..999 + more]).unwrap(), ..announce(id, 1) }.to_vec()
    };
    for id in 0..MAX_RELAY_BYTES / large(0, 0).len() {
        relay.announced(1000 + id as u128, &large(1000 + id as u128, 0), soon).unwrap();
    }
    let (before, newcomer) = (relay.len(), 99_999);
    assert_eq!(relay.announced(newcomer, &large(newcomer, 1), soon), Err(Ignored::Full), "longer than any other");
    assert_eq!(relay.announced(newcomer, &large(newcomer, 0), soon), Ok(()));
    assert_eq!(relay.len(), before, "another of its kind gave way");
    assert!(is_known(&mut relay, 7), "and not who says little, though it was heard first");
    let value = vec![0; 60_000];
    let tlvs = [Tlv::of(0x0801, &value).unwrap()];
    let too_long =
        Announce { resources: List::of(&resources).unwrap(), tlvs: List::of(&tlvs).unwrap(), ..announce(2, 9) };
    assert!(matches!(relay.announced(2, &too_long.to_vec(), NOW), Err(Ignored::Malformed(_))));
}

#[test]
fn an_announcement_counts_for_an_hour_at_most() {
    let mut relay = Relay::default();
    relay.announced(5, &Announce { ttl_secs: u32::MAX, ..announce(5, 1) }.to_vec(), NOW).unwrap();
    assert_eq!(ask(&mut relay, &[], NOW + MAX_TTL.saturating_sub(Duration::from_nanos(1))).len(), 2);
    assert_eq!(ask(&mut relay, &[], NOW + MAX_TTL).len(), 1);
}

#[test]
fn snapshots_that_do_not_hold_all_take_turns() {
    let mut relay = Relay::default();
    for id in 2..3000 {
        relay.announced(id, &announce(id, 1).to_vec(), NOW).unwrap();
    }
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let some = ask(&mut relay, &[], NOW);
        assert_eq!(some.len(), MAX_RELAYED);
        assert_eq!(some.iter().collect::<BTreeSet<_>>().len(), some.len(), "each node once");
        seen.extend(some);
    }
    assert_eq!(seen.len(), 2999);
}

#[test]
fn unsigned_questions_cause_only_so_much_work() {
    let mut relay = Relay::default();
    for id in 2..3000 {
        relay.announced(id, &announce(id, 1).to_vec(), NOW).unwrap();
    }
    let own = announce(1, 1).to_vec();
    let filters = [Filter::new(FilterField::ResourceFlags, FilterOp::Contains, &[0, 1]); 32];
    let mut discovery = Discovery::default();
    let mut ask =
        |signed, now| discovery.solicited(&question(&filters, 0), signed, &own, Some(&mut relay), now).is_some();
    let answered = (0..200).filter(|_| ask(false, NOW)).count();
    assert!((10..100).contains(&answered), "{answered}");
    assert!(ask(true, NOW), "a signed one is in its sender's rate");
    assert!(ask(false, NOW + Duration::from_secs(1)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_is_never_longer_than_an_unsigned_question(
        nodes in 0..12_u128,
        site in 0..3_u32,
        padding in 0..3000_usize,
        to_relay in any::<bool>(),
    ) {
        let mut relay = Relay::default();
        for id in 2..2 + nodes {
            let announce = Announce { site: id as u32 % 3, ..announce(id, 1) };
            relay.announced(id, &announce.to_vec(), NOW).unwrap();
        }
        let own = announce(1, 1).to_vec();
        let filter = Filter::new(FilterField::SiteId, FilterOp::Eq, &site.to_be_bytes());
        let question = question(&[filter], padding);
        let wanted = u128::from(site == 1) + (2..2 + nodes).filter(|id| to_relay && *id as u32 % 3 == site).count() as u128;
        let answer = Discovery::default().solicited(&question, false, &own, to_relay.then_some(&mut relay), NOW);
        let needed = 2 + wanted as usize * (4 + own.len());
        prop_assert_eq!(answer.is_some(), needed <= question.len());
        if let Some(answer) = answer {
            prop_assert_eq!((answer.len(), ids(&answer).len() as u128), (needed, wanted));
        }
    }
}
