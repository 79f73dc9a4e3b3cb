//! NVMe qualified names (base 4.7): of leases, and of the hosts that they are bound for.

use berth_lease::LeaseId;
use berth_wire::{
    fabric::{BindingTlv, ClientTlv, NvmeTransport, Status, Tlvs},
    nvme::fabrics::Nqn,
};

/// Bytes of the longest NQN.
const NQN_MAX: usize = 223;

/// What comes before the lease's id, as 32 hex digits, in its NQN (fabricBIOS v0, NVMe-oF bindings).
const NQN_FRONT: &str = "nqn.2026-02.io.fabricbios:lease:";

/// The NQN of a lease's subsystem, which ends in the lease's id as 32 hex digits.
pub fn nqn(lease: LeaseId) -> String {
    format!("{NQN_FRONT}{lease}")
}

/// The lease whose subsystem an NQN names; `None` for NQNs of others. Whether the lease is bound does not matter.
pub fn lease_of(nqn: &[u8]) -> Option<LeaseId> {
    let id = std::str::from_utf8(nqn.strip_prefix(NQN_FRONT.as_bytes())?).ok()?;
    let lease = LeaseId(u128::from_str_radix(id, 16).ok()?);
    // Another spelling of the number is the name of somebody else's subsystem.
    (lease.to_string() == id).then_some(lease)
}

/// The host that the client of a `LEASE_BIND` names (TLV 0x0411), where it asks for this transport (0x0304) or for none.
///
/// # Errors
/// [`Status::UnsupportedOp`]: it asks for another transport. [`Status::InvalidParams`]: it names no host, or by no NQN that
/// [`Target::bind`](crate::Target::bind) takes; or a TLV is malformed.
pub fn requested_host(client: Tlvs<'_>, offered: NvmeTransport) -> Result<&str, Status> {
    let malformed = |_| Status::InvalidParams;
    let mut host = None;
    for tlv in &client {
        if let Some(ClientTlv::HostNqn(nqn)) = ClientTlv::read(tlv).map_err(malformed)? {
            host = Some(nqn);
        }
        match BindingTlv::read(tlv).map_err(malformed)? {
            Some(BindingTlv::NvmeTrType(wanted)) if wanted != offered => return Err(Status::UnsupportedOp),
            _ => {}
        }
    }
    host.filter(|nqn| is_host_nqn(nqn)).ok_or(Status::InvalidParams)
}

/// Whether a host may have this name: `nqn.`, at most 223 bytes, no control characters.
pub(crate) fn is_host_nqn(nqn: &str) -> bool {
    nqn.starts_with("nqn.") && nqn.len() <= NQN_MAX && !nqn.contains(char::is_control)
}

/// A name of this node as structures have it.
pub(crate) fn field(nqn: &str) -> Nqn {
    Nqn::new(nqn.as_bytes()).expect("the names of subsystems are short")
}
