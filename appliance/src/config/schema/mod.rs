//! Every key of the configuration, once. The reader takes ranges, words and defaults from here, a reload what it may
//! change, and `berth config` prints the commented default file, the JSON schema and the reference from it.

mod hip;
mod host;
mod leases;
mod port;
mod print;
mod rpc;

pub use berth_keys::schema::{Key, Kind, Section};
use berth_keys::{Reload, key};
pub use print::{default_file, json_schema, reference};
pub(super) use rpc::{DEVICE, MODULE, PLUGIN};

/// The root of the document.
pub static ROOT: Section = Section::new(
    "",
    &[
        key("runtime", Kind::Table(&host::RUNTIME), "where the appliance runs, and on which memory").said(),
        key("log", Kind::Table(&host::LOG), "what is logged").live(),
        key("tune", Kind::Table(&host::TUNE), "what `berth tune` makes of the host"),
        key("admin", Kind::Table(&host::ADMIN), "where the appliance tells how it is").otherwise("off"),
        key("port", Kind::Tables(&port::PORT), "where requests come in").said(),
        key("node", Kind::Table(&leases::NODE), "this host as a node of the fabric"),
        key("control", Kind::Table(&leases::CONTROL), "the lease plane").otherwise("off"),
        key("region", Kind::Tables(&leases::REGION), "what can be leased"),
        key("dataplane", Kind::Table(&leases::DATAPLANE), "where leases are read and written beside ports"),
        key("binding", Kind::Tables(&leases::BINDING), "transports of their own that leases are connected to"),
        key("hip", Kind::Table(&hip::HIP), "HIP calls of remote clients").otherwise("off"),
        key("tasklet", Kind::Table(&leases::TASKLET), "WASM tasklets").otherwise("off"),
        key("decoder", Kind::Tables(&rpc::DECODER), "detector error models and what decodes them").live(),
        key("gpu", Kind::Tables(&rpc::GPU), "GPUs that functions run on, or that sessions of HIP Remote use"),
        key("function", Kind::Tables(&rpc::FUNCTION), "what requests can call").live().said(),
        key("message", Kind::Tables(&rpc::MESSAGE), "types of messages").live(),
        key("ring_kernel", Kind::Tables(&rpc::RING_KERNEL), "what answers messages").live(),
    ],
);

/// Whether a reload takes what stands at `field`, a path with or without positions in lists.
pub fn is_live(field: &str) -> bool {
    let (mut section, mut live) = (Some(&ROOT), false);
    for step in field.split('.') {
        let name = step.split('[').next().unwrap_or(step);
        let Some(key) = section.and_then(|section| section.key(name)) else { return false };
        live = match key.reload {
            Reload::AsTable => live,
            Reload::Live => true,
            Reload::Fixed => return false,
        };
        section = key.section();
    }
    live
}
