//! A node that starts from a journal.

use std::time::{Duration, SystemTime};

use berth_control::{Control, Listen, Settings};
use berth_fabric::{
    Config, Recovered,
    journal::{Grant, MAX_FRAME_LEN, Record, encode},
    resource_id,
};
use berth_host::TscClock;
use berth_journal::Journal;
use berth_lease::GRANULE;
use berth_port::Nanos;
use berth_wire::fabric::ResourceType;

use crate::common::{LOCAL, memory, who};

/// Number of leases whose generations, raised by a restart, are more than one commit may hold.
const LEASES: u64 = 150_000;

#[test]
fn as_many_leases_in_memory_as_there_may_be_are_served_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let at = Nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64);
    let grant = |number: u64| {
        Record::Granted(Grant {
            lease: u128::from(number + 1) << 64 | u128::from(number + 1),
            resource: resource_id(who(1).id().0, ResourceType::Mem, "mem"),
            base: number * GRANULE,
            len: GRANULE,
            first: 0,
            holder: 1,
            token: 1,
            rights: 3,
            generation: 1,
            at,
            expires: at + Duration::from_hours(1),
            grace: Nanos(0),
            unit: Vec::new(),
        })
    };
    let grants: Vec<Record> = (0..LEASES).map(grant).collect();
    let mut bytes = Vec::new();
    for grant in &grants {
        encode(grant, &mut bytes);
    }
    assert!(bytes.len() > MAX_FRAME_LEN);
    {
        let journal = Journal::open(folder.path(), drop).unwrap().journal;
        journal.commit(&[Record::Started { epoch: 1, at }]).wait().unwrap();
        for grants in grants.chunks(1000) {
            journal.commit(grants).wait().unwrap();
        }
    }
    let control = Control::open(Settings {
        identity: who(1),
        listen: Listen { udp: LOCAL, quic: LOCAL, relay: None, fbmu: None, fbmt: None, fbbt: None },
        announce: Vec::new(),
        state_dir: folder.path().into(),
        cpus: vec![0],
        clock: TscClock::calibrate(Duration::from_millis(20)),
        regions: memory((LEASES * GRANULE) as usize),
        resources: Vec::new(),
        bindings: Vec::new(),
        tasklet_cpus: Vec::new(),
        node: Config {
            leases: berth_lease::Config { capacity: LEASES as usize, ..Default::default() },
            ..Config::default()
        },
    })
    .unwrap();
    drop(control);
    let mut recovered = Recovered::default();
    Journal::open(folder.path(), |record| recovered.apply(record)).unwrap();
    assert_eq!((recovered.epoch, recovered.leases.len() as u64), (2, LEASES));
    assert!(recovered.leases.values().all(|lease| lease.grant.generation == 2));
}
