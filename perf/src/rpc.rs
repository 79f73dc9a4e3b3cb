//! `berth perf rpc`: requests of functions.

use std::process::ExitCode;

use crate::{
    args::RpcArgs,
    functions,
    job::{Job, Plan, Spoken},
    measure::{case_name, measure},
    ports::Way,
    server,
};

/// Runs the command line.
pub(crate) fn run(args: &RpcArgs) -> anyhow::Result<ExitCode> {
    let header = format!("{:?}", args.header).to_lowercase();
    let spoken = Spoken { header, ptp: args.stamp().name(), echo: args.echo, shots: args.shots.clone() };
    let way = Way::Port { args: Box::new(args.load.clone()), serve: server::rpc(args), meet: None };
    let (pace, pacing) = (args.load.pace.clone(), args.load.pacing());
    measure(&Job { pace, pacing, way, protocol: args.protocol(), spoken, plans: plan(args)? })
}

/// The cases of a command line.
fn plan(args: &RpcArgs) -> anyhow::Result<Vec<Plan>> {
    let data = args.data()?;
    let sweep = args.sweep().iter().map(|payload| {
        let scripts = functions::scripts(&args.functions, *payload, &data);
        let payload = args.functions.iter().any(|weighted| weighted.function.is_sized()).then_some(*payload);
        Plan { name: case_name(&scripts, payload, args.load.pacing()), payload, scripts, chore: None }
    });
    Ok(sweep.collect())
}
