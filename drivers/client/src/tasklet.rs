//! Tasklets and composite leases.

use berth_wire::fabric::{
    Bytes, CapEntry, List, LogRecord, MAX_LOGS, Op, TaskletLeaseAlloc, TaskletLeaseFree, TaskletLeaseGrant,
    TaskletLimits, TaskletLogs, TaskletOutput, TaskletRef, TaskletRights, TaskletState, TaskletStatus, TaskletSubmit,
    TaskletSubmitted, Wire as _,
};

use crate::{Client, Error, Token};

/// Arguments of TASKLET_SUBMIT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tasklet {
    /// Resource id of a composite lease's arena; 0 for none.
    pub mem_resource_id: u128,
    /// Resource id of its cores; 0 for none.
    pub cpu_resource_id: u128,
    /// SHA-256 of the module.
    pub sha256: [u8; 32],
    /// The module; empty to submit by hash.
    pub wasm: Vec<u8>,
    /// What it may touch: a lease, a handle or the token's id, and the rights.
    pub caps: Vec<(u128, TaskletRights)>,
    /// Passed to it.
    pub input: Vec<u8>,
    /// Its limits.
    pub limits: TaskletLimits,
}

/// How a tasklet stands, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The status.
    pub status: TaskletStatus,
    /// Names the run; 0 if it was not admitted.
    pub tasklet_id: u64,
    /// What it returned.
    pub output: Vec<u8>,
    /// What it logged: level and message.
    pub logs: Vec<(u8, Vec<u8>)>,
}

fn owned(logs: &List<'_, LogRecord<'_>, MAX_LOGS>) -> Vec<(u8, Vec<u8>)> {
    logs.iter().map(|record| (record.level, record.message.get().to_vec())).collect()
}

impl Client {
    /// Submits a tasklet. The answer comes when it has ended, or is still under way after the node's patience.
    pub async fn tasklet_submit(&self, token: &Token, tasklet: &Tasklet) -> Result<Ran, Error> {
        let caps: Vec<CapEntry> =
            tasklet.caps.iter().map(|&(cap_token, rights)| CapEntry { cap_token, rights }).collect();
        let params = TaskletSubmit {
            resource_id: tasklet.mem_resource_id,
            cpu_resource_id: tasklet.cpu_resource_id,
            module_sha256: tasklet.sha256,
            wasm: Bytes::of(&tasklet.wasm)?,
            caps: List::of(&caps)?,
            input: Bytes::of(&tasklet.input)?,
            limits: tasklet.limits,
        };
        let result = self.call(Op::TaskletSubmit, 0, Some(token), &params.to_vec()).await?;
        let TaskletSubmitted { status, tasklet_id, output, logs, .. } = TaskletSubmitted::parse(&result)?;
        Ok(Ran { status, tasklet_id, output: output.get().to_vec(), logs: owned(&logs) })
    }

    /// How a tasklet stands.
    pub async fn tasklet_status(&self, tasklet_id: u64) -> Result<TaskletStatus, Error> {
        let result = self.call(Op::TaskletStatus, 0, None, &TaskletRef { tasklet_id }.to_vec()).await?;
        Ok(TaskletState::parse(&result)?.status)
    }

    /// How a tasklet stands, and its output.
    pub async fn tasklet_result(&self, tasklet_id: u64) -> Result<(TaskletStatus, Vec<u8>), Error> {
        let result = self.call(Op::TaskletFetchResult, 0, None, &TaskletRef { tasklet_id }.to_vec()).await?;
        let TaskletOutput { status, output } = TaskletOutput::parse(&result)?;
        Ok((status, output.get().to_vec()))
    }

    /// How a tasklet stands, and what it logged so far: level and message.
    pub async fn tasklet_logs(&self, tasklet_id: u64) -> Result<(TaskletStatus, Vec<(u8, Vec<u8>)>), Error> {
        let result = self.call(Op::TaskletFetchLogs, 0, None, &TaskletRef { tasklet_id }.to_vec()).await?;
        let TaskletLogs { status, logs } = TaskletLogs::parse(&result)?;
        Ok((status, owned(&logs)))
    }

    /// Stops a tasklet: OK when it has stopped, FINISHED if it had ended, NOT_FOUND.
    pub async fn tasklet_cancel(&self, tasklet_id: u64) -> Result<TaskletStatus, Error> {
        let result = self.call(Op::TaskletCancel, 0, None, &TaskletRef { tasklet_id }.to_vec()).await?;
        Ok(TaskletState::parse(&result)?.status)
    }

    /// Leases cores and an arena.
    pub async fn tasklet_lease_alloc(
        &self,
        token: &Token,
        wanted: &TaskletLeaseAlloc,
    ) -> Result<TaskletLeaseGrant, Error> {
        let result = self.call(Op::TaskletLeaseAlloc, 0, Some(token), &wanted.to_vec()).await?;
        Ok(TaskletLeaseGrant::parse(&result)?)
    }

    /// Gives a composite lease back.
    pub async fn tasklet_lease_free(&self, lease_id: u128) -> Result<(), Error> {
        self.call(Op::TaskletLeaseFree, 0, None, &TaskletLeaseFree { lease_id }.to_vec()).await?;
        Ok(())
    }
}
