//! Requests, their ops' params, responses and results: whatever parses is written back as it was.
#![no_main]

use berth_wire::fabric::{
    CapRefresh, CapRequest, CapRevoke, Enroll, FenceSet, FenceState, GpuSubmit, GpuSubmitted, Identity, Inventory,
    KeyList, KeyListAsked, KeyRevoke, KeyRevoked, LeaseAlloc, LeaseBind, LeaseExport, LeaseExported, LeaseGrant,
    LeaseImport, LeaseImported, LeaseList, LeaseRef, LeaseRelocate, LeaseRelocated, LeaseRenew, LeaseState, Request,
    Response, SvcTcpBind, SvcTcpGrant, SvcTcpState, TaskletInput, TaskletLeaseAlloc, TaskletLeaseGrant, TaskletLogs,
    TaskletOutput, TaskletRef, TaskletState, TaskletSubmit, TaskletSubmitted, Wire,
};
use libfuzzer_sys::fuzz_target;

fn canonical<'a, T: Wire<'a>>(bytes: &'a [u8]) {
    if let Ok(value) = T::parse(bytes) {
        assert_eq!(value.to_vec(), bytes);
    }
}

fuzz_target!(|bytes: &[u8]| {
    canonical::<Request<'_>>(bytes);
    canonical::<Response<'_>>(bytes);
    if let Ok(request) = Request::parse(bytes) {
        params(&request.params);
    }
    params(bytes);
});

fn params(bytes: &[u8]) {
    canonical::<CapRequest>(bytes);
    canonical::<CapRefresh>(bytes);
    canonical::<CapRevoke>(bytes);
    canonical::<KeyRevoke>(bytes);
    canonical::<KeyRevoked>(bytes);
    canonical::<KeyListAsked>(bytes);
    canonical::<KeyList<'_>>(bytes);
    canonical::<Enroll>(bytes);
    canonical::<FenceSet>(bytes);
    canonical::<FenceState>(bytes);
    canonical::<Identity>(bytes);
    canonical::<Inventory<'_>>(bytes);
    canonical::<LeaseAlloc<'_>>(bytes);
    canonical::<LeaseGrant<'_>>(bytes);
    canonical::<LeaseBind<'_>>(bytes);
    canonical::<LeaseRenew>(bytes);
    canonical::<LeaseRef>(bytes);
    canonical::<LeaseState>(bytes);
    canonical::<LeaseList<'_>>(bytes);
    canonical::<LeaseExport>(bytes);
    canonical::<LeaseExported>(bytes);
    canonical::<LeaseImport>(bytes);
    canonical::<LeaseImported>(bytes);
    canonical::<LeaseRelocate>(bytes);
    canonical::<LeaseRelocated<'_>>(bytes);
    canonical::<SvcTcpBind>(bytes);
    canonical::<SvcTcpGrant>(bytes);
    canonical::<SvcTcpState>(bytes);
    canonical::<TaskletSubmit<'_>>(bytes);
    canonical::<TaskletRef>(bytes);
    canonical::<TaskletState>(bytes);
    canonical::<TaskletInput<'_>>(bytes);
    canonical::<TaskletOutput<'_>>(bytes);
    canonical::<TaskletLogs<'_>>(bytes);
    canonical::<TaskletLeaseAlloc>(bytes);
    canonical::<TaskletLeaseGrant>(bytes);
    canonical::<GpuSubmit<'_>>(bytes);
    canonical::<GpuSubmitted<'_>>(bytes);
    if let Ok(answer) = TaskletSubmitted::parse(bytes) {
        let again = answer.to_vec();
        assert!(again == bytes || again == [bytes, &[0, 0]].concat());
    }
}
