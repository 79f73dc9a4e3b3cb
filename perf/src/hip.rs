//! `berth perf hip`: calls of a client of HIP Remote.

use std::{fs, process::ExitCode, sync::Arc};

use anyhow::{Context as _, ensure};
use berth_tls::stream::{self, ClientConfig};
use berth_wire::rpc::HeaderForm;

use crate::{
    args::hip::{HipArgs, HipOp},
    calls::{CALL, Calls, READ_BACK},
    job::{Chore, Job, Plan, Spoken},
    load::Pacing,
    measure::measure,
    mix::Script,
    ports::Way,
    verify::{Expect, Protocol, Step, Table},
};

/// Bytes of device memory that are compared at the end, at most.
const MOST: u64 = 1 << 30;

/// Runs the command line, size by size.
pub(crate) fn run(args: &HipArgs) -> anyhow::Result<ExitCode> {
    let sizes = if args.sizes.is_empty() { vec![args.op.usual()] } else { args.sizes.clone() };
    ensure!(
        args.op.usual() > 0 || args.sizes.is_empty(),
        "--size is for MEMSETs and copies, and {} is neither",
        args.op.name()
    );
    ensure!(
        args.op != HipOp::Memset || sizes.iter().all(|size| u64::from(*size) * u64::from(args.batch) <= MOST),
        "{} MEMSETs of --size are more than the 1 GiB that is read back and compared; take a smaller --batch",
        args.batch
    );
    ensure!(sizes.len() == 1 || args.pace.json.is_none(), "--json takes one --size");
    let tls = args.tls.as_ref().map(|file| {
        let pem = fs::read(file).with_context(|| format!("--tls: cannot read {}", file.display()))?;
        stream::client(&pem, None).with_context(|| format!("--tls: {}", file.display()))
    });
    let tls = tls.transpose()?;
    let mut worst = ExitCode::SUCCESS;
    for size in sizes {
        let code = measure(&job(args, size, tls.clone()))?;
        if code != ExitCode::SUCCESS {
            worst = code;
        }
    }
    Ok(worst)
}

fn job(args: &HipArgs, size: u32, tls: Option<Arc<ClientConfig>>) -> Job {
    let HipArgs { to, echo, op, batch, window, idle_sessions, .. } = *args;
    let batch = if matches!(op, HipOp::Memset | HipOp::Launch) { batch } else { 1 };
    let calls = Calls { address: to, tls, echo, op, size, batch, window, idle_sessions };
    let pacing = args.pace.pacing(window as usize);
    let step = |name, function_id| {
        let nothing = || Table::build(0, 1, |_, _| {});
        let step = Step { name, function_id, payloads: nothing(), expect: Expect::Bytes(nothing()) };
        vec![Script { steps: vec![step], weight: 1 }]
    };
    let payload = (size > 0).then_some(size as usize);
    let mut plans = vec![Plan { name: name(&calls, pacing), payload, scripts: step(op.name(), CALL), chore: None }];
    if matches!(op, HipOp::Memset | HipOp::H2d) && !echo {
        let chore = Some(Chore::After(op.name(), 1));
        plans.push(Plan { name: "reading back".into(), payload, scripts: step("read back", READ_BACK), chore });
    }
    let spoken = Spoken { header: "hip-remote".into(), ptp: "off", echo, shots: None };
    let protocol = Protocol::Rpc { header: HeaderForm::V16, ptp: None, echo: false };
    Job { pace: args.pace.clone(), pacing, way: Way::Hip(Box::new(calls)), protocol, spoken, plans }
}

fn name(calls: &Calls, pacing: Pacing) -> String {
    let Calls { op, size, batch, window, idle_sessions, .. } = *calls;
    let many = if matches!(op, HipOp::Memset | HipOp::Launch) { format!(" x {batch}") } else { String::new() };
    let size = if size > 0 { format!(" {size} B") } else { String::new() };
    let pace = match pacing {
        Pacing::Closed { .. } => format!(", window {window}"),
        Pacing::Open { rate, .. } => format!(", {rate}/s"),
    };
    let through = if calls.tls.is_some() { ", TLS" } else { "" };
    let beside = if idle_sessions > 0 { format!(", beside {idle_sessions} idle sessions") } else { String::new() };
    format!("{}{size}{many}{pace}{through}{beside}", op.name())
}
