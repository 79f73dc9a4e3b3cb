//! Secrets that LEASE_BIND answers: over QUIC alone, another one each time, the same after a restart.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use crate::common::*;
use berth_fabric::{
    BindSecret, Binding, BlockingWork, BoundLease, Carrier, Recovered, Request, TeardownFailed, journal::Record,
};
use berth_lease::LeaseId;
use berth_wire::fabric::{BindKind, LeaseBind, Op, Perms, ResourceType, Status, Tlv, Tlvs, Wire as _};

/// A transport that tells secrets, or one that does not.
#[derive(Debug)]
struct Disk {
    name: &'static str,
    tells: bool,
    given: Arc<Mutex<Vec<Option<BindSecret>>>>,
}

impl Binding for Disk {
    fn kind(&self) -> BindKind {
        BindKind::NvmeOf
    }

    fn name(&self) -> &str {
        self.name
    }

    fn resumes(&self) -> bool {
        true
    }

    fn answers_secrets(&self) -> bool {
        self.tells
    }

    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        self.given.lock().unwrap().push(lease.secret);
        Ok(())
    }

    fn teardown(&mut self, _: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        Ok(None)
    }
}

type Given = Arc<Mutex<Vec<Option<BindSecret>>>>;

fn world(tells: &[bool], recovered: Recovered, seed: u64) -> (World, Given) {
    let given = Given::default();
    let bindings = tells
        .iter()
        .zip(["a", "b"])
        .map(|(&tells, name)| -> Box<dyn Binding> { Box::new(Disk { name, tells, given: given.clone() }) });
    (World::start_with(config(), regions(), bindings.collect(), recovered, START, seed), given)
}

fn bind(world: &mut World, carrier: Carrier, token: &[u8], lease: LeaseId, client: &[u8]) -> Status {
    let params = LeaseBind { lease_id: lease.0, kind: 3, client: Tlvs::parse(client).unwrap() }.to_vec();
    let request = Request {
        carrier,
        presenter: identity(1).id().0,
        source: SocketAddr::from(([10, 0, 0, 1], 5000)),
        op: Op::LeaseBind.code(),
        resource: 0,
        token,
        params: &params,
    };
    world.ask_request(&request).unwrap().answer.status
}

#[test]
fn secrets_are_for_quic_alone_and_last_as_long_as_the_binding() {
    let (mut world, given) = self::world(&[true], Recovered::default(), 7);
    let token = world.token(1, Perms::ALLOC | Perms::READ);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    assert_eq!(bind(&mut world, Carrier::Quic, &token, lease, &[]), Status::Ok);
    let journaled = world.journal.len();
    let udp = Carrier::Udp { nonce: 1 << 40 };
    assert_eq!(bind(&mut world, udp, &token, lease, &[]), Status::InsufficientPerm);
    assert_eq!(given.lock().unwrap().len(), 1);
    let later = world.journal[journaled..].iter();
    assert!(later.clone().all(|record| !matches!(record, Record::Unbound { .. })), "what was bound is bound still");
    assert_eq!(bind(&mut world, Carrier::Quic, &token, lease, &[]), Status::Ok);
    let secrets: Vec<_> = given.lock().unwrap().iter().map(|secret| secret.unwrap()).collect();
    assert_ne!(secrets[0], secrets[1]);
    assert_eq!(format!("{:?}", secrets[1]), "BindSecret");
    let texts = |record: &Record| match record {
        Record::Bound { client, .. } => client.windows(8).any(|part| part == &secrets[1].0[..8]),
        _ => false,
    };
    assert!(!world.journal.iter().any(texts), "the journal does not have it");

    // Chosen by a client it would be nobody's secret.
    let mut own = Vec::new();
    Tlv::append(&mut own, 0x04FF, |value| value.extend([0; 16]));
    assert_eq!(bind(&mut world, Carrier::Quic, &token, lease, &own), Status::InvalidParams);

    let recovered: Recovered = world.journal.iter().cloned().collect();
    let (_, again) = self::world(&[true], recovered.clone(), 9);
    assert_eq!(*again.lock().unwrap(), [Some(secrets[1])], "whatever the node draws since");
    // A binding that has come to tell secrets has none for who was bound before.
    let (_, plain) = self::world(&[false], recovered, 9);
    assert_eq!(*plain.lock().unwrap(), [None]);
    let (mut world, _) = self::world(&[false], Recovered::default(), 7);
    let token = world.token(1, Perms::ALLOC | Perms::READ);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    assert_eq!(bind(&mut world, udp, &token, lease, &[]), Status::Ok);
    let (_, none) = self::world(&[true], world.journal.iter().cloned().collect(), 9);
    assert_eq!(*none.lock().unwrap(), [None]);
}

#[test]
fn a_request_over_udp_goes_to_a_binding_without_secrets() {
    for tells in [[true, false], [false, true]] {
        let (mut world, given) = world(&tells, Recovered::default(), 7);
        let token = world.token(1, Perms::ALLOC | Perms::READ);
        let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
        assert_eq!(bind(&mut world, Carrier::Udp { nonce: 1 << 40 }, &token, lease, &[]), Status::Ok);
        assert_eq!(*given.lock().unwrap(), [None]);
        assert_eq!(bind(&mut world, Carrier::Quic, &token, lease, &[]), Status::Ok);
        assert_eq!(given.lock().unwrap()[1].is_some(), tells[0]);
    }
}
