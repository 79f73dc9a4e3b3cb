//! Threads that die: the process ends at once, says so by its status, and what was answered is there after a restart.

use std::{os::unix::process::ExitStatusExt as _, time::Duration};

use berth_client::{Grant, Via};
use berth_wire::fabric::{EndpointKind, LeaseStatus};

use crate::{
    common::{Berth, c_plugin, request},
    site::{Site, access, endpoint, grants, quic},
};

const SIGABRT: i32 = 6;
const SIGSEGV: i32 = 11;

/// Leases are granted, a handler does what `source` says on a thread of the dataplane, and the leases are still there.
async fn crash(source: &str, dispatch: &str, signal: i32) {
    let site = Site::new();
    let (handler, id) = c_plugin(site.folder.path(), "crash", source);
    let function = format!("[[function]]\nname = \"crash\"\nhandler = \"{handler}\"\nabi = \"host_call\"\n");
    let rpc = format!(
        "[[port]]\nname = \"a\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\n[port.rpc]\n{dispatch}\n"
    );
    let berth = Berth::start(&site.config(&format!("{rpc}{function}")));
    let client = quic(&berth, &site.holder).await;
    let [memory, block] = grants(&client).await;
    access(&site.holder, &block, Via::Tcp).await;
    berth.client("a").send(&request(id, &[], 1, 0));
    let status = tokio::task::spawn_blocking(|| berth.wait(Duration::from_secs(5))).await.unwrap();
    assert_eq!(status.signal(), Some(signal), "{status}");

    let berth = site.start();
    let client = quic(&berth, &site.holder).await;
    for grant in [&memory, &block] {
        assert_eq!(client.lease_query(grant.lease_id).await.unwrap().status, LeaseStatus::Active);
    }
    let moved = Grant { endpoints: vec![(EndpointKind::Fbbt, endpoint(&berth, "fbbt"))], ..block };
    access(&site.holder, &moved, Via::Tcp).await;
}

#[tokio::test]
async fn an_lcore_that_crashes_ends_the_process_and_loses_no_lease() {
    let source = "#include <stdlib.h>\nvoid crash(const void *rx, void *tx, unsigned long n) { abort(); }";
    crash(source, "dispatch = \"inline\"", SIGABRT).await;
}

#[tokio::test]
async fn a_worker_that_crashes_ends_the_process_and_loses_no_lease() {
    let source = "void crash(const void *rx, void *tx, unsigned long n) { *(volatile int *)0 = 1; }";
    crash(source, "dispatch = \"ring\"\nworker_cpus = [0]", SIGSEGV).await;
}
