//! Message types, op codes, statuses and the other small numbers of the control plane, each with a one-line meaning.

use super::{
    codec::{FabricError, Reader, Wire},
    macros::{bits, codes},
};

codes! {
    /// `msg_type` of a frame (profile, "Frame").
    pub enum MsgType: u8 {
        Announce = 1, "ANNOUNCE", "a node tells who and where it is, and what it offers";
        Withdraw = 2, "WITHDRAW", "a node leaves";
        Solicit = 3, "SOLICIT", "a question for the announcements that match";
        Request = 4, "REQUEST", "one op of the control plane";
        Response = 5, "RESPONSE", "the answer to a request, or to a solicitation";
        RevokeBroadcast = 6, "REVOKE_BROADCAST", "tokens that no longer count";
        PageRequest = 0x20, "PAGE_REQUEST", "one op of the page profile";
        PageResponse = 0x21, "PAGE_RESPONSE", "the answer to a page request";
    }

    /// `op` of a REQUEST.
    pub enum Op: u16 {
        Ping = 0x0001, "PING", "ask how long the node has been up";
        GetInventory = 0x0002, "GET_INVENTORY", "ask what the node offers";
        GetIdentity = 0x0003, "GET_IDENTITY", "ask for the node's id and public key";
        EnrollRequest = 0x0004, "ENROLL_REQUEST", "ask the node to know a key";
        GetThermal = 0x0006, "GET_THERMAL", "ask for the node's temperatures";
        SchedulerFenceSet = 0x0009, "SCHEDULER_FENCE_SET", "install a scheduler's epoch";
        SchedulerFenceGet = 0x000A, "SCHEDULER_FENCE_GET", "ask for the installed epoch";
        LeaseExportHandle = 0x0020, "LEASE_EXPORT_HANDLE", "make a handle to a lease for another runtime";
        LeaseImportHandle = 0x0021, "LEASE_IMPORT_HANDLE", "attach to a lease by its handle";
        LeaseRelocate = 0x0022, "LEASE_RELOCATE", "copy or move one lease's bytes to another";
        CapRequest = 0x0100, "CAP_REQUEST", "ask for a capability token";
        CapRefresh = 0x0101, "CAP_REFRESH", "ask for a token's successor";
        CapRevoke = 0x0102, "CAP_REVOKE", "revoke a token and the leases made with it";
        LeaseAlloc = 0x0200, "LEASE_ALLOC", "lease memory, blocks or another resource";
        LeaseFree = 0x0201, "LEASE_FREE", "give a lease back";
        LeaseRenew = 0x0202, "LEASE_RENEW", "extend a lease";
        LeaseQuery = 0x0203, "LEASE_QUERY", "ask for a lease's state";
        LeaseListActive = 0x0208, "LEASE_LIST_ACTIVE", "ask for every active lease";
        LeaseBind = 0x020A, "LEASE_BIND", "connect a lease to a client's own transport";
        KeyRevoke = 0x020E, "KEY_REVOKE", "end a key's tokens and leases, and its enrolment";
        KeyList = 0x020F, "KEY_LIST", "ask for the keys that the node knows";
        SvcTcpBind = 0x0400, "SVC_TCP_BIND", "lease a TCP proxy to a port of the node";
        SvcTcpQuery = 0x0403, "SVC_TCP_QUERY", "ask for a TCP proxy's state";
        TaskletSubmit = 0x0500, "TASKLET_SUBMIT", "run a WASM tasklet";
        TaskletStatus = 0x0501, "TASKLET_STATUS", "ask for a tasklet's state";
        TaskletFetchResult = 0x0502, "TASKLET_FETCH_RESULT", "ask for a tasklet's output";
        TaskletCancel = 0x0503, "TASKLET_CANCEL", "stop a tasklet";
        TaskletFetchLogs = 0x0504, "TASKLET_FETCH_LOGS", "ask for what a tasklet logged";
        GpuSubmit = 0x0600, "GPU_SUBMIT", "run a GPU kernel";
        TaskletLeaseAlloc = 0x0800, "TASKLET_LEASE_ALLOC", "lease processor cores and memory together";
        TaskletLeaseFree = 0x0801, "TASKLET_LEASE_FREE", "give such a lease back";
    }

    /// `status` of a RESPONSE (section "Control-plane status codes", and the profile).
    pub enum Status: u16 {
        Ok = 0x0000, "OK", "success";
        InvalidToken = 0x0001, "INVALID_TOKEN", "the token is malformed, expired, revoked, not the presenter's, or a caveat failed";
        InsufficientPerm = 0x0002, "INSUFFICIENT_PERM", "the token, the policy or the lease's ownership does not permit this";
        ResourceNotFound = 0x0003, "RESOURCE_NOT_FOUND", "no such resource or lease on this node";
        ResourceBusy = 0x0004, "RESOURCE_BUSY", "the resource is in use and cannot be changed now";
        CapacityExceeded = 0x0005, "CAPACITY_EXCEEDED", "the node cannot give that much, or not there";
        LeaseExpired = 0x0006, "LEASE_EXPIRED", "the lease has expired";
        RateLimited = 0x0007, "RATE_LIMITED", "too many requests of this sender or token";
        ResourceFenced = 0x0008, "RESOURCE_FENCED", "the resource is fenced: a teardown failed, or an operator did it";
        StaleEpoch = 0x0009, "STALE_EPOCH", "the scheduler epoch is not the installed one";
        FenceRequired = 0x000A, "FENCE_REQUIRED", "this node wants a scheduler fence and none is installed";
        InvalidParams = 0x000B, "INVALID_PARAMS", "the params do not have the op's layout or values";
        UnsupportedOp = 0x000C, "UNSUPPORTED_OP", "the node does not do this op";
        InternalError = 0x00FF, "INTERNAL_ERROR", "the node failed";
    }

    /// `resource_type` in inventories and LEASE_ALLOC.
    pub enum ResourceType: u16 {
        Cpu = 0x0001, "CPU", "processor time";
        Mem = 0x0002, "MEM", "memory";
        Block = 0x0003, "BLOCK", "blocks of 512 bytes";
        Net = 0x0004, "NET", "network";
        Gpu = 0x0005, "GPU", "a GPU";
        Scheduler = 0x0010, "SCHEDULER", "a scheduler; its capacity is the port of its HTTP API";
        Vendor = 0x00FF, "VENDOR", "what its vendor says it is";
    }

    /// Protocol served at an endpoint (ANNOUNCE and TLV 0x0101).
    pub enum EndpointKind: u8 {
        ControlUdp = 1, "control-udp", "the control plane in signed datagrams";
        Quic = 2, "quic", "the control plane over QUIC";
        RpcUdp = 3, "rpc-udp", "the real-time RPC";
        HipTcp = 4, "hip-tcp", "the HIP service";
        NvmeTcp = 5, "nvme-tcp", "an NVMe-oF target over TCP";
        Ofi = 6, "ofi", "a libfabric endpoint";
        Metrics = 7, "metrics", "metrics over HTTP";
        TwoSidedUdp = 8, "two-sided-udp", "two-sided messages, one in a datagram";
        Fbmu = 9, "fbmu", "memory over datagrams";
        Fbbu = 10, "fbbu", "blocks over datagrams";
        Fbmt = 11, "fbmt", "memory over TCP";
        Fbbt = 12, "fbbt", "blocks over TCP";
        QuicMem = 13, "quic-mem", "memory over QUIC streams";
        QuicBlock = 14, "quic-block", "blocks over QUIC streams";
    }

    /// What a node makes of a key (KEY_LIST).
    pub enum KeyStanding: u8 {
        Listed = 1, "LISTED", "the node's configuration lists it";
        Enrolled = 2, "ENROLLED", "it enrolled itself";
        Removed = 3, "REMOVED", "it was removed, and is not served";
    }

    /// `lease_status` of LEASE_QUERY and SVC_TCP_QUERY.
    pub enum LeaseStatus: u8 {
        Active = 0, "ACTIVE", "the lease grants access";
        Expired = 1, "EXPIRED", "the lease is in its grace period: no access, and it can be renewed";
        Revoked = 2, "REVOKED", "the lease was revoked";
    }
}

bits! {
    /// `perms` of a token (profile, `CapabilityToken`).
    pub struct Perms: u32 {
        READ = 1, "read leased bytes";
        WRITE = 2, "write leased bytes";
        ALLOC = 4, "allocate, renew and bind leases";
        REVOKE = 8, "revoke tokens";
        EXEC = 16, "run tasklets and GPU kernels";
        ADMIN = 32, "set fences, revoke and list keys";
        DELEGATE = 64, "pass the token on";
    }

    /// `flags` of a resource (section "`ResourceSummary` flags").
    pub struct ResourceFlags: u16 {
        FENCED = 1, "must not be leased";
        DEGRADED = 2, "usable, but degraded";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_to_each_other() {
        for &op in Op::ALL {
            assert_eq!(Op::from_code(op.code()), Some(op));
            assert!(!op.meaning().is_empty());
        }
        assert_eq!(Op::from_code(0x0005), None);
        assert_eq!(Status::from_code(0x0D), None);
        assert_eq!(Status::InvalidParams.to_string(), "INVALID_PARAMS");
        assert_eq!(Perms::from_bits(0x80), None);
        let some = Perms::READ | Perms::DELEGATE;
        assert_eq!(some.names().collect::<Vec<_>>(), ["read", "delegate"]);
        assert_eq!(Perms::from_name("Delegate"), Some(Perms::DELEGATE));
        assert_eq!((some.without(Perms::READ), some.contains(Perms::ADMIN)), (Perms::DELEGATE, false));
    }
}
