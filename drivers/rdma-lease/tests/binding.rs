//! The binding on a device that only notes what it is told to do.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_fabric::{Binding as _, BoundLease, Reach, TeardownFailed};
use berth_lease::{Generation, LeaseId, RegionId, Rights, Span};
use berth_port::Nanos;
use berth_rdma_lease::{
    Connect, End, FIRST_PROBE, Hca, HcaError, Key, Local, PROBE_EVERY, Peer, RdmaBinding, Seen, Unconnected, Unended,
};
use berth_wire::fabric::{BindingTlv, ClientTlv, Status, Tlvs, Wire as _};

/// What the device was told.
#[derive(Debug, Default)]
struct Told {
    next: u32,
    connected: Vec<(Peer, BoundLease)>,
    reached: BTreeSet<u32>,
    ended: Vec<u32>,
    probed: Vec<u32>,
    closed: usize,
    seen: Vec<Seen>,
    /// What goes wrong with the next lease.
    wrong: Option<Wrong>,
    /// Nothing can be ended.
    stuck: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Gone,
    Unreachable,
    /// The lease's bytes are another device's.
    NoDmaBufs,
    /// A queue pair is connected, and no key made.
    NoKey,
    /// A key is made, and whether it is good is not known.
    NotGranted,
}

#[derive(Debug, Clone, Default)]
struct Noted(Arc<Mutex<Told>>);

impl Noted {
    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.0.lock().unwrap()
    }
}

fn failed() -> HcaError {
    HcaError::Failed("what the driver said".into())
}

impl Hca for Noted {
    type Link = u32;

    fn begin(&mut self, peer: Peer, lease: &BoundLease) -> Connect<u32> {
        let (device, lease) = (self.clone(), *lease);
        Box::new(move || {
            let mut told = device.told();
            if told.wrong == Some(Wrong::Gone) {
                return Err(HcaError::Gone("none".into()).into());
            }
            told.connected.push((peer, lease));
            told.next += 1;
            match told.wrong {
                Some(Wrong::Unreachable) => Err(HcaError::Unreachable("what the driver said".into()).into()),
                Some(Wrong::NoDmaBufs) => {
                    let error = HcaError::NoDmaBufs("what the driver said".into());
                    Err(Unconnected { error, left: Some(Box::new(told.next)) })
                }
                Some(Wrong::NoKey) => Err(Unconnected { error: failed(), left: Some(Box::new(told.next)) }),
                _ => Ok((told.next, Key { rkey: 0x500 + told.next, region_addr: 1 << 40 })),
            }
        })
    }

    fn local(link: &u32) -> Local {
        Local { qp_num: *link, gid: [9; 16], port: 2, psn: 77 }
    }

    fn grant(&mut self, link: &mut u32, rights: Rights) -> Result<(), HcaError> {
        assert_eq!(rights, Rights::READ);
        let mut told = self.told();
        told.reached.insert(*link);
        if told.wrong == Some(Wrong::NotGranted) { Err(failed()) } else { Ok(()) }
    }

    fn end(&mut self, link: u32) -> End<u32> {
        let device = self.clone();
        Box::new(move || {
            let mut told = device.told();
            if told.stuck {
                return Err(Unended { error: failed(), link: Box::new(link) });
            }
            told.reached.remove(&link);
            told.ended.push(link);
            Ok(())
        })
    }

    fn probe(&mut self, link: &mut u32) -> Result<(), HcaError> {
        self.told().probed.push(*link);
        Ok(())
    }

    fn poll(&mut self, seen: &mut Vec<Seen>) {
        seen.append(&mut self.told().seen);
    }

    fn close(&mut self) {
        self.told().closed += 1;
    }
}

type Binding = RdmaBinding<Noted>;

fn node(max: usize) -> (Binding, Noted) {
    let hca = Noted::default();
    (RdmaBinding::new("rxe0".into(), hca.clone(), max), hca)
}

fn lease(id: u128) -> BoundLease {
    let span = Span { region: RegionId(0), at: 0x3010, len: 0xFF0 };
    let reach = Reach::Bytes { span, first: 0x10 };
    BoundLease { id: LeaseId(id), generation: Generation(1), rights: Rights::READ, reach, secret: None }
}

const PEER: Peer = Peer { qp_num: 17, gid: [7; 16], psn: 0x00FF_FFFF, mtu: 1024 };

fn described(Peer { qp_num, gid, psn, mtu }: Peer) -> Vec<u8> {
    let mut client = Vec::new();
    ClientTlv::RdmaPeer { qp_num, gid, psn, mtu }.write(&mut client);
    client
}

fn bind(binding: &mut Binding, id: u128) -> Result<Vec<u8>, Status> {
    let client = described(PEER);
    let client = Tlvs::parse(&client).unwrap();
    binding.prepare(&lease(id), client)?.expect("clients must be looked for").run();
    let mut out = Vec::new();
    binding.bind(&lease(id), client, &mut out).map(|()| out)
}

fn count(binding: &Binding, wanted: &str) -> u64 {
    let mut found = None;
    binding.counters(&mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("no {wanted}"))
}

/// A tick so long after the start; what is lost is torn down.
fn at(binding: &mut Binding, time: Duration) {
    let mut lost = Vec::new();
    binding.tick(Nanos(0) + time, &mut lost);
    for lease in lost {
        end(binding, lease.0).unwrap();
    }
}

/// Tears a lease's connection down, to the end.
fn end(binding: &mut Binding, id: u128) -> Result<(), TeardownFailed> {
    let Some(work) = binding.teardown(LeaseId(id))? else { return Ok(()) };
    work.run();
    binding.torn_down(LeaseId(id))
}

#[test]
fn a_client_is_told_how_to_reach_its_lease() {
    let (mut binding, hca) = node(1);
    let tlvs = bind(&mut binding, 1).unwrap();
    let mut expected = Vec::new();
    for tlv in [
        BindingTlv::RdmaRkey(0x501),
        // Of the lease's first byte, which is before those that this client may reach.
        BindingTlv::RdmaRemoteAddr((1 << 40) + 0x3000),
        BindingTlv::RdmaQpNum(1),
        BindingTlv::RdmaGid([9; 16]),
        BindingTlv::RdmaPort(2),
        BindingTlv::RdmaPsn(77),
    ] {
        tlv.write(&mut expected);
    }
    assert_eq!(tlvs, expected);
    assert_eq!(hca.told().connected, [(PEER, lease(1))]);
    let work = binding.teardown(LeaseId(1)).unwrap().expect("a queue pair is to be destroyed");
    assert_eq!(hca.told().ended, [], "whoever holds the node does not wait for that");
    work.run();
    assert_eq!(binding.torn_down(LeaseId(1)), Ok(()));
    assert_eq!(hca.told().ended, [1]);
    assert_eq!(end(&mut binding, 1), Ok(()), "also where nothing is connected");
    assert_eq!(hca.told().ended, [1]);
}

#[test]
fn a_client_describes_itself_well() {
    let (mut binding, hca) = node(1);
    let wrong = [
        Peer { qp_num: 1 << 24, ..PEER },
        Peer { psn: 1 << 24, ..PEER },
        Peer { mtu: 128, ..PEER },
        Peer { mtu: 1500, ..PEER },
        Peer { mtu: 8192, ..PEER },
    ];
    let mut tlvs: Vec<_> = wrong.into_iter().map(described).collect();
    tlvs.push(Vec::new());
    tlvs.push(vec![0x04, 0x10, 0, 1, 7]);
    for client in tlvs {
        let refused = binding.prepare(&lease(1), Tlvs::parse(&client).unwrap());
        assert_eq!(refused.err(), Some(Status::InvalidParams), "{client:?}");
    }
    assert_eq!(hca.told().connected, []);
    let blind = BoundLease { rights: Rights::NONE, ..lease(1) };
    let refused = binding.prepare(&blind, Tlvs::parse(&described(PEER)).unwrap());
    assert_eq!(refused.err(), Some(Status::InsufficientPerm));
}

/// It may take seconds to open and to register memory, and whoever holds the node does not wait for that.
#[test]
fn nothing_of_the_device_is_touched_before_the_preparation() {
    let (mut binding, hca) = node(1);
    hca.told().wrong = Some(Wrong::Gone);
    let client = described(PEER);
    let client = Tlvs::parse(&client).unwrap();
    let preparation = binding.prepare(&lease(1), client).unwrap().unwrap();
    assert_eq!(hca.told().connected, []);
    hca.told().wrong = None;
    preparation.run();
    assert_eq!(hca.told().connected, [(PEER, lease(1))]);
    assert_eq!(hca.told().reached, BTreeSet::new(), "its client does nothing before the lease is looked at again");
    binding.bind(&lease(1), client, &mut Vec::new()).unwrap();
    assert_eq!(hca.told().reached, BTreeSet::from([1]));
}

#[test]
fn connections_are_limited() {
    let (mut binding, _) = node(2);
    bind(&mut binding, 1).unwrap();
    bind(&mut binding, 2).unwrap();
    assert_eq!(bind(&mut binding, 3), Err(Status::CapacityExceeded));
    assert_eq!(count(&binding, "rdma_full"), 1);
    end(&mut binding, 1).unwrap();
    bind(&mut binding, 3).unwrap();
    assert_eq!(count(&binding, "rdma_connected"), 2);
}

#[test]
fn what_is_given_up_while_it_is_prepared_is_not_connected() {
    let (mut binding, hca) = node(1);
    let client = described(PEER);
    let client = Tlvs::parse(&client).unwrap();
    let preparation = binding.prepare(&lease(1), client).unwrap().unwrap();
    end(&mut binding, 1).unwrap();
    preparation.run();
    assert_eq!(hca.told().reached, BTreeSet::new(), "nor is its client let in before the lease is looked at again");
    assert_eq!(binding.bind(&lease(1), client, &mut Vec::new()), Err(Status::InternalError));
    assert_eq!(hca.told().reached, BTreeSet::new());
    hca.told().wrong = Some(Wrong::Unreachable);
    assert_eq!(bind(&mut binding, 1), Err(Status::InvalidParams));
    hca.told().wrong = None;
    bind(&mut binding, 1).unwrap();
}

/// Whether a key that was not given for sure is good, nobody knows.
#[test]
fn a_failed_bind_leaves_nothing_that_is_reached() {
    for wrong in [Wrong::NoKey, Wrong::NotGranted] {
        let (mut binding, hca) = node(1);
        hca.told().wrong = Some(wrong);
        hca.told().stuck = true;
        assert_eq!(bind(&mut binding, 1), Err(Status::InternalError));
        assert_eq!(end(&mut binding, 1), Err(TeardownFailed));
        hca.told().stuck = false;
        assert_eq!(end(&mut binding, 1), Ok(()));
        assert_eq!(hca.told().reached, BTreeSet::new());
        assert_eq!(hca.told().ended, [1]);
        assert_eq!(count(&binding, "rdma_binds_failed"), 1);
    }
}

/// Its client may find another way than RDMA; the operator sees for how many.
#[test]
fn a_lease_without_dma_bufs_is_not_for_rdma() {
    let (mut binding, hca) = node(1);
    hca.told().wrong = Some(Wrong::NoDmaBufs);
    for count_is in 1..=2 {
        assert_eq!(bind(&mut binding, 1), Err(Status::UnsupportedOp));
        end(&mut binding, 1).unwrap();
        assert_eq!(count(&binding, "rdma_no_dma_bufs"), count_is);
    }
    assert_eq!(hca.told().ended, [1, 2]);
    assert_eq!(count(&binding, "rdma_binds_failed"), 0);
}

#[test]
fn a_failed_teardown_is_tried_again() {
    let (mut binding, hca) = node(1);
    bind(&mut binding, 1).unwrap();
    hca.told().stuck = true;
    for _ in 0..2 {
        assert_eq!(end(&mut binding, 1), Err(TeardownFailed));
    }
    assert_eq!(bind(&mut binding, 2), Err(Status::CapacityExceeded), "it is still there");
    hca.told().stuck = false;
    assert_eq!(end(&mut binding, 1), Ok(()));
}

#[test]
fn clients_are_asked_for_signs_of_life_one_at_a_time() {
    let (mut binding, hca) = node(2);
    bind(&mut binding, 1).unwrap();
    at(&mut binding, FIRST_PROBE.saturating_sub(Duration::from_nanos(1)));
    assert_eq!(hca.told().probed, [], "it may still be connecting");
    at(&mut binding, FIRST_PROBE);
    assert_eq!(hca.told().probed, [1]);
    at(&mut binding, FIRST_PROBE + 5 * PROBE_EVERY);
    assert_eq!(hca.told().probed, [1], "the first is not answered");
    hca.told().seen.push(Seen::Alive(1));
    at(&mut binding, FIRST_PROBE + 6 * PROBE_EVERY);
    at(&mut binding, (FIRST_PROBE + 7 * PROBE_EVERY).saturating_sub(Duration::from_nanos(1)));
    assert_eq!(hca.told().probed, [1]);
    at(&mut binding, FIRST_PROBE + 7 * PROBE_EVERY);
    assert_eq!(hca.told().probed, [1, 1]);
}

#[test]
fn a_lost_or_faulty_client_loses_its_connection_alone() {
    let (mut binding, hca) = node(3);
    for id in 1..=3 {
        bind(&mut binding, id).unwrap();
    }
    hca.told().seen.extend([Seen::Lost(1), Seen::Faulted(3), Seen::Lost(1), Seen::Alive(99), Seen::Faulted(99)]);
    at(&mut binding, PROBE_EVERY);
    assert_eq!(hca.told().ended, [1, 3]);
    assert_eq!(hca.told().reached, BTreeSet::from([2]));
    let counts = ["rdma_connected", "rdma_peers_lost", "rdma_faults", "rdma_binds"].map(|name| count(&binding, name));
    assert_eq!(counts, [1, 1, 1, 3]);
    bind(&mut binding, 1).unwrap();
    assert_eq!(hca.told().reached, BTreeSet::from([2, 4]));
}

#[test]
fn a_device_goes_with_its_connections_and_comes_back() {
    let (mut binding, hca) = node(2);
    bind(&mut binding, 1).unwrap();
    bind(&mut binding, 2).unwrap();
    hca.told().seen.push(Seen::Removed);
    hca.told().wrong = Some(Wrong::Gone);
    at(&mut binding, PROBE_EVERY);
    assert_eq!(hca.told().ended, [1, 2]);
    assert_eq!(hca.told().closed, 1);
    assert_eq!(
        ["rdma_connected", "rdma_devices_removed", "rdma_links_removed"].map(|name| count(&binding, name)),
        [0, 1, 2]
    );
    assert_eq!(bind(&mut binding, 1), Err(Status::ResourceBusy));
    hca.told().wrong = None;
    bind(&mut binding, 1).unwrap();
    assert_eq!(hca.told().reached, BTreeSet::from([3]));
}
