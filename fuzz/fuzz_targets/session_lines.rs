//! Lines between `berth` and the worker of a HIP session, from a side that was taken over: what `berth` keeps of a worker's is
//! no more than it asked for, and a list of kernels is one of launches that there can be.
#![no_main]

use std::{
    sync::{Arc, LazyLock},
    task::{Context, Waker},
    time::Duration,
};

use berth_gpu::{Command, KernelFacts, SessionCounts, SessionGpu, SessionSettings, Standing, is_told};
use berth_wire::hip::LAUNCH_MAX;
use libfuzzer_sys::fuzz_target;

static SETTINGS: LazyLock<Arc<SessionSettings>> = LazyLock::new(|| {
    Arc::new(SessionSettings {
        name: "gpu0".into(),
        worker: "none".into(),
        device: "auto".parse().unwrap(),
        limit: Duration::from_secs(1),
        counts: SessionCounts::default(),
    })
});

/// Has the worker that is heard do something, if it serves.
const ASK: u8 = 0;

fuzz_target!(|input: &[u8]| {
    let (gpu, mut hear) = SessionGpu::unstarted(&SETTINGS).unwrap();
    let (mut asked, mut answered) = (0, 0);
    for line in input.split(|byte| *byte == b'\n') {
        let _ = is_told(line);
        if line == [ASK] {
            asked += u64::from(gpu.standing(0) == Standing::Serves);
            gpu.tell(0, Command::Reset);
            continue;
        }
        let is_life = hear(line);
        assert!(!is_life || line.iter().any(|byte| !byte.is_ascii_whitespace()), "nothing is no sign of life");
        let mut results = Vec::new();
        let _ = gpu.results(0, &mut Context::from_waker(Waker::noop()), &mut results);
        answered += results.len() as u64;
        assert!(answered <= asked, "answers to nothing are kept");
    }
    assert!(gpu.life() <= 1 && gpu.pid().is_none());
    for kernel in KernelFacts::list(input).unwrap_or_default() {
        let Some(bytes) = kernel.argument_bytes() else { continue };
        assert!(bytes as usize <= LAUNCH_MAX && kernel.parameters.len() <= 64);
        assert!(kernel.parameters.iter().all(|(at, size)| at + size <= bytes));
    }
});
