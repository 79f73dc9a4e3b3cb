//! The listeners of a node: control over UDP and QUIC, dataplanes over UDP, TCP and QUIC.
#![forbid(unsafe_code)]
