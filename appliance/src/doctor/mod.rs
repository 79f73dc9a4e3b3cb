//! `berth doctor`: what this host can do for a dataplane, and the command that mends what it cannot.
//!
//! Nothing here changes the host. Files are read below a root that tests replace; what only a real attempt tells (an
//! `io_uring`, an `AF_XDP` socket) is attempted on the real root alone.

mod cpu;
mod gpu;
mod hip;
mod kernel;
mod memory;
mod nic;
mod nvme;
mod ofi;
mod pci;
mod rdma;
mod sriov;
mod tasklet;
mod time;

use std::{fmt::Write as _, path::Path};

use serde::Serialize;

use crate::{
    config::{Binding, Config, Region},
    sys::Root,
};

/// One thing about the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at, such as `dpdk 0000:03:00.0`.
    pub what: String,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// A command or advice that mends it; `None` of [`Status::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, with worse latency or less isolation.
    Warn,
    /// Something that needs it will not work.
    Missing,
}

/// The findings, in the order they are reported.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, what: impl Into<String>, found: impl Into<String>) {
        self.0.push(Finding { what: what.into(), status: Status::Ok, found: found.into(), mend: None });
    }

    fn warn(&mut self, what: impl Into<String>, found: impl Into<String>, mend: impl Into<String>) {
        self.0.push(Finding { what: what.into(), status: Status::Warn, found: found.into(), mend: Some(mend.into()) });
    }

    fn missing(&mut self, what: impl Into<String>, found: impl Into<String>, mend: impl Into<String>) {
        let (what, found, mend) = (what.into(), found.into(), Some(mend.into()));
        self.0.push(Finding { what, status: Status::Missing, found, mend });
    }
}

/// Looks at the host below `root`, which is `/` outside of tests. What these regions have is not offered to others.
pub fn examine(root: &Path, regions: &[Region]) -> Vec<Finding> {
    let live = root == Path::new("/");
    let root = Root::new(root);
    let mut findings = Findings::default();
    cpu::examine(&root, &mut findings);
    memory::examine(&root, &mut findings);
    time::examine(&root, live, &mut findings);
    kernel::examine(&root, live, &mut findings);
    nic::examine(&root, &mut findings);
    pci::examine(&root, regions, &mut findings);
    sriov::examine(&root, &mut findings);
    ofi::examine(live, &mut findings);
    rdma::examine(&root, &mut findings);
    nvme::examine(&root, &mut findings);
    gpu::examine(&root, live, &mut findings);
    hip::examine(&root, &mut findings);
    tasklet::examine(&root, live, &mut findings);
    findings.0
}

/// Looks at what the bindings of a configuration need of the host below `root`.
pub fn examine_bindings(root: &Path, bindings: &[Binding]) -> Vec<Finding> {
    let mut findings = Findings::default();
    nvme::examine_bindings(&Root::new(root), bindings, &mut findings);
    findings.0
}

/// Looks at where the GPUs of a configuration are in the host below `root`, beside the ports and CPUs that use them.
pub fn examine_gpus(root: &Path, config: &Config) -> Vec<Finding> {
    let mut findings = Findings::default();
    gpu::examine_config(&Root::new(root), config, &mut findings);
    findings.0
}

/// The findings as text, a line each, and below it what mends it.
pub fn table(findings: &[Finding]) -> String {
    let mut out = String::new();
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    for Finding { what, status, found, mend } in findings {
        let status = match status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Missing => "missing",
        };
        let _ = writeln!(out, "{status:<8}{what:<width$}  {found}");
        if let Some(mend) = mend {
            let _ = writeln!(out, "{:<8}{:<width$}  -> {mend}", "", "");
        }
    }
    out
}
