//! A lease comes into the kernel's target and leaves it: in which order, and after a failure or a kill at every step.

mod fake;

use std::{io, path::PathBuf};

use berth_nvmet::{Address, Disk, Nvmet, Port};
use fake::{Fake, lease};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:1";
const RDMA: &str = "10.0.0.1:4420";

fn disk(n: u128) -> Disk {
    Disk { lease: lease(n), backing: PathBuf::from("/srv/blocks"), at: 4096, len: 65536 }
}

fn ports(nvmet: &Nvmet<Fake>) -> io::Result<Vec<Port>> {
    Ok(vec![nvmet.port(Address::Rdma(RDMA.parse().unwrap()))?, nvmet.port(Address::Loop)?])
}

/// All of it, from the start of a process to the end of a lease.
fn life(fake: &Fake) -> io::Result<()> {
    let nvmet = Nvmet::over(fake.clone())?;
    let ports = ports(&nvmet)?;
    nvmet.offer(&disk(1), &ports)?;
    nvmet.admit(lease(1), HOST)?;
    nvmet.withdraw(lease(1))
}

#[test]
fn the_steps_of_a_life_are_in_order() {
    let fake = Fake::new();
    life(&fake).unwrap();
    let nqn = "nqn.2026-02.io.fabricbios:lease:aaaa0000000000001111222233330001";
    let subsystem = format!("subsystems/{nqn}");
    let expected = [
        "mkdir ports/48640",
        "ports/48640/addr_trtype = rdma",
        "ports/48640/addr_adrfam = ipv4",
        "ports/48640/addr_traddr = 10.0.0.1",
        "ports/48640/addr_trsvcid = 4420",
        "mkdir ports/48641",
        "ports/48641/addr_trtype = loop",
        "attach /srv/blocks 4096+65536 as berth:aaaa0000000000001111222233330001",
        &format!("mkdir {subsystem}"),
        &format!("{subsystem}/attr_allow_any_host = 0"),
        &format!("{subsystem}/attr_serial = 00001111222233330001"),
        &format!("{subsystem}/attr_model = Berth"),
        &format!("mkdir {subsystem}/namespaces/1"),
        &format!("{subsystem}/namespaces/1/device_path = /dev/loop0"),
        &format!("{subsystem}/namespaces/1/device_uuid = aaaa0000-0000-0000-1111-222233330001"),
        &format!("{subsystem}/namespaces/1/device_nguid = aaaa0000-0000-0000-1111-222233330001"),
        &format!("{subsystem}/namespaces/1/enable = 1"),
        &format!("link ports/48640/subsystems/{nqn}"),
        &format!("link ports/48641/subsystems/{nqn}"),
        &format!("mkdir hosts/{HOST}"),
        &format!("link {subsystem}/allowed_hosts/{HOST}"),
        &format!("unlink ports/48640/subsystems/{nqn}"),
        &format!("unlink ports/48641/subsystems/{nqn}"),
        &format!("unlink {subsystem}/allowed_hosts/{HOST}"),
        &format!("rmdir hosts/{HOST}"),
        &format!("{subsystem}/namespaces/1/enable = 0"),
        &format!("rmdir {subsystem}/namespaces/1"),
        &format!("rmdir {subsystem}"),
    ];
    assert_eq!(fake.take_log(), expected);
    assert_eq!(fake.left(), ["ports/48640", "ports/48640/subsystems", "ports/48641", "ports/48641/subsystems"]);
}

/// How many operations a life has.
fn operations() -> usize {
    let fake = Fake::new();
    life(&fake).unwrap();
    let operations = fake.tree().done;
    assert!(operations > 40, "{operations}");
    operations
}

#[test]
fn what_a_kill_at_any_step_leaves_the_next_start_takes_away() {
    let operations = operations();
    for killed_at in 0..operations {
        // Killed once more, in the midst of the sweep.
        for again_at in 0..25 {
            let fake = Fake::new();
            fake.fail(killed_at, true);
            assert!(life(&fake).is_err());
            fake.mend();
            fake.fail(again_at, true);
            let again = Nvmet::over(fake.clone());
            fake.mend();
            drop(again);
            drop(Nvmet::over(fake.clone()).unwrap());
            let left: Vec<_> = fake.left().into_iter().filter(|left| !left.starts_with("hosts/")).collect();
            assert!(left.is_empty(), "killed at {killed_at} and {again_at}: {left:?}");
        }
    }
}

#[test]
fn what_fails_at_any_step_is_undone() {
    let (mut failed, mut at) = (0, 0);
    loop {
        let fake = Fake::new();
        let nvmet = Nvmet::over(fake.clone()).unwrap();
        let ports = ports(&nvmet).unwrap();
        let empty = fake.left();
        fake.fail(at, false);
        let result = nvmet.offer(&disk(1), &ports);
        if result.is_ok() && !fake.has_failed() {
            break;
        }
        failed += usize::from(result.is_err());
        fake.mend();
        if result.is_err() {
            assert_eq!(fake.left(), empty, "failed at {at}");
            assert!(!nvmet.has(lease(1)));
            nvmet.offer(&disk(1), &ports).unwrap();
        }
        at += 1;
    }
    assert!(failed > 12, "{failed}");
}

#[test]
fn an_end_that_fails_at_any_step_can_be_tried_again() {
    for at in 0..12 {
        let fake = Fake::new();
        let nvmet = Nvmet::over(fake.clone()).unwrap();
        let ports = ports(&nvmet).unwrap();
        let empty = fake.left();
        nvmet.offer(&disk(1), &ports).unwrap();
        nvmet.admit(lease(1), HOST).unwrap();
        fake.fail(at, false);
        let result = nvmet.withdraw(lease(1));
        fake.mend();
        assert!(result.is_err() || fake.left().len() <= empty.len() + 1, "failed at {at}: {:?}", fake.left());
        nvmet.withdraw(lease(1)).unwrap();
        let left: Vec<_> = fake.left().into_iter().filter(|left| !left.starts_with("hosts/")).collect();
        assert_eq!(left, empty, "failed at {at}");
    }
}

#[test]
fn a_host_stays_while_another_lease_lets_it_in() {
    let fake = Fake::new();
    let nvmet = Nvmet::over(fake.clone()).unwrap();
    let ports = ports(&nvmet).unwrap();
    for n in [1, 2] {
        nvmet.offer(&disk(n), &ports).unwrap();
        nvmet.admit(lease(n), HOST).unwrap();
    }
    let is_there = || fake.left().contains(&format!("hosts/{HOST}"));
    nvmet.withdraw(lease(1)).unwrap();
    assert!(is_there());
    nvmet.withdraw(lease(2)).unwrap();
    assert!(!is_there());
}

#[test]
fn a_start_leaves_alone_what_is_not_ours() {
    let fake = Fake::new();
    let others =
        ["ports/1", "subsystems/nqn.2014-08.com.example:disk", "subsystems/nqn.2014-08.com.example:disk/namespaces/1"];
    {
        use berth_nvmet::System as _;
        for folder in others {
            fake.make(folder).unwrap();
        }
        fake.link(others[1], "ports/1/subsystems/nqn.2014-08.com.example:disk").unwrap();
        let nvmet = Nvmet::over(fake.clone()).unwrap();
        nvmet.offer(&disk(1), &ports(&nvmet).unwrap()).unwrap();
        // An operator linked a lease to a port of his own.
        let name = "nqn.2026-02.io.fabricbios:lease:aaaa0000000000001111222233330001";
        fake.link(&format!("subsystems/{name}"), &format!("ports/1/subsystems/{name}")).unwrap();
    }
    let before = fake.left().len();
    drop(Nvmet::over(fake.clone()).unwrap());
    let left = fake.left();
    assert!(left.len() < before && others.iter().all(|other| left.contains(&(*other).to_owned())), "{left:?}");
    assert!(!left.iter().any(|left| left.contains("io.fabricbios")), "{left:?}");
}
