//! Log pages.

use berth_wire::nvme::{
    Status,
    admin::GetLogPage,
    identify::{active_namespaces, padded},
    log::{AnaHeader, DiscoveryHeader, DiscoveryRecord, Effects, FirmwareSlots, id},
    opcode::{admin as op, io},
};
use zerocopy::IntoBytes;

use crate::{
    admin::Admin,
    connect::DISCOVERY,
    identify::{ANA_GROUP, FIRMWARE},
    io::NSID,
    names::field,
};

/// RGO of the ANA log: groups alone.
const GROUPS_ALONE: u8 = 1;

/// TRTYPE of TCP.
const TCP: u8 = 3;

/// A whole log page.
pub(crate) fn page(admin: &Admin, command: &GetLogPage) -> Result<Vec<u8>, Status> {
    if admin.controller.subsystem.is_none() {
        return if command.id == id::DISCOVERY { Ok(discovery(admin)) } else { Err(Status::INVALID_LOG_PAGE) };
    }
    match command.id {
        id::ERRORS => Ok(admin.controller.record.errors()),
        id::HEALTH => Ok(admin.controller.record.health().as_bytes().to_vec()),
        id::FIRMWARE => {
            let mut slots = FirmwareSlots::zeroed();
            slots.active = 1;
            slots.revisions[0] = padded(FIRMWARE);
            Ok(slots.as_bytes().to_vec())
        }
        id::CHANGED_NAMESPACES => {
            let changed: &[u32] = if admin.events.namespaces { &[NSID] } else { &[] };
            Ok(active_namespaces(0, changed).to_vec())
        }
        id::EFFECTS => Ok(effects().as_bytes().to_vec()),
        id::ANA => {
            let namespaces: &[u32] = if command.specific & GROUPS_ALONE == 0 { &[NSID] } else { &[] };
            let mut page = vec![0; 64];
            let len = AnaHeader::write(&mut page, admin.changes, ANA_GROUP, admin.ana(), namespaces);
            page.truncate(len.unwrap_or(0));
            Ok(page)
        }
        _ => Err(Status::INVALID_LOG_PAGE),
    }
}

/// Which commands there are, and what they change.
fn effects() -> Effects {
    let mut effects = Effects::zeroed();
    let admin = [
        op::GET_LOG_PAGE,
        op::IDENTIFY,
        op::ABORT,
        op::SET_FEATURES,
        op::GET_FEATURES,
        op::ASYNC_EVENT_REQUEST,
        op::KEEP_ALIVE,
    ];
    for opcode in admin {
        effects.admin[usize::from(opcode)] = Effects::SUPPORTED.into();
    }
    for opcode in [io::FLUSH, io::READ, io::COMPARE, io::VERIFY] {
        effects.io[usize::from(opcode)] = Effects::SUPPORTED.into();
    }
    for opcode in [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::COPY] {
        effects.io[usize::from(opcode)] = (Effects::SUPPORTED | Effects::CHANGES_BLOCKS).into();
    }
    effects
}

/// The leases of the host, which it reaches where it has reached this controller, and the subsystem of discovery.
fn discovery(admin: &Admin) -> Vec<u8> {
    let (generation, leases) = admin.target.leases_of(&admin.controller.host);
    let mut header = DiscoveryHeader::zeroed();
    header.generation = generation.into();
    header.records = (leases.len() as u64 + 1).into();
    let address = admin.local.ip().to_canonical();
    let record = |name: &str, subsystem_type| {
        let mut record = DiscoveryRecord::zeroed();
        record.transport = TCP;
        record.family = if address.is_ipv4() { 1 } else { 2 };
        record.subsystem_type = subsystem_type;
        record.port = 1.into();
        record.controller = 0xFFFF.into();
        record.admin_size = 32.into();
        record.service = padded(&admin.local.port().to_string());
        record.subnqn = field(name);
        record.address = padded(&address.to_string());
        record
    };
    let mut page = header.as_bytes().to_vec();
    page.extend_from_slice(record(DISCOVERY, 3).as_bytes());
    for name in &leases {
        page.extend_from_slice(record(name, 2).as_bytes());
    }
    page
}
