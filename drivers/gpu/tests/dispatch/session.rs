//! The worker of a session that does not keep to what was agreed.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Waker},
    time::{Duration, Instant},
};

use berth_gpu::{SessionCounts, SessionGpu, SessionSettings};

/// Says that it has a device, and then answers without end, though nothing was asked.
const TALKER: &str = r#"#!/bin/sh
printf '{"opened":{"address":"","name":"","memory":0,"shared":0,"block_threads":1,"block":[1,1,1],"grid":[1,1,1],"warp":1,"resident":[1,1],"processors":1,"version":[1,0],"arch":""}}\n' >&0
while :; do printf '{"done":[0,{"Ok":"none"}]}\n' >&0 || exit; done
"#;

#[test]
fn answers_to_nothing_end_a_worker_and_are_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let worker = folder.path().join("worker");
    fs::write(&worker, TALKER).unwrap();
    fs::set_permissions(&worker, fs::Permissions::from_mode(0o755)).unwrap();
    let settings = Arc::new(SessionSettings {
        name: "gpu0".into(),
        worker,
        device: "auto".parse().unwrap(),
        limit: Duration::from_millis(100),
        counts: SessionCounts::default(),
    });
    let gpu = SessionGpu::start(&settings).unwrap();
    gpu.facts().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while settings.counts.timeouts.load(Relaxed) == 0 {
        assert!(Instant::now() < until, "{:?}", settings.counts);
        let mut results = Vec::new();
        let _ = gpu.results(0, &mut Context::from_waker(Waker::noop()), &mut results);
        assert_eq!(results, []);
    }
}
