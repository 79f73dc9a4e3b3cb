//! What a command line comes to: cases, what they are asked by, and what a report says of it.

use crate::{args::PaceArgs, load::Pacing, mix::Script, ports::Way, verify::Protocol};

/// What a command line comes to.
pub(crate) struct Job {
    pub(crate) pace: PaceArgs,
    pub(crate) pacing: Pacing,
    pub(crate) way: Way,
    pub(crate) protocol: Protocol,
    pub(crate) spoken: Spoken,
    pub(crate) plans: Vec<Plan>,
}

/// One case to come.
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) payload: Option<usize>,
    pub(crate) scripts: Vec<Script>,
    /// Requests that are asked one by one, must all be answered, and are not reported.
    pub(crate) chore: Option<Chore>,
}

/// What has to be done around the cases that are measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Chore {
    /// So many requests, before the next case.
    Before(u64),
    /// So many requests, but no more than the case before had answered of this step.
    After(&'static str, u64),
}

/// What a run spoke with its server, for the report.
#[derive(Debug, Clone)]
pub(crate) struct Spoken {
    pub(crate) header: String,
    pub(crate) ptp: &'static str,
    pub(crate) echo: bool,
    pub(crate) shots: Option<String>,
}
