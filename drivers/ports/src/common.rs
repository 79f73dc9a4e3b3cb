//! Keys of several drivers.

use std::net::SocketAddr;

use berth_keys::{Key, Kind, Table, address, claim, key};
use berth_port::BURST;
use berth_wire::rendezvous::ImmForm;

use crate::Reading;

pub(crate) const BIND: Key = key("bind", Kind::Text, "the address to bind, UDP or TCP; for ofi the endpoint's own")
    .example("\"127.0.0.1:4700\"")
    .more(
        "Needed for sockets. Port 0 takes a free port; the \"berth ready\" line tells which. Without it the provider of ofi \
         chooses.",
    )
    .said();

pub(crate) const DEVICE: Key = key(
    "device",
    Kind::Text,
    "a PCI address, a virtual device with its arguments, or an RDMA device",
)
.required()
.example("\"0000:3b:00.0\"")
.more(
    "For example \"net_memif0,role=server,socket=/run/berth/fpga0.sock\", or \"mlx5_0\". `berth doctor` lists the \
             cards, and the commands that give them to DPDK.",
);

pub(crate) const RENDEZVOUS: Key = key("rendezvous", Kind::Text, "the TCP address where peers come to be let in")
    .example("\"10.1.0.2:18515\"")
    .more("Port 0 takes a free port. Needed, but for transport = \"roce\" with [[port.peer]].");

pub(crate) const RENDEZVOUS_FORM: Key = key(
    "rendezvous_form",
    Kind::Choice(&[("berth", "Berth's own"), ("host-api", "the 12 bytes of the CUDA-Q host API")]),
    "what is spoken there",
)
.default("\"berth\"");

pub(crate) const IMMEDIATE: Key = key(
    "immediate",
    Kind::Choice(&[("psn20", "20 bits"), ("psn24", "24 bits")]),
    "how many bits of sequence number stand above the slot",
)
.default("\"psn20\"");

/// Meanings of the words of [`IMMEDIATE`].
pub(crate) const IMMEDIATES: &[(&str, ImmForm)] = &[("psn20", ImmForm::Psn20), ("psn24", ImmForm::Psn24)];

pub(crate) const QUEUE: Key = key("queue", Kind::Integer(BURST as u64, 32_768), "frames that may wait for the port")
    .otherwise("some 5,000; with dpdk 1024")
    .example("1024")
    .fixed()
    .more("Beyond, they are dropped and counted, so that none waits longer than so many take.");

/// Reads the address that a socket is to bind, which no other port may use.
pub(crate) fn bind(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<SocketAddr> {
    let at = t.text("bind");
    let at = t.require("bind", at, "bind = \"127.0.0.1:0\"")?;
    let bind = address(t, &at)?;
    claim(t, reading.binds, &at, bind, format!("port \"{}\"", reading.label));
    Some(bind)
}
