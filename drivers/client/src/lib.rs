//! A client of fabricBIOS nodes: control over UDP and QUIC, access to leases.
#![forbid(unsafe_code)]
