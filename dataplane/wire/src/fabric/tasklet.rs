//! Params and results of the TASKLET operations, composite leases included (sections "Tasklet execution ops" and
//! "Composite tasklet lease ops").

use super::{
    MAX_MESSAGE,
    codec::{Bytes, FabricError, List, Reader, Wire},
    macros::{bits, codes, wire},
};

/// Limit on the capabilities of a tasklet.
pub const MAX_CAPS: usize = 256;
/// Limit on the log records of one answer.
pub const MAX_LOGS: usize = 4096;
/// Limit on one log record, in bytes.
pub const MAX_LOG: usize = 64 * 1024;

codes! {
    /// Tasklet status codes.
    pub enum TaskletStatus: u8 {
        Ok = 0, "OK", "success";
        Invalid = 1, "INVALID", "the module or the request is not valid";
        Unauthorized = 2, "UNAUTHORIZED", "a capability does not permit it";
        FuelExhausted = 3, "FUEL_EXHAUSTED", "out of instructions";
        Oom = 4, "OOM", "out of memory";
        ExecFailed = 5, "EXEC_FAILED", "it trapped, failed by itself, or was stopped";
        HostcallLimit = 6, "HOSTCALL_LIMIT", "too many calls of the host";
        UnsupportedProfile = 7, "UNSUPPORTED_PROFILE", "the module wants a profile that is not here";
        ModuleNotFound = 8, "MODULE_NOT_FOUND", "no module with this hash; submit its bytes";
        Unknown = 9, "UNKNOWN", "queued or running";
        NotFound = 10, "NOT_FOUND", "no such tasklet, another presenter's, or not kept any more";
        Unsupported = 11, "UNSUPPORTED", "not done here";
        Finished = 12, "FINISHED", "it has ended";
        ListenerRevoked = 13, "LISTENER_REVOKED", "its listener was revoked";
        ListenerFenced = 14, "LISTENER_FENCED", "its listener is fenced";
        MaxSessions = 15, "MAX_SESSIONS", "too many sessions";
        SessionClosed = 16, "SESSION_CLOSED", "the session is over";
    }

    /// How near to each other the parts of a composite lease must be.
    pub enum TaskletAffinity: u8 {
        SameNode = 0, "SAME_NODE", "on one node";
        SameRack = 1, "SAME_RACK", "in one rack";
        Any = 2, "ANY", "wherever it is cheapest";
    }
}

bits! {
    /// `rights` of a [`CapEntry`].
    pub struct TaskletRights: u32 {
        QUERY = 1, "ask for the lease's state";
        REVOKE = 2, "revoke it";
        FBMU_ALLOC = 4, "allocate memory";
        FBMU_LEASE_IO = 8, "access memory";
        FBBU_ALLOC = 16, "allocate blocks";
        FBBU_LEASE_IO = 32, "access blocks";
        SVC_LISTEN = 64, "listen";
        SVC_SESSION_IO = 128, "talk in a session";
    }
}

wire! {
    /// One capability of a tasklet: 20 bytes.
    pub struct CapEntry {
        /// A lease, a handle to one, or the token of the submission (our profile).
        pub cap_token: u128,
        /// The rights of the token that the tasklet gets.
        pub rights: TaskletRights,
    }

    /// Limits of one run: 20 bytes.
    pub struct TaskletLimits {
        /// WASM fuel: the number of instructions.
        pub max_fuel: u64,
        /// Size of WASM linear memory in bytes.
        pub max_linear_memory: u32,
        /// Size of the output in bytes.
        pub max_output_bytes: u32,
        /// Number of calls to the host.
        pub max_hostcalls: u32,
    }

    /// Params of TASKLET_STATUS, TASKLET_FETCH_RESULT, TASKLET_CANCEL and TASKLET_FETCH_LOGS.
    pub struct TaskletRef {
        /// From the result of TASKLET_SUBMIT.
        pub tasklet_id: u64,
    }

    /// Result of TASKLET_STATUS and TASKLET_CANCEL.
    pub struct TaskletState {
        /// State of the run, or how it ended.
        pub status: TaskletStatus,
    }

    /// Params of TASKLET_LEASE_ALLOC: 20 bytes.
    pub struct TaskletLeaseAlloc {
        /// Seconds for which the lease grants access.
        pub duration_secs: u32,
        /// Seconds after that until it is torn down; it can be renewed meanwhile.
        pub grace_secs: u32,
        /// Processor cores wanted.
        pub num_cores: u16,
        /// Memory wanted, in bytes.
        pub mem_bytes: u64,
        /// How near to each other cores and memory must be.
        pub affinity: TaskletAffinity,
        /// A hint; tasklets run on one thread.
        pub max_threads: u8,
    }

    /// Result of TASKLET_LEASE_ALLOC: 66 bytes.
    pub struct TaskletLeaseGrant {
        /// Full id of the composite lease.
        pub lease_id: u128,
        /// When the lease expires, in seconds since the Unix epoch.
        pub expires_at: u64,
        /// MEM resource that the arena is part of.
        pub mem_resource_id: u128,
        /// CPU resource that the cores are part of.
        pub cpu_resource_id: u128,
        /// Bytes of memory granted.
        pub arena_size: u64,
        /// Processor cores granted.
        pub num_cores: u16,
    }

    /// Params of TASKLET_LEASE_FREE; the result is empty.
    pub struct TaskletLeaseFree {
        /// Full id of the composite lease.
        pub lease_id: u128,
    }
}

wire! {
    /// Params of TASKLET_SUBMIT.
    pub struct TaskletSubmit<'a> {
        /// MEM resource with the arena of the tasklet's linear memory.
        pub resource_id: u128,
        /// CPU resource to run on; 0 in the older form.
        pub cpu_resource_id: u128,
        /// SHA-256 of the WASM module.
        pub module_sha256: [u8; 32],
        /// The WASM module; empty if the node is to find it by `module_sha256`.
        pub wasm: Bytes<'a, MAX_MESSAGE>,
        /// What the tasklet may access.
        pub caps: List<'a, CapEntry, MAX_CAPS>,
        /// Passed to the tasklet.
        pub input: Bytes<'a, MAX_MESSAGE>,
        /// Limits of this run.
        pub limits: TaskletLimits,
    }

    /// `TaskletInputV0`: what a tasklet's input usually is. The node passes any input on.
    pub struct TaskletInput<'a> {
        /// 0.
        pub version: u16,
        /// 0.
        pub flags: u16,
        /// The capabilities of the submission, so that the tasklet knows their names.
        pub caps: List<'a, CapEntry, MAX_CAPS>,
        /// For the tasklet.
        pub payload: Bytes<'a, MAX_MESSAGE>,
    }

    /// Result of TASKLET_FETCH_RESULT.
    pub struct TaskletOutput<'a> {
        /// State of the run, or how it ended.
        pub status: TaskletStatus,
        /// Bytes that the tasklet returned.
        pub output: Bytes<'a, MAX_MESSAGE>,
    }

    /// Result of TASKLET_FETCH_LOGS (our profile).
    pub struct TaskletLogs<'a> {
        /// State of the run, or how it ended.
        pub status: TaskletStatus,
        /// Records so far, in the order in which they were written.
        pub logs: List<'a, LogRecord<'a>, MAX_LOGS>,
    }

    /// One record that a tasklet wrote with `fb_log`.
    pub struct LogRecord<'a> {
        /// Level given by the tasklet.
        pub level: u8,
        /// The record's bytes, cut to the host's limit.
        pub message: Bytes<'a, MAX_LOG>,
    }
}

/// Result of TASKLET_SUBMIT. Older nodes leave out `logs`; that is read as an empty list. It is always written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskletSubmitted<'a> {
    /// Profile version that the runtime agreed to.
    pub negotiated_profile_version: u16,
    /// State of the run, or how it ended.
    pub status: TaskletStatus,
    /// Chosen by the node; names the run in later requests.
    pub tasklet_id: u64,
    /// Bytes that the tasklet returned.
    pub output: Bytes<'a, MAX_MESSAGE>,
    /// Records in the order in which they were written.
    pub logs: List<'a, LogRecord<'a>, MAX_LOGS>,
}

impl<'a> Wire<'a> for TaskletSubmitted<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        Ok(Self {
            negotiated_profile_version: from.get()?,
            status: from.get()?,
            tasklet_id: from.get()?,
            output: from.get()?,
            logs: if from.remaining() == 0 { List::EMPTY } else { from.get()? },
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.negotiated_profile_version.write(to);
        self.status.write(to);
        self.tasklet_id.write(to);
        self.output.write(to);
        self.logs.write(to);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, exact_but, hex},
        *,
    };

    const ONE: &str = "00000000000000000000000000000001";
    const TWO: &str = "00000000000000000000000000000002";

    #[test]
    fn submissions_are_laid_out_as_documented() {
        let caps = [CapEntry { cap_token: 2, rights: TaskletRights::FBMU_LEASE_IO | TaskletRights::QUERY }];
        let submit = TaskletSubmit {
            resource_id: 1,
            cpu_resource_id: 2,
            module_sha256: [0xEE; 32],
            wasm: Bytes::of(b"\0asm").unwrap(),
            caps: List::of(&caps).unwrap(),
            input: Bytes::of(&[7]).unwrap(),
            limits: TaskletLimits { max_fuel: 1, max_linear_memory: 2, max_output_bytes: 3, max_hostcalls: 4 },
        };
        exact(
            &submit,
            &format!(
                "{ONE} {TWO} {} 00000004 0061736d 0001 {TWO} 00000009 00000001 07
                 0000000000000001 00000002 00000003 00000004",
                "ee".repeat(32)
            ),
        );
        assert_eq!(caps[0].to_vec().len(), 20);
        assert_eq!(submit.limits.to_vec().len(), 20);
        let reserved = hex(&format!("{TWO} 00000100"));
        assert_eq!(CapEntry::parse(&reserved), Err(FabricError::Flags("TaskletRights")));
    }

    #[test]
    fn an_answer_without_logs_is_read_as_one_with_none() {
        let logs = [LogRecord { level: 3, message: Bytes::of(b"hi").unwrap() }];
        let answer = TaskletSubmitted {
            negotiated_profile_version: 1,
            status: TaskletStatus::Finished,
            tasklet_id: 5,
            output: Bytes::of(&[9]).unwrap(),
            logs: List::of(&logs).unwrap(),
        };
        let legacy = "0001 0c 0000000000000005 00000001 09";
        exact_but(&answer, &format!("{legacy} 0001 03 00000002 6869"), &[hex(legacy).len()]);
        let silent = TaskletSubmitted { logs: List::EMPTY, ..answer };
        assert_eq!(TaskletSubmitted::parse(&hex(legacy)), Ok(silent));
        assert_eq!(silent.to_vec(), hex(&format!("{legacy} 0000")));
    }

    #[test]
    fn the_other_tasklet_ops_are_laid_out_as_documented() {
        exact(&TaskletRef { tasklet_id: 5 }, "0000000000000005");
        exact(&TaskletState { status: TaskletStatus::SessionClosed }, "10");
        assert_eq!(TaskletState::parse(&[17]), Err(FabricError::Value("TaskletStatus")));
        let caps = [CapEntry { cap_token: 2, rights: TaskletRights::QUERY }];
        let (caps, payload) = (List::of(&caps).unwrap(), Bytes::of(b"hi").unwrap());
        let input = TaskletInput { version: 0, flags: 0, caps, payload };
        exact(&input, &format!("0000 0000 0001 {TWO} 00000001 00000002 6869"));
        let output = TaskletOutput { status: TaskletStatus::Ok, output: Bytes::of(&[9]).unwrap() };
        exact(&output, "00 00000001 09");
        let logs = [LogRecord { level: 255, message: Bytes::of(b"why").unwrap() }];
        let logs = TaskletLogs { status: TaskletStatus::FuelExhausted, logs: List::of(&logs).unwrap() };
        exact(&logs, "03 0001 ff 00000003 776879");
    }

    #[test]
    fn composite_leases_are_laid_out_as_documented() {
        let alloc = TaskletLeaseAlloc {
            duration_secs: 60,
            grace_secs: 5,
            num_cores: 2,
            mem_bytes: 0x1000,
            affinity: TaskletAffinity::SameRack,
            max_threads: 1,
        };
        exact(&alloc, "0000003c 00000005 0002 0000000000001000 01 01");
        assert_eq!(alloc.to_vec().len(), 20);
        let grant = TaskletLeaseGrant {
            lease_id: 1,
            expires_at: 7,
            mem_resource_id: 2,
            cpu_resource_id: 1,
            arena_size: 0x1000,
            num_cores: 2,
        };
        exact(&grant, &format!("{ONE} 0000000000000007 {TWO} {ONE} 0000000000001000 0002"));
        assert_eq!(grant.to_vec().len(), 66);
        exact(&TaskletLeaseFree { lease_id: 1 }, ONE);
    }
}
