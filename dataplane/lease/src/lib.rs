//! Leases: the state machine, the table that every access probes, and who may touch which byte.
#![forbid(unsafe_code)]
