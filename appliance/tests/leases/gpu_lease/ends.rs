//! What is left when a lease of a GPU ends, or the node itself: no process, and no byte that anybody can read.

use std::{
    fs,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Data, Error, Via};
use berth_wire::fabric::{
    GpuStatus, Perms, Status,
    data::{IoStatus, two_sided},
};

use super::{LIMIT, Site, Tenant, children, quic, refused, signal, workers};
use crate::common::Berth;

const CARRIERS: [Via; 4] = [Via::Quic, Via::Tcp, Via::Shim, Via::TwoSided];

const SIZE: u64 = 64 << 10;

/// How leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Free,
    Revoke,
    Expire,
}

const WAYS: [Way; 3] = [Way::Free, Way::Revoke, Way::Expire];

/// A tenant whose lease ends in this way.
async fn tenant_for(way: Way, berth: &Berth, site: &Site) -> Tenant {
    let mut tenant = Tenant::new(berth, &site.holder).await;
    if way == Way::Expire {
        tenant.client.lease_free(tenant.lease.lease_id).await.unwrap();
        tenant.lease = tenant.client.lease_alloc(&tenant.token, &Alloc::gpu(SIZE, 1)).await.unwrap();
    }
    tenant
}

/// Whether the node has refused it, rather than not answered.
fn is_refusal(error: &Error) -> bool {
    use two_sided::Status as TwoSided;
    match error {
        Error::Closed | Error::Connection { .. } => true,
        Error::Access(status) => matches!(status, IoStatus::InvalidLease | IoStatus::Expired | IoStatus::Fenced),
        Error::TwoSided(status) => {
            matches!(status, TwoSided::LeaseRevoked | TwoSided::LeaseExpired | TwoSided::UnknownLease)
        }
        _ => false,
    }
}

/// Nothing that was opened before reads or writes a byte.
async fn reaches_nothing(carriers: &mut [(Via, Data)], why: &str) {
    for (via, data) in carriers {
        for at in [0, SIZE - 64] {
            let read = data.read(at, 64).await;
            assert!(read.as_ref().is_err_and(is_refusal), "{why}, {via:?}: {read:?}");
            let written = data.write(at, b"still here").await;
            assert!(written.as_ref().is_err_and(is_refusal), "{why}, {via:?}: {written:?}");
        }
    }
}

#[tokio::test]
async fn nobody_reads_a_byte_of_a_lease_that_has_ended() {
    for site in Site::all() {
        let berth = site.start();
        let admin = quic(&berth, &site.other).await;
        let revoke = admin.cap_request(Perms::REVOKE, 60, 0, None).await.unwrap();
        for way in WAYS {
            let why = format!("{} {}, {way:?}", site.device, site.memory);
            let began = Instant::now();
            let tenant = tenant_for(way, &berth, &site).await;
            let mut carriers = Vec::new();
            for via in CARRIERS {
                carriers.push((via, tenant.data(&site.holder, via).await));
            }
            carriers[0].1.write(0, &vec![0x5A; SIZE as usize]).await.unwrap();
            assert_eq!(tenant.store(0x5A5A_5A5A).await, [0x5A; 4], "{why}");
            for (via, data) in &mut carriers {
                assert_eq!(data.read(SIZE - 64, 64).await.unwrap(), [0x5A; 64], "{why}, {via:?}");
            }
            match way {
                Way::Free => tenant.client.lease_free(tenant.lease.lease_id).await.unwrap(),
                Way::Revoke => drop(admin.cap_revoke(&revoke, tenant.token.fields().token_id, 300).await.unwrap()),
                Way::Expire => tokio::time::sleep(Duration::from_millis(1100).saturating_sub(began.elapsed())).await,
            }
            reaches_nothing(&mut carriers, &why).await;
            for via in CARRIERS {
                // Over datagrams it is the first access that is refused.
                let opened = Data::open(&site.holder, &tenant.lease, via, None).await;
                let read = match opened {
                    Ok(mut data) => data.read(0, 64).await,
                    Err(e) => Err(e),
                };
                assert!(read.as_ref().is_err_and(is_refusal), "{why}, {via:?}: {read:?}");
            }
            let peeks = tenant.kernel("store", &[&tenant.at(0), &7_u32.to_le_bytes()]);
            let ran = tenant.client.gpu_submit(&tenant.token, &peeks).await;
            match way {
                Way::Revoke => assert_eq!(refused(ran), Status::InvalidToken, "{why}"),
                _ => assert_eq!(ran.unwrap().status, GpuStatus::Unauthorized, "{why}"),
            }

            // Nor what the next one has there, who finds nothing.
            let next = next_at(&tenant, &berth, &site).await;
            reaches_nothing(&mut carriers, &why).await;
            for via in CARRIERS {
                let mut data = next.data(&site.other, via).await;
                assert_eq!(data.read(0, SIZE).await.unwrap(), vec![0; SIZE as usize], "{why}, {via:?}");
            }
            next.client.lease_free(next.lease.lease_id).await.unwrap();
        }
        assert!(berth.stop().status.success());
    }
}

/// Somebody else, whose lease lies where this one did.
async fn next_at(tenant: &Tenant, berth: &Berth, site: &Site) -> Tenant {
    let next = Tenant::new(berth, &site.other).await;
    assert_eq!(next.lease.vram(), tenant.lease.vram(), "{} {}", site.device, site.memory);
    next
}

#[tokio::test]
async fn the_end_of_a_lease_ends_its_kernel_and_leaves_nothing() {
    for site in Site::all() {
        let berth = site.start();
        for way in WAYS {
            let tenant = tenant_for(way, &berth, &site).await;
            let forever = tenant.kernel("forever", &[&tenant.at(0)]);
            let second = quic(&berth, &site.holder).await;
            let ender = {
                let (token, lease) = (tenant.token.clone(), tenant.lease.clone());
                let admin = quic(&berth, &site.other).await;
                let revoke = admin.cap_request(Perms::REVOKE, 60, 0, None).await.unwrap();
                tokio::spawn(async move {
                    tokio::time::sleep(LIMIT / 6).await;
                    let began = Instant::now();
                    match way {
                        Way::Free => second.lease_free(lease.lease_id).await.unwrap(),
                        Way::Revoke => drop(admin.cap_revoke(&revoke, token.fields().token_id, 300).await.unwrap()),
                        Way::Expire => {}
                    }
                    began.elapsed()
                })
            };
            if way == Way::Expire {
                // It has one second.
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            let ran = tenant.submit(&forever).await;
            assert_eq!((ran.status, ran.exit_code), (GpuStatus::LaunchFailed, 999), "{way:?}");
            let ended = ender.await.unwrap();
            assert!(ended < LIMIT / 2, "{way:?} is answered before the time limit: {ended:?}");
            assert!(workers(&berth).is_empty(), "{way:?}");
            let next = Tenant::new(&berth, &site.other).await;
            let mut data = next.data(&site.other, Via::Quic).await;
            assert_eq!(data.read(0, SIZE).await.unwrap(), vec![0; SIZE as usize], "{way:?}");
            next.client.lease_free(next.lease.lease_id).await.unwrap();
        }
        assert!(berth.stop().status.success());
    }
}

/// Whether a process of this number runs: one that nobody waited for has no files any more.
fn lives(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// Also those that run a kernel without end, and that are stopped.
#[tokio::test]
async fn no_process_of_a_lease_outlives_a_berth_that_is_killed() {
    for site in Site::all() {
        let patient = format!("time_limit_ms = {}\n", LIMIT.as_millis());
        let text = site.text().replace(&patient, "time_limit_ms = 60000\n");
        let berth = Site::start_with(&text);
        let (busy, idle) = (Tenant::new(&berth, &site.holder).await, Tenant::new(&berth, &site.other).await);
        idle.store(1).await;
        let stopped = workers(&berth).pop_first().unwrap();
        let mut data = busy.data(&site.holder, Via::Quic).await;
        let running = tokio::spawn(async move {
            let forever = busy.kernel("forever", &[&busy.at(0)]);
            busy.client.gpu_submit(&busy.token, &forever).await
        });
        let began = Instant::now();
        while data.read(0, 1).await.unwrap() == [0] {
            assert!(began.elapsed() < Duration::from_secs(10), "it does not run");
        }
        signal(stopped, "-STOP");
        let all = children(&berth, b"");
        assert_eq!(workers(&berth).len(), 2);
        assert_eq!(all.len(), if site.memory == "vram" { 3 } else { 2 }, "one copies");
        assert!(all.iter().all(|pid| lives(*pid)));
        berth.signal("-KILL");
        berth.wait(Duration::from_secs(10));
        let began = Instant::now();
        while let Some(pid) = all.iter().find(|pid| lives(**pid)) {
            assert!(began.elapsed() < Duration::from_secs(10), "{pid} lives on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        running.abort();
    }
}
