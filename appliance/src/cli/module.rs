//! `berth tasklet check`: what a node would say of a module, without one.

use std::{fs, io, path::Path, process::ExitCode};

use anyhow::{Context as _, anyhow};
use berth_tasklet::{
    hostcall::{Call, Hostcalls, code},
    run::{Executor as _, Limits, Rejected},
};
use berth_wasm::{Pool, Wasm};

/// A node's default limits.
const LIMITS: Limits = Limits { fuel: 10_000_000_000, memory: 64 << 20, output: 512 << 10, hostcalls: 1_000_000 };

/// Says whether a node would take the module in `file`, and what it needs; exits with 1 where it is refused.
pub(super) fn check_file(file: &Path) -> anyhow::Result<ExitCode> {
    let wasm = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    check(&wasm, &mut io::stdout().lock())
}

fn check(wasm: &[u8], out: &mut impl io::Write) -> anyhow::Result<ExitCode> {
    let pool = Pool { instances: 1, memory: LIMITS.memory };
    let node = Wasm::new(pool, crate::wasm::compiler()).map_err(|error| anyhow!("{error:#}"))?;
    let taken = node.needs(wasm).and_then(|needs| Ok((needs, node.compile(wasm)?)));
    let (needs, module) = match taken {
        Ok(taken) => taken,
        Err(Rejected::Invalid(why)) => {
            writeln!(out, "refused, status 1: {why}")?;
            return Ok(ExitCode::FAILURE);
        }
        Err(Rejected::UnsupportedProfile(why)) => {
            writeln!(out, "refused, status 7: {why}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    writeln!(out, "taken; input: {}", if module.takes_input() { "yes" } else { "no, it exports no tasklet_alloc" })?;
    writeln!(out, "memory: at least {} bytes", needs.memory)?;
    writeln!(out, "imports: {}", if needs.imports.is_empty() { "none".to_owned() } else { needs.imports.join(", ") })?;
    let outcome = module.run(&[], &LIMITS, &mut NoLeases);
    writeln!(out, "a run without leases or input: {} units of fuel, {} hostcalls", outcome.fuel, outcome.hostcalls)?;
    if let Some(reason) = outcome.reason {
        writeln!(out, "  it ends with status {}: {reason}", outcome.status as u8)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The host of a run that was granted nothing.
struct NoLeases;

impl Hostcalls for NoLeases {
    fn call(&mut self, call: Call<'_>) -> i64 {
        match call {
            Call::Log { .. } => 0,
            _ => code::INVALID_LEASE,
        }
    }

    fn turn(&mut self) -> bool {
        true
    }
}
