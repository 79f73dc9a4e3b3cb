//! Identify: what a controller and its namespace are.

use berth_lease::Rights;
use berth_wire::nvme::{
    Status,
    admin::Identify,
    fabrics::property,
    identify::{BlockFormat, Controller, Descriptor, Namespace, NvmController, active_namespaces, cns, padded},
};
use zerocopy::IntoBytes;

use crate::{
    abort::ABORTS,
    admin::{Admin, EVENT_REQUESTS, Standing},
    connect::DISCOVERY,
    features::{flushes, offered},
    health::ERRORS,
    io::{COPY_RANGES, NSID},
    names::field,
    namespace::BLOCK,
    target::Subsystem,
};

/// The one ANA group.
pub(crate) const ANA_GROUP: u32 = 1;

/// FR, and the revision in the one firmware slot.
pub(crate) const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// CMIC: the subsystem may have several controllers, and reports ANA.
const CMIC: u8 = 1 << 1 | 1 << 3;
/// CTRATT: host identifiers of 128 bits, and any command keeps the association alive.
const CTRATT: u32 = 1 | 1 << 6;
/// LPA: effects, lengths and offsets.
const LPA: u8 = 1 << 1 | 1 << 2;
/// ANACAP: optimized, inaccessible, persistent loss.
const ANACAP: u8 = 1 | 1 << 2 | 1 << 3;
/// ONCS: Compare, Dataset Management, Write Zeroes, Verify, Copy.
const ONCS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 7 | 1 << 8;
/// OFCS: Disconnect.
const OFCS: u16 = 1;
/// SGLS: without alignment; data in the capsule by its offset.
const SGLS: u32 = 1 | 1 << 20;
/// VWC: there is a cache; Flush takes all namespaces at once.
const VWC: u8 = 0b111;

/// What Identify answers; `nsid` is the command's.
pub(crate) fn identify(admin: &Admin, command: Identify, nsid: u32) -> Result<Vec<u8>, Status> {
    let subsystem = admin.controller.subsystem.as_deref();
    if command.cns == cns::CONTROLLER {
        return Ok(controller(admin, subsystem).as_bytes().to_vec());
    }
    let subsystem = subsystem.ok_or(Status::INVALID_FIELD)?;
    let exists = admin.standing != Standing::Ended;
    match command.cns {
        cns::NAMESPACE if !exists && nsid == NSID => Ok(Namespace::zeroed().as_bytes().to_vec()),
        cns::NAMESPACE if nsid == NSID => Ok(namespace(subsystem).as_bytes().to_vec()),
        cns::ACTIVE_NAMESPACES if nsid >= 0xFFFF_FFFE => Err(Status::INVALID_NAMESPACE),
        cns::ACTIVE_NAMESPACES => Ok(active_namespaces(nsid, if exists { &[NSID] } else { &[] }).to_vec()),
        cns::DESCRIPTORS if exists && nsid == NSID => {
            let id = subsystem.namespace.lease.0.to_be_bytes();
            Ok(Descriptor::list(&[Descriptor::Nguid(id), Descriptor::Uuid(id)]).to_vec())
        }
        cns::NAMESPACE | cns::DESCRIPTORS => Err(Status::INVALID_NAMESPACE),
        cns::COMMAND_SET_CONTROLLER if command.command_set == 0 => Ok(limits(subsystem).as_bytes().to_vec()),
        _ => Err(Status::INVALID_FIELD),
    }
}

fn controller(admin: &Admin, subsystem: Option<&Subsystem>) -> Controller {
    let mut found = Controller::zeroed();
    found.firmware = padded(FIRMWARE);
    found.model = padded("Berth");
    found.mdts = (admin.longest() / 4096).ilog2() as u8;
    found.controller = admin.controller.id.into();
    found.version = property::VERSION.into();
    found.oaes = offered(admin).into();
    found.ctratt = CTRATT.into();
    found.acl = ABORTS as u8 - 1;
    found.aerl = EVENT_REQUESTS as u8 - 1;
    found.frmw = 1 << 1 | 1;
    found.lpa = LPA;
    found.elpe = ERRORS as u8 - 1;
    found.kas = 1.into();
    found.sqes = 0x66;
    found.cqes = 0x44;
    found.maxcmd = admin.target.limits().depth.into();
    found.sgls = SGLS.into();
    found.iorcsz = 1.into();
    found.msdbd = 1;
    let Some(subsystem) = subsystem else {
        found.serial = padded("discovery");
        found.controller_type = 2;
        found.ioccsz = 4.into();
        found.subnqn = field(DISCOVERY);
        return found;
    };
    // All controllers of a subsystem have the same; 20 digits are as much of the lease's id as there is room for.
    found.serial = padded(&subsystem.namespace.lease.to_string()[12..]);
    found.controller_type = 1;
    found.cmic = CMIC;
    found.anatt = 10;
    found.anacap = ANACAP;
    found.anagrpmax = ANA_GROUP.into();
    found.nanagrpid = 1.into();
    found.nn = NSID.into();
    found.mnan = NSID.into();
    found.ofcs = OFCS.into();
    found.oncs = ONCS.into();
    found.fuses = u16::from(subsystem.namespace.fuses()).into();
    found.vwc = if flushes(admin) { VWC } else { VWC & !1 };
    found.ioccsz = ((64 + admin.target.limits().in_capsule) / 16).into();
    found.subnqn = field(&subsystem.nqn);
    found
}

fn namespace(subsystem: &Subsystem) -> Namespace {
    let own = &subsystem.namespace;
    let mut found = Namespace::zeroed();
    found.nsze = own.blocks.into();
    found.ncap = own.blocks.into();
    found.nuse = own.blocks.into();
    found.nmic = 1;
    found.dlfeat = 1;
    found.anagrpid = ANA_GROUP.into();
    found.nsattr = u8::from(!own.rights.contains(Rights::WRITE));
    found.nguid = own.lease.0.to_be_bytes();
    found.lbaf[0] = BlockFormat { shift: BLOCK.ilog2() as u8, ..BlockFormat::zeroed() };
    let sector = own.engine.map_or(1, |engine| u64::from(engine.block_size) / BLOCK).max(1);
    found.nsfeat = 1 << 4;
    let less_one = (sector.min(1 << 16) - 1) as u16;
    (found.npwg, found.npwa, found.nows) = (less_one.into(), less_one.into(), less_one.into());
    let longest = own.longest / BLOCK as u32;
    found.mssrl = (longest.min(u16::MAX.into()) as u16).into();
    found.mcl = longest.into();
    found.msrc = COPY_RANGES as u8 - 1;
    found
}

/// Limits of commands that MDTS does not bound.
fn limits(subsystem: &Subsystem) -> NvmController {
    let longest = (subsystem.namespace.longest / 4096).ilog2() as u8;
    // 0 would be no limit.
    let mut limits = NvmController::zeroed();
    (limits.vsl, limits.wzsl) = (longest, longest);
    limits.dmrl = u8::MAX;
    limits.dmrsl = (subsystem.namespace.longest / BLOCK as u32).into();
    limits
}
